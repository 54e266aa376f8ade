/* checkpoint.h - all tensors of a model by name, wherever they lie: a Hugging Face directory (one
 * safetensors file, or shards with an index) or a GGUF file (one, or the first of a split set).
 *
 * A checkpoint knows where bytes are and what the files say they are, not what they mean. */
#ifndef TR_CORE_MODEL_CHECKPOINT_H
#define TR_CORE_MODEL_CHECKPOINT_H

#include "core/error.h"
#include "core/model/gguf.h"
#include "core/model/map.h"
#include "core/model/tensor.h"

#include <stdbool.h>
#include <stdint.h>

#define TR_SHARDS_MAX 1024 /* the largest published checkpoints have about 200 */

typedef struct tr_checkpoint tr_checkpoint;

/* Opens and checks every file. The caller owns *out; read-only afterwards.
 * thread  any; errors TR_E_INVALID naming file, tensor, found, expected */
tr_status tr_checkpoint_open(tr_checkpoint **out, const char *path, tr_error *err);
void tr_checkpoint_close(tr_checkpoint *checkpoint);

/* The path as given to open, and the name of its folder or file for errors. */
const char *tr_checkpoint_path(const tr_checkpoint *checkpoint);
const char *tr_checkpoint_name(const tr_checkpoint *checkpoint);

/* The GGUF file with the metadata, or NULL for a directory. */
const tr_gguf *tr_checkpoint_gguf(const tr_checkpoint *checkpoint);

/* The element format of a GGUF tensor type; false when no kernel multiplies with it. */
bool tr_checkpoint_gguf_format(uint32_t type, tr_format *format);

/* Whether all files are still those that were opened (map.h). */
tr_status tr_checkpoint_check(const tr_checkpoint *checkpoint, tr_error *err);

uint32_t tr_checkpoint_files_count(const tr_checkpoint *checkpoint);

/* The mapping of file number index, its name in the folder [TR_FILE_NAME_SIZE] and how many bytes
 * its header has. */
const tr_map *tr_checkpoint_file(const tr_checkpoint *checkpoint, uint32_t index, char *name,
                                 uint64_t *head);

/* Brings all small tensors at once (tr_map_need): scales and vectors, at which opening looks. */
tr_status tr_checkpoint_need_small(const tr_checkpoint *checkpoint, tr_error *err);

/* Tensors in byte order of their names. */
uint32_t tr_checkpoint_count(const tr_checkpoint *checkpoint);
const tr_tensor *tr_checkpoint_at(const tr_checkpoint *checkpoint, uint32_t index);

/* Index of the tensor with this name, or TR_NAME_NONE (names.h). */
uint32_t tr_checkpoint_find(const tr_checkpoint *checkpoint, const char *name);

#endif
