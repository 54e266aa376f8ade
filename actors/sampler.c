/* sampler.c - the final norm, a range of rows of the output matrix, and (one of them, the lead) the
 * drawing of tokens.
 *
 * Every sampler that holds rows of the vocabulary turns the final rows of a step into logits of its
 * range and sends them to the lead. The lead draws when the rows are complete. A sampler keeps no
 * state of a request: all that it must know comes with each output.
 *
 *   lead, slot of a step (slot = step mod steps_in_flight)
 *     FREE --FINAL_ROWS or LOGITS of a newer step--> FILLING
 *     FILLING --all logits of all outputs--> EXPORTING (rows that a client wants)
 *     EXPORTING --TIMER while no buffer is free--> EXPORTING
 *     EXPORTING --last row sent--> FREE (TOKENS to the batcher)
 *     FILLING --PEER_DOWN--> FREE (STEP_FAILED to the batcher, which may still see the peer)
 *
 * owns     weights, a [outputs_max, vocab] table of logits per slot (lead)
 * sends    LOGITS to the lead, LOGITS_ROW and HIDDEN_ROWS to clients, TOKENS to the batcher */
#include "actors/hidden.h"
#include "actors/partial.h"
#include "actors/sampling.h"
#include "actors/stamp.h"
#include "actors/switch.h"

#include <string.h>

#define EXPORT_RETRY_NS 200000 /* a client drains a row in about this time */

typedef struct {
    uint32_t first; /* vocabulary row */
    tr_matrix head; /* [rows, hidden] */
} vocabulary_range;

typedef enum { SLOT_FREE, SLOT_FILLING, SLOT_EXPORTING } slot_phase;

typedef struct {
    slot_phase phase;
    uint64_t step;
    bool has_outputs; /* FINAL_ROWS of the step has come */
    uint32_t outputs_count;
    uint32_t next_export;
    uint64_t filled;    /* logits stored; complete at outputs_count * vocab_size */
    tr_output *outputs; /* [outputs_max] */
    float *logits;      /* [outputs_max, vocab_size] */
} sampler_slot;

typedef struct {
    const tr_env *env;
    const tr_node_context *node;
    tr_team *team;
    const float *norm; /* [hidden]; NULL: final rows are read as they come */
    vocabulary_range *ranges;
    uint32_t ranges_count;
    float *rows; /* [outputs_max, hidden] normalised */
    bool lead;
    sampler_slot *slots; /* [steps_in_flight], lead only */
    uint32_t dead_nodes; /* bit per node that is gone: its logits will not come */
    tr_sampling_scratch scratch;
} sampler_state;

static void sampler_load_weights(sampler_state *s, const tr_node_context *node, tr_arena *arena)
{
    const tr_plan *plan = node->plan;
    tr_weight head = tr_model_weight(node->model, 0, TR_W_HEAD, 0);

    if (node->spec->residual.kind != TR_RESIDUAL_GATED) {
        tr_weight w = tr_model_weight(node->model, 0, TR_W_FINAL_NORM, 0);
        s->norm = tr_arena_norm(arena, &w, node->spec->norm_offset);
    }
    for (uint32_t i = 0; i < plan->ranges_count; i++)
        s->ranges_count += plan->ranges[i].node == node->node_index;
    s->ranges = tr_arena_take(arena, s->ranges_count * sizeof(*s->ranges));
    for (uint32_t i = 0, j = 0; i < plan->ranges_count; i++) {
        const tr_plan_range *r = &plan->ranges[i];
        if (r->node != node->node_index)
            continue;
        tr_weight part = tr_weight_slice(&head, r->first, r->last - r->first + 1, 0, head.cols);
        vocabulary_range range = {.first = r->first,
                                  .head = tr_arena_matrix(arena, "lm_head", &part)};
        if (s->ranges != NULL)
            s->ranges[j++] = range;
    }
}

static void sampler_load_workspace(sampler_state *s, const tr_node_context *node, tr_arena *arena)
{
    size_t outputs = node->limits.outputs_max, vocab = node->spec->vocab_size;

    s->lead = node->plan->sampler_node == node->node_index;
    s->rows = tr_arena_take(arena, outputs * node->spec->hidden_size * sizeof(*s->rows));
    if (!s->lead)
        return;
    s->scratch.index = tr_arena_take(arena, vocab * sizeof(*s->scratch.index));
    s->scratch.weight = tr_arena_take(arena, vocab * sizeof(*s->scratch.weight));
    s->slots = tr_arena_take(arena, node->steps_in_flight * sizeof(*s->slots));
    for (uint32_t i = 0; i < node->steps_in_flight; i++) {
        sampler_slot slot = {.phase = SLOT_FREE};
        slot.outputs = tr_arena_take(arena, outputs * sizeof(*slot.outputs));
        slot.logits = tr_arena_take(arena, outputs * vocab * sizeof(*slot.logits));
        if (s->slots != NULL)
            s->slots[i] = slot;
    }
}

void tr_sampler_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    sampler_state s = {0};
    uint64_t before = tr_arena_counted(counting);
    sampler_load_weights(&s, node, counting);
    uint64_t weights = tr_arena_counted(counting);
    sampler_load_workspace(&s, node, counting);
    tr_budget_add(budget, "output matrix", "", weights - before);
    tr_budget_add(budget, "sampler workspaces", "limits.sequences",
                  tr_arena_counted(counting) - weights);
}

static tr_status sampler_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    sampler_state *s = state;
    const tr_actor_config *c = config;

    s->env = env;
    s->node = c->node;
    s->team = c->team;
    c->arena->err = err;
    sampler_load_weights(s, c->node, c->arena);
    sampler_load_workspace(s, c->node, c->arena);
    return c->arena->status;
}

/* One row of logits to the client that asked for it. False when no buffer is free. */
static bool sampler_export(sampler_state *s, const sampler_slot *slot, uint32_t i)
{
    const tr_output *o = &slot->outputs[i];
    uint32_t vocab = s->node->spec->vocab_size;
    tr_buf *buf = s->env->take_fitting(s->env->ctx, (uint32_t)(sizeof(tr_logits_row) + vocab * 4));
    if (buf == NULL)
        return false;
    tr_logits_row *row = (void *)buf->data;
    *row = (tr_logits_row){.request = o->request, .position = o->position, .width = vocab};
    memcpy(row + 1, slot->logits + (size_t)i * vocab, vocab * sizeof(float));
    /* A client that is gone does not miss the row. */
    (void)s->env->send(s->env->ctx, o->client, TR_MSG_LOGITS_ROW, slot->step, 0, buf);
    return true;
}

static void sampler_draw(sampler_state *s, const sampler_slot *slot, uint32_t i, tr_token *out)
{
    const tr_output *o = &slot->outputs[i];
    uint32_t vocab = s->node->spec->vocab_size;
    const float *logits = slot->logits + (size_t)i * vocab;

    memset(out, 0, sizeof(*out));
    out->request = o->request;
    out->sequence = o->sequence;
    out->token = -1;
    out->failed = (o->flags & TR_OUTPUT_FAILED) != 0;
    if (out->failed || !(o->flags & TR_OUTPUT_SAMPLE))
        return;
    out->token = tr_sample(logits, vocab, &o->sampling, o->position + 1, &s->scratch);
    out->failed = out->token < 0;
    if (!out->failed && (o->flags & TR_OUTPUT_LOGPROBS)) {
        out->top_count = o->top_logprobs < vocab ? o->top_logprobs : vocab;
        out->logprob = tr_sample_logprobs(logits, vocab, out->token, out->top, out->top_count);
    }
}

/* Exports what is left, draws, and tells the batcher. */
static void sampler_finish(sampler_state *s, sampler_slot *slot)
{
    uint64_t since = tr_clock_ns();
    slot->phase = SLOT_EXPORTING;
    for (; slot->next_export < slot->outputs_count; slot->next_export++) {
        const tr_output *o = &slot->outputs[slot->next_export];
        bool wanted = (o->flags & TR_OUTPUT_EXPORT) && !(o->flags & TR_OUTPUT_FAILED);
        if (wanted && !sampler_export(s, slot, slot->next_export)) {
            (void)s->env->timer(s->env->ctx, s->env->now_ns(s->env->ctx) + EXPORT_RETRY_NS,
                                (uint32_t)(slot - s->slots));
            return;
        }
    }
    size_t size = sizeof(tr_token_head) + slot->outputs_count * sizeof(tr_token);
    tr_buf *buf = s->env->take(s->env->ctx, (uint32_t)size);
    slot->phase = SLOT_FREE;
    if (buf == NULL) {
        tr_step_failed_send(s->env, slot->step, TR_E_NOMEM);
        return;
    }
    *(tr_token_head *)(void *)buf->data = (tr_token_head){.count = slot->outputs_count};
    tr_token *tokens = (void *)(buf->data + sizeof(tr_token_head));
    for (uint32_t i = 0; i < slot->outputs_count; i++)
        sampler_draw(s, slot, i, &tokens[i]);
    tr_stamp(TR_KERNEL_SAMPLE, s->env->self, slot->step, &since);
    (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_BATCHER, 0), TR_MSG_TOKENS, slot->step,
                       0, buf); /* a dead batcher needs no tokens */
}

/* The slot of a step, restarted when the step is newer than what it held; NULL for a stale step. */
static sampler_slot *sampler_slot_of(sampler_state *s, uint64_t step)
{
    sampler_slot *slot = &s->slots[step % s->node->steps_in_flight];
    if (step < slot->step || (step == slot->step && slot->phase != SLOT_FILLING))
        return NULL;
    if (step > slot->step) {
        slot->step = step;
        slot->phase = SLOT_FILLING;
        slot->has_outputs = false;
        slot->outputs_count = 0;
        slot->next_export = 0;
        slot->filled = 0;
    }
    return slot;
}

static void sampler_check_complete(sampler_state *s, sampler_slot *slot)
{
    uint64_t all = (uint64_t)slot->outputs_count * s->node->spec->vocab_size;
    if (slot->has_outputs && slot->filled == all)
        sampler_finish(s, slot);
}

/* Lead: logits of outputs [first_output, + count) for vocabulary rows [first, + width). */
static void sampler_store(sampler_state *s, sampler_slot *slot, const float *logits, size_t ld,
                          uint32_t first_output, uint32_t count, uint32_t first, uint32_t width)
{
    uint32_t vocab = s->node->spec->vocab_size;
    for (uint32_t i = 0; i < count; i++)
        memcpy(slot->logits + (size_t)(first_output + i) * vocab + first, logits + i * ld,
               width * sizeof(float));
    slot->filled += (uint64_t)count * width;
}

/* Logits of one range, sent to a lead on another node in messages that fit a buffer. */
static tr_status sampler_send_range(sampler_state *s, const vocabulary_range *range,
                                    uint32_t outputs_count, uint64_t step)
{
    uint32_t width = range->head.rows, hidden = s->node->spec->hidden_size;
    uint32_t rows_max = (s->node->buffer_size_max - 2 * (uint32_t)sizeof(tr_step_head)) /
                        (width * (uint32_t)sizeof(float));
    assert(rows_max > 0);

    for (uint32_t i = 0; i < outputs_count; i += rows_max) {
        uint32_t n = outputs_count - i < rows_max ? outputs_count - i : rows_max;
        tr_step_head head = {
            .rows_count = n, .width = width, .first = range->first, .output_first = i};
        tr_buf *buf = s->env->take(s->env->ctx, tr_step_layout(&head, TR_MSG_LOGITS));
        if (buf == NULL)
            return TR_E_NOMEM;
        memset(buf->data, 0, head.rows_offset); /* padding leaves the process */
        memcpy(buf->data, &head, sizeof(head));
        s->node->kernels->matmul(s->team, tr_step_at(buf, head.rows_offset), width,
                                 s->rows + (size_t)i * hidden, hidden, NULL, &range->head, n);
        tr_status status =
            s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_SAMPLER, s->node->plan->sampler_node),
                         TR_MSG_LOGITS, step, 0, buf);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

/* Whether some rows of the vocabulary stand on a node that is gone. */
static bool sampler_misses_range(const sampler_state *s)
{
    const tr_plan *plan = s->node->plan;
    for (uint32_t i = 0; i < plan->ranges_count; i++)
        if (s->dead_nodes >> plan->ranges[i].node & 1)
            return true;
    return false;
}

static tr_status sampler_on_final_rows(sampler_state *s, const tr_msg *msg)
{
    const tr_kernels *k = s->node->kernels;
    uint32_t hidden = s->node->spec->hidden_size, vocab = s->node->spec->vocab_size;
    tr_step_view v;
    tr_error why;

    tr_status status = tr_step_read(&v, msg, &s->node->limits, &why);
    if (status != TR_OK)
        return status;
    uint32_t n = v.head.outputs_count;
    sampler_slot *slot = s->lead ? sampler_slot_of(s, msg->header.step) : NULL;
    if (s->lead && (slot == NULL || slot->has_outputs))
        return TR_E_INVALID;
    if (s->lead && sampler_misses_range(s))
        return TR_E_PEER;
    if (slot != NULL) {
        slot->has_outputs = true;
        slot->outputs_count = n;
        memcpy(slot->outputs, v.outputs, n * sizeof(*v.outputs));
    }
    uint64_t since = tr_clock_ns();
    if (s->norm != NULL)
        k->rms_norm(s->team, s->rows, v.rows, s->norm, s->node->spec->rms_norm_eps, n, hidden);
    else
        memcpy(s->rows, v.rows, (size_t)n * hidden * sizeof(*s->rows));
    if (slot != NULL) {
        status = tr_hidden_send(s->env, msg->header.step, v.outputs, n, s->node->spec->layers_count,
                                s->rows, hidden, true, s->node->buffer_size_max);
        if (status != TR_OK)
            return status;
    }
    for (uint32_t i = 0; i < s->ranges_count; i++) {
        const vocabulary_range *range = &s->ranges[i];
        if (slot != NULL) {
            k->matmul(s->team, slot->logits + range->first, vocab, s->rows, hidden, NULL,
                      &range->head, n);
            slot->filled += (uint64_t)n * range->head.rows;
        } else if ((status = sampler_send_range(s, range, n, msg->header.step)) != TR_OK) {
            return status;
        }
    }
    tr_stamp(TR_KERNEL_MATMUL, s->env->self, msg->header.step, &since);
    if (slot != NULL)
        sampler_check_complete(s, slot);
    return TR_OK;
}

static tr_status sampler_on_logits(sampler_state *s, const tr_msg *msg)
{
    tr_step_view v;
    tr_error why;

    tr_status status = tr_step_read(&v, msg, &s->node->limits, &why);
    if (status != TR_OK)
        return status;
    sampler_slot *slot = s->lead ? sampler_slot_of(s, msg->header.step) : NULL;
    if (slot == NULL)
        return TR_E_INVALID;
    sampler_store(s, slot, v.rows, v.head.width, v.head.output_first, v.head.rows_count,
                  v.head.first, v.head.width);
    sampler_check_complete(s, slot);
    return TR_OK;
}

/* The slot may have been given to a later step since the timer was set, and the lead may have moved
 * away. */
static void sampler_on_timer(sampler_state *s, uint32_t number)
{
    if (s->lead && number < s->node->steps_in_flight && s->slots[number].phase == SLOT_EXPORTING)
        sampler_finish(s, &s->slots[number]);
}

static void sampler_on_peer_down(sampler_state *s, uint32_t node)
{
    s->dead_nodes |= 1u << node;
    for (uint32_t i = 0; s->lead && i < s->node->steps_in_flight; i++) {
        sampler_slot *slot = &s->slots[i];
        if (slot->phase != SLOT_FILLING || !sampler_misses_range(s))
            continue;
        slot->phase = SLOT_FREE;
        tr_step_failed_send(s->env, slot->step, TR_E_PEER);
    }
}

/* The numbers of the last steps live on, by which late messages are known, and who is gone. */
static void sampler_adopt(void *fresh, void *state)
{
    sampler_state *f = fresh, *s = state;
    f->env = s->env;
    f->dead_nodes = s->dead_nodes;
    for (uint32_t i = 0; s->lead && f->lead && i < s->node->steps_in_flight; i++)
        f->slots[i].step = s->slots[i].step;
}

static tr_status sampler_receive(void *state, const tr_msg *msg)
{
    sampler_state *s = state;
    tr_status status = TR_OK;

    tr_switch_apply(msg, s, sizeof(*s), sampler_adopt);
    if (msg->header.kind == TR_MSG_FINAL_ROWS)
        status = sampler_on_final_rows(s, msg);
    else if (msg->header.kind == TR_MSG_LOGITS)
        status = sampler_on_logits(s, msg);
    else if (msg->header.kind == TR_MSG_TIMER)
        sampler_on_timer(s, msg->header.argument);
    else if (msg->header.kind == TR_MSG_PEER_DOWN)
        sampler_on_peer_down(s, msg->header.argument);
    else if (msg->header.kind == TR_MSG_PEER_UP)
        s->dead_nodes &= ~(1u << msg->header.argument);
    if (status != TR_OK)
        tr_step_failed_send(s->env, msg->header.step, status);
    return TR_OK;
}

static void sampler_teardown(void *state)
{
    (void)state; /* everything lies in the arena, which the cluster owns */
}

const tr_actor_ops tr_sampler_ops = {
    .kind = "sampler",
    .state_size = sizeof(sampler_state),
    .mailbox_slots = 1024,
    .outbox_slots = 512,
    .init = sampler_init,
    .receive = sampler_receive,
    .teardown = sampler_teardown,
};
