/* test_blocks.c - GGUF's block formats, bit for bit.
 *
 * Goal: each block has the f32 bits that ggml's own dequantisers give, whole or cut at any multiple
 * of 32, and scales that are no numbers are found. Method: published vectors (data/vec_*.txt), and
 * hashes of what the gguf package makes of thousands of random and extreme blocks, which are made
 * here once more (data/gguf_blocks.txt, tools/golden/gguf_blocks.py). */
#include "core/model/blocks.h"

#include "core/model/numbers.h"
#include "tests/check.h"
#include "tests/model/case_file.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#define ELEMENTS_MAX 256

static const struct {
    const char *name; /* as gguf calls it */
    tr_format format;
} types[] = {
    {"Q4_0", TR_FORMAT_Q4_0},        {"Q4_1", TR_FORMAT_Q4_1},       {"Q5_0", TR_FORMAT_Q5_0},
    {"Q5_1", TR_FORMAT_Q5_1},        {"Q8_0", TR_FORMAT_Q8_0},       {"Q2_K", TR_FORMAT_Q2_K},
    {"Q3_K", TR_FORMAT_Q3_K},        {"Q4_K", TR_FORMAT_Q4_K},       {"Q5_K", TR_FORMAT_Q5_K},
    {"Q6_K", TR_FORMAT_Q6_K},        {"IQ2_XXS", TR_FORMAT_IQ2_XXS}, {"IQ2_XS", TR_FORMAT_IQ2_XS},
    {"IQ3_XXS", TR_FORMAT_IQ3_XXS},  {"IQ4_NL", TR_FORMAT_IQ4_NL},   {"IQ4_XS", TR_FORMAT_IQ4_XS},
    {"MXFP4", TR_FORMAT_GGUF_MXFP4}, {"NVFP4", TR_FORMAT_GGUF_NVFP4}};
#define TYPES_COUNT (sizeof(types) / sizeof(types[0]))

/* A weight of `rows` rows of whole blocks. */
static tr_weight weight_of(tr_format format, const uint8_t *data, uint32_t rows, uint32_t blocks)
{
    return (tr_weight){.format = format,
                       .rows = rows,
                       .cols = blocks * tr_format_block_elements(format),
                       .data = data,
                       .row_size = (size_t)blocks * tr_format_block_bytes(format),
                       .scale = 1};
}

static void check_vectors(const char *name, tr_format format)
{
    uint32_t elements = tr_format_block_elements(format), count = 0;
    char file[32] = "vec_";
    float out[ELEMENTS_MAX];
    uint32_t expected[ELEMENTS_MAX];
    case_file f;

    for (size_t i = 0; i <= strlen(name); i++)
        file[4 + i] = (char)tolower((unsigned char)name[i]);
    strcat(file, ".txt");
    case_file_open(&f, file);
    while (case_file_next(&f)) {
        uint8_t *block;
        size_t size;

        case_bytes(f.column[0], &block, &size);
        assert_int_equal(size, tr_format_block_bytes(format));
        assert_int_equal(case_words(f.column[1], expected, ELEMENTS_MAX), elements);
        tr_weight w = weight_of(format, block, 1, 1);
        tr_weight_to_f32(out, &w);
        for (uint32_t i = 0; i < elements; i++) {
            if (tr_f32_bits(out[i]) != expected[i])
                print_error("%s, element %u: %08x, expected %08x\n", file, i, tr_f32_bits(out[i]),
                            expected[i]);
            assert_int_equal(tr_f32_bits(out[i]), expected[i]);
        }
        free(block);
        count++;
    }
    assert_true(count >= 3);
}

static void published_blocks_give_the_published_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPES_COUNT; i++)
        check_vectors(types[i].name, types[i].format);
}

/* splitmix64 */
static uint64_t next_random(uint64_t *random)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The blocks of tools/golden/gguf_blocks.py. */
static uint8_t *make_blocks(tr_format format, const char *kind, uint64_t seed, uint32_t count)
{
    static const uint16_t extremes[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00,
                                        0xbc00, 0x7bff, 0xfbff, 0x7c00, 0x7e00};
    uint32_t bytes = tr_format_block_bytes(format);
    int at[2] = {tr_block_scale_at(format), tr_block_min_at(format)};
    uint8_t *blocks = malloc((size_t)count * bytes);

    assert_non_null(blocks);
    for (size_t i = 0; i < (size_t)count * bytes; i++)
        blocks[i] = (uint8_t)(next_random(&seed) >> 56);
    if (strcmp(kind, "zeros") == 0 || strcmp(kind, "ones") == 0)
        memset(blocks, kind[0] == 'z' ? 0 : 0xff, (size_t)count * bytes);
    for (int i = 0; i < 2; i++) {
        for (uint32_t b = 0; at[i] >= 0 && b < count; b++) {
            uint64_t r = next_random(&seed);
            uint16_t half =
                strcmp(kind, "extreme") == 0 ? extremes[r % 11] : (uint16_t)(0x2000 + (r >> 52));
            memcpy(blocks + (size_t)b * bytes + at[i], &half, 2);
        }
    }
    return blocks;
}

static uint64_t hash_of(const float *values, size_t count)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < count; i++)
        h = (h ^ (isnan(values[i]) ? 0x7fc00000u : tr_f32_bits(values[i]))) * 0x100000001b3u;
    return h;
}

static tr_format format_named(const char *name)
{
    size_t i = 0;

    while (i < TYPES_COUNT && strcmp(types[i].name, name) != 0)
        i++;
    assert_true(i < TYPES_COUNT);
    return types[i].format;
}

static void random_and_extreme_blocks_give_the_bits_of_gguf(void **state)
{
    (void)state;
    uint32_t lines = 0;
    case_file f;

    case_file_open(&f, "gguf_blocks.txt");
    while (case_file_next(&f)) {
        tr_format format = format_named(f.column[0]);
        uint32_t count = (uint32_t)strtoul(f.column[3], NULL, 10);
        uint8_t *blocks = make_blocks(format, f.column[1], strtoull(f.column[2], NULL, 10), count);
        tr_weight w = weight_of(format, blocks, count, 1);
        float *values = malloc((size_t)w.rows * w.cols * sizeof(*values));

        assert_non_null(values);
        tr_weight_to_f32(values, &w);
        uint64_t found = hash_of(values, (size_t)w.rows * w.cols);
        if (found != strtoull(f.column[4], NULL, 16))
            print_error("%s, %s: %016llx, expected %s\n", f.column[0], f.column[1],
                        (unsigned long long)found, f.column[4]);
        assert_true(found == strtoull(f.column[4], NULL, 16));
        free(values);
        free(blocks);
        lines++;
    }
    assert_int_equal(lines, 4 * TYPES_COUNT);
}

static void slices_begin_and_end_inside_blocks(void **state)
{
    (void)state;
    enum { ROWS = 3, BLOCKS = 3 };

    for (size_t t = 0; t < TYPES_COUNT; t++) {
        tr_format format = types[t].format;
        uint8_t *blocks = make_blocks(format, "random", 77, ROWS * BLOCKS);
        tr_weight w = weight_of(format, blocks, ROWS, BLOCKS);
        float *whole = malloc(ROWS * w.cols * sizeof(*whole));
        float *part = malloc(ROWS * w.cols * sizeof(*part));

        assert_true(whole != NULL && part != NULL);
        assert_int_equal(tr_format_grain(format), 32);
        w.scale = 0.5f;
        tr_weight_to_f32(whole, &w);
        for (uint32_t col = 0; col < w.cols; col += 32) {
            for (uint32_t cols = 32; cols <= w.cols - col; cols += 32) {
                tr_weight half = tr_weight_slice(&w, 1, 2, col, w.cols - col);
                tr_weight slice = tr_weight_slice(&half, 1, 1, w.cols - col - cols, cols);
                tr_weight_to_f32(part, &slice);
                assert_memory_equal(part, whole + 3 * w.cols - cols, cols * sizeof(float));
            }
        }
        free(whole);
        free(part);
        free(blocks);
    }
}

static void scales_that_are_no_numbers_are_found(void **state)
{
    (void)state;
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0xfdff};

    for (size_t t = 0; t < TYPES_COUNT; t++) {
        tr_format format = types[t].format;
        uint8_t block[256];
        int at[2] = {tr_block_scale_at(format), tr_block_min_at(format)};

        memset(block, 0, sizeof(block));
        assert_true(tr_block_is_valid(format, block));
        for (int i = 0; i < 2; i++) {
            for (size_t b = 0; at[i] >= 0 && b < 4; b++) {
                memset(block, 0, sizeof(block));
                memcpy(block + at[i], &bad[b], 2);
                assert_false(tr_block_is_valid(format, block));
            }
        }
        if (at[0] >= 0)
            continue;
        block[0] = 0xff;
        assert_false(tr_block_is_valid(format, block));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_blocks_give_the_published_bits),
        cmocka_unit_test(random_and_extreme_blocks_give_the_bits_of_gguf),
        cmocka_unit_test(slices_begin_and_end_inside_blocks),
        cmocka_unit_test(scales_that_are_no_numbers_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
