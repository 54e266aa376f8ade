#include "actors/cluster_hand.h"

#include "actors/cluster_node.h"
#include "core/by_hand.h"

tr_status cluster_hand_open_peers(tr_cluster *c, tr_error *err)
{
    tr_status status = cluster_open_control(c, err);
    if (status != TR_OK)
        return status;
    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        if (n == c->node_index)
            continue;
        cluster_peer *peer = &c->peers[n];
        peer->cluster = c;
        peer->index = n;
        atomic_store(&peer->alive, true);
        atomic_store(&peer->round_trip_ns, UINT64_MAX);
    }
    return TR_OK;
}

tr_status tr_cluster_hand_connect(tr_cluster *c, const tr_cluster *peer, tr_error *err)
{
    atomic_store(&c->peers[peer->node_index].life, peer->life);
    return c->transport_ops->connect(c->transport, peer->node_index, peer->address,
                                     peer->address_size, UINT64_MAX, err);
}

tr_status tr_cluster_hand_join(tr_cluster *c, tr_error *err)
{
    if (!c->joins)
        return tr_fail(err, TR_E_PEER, "there is no cluster that runs");
    tr_status status = cluster_join(c, err);
    if (status == TR_OK)
        atomic_store(&c->serving, true);
    return status;
}

bool tr_cluster_hand_runs(const tr_cluster *c)
{
    return atomic_load(&c->started);
}

bool tr_cluster_hand_is_pressed(const tr_cluster *c)
{
    return atomic_load(&c->relink) != 0;
}

tr_status tr_cluster_hand_start(tr_cluster *c, tr_error *err)
{
    tr_status status = tr_runtime_start_by_hand(c->runtime, err);
    if (status != TR_OK)
        return status;
    atomic_store(&c->started, true);
    atomic_store(&c->serving, true);
    return TR_OK;
}

bool tr_cluster_hand_beat(tr_cluster *c, uint32_t index, const tr_cluster *asked, uint64_t now_ns)
{
    cluster_peer *peer = &c->peers[index];
    cluster_ping ping = PING_SILENCE;

    if (!atomic_load(&peer->alive) || !atomic_load(&c->serving)) {
        peer->heard_ns = now_ns; /* from when it is there, or watched, on */
        return false;
    }
    if (asked != NULL) {
        const cluster_peer *us = &asked->peers[c->node_index];
        bool known = atomic_load(&us->alive) && atomic_load(&us->life) == c->life;
        ping = asked->life != atomic_load(&peer->life) ? PING_OTHER
               : known                                 ? PING_ANSWERED
                                                       : PING_GONE;
    }
    return cluster_peer_judge(peer, ping, now_ns);
}

void tr_cluster_hand_answer(tr_cluster *c, const void *bytes, size_t size, msgpack_sbuffer *reply)
{
    tr_control_server_answer(c->control, bytes, size, reply);
}

void tr_cluster_hand_leave(tr_cluster *c, uint32_t index)
{
    cluster_peer_lost(c, index, "it was stopped");
}
