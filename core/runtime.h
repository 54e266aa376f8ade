/* runtime.h - runs the actors of one node: mailboxes, worker threads, directory, supervisor.
 *
 * Life: open -> spawn actors, set remote and pollers -> start -> (messages flow) -> stop -> close.
 * A worker runs ready actors in batches, then calls its pollers, and when nothing has happened
 * for idle_spin_ns it sleeps until a push wakes it. Pollers have no descriptor to wait on, so where
 * there are any worker 0 sleeps at most idle_sleep_ns.
 *
 * An actor whose messages find no room is not run until they do. Two actors that fill each other's
 * mailboxes would wait for ever: mailbox_slots must hold what can be under way to an actor at once
 * (steps in flight times messages per step), so that waiting stays the exception. */
#ifndef TR_CORE_RUNTIME_H
#define TR_CORE_RUNTIME_H

#include "core/actor.h"
#include "core/buffer.h"

typedef struct tr_runtime tr_runtime;

#define TR_WORKERS_MAX 64
#define TR_NODES_MAX   16
#define TR_ACTORS_MAX  1024

typedef struct {
    const char *node_name;  /* copied, for logs and trace */
    uint32_t node_index;    /* of this node, < TR_NODES_MAX */
    uint32_t workers_count; /* 1..TR_WORKERS_MAX; worker 0 also runs the pollers */
    tr_pool *pool;          /* borrowed, outlives the runtime; tr_env.take draws from it */
    uint64_t idle_spin_ns;  /* 0: the default, 1 ms */
    uint64_t idle_sleep_ns; /* 0: the default, 500 us */

    /* What actors are told as time, and when timers are due. NULL: CLOCK_MONOTONIC. Another clock
     * only goes with a runtime that is run by hand (by_hand.h): threads sleep in real time. */
    uint64_t (*now_ns)(void *ctx);
    void *clock_ctx;
} tr_runtime_config;

/* How a message leaves for another node. Called from worker 0 only.
 * TR_OK: the message was taken. TR_E_AGAIN: no room, the runtime keeps it and tries again after
 * the next poll. TR_E_PEER: the node is dead, the runtime drops the message. On TR_E_AGAIN the
 * payload stays the runtime's; on the others it was consumed. */
typedef struct {
    void *ctx;
    tr_status (*send)(void *ctx, uint32_t node_index, const tr_msg *msg);

    /* Called, likewise, when there has been no room for stall_ns: somebody has to give the node up
     * (tr_runtime_peer_down), because whoever sends to it does nothing else meanwhile. 0: never. */
    uint64_t stall_ns;
    void (*stalled)(void *ctx, uint32_t node_index);
} tr_remote;

tr_status tr_runtime_open(tr_runtime **out, const tr_runtime_config *config, tr_error *err);

/* What a memory budget counts of a node's runtime. The pool is not among it.
 *
 * Of the runtime itself: directory, workers with their timers and trace rings, what waits for room,
 * and the queues to other nodes with actors. Of an actor: state, mailbox, outbox. Of a port: its
 * mailbox. */
uint64_t tr_runtime_bytes(uint32_t workers_count, uint32_t other_nodes);
uint64_t tr_runtime_actor_bytes(const tr_actor_ops *ops);
uint64_t tr_runtime_port_bytes(uint32_t slots);

/* Registers an actor of this node in the directory and calls its init. Before start only.
 *
 *   id      unique in the cluster
 *   name    for people: "router/0-7@spark1"; copied
 *   worker  which worker thread runs it, < workers_count */
tr_status tr_runtime_spawn(tr_runtime *rt, tr_actor_id id, const char *name,
                           const tr_actor_ops *ops, const void *config, uint32_t worker,
                           tr_error *err);

/* A mailbox that a thread outside the runtime reads: how clients and tests get messages.
 *
 *   slots   power of two
 *   wake    called after a push into a previously empty port, from any thread; must not block;
 *           NULL when the reader polls */
tr_status tr_runtime_add_port(tr_runtime *rt, tr_actor_id id, const char *name, uint32_t slots,
                              void (*wake)(void *ctx), void *wake_ctx, tr_error *err);

/* Next message of a port; false when empty. The caller gets the payload reference.
 * Thread: one reader per port. */
bool tr_runtime_port_next(tr_runtime *rt, tr_actor_id port, tr_msg *out);

/* Says that actor id stands on another node under the current epoch. Before start only. */
tr_status tr_runtime_add_remote(tr_runtime *rt, tr_actor_id id, const char *name,
                                uint32_t node_index, tr_error *err);

/* Before start. */
void tr_runtime_set_remote(tr_runtime *rt, tr_remote remote);

/* Adds a function that worker 0 calls on every turn; returns how many events it handled.
 * Before start; at most 4. */
void tr_runtime_add_poller(tr_runtime *rt, uint32_t (*poll)(void *ctx), void *ctx);

/* Seals the node (from now on allocation_guard.h watches receive) and starts the workers. */
tr_status tr_runtime_start(tr_runtime *rt, tr_error *err);

/* A message from a thread outside the runtime (source = a port or 0). Takes the payload reference
 * only on TR_OK.
 * errors  TR_E_AGAIN full, TR_E_PEER the node is dead, TR_E_INVALID unknown target. */
tr_status tr_runtime_post(tr_runtime *rt, tr_actor_id source, tr_actor_id target, tr_msg_kind kind,
                          uint64_t step, uint32_t argument, tr_buf *payload);

/* A message that came from another node: routed to the local target. Called by pollers on
 * worker 0. Consumes the payload reference. A target that is unknown here, or a mailbox that stays
 * full, is an error of the peer: counted and, as a warning, logged (rate-limited). While the
 * target's mailbox is full the message waits in a bounded list of the runtime. */
void tr_runtime_deliver(tr_runtime *rt, const tr_msg *msg);

/* Marks a node dead: sends to it fail with TR_E_PEER, queued messages to it are dropped, and every
 * local actor and port gets one TR_MSG_PEER_DOWN with argument = node_index, which needs no room in
 * the mailbox and overtakes what waits there. Any thread, idempotent. */
void tr_runtime_peer_down(tr_runtime *rt, uint32_t node_index);

/* A node that was marked dead is there again, and the remote can send to it: every local actor gets
 * one TR_MSG_PEER_UP, in the same way; ports are not told. What each is told ends with what is
 * true. Any thread, idempotent; not at once with peer_down of the same node. */
void tr_runtime_peer_up(tr_runtime *rt, uint32_t node_index);

/* Placement epoch that outgoing headers carry; a message of a step (header.step is not 0) for an
 * actor that comes with another one is dropped. Thread: any. */
void tr_runtime_set_epoch(tr_runtime *rt, uint64_t epoch);
uint64_t tr_runtime_epoch(const tr_runtime *rt);

/* One row per actor and port of this node, for status pages. */
typedef struct {
    tr_actor_id id;
    const char *name; /* borrowed from the runtime */
    const char *kind; /* tr_actor_ops.kind, "port" */
    uint32_t node_index;
    uint32_t worker; /* 0 for ports */
    uint32_t mailbox_depth;
    uint32_t mailbox_slots;
    uint64_t received_count;
    uint64_t busy_ns;
    uint32_t restarts;
    bool failed;
} tr_actor_stat;

/* Fills at most rows_max rows and returns how many there are. Thread: any. The figures are relaxed
 * counters. */
uint32_t tr_runtime_stats(const tr_runtime *rt, tr_actor_stat *rows, uint32_t rows_max);

/* Name of an actor, local or remote, or "unknown". Thread: any. */
const char *tr_runtime_actor_name(const tr_runtime *rt, tr_actor_id id);

/* Stops the workers (bounded: each finishes the message it handles), then tears the actors down.
 * Ports can still be read. Not on a worker. */
void tr_runtime_stop(tr_runtime *rt);

/* Stops if nobody has, drops the messages that are left, and frees. */
void tr_runtime_close(tr_runtime *rt);

#endif
