#include "tests/sim/world.h"

#include "core/by_hand.h"
#include "tests/sim/shim.h"

#include <stdio.h>
#include <string.h>

#define BEAT_NS  250000000u
#define RETRY_NS 20000u /* of a node that waits for room */

#define RESTART_NS   (200u * WORLD_MS) /* until a node that could not start is started again */
#define RESTARTS_MAX 20

uint64_t world_clock_ns(const world_clock *clock)
{
    return tr_sim_now_ns(clock->net) + clock->offset_ns;
}

static uint64_t node_now_ns(void *ctx)
{
    const world_node *node = ctx;
    return world_clock_ns(&node->clock);
}

/* The simulator looks at a client whenever its node did something. */
static void world_no_wake(void *ctx)
{
    (void)ctx;
}

tr_status world_open(world *w, const char *yaml, const tr_sim_config *net, uint64_t seed,
                     tr_error *err)
{
    *w = (world){.random = sim_seeded(seed, 4)};
    tr_status status = tr_placement_parse(&w->placement, "sim.yaml", yaml, strlen(yaml), err);
    if (status != TR_OK)
        return status;
    assert(w->placement.nodes_count <= WORLD_NODES_MAX);
    w->nodes_count = w->placement.nodes_count;
    w->notice_ns = net->notice_ns;
    return tr_sim_net_open(&w->net, net, err);
}

static void world_make_node(world *w, uint32_t n)
{
    world_node *node = &w->nodes[n];
    uint32_t life = node->life + 1;
    *node = (world_node){
        .life = life,
        .world = w,
        .index = n,
        .clock = {.net = w->net, .offset_ns = sim_below(&w->random, 10 * WORLD_SECOND)},
        .slow = 1,
        .restart_ns = UINT64_MAX,
        .cost_ns = 200 + (uint32_t)sim_below(&w->random, 2000)};
    node->hand = (tr_cluster_hand){.transport = &tr_sim_ops,
                                   .transport_options = tr_sim_net_options(w->net),
                                   .ctx = node,
                                   .now_ns = node_now_ns,
                                   .spawn = world_spawn,
                                   .join = world_join,
                                   .sleep = world_sleep,
                                   .call = world_call_node,
                                   .end_answers = world_end_answers,
                                   .replace = sim_shim_replace};
}

static tr_status world_open_node(world *w, uint32_t n, tr_error *err)
{
    world_node *node = &w->nodes[n];
    tr_cluster_options options = {.hand = &node->hand};
    world_make_node(w, n);
    tr_status status = tr_cluster_open(&node->cluster, &w->placement, n, &options, err);
    if (status == TR_OK)
        status = tr_client_open(&node->client, node->cluster, world_no_wake, NULL, err);
    return status;
}

/* Its actors may be stepped. */
static bool world_runs(const world *w, uint32_t n)
{
    return w->nodes[n].cluster != NULL && tr_cluster_hand_runs(w->nodes[n].cluster);
}

/* Every node asks every other whether it is there, as the threads of cluster_peers.c do. */
static void world_beat(world *w)
{
    uint64_t now_ns = world_now_ns(w);

    w->beat_ns = now_ns + BEAT_NS;
    w->beats++;
    for (uint32_t a = 0; a < w->nodes_count; a++) {
        const world_node *asks = &w->nodes[a];
        for (uint32_t b = 0; b < w->nodes_count; b++) {
            const world_node *asked = &w->nodes[b];
            if (a == b || !world_runs(w, a) || asks->awake_ns > now_ns)
                continue;
            bool reached =
                asked->cluster != NULL && asked->awake_ns <= now_ns && tr_sim_reaches(w->net, a, b);
            if (!tr_cluster_hand_beat(asks->cluster, b, reached ? asked->cluster : NULL, now_ns))
                w->lost = true;
        }
    }
}

tr_status world_boot(world *w, tr_error *err)
{
    tr_status status = TR_OK;
    for (uint32_t n = 0; status == TR_OK && n < w->nodes_count; n++)
        status = world_open_node(w, n, err);
    for (uint32_t a = 0; a < w->nodes_count; a++)
        for (uint32_t b = 0; status == TR_OK && b < w->nodes_count; b++)
            if (a != b)
                status = tr_cluster_hand_connect(w->nodes[a].cluster, w->nodes[b].cluster, err);
    for (uint32_t n = 0; status == TR_OK && n < w->nodes_count; n++)
        status = tr_cluster_hand_start(w->nodes[n].cluster, err);
    world_beat(w); /* everybody is there */
    w->lost = false;
    return status;
}

static void world_end_node(world *w, uint32_t n)
{
    world_node *node = &w->nodes[n];
    node->ends = true;
    if (node->starts)
        world_end_tasks(node);
    node->starts = false;
    if (node->cluster != NULL)
        tr_cluster_close(node->cluster);
    node->cluster = NULL;
    node->client = NULL;
    world_break_calls(w, n);
}

/* By a task of the node: what `troupe node` does. */
static void *node_start(void *ctx)
{
    world_node *node = ctx;
    world *w = node->world;
    tr_cluster_options options = {.hand = &node->hand, .may_join = true};
    tr_client *client = NULL;
    tr_status status = tr_cluster_open(&node->cluster, &w->placement, node->index, &options, NULL);
    if (status == TR_OK)
        status = tr_client_open(&client, node->cluster, world_no_wake, NULL, NULL);
    if (status == TR_OK)
        status = tr_cluster_hand_join(node->cluster, NULL);
    node->client = status == TR_OK ? client : NULL;
    node->start_failed = status != TR_OK;
    w->joins += status == TR_OK;
    node->starts = false;
    return NULL;
}

void world_restart(world *w, uint32_t n, uint64_t at_ns)
{
    if (w->nodes[n].cluster == NULL && !w->nodes[n].starts)
        w->nodes[n].restart_ns = at_ns;
}

/* Nodes whose time has come begin to start; one that could not begins anew, as under a supervisor.
 */
static bool world_start_nodes(world *w, uint64_t at_ns)
{
    for (uint32_t n = 0; n < w->nodes_count; n++) {
        world_node *node = &w->nodes[n];
        if (node->start_failed) {
            node->start_failed = false;
            world_end_node(w, n);
            if (++node->restarts < RESTARTS_MAX)
                node->restart_ns = at_ns + RESTART_NS;
            return true;
        }
        if (node->restart_ns > at_ns)
            continue;
        uint32_t restarts = node->restarts;
        world_make_node(w, n);
        node->restarts = restarts;
        node->starts = true;
        world_spawn_detached(node, node_start);
        return true;
    }
    return false;
}

bool world_would_end(const world *w, uint32_t n)
{
    tr_cluster *c = w->nodes[n].cluster;
    return c != NULL && world_runs(w, n) && tr_cluster_wait_shutdown(c, 0, NULL) != TR_E_TIMEOUT;
}

void world_crash(world *w, uint32_t n)
{
    if (w->nodes_count > 1 && w->nodes[n].cluster != NULL)
        tr_sim_crash(w->net, n);
    world_end_node(w, n);
    w->lost = true;
}

void world_leave(world *w, uint32_t n)
{
    world_end_node(w, n);
    for (uint32_t other = 0; other < w->nodes_count; other++)
        if (world_runs(w, other))
            tr_cluster_hand_leave(w->nodes[other].cluster, n);
    w->lost = true;
}

void world_stop_all(world *w)
{
    for (uint32_t n = 0; n < w->nodes_count; n++)
        if (w->nodes[n].cluster != NULL || w->nodes[n].starts)
            world_end_node(w, n);
}

void world_close(world *w)
{
    world_stop_all(w);
    tr_sim_net_close(w->net);
    tr_placement_free(&w->placement);
}

uint64_t world_now_ns(const world *w)
{
    return tr_sim_now_ns(w->net);
}

static uint64_t earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t latest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t world_node_next_ns(const world *w, uint32_t n)
{
    const world_node *node = &w->nodes[n];
    if (!world_runs(w, n))
        return UINT64_MAX;
    const tr_runtime *rt = tr_cluster_runtime(node->cluster);
    uint64_t now_ns = world_now_ns(w);
    uint64_t own_ns = tr_cluster_hand_is_pressed(node->cluster) ? 0 : tr_runtime_next_ns(rt);
    if (own_ns != 0 && own_ns != UINT64_MAX)
        own_ns = own_ns > node->clock.offset_ns ? own_ns - node->clock.offset_ns : 0;
    if (own_ns > now_ns && tr_runtime_is_blocked(rt))
        own_ns = earliest(own_ns, node->free_ns + RETRY_NS);
    uint64_t next_ns = earliest(own_ns, tr_sim_next_ns(w->net, n));
    return next_ns == UINT64_MAX
               ? next_ns
               : latest(latest(next_ns, now_ns), latest(node->free_ns, node->awake_ns));
}

/* When somebody starts it; UINT64_MAX: nobody. */
static uint64_t node_start_ns(const world *w, uint32_t n)
{
    const world_node *node = &w->nodes[n];
    if (node->start_failed)
        return world_now_ns(w);
    return node->restart_ns == UINT64_MAX ? UINT64_MAX : latest(node->restart_ns, world_now_ns(w));
}

uint64_t world_next_ns(const world *w)
{
    uint64_t next_ns = w->nodes_count > 1 ? w->beat_ns : UINT64_MAX;
    for (uint32_t n = 0; n < w->nodes_count; n++)
        next_ns = earliest(next_ns, earliest(world_node_next_ns(w, n), node_start_ns(w, n)));
    return earliest(next_ns, world_tasks_next_ns(w));
}

static void world_node_step(world *w, uint32_t n)
{
    world_node *node = &w->nodes[n];
    (void)tr_runtime_step(tr_cluster_runtime(node->cluster), sim_next(&w->random));
    uint64_t cost_ns = (uint64_t)node->cost_ns * node->slow;
    node->free_ns = world_now_ns(w) + cost_ns / 2 + sim_below(&w->random, cost_ns);
}

uint32_t world_step(world *w, uint64_t at_ns)
{
    uint32_t ready[WORLD_NODES_MAX + WORLD_TASKS_MAX], count = 0; /* nodes, then tasks */

    tr_sim_set_now_ns(w->net, at_ns);
    if (w->nodes_count > 1 && w->beat_ns <= at_ns) {
        world_beat(w);
        return WORLD_NODES_MAX;
    }
    if (world_start_nodes(w, at_ns) || world_call_step(w, at_ns))
        return WORLD_NODES_MAX;
    for (uint32_t n = 0; n < w->nodes_count; n++)
        if (world_node_next_ns(w, n) <= at_ns)
            ready[count++] = n;
    for (uint32_t i = 0; i < WORLD_TASKS_MAX; i++)
        if (world_task_next_ns(w, &w->tasks[i]) <= at_ns)
            ready[count++] = WORLD_NODES_MAX + i;
    if (count == 0)
        return WORLD_NODES_MAX;
    uint32_t chosen = ready[sim_below(&w->random, count)];
    if (chosen < WORLD_NODES_MAX) {
        world_node_step(w, chosen);
        return chosen;
    }
    world_task_step(w, chosen - WORLD_NODES_MAX);
    return WORLD_NODES_MAX;
}

bool world_is_quiet(const world *w)
{
    if (tr_sim_under_way(w->net) > 0 || !world_tasks_are_idle(w))
        return false;
    for (uint32_t n = 0; n < w->nodes_count; n++) {
        if (node_start_ns(w, n) != UINT64_MAX)
            return false;
        if (!world_runs(w, n))
            continue;
        const tr_runtime *rt = tr_cluster_runtime(w->nodes[n].cluster);
        if (tr_runtime_next_ns(rt) == 0 || tr_runtime_is_blocked(rt))
            return false;
    }
    return true;
}
