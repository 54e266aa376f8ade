/* test_blocks.c - GGUF's block formats as packed matrices: every code, every place in a block where
 * a slice may begin.
 *
 * Goal: rectangles of a weight have the values of the whole and their products add up to it, in ref
 * and in every variant; scales that are no numbers are refused. Method: embed gives a row as it is
 * decoded, which is compared exactly with core/model/format.c (tests/model/test_blocks.c compares
 * that with gguf), and products with ref. */
#include "core/model/blocks.h"
#include "tests/kernels/compare.h"

enum { ROWS_OF_W = 5, BLOCKS = 3 };

static tr_format formats[TR_FORMATS_COUNT];
static uint32_t formats_count;

static int find_formats(void **state)
{
    (void)state;
    for (int f = 0; f < TR_FORMATS_COUNT; f++)
        if (tr_format_is_blocked((tr_format)f))
            formats[formats_count++] = (tr_format)f;
    return formats_count == 17 ? 0 : -1;
}

/* The rows of a packed rectangle are those that format.c gives. */
static void check_rows(const tr_kernels *k, const tr_weight *w)
{
    samples_packed packed = samples_pack(k, w);
    float *values = samples_floats((size_t)w->rows * w->cols), *out = samples_floats(w->cols);

    tr_weight_to_f32(values, w);
    for (int32_t n = 0; n < (int32_t)w->rows; n++) {
        k->embed(NULL, out, &packed.m, &n, 1);
        check_relative(tr_format_name(w->format), out, values + (size_t)n * w->cols, w->cols,
                       w->format == TR_FORMAT_GGUF_NVFP4 ? 1 : 0); /* the scale: another order */
    }
    samples_free(values);
    samples_free(out);
    free(packed.memory);
}

static void check_slices(const tr_kernels *k, const tr_kernels *ref)
{
    (void)ref;
    for (uint32_t f = 0; f < formats_count; f++) {
        uint32_t cols = BLOCKS * tr_format_block_elements(formats[f]);
        samples_weight s = samples_weight_make(formats[f], ROWS_OF_W, cols);
        uint32_t step = cols > 256 ? 96 : 32;
        for (uint32_t col = 0; col < cols; col += 32)
            for (uint32_t count = 32; count <= cols - col; count += step) {
                tr_weight w = tr_weight_slice(&s.w, 1, 2, col, count);
                check_rows(k, &w);
            }
        check_rows(k, &s.w);
        samples_weight_free(&s);
    }
}

static void slices_have_the_values_of_the_whole(void **state)
{
    (void)state;
    for_each_variant(check_slices);
    check_slices(samples_ref(), samples_ref());
}

/* Blocks whose bytes are all the same, with scales of every size: each code and each scale of a
 * part occurs with each other. */
static void check_bytes(const tr_kernels *k, const tr_kernels *ref)
{
    static const uint16_t halves[] = {0x0000, 0x8000, 0x0001, 0x83ff,
                                      0x0400, 0x3c00, 0x7bff, 0xfbff};
    (void)ref;

    for (uint32_t f = 0; f < formats_count; f++) {
        uint32_t bytes = tr_format_block_bytes(formats[f]);
        int at[2] = {tr_block_scale_at(formats[f]), tr_block_min_at(formats[f])};
        uint8_t *data = malloc((size_t)256 * bytes);
        tr_weight w = {.format = formats[f],
                       .rows = 256,
                       .cols = tr_format_block_elements(formats[f]),
                       .data = data,
                       .row_size = bytes,
                       .scale = 1};

        assert_non_null(data);
        for (uint32_t i = 0; i < 256; i++) {
            uint8_t *b = data + (size_t)i * bytes;
            memset(b, (int)i, bytes);
            for (int h = 0; h < 2; h++)
                if (at[h] >= 0)
                    memcpy(b + at[h], &halves[(i + 3 * (uint32_t)h) % 8], 2);
            if (!tr_block_is_valid(formats[f], b)) /* FP4: a scale that is no number */
                memset(b, 0x42, bytes);
        }
        check_rows(k, &w);
        free(data);
    }
}

static void every_byte_and_size_of_scale_keeps_its_value(void **state)
{
    (void)state;
    for_each_variant(check_bytes);
    check_bytes(samples_ref(), samples_ref());
}

/* Columns cut anywhere add up: each slice is a term of its own. */
static void check_terms(const tr_kernels *k, const tr_kernels *ref)
{
    enum { N = 37, K = 768 };

    for (uint32_t f = 0; f < formats_count; f++) {
        samples_weight s = samples_weight_make(formats[f], N, K);
        samples_packed whole = samples_pack(ref, &s.w);
        float *x = samples_floats(K), *expected = samples_floats(N);
        int64_t acc[N] = {0};
        uint8_t flag = 0;
        int32_t exponent = 5;

        samples_fill(x, K, 2.0f);
        ref->matmul(NULL, expected, N, x, K, NULL, &whole.m, 1);
        for (uint32_t col = 0, cols = 32; col < K; col += cols, cols += 32) {
            cols = cols < K - col ? cols : K - col;
            tr_weight w = tr_weight_slice(&s.w, 0, N, col, cols);
            samples_packed slice = samples_pack(k, &w);
            k->matmul_term(NULL, acc, &flag, &exponent, x + col, K, NULL, NULL, &slice.m, 1);
            free(slice.memory);
        }
        assert_int_equal(flag, 0);
        for (uint32_t n = 0; n < N; n++) {
            const float *w = (const float *)whole.m.data + (size_t)n * K;
            double size = 0;
            for (uint32_t i = 0; i < K; i++)
                size += fabs((double)x[i] * w[i]) * whole.m.scale;
            check_near(tr_format_name(formats[f]), n, (double)acc[n] * ldexp(1, 5 - TR_FIXED_BITS),
                       expected[n], (K / 16 + 8) * U * size + 10 * ldexp(1, 5 - TR_FIXED_BITS));
        }
        samples_free(x);
        samples_free(expected);
        free(whole.memory);
        samples_weight_free(&s);
    }
}

static void slices_of_columns_add_up_to_the_whole(void **state)
{
    (void)state;
    for_each_variant(check_terms);
}

static void check_refused(const tr_kernels *k, const tr_kernels *ref)
{
    (void)ref;
    for (uint32_t f = 0; f < formats_count; f++) {
        uint32_t bytes = tr_format_block_bytes(formats[f]);
        uint32_t cols = 2 * tr_format_block_elements(formats[f]);
        int at[2] = {tr_block_scale_at(formats[f]), tr_block_min_at(formats[f])};

        for (int h = 0; h < 2; h++) {
            if (at[h] < 0 && (h == 1 || at[0] >= 0))
                continue;
            uint8_t *data = calloc(6, bytes);
            void *memory = aligned_alloc(64, k->pack_size(formats[f], 3, cols));
            tr_weight w = {.format = formats[f],
                           .rows = 3,
                           .cols = cols,
                           .data = data,
                           .row_size = 2 * (size_t)bytes,
                           .scale = 1};
            tr_matrix m;
            tr_error err = {0};

            assert_true(data != NULL && memory != NULL);
            CHECK_STATUS(k->pack(&m, memory, &w, &err), TR_OK);
            memset(data + 5 * bytes + (at[h] < 0 ? 0 : at[h]), 0xff, at[h] < 0 ? 1 : 2);
            CHECK_STATUS(k->pack(&m, memory, &w, &err), TR_E_INVALID);
            CHECK_ERR_NAMES(err, "scale");
            free(data);
            free(memory);
        }
    }
}

static void scales_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    for_each_variant(check_refused);
    check_refused(samples_ref(), samples_ref());
}

/* The codes c of sixteen elements, two a byte in order, as GGUF has them: c[j] | c[j + 8] << 4. */
static void regroup(uint8_t *out, const uint8_t *in, uint32_t group)
{
    for (uint32_t j = 0; j < group / 2; j++) {
        uint32_t high = j + group / 2;
        out[j] =
            (uint8_t)((in[j / 2] >> j % 2 * 4 & 15) | (in[high / 2] >> high % 2 * 4 & 15) << 4);
    }
}

/* The same matrix as safetensors and as GGUF have it, and products with both. */
static void check_repacked(const tr_kernels *k, tr_format format, tr_format gguf, uint32_t group)
{
    enum { N = 9, K = 320, T = 3 };
    uint32_t elements = tr_format_block_elements(gguf), bytes = tr_format_block_bytes(gguf);
    uint32_t groups = elements / group; /* of one block */
    samples_weight s = samples_weight_make(format, N, K);
    uint8_t *data = malloc((size_t)N * K / elements * bytes);
    float *x = samples_floats(T * K), *out = samples_floats(T * N), *same = samples_floats(T * N);

    assert_non_null(data);
    for (uint32_t b = 0; b < N * K / elements; b++) {
        uint8_t *block = data + (size_t)b * bytes;
        for (uint32_t g = 0; g < groups; g++) {
            block[g] = s.scales[b * groups + g];
            regroup(block + groups + g * group / 2,
                    s.data + (size_t)b * elements / 2 + g * group / 2, group);
        }
    }
    tr_weight w = {.format = gguf,
                   .rows = N,
                   .cols = K,
                   .data = data,
                   .row_size = (size_t)K / elements * bytes,
                   .scale = s.w.scale};
    samples_packed a = samples_pack(k, &s.w), b = samples_pack(k, &w);
    samples_fill(x, T * K, 2.0f);
    k->matmul(NULL, out, N, x, K, NULL, &a.m, T);
    k->matmul(NULL, same, N, x, K, NULL, &b.m, T);
    assert_memory_equal(out, same, T * N * sizeof(float));
    samples_free(x);
    samples_free(out);
    samples_free(same);
    free(a.memory);
    free(b.memory);
    free(data);
    samples_weight_free(&s);
}

static void check_fp4(const tr_kernels *k, const tr_kernels *ref)
{
    (void)ref;
    check_repacked(k, TR_FORMAT_NVFP4, TR_FORMAT_GGUF_NVFP4, 16);
    check_repacked(k, TR_FORMAT_MXFP4, TR_FORMAT_GGUF_MXFP4, 32);
}

static void fp4_from_either_container_gives_the_same_bits(void **state)
{
    (void)state;
    for_each_variant(check_fp4);
    check_fp4(samples_ref(), samples_ref());
}

/* What the checkpoint has, and what completes the last unit and record of a row. */
static void a_packed_matrix_is_as_large_as_the_blocks(void **state)
{
    size_t count;
    const tr_kernels *k = samples_variants(&count)[0];
    (void)state;

    for (uint32_t f = 0; f < formats_count; f++) {
        size_t bytes =
            4096 / tr_format_block_elements(formats[f]) * tr_format_block_bytes(formats[f]);
        size_t size = k->pack_size(formats[f], 64, 4096);
        assert_in_range(size, 64 * bytes, 64 * (bytes + 4) + 128);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_have_the_values_of_the_whole),
        cmocka_unit_test(every_byte_and_size_of_scale_keeps_its_value),
        cmocka_unit_test(slices_of_columns_add_up_to_the_whole),
        cmocka_unit_test(scales_that_are_no_numbers_are_refused),
        cmocka_unit_test(fp4_from_either_container_gives_the_same_bits),
        cmocka_unit_test(a_packed_matrix_is_as_large_as_the_blocks),
    };
    return cmocka_run_group_tests(tests, find_formats, NULL);
}
