/* connection.h - one HTTP connection on the server's loop: reads requests, queues answers.
 *
 * A connection has at most one request at a time; what the client sends ahead waits in a bounded
 * buffer. Output waits in a bounded queue too: who writes into a full one is told TR_E_AGAIN and
 * gives the connection up. All functions are for the loop's thread and never block. */
#ifndef TR_API_CONNECTION_H
#define TR_API_CONNECTION_H

#include "api/http.h"
#include "core/error.h"

#include <uv.h>

/* Bytes of output that may wait for a slow reader, beside what the kernel holds. Two of these. */
#define TR_CONNECTION_OUTPUT_MAX (128 * 1024)

typedef struct tr_connection tr_connection;

/* The parameters of all connections of a server; outlives them. */
typedef struct {
    uv_loop_t *loop;
    size_t body_size_max;      /* bytes of one body */
    size_t bodies_size_max;    /* bytes of all bodies that are held */
    size_t *bodies_size;       /* the sum now; the server's, changed by connections and exchanges */
    uint32_t idle_timeout_ms;  /* without a request */
    uint32_t read_timeout_ms;  /* from the first byte of a request to its last */
    uint32_t write_timeout_ms; /* without any progress of the output */
    void *ctx;

    /* A request is complete. The handler answers it now or later with tr_connection_respond or
     * with the stream functions. r is borrowed for the call; its body may be taken (set to NULL).
     * Thread: the loop's. */
    void (*request)(void *ctx, tr_connection *c, tr_http_request *r);

    /* The client has left or was too slow while its request was being answered, or the server
     * closes. The connection must not be used any further. */
    void (*gone)(void *ctx, tr_connection *c);

    /* The memory of a connection is about to be freed. */
    void (*closed)(void *ctx, tr_connection *c);
} tr_connection_config;

/* The most that one takes, but for the body of its request and a whole answer. */
size_t tr_connection_bytes(void);

/* Takes a connection from a listener. On failure nothing is left. */
tr_status tr_connection_accept(tr_connection **out, const tr_connection_config *config,
                               uv_stream_t *listener);

/* The handler's own pointer, NULL at first. */
void tr_connection_set_user(tr_connection *c, void *user);
void *tr_connection_user(const tr_connection *c);

/* A body that was taken counts in *bodies_size until its new owner frees it and lowers that by what
 * this returns; a body that was not taken counts until its request is answered. */
size_t tr_connection_pass_body(tr_connection *c);

typedef struct {
    unsigned status;
    const char *content_type;
    const char *allow;      /* value of Allow; NULL: none */
    unsigned retry_after_s; /* 0: none */
} tr_response_head;

/* Sends a whole answer. body [size] came from malloc and is taken; NULL when size is 0. */
void tr_connection_respond(tr_connection *c, const tr_response_head *head, char *body, size_t size);

/* Begins an answer of unknown length. */
void tr_connection_stream_begin(tr_connection *c, const char *content_type);

/* Adds bytes to it.
 * errors  TR_E_AGAIN: the queue is full, the client reads too slowly; call tr_connection_abort */
tr_status tr_connection_stream_write(tr_connection *c, const char *bytes, size_t size);

/* Ends it; the connection may be used for the next request. */
void tr_connection_stream_end(tr_connection *c);

/* Closes at once, without calling gone. */
void tr_connection_abort(tr_connection *c);

/* Acts on deadlines that have passed; now_ms is uv_now. To be called a few times a second. */
void tr_connection_check(tr_connection *c, uint64_t now_ms);

/* Closes when nothing is being answered, otherwise after the answer. */
void tr_connection_finish(tr_connection *c);

/* Next in the list of its server. Kept by the server. */
tr_connection **tr_connection_link(tr_connection *c);

#endif
