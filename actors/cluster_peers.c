/* cluster_peers.c - how nodes meet, tell that they are ready, and notice that one is gone.
 *
 * All of it runs over the control sockets: "hello" exchanges identity and transport addresses,
 * "ready" is asked until every node's workers run, "ping" is the heartbeat and measures the clock
 * offset (the estimate of the exchange with the smallest round trip wins, as in NTP).
 *
 * A loss is mutual: the answer to a ping says whether the one who asks has been given up. Otherwise
 * a node that was stopped for a while would go on and wait for a peer that does not talk to it any
 * more.
 *
 * Who listens notices when it has slept itself: such a time is nobody's silence. Otherwise a
 * machine that stood still, with all nodes on it, would wake up and give up every one. */
#include "actors/cluster_load.h"
#include "actors/cluster_node.h"
#include "actors/cluster_stream.h"
#include "core/log.h"
#include "core/trace.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define PING_INTERVAL_NS    250000000
#define HELLO_RETRY_NS      100000000
#define CALL_TIMEOUT_NS     500000000
#define PING_TIMEOUT_MAX_NS 5000000000u /* a node that ends waits for its last ping */
#define PING_LATE_NS        100000000   /* later than it was to wake up: it stood still */
#define PING_EXCUSES_MAX    4 /* between two answers; who is always late gives up as well */
#define READY_SILENCE_NS                                                                           \
    10000000000u /* between hello and ready, before heartbeats watch a peer                        \
                  */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void cluster_peer_lost(tr_cluster *c, uint32_t node, const char *reason)
{
    cluster_peer *peer = &c->peers[node];
    pthread_mutex_lock(&c->peers_lock);
    peer->link = CLUSTER_LINK_NONE;
    if (!atomic_exchange(&peer->alive, false) || atomic_load(&c->stopping) ||
        atomic_load(&c->shutdown_requested)) {
        pthread_mutex_unlock(&c->peers_lock);
        return;
    }
    pthread_mutex_lock(&c->lock);
    bool used = tr_plan_uses(&c->view->plan, node); /* a node that was drained is not missed */
    if (used)
        cluster_note_lost(c, node, reason);
    pthread_mutex_unlock(&c->lock);
    tr_log(used ? TR_LOG_ERROR : TR_LOG_INFO, NULL, "peer_lost", "peer=%s reason=\"%s\" used=%s",
           c->placement->nodes[node].name, reason, used ? "yes" : "no");
    tr_runtime_peer_down(c->runtime, node);
    pthread_mutex_unlock(&c->peers_lock);
    if (used && c->moves != NULL && cluster_recovers(c))
        cluster_moves_recover(c, node);
    uint64_t one = 1;
    ssize_t written = write(c->wake_fd, &one, sizeof(one));
    (void)written; /* an eventfd that is already readable is as good */
}

/* -- what we answer -- */

void cluster_pack_identity(tr_cluster *c, msgpack_packer *pk)
{
    tr_pack_text(pk, "node", c->placement->nodes[c->node_index].name);
    tr_pack_u64(pk, "protocol", TR_MSG_VERSION);
    tr_pack_u64(pk, "fingerprint", c->fingerprint);
    tr_pack_u64(pk, "model", tr_model_identity(c->model));
    tr_pack_u64(pk, "nodes", c->placement->nodes_count);
    tr_pack_u64(pk, "activations", c->placement->activations_nvfp4);
    tr_pack_u64(pk, "life", c->life);
    pthread_mutex_lock(&c->peers_lock);
    tr_pack_bytes(pk, "address", c->address, c->address_size);
    pthread_mutex_unlock(&c->peers_lock);
}

/* Whether a peer that says so is the one that we know. */
static bool is_known_life(cluster_peer *peer, uint64_t life)
{
    uint64_t known = atomic_load(&peer->life);
    return known == 0 || known == life;
}

static tr_status cluster_on_hello(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                  uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    (void)request, (void)err;
    cluster_pack_identity(c, reply);
    tr_pack_bool(reply, "serving", atomic_load(&c->serving));
    *pairs += 9;
    return TR_OK;
}

static tr_status cluster_on_ready(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                  uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    (void)request, (void)err;
    tr_pack_bool(reply, "ready", atomic_load(&c->started));
    tr_pack_u64(reply, "life", c->life);
    *pairs += 2;
    return TR_OK;
}

/* Answers anybody; only a peer's name makes a difference. */
static tr_status cluster_on_ping(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                 uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    uint32_t node;
    uint64_t life;
    bool gone = false;
    (void)err;
    if (cluster_read_sender(c, request, "ping", &node, &life, NULL) == TR_OK)
        gone = !atomic_load(&c->peers[node].alive) || !is_known_life(&c->peers[node], life);
    tr_pack_u64(reply, "now", tr_clock_ns());
    tr_pack_bool(reply, "gone", gone);
    tr_pack_u64(reply, "life", c->life);
    *pairs += 3;
    return TR_OK;
}

/* A peer says that it stops: better than finding out. With "all" we stop too. */
static tr_status cluster_on_leave(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                  uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    uint32_t node;
    uint64_t life;
    (void)reply, (void)pairs;
    if (cluster_read_sender(c, request, "leave", &node, &life, err) != TR_OK)
        return TR_E_INVALID;
    if (!is_known_life(&c->peers[node], life))
        return TR_OK; /* late: there is another one already */
    bool all = false;
    if (tr_map_bool(request, "all", &all) && all)
        tr_cluster_request_shutdown(c);
    cluster_peer_lost(c, node, "it was stopped");
    return TR_OK;
}

/* -- what we ask -- */

tr_status cluster_call_peer(cluster_peer *peer, const char *method,
                            void (*more)(void *ctx, msgpack_packer *pk), void *more_ctx,
                            uint32_t more_count, uint64_t deadline_ns, tr_control_reply *reply,
                            tr_error *err)
{
    tr_cluster *c = peer->cluster;
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 4 + more_count);
    tr_pack_text(&pk, "method", method);
    tr_pack_text(&pk, "sender", c->placement->nodes[c->node_index].name);
    tr_pack_u64(&pk, "sender_life", c->life);
    tr_pack_bool(&pk, "all", atomic_load(&c->shutdown_all));
    if (more_count > 0)
        more(more_ctx, &pk);
    tr_status status =
        cluster_call_over(c, peer->control, peer->index, &buffer, deadline_ns, reply, err);
    msgpack_sbuffer_destroy(&buffer);
    if (status != TR_OK)
        tr_control_reply_free(reply); /* a refusal is a reply, too */
    return status;
}

static tr_status cluster_call(cluster_peer *peer, const char *method, uint64_t deadline_ns,
                              tr_control_reply *reply, tr_error *err)
{
    return cluster_call_peer(peer, method, NULL, NULL, 0, deadline_ns, reply, err);
}

/* A field of a peer's hello that must equal ours. */
static tr_status hello_check(const cluster_peer *peer, const msgpack_object *map, const char *key,
                             uint64_t ours, const char *hint, tr_error *err)
{
    uint64_t theirs = 0;
    const char *name = peer->cluster->placement->nodes[peer->index].name;
    if (!tr_map_u64(map, key, &theirs))
        return tr_fail(err, TR_E_INVALID, "node %s: hello: %s: missing, expected an integer", name,
                       key);
    if (theirs != ours)
        return tr_fail(err, TR_E_INVALID, "node %s: %s is %llx, here it is %llx: %s", name, key,
                       (unsigned long long)theirs, (unsigned long long)ours, hint);
    return TR_OK;
}

tr_status cluster_read_identity(cluster_peer *peer, const msgpack_object *map, tr_error *err)
{
    tr_cluster *c = peer->cluster;
    const char *expected = c->placement->nodes[peer->index].name;
    char name[TR_NAME_SIZE];
    const void *address;
    uint64_t life = 0, fingerprint;

    if (!tr_map_text(map, "node", name, sizeof(name)) || strcmp(name, expected) != 0)
        return tr_fail(err, TR_E_INVALID, "%s answers as another node than %s",
                       c->placement->nodes[peer->index].control, expected);
    tr_status status =
        hello_check(peer, map, "protocol", TR_MSG_VERSION, "install the same version", err);
    if (status == TR_OK)
        status = hello_check(peer, map, "model", tr_model_identity(c->model),
                             "the nodes have different checkpoints", err);
    if (status == TR_OK)
        status = hello_check(peer, map, "nodes", c->placement->nodes_count,
                             "the placement files differ", err);
    if (status == TR_OK)
        status = hello_check(peer, map, "activations", c->placement->activations_nvfp4,
                             "the placement files differ", err);
    if (status != TR_OK)
        return status;
    if (!tr_map_u64(map, "fingerprint", &fingerprint))
        return tr_fail(err, TR_E_INVALID,
                       "node %s: hello: fingerprint: missing, expected an integer", name);
    if (!tr_map_bytes(map, "address", &address, &peer->address_size) ||
        peer->address_size > sizeof(peer->address))
        return tr_fail(err, TR_E_INVALID, "node %s: hello: address: missing or too long", name);
    if (!tr_map_u64(map, "life", &life) || life == 0)
        return tr_fail(err, TR_E_INVALID, "node %s: hello: life: missing, expected an integer",
                       name);
    memcpy(peer->address, address, peer->address_size);
    atomic_store(&peer->fingerprint, fingerprint);
    atomic_store(&peer->life, life);
    return TR_OK;
}

/* Repeats a call until the peer answers or the deadline passes. */
static tr_status cluster_call_until(cluster_peer *peer, const char *method, uint64_t deadline_ns,
                                    tr_control_reply *reply, tr_error *err)
{
    for (;;) {
        tr_error why;
        uint64_t now = cluster_now(peer->cluster);
        tr_status status = cluster_call(
            peer, method, earlier(now + 2 * CALL_TIMEOUT_NS, deadline_ns), reply, &why);
        if (status != TR_E_TIMEOUT && status != TR_E_PEER) {
            if (status != TR_OK && err != NULL)
                *err = why;
            return status;
        }
        if (!atomic_load(&peer->alive))
            return tr_fail(err, TR_E_PEER, "node %s was lost while the cluster started",
                           peer->cluster->placement->nodes[peer->index].name);
        if (atomic_load(&peer->cluster->shutdown_requested))
            return tr_fail(err, TR_E_CANCELED, "stopped while waiting for other nodes");
        if (cluster_now(peer->cluster) + HELLO_RETRY_NS >= deadline_ns)
            return tr_fail(err, TR_E_TIMEOUT, "node %s does not answer at %s",
                           peer->cluster->placement->nodes[peer->index].name,
                           peer->cluster->placement->nodes[peer->index].control);
        cluster_sleep(peer->cluster, HELLO_RETRY_NS);
    }
}

/* The control socket: the file's URL, or a name inside the process for the loop transport. */
void cluster_control_url(const tr_cluster *c, uint32_t node, char *out, size_t size)
{
    const tr_placement_node *n = &c->placement->nodes[node];
    if (strcmp(c->placement->transport, "loop") == 0)
        snprintf(out, size, "inproc://troupe-%s-%p", n->name, (const void *)c->placement);
    else
        snprintf(out, size, "%s", n->control);
}

tr_status cluster_open_control(tr_cluster *c, tr_error *err)
{
    tr_status status = tr_control_server_open(&c->control, err);
    if (status != TR_OK)
        return status;
    tr_control_server_handle(c->control, "ping", cluster_on_ping, c);
    tr_control_server_handle(c->control, "ready", cluster_on_ready, c);
    cluster_answers_register(c); /* a single node asks itself, for snapshots */
    if (c->transport_ops == NULL)
        return TR_OK;
    tr_control_server_handle(c->control, "hello", cluster_on_hello, c);
    tr_control_server_handle(c->control, "leave", cluster_on_leave, c);
    cluster_join_register(c);
    cluster_moves_join_register(c);
    cluster_stream_register(c);
    cluster_load_register(c);
    return TR_OK;
}

tr_status cluster_open_peers(tr_cluster *c, tr_error *err)
{
    char url[TR_URL_SIZE + 64];
    tr_status status = cluster_open_control(c, err);
    for (uint32_t n = 0; status == TR_OK && n < c->placement->nodes_count; n++) {
        if (n == c->node_index)
            continue;
        cluster_peer *peer = &c->peers[n];
        peer->cluster = c;
        peer->index = n;
        atomic_store(&peer->alive, true);
        atomic_store(&peer->round_trip_ns, UINT64_MAX);
        cluster_control_url(c, n, url, sizeof(url));
        if (c->options.hand == NULL) /* else calls go another way */
            status = tr_control_client_open(&peer->control, url, err);
    }
    return status;
}

tr_status cluster_listen(tr_cluster *c, tr_error *err)
{
    char url[TR_URL_SIZE + 64];
    if (c->options.hand != NULL)
        return TR_OK; /* calls come by tr_cluster_hand_answer, and the machine's ports are not ours
                       */
    cluster_control_url(c, c->node_index, url, sizeof(url));
    return url[0] != '\0' ? tr_control_server_listen(c->control, url, err) : TR_OK;
}

tr_status cluster_meet_peer(tr_cluster *c, uint32_t node, uint64_t deadline_ns, tr_error *err)
{
    cluster_peer *peer = &c->peers[node];
    tr_control_reply reply;
    bool serving = false;

    tr_status status = cluster_call_until(peer, "hello", deadline_ns, &reply, err);
    if (status != TR_OK)
        return status;
    status = cluster_read_identity(peer, reply.map, err);
    (void)tr_map_bool(reply.map, "serving", &serving); /* absent: not yet */
    tr_control_reply_free(&reply);
    if (status == TR_OK && serving && !c->joins)
        status = tr_fail(err, TR_E_AGAIN, "node %s serves already, without this node",
                         c->placement->nodes[node].name);
    if (status == TR_OK)
        status = c->transport_ops->connect(c->transport, node, peer->address, peer->address_size,
                                           deadline_ns, err);
    return status;
}

tr_status cluster_meet_peers(tr_cluster *c, uint64_t deadline_ns, tr_error *err)
{
    tr_status status = cluster_listen(c, err);

    for (uint32_t n = 0; status == TR_OK && n < c->placement->nodes_count; n++)
        if (n != c->node_index)
            status = cluster_meet_peer(c, n, deadline_ns, err);
    if (status == TR_OK)
        status = cluster_check_mirrors(c, &c->view->plan, cluster_members(c), err);
    return status;
}

tr_status cluster_await_ready(tr_cluster *c, uint64_t deadline_ns, tr_error *err)
{
    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        cluster_peer *peer = &c->peers[n];
        bool ready = n == c->node_index;
        while (!ready) {
            tr_control_reply reply;
            /* It has said hello, so it is there: silence means that it is gone again. */
            uint64_t patience = earlier(deadline_ns, tr_clock_ns() + READY_SILENCE_NS);
            tr_status status = cluster_call_until(peer, "ready", patience, &reply, err);
            if (status != TR_OK)
                return status;
            uint64_t life = 0;
            (void)tr_map_bool(reply.map, "ready", &ready); /* absent: not ready */
            (void)tr_map_u64(reply.map, "life", &life);    /* absent: not the one that said hello */
            tr_control_reply_free(&reply);
            if (!is_known_life(peer, life))
                return tr_fail(err, TR_E_PEER,
                               "node %s was started again while the cluster started",
                               c->placement->nodes[n].name);
            if (!ready && tr_clock_ns() >= deadline_ns)
                return tr_fail(err, TR_E_TIMEOUT, "node %s is not ready in time",
                               c->placement->nodes[n].name);
            if (!ready)
                cluster_sleep(c, HELLO_RETRY_NS / 10);
        }
    }
    return TR_OK;
}

/* -- heartbeats -- */

bool cluster_peer_judge(cluster_peer *peer, cluster_ping ping, uint64_t now_ns)
{
    tr_cluster *c = peer->cluster;
    uint64_t timeout_ns = (uint64_t)c->placement->limits.peer_timeout_ms * 1000000;
    char reason[64];

    if (ping == PING_ANSWERED)
        peer->heard_ns = now_ns;
    if (ping == PING_GONE) {
        cluster_peer_lost(c, peer->index, "it has given this node up");
    } else if (ping == PING_OTHER) {
        cluster_peer_lost(c, peer->index, "it was started again");
    } else if (atomic_load(&c->counters.accused) >> peer->index & 1) {
        cluster_peer_lost(c, peer->index, "it has lost another node");
    } else if (now_ns - peer->heard_ns > timeout_ns) {
        snprintf(reason, sizeof(reason), "no answer for %.1f s",
                 (double)(now_ns - peer->heard_ns) / 1e9);
        cluster_peer_lost(c, peer->index, reason);
    }
    return atomic_load(&peer->alive);
}

static cluster_ping peer_ping(cluster_peer *peer, uint64_t deadline_ns)
{
    tr_control_reply reply;
    uint64_t begin = tr_clock_ns(), remote = 0, life = 0;
    if (cluster_call(peer, "ping", deadline_ns, &reply, NULL) != TR_OK)
        return PING_SILENCE;
    uint64_t end = tr_clock_ns(), round_trip = end - begin;
    bool good = tr_map_u64(reply.map, "now", &remote), gone = false;
    (void)tr_map_bool(reply.map, "gone", &gone); /* absent: not gone */
    (void)tr_map_u64(reply.map, "life", &life);
    tr_control_reply_free(&reply);
    if (good && life != atomic_load(&peer->life))
        return PING_OTHER;
    if (good && round_trip < atomic_load(&peer->round_trip_ns)) {
        atomic_store(&peer->round_trip_ns, round_trip);
        atomic_store(&peer->clock_offset_ns, (int64_t)(remote - (begin + round_trip / 2)));
    }
    return !good ? PING_SILENCE : gone ? PING_GONE : PING_ANSWERED;
}

/* Takes the time since since_ns out of the peer's silence, if by now we should have woken up long
 * ago: at due_ns. */
static void peer_excuse(cluster_peer *peer, uint64_t due_ns, uint64_t since_ns, uint32_t *excuses)
{
    uint64_t now = tr_clock_ns();
    if (now < due_ns + PING_LATE_NS || *excuses == PING_EXCUSES_MAX)
        return;
    ++*excuses;
    peer->heard_ns = earlier(peer->heard_ns + (now - since_ns), now);
}

static void *peer_main(void *ctx)
{
    cluster_peer *peer = ctx;
    tr_cluster *c = peer->cluster;
    uint64_t timeout_ns = (uint64_t)c->placement->limits.peer_timeout_ms * 1000000;
    /* A late answer is a sign of life as well. With half a second alone, a machine that needs more
     * for each answer would be given up, however long its timeout. */
    uint64_t patience_ns = earlier(PING_TIMEOUT_MAX_NS, timeout_ns / 4);
    if (patience_ns < CALL_TIMEOUT_NS)
        patience_ns = CALL_TIMEOUT_NS;

    uint64_t life = 0;            /* the one that heard_ns is about */
    uint64_t due = tr_clock_ns(); /* when this turn was to begin */
    uint32_t excuses = 0;

    while (!atomic_load(&c->stopping)) {
        uint64_t begin = tr_clock_ns(), known = atomic_load(&peer->life);
        if (atomic_load(&peer->alive) && known != life) {
            life = known;
            peer->heard_ns = begin;
        }
        if (atomic_load(&peer->alive)) {
            peer_excuse(peer, due, due, &excuses);
            uint64_t until = earlier(begin + patience_ns, peer->heard_ns + timeout_ns + 1);
            cluster_ping ping = peer_ping(peer, until);
            if (ping == PING_ANSWERED)
                excuses = 0;
            else if (ping == PING_SILENCE)
                peer_excuse(peer, until, begin, &excuses);
            if (life == atomic_load(&peer->life)) /* else it is another one by now */
                (void)cluster_peer_judge(peer, ping, tr_clock_ns());
        }
        uint64_t spent = tr_clock_ns() - begin;
        due = begin + (spent > PING_INTERVAL_NS ? spent : PING_INTERVAL_NS);
        if (spent < PING_INTERVAL_NS)
            cluster_sleep(c, PING_INTERVAL_NS - spent);
    }
    return NULL;
}

/* A node that watches nobody would wait for one that is gone for ever. */
tr_status cluster_start_heartbeats(tr_cluster *c, tr_error *err)
{
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        if (n != c->node_index &&
            !cluster_thread_start(c, &c->peers[n].thread, peer_main, &c->peers[n]))
            return tr_fail(err, TR_E_NOMEM, "no thread to watch node %s",
                           c->placement->nodes[n].name);
    return TR_OK;
}

void cluster_close_peers(tr_cluster *c)
{
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        cluster_thread_join(c, &c->peers[n].thread);
    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        cluster_peer *peer = &c->peers[n];
        tr_control_reply reply;
        if (peer->cluster == NULL)
            continue; /* this node itself, or it was not opened */
        if (atomic_load(&c->started) && atomic_load(&peer->alive) &&
            cluster_call(peer, "leave", tr_clock_ns() + CALL_TIMEOUT_NS, &reply, NULL) == TR_OK)
            tr_control_reply_free(&reply);
        tr_control_client_close(peer->control); /* NULL by hand */
        peer->control = NULL;
    }
}
