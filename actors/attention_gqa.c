/* attention_gqa.c - grouped-query softmax attention: a term is a key head with the query heads that
 * share it. With an index (selection.h) late rows attend to chosen positions only. */
#include "actors/gqa_index.h"
#include "actors/stamp.h"

#include <string.h>

typedef struct {
    const float *q_norm, *k_norm; /* NULL without */
    tr_gqa_index index;           /* if there is one */
} gqa_layer;

typedef struct {
    tr_matrix q, gate; /* [width, hidden]; gate when the layer has one of its own; with gate_in_q
                          q is [2 width, hidden] */
    tr_matrix k, v;    /* [kv_width, hidden] */
} gqa_run;

typedef struct {
    tr_gqa_index_workspace index; /* if there is one; filled by prepare */
    float *q, *gate;              /* [rows, width] */
    float *q_gate; /* [rows, 2 width] with gate_in_q: head after head, query and gate */
    float *k, *v;  /* [rows, kv_width] */
    void *scratch;
} gqa_workspace;

static uint32_t gqa_group(const tr_gqa_spec *spec)
{
    return spec->heads / spec->kv_heads;
}

static uint32_t gqa_term_width(const tr_layer_spec *spec)
{
    return gqa_group(&spec->gqa) * spec->gqa.head_dim;
}

static uint32_t gqa_rope_dims(const tr_layer_spec *spec)
{
    return spec->gqa.rope == TR_ROPE_NONE ? 0 : spec->gqa.rope_dims;
}

/* Keys, then values. */
static size_t gqa_term_page_size(const tr_layer_spec *spec)
{
    return (size_t)2 * TR_KV_PAGE_TOKENS * spec->gqa.head_dim * sizeof(float);
}

static bool gqa_has_index(const tr_layer_spec *spec)
{
    return spec->gqa.index.kind != TR_INDEX_NONE;
}

static size_t gqa_layer_page_size(const tr_layer_spec *spec)
{
    return gqa_has_index(spec) ? tr_selection_keys_size(&spec->gqa.index) : 0;
}

static size_t gqa_layer_state_size(const tr_layer_spec *spec)
{
    return gqa_has_index(spec) ? tr_gqa_index_state_size(&spec->gqa.index) : 0;
}

static const void *gqa_load_layer(const tr_mixer_loader *loader)
{
    const tr_gqa_spec *spec = &loader->node->spec->layers[loader->layer].gqa;
    gqa_layer *out = tr_arena_take(loader->arena, sizeof(*out));
    gqa_layer layer = {0};

    if (spec->qk_norm) {
        layer.q_norm = tr_mixer_norm(loader, TR_W_Q_NORM, spec->head_dim);
        layer.k_norm = tr_mixer_norm(loader, TR_W_K_NORM, spec->head_dim);
    }
    if (gqa_has_index(&loader->node->spec->layers[loader->layer]))
        layer.index = tr_gqa_index_load(loader);
    if (out != NULL)
        *out = layer;
    return out;
}

static const void *gqa_load_run(const tr_mixer_loader *loader, const tr_mixer_run *run)
{
    const tr_gqa_spec *spec = &loader->node->spec->layers[loader->layer].gqa;
    uint32_t row = run->first_term * (run->width / run->terms_count);
    uint32_t kv_row = run->first_term * spec->head_dim, parts = spec->gate_in_q ? 2 : 1;
    uint32_t kv_width = run->terms_count * spec->head_dim;
    gqa_run *out = tr_arena_take(loader->arena, sizeof(*out));
    gqa_run w = {0};

    w.q = tr_mixer_rows(loader, TR_W_Q, "q_proj", parts * row, parts * run->width);
    w.k = tr_mixer_rows(loader, TR_W_K, "k_proj", kv_row, kv_width);
    w.v = tr_mixer_rows(loader, TR_W_V, "v_proj", kv_row, kv_width);
    if (spec->gate && !spec->gate_in_q)
        w.gate = tr_mixer_rows(loader, TR_W_ATTENTION_GATE, "g_proj", row, run->width);
    if (out != NULL)
        *out = w;
    return out;
}

static gqa_workspace gqa_cut(tr_layout *layout, const tr_node_context *node,
                             const tr_layer_spec *spec, const tr_mixer_run *run, uint32_t threads)
{
    const tr_gqa_spec *g = &spec->gqa;
    uint32_t kv_width = run->terms_count * g->head_dim;
    gqa_workspace w = {0};

    if (gqa_has_index(spec)) /* first: it lies where prepare put it, whatever the run */
        w.index = tr_gqa_index_cut(layout, node, g);
    w.q = tr_mixer_take_rows(layout, node, run->width);
    w.gate = tr_mixer_take_rows(layout, node, run->width);
    w.q_gate = tr_mixer_take_rows(layout, node, g->gate_in_q ? 2 * run->width : 0);
    w.k = tr_mixer_take_rows(layout, node, kv_width);
    w.v = tr_mixer_take_rows(layout, node, kv_width);
    size_t scratch =
        node->kernels->attention_scratch(g->head_dim, gqa_group(g), node->limits.rows_max, threads);
    size_t list = gqa_has_index(spec)
                      ? node->kernels->attention_list_scratch(g->head_dim, g->head_dim, threads)
                      : 0;
    w.scratch = tr_layout_take(layout, scratch > list ? scratch : list, 64);
    return w;
}

static size_t gqa_workspace_size(const tr_node_context *node, const tr_layer_spec *spec,
                                 const tr_mixer_run *run, uint32_t threads)
{
    tr_layout counting = {0};
    (void)gqa_cut(&counting, node, spec, run, threads);
    return counting.used;
}

/* q and gate of all heads from q_gate. */
static void gqa_split(const gqa_workspace *w, uint32_t rows, uint32_t heads, uint32_t head_dim)
{
    for (size_t i = 0; i < (size_t)rows * heads; i++) {
        const float *both = w->q_gate + 2 * i * head_dim;
        memcpy(w->q + i * head_dim, both, head_dim * sizeof(float));
        memcpy(w->gate + i * head_dim, both + head_dim, head_dim * sizeof(float));
    }
}

/* Attention of a segment's rows for one term; those from `dense` on have lists. */
static void gqa_attend(const tr_mixer_call *call, const tr_mixer_run *run, const gqa_workspace *w,
                       float *out, const tr_segment *seg, uint32_t row, uint32_t term,
                       const tr_kv_view *kv)
{
    const tr_kernels *k = call->node->kernels;
    const tr_gqa_spec *spec = &call->layer->spec->gqa;
    uint32_t D = spec->head_dim, group = gqa_group(spec), width = run->width;
    uint32_t rows = seg->rows_count, first = seg->first_position, dense = rows;
    size_t at = (size_t)row * width + (size_t)term * group * D;

    if (gqa_has_index(call->layer->spec))
        dense = tr_selection_dense_rows(&spec->index, first, rows);
    k->attention(call->team, out + at, width, w->q + at, width, kv, group, D, spec->scale, first,
                 dense, w->scratch);
    if (dense == rows)
        return;
    tr_kv_rows cache = {.pages = kv->pages,
                        .pages_count = kv->pages_count,
                        .k_offset = kv->k_offset,
                        .v_offset = kv->v_offset,
                        .k_dim = D,
                        .v_dim = D,
                        .k_ld = D,
                        .v_ld = D};
    const tr_selection *chosen = &w->index.selection;
    tr_position_list list = {.positions = chosen->positions + (row + dense) * chosen->ld,
                             .counts = chosen->counts + row + dense,
                             .ld = chosen->ld};
    at += (size_t)dense * width;
    k->attention_list(call->team, out + at, width, w->q + at, width, &cache, &list, group,
                      spec->scale, first + dense, rows - dense, w->scratch);
}

/* Writes and reads the cache of one segment, term after term. */
static void gqa_segment(const tr_mixer_call *call, const tr_mixer_run *run, const gqa_workspace *w,
                        float *out, const tr_segment *seg, uint32_t row)
{
    const tr_sequence_lease *lease = &call->leases[seg->sequence];
    uint32_t D = call->layer->spec->gqa.head_dim, kv_width = run->terms_count * D;

    for (uint32_t t = 0; t < run->terms_count; t++) {
        size_t offset = run->page_offset + t * gqa_term_page_size(call->layer->spec);
        tr_kv_view kv = {.pages = lease->pages,
                         .pages_count = lease->pages_count,
                         .k_offset = offset,
                         .v_offset = offset + (size_t)TR_KV_PAGE_TOKENS * D * sizeof(float)};
        size_t kv_at = (size_t)row * kv_width + t * D;
        call->node->kernels->kv_write(call->team, &kv, D, w->k + kv_at, w->v + kv_at, kv_width,
                                      seg->first_position, seg->rows_count);
        gqa_attend(call, run, w, out, seg, row, t, &kv);
    }
}

static void gqa_prepare(const tr_mixer_call *call, const tr_mixer_run *first)
{
    const gqa_layer *layer = call->layer->weights;
    tr_layout layout = {.base = call->workspace};

    if (!gqa_has_index(call->layer->spec))
        return;
    gqa_workspace w =
        gqa_cut(&layout, call->node, call->layer->spec, first, tr_team_size(call->team));
    tr_gqa_index_run(call, &layer->index, &w.index);
}

static void gqa_rows(const tr_mixer_call *call, const tr_mixer_run *run, float *out)
{
    const tr_kernels *k = call->node->kernels;
    tr_team *team = call->team;
    const tr_step_view *v = call->view;
    const tr_gqa_spec *spec = &call->layer->spec->gqa;
    const gqa_layer *layer = call->layer->weights;
    const gqa_run *weights = run->weights;
    tr_layout layout = {.base = call->workspace};
    gqa_workspace w =
        gqa_cut(&layout, call->node, call->layer->spec, run, tr_team_size(call->team));
    uint32_t T = v->head.rows_count, D = spec->head_dim;
    uint32_t heads = run->terms_count * gqa_group(spec), width = run->width;
    uint32_t kv_width = run->terms_count * D;
    uint64_t since = tr_clock_ns();

    if (spec->gate_in_q) {
        tr_mixer_project(call, w.q_gate, 2 * (size_t)width, &weights->q);
        gqa_split(&w, T, heads, D);
    } else {
        tr_mixer_project(call, w.q, width, &weights->q);
    }
    tr_mixer_project(call, w.k, kv_width, &weights->k);
    tr_mixer_project(call, w.v, kv_width, &weights->v);
    if (spec->gate && !spec->gate_in_q)
        tr_mixer_project(call, w.gate, width, &weights->gate);
    tr_stamp(TR_KERNEL_MATMUL, call->env->self, call->step, &since);
    if (spec->qk_norm) {
        float eps = call->node->spec->rms_norm_eps;
        k->head_norm(team, w.q, width, layer->q_norm, eps, NULL, 0, heads, D, T);
        k->head_norm(team, w.k, kv_width, layer->k_norm, eps, NULL, 0, run->terms_count, D, T);
    }
    if (spec->rope != TR_ROPE_NONE) {
        const float *turns =
            tr_mixer_rotations(call, spec->rope_theta, spec->rope_dims, spec->rope_scaling);
        k->rope(team, w.q, width, heads, D, turns, spec->rope_dims, spec->rope, T);
        k->rope(team, w.k, kv_width, run->terms_count, D, turns, spec->rope_dims, spec->rope, T);
        tr_stamp(TR_KERNEL_ROPE, call->env->self, call->step, &since);
    }
    uint32_t row = 0;
    for (uint32_t i = 0; i < v->head.segments_count; i++) {
        gqa_segment(call, run, &w, out, &v->segments[i], row);
        row += v->segments[i].rows_count;
    }
    if (spec->gate)
        k->sigmoid_mul(team, out, out, width, w.gate, width, T, width);
    tr_stamp(TR_KERNEL_ATTENTION, call->env->self, call->step, &since);
}

const tr_mixer_ops tr_mixer_gqa_ops = {
    .term_width = gqa_term_width,
    .rope_dims = gqa_rope_dims,
    .term_page_size = gqa_term_page_size,
    .layer_page_size = gqa_layer_page_size,
    .layer_state_size = gqa_layer_state_size,
    .load_layer = gqa_load_layer,
    .load_run = gqa_load_run,
    .workspace_size = gqa_workspace_size,
    .prepare = gqa_prepare,
    .run = gqa_rows,
};
