#include "tests/model/fake_gguf.h"

#include "tests/check.h"

static void put(uint8_t *out, size_t size_max, size_t *size, const void *bytes, size_t count)
{
    assert_true(*size + count <= size_max);
    memcpy(out + *size, bytes, count);
    *size += count;
}

static void put_key(fake_gguf *g, const void *bytes, size_t count)
{
    put(g->keys, sizeof(g->keys), &g->keys_size, bytes, count);
}

static void put_key_text(fake_gguf *g, const char *text)
{
    uint64_t size = strlen(text);

    put_key(g, &size, sizeof(size));
    put_key(g, text, size);
}

static void begin_pair(fake_gguf *g, const char *key, uint32_t type)
{
    put_key_text(g, key);
    put_key(g, &type, sizeof(type));
    g->keys_count++;
}

void fake_gguf_u32(fake_gguf *g, const char *key, uint32_t value)
{
    begin_pair(g, key, TR_GGUF_U32);
    put_key(g, &value, sizeof(value));
}

void fake_gguf_u16(fake_gguf *g, const char *key, uint16_t value)
{
    begin_pair(g, key, TR_GGUF_U16);
    put_key(g, &value, sizeof(value));
}

void fake_gguf_f32(fake_gguf *g, const char *key, float value)
{
    begin_pair(g, key, TR_GGUF_F32);
    put_key(g, &value, sizeof(value));
}

void fake_gguf_text(fake_gguf *g, const char *key, const char *value)
{
    begin_pair(g, key, TR_GGUF_TEXT);
    put_key_text(g, value);
}

static void begin_array(fake_gguf *g, const char *key, uint32_t type, uint64_t count)
{
    begin_pair(g, key, TR_GGUF_ARRAY);
    put_key(g, &type, sizeof(type));
    put_key(g, &count, sizeof(count));
}

void fake_gguf_texts(fake_gguf *g, const char *key, uint32_t count)
{
    char text[16];

    begin_array(g, key, TR_GGUF_TEXT, count);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(text, sizeof(text), "t%u", i);
        put_key_text(g, text);
    }
}

void fake_gguf_u32s(fake_gguf *g, const char *key, const uint32_t *values, uint32_t count)
{
    begin_array(g, key, TR_GGUF_U32, count);
    put_key(g, values, count * sizeof(*values));
}

static uint64_t tensor_size(tr_gguf_type type, uint64_t elements)
{
    switch (type) {
#define X(name, id, block_elements, block_bytes)                                                   \
    case TR_GGUF_TYPE_##name:                                                                      \
        return elements / (block_elements) * (block_bytes);
        TR_GGUF_TYPE_MAP(X)
#undef X
    }
    return 0;
}

static void put_info(fake_gguf *g, const void *bytes, size_t count)
{
    put(g->infos, sizeof(g->infos), &g->infos_size, bytes, count);
}

void fake_gguf_tensor(fake_gguf *g, const char *name, tr_gguf_type type, uint64_t d0, uint64_t d1)
{
    uint64_t name_size = strlen(name);
    uint32_t dims = d1 > 0 ? 2 : 1, type_id = type;

    put_info(g, &name_size, sizeof(name_size));
    put_info(g, name, name_size);
    put_info(g, &dims, sizeof(dims));
    put_info(g, &d0, sizeof(d0));
    if (d1 > 0)
        put_info(g, &d1, sizeof(d1));
    put_info(g, &type_id, sizeof(type_id));
    put_info(g, &g->data_size, sizeof(g->data_size));
    g->data_size += (tensor_size(type, d0 * (d1 > 0 ? d1 : 1)) + 31) / 32 * 32;
    g->tensors_count++;
}

void fake_gguf_llama(fake_gguf *g, tr_gguf_type type)
{
    static const struct {
        const char *name;
        uint64_t cols, rows;
    } matrices[] = {
        {"attn_q", 64, 64},    {"attn_k", 64, 32},  {"attn_v", 64, 32},    {"attn_output", 64, 64},
        {"ffn_gate", 64, 128}, {"ffn_up", 64, 128}, {"ffn_down", 128, 64},
    };
    char name[64];

    *g = (fake_gguf){0};
    fake_gguf_text(g, "general.architecture", "llama");
    fake_gguf_u32(g, "llama.context_length", 256);
    fake_gguf_u32(g, "llama.embedding_length", 64);
    fake_gguf_u32(g, "llama.block_count", 2);
    fake_gguf_u32(g, "llama.feed_forward_length", 128);
    fake_gguf_u32(g, "llama.attention.head_count", 4);
    fake_gguf_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    fake_gguf_texts(g, "tokenizer.ggml.tokens", 128);
    fake_gguf_u32(g, "tokenizer.ggml.eos_token_id", 2);
    fake_gguf_tensor(g, "token_embd.weight", type, 64, 128);
    fake_gguf_tensor(g, "output_norm.weight", TR_GGUF_TYPE_F32, 64, 0);
    for (uint32_t layer = 0; layer < 2; layer++) {
        snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", layer);
        fake_gguf_tensor(g, name, TR_GGUF_TYPE_F32, 64, 0);
        snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", layer);
        fake_gguf_tensor(g, name, TR_GGUF_TYPE_F32, 64, 0);
        for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
            snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, matrices[i].name);
            fake_gguf_tensor(g, name, type, matrices[i].cols, matrices[i].rows);
        }
    }
}

void fake_gguf_write(const fake_gguf *g, const char *path)
{
    static const uint32_t version = 3;
    FILE *out = fopen(path, "wb");

    assert_non_null(out);
    fwrite("GGUF", 1, 4, out);
    fwrite(&version, sizeof(version), 1, out);
    fwrite(&g->tensors_count, sizeof(g->tensors_count), 1, out);
    fwrite(&g->keys_count, sizeof(g->keys_count), 1, out);
    fwrite(g->keys, 1, g->keys_size, out);
    fwrite(g->infos, 1, g->infos_size, out);
    while (ftell(out) % 32 != 0)
        fputc(0, out);
    for (uint64_t i = 0; i < g->data_size; i++)
        fputc(0, out);
    assert_int_equal(fclose(out), 0);
}
