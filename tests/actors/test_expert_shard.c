/* test_expert_shard.c - feed-forwards alone: routed experts, shared expert, clamp and gate.
 *
 * Goal: what a shard sums up is the formula in float64, with the clamp binding and with the shared
 * expert's gate; and the sums of two shards are those of one, bit for bit. Method: the shard alone
 * with layers of golden models; the test plays router. */
#include "tests/actors/real_cluster.h"

#include <math.h>

enum { ROWS = 5, EXPONENT = 8 };

static const char *models[2]; /* glm5_next: clamp; qwen4_exp: gate of the shared expert */

typedef struct {
    fake f;
    real_cluster c;
    tr_expert_heat heat;
    void *shard;
    uint32_t layer, hidden, top_k;
} fixture;

/* The shard of node a or b. */
static void open_shard_of(fixture *x, uint32_t node, const char *model, uint32_t layer,
                          const char *rules)
{
    real_cluster_make(&x->c, model, rules);
    x->c.node.node_index = node;
    CHECK_STATUS(tr_expert_heat_init(&x->heat, &x->c.plan.shape, NULL), TR_OK);
    x->c.node.heat = &x->heat;
    fake_open(&x->f, tr_node_actor(TR_ACTOR_EXPERT_SHARD, 0));
    x->shard = real_actor_open(&x->f, &x->c, &tr_expert_shard_ops, tr_expert_shard_count);
    x->layer = layer;
    x->hidden = x->c.node.spec->hidden_size;
    const tr_channel_spec *channel = &x->c.node.spec->layers[layer].channel;
    x->top_k = channel->experts > 0 ? channel->top_k : 0;
}

static void open_shard(fixture *x, const char *model, uint32_t layer, const char *rules)
{
    open_shard_of(x, 0, model, layer, rules);
}

static void close_shard(fixture *x)
{
    fake_clear(&x->f);
    real_actor_close(&x->c, &tr_expert_shard_ops, x->shard);
    tr_expert_heat_teardown(&x->heat);
    fake_close(&x->f);
}

/* Large enough that a limit of 2 binds. */
static float row_at(uint32_t t, uint32_t d)
{
    return (float)((t * 37 + d * 29) % 61) / 4.0f - 7.5f;
}

static uint32_t expert_at(const fixture *x, uint32_t t, uint32_t j)
{
    return (t * 3 + j * 5 + 1) % x->c.node.spec->layers[x->layer].channel.experts;
}

static float weight_at(uint32_t t, uint32_t j)
{
    return 0.25f + 0.5f * (float)j + 0.125f * (float)t;
}

static void give_rows(fixture *x)
{
    static uint8_t data[65536];
    tr_step_head head = {
        .rows_count = ROWS, .layer = x->layer, .width = x->hidden, .first = x->top_k};
    uint32_t size = tr_step_layout(&head, TR_MSG_EXPERT_ROWS);

    assert_true(size <= sizeof(data));
    memset(data, 0, size);
    memcpy(data, &head, sizeof(head));
    for (uint32_t t = 0; t < ROWS; t++) {
        int32_t exponent = EXPONENT;
        memcpy(data + head.exponent_offset + t * sizeof(exponent), &exponent, sizeof(exponent));
        for (uint32_t j = 0; j < x->top_k; j++) {
            uint32_t expert = expert_at(x, t, j);
            float weight = weight_at(t, j);
            size_t at = (t * (size_t)x->top_k + j) * 4;
            memcpy(data + head.expert_offset + at, &expert, sizeof(expert));
            memcpy(data + head.weight_offset + at, &weight, sizeof(weight));
        }
        for (uint32_t d = 0; d < x->hidden; d++) {
            float value = row_at(t, d);
            memcpy(data + head.rows_offset + (t * (size_t)x->hidden + d) * sizeof(value), &value,
                   sizeof(value));
        }
    }
    fake_give(&x->f, &tr_expert_shard_ops, x->shard, tr_node_actor(TR_ACTOR_ROUTER, 0),
              TR_MSG_EXPERT_ROWS, 1, 0, data, size);
}

/* Adds the sums that the shard answered. */
static void add_answer(fixture *x, int64_t *sums)
{
    tr_step_view v = {0};
    tr_error err = {0};
    const tr_msg *msg = fake_find(&x->f, TR_MSG_PARTIAL);

    assert_non_null(msg);
    CHECK_STATUS(tr_step_read(&v, msg, &x->c.node.limits, &err), TR_OK);
    assert_true(
        x->c.node.kernels->sums_add(NULL, sums, v.sums, v.sums_size, v.flags, ROWS, x->hidden));
}

static float *floats_of(const fixture *x, tr_weight_role role, uint32_t expert)
{
    tr_weight w = tr_model_weight(x->c.model, x->layer, role, expert);
    float *f = calloc((size_t)w.rows * w.cols, sizeof(float));

    assert_non_null(f);
    tr_weight_to_f32(f, &w);
    return f;
}

/* out [hidden] += factor * feed-forward of row t. */
static void add_reference(const fixture *x, double *out, uint32_t t, double factor, bool routed,
                          uint32_t expert)
{
    const tr_channel_spec *c = &x->c.node.spec->layers[x->layer].channel;
    uint32_t inner = routed ? c->expert_size : c->always_size;
    float *gate = floats_of(x, routed ? TR_W_EXPERT_GATE : TR_W_ALWAYS_GATE, expert);
    float *up = floats_of(x, routed ? TR_W_EXPERT_UP : TR_W_ALWAYS_UP, expert);
    float *down = floats_of(x, routed ? TR_W_EXPERT_DOWN : TR_W_ALWAYS_DOWN, expert);
    double limit = c->clamp > 0 ? c->clamp : INFINITY;

    for (uint32_t i = 0; i < inner; i++) {
        double g = 0, u = 0;
        for (uint32_t d = 0; d < x->hidden; d++) {
            g += (double)gate[(size_t)i * x->hidden + d] * row_at(t, d);
            u += (double)up[(size_t)i * x->hidden + d] * row_at(t, d);
        }
        g = fmin(g, limit);
        double y = g / (1 + exp(-g)) * fmax(-limit, fmin(u, limit));
        for (uint32_t d = 0; d < x->hidden; d++)
            out[d] += factor * y * (double)down[(size_t)d * inner + i];
    }
    free(gate);
    free(up);
    free(down);
}

static double reference_gate(const fixture *x, uint32_t t)
{
    double z = 0;

    if (!x->c.node.spec->layers[x->layer].channel.always_scale)
        return 1;
    float *w = floats_of(x, TR_W_ALWAYS_SCALE, 0);
    for (uint32_t d = 0; d < x->hidden; d++)
        z += (double)w[d] * row_at(t, d);
    free(w);
    return 1 / (1 + exp(-z));
}

static void check_layer(const char *model, uint32_t layer)
{
    fixture x;
    open_shard(&x, model, layer, "experts: [{node: a}]\nslices: [{node: a}]\n");
    int64_t *sums = calloc((size_t)ROWS * x.hidden, sizeof(*sums));
    assert_non_null(sums);
    give_rows(&x);
    add_answer(&x, sums);
    for (uint32_t t = 0; t < ROWS; t++) {
        double expected[256] = {0}, largest = 0;
        assert_true(x.hidden <= 256);
        for (uint32_t j = 0; j < x.top_k; j++)
            add_reference(&x, expected, t, weight_at(t, j), true, expert_at(&x, t, j));
        add_reference(&x, expected, t, reference_gate(&x, t), false, 0);
        for (uint32_t d = 0; d < x.hidden; d++)
            largest = fmax(largest, fabs(expected[d]));
        for (uint32_t d = 0; d < x.hidden; d++) {
            double got = ldexp((double)sums[(size_t)t * x.hidden + d], EXPONENT - TR_FIXED_BITS);
            assert_true(fabs(got - expected[d]) <= 1e-5 * largest);
        }
    }
    free(sums);
    close_shard(&x);
}

static void sums_are_those_of_the_formula(void **state)
{
    (void)state;
    check_layer(models[0], 0); /* dense, clamped */
    check_layer(models[0], 1); /* experts, clamped */
    check_layer(models[1], 0); /* experts, a gate on the shared one */
}

static void two_shards_sum_up_to_one(void **state)
{
    static const char *const rules[] = {
        "experts: [{node: a}]\nslices: [{node: a}]\n",
        "experts: [{node: a, experts: 0-4}, {node: b, experts: 5-7}]\nslices: [{node: b}]\n",
        "experts: [{node: b, experts: 0-4}, {node: a, experts: 5-7}]\nslices: [{node: a}]\n"};
    int64_t sums[3][ROWS * 256] = {{0}};
    (void)state;

    for (int i = 0; i < 3; i++) {
        fixture x;
        open_shard(&x, models[1], 0, rules[i]);
        give_rows(&x);
        add_answer(&x, sums[i > 0]);
        close_shard(&x);
    }
    assert_memory_equal(sums[0], sums[1], sizeof(sums[0]));
}

/* Whoever computes it, each row of an expert comes once: also where a router is on one node alone,
 * or one of the experts is on both. */
static void shards_with_replicas_sum_up_to_one(void **state)
{
    static const char *const rules[] = {
        "replicas: [{node: a}, {node: b}]\n", "replicas: [{node: a, experts: 4-6}]\n",
        "replicas: [{node: a}, {node: b, experts: 1-7}]\nrouters: [{node: b}]\n",
        "experts: [{node: b}]\nreplicas: [{node: a, experts: 3}]\nslices: [{node: a}]\n"};
    int64_t one[ROWS * 256] = {0};
    fixture x;
    (void)state;

    open_shard(&x, models[1], 0, "experts: [{node: a}]\nslices: [{node: a}]\n");
    give_rows(&x);
    add_answer(&x, one);
    close_shard(&x);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        int64_t sums[ROWS * 256] = {0};
        for (uint32_t node = 0; node < 2; node++) {
            open_shard_of(&x, node, models[1], 0, rules[i]);
            give_rows(&x);
            add_answer(&x, sums);
            close_shard(&x);
        }
        assert_memory_equal(sums, one, sizeof(one));
    }
}

static void a_shard_counts_the_rows_of_its_own_terms(void **state)
{
    fixture x;
    uint32_t expected[TR_TERMS_MAX] = {0};
    (void)state;

    open_shard(&x, models[1], 0,
               "experts: [{node: b}, {node: a, experts: 0-4}]\nslices: [{node: a}]\n");
    give_rows(&x);
    give_rows(&x);
    const tr_plan_shape *shape = &x.c.plan.shape;
    for (uint32_t t = 0; t < ROWS; t++)
        for (uint32_t j = 0; j < x.top_k; j++)
            expected[expert_at(&x, t, j)] += expert_at(&x, t, j) <= 4;
    for (uint32_t i = 0; i < shape->slices[0]; i++)
        expected[shape->experts[0] + i] = ROWS;
    for (uint32_t i = 0; i < (uint32_t)shape->experts[0] + shape->slices[0]; i++) {
        tr_heat_count count = tr_expert_heat_count(&x.heat, 0, i);
        assert_int_equal(count.rows, 2 * expected[i]);
        assert_int_equal(count.steps, expected[i] > 0 ? 2 : 0);
        assert_true((count.busy_ns > 0) == (expected[i] > 0));
    }
    close_shard(&x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_formula),
        cmocka_unit_test(two_shards_sum_up_to_one),
        cmocka_unit_test(shards_with_replicas_sum_up_to_one),
        cmocka_unit_test(a_shard_counts_the_rows_of_its_own_terms),
    };
    if (argc != 3) {
        fprintf(stderr, "usage: test_expert_shard GLM5_NEXT QWEN4_EXP\n");
        return 2;
    }
    models[0] = argv[1];
    models[1] = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
