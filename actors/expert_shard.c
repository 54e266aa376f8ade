/* expert_shard.c - owns a set of (layer, expert) and of slices of shared experts and dense layers.
 *
 * Each is a term: its products are taken for the rows routed to it (all rows for a slice) and added
 * to fixed-point sums, so neither the other terms of the shard nor the other rows change a bit. Of
 * the rows of an expert that other nodes hold, too, it takes its part (replica.h).
 *
 * owns     its weights and workspaces; no state between messages
 * sends    one PARTIAL to each router of the layer for each EXPERT_ROWS; PONG for each PING
 * load     one rows message per step in flight */
#include "actors/partial.h"
#include "actors/replica.h"
#include "actors/stamp.h"
#include "actors/switch.h"

#include <math.h>
#include <string.h>

typedef struct {
    uint32_t number; /* in the layer: routed experts, then always-chosen slices */
    bool routed;
    tr_matrix gate, up; /* [inner, hidden] */
    tr_matrix down;     /* [hidden, inner] */
} expert_term;

typedef struct {
    expert_term *terms;
    uint32_t terms_count;
    tr_matrix scale; /* [1, hidden] of the shared expert, if the shard has a slice of it */
} expert_layer;

typedef struct {
    const tr_env *env;
    const tr_node_context *node;
    tr_team *team;
    expert_layer *layers;
    uint32_t *rows;   /* [rows_max] rows routed to the current expert */
    float *weight;    /* [rows_max] their routing weights */
    float *gate, *up; /* [rows_max, inner_max] */
    float *rounded;   /* [rows_max, hidden] if the placement asks for 4-bit activations */
    float *scale;     /* [rows_max] of the shared expert's slices */
    int64_t *sums;    /* [rows_max, hidden] */
    uint8_t *flags;   /* [rows_max] */
    tr_replicas replicas;
} expert_state;

static uint32_t expert_inner_size(const tr_channel_spec *channel, uint32_t term)
{
    return term < channel->experts ? channel->expert_size : channel->always_size / channel->slices;
}

static expert_term expert_load_term(const tr_node_context *node, uint32_t layer, uint32_t term,
                                    tr_arena *arena)
{
    const tr_channel_spec *channel = &node->spec->layers[layer].channel;
    bool routed = term < channel->experts;
    uint32_t inner = expert_inner_size(channel, term);
    uint32_t slice = routed ? 0 : term - channel->experts;
    uint32_t hidden = node->spec->hidden_size;
    tr_weight gate =
        tr_model_weight(node->model, layer, routed ? TR_W_EXPERT_GATE : TR_W_ALWAYS_GATE, term);
    tr_weight up =
        tr_model_weight(node->model, layer, routed ? TR_W_EXPERT_UP : TR_W_ALWAYS_UP, term);
    tr_weight down =
        tr_model_weight(node->model, layer, routed ? TR_W_EXPERT_DOWN : TR_W_ALWAYS_DOWN, term);
    expert_term t = {.number = term, .routed = routed};

    gate = tr_weight_slice(&gate, slice * inner, inner, 0, hidden);
    up = tr_weight_slice(&up, slice * inner, inner, 0, hidden);
    down = tr_weight_slice(&down, 0, hidden, slice * inner, inner);
    t.gate = tr_arena_matrix(arena, "gate_proj", &gate);
    t.up = tr_arena_matrix(arena, "up_proj", &up);
    t.down = tr_arena_matrix(arena, "down_proj", &down);
    return t;
}

/* Counts with a counting arena, loads with a real one. */
static void expert_load_weights(expert_state *s, const tr_node_context *node, tr_arena *arena)
{
    const tr_plan *plan = node->plan;

    s->layers = tr_arena_take(arena, plan->shape.layers_count * sizeof(*s->layers));
    for (uint32_t l = 0; l < plan->shape.layers_count; l++) {
        uint32_t all = (uint32_t)plan->shape.experts[l] + plan->shape.slices[l];
        expert_layer layer = {0};
        bool has_slice = false;
        for (uint32_t t = 0; t < all; t++) {
            bool ours = tr_plan_channel_nodes(plan, l, t) >> node->node_index & 1;
            layer.terms_count += ours;
            has_slice |= ours && t >= plan->shape.experts[l];
        }
        if (has_slice && node->spec->layers[l].channel.always_scale) {
            tr_weight w = tr_model_weight(node->model, l, TR_W_ALWAYS_SCALE, 0);
            layer.scale = tr_arena_matrix(arena, "shared_expert_gate", &w);
        }
        layer.terms = tr_arena_take(arena, layer.terms_count * sizeof(*layer.terms));
        for (uint32_t t = 0, i = 0; t < all; t++) {
            if (!(tr_plan_channel_nodes(plan, l, t) >> node->node_index & 1))
                continue;
            expert_term term = expert_load_term(node, l, t, arena);
            if (layer.terms != NULL)
                layer.terms[i++] = term;
        }
        if (has_slice && layer.terms != NULL) { /* slices of columns have left it in the cache */
            tr_weight w = tr_model_weight(node->model, l, TR_W_ALWAYS_DOWN, 0);
            tr_weight_release(&w);
        }
        if (s->layers != NULL)
            s->layers[l] = layer;
    }
}

static void expert_load_workspace(expert_state *s, const tr_node_context *node, tr_arena *arena)
{
    size_t rows = node->limits.rows_max;
    uint32_t inner = 0;
    for (uint32_t l = 0; l < node->spec->layers_count; l++) {
        const tr_channel_spec *channel = &node->spec->layers[l].channel;
        for (uint32_t t = 0; t < channel->experts + channel->slices; t++)
            if (expert_inner_size(channel, t) > inner)
                inner = expert_inner_size(channel, t);
    }
    s->rows = tr_arena_take(arena, rows * sizeof(*s->rows));
    s->weight = tr_arena_take(arena, rows * sizeof(*s->weight));
    s->gate = tr_arena_take(arena, rows * inner * sizeof(*s->gate));
    s->up = tr_arena_take(arena, rows * inner * sizeof(*s->up));
    if (node->placement->activations_nvfp4)
        s->rounded = tr_arena_take(arena, rows * node->spec->hidden_size * sizeof(*s->rounded));
    s->scale = tr_arena_take(arena, rows * sizeof(*s->scale));
    s->sums = tr_arena_take(arena, rows * node->spec->hidden_size * sizeof(*s->sums));
    s->flags = tr_arena_take(arena, rows);
    tr_replicas_load(&s->replicas, node, arena);
}

void tr_expert_shard_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    expert_state s = {0};
    uint64_t before = tr_arena_counted(counting);
    expert_load_weights(&s, node, counting);
    uint64_t weights = tr_arena_counted(counting);
    expert_load_workspace(&s, node, counting);
    tr_budget_add(budget, "expert weights", "", weights - before);
    tr_budget_add(budget, "expert workspaces", "limits.step_rows",
                  tr_arena_counted(counting) - weights);
}

uint64_t tr_expert_term_bytes(const tr_node_context *node, uint32_t layer, uint32_t term)
{
    tr_arena counting = {.kernels = node->kernels, .model = node->model};
    (void)expert_load_term(node, layer, term, &counting);
    return tr_arena_counted(&counting);
}

static tr_status expert_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    expert_state *s = state;
    const tr_actor_config *c = config;

    s->env = env;
    s->node = c->node;
    s->team = c->team;
    c->arena->err = err;
    expert_load_weights(s, c->node, c->arena);
    expert_load_workspace(s, c->node, c->arena);
    return c->arena->status;
}

/* Rows and weights of one expert that are ours to compute, in row order. */
static uint32_t expert_gather(expert_state *s, const tr_step_view *v, uint32_t expert)
{
    uint32_t count = 0, top_k = v->head.first;
    for (uint32_t t = 0; t < v->head.rows_count; t++)
        for (uint32_t j = 0; j < top_k; j++)
            if (v->expert[t * top_k + j] == expert) {
                if (s->replicas.node[t * top_k + j] == s->node->node_index) {
                    s->rows[count] = t;
                    s->weight[count++] = v->weight[t * top_k + j];
                }
                break; /* an expert is chosen once per row */
            }
    return count;
}

/* out = rows of the message times W, rounded first when W has a scale for that. fresh: they have
 * not just been rounded with the same scale. */
static void expert_project(expert_state *s, float *out, const tr_matrix *W, const tr_step_view *v,
                           const uint32_t *rows, uint32_t n, bool fresh)
{
    const tr_kernels *k = s->node->kernels;
    uint32_t hidden = v->head.width;

    if (W->input_scale == 0) {
        k->matmul(s->team, out, W->rows, v->rows, hidden, rows, W, n);
        return;
    }
    if (fresh)
        k->round_nvfp4(s->team, s->rounded, hidden, v->rows, hidden, rows, W->input_scale, n,
                       hidden);
    k->matmul(s->team, out, W->rows, s->rounded, hidden, NULL, W, n);
}

/* limit: of the feed-forward; always_weight: what a slice is multiplied by, row by row, or NULL.
 * Returns how many rows the term had. */
static uint32_t expert_run_term(expert_state *s, const expert_term *term, const tr_step_view *v,
                                float limit, const float *always_weight)
{
    const tr_kernels *k = s->node->kernels;
    uint32_t n = term->routed ? expert_gather(s, v, term->number) : v->head.rows_count;
    const uint32_t *rows = term->routed ? s->rows : NULL;
    uint32_t inner = term->gate.rows;
    if (n == 0)
        return 0;

    expert_project(s, s->gate, &term->gate, v, rows, n, true);
    expert_project(s, s->up, &term->up, v, rows, n, term->up.input_scale != term->gate.input_scale);
    k->silu_mul(s->team, s->gate, s->gate, s->up, inner, limit, n, inner);
    if (term->down.input_scale > 0)
        k->round_nvfp4(s->team, s->gate, inner, s->gate, inner, NULL, term->down.input_scale, n,
                       inner);
    k->matmul_term(s->team, s->sums, s->flags, v->exponent, s->gate, inner, rows,
                   term->routed ? s->weight : always_weight, &term->down, n);
    return n;
}

/* Adds up the terms of a layer, and counts what each of them took. */
static void expert_run_terms(expert_state *s, const expert_layer *layer, const tr_step_view *v,
                             float limit, const float *always_weight)
{
    uint64_t since = tr_clock_ns();
    for (uint32_t i = 0; i < layer->terms_count; i++) {
        const expert_term *term = &layer->terms[i];
        uint32_t rows = expert_run_term(s, term, v, limit, always_weight);
        if (rows == 0 || s->node->heat == NULL)
            continue;
        uint64_t now = tr_clock_ns();
        tr_expert_heat_add(s->node->heat, v->head.layer, term->number, rows, now - since);
        since = now;
    }
}

static tr_status expert_on_rows(expert_state *s, const tr_msg *msg)
{
    tr_step_view v;
    tr_error why;

    tr_status status = tr_step_read(&v, msg, &s->node->limits, &why);
    if (status != TR_OK)
        return status;
    const tr_channel_spec *channel = &s->node->spec->layers[v.head.layer].channel;
    uint32_t nodes; /* ours, and others that are not our concern */
    if (v.head.first != (channel->experts > 0 ? channel->top_k : 0) ||
        !tr_replicas_deal(&s->replicas, s->node, v.head.layer, v.expert, v.head.rows_count,
                          v.head.first, &nodes))
        return TR_E_INVALID;

    const tr_kernels *k = s->node->kernels;
    const expert_layer *layer = &s->layers[v.head.layer];
    float limit = channel->clamp > 0 ? channel->clamp : INFINITY;
    bool scaled = layer->scale.data != NULL;
    uint64_t since = tr_clock_ns();
    memset(s->sums, 0, (size_t)v.head.rows_count * v.head.width * sizeof(*s->sums));
    memset(s->flags, 0, v.head.rows_count);
    if (scaled) { /* by each shard with a slice: the same bits in all of them */
        k->matmul(s->team, s->scale, 1, v.rows, v.head.width, NULL, &layer->scale,
                  v.head.rows_count);
        k->sigmoid_scale(s->team, s->scale, 1, 1.0f, v.head.rows_count, 1);
    }
    expert_run_terms(s, layer, &v, limit, scaled ? s->scale : NULL);
    tr_stamp(TR_KERNEL_MATMUL_TERM, s->env->self, msg->header.step, &since);
    return tr_partial_send(s->env, s->node, s->team, &v, TR_SUB_CHANNEL, msg->header.step, s->sums,
                           s->flags);
}

static void expert_adopt(void *fresh, void *state)
{
    ((expert_state *)fresh)->env = ((expert_state *)state)->env;
}

static tr_status expert_receive(void *state, const tr_msg *msg)
{
    expert_state *s = state;
    tr_switch_apply(msg, s, sizeof(*s), expert_adopt);
    if (msg->header.kind == TR_MSG_PING) /* who asks waits for a while, not for ever */
        (void)s->env->send(s->env->ctx, msg->header.source, TR_MSG_PONG, msg->header.step,
                           msg->header.argument, NULL);
    if (msg->header.kind == TR_MSG_EXPERT_ROWS) {
        tr_status status = expert_on_rows(s, msg);
        if (status != TR_OK)
            tr_step_failed_send(s->env, msg->header.step, status);
    }
    return TR_OK;
}

static void expert_teardown(void *state)
{
    (void)state; /* everything lies in the arena, which the cluster owns */
}

const tr_actor_ops tr_expert_shard_ops = {
    .kind = "expert_shard",
    .state_size = sizeof(expert_state),
    .mailbox_slots = 512,
    .outbox_slots = 64,
    .init = expert_init,
    .receive = expert_receive,
    .teardown = expert_teardown,
};
