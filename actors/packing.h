/* packing.h - from a checkpoint's mapped file to a packed matrix, with a bound on what of the file
 * is in memory meanwhile. */
#ifndef TR_ACTORS_PACKING_H
#define TR_ACTORS_PACKING_H

#include "core/error.h"
#include "core/model/model_spec.h"
#include "kernels/kernels.h"

/* Bytes that packing keeps in memory beside what is packed: one band of rows of one matrix; of a
 * row that is larger, all. A matrix that is turned (tr_arena_transposed: one head of kv_b) is
 * copied as a whole before; core/model/README.md has the budget of loading. */
#define TR_LOAD_WINDOW (4u << 20)

/* kernels->pack, band by band; the pages of a band go back to the system as soon as it is packed,
 * and those of whole rows leave its cache of the file (tr_weight_release).
 * errors  those of pack and of tr_weight_need; TR_E_INVALID when the file has lost a part of the
 * weight */
tr_status tr_pack_streamed(const tr_kernels *kernels, tr_matrix *out, void *memory,
                           const tr_weight *w, tr_error *err);

/* The error of a weight that could not be packed, or of which values are bad: names the file that
 * changed, or else tensor, row and column of the first bad value, or else repeats why.
 *   name   stands for the weight when nothing is known of it
 * returns status */
tr_status tr_pack_explain(const tr_model *model, const char *name, const tr_weight *w,
                          tr_status status, const char *why, tr_error *err);

#endif
