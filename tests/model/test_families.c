/* test_families.c - settings that a family cannot compute are refused by name.
 *
 * Method: a golden model (argument: the folder of them) with one setting of its config.json
 * changed; the weights are linked, not copied. To add a family: rows. */
#include "core/model/model.h"
#include "tests/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char *models_folder;

typedef struct {
    const char *model;
    const char *key;   /* NULL: json is an object that is laid over the settings */
    const char *json;  /* NULL: the key is removed */
    const char *named; /* in the sentence; NULL: opens */
} setting;

/* The settings of kimi_linear-a as its authors write them. */
#define KIMI_AUTHORS(kda, full)                                                                    \
    "{\"layer_types\": null, \"mlp_layer_types\": null, \"linear_num_heads\": null, "              \
    "\"linear_head_dim\": null, \"linear_conv_kernel_dim\": null, \"first_k_dense_replace\": 1, "  \
    "\"moe_layer_freq\": 1, \"moe_router_activation_func\": \"sigmoid\", \"mla_use_nope\": true, " \
    "\"use_grouped_topk\": true, \"num_nextn_predict_layers\": 0, \"rope_theta\": 10000.0, "       \
    "\"rope_scaling\": null, \"linear_attn_config\": {\"num_heads\": 4, \"head_dim\": 16, "        \
    "\"short_conv_kernel_size\": 4, \"kda_layers\": " kda ", \"full_attn_layers\": " full "}}"

#define GLM_TEXT(settings) "{\"text_config\": {" settings "}}"
#define GLM_LINEAR(heads, bound)                                                                   \
    "\"linear_attn_config\": {\"num_heads\": " heads ", \"head_dim\": 16, "                        \
    "\"short_conv_kernel_size\": 4, \"gate_lower_bound\": " bound ", \"safe_gate\": true, "        \
    "\"kda_layers\": [0, 1, 2, 4], \"full_attn_layers\": [3]}"
#define GLM_FOUR                                                                                   \
    "\"num_hidden_layers\": 4, \"mlp_layer_types\": null, \"first_k_dense_replace\": 1, "          \
    "\"indexer_types\": null, \"layer_types\": [\"linear_attention\", \"linear_attention\", "      \
    "\"linear_attention\", \"full_attention\"]"

static const setting settings[] = {
    {"qwen3_moe-a", "rms_norm_eps", "1e-5", NULL},
    {"qwen3_moe-a", "max_window_layers", "3", NULL},
    {"qwen3_moe-a", "use_sliding_window", "true", "config.json: use_sliding_window: found true"},
    {"qwen3_moe-a", "num_local_experts", NULL, "config.json: num_experts: absent"},
    {"qwen3_moe-a", "num_local_experts", "9", "mlp.gate.weight: shape [8, 64], expected [9, 64]"},
    {"qwen3_moe-a", "mlp_only_layers", "[3]", "mlp_only_layers: entry 0 is no layer"},
    {"qwen3_moe-a", "mlp_only_layers", "[1]", "model.layers.1.mlp.gate_proj.weight: absent"},
    {"qwen3_moe-a", "decoder_sparse_step", "2", "model.layers.0.mlp.gate_proj.weight: absent"},
    {"qwen3_moe-a", "decoder_sparse_step", "0", "decoder_sparse_step: found 0"},
    {"qwen3_moe-a", "attention_bias", "true", "attention_bias: found true, expected false"},
    {"qwen3_moe-a", "hidden_act", "\"gelu\"", "hidden_act: found \"gelu\""},
    {"qwen3_moe-a", "use_magic", "1", "config.json: use_magic: a setting"},
    {"solar_open-a", "first_k_dense_replace", "0", NULL},
    {"solar_open-a", "intermediate_size", "10240", NULL},
    {"solar_open-a", "first_k_dense_replace", "1", "first_k_dense_replace: above 0"},
    {"solar_open-a", "use_qk_norm", "true", "use_qk_norm: found true"},
    {"solar_open-a", "n_group", "3", "3 does not divide 8"},
    {"solar_open-a", "n_shared_experts", "2", "shared_experts.gate_proj.weight: shape [32, 64]"},
    {"solar_open-a", "n_routed_experts", "7", "mlp.gate.weight: shape [8, 64], expected [7, 64]"},
    {"solar_open-a", "scoring_func", "\"softmax\"", "config.json: scoring_func"},
    {"kimi_linear-a", NULL, KIMI_AUTHORS("[1, 2, 3, 4]", "[5]"), NULL},
    {"kimi_linear-a", NULL, KIMI_AUTHORS("[0, 1, 2, 3]", "[4]"),
     "linear_attn_config.kda_layers: entry 0 is no layer, expected 1..5"},
    {"kimi_linear-a", NULL, KIMI_AUTHORS("[1, 2, 3, 4]", "[4, 5]"), "layer 4 is listed twice"},
    {"kimi_linear-a", NULL, KIMI_AUTHORS("[1, 2, 4]", "[5]"), "kda_layers: without layer 3"},
    {"kimi_linear-a", NULL, KIMI_AUTHORS("[1, 2, 4, 5]", "[3]"),
     "model.layers.2.self_attn.q_proj.weight: shape [64, 64], expected [96, 64]"},
    {"kimi_linear-a", "linear_attn_config",
     "{\"kda_layers\": [1, 2, 3, 5], \"full_attn_layers\": [4]}",
     "layer_types: entry 3 is not what linear_attn_config says"},
    {"kimi_linear-a", "linear_attn_config", "{\"num_heads\": 8}",
     "linear_num_heads: found 4, expected 8 as in linear_attn_config.num_heads"},
    {"kimi_linear-a", "layer_types", NULL, "config.json: layer_types: absent"},
    {"kimi_linear-a", "mlp_layer_types", NULL, "config.json: mlp_layer_types: absent"},
    {"kimi_linear-a", "first_k_dense_replace", "2", "mlp_layer_types: entry 1"},
    {"kimi_linear-a", "linear_lower_bound", "-5.0", "linear_lower_bound: a setting"},
    {"kimi_linear-a", "mla_use_nope", "false", "mla_use_nope: found false"},
    {"kimi_linear-a", "qk_head_dim", "16", "qk_head_dim: found 16, expected 24"},
    {"kimi_linear-a", "num_key_value_heads", "2", "num_key_value_heads: found 2, expected 4"},
    {"kimi_linear-a", "q_lora_rank", "8", "q_a_proj.weight: absent"},
    {"kimi_linear-a", "kv_lora_rank", "24", "kv_a_proj_with_mqa.weight: shape [40, 64]"},
    {"kimi_linear-a", "moe_layer_freq", "2", "moe_layer_freq: above 1"},
    {"glm5_next-a", NULL, GLM_TEXT("\"num_nextn_predict_layers\": 1"), NULL},
    {"glm5_next-a", NULL, GLM_TEXT(GLM_FOUR ", \"num_nextn_predict_layers\": 1"), NULL},
    {"glm5_next-a", NULL, GLM_TEXT(GLM_FOUR), "layers.4.hc_attn_base: has no place"},
    {"glm5_next-a", NULL, GLM_TEXT(GLM_LINEAR("4", "-5.0")), NULL},
    {"glm5_next-a", NULL, GLM_TEXT(GLM_LINEAR("3", "-5.0")),
     "linear_num_heads: found 4, expected 3"},
    {"glm5_next-a", NULL, GLM_TEXT(GLM_LINEAR("4", "-4.0")), "linear_lower_bound: found -5"},
    {"glm5_next-a", NULL, GLM_TEXT("\"index_topk\": 30"),
     "index_topk: found 30, expected a multiple"},
    {"glm5_next-a", NULL, GLM_TEXT("\"index_kpool\": 8"),
     "compress_ape: shape [4, 16], expected [8, 16]"},
    {"glm5_next-a", NULL, GLM_TEXT("\"index_kpool_compress\": false"), "compress: found false"},
    {"glm5_next-a", NULL, GLM_TEXT("\"indexer_types\": [\"full\", \"shared\"]"),
     "indexer_types: found shared at 1"},
    {"glm5_next-a", NULL, GLM_TEXT("\"q_lora_rank\": null"), "q_lora_rank: absent"},
    {"glm5_next-a", NULL, GLM_TEXT("\"qk_rope_head_dim\": 8, \"qk_head_dim\": 24"),
     "qk_rope_head_dim: found 8, expected 0"},
    {"glm5_next-a", NULL, GLM_TEXT("\"hc_mult\": 3"),
     "hc_attn_fn: shape [24, 256], expected [15, 192]"},
    {"glm5_next-a", NULL, GLM_TEXT("\"mhc\": false"), "mhc: found false"},
    {"glm5_next-a", NULL, GLM_TEXT("\"swiglu_limit\": -1"), "swiglu_limit: found -1"},
    {"qwen4_exp-a", "model_type", "\"qwen3_8_flash_next_text\"", NULL},
    {"qwen4_exp_vl-a", "model_type", "\"qwen3_8_flash_next\"", NULL},
    {"qwen4_exp-a", "ple_embedding_dtype", "\"bfloat16\"", NULL},
    {"qwen4_exp-a", "layer_types",
     "[\"linear_attention\", \"linear_attention\", \"linear_attention\", \"full_attention\"]",
     NULL},
    {"qwen4_exp-a", "indexer_kv_heads", "2", "indexer_kv_heads: found 2, expected 1..1"},
    {"qwen4_exp-a", "indexer_budget", "30", "indexer_budget: found 30, expected a multiple of 4"},
    {"qwen4_exp-a", "indexer_head_dim", NULL, "indexer_head_dim: absent"},
    {"qwen4_exp-a", "indexer_compress_ratio", "32", "positions of an index block is 32"},
    {"qwen4_exp-a", "indexer_n_heads", NULL, "indexer_budget: a setting"},
    {"qwen4_exp-a", "hc_count", "2", "hc_norm.weight: shape [256], expected [1, 128]"},
    {"qwen4_exp-a", "hc_count", "1", "hc_count: found 1, expected 2..8"},
    {"qwen4_exp-a", "ple_layer_ids", "[9]", "ple_layer_ids: entry 0 is no layer, expected 1..4"},
    {"qwen4_exp-a", "ple_layer_ids", "[1]", "model.layers.0.ple.key_proj.weight: absent"},
    {"qwen4_exp-a", "ple_layer_ids", "[]", "ple.conv1d.weight: has no place"},
    {"qwen4_exp-a", "seed", "1235", "layer_multipliers: found"},
    {"qwen4_exp-a", "ngram_vocab_size_base", "1010", "ngram_heads_vocab_sizes: found 1009 at 0"},
    {"qwen4_exp-a", "split_ngram_parts", "2",
     "shard_0.weight: shape [2080, 8], expected [4160, 8]"},
    {"qwen4_exp-a", "eos_token_id", NULL, "eos_token_id: absent, expected a token"},
    {"qwen4_exp-a", "output_gate_type", "\"tanh\"", "output_gate_type: found \"tanh\""},
};

static void folder_write(const char *folder, const setting *s)
{
    char path[512], target[512];

    snprintf(path, sizeof(path), "%s/%s/config.json", models_folder, s->model);
    json_t *config = json_load_file(path, 0, NULL);
    if (config == NULL)
        fail_msg("%s cannot be read", path);
    if (s->key == NULL) {
        json_t *over = json_loads(s->json, 0, NULL);
        assert_int_equal(json_object_update_recursive(config, over), 0);
        json_decref(over);
    } else if (s->json != NULL)
        json_object_set_new(config, s->key, json_loads(s->json, JSON_DECODE_ANY, NULL));
    else
        json_object_del(config, s->key);
    snprintf(path, sizeof(path), "%s/config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    snprintf(target, sizeof(target), "%s/%s/model.safetensors", models_folder, s->model);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    assert_int_equal(symlink(target, path), 0);
}

static void folder_remove(const char *folder)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[512];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void a_setting_that_changes_the_arithmetic_is_followed_or_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        const setting *s = &settings[i];
        char folder[] = "/tmp/troupe-family-XXXXXX";
        tr_model *m = NULL;
        tr_error err = {0};

        assert_non_null(mkdtemp(folder));
        folder_write(folder, s);
        tr_status status = tr_model_open(&m, folder, &err);
        bool right = s->named == NULL
                         ? status == TR_OK
                         : status == TR_E_INVALID && strstr(err.text, s->named) != NULL;
        tr_model_close(m);
        folder_remove(folder);
        if (!right)
            fail_msg("%s with %s %s: \"%s\"", s->model, s->key != NULL ? s->key : "settings",
                     s->json != NULL ? s->json : "removed", err.text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_setting_that_changes_the_arithmetic_is_followed_or_refused_by_name),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_families MODELS\n");
        return 2;
    }
    models_folder = realpath(argv[1], NULL); /* links must not depend on where they are */
    if (models_folder == NULL) {
        perror(argv[1]);
        return 2;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(models_folder);
    return failed;
}
