/* test_other_kernels.c - a cluster whose nodes' kernels give different bits.
 *
 * Goal: it answers rightly where one router decides, and is refused, at the start as in a change,
 * where two nodes would have to compute the same. Method: node a has the processor's kernels, node
 * b the reference's, which add in float64. Arguments: a model with heads of their own, and one
 * whose attention keeps latents and an index. */
#include "tests/actors/whole_cluster.h"

#include <math.h>
#include <stdlib.h>

#define ROWS        70 /* more than a chunk */
#define DEADLINE_NS 120000000000u
#define BOUND       1e-4 /* as against golden logits: both are float32 sums in some order */

static const char *model_path, *latents_path;
static const char *const other_kernels[] = {"cpu", "ref"};

static void two_nodes(char *yaml, size_t size, const char *path, const char *rules)
{
    snprintf(yaml, size,
             "model: %s\ntransport: loop\nnodes: [{name: a, memory: 1 GiB}, {name: b, memory: 1 "
             "GiB}]\nlimits: {context: 256, peer_timeout: 20 s}\n%s",
             path, rules);
}

/* Logits of a prompt, [ROWS, vocab]; the caller frees. */
static float *logits_of(cluster *c)
{
    int32_t tokens[ROWS];
    uint32_t rows = 0, vocab = c->shape.vocab_size;
    uint64_t number = 0;
    tr_error err = {0};
    tr_event e;
    float *out = malloc((size_t)ROWS * vocab * sizeof(*out));

    assert_non_null(out);
    for (uint32_t i = 0; i < ROWS; i++)
        tokens[i] = cluster_prompt_token(c, 0, i);
    tr_request r = {.tokens = tokens, .tokens_count = ROWS, .want_logits = true};
    CHECK_STATUS(tr_client_submit(c->client, &r, &number, &err), TR_OK);
    do {
        if (!tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS))
            fail_msg("nothing came in time");
        if (e.kind == TR_EVENT_FAILED)
            fail_msg("%s", e.error.text);
        if (e.kind == TR_EVENT_LOGITS)
            memcpy(out + (size_t)rows++ * vocab, e.logits, vocab * sizeof(*out));
    } while (e.kind == TR_EVENT_LOGITS);
    assert_int_equal(rows, ROWS);
    return out;
}

static void check_refused(const char *path, const char *rules, const char *names)
{
    char yaml[1024];
    cluster c;
    tr_error err = {0};

    two_nodes(yaml, sizeof(yaml), path, rules);
    CHECK_STATUS(cluster_try(&c, yaml, other_kernels, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, names);
    CHECK_ERR_NAMES(err, "a and b, whose kernels give different bits");
    cluster_close(&c);
}

static void what_two_would_compute_alike_is_refused(void **state)
{
    (void)state;
    check_refused(model_path, "", "layer 0: there are routers on");
    check_refused(model_path,
                  "routers: [{node: b, layers: 0-3}, {node: a, layers: 4-last}, "
                  "{node: b, layers: 4-last}]\n",
                  "layer 4: there are routers on");
    check_refused(model_path, "routers: [{node: a}]\nreplicas: [{node: b, layers: 2}]\n",
                  "layer 2: an expert stands on");
    check_refused(latents_path, "routers: [{node: a}]\n",
                  "what its attention keeps once is computed on");
}

static void one_router_decides_for_both(void **state)
{
    static const char *const rules[] = {
        "routers: [{node: a}]\n", "routers: [{node: b}]\n",
        "routers: [{node: a, layers: 0-2}, {node: b, layers: 3-last}]\nsampler: b\n"};
    char yaml[1024];
    cluster c;
    tr_error err = {0};
    (void)state;

    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes: [{name: a, memory: 1 GiB}]\nlimits: {context: "
             "256}\n",
             model_path);
    cluster_open(&c, yaml);
    size_t count = (size_t)ROWS * c.shape.vocab_size;
    float *expected = logits_of(&c);
    cluster_close(&c);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        double apart = 0, norm = 0;
        two_nodes(yaml, sizeof(yaml), model_path, rules[i]);
        CHECK_STATUS(cluster_try(&c, yaml, other_kernels, &err), TR_OK);
        float *got = logits_of(&c), *again = logits_of(&c);
        cluster_close(&c);
        for (size_t k = 0; k < count; k++) {
            apart += pow((double)got[k] - expected[k], 2);
            norm += pow(expected[k], 2);
        }
        print_message("# placement %zu: %.2e from one node\n", i, sqrt(apart / norm));
        assert_true(apart > 0); /* the kernels are really others */
        assert_true(sqrt(apart / norm) < BOUND);
        assert_memory_equal(got, again, count * sizeof(*got));
        free(got);
        free(again);
    }
    free(expected);
}

static void latents_on_one_node_are_served(void **state)
{
    char yaml[1024];
    cluster c;
    tr_error err = {0};
    (void)state;

    two_nodes(yaml, sizeof(yaml), latents_path, "routers: [{node: a}]\nattention: [{node: b}]\n");
    CHECK_STATUS(cluster_try(&c, yaml, other_kernels, &err), TR_OK);
    free(logits_of(&c));
    cluster_close(&c);
}

static void a_change_is_held_to_the_same(void **state)
{
    static const struct {
        const char *part, *names;
    } cases[] = {{"router/all", "layer 0: there are routers on"},
                 {"expert/3.0", "layer 3: an expert stands on"}};
    char yaml[1024];
    cluster c;
    tr_error err = {0};
    (void)state;

    two_nodes(yaml, sizeof(yaml), model_path, "routers: [{node: a}]\nexperts: [{node: a}]\n");
    CHECK_STATUS(cluster_try(&c, yaml, other_kernels, &err), TR_OK);
    float *before = logits_of(&c);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t number = 0;
        CHECK_STATUS(tr_cluster_replicate(c.nodes[0], cases[i].part, "b", &number, &err), TR_OK);
        tr_change_report report = cluster_await_change(&c, number);
        assert_string_equal(report.phase, "failed");
        CHECK_ERR_NAMES(report.error, cases[i].names);
    }
    float *after = logits_of(&c);
    assert_memory_equal(before, after, (size_t)ROWS * c.shape.vocab_size * sizeof(*after));
    free(before);
    free(after);
    cluster_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_two_would_compute_alike_is_refused),
        cmocka_unit_test(one_router_decides_for_both),
        cmocka_unit_test(latents_on_one_node_are_served),
        cmocka_unit_test(a_change_is_held_to_the_same),
    };
    if (argc < 3) {
        fprintf(stderr, "usage: test_other_kernels MODEL MODEL_WITH_LATENTS\n");
        return 2;
    }
    model_path = argv[1];
    latents_path = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
