#include "actors/switch.h"

#include <string.h>

const tr_switch *tr_switch_read(const tr_msg *msg)
{
    if (msg->header.kind != TR_MSG_SWITCH || msg->payload == NULL ||
        msg->header.payload_size != sizeof(tr_switch))
        return NULL;
    return (const void *)msg->payload->data;
}

void tr_switch_done(const tr_switch *s)
{
    /* release: whoever has seen the count sees all that this actor wrote before. */
    atomic_fetch_add_explicit(s->done, 1, memory_order_release);
}

void tr_switch_apply(const tr_msg *msg, void *state, size_t size,
                     void (*adopt)(void *fresh, void *state))
{
    const tr_switch *s = tr_switch_read(msg);

    if (s == NULL || s->what != TR_SWITCH_GO_OVER)
        return;
    adopt(s->fresh, state);
    memcpy(state, s->fresh, size);
    tr_switch_done(s);
}
