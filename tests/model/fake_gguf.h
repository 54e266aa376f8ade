/* fake_gguf.h - writes small GGUF files, right ones and wrong ones. */
#ifndef TR_TESTS_MODEL_FAKE_GGUF_H
#define TR_TESTS_MODEL_FAKE_GGUF_H

#include "core/model/gguf.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t keys[8192], infos[16384];
    size_t keys_size, infos_size;
    uint64_t keys_count, tensors_count, data_size;
} fake_gguf;

void fake_gguf_u32(fake_gguf *g, const char *key, uint32_t value);
void fake_gguf_u16(fake_gguf *g, const char *key, uint16_t value);
void fake_gguf_f32(fake_gguf *g, const char *key, float value);
void fake_gguf_text(fake_gguf *g, const char *key, const char *value);

/* An array of count texts "t0", "t1", ... */
void fake_gguf_texts(fake_gguf *g, const char *key, uint32_t count);

/* An array of u32. */
void fake_gguf_u32s(fake_gguf *g, const char *key, const uint32_t *values, uint32_t count);

/* A tensor of ne = [d0, d1] (d1 0: one dimension); its bytes are zero. */
void fake_gguf_tensor(fake_gguf *g, const char *name, tr_gguf_type type, uint64_t d0, uint64_t d1);

/* A llama model: embedding 64, 128 tokens, 2 layers, 4 heads of 16, 2 key heads, width 128; norms
 * F32, matrices of the given type, tied. */
void fake_gguf_llama(fake_gguf *g, tr_gguf_type type);

void fake_gguf_write(const fake_gguf *g, const char *path);

#endif
