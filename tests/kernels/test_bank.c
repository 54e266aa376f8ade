/* test_bank.c - residual streams: every cpu variant against ref, the same bits in all variants and
 * with any number of threads, and what the mathematics promises. */
#include "tests/kernels/compare.h"

#include <string.h>

enum { STREAMS = 4, D = 37, MIXES = (2 + STREAMS) * STREAMS, T_MAX = 129 };

static const tr_mhc_params params = {
    .streams = STREAMS, .iterations = 20, .eps = 1e-6f, .norm_eps = 1e-5f};

typedef struct {
    float *bank, *y, *z, *base, *scale;
} inputs;

static inputs inputs_make(void)
{
    inputs in = {.bank = samples_floats(T_MAX * STREAMS * D),
                 .y = samples_floats(T_MAX * D),
                 .z = samples_floats(T_MAX * MIXES),
                 .base = samples_floats(MIXES),
                 .scale = samples_floats(3)};
    samples_fill(in.bank, T_MAX * STREAMS * D, 3.0f);
    samples_fill(in.y, T_MAX * D, 3.0f);
    samples_fill(in.z, T_MAX * MIXES, 4.0f);
    samples_fill(in.base, MIXES, 1.0f);
    samples_fill(in.scale, 3, 1.5f);
    return in;
}

static void inputs_free(inputs *in)
{
    samples_free(in->bank);
    samples_free(in->y);
    samples_free(in->z);
    samples_free(in->base);
    samples_free(in->scale);
}

static void check_mix(const tr_kernels *k, const tr_kernels *ref)
{
    for (size_t i = 0; i < ROWS_COUNT; i++) {
        uint32_t T = ROWS[i];
        inputs in = inputs_make();
        float *expected = samples_floats(T * MIXES + 1);

        memcpy(expected, in.z, T * MIXES * sizeof(float));
        ref->mhc_mix(NULL, expected, in.bank, in.base, in.scale, &params, T, D);
        k->mhc_mix(NULL, in.z, in.bank, in.base, in.scale, &params, T, D);
        /* logits up to 8 with 4 roundings each move exp by 32 u; 40 divisions by sums add one each,
         * and later rounds forget what earlier ones did */
        check_absolute("mhc_mix", in.z, expected, T * MIXES, 128, 1);
        for (uint32_t t = 0; t < T; t++) {
            const float *c = in.z + t * MIXES + 2 * STREAMS;
            for (uint32_t j = 0; j < STREAMS; j++) {
                float sum = 0;
                for (uint32_t r = 0; r < STREAMS; r++)
                    sum += c[r * STREAMS + j];
                check_near("column sum", j, sum, 1, 1e-5);
            }
        }
        samples_free(expected);
        inputs_free(&in);
    }
}

static void coefficients_agree_with_ref_and_columns_sum_to_one(void **state)
{
    (void)state;
    for_each_variant(check_mix);
}

static void check_read_and_write(const tr_kernels *k, const tr_kernels *ref)
{
    for (size_t i = 0; i < ROWS_COUNT; i++) {
        uint32_t T = ROWS[i], size = T * STREAMS * D;
        inputs in = inputs_make();
        float *a = samples_floats(size + 1), *b = samples_floats(size + 1);

        for (int weighted = 0; weighted < 2; weighted++) {
            const float *weight = weighted ? in.z : NULL;
            k->bank_read(NULL, a, in.bank, weight, MIXES, STREAMS, T, D);
            ref->bank_read(NULL, b, in.bank, weight, MIXES, STREAMS, T, D);
            check_absolute("bank_read", a, b, T * D, STREAMS, 4.0 * 3 * STREAMS);
        }
        for (int mixed = 0; mixed < 2; mixed++) {
            const float *mix = mixed ? in.z + 2 * STREAMS : NULL;
            memcpy(a, in.bank, size * sizeof(float));
            memcpy(b, in.bank, size * sizeof(float));
            k->bank_write(NULL, a, in.y, in.z + STREAMS, mix, MIXES, STREAMS, T, D);
            ref->bank_write(NULL, b, in.y, in.z + STREAMS, mix, MIXES, STREAMS, T, D);
            check_absolute("bank_write", a, b, size, STREAMS + 1, 4.0 * 3 * (STREAMS + 1));
        }
        samples_free(a);
        samples_free(b);
        inputs_free(&in);
    }
}

static void reading_and_writing_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_read_and_write);
}

/* Column i of C makes stream i: C[0][1] = 1 alone puts stream 0 into stream 1. */
static void check_transpose(const tr_kernels *k, const tr_kernels *ref)
{
    float bank[4] = {3, 5, 7, 11}; /* two streams of two columns */
    float y[2] = {100, 1000}, weight[2] = {0.5f, 0.25f}, mix[4] = {0, 1, 0, 0};
    float expected[4] = {50, 500, 28, 255};
    (void)ref;

    k->bank_write(NULL, bank, y, weight, mix, 0, 2, 1, 2);
    assert_memory_equal(bank, expected, sizeof(bank));
}

static void writing_mixes_by_the_columns_of_the_matrix(void **state)
{
    (void)state;
    for_each_variant(check_transpose);
    check_transpose(samples_ref(), samples_ref());
}

static void check_group_norm(const tr_kernels *k, const tr_kernels *ref)
{
    inputs in = inputs_make();
    float *a = samples_floats(T_MAX * STREAMS * D), *b = samples_floats(T_MAX * STREAMS * D);
    float weight[STREAMS * D];

    samples_fill(weight, STREAMS * D, 2.0f);
    ref->group_norm(NULL, b, in.bank, weight, 1e-6f, STREAMS, T_MAX, D);
    k->group_norm(NULL, a, in.bank, weight, 1e-6f, STREAMS, T_MAX, D);
    /* a sum of 3 by lane and 4 by tree, a division, a root, two products */
    check_relative("group_norm", a, b, T_MAX * STREAMS * D, 12);
    memcpy(a, in.bank, T_MAX * STREAMS * D * sizeof(float));
    k->group_norm(NULL, a, a, weight, 1e-6f, STREAMS, T_MAX, D); /* in place */
    check_relative("group_norm", a, b, T_MAX * STREAMS * D, 12);
    samples_free(a);
    samples_free(b);
    inputs_free(&in);
}

static void groups_are_normed_for_themselves(void **state)
{
    (void)state;
    for_each_variant(check_group_norm);
}

/* A whole sub-layer of both kinds; step: rows of each call. */
static float *run_all(const inputs *in, const tr_kernels *k, uint32_t threads, uint32_t step)
{
    size_t bank_size = (size_t)T_MAX * STREAMS * D;
    float *out = samples_floats(2 * bank_size + (size_t)T_MAX * (D + MIXES));
    float *normed = out + bank_size, *read = normed + bank_size, *z = read + T_MAX * D;
    tr_team *team = NULL;

    CHECK_STATUS(tr_team_open(&team, threads, NULL), TR_OK);
    memcpy(out, in->bank, bank_size * sizeof(float));
    memcpy(z, in->z, (size_t)T_MAX * MIXES * sizeof(float));
    for (uint32_t t = 0; t < T_MAX; t += step) {
        uint32_t T = T_MAX - t < step ? T_MAX - t : step;
        float *bank = out + (size_t)t * STREAMS * D, *mix = z + t * MIXES;
        k->mhc_mix(team, mix, bank, in->base, in->scale, &params, T, D);
        k->bank_read(team, read + t * D, bank, mix, MIXES, STREAMS, T, D);
        k->bank_write(team, bank, in->y + t * D, mix + STREAMS, mix + 2 * STREAMS, MIXES, STREAMS,
                      T, D);
        k->bank_write(team, bank, in->y + t * D, mix, NULL, MIXES, STREAMS, T, D);
        k->group_norm(team, normed + (size_t)t * STREAMS * D, bank, in->bank, 1e-6f, STREAMS, T, D);
    }
    tr_team_close(team);
    return out;
}

static void variants_threads_and_neighbours_change_no_bit(void **state)
{
    static const uint32_t ways[][2] = {{1, 1}, {2, T_MAX}, {3, 7}};
    size_t count, size = (2 * (size_t)T_MAX * STREAMS * D + T_MAX * (D + MIXES)) * sizeof(float);
    const tr_kernels *const *variants = samples_variants(&count);
    (void)state;

    samples_seed(5);
    inputs in = inputs_make();
    float *first = run_all(&in, variants[0], 1, T_MAX);
    for (size_t v = 0; v < count; v++) {
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            float *other = run_all(&in, variants[v], ways[i][0], ways[i][1]);
            assert_memory_equal(other, first, size);
            samples_free(other);
        }
    }
    samples_free(first);
    inputs_free(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coefficients_agree_with_ref_and_columns_sum_to_one),
        cmocka_unit_test(reading_and_writing_agree_with_ref),
        cmocka_unit_test(writing_mixes_by_the_columns_of_the_matrix),
        cmocka_unit_test(groups_are_normed_for_themselves),
        cmocka_unit_test(variants_threads_and_neighbours_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
