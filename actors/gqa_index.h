/* gqa_index.h - the index of a layer of softmax attention, TR_INDEX_BLOCK: its block keys, and the
 * lists that they give (selection.h). Computed once for a layer, by every node with a term of it.
 *
 * The layer's part of a page holds the keys of the page's blocks; its part of a state slot the raw
 * keys of the unfinished block. */
#ifndef TR_ACTORS_GQA_INDEX_H
#define TR_ACTORS_GQA_INDEX_H

#include "actors/selection.h"

typedef struct {
    tr_matrix qk;                 /* [(heads + 1) * dim, hidden] */
    const float *q_norm, *k_norm; /* [dim] */
} tr_gqa_index;

typedef struct {
    tr_selection selection;
    float *qk;        /* [rows, (heads + 1) * dim] */
    float *turns;     /* [rows, rope_dims] of the first positions of new blocks */
    uint32_t *firsts; /* [rows] those positions */
} tr_gqa_index_workspace;

size_t tr_gqa_index_state_size(const tr_index_spec *spec);

tr_gqa_index tr_gqa_index_load(const tr_mixer_loader *loader);
tr_gqa_index_workspace tr_gqa_index_cut(tr_layout *layout, const tr_node_context *node,
                                        const tr_gqa_spec *spec);

/* Adds the call's rows to the index and fills the lists. */
void tr_gqa_index_run(const tr_mixer_call *call, const tr_gqa_index *index,
                      const tr_gqa_index_workspace *w);

#endif
