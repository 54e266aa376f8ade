#include "tests/model/tokenizer_file.h"

#include "core/model/gguf.h"
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

static void put(FILE *file, const void *bytes, size_t size)
{
    assert_int_equal(fwrite(bytes, 1, size, file), size);
}

static void put_u32(FILE *file, uint32_t value)
{
    put(file, &value, sizeof(value));
}

static void put_u64(FILE *file, uint64_t value)
{
    put(file, &value, sizeof(value));
}

static void put_text(FILE *file, const char *text)
{
    put_u64(file, strlen(text));
    put(file, text, strlen(text));
}

static void put_key(FILE *file, const char *key, tr_gguf_value type)
{
    put_text(file, key);
    put_u32(file, type);
}

static void put_texts(FILE *file, const char *key, const char *const *texts, size_t count)
{
    if (texts == NULL)
        return;
    put_key(file, key, TR_GGUF_ARRAY);
    put_u32(file, TR_GGUF_TEXT);
    put_u64(file, count);
    for (size_t i = 0; i < count; i++)
        put_text(file, texts[i]);
}

/* An array of elements of four bytes. */
static void put_numbers(FILE *file, const char *key, tr_gguf_value type, const void *numbers,
                        size_t count)
{
    if (numbers == NULL)
        return;
    put_key(file, key, TR_GGUF_ARRAY);
    put_u32(file, type);
    put_u64(file, count);
    put(file, numbers, 4 * count);
}

static void put_flag(FILE *file, const char *key, int value)
{
    if (value < 0)
        return;
    put_key(file, key, TR_GGUF_BOOL);
    put(file, &(char){(char)value}, 1);
}

void tokenizer_file_write(const tokenizer_file *f, const char *path)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    put(file, "GGUF", 4);
    put_u32(file, 3);
    put_u64(file, 0);
    put_u64(file, (uint64_t)(f->model != NULL) + (f->pre != NULL) + (f->tokens != NULL) +
                      (f->types != NULL) + (f->scores != NULL) + (f->merges != NULL) +
                      (f->bos >= 0) + (f->add_bos >= 0) + (f->add_space_prefix >= 0));
    if (f->model != NULL) {
        put_key(file, "tokenizer.ggml.model", TR_GGUF_TEXT);
        put_text(file, f->model);
    }
    if (f->pre != NULL) {
        put_key(file, "tokenizer.ggml.pre", TR_GGUF_TEXT);
        put_text(file, f->pre);
    }
    put_texts(file, "tokenizer.ggml.tokens", f->tokens, f->tokens_count);
    put_numbers(file, "tokenizer.ggml.token_type", TR_GGUF_I32, f->types, f->tokens_count);
    put_numbers(file, "tokenizer.ggml.scores", TR_GGUF_F32, f->scores, f->tokens_count);
    put_texts(file, "tokenizer.ggml.merges", f->merges, f->merges_count);
    if (f->bos >= 0) {
        put_key(file, "tokenizer.ggml.bos_token_id", TR_GGUF_U32);
        put_u32(file, (uint32_t)f->bos);
    }
    put_flag(file, "tokenizer.ggml.add_bos_token", f->add_bos);
    put_flag(file, "tokenizer.ggml.add_space_prefix", f->add_space_prefix);
    assert_int_equal(fclose(file), 0);
}
