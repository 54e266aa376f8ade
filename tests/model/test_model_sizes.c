/* test_model_sizes.c - the real Solar Open 2, as headers without data.
 *
 * Goal: the shapes that the spec derives add up to the published sizes, in BF16 and with NVFP4
 * experts, and a header of 47,019 (or 139,179) tensors is no trouble. Method: sparse files with all
 * tensors at their true shapes; only headers are read. */
#include "tests/check.h"

#include "core/model/model.h"
#include "core/model/role.h"
#include "core/model/weights.h"

#include <stdlib.h>
#include <unistd.h>

#define LAYERS  48
#define EXPERTS 320

typedef struct {
    char folder[64];
    FILE *header; /* JSON under construction */
    char *text;
    size_t text_size;
    uint64_t offset;
    uint32_t count;
    int nvfp4;
} sizes;

static void add(sizes *s, const char *name, const char *dtype, uint64_t rows, uint64_t cols,
                uint64_t bytes)
{
    fprintf(s->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", s->count > 0 ? "," : "{", name,
            dtype, (unsigned long long)rows);
    if (cols > 0)
        fprintf(s->header, ",%llu", (unsigned long long)cols);
    fprintf(s->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)s->offset,
            (unsigned long long)(s->offset + bytes));
    s->offset += bytes;
    s->count++;
}

/* BF16 [rows, cols], cols 0: a vector. */
static void add_matrix(sizes *s, uint32_t layer, const char *name, uint64_t rows, uint64_t cols)
{
    char full[192];

    snprintf(full, sizeof(full), "model.layers.%u.%s", layer, name);
    add(s, full, "BF16", rows, cols, rows * (cols > 0 ? cols : 1) * 2);
}

static void add_expert_matrix(sizes *s, uint32_t layer, uint32_t e, const char *name, uint64_t rows,
                              uint64_t cols)
{
    char stem[96], full[160];

    snprintf(stem, sizeof(stem), "mlp.experts.%u.%s", e, name);
    if (!s->nvfp4) {
        snprintf(full, sizeof(full), "%s.weight", stem);
        add_matrix(s, layer, full, rows, cols);
        return;
    }
    snprintf(full, sizeof(full), "model.layers.%u.%s.weight_packed", layer, stem);
    add(s, full, "U8", rows, cols / 2, rows * cols / 2);
    snprintf(full, sizeof(full), "model.layers.%u.%s.weight_scale", layer, stem);
    add(s, full, "F8_E4M3", rows, cols / 16, rows * cols / 16);
    snprintf(full, sizeof(full), "model.layers.%u.%s.weight_global_scale", layer, stem);
    add(s, full, "F32", 1, 0, 4);
}

static void add_attention(sizes *s, uint32_t layer)
{
    int full = layer % 4 == 0;
    uint64_t kv = full ? 1024 : 8192;

    add_matrix(s, layer, "input_layernorm.weight", 4096, 0);
    add_matrix(s, layer, "post_attention_layernorm.weight", 4096, 0);
    add_matrix(s, layer, "self_attn.q_proj.weight", 8192, 4096);
    add_matrix(s, layer, "self_attn.k_proj.weight", kv, 4096);
    add_matrix(s, layer, "self_attn.v_proj.weight", kv, 4096);
    add_matrix(s, layer, "self_attn.o_proj.weight", 4096, 8192);
    if (full) {
        add_matrix(s, layer, "self_attn.g_proj.weight", 8192, 4096);
        return;
    }
    add_matrix(s, layer, "self_attn.q_conv1d.weight", 8192, 4);
    add_matrix(s, layer, "self_attn.k_conv1d.weight", 8192, 4);
    add_matrix(s, layer, "self_attn.v_conv1d.weight", 8192, 4);
    add_matrix(s, layer, "self_attn.f_a_proj.weight", 128, 4096);
    add_matrix(s, layer, "self_attn.f_b_proj.weight", 8192, 128);
    add_matrix(s, layer, "self_attn.g_a_proj.weight", 128, 4096);
    add_matrix(s, layer, "self_attn.g_b_proj.weight", 8192, 128);
    add_matrix(s, layer, "self_attn.dt_bias", 8192, 0);
    add_matrix(s, layer, "self_attn.A_log", 64, 0);
    add_matrix(s, layer, "self_attn.b_proj.weight", 64, 4096);
    add_matrix(s, layer, "self_attn.o_norm.weight", 128, 0);
}

static void add_channel(sizes *s, uint32_t layer)
{
    add_matrix(s, layer, "mlp.gate.weight", EXPERTS, 4096);
    add_matrix(s, layer, "mlp.gate.e_score_correction_bias", EXPERTS, 0);
    add_matrix(s, layer, "mlp.shared_experts.gate_proj.weight", 1280, 4096);
    add_matrix(s, layer, "mlp.shared_experts.up_proj.weight", 1280, 4096);
    add_matrix(s, layer, "mlp.shared_experts.down_proj.weight", 4096, 1280);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        add_expert_matrix(s, layer, e, "gate_proj", 1280, 4096);
        add_expert_matrix(s, layer, e, "up_proj", 1280, 4096);
        add_expert_matrix(s, layer, e, "down_proj", 4096, 1280);
    }
}

static const char config[] =
    "{\"model_type\": \"solar_open2\", \"vocab_size\": 196608, \"hidden_size\": 4096,"
    " \"num_hidden_layers\": 48, \"num_attention_heads\": 64, \"num_key_value_heads\": 8,"
    " \"head_dim\": 128, \"moe_intermediate_size\": 1280, \"n_routed_experts\": 320,"
    " \"num_experts_per_tok\": 8, \"n_shared_experts\": 1, \"gqa_interval\": 3,"
    " \"linear_attn_config\": {\"short_conv_kernel_size\": 4, \"head_dim\": 128, \"num_heads\": "
    "64},"
    " \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 1048576, \"eos_token_id\": 2}";

static FILE *create(const sizes *s, const char *file)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", s->folder, file);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    return out;
}

/* False where the file system has no files of half a terabyte. */
static int write_model(sizes *s, int nvfp4)
{
    *s = (sizes){.folder = "/tmp/troupe-sizes-XXXXXX", .nvfp4 = nvfp4};
    assert_non_null(mkdtemp(s->folder));
    s->header = open_memstream(&s->text, &s->text_size);
    assert_non_null(s->header);
    add(s, "model.embed_tokens.weight", "BF16", 196608, 4096, 196608ull * 4096 * 2);
    add(s, "model.norm.weight", "BF16", 4096, 0, 8192);
    add(s, "lm_head.weight", "BF16", 196608, 4096, 196608ull * 4096 * 2);
    for (uint32_t i = 0; i < LAYERS; i++) {
        add_attention(s, i);
        add_channel(s, i);
    }
    fprintf(s->header, "}");
    fclose(s->header);

    FILE *out = create(s, "config.json");
    fputs(config, out);
    fclose(out);
    out = create(s, "model.safetensors");
    uint64_t header_size = s->text_size;
    fwrite(&header_size, sizeof(header_size), 1, out);
    fwrite(s->text, 1, s->text_size, out);
    fflush(out);
    int made = ftruncate(fileno(out), (off_t)(8 + header_size + s->offset)) == 0;
    fclose(out);
    free(s->text);
    return made;
}

static void remove_model(const sizes *s)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/model.safetensors", s->folder);
    unlink(path);
    snprintf(path, sizeof(path), "%s/config.json", s->folder);
    unlink(path);
    rmdir(s->folder);
}

typedef struct {
    uint64_t weights, bytes, tensors;
} sums;

static void add_role(sums *out, const tr_model *m, uint32_t layer, tr_weight_role role,
                     uint32_t experts)
{
    for (uint32_t e = 0; e < experts && tr_model_has(m, layer, role); e++) {
        tr_weight w = tr_model_weight(m, layer, role, e);

        out->weights += (uint64_t)w.rows * w.cols;
        out->bytes += tr_weight_bytes(&w);
        out->tensors++;
    }
}

static sums sum_of(const tr_model *m)
{
    sums out = {0};

    for (int role = 0; role < TR_WEIGHTS_COUNT; role++) {
        int global = tr_role_is_global((tr_weight_role)role);
        int expert = role >= TR_W_EXPERT_GATE && role <= TR_W_EXPERT_DOWN;

        for (uint32_t layer = 0; layer < (global ? 1 : LAYERS); layer++)
            add_role(&out, m, layer, (tr_weight_role)role, expert ? EXPERTS : 1);
    }
    return out;
}

static void solar_open_2_has_its_published_size(void **state)
{
    (void)state;
    for (int nvfp4 = 0; nvfp4 < 2; nvfp4++) {
        sizes s;
        tr_model *m = NULL;
        tr_error err = {0};

        if (!write_model(&s, nvfp4)) {
            remove_model(&s);
            return;
        }
        tr_status status = tr_model_open_headers(&m, s.folder, &err);
        remove_model(&s);
        if (status != TR_OK)
            print_error("%s\n", err.text);
        assert_int_equal(status, TR_OK);
        sums sum = sum_of(m);
        assert_true(sum.weights == 250287810304);
        assert_int_equal(sum.tensors, 47019);
        if (nvfp4)
            assert_true(sum.bytes / 1000000 ==
                        153287); /* published files: 153.35 GB with headers */
        else
            assert_true(sum.bytes == 2 * 250287810304);
        tr_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(solar_open_2_has_its_published_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
