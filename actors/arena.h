/* arena.h - counts an actor's memory, then cuts it: the same code does both, so that the table of a
 * refused launch cannot disagree with what a granted one takes.
 *
 * With a weight store, matrices are blocks of the store, which outlive the arena while another
 * arena refers to them; what the store has already costs nothing when it is counted. */
#ifndef TR_ACTORS_ARENA_H
#define TR_ACTORS_ARENA_H

#include "actors/weight_store.h"
#include "core/budget.h"
#include "core/error.h"
#include "core/model/model_spec.h"
#include "kernels/kernels.h"

#include <stdbool.h>

typedef struct {
    tr_layout layout;          /* base NULL while counting */
    const tr_kernels *kernels; /* borrows */
    const tr_model *model;     /* borrows */
    bool activations_nvfp4;    /* matrices keep their scale for 4-bit activations */
    tr_weight_store *store;    /* borrows; NULL: matrices lie in the arena itself */
    tr_weight_block **blocks;  /* owns, [blocks_count] references; of the store */
    uint32_t blocks_count, blocks_capacity;
    uint64_t blocks_bytes;        /* counting: of matrices that the store does not have yet */
    tr_status status;             /* first failure; later calls do nothing then */
    tr_error *err;                /* borrows; filled with status */
    uint64_t packed_bytes;        /* of weights so far, for progress */
    const _Atomic bool *given_up; /* borrows; once true nothing more is packed; NULL: never */
    void (*progress)(void *ctx, uint64_t packed_bytes); /* NULL: none */
    void *progress_ctx;
} tr_arena;

/* size bytes, 64-byte aligned and zero; NULL while counting. */
void *tr_arena_take(tr_arena *arena, size_t size);

/* Packs a rectangle of a weight; name stands in errors. While counting only its size is added and
 * an empty matrix returned. */
tr_matrix tr_arena_matrix(tr_arena *arena, const char *name, const tr_weight *w);

/* The same of the transposed weight, for small ones: it is turned in memory of its own. Plain
 * elements keep their format, blocks become F32. */
tr_matrix tr_arena_transposed(tr_arena *arena, const char *name, const tr_weight *w);

/* A weight as float32 [rows * cols]; NULL while counting. */
const float *tr_arena_vector(tr_arena *arena, const tr_weight *w);

/* The same with offset added to each element (tr_model_spec.norm_offset). */
const float *tr_arena_norm(tr_arena *arena, const tr_weight *w, float offset);

/* Bytes counted so far, blocks included. */
static inline uint64_t tr_arena_counted(const tr_arena *arena)
{
    return arena->layout.used + arena->blocks_bytes;
}

/* Allocates what was counted (layout.used), zeroed and touched. The caller frees with
 * tr_arena_free, which gives the blocks back to the store, too. */
tr_status tr_arena_allocate(tr_arena *arena, size_t size, tr_error *err);
void tr_arena_free(tr_arena *arena, size_t size);

#endif
