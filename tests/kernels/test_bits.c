/* test_bits.c - the same bits, however a result is computed.
 *
 * Goal: every cpu variant of this machine, any number of threads, a row alone or among others, and
 * attention over a prompt in one call or in many give identical bits; and those bits are the ones
 * written down here, which x86-64 and aarch64 share. Method: memcmp, and hashes of the self-test.
 */
#include "tests/check.h"
#include "tests/kernels/fingerprint.h"
#include "tests/kernels/samples.h"

#include <math.h>

static void every_variant_has_the_fingerprint_of_this_version(void **state)
{
    size_t count;
    const tr_kernels *const *variants = samples_variants(&count);
    (void)state;

    for (size_t i = 0; i < count; i++) {
        uint64_t got = tr_kernels_fingerprint(variants[i]);
        if (got != CPU_FINGERPRINT)
            print_error("%s: 0x%016llx\n", variants[i]->name, (unsigned long long)got);
        assert_true(got == CPU_FINGERPRINT);
    }
    assert_true(tr_kernels_fingerprint(samples_ref()) != CPU_FINGERPRINT);
}

enum { T_MAX = 9, DIM = 48, HEADS = 3, LD = HEADS * DIM };

/* Everything that a run of the operations leaves behind. */
typedef struct {
    float products[TR_FORMATS_COUNT][T_MAX * 200];
    int64_t terms[TR_FORMATS_COUNT][T_MAX * 200];
    float rows[6][T_MAX * LD];
    float attention[T_MAX * LD], recurrent[T_MAX * LD], chunk[T_MAX * LD];
    float states[2][HEADS * DIM * DIM];
    uint32_t expert[T_MAX * 4];
    float weight[T_MAX * 4];
} outcome;

typedef struct {
    samples_weight weight[TR_FORMATS_COUNT];
    float x[T_MAX * 1120], y[T_MAX * LD], z[T_MAX * LD], w[LD * 4], g[T_MAX * LD];
    float beta[T_MAX * HEADS], state[HEADS * DIM * DIM], logits[T_MAX * 40];
    float kv[70 * 2 * DIM];
} inputs;

static inputs *inputs_make(void)
{
    inputs *in = calloc(1, sizeof(*in));
    assert_non_null(in);
    samples_seed(7);
    for (int f = 0; f < TR_FORMATS_COUNT; f++)
        in->weight[f] = samples_weight_make((tr_format)f, 197, 1120);
    samples_fill_hard(in->x, T_MAX * 1120, 2.0f);
    samples_fill(in->y, T_MAX * LD, 2.0f);
    samples_fill(in->z, T_MAX * LD, 2.0f);
    samples_fill(in->w, LD * 4, 1.0f);
    samples_fill(in->beta, T_MAX * HEADS, 1.0f);
    samples_fill(in->state, HEADS * DIM * DIM, 1.0f);
    samples_fill(in->logits, T_MAX * 40, 3.0f);
    samples_fill(in->kv, 70 * 2 * DIM, 1.0f);
    for (int i = 0; i < T_MAX * LD; i++)
        in->g[i] = -(samples_float(1.0f) + 1.0f);
    return in;
}

static void inputs_free(inputs *in)
{
    for (int f = 0; f < TR_FORMATS_COUNT; f++)
        samples_weight_free(&in->weight[f]);
    free(in);
}

/* Runs rows [begin, end) of the inputs through what treats rows independently. */
static void run_rows(outcome *o, const inputs *in, const tr_kernels *k, tr_team *team,
                     const samples_packed *packed, uint32_t begin, uint32_t end)
{
    uint32_t T = end - begin, N = 197;
    size_t at = (size_t)begin * LD;
    int32_t exponent[T_MAX];
    uint8_t flags[T_MAX] = {0};
    tr_route_params p = {.experts = 40, .top_k = 4, .groups = 1, .top_groups = 1, .scaling = 1};

    for (int i = 0; i < T_MAX; i++)
        exponent[i] = 13 + i; /* some of samples_fill_hard's large numbers do not fit: flags */
    for (int f = 0; f < TR_FORMATS_COUNT; f++) {
        k->matmul(team, o->products[f] + begin * N, N, in->x + begin * 1120, 1120, NULL,
                  &packed[f].m, T);
        k->matmul_term(team, o->terms[f] + begin * N, flags, exponent + begin, in->x + begin * 1120,
                       1120, NULL, in->w + begin, &packed[f].m, T);
    }
    k->rms_norm(team, o->rows[0] + at, in->y + at, in->w, 1e-5f, T, LD);
    k->silu_mul(team, o->rows[1] + at, in->y + at, in->z + at, LD, 1.5f, T, LD);
    k->sigmoid_mul(team, o->rows[2] + at, in->y + at, LD, in->z + at, LD, T, LD);
    memcpy(o->rows[3] + at, in->y + at, T * LD * sizeof(float));
    k->head_norm(team, o->rows[3] + at, LD, in->w, 1e-5f, in->z + at, LD, HEADS, DIM, T);
    memcpy(o->rows[4] + at, in->y + at, T * LD * sizeof(float));
    k->l2_norm(team, o->rows[4] + at, LD, HEADS, DIM, 1e-6f, 1.0f, T);
    memcpy(o->rows[5] + at, in->y + at, T * LD * sizeof(float));
    k->kda_gate(team, o->rows[5] + at, LD, in->w, in->w, HEADS, DIM, T);
    k->route(team, o->expert + begin * 4, o->weight + begin * 4, in->logits + begin * 40, NULL, &p,
             T);
}

/* Attention at positions 61 + begin..., and the recurrence, which goes on from what came before. */
static void run_sequence(outcome *o, const inputs *in, const tr_kernels *k, tr_team *team,
                         const tr_kv_view *kv, uint32_t begin, uint32_t end)
{
    size_t at = (size_t)begin * LD;
    uint32_t T = end - begin;
    size_t size = k->attention_scratch(DIM, HEADS, T, tr_team_size(team)) + 64;
    void *scratch = aligned_alloc(64, (size + 63) / 64 * 64);

    assert_non_null(scratch);
    k->kv_write(team, kv, DIM, in->kv + (61 + begin) * 2 * DIM,
                in->kv + (61 + begin) * 2 * DIM + DIM, 2 * DIM, 61 + begin, T);
    k->attention(team, o->attention + at, LD, in->z + at, LD, kv, HEADS, DIM, 0.4f, 61 + begin, T,
                 scratch);
    k->kda_recurrent(team, o->recurrent + at, in->y + at, in->z + at, in->y + at, in->g + at, LD,
                     in->beta + begin * HEADS, HEADS, o->states[0], HEADS, DIM, T);
    free(scratch);
}

static void run_chunk(outcome *o, const inputs *in, const tr_kernels *k, tr_team *team)
{
    size_t size = k->kda_chunk_scratch(DIM, tr_team_size(team));
    void *scratch = aligned_alloc(64, (size + 63) / 64 * 64);

    assert_non_null(scratch);
    k->kda_chunk(team, o->chunk, in->y, in->z, in->y, in->g, LD, in->beta, HEADS, o->states[1],
                 HEADS, DIM, T_MAX, scratch);
    free(scratch);
}

/* step: how many rows each call gets. */
static outcome *run_all(const inputs *in, const tr_kernels *k, uint32_t threads, uint32_t step)
{
    outcome *o = calloc(1, sizeof(*o));
    samples_packed packed[TR_FORMATS_COUNT];
    size_t page_size = 2 * TR_KV_PAGE_TOKENS * DIM * sizeof(float);
    uint8_t *pages[2] = {calloc(1, page_size), calloc(1, page_size)};
    tr_kv_view kv = {.pages = pages, .pages_count = 2, .v_offset = page_size / 2};
    tr_team *team = NULL;

    assert_true(o != NULL && pages[0] != NULL && pages[1] != NULL);
    CHECK_STATUS(tr_team_open(&team, threads, NULL), TR_OK);
    for (int f = 0; f < TR_FORMATS_COUNT; f++)
        packed[f] = samples_pack(k, &in->weight[f].w);
    memcpy(o->states[0], in->state, sizeof(in->state));
    memcpy(o->states[1], in->state, sizeof(in->state));
    k->kv_write(team, &kv, DIM, in->kv, in->kv + DIM, 2 * DIM, 0, 61);
    for (uint32_t t = 0; t < T_MAX; t += step) {
        uint32_t end = t + step < T_MAX ? t + step : T_MAX;
        run_rows(o, in, k, team, packed, t, end);
        run_sequence(o, in, k, team, &kv, t, end);
    }
    run_chunk(o, in, k, team);
    tr_team_close(team);
    free(pages[0]);
    free(pages[1]);
    for (int f = 0; f < TR_FORMATS_COUNT; f++)
        free(packed[f].memory);
    return o;
}

#define CHECK_SAME(a, b, field)                                                                    \
    do {                                                                                           \
        if (memcmp((a)->field, (b)->field, sizeof((a)->field)) != 0)                               \
            print_error("%s differs\n", #field);                                                   \
        assert_memory_equal((a)->field, (b)->field, sizeof((a)->field));                           \
    } while (0)

static void check_same(const outcome *a, const outcome *b)
{
    CHECK_SAME(a, b, products);
    CHECK_SAME(a, b, terms);
    CHECK_SAME(a, b, rows);
    CHECK_SAME(a, b, attention);
    CHECK_SAME(a, b, recurrent);
    CHECK_SAME(a, b, chunk);
    CHECK_SAME(a, b, states);
    CHECK_SAME(a, b, expert);
    CHECK_SAME(a, b, weight);
}

static void variants_threads_and_neighbours_change_no_bit(void **state)
{
    static const struct {
        uint32_t threads, step;
    } ways[] = {{1, 1}, {2, T_MAX}, {3, 2}, {1, 4}, {2, 3}, {3, 5}};
    size_t count;
    const tr_kernels *const *variants = samples_variants(&count);
    inputs *in = inputs_make();
    outcome *first = run_all(in, variants[0], 1, T_MAX);
    (void)state;

    for (size_t v = 0; v < count; v++) {
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            outcome *other = run_all(in, variants[v], ways[i].threads, ways[i].step);
            check_same(first, other);
            free(other);
        }
    }
    free(first);
    inputs_free(in);
}

/* Where the hardware could differ: denormals, signed zeros, largest numbers, halves of steps. */
static void hard_numbers_give_the_same_bits_in_every_variant(void **state)
{
    enum { COUNT = 4096 };
    size_t count;
    const tr_kernels *const *variants = samples_variants(&count);
    float *x = samples_floats(COUNT), *y = samples_floats(COUNT);
    float *first = samples_floats(COUNT), *other = samples_floats(COUNT);
    (void)state;

    samples_seed(11);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < COUNT; i++) { /* any bits but NaN and infinity */
            uint32_t bits[2] = {(uint32_t)samples_u64(), (uint32_t)samples_u64()};
            for (int j = 0; j < 2; j++)
                if ((bits[j] & 0x7f800000) == 0x7f800000)
                    bits[j] &= 0xbfffffff;
            if (round % 2 == 0) /* of moderate size: what exp and sigmoid really see */
                bits[0] = (bits[0] & 0x83ffffff) | 0x3c000000 | (bits[1] & 0x03000000);
            memcpy(&x[i], &bits[0], 4);
            memcpy(&y[i], &bits[1], 4);
        }
        for (size_t v = 0; v < count; v++) {
            float *out = v == 0 ? first : other;
            variants[v]->silu_mul(NULL, out, x, y, COUNT, INFINITY, 1, COUNT);
            variants[v]->kda_gate(NULL, out, COUNT, y, x, 1, COUNT, 1);
            for (int i = 0; i < COUNT; i++)
                if (out[i] != out[i])
                    out[i] = 0; /* overflow makes NaN, whose sign differs between machines */
            assert_memory_equal(first, out, COUNT * sizeof(float));
        }
    }
    samples_free(x);
    samples_free(y);
    samples_free(first);
    samples_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_has_the_fingerprint_of_this_version),
        cmocka_unit_test(variants_threads_and_neighbours_change_no_bit),
        cmocka_unit_test(hard_numbers_give_the_same_bits_in_every_variant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
