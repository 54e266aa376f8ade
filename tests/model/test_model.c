/* test_model.c - checkpoints as models.
 *
 * Goal: a right checkpoint gives the spec and the weights that its files say; a wrong one gives a
 * sentence that names file, tensor or key, found, expected. Method: the bundled model, and small
 * fakes that differ from a right one in a single place. */
#include "tests/check.h"

#include "core/model/model.h"
#include "core/model/weights.h"
#include "tests/model/fake_model.h"

#include <math.h>
#include <stdlib.h>

static tr_model *open_right(const char *path)
{
    tr_model *m = NULL;
    tr_error err = {0};

    if (tr_model_open(&m, path, &err) != TR_OK)
        print_error("%s\n", err.text);
    assert_non_null(m);
    return m;
}

static void check_shape(const tr_model *m, uint32_t layer, tr_weight_role role, tr_format format,
                        uint32_t rows, uint32_t cols)
{
    tr_weight w = tr_model_weight(m, layer, role, 0);

    assert_int_equal(w.format, format);
    assert_int_equal(w.rows, rows);
    assert_int_equal(w.cols, cols);
    assert_int_equal(w.row_size,
                     cols / tr_format_block_elements(format) * tr_format_block_bytes(format));
}

/* -- right ones -- */

static void the_bundled_model_is_what_its_config_says(void **state)
{
    (void)state;
    tr_model *m = open_right(MODELS_DIR "/tiny-solar-nvfp4");
    const tr_model_spec *s = tr_model_get_spec(m);

    assert_string_equal(s->architecture, "solar_open2");
    assert_int_equal(s->layers_count, 8);
    assert_int_equal(s->vocab_size, 4096);
    assert_int_equal(s->context_max, 8192);
    assert_int_equal(s->bos_token, 1);
    assert_int_equal(s->eos_tokens_count, 2); /* generation_config.json adds the end of a turn */
    assert_int_equal(s->eos_tokens[1], 4);
    assert_true(s->default_temperature == 0.8f);
    assert_true(s->default_top_p == 0.95f);
    for (uint32_t i = 0; i < 8; i++) {
        const tr_layer_spec *l = &s->layers[i];

        assert_int_equal(l->mixer, i % 4 == 0 ? TR_MIXER_GQA : TR_MIXER_KDA);
        assert_int_equal(tr_layer_attention_terms(l), i % 4 == 0 ? 2 : 4);
        assert_int_equal(l->channel.experts, 16);
        assert_int_equal(l->channel.top_k, 2);
        assert_int_equal(l->channel.always_size, 256);
        assert_int_equal(l->channel.slices, 4);
    }
    assert_true(s->layers[0].gqa.scale == 0.125f);
    assert_true(s->layers[0].gqa.gate);
    assert_int_equal(s->layers[0].gqa.rope, TR_ROPE_NONE);
    assert_int_equal(s->layers[1].kda.rank, 64);
    assert_true(s->layers[1].kda.beta_scale == 2.0f);
    check_shape(m, 0, TR_W_ATTENTION_GATE, TR_FORMAT_BF16, 256, 256);
    check_shape(m, 0, TR_W_K, TR_FORMAT_BF16, 128, 256);
    check_shape(m, 1, TR_W_Q_CONV, TR_FORMAT_BF16, 256, 4);
    check_shape(m, 1, TR_W_A, TR_FORMAT_F32, 1, 4);
    check_shape(m, 3, TR_W_EXPERT_GATE, TR_FORMAT_NVFP4, 256, 256);
    check_shape(m, 0, TR_W_HEAD, TR_FORMAT_BF16, 4096, 256);
    assert_false(tr_model_has(m, 0, TR_W_Q_CONV));
    assert_int_equal(tr_model_files_count(m), 2);
    tr_model_close(m);
}

static void every_weight_of_the_bundled_model_is_finite(void **state)
{
    (void)state;
    tr_model *m = open_right(MODELS_DIR "/tiny-solar-nvfp4");
    tr_error err = {0};

    for (uint32_t layer = 0; layer < 8; layer++)
        for (uint32_t e = 0; e < 16; e++)
            for (int role = TR_W_EXPERT_GATE; role <= TR_W_EXPERT_DOWN; role++)
                CHECK_STATUS(tr_model_check_weight(m, layer, (tr_weight_role)role, e, &err), TR_OK);
    tr_model_close(m);
}

static void both_nvfp4_layouts_give_the_same_bits(void **state)
{
    (void)state;
    static const char *const stems[] = {"model.layers.1.mlp.experts.2.up_proj",
                                        "model.layers.0.mlp.experts.0.down_proj"};
    float values[2][32 * 64];

    for (int modelopt = 0; modelopt < 2; modelopt++) {
        fake_model f;

        fake_solar(&f);
        for (int i = 0; i < 2; i++)
            fake_quantize(&f, stems[i], modelopt);
        fake_add(&f, "model.layers.1.mlp.experts.2.up_proj.input_scale", "F32", 0, 0, 0, 0);
        fake_write(&f);
        tr_model *m = open_right(f.folder);
        tr_weight w = tr_model_weight(m, 1, TR_W_EXPERT_UP, 2);
        assert_int_equal(w.format, TR_FORMAT_NVFP4);
        assert_true(w.scale == 0.25f);
        tr_weight_to_f32(values[modelopt], &w);
        assert_int_equal(tr_model_weight(m, 1, TR_W_EXPERT_UP, 1).format, TR_FORMAT_BF16);
        tr_model_close(m);
        fake_close(&f);
    }
    assert_memory_equal(values[0], values[1], sizeof(values[0]));
    assert_true(values[0][7] == 1.5f);
}

static void fused_experts_are_cut_into_gate_and_up(void **state)
{
    (void)state;
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    fake_model f;
    char name[96];

    fake_solar(&f);
    for (uint32_t e = 0; e < 4; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%u.%s.weight", e, parts[i]);
            fake_remove(&f, name);
        }
    fake_add(&f, "model.layers.1.mlp.experts.gate_up_proj", "BF16", 3, 4, 64, 64);
    fake_add(&f, "model.layers.1.mlp.experts.down_proj", "BF16", 3, 4, 64, 32);
    fake_write(&f);
    tr_model *m = open_right(f.folder);
    tr_weight gate0 = tr_model_weight(m, 1, TR_W_EXPERT_GATE, 0);
    tr_weight up0 = tr_model_weight(m, 1, TR_W_EXPERT_UP, 0);
    tr_weight gate3 = tr_model_weight(m, 1, TR_W_EXPERT_GATE, 3);
    assert_int_equal(up0.rows, 32);
    assert_int_equal(up0.cols, 64);
    assert_int_equal(up0.data - gate0.data, 32 * 64 * 2);
    assert_int_equal(gate3.data - gate0.data, 3 * 64 * 64 * 2);
    tr_model_weight_name(m, 1, TR_W_EXPERT_UP, 3, name, sizeof(name));
    assert_string_equal(name, "model.layers.1.mlp.experts.gate_up_proj");
    tr_model_close(m);
    fake_close(&f);
}

static void a_llama_directory_rotates_halves(void **state)
{
    (void)state;
    fake_model f;

    fake_llama(&f);
    fake_set(&f, "rope_parameters", "{\"rope_theta\": 50000.0, \"rope_type\": \"default\"}");
    fake_write(&f);
    tr_model *m = open_right(f.folder);
    const tr_layer_spec *l = &tr_model_get_spec(m)->layers[1];
    assert_int_equal(l->gqa.rope, TR_ROPE_HALF);
    assert_int_equal(l->gqa.rope_dims, 16);
    assert_true(l->gqa.rope_theta == 50000.0);
    assert_int_equal(l->channel.experts, 0);
    assert_int_equal(l->channel.slices, 2);
    tr_plan_shape shape;
    tr_model_plan_shape(m, &shape);
    assert_int_equal(shape.layers_count, 2);
    assert_int_equal(shape.attention_terms[0], 2);
    assert_int_equal(shape.slices[1], 2);
    assert_int_equal(shape.vocab_granule, 64);
    tr_model_close(m);
    fake_close(&f);
}

static void tied_embeddings_serve_as_the_output_matrix(void **state)
{
    (void)state;
    fake_model f;

    fake_llama(&f);
    fake_remove(&f, "lm_head.weight");
    fake_set(&f, "tie_word_embeddings", "true");
    fake_write(&f);
    tr_model *m = open_right(f.folder);
    assert_true(tr_model_is_tied(m));
    assert_ptr_equal(tr_model_weight(m, 0, TR_W_HEAD, 0).data,
                     tr_model_weight(m, 0, TR_W_EMBED, 0).data);
    tr_model_close(m);
    fake_close(&f);
}

static void the_schedule_follows_its_precedence(void **state)
{
    (void)state;
    fake_model f;

    fake_solar(&f);
    fake_set(&f, "gqa_layers", "[1]"); /* would be wrong: layer_types comes first */
    fake_set(&f, "layer_types", "[\"full_attention\", \"linear_attention\"]");
    fake_write(&f);
    tr_model_close(open_right(f.folder));
    fake_set(&f, "layer_types", "null");
    fake_set(&f, "gqa_layers", "null");
    fake_set(&f, "gqa_interval", "3"); /* layer 0, then layer 4 */
    fake_write(&f);
    tr_model_close(open_right(f.folder));
    fake_close(&f);
}

static void the_identity_tells_checkpoints_apart(void **state)
{
    (void)state;
    fake_model f;

    fake_llama(&f);
    fake_write(&f);
    tr_model *m = open_right(f.folder);
    uint64_t plain = tr_model_identity(m);
    tr_model_close(m);
    m = open_right(f.folder);
    assert_true(tr_model_identity(m) == plain);
    tr_model_close(m);

    fake_set(&f, "rms_norm_eps", "1e-6");
    fake_write(&f);
    m = open_right(f.folder);
    uint64_t other_config = tr_model_identity(m);
    tr_model_close(m);
    assert_true(other_config != plain);

    strcpy(fake_find(&f, "lm_head.weight")->dtype, "F16");
    fake_write(&f);
    m = open_right(f.folder);
    assert_true(tr_model_identity(m) != other_config);
    tr_model_close(m);
    fake_close(&f);
}

static void headers_alone_open_without_values(void **state)
{
    (void)state;
    fake_model f;
    tr_model *m = NULL;

    fake_solar(&f);
    fake_quantize(&f, "model.layers.1.mlp.experts.2.up_proj", 0);
    memset(fake_find(&f, "model.layers.1.mlp.experts.2.up_proj.weight_global_scale")->fill, 0, 4);
    fake_write(&f);
    CHECK_STATUS(tr_model_open(&m, f.folder, NULL), TR_E_INVALID);
    CHECK_STATUS(tr_model_open_headers(&m, f.folder, NULL), TR_OK);
    tr_model_close(m);
    fake_close(&f);
}

/* -- wrong ones: what is changed, and what the sentence names -- */

typedef struct {
    const char *what;
    const char *key, *json; /* a setting, or NULL */
    const char *named;
} bad_setting;

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

static void a_bad_setting_is_named(void **state)
{
    (void)state;
    static const bad_setting rows[] = {
        {"another family", "model_type", "\"gpt2\"", "config.json: model_type: found \"gpt2\""},
        {"no family", "model_type", "null", "model_type: null"},
        {"hyper-connections", "hc_rate", "4", "hc_rate: above 0"},
        {"unknown key", "use_magic", "true", "config.json: use_magic: a setting"},
        {"unknown inner key", "linear_attn_config",
         "{\"head_dim\": 16, \"num_heads\": 4, \"short_conv_kernel_size\": 4, \"gate\": 1}",
         "linear_attn_config.gate: a setting"},
        {"shared KDA heads", "linear_attn_config",
         "{\"head_dim\": 16, \"num_heads\": 4, \"short_conv_kernel_size\": 4, \"num_kv_heads\": 2}",
         "linear_attn_config.num_kv_heads: found 2, expected 4"},
        {"no KDA sizes", "linear_attn_config", "null", "linear_attn_config.head_dim: absent"},
        {"biases", "attention_bias", "true", "attention_bias: found true, expected false"},
        {"gate bias", "use_gqa_gate_bias", "true", "use_gqa_gate_bias: found true"},
        {"activation", "hidden_act", "\"gelu\"", "hidden_act: found \"gelu\", expected silu"},
        {"scores", "scoring_func", "\"softmax\"", "scoring_func: found \"softmax\""},
        {"text for a number", "hidden_size", "\"64\"", "hidden_size: a string"},
        {"fraction", "num_hidden_layers", "2.0", "num_hidden_layers: a number with a fraction"},
        {"zero heads", "num_attention_heads", "0", "num_attention_heads: found 0"},
        {"odd heads", "num_key_value_heads", "3", "3 does not divide 4"},
        {"huge width", "moe_intermediate_size", "99999999",
         "moe_intermediate_size: found 99999999"},
        {"too many chosen", "num_experts_per_tok", "5", "chosen experts is 5"},
        {"groups", "n_group", "3", "3 does not divide 4"},
        {"schedule length", "layer_types", "[\"full_attention\"]", "layer_types: 1 entries"},
        {"schedule word", "layer_types", "[\"full_attention\", \"sliding\"]", "found sliding at 1"},
        {"schedule index", "gqa_layers", "[0, 2]", "gqa_layers: entry 1"},
        {"no softmax layer", "gqa_layers", "[]", "no layer has softmax attention"},
        {"no schedule", "gqa_layers", "null", "expected one of the three"},
        {"scaled positions", "rope_scaling", "{\"rope_type\": \"longrope\", \"factor\": 4}",
         "rope_scaling.rope_type: found \"longrope\""},
        {"no borders", "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 4}",
         "rope_scaling.low_freq_factor: absent"},
        {"two kinds", "rope_scaling", "{\"rope_type\": \"linear\", \"type\": \"yarn\"}",
         "rope_scaling.type: found \"yarn\", expected linear"},
        {"end beyond vocabulary", "eos_token_id", "[2, 128]", "eos_token_id: found 128"},
        {"rotations", "quantization_config", "{\"transform_config\": {\"u\": 1}}",
         "transform_config"},
        {"eps", "rms_norm_eps", "0", "rms_norm_eps: found 0"},
        {"prediction layers", "num_nextn_predict_layers", "1", "num_nextn_predict_layers"},
        {"vocabulary", "vocab_size", "256",
         "tensor model.embed_tokens.weight: shape [128, 64], "
         "expected [256, 64]"},
        {"norms on q", "use_qk_norm", "true", "q_norm.weight: absent, expected [1, 16]"},
        {"no gate", "use_gqa_gate", "false", "self_attn.g_proj.weight: has no place"},
        {"full projections", "kda_use_full_proj", "true", "self_attn.f_proj.weight: absent"},
        {"dense layer", "first_k_dense_replace", "1",
         "intermediate_size: absent, expected an integer"},
        {"layers left over", "num_hidden_layers", "1", "has no place in a solar_open2 model"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_model f;

        fake_solar(&f);
        fake_set(&f, rows[i].key, rows[i].json);
        check_refused(&f, rows[i].what, rows[i].named);
    }
}

static void a_bad_tensor_is_named(void **state)
{
    (void)state;
    static const char q[] = "model.layers.0.self_attn.q_proj.weight";
    static const char up[] = "model.layers.1.mlp.experts.2.up_proj";
    static const uint8_t nan_bf16[4] = {0xc0, 0x7f, 0xc0, 0x7f};
    static const uint8_t nan_f32[4] = {0x00, 0x00, 0xc0, 0x7f};
    static const uint8_t negative[4] = {0x00, 0x00, 0x80, 0xbf};
    fake_model f;
    char name[96];

    fake_solar(&f);
    fake_remove(&f, q);
    check_refused(&f, "absent",
                  "tensor model.layers.0.self_attn.q_proj.weight: absent, expected "
                  "[64, 64]");
    fake_solar(&f);
    fake_find(&f, q)->dims[1] = 32;
    check_refused(&f, "shape", "q_proj.weight: shape [64, 32], expected [64, 64]");
    fake_solar(&f);
    strcpy(fake_find(&f, q)->dtype, "I32");
    fake_find(&f, q)->bytes_per_element = 4;
    check_refused(&f, "type",
                  "model.safetensors: tensor model.layers.0.self_attn.q_proj.weight: "
                  "type I32, expected F32");
    fake_solar(&f);
    fake_add(&f, "model.layers.0.self_attn.q_proj.bias", "BF16", 1, 64, 0, 0);
    check_refused(&f, "bias", "self_attn.q_proj.bias: has no place");
    fake_solar(&f);
    memcpy(fake_find(&f, "model.layers.1.self_attn.o_norm.weight")->fill, nan_bf16, 4);
    check_refused(&f, "norm", "o_norm.weight: found nan at row 0, column 0, expected a finite");

    for (int modelopt = 0; modelopt < 2; modelopt++) {
        const char *suffix = modelopt ? "weight_scale_2" : "weight_global_scale";

        fake_solar(&f);
        fake_quantize(&f, up, modelopt);
        snprintf(name, sizeof(name), "%s.%s", up, suffix);
        memcpy(fake_find(&f, name)->fill, nan_f32, 4);
        check_refused(&f, "NaN scale", "scale nan, expected a finite number above 0");
        fake_solar(&f);
        fake_quantize(&f, up, modelopt);
        memcpy(fake_find(&f, name)->fill, negative, 4);
        check_refused(&f, "negative scale", "scale -1, expected a finite number above 0");
        fake_solar(&f);
        fake_quantize(&f, up, modelopt);
        fake_remove(&f, name);
        check_refused(&f, "no matrix scale", up);
        fake_solar(&f);
        fake_quantize(&f, up, modelopt);
        snprintf(name, sizeof(name), "%s.weight_scale", up);
        fake_remove(&f, name);
        check_refused(&f, "no block scales", "up_proj.weight_scale: absent, expected [32, 4]");
        fake_solar(&f);
        fake_quantize(&f, up, modelopt);
        fake_find(&f, name)->dims[1] = 2;
        check_refused(&f, "block scales shape", "weight_scale: shape [32, 2], expected [32, 4]");
    }
    fake_solar(&f);
    fake_quantize(&f, up, 0);
    snprintf(name, sizeof(name), "%s.weight", up);
    fake_add(&f, name, "BF16", 2, 32, 64, 0);
    check_refused(&f, "twice", "stands there in two layouts");
    fake_solar(&f);
    snprintf(name, sizeof(name), "%s.pre_quant_scale", up);
    fake_add(&f, name, "BF16", 1, 64, 0, 0);
    check_refused(&f, "AWQ", "pre_quant_scale: has no place");
}

static void a_nan_block_scale_is_found_and_named(void **state)
{
    (void)state;
    static const char up[] = "model.layers.1.mlp.experts.2.up_proj";
    fake_model f;
    tr_error err = {0};

    fake_solar(&f);
    fake_quantize(&f, up, 0);
    fake_find(&f, "model.layers.1.mlp.experts.2.up_proj.weight_scale")->fill[2] = 0x7f;
    fake_write(&f);
    tr_model *m = open_right(f.folder);
    CHECK_STATUS(tr_model_check_weight(m, 1, TR_W_EXPERT_UP, 2, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "experts.2.up_proj.weight: found nan at row 0, column 32");
    CHECK_STATUS(tr_model_check_weight(m, 1, TR_W_EXPERT_UP, 1, &err), TR_OK);
    tr_model_close(m);
    fake_close(&f);
}

static void a_path_without_a_model_is_named(void **state)
{
    (void)state;
    fake_model f;
    tr_model *m = NULL;
    tr_error err = {0};

    CHECK_STATUS(tr_model_open(&m, "/nowhere/model", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "/nowhere/model: ");
    fake_llama(&f);
    CHECK_STATUS(tr_model_open(&m, f.folder, &err), TR_E_INVALID); /* an empty folder */
    CHECK_ERR_NAMES(err, "no *.safetensors file");
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bundled_model_is_what_its_config_says),
        cmocka_unit_test(every_weight_of_the_bundled_model_is_finite),
        cmocka_unit_test(both_nvfp4_layouts_give_the_same_bits),
        cmocka_unit_test(fused_experts_are_cut_into_gate_and_up),
        cmocka_unit_test(a_llama_directory_rotates_halves),
        cmocka_unit_test(tied_embeddings_serve_as_the_output_matrix),
        cmocka_unit_test(the_schedule_follows_its_precedence),
        cmocka_unit_test(the_identity_tells_checkpoints_apart),
        cmocka_unit_test(headers_alone_open_without_values),
        cmocka_unit_test(a_bad_setting_is_named),
        cmocka_unit_test(a_bad_tensor_is_named),
        cmocka_unit_test(a_nan_block_scale_is_found_and_named),
        cmocka_unit_test(a_path_without_a_model_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
