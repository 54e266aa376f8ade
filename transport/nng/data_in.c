/* data_in.c - streams from peers.
 *
 * Bytes are read ahead into a staging area, and what is missing of a payload straight into its pool
 * buffer. Nothing is read while a message waits for a buffer: the stream fills, the sender waits.
 */
#include "transport/nng/data.h"

#include <stdlib.h>
#include <string.h>

static void in_free_places(tr_transport *t)
{
    for (uint32_t i = 0; i < t->ins_count; i++) {
        nngd_op_close(&t->ins[i].receive);
        free(t->ins[i].staging);
    }
    nngd_op_close(&t->accept);
}

static int in_open_place(nngd_in *in)
{
    in->staging = malloc(NNGD_STAGING_SIZE);
    return in->staging == NULL ? NNG_ENOMEM : nngd_op_open(&in->receive);
}

static void in_begin_accept(tr_transport *t)
{
    t->accepting = true;
    nngd_op_begin(&t->accept);
    nng_stream_listener_accept(t->listener, t->accept.aio);
}

tr_status nngd_in_open(tr_transport *t, tr_error *err)
{
    int rc = nngd_op_open(&t->accept);

    t->ins_count = t->config.nodes_count - 1 + NNGD_STRANGERS;
    for (uint32_t i = 0; i < t->ins_count && rc == 0; i++)
        rc = in_open_place(&t->ins[i]);
    if (rc != 0) {
        in_free_places(t);
        return tr_fail(err, TR_E_NOMEM, "nng: %s", nng_strerror(rc));
    }
    in_begin_accept(t);
    return TR_OK;
}

/* A place that is free, NULL when strangers hold them all: they have to say hello or go. */
static nngd_in *in_find_place(tr_transport *t)
{
    for (uint32_t i = 0; i < t->ins_count; i++)
        if (t->ins[i].stream == NULL)
            return &t->ins[i];
    return NULL;
}

static uint32_t in_accept(tr_transport *t)
{
    nngd_in *in = in_find_place(t);

    if (in == NULL || !nngd_op_is_idle(&t->accept))
        return 0;
    uint32_t events = 0;
    if (t->accepting && nng_aio_result(t->accept.aio) == 0) {
        in->stream = nng_aio_get_output(t->accept.aio, 0);
        in->hello_deadline_ns = tr_clock_ns() + NNGD_HELLO_NS;
        events = 1;
    }
    in_begin_accept(t);
    return events;
}

/* Ends a stream, for a reason that is the peer's if it is known. */
static void in_end(tr_transport *t, nngd_in *in, const char *reason)
{
    if (in->ended)
        return;
    in->ended = true;
    nng_stream_close(in->stream);
    if (in->known)
        nngd_peer_end(&t->peers[in->node_index], reason);
}

/* When nothing is in flight on an ended stream its place becomes free. */
static void in_release(tr_transport *t, nngd_in *in)
{
    if (!nngd_op_is_idle(&in->receive))
        return;
    nng_stream_free(in->stream);
    tr_buf_unref(in->msg.payload);
    if (in->known)
        t->peers[in->node_index].has_in = false;
    in->stream = NULL;
    in->msg.payload = NULL;
    in->receiving = in->ended = in->known = false;
    in->begin = in->end = in->skip = 0;
}

static nngd_block_kind in_block_kind(const uint8_t *bytes)
{
    for (uint32_t kind = 0; kind < NNGD_NONE; kind++)
        if (memcmp(bytes, nngd_tags[kind], sizeof(nngd_tags[kind])) == 0)
            return (nngd_block_kind)kind;
    return NNGD_NONE;
}

static void in_on_hello(tr_transport *t, nngd_in *in, const uint8_t *bytes)
{
    nngd_block hello;

    memcpy(&hello, bytes, sizeof(hello));
    bool good = !in->known && hello.nodes_count == t->config.nodes_count &&
                hello.node_index < hello.nodes_count && hello.node_index != t->config.node_index;
    if (good) {
        nngd_peer *peer = &t->peers[hello.node_index];
        good = peer->phase <= NNGD_CONNECTED && !peer->has_in;
    }
    if (!good) {
        in_end(t, in, "nng: a hello that cannot be");
        return;
    }
    in->known = true;
    in->node_index = hello.node_index;
    t->peers[hello.node_index].has_in = true;
}

static void in_deliver(tr_transport *t, nngd_in *in)
{
    tr_msg msg = in->msg;

    in->msg.payload = NULL;
    t->config.deliver(t->config.ctx, in->node_index, &msg);
}

/* Looks at the 64 bytes of a header or block. false: a message that has to wait for a buffer. */
static bool in_on_header(tr_transport *t, nngd_in *in)
{
    const uint8_t *bytes = in->staging + in->begin;
    nngd_block_kind kind = in_block_kind(bytes);
    tr_error err;

    if (kind == NNGD_HELLO) {
        in_on_hello(t, in, bytes);
    } else if (!in->known) {
        in_end(t, in, "nng: no hello");
    } else if (kind == NNGD_BYE) {
        in_end(t, in, "closed");
    } else if (tr_msg_header_read(&in->msg.header, bytes, sizeof(in->msg.header), t->payload_max,
                                  &err) != TR_OK) {
        in_end(t, in, err.text);
    } else if (t->closing) {
        in->skip = in->msg.header.payload_size;
    } else if (in->msg.header.payload_size == 0) {
        in_deliver(t, in);
    } else {
        in->msg.payload = tr_pool_take(t->config.pool, in->msg.header.payload_size);
        in->payload_have = 0;
        if (in->msg.payload == NULL)
            return false;
    }
    in->begin += sizeof(in->msg.header);
    return true;
}

/* Uses up what has been read as far as it goes. false: the stream waits for a buffer. */
static bool in_parse(tr_transport *t, nngd_in *in, uint32_t *events)
{
    while (!in->ended) {
        size_t have = in->end - in->begin;

        if (in->skip > 0) {
            size_t size = have < in->skip ? have : in->skip;
            in->begin += size;
            in->skip -= size;
            if (in->skip > 0)
                return true;
        } else if (in->msg.payload != NULL) {
            size_t missing = in->msg.header.payload_size - in->payload_have;
            size_t size = have < missing ? have : missing;
            memcpy(in->msg.payload->data + in->payload_have, in->staging + in->begin, size);
            in->begin += size;
            in->payload_have += size;
            if (size < missing)
                return true;
            in_deliver(t, in);
            (*events)++;
        } else {
            if (have < sizeof(in->msg.header))
                return true;
            if (!in_on_header(t, in))
                return false;
            (*events)++;
        }
    }
    return true;
}

/* Begins to read: first what a payload lacks, then into the staging area. */
static void in_begin_receive(nngd_in *in)
{
    nng_iov iovs[2];
    unsigned count = 0;

    memmove(in->staging, in->staging + in->begin, in->end - in->begin);
    in->end -= in->begin;
    in->begin = 0;
    if (in->msg.payload != NULL)
        iovs[count++] = (nng_iov){.iov_buf = in->msg.payload->data + in->payload_have,
                                  .iov_len = in->msg.header.payload_size - in->payload_have};
    iovs[count++] =
        (nng_iov){.iov_buf = in->staging + in->end, .iov_len = NNGD_STAGING_SIZE - in->end};
    (void)nng_aio_set_iov(in->receive.aio, count, iovs); /* fails only for more than it holds */
    in->receiving = true;
    nngd_op_begin(&in->receive);
    nng_stream_recv(in->stream, in->receive.aio);
}

/* Accounts for the bytes of a read that has ended; false when the stream has. */
static bool in_finish_receive(nngd_in *in)
{
    if (!in->receiving)
        return true;
    in->receiving = false;
    if (nng_aio_result(in->receive.aio) != 0)
        return false;
    size_t size = nng_aio_count(in->receive.aio);
    if (in->msg.payload != NULL) {
        size_t missing = in->msg.header.payload_size - in->payload_have;
        size_t direct = size < missing ? size : missing;
        in->payload_have += direct;
        size -= direct;
    }
    in->end += size;
    return true;
}

static uint32_t in_advance(tr_transport *t, nngd_in *in)
{
    uint32_t events = 0;

    if (!in->ended && !in->known && tr_clock_ns() >= in->hello_deadline_ns)
        in_end(t, in, "no hello");
    if (in->ended) {
        in_release(t, in);
        return 0;
    }
    if (!nngd_op_is_idle(&in->receive))
        return 0;
    if (!in_finish_receive(in)) {
        in_end(t, in, "connection lost");
        return 1;
    }
    if (in_parse(t, in, &events) && !in->ended)
        in_begin_receive(in);
    return events;
}

uint32_t nngd_in_advance(tr_transport *t)
{
    uint32_t events = in_accept(t);

    for (uint32_t i = 0; i < t->ins_count; i++)
        if (t->ins[i].stream != NULL)
            events += in_advance(t, &t->ins[i]);
    return events;
}

void nngd_in_abort(tr_transport *t, uint32_t node_index)
{
    for (uint32_t i = 0; i < t->ins_count; i++)
        if (t->ins[i].stream != NULL && t->ins[i].known && t->ins[i].node_index == node_index)
            in_end(t, &t->ins[i], "");
}

void nngd_in_forget(tr_transport *t, uint32_t node_index)
{
    for (uint32_t i = 0; i < t->ins_count; i++) {
        nngd_in *in = &t->ins[i];
        if (in->stream == NULL || !in->known || in->node_index != node_index)
            continue;
        in_end(t, in, "");
        while (!nngd_op_is_idle(&in->receive))
            nng_aio_wait(in->receive.aio); /* the stream is closed: moments */
        in_release(t, in);
    }
}

void nngd_in_close(tr_transport *t)
{
    nng_stream_listener_close(t->listener);
    while (!nngd_op_is_idle(&t->accept))
        nng_aio_wait(t->accept.aio);
    if (t->accepting && nng_aio_result(t->accept.aio) == 0)
        nng_stream_free(nng_aio_get_output(t->accept.aio, 0)); /* came too late */
    for (uint32_t i = 0; i < t->ins_count; i++) {
        nngd_in *in = &t->ins[i];
        if (in->stream == NULL)
            continue;
        nng_stream_close(in->stream);
        nngd_op_close(&in->receive);
        nng_stream_free(in->stream);
        tr_buf_unref(in->msg.payload);
    }
    in_free_places(t);
}
