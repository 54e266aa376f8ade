/* send.c - messages out.
 *
 * A send takes one of a fixed number of slots, which holds the header and the payload's reference
 * until UCX has read both. No slot, or a peer that is UCX_WINDOW messages behind: TR_E_AGAIN. */
#include "transport/ucx/internal.h"

#include <string.h>

void ucx_send_init(tr_transport *t)
{
    for (uint32_t i = 0; i < UCX_SLOTS; i++) {
        t->slots[i].next_free = i + 1;
    }
    t->slot_free = 0;
}

static void send_free_slot(tr_transport *t, ucx_slot *slot)
{
    assert(t->slots_used > 0);
    tr_buf_unref(slot->payload);
    slot->payload = NULL;
    slot->to = NULL;
    slot->next_free = t->slot_free;
    t->slot_free = (uint32_t)(slot - t->slots);
    t->slots_used--;
    t->events++;
}

/* UCX has read header and payload, or has given up on the peer. */
static void send_on_done(void *request, ucs_status_t status, void *user_data)
{
    ucx_slot *slot = user_data;

    if (status != UCS_OK && slot->life == slot->to->t->peers[slot->to->node_index].life)
        ucx_peer_end(slot->to->t, slot->to->node_index, ucs_status_string(status));
    send_free_slot(slot->to->t, slot);
    ucp_request_free(request);
}

tr_status ucx_send(tr_transport *t, uint32_t node_index, const tr_msg *msg)
{
    ucx_peer *peer = &t->peers[node_index];
    uint32_t size = msg->header.payload_size;

    assert(node_index < t->config.nodes_count);
    assert(peer->phase != UCX_UNCONNECTED);
    assert(msg->payload == NULL ? size == 0 : size <= msg->payload->capacity);

    if (peer->phase != UCX_CONNECTED) {
        tr_buf_unref(msg->payload);
        return TR_E_PEER;
    }
    if (t->slot_free == UCX_SLOTS || peer->sent - peer->acked >= UCX_WINDOW)
        return TR_E_AGAIN;

    ucx_slot *slot = &t->slots[t->slot_free];
    t->slot_free = slot->next_free;
    t->slots_used++;
    slot->wire.header = msg->header;
    tr_msg_header_seal(&slot->wire.header);
    slot->wire.trailer =
        (ucx_trailer){.sequence = peer->sent, .acked = peer->delivered, .life = t->life};
    slot->payload = msg->payload;
    slot->to = &t->links[node_index];
    slot->life = peer->life;
    peer->sent++;
    peer->reported = peer->delivered;

    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = size <= UCX_EAGER_MAX ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
        .cb.send = send_on_done,
        .user_data = slot,
    };
    ucs_status_ptr_t request =
        ucp_am_send_nbx(peer->ep, UCX_AM_DATA + t->config.node_index, &slot->wire,
                        sizeof(slot->wire), size > 0 ? msg->payload->data : NULL, size, &params);
    if (UCS_PTR_IS_PTR(request))
        return TR_OK; /* send_on_done ends it */

    send_free_slot(t, slot);
    if (UCS_PTR_IS_ERR(request)) {
        ucx_peer_end(t, node_index, ucs_status_string(UCS_PTR_STATUS(request)));
        return TR_E_PEER;
    }
    return TR_OK;
}

static void send_on_control_done(void *request, ucs_status_t status, void *user_data)
{
    ucx_link *to = user_data;

    (void)status; /* a peer that is lost is reported by its endpoint */
    to->t->controls[to->node_index].busy = false;
    to->t->controls_count--;
    ucp_request_free(request);
}

bool ucx_send_control(tr_transport *t, uint32_t node_index, ucx_control_kind kind, uint32_t value)
{
    ucx_peer *peer = &t->peers[node_index];
    ucx_control_slot *slot = &t->controls[node_index];

    if (peer->ep == NULL || slot->busy)
        return false;
    slot->message = (ucx_control){.kind = kind, .value = value, .life = t->life};
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = send_on_control_done,
        .user_data = &t->links[node_index],
    };
    ucs_status_ptr_t request =
        ucp_am_send_nbx(peer->ep, UCX_AM_CONTROL + t->config.node_index, &slot->message,
                        sizeof(slot->message), NULL, 0, &params);
    slot->busy = UCS_PTR_IS_PTR(request);
    t->controls_count += slot->busy ? 1 : 0;
    if (UCS_PTR_IS_ERR(request))
        ucx_peer_end(t, node_index, ucs_status_string(UCS_PTR_STATUS(request)));
    return !UCS_PTR_IS_ERR(request);
}

void ucx_send_abandon(tr_transport *t, uint32_t node_index)
{
    for (uint32_t i = 0; i < UCX_SLOTS; i++)
        if (t->slots[i].to == &t->links[node_index])
            send_free_slot(t, &t->slots[i]);
    if (t->controls[node_index].busy)
        t->controls_count--;
    t->controls[node_index].busy = false;
}
