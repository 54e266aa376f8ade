/* cluster_node.h - the inside of a tr_cluster, shared by cluster*.c and their tests. */
#ifndef TR_ACTORS_CLUSTER_NODE_H
#define TR_ACTORS_CLUSTER_NODE_H

#include "actors/cluster.h"
#include "actors/cluster_host.h"
#include "actors/switch.h"
#include "core/trace.h"
#include "transport/transport.h"

#include <pthread.h>
#include <time.h>

#define CLUSTER_ACTORS_MAX 8 /* kinds of one node: one actor of each kind */

/* An actor of this node. */
typedef struct {
    const tr_actor_ops *ops;
    tr_actor_kind kind;
    uint32_t number; /* within the kind */
    uint32_t worker;
    void (*count)(const tr_node_context *node, tr_arena *counting, tr_budget *budget);
} cluster_actor;

/* What an actor has under one placement. */
typedef struct {
    tr_arena arena;
    size_t arena_size;
    tr_actor_config config;
    void *fresh; /* owns, [ops->state_size]; the state with which the actor goes over; NULL for the
                    placement of the start, whose states the runtime made */
} cluster_actor_view;

/* All that depends on the placement. There is one while nothing changes, and two during a change.
 */
typedef struct {
    tr_plan plan;
    tr_node_context node;
    cluster_actor_view actors[CLUSTER_ACTORS_MAX]; /* as tr_cluster.actors */
    tr_budget parts; /* what all of it takes, with what other views share with it */
} cluster_view;

/* How far the transport is with a node that comes back. */
typedef enum {
    CLUSTER_LINK_NONE,
    CLUSTER_LINK_ASKED,
    CLUSTER_LINK_DONE,
    CLUSTER_LINK_FAILED
} cluster_link;

/* What this node knows of another. */
typedef struct {
    struct tr_cluster *cluster; /* borrows */
    uint32_t index;
    tr_control_client *control;
    cluster_thread thread; /* heartbeats */
    uint64_t heard_ns;     /* its last answer; the heartbeats' own */
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    size_t address_size;
    cluster_link link;            /* these two and the address under peers_lock, once it was lost */
    tr_error link_error;          /* FAILED */
    _Atomic uint64_t life;        /* which of its lives we know; 0: none yet */
    _Atomic uint64_t fingerprint; /* of its kernels; after a return only the batcher's node and the
                                     node that came back know each other's */
    _Atomic bool alive;           /* changes under peers_lock */
    _Atomic bool ready;           /* it said that its workers run */
    _Atomic int64_t clock_offset_ns;
    _Atomic uint64_t round_trip_ns; /* smallest seen; UINT64_MAX before the first */
} cluster_peer;

/* What memory the sequences have on this node, asked of the attention shard. */
typedef struct {
    tr_lease_view *rows; /* owns, [sequences_max] */
    uint8_t **pages;     /* owns; what the rows point into */
} cluster_leases;

typedef enum {
    CLUSTER_CHANGE_NONE,
    CLUSTER_CHANGE_PREPARING,
    CLUSTER_CHANGE_READY,
    CLUSTER_CHANGE_FETCHING,
    CLUSTER_CHANGE_COMMITTED,
    CLUSTER_CHANGE_RETIRING,
    CLUSTER_CHANGE_FAILED,
    CLUSTER_CHANGE_ABORTING,
    CLUSTER_CHANGE_STUCK /* some actor did not go over: the node cannot go on */
} cluster_change_phase;

/* Questions to actors of this node, one at a time. The counts only grow: an answer that comes after
 * its deadline is not taken for that of the next question, which waits for both. */
typedef struct {
    pthread_mutex_t lock; /* held by whoever asks; taken after cluster_change.lock */
    uint32_t posted;
    _Atomic uint32_t answered;
} cluster_questions;

/* Measures ways to other nodes: cluster_hops.c. */
typedef struct {
    pthread_mutex_t lock; /* one at a time; guards the rest */
    tr_actor_id port;
    uint64_t asked; /* questions so far: an answer that comes late is none */
} cluster_hops;

/* What has been copied of a sequence's full pages while steps ran. */
typedef struct {
    uint32_t generation; /* of the lease that they belong to */
    uint32_t pages;      /* of every part that comes */
} cluster_warm;

/* This node's half of a change of placement. */
typedef struct {
    bool opened;
    pthread_mutex_t lock; /* guards all but the leases */
    cluster_change_phase phase;
    uint64_t epoch;       /* of the plan of the change under way, or of the last one */
    cluster_view *view;   /* owns; the one to come */
    cluster_view *before; /* owns; the one that was, until it is retired */
    cluster_thread thread;
    tr_error err;              /* why it failed */
    uint64_t bytes;            /* that it needs, then those and the states that came */
    _Atomic bool abandoned;    /* the thread is to end early and to free what it has made */
    uint32_t *positions;       /* [sequences_max] computed positions of each sequence */
    tr_sequence_place *places; /* [sequences_max] the same, while steps run */
    cluster_warm *warm;        /* [sequences_max] */
    cluster_leases ours,
        asked; /* for fetching, and for peers that fetch from us; under
                  questions.lock while they are filled, asked also while it is read */
} cluster_change;

struct tr_cluster {
    const tr_placement *placement;
    tr_cluster_options options;
    uint32_t node_index;
    tr_model *model;               /* owns */
    struct cluster_stream *stream; /* owns; cluster_stream.h; NULL when no node streams */
    tr_plan_shape shape;
    tr_node_context node; /* limits and the like; its plan is NULL: see view */
    cluster_view *view;   /* owns; current; replaced under lock */
    tr_weight_store *store;
    tr_kv_memory kv_memory;
    cluster_change change;
    _Atomic uint64_t states_open_ns; /* until then they may be read and written; cluster_states.h */
    struct cluster_moves *moves;     /* owns; on the batcher's node */
    tr_node_counters counters;
    tr_expert_heat heat;
    tr_budget budget; /* at start */
    const tr_kernels *kernels;
    uint64_t fingerprint;
    uint64_t life; /* random, not 0: tells this process from others that were this node */
    bool joins;    /* the cluster runs already, without us */
    tr_team *teams[TR_WORKERS_MAX];
    uint32_t teams_count;
    tr_pool *pool;
    uint32_t pool_count; /* buffers in it */
    tr_runtime *runtime;
    const tr_transport_ops *transport_ops; /* NULL in a cluster of one node */
    tr_transport *transport;
    uint8_t address[TR_ADDRESS_SIZE_MAX]; /* our own; with peers_lock once the workers run */
    size_t address_size;
    tr_control_server *control;
    cluster_actor actors[CLUSTER_ACTORS_MAX];
    uint32_t actors_count;
    cluster_hops hops;
    cluster_questions questions;         /* of changes */
    struct cluster_lent *lent;           /* owns, under questions.lock; cluster_take_back */
    cluster_questions batcher_questions; /* to the batcher, which may take long to answer */
    uint64_t weights_size;               /* bytes of all arenas and their matrices, for progress */
    uint64_t weights_done;
    tr_client *clients[TR_NODE_CLIENTS_MAX];
    uint32_t clients_count;
    cluster_peer peers[TR_NODES_MAX];
    pthread_mutex_t peers_lock; /* who is there changes under it; taken before lock */
    _Atomic uint32_t relink;    /* bit per node to which worker 0 is to connect anew */
    int wake_fd;                /* eventfd: something for tr_cluster_wait_shutdown */
    _Atomic bool started;       /* our workers run: what "ready" answers */
    _Atomic bool serving;       /* all nodes' workers run, and peers are watched */
    _Atomic bool stopping;
    _Atomic bool shutdown_requested;
    _Atomic bool shutdown_all; /* peers are told to stop too */
    pthread_mutex_t lock;      /* guards what follows, and view; the innermost */
    tr_error lost;             /* code TR_OK while the placement uses nobody who is gone */
    uint64_t lost_ns;          /* since when */
    bool recovering;           /* it will be changed to one that does not */
    uint32_t missing;          /* bit per node that is gone and was used; until it has its share */
};

/* -- what the files of a cluster share -- */

/* Whether a node, this one or a peer, is there as far as we know. */
static inline bool cluster_is_alive(const tr_cluster *c, uint32_t node)
{
    return node == c->node_index || atomic_load(&c->peers[node].alive);
}

/* Bit per node that is there. */
static inline uint32_t cluster_members(const tr_cluster *c)
{
    uint32_t members = 0;
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        members |= cluster_is_alive(c, n) ? 1u << n : 0;
    return members;
}

/* cluster_view.c */

/* A view of a plan, which it takes over; nothing is counted yet. NULL: no memory, plan freed. */
cluster_view *cluster_view_new(tr_plan *plan);

/* Counts what the view needs beyond what the store has, and adds it to the budget's rows. */
void cluster_view_count(tr_cluster *c, cluster_view *view, tr_budget *budget);

/* Fills view->parts. */
void cluster_view_count_parts(const tr_cluster *c, cluster_view *view);

/* Takes the arena of actor number i. */
tr_status cluster_view_allocate(tr_cluster *c, cluster_view *view, uint32_t i, tr_error *err);

/* Takes memory and builds the states with which the actors go over. Long; any thread but a worker.
 */
tr_status cluster_view_load(tr_cluster *c, cluster_view *view, tr_error *err);

/* Makes every actor of this node go over, and waits until they have. No step may be in flight; the
 * caller holds questions.lock. The
 * view becomes the current one; *before is the one that it replaced.
 * errors  TR_E_TIMEOUT: some actor did not answer, and the node cannot go on */
tr_status cluster_view_switch(tr_cluster *c, cluster_view *view, cluster_view **before,
                              uint64_t deadline_ns, tr_error *err);

/* Puts one question (switch.h) to the actor of a kind on this node and waits for its answer. The
 * caller holds q->lock. What the question points to must outlive the cluster's runtime if it is not
 * answered in time. */
tr_status cluster_ask(tr_cluster *c, cluster_questions *q, tr_actor_kind kind, tr_switch *question,
                      uint64_t deadline_ns, tr_error *err);

/* Memory of a question to an actor, zeroed; NULL: none. Taken back when the question has ended,
 * with questions.lock held: freed if it was answered. Otherwise the actor may yet use it, and it is
 * freed with the node's memory, when no actor is left. */
void *cluster_lend(size_t size);
void cluster_take_back(tr_cluster *c, void *memory, bool answered);
void cluster_free_lent(tr_cluster *c);

/* Frees a view that no actor uses. NULL is allowed. */
void cluster_view_free(tr_cluster *c, cluster_view *view);

/* cluster_change.c: what the coordinator asks of each node; see the diagram there. Any thread. */
tr_status cluster_change_open(tr_cluster *c, tr_error *err);
void cluster_change_close(tr_cluster *c);
uint64_t cluster_change_bytes(const tr_cluster *c); /* that open takes */

/* Begins to load a plan (tr_plan_encode); nothing to do when it has begun. What another has left
 * that has been prepared is freed first.
 * errors  TR_E_INVALID the bytes, or one as new has been seen; TR_E_NOMEM the budget does not admit
 *         it; TR_E_AGAIN a former one is being undone: it is to be asked again */
tr_status cluster_change_prepare(tr_cluster *c, const void *bytes, size_t size, tr_error *err);

/* Where the change is; why it failed, if it did. */
cluster_change_phase cluster_change_status(tr_cluster *c, uint64_t *bytes, tr_error *err);

/* Begins to fetch the states that come to this node. The batcher is paused.
 *   positions [positions_count] computed positions of each sequence, 0: no state */
tr_status cluster_change_fetch(tr_cluster *c, uint64_t epoch, const uint32_t *positions,
                               uint32_t positions_count, tr_error *err);

/* Begins to copy the full pages that come to this node, while steps run. Sequences that end
 * meanwhile are left out.
 *   places [count] how far the sequences are */
tr_status cluster_change_warm(tr_cluster *c, uint64_t epoch, const tr_sequence_place *places,
                              uint32_t count, tr_error *err);

/* Makes the actors of this node go over; nothing to do when they have.
 * errors  TR_E_TIMEOUT: some did not, and the node is stuck */
tr_status cluster_change_commit(tr_cluster *c, uint64_t epoch, tr_error *err);

/* Begins to undo a change that has not been committed; nothing to do when there is none. */
tr_status cluster_change_abort(tr_cluster *c, uint64_t epoch, tr_error *err);

/* Begins to free what the change has left behind; once more does no harm. */
tr_status cluster_change_retire(tr_cluster *c, uint64_t epoch, tr_error *err);

/* cluster_answers.c: adds the control methods of a change. */
void cluster_answers_register(tr_cluster *c);

/* cluster_moves.c: the coordinator. */
tr_status cluster_moves_open(tr_cluster *c, tr_error *err);
void cluster_moves_stop(tr_cluster *c); /* waits for a change under way, which fails */
void cluster_moves_close(tr_cluster *c);

/* A node that the placement uses is gone: begins to change the placement to one without it. Any
 * thread, does not wait. */
void cluster_moves_recover(tr_cluster *c, uint32_t node);

/* cluster_health.c: whether the others go on when a node is lost, if they can hold its share. */
bool cluster_outlives(const tr_cluster *c, uint32_t node);

/* The placement or who is there has changed: the requests wait no more for nodes that are gone and
 * that it does not use; those that are there and have a share, or were drained, are not missing any
 * more; one that was lost before it was used is missed now.
 *   before  the placement that was, or NULL when it is the same
 * Returns a bit per node that is missed. */
uint32_t cluster_review_losses(tr_cluster *c, const tr_plan *before);

/* Notes that a node is gone that the placement uses. With c->lock held. */
void cluster_note_lost(tr_cluster *c, uint32_t node, const char *reason);

/* cluster_mirrors.c: whether the nodes that a plan lets compute the same give the same bits.
 *   there  bit per node that counts
 * errors  TR_E_INVALID names the layer, the nodes and the key of the placement file */
tr_status cluster_check_mirrors(const tr_cluster *c, const tr_plan *plan, uint32_t there,
                                tr_error *err);

/* Says so in the log when the nodes' kernels differ. */
void cluster_note_kernels(const tr_cluster *c);

/* cluster_hops.c. Open: before the runtime starts. Measure: a message from this node to each other,
 * one way, 0: itself, gone or no answer; takes milliseconds for each node, any thread but a worker;
 * false when somebody measures already. */
tr_status cluster_hops_open(tr_cluster *c, tr_error *err);
bool cluster_hops_measure(tr_cluster *c, uint64_t hop_ns[TR_NODES_MAX]);
uint64_t cluster_hops_bytes(void); /* what open takes of the memory budget */

/* cluster_memory.c: whether this node changes the placement when another is lost. */
bool cluster_recovers(const tr_cluster *c);

/* cluster_peers.c: where a node's control socket is. */
void cluster_control_url(const tr_cluster *c, uint32_t node, char *out, size_t size);

/* cluster_memory.c: limits from placement and model, the budget, then what it admits. */
tr_status cluster_count_memory(tr_cluster *c, tr_error *err);
void cluster_count_fixed(const tr_cluster *c, tr_budget *budget); /* what no placement changes */
tr_status cluster_take_memory(tr_cluster *c, tr_error *err);
void cluster_free_memory(tr_cluster *c);
uint64_t cluster_memory_taken(tr_cluster *c); /* any thread */

/* cluster_peers.c: hello, ready, heartbeats. */
tr_status cluster_open_peers(tr_cluster *c, tr_error *err);
tr_status cluster_open_control(tr_cluster *c, tr_error *err); /* with the methods of nodes */
tr_status cluster_meet_peers(tr_cluster *c, uint64_t deadline_ns, tr_error *err);
tr_status cluster_await_ready(tr_cluster *c, uint64_t deadline_ns, tr_error *err);
tr_status cluster_start_heartbeats(tr_cluster *c, tr_error *err); /* TR_E_NOMEM: no thread */
void cluster_close_peers(tr_cluster *c);

/* What came of a ping. GONE: the peer answers that it has given us up. OTHER: it is not the one
 * that we know, but another life of the node. */
typedef enum { PING_SILENCE, PING_ANSWERED, PING_GONE, PING_OTHER } cluster_ping;

/* Notes a ping's outcome; a peer that has been silent for peer_timeout, or does not count on us any
 * more, is lost. Returns whether it still counts as alive. Thread: the heartbeats'. */
bool cluster_peer_judge(cluster_peer *peer, cluster_ping ping, uint64_t now_ns);

/* A call that has the method, our name and our life; more_count pairs are added by more. */
tr_status cluster_call_peer(cluster_peer *peer, const char *method,
                            void (*more)(void *ctx, msgpack_packer *pk), void *more_ctx,
                            uint32_t more_count, uint64_t deadline_ns, tr_control_reply *reply,
                            tr_error *err);

/* What a node says of itself when it meets others: 8 pairs. */
void cluster_pack_identity(tr_cluster *c, msgpack_packer *pk);

/* Checks what a peer says of itself, and takes its address and its life. */
tr_status cluster_read_identity(cluster_peer *peer, const msgpack_object *map, tr_error *err);

/* Listens at this node's control URL. */
tr_status cluster_listen(tr_cluster *c, tr_error *err);

/* Says hello to one peer and connects to it. */
tr_status cluster_meet_peer(tr_cluster *c, uint32_t node, uint64_t deadline_ns, tr_error *err);

/* cluster_join.c: a node that was lost is there again. */

/* Adds the control methods of the members. */
void cluster_join_register(tr_cluster *c);

/* Asks the batcher's node whether the cluster runs already, and for its plan if it does.
 * *running: plan is set. errors  TR_E_PEER, TR_E_INVALID */
tr_status cluster_ask_plan(tr_cluster *c, tr_plan *plan, bool *running, tr_error *err);

/* Becomes a member of a cluster that runs; starts the workers. Instead of meeting the peers.
 * errors  TR_E_AGAIN: the placement has changed meanwhile, this node has to be opened anew */
tr_status cluster_join(tr_cluster *c, tr_error *err);

/* Worker 0: connects to the nodes of c->relink anew. */
void cluster_relink(tr_cluster *c);

/* Which peer a request comes from, and which life of it.
 * errors  TR_E_INVALID naming the method, the field and what was expected */
tr_status cluster_read_sender(tr_cluster *c, const msgpack_object *request, const char *method,
                              uint32_t *node, uint64_t *life, tr_error *err);

/* cluster_moves_join.c: what the coordinator answers to such a node. */
void cluster_moves_join_register(tr_cluster *c);

/* cluster_hand.c: peers without sockets. */
tr_status cluster_hand_open_peers(tr_cluster *c, tr_error *err);

/* A peer is gone. Any thread, idempotent. */
void cluster_peer_lost(tr_cluster *c, uint32_t node, const char *reason);

/* client.c */
void cluster_free_client(tr_client *client);
uint64_t cluster_client_bytes(void); /* of each */

#endif
