/* router.c - owns the residual rows of the steps in flight for its spans of layers, and conducts
 * them.
 *
 *   slot state (one slot per step in flight, slot = step mod steps_in_flight)
 *
 *     FREE --STEP or RESIDUAL--> NGRAM(first layer)
 *     NGRAM(l)     --NGRAM_ADD-----> ATTENTION(l); at once in a layer without an n-gram table
 *     ATTENTION(l) --last PARTIAL--> CHANNEL(l)
 *     CHANNEL(l)   --last PARTIAL--> NGRAM(l+1), or FREE after the span's last layer
 *                                    (RESIDUAL to the next span, FINAL_ROWS after the last one)
 *     any --error--> FREE, STEP_FAILED to the batcher
 *     any --STEP_FAILED from the batcher--> FREE: it has ended the step
 *     any --PEER_DOWN of a node that the placement uses--> FREE, STEP_FAILED to the batcher, which
 *                                    may still see the peer
 *     any --STEP or RESIDUAL of a later step--> ATTENTION: the batcher has ended the earlier one
 *
 * Where several nodes hold the same span, their routers do the same arithmetic with the same bits.
 * Shards answer all of them, so a message can be early: a peer's router may be one sub-layer ahead,
 * or have seen a step that has not reached us yet. Early messages wait in `early`.
 *
 * owns     banks of residual rows (residual.h), fixed-point sums, embedding, norms, router matrices
 * sends    per sub-layer one rows message to each shard that it feeds; HIDDEN_ROWS to clients
 * load     early: at most one message per shard, sub-layer and slot */
#include "actors/hidden.h"
#include "actors/node_context.h"
#include "actors/partial.h"
#include "actors/replica.h"
#include "actors/residual.h"
#include "actors/stamp.h"
#include "actors/switch.h"

#include <assert.h>
#include <string.h>

#define ROUTER_EARLY_MAX 128

/* Between FREE and the end in the order in which a layer goes through them. */
typedef enum { SLOT_FREE, SLOT_NGRAM, SLOT_ATTENTION, SLOT_CHANNEL } slot_phase;

typedef struct {
    slot_phase phase;
    bool failed; /* step was given up: what still comes of it is dropped */
    uint64_t step;
    uint32_t layer;
    const tr_plan_span *span;
    uint32_t expected; /* bit per node: shards that will answer the current sub-layer */
    uint32_t received; /* subset of expected */
    uint32_t rows_count, segments_count, outputs_count;
    tr_segment *segments; /* [rows_max] */
    tr_output *outputs;   /* [outputs_max] */
    int32_t *tokens;      /* [rows_max]; for n-gram tables */
    float *bank;          /* [rows_max, streams * hidden] residual */
    float *mix;           /* [rows_max, mix_width] what the current sub-layer's read left */
    int32_t *exponent;    /* [rows_max] of the current sub-layer */
    int64_t *sums;        /* [rows_max, hidden] */
    uint8_t *flags;       /* [rows_max] bit 0: the row met NaN or infinity */
    uint64_t sent_ns;     /* when the rows of the current channel sub-layer were ready */
} router_slot;

typedef struct {
    tr_residual_weights read[2]; /* by tr_sub_layer */
    tr_matrix router;            /* [experts, hidden] */
    const float *router_bias;    /* [experts] or NULL */
    uint32_t attention_nodes;    /* bit per node with an attention term of the layer */
    uint32_t slice_nodes;        /* bit per node with an always-chosen slice */
} router_layer;

typedef struct {
    const tr_env *env;
    const tr_node_context *node;
    tr_team *team;
    tr_matrix embed;
    tr_residual residual;
    router_layer *layers; /* [layers_count] */
    router_slot *slots;   /* [steps_in_flight] */
    float *logits;        /* [rows_max, experts_max] router logits of one sub-layer */
    tr_replicas replicas;
    uint32_t final_nodes; /* bit per node whose sampler needs the final rows */
    uint32_t dead_nodes;  /* bit per node that is gone: its sums will not come */
    tr_msg early[ROUTER_EARLY_MAX];
    uint32_t early_count;
} router_state;

static uint32_t experts_max(const tr_model_spec *spec)
{
    uint32_t most = 0;
    for (uint32_t l = 0; l < spec->layers_count; l++)
        if (spec->layers[l].channel.experts > most)
            most = spec->layers[l].channel.experts;
    return most;
}

/* Counts with a counting arena, loads with a real one. */
static void router_load(router_state *s, const tr_node_context *node, tr_arena *arena)
{
    const tr_model_spec *spec = node->spec;
    size_t rows = node->limits.rows_max, hidden = spec->hidden_size;
    tr_weight w = tr_model_weight(node->model, 0, TR_W_EMBED, 0);

    if (node->plan->spans[0].nodes >> node->node_index & 1)
        s->embed = tr_arena_matrix(arena, "embedding", &w);
    s->layers = tr_arena_take(arena, spec->layers_count * sizeof(*s->layers));
    for (uint32_t l = 0; l < spec->layers_count; l++) {
        router_layer layer = {0};
        const tr_plan_span *span = tr_plan_span_of(node->plan, l);
        if (span->nodes >> node->node_index & 1) {
            for (int sub = TR_SUB_ATTENTION; sub <= TR_SUB_CHANNEL; sub++)
                layer.read[sub] = tr_residual_load_read(node, l, (tr_sub_layer)sub, arena);
            if (spec->layers[l].channel.experts > 0) {
                w = tr_model_weight(node->model, l, TR_W_ROUTER, 0);
                layer.router = tr_arena_matrix(arena, "router", &w);
                if (spec->layers[l].channel.bias) {
                    w = tr_model_weight(node->model, l, TR_W_ROUTER_BIAS, 0);
                    layer.router_bias = tr_arena_vector(arena, &w);
                }
            }
        }
        if (s->layers != NULL)
            s->layers[l] = layer;
    }
    s->slots = tr_arena_take(arena, node->steps_in_flight * sizeof(*s->slots));
    for (uint32_t i = 0; i < node->steps_in_flight; i++) {
        router_slot slot = {.phase = SLOT_FREE};
        slot.segments = tr_arena_take(arena, rows * sizeof(*slot.segments));
        slot.outputs = tr_arena_take(arena, node->limits.outputs_max * sizeof(*slot.outputs));
        slot.tokens = tr_arena_take(arena, rows * sizeof(*slot.tokens));
        slot.bank = tr_arena_take(arena, rows * tr_residual_width(spec) * sizeof(*slot.bank));
        slot.mix = tr_arena_take(arena, rows * tr_residual_mix_width(spec) * sizeof(*slot.mix));
        slot.exponent = tr_arena_take(arena, rows * sizeof(*slot.exponent));
        slot.sums = tr_arena_take(arena, rows * hidden * sizeof(*slot.sums));
        slot.flags = tr_arena_take(arena, rows);
        if (s->slots != NULL)
            s->slots[i] = slot;
    }
    tr_residual_load(&s->residual, node, arena);
    s->logits = tr_arena_take(arena, rows * experts_max(spec) * sizeof(*s->logits));
    tr_replicas_load(&s->replicas, node, arena);
}

void tr_router_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    router_state s = {0};
    uint64_t before = tr_arena_counted(counting);
    router_load(&s, node, counting);
    tr_budget_add(budget, "router (embedding, norms, residual rows)", "limits.step_rows",
                  tr_arena_counted(counting) - before);
}

/* Which nodes answer at each layer. */
static void router_learn_plan(router_state *s)
{
    const tr_plan *plan = s->node->plan;
    for (uint32_t l = 0; l < plan->shape.layers_count; l++) {
        router_layer *layer = &s->layers[l];
        for (uint32_t t = 0; t < plan->shape.attention_terms[l]; t++)
            layer->attention_nodes |= 1u << tr_plan_attention_node(plan, l, t);
        for (uint32_t t = 0; t < plan->shape.slices[l]; t++)
            layer->slice_nodes |= 1u << tr_plan_channel_node(plan, l, plan->shape.experts[l] + t);
    }
    s->final_nodes = 1u << plan->sampler_node;
    for (uint32_t i = 0; i < plan->ranges_count; i++)
        s->final_nodes |= 1u << plan->ranges[i].node;
}

static tr_status router_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    router_state *s = state;
    const tr_actor_config *c = config;

    s->env = env;
    s->node = c->node;
    s->team = c->team;
    c->arena->err = err;
    router_load(s, c->node, c->arena);
    if (c->arena->status == TR_OK)
        router_learn_plan(s);
    return c->arena->status;
}

static void router_fail_step(router_state *s, router_slot *slot, tr_status why)
{
    slot->phase = SLOT_FREE;
    slot->failed = true;
    tr_step_failed_send(s->env, slot->step, why);
}

/* A laid-out buffer for the rows of a slot's current sub-layer, head and segments filled. */
static tr_buf *router_take_rows(router_state *s, const router_slot *slot, tr_msg_kind kind,
                                tr_step_head *head)
{
    tr_buf *buf = s->env->take(s->env->ctx, tr_step_layout(head, kind));
    if (buf == NULL)
        return NULL;
    memset(buf->data, 0, head->rows_offset); /* padding leaves the process */
    memcpy(buf->data, head, sizeof(*head));
    if (head->segments_offset != 0)
        memcpy(tr_step_at(buf, head->segments_offset), slot->segments,
               slot->segments_count * sizeof(*slot->segments));
    if (head->outputs_offset != 0)
        memcpy(tr_step_at(buf, head->outputs_offset), slot->outputs,
               slot->outputs_count * sizeof(*slot->outputs));
    if (head->tokens_offset != 0)
        memcpy(tr_step_at(buf, head->tokens_offset), slot->tokens,
               slot->rows_count * sizeof(*slot->tokens));
    if (head->exponent_offset != 0)
        memcpy(tr_step_at(buf, head->exponent_offset), slot->exponent,
               slot->rows_count * sizeof(*slot->exponent));
    return buf;
}

/* Sends one buffer to the actors of a kind on the nodes of a mask that we feed. Consumes buf.
 * errors  TR_E_PEER: one of the nodes is gone, so what is awaited of all of them will not come */
static tr_status router_send_to(router_state *s, const router_slot *slot, uint32_t nodes,
                                tr_actor_kind actor, tr_msg_kind kind, tr_buf *buf)
{
    tr_status status = (nodes & s->dead_nodes) != 0 ? TR_E_PEER : TR_OK;
    for (uint32_t n = 0; status == TR_OK && nodes >> n != 0; n++)
        if ((nodes >> n & 1) && tr_span_feeds(slot->span, s->node->node_index, n)) {
            tr_status sent = s->env->send(s->env->ctx, tr_node_actor(actor, n), kind, slot->step, 0,
                                          tr_buf_ref(buf));
            if (sent != TR_OK)
                status = sent;
        }
    tr_buf_unref(buf);
    return status;
}

/* Of several routers one does what is to be done once. */
static bool router_is_first(const router_state *s, const router_slot *slot)
{
    return (uint32_t)__builtin_ctz(slot->span->nodes) == s->node->node_index;
}

/* Shows the residual to the clients that want to see it. */
static tr_status router_show(router_state *s, const router_slot *slot)
{
    if (!router_is_first(s, slot))
        return TR_OK;
    return tr_hidden_send(s->env, slot->step, slot->outputs, slot->outputs_count, slot->layer,
                          slot->bank, tr_residual_width(s->node->spec), false,
                          s->node->buffer_size_max);
}

static tr_status router_begin_attention(router_state *s, router_slot *slot)
{
    const tr_kernels *k = s->node->kernels;
    const tr_model_spec *spec = s->node->spec;
    uint32_t T = slot->rows_count, D = spec->hidden_size;
    uint64_t since = tr_clock_ns();

    slot->phase = SLOT_ATTENTION;
    slot->expected = s->layers[slot->layer].attention_nodes;
    slot->received = 0;
    memset(slot->sums, 0, (size_t)T * D * sizeof(*slot->sums));
    k->row_exponent(s->team, slot->exponent, slot->bank, T, tr_residual_width(spec));

    tr_step_head head = {
        .rows_count = T, .segments_count = slot->segments_count, .layer = slot->layer, .width = D};
    tr_buf *buf = router_take_rows(s, slot, TR_MSG_ATTENTION_ROWS, &head);
    if (buf == NULL)
        return TR_E_NOMEM;
    tr_residual_read(&s->residual, s->team, &s->layers[slot->layer].read[TR_SUB_ATTENTION],
                     tr_step_at(buf, head.rows_offset), slot->mix, slot->bank, T);
    tr_stamp(TR_KERNEL_RMS_NORM, s->env->self, slot->step, &since);
    return router_send_to(s, slot, slot->expected, TR_ACTOR_ATTENTION_SHARD, TR_MSG_ATTENTION_ROWS,
                          buf);
}

/* Sends the bank to the layer's n-gram table, if there is one; otherwise the attention begins. */
static tr_status router_begin_layer(router_state *s, router_slot *slot)
{
    const tr_model_spec *spec = s->node->spec;
    tr_status status = router_show(s, slot);

    if (status != TR_OK)
        return status;
    if (spec->layers[slot->layer].ngram.size == 0)
        return router_begin_attention(s, slot);
    slot->phase = SLOT_NGRAM;
    slot->expected = 1u << s->node->plan->ngram_node;
    slot->received = 0;
    if (!tr_span_feeds(slot->span, s->node->node_index, s->node->plan->ngram_node))
        return TR_OK;
    tr_step_head head = {.rows_count = slot->rows_count,
                         .segments_count = slot->segments_count,
                         .layer = slot->layer,
                         .width = tr_residual_width(spec)};
    tr_buf *buf = router_take_rows(s, slot, TR_MSG_NGRAM_ROWS, &head);
    if (buf == NULL)
        return TR_E_NOMEM;
    memcpy(tr_step_at(buf, head.rows_offset), slot->bank,
           (size_t)slot->rows_count * head.width * sizeof(float));
    return router_send_to(s, slot, slot->expected, TR_ACTOR_NGRAM, TR_MSG_NGRAM_ROWS, buf);
}

static tr_status router_begin_channel(router_state *s, router_slot *slot)
{
    const tr_kernels *k = s->node->kernels;
    const tr_model_spec *spec = s->node->spec;
    const tr_channel_spec *channel = &spec->layers[slot->layer].channel;
    router_layer *layer = &s->layers[slot->layer];
    uint32_t T = slot->rows_count, D = spec->hidden_size;
    uint64_t since = tr_clock_ns();

    slot->phase = SLOT_CHANNEL;
    slot->received = 0;
    memset(slot->sums, 0, (size_t)T * D * sizeof(*slot->sums));
    k->row_exponent(s->team, slot->exponent, slot->bank, T, tr_residual_width(spec));

    tr_step_head head = {.rows_count = T,
                         .layer = slot->layer,
                         .width = D,
                         .first = channel->experts > 0 ? channel->top_k : 0};
    tr_buf *buf = router_take_rows(s, slot, TR_MSG_EXPERT_ROWS, &head);
    if (buf == NULL)
        return TR_E_NOMEM;
    float *rows = tr_step_at(buf, head.rows_offset);
    uint32_t *expert = tr_step_at(buf, head.expert_offset);
    tr_residual_read(&s->residual, s->team, &layer->read[TR_SUB_CHANNEL], rows, slot->mix,
                     slot->bank, T);
    tr_stamp(TR_KERNEL_RMS_NORM, s->env->self, slot->step, &since);
    if (channel->experts > 0) {
        tr_route_params params = {.experts = channel->experts,
                                  .top_k = channel->top_k,
                                  .groups = channel->groups,
                                  .top_groups = channel->top_groups,
                                  .score = channel->score,
                                  .norm_top_k = channel->norm_top_k,
                                  .scaling = channel->scaling};
        k->matmul(s->team, s->logits, channel->experts, rows, D, NULL, &layer->router, T);
        k->route(s->team, expert, tr_step_at(buf, head.weight_offset), s->logits,
                 layer->router_bias, &params, T);
        tr_stamp(TR_KERNEL_ROUTE, s->env->self, slot->step, &since);
        if (s->node->heat != NULL && router_is_first(s, slot))
            tr_expert_heat_record(s->node->heat, slot->layer, slot->step, expert, T, head.first);
    }
    bool dealt = tr_replicas_deal(&s->replicas, s->node, slot->layer, expert, T, head.first,
                                  &slot->expected);
    assert(dealt); /* route chooses among the layer's experts */
    slot->expected |= layer->slice_nodes;
    slot->sent_ns = since;
    return router_send_to(s, slot, slot->expected, TR_ACTOR_EXPERT_SHARD, TR_MSG_EXPERT_ROWS, buf);
}

/* The span is done: the rows go to the next one, or the wanted ones to the samplers. */
static tr_status router_finish_span(router_state *s, router_slot *slot)
{
    const tr_plan *plan = s->node->plan;
    uint32_t width = tr_residual_width(s->node->spec);
    bool last = slot->span->last_layer + 1 == plan->shape.layers_count;
    tr_msg_kind kind = last ? TR_MSG_FINAL_ROWS : TR_MSG_RESIDUAL;
    tr_step_head head = {.rows_count = slot->rows_count,
                         .segments_count = slot->segments_count,
                         .outputs_count = slot->outputs_count,
                         .layer = slot->layer,
                         .width = last ? s->node->spec->hidden_size : width};

    for (uint32_t i = 0; last && i < slot->outputs_count; i++)
        if (slot->flags[slot->outputs[i].row] & 1)
            slot->outputs[i].flags |= TR_OUTPUT_FAILED;
    tr_buf *buf = router_take_rows(s, slot, kind, &head);
    if (buf == NULL)
        return TR_E_NOMEM;
    slot->phase = SLOT_FREE;
    float *rows = tr_step_at(buf, head.rows_offset);
    if (!last) {
        memcpy(tr_step_at(buf, head.flags_offset), slot->flags, slot->rows_count);
        memcpy(rows, slot->bank, (size_t)slot->rows_count * width * sizeof(*rows));
        return router_send_to(s, slot, slot->span[1].nodes, TR_ACTOR_ROUTER, kind, buf);
    }
    tr_residual_finish(&s->residual, s->team, rows, slot->bank, slot->outputs, slot->outputs_count);
    /* Without outputs the step's end still has to be told, but only once. */
    uint32_t nodes = slot->outputs_count > 0 ? s->final_nodes : 1u << plan->sampler_node;
    return router_send_to(s, slot, nodes, TR_ACTOR_SAMPLER, kind, buf);
}

/* Adds the sub-layer's sums to the residual and goes on. */
static tr_status router_end_sub_layer(router_state *s, router_slot *slot)
{
    uint64_t since = tr_clock_ns();
    if (slot->phase == SLOT_CHANNEL && s->node->heat != NULL)
        tr_expert_heat_wait(s->node->heat, slot->layer, since - slot->sent_ns);
    tr_residual_write(&s->residual, s->team, slot->bank, slot->sums, slot->exponent, slot->mix,
                      slot->rows_count);
    tr_stamp(TR_KERNEL_SUMS, s->env->self, slot->step, &since);
    if (slot->phase == SLOT_ATTENTION)
        return router_begin_channel(s, slot);
    if (slot->layer == slot->span->last_layer)
        return router_finish_span(s, slot);
    slot->layer++;
    return router_begin_layer(s, slot);
}

/* STEP or RESIDUAL into a free slot. */
static tr_status router_on_rows(router_state *s, router_slot *slot, const tr_msg *msg)
{
    const tr_node_context *node = s->node;
    tr_step_view v;
    tr_error why;

    slot->step = msg->header.step;
    slot->failed = false;
    tr_status status = tr_step_read(&v, msg, &node->limits, &why);
    if (status != TR_OK)
        return status;
    bool fresh = msg->header.kind == TR_MSG_STEP;
    uint32_t layer = fresh ? 0 : v.head.layer + 1;
    if (layer >= node->spec->layers_count)
        return TR_E_INVALID;
    slot->span = tr_plan_span_of(node->plan, layer);
    if (slot->span->first_layer != layer || !(slot->span->nodes >> node->node_index & 1))
        return TR_E_INVALID;
    slot->layer = layer;
    slot->rows_count = v.head.rows_count;
    slot->segments_count = v.head.segments_count;
    slot->outputs_count = v.head.outputs_count;
    memcpy(slot->segments, v.segments, v.head.segments_count * sizeof(*v.segments));
    memcpy(slot->outputs, v.outputs, v.head.outputs_count * sizeof(*v.outputs));
    memcpy(slot->tokens, v.tokens, v.head.rows_count * sizeof(*v.tokens));
    if (fresh) {
        uint64_t since = tr_clock_ns();
        memset(slot->flags, 0, slot->rows_count);
        tr_residual_embed(&s->residual, s->team, slot->bank, &s->embed, v.tokens, slot->rows_count);
        tr_stamp(TR_KERNEL_EMBED, s->env->self, slot->step, &since);
    } else {
        memcpy(slot->flags, v.flags, slot->rows_count);
        memcpy(slot->bank, v.rows,
               (size_t)slot->rows_count * tr_residual_width(node->spec) * sizeof(*slot->bank));
    }
    return router_begin_layer(s, slot);
}

static tr_status router_on_add(router_state *s, router_slot *slot, const tr_msg *msg)
{
    tr_step_view v;
    tr_error why;
    uint32_t bit = 1u << (tr_actor_id_number(msg->header.source) % TR_NODES_MAX);

    tr_status status = tr_step_read(&v, msg, &s->node->limits, &why);
    if (status != TR_OK)
        return status;
    if (bit != slot->expected || v.head.rows_count != slot->rows_count)
        return TR_E_INVALID;
    tr_residual_add(&s->residual, slot->bank, v.rows, slot->rows_count);
    return router_begin_attention(s, slot);
}

static tr_status router_on_partial(router_state *s, router_slot *slot, const tr_msg *msg)
{
    const tr_kernels *k = s->node->kernels;
    tr_step_view v;
    tr_error why;
    uint32_t bit = 1u << (tr_actor_id_number(msg->header.source) % TR_NODES_MAX);

    tr_status status = tr_step_read(&v, msg, &s->node->limits, &why);
    if (status != TR_OK)
        return status;
    if (!(slot->expected & bit) || (slot->received & bit) || v.head.rows_count != slot->rows_count)
        return TR_E_INVALID;
    if (!k->sums_add(s->team, slot->sums, v.sums, v.sums_size, v.flags, slot->rows_count,
                     s->node->spec->hidden_size))
        return TR_E_INVALID;
    for (uint32_t t = 0; t < slot->rows_count; t++)
        slot->flags[t] |= v.flags[t] & 1;
    slot->received |= bit;
    return slot->received == slot->expected ? router_end_sub_layer(s, slot) : TR_OK;
}

typedef enum { MSG_NOW, MSG_EARLY, MSG_STALE } msg_time;

/* Whether the slot can take the message now. */
static msg_time router_time_of(const router_slot *slot, const tr_msg *msg)
{
    bool starts = msg->header.kind == TR_MSG_STEP || msg->header.kind == TR_MSG_RESIDUAL;
    if (msg->header.step < slot->step || (msg->header.step == slot->step && slot->failed))
        return MSG_STALE;
    /* The batcher begins a step in a slot when the one before has ended: if that still waits here,
     * for sums that a failure elsewhere keeps from coming, or as a mirror that nobody needs, it
     * waits in vain. */
    if (slot->phase == SLOT_FREE || msg->header.step > slot->step)
        return starts ? MSG_NOW : MSG_EARLY;
    if (starts)
        return MSG_EARLY; /* the same step comes back for a later span */
    tr_step_head head;
    if (msg->payload == NULL || msg->header.payload_size < sizeof(head))
        return MSG_NOW; /* tr_step_read will name what is wrong */
    memcpy(&head, msg->payload->data, sizeof(head));
    uint32_t now = 3 * slot->layer + (slot->phase - SLOT_NGRAM);
    uint32_t theirs = 3 * head.layer + (msg->header.kind == TR_MSG_NGRAM_ADD       ? 0
                                        : msg->header.argument == TR_SUB_ATTENTION ? 1
                                                                                   : 2);
    return theirs == now ? MSG_NOW : theirs > now ? MSG_EARLY : MSG_STALE;
}

static void router_handle(router_state *s, router_slot *slot, const tr_msg *msg)
{
    tr_status status = msg->header.kind == TR_MSG_PARTIAL     ? router_on_partial(s, slot, msg)
                       : msg->header.kind == TR_MSG_NGRAM_ADD ? router_on_add(s, slot, msg)
                                                              : router_on_rows(s, slot, msg);
    if (status != TR_OK)
        router_fail_step(s, slot, status);
}

/* Handles early messages whose time has come, until none is left that could. */
static void router_drain_early(router_state *s)
{
    for (uint32_t i = 0; i < s->early_count;) {
        tr_msg msg = s->early[i];
        router_slot *slot = &s->slots[msg.header.step % s->node->steps_in_flight];
        msg_time time = router_time_of(slot, &msg);
        if (time == MSG_EARLY) {
            i++;
            continue;
        }
        memmove(&s->early[i], &s->early[i + 1], (--s->early_count - i) * sizeof(msg));
        if (time == MSG_NOW)
            router_handle(s, slot, &msg);
        tr_buf_unref(msg.payload);
        i = 0; /* what was handled may have made an earlier one's time come */
    }
}

/* The batcher has ended a step: what we hold of it is dropped, and what still comes. */
static void router_on_step_failed(router_state *s, uint64_t step)
{
    router_slot *slot = &s->slots[step % s->node->steps_in_flight];
    if (step < slot->step)
        return;
    slot->phase = SLOT_FREE;
    slot->step = step;
    slot->failed = true;
    router_drain_early(s);
}

static void router_on_peer_down(router_state *s, uint32_t node)
{
    s->dead_nodes |= 1u << node;
    if (!tr_plan_uses(s->node->plan, node))
        return; /* it was drained before: nobody waits for it, and nobody would end the pause */
    for (uint32_t i = 0; i < s->node->steps_in_flight; i++)
        if (s->slots[i].phase != SLOT_FREE)
            router_fail_step(s, &s->slots[i], TR_E_PEER);
    router_drain_early(s);
}

/* The numbers of the last steps live on, by which late messages are known, and who is gone;
 * messages that waited for their time belong to steps that were given up. */
static void router_adopt(void *fresh, void *state)
{
    router_state *f = fresh, *s = state;
    f->env = s->env;
    f->dead_nodes = s->dead_nodes;
    for (uint32_t i = 0; i < s->node->steps_in_flight; i++) {
        f->slots[i].step = s->slots[i].step;
        f->slots[i].failed = true; /* nothing more is wanted of it */
    }
    for (uint32_t i = 0; i < s->early_count; i++)
        tr_buf_unref(s->early[i].payload);
}

static tr_status router_receive(void *state, const tr_msg *msg)
{
    router_state *s = state;
    tr_switch_apply(msg, s, sizeof(*s), router_adopt);
    if (msg->header.kind == TR_MSG_PEER_DOWN)
        router_on_peer_down(s, msg->header.argument);
    if (msg->header.kind == TR_MSG_PEER_UP)
        s->dead_nodes &= ~(1u << msg->header.argument);
    if (msg->header.kind == TR_MSG_STEP_FAILED &&
        msg->header.source == tr_node_actor(TR_ACTOR_BATCHER, 0))
        router_on_step_failed(s, msg->header.step);
    if (msg->header.kind != TR_MSG_STEP && msg->header.kind != TR_MSG_RESIDUAL &&
        msg->header.kind != TR_MSG_PARTIAL && msg->header.kind != TR_MSG_NGRAM_ADD)
        return TR_OK;

    router_slot *slot = &s->slots[msg->header.step % s->node->steps_in_flight];
    msg_time time = router_time_of(slot, msg);
    if (time == MSG_NOW) {
        router_handle(s, slot, msg);
        router_drain_early(s);
    } else if (time == MSG_EARLY) {
        if (s->early_count == ROUTER_EARLY_MAX) {
            router_slot lost = {.step = msg->header.step};
            router_fail_step(s, &lost, TR_E_NOMEM);
            return TR_OK;
        }
        s->early[s->early_count] = *msg;
        if (msg->payload != NULL)
            tr_buf_ref(msg->payload);
        s->early_count++;
    }
    return TR_OK;
}

static void router_teardown(void *state)
{
    router_state *s = state;
    for (uint32_t i = 0; i < s->early_count; i++)
        tr_buf_unref(s->early[i].payload);
    s->early_count = 0;
}

const tr_actor_ops tr_router_ops = {
    .kind = "router",
    .state_size = sizeof(router_state),
    .mailbox_slots = 1024,
    .outbox_slots = 256,
    .init = router_init,
    .receive = router_receive,
    .teardown = router_teardown,
};
