/* attention_shard.c - owns groups of heads (terms) of the attention layers, whatever their mixers
 * (mixer.h). Reads and writes sequence state in memory that the KV pool leases to it.
 *
 *   state of a sequence    NONE --KV_LEASE--> LEASED --KV_REVOKE--> NONE (answers KV_RETURNED)
 *
 * ATTENTION_ROWS for a sequence without a lease, or past its pages, fails the step.
 *
 * owns     its weights, workspaces; leased state until revoked
 * sends    one PARTIAL to each router of the layer for each ATTENTION_ROWS
 * load     one rows message per step in flight */
#include "actors/mixer.h"
#include "actors/partial.h"
#include "actors/stamp.h"
#include "actors/switch.h"

#include <string.h>

typedef struct {
    const tr_env *env;
    const tr_node_context *node;
    tr_team *team;
    tr_mixer_layer *layers;
    tr_sequence_lease *leases; /* [sequences_max] */
    tr_mixer_rope rope;
    void *workspace; /* of the mixers, for the largest run */
    float *out;      /* [rows_max, width of the widest run] */
    float *rounded;  /* [rows_max, hidden] if the placement asks for 4-bit activations */
    int64_t *sums;   /* [rows_max, hidden] */
    uint8_t *flags;  /* [rows_max] */
} attention_state;

static uint32_t pages_per_sequence(const tr_node_context *node)
{
    return (node->limits.context_max + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS;
}

static void attention_load_workspace(attention_state *s, const tr_node_context *node,
                                     tr_arena *arena, uint32_t threads)
{
    tr_mixer_extent e = tr_mixer_extent_of(node, threads);
    size_t rows = node->limits.rows_max;

    s->workspace = tr_arena_take(arena, e.workspace_size);
    s->out = tr_arena_take(arena, rows * e.width * sizeof(*s->out));
    if (node->placement->activations_nvfp4)
        s->rounded = tr_arena_take(arena, rows * node->spec->hidden_size * sizeof(*s->rounded));
    s->rope.cos_sin = tr_arena_take(arena, rows * e.rope_dims * sizeof(*s->rope.cos_sin));
    s->rope.positions = tr_arena_take(arena, rows * sizeof(*s->rope.positions));
    s->sums = tr_arena_take(arena, rows * node->spec->hidden_size * sizeof(*s->sums));
    s->flags = tr_arena_take(arena, rows);
    s->leases = tr_arena_take(arena, node->limits.sequences_max * sizeof(*s->leases));
    for (uint32_t i = 0; i < node->limits.sequences_max; i++) {
        uint8_t **pages =
            tr_arena_take(arena, pages_per_sequence(node) * sizeof(*s->leases[i].pages));
        if (s->leases != NULL)
            s->leases[i].pages = pages;
    }
}

void tr_attention_shard_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget,
                              uint32_t threads)
{
    attention_state s = {0};
    uint64_t before = tr_arena_counted(counting);
    tr_mixer_load(&s.layers, node, counting);
    uint64_t weights = tr_arena_counted(counting);
    attention_load_workspace(&s, node, counting, threads);
    tr_budget_add(budget, "attention weights", "", weights - before);
    tr_budget_add(budget, "attention workspaces", "limits.step_rows",
                  tr_arena_counted(counting) - weights);
}

static tr_status attention_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    attention_state *s = state;
    const tr_actor_config *c = config;

    s->env = env;
    s->node = c->node;
    s->team = c->team;
    c->arena->err = err;
    tr_mixer_load(&s->layers, c->node, c->arena);
    attention_load_workspace(s, c->node, c->arena, tr_team_size(c->team));
    return c->arena->status;
}

/* Every segment's sequence is leased and has room for its rows. Whom it takes state from or leaves
 * state to is not released before it, so its generation stands for both. */
static tr_status attention_check_leases(const attention_state *s, const tr_step_view *v)
{
    for (uint32_t i = 0; i < v->head.segments_count; i++) {
        const tr_segment *seg = &v->segments[i];
        const tr_sequence_lease *lease = &s->leases[seg->sequence];
        if (!lease->held || lease->generation != seg->generation)
            return TR_E_INVALID;
        if (s->node->kv.page_size > 0 &&
            seg->first_position + seg->rows_count > lease->pages_count * TR_KV_PAGE_TOKENS)
            return TR_E_INVALID;
        if ((seg->takes != 0 && !s->leases[seg->takes - 1].held) ||
            (seg->leaves != 0 && !s->leases[seg->leaves - 1].held))
            return TR_E_INVALID;
    }
    return TR_OK;
}

/* Copies what a layer keeps in a state slot, as far as it stands here. */
static void attention_copy_state(const tr_mixer_layer *layer, uint8_t *to, const uint8_t *from)
{
    size_t term_size = tr_kv_term_state_size(layer->spec);

    memcpy(to + layer->state_offset, from + layer->state_offset,
           layer->runs_count > 0 ? tr_kv_layer_state_size(layer->spec) : 0);
    for (uint32_t i = 0; term_size > 0 && i < layer->runs_count; i++) {
        const tr_mixer_run *run = &layer->runs[i];
        memcpy(to + run->state_offset, from + run->state_offset, run->terms_count * term_size);
    }
}

/* Sequences that go on from the state of another, or whose state is kept for others. */
static void attention_exchange(const attention_state *s, const tr_mixer_layer *layer,
                               const tr_step_view *v)
{
    for (uint32_t i = 0; s->node->kv.state_size > 0 && i < v->head.segments_count; i++) {
        const tr_segment *seg = &v->segments[i];
        if (seg->takes != 0)
            attention_copy_state(layer, s->leases[seg->sequence].state,
                                 s->leases[seg->takes - 1].state);
        if (seg->leaves != 0)
            attention_copy_state(layer, s->leases[seg->leaves - 1].state,
                                 s->leases[seg->sequence].state);
    }
}

static tr_status attention_on_rows(attention_state *s, const tr_msg *msg)
{
    const tr_kernels *k = s->node->kernels;
    tr_step_view v;
    tr_error why;

    tr_status status = tr_step_read(&v, msg, &s->node->limits, &why);
    if (status == TR_OK)
        status = attention_check_leases(s, &v);
    if (status != TR_OK)
        return status;

    const tr_mixer_layer *layer = &s->layers[v.head.layer];
    const tr_mixer_ops *ops = tr_mixer_of(layer->spec);
    (void)atomic_load_explicit(&s->node->counters->states_written, memory_order_acquire);
    attention_exchange(s, layer, &v);
    const tr_mixer_call call = {.env = s->env,
                                .node = s->node,
                                .team = s->team,
                                .view = &v,
                                .step = msg->header.step,
                                .leases = s->leases,
                                .layer = layer,
                                .rope = &s->rope,
                                .workspace = s->workspace,
                                .rounded = s->rounded};
    uint32_t T = v.head.rows_count, H = v.head.width;
    memset(s->sums, 0, (size_t)T * H * sizeof(*s->sums));
    memset(s->flags, 0, T);
    if (ops->prepare != NULL && layer->runs_count > 0)
        ops->prepare(&call, &layer->runs[0]);
    for (uint32_t i = 0; i < layer->runs_count; i++) {
        const tr_mixer_run *run = &layer->runs[i];
        ops->run(&call, run, s->out);
        uint64_t since = tr_clock_ns();
        uint32_t term_width = run->width / run->terms_count;
        for (uint32_t t = 0; t < run->terms_count; t++) {
            float *heads = s->out + t * term_width;
            if (run->o[t].input_scale > 0)
                k->round_nvfp4(s->team, heads, run->width, heads, run->width, NULL,
                               run->o[t].input_scale, T, term_width);
            k->matmul_term(s->team, s->sums, s->flags, v.exponent, heads, run->width, NULL, NULL,
                           &run->o[t], T);
        }
        tr_stamp(TR_KERNEL_MATMUL_TERM, s->env->self, msg->header.step, &since);
    }
    return tr_partial_send(s->env, s->node, s->team, &v, TR_SUB_ATTENTION, msg->header.step,
                           s->sums, s->flags);
}

static void attention_on_lease(attention_state *s, const tr_msg *msg)
{
    const tr_kv_lease *lease = (const void *)msg->payload->data;
    tr_sequence_lease *l = &s->leases[msg->header.argument];
    assert(!l->held);
    assert(lease->pages_count <= pages_per_sequence(s->node));
    l->held = true;
    l->state = lease->state;
    l->pages_count = lease->pages_count;
    l->generation = (uint16_t)lease->generation;
    memcpy(l->pages, lease->pages, lease->pages_count * sizeof(*lease->pages));
}

static tr_status attention_on_revoke(attention_state *s, const tr_msg *msg)
{
    tr_sequence_lease *l = &s->leases[msg->header.argument];
    assert(l->held);
    l->held = false;
    return s->env->send(s->env->ctx, msg->header.source, TR_MSG_KV_RETURNED, 0,
                        msg->header.argument, NULL);
}

/* Leases live on: the pool's memory does not move with the placement. */
static void attention_adopt(void *fresh, void *state)
{
    attention_state *f = fresh, *s = state;
    f->env = s->env;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        uint8_t **pages = f->leases[i].pages;
        memcpy(pages, s->leases[i].pages, s->leases[i].pages_count * sizeof(*pages));
        f->leases[i] = s->leases[i];
        f->leases[i].pages = pages;
    }
}

static void attention_tell_leases(const attention_state *s, const tr_switch *question)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        const tr_sequence_lease *lease = &s->leases[i];
        tr_lease_view *out = &question->leases[i];
        out->held = lease->held;
        out->generation = lease->generation;
        out->pages_count = lease->held ? lease->pages_count : 0;
        out->state = lease->state;
        memcpy(out->pages, lease->pages, out->pages_count * sizeof(*out->pages));
    }
    tr_switch_done(question);
}

/* Here, between two messages, nobody takes the pages away. */
static void attention_copy_pages(const attention_state *s, const tr_switch *question)
{
    tr_page_copy *copy = question->copy;
    const tr_sequence_lease *lease = &s->leases[copy->sequence];

    copy->held = lease->held && lease->generation == (uint16_t)copy->generation &&
                 copy->page_first <= lease->pages_count &&
                 copy->pages_count <= lease->pages_count - copy->page_first;
    for (uint32_t i = 0; copy->held && i < copy->pages_count; i++)
        memcpy(copy->bytes + i * copy->size, lease->pages[copy->page_first + i] + copy->offset,
               copy->size);
    tr_switch_done(question);
}

static tr_status attention_receive(void *state, const tr_msg *msg)
{
    attention_state *s = state;
    const tr_switch *question = tr_switch_read(msg);
    if (question != NULL && question->what == TR_SWITCH_LEASES)
        attention_tell_leases(s, question);
    if (question != NULL && question->what == TR_SWITCH_PAGES)
        attention_copy_pages(s, question);
    tr_switch_apply(msg, s, sizeof(*s), attention_adopt);
    bool ours = msg->header.source == tr_node_actor(TR_ACTOR_KV_POOL, s->node->node_index);

    if (msg->header.kind == TR_MSG_KV_LEASE && ours)
        attention_on_lease(s, msg);
    else if (msg->header.kind == TR_MSG_KV_REVOKE && ours)
        return attention_on_revoke(s, msg);
    else if (msg->header.kind == TR_MSG_ATTENTION_ROWS) {
        tr_status status = attention_on_rows(s, msg);
        if (status != TR_OK)
            tr_step_failed_send(s->env, msg->header.step, status);
    }
    return TR_OK;
}

static void attention_teardown(void *state)
{
    (void)state; /* everything lies in the arena, which the cluster owns */
}

const tr_actor_ops tr_attention_shard_ops = {
    .kind = "attention_shard",
    .state_size = sizeof(attention_state),
    .mailbox_slots = 512,
    .outbox_slots = 64,
    .init = attention_init,
    .receive = attention_receive,
    .teardown = attention_teardown,
};
