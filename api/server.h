/* server.h - the HTTP server: OpenAI's endpoints in front of a cluster.
 *
 *   tr_server_open (listens, opens its client) -> tr_cluster_start -> tr_server_start
 *   -> ... -> tr_server_stop -> tr_cluster_stop -> tr_server_close
 *
 * The server may also be started before the cluster: until health says "serving", everything that
 * needs the model is answered with 503. It runs on one thread of its own. */
#ifndef TR_API_SERVER_H
#define TR_API_SERVER_H

#include "actors/cluster.h"
#include "core/model/chat_template.h"
#include "core/model/tokenizer.h"

#include <stdint.h>

typedef struct tr_server tr_server;

/* Everything is borrowed and outlives the server, but for host, which is copied. */
typedef struct {
    const char *host; /* numeric address or name of this machine */
    uint16_t port;    /* 0: any free one, see tr_server_port */
    tr_cluster *cluster;

    /* State of the cluster (tr_cluster_health). Thread: the server's. */
    void (*health)(void *ctx, tr_health *out);
    void *health_ctx;

    const tr_tokenizer *tokenizer;
    const tr_chat_template *chat_template; /* NULL: chat completions are refused */
    const char *model_name;                /* as clients name it */
    uint32_t context_max;                  /* tr_cluster_context_max */
    float default_temperature;             /* of requests that do not say */
    float default_top_p;
    const int32_t *stop_tokens; /* [stop_tokens_count] the model's ends of an answer */
    uint32_t stop_tokens_count; /* at most TR_STOP_TOKENS_MAX */

    /* Limits; 0 stands for the default. */
    uint32_t connections_max;  /* 128; more are answered with 503 and closed */
    uint32_t body_size_max;    /* bytes; 8 MiB */
    uint32_t bodies_size_max;  /* bytes of all bodies at a time; 64 MiB; more are 503 */
    uint32_t idle_timeout_ms;  /* a connection without a request; 75 s */
    uint32_t read_timeout_ms;  /* from the first byte of a request to its last; 60 s */
    uint32_t write_timeout_ms; /* a reader that takes nothing; 30 s */
    uint32_t stall_timeout_ms; /* a request without a token; 600 s */
} tr_server_config;

/* Opens the client of the cluster and listens. Before tr_cluster_start.
 * errors  TR_E_INVALID naming host and port (in use, not an address of this machine);
 *         TR_E_NOMEM. Nothing is left behind but the client, which belongs to the cluster. */
tr_status tr_server_open(tr_server **out, const tr_server_config *config, tr_error *err);

/* Starts the server's thread. */
tr_status tr_server_start(tr_server *server, tr_error *err);

/* What a memory budget counts of a server with the default limits: all connections with their
 * output and the input that waits, and the bodies of requests. Not among it are what reading one
 * body takes for moments (its JSON, its tokens), whole answers until they have left, and the
 * system's buffers of sockets. Thread: any. */
uint64_t tr_server_bytes(void);

/* The port that it listens on. */
uint16_t tr_server_port(const tr_server *server);

/* Stops: no new connections, running answers end with an error that says so, then all connections
 * are closed. Bounded: 2 s. Does nothing when the server does not run. Thread: the owner's. */
void tr_server_stop(tr_server *server);

/* Frees a server that does not run; NULL is allowed. */
void tr_server_close(tr_server *server);

#endif
