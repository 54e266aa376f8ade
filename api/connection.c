/* connection.c
 *
 *   READING --request complete--> ANSWERING --answer queued, keep-alive--> READING
 *      |                              |
 *      | bad request, 408             | answer queued, no keep-alive
 *      v                              v
 *   DRAINING (output leaves, our side is shut, input is dropped) --EOF or deadline--> CLOSED
 *
 * DRAINING exists because a close with unread input resets the connection, and a reset can
 * overtake the answer that said what was wrong. */
#include "api/connection.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bytes that a client may send ahead of its answer. */
#define AHEAD_MAX (64 * 1024)

/* How long a client may take to close after an answer that ends the connection. */
#define DRAIN_TIMEOUT_MS 1000

/* Kernel memory for output: bounds how far a reader can fall behind before we notice. */
#define SEND_BUFFER_SIZE (256 * 1024)

#define READ_SIZE (64 * 1024)

typedef enum { READING, ANSWERING, DRAINING, CLOSED } connection_phase;

struct tr_connection {
    uv_tcp_t tcp;
    uv_write_t write;
    uv_shutdown_t shutdown;
    const tr_connection_config *config; /* borrows from the server */
    void *user;
    tr_connection *next; /* the server's list */
    connection_phase phase;
    bool accepted;        /* the server knows this connection */
    uint64_t deadline_ms; /* of the phase; UINT64_MAX: none */

    tr_http_request request;
    size_t body_counted; /* our part of *config->bodies_size, until it is answered or passed */
    char *ahead;         /* owns; [ahead_size] input behind the current request */
    size_t ahead_size;
    bool keep_alive; /* after the current answer */
    bool head_only;  /* the current request is HEAD: no body is sent */
    bool chunked;    /* the current answer is a stream with chunks */
    bool finishing;  /* no further request */

    bool broken;      /* a write failed; the next check closes the connection */
    bool writing;     /* output[1 - filling] and tail are with libuv */
    bool shut;        /* our side is shut or about to be */
    uint32_t filling; /* which output takes new bytes */
    size_t output_size[2];
    char *tail; /* owns; a body that follows output[filling] */
    size_t tail_size;
    char *tail_in_flight; /* owns; while writing */
    size_t left_to_write; /* at the last look */
    uint64_t progress_ms; /* when left_to_write last changed */
    char *output[2];      /* [TR_CONNECTION_OUTPUT_MAX] each, in the same block as this struct */
};

static void connection_pump(tr_connection *c);

static void connection_on_closed(uv_handle_t *handle)
{
    tr_connection *c = handle->data;
    if (c->accepted)
        c->config->closed(c->config->ctx, c);
    tr_http_teardown(&c->request);
    free(c->ahead);
    free(c->tail);
    free(c->tail_in_flight);
    free(c);
}

static void connection_release_body(tr_connection *c)
{
    assert(*c->config->bodies_size >= c->body_counted);
    *c->config->bodies_size -= c->body_counted;
    c->body_counted = 0;
}

/* The only place where a connection ends. */
static void connection_close(tr_connection *c, bool tell)
{
    if (c->phase == CLOSED)
        return;
    bool answering = c->phase == ANSWERING;
    c->phase = CLOSED;
    connection_release_body(c);
    if (tell && answering)
        c->config->gone(c->config->ctx, c);
    uv_close((uv_handle_t *)&c->tcp, connection_on_closed);
}

static bool connection_output_is_empty(const tr_connection *c)
{
    return !c->writing && c->output_size[c->filling] == 0 && c->tail == NULL;
}

static void connection_on_shutdown(uv_shutdown_t *shutdown, int status)
{
    (void)shutdown;
    (void)status; /* the peer may be gone already; the deadline ends the connection */
}

static void connection_on_drained(tr_connection *c)
{
    if (c->phase != DRAINING || c->shut)
        return;
    c->shut = true;
    c->deadline_ms = uv_now(c->config->loop) + DRAIN_TIMEOUT_MS;
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, connection_on_shutdown) != 0)
        connection_close(c, false);
}

static void connection_on_written(uv_write_t *write, int status);

/* Hands what waits to libuv, unless it has something already. Does not close the connection when
 * that fails: the caller is in the middle of an answer. */
static void connection_flush(tr_connection *c)
{
    if (c->writing || c->broken || connection_output_is_empty(c))
        return;
    uv_buf_t bufs[2];
    unsigned count = 0;
    if (c->output_size[c->filling] > 0)
        bufs[count++] = uv_buf_init(c->output[c->filling], (unsigned)c->output_size[c->filling]);
    if (c->tail != NULL)
        bufs[count++] = uv_buf_init(c->tail, (unsigned)c->tail_size);
    c->tail_in_flight = c->tail;
    c->tail = NULL;
    c->filling = 1 - c->filling;
    c->writing = true;
    c->progress_ms = uv_now(c->config->loop);
    c->left_to_write = SIZE_MAX;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, bufs, count, connection_on_written) != 0) {
        c->writing = false;
        c->broken = true;
    }
}

static void connection_on_written(uv_write_t *write, int status)
{
    tr_connection *c = write->handle->data;
    c->writing = false;
    free(c->tail_in_flight);
    c->tail_in_flight = NULL;
    c->output_size[1 - c->filling] = 0;
    if (c->phase == CLOSED)
        return;
    if (status != 0) {
        connection_close(c, true);
        return;
    }
    connection_flush(c);
    if (!connection_output_is_empty(c))
        return;
    if (c->phase == READING && !c->request.started)
        c->deadline_ms = uv_now(c->config->loop) + c->config->idle_timeout_ms;
    connection_on_drained(c);
    connection_pump(c);
}

static tr_status connection_queue(tr_connection *c, const char *bytes, size_t size)
{
    assert(c->tail == NULL);
    size_t used = c->output_size[c->filling];
    if (size > TR_CONNECTION_OUTPUT_MAX - used)
        return TR_E_AGAIN;
    memcpy(c->output[c->filling] + used, bytes, size);
    c->output_size[c->filling] += size;
    return TR_OK;
}

/* The answer to the current request is queued: what comes next? */
static void connection_end_answer(tr_connection *c)
{
    bool go_on = c->keep_alive && !c->finishing;
    c->user = NULL;
    connection_release_body(c);
    if (go_on) {
        tr_http_reset(&c->request);
        c->phase = READING;
        c->deadline_ms = uv_now(c->config->loop) + c->config->idle_timeout_ms;
    } else {
        tr_http_teardown(&c->request); /* the output may take its time */
        c->phase = DRAINING;
        c->deadline_ms = UINT64_MAX; /* until the output has left; see write_timeout_ms */
    }
    connection_flush(c);
    if (connection_output_is_empty(c))
        connection_on_drained(c);
}

static tr_status connection_queue_head(tr_connection *c, const tr_response_head *head,
                                       const char *length)
{
    char text[512];
    char date[40];
    struct tm utc;
    time_t now = time(NULL);
    gmtime_r(&now, &utc);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &utc);
    size_t size = (size_t)snprintf(text, sizeof(text), "HTTP/1.1 %u %s\r\nDate: %s\r\n",
                                   head->status, tr_http_reason(head->status), date);
    if (head->content_type != NULL)
        size += (size_t)snprintf(text + size, sizeof(text) - size, "Content-Type: %s\r\n",
                                 head->content_type);
    if (head->allow != NULL)
        size += (size_t)snprintf(text + size, sizeof(text) - size, "Allow: %s\r\n", head->allow);
    if (head->retry_after_s > 0)
        size += (size_t)snprintf(text + size, sizeof(text) - size, "Retry-After: %u\r\n",
                                 head->retry_after_s);
    size += (size_t)snprintf(text + size, sizeof(text) - size, "Connection: %s\r\n%s\r\n",
                             c->keep_alive && !c->finishing ? "keep-alive" : "close", length);
    assert(size < sizeof(text));
    return connection_queue(c, text, size);
}

static void connection_refuse(tr_connection *c, unsigned status, const char *sentence)
{
    char *body = malloc(sizeof(c->request.error.text) + 32);
    size_t size = 0;
    if (body != NULL)
        size = (size_t)sprintf(body, "%s.\n", sentence);
    c->keep_alive = false;
    c->head_only = false;
    c->phase = ANSWERING;
    tr_connection_respond(
        c, &(tr_response_head){.status = status, .content_type = "text/plain; charset=utf-8"}, body,
        size);
}

/* Counts what the body has grown by. False when all bodies together are too large. */
static bool connection_count_body(tr_connection *c)
{
    size_t grown = c->request.body_capacity - c->body_counted;
    *c->config->bodies_size += grown;
    c->body_counted += grown;
    return grown == 0 || *c->config->bodies_size <= c->config->bodies_size_max;
}

/* Feeds bytes to the reader; returns how many were used. */
static size_t connection_feed(tr_connection *c, const char *bytes, size_t size)
{
    size_t used = 0;
    while (used < size && c->phase == READING && connection_output_is_empty(c)) {
        if (!c->request.started)
            c->deadline_ms = uv_now(c->config->loop) + c->config->read_timeout_ms;
        used += tr_http_feed(&c->request, bytes + used, size - used);
        if (c->request.phase == TR_HTTP_FAILED) {
            connection_refuse(c, c->request.status, c->request.error.text);
        } else if (!connection_count_body(c)) {
            connection_refuse(c, 503, "The server holds too many bodies of requests; try again");
        } else if (c->request.phase == TR_HTTP_DONE) {
            c->phase = ANSWERING;
            c->deadline_ms = UINT64_MAX;
            c->keep_alive = c->request.keep_alive;
            c->head_only = strcmp(c->request.method, "HEAD") == 0;
            c->config->request(c->config->ctx, c, &c->request);
        } else if (c->request.expects_continue) {
            static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
            c->request.expects_continue = false;
            (void)connection_queue(c, go_on, sizeof(go_on) - 1); /* the output is empty */
            connection_flush(c);
        }
    }
    return used;
}

/* Goes on with input that came while something else was being answered. */
static void connection_pump(tr_connection *c)
{
    size_t used = connection_feed(c, c->ahead, c->ahead_size);
    if (used > 0) {
        memmove(c->ahead, c->ahead + used, c->ahead_size - used);
        c->ahead_size -= used;
    }
}

static void connection_keep_ahead(tr_connection *c, const char *bytes, size_t size)
{
    if (size > AHEAD_MAX - c->ahead_size) {
        connection_close(c, true);
        return;
    }
    if (c->ahead == NULL)
        c->ahead = malloc(AHEAD_MAX);
    if (c->ahead == NULL) {
        connection_close(c, true);
        return;
    }
    memcpy(c->ahead + c->ahead_size, bytes, size);
    c->ahead_size += size;
}

static void connection_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    /* libuv fills the buffer and calls connection_on_read before it reads for anybody else. */
    static _Thread_local char bytes[READ_SIZE];
    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(bytes, sizeof(bytes));
}

static void connection_on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    tr_connection *c = stream->data;
    if (size < 0) {
        connection_close(c, true);
        return;
    }
    if (c->phase == DRAINING || c->phase == CLOSED || size == 0)
        return;
    size_t used = c->ahead_size > 0 ? 0 : connection_feed(c, buf->base, (size_t)size);
    if (used < (size_t)size && (c->phase == READING || c->phase == ANSWERING))
        connection_keep_ahead(c, buf->base + used, (size_t)size - used);
}

size_t tr_connection_bytes(void)
{
    return sizeof(tr_connection) + 2 * TR_CONNECTION_OUTPUT_MAX + AHEAD_MAX;
}

tr_status tr_connection_accept(tr_connection **out, const tr_connection_config *config,
                               uv_stream_t *listener)
{
    tr_connection *c = malloc(sizeof(*c) + 2 * TR_CONNECTION_OUTPUT_MAX);
    if (c == NULL)
        return TR_E_NOMEM;
    memset(c, 0, sizeof(*c));
    c->config = config;
    c->output[0] = (char *)(c + 1);
    c->output[1] = c->output[0] + TR_CONNECTION_OUTPUT_MAX;
    c->deadline_ms = uv_now(config->loop) + config->idle_timeout_ms;
    tr_http_init(&c->request, config->body_size_max);
    if (uv_tcp_init(config->loop, &c->tcp) != 0) {
        free(c);
        return TR_E_NOMEM;
    }
    c->tcp.data = c;
    int send_buffer_size = SEND_BUFFER_SIZE;
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) != 0 || uv_tcp_nodelay(&c->tcp, 1) != 0 ||
        uv_send_buffer_size((uv_handle_t *)&c->tcp, &send_buffer_size) != 0 ||
        uv_read_start((uv_stream_t *)&c->tcp, connection_on_alloc, connection_on_read) != 0) {
        connection_close(c, false);
        return TR_E_INVALID;
    }
    c->accepted = true;
    *out = c;
    return TR_OK;
}

size_t tr_connection_pass_body(tr_connection *c)
{
    size_t counted = c->body_counted;
    c->body_counted = 0;
    return counted;
}

void tr_connection_set_user(tr_connection *c, void *user)
{
    c->user = user;
}

void *tr_connection_user(const tr_connection *c)
{
    return c->user;
}

void tr_connection_respond(tr_connection *c, const tr_response_head *head, char *body, size_t size)
{
    assert(c->phase == ANSWERING);
    char length[48];
    snprintf(length, sizeof(length), "Content-Length: %zu\r\n", size);
    if (connection_queue_head(c, head, length) != TR_OK) {
        free(body);
        connection_close(c, false);
        return;
    }
    if (size > 0 && !c->head_only) {
        c->tail = body;
        c->tail_size = size;
    } else {
        free(body);
    }
    connection_end_answer(c);
}

void tr_connection_stream_begin(tr_connection *c, const char *content_type)
{
    assert(c->phase == ANSWERING);
    c->chunked = !c->request.version_1_0;
    if (!c->chunked)
        c->keep_alive = false; /* the end of the connection is the end of the answer */
    tr_response_head head = {.status = 200, .content_type = content_type};
    /* The output is empty at the beginning of an answer, so this fits. */
    (void)connection_queue_head(c, &head,
                                c->chunked ? "Cache-Control: no-cache\r\n"
                                             "Transfer-Encoding: chunked\r\n"
                                           : "Cache-Control: no-cache\r\n");
}

tr_status tr_connection_stream_write(tr_connection *c, const char *bytes, size_t size)
{
    assert(c->phase == ANSWERING);
    if (size == 0)
        return TR_OK; /* an empty chunk would end the answer */
    char frame[24];
    size_t frame_size = c->chunked ? (size_t)snprintf(frame, sizeof(frame), "%zx\r\n", size) : 0;
    tr_status status = connection_queue(c, frame, frame_size);
    if (status == TR_OK)
        status = connection_queue(c, bytes, size);
    if (status == TR_OK && c->chunked)
        status = connection_queue(c, "\r\n", 2);
    if (status == TR_OK)
        connection_flush(c);
    return status;
}

void tr_connection_stream_end(tr_connection *c)
{
    assert(c->phase == ANSWERING);
    if (c->chunked && connection_queue(c, "0\r\n\r\n", 5) != TR_OK) {
        connection_close(c, false);
        return;
    }
    connection_end_answer(c);
}

void tr_connection_abort(tr_connection *c)
{
    connection_close(c, false);
}

void tr_connection_check(tr_connection *c, uint64_t now_ms)
{
    if (c->phase == CLOSED)
        return;
    if (c->broken) {
        connection_close(c, true);
        return;
    }
    if (c->writing) {
        size_t left = uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp);
        if (left != c->left_to_write) {
            c->left_to_write = left;
            c->progress_ms = now_ms;
        } else if (now_ms >= c->progress_ms + c->config->write_timeout_ms) {
            connection_close(c, true);
        }
        return; /* as long as output leaves, the reader is alive */
    }
    if (now_ms < c->deadline_ms)
        return;
    if (c->phase == READING && c->request.started)
        connection_refuse(c, 408, "The request did not arrive in time");
    else
        connection_close(c, true);
}

void tr_connection_finish(tr_connection *c)
{
    c->finishing = true;
    if (c->phase == READING)
        connection_close(c, false);
}

tr_connection **tr_connection_link(tr_connection *c)
{
    return &c->next;
}
