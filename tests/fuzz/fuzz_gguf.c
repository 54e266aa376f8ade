/* fuzz_gguf.c - a GGUF file: every key can be asked for every kind, every tensor lies inside, and
 * the first row of each can be turned into numbers, whatever its bytes. */
#include "core/model/blocks.h"
#include "core/model/checkpoint.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t sink; /* keeps the reads */

static void read_array(const tr_gguf *g, const char *key)
{
    static const tr_gguf_value kinds[] = {TR_GGUF_TEXT, TR_GGUF_I32, TR_GGUF_F32, TR_GGUF_BOOL};
    tr_gguf_array array;
    tr_error err;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        if (tr_gguf_get_array(g, key, kinds[k], &array, &err) != TR_OK)
            continue;
        for (uint64_t i = 0, count = array.count; i < count; i++) {
            const char *text;
            size_t size;

            if (kinds[k] == TR_GGUF_TEXT) {
                tr_gguf_array_next_text(&array, &text, &size);
                sink += size > 0 ? (uint64_t)text[size - 1] : 0;
            } else if (kinds[k] == TR_GGUF_F32) {
                sink += tr_gguf_array_f64(&array, i) > 0;
            } else {
                sink += (uint64_t)tr_gguf_array_i64(&array, i);
            }
        }
    }
}

static void read_key(const tr_gguf *g, const char *key)
{
    const char *text;
    size_t size;
    uint64_t integer;
    double number;
    bool truth;
    tr_error err;

    if (tr_gguf_text(g, key, &text, &size, &err) == TR_OK && size > 0)
        sink += (uint64_t)text[size - 1];
    if (tr_gguf_u64(g, key, &integer, &err) == TR_OK)
        sink += integer;
    if (tr_gguf_f64(g, key, &number, &err) == TR_OK)
        sink += number > 0;
    if (tr_gguf_bool(g, key, &truth, &err) == TR_OK)
        sink += truth;
    read_array(g, key);
}

/* The first blocks of a tensor. */
static void read_values(const tr_gguf_tensor *t)
{
    enum { ELEMENTS = 1024 };
    float out[ELEMENTS];
    tr_format format;

    if (!tr_checkpoint_gguf_format(t->type, &format) || t->dims[0] > ELEMENTS)
        return;
    tr_weight w = {.format = format,
                   .rows = 1,
                   .cols = (uint32_t)t->dims[0],
                   .data = t->data,
                   .row_size = t->size,
                   .scale = 1};
    tr_weight_to_f32(out, &w);
    sink += out[w.cols - 1] > 0;
    if (tr_format_is_blocked(format))
        sink += tr_block_is_valid(format, t->data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_gguf *g;
    tr_error err;
    char key[128];

    if (tr_gguf_parse(&g, "fuzz.gguf", data, size, &err) != TR_OK)
        return 0;
    for (uint32_t i = 0; i < tr_gguf_keys_count(g); i++) {
        const char *text;
        size_t text_size;

        tr_gguf_key(g, i, &text, &text_size);
        snprintf(key, sizeof(key), "%.*s", (int)(text_size < 120 ? text_size : 120), text);
        read_key(g, key);
    }
    for (uint32_t i = 0; i < tr_gguf_tensors_count(g); i++) {
        const tr_gguf_tensor *t = tr_gguf_tensor_at(g, i);

        if (t->data < data || t->size > size || t->data > data + size - t->size)
            abort();
        read_values(t);
    }
    tr_gguf_close(g);
    return 0;
}
