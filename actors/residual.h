/* residual.h - what a router does with the residual between sub-layers, for each kind of it
 * (tr_residual_spec): a sub-layer reads its input rows from the bank, and what its terms sum up to
 * is written back. Every router of a span does this with the same bits. */
#ifndef TR_ACTORS_RESIDUAL_H
#define TR_ACTORS_RESIDUAL_H

#include "actors/node_context.h"

/* Weights of one read; n streams. */
typedef struct {
    const float *norm; /* PLAIN, MHC: [hidden] of the input; GATED: [n * hidden] of the bank */
    tr_matrix fn;      /* MHC: [(2 + n) n, n * hidden] */
    const float *base, *scale; /* MHC: [(2 + n) n], [3] */
    tr_matrix down, up;        /* GATED: [rank, n * hidden], [n * hidden, rank] */
    tr_matrix inject;          /* GATED, but for the last read: [n, n * hidden] */
} tr_residual_weights;

/* Shared by the slots of a router: reads and writes are not interleaved. */
typedef struct {
    const tr_node_context *node; /* borrows */
    tr_residual_weights final;   /* GATED */
    float *y;                    /* [rows, hidden]; not for PLAIN */
    float *normed, *gate;        /* GATED: [rows, n * hidden] each */
    float *low;                  /* GATED: [rows, rank] */
} tr_residual;

/* Columns of a bank row. */
uint32_t tr_residual_width(const tr_model_spec *spec);

/* Floats for each row that a read leaves for the write of the same sub-layer. */
uint32_t tr_residual_mix_width(const tr_model_spec *spec);

/* Count with a counting arena, load with a real one. */
void tr_residual_load(tr_residual *r, const tr_node_context *node, tr_arena *arena);
tr_residual_weights tr_residual_load_read(const tr_node_context *node, uint32_t layer,
                                          tr_sub_layer sub, tr_arena *arena);

/* bank [T, width] of fresh tokens. */
void tr_residual_embed(const tr_residual *r, tr_team *team, float *bank, const tr_matrix *embed,
                       const int32_t *tokens, uint32_t T);

/* rows [T, hidden]: the normed input of a sub-layer.   mix [T, mix_width] */
void tr_residual_read(const tr_residual *r, tr_team *team, const tr_residual_weights *w,
                      float *rows, float *mix, const float *bank, uint32_t T);

/* Writes a sub-layer's sums [T, hidden] into the bank. */
void tr_residual_write(const tr_residual *r, tr_team *team, float *bank, const int64_t *sums,
                       const int32_t *exponent, const float *mix, uint32_t T);

/* bank += add, both [T, width]. */
void tr_residual_add(const tr_residual *r, float *bank, const float *add, uint32_t T);

/* rows [count, hidden]: what leaves the last layer for the rows that outputs name, before the final
 * norm where the model has one. */
void tr_residual_finish(const tr_residual *r, tr_team *team, float *rows, const float *bank,
                        const tr_output *outputs, uint32_t count);

#endif
