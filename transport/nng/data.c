/* data.c - the life of the NNG data plane: open, address, connect, poll, close. */
#include "transport/nng/data.h"

#include "transport/address.h"
#include "transport/nng/data_nng.h"
#include "transport/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char nngd_tags[NNGD_NONE][8] = {"trnngh2", "trnngb2"};

/* A URL that peers can dial: a wildcard host is none. */
static tr_status data_check_url(const char *url, tr_error *err)
{
    if (strlen(url) >= NNGD_URL_SIZE - 8)
        return tr_fail(err, TR_E_INVALID, "nng options: listen has %zu bytes, expected at most %d",
                       strlen(url), NNGD_URL_SIZE - 9);
    if (strncmp(url, "ipc:///", 7) == 0)
        return TR_OK;
    const char *host = url + 6;
    if (strncmp(url, "tcp://", 6) != 0 || strrchr(host, ':') == NULL)
        return tr_fail(err, TR_E_INVALID,
                       "nng options: listen is \"%.100s\", expected tcp://host:port or ipc:///path",
                       url);
    if (host[0] == ':' || host[0] == '*' || strncmp(host, "0.0.0.0:", 8) == 0 ||
        strncmp(host, "[::]:", 5) == 0)
        return tr_fail(err, TR_E_INVALID,
                       "nng options: listen is \"%.100s\", expected a host that peers can dial",
                       url);
    return TR_OK;
}

/* Listens at url and notes the URL to dial: port 0 becomes the port that was given. */
static tr_status data_listen(tr_transport *t, const char *url, tr_error *err)
{
    int port = 0;

    int rc = nng_stream_listener_alloc(&t->listener, url);
    if (rc != 0)
        return tr_fail(err, TR_E_INVALID, "nng: listening at %s: %s", url, nng_strerror(rc));
    rc = nng_stream_listener_listen(t->listener);
    size_t size = strlen(url);
    if (rc == 0 && strncmp(url, "tcp://", 6) == 0 && strcmp(url + size - 2, ":0") == 0) {
        rc = nng_stream_listener_get_int(t->listener, TR_NNG_BOUND_PORT, &port);
        snprintf(t->url, sizeof(t->url), "%.*s:%d", (int)size - 2, url, port);
    } else {
        memcpy(t->url, url, size + 1);
    }
    if (rc != 0) {
        nng_stream_listener_free(t->listener);
        return tr_fail(err, TR_E_INVALID, "nng: listening at %s: %s", url, nng_strerror(rc));
    }
    return TR_OK;
}

static tr_status data_open(tr_transport **out, const tr_transport_config *config, tr_error *err)
{
    tr_option options[] = {{.key = "listen"}};

    tr_status status = tr_transport_config_check(config, "nng", err);
    if (status == TR_OK)
        status = tr_options_parse(options, 1, "nng", config->options, err);
    const char *url = options[0].value[0] != '\0' ? options[0].value : "tcp://127.0.0.1:0";
    if (status == TR_OK)
        status = data_check_url(url, err);
    if (status != TR_OK)
        return status;

    int rc = tr_nng_init();
    if (rc != 0)
        return tr_fail(err, TR_E_NOMEM, "nng: %s", nng_strerror(rc));
    tr_transport *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "nng: no memory for a transport");
    t->config = *config;
    t->config.options = NULL; /* borrowed for the call only */
    t->payload_max = tr_pool_capacity_max(config->pool);
    status = data_listen(t, url, err);
    if (status != TR_OK)
        goto free_transport;
    status = nngd_in_open(t, err);
    if (status != TR_OK)
        goto free_listener;
    *out = t;
    return TR_OK;

free_listener:
    nng_stream_listener_free(t->listener);
free_transport:
    free(t);
    return status;
}

/* Messages that wait to be written stay in their buffers of the pool. */
static uint64_t data_bytes(uint32_t nodes_count)
{
    return sizeof(tr_transport) + NNGD_LIBRARY_SIZE +
           (nodes_count - 1 + NNGD_STRANGERS) * (uint64_t)NNGD_STAGING_SIZE;
}

/* Body: the URL. */
static tr_status data_get_address(tr_transport *t, void *address, size_t size_max, size_t *size,
                                  tr_error *err)
{
    return tr_address_write(address, size_max, size, "nng", t->config.node_index, t->url,
                            strlen(t->url), err);
}

/* false: the queue is full. */
static bool data_push_block(tr_transport *t, uint32_t node_index, nngd_block_kind kind)
{
    nngd_block block = {.node_index = t->config.node_index, .nodes_count = t->config.nodes_count};
    nngd_frame frame = {.payload = NULL};

    memcpy(block.tag, nngd_tags[kind], sizeof(block.tag));
    memcpy(&frame.header, &block, sizeof(block));
    return nngd_out_push(&t->peers[node_index].out, &frame);
}

static tr_status data_connect(tr_transport *t, uint32_t node_index, const void *address,
                              size_t size, uint64_t deadline_ns, tr_error *err)
{
    const void *body = NULL;
    size_t body_size = 0;
    char url[NNGD_URL_SIZE];

    tr_status status = tr_transport_peer_check(&t->config, "nng", node_index, err);
    if (status == TR_OK)
        status = tr_address_read(&body, &body_size, "nng", node_index, address, size, err);
    if (status != TR_OK)
        return status;
    if (body_size >= sizeof(url))
        return tr_fail(err, TR_E_INVALID,
                       "nng: the URL of node %u has %zu bytes, expected at most %zu", node_index,
                       body_size, sizeof(url) - 1);
    memcpy(url, body, body_size);
    url[body_size] = '\0';
    status = data_check_url(url, err);
    if (status != TR_OK)
        return status;

    nngd_peer *peer = &t->peers[node_index];
    if (peer->phase == NNGD_CONNECTED)
        return tr_fail(err, TR_E_INVALID, "nng: node %u is connected already", node_index);
    if (peer->phase != NNGD_UNCONNECTED)
        return tr_fail(err, TR_E_PEER, "nng: node %u is gone: %s", node_index, peer->reason);
    status = nngd_out_open(&peer->out, url, deadline_ns, err);
    if (status != TR_OK)
        return status;
    data_push_block(t, node_index, NNGD_HELLO);
    peer->phase = NNGD_CONNECTED;
    snprintf(peer->path, sizeof(peer->path), "%.*s", (int)strcspn(url, ":"), url);
    return TR_OK;
}

void nngd_peer_end(nngd_peer *peer, const char *reason)
{
    if (peer->phase >= NNGD_ENDING)
        return;
    peer->phase = NNGD_ENDING;
    snprintf(peer->reason, sizeof(peer->reason), "%s", reason);
}

static void data_forget(tr_transport *t, uint32_t node_index)
{
    nngd_peer *peer = &t->peers[node_index];

    peer->phase = NNGD_DOWN; /* nobody is told what comes of it */
    nngd_out_close(&peer->out);
    nngd_in_forget(t, node_index);
    *peer = (nngd_peer){0};
}

static tr_status data_send(tr_transport *t, uint32_t node_index, const tr_msg *msg)
{
    nngd_peer *peer = &t->peers[node_index];
    nngd_frame frame = {.header = msg->header, .payload = msg->payload};

    assert(node_index < t->config.nodes_count);
    assert(peer->phase != NNGD_UNCONNECTED);
    assert(msg->payload == NULL ? msg->header.payload_size == 0
                                : msg->header.payload_size <= msg->payload->capacity);

    if (peer->phase != NNGD_CONNECTED || peer->out.lost) {
        tr_buf_unref(msg->payload);
        return TR_E_PEER;
    }
    tr_msg_header_seal(&frame.header);
    if (frame.header.payload_size == 0 && frame.payload != NULL) {
        tr_buf_unref(frame.payload); /* no bytes of it travel */
        frame.payload = NULL;
    }
    return nngd_out_push(&peer->out, &frame) ? TR_OK : TR_E_AGAIN;
}

static uint32_t data_tend(tr_transport *t, uint32_t node_index)
{
    nngd_peer *peer = &t->peers[node_index];
    uint32_t events = nngd_out_advance(&peer->out);

    if (peer->phase == NNGD_CONNECTED && peer->out.lost) {
        /* What it sent before is still read; then its own stream ends, too. */
        if (peer->loss_deadline_ns == 0)
            peer->loss_deadline_ns = tr_clock_ns() + NNGD_LOSS_NS;
        if (!peer->has_in || tr_clock_ns() >= peer->loss_deadline_ns)
            nngd_peer_end(peer, "connection lost");
    }
    if (peer->phase != NNGD_ENDING)
        return events;

    peer->phase = NNGD_DOWN;
    nngd_out_abort(&peer->out);
    nngd_in_abort(t, node_index);
    t->config.peer_down(t->config.ctx, node_index, peer->reason);
    return events + 1;
}

static uint32_t data_poll(tr_transport *t)
{
    uint32_t events = nngd_in_advance(t);

    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        events += data_tend(t, i);
    return events;
}

static const char *data_path(tr_transport *t, uint32_t node_index)
{
    assert(node_index < t->config.nodes_count);
    return t->peers[node_index].path;
}

/* One turn of closing: says goodbye to a peer once, true when it has hung up or is gone. */
static bool data_part_from(tr_transport *t, uint32_t node_index, bool *said_bye)
{
    nngd_peer *peer = &t->peers[node_index];

    (void)nngd_out_advance(&peer->out);
    if (peer->phase != NNGD_CONNECTED || peer->out.lost)
        return true;
    if (!*said_bye)
        *said_bye = data_push_block(t, node_index, NNGD_BYE);
    return false;
}

static void data_close(tr_transport *t)
{
    uint64_t deadline_ns = tr_clock_ns() + NNGD_FLUSH_NS;
    const struct timespec pause = {.tv_nsec = 200000};
    bool said_bye[TR_NODES_MAX] = {false};
    bool parted;

    t->closing = true;
    do {
        (void)nngd_in_advance(t); /* peers that close as well want to be hung up on */
        parted = true;
        for (uint32_t i = 0; i < t->config.nodes_count; i++)
            parted &= data_part_from(t, i, &said_bye[i]);
        if (!parted)
            nanosleep(&pause, NULL);
    } while (!parted && tr_clock_ns() < deadline_ns);

    for (uint32_t i = 0; i < t->config.nodes_count; i++)
        nngd_out_close(&t->peers[i].out);
    nngd_in_close(t);
    nng_stream_listener_free(t->listener);
    free(t);
}

const tr_transport_ops tr_nng_ops = {
    .name = "nng",
    .bytes = data_bytes,
    .open = data_open,
    .address = data_get_address,
    .connect = data_connect,
    .forget = data_forget,
    .send = data_send,
    .poll = data_poll,
    .path = data_path,
    .close = data_close,
};
