/* cluster_join.c - a node that was lost is there again, started by somebody: its own side, and what
 * the members do for it. What the coordinator does is in cluster_moves_join.c.
 *
 *   the node                      coordinator              members
 *   plan?      -----------------> the plan of now
 *   opens under it: it loads what that gives to it, usually nothing
 *   join       -----------------> peer_link -------------> forget its former life, connect
 *   join       -----------------> connect to these
 *   connects, starts its workers
 *   join ready -----------------> peer_up ---------------> forget that it is gone
 *   join       -----------------> member
 *                                 a change of placement gives it its share back
 *
 * It is nobody before peer_up, so whatever fails until then leaves the others as they were: the
 * node is told to begin anew, or ends. Each process has a number, its life, by which it is told
 * from one that was the same node before. */
#include "actors/cluster_node.h"
#include "core/log.h"
#include "core/plan_edit.h"
#include "core/trace.h"

#include <string.h>

#define JOIN_FIRST_NS   400000000u  /* for the first answer: nobody may be there */
#define JOIN_CALL_NS    2000000000u /* for later ones */
#define JOIN_RETRY_NS   100000000u
#define JOIN_SILENCE_NS 10000000000u /* of the coordinator, then there is nothing to join */
#define JOIN_MEET_NS    5000000000u  /* for a member to say hello */
#define JOIN_WAIT_NS    UINT64_C(7200000000000) /* of "wait": a change may load for an hour */
#define LINK_NS         900000000u              /* the coordinator waits longer for it */
#define LINK_POLL_NS    1000000u
#define LINK_CONNECT_NS 500000000u /* worker 0 waits so long at most */

/* -- what members do -- */

tr_status cluster_read_sender(tr_cluster *c, const msgpack_object *request, const char *method,
                              uint32_t *node, uint64_t *life, tr_error *err)
{
    char name[TR_NAME_SIZE];
    if (!tr_map_text(request, "sender", name, sizeof(name)))
        return tr_fail(err, TR_E_INVALID, "%s: sender: missing, expected a node's name", method);
    *node = tr_placement_find_node(c->placement, name);
    if (*node == TR_NODES_MAX || *node == c->node_index)
        return tr_fail(err, TR_E_INVALID, "%s: sender: \"%s\" is not a peer", method, name);
    if (!tr_map_u64(request, "sender_life", life) || *life == 0)
        return tr_fail(err, TR_E_INVALID, "%s: sender_life: missing, expected an integer", method);
    return TR_OK;
}

/* The node that a call of the coordinator is about. */
static tr_status read_subject(tr_cluster *c, const msgpack_object *request, uint32_t *node,
                              uint64_t *life, tr_error *err)
{
    uint64_t index = TR_NODES_MAX;
    if (!tr_map_u64(request, "node", &index) || index >= c->placement->nodes_count ||
        index == c->node_index)
        return tr_fail(err, TR_E_INVALID, "node: missing, expected the number of a peer");
    if (!tr_map_u64(request, "life", life) || *life == 0)
        return tr_fail(err, TR_E_INVALID, "life: missing, expected an integer");
    *node = (uint32_t)index;
    return TR_OK;
}

/* Forgets a former life of a node, connects to this one, and tells later askers what it connects
 * to. */
static tr_status relink(tr_cluster *c, uint32_t node, const void *address, size_t size,
                        tr_error *err)
{
    uint8_t own[TR_ADDRESS_SIZE_MAX];
    size_t own_size = 0;

    c->transport_ops->forget(c->transport, node);
    tr_status status = c->transport_ops->connect(c->transport, node, address, size,
                                                 cluster_now(c) + LINK_CONNECT_NS, err);
    if (status == TR_OK)
        status = c->transport_ops->address(c->transport, own, sizeof(own), &own_size, err);
    if (status != TR_OK)
        return status;
    pthread_mutex_lock(&c->peers_lock);
    memcpy(c->address, own, own_size);
    c->address_size = own_size;
    pthread_mutex_unlock(&c->peers_lock);
    return TR_OK;
}

void cluster_relink(tr_cluster *c)
{
    uint32_t nodes = atomic_exchange(&c->relink, 0);
    for (uint32_t n = 0; nodes >> n != 0; n++) {
        cluster_peer *peer = &c->peers[n];
        uint8_t address[TR_ADDRESS_SIZE_MAX];
        tr_error err = {0};
        if (!(nodes >> n & 1))
            continue;
        pthread_mutex_lock(&c->peers_lock);
        uint64_t life = atomic_load(&peer->life);
        size_t size = peer->address_size;
        memcpy(address, peer->address, size);
        pthread_mutex_unlock(&c->peers_lock);
        tr_status status = relink(c, n, address, size, &err);
        pthread_mutex_lock(&c->peers_lock);
        if (atomic_load(&peer->life) == life && peer->link == CLUSTER_LINK_ASKED) {
            peer->link = status == TR_OK ? CLUSTER_LINK_DONE : CLUSTER_LINK_FAILED;
            peer->link_error = err;
        }
        pthread_mutex_unlock(&c->peers_lock);
    }
}

/* Lets worker 0 connect to a node's new life, unless that has been done. */
static void link_begin(tr_cluster *c, cluster_peer *peer, uint64_t life, const void *address,
                       size_t size)
{
    pthread_mutex_lock(&c->peers_lock);
    bool done = atomic_load(&peer->life) == life &&
                (peer->link == CLUSTER_LINK_DONE || peer->link == CLUSTER_LINK_ASKED);
    if (!done) {
        atomic_store(&peer->life, life);
        memcpy(peer->address, address, size);
        peer->address_size = size;
        peer->link = CLUSTER_LINK_ASKED;
        atomic_fetch_or(&c->relink, 1u << peer->index);
    }
    pthread_mutex_unlock(&c->peers_lock);
}

static tr_status link_await(tr_cluster *c, cluster_peer *peer, tr_error *err)
{
    uint64_t deadline_ns = cluster_after(c, LINK_NS);
    const char *name = c->placement->nodes[peer->index].name;
    for (;;) {
        pthread_mutex_lock(&c->peers_lock);
        cluster_link link = peer->link;
        tr_error why = peer->link_error;
        pthread_mutex_unlock(&c->peers_lock);
        if (link == CLUSTER_LINK_DONE)
            return TR_OK;
        if (link != CLUSTER_LINK_ASKED)
            return tr_fail(err, TR_E_PEER, "connecting to node %s: %.180s", name,
                           link == CLUSTER_LINK_FAILED ? why.text : "it is gone");
        if (cluster_now(c) >= deadline_ns)
            return tr_fail(err, TR_E_TIMEOUT, "connecting to node %s takes too long", name);
        cluster_sleep(c, LINK_POLL_NS);
    }
}

static tr_status on_peer_link(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                              uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    const void *address;
    size_t size;
    uint32_t node = 0;
    uint64_t life = 0;
    (void)reply, (void)pairs;
    if (read_subject(c, request, &node, &life, err) != TR_OK)
        return TR_E_INVALID;
    if (!tr_map_bytes(request, "address", &address, &size) || size > TR_ADDRESS_SIZE_MAX)
        return tr_fail(err, TR_E_INVALID, "peer_link: address: missing or too long");
    cluster_peer *peer = &c->peers[node];
    if (atomic_load(&peer->alive)) {
        if (atomic_load(&peer->life) == life)
            return TR_OK; /* asked twice */
        cluster_peer_lost(c, node, "it was started again");
    }
    link_begin(c, peer, life, address, size);
    return link_await(c, peer, err);
}

static tr_status on_peer_up(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                            uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    tr_status status = TR_OK;
    uint32_t node = 0;
    uint64_t life = 0;
    (void)reply, (void)pairs;
    if (read_subject(c, request, &node, &life, err) != TR_OK)
        return TR_E_INVALID;
    cluster_peer *peer = &c->peers[node];
    pthread_mutex_lock(&c->peers_lock);
    bool same = atomic_load(&peer->life) == life;
    if (!same || (peer->link != CLUSTER_LINK_DONE && !atomic_load(&peer->alive))) {
        status = tr_fail(err, TR_E_INVALID, "peer_up: node %s is not connected",
                         c->placement->nodes[node].name);
    } else if (!atomic_load(&peer->alive)) {
        atomic_fetch_and(&c->counters.accused, ~(1u << node));
        atomic_store(&peer->round_trip_ns, UINT64_MAX);
        atomic_store(&peer->alive, true);
        tr_runtime_peer_up(c->runtime, node);
        (void)cluster_review_losses(c, NULL);
        tr_log(TR_LOG_INFO, NULL, "peer_back", "peer=%s", c->placement->nodes[node].name);
    }
    pthread_mutex_unlock(&c->peers_lock);
    return status;
}

void cluster_join_register(tr_cluster *c)
{
    tr_control_server_handle(c->control, "peer_link", on_peer_link, c);
    tr_control_server_handle(c->control, "peer_up", on_peer_up, c);
}

/* -- what the node does -- */

typedef struct {
    tr_cluster *c;
    bool ready;
} join_request;

static void pack_join(void *ctx, msgpack_packer *pk)
{
    const join_request *r = ctx;
    tr_pack_u64(pk, "epoch", r->c->view->plan.epoch);
    tr_pack_bool(pk, "ready", r->ready);
    cluster_pack_identity(r->c, pk);
}

/* Before the coordinator is asked again: it has answered "wait".
 * errors  TR_E_TIMEOUT what it does meanwhile has its own deadlines, which are past by now;
 *         TR_E_CANCELED */
static tr_status join_pause(tr_cluster *c, uint64_t ns, uint64_t deadline_ns, tr_error *err)
{
    if (atomic_load(&c->shutdown_requested))
        return tr_fail(err, TR_E_CANCELED, "stopped while joining the cluster");
    if (cluster_now(c) >= deadline_ns)
        return tr_fail(err, TR_E_TIMEOUT, "node %s answers \"wait\" for ever",
                       c->placement->nodes[c->placement->batcher_node].name);
    cluster_sleep(c, ns);
    return TR_OK;
}

/* Calls the coordinator until it answers. first_ns: for the first call.
 * errors  TR_E_PEER after JOIN_SILENCE_NS, TR_E_INVALID a refusal, TR_E_CANCELED */
static tr_status join_call(cluster_peer *batcher, const char *method, join_request *request,
                           uint64_t first_ns, uint64_t silence_ns, tr_control_reply *reply,
                           tr_error *err)
{
    tr_cluster *c = batcher->cluster;
    uint64_t begin = cluster_now(c), wait_ns = first_ns;
    for (;;) {
        tr_error why = {0};
        tr_status status =
            cluster_call_peer(batcher, method, pack_join, request, request != NULL ? 10 : 0,
                              cluster_now(c) + wait_ns, reply, &why);
        if (status != TR_E_TIMEOUT && status != TR_E_PEER) {
            if (status != TR_OK && err != NULL)
                *err = why;
            return status;
        }
        if (atomic_load(&c->shutdown_requested))
            return tr_fail(err, TR_E_CANCELED, "stopped while joining the cluster");
        if (cluster_now(c) - begin >= silence_ns)
            return tr_fail(err, TR_E_PEER, "node %s does not answer at %s",
                           c->placement->nodes[batcher->index].name,
                           c->placement->nodes[batcher->index].control);
        wait_ns = JOIN_CALL_NS;
        cluster_sleep(c, JOIN_RETRY_NS);
    }
}

/* Reads the answer to "plan". *again: the cluster is busy with our loss. */
static tr_status read_plan(tr_cluster *c, const msgpack_object *map, tr_plan *plan, bool *running,
                           bool *again, tr_error *err)
{
    char state[16];
    const void *bytes;
    size_t size;
    if (!tr_map_text(map, "state", state, sizeof(state)))
        return tr_fail(err, TR_E_INVALID, "plan: state: missing");
    *again = strcmp(state, "wait") == 0;
    if (strcmp(state, "running") != 0)
        return TR_OK; /* it is starting, like us */
    if (!tr_map_bytes(map, "plan", &bytes, &size))
        return tr_fail(err, TR_E_INVALID, "plan: plan: missing");
    tr_status status = tr_plan_decode(plan, bytes, size, &c->shape, c->placement->nodes_count, err);
    *running = status == TR_OK;
    return status;
}

tr_status cluster_ask_plan(tr_cluster *c, tr_plan *plan, bool *running, tr_error *err)
{
    uint32_t batcher = c->placement->batcher_node;
    cluster_peer peer = {.cluster = c, .index = batcher}; /* there are none yet */
    char url[TR_URL_SIZE + 64];
    uint64_t silence_ns = 0, deadline_ns = cluster_after(c, JOIN_WAIT_NS);
    bool again = true;

    *running = false;
    if (batcher == c->node_index || c->placement->nodes_count == 1)
        return TR_OK;
    cluster_control_url(c, batcher, url, sizeof(url));
    tr_status status =
        c->options.hand != NULL ? TR_OK : tr_control_client_open(&peer.control, url, err);
    while (status == TR_OK && again) {
        tr_control_reply reply;
        status = join_call(&peer, "plan", NULL, JOIN_FIRST_NS, silence_ns, &reply, err);
        if (status == TR_E_PEER && silence_ns == 0) {
            status = TR_OK; /* it is not there yet either */
            break;
        }
        if (status != TR_OK)
            break;
        status = read_plan(c, reply.map, plan, running, &again, err);
        tr_control_reply_free(&reply);
        silence_ns = JOIN_SILENCE_NS;
        if (status == TR_OK && again)
            status = join_pause(c, JOIN_RETRY_NS, deadline_ns, err);
    }
    if (peer.control != NULL)
        tr_control_client_close(peer.control);
    return status;
}

/* Connects to the members of a mask; the other nodes are gone. */
static tr_status join_meet(tr_cluster *c, uint64_t members, tr_error *err)
{
    tr_status status = TR_OK;
    for (uint32_t n = 0; status == TR_OK && n < c->placement->nodes_count; n++) {
        if (n == c->node_index)
            continue;
        if (members >> n & 1)
            status = cluster_meet_peer(c, n, cluster_now(c) + JOIN_MEET_NS, err);
        else
            cluster_peer_lost(c, n, "it was gone before this node came back");
    }
    if (status == TR_OK)
        status = cluster_start_workers(c, err);
    if (status == TR_E_TIMEOUT || status == TR_E_PEER)
        status = tr_fail(err, TR_E_AGAIN, "a member was lost while this node came back");
    atomic_store(&c->started, status == TR_OK);
    return status;
}

/* One answer to "join". *member: we are one. */
static tr_status join_step(tr_cluster *c, const msgpack_object *map, join_request *request,
                           bool *member, tr_error *err)
{
    char state[16];
    uint64_t members = 0, missing = 0;
    if (!tr_map_text(map, "state", state, sizeof(state)))
        return tr_fail(err, TR_E_INVALID, "join: state: missing");
    (void)tr_map_u64(map, "members", &members); /* absent: nobody */
    (void)tr_map_u64(map, "missing", &missing);
    if (strcmp(state, "stale") == 0)
        return tr_fail(err, TR_E_AGAIN, "the placement has changed while this node came back");
    if (strcmp(state, "connect") == 0 && !request->ready) {
        tr_status status = join_meet(c, members, err);
        request->ready = status == TR_OK;
        return status;
    }
    *member = strcmp(state, "member") == 0;
    if (*member) {
        pthread_mutex_lock(&c->lock);
        c->missing |= (uint32_t)missing;
        pthread_mutex_unlock(&c->lock);
    }
    return TR_OK;
}

tr_status cluster_join(tr_cluster *c, tr_error *err)
{
    cluster_peer *batcher = &c->peers[c->placement->batcher_node];
    join_request request = {.c = c};
    uint64_t deadline_ns = cluster_after(c, JOIN_WAIT_NS);
    bool member = false;

    tr_status status = cluster_listen(c, err);
    while (status == TR_OK && !member) {
        tr_control_reply reply;
        status = join_call(batcher, "join", &request, JOIN_CALL_NS, JOIN_SILENCE_NS, &reply, err);
        if (status != TR_OK)
            break;
        status = join_step(c, reply.map, &request, &member, err);
        tr_control_reply_free(&reply);
        if (status == TR_OK && !member)
            status = join_pause(c, request.ready ? LINK_POLL_NS : JOIN_RETRY_NS, deadline_ns, err);
    }
    return status;
}
