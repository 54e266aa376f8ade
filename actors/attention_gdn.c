/* attention_gdn.c - the gated delta rule: a term is a group of key heads with the value heads that
 * share them, and their recurrent states.
 *
 * A term's state is the matrices of its value heads, then the last taps - 1 rows of the convolution
 * over its queries, keys and values, one after the other. */
#include "actors/mixer.h"
#include "actors/stamp.h"
#include "kernels/scalar_math.h"

#include <math.h>

enum { GDN_Q, GDN_K, GDN_V, GDN_PARTS };

typedef struct {
    const float *o_norm;
} gdn_layer;

typedef struct {
    tr_matrix in[GDN_PARTS];      /* [width of the part, hidden] */
    const float *conv[GDN_PARTS]; /* [width of the part, taps] */
    tr_matrix decay, beta;        /* [heads, hidden] */
    tr_matrix gate;               /* [width, hidden] */
    const float *dt_bias, *a;     /* [heads]; a is -exp(A_log) */
} gdn_run;

typedef struct {
    float *raw[GDN_PARTS], *conv[GDN_PARTS]; /* before and after the convolution */
    float *decay, *beta;                     /* [rows, heads] */
    float *gate;                             /* [rows, width] */
    void *scratch;
} gdn_workspace;

/* What one term has. */
static tr_gdn_shape gdn_term_shape(const tr_gdn_spec *spec)
{
    return (tr_gdn_shape){.heads = spec->value_heads / spec->terms,
                          .group = spec->value_heads / spec->key_heads,
                          .key_dim = spec->key_dim,
                          .value_dim = spec->value_dim};
}

/* Columns of a part (GDN_Q, ...) in one term. */
static uint32_t gdn_part_width(const tr_gdn_spec *spec, int part)
{
    return part == GDN_V ? spec->value_heads / spec->terms * spec->value_dim
                         : spec->key_heads / spec->terms * spec->key_dim;
}

static uint32_t gdn_term_width(const tr_layer_spec *spec)
{
    return gdn_part_width(&spec->gdn, GDN_V);
}

static size_t gdn_recurrent_size(const tr_gdn_spec *spec)
{
    return (size_t)gdn_part_width(spec, GDN_V) * spec->key_dim * sizeof(float);
}

static size_t gdn_conv_size(const tr_gdn_spec *spec, int part)
{
    return (size_t)(spec->conv_taps - 1) * gdn_part_width(spec, part) * sizeof(float);
}

static size_t gdn_term_state_size(const tr_layer_spec *spec)
{
    size_t size = gdn_recurrent_size(&spec->gdn);
    for (int part = 0; part < GDN_PARTS; part++)
        size += gdn_conv_size(&spec->gdn, part);
    return size;
}

static const void *gdn_load_layer(const tr_mixer_loader *loader)
{
    const tr_gdn_spec *spec = &loader->node->spec->layers[loader->layer].gdn;
    gdn_layer *out = tr_arena_take(loader->arena, sizeof(*out));
    gdn_layer layer = {.o_norm = tr_mixer_vector(loader, TR_W_O_NORM, 0, 1, 0, spec->value_dim)};

    if (out != NULL)
        *out = layer;
    return out;
}

static const void *gdn_load_run(const tr_mixer_loader *loader, const tr_mixer_run *run)
{
    const tr_gdn_spec *spec = &loader->node->spec->layers[loader->layer].gdn;
    uint32_t term_heads = spec->value_heads / spec->terms;
    uint32_t head = run->first_term * term_heads, heads = run->terms_count * term_heads;
    uint32_t begin = 0; /* of the part in the fused matrix */
    gdn_run *out = tr_arena_take(loader->arena, sizeof(*out));
    gdn_run w = {0};

    for (int part = 0; part < GDN_PARTS; part++) {
        uint32_t width = gdn_part_width(spec, part);
        uint32_t row = begin + run->first_term * width, rows = run->terms_count * width;
        w.in[part] = tr_mixer_rows(loader, TR_W_QKV, "in_proj_qkv", row, rows);
        w.conv[part] = tr_mixer_vector(loader, TR_W_QKV_CONV, row, rows, 0, spec->conv_taps);
        begin += spec->terms * width;
    }
    w.decay = tr_mixer_rows(loader, TR_W_F, "in_proj_a", head, heads);
    w.beta = tr_mixer_rows(loader, TR_W_BETA, "in_proj_b", head, heads);
    w.gate =
        tr_mixer_rows(loader, TR_W_G, "in_proj_z", head * spec->value_dim, heads * spec->value_dim);
    w.dt_bias = tr_mixer_vector(loader, TR_W_DT_BIAS, 0, 1, head, heads);
    float *a = (float *)tr_mixer_vector(loader, TR_W_A, 0, 1, head, heads);
    for (uint32_t h = 0; a != NULL && spec->a_is_log && h < heads; h++)
        a[h] = -tr_expf(a[h]);
    w.a = a;
    if (out != NULL)
        *out = w;
    return out;
}

static gdn_workspace gdn_cut(tr_layout *layout, const tr_node_context *node,
                             const tr_layer_spec *spec, const tr_mixer_run *run, uint32_t threads)
{
    tr_gdn_shape shape = gdn_term_shape(&spec->gdn);
    gdn_workspace w;

    for (int part = 0; part < GDN_PARTS; part++) {
        uint32_t columns = run->terms_count * gdn_part_width(&spec->gdn, part);
        w.raw[part] = tr_mixer_take_rows(layout, node, columns);
        w.conv[part] = tr_mixer_take_rows(layout, node, columns);
    }
    w.decay = tr_mixer_take_rows(layout, node, run->terms_count * shape.heads);
    w.beta = tr_mixer_take_rows(layout, node, run->terms_count * shape.heads);
    w.gate = tr_mixer_take_rows(layout, node, run->width);
    w.scratch = tr_layout_take(layout, node->kernels->gdn_chunk_scratch(&shape, threads), 64);
    return w;
}

static size_t gdn_workspace_size(const tr_node_context *node, const tr_layer_spec *spec,
                                 const tr_mixer_run *run, uint32_t threads)
{
    tr_layout counting = {0};
    (void)gdn_cut(&counting, node, spec, run, threads);
    return counting.used;
}

/* Convolution and recurrence of one segment for one term, chunk by chunk where the form says so. */
static void gdn_segment(const tr_mixer_call *call, const tr_mixer_run *run, const gdn_workspace *w,
                        float *out, const tr_segment *seg, uint32_t row, uint32_t term)
{
    const tr_kernels *k = call->node->kernels;
    const tr_gdn_spec *spec = &call->layer->spec->gdn;
    const gdn_run *weights = run->weights;
    tr_gdn_shape shape = gdn_term_shape(spec);
    uint32_t key_heads = shape.heads / shape.group, taps = spec->conv_taps;
    uint32_t ld_g = run->terms_count * shape.heads, T = seg->rows_count;
    size_t ld_k = run->terms_count * (size_t)gdn_part_width(spec, GDN_K), ld_v = run->width;
    size_t at_v = row * ld_v + term * (size_t)gdn_part_width(spec, GDN_V);
    size_t at_g = (size_t)row * ld_g + term * shape.heads;
    uint8_t *state = call->leases[seg->sequence].state + run->state_offset +
                     term * gdn_term_state_size(call->layer->spec);
    float *recurrent = (float *)state, *part[GDN_PARTS];

    state += gdn_recurrent_size(spec);
    for (int i = 0; i < GDN_PARTS; i++) {
        uint32_t width = gdn_part_width(spec, i);
        size_t ld = run->terms_count * (size_t)width, at = row * ld + term * (size_t)width;
        part[i] = w->conv[i] + at;
        k->conv_silu(call->team, part[i], w->raw[i] + at, ld,
                     weights->conv[i] + (size_t)term * width * taps, (float *)state, taps, T,
                     width);
        state += gdn_conv_size(spec, i);
    }
    k->l2_norm(call->team, part[GDN_Q], ld_k, key_heads, spec->key_dim, 1e-6f,
               1.0f / sqrtf((float)spec->key_dim), T);
    k->l2_norm(call->team, part[GDN_K], ld_k, key_heads, spec->key_dim, 1e-6f, 1.0f, T);
    if (seg->form == TR_FORM_DECODE) {
        k->gdn_recurrent(call->team, out + at_v, part[GDN_Q], part[GDN_K], ld_k, part[GDN_V], ld_v,
                         w->decay + at_g, w->beta + at_g, ld_g, recurrent, &shape, T);
        return;
    }
    for (uint32_t t = 0; t < T; t += TR_CHUNK_ROWS) {
        uint32_t n = T - t < TR_CHUNK_ROWS ? T - t : TR_CHUNK_ROWS;
        size_t g = at_g + (size_t)t * ld_g;
        k->gdn_chunk(call->team, out + at_v + t * ld_v, part[GDN_Q] + t * ld_k,
                     part[GDN_K] + t * ld_k, ld_k, part[GDN_V] + t * ld_v, ld_v, w->decay + g,
                     w->beta + g, ld_g, recurrent, &shape, n, w->scratch);
    }
}

static void gdn_rows(const tr_mixer_call *call, const tr_mixer_run *run, float *out)
{
    const tr_kernels *k = call->node->kernels;
    tr_team *team = call->team;
    const tr_step_view *v = call->view;
    const tr_gdn_spec *spec = &call->layer->spec->gdn;
    const gdn_layer *layer = call->layer->weights;
    const gdn_run *weights = run->weights;
    tr_layout layout = {.base = call->workspace};
    gdn_workspace w =
        gdn_cut(&layout, call->node, call->layer->spec, run, tr_team_size(call->team));
    uint32_t heads = run->terms_count * gdn_term_shape(spec).heads, width = run->width;
    uint32_t T = v->head.rows_count, D = spec->value_dim;
    float eps = call->node->spec->rms_norm_eps;
    uint64_t since = tr_clock_ns();

    for (int i = 0; i < GDN_PARTS; i++)
        tr_mixer_project(call, w.raw[i], weights->in[i].rows, &weights->in[i]);
    tr_mixer_project(call, w.decay, heads, &weights->decay);
    tr_mixer_project(call, w.beta, heads, &weights->beta);
    tr_mixer_project(call, w.gate, width, &weights->gate);
    tr_stamp(TR_KERNEL_MATMUL, call->env->self, call->step, &since);
    k->kda_gate(team, w.decay, heads, weights->dt_bias, weights->a, heads, 1, T);
    k->sigmoid_scale(team, w.beta, heads, 1.0f, T, heads);
    uint32_t row = 0;
    for (uint32_t i = 0; i < v->head.segments_count; i++) {
        for (uint32_t t = 0; t < run->terms_count; t++)
            gdn_segment(call, run, &w, out, &v->segments[i], row, t);
        row += v->segments[i].rows_count;
    }
    const float *sigmoid_gate = spec->gate == TR_GATE_SIGMOID ? w.gate : NULL;
    k->head_norm(team, out, width, layer->o_norm, eps, sigmoid_gate, width, heads, D, T);
    if (spec->gate == TR_GATE_SILU)
        k->silu_mul(team, out, w.gate, out, width, INFINITY, T, width);
    tr_stamp(TR_KERNEL_KDA, call->env->self, call->step, &since);
}

const tr_mixer_ops tr_mixer_gdn_ops = {
    .term_width = gdn_term_width,
    .term_state_size = gdn_term_state_size,
    .load_layer = gdn_load_layer,
    .load_run = gdn_load_run,
    .workspace_size = gdn_workspace_size,
    .run = gdn_rows,
};
