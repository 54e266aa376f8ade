/* weights_scaled.h - weights whose values stand in two tensors or three: codes, block scales, a
 * scale for the matrix. Which format they make is decided by the types and shapes of what is there.
 */
#ifndef TR_CORE_MODEL_WEIGHTS_SCALED_H
#define TR_CORE_MODEL_WEIGHTS_SCALED_H

#include "core/model/weights.h"

/* A matrix [rows, cols] of a checkpoint, or number index of `experts` that are stacked in one
 * tensor [experts, rows, cols]. */
typedef struct {
    const char *name; /* as families write it: "X.weight", or of stacked experts "X" */
    uint32_t experts; /* 0: not stacked */
    uint32_t index;
    uint32_t parts, part; /* stacked: which of the equal parts of the rows is wanted; 1, 0: all */
    uint32_t rows, cols;
} tr_weight_place;

/* Whether the codes of this place stand in a tensor of another name than the place's. */
bool tr_weight_has_codes(const tr_weight_reader *reader, const tr_weight_place *place);

/* The whole of the place; for stacked experts, the wanted part of one. plain is the tensor of the
 * place's own name, or NULL. Marks as used what it reads.
 * errors  TR_E_INVALID naming file, tensor, found, expected */
tr_status tr_weight_read_scaled(tr_weight_reader *reader, const tr_weight_place *place,
                                const tr_tensor *plain, tr_weight *out, tr_error *err);

/* The matrix scale of a GGUF tensor of NVFP4 blocks: "X.scale" of "X.weight", one number or one for
 * each expert; 1 when there is none. The scale for 4-bit activations beside it is not used.
 * errors  TR_E_INVALID naming file, tensor, found, expected */
tr_status tr_weight_read_gguf_scale(tr_weight_reader *reader, const tr_weight_place *place,
                                    float *scale, tr_error *err);

#endif
