#include "core/model/tensor.h"

#include <inttypes.h>
#include <stdio.h>

const char *tr_tensor_shape_text(char *text, size_t size, const uint64_t *dims, uint32_t dims_count)
{
    size_t used = (size_t)snprintf(text, size, "[");

    for (uint32_t i = 0; i < dims_count && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%" PRIu64, i > 0 ? ", " : "", dims[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}
