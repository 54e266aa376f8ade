/* selection.h - the lists of positions that rows attend to when a layer has an index
 * (tr_index_spec): those of the highest-scoring blocks, and those of the unfinished block. Made
 * once for a layer, by every node with a term of it, so that all choose the same. */
#ifndef TR_ACTORS_SELECTION_H
#define TR_ACTORS_SELECTION_H

#include "actors/mixer.h"

typedef struct {
    float *scores;       /* [a few rows, ld_scores] */
    size_t ld_scores;    /* blocks of the longest sequence */
    uint32_t *blocks;    /* [a few rows, top] */
    uint32_t *counts;    /* [rows] positions in each list */
    uint32_t *positions; /* [rows, ld] */
    size_t ld;
} tr_selection;

tr_selection tr_selection_cut(tr_layout *layout, const tr_node_context *node,
                              const tr_index_spec *spec);

/* Bytes of a page's block keys. */
size_t tr_selection_keys_size(const tr_index_spec *spec);

/* The block keys of a sequence, offset bytes from the base of each page. */
tr_paged_rows tr_selection_keys(const tr_index_spec *spec, const tr_sequence_lease *lease,
                                size_t offset);

/* How many of rows from position first on may look at every position up to their own. */
uint32_t tr_selection_dense_rows(const tr_index_spec *spec, uint32_t first, uint32_t rows);

/* Queries of an index, for all rows of a step. */
typedef struct {
    const float *q; /* [rows, ld_q] heads * head_dim columns */
    size_t ld_q;
    const float *weight; /* [rows, heads] of the heads, NULL: 1 */
    float scale;
} tr_selection_queries;

/* Makes the lists of the rows of a segment that are not dense; its rows begin at `row`. */
void tr_selection_make(const tr_mixer_call *call, const tr_index_spec *spec,
                       const tr_selection *selection, const tr_paged_rows *keys,
                       const tr_selection_queries *queries, const tr_segment *segment,
                       uint32_t row);

#endif
