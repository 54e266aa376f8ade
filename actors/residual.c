#include "actors/residual.h"

#include <string.h>

uint32_t tr_residual_width(const tr_model_spec *spec)
{
    return tr_model_streams(spec) * spec->hidden_size;
}

uint32_t tr_residual_mix_width(const tr_model_spec *spec)
{
    uint32_t n = tr_model_streams(spec);

    switch (spec->residual.kind) {
    case TR_RESIDUAL_PLAIN:
        return 0;
    case TR_RESIDUAL_MHC:
        return (2 + n) * n; /* read n, write n, matrix n x n */
    case TR_RESIDUAL_GATED:
        return n; /* write n */
    }
    return 0;
}

/* The products of normed bank rows are divided by the number of streams. */
static tr_matrix residual_share(const tr_node_context *node, uint32_t layer, tr_weight_role role,
                                const char *name, tr_arena *arena)
{
    tr_weight w = tr_model_weight(node->model, layer, role, 0);
    tr_matrix m = tr_arena_matrix(arena, name, &w);

    m.scale /= (float)tr_model_streams(node->spec);
    return m;
}

static void residual_load_gate(tr_residual_weights *out, const tr_node_context *node,
                               uint32_t layer, tr_weight_role norm, tr_weight_role down,
                               tr_weight_role up, tr_arena *arena)
{
    tr_weight w = tr_model_weight(node->model, layer, norm, 0);

    out->norm = tr_arena_norm(arena, &w, node->spec->norm_offset);
    out->down = residual_share(node, layer, down, "input_mix_weight_down", arena);
    w = tr_model_weight(node->model, layer, up, 0);
    out->up = tr_arena_matrix(arena, "input_mix_weight_up", &w);
}

tr_residual_weights tr_residual_load_read(const tr_node_context *node, uint32_t layer,
                                          tr_sub_layer sub, tr_arena *arena)
{
    bool attention = sub == TR_SUB_ATTENTION;
    tr_residual_weights out = {0};
    tr_weight w;

    if (node->spec->residual.kind == TR_RESIDUAL_GATED) {
        residual_load_gate(&out, node, layer,
                           attention ? TR_W_HC_ATTENTION_NORM : TR_W_HC_CHANNEL_NORM,
                           attention ? TR_W_HC_ATTENTION_DOWN : TR_W_HC_CHANNEL_DOWN,
                           attention ? TR_W_HC_ATTENTION_UP : TR_W_HC_CHANNEL_UP, arena);
        out.inject = residual_share(node, layer,
                                    attention ? TR_W_HC_ATTENTION_INJECT : TR_W_HC_CHANNEL_INJECT,
                                    "block_inject_weight", arena);
        return out;
    }
    w = tr_model_weight(node->model, layer, attention ? TR_W_INPUT_NORM : TR_W_POST_NORM, 0);
    out.norm = tr_arena_norm(arena, &w, node->spec->norm_offset);
    if (node->spec->residual.kind == TR_RESIDUAL_PLAIN)
        return out;
    w = tr_model_weight(node->model, layer, attention ? TR_W_HC_ATTENTION_FN : TR_W_HC_CHANNEL_FN,
                        0);
    out.fn = tr_arena_matrix(arena, "hc_fn", &w);
    w = tr_model_weight(node->model, layer,
                        attention ? TR_W_HC_ATTENTION_BASE : TR_W_HC_CHANNEL_BASE, 0);
    out.base = tr_arena_vector(arena, &w);
    w = tr_model_weight(node->model, layer,
                        attention ? TR_W_HC_ATTENTION_SCALE : TR_W_HC_CHANNEL_SCALE, 0);
    out.scale = tr_arena_vector(arena, &w);
    return out;
}

void tr_residual_load(tr_residual *r, const tr_node_context *node, tr_arena *arena)
{
    const tr_model_spec *spec = node->spec;
    const tr_plan *plan = node->plan;
    size_t rows = node->limits.rows_max, width = tr_residual_width(spec);

    if (rows < node->limits.outputs_max)
        rows = node->limits.outputs_max;
    *r = (tr_residual){.node = node};
    if (spec->residual.kind == TR_RESIDUAL_PLAIN)
        return;
    r->y = tr_arena_take(arena, rows * spec->hidden_size * sizeof(*r->y));
    if (spec->residual.kind != TR_RESIDUAL_GATED)
        return;
    r->normed = tr_arena_take(arena, rows * width * sizeof(*r->normed));
    r->gate = tr_arena_take(arena, rows * width * sizeof(*r->gate));
    r->low = tr_arena_take(arena, rows * spec->residual.rank * sizeof(*r->low));
    if (plan->spans[plan->spans_count - 1].nodes >> node->node_index & 1)
        residual_load_gate(&r->final, node, 0, TR_W_HC_FINAL_NORM, TR_W_HC_FINAL_DOWN,
                           TR_W_HC_FINAL_UP, arena);
}

void tr_residual_embed(const tr_residual *r, tr_team *team, float *bank, const tr_matrix *embed,
                       const int32_t *tokens, uint32_t T)
{
    const tr_kernels *k = r->node->kernels;
    uint32_t n = tr_model_streams(r->node->spec), D = r->node->spec->hidden_size;

    if (n == 1) {
        k->embed(team, bank, embed, tokens, T);
        return;
    }
    k->embed(team, r->y, embed, tokens, T);
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t i = 0; i < n; i++, bank += D)
            memcpy(bank, r->y + (size_t)t * D, D * sizeof(*bank));
}

/* r->normed [T, width] to rows [T, hidden]: the gated mean of the streams. */
static void residual_read_gated(const tr_residual *r, tr_team *team, const tr_residual_weights *w,
                                float *rows, uint32_t T)
{
    const tr_kernels *k = r->node->kernels;
    uint32_t n = tr_model_streams(r->node->spec), D = r->node->spec->hidden_size;
    uint32_t width = n * D, rank = w->down.rows;

    k->matmul(team, r->low, rank, r->normed, width, NULL, &w->down, T);
    k->sigmoid_mul(team, r->low, r->low, rank, r->low, rank, T, rank); /* SiLU */
    k->matmul(team, r->gate, width, r->low, rank, NULL, &w->up, T);
    k->sigmoid_mul(team, r->gate, r->normed, width, r->gate, width, T, width);
    k->bank_read(team, rows, r->gate, NULL, 0, n, T, D);
}

static void residual_read_mhc(const tr_residual *r, tr_team *team, const tr_residual_weights *w,
                              float *rows, float *mix, const float *bank, uint32_t T)
{
    const tr_kernels *k = r->node->kernels;
    const tr_model_spec *spec = r->node->spec;
    uint32_t n = spec->residual.streams, D = spec->hidden_size, ld = w->fn.rows;
    tr_mhc_params params = {.streams = n,
                            .iterations = spec->residual.iterations,
                            .eps = spec->residual.eps,
                            .norm_eps = spec->rms_norm_eps};

    k->matmul(team, mix, ld, bank, (size_t)n * D, NULL, &w->fn, T);
    k->mhc_mix(team, mix, bank, w->base, w->scale, &params, T, D);
    k->bank_read(team, rows, bank, mix, ld, n, T, D);
    k->rms_norm(team, rows, rows, w->norm, spec->rms_norm_eps, T, D);
}

void tr_residual_read(const tr_residual *r, tr_team *team, const tr_residual_weights *w,
                      float *rows, float *mix, const float *bank, uint32_t T)
{
    const tr_kernels *k = r->node->kernels;
    const tr_model_spec *spec = r->node->spec;
    uint32_t n = tr_model_streams(spec), D = spec->hidden_size;

    switch (spec->residual.kind) {
    case TR_RESIDUAL_PLAIN:
        k->rms_norm(team, rows, bank, w->norm, spec->rms_norm_eps, T, D);
        return;
    case TR_RESIDUAL_MHC:
        residual_read_mhc(r, team, w, rows, mix, bank, T);
        return;
    case TR_RESIDUAL_GATED:
        k->group_norm(team, r->normed, bank, w->norm, spec->rms_norm_eps, n, T, D);
        k->matmul(team, mix, n, r->normed, (size_t)n * D, NULL, &w->inject, T);
        k->sigmoid_scale(team, mix, n, 2.0f, T, n);
        residual_read_gated(r, team, w, rows, T);
        return;
    }
}

void tr_residual_write(const tr_residual *r, tr_team *team, float *bank, const int64_t *sums,
                       const int32_t *exponent, const float *mix, uint32_t T)
{
    const tr_kernels *k = r->node->kernels;
    const tr_model_spec *spec = r->node->spec;
    uint32_t n = tr_model_streams(spec), D = spec->hidden_size, ld = tr_residual_mix_width(spec);

    if (spec->residual.kind == TR_RESIDUAL_PLAIN) {
        k->residual_add(team, bank, sums, exponent, T, D);
        return;
    }
    memset(r->y, 0, (size_t)T * D * sizeof(*r->y));
    k->residual_add(team, r->y, sums, exponent, T, D);
    if (spec->residual.kind == TR_RESIDUAL_MHC)
        k->bank_write(team, bank, r->y, mix + n, mix + 2 * (size_t)n, ld, n, T, D);
    else
        k->bank_write(team, bank, r->y, mix, NULL, ld, n, T, D);
}

void tr_residual_add(const tr_residual *r, float *bank, const float *add, uint32_t T)
{
    size_t count = (size_t)T * tr_residual_width(r->node->spec);

    for (size_t i = 0; i < count; i++)
        bank[i] += add[i];
}

void tr_residual_finish(const tr_residual *r, tr_team *team, float *rows, const float *bank,
                        const tr_output *outputs, uint32_t count)
{
    const tr_kernels *k = r->node->kernels;
    const tr_model_spec *spec = r->node->spec;
    uint32_t n = tr_model_streams(spec), D = spec->hidden_size;
    size_t width = (size_t)n * D;

    for (uint32_t i = 0; i < count; i++) {
        const float *from = bank + outputs[i].row * width;
        switch (spec->residual.kind) {
        case TR_RESIDUAL_PLAIN:
            memcpy(rows + (size_t)i * D, from, D * sizeof(*rows));
            break;
        case TR_RESIDUAL_MHC:
            k->bank_read(team, rows + (size_t)i * D, from, NULL, 0, n, 1, D);
            break;
        case TR_RESIDUAL_GATED:
            k->group_norm(team, r->normed + i * width, from, r->final.norm, spec->rms_norm_eps, n,
                          1, D);
            break;
        }
    }
    if (spec->residual.kind == TR_RESIDUAL_GATED)
        residual_read_gated(r, team, &r->final, rows, count);
}
