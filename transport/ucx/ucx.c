/* ucx.c - the life of the UCX transport: open, address, connect, poll, close.
 *
 * An address is our own short header and the worker's address. Endpoints are made from it on both
 * sides independently; UCX joins the two, whichever comes first. */
#include "transport/ucx/ucx.h"

#include "transport/address.h"
#include "transport/options.h"
#include "transport/ucx/internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UCX_PROGRESS_MAX 8           /* progress calls in one poll, so that it ends under a flood */
#define UCX_DRAIN_NS     20000000ull /* for what a forgotten peer has sent to be dropped */
#define UCX_TEARDOWN_NS  200000000ull /* for UCX to let go of forced-closed endpoints */

/* Body of an address: this, then the worker's own bytes. */
typedef struct {
    uint16_t version_major, version_minor; /* UCX's wire format is not the same in all versions */
    uint32_t life;                         /* of the transport */
} ucx_address_version;

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
    status = ucx_receive_register(t, err);
    if (status != TR_OK)
        goto close_context;
    *out = t;
    return TR_OK;

close_context:
    ucx_context_close(t);
    ucx_receive_free(t);
free_transport:
    free(t);
    return status;
}

static uint64_t ucx_bytes(uint32_t nodes_count)
{
    return sizeof(tr_transport) + nodes_count * (uint64_t)sizeof(ucx_ring) +
           ucx_context_bytes(nodes_count);
}

static ucx_address_version ucx_version(const tr_transport *t)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    return (ucx_address_version){(uint16_t)major, (uint16_t)minor, t->life};
}

static tr_status ucx_get_address(tr_transport *t, void *address, size_t size_max, size_t *size,
                                 tr_error *err)
{
    uint8_t body[TR_ADDRESS_SIZE_MAX];
    ucx_address_version version = ucx_version(t);

    if (t->address_size > sizeof(body) - sizeof(version))
        return tr_fail(err, TR_E_INVALID,
                       "ucx: a worker address of %zu bytes, expected at most %zu", t->address_size,
                       sizeof(body) - sizeof(version));
    memcpy(body, &version, sizeof(version));
    memcpy(body + sizeof(version), t->address, t->address_size);
    return tr_address_write(address, size_max, size, "ucx", t->config.node_index, body,
                            sizeof(version) + t->address_size, err);
}

/* Finds the worker's address in a peer's, and the number of its life. */
static tr_status ucx_read_address(const tr_transport *t, const ucp_address_t **out, uint32_t *life,
                                  uint32_t node_index, const void *address, size_t size,
                                  tr_error *err)
{
    ucx_address_version version, own = ucx_version(t);
    const void *body = NULL;
    size_t body_size = 0;

    tr_status status = tr_address_read(&body, &body_size, "ucx", node_index, address, size, err);
    if (status != TR_OK)
        return status;
    if (body_size <= sizeof(version))
        return tr_fail(err, TR_E_INVALID, "ucx: the address of node %u is empty", node_index);
    memcpy(&version, body, sizeof(version));
    if (version.version_major != own.version_major || version.version_minor != own.version_minor)
        return tr_fail(err, TR_E_INVALID, "ucx: node %u has UCX %u.%u, this node %u.%u", node_index,
                       version.version_major, version.version_minor, own.version_major,
                       own.version_minor);
    *out = (const ucp_address_t *)((const char *)body + sizeof(version));
    *life = version.life;
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
static void ucx_part_from(tr_transport *t, ucx_peer *peer)
{
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = ucx_on_endpoint_closed,
        .user_data = &t->parting_count,
    };

    if (peer->ep == NULL)
        return;
    t->parting_count++;
    if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(peer->ep, &params)))
        t->parting_count--; /* closed at once */
    peer->ep = NULL;
}

static void ucx_forget(tr_transport *t, uint32_t node_index)
{
    ucx_peer *peer = &t->peers[node_index];

    peer->phase = UCX_DOWN; /* for what UCX tells while the endpoint closes */
    ucx_part_from(t, peer);
    /* Note: an endpoint made now may get the number of the closed one (UCX 1.13), and what its peer
     * sent last, a goodbye among it, would be taken as meant for the new one. */
    uint64_t deadline_ns = tr_clock_ns() + UCX_DRAIN_NS;
    while ((ucp_worker_progress(t->worker) != 0 || t->parting_count > 0) &&
           tr_clock_ns() < deadline_ns)
        ;
    if (ucx_receive_renew(t, node_index) != TR_OK)
        return; /* no memory: it stays down, and cannot be connected */
    *peer = (ucx_peer){.ring = peer->ring};
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
    if (peer->life != 0 && peer->life != life)
        ucx_forget(t, node_index); /* the end of its former life has come meanwhile */
    peer->life = life;

    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = worker_address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = ucx_on_endpoint_error, .arg = &t->links[node_index]},
    };
    ucs_status_t ucs = ucp_ep_create(t->worker, &params, &peer->ep);
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
    ucx_receive_drop(t, peer);
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

static uint32_t ucx_poll(tr_transport *t)
{
    /* Until something came of it: who waits for a message should not wait for the next one, too. */
    for (uint32_t i = 0;
         i < UCX_PROGRESS_MAX && ucp_worker_progress(t->worker) != 0 && t->events == 0; i++)
        ;
    /* A different peer comes first each time: they compete for the buffers of one pool. */
    uint32_t node_index = t->turn;
    t->turn = t->turn + 1 < t->config.nodes_count ? t->turn + 1 : 0;
    for (uint32_t i = 0; i < t->config.nodes_count; i++) {
        ucx_tend(t, node_index);
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
        ucp_worker_progress(t->worker);
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

static void ucx_close_endpoints(tr_transport *t)
{
    uint64_t deadline_ns = tr_clock_ns() + UCX_TEARDOWN_NS;

    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        ucx_part_from(t, &t->peers[i]);
    while ((t->parting_count > 0 || t->slots_used > 0 || t->controls_count > 0) &&
           tr_clock_ns() < deadline_ns)
        ucp_worker_progress(t->worker);
}

static void ucx_close(tr_transport *t)
{
    t->closing = true;
    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        ucx_receive_drop(t, &t->peers[i]);
    ucx_part(t);
    ucx_close_endpoints(t);
    ucx_context_close(t);
    /* UCX is gone and touches no buffer any more. */
    ucx_send_drop(t);
    ucx_receive_free(t);
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
