/* world.h - all nodes of a cluster on one thread and one virtual clock.
 *
 * A node does one thing at a time (tr_runtime_step), and each takes it some virtual time. The next
 * node to act is the one that can act first; what it does then is chance, from the seed. Heartbeats
 * ask the network whether a peer can be reached. What runs beside the actors (the coordinator of
 * changes, loading, answers to control calls) are tasks of the nodes, and their calls travel. */
#ifndef TR_TESTS_SIM_WORLD_H
#define TR_TESTS_SIM_WORLD_H

#include "actors/cluster_hand.h"
#include "tests/sim/random.h"
#include "tests/sim/tasks.h"
#include "transport/sim/sim.h"

#define WORLD_NODES_MAX 8
#define WORLD_TASKS_MAX 128
#define WORLD_MS        1000000u
#define WORLD_SECOND    1000000000u

typedef struct {
    const tr_sim_net *net;
    uint64_t offset_ns;
} world_clock;

typedef struct {
    sim_task *task; /* owns; NULL: the place is free */
    uint32_t node;
    uint64_t wake_ns;
    bool detached; /* nobody joins it */
    bool answers;  /* a call */
} world_task;

typedef struct world_call world_call; /* world_tasks.c */

typedef struct {
    struct world *world;
    uint32_t index;
    tr_cluster_hand hand;
    tr_cluster *cluster; /* owns; NULL: the node is down */
    tr_client *client;   /* the cluster's */
    world_clock clock;
    uint64_t free_ns;    /* it is busy until then */
    uint64_t awake_ns;   /* it is stopped (as by SIGSTOP) until then */
    uint32_t cost_ns;    /* of a thing that it does */
    uint32_t slow;       /* times that */
    uint64_t restart_ns; /* it is started again then; UINT64_MAX: not */
    uint32_t restarts;   /* tries in a row */
    uint32_t life;       /* how often it was made; its clients number their requests anew */
    bool starts;         /* a task brings it up */
    bool start_failed;
    bool ends; /* its tasks run to their end at once, and nobody hears them */
} world_node;

typedef struct world {
    tr_placement placement;
    tr_sim_net *net;
    sim_random random;
    world_node nodes[WORLD_NODES_MAX];
    uint32_t nodes_count;
    uint64_t beat_ns; /* of the next heartbeats */
    uint64_t beats;
    uint32_t joins; /* of nodes that were started again */
    bool lost;      /* somebody was declared dead since the last boot */
    uint64_t
        notice_ns; /* a caller hears within this time that the other node died; UINT64_MAX: not */
    uint32_t breaks_one_in; /* control calls whose connection is lost; 0: none */
    uint64_t load_max_ns;   /* until a task has its turn or its disk, sometimes */
    world_task tasks[WORLD_TASKS_MAX];
    world_call *calls;
} world;

/* Reads the placement, makes the network. Nothing runs. */
tr_status world_open(world *w, const char *yaml, const tr_sim_config *net, uint64_t seed,
                     tr_error *err);

/* Starts every node, with a client on each. They must all be down. */
tr_status world_boot(world *w, tr_error *err);

/* A node dies without a word. */
void world_crash(world *w, uint32_t node);

/* A node stops as it should, and tells its peers. */
void world_leave(world *w, uint32_t node);

/* A node that is down is started again at at_ns, and joins the cluster if that runs. */
void world_restart(world *w, uint32_t node, uint64_t at_ns);

/* Whether a node would end by itself: it was told to, or has lost the batcher's. */
bool world_would_end(const world *w, uint32_t node);

void world_stop_all(world *w);
void world_close(world *w);

uint64_t world_now_ns(const world *w);

/* When anything happens next; UINT64_MAX: never. */
uint64_t world_next_ns(const world *w);

/* Moves the clock to at_ns >= world_next_ns and lets the first thing happen. Returns the node that
 * acted, WORLD_NODES_MAX for none. */
uint32_t world_step(world *w, uint64_t at_ns);

/* The clock of a node; ctx is its world_clock. */
uint64_t world_clock_ns(const world_clock *clock);

/* Nothing is under way and nobody has anything to do but timers. */
bool world_is_quiet(const world *w);

/* world_tasks.c: for tr_cluster_hand; ctx is the world_node. */
void *world_spawn(void *ctx, void *(*run)(void *), void *arg);
void world_join(void *ctx, void *task);
void world_sleep(void *ctx, uint64_t ns);
tr_status world_call_node(void *ctx, uint32_t to, const _Atomic bool *there,
                          const msgpack_sbuffer *request, uint64_t deadline_ns,
                          tr_control_reply *reply, tr_error *err);
void world_end_answers(void *ctx);

/* A node is gone: calls that are on their way to it do not arrive. */
void world_break_calls(world *w, uint32_t node);

/* When a task or a call goes on next. */
uint64_t world_tasks_next_ns(const world *w);
uint64_t world_task_next_ns(const world *w, const world_task *task);

/* Lets one call arrive or return; false when none does by at_ns. */
bool world_call_step(world *w, uint64_t at_ns);

/* Begins a task that nobody joins. */
void world_spawn_detached(world_node *node, void *(*run)(void *));

/* Lets the tasks of a node that ends run to their ends, but for those that somebody joins. */
void world_end_tasks(world_node *node);

/* Lets task number i go on until it gives way. */
void world_task_step(world *w, uint32_t i);

/* No task runs, no call is under way. */
bool world_tasks_are_idle(const world *w);

#endif
