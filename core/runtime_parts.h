/* runtime_parts.h - what the files of the runtime share. Private to core/.
 *
 *   runtime.c     life: open, spawn, start, stop, close; ports, statistics
 *   worker.c      one thread: timers, ready actors, pollers, sleep
 *   by_hand.c     the same turns without a thread, in an order that somebody else decides
 *   delivery.c    the way of a message: local mailbox, outbox, other node, waiting list
 *   supervisor.c  what happens when receive fails
 *
 * Who writes what: a tr_local belongs to its worker, but for the mailbox, the bits of peers_news
 * and the port's signal, which any thread may set. A tr_worker belongs to its thread, but for the
 * first two lines (ready, sleeping). The rest of tr_runtime is written before start or is marked.
 */
#ifndef TR_CORE_RUNTIME_PARTS_H
#define TR_CORE_RUNTIME_PARTS_H

#include "core/directory.h"
#include "core/mailbox.h"
#include "core/runtime.h"
#include "core/timers.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#define TR_CACHE_LINE     64
#define TR_READY_WORDS    (TR_ACTORS_MAX / 64)
#define TR_POLLERS_MAX    4
#define TR_TIMERS_MAX     4096 /* waiting timers of one worker */
#define TR_WAITING_MAX    4096 /* messages from other nodes that wait for room in a mailbox */
#define TR_OUTGOING_SLOTS 1024 /* messages to one node that wait for worker 0 */
#define TR_BATCH_MAX      64   /* messages that an actor handles before others have their turn */
#define TR_WAITING_NONE   UINT32_MAX

#define TR_WORKER_TRACE_EVENTS (1u << 15) /* of each worker: 1 MiB of the newest events */

#define TR_NEWS_UP 16 /* shift in tr_local.peers_news */

static_assert(TR_NODES_MAX <= TR_NEWS_UP, "nodes that went and nodes that came share 32 bits");

typedef struct tr_worker tr_worker;

typedef struct {
    tr_msg msg; /* owns the payload reference */
    const tr_directory_entry *target;
} tr_outbox_entry;

/* An actor of this node, or a port (ops == NULL). */
typedef struct tr_local {
    /* read by senders, constant after start */
    tr_mailbox *mailbox; /* owns */
    tr_worker *worker;   /* borrows; NULL for a port */
    uint32_t ready_word; /* where its bit is in worker->ready */
    uint64_t ready_bit;
    void (*wake)(void *ctx); /* of a port; may be NULL */
    void *wake_ctx;

    /* by the worker, constant after start */
    tr_env env; /* ctx is this struct */
    tr_runtime *rt;
    const tr_directory_entry *entry;
    const tr_actor_ops *ops;
    const void *config; /* borrowed; looked at again only when ops->restarts_max > 0 */
    void *state;        /* owns; ops->state_size bytes */

    /* Nodes whose death it has not been told yet, one bit each, and above TR_NEWS_UP those whose
     * return it has not. Set by any thread. */
    alignas(TR_CACHE_LINE) _Atomic uint32_t peers_news;
    /* A port's reader was woken and has not found the mailbox empty since. */
    _Atomic uint32_t signaled;

    /* the worker's own. outbox is a ring: outbox_count entries from outbox_first on. */
    alignas(TR_CACHE_LINE) tr_outbox_entry *outbox; /* owns; [outbox_max] */
    uint32_t outbox_first;
    uint32_t outbox_count;
    uint32_t outbox_max;
    uint32_t sends;     /* of this receive, <= ops->outbox_slots */
    bool active;        /* init or receive is on the stack */
    bool alive;         /* init went well, teardown was not called */
    uint64_t step_told; /* last step that the batcher was told of as failed here */

    /* FIFO of messages from other nodes, in tr_runtime.waiting. Worker 0's. */
    uint32_t waiting_first;
    uint32_t waiting_last;

    /* written by the worker, read by anybody as statistics, relaxed */
    _Atomic uint64_t received_count;
    _Atomic uint64_t busy_ns;
    _Atomic uint32_t restarts;
    _Atomic bool failed;
} tr_local;

struct tr_worker {
    /* Actors with something to do. A producer sets the bit after its push, the worker clears it
     * before it pops; whoever comes second in the order of this word sees the other. */
    alignas(TR_CACHE_LINE) _Atomic uint64_t ready[TR_READY_WORDS];
    /* 1: the worker sleeps, or is about to, and wants a futex wake. See worker_sleep. */
    alignas(TR_CACHE_LINE) _Atomic uint32_t sleeping;

    /* the thread's own */
    alignas(TR_CACHE_LINE) uint64_t again[TR_READY_WORDS]; /* ready bits that need no atomic */
    uint64_t blocked[TR_READY_WORDS]; /* actors with something in the outbox: do not run */
    uint32_t ready_words;             /* words in use */
    tr_local *actors[TR_ACTORS_MAX];  /* borrows; by bit */
    uint32_t actors_count;
    tr_timers timers;
    tr_runtime *rt;
    uint32_t index;
    uint64_t trace_next;     /* low bits of the next trace id */
    uint64_t idle_since_ns;  /* 0: the last turn did something */
    uint64_t slept_since_ns; /* 0: has not slept since the last turn that did something */
    pthread_t thread;
};

typedef struct {
    tr_msg msg;
    uint32_t next; /* index or TR_WAITING_NONE */
} tr_waiting;

/* Messages to one node from others than the actors of worker 0. */
typedef struct {
    tr_mailbox *queue; /* owns; NULL when nobody stands there */
    tr_msg held;       /* popped, but the transport had no room */
    bool has_held;
} tr_outgoing;

struct tr_runtime {
    char node_name[TR_ACTOR_NAME_SIZE];
    uint32_t node_index;
    tr_pool *pool; /* borrows */
    uint64_t idle_spin_ns;
    uint64_t idle_sleep_ns;
    uint64_t (*now_ns)(void *ctx); /* the actors' time */
    void *clock_ctx;
    uint64_t relax_ns; /* of the spinning, before the processor is offered to others */

    tr_worker *workers; /* owns; [workers_count] */
    uint32_t workers_count;
    uint32_t workers_started;
    tr_remote remote;
    uint64_t no_room_since_ns[TR_NODES_MAX]; /* 0: the last message was taken. Worker 0's */
    struct {
        uint32_t (*poll)(void *ctx);
        void *ctx;
    } pollers[TR_POLLERS_MAX];
    uint32_t pollers_count;
    const tr_directory_entry *batcher; /* who is told of failures; NULL: nobody */
    bool started;
    bool torn_down;

    _Atomic uint64_t epoch;
    _Atomic bool stopping;
    _Atomic uint32_t dead_nodes; /* one bit each */
    _Atomic uint64_t post_trace_next;

    /* Nodes with something in outgoing[].queue: set by any thread, cleared by worker 0. */
    alignas(TR_CACHE_LINE) _Atomic uint32_t outgoing_ready;
    tr_outgoing outgoing[TR_NODES_MAX];
    uint32_t outgoing_again; /* worker 0's own bits of the same sort */

    /* Worker 0's. Free entries are a list through next. */
    tr_waiting *waiting; /* owns; [TR_WAITING_MAX] */
    uint32_t waiting_free;
    uint32_t waiting_count;
    uint64_t
        waiting_targets[TR_READY_WORDS]; /* who is waited for, by entry number in the directory */

    /* Messages that were dropped, by reason; relaxed statistics. */
    _Atomic uint64_t dropped_unknown; /* from a peer, for a target that is not here */
    _Atomic uint64_t dropped_full;    /* from a peer, the waiting list was full */
    _Atomic uint64_t dropped_failed;  /* to an actor that has failed for good */
    _Atomic uint64_t dropped_dead;    /* to a node that is dead */
    _Atomic uint64_t dropped_epoch;   /* from a peer, of a step under another placement */

    tr_directory directory;
};

static inline uint64_t tr_runtime_now_ns(const tr_runtime *rt)
{
    return rt->now_ns(rt->clock_ctx);
}

/* -- runtime.c -- */

/* Checks that the node is whole; nothing can be added afterwards. Starts nothing. */
tr_status tr_runtime_seal(tr_runtime *rt, tr_error *err);

/* -- delivery.c -- */

/* The functions behind tr_env. ctx is the tr_local. */
tr_status tr_local_send(void *ctx, tr_actor_id target, tr_msg_kind kind, uint64_t step,
                        uint32_t argument, tr_buf *payload);

/* The same without the rules for actors: not counted among the sends of a receive. */
tr_status tr_local_send_to(tr_local *local, const tr_directory_entry *target, tr_msg_kind kind,
                           uint64_t step, uint32_t argument, tr_buf *payload);

/* Sends what waits in the outbox; true when it is empty. Thread: the actor's worker. */
bool tr_local_flush(tr_local *local);

/* Makes the worker look at local after a push, or wakes a port's reader. Thread: any. */
void tr_local_notify(tr_local *local);

/* Worker 0: sends what outgoing holds; returns the number of messages that left. */
uint32_t tr_runtime_send_outgoing(tr_runtime *rt);
/* Worker 0: retries the waiting list; returns the number of messages that found room. */
uint32_t tr_runtime_retry_waiting(tr_runtime *rt);

/* The header of a message of this node. */
tr_msg tr_runtime_message(const tr_runtime *rt, tr_actor_id source, tr_actor_id target,
                          tr_msg_kind kind, uint64_t step, uint32_t argument, uint64_t trace_id,
                          tr_buf *payload);

/* -- worker.c -- */

uint64_t tr_worker_trace_id(tr_worker *worker);

/* Sets the bit of local; for the thread of the worker itself without an atomic. */
void tr_worker_ready_own(tr_worker *worker, const tr_local *local);
void tr_worker_ready(tr_worker *worker, const tr_local *local);

/* Wakes the worker if it sleeps. What it is to see was stored with memory_order_seq_cst. */
void tr_worker_wake(tr_worker *worker);

/* The parts of a turn, for by_hand.c: all but the actors, and one message for one of them (or the
 * news of dead nodes). Each returns how many things happened. */
uint32_t tr_worker_prepare(tr_worker *worker);
uint32_t tr_worker_run_one(tr_worker *worker, tr_local *a);

/* Whether something waits for room, so that only another try can tell when there is some. */
bool tr_worker_is_blocked(const tr_worker *worker);

/* The thread function; arg is the tr_worker. */
void *tr_worker_main(void *arg);

/* -- supervisor.c -- */

/* Calls init on a fresh state. */
tr_status tr_local_init(tr_local *local, tr_error *err);
void tr_local_teardown(tr_local *local);

/* After receive returned something else than TR_OK. Thread: the actor's worker. */
void tr_local_failed(tr_local *local, const tr_msg_header *header, tr_status status);

/* A message for an actor that has failed for good: tells the batcher, once for each step. */
void tr_local_refuse(tr_local *local, const tr_msg_header *header);

#endif
