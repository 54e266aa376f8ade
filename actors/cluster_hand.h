/* cluster_hand.h - a node without threads, sockets and a clock of its own: whoever opens it decides
 * what happens when. The simulator runs whole clusters so, on one thread.
 *
 * Life: open each node with tr_cluster_options.hand -> tr_client_open (with a wake function) ->
 * connect each to each -> start each -> step ... -> stop, close. What control sockets, threads and
 * heartbeats do for a node that serves is the caller's: connect stands for hello, beat for a
 * heartbeat; what runs beside the actors (the coordinator of changes, loading, answers to other
 * nodes) are tasks, of which one runs at a time. */
#ifndef TR_ACTORS_CLUSTER_HAND_H
#define TR_ACTORS_CLUSTER_HAND_H

#include "actors/cluster.h"
#include "transport/transport.h"

struct tr_cluster_hand {
    const tr_transport_ops *transport; /* instead of the placement file's */
    const char *transport_options;     /* borrowed while the node opens */
    void *ctx;                         /* of the functions below */
    uint64_t (*now_ns)(void *ctx);     /* time of the node */

    /* A task of this node. It gives way to others, and to the actors, only inside sleep, join and
     * call; a task that is joined from outside of all tasks must have ended or be able to.
     * NULL: there is none. */
    void *(*spawn)(void *ctx, void *(*run)(void *), void *arg);
    void (*join)(void *ctx, void *task); /* frees it */
    void (*sleep)(void *ctx, uint64_t ns);

    /* A task's call to the control server of a node (tr_cluster_hand_answer), as tr_control_call.
     * It ends soon after *there has become false, unless there is NULL. */
    tr_status (*call)(void *ctx, uint32_t node, const _Atomic bool *there,
                      const msgpack_sbuffer *request, uint64_t deadline_ns, tr_control_reply *reply,
                      tr_error *err);

    /* The node stops: returns when no task answers for it any more. */
    void (*end_answers)(void *ctx);

    /* What is spawned for an actor of this kind: ops itself, or a table that wraps it and watches
     * or disturbs what it does. NULL: ops. */
    const tr_actor_ops *(*replace)(tr_actor_kind kind, const tr_actor_ops *ops);
};

/* Connects the node's transport to that of a peer in this process. */
tr_status tr_cluster_hand_connect(tr_cluster *cluster, const tr_cluster *peer, tr_error *err);

/* The node serves from here on. */
tr_status tr_cluster_hand_start(tr_cluster *cluster, tr_error *err);

/* A node that was started again (tr_cluster_options.may_join) becomes a member of the cluster that
 * runs: instead of connect and start, by a task, as is its open. errors  as tr_cluster_start;
 * TR_E_PEER: no cluster runs */
tr_status tr_cluster_hand_join(tr_cluster *cluster, tr_error *err);

/* Its actors may be stepped. */
bool tr_cluster_hand_runs(const tr_cluster *cluster);

/* A step has something to do that tr_runtime_next_ns does not know of. */
bool tr_cluster_hand_is_pressed(const tr_cluster *cluster);

/* A heartbeat: asks node `index` whether it is there. peer is its cluster, or NULL when neither
 * question nor answer gets through. now_ns is on one clock for all calls. Returns whether the peer
 * still counts as alive. */
bool tr_cluster_hand_beat(tr_cluster *cluster, uint32_t index, const tr_cluster *peer,
                          uint64_t now_ns);

/* Answers a control call of another node, or of its own: fills reply with the whole map. By a task.
 */
void tr_cluster_hand_answer(tr_cluster *cluster, const void *bytes, size_t size,
                            msgpack_sbuffer *reply);

/* A peer says that it stops. Idempotent. */
void tr_cluster_hand_leave(tr_cluster *cluster, uint32_t index);

#endif
