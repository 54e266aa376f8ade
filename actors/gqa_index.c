#include "actors/gqa_index.h"

#include "actors/stamp.h"

#include <math.h>

size_t tr_gqa_index_state_size(const tr_index_spec *spec)
{
    return (size_t)spec->block * spec->head_dim * sizeof(float);
}

tr_gqa_index tr_gqa_index_load(const tr_mixer_loader *loader)
{
    const tr_index_spec *spec = &loader->node->spec->layers[loader->layer].gqa.index;

    return (tr_gqa_index){
        .qk = tr_mixer_rows(loader, TR_W_INDEX_QK, "index_qk_proj", 0,
                            (spec->heads + 1) * spec->head_dim),
        .q_norm = tr_mixer_norm(loader, TR_W_INDEX_Q_NORM, spec->head_dim),
        .k_norm = tr_mixer_norm(loader, TR_W_INDEX_K_NORM, spec->head_dim),
    };
}

tr_gqa_index_workspace tr_gqa_index_cut(tr_layout *layout, const tr_node_context *node,
                                        const tr_gqa_spec *spec)
{
    const tr_index_spec *x = &spec->index;
    tr_gqa_index_workspace w = {.selection = tr_selection_cut(layout, node, x)};

    w.qk = tr_mixer_take_rows(layout, node, (x->heads + 1) * x->head_dim);
    w.turns = tr_mixer_take_rows(layout, node, spec->rope_dims);
    w.firsts = tr_layout_take(layout, node->limits.rows_max * sizeof(*w.firsts), 64);
    return w;
}

static tr_paged_rows index_keys(const tr_mixer_call *call, const tr_segment *seg)
{
    return tr_selection_keys(&call->layer->spec->gqa.index, &call->leases[seg->sequence],
                             call->layer->page_offset);
}

/* Norms and turns the keys of blocks that the segment completed, where they lie. */
static void index_finish_keys(const tr_mixer_call *call, const tr_gqa_index *index,
                              const tr_gqa_index_workspace *w, const tr_segment *seg)
{
    const tr_kernels *k = call->node->kernels;
    const tr_gqa_spec *spec = &call->layer->spec->gqa;
    tr_paged_rows keys = index_keys(call, seg);
    uint32_t block = spec->index.block, dims = spec->rope_dims;
    uint32_t begin = seg->first_position / block;
    uint32_t end = (seg->first_position + seg->rows_count) / block;

    for (uint32_t j = begin; j < end; j++)
        w->firsts[j - begin] = j * block;
    if (spec->rope != TR_ROPE_NONE)
        k->rope_table(call->team, w->turns, w->firsts, spec->rope_theta, dims, spec->rope_scaling,
                      end - begin);
    for (uint32_t j = begin, n; j < end; j += n) { /* those of one page lie together */
        uint32_t left = keys.per_page - j % keys.per_page;
        uint8_t *page = keys.pages[j / keys.per_page] + keys.offset;
        float *key = (float *)(void *)page + (size_t)(j % keys.per_page) * keys.dim;
        n = left < end - j ? left : end - j;
        k->head_norm(call->team, key, keys.dim, index->k_norm, call->node->spec->rms_norm_eps, NULL,
                     0, 1, keys.dim, n);
        k->rope(call->team, key, keys.dim, 1, keys.dim, w->turns + (size_t)(j - begin) * dims, dims,
                spec->rope, n);
    }
}

static void index_segment(const tr_mixer_call *call, const tr_gqa_index *index,
                          const tr_gqa_index_workspace *w, const tr_segment *seg, uint32_t row)
{
    const tr_index_spec *spec = &call->layer->spec->gqa.index;
    tr_paged_rows keys = index_keys(call, seg);
    size_t ld = (size_t)(spec->heads + 1) * spec->head_dim;
    const float *raw = w->qk + row * ld + (size_t)spec->heads * spec->head_dim;
    float *tail = (float *)(void *)(call->leases[seg->sequence].state + call->layer->state_offset);
    tr_selection_queries queries = {
        .q = w->qk, .ld_q = ld, .scale = 1.0f / sqrtf((float)spec->head_dim)};

    call->node->kernels->pool_keys(call->team, &keys, raw, NULL, ld, NULL, tail, spec->block,
                                   seg->first_position, seg->rows_count);
    index_finish_keys(call, index, w, seg);
    tr_selection_make(call, spec, &w->selection, &keys, &queries, seg, row);
}

void tr_gqa_index_run(const tr_mixer_call *call, const tr_gqa_index *index,
                      const tr_gqa_index_workspace *w)
{
    const tr_kernels *k = call->node->kernels;
    const tr_gqa_spec *spec = &call->layer->spec->gqa;
    const tr_step_view *v = call->view;
    uint32_t T = v->head.rows_count, H = v->head.width, D = spec->index.head_dim;
    uint32_t heads = spec->index.heads;
    size_t ld = (size_t)(heads + 1) * D;
    uint64_t since = tr_clock_ns();

    k->matmul(call->team, w->qk, ld, v->rows, H, NULL, &index->qk, T);
    tr_stamp(TR_KERNEL_MATMUL, call->env->self, call->step, &since);
    k->head_norm(call->team, w->qk, ld, index->q_norm, call->node->spec->rms_norm_eps, NULL, 0,
                 heads, D, T);
    if (spec->rope != TR_ROPE_NONE)
        k->rope(call->team, w->qk, ld, heads, D,
                tr_mixer_rotations(call, spec->rope_theta, spec->rope_dims, spec->rope_scaling),
                spec->rope_dims, spec->rope, T);
    uint32_t row = 0;
    for (uint32_t i = 0; i < v->head.segments_count; i++) {
        index_segment(call, index, w, &v->segments[i], row);
        row += v->segments[i].rows_count;
    }
    tr_stamp(TR_KERNEL_SELECT, call->env->self, call->step, &since);
}
