/* fuzz_shard_index.c - the index of a sharded checkpoint: what is accepted names files of its own
 * folder only, each once. */
#include "core/model/shard_index.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FILES_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_shard_index index;
    tr_error err;

    if (tr_shard_index_parse(&index, "fuzz", (const char *)data, size, FILES_MAX, &err) != TR_OK)
        return 0;
    if (index.files_count > FILES_MAX)
        abort();
    for (uint32_t i = 0; i < index.files_count; i++) {
        const char *file = index.files[i];

        if (file[0] == '\0' || file[0] == '.' || strpbrk(file, "/\\\n") != NULL)
            abort();
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(file, index.files[j]) == 0)
                abort();
    }
    for (uint32_t i = 0; i < index.tensors.count; i++)
        if (index.file_of[index.tensors.rows[i].index] >= index.files_count)
            abort();
    tr_shard_index_free(&index);
    return 0;
}
