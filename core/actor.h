/* actor.h - what an actor is, and all that it may know of the world.
 *
 * An actor is a state that nobody else sees, three functions and a constant table. The world
 * reaches it through tr_env only: no globals, no clock, no files. That one rule makes the
 * simulation possible. */
#ifndef TR_CORE_ACTOR_H
#define TR_CORE_ACTOR_H

#include "core/error.h"
#include "core/message.h"

#include <stdbool.h>
#include <stdint.h>

/* Given to an actor at init; borrowed from the runtime and outlives the actor. All functions are
 * for the actor's own thread, inside init or receive, and never block. */
typedef struct tr_env {
    void *ctx;
    tr_actor_id self;

    /* Sends a message to an actor on any node. Fills version, source, epoch, trace_id and
     * payload_size (from payload->size) itself.
     *
     *   payload  reference is taken whatever is returned; NULL for an empty payload
     *
     * A full mailbox is not the actor's business: the runtime keeps the message in the actor's
     * outbox (tr_actor_ops.outbox_slots) and does not run the actor again before the outbox is
     * empty. More sends than outbox_slots within one receive is a bug of the actor (asserted).
     * errors  TR_E_PEER when the target's node is known to be dead, TR_E_INVALID for a target
     *         that the directory does not know. The message is then gone. */
    tr_status (*send)(void *ctx, tr_actor_id target, tr_msg_kind kind, uint64_t step,
                      uint32_t argument, tr_buf *payload);

    /* A buffer of at least size bytes with size set, one reference; NULL when the pool is empty. */
    tr_buf *(*take)(void *ctx, uint32_t size);

    /* The same from the smallest buffers that fit alone: for messages that can be many while
     * somebody is slow. NULL is then no failure: the actor tries again later. */
    tr_buf *(*take_fitting)(void *ctx, uint32_t size);

    /* Monotonic time in nanoseconds. Virtual in the simulator. */
    uint64_t (*now_ns)(void *ctx);

    /* One TR_MSG_TIMER to self at or after at_ns, with argument = cookie. */
    tr_status (*timer)(void *ctx, uint64_t at_ns, uint32_t cookie);
} tr_env;

/* Who calls what: the runtime calls init once on the starting thread before the worker runs it,
 * receive on one worker at a time, teardown once after the last receive. */
typedef struct {
    const char *kind;       /* "router", "echo", ...; static storage */
    size_t state_size;      /* bytes, zeroed before init, 64-byte aligned */
    uint32_t mailbox_slots; /* power of two; what the mailbox holds before senders wait */
    uint32_t outbox_slots;  /* most messages that one receive may send */
    bool may_allocate;      /* control-plane actors; others abort on malloc (allocation_guard.h) */

    /* How often the supervisor calls teardown and init again, with the same config (which must then
     * outlive the runtime), after a failed receive. 0: the actor stays down, and what is sent to it
     * is dropped. Either way the batcher gets TR_MSG_ACTOR_FAILED for the message's step. */
    uint32_t restarts_max;

    /* May allocate and may fail; on failure nothing is owed. config is borrowed for the call
     * unless the actor's header says otherwise. */
    tr_status (*init)(void *state, const tr_env *env, const void *config, tr_error *err);

    /* Handles one message to its end. Does not wait, does not block. msg is borrowed: to keep the
     * payload the actor takes a reference of its own (tr_buf_ref). A status other than TR_OK is a
     * failure of the actor: the supervisor decides by policy. */
    tr_status (*receive)(void *state, const tr_msg *msg);

    /* Frees what init took. Called also after a failed receive. */
    void (*teardown)(void *state);
} tr_actor_ops;

#endif
