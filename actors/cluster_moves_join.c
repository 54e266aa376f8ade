/* cluster_moves_join.c - the coordinator's side of a node that comes back (cluster_join.c).
 *
 * One node at a time, and as a change of its own: while it is let in the placement does not change,
 * and while the placement changes it waits. A loss ends it, because the requests wait for that. */
#include "actors/cluster_moves.h"
#include "core/log.h"
#include "core/plan_edit.h"

#include <stdlib.h>
#include <string.h>

#define JOIN_CALL_NS    3000000000u  /* a call to a member */
#define JOIN_READY_NS   60000000000u /* for the node to connect to all members */
#define JOIN_SILENCE_NS 20000000000u /* of the node, meanwhile */
#define JOIN_POLL_NS    1000000u
#define SHARE_TRIES_MAX 5

/* -- what the node is answered -- */

/* Who it is; another life of the node that we still count on is lost by that. */
static tr_status read_newcomer(tr_cluster *c, const msgpack_object *request, const char *method,
                               uint32_t *node, uint64_t *life, tr_error *err)
{
    if (cluster_read_sender(c, request, method, node, life, err) != TR_OK)
        return TR_E_INVALID;
    if (c->moves == NULL)
        return tr_fail(err, TR_E_NOTSUP, "%s: node %s decides that", method,
                       c->placement->nodes[c->placement->batcher_node].name);
    if (atomic_load(&c->serving) && cluster_is_alive(c, *node) &&
        atomic_load(&c->peers[*node].life) != *life)
        cluster_peer_lost(c, *node, "it was started again");
    return TR_OK;
}

static tr_status on_plan(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                         uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    uint32_t node = 0;
    uint64_t life = 0;
    tr_plan plan;
    void *bytes;
    size_t size;

    if (read_newcomer(c, request, "plan", &node, &life, err) != TR_OK)
        return TR_E_INVALID;
    bool serving = atomic_load(&c->serving);
    pthread_mutex_lock(&c->moves->lock);
    moves_join *j = &c->moves->join;
    if (j->phase != MOVES_JOIN_NONE && j->node == node && j->life != life)
        j->given_up = true; /* that life has ended */
    bool busy = c->moves->busy || c->moves->lost != 0;
    pthread_mutex_unlock(&c->moves->lock);
    if (!serving || busy) {
        tr_pack_text(reply, "state", serving ? "wait" : "starting");
        *pairs += 1;
        return TR_OK;
    }
    tr_status status = tr_cluster_plan(c, &plan, err);
    if (status != TR_OK)
        return status;
    status = tr_plan_encode(&plan, &bytes, &size, err);
    tr_plan_free(&plan);
    if (status != TR_OK)
        return status;
    tr_pack_text(reply, "state", "running");
    tr_pack_bytes(reply, "plan", bytes, size);
    *pairs += 2;
    free(bytes);
    return TR_OK;
}

/* Begins to let a node in. With the lock held, while no change is under way. */
static tr_status join_begin(cluster_moves *m, uint32_t node, uint64_t life, tr_error *err)
{
    const cluster_peer *peer = &m->join.newcomer;
    m->join.node = node;
    m->join.life = life;
    m->join.given_up = false;
    m->join.heard_ns = cluster_now(m->cluster);
    memcpy(m->join.address, peer->address, peer->address_size);
    m->join.address_size = peer->address_size;
    m->join.phase = MOVES_JOIN_ASKED;
    tr_status status = moves_start_thread(m, err);
    if (status != TR_OK)
        m->join.phase = MOVES_JOIN_NONE;
    return status;
}

/* What a node that asks to join has to do next. With the lock held. */
static tr_status join_state(cluster_moves *m, uint32_t node, uint64_t life, uint64_t epoch,
                            bool ready, const char **state, tr_error *err)
{
    tr_cluster *c = m->cluster;
    moves_join *j = &m->join;
    bool known = j->phase != MOVES_JOIN_NONE && j->node == node;

    *state = "wait";
    if (cluster_is_alive(c, node) && atomic_load(&c->peers[node].life) == life) {
        *state = "member";
    } else if (known && j->life == life) {
        j->heard_ns = cluster_now(c);
        if (ready && j->phase == MOVES_JOIN_LINKED)
            j->phase = MOVES_JOIN_READY;
        if (j->phase != MOVES_JOIN_ASKED)
            *state = "connect";
    } else if (known) {
        j->given_up = true; /* that life has ended */
    } else if (ready) {
        *state = "stale"; /* it was given up while it connected */
    } else if (!m->busy && m->lost == 0) {
        pthread_mutex_lock(&c->lock);
        bool current = c->view->plan.epoch == epoch;
        pthread_mutex_unlock(&c->lock);
        if (!current)
            *state = "stale";
        else
            return join_begin(m, node, life, err);
    }
    return TR_OK;
}

/* A node that is still used, as nobody could take its share, may have come back with other kernels.
 */
static tr_status join_check_kernels(tr_cluster *c, uint32_t node, uint64_t fingerprint,
                                    tr_error *err)
{
    atomic_store(&c->peers[node].fingerprint, fingerprint);
    pthread_mutex_lock(&c->lock);
    tr_status status =
        cluster_check_mirrors(c, &c->view->plan, cluster_members(c) | 1u << node, err);
    pthread_mutex_unlock(&c->lock);
    return status;
}

static tr_status on_join(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                         uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    uint32_t node = 0;
    uint64_t life, epoch = 0;
    bool ready = false;
    const char *state;

    if (read_newcomer(c, request, "join", &node, &life, err) != TR_OK)
        return TR_E_INVALID;
    if (!tr_map_u64(request, "epoch", &epoch))
        return tr_fail(err, TR_E_INVALID, "join: epoch: missing, expected an integer");
    (void)tr_map_bool(request, "ready", &ready); /* absent: not ready */
    cluster_moves *m = c->moves;
    pthread_mutex_lock(&m->lock);
    /* A peer of its own: what it says of itself, but for its kernels, replaces nothing that is
     * known before peer_link. */
    m->join.newcomer.cluster = c;
    m->join.newcomer.index = node;
    tr_status status = cluster_read_identity(&m->join.newcomer, request, err);
    if (status == TR_OK)
        status = join_check_kernels(c, node, atomic_load(&m->join.newcomer.fingerprint), err);
    if (status == TR_OK)
        status = join_state(m, node, life, epoch, ready, &state, err);
    pthread_mutex_unlock(&m->lock);
    if (status != TR_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    uint32_t missing = c->missing;
    pthread_mutex_unlock(&c->lock);
    tr_pack_text(reply, "state", state);
    tr_pack_u64(reply, "members", cluster_members(c));
    tr_pack_u64(reply, "missing", missing);
    *pairs += 3;
    return TR_OK;
}

void cluster_moves_join_register(tr_cluster *c)
{
    tr_control_server_handle(c->control, "plan", on_plan, c);
    tr_control_server_handle(c->control, "join", on_join, c);
}

/* -- what is asked of the members -- */

static tr_status join_call(cluster_moves *m, uint32_t node, const char *method, bool with_address,
                           tr_error *err)
{
    tr_cluster *c = m->cluster;
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    tr_control_reply reply;
    tr_error why = {0};

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, with_address ? 4 : 3);
    tr_pack_text(&pk, "method", method);
    tr_pack_u64(&pk, "node", m->join.node);
    tr_pack_u64(&pk, "life", m->join.life);
    if (with_address)
        tr_pack_bytes(&pk, "address", m->join.address, m->join.address_size);
    tr_status status = cluster_call_node(c, &m->lines, node, &buffer,
                                         cluster_after(c, JOIN_CALL_NS), &reply, &why);
    msgpack_sbuffer_destroy(&buffer);
    tr_control_reply_free(&reply);
    if (status != TR_OK)
        return tr_fail(err, status, "node %s: %.200s", c->placement->nodes[node].name, why.text);
    return TR_OK;
}

/* Waits until the node has connected to all members. */
static tr_status join_await_ready(cluster_moves *m, tr_error *err)
{
    tr_cluster *c = m->cluster;
    uint64_t deadline_ns = cluster_after(c, JOIN_READY_NS);
    for (;;) {
        pthread_mutex_lock(&m->lock);
        bool ready = m->join.phase == MOVES_JOIN_READY;
        bool silent = cluster_now(c) - m->join.heard_ns > JOIN_SILENCE_NS;
        bool ended = m->join.given_up || m->lost != 0 || atomic_load(&c->stopping);
        pthread_mutex_unlock(&m->lock);
        if (ended)
            return tr_fail(err, TR_E_AGAIN, "something else came first");
        if (ready)
            return TR_OK;
        if (silent || cluster_now(c) >= deadline_ns)
            return tr_fail(err, TR_E_TIMEOUT, "it did not connect in time");
        cluster_sleep(c, JOIN_POLL_NS);
    }
}

/* The same of every member, the coordinator last: the batcher uses it from then on. */
static tr_status join_call_members(cluster_moves *m, const char *method, bool with_address,
                                   tr_error *err)
{
    tr_cluster *c = m->cluster;
    tr_status status = TR_OK;
    for (uint32_t n = 0; status == TR_OK && n < c->placement->nodes_count; n++)
        if (n != c->node_index && n != m->join.node && cluster_is_alive(c, n))
            status = join_call(m, n, method, with_address, err);
    return status == TR_OK ? join_call(m, c->node_index, method, with_address, err) : status;
}

void moves_join_run(cluster_moves *m)
{
    tr_cluster *c = m->cluster;
    const char *name = c->placement->nodes[m->join.node].name;
    uint32_t missed = 0;
    tr_error err = {0};

    tr_status status = join_call_members(m, "peer_link", true, &err);
    pthread_mutex_lock(&m->lock);
    m->join.phase = MOVES_JOIN_LINKED;
    pthread_mutex_unlock(&m->lock);
    if (status == TR_OK)
        status = join_await_ready(m, &err);
    if (status == TR_OK)
        status = join_call_members(m, "peer_up", false, &err);
    if (status == TR_OK)
        missed = moves_serve_again(m);
    tr_log(status == TR_OK ? TR_LOG_INFO : TR_LOG_WARN, NULL, "node_joins", "node=%s %s=\"%s\"",
           name, status == TR_OK ? "done" : "failed", err.text);
    pthread_mutex_lock(&m->lock);
    if (status == TR_OK) /* and others that could not get theirs while this one was missing */
        m->returning = cluster_members(c) & ~(1u << c->node_index);
    m->lost |= missed; /* with the room of this one the others may have enough */
    m->share_tries = 0;
    m->join.phase = MOVES_JOIN_NONE;
    pthread_mutex_unlock(&m->lock);
}

/* -- its share -- */

void moves_note_home(cluster_moves *m, const tr_plan *plan, uint32_t lost)
{
    tr_cluster *c = m->cluster;
    tr_plan home = {0};

    pthread_mutex_lock(&c->lock);
    bool whole = (c->missing & ~lost) == 0;
    pthread_mutex_unlock(&c->lock);
    /* A node may be missing that was drained by a change under way: the first loss counts always.
     * Without memory for it the node gets back what it had at an earlier loss, or nothing. */
    if ((!whole && m->home.attention != NULL) || tr_plan_copy(&home, plan, NULL) != TR_OK)
        return;
    tr_plan_free(&m->home);
    m->home = home;
}

void moves_note_return(cluster_moves *m, const tr_change_report *ended)
{
    if (ended->number == 0 || m->share_of == 0)
        return;
    /* Mostly another node was lost in the middle of it. */
    if (ended->error.code == TR_OK)
        m->share_tries = 0;
    else if (++m->share_tries < SHARE_TRIES_MAX)
        m->returning |= 1u << (m->share_of - 1);
    m->share_of = 0;
}

/* The node has all that it shall have. */
static void share_is_back(tr_cluster *c, uint32_t node)
{
    pthread_mutex_lock(&c->lock);
    c->missing &= ~(1u << node);
    pthread_mutex_unlock(&c->lock);
}

bool moves_next_return(cluster_moves *m, tr_plan *plan, uint32_t *node, uint32_t *moved)
{
    tr_cluster *c = m->cluster;

    while (m->returning != 0) {
        tr_error err = {0};
        *node = (uint32_t)__builtin_ctz(m->returning);
        *moved = 0;
        m->returning &= m->returning - 1;
        pthread_mutex_lock(&c->lock);
        bool missing = c->missing >> *node & 1; /* else it was drained before it went */
        pthread_mutex_unlock(&c->lock);
        if (!missing || !cluster_is_alive(c, *node))
            continue;
        if (m->home.attention ==
            NULL) { /* a drain had emptied it before its loss changed anything */
            share_is_back(c, *node);
            continue;
        }
        tr_status status = tr_cluster_plan(c, plan, &err);
        if (status != TR_OK)
            continue;
        status = tr_plan_return(plan, &m->home, *node, moved, &err);
        if (status == TR_OK && *moved > 0) {
            m->share_of = 1 + *node;
            return true;
        }
        tr_plan_free(plan);
        if (status != TR_OK) {
            tr_log(TR_LOG_WARN, NULL, "share_not_returned", "node=%s reason=\"%s\"",
                   c->placement->nodes[*node].name, err.text);
            continue;
        }
        share_is_back(c, *node); /* it had nothing, or has it already */
    }
    return false;
}
