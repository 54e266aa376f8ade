/* attention_kda.c - Kimi delta attention: a term is a group of heads with their recurrent states.
 *
 * A term's state is the matrices of its heads, then the last taps - 1 rows of its three
 * convolutions. */
#include "actors/mixer.h"
#include "actors/stamp.h"
#include "kernels/scalar_math.h"

#include <math.h>

typedef struct {
    tr_matrix f_a, g_a; /* low rank [rank, hidden] */
    const float *o_norm;
} kda_layer;

typedef struct {
    tr_matrix q, k, v;    /* [width, hidden] */
    tr_matrix f, g;       /* F_B and G_B [width, rank], or the full forms [width, hidden] */
    tr_matrix beta;       /* [heads, hidden] */
    const float *conv[3]; /* q, k, v [width, taps] */
    const float *dt_bias; /* [width] */
    const float *a;       /* [heads], -exp(A_log); exp(A_log) when the decay has a bound */
} kda_run;

typedef struct {
    float *raw[3], *conv[3]; /* q, k, v before and after the convolution [rows, width] */
    float *decay, *gate;     /* [rows, width] */
    float *low;              /* [rows, rank] */
    float *beta;             /* [rows, heads] */
    void *scratch;
} kda_workspace;

static uint32_t kda_term_heads(const tr_kda_spec *spec)
{
    return spec->heads / spec->terms;
}

static uint32_t kda_term_width(const tr_layer_spec *spec)
{
    return kda_term_heads(&spec->kda) * spec->kda.head_dim;
}

static size_t kda_recurrent_size(const tr_kda_spec *spec)
{
    return (size_t)kda_term_heads(spec) * spec->head_dim * spec->head_dim * sizeof(float);
}

static size_t kda_conv_size(const tr_kda_spec *spec)
{
    return (size_t)(spec->conv_taps - 1) * kda_term_heads(spec) * spec->head_dim * sizeof(float);
}

static size_t kda_term_state_size(const tr_layer_spec *spec)
{
    return kda_recurrent_size(&spec->kda) + 3 * kda_conv_size(&spec->kda);
}

static const void *kda_load_layer(const tr_mixer_loader *loader)
{
    const tr_kda_spec *spec = &loader->node->spec->layers[loader->layer].kda;
    kda_layer *out = tr_arena_take(loader->arena, sizeof(*out));
    kda_layer layer = {0};

    layer.o_norm = tr_mixer_vector(loader, TR_W_O_NORM, 0, 1, 0, spec->head_dim);
    if (spec->rank > 0) {
        layer.f_a = tr_mixer_rows(loader, TR_W_F_A, "f_a_proj", 0, spec->rank);
        layer.g_a = tr_mixer_rows(loader, TR_W_G_A, "g_a_proj", 0, spec->rank);
    }
    if (out != NULL)
        *out = layer;
    return out;
}

static const void *kda_load_run(const tr_mixer_loader *loader, const tr_mixer_run *run)
{
    const tr_kda_spec *spec = &loader->node->spec->layers[loader->layer].kda;
    uint32_t head = run->first_term * kda_term_heads(spec), row = head * spec->head_dim;
    uint32_t heads = run->terms_count * kda_term_heads(spec), width = run->width;
    const tr_weight_role conv[3] = {TR_W_Q_CONV, TR_W_K_CONV, TR_W_V_CONV};
    bool full = spec->rank == 0;
    kda_run *out = tr_arena_take(loader->arena, sizeof(*out));
    kda_run w = {0};

    w.q = tr_mixer_rows(loader, TR_W_Q, "q_proj", row, width);
    w.k = tr_mixer_rows(loader, TR_W_K, "k_proj", row, width);
    w.v = tr_mixer_rows(loader, TR_W_V, "v_proj", row, width);
    w.f = tr_mixer_rows(loader, full ? TR_W_F : TR_W_F_B, "kda decay", row, width);
    w.g = tr_mixer_rows(loader, full ? TR_W_G : TR_W_G_B, "kda gate", row, width);
    w.beta = tr_mixer_rows(loader, TR_W_BETA, "kda beta", head, heads);
    for (int i = 0; i < 3; i++)
        w.conv[i] = tr_mixer_vector(loader, conv[i], row, width, 0, spec->conv_taps);
    w.dt_bias = tr_mixer_vector(loader, TR_W_DT_BIAS, 0, 1, row, width);
    float *a = (float *)tr_mixer_vector(loader, TR_W_A, 0, 1, head, heads);
    for (uint32_t h = 0; a != NULL && h < heads; h++) {
        a[h] = spec->a_is_log ? -tr_expf(a[h]) : a[h];
        a[h] = spec->lower_bound < 0 ? -a[h] : a[h];
    }
    w.a = a;
    if (out != NULL)
        *out = w;
    return out;
}

static kda_workspace kda_cut(tr_layout *layout, const tr_node_context *node,
                             const tr_layer_spec *spec, const tr_mixer_run *run, uint32_t threads)
{
    const tr_kda_spec *k = &spec->kda;
    kda_workspace w;

    for (int i = 0; i < 3; i++) {
        w.raw[i] = tr_mixer_take_rows(layout, node, run->width);
        w.conv[i] = tr_mixer_take_rows(layout, node, run->width);
    }
    w.decay = tr_mixer_take_rows(layout, node, run->width);
    w.gate = tr_mixer_take_rows(layout, node, run->width);
    w.low = tr_mixer_take_rows(layout, node, k->rank);
    w.beta = tr_mixer_take_rows(layout, node, run->terms_count * kda_term_heads(k));
    w.scratch = tr_layout_take(layout, node->kernels->kda_chunk_scratch(k->head_dim, threads), 64);
    return w;
}

static size_t kda_workspace_size(const tr_node_context *node, const tr_layer_spec *spec,
                                 const tr_mixer_run *run, uint32_t threads)
{
    tr_layout counting = {0};
    (void)kda_cut(&counting, node, spec, run, threads);
    return counting.used;
}

/* Convolution and recurrence of one segment for one term, chunk by chunk where the form says so. */
static void kda_segment(const tr_mixer_call *call, const tr_mixer_run *run, const kda_workspace *w,
                        float *out, const tr_segment *seg, uint32_t row, uint32_t term)
{
    const tr_kernels *k = call->node->kernels;
    const tr_kda_spec *spec = &call->layer->spec->kda;
    const kda_run *weights = run->weights;
    uint32_t heads = kda_term_heads(spec), D = spec->head_dim, C = heads * D;
    uint32_t run_heads = run->terms_count * heads;
    size_t ld = run->width, col = (size_t)term * C, at = row * ld + col;
    uint8_t *state = call->leases[seg->sequence].state + run->state_offset +
                     term * kda_term_state_size(call->layer->spec);
    float *recurrent = (float *)state;

    for (int i = 0; i < 3; i++) {
        float *rows = (float *)(state + kda_recurrent_size(spec) + i * kda_conv_size(spec));
        k->conv_silu(call->team, w->conv[i] + at, w->raw[i] + at, ld,
                     weights->conv[i] + col * spec->conv_taps, rows, spec->conv_taps,
                     seg->rows_count, C);
    }
    float *q = w->conv[0] + at, *key = w->conv[1] + at, *value = w->conv[2] + at;
    k->l2_norm(call->team, q, ld, heads, D, 1e-6f, 1.0f / sqrtf((float)D), seg->rows_count);
    k->l2_norm(call->team, key, ld, heads, D, 1e-6f, 1.0f, seg->rows_count);

    const float *beta = w->beta + (size_t)row * run_heads + term * heads;
    if (seg->form == TR_FORM_DECODE) {
        k->kda_recurrent(call->team, out + at, q, key, value, w->decay + at, ld, beta, run_heads,
                         recurrent, heads, D, seg->rows_count);
        return;
    }
    for (uint32_t t = 0; t < seg->rows_count; t += TR_CHUNK_ROWS) {
        uint32_t n = seg->rows_count - t < TR_CHUNK_ROWS ? seg->rows_count - t : TR_CHUNK_ROWS;
        size_t c = t * ld;
        k->kda_chunk(call->team, out + at + c, q + c, key + c, value + c, w->decay + at + c, ld,
                     beta + (size_t)t * run_heads, run_heads, recurrent, heads, D, n, w->scratch);
    }
}

static void kda_rows(const tr_mixer_call *call, const tr_mixer_run *run, float *out)
{
    const tr_kernels *k = call->node->kernels;
    tr_team *team = call->team;
    const tr_step_view *v = call->view;
    const tr_kda_spec *spec = &call->layer->spec->kda;
    const kda_layer *layer = call->layer->weights;
    const kda_run *weights = run->weights;
    tr_layout layout = {.base = call->workspace};
    kda_workspace w =
        kda_cut(&layout, call->node, call->layer->spec, run, tr_team_size(call->team));
    uint32_t T = v->head.rows_count, width = run->width;
    uint32_t rank = spec->rank, D = spec->head_dim;
    uint32_t heads = run->terms_count * kda_term_heads(spec);
    uint64_t since = tr_clock_ns();

    tr_mixer_project(call, w.raw[0], width, &weights->q);
    tr_mixer_project(call, w.raw[1], width, &weights->k);
    tr_mixer_project(call, w.raw[2], width, &weights->v);
    tr_mixer_project(call, w.beta, heads, &weights->beta);
    if (rank > 0) {
        tr_mixer_project(call, w.low, rank, &layer->f_a);
        k->matmul(team, w.decay, width, w.low, rank, NULL, &weights->f, T);
        tr_mixer_project(call, w.low, rank, &layer->g_a);
        k->matmul(team, w.gate, width, w.low, rank, NULL, &weights->g, T);
    } else {
        tr_mixer_project(call, w.decay, width, &weights->f);
        tr_mixer_project(call, w.gate, width, &weights->g);
    }
    tr_stamp(TR_KERNEL_MATMUL, call->env->self, call->step, &since);
    if (spec->lower_bound < 0)
        k->kda_gate_bounded(team, w.decay, width, weights->dt_bias, weights->a, spec->lower_bound,
                            heads, D, T);
    else
        k->kda_gate(team, w.decay, width, weights->dt_bias, weights->a, heads, D, T);
    k->sigmoid_scale(team, w.beta, heads, spec->beta_scale, T, heads);
    uint32_t row = 0;
    for (uint32_t i = 0; i < v->head.segments_count; i++) {
        for (uint32_t t = 0; t < run->terms_count; t++)
            kda_segment(call, run, &w, out, &v->segments[i], row, t);
        row += v->segments[i].rows_count;
    }
    k->head_norm(team, out, width, layer->o_norm, call->node->spec->rms_norm_eps, w.gate, width,
                 heads, D, T);
    tr_stamp(TR_KERNEL_KDA, call->env->self, call->step, &since);
}

const tr_mixer_ops tr_mixer_kda_ops = {
    .term_width = kda_term_width,
    .term_state_size = kda_term_state_size,
    .load_layer = kda_load_layer,
    .load_run = kda_load_run,
    .workspace_size = kda_workspace_size,
    .run = kda_rows,
};
