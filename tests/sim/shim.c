#include "tests/sim/shim.h"

#include "actors/client.h"
#include "actors/node_context.h"
#include "actors/switch.h"

#include <stdalign.h>
#include <string.h>
#include <xxhash.h>

#define SHIM_KINDS 16

sim_shim_control sim_shim;

static const struct {
    const char *name;
    uint32_t one_in;
} bug_rows[] = {
#define X(name, text, one_in) {text, one_in},
    SIM_BUG_MAP(X)
#undef X
};

const char *sim_bug_name(sim_bug bug)
{
    return bug_rows[bug].name;
}

uint32_t sim_bug_one_in(sim_bug bug)
{
    return bug_rows[bug].one_in;
}

sim_bug sim_bug_find(const char *name)
{
    int i = 0;
    while (i < SIM_BUGS_COUNT && strcmp(bug_rows[i].name, name) != 0)
        i++;
    return (sim_bug)i;
}

/* Stands behind the actor's own state, which a change of placement replaces. */
typedef struct {
    alignas(64) tr_env env; /* what the actor sees; ctx is this struct */
    const tr_env *outer;
    void *state; /* the actor's own */
    const tr_actor_ops *real;
    tr_actor_kind kind;
    size_t state_size; /* of a sequence, from the KV layout */
    bool has_pages;
    uint32_t sequences;
    uint8_t *last_page;     /* of the lease before: SHARED_PAGE */
    tr_event last_token;    /* that the batcher told: TOKEN_AGAIN */
    tr_actor_id last_heard; /* by whom */
} shim;

static const tr_actor_ops *shim_real[SHIM_KINDS];

static size_t shim_offset(tr_actor_kind kind)
{
    return (shim_real[kind]->state_size + alignof(shim) - 1) / alignof(shim) * alignof(shim);
}

bool sim_bug_strikes(sim_bug bug)
{
    return sim_shim.bug == bug && sim_one_in(&sim_shim.random, bug_rows[bug].one_in);
}

void sim_shim_note(const void *bytes, size_t size)
{
    sim_shim.hash = XXH3_64bits_withSeed(bytes, size, sim_shim.hash);
}

/* -- the environment -- */

static void shim_swap_tokens(const tr_buf *payload)
{
    tr_token_head head;
    memcpy(&head, payload->data, sizeof(head));
    tr_token *tokens = (void *)(payload->data + sizeof(head));
    if (head.count < 2 || tokens[0].token < 0 || tokens[1].token < 0)
        return;
    int32_t keep = tokens[0].token;
    tokens[0].token = tokens[1].token;
    tokens[1].token = keep;
}

/* Only a sequence that is read again has several generated positions in a step. */
static void shim_change_forms(const tr_buf *payload)
{
    tr_step_head head;
    memcpy(&head, payload->data, sizeof(head));
    tr_segment *segments = (void *)(payload->data + head.segments_offset);
    for (uint32_t i = 0; i < head.segments_count; i++)
        if (segments[i].rows_count > 1 && sim_bug_strikes(SIM_BUG_REPLAY_AS_PROMPT))
            segments[i].form = TR_FORM_PREFILL;
}

static bool shim_is_token(tr_msg_kind kind, const tr_buf *payload)
{
    tr_event event;
    if (kind != TR_MSG_EVENT)
        return false;
    memcpy(&event, payload->data, sizeof(event));
    return event.kind == TR_EVENT_TOKEN;
}

static tr_status shim_send(void *ctx, tr_actor_id target, tr_msg_kind kind, uint64_t step,
                           uint32_t argument, tr_buf *payload)
{
    shim *s = ctx;
    bool lost = (kind == TR_MSG_KV_RETURNED && sim_bug_strikes(SIM_BUG_FORGET_RETURN)) ||
                (shim_is_token(kind, payload) && sim_bug_strikes(SIM_BUG_TOKEN_LOST));
    if (lost) {
        tr_buf_unref(payload);
        return TR_OK;
    }
    if (kind == TR_MSG_TOKENS && sim_bug_strikes(SIM_BUG_TOKENS_MIXED))
        shim_swap_tokens(payload);
    if (kind == TR_MSG_PARTIAL && sim_bug_strikes(SIM_BUG_LEAK_BUFFER))
        tr_buf_ref(payload);
    if (shim_is_token(kind, payload) && sim_bug_strikes(SIM_BUG_TOKEN_TWICE))
        (void)s->outer->send(s->outer->ctx, target, kind, step, argument, tr_buf_ref(payload));
    if (shim_is_token(kind, payload)) {
        memcpy(&s->last_token, payload->data, sizeof(s->last_token));
        s->last_heard = target;
    }
    if (kind == TR_MSG_STEP && s->kind == TR_ACTOR_BATCHER)
        shim_change_forms(payload);
    return s->outer->send(s->outer->ctx, target, kind, step, argument, payload);
}

static void shim_tell_again(shim *s)
{
    tr_buf *buf = s->outer->take(s->outer->ctx, sizeof(s->last_token));
    if (buf == NULL)
        return;
    memcpy(buf->data, &s->last_token, sizeof(s->last_token));
    (void)s->outer->send(s->outer->ctx, s->last_heard, TR_MSG_EVENT, 0, 0, buf);
}

static tr_buf *shim_take(void *ctx, uint32_t size)
{
    shim *s = ctx;
    if (sim_shim.refuse_one_in > 0 && sim_one_in(&sim_shim.random, sim_shim.refuse_one_in)) {
        sim_shim.refused++;
        return NULL;
    }
    return s->outer->take(s->outer->ctx, size);
}

static tr_buf *shim_take_fitting(void *ctx, uint32_t size)
{
    shim *s = ctx;
    return s->outer->take_fitting(s->outer->ctx, size);
}

static uint64_t shim_now(void *ctx)
{
    shim *s = ctx;
    return s->outer->now_ns(s->outer->ctx);
}

static tr_status shim_timer(void *ctx, uint64_t at_ns, uint32_t cookie)
{
    shim *s = ctx;
    return s->outer->timer(s->outer->ctx, at_ns, cookie);
}

/* -- the operations -- */

/* Rows of the expert are dealt otherwise here than elsewhere: computed twice, or by nobody. */
static void shim_forget_replicas(const tr_plan *plan)
{
    for (uint32_t l = 0; l < plan->shape.layers_count; l++)
        for (uint32_t t = 0; t < plan->shape.experts[l]; t++) {
            uint16_t *nodes = &plan->channel[(size_t)l * TR_TERMS_MAX + t];
            if ((*nodes & (*nodes - 1)) != 0 && sim_bug_strikes(SIM_BUG_REPLICA_FORGOTTEN))
                *nodes &= (uint16_t)(*nodes - 1);
        }
}

/* env is NULL for a state that an actor goes over to: its own shim stays. */
static tr_status shim_init(tr_actor_kind kind, void *state, const tr_env *env, const void *config,
                           tr_error *err)
{
    const tr_actor_config *c = config;
    shim *s = (void *)((uint8_t *)state + shim_offset(kind));

    if (kind == TR_ACTOR_EXPERT_SHARD && c->node->node_index == 0)
        shim_forget_replicas(c->node->plan);
    if (env == NULL)
        return shim_real[kind]->init(state, NULL, config, err);
    *s = (shim){.outer = env,
                .state = state,
                .real = shim_real[kind],
                .kind = kind,
                .state_size = c->node->kv.state_size,
                .has_pages = c->node->kv.page_size > 0,
                .sequences = c->node->limits.sequences_max};
    s->env = (tr_env){.ctx = s,
                      .self = env->self,
                      .send = shim_send,
                      .take = shim_take,
                      .take_fitting = shim_take_fitting,
                      .now_ns = shim_now,
                      .timer = shim_timer};
    return s->real->init(state, &s->env, config, err);
}

/* The lease as the attention shard is about to see it. */
static void shim_on_lease(shim *s, const tr_msg *msg)
{
    tr_kv_lease *lease = (void *)msg->payload->data;
    if (s->state_size > 0 && sim_bug_strikes(SIM_BUG_DIRTY_STATE)) {
        float *recurrent = (void *)lease->state;
        recurrent[0] = 1;
    }
    if (s->has_pages && lease->pages_count > 0) {
        if (s->last_page != NULL && sim_bug_strikes(SIM_BUG_SHARED_PAGE))
            lease->pages[0] = s->last_page;
        s->last_page = lease->pages[0];
    }
}

/* Whether the actor is to hear of a step of a change. */
static bool shim_meddle_switch(shim *s, const tr_switch *what)
{
    bool deaf = (what->what == TR_SWITCH_GO_OVER && s->kind != TR_ACTOR_BATCHER &&
                 sim_bug_strikes(SIM_BUG_NOT_OVER)) ||
                (what->what == TR_SWITCH_PAUSE && sim_bug_strikes(SIM_BUG_DEAF_TO_PAUSE));
    if (deaf)
        tr_switch_done(what);
    if (what->what == TR_SWITCH_RESUME && s->last_heard != 0 &&
        sim_bug_strikes(SIM_BUG_TOKEN_AGAIN))
        shim_tell_again(s);
    return !deaf;
}

/* The leases that the attention shard is about to be asked for, after it has told them. */
static void shim_spoil_leases(const tr_switch *what, uint32_t sequences)
{
    for (uint32_t i = 0; i < sequences; i++) {
        tr_lease_view *lease = &what->leases[i];
        if (lease->held && sim_bug_strikes(SIM_BUG_STATE_STAYS))
            lease->held = false;
        if (lease->held && lease->pages_count > 1 && sim_bug_strikes(SIM_BUG_PAGE_TWICE))
            lease->pages[1] = lease->pages[0];
    }
}

/* Whether the actor is to hear of it at all. */
static bool shim_meddle(shim *s, const tr_msg *msg)
{
    uint32_t kind = msg->header.kind;
    const tr_switch *what = tr_switch_read(msg);
    if (what != NULL && !shim_meddle_switch(s, what))
        return false;
    if (s->kind == TR_ACTOR_BATCHER)
        return !(kind == TR_MSG_CANCEL && sim_bug_strikes(SIM_BUG_DEAF_TO_CANCEL)) &&
               !(kind == TR_MSG_PEER_DOWN && sim_bug_strikes(SIM_BUG_DEAF_TO_DEATH)) &&
               !(kind == TR_MSG_PEER_UP && sim_bug_strikes(SIM_BUG_DEAF_TO_RETURN));
    if (s->kind != TR_ACTOR_ATTENTION_SHARD)
        return true;
    if (kind == TR_MSG_KV_LEASE)
        shim_on_lease(s, msg);
    return kind != TR_MSG_KV_LEASE || !sim_bug_strikes(SIM_BUG_FORGET_LEASE);
}

static tr_status shim_receive(shim *s, const tr_msg *msg)
{
    const uint64_t words[] = {s->env.self,          msg->header.kind,         msg->header.source,
                              msg->header.step,     msg->header.epoch,        msg->header.trace_id,
                              msg->header.argument, msg->header.payload_size, shim_now(s)};
    sim_shim_note(words, sizeof(words));
    sim_shim.messages++;
    if (!shim_meddle(s, msg))
        return TR_OK;
    tr_status status = s->real->receive(s->state, msg);
    const tr_switch *what = tr_switch_read(msg);
    if (what != NULL && what->what == TR_SWITCH_LEASES)
        shim_spoil_leases(what, s->sequences);
    return status;
}

/* The operations of each kind: from a state alone nobody could tell where its shim stands. */
#define X(name, value, text)                                                                       \
    static tr_status shim_init_##name(void *state, const tr_env *env, const void *config,          \
                                      tr_error *err)                                               \
    {                                                                                              \
        return shim_init(TR_ACTOR_##name, state, env, config, err);                                \
    }                                                                                              \
    static tr_status shim_receive_##name(void *state, const tr_msg *msg)                           \
    {                                                                                              \
        return shim_receive((void *)((uint8_t *)state + shim_offset(TR_ACTOR_##name)), msg);       \
    }
TR_ACTOR_KIND_MAP(X)
#undef X

static const struct {
    tr_status (*init)(void *state, const tr_env *env, const void *config, tr_error *err);
    tr_status (*receive)(void *state, const tr_msg *msg);
} shim_ops[SHIM_KINDS] = {
#define X(name, value, text) [value] = {shim_init_##name, shim_receive_##name},
    TR_ACTOR_KIND_MAP(X)
#undef X
};

const tr_actor_ops *sim_shim_replace(tr_actor_kind kind, const tr_actor_ops *ops)
{
    static tr_actor_ops tables[SHIM_KINDS];

    assert(kind < SHIM_KINDS);
    shim_real[kind] = ops;
    tables[kind] = *ops;
    tables[kind].state_size = shim_offset(kind) + sizeof(shim);
    tables[kind].outbox_slots = 2 * ops->outbox_slots; /* some bugs send twice */
    tables[kind].init = shim_ops[kind].init;
    tables[kind].receive = shim_ops[kind].receive;
    return &tables[kind];
}
