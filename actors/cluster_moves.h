/* cluster_moves.h - the coordinator of changes of placement, shared by cluster_moves*.c,
 * cluster_balance.c and cluster_snapshot.c and by nothing else: cluster_moves.c has the changes in
 * their order, cluster_moves_run.c carries one out, cluster_moves_join.c lets nodes in that come
 * back. What else must not meet a change, or finds one first, is a job in the same order. */
#ifndef TR_ACTORS_CLUSTER_MOVES_H
#define TR_ACTORS_CLUSTER_MOVES_H

#include "actors/cluster_node.h"

#define MOVES_REPORTS 16

/* A node that comes back.
 *
 *   NONE --join--> ASKED --members have connected--> LINKED --join ready--> READY --> NONE */
typedef enum {
    MOVES_JOIN_NONE,
    MOVES_JOIN_ASKED,
    MOVES_JOIN_LINKED,
    MOVES_JOIN_READY
} moves_join_phase;

typedef struct {
    moves_join_phase phase;
    uint32_t node;
    uint64_t life;
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    size_t address_size;
    uint64_t heard_ns;     /* when it last asked */
    bool given_up;         /* another life of it has asked */
    cluster_peer newcomer; /* what whoever asks says of itself */
} moves_join;

struct cluster_moves;

/* What is done instead of a change of placement; likewise by the change's thread. */
typedef tr_status (*cluster_job)(struct cluster_moves *m, tr_change_report *report, tr_error *err);

typedef struct cluster_moves {
    tr_cluster *cluster;   /* borrows */
    cluster_thread thread; /* joined before the next change, and at the end */
    cluster_lines lines;   /* of the thread alone */
    tr_error given_up;
    bool gave_up;              /* the batcher was told so; of the thread */
    tr_plan home;              /* owns; when nobody was missing last; of the thread */
    uint32_t *positions;       /* owns, [sequences_max]; the batcher writes it, maybe late */
    tr_sequence_place *places; /* the same */
    pthread_mutex_t lock;      /* guards what follows */
    bool busy;
    bool stopped;      /* no change begins any more */
    uint32_t attempts; /* recoveries in a row that trouble between nodes has ended; of the thread */
    uint32_t lost;     /* bit per node that is gone and that no change has taken account of yet */
    uint32_t returning;   /* bit per node that is there again and may have a share to get back */
    uint32_t share_of;    /* 1 + node whose share the change under way gives back; 0: it does not */
    uint32_t share_tries; /* in a row that have failed */
    moves_join join;
    tr_plan plan;     /* owns while busy */
    uint32_t drained; /* bit per node from which plan takes everything; 0: it does something else */
    cluster_job job;  /* while busy with one; NULL: the change to plan */
    char job_path[TR_PATH_SIZE];
    tr_slot_view slot; /* owns its tokens; of the thread; the batcher writes it, maybe late */
    uint64_t next_number;
    uint64_t last_epoch; /* of the last change, done or failed: no two have the same */
    tr_change_report reports[MOVES_REPORTS]; /* ring by number */
    _Atomic bool job_given_up; /* a loss or the end must not wait for a search or a file */
    _Atomic bool abort_asked;  /* of the change under way, by tr_cluster_abort */
    tr_rebalance_options balance_options;
    tr_rebalance_report balance; /* the last one */
} cluster_moves;

/* Gives a plan its epoch. With the lock held. */
void moves_number(cluster_moves *m, tr_plan *plan);

/* cluster_balance.c: the job of a rebalance: measures, and carries out the change that it finds, if
 * it is worth one. */
tr_status moves_balance(cluster_moves *m, tr_change_report *report, tr_error *err);

/* cluster_moves_run.c; all of it is called by the change's thread. */

typedef struct {
    const char *method;
    uint64_t epoch;
    const char *key; /* of bytes, or NULL */
    const void *bytes;
    size_t size;
} moves_request;

/* Asks a node, this one or another. The reply is to be freed on success only. */
tr_status moves_call(cluster_moves *m, uint32_t node, const moves_request *r,
                     tr_control_reply *reply, tr_error *err);

/* Carries out the change to m->plan, and says in the report how far it is. When it fails nothing
 * has changed, unless the cluster has to end (it is told to).
 * errors  those of the nodes, each with its name */
tr_status moves_run(cluster_moves *m, tr_change_report *report, tr_error *err);

/* Shows how far it is. */
void moves_phase(cluster_moves *m, tr_change_report *report, const char *phase);

/* errors  TR_E_CANCELED when somebody has asked to abort the change */
tr_status moves_check_abort(const cluster_moves *m, tr_error *err);

/* Asks the batcher, and waits for its answer. */
tr_status moves_ask_batcher(cluster_moves *m, tr_switch_what what, uint64_t ns, tr_error *err);

/* After a pause: what the streams have seen of it. Waits a moment for the next token of each. */
void moves_note_gap(cluster_moves *m, tr_change_report *report);

/* No placement without the lost node: the requests end with the reason. */
void moves_give_up(cluster_moves *m, const tr_error *why);

/* After giving up: who is there has changed, or the placement. When it misses nobody any more,
 * requests are served. Returns a bit per node that it still misses. */
uint32_t moves_serve_again(cluster_moves *m);

/* cluster_moves.c: takes everything off the nodes of a mask, for others that are there.
 *   room  as tr_plan_drain has it
 * errors  its own */
tr_status moves_drain(const tr_cluster *c, tr_plan *plan, uint32_t nodes, const uint64_t *room,
                      uint32_t *moved, tr_error *err);

/* cluster_moves.c: starts the thread. With the lock held, while no change is under way. */
tr_status moves_start_thread(cluster_moves *m, tr_error *err);

/* cluster_moves_join.c; by the change's thread. */

/* Lets the node of m->join in. */
void moves_join_run(cluster_moves *m);

/* Before a plan without lost nodes is made of this one: it is what they are to get back. */
void moves_note_home(cluster_moves *m, const tr_plan *plan, uint32_t lost);

/* The plan that gives a node its share back, for tr_plan_free; false when there is none. */
bool moves_next_return(cluster_moves *m, tr_plan *plan, uint32_t *node, uint32_t *moved);

/* A change has ended: one that was to give a share back and failed is tried again, a few times.
 * With the lock held. */
void moves_note_return(cluster_moves *m, const tr_change_report *ended);

/* cluster_moves.c: begins a job with a file when nothing else is under way.
 *   what   for the report: "snapshot to"
 *   phase  its first
 * errors  as tr_cluster_move */
tr_status cluster_moves_begin_job(tr_cluster *c, cluster_job job, const char *what,
                                  const char *phase, const char *path, uint64_t *number,
                                  tr_error *err);

#endif
