#include "tests/model/fake_model.h"

#include "tests/check.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

static const char solar_config[] =
    "{\"model_type\": \"solar_open2\", \"vocab_size\": 128, \"hidden_size\": 64,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 16, \"moe_intermediate_size\": 32, \"n_routed_experts\": 4,"
    " \"num_experts_per_tok\": 2, \"n_shared_experts\": 1, \"gqa_layers\": [0],"
    " \"linear_attn_config\": {\"short_conv_kernel_size\": 4, \"head_dim\": 16, \"num_heads\": 4,"
    " \"num_kv_heads\": null}, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5,"
    " \"max_position_embeddings\": 256, \"bos_token_id\": 1, \"eos_token_id\": [2, 3]}";

static const char llama_config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 128, \"hidden_size\": 64,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 16, \"intermediate_size\": 128, \"hidden_act\": \"silu\","
    " \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 256, \"eos_token_id\": 2}";

static const char qwen_config[] =
    "{\"model_type\": \"qwen3_5_moe_text\", \"vocab_size\": 128, \"hidden_size\": 64,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 16, \"full_attention_interval\": 2, \"linear_num_key_heads\": 2,"
    " \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 16, \"linear_value_head_dim\": 16,"
    " \"linear_conv_kernel_dim\": 4, \"num_experts\": 2, \"num_experts_per_tok\": 1,"
    " \"moe_intermediate_size\": 32, \"shared_expert_intermediate_size\": 32,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 256,"
    " \"eos_token_id\": 2, \"rope_parameters\": {\"rope_type\": \"default\","
    " \"rope_theta\": 1e6, \"mrope_section\": [1, 1, 0], \"mrope_interleaved\": true}}";

static void fake_open(fake_model *f, const char *config)
{
    *f = (fake_model){.folder = "/tmp/troupe-model-XXXXXX"};
    assert_non_null(mkdtemp(f->folder));
    f->config = json_loads(config, 0, NULL);
    assert_non_null(f->config);
}

static uint32_t fake_bytes(const char *dtype)
{
    if (strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0)
        return 4;
    if (strcmp(dtype, "I64") == 0)
        return 8;
    return strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2 : 1;
}

fake_tensor *fake_add(fake_model *f, const char *name, const char *dtype, uint32_t dims_count,
                      uint64_t d0, uint64_t d1, uint64_t d2)
{
    assert_true(f->count < FAKE_TENSORS_MAX);
    fake_tensor *t = &f->tensors[f->count++];

    *t = (fake_tensor){.dims_count = dims_count,
                       .dims = {d0, d1, d2},
                       .bytes_per_element = fake_bytes(dtype),
                       .fill = {0x00, 0x3f, 0x00, 0x3f}}; /* 0.5 in BF16 and about that in F32 */
    snprintf(t->name, sizeof(t->name), "%s", name);
    snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
    return t;
}

fake_tensor *fake_find(fake_model *f, const char *name)
{
    for (uint32_t i = 0; i < f->count; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    print_error("the fake model has no %s\n", name);
    fail();
    return NULL;
}

void fake_remove(fake_model *f, const char *name)
{
    fake_tensor *t = fake_find(f, name);

    *t = f->tensors[f->count - 1];
    f->count--;
}

/* [rows, cols] in BF16 under layer's prefix; cols 0: a vector of rows. */
static void fake_matrix(fake_model *f, uint32_t layer, const char *name, uint64_t rows,
                        uint64_t cols)
{
    char full[160];

    snprintf(full, sizeof(full), "model.layers.%u.%s", layer, name);
    fake_add(f, full, "BF16", cols > 0 ? 2 : 1, rows, cols, 0);
}

static void fake_globals(fake_model *f)
{
    fake_add(f, "model.embed_tokens.weight", "BF16", 2, 128, 64, 0);
    fake_add(f, "model.norm.weight", "BF16", 1, 64, 0, 0);
    fake_add(f, "lm_head.weight", "BF16", 2, 128, 64, 0);
}

static void fake_attention(fake_model *f, uint32_t layer)
{
    fake_matrix(f, layer, "input_layernorm.weight", 64, 0);
    fake_matrix(f, layer, "post_attention_layernorm.weight", 64, 0);
    fake_matrix(f, layer, "self_attn.q_proj.weight", 64, 64);
    fake_matrix(f, layer, "self_attn.k_proj.weight", 32, 64);
    fake_matrix(f, layer, "self_attn.v_proj.weight", 32, 64);
    fake_matrix(f, layer, "self_attn.o_proj.weight", 64, 64);
}

static void fake_kda(fake_model *f, uint32_t layer)
{
    static const char *const convs[] = {"q", "k", "v"};
    char name[96];

    fake_attention(f, layer);
    snprintf(name, sizeof(name), "model.layers.%u.self_attn.k_proj.weight", layer);
    fake_find(f, name)->dims[0] = 64;
    snprintf(name, sizeof(name), "model.layers.%u.self_attn.v_proj.weight", layer);
    fake_find(f, name)->dims[0] = 64;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "model.layers.%u.self_attn.%s_conv1d.weight", layer, convs[i]);
        fake_add(f, name, "BF16", 3, 64, 1, 4);
    }
    fake_matrix(f, layer, "self_attn.f_a_proj.weight", 16, 64);
    fake_matrix(f, layer, "self_attn.f_b_proj.weight", 64, 16);
    fake_matrix(f, layer, "self_attn.g_a_proj.weight", 16, 64);
    fake_matrix(f, layer, "self_attn.g_b_proj.weight", 64, 16);
    fake_matrix(f, layer, "self_attn.dt_bias", 64, 0);
    fake_matrix(f, layer, "self_attn.b_proj.weight", 4, 64);
    fake_matrix(f, layer, "self_attn.o_norm.weight", 16, 0);
    snprintf(name, sizeof(name), "model.layers.%u.self_attn.A_log", layer);
    fake_tensor *a = fake_add(f, name, "F32", 4, 1, 1, 4);
    a->dims[3] = 1;
}

static void fake_experts(fake_model *f, uint32_t layer)
{
    char name[96];

    fake_matrix(f, layer, "mlp.gate.weight", 4, 64);
    snprintf(name, sizeof(name), "model.layers.%u.mlp.gate.e_score_correction_bias", layer);
    fake_add(f, name, "F32", 1, 4, 0, 0);
    for (uint32_t e = 0; e < 5; e++) { /* the fifth is the shared expert */
        char prefix[48] = "mlp.shared_experts";

        if (e < 4)
            snprintf(prefix, sizeof(prefix), "mlp.experts.%u", e);
        snprintf(name, sizeof(name), "%s.gate_proj.weight", prefix);
        fake_matrix(f, layer, name, 32, 64);
        snprintf(name, sizeof(name), "%s.up_proj.weight", prefix);
        fake_matrix(f, layer, name, 32, 64);
        snprintf(name, sizeof(name), "%s.down_proj.weight", prefix);
        fake_matrix(f, layer, name, 64, 32);
    }
}

void fake_solar(fake_model *f)
{
    fake_open(f, solar_config);
    fake_globals(f);
    fake_attention(f, 0);
    fake_matrix(f, 0, "self_attn.g_proj.weight", 64, 64);
    fake_experts(f, 0);
    fake_kda(f, 1);
    fake_experts(f, 1);
}

void fake_llama(fake_model *f)
{
    fake_open(f, llama_config);
    fake_globals(f);
    for (uint32_t layer = 0; layer < 2; layer++) {
        fake_attention(f, layer);
        fake_matrix(f, layer, "mlp.gate_proj.weight", 128, 64);
        fake_matrix(f, layer, "mlp.up_proj.weight", 128, 64);
        fake_matrix(f, layer, "mlp.down_proj.weight", 64, 128);
    }
}

static void fake_qwen_experts(fake_model *f, uint32_t layer)
{
    fake_matrix(f, layer, "mlp.gate.weight", 2, 64);
    fake_matrix(f, layer, "mlp.shared_expert_gate.weight", 1, 64);
    fake_matrix(f, layer, "mlp.shared_expert.gate_proj.weight", 32, 64);
    fake_matrix(f, layer, "mlp.shared_expert.up_proj.weight", 32, 64);
    fake_matrix(f, layer, "mlp.shared_expert.down_proj.weight", 64, 32);
    for (uint32_t e = 0; e < 2; e++) {
        static const char *const parts[] = {"gate", "up", "down"};
        for (int i = 0; i < 3; i++) {
            char name[96];

            snprintf(name, sizeof(name), "mlp.experts.%u.%s_proj.weight", e, parts[i]);
            fake_matrix(f, layer, name, i < 2 ? 32 : 64, i < 2 ? 64 : 32);
        }
    }
}

void fake_qwen(fake_model *f)
{
    fake_open(f, qwen_config);
    fake_globals(f);
    fake_matrix(f, 0, "input_layernorm.weight", 64, 0);
    fake_matrix(f, 0, "post_attention_layernorm.weight", 64, 0);
    fake_matrix(f, 0, "linear_attn.in_proj_qkv.weight", 128, 64);
    fake_matrix(f, 0, "linear_attn.in_proj_z.weight", 64, 64);
    fake_matrix(f, 0, "linear_attn.in_proj_a.weight", 4, 64);
    fake_matrix(f, 0, "linear_attn.in_proj_b.weight", 4, 64);
    fake_add(f, "model.layers.0.linear_attn.conv1d.weight", "BF16", 3, 128, 1, 4);
    fake_matrix(f, 0, "linear_attn.dt_bias", 4, 0);
    fake_add(f, "model.layers.0.linear_attn.A_log", "F32", 1, 4, 0, 0);
    fake_matrix(f, 0, "linear_attn.norm.weight", 16, 0);
    fake_matrix(f, 0, "linear_attn.out_proj.weight", 64, 64);
    fake_qwen_experts(f, 0);
    fake_attention(f, 1);
    fake_find(f, "model.layers.1.self_attn.q_proj.weight")->dims[0] = 128;
    fake_matrix(f, 1, "self_attn.q_norm.weight", 16, 0);
    fake_matrix(f, 1, "self_attn.k_norm.weight", 16, 0);
    fake_qwen_experts(f, 1);
}

void fake_wrap(fake_model *f)
{
    json_t *text = f->config;

    f->config = json_pack("{s:s, s:o, s:{s:i}, s:i}", "model_type", "qwen3_5_moe", "text_config",
                          text, "vision_config", "depth", 2, "image_token_id", 100);
    assert_non_null(f->config);
    for (uint32_t i = 0; i < f->count; i++) {
        char *name = f->tensors[i].name, rest[96];

        if (strncmp(name, "model.", 6) != 0)
            continue;
        snprintf(rest, sizeof(rest), "%s", name + 6);
        assert_true((size_t)snprintf(name, sizeof(f->tensors[i].name), "model.language_model.%s",
                                     rest) < sizeof(f->tensors[i].name));
    }
    fake_add(f, "model.visual.blocks.0.norm1.weight", "BF16", 1, 32, 0, 0);
    fake_add(f, "mtp.fc_hidden.weight", "BF16", 2, 64, 64, 0);
}

void fake_quantize(fake_model *f, const char *stem, int modelopt)
{
    static const uint8_t four[4] = {0x00, 0x00, 0x80, 0x40};
    static const uint8_t quarter[4] = {0x00, 0x00, 0x80, 0x3e};
    static const uint8_t ones[4] = {0x38, 0x38, 0x38, 0x38};
    static const uint8_t codes[4] = {0x10, 0x32, 0x54, 0x76};
    char name[96];

    snprintf(name, sizeof(name), "%s.weight", stem);
    uint64_t rows = fake_find(f, name)->dims[0], cols = fake_find(f, name)->dims[1];
    fake_remove(f, name);
    snprintf(name, sizeof(name), "%s.%s", stem, modelopt ? "weight" : "weight_packed");
    memcpy(fake_add(f, name, "U8", 2, rows, cols / 2, 0)->fill, codes, 4);
    snprintf(name, sizeof(name), "%s.weight_scale", stem);
    memcpy(fake_add(f, name, "F8_E4M3", 2, rows, cols / 16, 0)->fill, ones, 4);
    snprintf(name, sizeof(name), "%s.%s", stem,
             modelopt ? "weight_scale_2" : "weight_global_scale");
    memcpy(fake_add(f, name, "F32", modelopt ? 0 : 1, 1, 0, 0)->fill, modelopt ? quarter : four, 4);
}

void fake_set(fake_model *f, const char *key, const char *json)
{
    json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);

    assert_non_null(value);
    assert_int_equal(json_object_set_new(f->config, key, value), 0);
}

static uint64_t fake_size(const fake_tensor *t)
{
    uint64_t size = t->bytes_per_element;

    for (uint32_t i = 0; i < t->dims_count; i++)
        size *= t->dims[i];
    return size;
}

static FILE *fake_create(const fake_model *f, const char *file)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", f->folder, file);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    return out;
}

void fake_write_text(fake_model *f, const char *file, const char *text)
{
    FILE *out = fake_create(f, file);

    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static json_t *fake_entry(const fake_tensor *t, uint64_t offset)
{
    json_t *shape = json_array();

    for (uint32_t d = 0; d < t->dims_count; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                     (json_int_t)offset, (json_int_t)(offset + fake_size(t)));
}

void fake_write_tensors(fake_model *f, const char *file, uint32_t first, uint32_t count)
{
    json_t *header = json_object();
    uint64_t offset = 0;

    assert_true(first + count <= f->count);
    for (uint32_t i = first; i < first + count; i++) {
        json_object_set_new(header, f->tensors[i].name, fake_entry(&f->tensors[i], offset));
        offset += fake_size(&f->tensors[i]);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t text_size = strlen(text);
    FILE *out = fake_create(f, file);
    fwrite(&text_size, sizeof(text_size), 1, out);
    fwrite(text, 1, text_size, out);
    for (uint32_t i = first; i < first + count; i++)
        for (uint64_t b = 0; b < fake_size(&f->tensors[i]); b++)
            fputc(f->tensors[i].fill[b % 4], out);
    assert_int_equal(fclose(out), 0);
    free(text);
    json_decref(header);
}

void fake_write(fake_model *f)
{
    char *config = json_dumps(f->config, JSON_INDENT(1));

    fake_write_tensors(f, "model.safetensors", 0, f->count);
    fake_write_text(f, "config.json", config);
    free(config);
}

void fake_close(fake_model *f)
{
    DIR *folder = opendir(f->folder);
    const struct dirent *entry;
    char path[512];

    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, entry->d_name);
        if (entry->d_name[0] != '.')
            (void)unlink(path); /* what stays behind makes rmdir fail */
    }
    closedir(folder);
    assert_int_equal(rmdir(f->folder), 0);
    json_decref(f->config);
}
