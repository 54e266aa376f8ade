/* gguf.h - one GGUF file (version 2 or 3): its metadata, and where its tensors lie.
 *
 * Everything in the file is checked when it is opened: afterwards each text, array and tensor lies
 * inside the mapping. What the metadata means is the business of a model family or a tokenizer.
 *
 *   magic, version, counts | pairs of key and value | tensor infos | padding | tensor data */
#ifndef TR_CORE_MODEL_GGUF_H
#define TR_CORE_MODEL_GGUF_H

#include "core/error.h"
#include "core/model/map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_gguf tr_gguf;

/* Types of metadata values, as they stand in the file: number, name, bytes (0: no fixed size). */
#define TR_GGUF_VALUE_MAP(X)                                                                       \
    X(U8, 0, "u8", 1)                                                                              \
    X(I8, 1, "i8", 1)                                                                              \
    X(U16, 2, "u16", 2)                                                                            \
    X(I16, 3, "i16", 2)                                                                            \
    X(U32, 4, "u32", 4)                                                                            \
    X(I32, 5, "i32", 4)                                                                            \
    X(F32, 6, "f32", 4)                                                                            \
    X(BOOL, 7, "bool", 1)                                                                          \
    X(TEXT, 8, "string", 0)                                                                        \
    X(ARRAY, 9, "array", 0)                                                                        \
    X(U64, 10, "u64", 8)                                                                           \
    X(I64, 11, "i64", 8)                                                                           \
    X(F64, 12, "f64", 8)

typedef enum {
#define X(name, value, text, size) TR_GGUF_##name = (value),
    TR_GGUF_VALUE_MAP(X)
#undef X
} tr_gguf_value;

/* Types of tensors: id, name, elements per block, bytes per block. Those that no part of Troupe
 * can multiply with stand here too, so that the sizes in a file can be checked and named. */
/* clang-format off */
#define TR_GGUF_TYPE_MAP(X)                                                                     \
    X(F32, 0, 1, 4) X(F16, 1, 1, 2) X(Q4_0, 2, 32, 18) X(Q4_1, 3, 32, 20)                       \
    X(Q5_0, 6, 32, 22) X(Q5_1, 7, 32, 24) X(Q8_0, 8, 32, 34) X(Q8_1, 9, 32, 36)                 \
    X(Q2_K, 10, 256, 84) X(Q3_K, 11, 256, 110) X(Q4_K, 12, 256, 144)                            \
    X(Q5_K, 13, 256, 176) X(Q6_K, 14, 256, 210) X(Q8_K, 15, 256, 292)                           \
    X(IQ2_XXS, 16, 256, 66) X(IQ2_XS, 17, 256, 74) X(IQ3_XXS, 18, 256, 98)                      \
    X(IQ1_S, 19, 256, 50) X(IQ4_NL, 20, 32, 18) X(IQ3_S, 21, 256, 110)                          \
    X(IQ2_S, 22, 256, 82) X(IQ4_XS, 23, 256, 136) X(I8, 24, 1, 1) X(I16, 25, 1, 2)              \
    X(I32, 26, 1, 4) X(I64, 27, 1, 8) X(F64, 28, 1, 8) X(IQ1_M, 29, 256, 56)                    \
    X(BF16, 30, 1, 2) X(TQ1_0, 34, 256, 54) X(TQ2_0, 35, 256, 66) X(MXFP4, 39, 32, 17)          \
    X(NVFP4, 40, 64, 36) X(Q1_0, 41, 128, 18) X(Q2_0, 42, 64, 18)
/* clang-format on */

typedef enum {
#define X(name, id, elements, bytes) TR_GGUF_TYPE_##name = (id),
    TR_GGUF_TYPE_MAP(X)
#undef X
} tr_gguf_type;

/* "Q4_1"; NULL for an id that is not in the list. */
const char *tr_gguf_type_name(uint32_t type);

#define TR_GGUF_DIMS_MAX 4
#define TR_GGUF_NAME_SIZE                                                                          \
    64 /* of a tensor's name, terminator included: 63 is the format's limit                        \
        */

typedef struct {
    char name[TR_GGUF_NAME_SIZE];
    uint64_t dims[TR_GGUF_DIMS_MAX]; /* fastest first, as in the file; those not given are 1 */
    uint32_t dims_count;             /* 1..TR_GGUF_DIMS_MAX */
    uint32_t type;                   /* tr_gguf_type */
    const uint8_t *data;             /* borrows from the file */
    uint64_t size;                   /* bytes */
} tr_gguf_tensor;

/* Maps and checks a file. The caller owns *out; it is read-only afterwards.
 * thread  any; errors TR_E_INVALID naming file, key or tensor, found, expected */
tr_status tr_gguf_open(tr_gguf **out, const char *path, tr_error *err);

/* The same for bytes in memory, which are borrowed until close. name stands for the file in
 * errors; copied. */
tr_status tr_gguf_parse(tr_gguf **out, const char *name, const uint8_t *data, size_t size,
                        tr_error *err);
void tr_gguf_close(tr_gguf *gguf);

/* Whether the file is still the one that was opened (map.h). Not of bytes in memory. */
tr_status tr_gguf_check(const tr_gguf *gguf, tr_error *err);

/* Name of the file without its folders, for errors. */
const char *tr_gguf_name(const tr_gguf *gguf);

/* The mapping of an opened file, its name [256] and the bytes of its keys and descriptions. */
const tr_map *tr_gguf_file(const tr_gguf *gguf, char *name, uint64_t *head);

/* -- metadata --
 *
 * A function that reads a value fails with TR_E_INVALID, naming file and key, when the key is
 * absent or its value is of another kind. Ask tr_gguf_has first for what may be absent. Texts are
 * borrowed from the file and not terminated; they may hold any bytes. */

bool tr_gguf_has(const tr_gguf *gguf, const char *key);

tr_status tr_gguf_text(const tr_gguf *gguf, const char *key, const char **text, size_t *size,
                       tr_error *err);

/* Any integer type, not negative. */
tr_status tr_gguf_u64(const tr_gguf *gguf, const char *key, uint64_t *value, tr_error *err);

/* f32 or f64, finite. */
tr_status tr_gguf_f64(const tr_gguf *gguf, const char *key, double *value, tr_error *err);

tr_status tr_gguf_bool(const tr_gguf *gguf, const char *key, bool *value, tr_error *err);

typedef struct {
    tr_gguf_value type; /* of the elements; never TR_GGUF_ARRAY */
    uint64_t count;
    const uint8_t *data; /* borrows; packed elements */
} tr_gguf_array;

/* An array of texts (expected == TR_GGUF_TEXT), of any integers (TR_GGUF_I32), of floats
 * (TR_GGUF_F32) or of truth values (TR_GGUF_BOOL). */
tr_status tr_gguf_get_array(const tr_gguf *gguf, const char *key, tr_gguf_value expected,
                            tr_gguf_array *out, tr_error *err);

/* Takes texts one after the other: call it count times on a copy of the array that the cursor then
 * consumes. Asserts that there is one left. */
void tr_gguf_array_next_text(tr_gguf_array *cursor, const char **text, size_t *size);

/* Element index of an array of integers or truth values (u64 above INT64_MAX: INT64_MAX). */
int64_t tr_gguf_array_i64(const tr_gguf_array *array, uint64_t index);

/* Element index of an array of floats. */
double tr_gguf_array_f64(const tr_gguf_array *array, uint64_t index);

/* All keys, in the order of the file; *key is not terminated. */
uint32_t tr_gguf_keys_count(const tr_gguf *gguf);
void tr_gguf_key(const tr_gguf *gguf, uint32_t index, const char **key, size_t *size);

/* All bytes before the tensor data: the metadata and the tensor infos. */
void tr_gguf_head(const tr_gguf *gguf, const uint8_t **data, size_t *size);

/* -- tensors -- */

uint32_t tr_gguf_tensors_count(const tr_gguf *gguf);
const tr_gguf_tensor *tr_gguf_tensor_at(const tr_gguf *gguf, uint32_t index);

#endif
