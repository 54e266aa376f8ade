#include "actors/mixer.h"

const tr_mixer_ops *tr_mixer_of(const tr_layer_spec *spec)
{
    switch (spec->mixer) {
    case TR_MIXER_GQA:
        return &tr_mixer_gqa_ops;
    case TR_MIXER_KDA:
        return &tr_mixer_kda_ops;
    case TR_MIXER_GDN:
        return &tr_mixer_gdn_ops;
    case TR_MIXER_MLA:
        return &tr_mixer_mla_ops;
    }
    assert(!"a mixer that has operations");
    return NULL;
}

/* The next run of the node's terms in a layer from *term on; false when there is none. */
static bool run_next(tr_mixer_run *run, const tr_node_context *node, uint32_t layer, uint32_t *term)
{
    const tr_layer_spec *spec = &node->spec->layers[layer];
    uint32_t terms = tr_layer_attention_terms(spec), t = *term;

    while (t < terms && tr_plan_attention_node(node->plan, layer, t) != node->node_index)
        t++;
    if (t == terms)
        return false;
    *run = (tr_mixer_run){.first_term = t};
    while (t < terms && tr_plan_attention_node(node->plan, layer, t) == node->node_index)
        t++;
    *term = t;
    run->terms_count = t - run->first_term;
    run->width = run->terms_count * tr_mixer_of(spec)->term_width(spec);
    return true;
}

tr_matrix tr_mixer_rows(const tr_mixer_loader *loader, tr_weight_role role, const char *name,
                        uint32_t first, uint32_t count)
{
    tr_weight w = tr_model_weight(loader->node->model, loader->layer, role, 0);
    tr_weight part = tr_weight_slice(&w, first, count, 0, w.cols);
    return tr_arena_matrix(loader->arena, name, &part);
}

const float *tr_mixer_vector(const tr_mixer_loader *loader, tr_weight_role role, uint32_t row,
                             uint32_t rows, uint32_t col, uint32_t cols)
{
    tr_weight w = tr_model_weight(loader->node->model, loader->layer, role, 0);
    tr_weight part = tr_weight_slice(&w, row, rows, col, cols);
    return tr_arena_vector(loader->arena, &part);
}

const float *tr_mixer_norm(const tr_mixer_loader *loader, tr_weight_role role, uint32_t cols)
{
    tr_weight w = tr_model_weight(loader->node->model, loader->layer, role, 0);
    assert(w.rows == 1);
    assert(w.cols == cols);
    return tr_arena_norm(loader->arena, &w, loader->node->spec->norm_offset);
}

static void load_output(tr_mixer_run *run, const tr_mixer_loader *loader)
{
    tr_weight o = tr_model_weight(loader->node->model, loader->layer, TR_W_O, 0);
    uint32_t width = run->width / run->terms_count;

    run->o = tr_arena_take(loader->arena, run->terms_count * sizeof(*run->o));
    for (uint32_t t = 0; t < run->terms_count; t++) {
        tr_weight part = tr_weight_slice(&o, 0, o.rows, (run->first_term + t) * width, width);
        tr_matrix m = tr_arena_matrix(loader->arena, "o_proj", &part);
        if (run->o != NULL)
            run->o[t] = m;
    }
    if (run->o != NULL) /* its slices of columns have left it in the system's cache */
        tr_weight_release(&o);
}

void tr_mixer_load(tr_mixer_layer **layers, const tr_node_context *node, tr_arena *arena)
{
    size_t page_offset = 0, state_offset = 0;
    uint32_t layers_count = node->spec->layers_count;

    *layers = tr_arena_take(arena, layers_count * sizeof(**layers));
    for (uint32_t l = 0; l < layers_count; l++) {
        const tr_layer_spec *spec = &node->spec->layers[l];
        const tr_mixer_ops *ops = tr_mixer_of(spec);
        tr_mixer_loader loader = {.node = node, .arena = arena, .layer = l};
        tr_mixer_layer layer = {.spec = spec};
        tr_mixer_run run;
        uint32_t term = 0;

        while (run_next(&run, node, l, &term))
            layer.runs_count++;
        layer.runs = tr_arena_take(arena, layer.runs_count * sizeof(*layer.runs));
        if (layer.runs_count > 0 && ops->load_layer != NULL)
            layer.weights = ops->load_layer(&loader);
        layer.page_offset = page_offset;
        layer.state_offset = state_offset;
        page_offset += tr_kv_layer_page_size(spec);
        state_offset += tr_kv_layer_state_size(spec);
        term = 0;
        for (uint32_t i = 0; run_next(&run, node, l, &term); i++) {
            run.weights = ops->load_run(&loader, &run);
            load_output(&run, &loader);
            run.page_offset = page_offset + run.first_term * tr_kv_term_page_size(spec);
            run.state_offset = state_offset + run.first_term * tr_kv_term_state_size(spec);
            if (layer.runs != NULL)
                layer.runs[i] = run;
        }
        page_offset += tr_layer_attention_terms(spec) * tr_kv_term_page_size(spec);
        state_offset += tr_layer_attention_terms(spec) * tr_kv_term_state_size(spec);
        if (*layers != NULL)
            (*layers)[l] = layer;
    }
    assert(page_offset == node->kv.page_size);
    assert(state_offset == node->kv.state_size);
}

tr_mixer_extent tr_mixer_extent_of(const tr_node_context *node, uint32_t threads)
{
    tr_mixer_extent e = {0};

    for (uint32_t l = 0; l < node->spec->layers_count; l++) {
        const tr_layer_spec *spec = &node->spec->layers[l];
        const tr_mixer_ops *ops = tr_mixer_of(spec);
        tr_mixer_run run;
        uint32_t term = 0;
        while (run_next(&run, node, l, &term)) {
            size_t size = ops->workspace_size(node, spec, &run, threads);
            uint32_t dims = ops->rope_dims != NULL ? ops->rope_dims(spec) : 0;
            e.workspace_size = size > e.workspace_size ? size : e.workspace_size;
            e.rope_dims = dims > e.rope_dims ? dims : e.rope_dims;
            e.width = run.width > e.width ? run.width : e.width;
        }
    }
    return e;
}

void tr_mixer_project(const tr_mixer_call *call, float *out, size_t ld_out, const tr_matrix *W)
{
    const tr_kernels *k = call->node->kernels;
    const tr_step_view *v = call->view;
    uint32_t T = v->head.rows_count, H = v->head.width;
    const float *x = v->rows;

    if (W->input_scale > 0) {
        k->round_nvfp4(call->team, call->rounded, H, v->rows, H, NULL, W->input_scale, T, H);
        x = call->rounded;
    }
    k->matmul(call->team, out, ld_out, x, H, NULL, W, T);
}

float *tr_mixer_take_rows(tr_layout *layout, const tr_node_context *node, uint32_t columns)
{
    return tr_layout_take(layout, (size_t)node->limits.rows_max * columns * sizeof(float), 64);
}

const float *tr_mixer_rotations(const tr_mixer_call *call, double theta, uint32_t dims,
                                const tr_rope_scaling *scaling)
{
    tr_mixer_rope *rope = call->rope;
    const tr_step_view *v = call->view;

    if (rope->step == call->step && rope->theta == theta && rope->dims == dims &&
        rope->scaling == scaling)
        return rope->cos_sin;
    uint32_t row = 0;
    for (uint32_t i = 0; i < v->head.segments_count; i++)
        for (uint32_t t = 0; t < v->segments[i].rows_count; t++)
            rope->positions[row++] = v->segments[i].first_position + t;
    call->node->kernels->rope_table(call->team, rope->cos_sin, rope->positions, theta, dims,
                                    scaling, v->head.rows_count);
    rope->step = call->step;
    rope->theta = theta;
    rope->dims = dims;
    rope->scaling = scaling;
    return rope->cos_sin;
}
