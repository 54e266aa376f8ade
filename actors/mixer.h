/* mixer.h - what a token mixer is to the attention shard: a table of operations over the terms of a
 * layer that stand on a node. One file per mixer: attention_gqa.c, attention_kda.c, ...
 *
 * The terms of a layer that stand on a node form runs of neighbours. A run's projections are one
 * matrix each, so that a product reads whole rows; the output projection is one matrix per term,
 * because terms are never added in floating point. The shard does the output projections; a mixer
 * does what lies between a layer's input and the outputs of its heads. */
#ifndef TR_ACTORS_MIXER_H
#define TR_ACTORS_MIXER_H

#include "actors/node_context.h"

typedef struct {
    uint32_t first_term;
    uint32_t terms_count;
    uint32_t width;      /* columns of the heads' outputs */
    const void *weights; /* of load_run */
    tr_matrix *o;        /* [terms_count] each [hidden, width / terms_count] */
    size_t page_offset;  /* bytes of its first term in a page */
    size_t state_offset; /* bytes of its first term in a state slot */
} tr_mixer_run;

typedef struct {
    const tr_layer_spec *spec;
    tr_mixer_run *runs;
    uint32_t runs_count;
    const void *weights; /* of load_layer: what every node with a term of the layer keeps */
    size_t page_offset;  /* bytes of the layer's own part in a page, likewise kept by every node */
    size_t state_offset; /* bytes of the layer's own part in a state slot */
} tr_mixer_layer;

/* Memory of a sequence, lent by the KV pool. */
typedef struct {
    uint8_t *state;
    uint8_t **pages; /* [pages_max] addresses */
    uint32_t pages_count;
    uint16_t generation;
    bool held;
} tr_sequence_lease;

/* Cosines and sines of the rows' positions, kept for the layers of a step that turn alike. */
typedef struct {
    float *cos_sin;      /* [rows_max, dims_max] */
    uint32_t *positions; /* [rows_max] */
    uint64_t step;
    double theta;
    uint32_t dims;
    const tr_rope_scaling *scaling;
} tr_mixer_rope;

/* Where weights come from and go to. */
typedef struct {
    const tr_node_context *node;
    tr_arena *arena; /* counting or taking */
    uint32_t layer;
} tr_mixer_loader;

/* The rows of a step in one layer. */
typedef struct {
    const tr_env *env; /* whose spans the kernels are */
    const tr_node_context *node;
    tr_team *team;
    const tr_step_view *view;
    uint64_t step;
    const tr_sequence_lease *leases; /* [sequences_max]; those of the view's segments are held */
    const tr_mixer_layer *layer;
    tr_mixer_rope *rope;
    void *workspace; /* [workspace_size], 64-byte aligned; keeps its bytes from prepare to run */
    float *rounded;  /* [rows_max, hidden] if the placement asks for 4-bit activations */
} tr_mixer_call;

/* Sizes may be NULL where they are 0. Bytes are multiples of 4. */
typedef struct {
    /* Columns of the heads' outputs of one term. */
    uint32_t (*term_width)(const tr_layer_spec *spec);
    /* Columns of the table of rotations; NULL: nothing turns. */
    uint32_t (*rope_dims)(const tr_layer_spec *spec);

    /* Sequence state: bytes that each term takes, and bytes that the layer takes once on every node
     * with a term of it; in a page of TR_KV_PAGE_TOKENS positions and in a state slot. */
    size_t (*term_page_size)(const tr_layer_spec *spec);
    size_t (*term_state_size)(const tr_layer_spec *spec);
    size_t (*layer_page_size)(const tr_layer_spec *spec);
    size_t (*layer_state_size)(const tr_layer_spec *spec);

    /* Load (with a counting arena: count) weights; failures are in arena->status. load_layer may be
     * NULL. */
    const void *(*load_layer)(const tr_mixer_loader *loader);
    const void *(*load_run)(const tr_mixer_loader *loader, const tr_mixer_run *run);

    /* Bytes of the workspace for rows_max rows of a run. */
    size_t (*workspace_size)(const tr_node_context *node, const tr_layer_spec *spec,
                             const tr_mixer_run *run, uint32_t threads);

    /* What the runs of a layer share, once per step and layer before the first of them. May be
     * NULL. */
    void (*prepare)(const tr_mixer_call *call, const tr_mixer_run *first);

    /* The outputs of a run's heads: out [rows, run->width]. */
    void (*run)(const tr_mixer_call *call, const tr_mixer_run *run, float *out);
} tr_mixer_ops;

extern const tr_mixer_ops tr_mixer_gqa_ops;
extern const tr_mixer_ops tr_mixer_kda_ops;
extern const tr_mixer_ops tr_mixer_gdn_ops;
extern const tr_mixer_ops tr_mixer_mla_ops;

const tr_mixer_ops *tr_mixer_of(const tr_layer_spec *spec);

/* Loads (or, with a counting arena, counts) the layers; *layers is [layers_count], NULL while
 * counting. Failures are in arena->status. */
void tr_mixer_load(tr_mixer_layer **layers, const tr_node_context *node, tr_arena *arena);

/* The most that any run of the node needs. */
typedef struct {
    size_t workspace_size;
    uint32_t width;
    uint32_t rope_dims;
} tr_mixer_extent;
tr_mixer_extent tr_mixer_extent_of(const tr_node_context *node, uint32_t threads);

/* -- what mixers share -- */

/* Rows [first, first + count) of a weight, all columns. name stands in errors. */
tr_matrix tr_mixer_rows(const tr_mixer_loader *loader, tr_weight_role role, const char *name,
                        uint32_t first, uint32_t count);

/* A rectangle of a weight as float32; NULL while counting. */
const float *tr_mixer_vector(const tr_mixer_loader *loader, tr_weight_role role, uint32_t row,
                             uint32_t rows, uint32_t col, uint32_t cols);

/* The weights of a norm over cols elements, with the model's norm_offset; NULL while counting. */
const float *tr_mixer_norm(const tr_mixer_loader *loader, tr_weight_role role, uint32_t cols);

/* out = the rows of the call times W [.., hidden], with row stride ld_out. They are rounded to
 * NVFP4 first when W asks for that. */
void tr_mixer_project(const tr_mixer_call *call, float *out, size_t ld_out, const tr_matrix *W);

/* Takes rows_max rows of f32 columns from a workspace. */
float *tr_mixer_take_rows(tr_layout *layout, const tr_node_context *node, uint32_t columns);

/* Cosines and sines for the rows of the call, [rows, dims]. */
const float *tr_mixer_rotations(const tr_mixer_call *call, double theta, uint32_t dims,
                                const tr_rope_scaling *scaling);

#endif
