/* attention_mla.c - latent attention in absorbed form: a term is a group of heads; the latents,
 * which are keys and values of all heads, are the layer's, and every node with a term of it keeps
 * them.
 *
 *   ql_h = UK_h^T q_h       s_j = scale * (ql_h.c_j + r_h.kr_j)       o_h = UV_h (sum_j a_j c_j)
 *
 * where r_h is the last part of the query and kr_j the key that all heads share. A position's row
 * in a page is c_j, kr_j; after the rows of a page follow its pooled keys when there is an index.
 * The layer's state is the raw keys and gates of the unfinished pool. */
#include "actors/selection.h"
#include "actors/stamp.h"

#include <math.h>
#include <string.h>

#define INDEX_NORM_EPS 1e-6f /* of the layer norm of the index's keys */

typedef struct {
    tr_matrix q_a, kv_a; /* [q_rank, hidden] when there is one, [kv_rank + rope_dim, hidden] */
    const float *q_a_norm, *kv_a_norm;
    /* with an index */
    tr_matrix index_q, index_k, index_weights, index_gate;
    const float *index_k_norm, *index_k_bias, *index_ape;
} mla_layer;

typedef struct {
    tr_matrix q;     /* [heads * (nope_dim + rope_dim), q_rank or hidden] */
    tr_matrix *k_up; /* [heads] each [kv_rank, nope_dim] */
    tr_matrix *v_up; /* [heads] each [v_dim, kv_rank] */
} mla_run;

typedef struct {
    /* what the runs of a layer share comes first: it lies where prepare put it, whatever the run */
    float *low;    /* [rows, q_rank] */
    float *latent; /* [rows, kv_rank + rope_dim] */
    tr_selection selection;
    float *index_q, *index_weights; /* [rows, heads * head_dim], [rows, heads] */
    float *index_k, *index_gate;    /* [rows, head_dim] */
    float *q;                       /* [rows, heads * (nope_dim + rope_dim)] */
    float *absorbed;                /* [rows, heads * (kv_rank + rope_dim)] */
    float *mixed;                   /* [rows, heads * kv_rank] */
    void *scratch;
} mla_workspace;

static uint32_t mla_term_heads(const tr_mla_spec *spec)
{
    return spec->heads / spec->terms;
}

static uint32_t mla_cached(const tr_mla_spec *spec)
{
    return spec->kv_rank + spec->rope_dim;
}

static bool mla_has_index(const tr_mla_spec *spec)
{
    return spec->index.kind != TR_INDEX_NONE;
}

static uint32_t mla_term_width(const tr_layer_spec *spec)
{
    return mla_term_heads(&spec->mla) * spec->mla.v_dim;
}

static uint32_t mla_rope_dims(const tr_layer_spec *spec)
{
    return spec->mla.rope == TR_ROPE_NONE ? 0 : spec->mla.rope_dim;
}

static size_t mla_latents_size(const tr_mla_spec *spec)
{
    return (size_t)TR_KV_PAGE_TOKENS * mla_cached(spec) * sizeof(float);
}

static size_t mla_layer_page_size(const tr_layer_spec *spec)
{
    size_t keys = mla_has_index(&spec->mla) ? tr_selection_keys_size(&spec->mla.index) : 0;
    return mla_latents_size(&spec->mla) + keys;
}

static size_t mla_layer_state_size(const tr_layer_spec *spec)
{
    const tr_index_spec *x = &spec->mla.index;
    return mla_has_index(&spec->mla) ? (size_t)2 * x->block * x->head_dim * sizeof(float) : 0;
}

/* -- weights -- */

static const void *mla_load_layer(const tr_mixer_loader *loader)
{
    const tr_mla_spec *spec = &loader->node->spec->layers[loader->layer].mla;
    const tr_index_spec *x = &spec->index;
    mla_layer *out = tr_arena_take(loader->arena, sizeof(*out));
    mla_layer layer = {0};

    if (spec->q_rank > 0) {
        layer.q_a = tr_mixer_rows(loader, TR_W_Q_A, "q_a_proj", 0, spec->q_rank);
        layer.q_a_norm = tr_mixer_norm(loader, TR_W_Q_A_NORM, spec->q_rank);
    }
    layer.kv_a = tr_mixer_rows(loader, TR_W_KV_A, "kv_a_proj", 0, mla_cached(spec));
    layer.kv_a_norm = tr_mixer_norm(loader, TR_W_KV_A_NORM, spec->kv_rank);
    if (mla_has_index(spec)) {
        layer.index_q =
            tr_mixer_rows(loader, TR_W_INDEX_Q, "index wq_b", 0, x->heads * x->head_dim);
        layer.index_k = tr_mixer_rows(loader, TR_W_INDEX_K, "index wk", 0, x->head_dim);
        layer.index_weights =
            tr_mixer_rows(loader, TR_W_INDEX_WEIGHTS, "index weights_proj", 0, x->heads);
        layer.index_gate = tr_mixer_rows(loader, TR_W_INDEX_GATE, "index gate", 0, x->head_dim);
        layer.index_k_norm = tr_mixer_norm(loader, TR_W_INDEX_K_NORM, x->head_dim);
        layer.index_k_bias = tr_mixer_vector(loader, TR_W_INDEX_K_BIAS, 0, 1, 0, x->head_dim);
        layer.index_ape = tr_mixer_vector(loader, TR_W_INDEX_APE, 0, x->block, 0, x->head_dim);
    }
    if (out != NULL)
        *out = layer;
    return out;
}

/* The two halves of kv_b for one head, k_up transposed: it meets the query, not the latent. */
static void mla_load_head(const tr_mixer_loader *loader, const tr_mla_spec *spec, uint32_t head,
                          tr_matrix *k_up, tr_matrix *v_up)
{
    if (spec->kv_split) {
        *k_up = tr_mixer_rows(loader, TR_W_K_B, "k_b_proj", head * spec->kv_rank, spec->kv_rank);
        *v_up = tr_mixer_rows(loader, TR_W_V_B, "v_b_proj", head * spec->v_dim, spec->v_dim);
        return;
    }
    tr_weight w = tr_model_weight(loader->node->model, loader->layer, TR_W_KV_B, 0);
    uint32_t row = head * (spec->nope_dim + spec->v_dim);
    tr_weight k = tr_weight_slice(&w, row, spec->nope_dim, 0, w.cols);
    *k_up = tr_arena_transposed(loader->arena, "kv_b_proj", &k);
    *v_up = tr_mixer_rows(loader, TR_W_KV_B, "kv_b_proj", row + spec->nope_dim, spec->v_dim);
}

static const void *mla_load_run(const tr_mixer_loader *loader, const tr_mixer_run *run)
{
    const tr_mla_spec *spec = &loader->node->spec->layers[loader->layer].mla;
    uint32_t head = run->first_term * mla_term_heads(spec);
    uint32_t heads = run->terms_count * mla_term_heads(spec);
    uint32_t q_dim = spec->nope_dim + spec->rope_dim;
    mla_run *out = tr_arena_take(loader->arena, sizeof(*out));
    mla_run w = {.k_up = tr_arena_take(loader->arena, heads * sizeof(*w.k_up)),
                 .v_up = tr_arena_take(loader->arena, heads * sizeof(*w.v_up))};

    w.q = tr_mixer_rows(loader, spec->q_rank > 0 ? TR_W_Q_B : TR_W_Q, "q_proj", head * q_dim,
                        heads * q_dim);
    for (uint32_t h = 0; h < heads; h++) {
        tr_matrix k_up, v_up;
        mla_load_head(loader, spec, head + h, &k_up, &v_up);
        if (out != NULL) {
            w.k_up[h] = k_up;
            w.v_up[h] = v_up;
        }
    }
    if (out != NULL)
        *out = w;
    return out;
}

/* -- workspace -- */

static mla_workspace mla_cut(tr_layout *layout, const tr_node_context *node,
                             const tr_layer_spec *spec, const tr_mixer_run *run, uint32_t threads)
{
    const tr_mla_spec *m = &spec->mla;
    const tr_index_spec *x = &m->index;
    uint32_t heads = run->terms_count * mla_term_heads(m);
    mla_workspace w = {0};

    w.low = tr_mixer_take_rows(layout, node, m->q_rank);
    w.latent = tr_mixer_take_rows(layout, node, mla_cached(m));
    if (mla_has_index(m)) {
        w.selection = tr_selection_cut(layout, node, x);
        w.index_q = tr_mixer_take_rows(layout, node, x->heads * x->head_dim);
        w.index_weights = tr_mixer_take_rows(layout, node, x->heads);
        w.index_k = tr_mixer_take_rows(layout, node, x->head_dim);
        w.index_gate = tr_mixer_take_rows(layout, node, x->head_dim);
    }
    w.q = tr_mixer_take_rows(layout, node, heads * (m->nope_dim + m->rope_dim));
    w.absorbed = tr_mixer_take_rows(layout, node, heads * mla_cached(m));
    w.mixed = tr_mixer_take_rows(layout, node, heads * m->kv_rank);
    w.scratch = tr_layout_take(
        layout, node->kernels->attention_list_scratch(mla_cached(m), m->kv_rank, threads), 64);
    return w;
}

static size_t mla_workspace_size(const tr_node_context *node, const tr_layer_spec *spec,
                                 const tr_mixer_run *run, uint32_t threads)
{
    tr_layout counting = {0};
    (void)mla_cut(&counting, node, spec, run, threads);
    return counting.used;
}

static mla_workspace mla_workspace_of(const tr_mixer_call *call, const tr_mixer_run *run)
{
    tr_layout layout = {.base = call->workspace};
    return mla_cut(&layout, call->node, call->layer->spec, run, tr_team_size(call->team));
}

/* -- what the layer computes once -- */

/* Pools the keys of the index, and chooses where the rows look that may not look everywhere. */
static void mla_prepare_index(const tr_mixer_call *call, const mla_workspace *w)
{
    const tr_kernels *k = call->node->kernels;
    const tr_mla_spec *spec = &call->layer->spec->mla;
    const tr_index_spec *x = &spec->index;
    const mla_layer *layer = call->layer->weights;
    const tr_step_view *v = call->view;
    uint32_t T = v->head.rows_count, width = x->heads * x->head_dim;
    /* 1/sqrt(head_dim) of the products and 1/sqrt(heads) of the weights: relu lets factors through
     */
    tr_selection_queries queries = {.q = w->index_q,
                                    .ld_q = width,
                                    .weight = w->index_weights,
                                    .scale = 1.0f / sqrtf((float)width)};
    bool sparse = false;

    tr_mixer_project(call, w->index_k, x->head_dim, &layer->index_k);
    k->layer_norm(call->team, w->index_k, x->head_dim, layer->index_k_norm, layer->index_k_bias,
                  INDEX_NORM_EPS, T, x->head_dim);
    tr_mixer_project(call, w->index_gate, x->head_dim, &layer->index_gate);
    for (uint32_t i = 0; i < v->head.segments_count; i++) {
        const tr_segment *seg = &v->segments[i];
        sparse |=
            tr_selection_dense_rows(x, seg->first_position, seg->rows_count) < seg->rows_count;
    }
    if (sparse) {
        k->matmul(call->team, w->index_q, width, w->low, spec->q_rank, NULL, &layer->index_q, T);
        tr_mixer_project(call, w->index_weights, x->heads, &layer->index_weights);
    }
    for (uint32_t i = 0, row = 0; i < v->head.segments_count; i++) {
        const tr_segment *seg = &v->segments[i];
        const tr_sequence_lease *lease = &call->leases[seg->sequence];
        size_t offset = call->layer->page_offset + mla_latents_size(spec);
        tr_paged_rows keys = tr_selection_keys(x, lease, offset);
        float *tail = (float *)(void *)(lease->state + call->layer->state_offset);
        k->pool_keys(call->team, &keys, w->index_k + (size_t)row * x->head_dim,
                     w->index_gate + (size_t)row * x->head_dim, x->head_dim, layer->index_ape, tail,
                     x->block, seg->first_position, seg->rows_count);
        tr_selection_make(call, x, &w->selection, &keys, &queries, seg, row);
        row += seg->rows_count;
    }
}

static void mla_prepare(const tr_mixer_call *call, const tr_mixer_run *first)
{
    const tr_kernels *k = call->node->kernels;
    tr_team *team = call->team;
    const tr_mla_spec *spec = &call->layer->spec->mla;
    const mla_layer *layer = call->layer->weights;
    const tr_step_view *v = call->view;
    mla_workspace w = mla_workspace_of(call, first);
    uint32_t T = v->head.rows_count, cached = mla_cached(spec);
    uint64_t since = tr_clock_ns();

    if (spec->q_rank > 0) {
        tr_mixer_project(call, w.low, spec->q_rank, &layer->q_a);
        k->head_norm(team, w.low, spec->q_rank, layer->q_a_norm, spec->norm_eps, NULL, 0, 1,
                     spec->q_rank, T);
    }
    tr_mixer_project(call, w.latent, cached, &layer->kv_a);
    k->head_norm(team, w.latent, cached, layer->kv_a_norm, spec->norm_eps, NULL, 0, 1,
                 spec->kv_rank, T);
    tr_stamp(TR_KERNEL_MATMUL, call->env->self, call->step, &since);
    if (spec->rope != TR_ROPE_NONE) {
        const float *turns = tr_mixer_rotations(call, spec->rope_theta, spec->rope_dim, NULL);
        k->rope(team, w.latent + spec->kv_rank, cached, 1, spec->rope_dim, turns, spec->rope_dim,
                spec->rope, T);
        tr_stamp(TR_KERNEL_ROPE, call->env->self, call->step, &since);
    }
    for (uint32_t i = 0, row = 0; i < v->head.segments_count; i++) {
        const tr_segment *seg = &v->segments[i];
        const tr_sequence_lease *lease = &call->leases[seg->sequence];
        tr_kv_view kv = {.pages = lease->pages,
                         .pages_count = lease->pages_count,
                         .k_offset = call->layer->page_offset};
        k->kv_write(team, &kv, cached, w.latent + (size_t)row * cached, NULL, cached,
                    seg->first_position, seg->rows_count);
        row += seg->rows_count;
    }
    if (mla_has_index(spec)) {
        mla_prepare_index(call, &w);
        tr_stamp(TR_KERNEL_SELECT, call->env->self, call->step, &since);
    }
}

/* -- what each run computes -- */

/* One product for each head: out [T, ld_out], x [T, ld_x], head after head step columns apart. */
typedef struct {
    const tr_kernels *kernels;
    float *out;
    size_t ld_out, out_step;
    const float *x;
    size_t ld_x, x_step;
    const tr_matrix *w; /* [heads] */
    uint32_t T;
} heads_product;

static void heads_part(void *ctx, uint32_t part, uint32_t thread)
{
    const heads_product *p = ctx;
    (void)thread;
    p->kernels->matmul(NULL, p->out + part * p->out_step, p->ld_out, p->x + part * p->x_step,
                       p->ld_x, NULL, &p->w[part], p->T);
}

/* Heads side by side where there are enough for all threads, else one after the other. */
static void heads_run(tr_team *team, heads_product *p, uint32_t heads)
{
    if (heads >= tr_team_size(team)) {
        tr_team_run(team, heads, heads_part, p);
        return;
    }
    for (uint32_t h = 0; h < heads; h++)
        p->kernels->matmul(team, p->out + h * p->out_step, p->ld_out, p->x + h * p->x_step, p->ld_x,
                           NULL, &p->w[h], p->T);
}

/* Queries into the space of the latents. */
static void mla_absorb(const tr_mixer_call *call, const mla_run *weights, const mla_workspace *w,
                       uint32_t heads)
{
    const tr_kernels *k = call->node->kernels;
    const tr_mla_spec *spec = &call->layer->spec->mla;
    const tr_step_view *v = call->view;
    uint32_t T = v->head.rows_count;
    uint32_t q_dim = spec->nope_dim + spec->rope_dim, cached = mla_cached(spec);
    size_t ld_q = (size_t)heads * q_dim, ld = (size_t)heads * cached;

    if (spec->q_rank > 0)
        k->matmul(call->team, w->q, ld_q, w->low, spec->q_rank, NULL, &weights->q, T);
    else
        tr_mixer_project(call, w->q, ld_q, &weights->q);
    heads_product up = {.kernels = k,
                        .out = w->absorbed,
                        .ld_out = ld,
                        .out_step = cached,
                        .x = w->q,
                        .ld_x = ld_q,
                        .x_step = q_dim,
                        .w = weights->k_up,
                        .T = T};
    heads_run(call->team, &up, heads);
    for (size_t i = 0; i < (size_t)T * heads; i++)
        memcpy(w->absorbed + i * cached + spec->kv_rank, w->q + i * q_dim + spec->nope_dim,
               spec->rope_dim * sizeof(float));
    if (spec->rope != TR_ROPE_NONE)
        k->rope(call->team, w->absorbed + spec->kv_rank, ld, heads, cached,
                tr_mixer_rotations(call, spec->rope_theta, spec->rope_dim, NULL), spec->rope_dim,
                spec->rope, T);
}

static void mla_segment(const tr_mixer_call *call, const mla_workspace *w, uint32_t heads,
                        const tr_segment *seg, uint32_t row)
{
    const tr_kernels *k = call->node->kernels;
    const tr_mla_spec *spec = &call->layer->spec->mla;
    const tr_sequence_lease *lease = &call->leases[seg->sequence];
    uint32_t cached = mla_cached(spec), rows = seg->rows_count, dense = rows;
    size_t ld_q = (size_t)heads * cached, ld_out = (size_t)heads * spec->kv_rank;
    const float *q = w->absorbed + row * ld_q;
    float *out = w->mixed + row * ld_out;
    tr_kv_rows kv = {.pages = lease->pages,
                     .pages_count = lease->pages_count,
                     .k_offset = call->layer->page_offset,
                     .v_offset = call->layer->page_offset,
                     .k_dim = cached,
                     .v_dim = spec->kv_rank,
                     .k_ld = cached,
                     .v_ld = cached};
    tr_position_list list = {0};

    if (mla_has_index(spec))
        dense = tr_selection_dense_rows(&spec->index, seg->first_position, rows);
    k->attention_list(call->team, out, ld_out, q, ld_q, &kv, &list, heads, spec->scale,
                      seg->first_position, dense, w->scratch);
    if (dense == rows)
        return;
    list.positions = w->selection.positions + (row + dense) * w->selection.ld;
    list.counts = w->selection.counts + row + dense;
    list.ld = w->selection.ld;
    k->attention_list(call->team, out + dense * ld_out, ld_out, q + dense * ld_q, ld_q, &kv, &list,
                      heads, spec->scale, seg->first_position + dense, rows - dense, w->scratch);
}

static void mla_rows(const tr_mixer_call *call, const tr_mixer_run *run, float *out)
{
    const tr_mla_spec *spec = &call->layer->spec->mla;
    const mla_run *weights = run->weights;
    const tr_step_view *v = call->view;
    mla_workspace w = mla_workspace_of(call, run);
    uint32_t heads = run->terms_count * mla_term_heads(spec);
    uint64_t since = tr_clock_ns();

    mla_absorb(call, weights, &w, heads);
    tr_stamp(TR_KERNEL_MATMUL, call->env->self, call->step, &since);
    for (uint32_t i = 0, row = 0; i < v->head.segments_count; i++) {
        mla_segment(call, &w, heads, &v->segments[i], row);
        row += v->segments[i].rows_count;
    }
    tr_stamp(TR_KERNEL_ATTENTION, call->env->self, call->step, &since);
    heads_product up = {.kernels = call->node->kernels,
                        .out = out,
                        .ld_out = run->width,
                        .out_step = spec->v_dim,
                        .x = w.mixed,
                        .ld_x = (size_t)heads * spec->kv_rank,
                        .x_step = spec->kv_rank,
                        .w = weights->v_up,
                        .T = v->head.rows_count};
    heads_run(call->team, &up, heads);
    tr_stamp(TR_KERNEL_MATMUL, call->env->self, call->step, &since);
}

const tr_mixer_ops tr_mixer_mla_ops = {
    .term_width = mla_term_width,
    .rope_dims = mla_rope_dims,
    .layer_page_size = mla_layer_page_size,
    .layer_state_size = mla_layer_state_size,
    .load_layer = mla_load_layer,
    .load_run = mla_load_run,
    .workspace_size = mla_workspace_size,
    .prepare = mla_prepare,
    .run = mla_rows,
};
