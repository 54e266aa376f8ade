/* ucx.c - the life of the UCX transport: open, address, connect, poll, close.
 *
 * An address is our own short header and the addresses of the workers, one for each peer. Endpoints
 * are made from it on both sides independently; UCX joins the two, whichever comes first. */
#include "transport/ucx/ucx.h"

#include "transport/address.h"
#include "transport/options.h"
#include "transport/ucx/internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UCX_PROGRESS_MAX 8 /* progress calls in one poll, so that it ends under a flood */
#define UCX_TEARDOWN_NS  200000000ull /* for UCX to let go of forced-closed endpoints */

/* Body of an address: this, then the bytes of the workers' addresses in the order of the nodes. */
typedef struct {
    uint16_t version_major, version_minor; /* UCX's wire format is not the same in all versions */
    uint32_t life;                         /* of the transport */
    uint16_t sizes[TR_NODES_MAX];          /* bytes for each node; 0: none */
} ucx_address_head;

/* Whether a node of the cluster is a peer. */
static bool ucx_is_peer(const tr_transport *t, uint32_t node_index)
{
    return node_index < t->config.nodes_count && node_index != t->config.node_index;
}

static void ucx_close_peers(tr_transport *t)
{
    for (uint32_t i = 0; i < t->config.nodes_count; i++) {
        if (t->peers[i].ring == NULL)
            continue;
        ucx_worker_close(t, i);
        ucx_receive_abandon(t, i);
        ucx_send_abandon(t, i);
        free(t->peers[i].ring);
    }
}

static tr_status ucx_open_peers(tr_transport *t, tr_error *err)
{
    tr_status status = TR_OK;

    for (uint32_t i = 0; i < t->config.nodes_count && status == TR_OK; i++) {
        t->links[i] = (ucx_link){.t = t, .node_index = i};
        if (!ucx_is_peer(t, i))
            continue;
        status = ucx_receive_open(t, i, err);
        if (status == TR_OK)
            status = ucx_worker_open(t, i, err);
    }
    if (status != TR_OK)
        ucx_close_peers(t);
    return status;
}

static tr_status ucx_open(tr_transport **out, const tr_transport_config *config, tr_error *err)
{
    tr_option options[] = {{.key = "tls"}, {.key = "devices"}};

    tr_status status = tr_transport_config_check(config, "ucx", err);
    if (status == TR_OK)
        status = tr_options_parse(options, 2, "ucx", config->options, err);
    if (status != TR_OK)
        return status;

    ucx_log_open();
    tr_transport *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "ucx: no memory for a transport");
    t->config = *config;
    t->config.options = NULL; /* borrowed for the call only */
    t->payload_max = tr_pool_capacity_max(config->pool);
    t->life = tr_transport_life();
    ucx_send_init(t);
    /* self: a node does not talk to itself. sysv: posix does the same and leaves nothing behind. */
    status = ucx_context_open(t, options[0].value[0] != '\0' ? options[0].value : "^self,sysv",
                              options[1].value[0] != '\0' ? options[1].value : "all", err);
    if (status != TR_OK)
        goto free_transport;
    status = ucx_open_peers(t, err);
    if (status != TR_OK)
        goto close_context;
    *out = t;
    return TR_OK;

close_context:
    ucx_context_close(t);
free_transport:
    free(t);
    return status;
}

static uint64_t ucx_bytes(uint32_t nodes_count)
{
    return sizeof(tr_transport) + nodes_count * (uint64_t)sizeof(ucx_ring) +
           ucx_context_bytes(nodes_count);
}

static ucx_address_head ucx_head(const tr_transport *t)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    return (ucx_address_head){
        .version_major = (uint16_t)major, .version_minor = (uint16_t)minor, .life = t->life};
}

static tr_status ucx_get_address(tr_transport *t, void *address, size_t size_max, size_t *size,
                                 tr_error *err)
{
    uint8_t body[TR_ADDRESS_SIZE_MAX];
    ucx_address_head head = ucx_head(t);
    size_t used = sizeof(head);

    for (uint32_t i = 0; i < t->config.nodes_count; i++) {
        const ucx_worker *worker = &t->workers[i];
        if (worker->handle == NULL)
            continue;
        if (worker->address_size > sizeof(body) - used)
            return tr_fail(err, TR_E_INVALID,
                           "ucx: %u worker addresses of %zu bytes, expected at most %zu in all",
                           t->config.nodes_count - 1, worker->address_size,
                           sizeof(body) - sizeof(head));
        memcpy(body + used, worker->address, worker->address_size);
        head.sizes[i] = (uint16_t)worker->address_size;
        used += worker->address_size;
    }
    memcpy(body, &head, sizeof(head));
    return tr_address_write(address, size_max, size, "ucx", t->config.node_index, body, used, err);
}

/* Finds the address of the worker for us in a peer's, and the number of its life. */
static tr_status ucx_read_address(const tr_transport *t, const ucp_address_t **out, uint32_t *life,
                                  uint32_t node_index, const void *address, size_t size,
                                  tr_error *err)
{
    ucx_address_head head, own = ucx_head(t);
    const void *body = NULL;
    size_t body_size = 0, before = 0, all = 0;

    tr_status status = tr_address_read(&body, &body_size, "ucx", node_index, address, size, err);
    if (status != TR_OK)
        return status;
    if (body_size < sizeof(head))
        return tr_fail(err, TR_E_INVALID, "ucx: the address of node %u is empty", node_index);
    memcpy(&head, body, sizeof(head));
    if (head.version_major != own.version_major || head.version_minor != own.version_minor)
        return tr_fail(err, TR_E_INVALID, "ucx: node %u has UCX %u.%u, this node %u.%u", node_index,
                       head.version_major, head.version_minor, own.version_major,
                       own.version_minor);
    for (uint32_t i = 0; i < TR_NODES_MAX; i++) {
        all += head.sizes[i];
        before += i < t->config.node_index ? head.sizes[i] : 0;
    }
    if (all != body_size - sizeof(head) || head.sizes[t->config.node_index] == 0)
        return tr_fail(err, TR_E_INVALID, "ucx: the address of node %u is not for node %u",
                       node_index, t->config.node_index);
    *out = (const ucp_address_t *)((const char *)body + sizeof(head) + before);
    *life = head.life;
    return TR_OK;
}

void ucx_peer_end(tr_transport *t, uint32_t node_index, const char *reason)
{
    ucx_peer *peer = &t->peers[node_index];

    if (peer->phase >= UCX_ENDING)
        return;
    peer->phase = UCX_ENDING;
    peer->ending_deadline_ns = tr_clock_ns() + UCX_ENDING_NS;
    snprintf(peer->reason, sizeof(peer->reason), "%s", reason);
}

/* UCX's word that an endpoint is broken. Runs inside progress or a send. */
static void ucx_on_endpoint_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ucx_link *to = arg;

    if (to->t->peers[to->node_index].ep != ep)
        return; /* of a life that has been forgotten */
    to->t->peers[to->node_index].ep_failed = true;
    ucx_peer_end(to->t, to->node_index, ucs_status_string(status));
}

static void ucx_on_endpoint_closed(void *request, ucs_status_t status, void *user_data)
{
    uint32_t *count = user_data;

    (void)status; /* well or not, it has ended */
    assert(*count > 0);
    (*count)--;
    ucp_request_free(request);
}

/* Forced: what has not left by now is given up, and UCX ends those sends with an error. Note: no
 * flush of an endpoint (ucp_ep_flush_nbx, a close that is not forced) may be in flight here. Its
 * answer would trip an assertion in the TCP of UCX 1.13. */
static void ucx_part_from(tr_transport *t, uint32_t node_index)
{
    ucx_peer *peer = &t->peers[node_index];
    ucx_worker *worker = &t->workers[node_index];
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = ucx_on_endpoint_closed,
        .user_data = &worker->parting_count,
    };

    if (peer->ep == NULL)
        return;
    worker->parting_count++;
    if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(peer->ep, &params)))
        worker->parting_count--; /* closed at once */
    peer->ep = NULL;
}

/* The worker goes with the peer: what it has sent to it ends there, and what it was writing when it
 * was killed stops nobody. */
static void ucx_forget(tr_transport *t, uint32_t node_index)
{
    ucx_peer *peer = &t->peers[node_index];
    ucx_worker *worker = &t->workers[node_index];
    uint64_t deadline_ns = tr_clock_ns() + UCX_TEARDOWN_NS;
    tr_error err = {0};

    peer->phase = UCX_DOWN; /* for what UCX tells while the endpoint closes */
    ucx_part_from(t, node_index);
    while (worker->parting_count > 0 && tr_clock_ns() < deadline_ns)
        ucp_worker_progress(worker->handle);
    (void)ucx_receive_drop(t, node_index);
    ucx_worker_close(t, node_index);
    ucx_receive_abandon(t, node_index);
    ucx_send_abandon(t, node_index);
    *peer = (ucx_peer){.ring = peer->ring};
    if (ucx_worker_open(t, node_index, &err) == TR_OK)
        return;
    peer->phase = UCX_DOWN; /* and cannot be connected */
    snprintf(peer->reason, sizeof(peer->reason), "%.200s", err.text);
}

static tr_status ucx_connect(tr_transport *t, uint32_t node_index, const void *address, size_t size,
                             uint64_t deadline_ns, tr_error *err)
{
    const ucp_address_t *worker_address = NULL;
    uint32_t life = 0;

    (void)deadline_ns; /* nothing here waits: UCX connects while it progresses */
    tr_status status = tr_transport_peer_check(&t->config, "ucx", node_index, err);
    if (status == TR_OK)
        status = ucx_read_address(t, &worker_address, &life, node_index, address, size, err);
    if (status != TR_OK)
        return status;

    ucx_peer *peer = &t->peers[node_index];
    if (peer->phase == UCX_CONNECTED)
        return tr_fail(err, TR_E_INVALID, "ucx: node %u is connected already", node_index);
    if (peer->phase != UCX_UNCONNECTED)
        return tr_fail(err, TR_E_PEER, "ucx: node %u is gone: %s", node_index, peer->reason);
    if (peer->life != 0 && peer->life != life) { /* a former life has met us and is gone */
        if (!ucx_receive_drop(t, node_index))
            return tr_fail(err, TR_E_PEER, "ucx: node %u is still sending in its former life",
                           node_index);
        *peer = (ucx_peer){.ring = peer->ring};
    }
    peer->life = life;

    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = worker_address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = ucx_on_endpoint_error, .arg = &t->links[node_index]},
    };
    ucs_status_t ucs = ucp_ep_create(t->workers[node_index].handle, &params, &peer->ep);
    if (ucs != UCS_OK) {
        peer->ep = NULL;
        return tr_fail(err, TR_E_PEER, "ucx: endpoint to node %u: %s", node_index,
                       ucs_status_string(ucs));
    }
    peer->phase = UCX_CONNECTED;
    ucx_path_describe(peer->path, sizeof(peer->path), peer->ep);
    return TR_OK;
}

/* One turn of a peer that is ending: delivers what can be, then reports it. */
static void ucx_tend_ending(tr_transport *t, uint32_t node_index)
{
    ucx_peer *peer = &t->peers[node_index];
    ucx_entry_state head = peer->ring->entries[peer->delivered % UCX_WINDOW].state;
    bool waits = peer->bye ? peer->delivered != peer->bye_at
                           : head == UCX_ENTRY_KEPT || head == UCX_ENTRY_READY;

    if (waits && tr_clock_ns() < peer->ending_deadline_ns)
        return;
    peer->phase = UCX_DOWN;
    (void)ucx_receive_drop(t, node_index);
    /* To one that closes: we have all. To one that broke the protocol: we are gone. Our endpoint
     * stays until the transport closes, so that this still leaves. */
    if (peer->ep != NULL && !peer->ep_failed)
        (void)ucx_send_control(t, node_index, peer->bye ? UCX_CONTROL_ACK : UCX_CONTROL_BYE,
                               peer->bye ? peer->delivered : peer->sent);
    t->events++;
    t->config.peer_down(t->config.ctx, node_index, peer->reason);
}

static void ucx_tend(tr_transport *t, uint32_t node_index)
{
    ucx_peer *peer = &t->peers[node_index];

    if (peer->phase == UCX_DOWN)
        return;
    if (peer->delivered != peer->prepared ||
        peer->ring->entries[peer->prepared % UCX_WINDOW].state != UCX_ENTRY_EMPTY)
        ucx_receive_advance(t, node_index);
    /* A peer that receives nothing from us would otherwise never hear how far we are. */
    if (peer->phase == UCX_CONNECTED && peer->delivered - peer->reported >= UCX_WINDOW / 4 &&
        ucx_send_control(t, node_index, UCX_CONTROL_ACK, peer->delivered))
        peer->reported = peer->delivered;
    if (peer->phase == UCX_ENDING)
        ucx_tend_ending(t, node_index);
}

/* Until something came of it: who waits for a message should not wait for the next one, too. */
static void ucx_progress(tr_transport *t, uint32_t node_index)
{
    ucp_worker_h worker = t->workers[node_index].handle;

    for (uint32_t i = 0; i < UCX_PROGRESS_MAX && ucp_worker_progress(worker) != 0 && t->events == 0;
         i++)
        ;
}

static uint32_t ucx_poll(tr_transport *t)
{
    /* A different peer comes first each time: they compete for the buffers of one pool. */
    uint32_t node_index = t->turn;
    t->turn = t->turn + 1 < t->config.nodes_count ? t->turn + 1 : 0;
    for (uint32_t i = 0; i < t->config.nodes_count; i++) {
        if (t->workers[node_index].handle != NULL) {
            ucx_progress(t, node_index);
            ucx_tend(t, node_index);
        }
        node_index = node_index + 1 < t->config.nodes_count ? node_index + 1 : 0;
    }
    uint32_t events = t->events;
    t->events = 0;
    return events;
}

static const char *ucx_get_path(tr_transport *t, uint32_t node_index)
{
    assert(node_index < t->config.nodes_count);
    return t->peers[node_index].path;
}

static void ucx_progress_all(tr_transport *t)
{
    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        if (t->workers[i].handle != NULL)
            ucp_worker_progress(t->workers[i].handle);
}

/* Whether everything that was taken has been delivered, as far as peers live. */
static bool ucx_is_flushed(const tr_transport *t)
{
    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        if (t->peers[i].phase == UCX_CONNECTED && t->peers[i].sent != t->peers[i].acked)
            return false;
    return t->slots_used == 0 && t->controls_count == 0;
}

/* Says goodbye to every peer until all has been delivered, or time is up. */
static void ucx_part(tr_transport *t)
{
    uint64_t deadline_ns = tr_clock_ns() + UCX_FLUSH_NS;
    bool said_bye[TR_NODES_MAX] = {false};
    bool all_said;

    do {
        ucx_progress_all(t);
        all_said = true;
        for (uint32_t i = 0; i < t->config.nodes_count; i++) {
            if (t->peers[i].phase != UCX_CONNECTED || said_bye[i])
                continue;
            said_bye[i] =
                t->slots_used == 0 && ucx_send_control(t, i, UCX_CONTROL_BYE, t->peers[i].sent);
            all_said &= said_bye[i];
        }
        sched_yield();
    } while (!(all_said && ucx_is_flushed(t)) && tr_clock_ns() < deadline_ns);
}

static bool ucx_is_parting(const tr_transport *t)
{
    bool parting = false;
    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        parting |= t->workers[i].parting_count > 0;
    return parting;
}

static void ucx_close_endpoints(tr_transport *t)
{
    uint64_t deadline_ns = tr_clock_ns() + UCX_TEARDOWN_NS;

    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        ucx_part_from(t, i);
    while ((ucx_is_parting(t) || t->slots_used > 0 || t->controls_count > 0) &&
           tr_clock_ns() < deadline_ns)
        ucx_progress_all(t);
}

static void ucx_close(tr_transport *t)
{
    t->closing = true;
    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        if (ucx_is_peer(t, i))
            (void)ucx_receive_drop(t, i);
    ucx_part(t);
    ucx_close_endpoints(t);
    ucx_close_peers(t);
    ucx_context_close(t);
    free(t);
}

const tr_transport_ops tr_ucx_ops = {
    .name = "ucx",
    .bytes = ucx_bytes,
    .open = ucx_open,
    .address = ucx_get_address,
    .connect = ucx_connect,
    .forget = ucx_forget,
    .send = ucx_send,
    .poll = ucx_poll,
    .path = ucx_get_path,
    .close = ucx_close,
};
