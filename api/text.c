#include "api/text.h"

#include <stdlib.h>
#include <string.h>

void tr_text_append(tr_text *t, const char *bytes, size_t size)
{
    if (t->failed || size == 0)
        return;
    if (size > t->capacity - t->size) {
        size_t capacity = t->capacity == 0 ? 256 : t->capacity;
        while (capacity - t->size < size)
            capacity *= 2;
        char *grown = realloc(t->bytes, capacity);
        if (grown == NULL) {
            t->failed = true;
            return;
        }
        t->bytes = grown;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->size, bytes, size);
    t->size += size;
}

void tr_text_free(tr_text *t)
{
    free(t->bytes);
    *t = (tr_text){0};
}

size_t tr_text_cut(const char *text, size_t size, size_t size_max)
{
    if (size <= size_max)
        return size;
    size_t cut = size_max;
    while (cut > size_max - 3 && ((unsigned char)text[cut] & 0xc0) == 0x80)
        cut--;
    return cut;
}
