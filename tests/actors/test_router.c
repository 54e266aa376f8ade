/* test_router.c - every arrow of the state diagram in router.c.
 *
 * Method: the router of node a alone, with the bundled model planned over two nodes. The test plays
 * batcher and shards; the shards answer with zero sums, so the residual stays the embedding. */
#include "tests/actors/real_cluster.h"

#include "actors/switch.h"
#include "core/plan_edit.h"

#define LAYERS 8
#define ROWS   3

static const char *model_path;

typedef struct {
    fake f;
    real_cluster c;
    void *router;
} fixture;

static void open_router(fixture *x, const char *rules)
{
    real_cluster_make(&x->c, model_path, rules);
    fake_open(&x->f, tr_node_actor(TR_ACTOR_ROUTER, 0));
    x->router = real_actor_open(&x->f, &x->c, &tr_router_ops, tr_router_count);
}

static void close_router(fixture *x)
{
    fake_clear(&x->f);
    real_actor_close(&x->c, &tr_router_ops, x->router);
    fake_close(&x->f);
}

static void give_step(fixture *x, uint64_t step, uint32_t outputs)
{
    uint8_t data[4096] = {0};
    tr_step_head head = {.rows_count = ROWS, .segments_count = 1, .outputs_count = outputs};
    uint32_t size = tr_step_layout(&head, TR_MSG_STEP);
    assert_true(size <= sizeof(data));
    memcpy(data, &head, sizeof(head));
    *(tr_segment *)(void *)(data + head.segments_offset) =
        (tr_segment){.rows_count = ROWS, .form = TR_FORM_PREFILL};
    for (uint32_t i = 0; i < outputs; i++)
        ((tr_output *)(void *)(data + head.outputs_offset))[i] =
            (tr_output){.row = ROWS - 1 - i, .request = 5, .flags = TR_OUTPUT_SAMPLE};
    int32_t tokens[ROWS] = {17, 300, 4000};
    memcpy(data + head.tokens_offset, tokens, sizeof(tokens));
    fake_give(&x->f, &tr_router_ops, x->router, tr_node_actor(TR_ACTOR_BATCHER, 0), TR_MSG_STEP,
              step, 0, data, size);
}

/* Zero sums from the shard of a node; bad: row 1 met NaN. */
static void give_partial(fixture *x, uint64_t step, uint32_t node, uint32_t layer, tr_sub_layer sub,
                         bool bad)
{
    static uint8_t data[65536];
    uint32_t width = x->c.node.spec->hidden_size;
    tr_step_head head = {.rows_count = ROWS, .layer = layer, .width = width};
    tr_step_layout(&head, TR_MSG_PARTIAL);
    memset(data, 0, sizeof(data));
    memcpy(data, &head, sizeof(head));
    data[head.flags_offset + 1] = bad;
    fake_give(&x->f, &tr_router_ops, x->router,
              tr_node_actor(
                  sub == TR_SUB_ATTENTION ? TR_ACTOR_ATTENTION_SHARD : TR_ACTOR_EXPERT_SHARD, node),
              TR_MSG_PARTIAL, step, sub, data, head.rows_offset + ROWS * width * 4);
}

static void give_both(fixture *x, uint64_t step, uint32_t layer, tr_sub_layer sub)
{
    give_partial(x, step, 0, layer, sub, false);
    give_partial(x, step, 1, layer, sub, false);
}

static tr_step_view read_rows(const fixture *x, tr_msg_kind kind)
{
    tr_step_view v = {0};
    tr_error err = {0};
    const tr_msg *msg = fake_find(&x->f, kind);
    assert_non_null(msg);
    CHECK_STATUS(tr_step_read(&v, msg, &x->c.node.limits, &err), TR_OK);
    return v;
}

static void a_step_goes_through_all_layers_to_the_samplers(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_step(&x, 1, 1);
    for (uint32_t l = 0; l < LAYERS; l++) {
        /* rows go to the shard beside us; the other node's router feeds its own */
        assert_int_equal(fake_count(&x.f, TR_MSG_ATTENTION_ROWS), 1);
        assert_int_equal(read_rows(&x, TR_MSG_ATTENTION_ROWS).head.layer, l);
        fake_clear(&x.f);
        give_partial(&x, 1, 1, l, TR_SUB_ATTENTION, false);
        assert_int_equal(x.f.sent_count, 0); /* one of two */
        give_partial(&x, 1, 0, l, TR_SUB_ATTENTION, false);
        tr_step_view v = read_rows(&x, TR_MSG_EXPERT_ROWS);
        assert_int_equal(v.head.first, 2); /* top_k */
        fake_clear(&x.f);
        give_both(&x, 1, l, TR_SUB_CHANNEL);
    }
    tr_step_view v = read_rows(&x, TR_MSG_FINAL_ROWS);
    assert_int_equal(v.head.outputs_count, 1);
    assert_int_equal(v.outputs[0].row, ROWS - 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 0);

    /* zero sums: the final row is the embedding of its token */
    const uint32_t width = x.c.node.spec->hidden_size;
    tr_weight embed = tr_model_weight(x.c.model, 0, TR_W_EMBED, 0);
    tr_weight row = tr_weight_slice(&embed, 4000, 1, 0, width);
    float *expected = calloc(width, sizeof(float));
    tr_weight_to_f32(expected, &row);
    assert_memory_equal(v.rows, expected, width * sizeof(float));
    free(expected);
    close_router(&x);
}

static void sums_that_come_early_wait_for_their_sub_layer(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_partial(&x, 1, 1, 0, TR_SUB_ATTENTION, false); /* before the step itself */
    give_step(&x, 1, 1);
    fake_clear(&x.f);
    give_partial(&x, 1, 1, 0, TR_SUB_CHANNEL, false); /* the peer is one sub-layer ahead */
    assert_int_equal(x.f.sent_count, 0);
    give_partial(&x, 1, 0, 0, TR_SUB_ATTENTION, false);
    assert_int_equal(fake_count(&x.f, TR_MSG_EXPERT_ROWS), 1);
    fake_clear(&x.f);
    give_partial(&x, 1, 0, 0, TR_SUB_CHANNEL, false);
    assert_int_equal(read_rows(&x, TR_MSG_ATTENTION_ROWS).head.layer, 1);
    close_router(&x);
}

static void a_shard_that_answers_twice_fails_the_step(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_step(&x, 1, 1);
    give_partial(&x, 1, 1, 0, TR_SUB_ATTENTION, false);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 0);
    give_partial(&x, 1, 1, 0, TR_SUB_ATTENTION, false);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    close_router(&x);
}

static void a_failed_step_leaves_its_slot_to_the_next(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_step(&x, 1, 1);
    give_partial(&x, 1, 1, 0, TR_SUB_ATTENTION, false);
    give_partial(&x, 1, 1, 0, TR_SUB_ATTENTION, false); /* fails step 1 */
    give_partial(&x, 1, 0, 0, TR_SUB_ATTENTION, false); /* stale */
    fake_clear(&x.f);
    give_step(&x, 3, 1); /* the same slot */
    assert_int_equal(fake_count(&x.f, TR_MSG_ATTENTION_ROWS), 1);
    give_both(&x, 3, 0, TR_SUB_ATTENTION);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 0);
    close_router(&x);
}

static void a_later_step_takes_the_place_of_one_that_hangs(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_step(&x, 1, 1);
    give_partial(&x, 1, 0, 0, TR_SUB_ATTENTION, false); /* the other shard has failed */
    fake_clear(&x.f);
    give_step(&x, 3, 1); /* the same slot: the batcher has ended step 1 */
    assert_int_equal(fake_count(&x.f, TR_MSG_ATTENTION_ROWS), 1);
    assert_int_equal(fake_find(&x.f, TR_MSG_ATTENTION_ROWS)->header.step, 3);
    give_partial(&x, 1, 1, 0, TR_SUB_ATTENTION, false); /* too late */
    assert_int_equal(fake_count(&x.f, TR_MSG_EXPERT_ROWS), 0);
    give_both(&x, 3, 0, TR_SUB_ATTENTION);
    assert_int_equal(fake_count(&x.f, TR_MSG_EXPERT_ROWS), 1);
    close_router(&x);
}

/* The batcher says that a step has failed: nothing of it is kept, whether or not it came this far.
 */
static void a_step_that_failed_elsewhere_holds_no_buffer(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    uint32_t free_count = tr_pool_free_count(x.f.pool);
    give_partial(&x, 2, 1, 0, TR_SUB_ATTENTION, false); /* early: the step has not come */
    assert_int_equal(tr_pool_free_count(x.f.pool), free_count - 1);
    fake_give(&x.f, &tr_router_ops, x.router, tr_node_actor(TR_ACTOR_BATCHER, 0),
              TR_MSG_STEP_FAILED, 2, 0, NULL, 0);
    assert_int_equal(tr_pool_free_count(x.f.pool), free_count);
    give_partial(&x, 2, 0, 0, TR_SUB_ATTENTION, false); /* comes after all */
    assert_int_equal(tr_pool_free_count(x.f.pool), free_count);
    give_step(&x, 4, 1);
    fake_give(&x.f, &tr_router_ops, x.router, tr_node_actor(TR_ACTOR_BATCHER, 0),
              TR_MSG_STEP_FAILED, 2, 0, NULL, 0); /* an older one of the slot: not ours any more */
    fake_clear(&x.f);
    give_both(&x, 4, 0, TR_SUB_ATTENTION);
    assert_int_equal(fake_count(&x.f, TR_MSG_EXPERT_ROWS), 1);
    close_router(&x);
}

static void a_dead_peer_fails_the_steps_that_wait_for_it(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_step(&x, 1, 1);
    fake_clear(&x.f);
    fake_give(&x.f, &tr_router_ops, x.router, 0, TR_MSG_PEER_DOWN, 0, 1, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    assert_int_equal(fake_find(&x.f, TR_MSG_STEP_FAILED)->header.argument, (uint32_t)-TR_E_PEER);
    fake_clear(&x.f);
    give_step(&x, 2, 1); /* the batcher may not know yet */
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_ATTENTION_ROWS), 0);
    close_router(&x);
}

/* Otherwise the batcher would wait for a change of placement that nobody makes. */
static void the_death_of_a_drained_node_ends_no_step(void **state)
{
    fixture x;
    uint32_t moved = 0;
    tr_error err = {0};
    (void)state;
    real_cluster_make(&x.c, model_path, "");
    CHECK_STATUS(tr_plan_drain(&x.c.plan, 1, 1u << 0, NULL, &moved, &err), TR_OK);
    fake_open(&x.f, tr_node_actor(TR_ACTOR_ROUTER, 0));
    x.router = real_actor_open(&x.f, &x.c, &tr_router_ops, tr_router_count);
    give_step(&x, 1, 1);
    fake_give(&x.f, &tr_router_ops, x.router, 0, TR_MSG_PEER_DOWN, 0, 1, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 0);
    fake_clear(&x.f);
    give_partial(&x, 1, 0, 0, TR_SUB_ATTENTION, false);
    assert_int_equal(fake_count(&x.f, TR_MSG_EXPERT_ROWS), 1);
    close_router(&x);
}

/* The state is another one then. */
static void who_is_gone_is_known_under_the_next_placement(void **state)
{
    fixture x;
    _Atomic uint32_t done = 0;
    (void)state;
    open_router(&x, "");
    tr_arena before = x.c.arena;
    size_t before_size = x.c.arena_size;
    void *fresh = real_actor_open(&x.f, &x.c, &tr_router_ops, tr_router_count);
    tr_switch go = {.what = TR_SWITCH_GO_OVER, .fresh = fresh, .node = &x.c.node, .done = &done};
    fake_give(&x.f, &tr_router_ops, x.router, 0, TR_MSG_PEER_DOWN, 0, 1, NULL, 0);
    fake_give(&x.f, &tr_router_ops, x.router, 0, TR_MSG_SWITCH, 0, 0, &go, sizeof(go));
    assert_int_equal(done, 1);
    give_step(&x, 1, 1); /* the batcher may not know yet */
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    free(fresh);
    tr_arena_free(&before, before_size);
    close_router(&x);
}

static void two_steps_are_kept_apart(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_step(&x, 1, 1);
    give_step(&x, 2, 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_ATTENTION_ROWS), 2);
    fake_clear(&x.f);
    give_both(&x, 2, 0, TR_SUB_ATTENTION);
    const tr_msg *msg = fake_find(&x.f, TR_MSG_EXPERT_ROWS);
    assert_non_null(msg);
    assert_int_equal(msg->header.step, 2);
    close_router(&x);
}

static void a_row_that_met_nan_is_marked_to_the_end(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    give_step(&x, 1, 2); /* outputs: rows 2 and 1 */
    give_partial(&x, 1, 0, 0, TR_SUB_ATTENTION, true);
    give_partial(&x, 1, 1, 0, TR_SUB_ATTENTION, false);
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (l > 0)
            give_both(&x, 1, l, TR_SUB_ATTENTION);
        give_both(&x, 1, l, TR_SUB_CHANNEL);
    }
    tr_step_view v = read_rows(&x, TR_MSG_FINAL_ROWS);
    assert_int_equal(v.outputs[0].flags & TR_OUTPUT_FAILED, 0);
    assert_int_equal(v.outputs[1].flags & TR_OUTPUT_FAILED, TR_OUTPUT_FAILED);
    close_router(&x);
}

static void a_lone_router_feeds_the_shards_of_the_other_node(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "routers: [{node: a, layers: all}]\n");
    give_step(&x, 1, 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_ATTENTION_ROWS), 2);
    close_router(&x);
}

static void the_end_of_a_span_hands_the_rows_over(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "routers: [{node: a, layers: 0-1}, {node: b, layers: 2-7}]\n");
    give_step(&x, 1, 1);
    for (uint32_t l = 0; l < 2; l++) {
        give_both(&x, 1, l, TR_SUB_ATTENTION);
        give_both(&x, 1, l, TR_SUB_CHANNEL);
    }
    const tr_msg *msg = fake_find(&x.f, TR_MSG_RESIDUAL);
    assert_non_null(msg);
    assert_true(msg->header.target == tr_node_actor(TR_ACTOR_ROUTER, 1));
    assert_int_equal(read_rows(&x, TR_MSG_RESIDUAL).head.layer, 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_FINAL_ROWS), 0);
    close_router(&x);
}

static void a_bad_step_and_an_empty_pool_fail_the_step(void **state)
{
    fixture x;
    (void)state;
    open_router(&x, "");
    fake_give(&x.f, &tr_router_ops, x.router, tr_node_actor(TR_ACTOR_BATCHER, 0), TR_MSG_STEP, 1, 0,
              "cut", 3);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    fake_clear(&x.f);
    x.f.pool_empty = true;
    give_step(&x, 2, 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    assert_int_equal(fake_find(&x.f, TR_MSG_STEP_FAILED)->header.argument, (uint32_t)-TR_E_NOMEM);
    x.f.pool_empty = false;
    close_router(&x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_goes_through_all_layers_to_the_samplers),
        cmocka_unit_test(sums_that_come_early_wait_for_their_sub_layer),
        cmocka_unit_test(a_shard_that_answers_twice_fails_the_step),
        cmocka_unit_test(a_failed_step_leaves_its_slot_to_the_next),
        cmocka_unit_test(a_later_step_takes_the_place_of_one_that_hangs),
        cmocka_unit_test(a_step_that_failed_elsewhere_holds_no_buffer),
        cmocka_unit_test(a_dead_peer_fails_the_steps_that_wait_for_it),
        cmocka_unit_test(the_death_of_a_drained_node_ends_no_step),
        cmocka_unit_test(who_is_gone_is_known_under_the_next_placement),
        cmocka_unit_test(two_steps_are_kept_apart),
        cmocka_unit_test(a_row_that_met_nan_is_marked_to_the_end),
        cmocka_unit_test(a_lone_router_feeds_the_shards_of_the_other_node),
        cmocka_unit_test(the_end_of_a_span_hands_the_rows_over),
        cmocka_unit_test(a_bad_step_and_an_empty_pool_fail_the_step),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_router MODEL\n");
        return 2;
    }
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
