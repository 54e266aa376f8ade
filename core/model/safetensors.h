/* safetensors.h - one safetensors file: a JSON header, and tensors that fill the rest without gaps.
 *
 *   u64 header length | JSON | bytes of the tensors
 *
 * Everything is checked at open: each tensor's span lies in the file and agrees with its type and
 * shape, and each byte belongs to exactly one tensor. */
#ifndef TR_CORE_MODEL_SAFETENSORS_H
#define TR_CORE_MODEL_SAFETENSORS_H

#include "core/error.h"
#include "core/model/map.h"
#include "core/model/tensor.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tr_safetensors tr_safetensors;

/* Maps and checks a file. The caller owns *out; read-only afterwards.
 * thread  any; errors TR_E_INVALID naming file, tensor, found, expected */
tr_status tr_safetensors_open(tr_safetensors **out, const char *path, tr_error *err);

/* The same for bytes in memory, borrowed until close; name stands for the file, copied. */
tr_status tr_safetensors_parse(tr_safetensors **out, const char *name, const uint8_t *data,
                               size_t size, tr_error *err);
void tr_safetensors_close(tr_safetensors *file);

/* Whether the file is still the one that was opened (map.h). Not of bytes in memory. */
tr_status tr_safetensors_check(const tr_safetensors *file, tr_error *err);

/* The mapping of an opened file, its name [256] and the bytes before its tensors. */
const tr_map *tr_safetensors_file(const tr_safetensors *file, char *name, uint64_t *head);

/* Tensors in the order of the header. Names are unique. */
uint32_t tr_safetensors_count(const tr_safetensors *file);
const tr_tensor *tr_safetensors_at(const tr_safetensors *file, uint32_t index);

#endif
