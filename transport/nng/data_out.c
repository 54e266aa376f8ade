/* data_out.c - a stream to a peer: frames wait in a bounded queue and are written several at once,
 * straight from their payload buffers. */
#include "transport/nng/data.h"

#define OUT_IOVS_MAX 8u /* what an nng_aio holds: four frames with payload */

/* Begins the read that ends when the peer hangs up. It never sends us anything on this stream. */
static void out_watch(nngd_out *out)
{
    nng_iov iov = {.iov_buf = &out->watch_byte, .iov_len = 1};

    (void)nng_aio_set_iov(out->watch.aio, 1, &iov); /* one always fits */
    nngd_op_begin(&out->watch);
    nng_stream_recv(out->stream, out->watch.aio);
}

static tr_status out_dial(nngd_out *out, const char *url, uint64_t deadline_ns, tr_error *err)
{
    nng_stream_dialer *dialer;
    uint64_t now_ns = tr_clock_ns();
    uint64_t wait_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000000 + 1 : 1;

    int rc = nng_stream_dialer_alloc(&dialer, url);
    if (rc != 0)
        return tr_fail(err, TR_E_INVALID, "nng: %s: %s", url, nng_strerror(rc));
    nng_aio_set_timeout(out->send.aio, wait_ms < 3600000 ? (nng_duration)wait_ms : 3600000);
    nngd_op_begin(&out->send);
    nng_stream_dialer_dial(dialer, out->send.aio);
    nng_aio_wait(out->send.aio);
    rc = nng_aio_result(out->send.aio);
    nng_stream_dialer_free(dialer);
    nng_aio_set_timeout(out->send.aio, NNG_DURATION_INFINITE);
    if (rc != 0)
        return tr_fail(err, rc == NNG_ETIMEDOUT ? TR_E_TIMEOUT : TR_E_PEER, "nng: dialing %s: %s",
                       url, nng_strerror(rc));
    out->stream = nng_aio_get_output(out->send.aio, 0);
    return TR_OK;
}

tr_status nngd_out_open(nngd_out *out, const char *url, uint64_t deadline_ns, tr_error *err)
{
    tr_status status;

    int rc = nngd_op_open(&out->send);
    if (rc == 0)
        rc = nngd_op_open(&out->watch);
    if (rc != 0) {
        status = tr_fail(err, TR_E_NOMEM, "nng: %s", nng_strerror(rc));
        goto close_ops;
    }
    status = out_dial(out, url, deadline_ns, err);
    if (status != TR_OK)
        goto close_ops;
    out_watch(out);
    return TR_OK;

close_ops:
    nngd_op_close(&out->watch);
    nngd_op_close(&out->send);
    return status;
}

static size_t out_frame_size(const nngd_frame *frame)
{
    return sizeof(frame->header) + (frame->payload != NULL ? frame->header.payload_size : 0);
}

/* Appends what is left of size bytes after *skip; *skip counts down. */
static unsigned out_add(nng_iov *iovs, unsigned count, void *bytes, size_t size, size_t *skip)
{
    size_t left = size > *skip ? size - *skip : 0;

    if (left > 0)
        iovs[count++] = (nng_iov){.iov_buf = (char *)bytes + (size - left), .iov_len = left};
    *skip -= size - left;
    return count;
}

static void out_begin_send(nngd_out *out)
{
    nng_iov iovs[OUT_IOVS_MAX];
    unsigned count = 0;
    size_t skip = out->head_size;

    for (uint32_t i = out->head; i != out->tail && count + 2 <= OUT_IOVS_MAX; i++) {
        nngd_frame *frame = &out->queue[i % NNGD_QUEUE];
        count = out_add(iovs, count, &frame->header, sizeof(frame->header), &skip);
        if (frame->payload != NULL)
            count = out_add(iovs, count, frame->payload->data, frame->header.payload_size, &skip);
    }
    assert(count > 0);
    (void)nng_aio_set_iov(out->send.aio, count, iovs); /* fails only for more than it holds */
    out->sending = true;
    nngd_op_begin(&out->send);
    nng_stream_send(out->stream, out->send.aio);
}

/* Lets go of the frames whose bytes have been written. */
static uint32_t out_advance_queue(nngd_out *out, size_t written)
{
    uint32_t frames = 0;

    out->head_size += written;
    while (out->head != out->tail) {
        nngd_frame *frame = &out->queue[out->head % NNGD_QUEUE];
        if (out->head_size < out_frame_size(frame))
            break;
        out->head_size -= out_frame_size(frame);
        tr_buf_unref(frame->payload);
        frame->payload = NULL;
        out->head++;
        frames++;
    }
    return frames;
}

static void out_drop_queue(nngd_out *out)
{
    for (; out->head != out->tail; out->head++) {
        tr_buf_unref(out->queue[out->head % NNGD_QUEUE].payload);
        out->queue[out->head % NNGD_QUEUE].payload = NULL;
    }
}

bool nngd_out_push(nngd_out *out, const nngd_frame *frame)
{
    if (out->tail - out->head == NNGD_QUEUE)
        return false;
    out->queue[out->tail % NNGD_QUEUE] = *frame;
    out->tail++;
    if (!out->sending && !out->lost)
        out_begin_send(out);
    return true;
}

uint32_t nngd_out_advance(nngd_out *out)
{
    uint32_t frames = 0;

    if (out->stream == NULL)
        return 0;
    if (nngd_op_is_idle(&out->watch))
        out->lost = true;
    if (out->sending && nngd_op_is_idle(&out->send)) {
        out->sending = false;
        if (nng_aio_result(out->send.aio) == 0)
            frames = out_advance_queue(out, nng_aio_count(out->send.aio));
        else
            out->lost = true;
    }
    if (!out->sending && out->lost)
        out_drop_queue(out);
    if (!out->sending && out->head != out->tail)
        out_begin_send(out);
    return frames;
}

void nngd_out_abort(nngd_out *out)
{
    out->lost = true;
    if (out->stream != NULL)
        nng_stream_close(out->stream);
}

void nngd_out_close(nngd_out *out)
{
    if (out->stream == NULL)
        return;
    nng_stream_close(out->stream);
    nngd_op_close(&out->watch);
    nngd_op_close(&out->send);
    nng_stream_free(out->stream);
    out->stream = NULL;
    out_drop_queue(out);
}
