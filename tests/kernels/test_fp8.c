/* test_fp8.c - FP8 and MXFP4 as packed matrices: every code, every kind of scale, slices that begin
 * inside a block.
 *
 * Goal: rectangles of a weight have the values of the whole, whatever rows and columns a placement
 * cuts out, in ref and in every variant; scales and codes that are no numbers are refused. Method:
 * embed gives a row as it is decoded, which is compared exactly with core/model/format.c and ref.
 */
#include "tests/kernels/compare.h"

enum { N = 300, K = 400 };

/* The rows of a packed rectangle are those that format.c gives, bit for bit. */
static void check_rows(const tr_kernels *k, const tr_weight *w)
{
    samples_packed packed = samples_pack(k, w);
    float *values = samples_floats((size_t)w->rows * w->cols), *out = samples_floats(w->cols);

    tr_weight_to_f32(values, w);
    for (int32_t n = 0; n < (int32_t)w->rows; n++) {
        k->embed(NULL, out, &packed.m, &n, 1);
        check_relative("row", out, values + (size_t)n * w->cols, w->cols, 0);
    }
    samples_free(values);
    samples_free(out);
    free(packed.memory);
}

static void check_codes(const tr_kernels *k, const tr_kernels *ref)
{
    uint8_t codes[256];
    (void)ref;

    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)((i & 0x7f) == 0x7f ? 0 : i);
    tr_weight w = {.format = TR_FORMAT_FP8,
                   .rows = 1,
                   .cols = 256,
                   .data = codes,
                   .row_size = 256,
                   .scale = 0.37f};
    check_rows(k, &w);
}

static void every_e4m3_code_keeps_its_value(void **state)
{
    (void)state;
    for_each_variant(check_codes);
    check_codes(samples_ref(), samples_ref());
}

/* A weight [N, K] with one scale for each grid_rows x grid_cols. */
static samples_weight scaled_weight(tr_format scales_format, uint32_t grid_rows, uint32_t grid_cols)
{
    samples_weight s = samples_weight_make(TR_FORMAT_FP8, N, K);
    size_t across = (K + grid_cols - 1) / grid_cols, down = (N + grid_rows - 1) / grid_rows;
    size_t bytes = tr_format_block_bytes(scales_format);

    free(s.scales);
    s.scales = malloc(across * down * bytes);
    assert_non_null(s.scales);
    for (size_t i = 0; i < across * down; i++) {
        float f = samples_float(0.01f) + 0.0101f;
        uint16_t half = (uint16_t)(0x2000 + (samples_u64() >> 52));
        if (scales_format == TR_FORMAT_F16)
            memcpy(s.scales + 2 * i, &half, 2);
        else
            memcpy(s.scales + bytes * i, (const uint8_t *)&f + 4 - bytes, bytes);
    }
    s.w.format = TR_FORMAT_FP8_BLOCK;
    s.w.scale = 1;
    s.w.scales = s.scales;
    s.w.scales_format = scales_format;
    s.w.scales_row_size = across * bytes;
    s.w.grid_rows = grid_rows;
    s.w.grid_cols = grid_cols;
    return s;
}

static void check_slices(const tr_kernels *k, const tr_kernels *ref)
{
    static const struct {
        tr_format format;
        uint32_t rows, cols;
    } kinds[] = {{TR_FORMAT_F32, 128, 128},
                 {TR_FORMAT_BF16, 128, 128},
                 {TR_FORMAT_F16, 128, 128},
                 {TR_FORMAT_F32, 1, K},
                 {TR_FORMAT_BF16, 1, K}};
    static const uint32_t cuts[][4] = {
        {0, N, 0, K},      {5, 7, 16, 112},         {120, 20, 64, 64},
        {127, 2, 112, 32}, {256, 44, 256, K - 256}, {1, 1, 384, 16},
        {130, 3, 48, 250}, {0, 3, 128, 272},
    };
    (void)ref;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        samples_weight s = scaled_weight(kinds[i].format, kinds[i].rows, kinds[i].cols);
        for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
            tr_weight w = tr_weight_slice(&s.w, cuts[c][0], cuts[c][1], cuts[c][2], cuts[c][3]);
            check_rows(k, &w);
        }
        samples_weight_free(&s);
    }
}

static void slices_inside_a_block_keep_its_scale(void **state)
{
    (void)state;
    for_each_variant(check_slices);
    check_slices(samples_ref(), samples_ref());
}

/* A column cut at any multiple of 16 adds up to the whole: each slice is a term. */
static void check_terms(const tr_kernels *k, const tr_kernels *ref)
{
    samples_weight s = scaled_weight(TR_FORMAT_F32, 128, 128);
    float *x = samples_floats(K), *whole = samples_floats(N), *part = samples_floats(N);
    float *sum = samples_floats(N);
    samples_packed packed = samples_pack(ref, &s.w);

    samples_fill(x, K, 2.0f);
    ref->matmul(NULL, whole, N, x, K, NULL, &packed.m, 1);
    for (uint32_t col = 0; col < K; col += 80) {
        tr_weight w = tr_weight_slice(&s.w, 0, N, col, 80);
        samples_packed slice = samples_pack(k, &w);
        k->matmul(NULL, part, N, x + col, 80, NULL, &slice.m, 1);
        for (uint32_t n = 0; n < N; n++)
            sum[n] += part[n];
        free(slice.memory);
    }
    for (uint32_t n = 0; n < N; n++) /* |x w| < 2 * 448 * 0.02, K of them, twenty roundings */
        check_near("sum of slices", n, sum[n], whole[n], 20 * U * K * 2 * 448 * 0.02);
    free(packed.memory);
    samples_free(x);
    samples_free(whole);
    samples_free(part);
    samples_free(sum);
    samples_weight_free(&s);
}

static void slices_add_up_to_the_whole(void **state)
{
    (void)state;
    for_each_variant(check_terms);
}

static void check_mxfp4(const tr_kernels *k, const tr_kernels *ref)
{
    uint8_t codes[16 * 5], scales[5] = {127, 0, 250, 1, 120};
    (void)ref;

    for (size_t i = 0; i < sizeof(codes); i++)
        codes[i] = (uint8_t)(i * 0x1d + 0x10);
    for (uint32_t blocks = 1; blocks <= 5; blocks++) {
        tr_weight w = {.format = TR_FORMAT_MXFP4,
                       .rows = 1,
                       .cols = 32 * blocks,
                       .data = codes,
                       .row_size = 16 * blocks,
                       .scales = scales,
                       .scales_row_size = blocks,
                       .scale = 1};
        check_rows(k, &w);
    }
}

static void mxfp4_keeps_every_power_of_two(void **state)
{
    (void)state;
    for_each_variant(check_mxfp4);
    check_mxfp4(samples_ref(), samples_ref());
}

static void check_refused(const tr_kernels *k, const tr_weight *w)
{
    void *memory = aligned_alloc(64, k->pack_size(w->format, w->rows, w->cols));
    tr_error err = {0};
    tr_matrix m;

    assert_non_null(memory);
    CHECK_STATUS(k->pack(&m, memory, w, &err), TR_E_INVALID);
    assert_true(err.text[0] != '\0');
    free(memory);
}

static void check_refusals(const tr_kernels *k, const tr_kernels *ref)
{
    static const float bad[] = {NAN, -1.0f, INFINITY};
    samples_weight fp8 = scaled_weight(TR_FORMAT_F32, 128, 128);
    samples_weight mx = samples_weight_make(TR_FORMAT_MXFP4, 3, 64);
    (void)ref;

    for (size_t i = 0; i < 3; i++) {
        memcpy(fp8.scales + 5 * sizeof(float), &bad[i], sizeof(float));
        check_refused(k, &fp8.w);
    }
    memcpy(fp8.scales + 5 * sizeof(float), &(float){1}, sizeof(float));
    fp8.data[N * K - 1] = 0xff;
    check_refused(k, &fp8.w);
    fp8.w.format = TR_FORMAT_FP8;
    check_refused(k, &fp8.w);
    fp8.data[N * K - 1] = 0;
    fp8.w.scale = NAN;
    check_refused(k, &fp8.w);
    mx.scales[5] = 255;
    check_refused(k, &mx.w);
    samples_weight_free(&fp8);
    samples_weight_free(&mx);
}

static void pack_refuses_codes_and_scales_that_are_no_numbers(void **state)
{
    (void)state;
    for_each_variant(check_refusals);
    check_refusals(samples_ref(), samples_ref());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_e4m3_code_keeps_its_value),
        cmocka_unit_test(slices_inside_a_block_keep_its_scale),
        cmocka_unit_test(slices_add_up_to_the_whole),
        cmocka_unit_test(mxfp4_keeps_every_power_of_two),
        cmocka_unit_test(pack_refuses_codes_and_scales_that_are_no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
