/* model.h - what an opened model can tell beyond model_spec.h, for inspect, loaders and tests. */
#ifndef TR_CORE_MODEL_MODEL_H
#define TR_CORE_MODEL_MODEL_H

#include "core/error.h"
#include "core/model/checkpoint.h"
#include "core/model/model_spec.h"
#include "core/model/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As tr_model_open, but looks at headers alone: no value of a tensor is read. Answers at once for
 * a checkpoint of any size; the weights of such a model must not be computed with (matrix scales
 * count as 1). */
tr_status tr_model_open_headers(tr_model **out, const char *path, tr_error *err);

/* Whether the layer has this role (global roles: whatever the layer). */
bool tr_model_has(const tr_model *model, uint32_t layer, tr_weight_role role);

/* The name of the tensor behind a weight, for messages. Writes at most size bytes, returns text. */
const char *tr_model_weight_name(const tr_model *model, uint32_t layer, tr_weight_role role,
                                 uint32_t expert, char *text, size_t size);

/* Reads all of one weight: NaN, infinity and negative block scales are refused.
 * errors  TR_E_INVALID naming file, tensor, row, column, found, expected */
tr_status tr_model_check_weight(const tr_model *model, uint32_t layer, tr_weight_role role,
                                uint32_t expert, tr_error *err);

/* The same for the weight of which part is a rectangle; TR_OK also when part is of no weight. */
tr_status tr_model_check_part(const tr_model *model, const tr_weight *part, tr_error *err);

/* Whether all files are still those that were opened and could be read where they were read. To be
 * asked after reading weights: what is gone from a file reads as zeros.
 * errors  TR_E_INVALID naming the file */
tr_status tr_model_check_files(const tr_model *model, tr_error *err);

/* Lets go of what is cached of the model's tensors (tr_map_forget): once weights are packed, what
 * their files still have in memory is missing elsewhere. Tables of n-grams are left alone. */
void tr_model_forget(const tr_model *model);

/* HEAD is EMBED. */
bool tr_model_is_tied(const tr_model *model);

/* Where the model's tensors lie. */
const tr_checkpoint *tr_model_checkpoint(const tr_model *model);

uint32_t tr_model_files_count(const tr_model *model);
uint32_t tr_model_tensors_count(const tr_model *model);

/* Tensor index of the checkpoint, in byte order of the names. */
const tr_tensor *tr_model_tensor(const tr_model *model, uint32_t index);

/* Calls each for every tensor that is recognised and not used. */
void tr_model_skipped(const tr_model *model, void (*each)(void *ctx, const tr_tensor *tensor),
                      void *ctx);

#endif
