/* weights.h - from a tensor's name to a tr_weight: decides the format by what is in the file, and
 * compares shapes with what the spec asks for.
 *
 * Formats are decided tensor by tensor, never from the config. For a name "X.weight":
 *
 *   X.weight F32, BF16, F16 or a block type of GGUF                      as it stands
 *   X.weight U8, X.weight_scale F8_E4M3, X.weight_scale_2 F32            NVFP4, ModelOpt
 *   X.weight_packed U8, X.weight_scale F8_E4M3, X.weight_global_scale    NVFP4, compressed-tensors
 *   X.weight F8_E4M3, X.weight_scale or X.weight_scale_inv               FP8: one scale, one for
 *                                                     each row, or one for each 128 x 128, by shape
 *   X.weight_packed or X.weight U8, X.weight_scale U8 or F8_E8M0         MXFP4
 *   X_blocks U8 [.., K/32, 16], X_scales U8                              MXFP4; gate and up rows
 *                                                                        alternate
 *
 * Stacked experts have the same companions with a leading dimension, named X_scale or
 * X_weight_scale where the codes are named X. The two NVFP4 layouts differ in the matrix scale:
 * ModelOpt's multiplies, the other divides. FP8 scales multiply, "inv" or not. */
#ifndef TR_CORE_MODEL_WEIGHTS_H
#define TR_CORE_MODEL_WEIGHTS_H

#include "core/error.h"
#include "core/model/checkpoint.h"
#include "core/model/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

#define TR_TENSOR_NAME_SIZE 512 /* of the names that families make */

typedef struct {
    const tr_checkpoint *checkpoint; /* borrows */
    uint8_t *used;                   /* borrows, [tr_checkpoint_count]; set for what was read */
    bool values; /* false: headers alone; matrix scales are not looked at and count as 1 */
} tr_weight_reader;

/* Whether a tensor of this name is there, in any layout. */
bool tr_weight_exists(const tr_weight_reader *reader, const char *name);

/* The weight [rows, cols] of this name. Dimensions of 1 in the file do not count: [1, 1, 64, 1] is
 * a vector of 64.
 * errors  TR_E_INVALID naming file, tensor, found, expected */
tr_status tr_weight_read(tr_weight_reader *reader, const char *name, uint32_t rows, uint32_t cols,
                         tr_weight *out, tr_error *err);

/* Rows [first, first + rows) of a tensor that has `all` rows. errors  likewise */
tr_status tr_weight_read_rows(tr_weight_reader *reader, const char *name, uint32_t all,
                              uint32_t first, uint32_t rows, uint32_t cols, tr_weight *out,
                              tr_error *err);

/* Expert index of a tensor [experts, parts * rows, cols], of which part number part. */
tr_status tr_weight_read_stacked(tr_weight_reader *reader, const char *name, uint32_t experts,
                                 uint32_t index, uint32_t parts, uint32_t part, uint32_t rows,
                                 uint32_t cols, tr_weight *out, tr_error *err);

/* Columns may be cut at multiples of this: the format's grain, or what kernels ask of FP8_BLOCK. */
uint32_t tr_weight_cut_unit(const tr_weight *w);

/* Bytes of a weight in the file, scales included. */
uint64_t tr_weight_bytes(const tr_weight *w);

/* Looks at values: block scales and plain elements must be finite, block scales not negative.
 * file and name stand in errors. Reads the whole weight. */
tr_status tr_weight_check(const tr_weight *w, const char *file, const char *name, tr_error *err);

#endif
