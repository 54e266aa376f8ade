/* cluster_hops.c - how long a message takes to another node.
 *
 * A port of its own sends PING to the expert shard of the node, as rows are sent, and waits for
 * PONG, some hundred times; the shortest round counts, less the shortest to the shard beside us,
 * because that much is threads and not the way. */
#include "actors/cluster_node.h"

#include <sched.h>

#define HOPS_PINGS     200
#define HOPS_NS        15000000  /* for one node that answers */
#define HOPS_ALL_NS    800000000 /* for all of them: a control call has a second */
#define HOPS_PORT_SIZE 64

tr_status cluster_hops_open(tr_cluster *c, tr_error *err)
{
    char name[TR_NAME_SIZE + 8];
    cluster_hops *h = &c->hops;

    h->port = tr_node_actor(TR_ACTOR_PROBE, c->node_index);
    snprintf(name, sizeof(name), "probe@%s", c->placement->nodes[c->node_index].name);
    return tr_runtime_add_port(c->runtime, h->port, name, HOPS_PORT_SIZE, NULL, NULL, err);
}

/* One round; 0: no answer by the deadline. With the lock held. */
static uint64_t hops_round(tr_cluster *c, uint32_t node, uint64_t deadline_ns)
{
    cluster_hops *h = &c->hops;
    uint64_t number = ++h->asked, begin = tr_clock_ns();
    tr_msg msg;

    if (tr_runtime_post(c->runtime, h->port, tr_node_actor(TR_ACTOR_EXPERT_SHARD, node),
                        TR_MSG_PING, number, 0, NULL) != TR_OK)
        return 0;
    for (;;) {
        while (tr_runtime_port_next(c->runtime, h->port, &msg)) {
            bool ours = msg.header.kind == TR_MSG_PONG && msg.header.step == number;
            tr_buf_unref(msg.payload);
            if (ours)
                return tr_clock_ns() - begin;
        }
        if (tr_clock_ns() >= deadline_ns)
            return 0;
        sched_yield(); /* a sleep would be longer than what is measured */
    }
}

/* The shortest round of many; 0: no answer. */
static uint64_t hops_shortest(tr_cluster *c, uint32_t node)
{
    uint64_t begin = tr_clock_ns(), best = 0;
    uint64_t patience_ns = HOPS_ALL_NS / c->placement->nodes_count;

    for (uint32_t i = 0; i < HOPS_PINGS && tr_clock_ns() < begin + HOPS_NS; i++) {
        uint64_t round = hops_round(c, node, begin + (best == 0 ? patience_ns : HOPS_NS));
        if (round != 0 && (best == 0 || round < best))
            best = round;
    }
    return best;
}

uint64_t cluster_hops_bytes(void)
{
    return tr_runtime_port_bytes(HOPS_PORT_SIZE);
}

bool cluster_hops_measure(tr_cluster *c, uint64_t hop_ns[TR_NODES_MAX])
{
    cluster_hops *h = &c->hops;

    /* Whoever would wait keeps a thread of the control server, which heartbeats need. */
    if (pthread_mutex_trylock(&h->lock) != 0)
        return false;
    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        hop_ns[n] = 0;
    uint64_t beside = hops_shortest(c, c->node_index);
    for (uint32_t n = 0; beside != 0 && n < c->placement->nodes_count; n++) {
        if (n == c->node_index || !cluster_is_alive(c, n))
            continue;
        uint64_t there = hops_shortest(c, n);
        if (there != 0)
            hop_ns[n] = there > beside + 1 ? (there - beside) / 2 : 1;
    }
    pthread_mutex_unlock(&h->lock);
    return true;
}
