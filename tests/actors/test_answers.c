/* test_answers.c - promise 1: placement, batch, chunks and threads never change a bit.
 *
 * Method: whole clusters of one to three nodes in this process, over the loop transport, with each
 * model of the arguments. The reference is one node, one thread, each prompt alone. Then, for
 * random placements of head groups, experts and their replicas, slices, vocabulary rows and spans
 * of layers, all prompts run at once, with random chunk sizes, numbers of threads and workers;
 * every row of logits and every drawn token must be equal. The seed is printed and taken from
 * TR_SEED, the number of placements from TR_PLACEMENTS (50); of several models each gets a tenth.
 */
#include "core/trace.h"
#include "tests/actors/whole_cluster.h"

#include <stdlib.h>
#include <time.h>

#define PROMPTS     9
#define LOGIT_ROWS  140 /* of the first prompt: more than two chunks of 64 */
#define GENERATED   6
#define DEADLINE_NS 120000000000u
#define ROUNDS_MAX  20 /* until all prompts have shared a step */

static char *const *model_paths;
static uint32_t models_count;
static uint64_t random_state;
static uint32_t placements_count;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % n;
}

/* A generated token. Its logprob has all logits of its step in it, and the top ones are some. */
typedef struct {
    int32_t token;
    float logprob;
    tr_logprob top[TR_TOP_LOGPROBS_MAX];
} generated;

/* What all prompts gave. Prompt 0 wants logits, too; half of them are sampled. */
typedef struct {
    float *logits; /* [LOGIT_ROWS, vocab] */
    uint32_t rows;
    generated tokens[PROMPTS][GENERATED];
    uint32_t tokens_count[PROMPTS];
} answers;

static uint64_t submit(cluster *c, uint32_t prompt, uint32_t chunk)
{
    int32_t tokens[LOGIT_ROWS];
    uint32_t count = prompt == 0 ? LOGIT_ROWS : 3 + 7 * prompt;
    uint64_t number = 0;
    tr_error err = {0};
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = cluster_prompt_token(c, prompt, i);
    tr_request r = {
        .tokens = tokens,
        .tokens_count = count,
        .tokens_max = GENERATED,
        .sampling = {.temperature = prompt % 2 ? 0.8f : 0, .top_p = 0.95f, .seed = prompt},
        .want_logits = prompt == 0,
        .want_logprobs = true,
        .top_logprobs = TR_TOP_LOGPROBS_MAX,
        .prefill_rows = chunk};
    if (tr_client_submit(c->client, &r, &number, &err) != TR_OK)
        fail_msg("%s", err.text);
    return number;
}

/* Reads events until `open` requests have ended. numbers[prompt] is the request of each prompt. */
static void collect(cluster *c, const uint64_t *numbers, uint32_t open, answers *out)
{
    while (open > 0) {
        tr_event e;
        if (!tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS))
            fail_msg("nothing came in time");
        uint32_t prompt = 0;
        while (prompt < PROMPTS && numbers[prompt] != e.request)
            prompt++;
        assert_true(prompt < PROMPTS);
        if (e.kind == TR_EVENT_LOGITS) {
            assert_int_equal(e.position, out->rows);
            memcpy(out->logits + (size_t)out->rows++ * c->shape.vocab_size, e.logits,
                   c->shape.vocab_size * 4);
        } else if (e.kind == TR_EVENT_TOKEN) {
            assert_true(out->tokens_count[prompt] < GENERATED);
            assert_int_equal(e.top_count, TR_TOP_LOGPROBS_MAX);
            generated *g = &out->tokens[prompt][out->tokens_count[prompt]++];
            *g = (generated){.token = e.token, .logprob = e.logprob};
            memcpy(g->top, e.top, sizeof(g->top));
        } else {
            if (e.kind == TR_EVENT_FAILED)
                fail_msg("%s", e.error.text);
            open--;
        }
    }
}

static void answers_make(answers *a)
{
    *a = (answers){.logits = calloc((size_t)LOGIT_ROWS * 4096, sizeof(float))};
    assert_non_null(a->logits);
}

/* One node, one thread, one prompt after the other. */
static void reference(const char *model_path, answers *out, tr_plan_shape *shape)
{
    char yaml[1024];
    cluster c;
    answers_make(out);
    snprintf(
        yaml, sizeof(yaml),
        "model: %s\ntransport: loop\nnodes: [{name: a, memory: 1 GiB}]\nlimits: {context: 512}\n",
        model_path);
    cluster_open(&c, yaml);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        uint64_t numbers[PROMPTS] = {0};
        numbers[p] = submit(&c, p, 0);
        collect(&c, numbers, 1, out);
    }
    *shape = c.shape;
    cluster_close(&c);
}

typedef struct {
    char text[32768];
    size_t used;
} yaml_text;

static void __attribute__((format(printf, 2, 3))) add(yaml_text *y, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    y->used += (size_t)vsnprintf(y->text + y->used, sizeof(y->text) - y->used, fmt, args);
    va_end(args);
    assert_true(y->used < sizeof(y->text));
}

/* A rule for each of count items of a layer, in pieces of at most step. */
static void add_pieces(yaml_text *y, uint32_t nodes, uint32_t layer, const char *item,
                       uint32_t count, uint32_t step)
{
    for (uint32_t i = 0; i < count; i += step)
        add(y, "  - {node: n%u, layers: %u, %s: %u-%u}\n", random_below(nodes), layer, item, i,
            i + step < count ? i + step - 1 : count - 1);
}

/* A placement file with random rules for everything. */
static void random_placement(yaml_text *y, const char *model_path, const tr_plan_shape *shape)
{
    uint32_t nodes = 1 + random_below(3), layers = shape->layers_count;
    assert_true(layers > 1);
    uint32_t cut = 1 + random_below(layers - 1);
    y->used = 0;
    add(y, "model: %s\ntransport: loop\nnodes:\n", model_path);
    for (uint32_t n = 0; n < nodes; n++)
        add(y, "  - {name: n%u, memory: 1 GiB, threads: %u, workers: %u}\n", n, 1 + random_below(2),
            1 + random_below(2));
    add(y, "batcher: n%u\nsampler: n%u\n", random_below(nodes), random_below(nodes));
    if (shape->ngram_tables > 0)
        add(y, "ngram: n%u\n", random_below(nodes));
    /* A machine that is busy for a second or two has lost no node: logits would be lost with it. */
    add(y, "limits: {context: 512, peer_timeout: 20 s, steps_in_flight: %u, step_rows: %u}\n",
        1 + random_below(3), 64 * (1 + random_below(4)));
    if (random_below(2)) { /* two spans, each held by a random set of nodes */
        add(y, "routers:\n");
        for (uint32_t span = 0; span < 2; span++) {
            uint32_t always = random_below(nodes);
            for (uint32_t n = 0; n < nodes; n++)
                if (n == always || random_below(2))
                    add(y, "  - {node: n%u, layers: %u-%u}\n", n, span ? cut : 0,
                        span ? layers - 1 : cut - 1);
        }
    }
    add(y, "attention:\n");
    for (uint32_t l = 0; l < layers; l++)
        add_pieces(y, nodes, l, "terms", shape->attention_terms[l], 1);
    bool experts = false, slices = false;
    for (uint32_t l = 0; l < layers; l++) {
        experts |= shape->experts[l] > 0;
        slices |= shape->slices[l] > 0;
    }
    add(y, experts ? "experts:\n" : "");
    for (uint32_t l = 0; l < layers; l++)
        add_pieces(y, nodes, l, "experts", shape->experts[l], 4);
    if (experts && random_below(2)) /* of some experts of all layers, on some node */
        add(y, "replicas:\n  - {node: n%u, experts: 0-1}\n  - {node: n%u}\n", random_below(nodes),
            random_below(nodes));
    add(y, slices ? "slices:\n" : "");
    for (uint32_t l = 0; l < layers; l++)
        add_pieces(y, nodes, l, "slices", shape->slices[l], 1);
    add(y, "vocabulary:\n");
    for (uint32_t v = 0; v < shape->vocab_size; v += shape->vocab_size / 4)
        add(y, "  - {node: n%u, rows: %u-%u}\n", random_below(nodes), v,
            v + shape->vocab_size / 4 - 1);
}

static void check_placements(const char *model_path)
{
    answers expected;
    tr_plan_shape shape;
    static yaml_text yaml;
    reference(model_path, &expected, &shape);
    assert_int_equal(expected.rows, LOGIT_ROWS);
    for (uint32_t i = 0; i < placements_count; i++) {
        uint64_t numbers[PROMPTS];
        answers got;
        cluster c;
        random_placement(&yaml, model_path, &shape);
        answers_make(&got);
        cluster_open(&c, yaml.text);
        for (uint32_t p = 0; p < PROMPTS; p++)
            numbers[p] = submit(&c, p, 64 * random_below(3));
        collect(&c, numbers, PROMPTS, &got);
        cluster_close(&c);
        assert_int_equal(got.rows, LOGIT_ROWS);
        if (memcmp(got.logits, expected.logits, (size_t)LOGIT_ROWS * shape.vocab_size * 4) != 0 ||
            memcmp(got.tokens, expected.tokens, sizeof(got.tokens)) != 0)
            fail_msg("placement %u gives other bits:\n%s", i, yaml.text);
        free(got.logits);
    }
    free(expected.logits);
}

/* The most sequences of a step, of the newest ones that the traces hold. */
static void most_of_ring(void *ctx, const char *thread, const tr_trace_event *events, size_t count)
{
    uint32_t *most = ctx;
    (void)thread;
    for (size_t i = 0; i < count; i++)
        if (events[i].kind == TR_TRACE_STEP && events[i].detail > *most)
            *most = events[i].detail;
}

/* All prompts in one step: each beside eight others. They are not submitted at one moment, so one
 * may have ended before the last begins; then all are asked again. */
static void a_step_of_nine_gives_what_each_gives_alone(void **state)
{
    answers expected;
    tr_plan_shape shape;
    cluster c;
    char yaml[1024];
    uint32_t most = 0;

    (void)state;
    reference(model_paths[0], &expected, &shape);
    for (uint32_t p = 0; p < PROMPTS; p++)
        assert_int_equal(expected.tokens_count[p], GENERATED);
    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes: [{name: a, memory: 1 GiB}, {name: b, memory: 1 "
             "GiB}]\nlimits: {context: 512, peer_timeout: 20 s, steps_in_flight: 1, step_rows: "
             "512}\n",
             model_paths[0]);
    cluster_open(&c, yaml);
    for (uint32_t round = 0; round < ROUNDS_MAX && most < PROMPTS; round++) {
        uint64_t numbers[PROMPTS];
        answers got;
        answers_make(&got);
        for (uint32_t p = 0; p < PROMPTS; p++)
            numbers[p] = submit(&c, p, 0);
        collect(&c, numbers, PROMPTS, &got);
        assert_int_equal(got.rows, LOGIT_ROWS);
        assert_memory_equal(got.logits, expected.logits,
                            (size_t)LOGIT_ROWS * shape.vocab_size * sizeof(*got.logits));
        assert_memory_equal(got.tokens, expected.tokens, sizeof(got.tokens));
        free(got.logits);
        tr_trace_read(most_of_ring, &most);
    }
    cluster_close(&c);
    assert_int_equal(most, PROMPTS);
    free(expected.logits);
}

static void random_placements_and_batches_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < models_count; i++)
        check_placements(model_paths[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_nine_gives_what_each_gives_alone),
        cmocka_unit_test(random_placements_and_batches_give_the_same_bits),
    };
    const char *seed = getenv("TR_SEED"), *count = getenv("TR_PLACEMENTS");
    if (argc < 2) {
        fprintf(stderr, "usage: test_answers MODEL...\n");
        return 2;
    }
    model_paths = argv + 1;
    models_count = (uint32_t)argc - 1;
    placements_count = 50;
    random_state = seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    if (count != NULL)
        placements_count = (uint32_t)strtoul(count, NULL, 10);
    if (models_count > 1)
        placements_count = (placements_count + 9) / 10;
    fprintf(stderr, "TR_SEED=%llu\n", (unsigned long long)random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
