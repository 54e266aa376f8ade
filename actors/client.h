/* client.h - how threads outside the runtime (HTTP server, command line) use a running cluster.
 *
 * A client is a port of the node that holds it. It submits requests to the batcher and reads the
 * events of its own requests. */
#ifndef TR_ACTORS_CLIENT_H
#define TR_ACTORS_CLIENT_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tr_cluster tr_cluster; /* actors/cluster.h */
typedef struct tr_client tr_client;

typedef struct {
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    uint32_t top_k;    /* 0: off */
    float min_p;       /* 0: off */
    uint64_t seed;
} tr_sampling;

#define TR_STOP_TOKENS_MAX  16
#define TR_TOP_LOGPROBS_MAX 20

typedef struct {
    const int32_t *tokens; /* [tokens_count] prompt, borrowed for the call; at least one */
    uint32_t tokens_count;
    uint32_t tokens_max; /* tokens to generate, >= 0; 0 only with want_logits */
    tr_sampling sampling;
    int32_t stop_tokens[TR_STOP_TOKENS_MAX]; /* generation ends at any of these, which is reported
                                                in TR_EVENT_FINISHED and not as a token */
    uint32_t stop_tokens_count;
    bool want_logits; /* one TR_EVENT_LOGITS for each prompt position */
    bool want_hidden; /* with want_logits: TR_EVENT_HIDDEN for each layer and position */
    uint32_t
        prefill_rows;   /* most prompt rows in one step, multiple of 64; 0: no limit of its own */
    bool want_logprobs; /* of each token: three more passes over the vocabulary */
    uint32_t top_logprobs; /* how many of the most likely tokens come with it */
} tr_request;

typedef enum {
    TR_EVENT_TOKEN,    /* one generated token */
    TR_EVENT_LOGITS,   /* float32 row of a prompt position; in order, unless the sampler moves */
    TR_EVENT_HIDDEN,   /* float32 rows that enter a layer, in any order */
    TR_EVENT_FINISHED, /* the last event of a request that went well */
    TR_EVENT_FAILED    /* the last event of a request that did not */
} tr_event_kind;

typedef enum {
    TR_FINISH_STOP,   /* a stop token */
    TR_FINISH_LENGTH, /* tokens_max or the context is full */
    TR_FINISH_CANCELED
} tr_finish_reason;

typedef struct {
    int32_t token;
    float logprob; /* natural log, of the unmodified distribution (temperature 1) */
} tr_logprob;

typedef struct {
    tr_event_kind kind;
    uint64_t request;
    int32_t token;                       /* TOKEN: the token; FINISHED by STOP: the stop token */
    float logprob;                       /* TOKEN, with want_logprobs */
    tr_logprob top[TR_TOP_LOGPROBS_MAX]; /* TOKEN: the most likely ones, most likely first */
    uint32_t top_count;
    uint32_t position;   /* LOGITS, HIDDEN: prompt position (of the first row) */
    const float *logits; /* LOGITS: [vocab_size], valid until the next tr_client_next */
    const float *hidden; /* HIDDEN: [rows_count, width], likewise */
    uint32_t layer;      /* HIDDEN: that the rows enter; layers_count: the output matrix, which they
                            enter after the final norm */
    uint32_t rows_count, width; /* HIDDEN */
    tr_finish_reason finish;    /* FINISHED */
    uint32_t prompt_tokens;     /* FINISHED */
    uint32_t cached_tokens; /* FINISHED: of the prompt, whose state was kept from another request */
    uint32_t generated_tokens; /* FINISHED: stop token not counted */
    tr_error error;            /* FAILED; TR_E_PEER: a node is gone */
    bool refused; /* FAILED before it began; TR_E_INVALID, TR_E_NOMEM: so it will be each time */
} tr_event;

/* wake is called from a runtime thread when an event waits and none waited before; it must not
 * block (uv_async_send, eventfd write). NULL: the caller polls or uses tr_client_wait.
 * Before tr_cluster_start. The cluster owns the client. At most 8 clients. */
tr_status tr_client_open(tr_client **out, tr_cluster *cluster, void (*wake)(void *ctx),
                         void *wake_ctx, tr_error *err);

/* Hands a request to the batcher, which queues it until a slot and its pages are free.
 *
 *   request  out: number under which its events come, unique, never 0
 *
 * thread  the client's
 * At most 16 requests with want_logits at once (TR_E_AGAIN). Their rows come before the last event.
 * errors  TR_E_INVALID a field is wrong or the prompt and tokens_max exceed the context limit (text
 * names the field); TR_E_AGAIN the queue is full, try later; TR_E_PEER not serving */
tr_status tr_client_submit(tr_client *client, const tr_request *r, uint64_t *request,
                           tr_error *err);

/* The request ends with TR_FINISH_CANCELED (or with what it was about to end with). Thread: the
 * client's. */
void tr_client_cancel(tr_client *client, uint64_t request);

/* The next event, or false. Thread: the client's. Never blocks. */
bool tr_client_next(tr_client *client, tr_event *out);

/* Waits for an event until deadline_ns; false at the deadline. Only for clients without wake. */
bool tr_client_wait(tr_client *client, tr_event *out, uint64_t deadline_ns);

#endif
