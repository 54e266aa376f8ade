/* loop.c - the transport between nodes of one process.
 *
 * A message keeps the sender's buffer until the receiver's poll copies it into a buffer of its own
 * pool: the nodes share no memory, as if they stood on two machines. When the receiver's pool is
 * empty the message stays at the head of its ring.
 *
 * Who may touch a ring when a node closes: ring.h. */
#include "transport/loop/loop.h"

#include "core/trace.h"
#include "transport/address.h"
#include "transport/loop/hub.h"
#include "transport/options.h"

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LOOP_POLL_MAX                                                                              \
    64 /* messages per peer and poll, so that one peer cannot starve the others                    \
        */
#define LOOP_FLUSH_NS 1000000000ull

struct tr_transport {
    tr_transport_config config;
    uint32_t payload_max; /* bytes; largest buffer of the pool */
    tr_loop_hub *hub;     /* member until close */
    uint32_t life;        /* of this node */
    struct {
        uint32_t life;     /* to which we are connected; 0: not */
        uint32_t life_min; /* former ones have been forgotten */
        bool down;         /* peer_down has been called */
    } peers[TR_NODES_MAX];
};

/* Body of an address. One from another process or an older cluster does not fit. */
typedef struct {
    uint64_t hub; /* its number */
    uint32_t life;
    uint32_t reserved; /* zero */
} loop_address;

static tr_status loop_open(tr_transport **out, const tr_transport_config *config, tr_error *err)
{
    tr_option options[] = {{.key = "cluster"}};

    tr_status status = tr_transport_config_check(config, "loop", err);
    if (status == TR_OK)
        status = tr_options_parse(options, 1, "loop", config->options, err);
    if (status != TR_OK)
        return status;

    const char *name = options[0].value[0] != '\0' ? options[0].value : "default";
    if (strlen(name) >= TR_LOOP_NAME_SIZE)
        return tr_fail(err, TR_E_INVALID,
                       "loop options: cluster has %zu bytes, expected at most %d", strlen(name),
                       TR_LOOP_NAME_SIZE - 1);

    tr_transport *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "loop: no memory for a transport");
    t->config = *config;
    t->config.options = NULL; /* borrowed for the call only */
    t->payload_max = tr_pool_capacity_max(config->pool);
    status =
        tr_loop_hub_join(&t->hub, &t->life, name, config->node_index, config->nodes_count, err);
    if (status != TR_OK) {
        free(t);
        return status;
    }
    *out = t;
    return TR_OK;
}

/* Each pair of nodes has a ring in each direction; a node answers for those in which it sends. */
static uint64_t loop_bytes(uint32_t nodes_count)
{
    return sizeof(tr_transport) + (nodes_count - 1) * (uint64_t)tr_loop_ring_bytes();
}

static tr_status loop_get_address(tr_transport *t, void *address, size_t size_max, size_t *size,
                                  tr_error *err)
{
    loop_address body = {.hub = tr_loop_hub_number(t->hub), .life = t->life};

    return tr_address_write(address, size_max, size, "loop", t->config.node_index, &body,
                            sizeof(body), err);
}

static tr_status loop_connect(tr_transport *t, uint32_t node_index, const void *address,
                              size_t size, uint64_t deadline_ns, tr_error *err)
{
    loop_address peer = {0};
    const void *body = NULL;
    size_t body_size = 0;

    (void)deadline_ns; /* nothing here waits */
    tr_status status = tr_transport_peer_check(&t->config, "loop", node_index, err);
    if (status == TR_OK)
        status = tr_address_read(&body, &body_size, "loop", node_index, address, size, err);
    if (status != TR_OK)
        return status;
    if (body_size == sizeof(peer))
        memcpy(&peer, body, sizeof(peer));
    if (body_size != sizeof(peer) || peer.hub != tr_loop_hub_number(t->hub))
        return tr_fail(err, TR_E_INVALID,
                       "loop: the address of node %u is not from this process and cluster",
                       node_index);
    if (tr_loop_hub_state(t->hub, node_index) != TR_LOOP_OPEN ||
        tr_loop_hub_life(t->hub, node_index) != peer.life ||
        peer.life < t->peers[node_index].life_min)
        return tr_fail(err, TR_E_PEER, "loop: node %u has closed", node_index);

    status = tr_loop_hub_connect(t->hub, t->config.node_index, node_index, err);
    if (status == TR_OK) {
        t->peers[node_index].life = peer.life;
        t->peers[node_index].life_min = peer.life;
    }
    return status;
}

static void loop_forget(tr_transport *t, uint32_t node_index)
{
    uint32_t life = tr_loop_hub_life(t->hub, node_index);
    bool open = tr_loop_hub_state(t->hub, node_index) == TR_LOOP_OPEN;

    if (t->peers[node_index].life != 0)
        t->peers[node_index].life_min = t->peers[node_index].life + 1;
    else if (!open)
        t->peers[node_index].life_min = life + 1;
    t->peers[node_index].life = 0;
    t->peers[node_index].down = false;
}

/* Whether a peer has closed, as far as it has not been forgotten since. */
static bool loop_is_closed(const tr_transport *t, uint32_t node_index)
{
    uint32_t life = tr_loop_hub_life(t->hub, node_index);

    if (t->peers[node_index].life != 0 && life != t->peers[node_index].life)
        return true; /* there is another one already */
    return tr_loop_hub_state(t->hub, node_index) == TR_LOOP_CLOSED &&
           life >= t->peers[node_index].life_min;
}

/* Reports a peer's end, once. */
static void loop_set_down(tr_transport *t, uint32_t node_index, const char *reason)
{
    if (t->peers[node_index].down)
        return;
    t->peers[node_index].down = true;
    t->config.peer_down(t->config.ctx, node_index, reason);
}

static tr_status loop_send(tr_transport *t, uint32_t node_index, const tr_msg *msg)
{
    assert(node_index < t->config.nodes_count);
    assert(t->peers[node_index].life != 0);
    assert(msg->payload == NULL ? msg->header.payload_size == 0
                                : msg->header.payload_size <= msg->payload->capacity);

    /* A closed peer is reported by poll, after what it sent before it closed. */
    if (t->peers[node_index].down || loop_is_closed(t, node_index)) {
        tr_buf_unref(msg->payload);
        return TR_E_PEER;
    }

    tr_loop_item sealed = {
        .msg = *msg, .source_life = t->life, .target_life = t->peers[node_index].life};
    tr_msg_header_seal(&sealed.msg.header);
    tr_loop_ring *ring = tr_loop_hub_ring(t->hub, t->config.node_index, node_index);
    return tr_loop_ring_push(ring, &sealed) ? TR_OK : TR_E_AGAIN;
}

/* Copies one message into our own memory and hands it on. false: no buffer, it has to wait. */
static bool loop_receive(tr_transport *t, uint32_t from, const tr_msg *in)
{
    tr_msg msg = {.payload = NULL};
    tr_error err;

    if (tr_msg_header_read(&msg.header, &in->header, sizeof(in->header), t->payload_max, &err) !=
        TR_OK) {
        loop_set_down(t, from, err.text);
        return true;
    }
    if (msg.header.payload_size > 0) {
        msg.payload = tr_pool_take(t->config.pool, msg.header.payload_size);
        if (msg.payload == NULL)
            return false;
        memcpy(msg.payload->data, in->payload->data, msg.header.payload_size);
    }
    t->config.deliver(t->config.ctx, from, &msg);
    return true;
}

static uint32_t loop_poll_peer(tr_transport *t, uint32_t from)
{
    uint32_t events = 0;
    /* Looked at before the ring: a peer that is closed now has pushed all it ever will. */
    bool closed = loop_is_closed(t, from);
    tr_loop_ring *ring = tr_loop_hub_ring(t->hub, from, t->config.node_index);
    bool empty = ring == NULL || tr_loop_ring_is_empty(ring);

    if (!empty && tr_loop_ring_begin_read(ring)) {
        const tr_loop_item *in = tr_loop_ring_peek(ring);
        while (in != NULL && events < LOOP_POLL_MAX) {
            bool wanted = !t->peers[from].down && in->target_life == t->life &&
                          in->source_life >= t->peers[from].life_min;
            if (wanted && !loop_receive(t, from, &in->msg))
                break;
            tr_loop_ring_pop(ring);
            events++;
            in = tr_loop_ring_peek(ring);
        }
        tr_loop_ring_end_read(ring);
    }
    if (empty && closed && !t->peers[from].down) {
        loop_set_down(t, from, "closed");
        events++;
    }
    return events;
}

static uint32_t loop_poll(tr_transport *t)
{
    uint32_t events = 0;

    for (uint32_t from = 0; from < t->config.nodes_count; from++)
        if (from != t->config.node_index)
            events += loop_poll_peer(t, from);
    return events;
}

static const char *loop_path(tr_transport *t, uint32_t node_index)
{
    (void)t;
    (void)node_index;
    return "inproc";
}

/* Whether a peer that still lives has not yet read all that we sent. */
static bool loop_has_unread(tr_transport *t)
{
    for (uint32_t to = 0; to < t->config.nodes_count; to++)
        if (t->peers[to].life != 0 && !loop_is_closed(t, to) &&
            !tr_loop_ring_is_empty(tr_loop_hub_ring(t->hub, t->config.node_index, to)))
            return true;
    return false;
}

static void loop_close(tr_transport *t)
{
    uint64_t deadline_ns = tr_clock_ns() + LOOP_FLUSH_NS;
    uint32_t self = t->config.node_index;

    tr_loop_hub_mark_closed(t->hub, self);
    while (loop_has_unread(t) && tr_clock_ns() < deadline_ns)
        sched_yield();

    /* Ours to give back: buffers of our pool that nobody read, and those of peers that waited for
     * us. */
    for (uint32_t i = 0; i < t->config.nodes_count; i++) {
        tr_loop_ring *out = tr_loop_hub_ring(t->hub, self, i);
        tr_loop_ring *in = tr_loop_hub_ring(t->hub, i, self);
        if (out != NULL)
            tr_loop_ring_drain(out);
        if (in != NULL)
            tr_loop_ring_drain(in);
    }
    tr_loop_hub_leave(t->hub, self);
    free(t);
}

const tr_transport_ops tr_loop_ops = {
    .name = "loop",
    .bytes = loop_bytes,
    .open = loop_open,
    .address = loop_get_address,
    .connect = loop_connect,
    .forget = loop_forget,
    .send = loop_send,
    .poll = loop_poll,
    .path = loop_path,
    .close = loop_close,
};
