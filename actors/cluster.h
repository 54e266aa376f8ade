/* cluster.h - one node of a cluster in this process: model, memory, actors, transport, peers.
 *
 * Life: open (everything is counted, checked and taken; nothing runs) -> tr_client_open as needed
 * -> start (peers meet, workers run) -> stop -> close. Several nodes of one placement may live in
 * one process (transport "loop"). */
#ifndef TR_ACTORS_CLUSTER_H
#define TR_ACTORS_CLUSTER_H

#include "actors/client.h"
#include "actors/rebalance.h"
#include "core/budget.h"
#include "core/model/model_spec.h"
#include "core/placement.h"
#include "core/runtime.h"
#include "kernels/kernels.h"
#include "transport/control.h"

typedef struct tr_cluster_hand tr_cluster_hand; /* actors/cluster_hand.h */

typedef struct {
    const char *kernels; /* backend name; NULL: "cpu" */
    void (*progress)(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx; /* progress may be NULL */
    bool may_join; /* when the cluster runs already, come back to it under its placement of now */
    uint64_t free_bytes; /* what this machine had free before any of its nodes was opened, for a
                            node without memory in the placement; 0: looked up while it opens */
    uint64_t front_end_bytes; /* what stands before the node takes, or may take; counted with it */
    const tr_cluster_hand *hand; /* borrowed; NULL: threads, sockets and the machine's clock */
} tr_cluster_options;

/* Opens model, plan, budget, weights and actors of node node_index.
 *
 *   placement  borrowed, must outlive the cluster
 *
 * The budget is tr_placement_memory, and stays what it was then; a node that is run by hand looks
 * at no machine, and has none unless the placement says it.
 *
 * errors  TR_E_INVALID model or placement; TR_E_NOMEM: the budget does not admit it (the table is
 *         printed to standard error); TR_E_NOTSUP: the placement does not say the memory, and the
 *         system does not say what is free; nothing is left behind */
tr_status tr_cluster_open(tr_cluster **out, const tr_placement *placement, uint32_t node_index,
                          const tr_cluster_options *options, tr_error *err);

/* Meets all peers (hello with fingerprint and model identity over the control sockets), connects
 * the transport, starts the workers. Returns when every node is ready or start_timeout_s passed.
 *
 * With may_join, and when the cluster runs already: becomes a member again instead. The batcher's
 * node then gives it its share back, if it was lost with one.
 *
 * errors  TR_E_AGAIN the cluster runs already, and not under the placement that was opened: close
 *         this node and open it anew */
tr_status tr_cluster_start(tr_cluster *cluster, tr_error *err);

/* DEGRADED: requests are answered, but a node that the placement used is gone. A node that was
 * drained before it went is not missed. */
typedef enum {
    TR_HEALTH_STARTING,
    TR_HEALTH_SERVING,
    TR_HEALTH_DEGRADED,
    TR_HEALTH_NOT_SERVING
} tr_health_state;

/* Whether requests are taken. */
static inline bool tr_health_takes_requests(tr_health_state state)
{
    return state == TR_HEALTH_SERVING || state == TR_HEALTH_DEGRADED;
}

typedef struct {
    tr_health_state state;
    char text[240];   /* "serving" or what is missing: "node spark2 is gone: no answer for 1.6 s" */
    uint32_t missing; /* bit per node that is gone, or is back and has not got its share yet */
} tr_health;

/* Thread: any. */
void tr_cluster_health(tr_cluster *cluster, tr_health *out);

typedef struct {
    char name[TR_NAME_SIZE];
    bool self;
    bool alive;
    const char *path;        /* what carries the data plane to it; "" for self */
    int64_t clock_offset_ns; /* its CLOCK_MONOTONIC minus ours */
    uint64_t round_trip_ns;  /* of the control plane, smallest seen */
} tr_peer_stat;

/* Fills one row per node, in placement order. Thread: any. */
uint32_t tr_cluster_peers(tr_cluster *cluster, tr_peer_stat *rows, uint32_t rows_max);

typedef struct {
    uint32_t sequences_active, sequences_max;
    uint32_t requests_waiting;
    uint32_t prefixes_kept;               /* of prompts, for later requests */
    uint32_t kv_pages_used, kv_pages_max; /* of this node; prefixes hold some */
    uint64_t steps, prompt_tokens, generated_tokens, requests_finished, requests_failed;
    uint64_t cached_tokens;             /* of prompts, that did not have to be computed */
    uint32_t buffers_free, buffers_max; /* message buffers of this node */
    uint64_t memory_bytes; /* taken, or kept for what may come; never above the budget */
} tr_cluster_stat;

/* Thread: any; figures are relaxed counters. Request figures are zero on nodes without batcher. */
void tr_cluster_stats(tr_cluster *cluster, tr_cluster_stat *out);

tr_runtime *tr_cluster_runtime(tr_cluster *cluster);
const tr_model *tr_cluster_model(const tr_cluster *cluster);
const tr_placement *tr_cluster_placement(const tr_cluster *cluster);

/* A copy of the current plan, for tr_plan_free. Thread: any. errors TR_E_NOMEM */
tr_status tr_cluster_plan(tr_cluster *cluster, tr_plan *out, tr_error *err);

/* What the experts of this node did since it was opened. Thread: any. */
const tr_expert_heat *tr_cluster_heat(const tr_cluster *cluster);

/* Bytes of one routed expert of a layer that has some, as it lies in memory. Thread: any. */
uint64_t tr_cluster_expert_bytes(const tr_cluster *cluster, uint32_t layer);

/* What the node needed at its start. */
const tr_budget *tr_cluster_budget(const tr_cluster *cluster);

/* The same under the placement of now. Matrices that parts share count for each of them. Thread:
 * any. */
void tr_cluster_memory(tr_cluster *cluster, tr_budget *out);

uint32_t tr_cluster_node_index(const tr_cluster *cluster);

/* Most tokens of one sequence (prompt and generated) that this cluster admits. */
uint32_t tr_cluster_context_max(const tr_cluster *cluster);

/* -- changes of placement; on the batcher's node -- */

/* What became of a change, or how far it is. */
typedef struct {
    uint64_t number;
    char what[160]; /* "move expert/0-3.1 to spark2" */
    char phase[16]; /* "measure" (rebalance), "prepare", "pause", "fetch", "switch", "retire", then
                       "done" or "failed" */
    uint32_t moved; /* terms, ranges and actors that stand elsewhere now */
    uint64_t epoch; /* of the new placement */
    bool asked;     /* somebody has asked for it; else a loss or a return is why */
    uint32_t lost;  /* bit per node that is gone, when that is why */
    uint32_t prefixes, sequences;            /* states in a snapshot, or that came from one */
    uint32_t left;                           /* states of a snapshot for which there was no room */
    uint64_t bytes;                          /* weights loaded and states fetched, over all nodes */
    uint64_t pause_bytes;                    /* those of them that came while streams waited */
    uint64_t prepare_ns, pause_ns, total_ns; /* pause: no step was formed */
    uint64_t gap_ns; /* the longest that any stream waited between two tokens; 0: none ran */
    tr_error error;  /* code TR_OK unless it failed; nothing has changed then */
} tr_change_report;

/* Begins to move parts (core/plan_edit.h says how they are written) to a node, by its name.
 * Thread: any. errors  TR_E_INVALID the part or the node, TR_E_AGAIN another change is under way,
 * TR_E_NOTSUP this is not the batcher's node (err names it) */
tr_status tr_cluster_move(tr_cluster *cluster, const char *part, const char *node, uint64_t *number,
                          tr_error *err);

/* Begins to move everything off a node. The batcher stays. errors  as tr_cluster_move */
tr_status tr_cluster_drain(tr_cluster *cluster, const char *node, uint64_t *number, tr_error *err);

/* Begins to let experts stand on a node, too. errors  as tr_cluster_move */
tr_status tr_cluster_replicate(tr_cluster *cluster, const char *experts, const char *node,
                               uint64_t *number, tr_error *err);

/* Begins to give a node back what the placement file gives it. errors  as tr_cluster_move */
tr_status tr_cluster_undrain(tr_cluster *cluster, const char *node, uint64_t *number,
                             tr_error *err);

/* Ends the change that is under way, or the work with a file, before its switch: it fails, and
 * nothing has changed. Returns at once, with the change's number in *number; its report says what
 * became of it, because it may have come to its switch meanwhile. Thread: any.
 * errors  TR_E_INVALID nothing is under way, it is past its switch, or nobody has asked for it: a
 *         loss or a return has made it necessary; TR_E_NOTSUP as tr_cluster_move */
tr_status tr_cluster_abort(tr_cluster *cluster, uint64_t *number, tr_error *err);

/* Begins to write the states of all prefixes that are kept and of all sequences into a file on the
 * batcher's node; streams wait meanwhile. The phases are "pause", "write", "sync".
 * errors  as tr_cluster_move */
tr_status tr_cluster_snapshot(tr_cluster *cluster, const char *path, uint64_t *number,
                              tr_error *err);

/* Begins to take states from such a file, also under another placement; everything is served
 * meanwhile. A prefix serves the requests that begin with it; a sequence goes on when the same
 * request (prompt, sampling, stop tokens) is asked again, after the tokens that were drawn before.
 * The phases are "check", "load". errors  as tr_cluster_move */
tr_status tr_cluster_restore(tr_cluster *cluster, const char *path, uint64_t *number,
                             tr_error *err);

typedef struct {
    bool dry_run;     /* only say what would be done */
    double threshold; /* least gain for which it is done, in parts of a step */
} tr_rebalance_options;

/* What a rebalance measured and found. */
typedef struct {
    uint64_t number; /* of its change */
    tr_rebalance_options options;
    bool changes;                              /* the gain was enough, and the change was begun */
    tr_rebalance found;                        /* owns its edits */
    uint32_t nodes;                            /* bit per node that was asked */
    double hop_ns[TR_NODES_MAX][TR_NODES_MAX]; /* one way, on the data plane */
    tr_heat_cost costs[TR_NODES_MAX]; /* of an expert's rows in a step; mean of the layers */
} tr_rebalance_report;

/* Begins to measure, and then to move and replicate experts in one change, if the predicted gain is
 * worth it. The change is done with 0 parts moved when it is not. errors  as tr_cluster_move */
tr_status tr_cluster_rebalance(tr_cluster *cluster, const tr_rebalance_options *options,
                               uint64_t *number, tr_error *err);

/* What the last rebalance found; false while it measures, when it could not, and for others.
 * Thread: any. The caller frees out->found with tr_rebalance_free. */
bool tr_cluster_rebalance_report(tr_cluster *cluster, uint64_t number, tr_rebalance_report *out);

/* The report of a change; false when its number is not known (any more). Thread: any. */
bool tr_cluster_change_report(tr_cluster *cluster, uint64_t number, tr_change_report *out);

/* The control server of this node, to add admin methods before start. */
tr_control_server *tr_cluster_control(tr_cluster *cluster);

/* Asks this node to stop; tr_cluster_wait_shutdown returns then. Any thread, also a signal handler.
 */
void tr_cluster_request_shutdown(tr_cluster *cluster);

/* The same, and when this node stops it tells its peers to stop too, so that a service ends as a
 * whole and no node mourns another. Any thread. */
void tr_cluster_request_shutdown_all(tr_cluster *cluster);

/* Waits until a shutdown was requested, a peer was lost (with limits.exit_on_peer_loss any, else
 * the node of the batcher), or
 * deadline_ns passed (returns TR_E_TIMEOUT). TR_OK: asked to stop; TR_E_PEER: a peer was lost
 * (err says which). */
tr_status tr_cluster_wait_shutdown(tr_cluster *cluster, uint64_t deadline_ns, tr_error *err);

/* Ends the requests with TR_FINISH_CANCELED or TR_E_PEER, tells the peers, stops the workers.
 * Bounded by the calls of a change under way (15 s for each node), else 3 s. */
void tr_cluster_stop(tr_cluster *cluster);
void tr_cluster_close(tr_cluster *cluster);

#endif
