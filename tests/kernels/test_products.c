/* test_products.c - packed matrices of every format: products, terms and rows, against ref.
 *
 * Goal and method as in test_conformance.c; every format with rows that end inside a superblock in
 * each possible way, and every path of matmul (one row, few rows, tiles, more than one tile). */
#include "tests/kernels/compare.h"

static uint32_t cols_of(tr_format format, uint32_t i)
{
    static const uint32_t element_cols[] = {1, 37, 128, 150, 531};
    static const uint32_t block16_cols[] = {16, 112, 144, 256, 1136};
    static const uint32_t block32_cols[] = {32, 96, 160, 192, 1120};

    if (format == TR_FORMAT_NVFP4)
        return block16_cols[i];
    return format == TR_FORMAT_F32 || format == TR_FORMAT_BF16 || format == TR_FORMAT_F16 ||
                   format == TR_FORMAT_FP8 || format == TR_FORMAT_FP8_BLOCK
               ? element_cols[i]
               : block32_cols[i];
}

/* Each lane adds K / 16 products with one rounding each, the tree four more, scale one: so the
 * error is at most (K / 16 + 6) u times the sum of |x w|. */
static double dot_bound(const float *x, const samples_packed *ref_w, uint32_t n)
{
    const float *w = (const float *)ref_w->m.data + (size_t)n * ref_w->m.cols;
    double size = 0;

    for (uint32_t k = 0; k < ref_w->m.cols; k++)
        size += fabs((double)x[k] * w[k]);
    return (ref_w->m.cols / 16 + 7) * U * size * ref_w->m.scale + 100 * TINY;
}

static void check_matmul_of(const tr_kernels *k, const tr_kernels *ref, tr_format format,
                            uint32_t rows, uint32_t cols, uint32_t T)
{
    samples_weight weight = samples_weight_make(format, rows, cols);
    samples_packed w = samples_pack(k, &weight.w), ref_w = samples_pack(ref, &weight.w);
    uint32_t ld_x = cols + 3, ld_out = rows + 1;
    float *x = samples_floats((T + 1) * ld_x);
    float *out = samples_floats((T + 1) * ld_out), *expected = samples_floats((T + 1) * ld_out);
    uint32_t *gather = malloc((T + 1) * sizeof(*gather));

    assert_non_null(gather);
    samples_fill_hard(x, (T + 1) * ld_x, 2.0f);
    for (uint32_t t = 0; t < T; t++)
        gather[t] = (T - 1 - t) / 2;
    for (int pass = 0; pass < 2; pass++) {
        const uint32_t *r = pass == 0 ? NULL : gather;
        k->matmul(NULL, out, ld_out, x, ld_x, r, &w.m, T);
        ref->matmul(NULL, expected, ld_out, x, ld_x, r, &ref_w.m, T);
        for (uint32_t t = 0; t < T; t++)
            for (uint32_t n = 0; n < rows; n++)
                check_near("matmul", t * rows + n, out[t * ld_out + n], expected[t * ld_out + n],
                           dot_bound(x + (r != NULL ? r[t] : t) * ld_x, &ref_w, n));
    }
    free(gather);
    samples_free(x);
    samples_free(out);
    samples_free(expected);
    free(w.memory);
    free(ref_w.memory);
    samples_weight_free(&weight);
}

static void check_matmul(const tr_kernels *k, const tr_kernels *ref)
{
    for (int format = 0; format < TR_FORMATS_COUNT; format++) {
        for (uint32_t i = 0; i < 5; i++)
            for (size_t t = 0; t < ROWS_COUNT; t++)
                check_matmul_of(k, ref, (tr_format)format, 1 + i * 6, cols_of((tr_format)format, i),
                                ROWS[t] == 129 && i < 4 ? 9 : ROWS[t]);
        check_matmul_of(k, ref, (tr_format)format, 67, cols_of((tr_format)format, 2), 6);
    }
}

static void matmul_agrees_with_ref_in_every_format(void **state)
{
    (void)state;
    for_each_variant(check_matmul);
}

static void check_term_of(const tr_kernels *k, const tr_kernels *ref, tr_format format, uint32_t T)
{
    enum { N = 21 };
    uint32_t cols = cols_of(format, 3);
    samples_weight weight = samples_weight_make(format, N, cols);
    samples_packed w = samples_pack(k, &weight.w), ref_w = samples_pack(ref, &weight.w);
    float *x = samples_floats(T * cols + 1), *gate = samples_floats(T + 1);
    int64_t *acc = calloc((T + 1) * N, sizeof(*acc)), *expected = calloc((T + 1) * N, sizeof(*acc));
    uint8_t *flags = calloc(T + 1, 1), *ref_flags = calloc(T + 1, 1);
    int32_t *exponent = calloc(T + 1, sizeof(*exponent));
    uint32_t *rows = calloc(T + 1, sizeof(*rows));

    assert_true(acc != NULL && expected != NULL && flags != NULL && ref_flags != NULL);
    assert_true(exponent != NULL && rows != NULL);
    samples_fill(x, T * cols, 2.0f);
    samples_fill(gate, T, 1.0f);
    for (uint32_t t = 0; t < T; t++) {
        exponent[t] = (int32_t)(samples_u64() % 12) - 4;
        rows[t] = (t + 1) % T;
        for (uint32_t n = 0; n < N; n++)
            acc[t * N + n] = expected[t * N + n] = (int64_t)(samples_u64() >> 20) - (1LL << 43);
    }
    for (int pass = 0; pass < 2; pass++) {
        const uint32_t *d = pass == 0 ? NULL : rows;
        const float *g = pass == 0 ? NULL : gate;
        k->matmul_term(NULL, acc, flags, exponent, x, cols, d, g, &w.m, T);
        ref->matmul_term(NULL, expected, ref_flags, exponent, x, cols, d, g, &ref_w.m, T);
    }
    for (uint32_t t = 0; t < T; t++) {
        uint32_t d = rows[t];
        for (uint32_t n = 0; n < N; n++) {
            /* both passes, each one grid step of rounding more than the dot itself */
            double bound = dot_bound(x + t * cols, &ref_w, n) * (fabsf(gate[t]) + 1);
            double before = dot_bound(x + d * cols, &ref_w, n);
            double grid = ldexp(1.0, TR_FIXED_BITS - exponent[d]);
            check_near("matmul_term", d * N + n, (double)(acc[d * N + n] - expected[d * N + n]), 0,
                       (bound + before) * grid + 2);
        }
        assert_int_equal(flags[t], 0);
    }
    free(acc);
    free(expected);
    free(flags);
    free(ref_flags);
    free(exponent);
    free(rows);
    samples_free(x);
    samples_free(gate);
    free(w.memory);
    free(ref_w.memory);
    samples_weight_free(&weight);
}

static void check_term(const tr_kernels *k, const tr_kernels *ref)
{
    for (int format = 0; format < TR_FORMATS_COUNT; format++)
        for (size_t t = 0; t < ROWS_COUNT; t++)
            check_term_of(k, ref, (tr_format)format, ROWS[t]);
}

static void matmul_term_adds_the_same_integers_as_ref(void **state)
{
    (void)state;
    for_each_variant(check_term);
}

/* A 1 x 1 product puts any float in front of the rounding. */
static void check_rounding(const tr_kernels *k, const tr_kernels *ref)
{
    static const struct {
        float y;
        int32_t exponent; /* as for a grid of 23 bits, so that 23 makes the grid the integers */
        int64_t expected;
        uint8_t flag;
    } cases[] = {
        {0.5f, 23, 0, 0},
        {1.5f, 23, 2, 0},
        {2.5f, 23, 2, 0},
        {-0.5f, 23, 0, 0},
        {-1.5f, 23, -2, 0},
        {-2.5f, 23, -2, 0},
        {0x1.000002p0f, 0, 0x800001, 0},
        {0x1p-149f, -60, 0, 0},
        {0x1.fffffep26f, 0, 0x3fffffc000000, 0},
        {0x1p27f, 0, 0, 1},
        {-0x1p27f, 0, 0, 1},
        {0x1.fffffep127f, 0, 0, 1},
        {INFINITY, 0, 0, 1},
        {-INFINITY, 127, 0, 1},
        {NAN, 0, 0, 1},
        {0x1p-60f, -60, 0x800000, 0},
        {1.0f, 127, 0, 0},
        {0x1.8p103f, 127, 1, 0},
        {0x1.8p104f, 127, 2, 0},
    };
    float one = 1.0f;
    tr_weight w = {.format = TR_FORMAT_F32,
                   .rows = 1,
                   .cols = 1,
                   .data = (const uint8_t *)&one,
                   .row_size = 4,
                   .scale = 1.0f};
    samples_packed packed = samples_pack(k, &w);
    (void)ref;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t acc = 1000;
        uint8_t flag = 0;
        int32_t exponent = cases[i].exponent + TR_FIXED_BITS - 23;
        k->matmul_term(NULL, &acc, &flag, &exponent, &cases[i].y, 1, NULL, NULL, &packed.m, 1);
        if (acc != 1000 + cases[i].expected)
            print_error("case %zu: y %a, exponent %d\n", i, (double)cases[i].y, cases[i].exponent);
        assert_int_equal(acc, 1000 + cases[i].expected);
        assert_int_equal(flag, cases[i].flag);
    }
    free(packed.memory);
}

static void fixed_point_rounds_to_nearest_even_and_flags_what_does_not_fit(void **state)
{
    (void)state;
    for_each_variant(check_rounding);
    check_rounding(samples_ref(), samples_ref());
}

static void check_embed(const tr_kernels *k, const tr_kernels *ref)
{
    static const int32_t ids[] = {10, 0, 3, 3, 10};

    for (int format = 0; format < TR_FORMATS_COUNT; format++) {
        for (uint32_t i = 0; i < 5; i++) {
            uint32_t cols = cols_of((tr_format)format, i);
            samples_weight weight = samples_weight_make((tr_format)format, 11, cols);
            samples_packed w = samples_pack(k, &weight.w), ref_w = samples_pack(ref, &weight.w);
            float *out = samples_floats(5 * cols), *expected = samples_floats(5 * cols);
            k->embed(NULL, out, &w.m, ids, 5);
            ref->embed(NULL, expected, &ref_w.m, ids, 5);
            check_relative("embed", out, expected, 5 * cols, 0); /* exact */
            k->embed(NULL, out, &w.m, ids, 0);
            samples_free(out);
            samples_free(expected);
            free(w.memory);
            free(ref_w.memory);
            samples_weight_free(&weight);
        }
    }
}

static void embed_gives_the_exact_values_of_every_format(void **state)
{
    (void)state;
    for_each_variant(check_embed);
}

static void check_nvfp4_bytes(const tr_kernels *k, const tr_kernels *ref)
{
    static const uint8_t data[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    static const float expected[16] = {0, .125f,  .25f,  .375f,  .5f,  .75f,  1,  1.5f,
                                       0, -.125f, -.25f, -.375f, -.5f, -.75f, -1, -1.5f};
    uint8_t scale = 0x38;
    tr_weight w = {.format = TR_FORMAT_NVFP4,
                   .rows = 1,
                   .cols = 16,
                   .data = data,
                   .row_size = 8,
                   .scales = &scale,
                   .scales_row_size = 1,
                   .scale = 0.25f};
    samples_packed packed = samples_pack(k, &w);
    float out[16];
    (void)ref;

    k->embed(NULL, out, &packed.m, &(int32_t){0}, 1);
    check_relative("nvfp4", out, expected, 16, 0);
    free(packed.memory);
}

static void nvfp4_decodes_the_published_example(void **state)
{
    (void)state;
    for_each_variant(check_nvfp4_bytes);
    check_nvfp4_bytes(samples_ref(), samples_ref());
}

static void check_pack_refuses(const tr_kernels *k, const tr_kernels *ref)
{
    static const tr_format formats[] = {TR_FORMAT_NVFP4, TR_FORMAT_Q8_0, TR_FORMAT_Q4_0,
                                        TR_FORMAT_Q4_1};
    (void)ref;

    for (size_t i = 0; i < 4; i++) {
        samples_weight weight = samples_weight_make(formats[i], 3, 64);
        void *memory = aligned_alloc(64, k->pack_size(formats[i], 3, 64));
        tr_matrix m;
        tr_error err = {0};
        assert_non_null(memory);
        if (formats[i] == TR_FORMAT_NVFP4)
            weight.scales[2 * 4 + 1] = 0x7f;
        else
            weight.data[weight.w.row_size * 2 + 1] = 0x7e;
        CHECK_STATUS(k->pack(&m, memory, &weight.w, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "scale");
        free(memory);
        samples_weight_free(&weight);
    }
}

static void pack_refuses_scales_that_are_not_finite(void **state)
{
    (void)state;
    for_each_variant(check_pack_refuses);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_agrees_with_ref_in_every_format),
        cmocka_unit_test(matmul_term_adds_the_same_integers_as_ref),
        cmocka_unit_test(fixed_point_rounds_to_nearest_even_and_flags_what_does_not_fit),
        cmocka_unit_test(embed_gives_the_exact_values_of_every_format),
        cmocka_unit_test(nvfp4_decodes_the_published_example),
        cmocka_unit_test(pack_refuses_scales_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
