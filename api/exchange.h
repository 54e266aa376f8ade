/* exchange.h - requests in flight: from a complete HTTP request to the last byte of its answer.
 *
 * Everything here runs on the server's loop, but for the reading of a body (JSON, chat template,
 * tokenizer), which runs on libuv's thread pool so that a long prompt does not hold up the streams
 * of others. */
#ifndef TR_API_EXCHANGE_H
#define TR_API_EXCHANGE_H

#include "actors/client.h"
#include "api/connection.h"
#include "api/request.h"
#include "api/server_metrics.h"

#include <uv.h>

typedef struct tr_exchange tr_exchange;

/* All exchanges of a server. Fields are for reading, but for those that the server sets at start.
 */
typedef struct {
    uv_loop_t *loop;           /* borrows */
    tr_client *client;         /* borrows */
    const tr_api_model *model; /* borrows */
    size_t *bodies_size;       /* borrows; what bodies take, see tr_connection_pass_body */
    uint32_t stall_timeout_ms; /* longest time without an event of a request */
    tr_exchange *first;        /* list */
    uint32_t count;
    uint64_t serial;            /* of the last answer; starts at a random number */
    tr_server_metrics *metrics; /* borrows */
} tr_exchanges;

/* Takes over a request; body [size] came from malloc and is taken. Answers on the connection. */
void tr_exchange_start(tr_exchanges *all, tr_connection *c, tr_api_kind kind, char *body,
                       size_t size);

/* Hands the events that wait in the client to their exchanges, at most max of them. True when
 * there may be more. */
bool tr_exchanges_poll(tr_exchanges *all, uint32_t max);

/* The client of a connection with an exchange has left: cancels what runs. */
void tr_exchange_gone(tr_exchange *x);

/* Fails what has not got an event for stall_timeout_ms. */
void tr_exchanges_check(tr_exchanges *all, uint64_t now_ms);

/* Ends all answers with an error, because the server stops. */
void tr_exchanges_abort(tr_exchanges *all, const char *why);

/* Answers with an error object on a connection that has a request. */
void tr_respond_error(tr_connection *c, const tr_api_error *err);

#endif
