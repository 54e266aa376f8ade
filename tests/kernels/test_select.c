/* test_select.c - what sparse latent attention is made of: pooled keys, scores, the highest of
 * them, attention over a list, and the norm and the gate that come with it.
 *
 * Goal: each computes what kernels.h says, with the same bits in every variant, for any number of
 * threads and however rows are divided into calls. Method: against ref, and by memcmp. */
#include "tests/kernels/compare.h"

enum { DIM = 37, VALUES = 21, LD = 41, HEADS = 19, BLOCK = 4, PAGES = 4, FIRST = 59, T_MAX = 71 };
enum { PER_PAGE = TR_KV_PAGE_TOKENS / BLOCK, POOLS = PAGES * PER_PAGE };

/* Pages with a row of LD floats for each position, then the pooled keys. */
typedef struct {
    float *memory;
    uint8_t *pages[PAGES];
    tr_kv_rows kv;
    tr_paged_rows keys;
} cache;

static void cache_make(cache *c)
{
    size_t page = (size_t)TR_KV_PAGE_TOKENS * LD + (size_t)PER_PAGE * DIM;

    c->memory = samples_floats(PAGES * page);
    samples_fill(c->memory, PAGES * page, 1.0f);
    for (uint32_t i = 0; i < PAGES; i++) /* not in order of position */
        c->pages[i] = (uint8_t *)(c->memory + (i * 3 + 1) % PAGES * page);
    c->kv = (tr_kv_rows){.pages = c->pages,
                         .pages_count = PAGES,
                         .v_offset = 3 * sizeof(float),
                         .k_dim = DIM,
                         .v_dim = VALUES,
                         .k_ld = LD,
                         .v_ld = LD};
    c->keys = (tr_paged_rows){.pages = c->pages,
                              .pages_count = PAGES,
                              .offset = (size_t)TR_KV_PAGE_TOKENS * LD * sizeof(float),
                              .per_page = PER_PAGE,
                              .dim = DIM};
}

/* -- pooling and scores -- */

typedef struct {
    float *k, *gate, *ape, *tail, *q, *weight, *scores;
    uint32_t counts[T_MAX];
} index_sample;

static index_sample index_sample_make(void)
{
    index_sample s = {.k = samples_floats(T_MAX * LD),
                      .gate = samples_floats(T_MAX * LD),
                      .ape = samples_floats(BLOCK * DIM),
                      .tail = samples_floats(2 * BLOCK * DIM),
                      .q = samples_floats(T_MAX * HEADS * DIM),
                      .weight = samples_floats(T_MAX * HEADS),
                      .scores = samples_floats(T_MAX * POOLS)};
    samples_fill(s.k, T_MAX * LD, 2.0f);
    samples_fill(s.gate, T_MAX * LD, 4.0f);
    samples_fill(s.ape, BLOCK * DIM, 1.0f);
    samples_fill(s.tail, 2 * BLOCK * DIM, 2.0f);
    samples_fill(s.q, T_MAX * HEADS * DIM, 1.0f);
    samples_fill(s.weight, T_MAX * HEADS, 1.0f);
    for (uint32_t t = 0; t < T_MAX; t++)
        s.counts[t] = (FIRST + t + 1) / BLOCK;
    return s;
}

static void index_sample_free(index_sample *s)
{
    samples_free(s->k);
    samples_free(s->gate);
    samples_free(s->ape);
    samples_free(s->tail);
    samples_free(s->q);
    samples_free(s->weight);
    samples_free(s->scores);
}

/* Pools and scores all rows in calls of `step`. */
static void index_run(const tr_kernels *k, tr_team *team, cache *c, index_sample *s, uint32_t step)
{
    for (uint32_t t = 0; t < T_MAX; t += step) {
        uint32_t n = T_MAX - t < step ? T_MAX - t : step;
        k->pool_keys(team, &c->keys, s->k + t * LD, s->gate + t * LD, LD, s->ape, s->tail, BLOCK,
                     FIRST + t, n);
        k->index_scores(team, s->scores + t * POOLS, POOLS, s->q + (size_t)t * HEADS * DIM,
                        HEADS * DIM, s->weight + t * HEADS, HEADS, &c->keys, HEADS, 0.25f,
                        s->counts + t, n);
    }
}

static void check_index(const tr_kernels *k, const tr_kernels *ref)
{
    cache a, b;
    size_t size = PAGES * ((size_t)TR_KV_PAGE_TOKENS * LD + (size_t)PER_PAGE * DIM);

    cache_make(&a);
    samples_seed(42);
    cache_make(&b);
    index_sample x = index_sample_make();
    samples_seed(42);
    cache c;
    cache_make(&c);
    index_sample y = index_sample_make();
    samples_free(c.memory);

    index_run(k, NULL, &a, &x, T_MAX);
    index_run(ref, NULL, &b, &y, 7);
    /* exp 4 u of each of BLOCK weights, their sum, the products; values below 2 */
    check_absolute("pooled keys", a.memory, b.memory, size, 4 * BLOCK + 8, 2);
    assert_memory_equal(x.tail, y.tail, 2 * BLOCK * DIM * sizeof(float));
    /* dots of DIM products below 2 / 4, HEADS of them weighed, and what the pooled keys are off by
     */
    for (uint32_t t = 0; t < T_MAX; t++)
        check_absolute("scores", x.scores + t * POOLS, y.scores + t * POOLS, x.counts[t],
                       4 * BLOCK + 8 + DIM / 16.0 + 6 + HEADS, HEADS * DIM * 2 / 4.0);
    k->index_scores(NULL, x.scores, POOLS, x.q, HEADS * DIM, NULL, 0, &a.keys, HEADS, 0.25f,
                    x.counts, 3);
    ref->index_scores(NULL, y.scores, POOLS, y.q, HEADS * DIM, NULL, 0, &b.keys, HEADS, 0.25f,
                      y.counts, 3);
    check_absolute("scores without weights", x.scores, y.scores, x.counts[0],
                   4 * BLOCK + 8 + DIM / 16.0 + 6 + HEADS, HEADS * DIM * 2 / 4.0);
    index_sample_free(&x);
    index_sample_free(&y);
    samples_free(a.memory);
    samples_free(b.memory);
}

/* Without gates: the mean, of which one addition in block - 1 and the division round. */
static void check_mean(const tr_kernels *k, const tr_kernels *ref)
{
    cache c;
    const float *pooled;
    (void)ref;

    cache_make(&c);
    index_sample s = index_sample_make();
    samples_fill(s.tail, 2 * BLOCK * DIM, 0); /* of positions that come before */
    for (uint32_t t = 0; t < T_MAX; t += 7)
        k->pool_keys(NULL, &c.keys, s.k + t * LD, NULL, LD, NULL, s.tail, BLOCK, FIRST + t,
                     T_MAX - t < 7 ? T_MAX - t : 7);
    for (uint32_t p = (FIRST + BLOCK - 1) / BLOCK; p < (FIRST + T_MAX) / BLOCK; p++) {
        pooled = (const float *)(const void *)(c.pages[p / PER_PAGE] + c.keys.offset) +
                 (size_t)(p % PER_PAGE) * DIM;
        for (uint32_t d = 0; d < DIM; d++) {
            double mean = 0;
            for (uint32_t r = 0; r < BLOCK; r++)
                mean += s.k[(p * BLOCK + r - FIRST) * LD + d] / (double)BLOCK;
            check_near("mean", p * DIM + d, pooled[d], mean, BLOCK * U * 2);
        }
    }
    for (uint32_t i = BLOCK * DIM; i < 2 * BLOCK * DIM; i++)
        assert_true(s.tail[i] == 0); /* there is no gate to keep */
    index_sample_free(&s);
    samples_free(c.memory);
}

static void keys_without_gates_are_averaged(void **state)
{
    (void)state;
    for_each_variant(check_mean);
    check_mean(samples_ref(), samples_ref());
}

static void pooled_keys_and_scores_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_index);
}

/* -- the highest -- */

static void check_top(const tr_kernels *k, const tr_kernels *ref)
{
    enum { N = 700, T = 6 };
    static const uint32_t tops[] = {1, 2, 64, 512, 699, 700, 900};
    static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 0x1p-149f};
    float *scores = samples_floats(T * N);
    uint32_t counts[T] = {0, 1, 63, 512, 513, N};
    uint32_t a[T][N], b[T][N];

    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < T * N; i++) {
            scores[i] = samples_float(1.0f);
            if (round == 1) /* many equals, of both signs */
                scores[i] = floorf(scores[i] * 4) * 0.0f + floorf(scores[i] * 4);
            if (round == 2 && i % 3 == 0)
                scores[i] = special[samples_u64() % 6];
        }
        for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
            memset(a, 0xff, sizeof(a));
            memset(b, 0xff, sizeof(b));
            k->select_top(NULL, a[0], N, scores, N, counts, tops[i], T);
            ref->select_top(NULL, b[0], N, scores, N, counts, tops[i], T);
            assert_memory_equal(a, b, sizeof(a));
        }
    }
    samples_free(scores);
}

static void the_highest_are_those_of_ref_and_equals_go_to_the_lowest(void **state)
{
    (void)state;
    for_each_variant(check_top);
}

/* -- attention over a list -- */

static uint32_t list_make(uint32_t *positions, uint32_t *counts)
{
    uint32_t ld = FIRST + T_MAX;

    for (uint32_t t = 0; t < T_MAX; t++) {
        uint32_t n = 0;
        for (uint32_t p = 0; p <= FIRST + t; p++)
            if (samples_u64() % 4 != 0 || (p == FIRST + t && n == 0))
                positions[t * ld + n++] = p;
        counts[t] = n;
    }
    return ld;
}

static void list_run(const tr_kernels *k, tr_team *team, const cache *c,
                     const tr_position_list *list, const float *q, float *out, uint32_t group,
                     uint32_t step)
{
    uint32_t ld_q = group * DIM + 1, ld_out = group * VALUES + 2;
    size_t size = k->attention_list_scratch(DIM, VALUES, tr_team_size(team));
    void *scratch = aligned_alloc(64, (size + 63) / 64 * 64);

    assert_non_null(scratch);
    for (uint32_t t = 0; t < T_MAX; t += step) {
        tr_position_list part = *list;
        if (list->positions != NULL) {
            part.positions += t * list->ld;
            part.counts += t;
        }
        k->attention_list(team, out + (size_t)t * ld_out, ld_out, q + (size_t)t * ld_q, ld_q,
                          &c->kv, &part, group, 0.3f, FIRST + t,
                          T_MAX - t < step ? T_MAX - t : step, scratch);
    }
    free(scratch);
}

static void check_list(const tr_kernels *k, const tr_kernels *ref)
{
    static const uint32_t groups[] = {1, 3, 16, 18};
    static uint32_t positions[T_MAX * (FIRST + T_MAX)], counts[T_MAX];
    cache c;

    cache_make(&c);
    tr_position_list list = {.positions = positions, .counts = counts};
    list.ld = list_make(positions, counts);
    for (int i = 0; i < 8; i++) {
        uint32_t group = groups[i / 2];
        size_t count = (size_t)T_MAX * (group * VALUES + 2);
        float *q = samples_floats(T_MAX * (group * DIM + 1));
        float *out = samples_floats(count), *expected = samples_floats(count);
        samples_fill(q, T_MAX * (group * DIM + 1), 2.0f);
        list.positions = i % 2 ? NULL : positions;
        list_run(k, NULL, &c, &list, q, out, group, T_MAX);
        list_run(ref, NULL, &c, &list, q, expected, group, T_MAX);
        /* scores below 0.3 * 2 * DIM, off by (DIM / 16 + 6) u of that, move exp as much */
        check_absolute("attention_list", out, expected, count,
                       2 * 0.3 * 2 * DIM * (DIM / 16.0 + 6) + 140, 1);
        samples_free(q);
        samples_free(out);
        samples_free(expected);
    }
    samples_free(c.memory);
}

static void attention_over_a_list_agrees_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_list);
}

static void a_list_of_all_positions_gives_the_bits_of_no_list(void **state)
{
    enum { GROUP = 5 };
    static uint32_t positions[T_MAX * (FIRST + T_MAX)], counts[T_MAX];
    size_t count = (size_t)T_MAX * (GROUP * VALUES + 2);
    size_t variants_count;
    const tr_kernels *k = samples_variants(&variants_count)[0];
    cache c;
    (void)state;

    samples_seed(3);
    cache_make(&c);
    float *q = samples_floats(T_MAX * (GROUP * DIM + 1));
    float *all = samples_floats(count), *none = samples_floats(count);
    samples_fill(q, T_MAX * (GROUP * DIM + 1), 2.0f);
    tr_position_list list = {.positions = positions, .counts = counts, .ld = FIRST + T_MAX};
    for (uint32_t t = 0; t < T_MAX; t++) {
        counts[t] = FIRST + t + 1;
        for (uint32_t p = 0; p < counts[t]; p++)
            positions[t * list.ld + p] = p;
    }
    list_run(k, NULL, &c, &list, q, all, GROUP, T_MAX);
    list_run(k, NULL, &c, &(tr_position_list){0}, q, none, GROUP, T_MAX);
    assert_memory_equal(all, none, count * sizeof(float));
    samples_free(q);
    samples_free(all);
    samples_free(none);
    samples_free(c.memory);
}

/* -- norm and gate -- */

static void check_norm_and_gate(const tr_kernels *k, const tr_kernels *ref)
{
    enum { T = 9, D = 3 * DIM, STRIDE = D + 2 };
    float *x = samples_floats(T * STRIDE), *y = samples_floats(T * STRIDE);
    float *weight = samples_floats(D), *bias = samples_floats(D);
    const float a[3] = {0.25f, 1.0f, 40.0f};

    samples_fill(weight, D, 1.0f);
    samples_fill(bias, D, 1.0f);
    samples_fill(x, T * STRIDE, 3.0f);
    memcpy(y, x, T * STRIDE * sizeof(float));
    k->layer_norm(NULL, x, STRIDE, weight, bias, 1e-6f, T, D);
    ref->layer_norm(NULL, y, STRIDE, weight, bias, 1e-6f, T, D);
    /* results below 3; means and variances off by D / 16 + 5 roundings */
    check_absolute("layer_norm", x, y, T * STRIDE, D / 16.0 + 12, 3);
    k->kda_gate_bounded(NULL, x, STRIDE, bias, a, -5.0f, 3, DIM, T);
    ref->kda_gate_bounded(NULL, y, STRIDE, bias, a, -5.0f, 3, DIM, T);
    /* a * u is off by a few u times 160 where sigmoid moves by a quarter of that; and the inputs by
     * what layer_norm left */
    check_absolute("kda_gate_bounded", x, y, T * STRIDE, 40 * (D / 16.0 + 16) * 3 / 4 * 5, 1);
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t d = 0; d < D; d++)
            assert_true(x[t * STRIDE + d] <= 0.0f && x[t * STRIDE + d] >= -5.0f);
    samples_free(x);
    samples_free(y);
    samples_free(weight);
    samples_free(bias);
}

static void layer_norm_and_the_bounded_gate_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_norm_and_gate);
}

/* The strongest decay that the bound allows: over a chunk, e^(-5 * 64) is zero in float. */
static void check_strong_decay(const tr_kernels *k, const tr_kernels *ref)
{
    enum { D = 32, T = 64 };
    float *q = samples_floats(T * D), *key = samples_floats(T * D), *v = samples_floats(T * D);
    float *g = samples_floats(T * D), *beta = samples_floats(T);
    float *a = samples_floats(T * D), *b = samples_floats(T * D);
    float *state_a = samples_floats(D * D), *state_b = samples_floats(D * D);
    void *scratch = aligned_alloc(64, k->kda_chunk_scratch(D, 1) / 64 * 64 + 64);

    assert_non_null(scratch);
    samples_fill(q, T * D, 1.0f);
    samples_fill(key, T * D, 1.0f);
    samples_fill(v, T * D, 1.0f);
    samples_fill(state_a, D * D, 1.0f);
    memcpy(state_b, state_a, D * D * sizeof(float));
    ref->l2_norm(NULL, q, D, 1, D, 1e-6f, 1.0f, T);
    ref->l2_norm(NULL, key, D, 1, D, 1e-6f, 1.0f, T);
    for (uint32_t i = 0; i < T * D; i++)
        g[i] = i % 3 == 0 ? -5.0f : i % 3 == 1 ? -0x1p-20f : samples_float(2.5f) - 2.5f;
    for (uint32_t t = 0; t < T; t++)
        beta[t] = 0.5f + samples_float(0.5f);
    k->kda_chunk(NULL, a, q, key, v, g, D, beta, 1, state_a, 1, D, T, scratch);
    ref->kda_recurrent(NULL, b, q, key, v, g, D, beta, 1, state_b, 1, D, T);
    /* no element grows; a row goes through at most T updates of unit size */
    check_absolute("kda_chunk", a, b, T * D, 8 * T, 1);
    check_absolute("kda_chunk state", state_a, state_b, D * D, 8 * T, 1);
    samples_free(q);
    samples_free(key);
    samples_free(v);
    samples_free(g);
    samples_free(beta);
    samples_free(a);
    samples_free(b);
    samples_free(state_a);
    samples_free(state_b);
    free(scratch);
}

static void the_chunked_form_takes_the_strongest_decay(void **state)
{
    (void)state;
    for_each_variant(check_strong_decay);
}

/* -- bits -- */

typedef struct {
    float *scores, *out;
    uint32_t top[T_MAX * 8];
} outcome;

static outcome outcome_run(const tr_kernels *k, uint32_t threads, uint32_t step)
{
    outcome o = {.out = samples_floats(T_MAX * (HEADS * VALUES + 2))};
    tr_team *team = NULL;
    uint32_t tokens[T_MAX * 8 * BLOCK], counts[T_MAX];
    cache c;

    samples_seed(5);
    cache_make(&c);
    index_sample s = index_sample_make();
    float *q = samples_floats(T_MAX * (HEADS * DIM + 1));
    samples_fill(q, T_MAX * (HEADS * DIM + 1), 1.0f);
    CHECK_STATUS(tr_team_open(&team, threads, NULL), TR_OK);
    index_run(k, team, &c, &s, step);
    k->select_top(team, o.top, 8, s.scores, POOLS, s.counts, 8, T_MAX);
    for (uint32_t t = 0; t < T_MAX; t++) {
        counts[t] = 8 * BLOCK;
        for (uint32_t i = 0; i < 8 * BLOCK; i++)
            tokens[t * 8 * BLOCK + i] = o.top[t * 8 + i / BLOCK] * BLOCK + i % BLOCK;
    }
    tr_position_list list = {.positions = tokens, .counts = counts, .ld = 8 * BLOCK};
    list_run(k, team, &c, &list, q, o.out, HEADS, step);
    tr_team_close(team);
    o.scores = s.scores;
    s.scores = samples_floats(1);
    index_sample_free(&s);
    samples_free(q);
    samples_free(c.memory);
    return o;
}

static void variants_threads_and_calls_change_no_bit(void **state)
{
    static const struct {
        uint32_t threads, step;
    } ways[] = {{1, T_MAX}, {1, 1}, {2, 5}, {3, T_MAX}, {3, 33}};
    size_t count;
    const tr_kernels *const *variants = samples_variants(&count);
    outcome first = outcome_run(variants[0], 1, T_MAX);
    (void)state;

    for (size_t v = 0; v < count; v++) {
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            outcome o = outcome_run(variants[v], ways[i].threads, ways[i].step);
            assert_memory_equal(o.scores, first.scores, T_MAX * POOLS * sizeof(float));
            assert_memory_equal(o.top, first.top, sizeof(o.top));
            assert_memory_equal(o.out, first.out, T_MAX * (HEADS * VALUES + 2) * sizeof(float));
            samples_free(o.scores);
            samples_free(o.out);
        }
    }
    samples_free(first.scores);
    samples_free(first.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pooled_keys_and_scores_agree_with_ref),
        cmocka_unit_test(keys_without_gates_are_averaged),
        cmocka_unit_test(the_highest_are_those_of_ref_and_equals_go_to_the_lowest),
        cmocka_unit_test(attention_over_a_list_agrees_with_ref),
        cmocka_unit_test(a_list_of_all_positions_gives_the_bits_of_no_list),
        cmocka_unit_test(layer_norm_and_the_bounded_gate_agree_with_ref),
        cmocka_unit_test(the_chunked_form_takes_the_strongest_decay),
        cmocka_unit_test(variants_threads_and_calls_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
