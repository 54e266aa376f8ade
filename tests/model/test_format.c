/* test_format.c - the values of element formats, bit for bit.
 *
 * Goal: each format gives the f32 bits that its publisher's own program gives. Method: tables of
 * published vectors in data/, and for f16 an independent formula over all 65,536 codes. */
#include "tests/check.h"

#include "core/model/model_spec.h"
#include "core/model/numbers.h"
#include "tests/model/case_file.h"

#include <math.h>
#include <stdlib.h>

static void check_bits(const char *what, uint32_t i, float got, uint32_t expected)
{
    if (tr_f32_bits(got) != expected)
        print_error("%s, value %u: %08x, expected %08x\n", what, i, tr_f32_bits(got), expected);
    assert_int_equal(tr_f32_bits(got), expected);
}

static void every_e4m3_and_e2m1_code_has_its_published_value(void **state)
{
    (void)state;
    static const char *const tables[] = {"e4m3fn.txt", "e2m1.txt"};

    for (int t = 0; t < 2; t++) {
        char code_text[8], second[32], third[32];
        uint32_t count = 0;
        case_file f;

        case_file_open(&f, tables[t]);
        while (case_file_next(&f)) {
            assert_int_equal(sscanf(f.column[0], "%7s %31s %31s", code_text, second, third), 3);
            if (t == 0) {
                uint8_t code = (uint8_t)strtoul(code_text, NULL, 16);
                if ((code & 0x7f) == 0x7f)
                    assert_true(isnan(tr_e4m3_to_f32(code)));
                else
                    check_bits("E4M3", code, tr_e4m3_to_f32(code),
                               (uint32_t)strtoul(second, NULL, 16));
            } else {
                uint8_t code = (uint8_t)strtoul(code_text, NULL, 16);
                check_bits("E2M1", code, tr_e2m1_to_f32(code), (uint32_t)strtoul(third, NULL, 16));
            }
            count++;
        }
        assert_int_equal(count, t == 0 ? 256 : 16);
    }
}

static void every_f16_code_has_the_value_of_its_fields(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        int exponent = (int)(h >> 10 & 31);
        double mantissa = h & 1023;
        double sign = h & 0x8000 ? -1.0 : 1.0;
        float got = tr_f16_to_f32((uint16_t)h);

        if (exponent == 31 && mantissa != 0) {
            assert_true(isnan(got));
            continue;
        }
        double expected = exponent == 31  ? sign * INFINITY
                          : exponent == 0 ? sign * ldexp(mantissa, -24)
                                          : sign * ldexp(1024 + mantissa, exponent - 25);
        check_bits("F16", h, got, tr_f32_bits((float)expected));
    }
}

static void nvfp4_groups_give_the_published_bits(void **state)
{
    (void)state;
    uint32_t count = 0;
    case_file f;

    case_file_open(&f, "nvfp4_encode.txt");
    while (case_file_next(&f)) {
        uint8_t *data, *scales;
        size_t data_size, scales_size;
        uint32_t scale, expected[16];
        float out[16];

        assert_int_equal(case_words(f.column[0], &scale, 1), 1);
        case_bytes(f.column[2], &scales, &scales_size);
        case_bytes(f.column[3], &data, &data_size);
        assert_int_equal(scales_size, 1);
        assert_int_equal(data_size, 8);
        assert_int_equal(case_words(f.column[4], expected, 16), 16);
        tr_weight w = {.format = TR_FORMAT_NVFP4,
                       .rows = 1,
                       .cols = 16,
                       .data = data,
                       .row_size = 8,
                       .scales = scales,
                       .scales_row_size = 1,
                       .scale = tr_f32_from_bits(scale)};
        tr_weight_to_f32(out, &w);
        for (uint32_t i = 0; i < 16; i++)
            check_bits("NVFP4", i, out[i], expected[i]);
        free(data);
        free(scales);
        count++;
    }
    assert_true(count > 4);
}

static void nvfp4_reads_the_low_nibble_first(void **state)
{
    (void)state;
    const uint8_t data[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    const uint8_t one = 0x38;
    const float expected[16] = {0,    .125f,  .25f,  .375f,  .5f,  .75f,  1,  1.5f,
                                -0.f, -.125f, -.25f, -.375f, -.5f, -.75f, -1, -1.5f};
    float out[16];
    tr_weight w = {.format = TR_FORMAT_NVFP4,
                   .rows = 1,
                   .cols = 16,
                   .data = data,
                   .row_size = 8,
                   .scales = &one,
                   .scales_row_size = 1,
                   .scale = 0.25f};

    tr_weight_to_f32(out, &w);
    for (uint32_t i = 0; i < 16; i++)
        check_bits("NVFP4", i, out[i], tr_f32_bits(expected[i]));
}

/* 1.0, 1.125, -448, 2^-9 in E4M3. */
static const uint8_t fp8_codes[4] = {0x38, 0x39, 0xfe, 0x01};

static void fp8_and_mxfp4_elements_meet_their_scales(void **state)
{
    (void)state;
    static const float rows[2] = {0.5f, 3}, rects[4] = {1, 2, 4, 8};
    static const uint8_t codes[32] = {0x7f, 0x21}, e8m0[2] = {127, 126};
    float out[64];

    tr_weight w = {.format = TR_FORMAT_FP8, .rows = 1, .cols = 4, .data = fp8_codes, .scale = 0.5f};
    tr_weight_to_f32(out, &w);
    assert_true(out[0] == 0.5f && out[1] == 0.5625f && out[2] == -224 && out[3] == 0x1p-10f);

    /* one scale for each row */
    w = (tr_weight){.format = TR_FORMAT_FP8_BLOCK,
                    .rows = 2,
                    .cols = 2,
                    .data = fp8_codes,
                    .row_size = 2,
                    .scales = (const uint8_t *)rows,
                    .scales_row_size = 4,
                    .grid_rows = 1,
                    .grid_cols = 2,
                    .scale = 1};
    tr_weight_to_f32(out, &w);
    assert_true(out[0] == 0.5f && out[1] == 0.5625f && out[2] == -1344 && out[3] == 0x3p-9f);

    /* a corner of 128 x 128 rectangles: four meet in it */
    w.scales = (const uint8_t *)rects;
    w.scales_row_size = 8;
    w.grid_rows = w.grid_cols = 128;
    w.grid_row = w.grid_col = 127;
    tr_weight_to_f32(out, &w);
    assert_true(out[0] == 1 && out[1] == 2.25f && out[2] == -1792 && out[3] == 0x8p-9f);

    w = (tr_weight){.format = TR_FORMAT_MXFP4,
                    .rows = 1,
                    .cols = 64,
                    .data = codes,
                    .scales = e8m0,
                    .scale = 1};
    tr_weight_to_f32(out, &w);
    assert_true(out[0] == -6 && out[1] == 6 && out[2] == 0.5f && out[3] == 1 && out[32] == 0);
}

/* Fills a matrix with bytes that are valid in every format. */
static void fill(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 37 % 59);
}

static void a_slice_has_the_values_of_its_rectangle(void **state)
{
    (void)state;
    static uint8_t data[8 * 128 * 4], scales[8 * 8], grid[4 * 4 * 2];
    float whole[8 * 128], part[3 * 64];

    fill(data, sizeof(data));
    fill(scales, sizeof(scales));
    fill(grid, sizeof(grid));
    for (int i = 0; i < TR_FORMATS_COUNT; i++) {
        tr_format format = (tr_format)i;
        if (tr_format_block_elements(format) > 128)
            continue; /* test_blocks.c */
        tr_weight w = {.format = format, .rows = 8, .cols = 128, .data = data, .scale = 0.5f};

        w.row_size = 128 / tr_format_block_elements(format) * tr_format_block_bytes(format);
        if (format == TR_FORMAT_NVFP4) {
            w.scales = scales;
            w.scales_row_size = 8;
        }
        if (format == TR_FORMAT_MXFP4) {
            w.scales = scales;
            w.scales_row_size = 4;
        }
        if (format == TR_FORMAT_FP8_BLOCK) {
            w.scales = grid;
            w.scales_format = TR_FORMAT_BF16;
            w.scales_row_size = 4 * 2;
            w.grid_rows = 3;
            w.grid_cols = 48;
            w.grid_row = 2;
            w.grid_col = 40;
        }
        tr_weight slice = tr_weight_slice(&w, 2, 3, 32, 64);
        assert_int_equal(slice.rows, 3);
        assert_int_equal(slice.cols, 64);
        tr_weight_to_f32(whole, &w);
        tr_weight_to_f32(part, &slice);
        for (uint32_t row = 0; row < 3; row++)
            assert_memory_equal(part + row * 64, whole + (row + 2) * 128 + 32, 64 * sizeof(float));
    }
}

static void names_and_blocks_are_those_of_the_list(void **state)
{
    (void)state;
    assert_string_equal(tr_format_name(TR_FORMAT_Q4_1), "Q4_1");
    assert_string_equal(tr_format_name(TR_FORMATS_COUNT), "unknown");
    assert_int_equal(tr_format_block_elements(TR_FORMAT_NVFP4), 16);
    assert_int_equal(tr_format_block_bytes(TR_FORMAT_Q8_0), 34);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_e4m3_and_e2m1_code_has_its_published_value),
        cmocka_unit_test(every_f16_code_has_the_value_of_its_fields),
        cmocka_unit_test(nvfp4_groups_give_the_published_bits),
        cmocka_unit_test(nvfp4_reads_the_low_nibble_first),
        cmocka_unit_test(fp8_and_mxfp4_elements_meet_their_scales),
        cmocka_unit_test(a_slice_has_the_values_of_its_rectangle),
        cmocka_unit_test(names_and_blocks_are_those_of_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
