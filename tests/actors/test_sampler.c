/* test_sampler.c - every arrow of the state diagram in sampler.c.
 *
 * Method: the sampler of node a alone, with the bundled model planned over two nodes, so that it
 * holds half of the vocabulary. The test plays router, the other sampler, batcher and client. */
#include "tests/actors/real_cluster.h"

static const char *model_path;
static const tr_actor_id client = ((tr_actor_id)TR_ACTOR_CLIENT << 48) + 3;

typedef struct {
    fake f;
    real_cluster c;
    void *sampler;
} fixture;

static void open_sampler(fixture *x, const char *rules)
{
    real_cluster_make(&x->c, model_path, rules);
    fake_open(&x->f, tr_node_actor(TR_ACTOR_SAMPLER, 0));
    x->sampler = real_actor_open(&x->f, &x->c, &tr_sampler_ops, tr_sampler_count);
}

static void close_sampler(fixture *x)
{
    fake_clear(&x->f);
    real_actor_close(&x->c, &tr_sampler_ops, x->sampler);
    fake_close(&x->f);
}

/* Final rows of one or two outputs. */
static void give_final(fixture *x, uint64_t step, uint32_t outputs, uint32_t flags)
{
    static uint8_t data[16384];
    uint32_t width = x->c.node.spec->hidden_size;
    tr_step_head head = {
        .rows_count = 2, .segments_count = 1, .outputs_count = outputs, .width = width};
    uint32_t size = tr_step_layout(&head, TR_MSG_FINAL_ROWS);
    memset(data, 0, sizeof(data));
    memcpy(data, &head, sizeof(head));
    for (uint32_t i = 0; i < outputs; i++) {
        ((tr_output *)(void *)(data + head.outputs_offset))[i] =
            (tr_output){.row = i,
                        .position = 10 + i,
                        .request = 5,
                        .client = client,
                        .flags = flags,
                        .sampling = {.top_p = 1}};
        for (uint32_t d = 0; d < width; d++)
            ((float *)(void *)(data + head.rows_offset))[i * width + d] =
                (float)((d * 7 + i) % 13) - 6;
    }
    fake_give(&x->f, &tr_sampler_ops, x->sampler, tr_node_actor(TR_ACTOR_ROUTER, 0),
              TR_MSG_FINAL_ROWS, step, 0, data, size);
}

/* The other sampler's half for one output: all very low but for one token, if any. */
static void give_logits(fixture *x, uint64_t step, uint32_t output, int32_t winner)
{
    static uint8_t data[16384];
    uint32_t half = x->c.node.spec->vocab_size / 2;
    tr_step_head head = {
        .rows_count = 1, .width = half, .first = half, .output_first = output};
    uint32_t size = tr_step_layout(&head, TR_MSG_LOGITS);
    memcpy(data, &head, sizeof(head));
    float *rows = (void *)(data + head.rows_offset);
    for (uint32_t i = 0; i < half; i++)
        rows[i] = (int32_t)(half + i) == winner ? 1000.0f : -1000.0f;
    fake_give(&x->f, &tr_sampler_ops, x->sampler, tr_node_actor(TR_ACTOR_SAMPLER, 1),
              TR_MSG_LOGITS, step, 0, data, size);
}

static tr_token read_token(const fixture *x, uint32_t i)
{
    uint32_t count = 0;
    const tr_msg *msg = fake_find(&x->f, TR_MSG_TOKENS);
    assert_non_null(msg);
    const tr_token *tokens = tr_tokens_read(msg, 4, &count);
    assert_non_null(tokens);
    assert_true(i < count);
    return tokens[i];
}

static void the_lead_draws_when_both_halves_are_there(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_final(&x, 1, 1, TR_OUTPUT_SAMPLE);
    assert_int_equal(x.f.sent_count, 0);
    give_logits(&x, 1, 0, 3000);
    assert_int_equal(read_token(&x, 0).token, 3000);
    assert_int_equal(read_token(&x, 0).request, 5);
    close_sampler(&x);
}

static void the_other_half_may_come_first(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_logits(&x, 1, 0, -1);
    give_final(&x, 1, 1, TR_OUTPUT_SAMPLE);
    assert_in_range(read_token(&x, 0).token, 0, 2047); /* ours are all higher than -1000 */
    close_sampler(&x);
}

static void a_step_without_outputs_is_told_at_once(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_final(&x, 1, 0, 0);
    uint32_t count = 9;
    assert_non_null(tr_tokens_read(fake_find(&x.f, TR_MSG_TOKENS), 4, &count));
    assert_int_equal(count, 0);
    close_sampler(&x);
}

static void a_failed_row_gives_no_token(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_final(&x, 1, 1, TR_OUTPUT_SAMPLE | TR_OUTPUT_FAILED);
    give_logits(&x, 1, 0, 3000);
    assert_int_equal(read_token(&x, 0).failed, 1);
    assert_int_equal(read_token(&x, 0).token, -1);
    close_sampler(&x);
}

static void exported_rows_wait_for_a_buffer_and_tokens_for_them(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_final(&x, 1, 2, TR_OUTPUT_EXPORT);
    give_logits(&x, 1, 0, 3000);

    /* the last logits come while the pool is empty: the message is made before that */
    uint32_t half = x.c.node.spec->vocab_size / 2;
    tr_step_head head = {.rows_count = 1, .width = half, .first = half, .output_first = 1};
    uint32_t size = tr_step_layout(&head, TR_MSG_LOGITS);
    tr_msg msg = {.header = {.kind = TR_MSG_LOGITS, .step = 1, .payload_size = size},
                  .payload = tr_pool_take(x.f.pool, size)};
    memset(msg.payload->data, 0, size);
    memcpy(msg.payload->data, &head, sizeof(head));
    x.f.pool_empty = true;
    CHECK_STATUS(tr_sampler_ops.receive(x.sampler, &msg), TR_OK);
    tr_buf_unref(msg.payload);
    assert_int_equal(x.f.sent_count, 0);
    assert_int_equal(x.f.timers_count, 1);

    x.f.pool_empty = false;
    fake_give(&x.f, &tr_sampler_ops, x.sampler, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_LOGITS_ROW), 2);
    assert_int_equal(fake_count(&x.f, TR_MSG_TOKENS), 1);
    assert_true(fake_find(&x.f, TR_MSG_LOGITS_ROW)->header.target == client);
    assert_int_equal(x.f.sent[2].header.kind, TR_MSG_TOKENS); /* after the rows */
    close_sampler(&x);
}

static void a_timer_of_an_earlier_step_does_not_end_a_later_one(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_final(&x, 1, 1, TR_OUTPUT_EXPORT);
    give_final(&x, 3, 1, TR_OUTPUT_SAMPLE); /* the same slot */
    fake_give(&x.f, &tr_sampler_ops, x.sampler, 0, TR_MSG_TIMER, 0, 1, NULL, 0);
    assert_int_equal(x.f.sent_count, 0);
    give_logits(&x, 3, 0, 3000);
    assert_int_equal(read_token(&x, 0).token, 3000);
    close_sampler(&x);
}

static void a_dead_peer_fails_the_steps_that_wait_for_its_logits(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_final(&x, 1, 1, TR_OUTPUT_SAMPLE);
    fake_give(&x.f, &tr_sampler_ops, x.sampler, 0, TR_MSG_PEER_DOWN, 0, 1, NULL, 0);
    assert_int_equal(fake_find(&x.f, TR_MSG_STEP_FAILED)->header.step, 1);
    fake_clear(&x.f);
    give_final(&x, 2, 1, TR_OUTPUT_SAMPLE);
    assert_int_equal(fake_find(&x.f, TR_MSG_STEP_FAILED)->header.step, 2);
    assert_int_equal(fake_find(&x.f, TR_MSG_STEP_FAILED)->header.argument, (uint32_t)-TR_E_PEER);
    close_sampler(&x);
}

static void stale_and_repeated_messages_fail_their_step_only(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "");
    give_final(&x, 3, 1, TR_OUTPUT_SAMPLE);
    give_logits(&x, 1, 0, 3000); /* an older step of the same slot */
    assert_int_equal(fake_find(&x.f, TR_MSG_STEP_FAILED)->header.step, 1);
    give_logits(&x, 3, 0, 3000);
    assert_int_equal(read_token(&x, 0).token, 3000);
    fake_clear(&x.f);
    give_final(&x, 3, 1, TR_OUTPUT_SAMPLE); /* told already */
    assert_int_equal(fake_count(&x.f, TR_MSG_TOKENS), 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    close_sampler(&x);
}

static void a_sampler_that_does_not_lead_sends_its_half(void **state)
{
    fixture x;
    (void)state;
    open_sampler(&x, "sampler: b\n");
    give_final(&x, 1, 2, TR_OUTPUT_SAMPLE);
    const tr_msg *msg = fake_find(&x.f, TR_MSG_LOGITS);
    assert_non_null(msg);
    assert_true(msg->header.target == tr_node_actor(TR_ACTOR_SAMPLER, 1));
    tr_step_view v;
    CHECK_STATUS(tr_step_read(&v, msg, &x.c.node.limits, NULL), TR_OK);
    assert_int_equal(v.head.width, 2048);
    assert_int_equal(v.head.rows_count, 2);
    assert_int_equal(fake_count(&x.f, TR_MSG_TOKENS), 0);
    close_sampler(&x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lead_draws_when_both_halves_are_there),
        cmocka_unit_test(the_other_half_may_come_first),
        cmocka_unit_test(a_step_without_outputs_is_told_at_once),
        cmocka_unit_test(a_failed_row_gives_no_token),
        cmocka_unit_test(exported_rows_wait_for_a_buffer_and_tokens_for_them),
        cmocka_unit_test(a_timer_of_an_earlier_step_does_not_end_a_later_one),
        cmocka_unit_test(a_dead_peer_fails_the_steps_that_wait_for_its_logits),
        cmocka_unit_test(stale_and_repeated_messages_fail_their_step_only),
        cmocka_unit_test(a_sampler_that_does_not_lead_sends_its_half),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_sampler MODEL\n");
        return 2;
    }
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
