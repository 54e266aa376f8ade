/* weights_ngram.h - what only n-gram tables have in a checkpoint: one scale for all parts, and the
 * integers of the hash. */
#ifndef TR_CORE_MODEL_WEIGHTS_NGRAM_H
#define TR_CORE_MODEL_WEIGHTS_NGRAM_H

#include "core/model/weights.h"

/* One part [rows, cols] of a table. F8_E4M3 is multiplied by the one number of the tensor
 * scale_name, where there is one; then scales_format is the type of the products. Everything else
 * is read as tr_weight_read does. scale_name may be NULL. */
tr_status tr_weight_read_ngram_part(tr_weight_reader *reader, const char *name,
                                    const char *scale_name, uint32_t rows, uint32_t cols,
                                    tr_weight *out, tr_error *err);

/* Compares a tensor of count I64 with what they must be; a tensor that is not there is as good.
 * errors  TR_E_INVALID naming file, tensor, index, found, expected */
tr_status tr_weight_check_integers(tr_weight_reader *reader, const char *name,
                                   const uint64_t *expected, uint32_t count, tr_error *err);

#endif
