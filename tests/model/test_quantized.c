/* test_quantized.c - quantised checkpoints: which tensors make which format, and what is refused.
 *
 * Goal: the format of each matrix follows from the tensors that are there, in every spelling that
 * writers use; scales that are missing, no numbers, or the wrong way round are refused by name, and
 * so are schemes that we cannot compute. Method: fakes in which one matrix, or the stacked experts
 * of a layer, are replaced. */
#include "tests/check.h"

#include "core/model/model.h"
#include "tests/model/fake_model.h"

#include <math.h>
#include <stdlib.h>

#define UP "model.layers.1.mlp.experts.2.up_proj" /* [32, 64] */

static const uint8_t bf16_half[4] = {0x00, 0x3f, 0x00, 0x3f};   /* 0.5 */
static const uint8_t f32_quarter[4] = {0x00, 0x00, 0x80, 0x3e}; /* 0.25 */
static const uint8_t f32_four[4] = {0x00, 0x00, 0x80, 0x40};    /* 4 */
static const uint8_t e4m3_codes[4] = {0x38, 0x40, 0xb8, 0x00};  /* 1 2 -1 0 */
static const uint8_t e2m1_codes[4] = {0x10, 0x32, 0x54, 0x76};
static const uint8_t e8m0_half[4] = {126, 126, 126, 126};

static fake_tensor *put(fake_model *f, const char *name, const char *dtype, const uint8_t *fill,
                        uint32_t dims, uint64_t d0, uint64_t d1, uint64_t d2)
{
    fake_tensor *t = fake_add(f, name, dtype, dims, d0, d1, d2);

    memcpy(t->fill, fill, 4);
    return t;
}

static tr_model *open_right(fake_model *f)
{
    tr_model *m = NULL;
    tr_error err = {0};

    fake_write(f);
    if (tr_model_open(&m, f->folder, &err) != TR_OK)
        print_error("%s\n", err.text);
    assert_non_null(m);
    return m;
}

static void check_refused(fake_model *f, const char *what, const char *named)
{
    tr_model *m = NULL;
    tr_error err = {0};

    fake_write(f);
    tr_status status = tr_model_open(&m, f->folder, &err);
    if (status == TR_OK || strstr(err.text, named) == NULL)
        print_error("%s: \"%s\"\n", what, err.text);
    CHECK_STATUS(status, TR_E_INVALID);
    CHECK_ERR_NAMES(err, named);
    fake_close(f);
}

/* The first values of the up matrix of expert 2. */
static void check_up(fake_model *f, tr_format format, const float *first, uint32_t count)
{
    tr_model *m = open_right(f);
    tr_weight w = tr_model_weight(m, 1, TR_W_EXPERT_UP, 2);
    float values[32 * 64];

    assert_int_equal(w.format, format);
    assert_int_equal(w.rows, 32);
    assert_int_equal(w.cols, 64);
    tr_weight_to_f32(values, &w);
    for (uint32_t i = 0; i < count; i++)
        if (values[i] != first[i])
            print_error("value %u: %g, expected %g\n", i, (double)values[i], (double)first[i]);
    assert_memory_equal(values, first, count * sizeof(*first));
    tr_model_close(m);
    fake_close(f);
}

/* A fake whose up matrix is FP8 codes without a scale. */
static void fp8_codes(fake_model *f)
{
    fake_solar(f);
    fake_remove(f, UP ".weight");
    put(f, UP ".weight", "F8_E4M3", e4m3_codes, 2, 32, 64, 0);
}

static void fp8_scales_are_told_apart_by_their_shape(void **state)
{
    (void)state;
    static const float quarters[4] = {0.25f, 0.5f, -0.25f, 0}, halves[4] = {0.5f, 1, -0.5f, 0};
    fake_model f;

    fp8_codes(&f);
    put(&f, UP ".weight_scale", "F32", f32_quarter, 0, 0, 0, 0);
    put(&f, UP ".input_scale", "F32", f32_four, 0, 0, 0, 0);
    check_up(&f, TR_FORMAT_FP8, quarters, 4);
    fp8_codes(&f);
    put(&f, UP ".weight_scale", "F32", f32_quarter, 1, 1, 0, 0);
    check_up(&f, TR_FORMAT_FP8, quarters, 4);
    fp8_codes(&f);
    put(&f, UP ".weight_scale", "BF16", bf16_half, 2, 32, 1, 0);
    check_up(&f, TR_FORMAT_FP8_BLOCK, halves, 4);
    fp8_codes(&f);
    put(&f, UP ".weight_scale", "F32", f32_quarter, 1, 32, 0, 0);
    check_up(&f, TR_FORMAT_FP8_BLOCK, quarters, 4);
    fp8_codes(&f);
    put(&f, UP ".weight_scale_inv", "F32", f32_quarter, 2, 1, 1, 0); /* [ceil(32/128), ...] */
    check_up(&f, TR_FORMAT_FP8, quarters, 4);
}

/* Embeddings of [128, 64] stay; a lm_head of [300, 200] in blocks needs another model: llama's. */
static void blocks_of_128_cover_partial_edges(void **state)
{
    (void)state;
    fake_model f;

    for (int spelling = 0; spelling < 3; spelling++) {
        fake_llama(&f);
        fake_set(&f, "vocab_size", "300");
        fake_find(&f, "model.embed_tokens.weight")->dims[0] = 300;
        fake_remove(&f, "lm_head.weight");
        put(&f, "lm_head.weight", "F8_E4M3", e4m3_codes, 2, 300, 64, 0);
        fake_tensor *t =
            put(&f, spelling == 0 ? "lm_head.weight_scale_inv" : "lm_head.weight_scale", "F32",
                f32_quarter, 2, 3, 1, 0);
        if (spelling == 2) { /* ModelOpt's four dimensions */
            t->dims_count = 4;
            t->dims[0] = 3;
            t->dims[1] = t->dims[2] = t->dims[3] = 1;
        }
        tr_model *m = open_right(&f);
        tr_weight w = tr_model_weight(m, 0, TR_W_HEAD, 0);
        float row[64];
        assert_int_equal(w.format, TR_FORMAT_FP8_BLOCK);
        assert_int_equal(w.grid_rows, 128);
        w = tr_weight_slice(&w, 299, 1, 0, 64);
        tr_weight_to_f32(row, &w);
        assert_true(row[1] == 0.5f);
        tr_model_close(m);
        fake_close(&f);
    }
}

static void mxfp4_stands_packed_or_plain(void **state)
{
    (void)state;
    static const float values[8] = {0, 0.25f, 0.5f, 0.75f, 1, 1.5f, 2, 3};
    fake_model f;

    for (int i = 0; i < 3; i++) {
        fake_solar(&f);
        fake_remove(&f, UP ".weight");
        put(&f, i == 0 ? UP ".weight_packed" : UP ".weight", "U8", e2m1_codes, 2, 32, 32, 0);
        put(&f, UP ".weight_scale", i == 2 ? "F8_E8M0" : "U8", e8m0_half, 2, 32, 2, 0);
        check_up(&f, TR_FORMAT_MXFP4, values, 8);
    }
}

/* Layer 1's experts in one tensor of [4, 64, cols] and one of [4, 64, ...]. */
static void stacked(fake_model *f, const char *up, const char *down, const char *dtype,
                    const uint8_t *fill, uint64_t cols, uint64_t down_cols)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char name[96];

    fake_solar(f);
    for (uint32_t e = 0; e < 4; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%u.%s.weight", e, parts[i]);
            fake_remove(f, name);
        }
    put(f, up, dtype, fill, 3, 4, 64, cols);
    put(f, down, dtype, fill, 3, 4, 64, down_cols);
}

#define STACK "model.layers.1.mlp.experts."

static void stacked_experts_have_stacked_scales(void **state)
{
    (void)state;
    static const float fp8[4] = {0.25f, 0.5f, -0.25f, 0};
    static const float nvfp4[4] = {0, 0.125f, 0.25f, 0.375f}, mxfp4[4] = {0, 0.25f, 0.5f, 0.75f};
    static const uint8_t ones[4] = {0x38, 0x38, 0x38, 0x38};
    fake_model f;

    stacked(&f, STACK "gate_up_proj", STACK "down_proj", "F8_E4M3", e4m3_codes, 64, 32);
    put(&f, STACK "gate_up_proj_scale_inv", "F32", f32_quarter, 3, 4, 1, 1);
    put(&f, STACK "down_proj_scale_inv", "F32", f32_quarter, 3, 4, 1, 1);
    check_up(&f, TR_FORMAT_FP8, fp8, 4);

    stacked(&f, STACK "gate_up_proj", STACK "down_proj", "F8_E4M3", e4m3_codes, 64, 32);
    put(&f, STACK "gate_up_proj_weight_scale", "F32", f32_quarter, 3, 4, 64, 1);
    put(&f, STACK "down_proj_weight_scale", "F32", f32_quarter, 3, 4, 64, 1);
    check_up(&f, TR_FORMAT_FP8_BLOCK, fp8, 4);

    for (uint64_t parts = 1; parts <= 2; parts++) { /* gate and up may have a scale each */
        stacked(&f, STACK "gate_up_proj", STACK "down_proj", "U8", e2m1_codes, 32, 16);
        put(&f, STACK "gate_up_proj_weight_scale", "F8_E4M3", ones, 3, 4, 64, 4);
        put(&f, STACK "down_proj_weight_scale", "F8_E4M3", ones, 3, 4, 64, 2);
        put(&f, STACK "gate_up_proj_weight_scale_2", "F32", f32_quarter, 2, 4, parts, 0);
        put(&f, STACK "down_proj_weight_scale_2", "F32", f32_quarter, 1, 4, 0, 0);
        check_up(&f, TR_FORMAT_NVFP4, nvfp4, 4);
    }

    stacked(&f, STACK "gate_up_proj_blocks", STACK "down_proj_blocks", "U8", e2m1_codes, 2, 1);
    fake_find(&f, STACK "gate_up_proj_blocks")->dims_count = 4;
    fake_find(&f, STACK "gate_up_proj_blocks")->dims[3] = 16;
    fake_find(&f, STACK "down_proj_blocks")->dims_count = 4;
    fake_find(&f, STACK "down_proj_blocks")->dims[3] = 16;
    put(&f, STACK "gate_up_proj_scales", "U8", e8m0_half, 3, 4, 64, 2);
    put(&f, STACK "down_proj_scales", "U8", e8m0_half, 3, 4, 64, 1);
    tr_model *m = open_right(&f);
    tr_weight gate = tr_model_weight(m, 1, TR_W_EXPERT_GATE, 2);
    tr_weight up = tr_model_weight(m, 1, TR_W_EXPERT_UP, 2);
    assert_int_equal(up.data - gate.data, 32); /* rows alternate */
    assert_int_equal(up.row_size, 64);
    tr_model_close(m);
    check_up(&f, TR_FORMAT_MXFP4, mxfp4, 4);
}

static void activation_scales_multiply_in_both_layouts(void **state)
{
    (void)state;
    for (int modelopt = 0; modelopt < 2; modelopt++) {
        fake_model f;

        fake_solar(&f);
        fake_quantize(&f, UP, modelopt);
        put(&f, modelopt ? UP ".input_scale" : UP ".input_global_scale", "F32",
            modelopt ? f32_quarter : f32_four, 1, 1, 0, 0);
        tr_model *m = open_right(&f);
        assert_true(tr_model_weight(m, 1, TR_W_EXPERT_UP, 2).input_scale == 0.25f);
        assert_true(tr_model_weight(m, 1, TR_W_EXPERT_UP, 1).input_scale == 0);
        tr_model_close(m);
        fake_close(&f);

        fake_solar(&f);
        fake_quantize(&f, UP, modelopt);
        put(&f, modelopt ? UP ".input_scale" : UP ".input_global_scale", "F32",
            (const uint8_t[]){0, 0, 0xc0, 0x7f}, 1, 1, 0, 0);
        check_refused(&f, "NaN activation scale", "activation scale nan, expected a finite number");
    }
}

static void bad_scales_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint8_t fill[4];
        const char *named;
    } rows[] = {
        {"NaN", {0, 0, 0xc0, 0x7f}, UP ".weight_scale: scale nan, expected a finite number"},
        {"infinity", {0, 0, 0x80, 0x7f}, "scale inf, expected a finite number"},
        {"negative", {0, 0, 0x80, 0xbf}, "scale -1, expected a finite number"},
        {"reciprocal", {0, 0, 0xa8, 0x46}, "it looks like the reciprocal of the scale"},
    };
    fake_model f;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (uint32_t channel = 0; channel < 2; channel++) {
            fp8_codes(&f);
            put(&f, UP ".weight_scale", "F32", rows[i].fill, channel, 32, 0, 0);
            check_refused(&f, rows[i].what, rows[i].named);
        }
    }
    for (int modelopt = 0; modelopt < 2; modelopt++) { /* each stored the other's way */
        fake_solar(&f);
        fake_quantize(&f, UP, modelopt);
        memcpy(fake_find(&f, modelopt ? UP ".weight_scale_2" : UP ".weight_global_scale")->fill,
               modelopt ? f32_four : f32_quarter, 4);
        check_refused(&f, "reciprocal",
                      modelopt
                          ? "weight_scale_2: scale 4 multiplies weights by 4, expected at most 1"
                          : "weight_global_scale: scale 0.25 multiplies weights by 4");
    }
}

static void missing_and_misshapen_scales_are_named(void **state)
{
    (void)state;
    fake_model f;

    fp8_codes(&f);
    check_refused(&f, "no scale", UP ".weight_scale: absent, expected");
    fp8_codes(&f);
    put(&f, UP ".weight_scale", "F32", f32_quarter, 1, 16, 0, 0);
    check_refused(&f, "half of the rows",
                  UP ".weight_scale: shape [16], expected one scale, one for");
    fp8_codes(&f);
    put(&f, UP ".weight_scale", "F32", f32_quarter, 0, 0, 0, 0);
    put(&f, UP ".weight_scale_inv", "F32", f32_quarter, 0, 0, 0, 0);
    check_refused(&f, "two scales", "weight_scale_inv: stands beside");
    fp8_codes(&f);
    put(&f, UP ".weight_scale", "U8", e8m0_half, 2, 32, 2, 0);
    check_refused(&f, "MXFP8", "MXFP8 is not supported");
    fake_solar(&f);
    fake_remove(&f, UP ".weight");
    put(&f, UP ".weight", "F8_E5M2", e4m3_codes, 2, 32, 64, 0);
    check_refused(&f, "E5M2", UP ".weight: type F8_E5M2, expected F32");

    fake_solar(&f); /* experts 0 to 3, one of them without its scales */
    for (uint32_t e = 0; e < 4; e++) {
        char stem[96];
        snprintf(stem, sizeof(stem), "model.layers.1.mlp.experts.%u.up_proj", e);
        fake_quantize(&f, stem, 1);
    }
    fake_remove(&f, UP ".weight_scale_2");
    check_refused(&f, "one expert", UP ".weight_scale_2: absent, expected [1, 1]");

    stacked(&f, STACK "gate_up_proj", STACK "down_proj", "F8_E4M3", e4m3_codes, 64, 32);
    put(&f, STACK "gate_up_proj_scale_inv", "F32", f32_quarter, 3, 3, 1, 1);
    put(&f, STACK "down_proj_scale_inv", "F32", f32_quarter, 3, 4, 1, 1);
    check_refused(&f, "scales of three experts", "gate_up_proj_scale_inv: shape [3, 1, 1]");
    stacked(&f, STACK "gate_up_proj", STACK "down_proj", "F8_E4M3", e4m3_codes, 64, 32);
    put(&f, STACK "down_proj_scale_inv", "F32", f32_quarter, 3, 4, 1, 1);
    check_refused(&f, "no stacked scales", STACK "gate_up_proj_scale: absent");

    fake_solar(&f);
    fake_remove(&f, UP ".weight");
    put(&f, UP ".weight_packed", "U8", e2m1_codes, 2, 32, 32, 0);
    put(&f, UP ".weight_scale", "U8", e8m0_half, 2, 32, 4, 0);
    check_refused(&f, "scales for groups of 16",
                  UP ".weight_scale: shape [32, 4], expected [32, 2]");
}

static void integers_and_unknown_schemes_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *what, *json, *named;
    } rows[] = {
        {"GPTQ", "{\"quant_method\": \"gptq\", \"bits\": 4}",
         "quant_method: found gptq, expected one of"},
        {"AWQ", "{\"quant_method\": \"awq\"}",
         "config.json: quantization_config.quant_method: found awq"},
        {"bitsandbytes", "{\"quant_method\": \"bitsandbytes\"}", "found bitsandbytes"},
        {"NVFP4 with AWQ", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4_AWQ\"}",
         "quant_algo: found NVFP4_AWQ"},
        {"int4", "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}",
         "format: found pack-quantized"},
        {"int4 in a group",
         "{\"quant_method\": \"compressed-tensors\", \"format\": \"mixed-precision\","
         " \"config_groups\": {\"group_1\": {\"format\": \"pack-quantized\"}}}",
         "config_groups.group_1.format: found pack-quantized"},
        {"integers",
         "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"group_0\": "
         "{\"weights\": {\"num_bits\": 8, \"type\": \"int\"}}}}",
         "group_0.weights.type: found int, expected one of float"},
        {"one layer",
         "{\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": "
         "{\"lm_head\": {\"quant_algo\": \"W4A16_AWQ\"}}}",
         "quantized_layers.lm_head.quant_algo: found W4A16_AWQ"},
        {"E5M2", "{\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}", "fmt: found e5m2"},
        {"small blocks", "{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}",
         "weight_block_size: found other blocks"},
    };
    fake_model f;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_solar(&f);
        fake_set(&f, "quantization_config", rows[i].json);
        check_refused(&f, rows[i].what, rows[i].named);
    }
    fake_solar(&f);
    fake_write_text(&f, "hf_quant_config.json",
                    "{\"quantization\": {\"quant_algo\": \"W4A16_AWQ\"}}");
    check_refused(&f, "a file of its own",
                  "hf_quant_config.json: quantization.quant_algo: found W4A");
    fake_solar(&f);
    fake_remove(&f, UP ".weight");
    put(&f, UP ".qweight", "I32", e4m3_codes, 2, 8, 32, 0);
    check_refused(&f, "its tensors", UP ".qweight: integers of GPTQ or AWQ");
    fake_solar(&f);
    fake_remove(&f, UP ".weight");
    put(&f, UP ".weight_packed", "I32", e4m3_codes, 2, 32, 8, 0);
    check_refused(&f, "packed integers", "packed integers are not supported");
}

static void tensors_win_over_what_the_config_says(void **state)
{
    (void)state;
    static const float quarters[4] = {0.25f, 0.5f, -0.25f, 0};
    fake_model f;

    fp8_codes(&f);
    put(&f, UP ".weight_scale", "F32", f32_quarter, 0, 0, 0, 0);
    fake_set(
        &f, "quantization_config",
        "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"ignore\": [\"*experts*\"]}");
    check_up(&f, TR_FORMAT_FP8, quarters, 4);
}

static void projections_in_blocks_may_be_cut_at_sixteen(void **state)
{
    (void)state;
    fake_model f;

    fake_solar(&f); /* o_proj [64, 64]: two terms of 32 columns, inside one block */
    fake_remove(&f, "model.layers.0.self_attn.o_proj.weight");
    put(&f, "model.layers.0.self_attn.o_proj.weight", "F8_E4M3", e4m3_codes, 2, 64, 64, 0);
    put(&f, "model.layers.0.self_attn.o_proj.weight_scale", "BF16", bf16_half, 2, 64, 1, 0);
    tr_model_close(open_right(&f));
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_scales_are_told_apart_by_their_shape),
        cmocka_unit_test(blocks_of_128_cover_partial_edges),
        cmocka_unit_test(mxfp4_stands_packed_or_plain),
        cmocka_unit_test(stacked_experts_have_stacked_scales),
        cmocka_unit_test(activation_scales_multiply_in_both_layouts),
        cmocka_unit_test(bad_scales_are_named),
        cmocka_unit_test(missing_and_misshapen_scales_are_named),
        cmocka_unit_test(integers_and_unknown_schemes_are_refused_by_name),
        cmocka_unit_test(tensors_win_over_what_the_config_says),
        cmocka_unit_test(projections_in_blocks_may_be_cut_at_sixteen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
