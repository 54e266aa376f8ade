/* weight_store.h - the packed matrices of a node, shared by the tables of successive placements.
 *
 * A placement's tables (which terms stand here) are built again whenever the placement changes; the
 * matrices behind them are not: a rectangle of a weight that both placements name is one block, and
 * a block lives as long as some table refers to it. Vectors are small and belong to the tables.
 *
 * Thread: one at a time; a node's start, then the thread that carries out its changes. Blocks that
 * are referred to may be read by any thread. */
#ifndef TR_ACTORS_WEIGHT_STORE_H
#define TR_ACTORS_WEIGHT_STORE_H

#include "core/error.h"
#include "core/model/model_spec.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tr_weight_store tr_weight_store;
typedef struct tr_weight_block tr_weight_block;

/* kernels is borrowed. */
tr_status tr_weight_store_open(tr_weight_store **out, const tr_kernels *kernels, tr_error *err);

/* Every block must have been given back. NULL is allowed. */
void tr_weight_store_close(tr_weight_store *store);

/* The block of exactly this rectangle of a checkpoint's weight, or of its transpose, with one more
 * reference; NULL when there is none.   out (may be NULL: only look, no reference) borrows */
tr_weight_block *tr_weight_store_find(tr_weight_store *store, const tr_weight *key, bool transposed,
                                      tr_matrix *out);

/* Packs elements as the block of a rectangle that is not there, with one reference.
 *
 *   key       the rectangle in the checkpoint
 *   elements  what is packed: key itself, or its transpose
 *   out       borrows from the block
 *
 * errors  TR_E_NOMEM, and those of tr_kernels.pack: err says what was found, not where */
tr_status tr_weight_store_add(tr_weight_store *store, const tr_weight *key, bool transposed,
                              const tr_weight *elements, tr_matrix *out, tr_weight_block **block,
                              tr_error *err);

/* Gives a reference back; the memory goes with the last one. */
void tr_weight_store_give(tr_weight_store *store, tr_weight_block *block);

/* Bytes of all blocks. Thread: any. */
uint64_t tr_weight_store_bytes(const tr_weight_store *store);

#endif
