/* test_residual.c - routers with a bank of residual streams, and with an n-gram table.
 *
 * Goal: a bank goes through layers and spans whole; what leaves is the formula in float64; the
 * arrows to and from the n-gram table. Method: the router of node a alone with golden models; the
 * test plays batcher, shards and table. Sums are zero, so what is read comes from the embedding. */
#include "tests/actors/real_cluster.h"

#include <math.h>

enum { ROWS = 3 };

static const char *models[2]; /* glm5_next: mHC; qwen4_exp: gated, a table at layer 1 */
static const int32_t tokens[ROWS] = {17, 300, 444};

typedef struct {
    fake f;
    real_cluster c;
    void *router;
    uint32_t hidden, width, layers;
} fixture;

static void open_router(fixture *x, const char *model, const char *rules)
{
    real_cluster_make(&x->c, model, rules);
    fake_open(&x->f, tr_node_actor(TR_ACTOR_ROUTER, 0));
    x->router = real_actor_open(&x->f, &x->c, &tr_router_ops, tr_router_count);
    x->hidden = x->c.node.spec->hidden_size;
    x->width = x->c.node.limits.bank_size;
    x->layers = x->c.node.spec->layers_count;
    assert_int_equal(x->width, 4 * x->hidden);
}

static void close_router(fixture *x)
{
    fake_clear(&x->f);
    real_actor_close(&x->c, &tr_router_ops, x->router);
    fake_close(&x->f);
}

static void give(fixture *x, tr_actor_kind from, uint32_t node, tr_msg_kind kind, uint32_t argument,
                 const void *data, size_t size)
{
    fake_give(&x->f, &tr_router_ops, x->router, tr_node_actor(from, node), kind, 1, argument, data,
              size);
}

static void give_step(fixture *x)
{
    uint8_t data[4096] = {0};
    tr_step_head head = {.rows_count = ROWS, .segments_count = 1, .outputs_count = 2};
    uint32_t size = tr_step_layout(&head, TR_MSG_STEP);

    memcpy(data, &head, sizeof(head));
    *(tr_segment *)(void *)(data + head.segments_offset) =
        (tr_segment){.rows_count = ROWS, .form = TR_FORM_PREFILL};
    tr_output *outputs = (void *)(data + head.outputs_offset);
    outputs[0] = (tr_output){.row = 2, .request = 5, .flags = TR_OUTPUT_SAMPLE};
    outputs[1] = (tr_output){.row = 0, .request = 5, .flags = TR_OUTPUT_SAMPLE};
    memcpy(data + head.tokens_offset, tokens, sizeof(tokens));
    give(x, TR_ACTOR_BATCHER, 0, TR_MSG_STEP, 0, data, size);
}

/* Zero sums of both nodes, as far as the sub-layer expects them. */
static void give_partial(fixture *x, uint32_t node, uint32_t layer, tr_sub_layer sub)
{
    static uint8_t data[8192];
    tr_step_head head = {.rows_count = ROWS, .layer = layer, .width = x->hidden};

    tr_step_layout(&head, TR_MSG_PARTIAL);
    memset(data, 0, sizeof(data));
    memcpy(data, &head, sizeof(head));
    give(x, sub == TR_SUB_ATTENTION ? TR_ACTOR_ATTENTION_SHARD : TR_ACTOR_EXPERT_SHARD, node,
         TR_MSG_PARTIAL, sub, data, head.rows_offset + ROWS * x->hidden * 4);
}

static void give_layer(fixture *x, uint32_t layer)
{
    give_partial(x, 0, layer, TR_SUB_ATTENTION);
    give_partial(x, 0, layer, TR_SUB_CHANNEL);
}

static void give_add(fixture *x, uint32_t node, uint32_t layer, float value)
{
    static uint8_t data[8192];
    tr_step_head head = {.rows_count = ROWS, .layer = layer, .width = x->width};
    uint32_t size = tr_step_layout(&head, TR_MSG_NGRAM_ADD);

    assert_true(size <= sizeof(data));
    memset(data, 0, sizeof(data));
    memcpy(data, &head, sizeof(head));
    for (uint32_t i = 0; i < ROWS * x->width; i++)
        memcpy(data + head.rows_offset + i * sizeof(value), &value, sizeof(value));
    give(x, TR_ACTOR_NGRAM, node, TR_MSG_NGRAM_ADD, 0, data, size);
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

static float *floats_of(const fixture *x, tr_weight_role role)
{
    tr_weight w = tr_model_weight(x->c.model, 0, role, 0);
    float *f = calloc((size_t)w.rows * w.cols, sizeof(float));

    assert_non_null(f);
    tr_weight_to_f32(f, &w);
    return f;
}

/* Everything of the two nodes on node a, so that one shard of each kind answers. */
#define ON_A "attention: [{node: a}]\nexperts: [{node: a}]\nslices: [{node: a}]\n"

static void the_mean_of_streams_that_only_mix_is_the_embedding(void **state)
{
    fixture x;
    (void)state;

    open_router(&x, models[0], ON_A);
    float *embed = floats_of(&x, TR_W_EMBED);
    give_step(&x);
    for (uint32_t l = 0; l < x.layers; l++) {
        assert_int_equal(read_rows(&x, TR_MSG_ATTENTION_ROWS).head.width, x.hidden);
        fake_clear(&x.f);
        give_layer(&x, l);
    }
    tr_step_view v = read_rows(&x, TR_MSG_FINAL_ROWS);
    assert_int_equal(v.head.width, x.hidden);
    for (uint32_t d = 0; d < x.hidden; d++) { /* columns of the matrix sum up to 1 */
        double first = embed[(size_t)tokens[2] * x.hidden + d];
        assert_true(fabs(v.rows[d] - first) <= 1e-4 * fabs(first));
    }
    free(embed);
    close_router(&x);
}

/* The gated mean of a bank row, in float64: [hidden]. */
static void reference_read(const fixture *x, double *out, const double *bank,
                           const tr_weight_role roles[3])
{
    const tr_model_spec *spec = x->c.node.spec;
    uint32_t n = spec->residual.streams, D = x->hidden, rank = spec->residual.rank;
    float *norm = floats_of(x, roles[0]), *down = floats_of(x, roles[1]);
    float *up = floats_of(x, roles[2]);
    double normed[1024], low[256];

    assert_true(x->width <= 1024 && rank <= 256);
    for (uint32_t i = 0; i < x->width; i++) {
        double squares = 0;
        for (uint32_t d = 0; d < D; d++)
            squares += pow(bank[i / D * D + d], 2);
        normed[i] = bank[i] / sqrt(squares / D + (double)spec->rms_norm_eps) *
                    ((double)norm[i] + (double)spec->norm_offset);
    }
    for (uint32_t r = 0; r < rank; r++) {
        double z = 0;
        for (uint32_t i = 0; i < x->width; i++)
            z += (double)down[(size_t)r * x->width + i] * normed[i] / n;
        low[r] = z / (1 + exp(-z));
    }
    memset(out, 0, D * sizeof(*out));
    for (uint32_t i = 0; i < x->width; i++) {
        double z = 0;
        for (uint32_t r = 0; r < rank; r++)
            z += (double)up[(size_t)i * rank + r] * low[r];
        out[i % D] += normed[i] / (1 + exp(-z)) / n;
    }
    free(norm);
    free(down);
    free(up);
}

static void check_read(const fixture *x, const float *got, double added, uint32_t row,
                       const tr_weight_role roles[3])
{
    float *embed = floats_of(x, TR_W_EMBED);
    double bank[1024], expected[256];

    assert_true(x->hidden <= 256);
    for (uint32_t i = 0; i < x->width; i++)
        bank[i] = embed[(size_t)tokens[row] * x->hidden + i % x->hidden] + added;
    reference_read(x, expected, bank, roles);
    for (uint32_t d = 0; d < x->hidden; d++)
        assert_true(fabs(got[d] - expected[d]) <= 1e-5);
    free(embed);
}

static void gated_streams_are_read_as_the_formula_says(void **state)
{
    static const tr_weight_role first[3] = {TR_W_HC_ATTENTION_NORM, TR_W_HC_ATTENTION_DOWN,
                                            TR_W_HC_ATTENTION_UP};
    static const tr_weight_role last[3] = {TR_W_HC_FINAL_NORM, TR_W_HC_FINAL_DOWN,
                                           TR_W_HC_FINAL_UP};
    fixture x;
    (void)state;

    open_router(&x, models[1], ON_A);
    give_step(&x);
    tr_step_view v = read_rows(&x, TR_MSG_ATTENTION_ROWS);
    for (uint32_t t = 0; t < ROWS; t++)
        check_read(&x, v.rows + (size_t)t * x.hidden, 0, t, first);
    for (uint32_t l = 0; l < x.layers; l++) {
        if (l == 1)
            give_add(&x, 0, 1, 0.5f);
        fake_clear(&x.f);
        give_layer(&x, l);
    }
    v = read_rows(&x, TR_MSG_FINAL_ROWS);
    check_read(&x, v.rows, 0.5, 2, last);
    check_read(&x, v.rows + x.hidden, 0.5, 0, last);
    close_router(&x);
}

static void a_span_hands_over_the_bank_and_the_tokens(void **state)
{
    fixture x;
    (void)state;

    open_router(&x, models[1], ON_A "routers: [{node: a, layers: 0}, {node: b, layers: 1-last}]\n");
    float *embed = floats_of(&x, TR_W_EMBED);
    give_step(&x);
    fake_clear(&x.f);
    give_layer(&x, 0);
    tr_step_view v = read_rows(&x, TR_MSG_RESIDUAL);
    assert_int_equal(v.head.width, x.width);
    assert_memory_equal(v.tokens, tokens, sizeof(tokens));
    for (uint32_t i = 0; i < x.width; i++)
        assert_true(v.rows[i] == embed[(size_t)tokens[0] * x.hidden + i % x.hidden]);
    free(embed);
    close_router(&x);
}

static void a_layer_with_a_table_waits_for_it(void **state)
{
    fixture x;
    (void)state;

    /* attention on both nodes, so that both have routers */
    open_router(&x, models[1], "experts: [{node: a}]\nslices: [{node: a}]\nngram: b\n");
    give_step(&x);
    fake_clear(&x.f);
    give_partial(&x, 1, 0, TR_SUB_ATTENTION);
    give_layer(&x, 0);
    /* b's own router feeds the table on b */
    assert_int_equal(fake_count(&x.f, TR_MSG_NGRAM_ROWS), 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_ATTENTION_ROWS), 0);
    give_partial(&x, 0, 1, TR_SUB_ATTENTION); /* the peer is ahead: early */
    give_partial(&x, 1, 1, TR_SUB_ATTENTION);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 0);
    fake_clear(&x.f);
    give_add(&x, 1, 1, 0.25f);
    assert_int_equal(read_rows(&x, TR_MSG_ATTENTION_ROWS).head.layer, 1);
    assert_int_equal(read_rows(&x, TR_MSG_EXPERT_ROWS).head.layer, 1);
    fake_clear(&x.f);
    give_add(&x, 1, 1, 0.25f); /* twice: its time is over */
    assert_int_equal(x.f.sent_count, 0);
    close_router(&x);
}

static void the_router_beside_the_table_sends_it_the_bank(void **state)
{
    fixture x;
    (void)state;

    open_router(&x, models[1], ON_A "ngram: a\n");
    give_step(&x);
    fake_clear(&x.f);
    give_add(&x, 0, 1, 0); /* early: the layer has not begun */
    give_partial(&x, 0, 0, TR_SUB_ATTENTION);
    assert_int_equal(fake_count(&x.f, TR_MSG_NGRAM_ROWS), 0);
    give_partial(&x, 0, 0, TR_SUB_CHANNEL);
    tr_step_view v = read_rows(&x, TR_MSG_NGRAM_ROWS);
    assert_int_equal(v.head.layer, 1);
    assert_int_equal(v.head.width, x.width);
    assert_memory_equal(v.tokens, tokens, sizeof(tokens));
    assert_int_equal(v.segments[0].rows_count, ROWS);
    assert_int_equal(read_rows(&x, TR_MSG_ATTENTION_ROWS).head.layer, 1);
    close_router(&x);
}

static void an_answer_from_a_node_without_the_table_fails_the_step(void **state)
{
    fixture x;
    (void)state;

    open_router(&x, models[1], ON_A "ngram: a\n");
    give_step(&x);
    give_layer(&x, 0);
    give_add(&x, 1, 1, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    close_router(&x);
}

static void a_table_is_refused_for_a_model_without_one(void **state)
{
    static const char yaml[] = "model: m\nnodes: [{name: a}]\nngram: a\n";
    tr_placement placement;
    tr_plan_shape shape = {.layers_count = 1, .vocab_size = 64, .vocab_granule = 64};
    tr_plan plan;
    tr_error err = {0};
    (void)state;

    CHECK_STATUS(tr_placement_parse(&placement, "p.yaml", yaml, strlen(yaml), &err), TR_OK);
    CHECK_STATUS(tr_plan_make(&plan, &placement, &shape, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "p.yaml: ngram: found a");
    tr_placement_free(&placement);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_of_streams_that_only_mix_is_the_embedding),
        cmocka_unit_test(gated_streams_are_read_as_the_formula_says),
        cmocka_unit_test(a_span_hands_over_the_bank_and_the_tokens),
        cmocka_unit_test(a_layer_with_a_table_waits_for_it),
        cmocka_unit_test(the_router_beside_the_table_sends_it_the_bank),
        cmocka_unit_test(an_answer_from_a_node_without_the_table_fails_the_step),
        cmocka_unit_test(a_table_is_refused_for_a_model_without_one),
    };
    if (argc != 3) {
        fprintf(stderr, "usage: test_residual GLM5_NEXT QWEN4_EXP\n");
        return 2;
    }
    models[0] = argv[1];
    models[1] = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
