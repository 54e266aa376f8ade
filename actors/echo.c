/* echo.c - answers each PING with a PONG.
 *
 *   state    OPEN ---PING x pings_max---> CLOSED
 *            OPEN: answers.   CLOSED: every PING is TR_E_CANCELED.
 *
 * owns     nothing but its counters
 * sends    PONG to the source of each PING, with the same step and argument
 * load     one message in, one out; no buffers */
#include "actors/echo.h"

#include <assert.h>

typedef enum { ECHO_OPEN, ECHO_CLOSED } echo_phase;

typedef struct {
    const tr_env *env; /* borrowed from the runtime, outlives us */
    echo_phase phase;
    uint32_t pings; /* answered; pings < pings_max exactly while OPEN */
    uint32_t pings_max;
} echo_state;

static tr_status echo_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    echo_state *s = state;
    const tr_echo_config *c = config;
    if (c->pings_max < 1)
        return tr_fail(err, TR_E_INVALID, "echo: pings_max 0, expected at least 1");
    *s = (echo_state){.env = env, .phase = ECHO_OPEN, .pings_max = c->pings_max};
    return TR_OK;
}

/* Every change of phase goes through here, so that the legal ones are in one place. */
static void echo_set_phase(echo_state *s, echo_phase next)
{
    assert(s->phase == ECHO_OPEN);
    assert(next == ECHO_CLOSED);
    s->phase = next;
}

static tr_status echo_on_ping(echo_state *s, const tr_msg *msg)
{
    if (s->phase == ECHO_CLOSED)
        return TR_E_CANCELED;
    assert(s->pings < s->pings_max);

    tr_status status = s->env->send(s->env->ctx, msg->header.source, TR_MSG_PONG, msg->header.step,
                                    msg->header.argument, NULL);
    if (status != TR_OK)
        return TR_OK; /* whoever asked is gone, or was nobody: no failure of ours, and no answer */
    s->pings++;
    if (s->pings == s->pings_max)
        echo_set_phase(s, ECHO_CLOSED);
    return TR_OK;
}

static tr_status echo_receive(void *state, const tr_msg *msg)
{
    echo_state *s = state;

    switch ((tr_msg_kind)msg->header.kind) {
    case TR_MSG_PING:
        return echo_on_ping(s, msg);
    case TR_MSG_PEER_DOWN:
    case TR_MSG_PEER_UP:
        return TR_OK; /* we hold nothing for anybody */
    case TR_MSG_PONG:
    case TR_MSG_STEP:
    case TR_MSG_RESIDUAL:
    case TR_MSG_ATTENTION_ROWS:
    case TR_MSG_EXPERT_ROWS:
    case TR_MSG_PARTIAL:
    case TR_MSG_FINAL_ROWS:
    case TR_MSG_LOGITS:
    case TR_MSG_TOKENS:
    case TR_MSG_STEP_FAILED:
    case TR_MSG_NGRAM_ROWS:
    case TR_MSG_NGRAM_ADD:
    case TR_MSG_KV_RESERVE:
    case TR_MSG_KV_RESERVED:
    case TR_MSG_KV_RELEASE:
    case TR_MSG_KV_RELEASED:
    case TR_MSG_KV_LEASE:
    case TR_MSG_KV_REVOKE:
    case TR_MSG_KV_RETURNED:
    case TR_MSG_SUBMIT:
    case TR_MSG_CANCEL:
    case TR_MSG_EVENT:
    case TR_MSG_LOGITS_ROW:
    case TR_MSG_HIDDEN_ROWS:
    case TR_MSG_TIMER:
    case TR_MSG_ACTOR_FAILED:
    case TR_MSG_SWITCH:
        return TR_E_NOTSUP; /* not ours: the sender has a stale directory */
    }
    return TR_E_NOTSUP;
}

static void echo_teardown(void *state)
{
    (void)state;
}

const tr_actor_ops tr_echo_ops = {
    .kind = "echo",
    .state_size = sizeof(echo_state),
    .mailbox_slots = 64,
    .outbox_slots = 1,
    .init = echo_init,
    .receive = echo_receive,
    .teardown = echo_teardown,
};
