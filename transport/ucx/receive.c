/* receive.c - messages in.
 *
 * Each message carries its sequence number and has its place in the peer's ring, so the order does
 * not rest on UCX, whose eager and rendezvous messages may overtake each other:
 *
 *        delivered            prepared
 *            |                   |
 *   [ ready  arriving  ready  |  kept  announced  empty ... ]
 *
 * Entries get their buffers in order, too: the oldest message is never starved by later ones. The
 * common case, next in order, a buffer free, bytes at hand, skips the ring. */
#include "transport/ucx/internal.h"

#include <stdlib.h>
#include <string.h>

static void receive_deliver(tr_transport *t, uint32_t node_index, const tr_msg *msg)
{
    t->peers[node_index].delivered++;
    t->events++;
    t->config.deliver(t->config.ctx, node_index, msg);
}

static ucp_worker_h receive_worker(const ucx_entry *entry)
{
    return entry->from->t->workers[entry->from->node_index].handle;
}

/* Lets go of what the entry holds. Not while UCX writes into its buffer. */
static void receive_clear(ucx_entry *entry)
{
    assert(entry->state != UCX_ENTRY_ARRIVING);
    if (entry->data != NULL)
        ucp_am_data_release(receive_worker(entry), entry->data);
    entry->data = NULL;
    tr_buf_unref(entry->msg.payload);
    entry->msg.payload = NULL;
    entry->state = UCX_ENTRY_EMPTY;
}

static void receive_on_rendezvous_done(void *request, ucs_status_t status, size_t length,
                                       void *user_data)
{
    ucx_entry *entry = user_data;
    tr_transport *t = entry->from->t;

    assert(entry->state == UCX_ENTRY_ARRIVING);
    (void)length; /* announced with the message and checked then */
    entry->state = status == UCS_OK ? UCX_ENTRY_READY : UCX_ENTRY_LOST;
    if (t->closing || t->peers[entry->from->node_index].phase == UCX_DOWN)
        receive_clear(entry);
    t->events++;
    ucp_request_free(request);
}

/* Begins to fetch the bytes of an announced payload into the entry's buffer. */
static void receive_fetch(ucx_entry *entry)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = receive_on_rendezvous_done,
        .user_data = entry,
    };

    entry->state = UCX_ENTRY_ARRIVING;
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(receive_worker(entry), entry->data, entry->msg.payload->data,
                             entry->msg.header.payload_size, &params);
    entry->data = NULL; /* UCX's from here on */
    if (UCS_PTR_IS_PTR(request))
        return;
    entry->state = request == NULL ? UCX_ENTRY_READY : UCX_ENTRY_LOST;
}

/* Gives the entry its buffer. false: the pool is empty. */
static bool receive_prepare(tr_transport *t, ucx_entry *entry)
{
    uint32_t size = entry->msg.header.payload_size;

    if (entry->state == UCX_ENTRY_READY) /* no payload */
        return true;
    entry->msg.payload = tr_pool_take(t->config.pool, size);
    if (entry->msg.payload == NULL)
        return false;
    if (entry->state == UCX_ENTRY_ANNOUNCED) {
        receive_fetch(entry);
        return true;
    }
    assert(entry->state == UCX_ENTRY_KEPT);
    memcpy(entry->msg.payload->data, entry->data, size);
    ucp_am_data_release(receive_worker(entry), entry->data);
    entry->data = NULL;
    entry->state = UCX_ENTRY_READY;
    return true;
}

void ucx_receive_advance(tr_transport *t, uint32_t node_index)
{
    ucx_peer *peer = &t->peers[node_index];

    while (peer->prepared - peer->delivered < UCX_WINDOW) {
        ucx_entry *entry = &peer->ring->entries[peer->prepared % UCX_WINDOW];
        if (entry->state == UCX_ENTRY_EMPTY || !receive_prepare(t, entry))
            break;
        peer->prepared++;
    }
    while (peer->delivered != peer->prepared) {
        ucx_entry *entry = &peer->ring->entries[peer->delivered % UCX_WINDOW];
        if (entry->state != UCX_ENTRY_READY)
            break;
        tr_msg msg = entry->msg;
        entry->state = UCX_ENTRY_EMPTY;
        entry->msg.payload = NULL;
        receive_deliver(t, node_index, &msg);
    }
}

tr_status ucx_receive_open(tr_transport *t, uint32_t node_index, tr_error *err)
{
    ucx_ring *ring = calloc(1, sizeof(*ring));

    if (ring == NULL)
        return tr_fail(err, TR_E_NOMEM, "ucx: no memory for a receive ring");
    for (uint32_t i = 0; i < UCX_WINDOW; i++)
        ring->entries[i].from = &t->links[node_index];
    t->peers[node_index].ring = ring;
    return TR_OK;
}

bool ucx_receive_drop(tr_transport *t, uint32_t node_index)
{
    ucx_ring *ring = t->peers[node_index].ring;
    bool all = true;

    for (uint32_t i = 0; i < UCX_WINDOW; i++)
        if (ring->entries[i].state != UCX_ENTRY_ARRIVING)
            receive_clear(&ring->entries[i]);
        else
            all = false;
    return all;
}

void ucx_receive_abandon(tr_transport *t, uint32_t node_index)
{
    ucx_ring *ring = t->peers[node_index].ring;

    for (uint32_t i = 0; i < UCX_WINDOW; i++) {
        if (ring->entries[i].state == UCX_ENTRY_ARRIVING)
            ring->entries[i].state = UCX_ENTRY_LOST;
        receive_clear(&ring->entries[i]);
    }
}

/* Whether what comes from this peer still counts: one that says goodbye may be overtaken by its own
 * last messages. */
static bool receive_is_open(const tr_transport *t, const ucx_peer *peer)
{
    return !t->closing &&
           (peer->phase <= UCX_CONNECTED || (peer->phase == UCX_ENDING && peer->bye));
}

/* Whether the peer of today has sent this. One that is not connected yet is known by what it says
 * first; should that be the end of a former life, connect forgets it. */
static bool receive_is_of(ucx_peer *peer, uint32_t life)
{
    if (peer->life == 0)
        peer->life = life;
    return peer->life == life;
}

/* Believes the acknowledged count of a peer if it can be true. */
static bool receive_note_acked(ucx_peer *peer, uint32_t acked)
{
    if (acked - peer->acked > peer->sent - peer->acked)
        return false;
    peer->acked = acked;
    return true;
}

/* Checks a message's header and trailer. False: nothing is kept, and the peer is ending unless the
 * message is one of a former life. */
static bool receive_check(tr_transport *t, uint32_t node_index, ucx_wire_header *out,
                          const void *header, size_t header_size, size_t size)
{
    ucx_peer *peer = &t->peers[node_index];
    tr_error err;

    if (header_size != sizeof(*out)) {
        (void)tr_fail(&err, TR_E_INVALID, "ucx: %zu header bytes, expected %zu", header_size,
                      sizeof(*out));
        goto refuse;
    }
    if (tr_msg_header_read(&out->header, header, sizeof(out->header), t->payload_max, &err) !=
        TR_OK)
        goto refuse;
    memcpy(&out->trailer, (const char *)header + sizeof(out->header), sizeof(out->trailer));
    if (!receive_is_of(peer, out->trailer.life))
        return false; /* late, and no fault of the peer's */
    if (out->header.payload_size != size) {
        (void)tr_fail(&err, TR_E_INVALID, "ucx: payload_size %u, but %zu bytes came",
                      out->header.payload_size, size);
        goto refuse;
    }
    uint32_t ahead = out->trailer.sequence - peer->delivered;
    if (ahead >= UCX_WINDOW ||
        peer->ring->entries[out->trailer.sequence % UCX_WINDOW].state != UCX_ENTRY_EMPTY) {
        (void)tr_fail(&err, TR_E_INVALID, "ucx: sequence %u, expected a new one from %u on",
                      out->trailer.sequence, peer->delivered);
        goto refuse;
    }
    if (!receive_note_acked(peer, out->trailer.acked)) {
        (void)tr_fail(&err, TR_E_INVALID, "ucx: acked %u, expected %u..%u", out->trailer.acked,
                      peer->acked, peer->sent);
        goto refuse;
    }
    return true;

refuse:
    ucx_peer_end(t, node_index, err.text);
    return false;
}

/* Handler of data messages. UCS_OK: UCX may forget data (a rendezvous is then refused);
 * UCS_INPROGRESS: data is ours until it is released or fetched. */
static ucs_status_t receive_on_data(void *arg, const void *header, size_t header_size, void *data,
                                    size_t size, const ucp_am_recv_param_t *param)
{
    ucx_link *from = arg;
    tr_transport *t = from->t;
    ucx_peer *peer = &t->peers[from->node_index];
    bool announced = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    ucx_wire_header wire;

    if (!receive_is_open(t, peer) ||
        !receive_check(t, from->node_index, &wire, header, header_size, size))
        return UCS_OK;

    tr_msg msg = {.header = wire.header};
    bool next = wire.trailer.sequence == peer->delivered && peer->prepared == peer->delivered;
    if (next && !announced) {
        if (size > 0)
            msg.payload = tr_pool_take(t->config.pool, (uint32_t)size);
        if (size == 0 || msg.payload != NULL) {
            if (size > 0)
                memcpy(msg.payload->data, data, size);
            peer->prepared++;
            receive_deliver(t, from->node_index, &msg);
            return UCS_OK;
        }
    }

    ucx_entry *entry = &peer->ring->entries[wire.trailer.sequence % UCX_WINDOW];
    entry->msg = msg;
    if (size == 0) {
        entry->state = UCX_ENTRY_READY;
        return UCS_OK;
    }
    entry->state = announced ? UCX_ENTRY_ANNOUNCED : UCX_ENTRY_KEPT;
    entry->data = data;
    return UCS_INPROGRESS;
}

static ucs_status_t receive_on_control(void *arg, const void *header, size_t header_size,
                                       void *data, size_t size, const ucp_am_recv_param_t *param)
{
    ucx_link *from = arg;
    tr_transport *t = from->t;
    ucx_peer *peer = &t->peers[from->node_index];
    ucx_control control;

    (void)data;
    (void)param;
    if (peer->phase >= UCX_ENDING)
        return UCS_OK;
    if (header_size != sizeof(control) || size != 0) {
        ucx_peer_end(t, from->node_index, "ucx: a control message of the wrong size");
        return UCS_OK;
    }
    memcpy(&control, header, sizeof(control));
    if (!receive_is_of(peer, control.life))
        return UCS_OK;
    if (control.kind == UCX_CONTROL_ACK && receive_note_acked(peer, control.value))
        return UCS_OK;
    if (control.kind == UCX_CONTROL_BYE && control.value - peer->delivered <= UCX_WINDOW) {
        peer->bye = true;
        peer->bye_at = control.value;
        ucx_peer_end(t, from->node_index, "closed");
        return UCS_OK;
    }
    ucx_peer_end(t, from->node_index, "ucx: a control message with a wrong kind or value");
    return UCS_OK;
}

/* Whatever comes with an id that nobody uses. */
static ucs_status_t receive_on_unknown(void *arg, const void *header, size_t header_size,
                                       void *data, size_t size, const ucp_am_recv_param_t *param)
{
    (void)arg;
    (void)header;
    (void)header_size;
    (void)data;
    (void)size;
    (void)param;
    return UCS_OK;
}

static tr_status receive_set_handler(ucp_worker_h worker, unsigned id,
                                     ucp_am_recv_callback_t handler, void *arg, uint32_t flags,
                                     tr_error *err)
{
    ucp_am_handler_param_t params = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = id,
        .flags = flags,
        .cb = handler,
        .arg = arg,
    };
    ucs_status_t status = ucp_worker_set_am_recv_handler(worker, &params);
    if (status != UCS_OK)
        return tr_fail(err, TR_E_INVALID, "ucx: handler %u: %s", id, ucs_status_string(status));
    return TR_OK;
}

tr_status ucx_receive_register(tr_transport *t, uint32_t node_index, tr_error *err)
{
    ucp_worker_h worker = t->workers[node_index].handle;
    ucx_link *from = &t->links[node_index];
    tr_status status = TR_OK;

    /* Note: UCX 1.13 calls whatever stands in its handler table at a message's id. It neither
     * checks the bound before it reads, so the largest id comes first, which makes the table whole;
     * nor clears the slots between, so every id gets a handler. Otherwise anyone who reaches the
     * port has us jump to where old memory points. */
    for (uint32_t id = UCX_AM_LAST + 1; id > 0 && status == TR_OK; id--)
        status = receive_set_handler(worker, id - 1, receive_on_unknown, t, 0, err);
    if (status == TR_OK)
        status = receive_set_handler(worker, UCX_AM_DATA + node_index, receive_on_data, from,
                                     UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA, err);
    if (status == TR_OK)
        status = receive_set_handler(worker, UCX_AM_CONTROL + node_index, receive_on_control, from,
                                     UCP_AM_FLAG_WHOLE_MSG, err);
    return status;
}
