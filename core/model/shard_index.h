/* shard_index.h - model.safetensors.index.json: which file of a folder holds which tensor. */
#ifndef TR_CORE_MODEL_SHARD_INDEX_H
#define TR_CORE_MODEL_SHARD_INDEX_H

#include "core/error.h"
#include "core/model/names.h"

#include <stdint.h>

#define TR_SHARD_NAME_SIZE 256

typedef struct {
    char (*files)[TR_SHARD_NAME_SIZE]; /* owns, [files_count]; plain names, each once */
    uint32_t files_count;
    tr_names tensors;  /* owns; name -> entry */
    uint32_t *file_of; /* owns, [tensors.count]: entry -> file */
    char *text;        /* owns; the names */
} tr_shard_index;

/* Reads and checks an index: no name twice, no file outside the folder, at most files_max files.
 * thread  any; errors TR_E_INVALID naming file, tensor, found, expected; TR_E_NOMEM */
tr_status tr_shard_index_read(tr_shard_index *out, const char *path, uint32_t files_max,
                              tr_error *err);

/* The same of a text in memory; name stands for the file in errors. */
tr_status tr_shard_index_parse(tr_shard_index *out, const char *name, const char *text, size_t size,
                               uint32_t files_max, tr_error *err);
void tr_shard_index_free(tr_shard_index *index);

#endif
