/* test_round.c - rows rounded to NVFP4.
 *
 * Goal: activations in four bits are those of the published encoder, in ref and in every variant,
 * and nothing that is not finite is hidden. Method: groups with known results at every tie, then
 * bits of random rows against ref. (The published vectors and numpy:
 * tests/golden/test_activations.py.) */
#include "tests/kernels/compare.h"

#include <float.h>

/* Ties of E2M1 with a block scale of 1 (the largest element is 6): to the even code. */
static void check_ties(const tr_kernels *k, const tr_kernels *ref)
{
    static const float x[16] = {0.25f,  0.75f,  1.25f, 1.75f, 2.5f,  3.5f,  5.0f,   6.0f,
                                -0.25f, -0.75f, -5.0f, 0.0f,  -0.0f, 0.26f, -2.51f, 5.01f};
    static const float expected[16] = {0,     1,  1,  2, 2,     4,    4,  6,
                                       -0.0f, -1, -4, 0, -0.0f, 0.5f, -3, 6};
    static const float scales[3] = {1.0f, 0.125f, 0x1p-20f};
    float out[16], scaled[16], want[16];
    (void)ref;

    for (int s = 0; s < 3; s++) { /* powers of two change nothing but the exponents */
        for (int i = 0; i < 16; i++) {
            scaled[i] = x[i] * scales[s];
            want[i] = expected[i] * scales[s];
        }
        k->round_nvfp4(NULL, out, 16, scaled, 16, NULL, scales[s], 1, 16);
        assert_memory_equal(out, want, sizeof(out));
    }
}

static void ties_go_to_the_even_code(void **state)
{
    (void)state;
    for_each_variant(check_ties);
    check_ties(samples_ref(), samples_ref());
}

/* Block scales: rounded to E4M3, at most 448, steps of 2^-9 below 2^-6, 0 below half of that. */
static void check_scales(const tr_kernels *k, const tr_kernels *ref)
{
    static const struct {
        float largest, expected; /* of the group, with matrix scale 1 */
    } cases[] = {
        {6 * 1.0625f, 6},    /* tie between 1 and 1.125: even */
        {6 * 1.1875f, 7.5f}, /* tie between 1.125 and 1.25; 6 of 1.25 */
        {6 * 1000.0f, 2688}, /* at most 448 */
        {6 * 0x1p-9f, 6 * 0x1p-9f},
        {6 * 0x1p-11f, 0}, /* its scale is 0 */
        {0, 0},
    };
    float x[16] = {0}, out[16];
    (void)ref;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        x[7] = cases[i].largest;
        k->round_nvfp4(NULL, out, 16, x, 16, NULL, 1.0f, 1, 16);
        check_near("largest", i, out[7], cases[i].expected, 0);
    }
}

static void block_scales_are_rounded_to_e4m3(void **state)
{
    (void)state;
    for_each_variant(check_scales);
    check_scales(samples_ref(), samples_ref());
}

static void check_random(const tr_kernels *k, const tr_kernels *ref)
{
    enum { T = 21, N = 112, LD = 120 };
    float *x = samples_floats(T * LD), *out = samples_floats(T * N),
          *expected = samples_floats(T * N);
    uint32_t rows[T];

    for (uint32_t t = 0; t < T; t++) {
        rows[t] = (t * 5 + 3) % T;
        samples_fill_hard(x + t * LD, LD, ldexpf(1.0f, (int)t - 10));
    }
    for (int i = 0; i < 4; i++) {
        float scale = 0.01f * (float)(1 << (4 * i));
        k->round_nvfp4(NULL, out, N, x, LD, rows, scale, T, N);
        ref->round_nvfp4(NULL, expected, N, x, LD, rows, scale, T, N);
        assert_memory_equal(out, expected, T * N * sizeof(float));
    }
    k->round_nvfp4(NULL, x, LD, x, LD, NULL, 0.01f, T, N); /* in place; the rest of a row stays */
    samples_free(x);
    samples_free(out);
    samples_free(expected);
}

static void random_rows_have_the_bits_of_ref(void **state)
{
    (void)state;
    for_each_variant(check_random);
}

static void check_not_finite(const tr_kernels *k, const tr_kernels *ref)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float x[32], out[32];
    (void)ref;

    for (int b = 0; b < 3; b++) {
        for (int at = 0; at < 16; at++) {
            for (int i = 0; i < 32; i++)
                x[i] = 1.0f;
            x[at] = bad[b];
            k->round_nvfp4(NULL, out, 32, x, 32, NULL, 0.5f, 1, 32);
            for (int i = 0; i < 16; i++)
                assert_true(isnan(out[i]));
            assert_true(isfinite(out[16]));
        }
    }
    for (int i = 0; i < 32; i++)
        x[i] = FLT_MAX;
    k->round_nvfp4(NULL, out, 32, x, 32, NULL, 0.5f, 1, 32);
    assert_true(out[0] == 6 * 448 * 0.5f);
}

static void what_is_not_finite_stays_so(void **state)
{
    (void)state;
    for_each_variant(check_not_finite);
    check_not_finite(samples_ref(), samples_ref());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_go_to_the_even_code),
        cmocka_unit_test(block_scales_are_rounded_to_e4m3),
        cmocka_unit_test(random_rows_have_the_bits_of_ref),
        cmocka_unit_test(what_is_not_finite_stays_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
