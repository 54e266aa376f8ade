/* fuzz_safetensors.c - a safetensors file: what is accepted must keep its promises. */
#include "core/model/safetensors.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_safetensors *file;
    uint64_t sum = 0;
    tr_error err;

    if (tr_safetensors_parse(&file, "fuzz.safetensors", data, size, &err) != TR_OK)
        return 0;
    for (uint32_t i = 0; i < tr_safetensors_count(file); i++) {
        const tr_tensor *t = tr_safetensors_at(file, i);

        if (t->data < data || t->size > size || t->data > data + size - t->size)
            abort();
        sum += t->size;
    }
    if (sum + 8 > size) /* no byte belongs to two tensors */
        abort();
    tr_safetensors_close(file);
    return 0;
}
