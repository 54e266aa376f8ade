/* tensor.h - one stored tensor, whichever container it comes from. */
#ifndef TR_CORE_MODEL_TENSOR_H
#define TR_CORE_MODEL_TENSOR_H

#include "core/model/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

/* Element types of safetensors, by their names in the file, with their width in bits. */
#define TR_DTYPE_MAP(X)                                                                            \
    X(BOOL, 8)                                                                                     \
    X(U8, 8)                                                                                       \
    X(I8, 8)                                                                                       \
    X(F8_E4M3, 8)                                                                                  \
    X(F8_E5M2, 8)                                                                                  \
    X(F8_E8M0, 8)                                                                                  \
    X(F8_E4M3FNUZ, 8)                                                                              \
    X(F8_E5M2FNUZ, 8)                                                                              \
    X(F4, 4)                                                                                       \
    X(F6_E2M3, 6)                                                                                  \
    X(F6_E3M2, 6)                                                                                  \
    X(I16, 16)                                                                                     \
    X(U16, 16)                                                                                     \
    X(F16, 16)                                                                                     \
    X(BF16, 16)                                                                                    \
    X(I32, 32)                                                                                     \
    X(U32, 32)                                                                                     \
    X(F32, 32)                                                                                     \
    X(I64, 64)                                                                                     \
    X(U64, 64)                                                                                     \
    X(F64, 64)                                                                                     \
    X(C64, 64)

typedef enum {
#define X(name, bits) TR_DTYPE_##name,
    TR_DTYPE_MAP(X)
#undef X
        TR_DTYPE_GGUF /* a block type of GGUF; tr_tensor.type says which */
} tr_dtype;

#define TR_TENSOR_DIMS_MAX 8

typedef struct {
    const char *name; /* borrows from the container */
    const char *file; /* borrows; name of the file without folders */
    const char *type; /* as the file calls it: "BF16", "Q4_1"; static storage */
    tr_dtype dtype;
    bool has_format; /* the elements alone, without companions, are a tr_format */
    tr_format format;
    uint32_t dims_count;
    uint64_t dims[TR_TENSOR_DIMS_MAX]; /* slowest first */
    const uint8_t *data;               /* borrows from the mapping */
    uint64_t size;                     /* bytes */
} tr_tensor;

/* "[4096, 640]", cut to size. Returns text. */
const char *tr_tensor_shape_text(char *text, size_t size, const uint64_t *dims,
                                 uint32_t dims_count);

#endif
