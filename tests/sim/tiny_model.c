#include "tests/sim/tiny_model.h"

#include "tests/sim/random.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENSORS_MAX 96
#define HEADER_SIZE 16384
#define HEADS       4
#define KV_HEADS    2
#define HEAD_DIM    8
#define DENSE_SIZE  128
#define EXPERT_SIZE 32
#define CONV_TAPS   4

const unsigned tiny_attention_terms[TINY_LAYERS] = {KV_HEADS, HEADS, KV_HEADS};
const unsigned tiny_slices[TINY_LAYERS] = {2, 1, 1};

static const char tiny_config[] =
    "{\"model_type\": \"solar_open2\", \"vocab_size\": 96, \"hidden_size\": 32,"
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 8, \"moe_intermediate_size\": 32, \"n_routed_experts\": 4,"
    " \"num_experts_per_tok\": 2, \"n_shared_experts\": 1, \"gqa_layers\": [0, 2],"
    " \"first_k_dense_replace\": 1, \"intermediate_size\": 128,"
    " \"linear_attn_config\": {\"short_conv_kernel_size\": 4, \"head_dim\": 8, \"num_heads\": 4,"
    " \"num_kv_heads\": null}, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5,"
    " \"max_position_embeddings\": 256, \"bos_token_id\": 1, \"eos_token_id\": [2, 3]}";

/* A tensor: BF16, values uniform in center +- spread. F32 only where the format wants it. */
typedef struct {
    char name[96];
    unsigned dims[4], dims_count;
    bool f32;
    float center, spread;
} tiny_tensor;

typedef struct {
    tiny_tensor tensors[TENSORS_MAX];
    unsigned count;
} tiny_model;

static tiny_tensor *tiny_add(tiny_model *m, const char *name, unsigned rows, unsigned cols,
                             float center, float spread)
{
    tiny_tensor *t = &m->tensors[m->count++];
    *t = (tiny_tensor){
        .dims = {rows, cols}, .dims_count = cols > 0 ? 2 : 1, .center = center, .spread = spread};
    snprintf(t->name, sizeof(t->name), "%s", name);
    return t;
}

static tiny_tensor *tiny_layer(tiny_model *m, unsigned layer, const char *name, unsigned rows,
                               unsigned cols, float center, float spread)
{
    char full[96];
    snprintf(full, sizeof(full), "model.layers.%u.%s", layer, name);
    return tiny_add(m, full, rows, cols, center, spread);
}

static void tiny_mlp(tiny_model *m, unsigned layer, const char *prefix, unsigned size)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char name[64];
    for (unsigned i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "%s.%s.weight", prefix, parts[i]);
        tiny_layer(m, layer, name, i == 2 ? TINY_HIDDEN : size, i == 2 ? size : TINY_HIDDEN, 0,
                   0.3f);
    }
}

static void tiny_experts(tiny_model *m, unsigned layer)
{
    char prefix[32];
    tiny_layer(m, layer, "mlp.gate.weight", TINY_EXPERTS, TINY_HIDDEN, 0, 0.5f);
    tiny_layer(m, layer, "mlp.gate.e_score_correction_bias", TINY_EXPERTS, 0, 0, 0.1f)->f32 = true;
    for (unsigned e = 0; e < TINY_EXPERTS; e++) {
        snprintf(prefix, sizeof(prefix), "mlp.experts.%u", e);
        tiny_mlp(m, layer, prefix, EXPERT_SIZE);
    }
    tiny_mlp(m, layer, "mlp.shared_experts", EXPERT_SIZE);
}

static void tiny_gqa(tiny_model *m, unsigned layer)
{
    unsigned all = HEADS * HEAD_DIM, keys = KV_HEADS * HEAD_DIM;
    tiny_layer(m, layer, "self_attn.q_proj.weight", all, TINY_HIDDEN, 0, 0.4f);
    tiny_layer(m, layer, "self_attn.k_proj.weight", keys, TINY_HIDDEN, 0, 0.4f);
    tiny_layer(m, layer, "self_attn.v_proj.weight", keys, TINY_HIDDEN, 0, 0.4f);
    tiny_layer(m, layer, "self_attn.g_proj.weight", all, TINY_HIDDEN, 0, 0.4f);
    tiny_layer(m, layer, "self_attn.o_proj.weight", TINY_HIDDEN, all, 0, 0.4f);
}

static void tiny_kda(tiny_model *m, unsigned layer)
{
    static const char *const parts[] = {"q", "k", "v"};
    unsigned all = HEADS * HEAD_DIM;
    char name[64];

    for (unsigned i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "self_attn.%s_proj.weight", parts[i]);
        tiny_layer(m, layer, name, all, TINY_HIDDEN, 0, 0.4f);
        snprintf(name, sizeof(name), "self_attn.%s_conv1d.weight", parts[i]);
        tiny_tensor *conv = tiny_layer(m, layer, name, all, 1, 0.3f, 0.3f);
        conv->dims[2] = CONV_TAPS;
        conv->dims_count = 3;
    }
    for (unsigned i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "self_attn.%c_a_proj.weight", "fg"[i]);
        tiny_layer(m, layer, name, HEAD_DIM, TINY_HIDDEN, 0, 0.4f);
        snprintf(name, sizeof(name), "self_attn.%c_b_proj.weight", "fg"[i]);
        tiny_layer(m, layer, name, all, HEAD_DIM, 0, 0.4f);
    }
    tiny_layer(m, layer, "self_attn.dt_bias", all, 0, 0, 0.5f);
    tiny_layer(m, layer, "self_attn.b_proj.weight", HEADS, TINY_HIDDEN, 0, 0.4f);
    tiny_layer(m, layer, "self_attn.o_norm.weight", HEAD_DIM, 0, 1, 0.2f);
    tiny_tensor *a = tiny_layer(m, layer, "self_attn.A_log", 1, 1, 0, 1);
    a->f32 = true;
    a->dims[2] = HEADS;
    a->dims[3] = 1;
    a->dims_count = 4;
    tiny_layer(m, layer, "self_attn.o_proj.weight", TINY_HIDDEN, all, 0, 0.4f);
}

static void tiny_describe(tiny_model *m)
{
    tiny_add(m, "model.embed_tokens.weight", TINY_VOCABULARY, TINY_HIDDEN, 0, 1);
    tiny_add(m, "model.norm.weight", TINY_HIDDEN, 0, 1, 0.2f);
    tiny_add(m, "lm_head.weight", TINY_VOCABULARY, TINY_HIDDEN, 0, 0.7f);
    for (unsigned layer = 0; layer < TINY_LAYERS; layer++) {
        tiny_layer(m, layer, "input_layernorm.weight", TINY_HIDDEN, 0, 1, 0.2f);
        tiny_layer(m, layer, "post_attention_layernorm.weight", TINY_HIDDEN, 0, 1, 0.2f);
        if (layer == 1)
            tiny_kda(m, layer);
        else
            tiny_gqa(m, layer);
        if (layer == 0)
            tiny_mlp(m, layer, "mlp", DENSE_SIZE);
        else
            tiny_experts(m, layer);
    }
}

static size_t tiny_elements(const tiny_tensor *t)
{
    size_t count = 1;
    for (unsigned d = 0; d < t->dims_count; d++)
        count *= t->dims[d];
    return count;
}

static void __attribute__((format(printf, 3, 4)))
tiny_append(char *text, size_t *used, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    *used += (size_t)vsnprintf(text + *used, HEADER_SIZE - *used, fmt, args);
    va_end(args);
}

static void tiny_header(const tiny_model *m, char *text)
{
    size_t used = 0, offset = 0;
    tiny_append(text, &used, "{");
    for (unsigned i = 0; i < m->count; i++) {
        const tiny_tensor *t = &m->tensors[i];
        size_t end = offset + tiny_elements(t) * (t->f32 ? 4 : 2);
        tiny_append(text, &used, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > 0 ? "," : "",
                    t->name, t->f32 ? "F32" : "BF16");
        for (unsigned d = 0; d < t->dims_count; d++)
            tiny_append(text, &used, "%s%u", d > 0 ? "," : "", t->dims[d]);
        tiny_append(text, &used, "],\"data_offsets\":[%zu,%zu]}", offset, end);
        offset = end;
    }
    tiny_append(text, &used, "}");
}

static void tiny_write_tensor(FILE *out, const tiny_tensor *t, sim_random *random)
{
    for (size_t i = 0; i < tiny_elements(t); i++) {
        float unit = (float)(sim_next(random) >> 40) / (float)(1u << 24);
        float value = t->center + t->spread * (2 * unit - 1);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        uint16_t high = (uint16_t)(bits >> 16); /* BF16 by cutting: they are random anyway */
        fwrite(t->f32 ? (const void *)&bits : &high, t->f32 ? 4 : 2, 1, out);
    }
}

static FILE *tiny_create(const char *folder, const char *file)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    return fopen(path, "wb");
}

tr_status tiny_model_write(char *folder, size_t size, tr_error *err)
{
    static tiny_model model;
    static char header[HEADER_SIZE];
    sim_random random = {.state = 20260101};

    snprintf(folder, size, "/tmp/troupe-sim-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: %s", folder, strerror(errno));
    model.count = 0;
    tiny_describe(&model);
    tiny_header(&model, header);
    FILE *config = tiny_create(folder, "config.json");
    FILE *tensors = tiny_create(folder, "model.safetensors");
    bool good = config != NULL && tensors != NULL;
    if (good) {
        uint64_t header_size = strlen(header);
        fputs(tiny_config, config);
        fwrite(&header_size, sizeof(header_size), 1, tensors);
        fputs(header, tensors);
        for (unsigned i = 0; i < model.count; i++)
            tiny_write_tensor(tensors, &model.tensors[i], &random);
    }
    good = config != NULL && fclose(config) == 0 && good;
    good = tensors != NULL && fclose(tensors) == 0 && good;
    return good ? TR_OK : tr_fail(err, TR_E_INVALID, "%s: cannot be written", folder);
}

void tiny_model_remove(const char *folder)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[256];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        (void)unlink(path); /* what stays behind makes rmdir fail, and is seen in /tmp */
    }
    (void)rmdir(folder);
}
