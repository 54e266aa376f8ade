/* client.c - a port of the node, seen as requests and events. */
#include "actors/cluster_node.h"
#include "core/trace.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CLIENT_PORT_SLOTS  4096
#define CLIENT_EXPORTS_MAX 16   /* requests for logits at once; more are TR_E_AGAIN */
#define CLIENT_OPEN_MAX    1024 /* requests at once: more than batcher and port hold */

/* A request for logits. Its rows come from the sampler and its other events from the batcher, which
 * may stand on different nodes: the last event waits here until all rows have come. Hidden rows
 * come from routers, too. */
typedef struct {
    uint64_t request;   /* 0: free */
    uint64_t rows_left; /* of logits and hidden rows */
    bool ended;         /* last is waiting */
    bool lost;          /* a node has gone since it began, perhaps with rows that are missing */
    tr_event last;
} client_export;

struct tr_client {
    tr_cluster *cluster; /* borrows */
    tr_actor_id id;
    uint64_t next_request;
    tr_buf *rows; /* counts; what the last LOGITS or HIDDEN event points into */
    int wake_fd;  /* eventfd for tr_client_wait; -1 with a wake function */
    client_export exports[CLIENT_EXPORTS_MAX];
    uint64_t open[CLIENT_OPEN_MAX]; /* requests whose last event has not been told, in any order */
    uint32_t open_count;
    bool batcher_gone; /* with its node: nobody else ends what is open */
};

static void client_on_wake(void *ctx)
{
    tr_client *client = ctx;
    uint64_t one = 1;
    ssize_t written = write(client->wake_fd, &one, sizeof(one));
    (void)written; /* an eventfd that is already readable is as good */
}

tr_status tr_client_open(tr_client **out, tr_cluster *cluster, void (*wake)(void *ctx),
                         void *wake_ctx, tr_error *err)
{
    char name[TR_NAME_SIZE + 32];
    uint32_t number = cluster->clients_count;
    if (number == TR_NODE_CLIENTS_MAX)
        return tr_fail(err, TR_E_NOMEM, "a node has at most %d clients", TR_NODE_CLIENTS_MAX);
    tr_client *client = calloc(1, sizeof(*client));
    if (client == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a client");
    client->cluster = cluster;
    client->id = tr_node_client(cluster->node_index, number);
    /* No two lives of a node use the same numbers: events of a former one are known by them. */
    client->next_request = cluster->life << 24;
    client->wake_fd = -1;
    if (wake == NULL) {
        client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (client->wake_fd < 0) {
            free(client);
            return tr_fail(err, TR_E_NOMEM, "eventfd: %s", strerror(errno));
        }
        wake = client_on_wake;
        wake_ctx = client;
    }
    snprintf(name, sizeof(name), "client%u@%s", number,
             cluster->placement->nodes[cluster->node_index].name);
    tr_status status = tr_runtime_add_port(cluster->runtime, client->id, name, CLIENT_PORT_SLOTS,
                                           wake, wake_ctx, err);
    if (status != TR_OK) {
        cluster_free_client(client);
        return status;
    }
    cluster->clients[cluster->clients_count++] = client;
    *out = client;
    return TR_OK;
}

uint64_t cluster_client_bytes(void)
{
    return sizeof(tr_client) + tr_runtime_port_bytes(CLIENT_PORT_SLOTS);
}

void cluster_free_client(tr_client *client)
{
    tr_buf_unref(client->rows);
    if (client->wake_fd >= 0)
        close(client->wake_fd);
    free(client);
}

static tr_status client_check(const tr_cluster *c, const tr_request *r, tr_error *err)
{
    uint32_t context = c->node.limits.context_max, vocab = c->node.spec->vocab_size;
    if (r->tokens_count == 0)
        return tr_fail(err, TR_E_INVALID, "prompt: empty, expected at least one token");
    if (r->tokens_count > context || r->tokens_max > context - r->tokens_count)
        return tr_fail(err, TR_E_INVALID,
                       "prompt and max_tokens: %u + %u tokens, the context has %u", r->tokens_count,
                       r->tokens_max, context);
    if (r->want_hidden && !r->want_logits)
        return tr_fail(err, TR_E_INVALID, "want_hidden: set without want_logits");
    if (r->tokens_max == 0 && !r->want_logits)
        return tr_fail(err, TR_E_INVALID, "max_tokens: 0, expected at least 1");
    if (r->stop_tokens_count > TR_STOP_TOKENS_MAX)
        return tr_fail(err, TR_E_INVALID, "stop tokens: %u, at most %d", r->stop_tokens_count,
                       TR_STOP_TOKENS_MAX);
    if (r->top_logprobs > TR_TOP_LOGPROBS_MAX)
        return tr_fail(err, TR_E_INVALID, "top_logprobs: %u, at most %d", r->top_logprobs,
                       TR_TOP_LOGPROBS_MAX);
    if (r->prefill_rows % TR_CHUNK_ROWS != 0)
        return tr_fail(err, TR_E_INVALID, "prefill_rows: %u, expected a multiple of %d",
                       r->prefill_rows, TR_CHUNK_ROWS);
    for (uint32_t i = 0; i < r->tokens_count; i++)
        if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= vocab)
            return tr_fail(err, TR_E_INVALID, "prompt: token %d at %u, the vocabulary has %u",
                           r->tokens[i], i, vocab);
    return TR_OK;
}

/* The export of a request; with request 0 a free one. NULL: none. */
static client_export *client_find_export(tr_client *client, uint64_t request)
{
    for (uint32_t i = 0; i < CLIENT_EXPORTS_MAX; i++)
        if (client->exports[i].request == request)
            return &client->exports[i];
    return NULL;
}

tr_status tr_client_submit(tr_client *client, const tr_request *r, uint64_t *request, tr_error *err)
{
    tr_cluster *c = client->cluster;
    tr_status status = client_check(c, r, err);
    if (status != TR_OK)
        return status;
    client_export *export = r->want_logits ? client_find_export(client, 0) : NULL;
    if (r->want_logits && export == NULL)
        return tr_fail(err, TR_E_AGAIN, "%d requests for logits are under way", CLIENT_EXPORTS_MAX);
    if (client->open_count == CLIENT_OPEN_MAX)
        return tr_fail(err, TR_E_AGAIN, "%d requests are under way", CLIENT_OPEN_MAX);
    size_t size = sizeof(tr_submit) + r->tokens_count * sizeof(int32_t);
    tr_buf *buf = tr_pool_take_fitting(c->pool, (uint32_t)size);
    if (buf == NULL)
        return tr_fail(err, TR_E_AGAIN, "too many requests are waiting");

    tr_submit submit = {.request = client->next_request + 1,
                        .tokens_count = r->tokens_count,
                        .tokens_max = r->tokens_max,
                        .sampling = r->sampling,
                        .stop_tokens_count = r->stop_tokens_count,
                        .want_logits = r->want_logits,
                        .want_hidden = r->want_hidden,
                        .prefill_rows = r->prefill_rows,
                        .want_logprobs = r->want_logprobs,
                        .top_logprobs = r->top_logprobs};
    memcpy(submit.stop_tokens, r->stop_tokens, r->stop_tokens_count * sizeof(int32_t));
    memcpy(buf->data, &submit, sizeof(submit));
    memcpy(buf->data + sizeof(submit), r->tokens, r->tokens_count * sizeof(int32_t));
    status = tr_runtime_post(c->runtime, client->id, tr_node_actor(TR_ACTOR_BATCHER, 0),
                             TR_MSG_SUBMIT, 0, 0, buf);
    if (status != TR_OK) {
        tr_buf_unref(buf);
        return tr_fail(err, status, "%s", tr_status_text(status));
    }
    *request = ++client->next_request;
    client->open[client->open_count++] = *request;
    if (export != NULL)
        *export = (client_export){
            .request = *request,
            .rows_left = r->tokens_count *
                         (1 + (r->want_hidden ? UINT64_C(1) + c->node.spec->layers_count : 0))};
    return TR_OK;
}

void tr_client_cancel(tr_client *client, uint64_t request)
{
    tr_cluster *c = client->cluster;
    tr_buf *buf = tr_pool_take(c->pool, sizeof(tr_cancel));
    if (buf == NULL)
        return; /* the request ends by itself; nothing is lost but time */
    *(tr_cancel *)(void *)buf->data = (tr_cancel){.request = request};
    if (tr_runtime_post(c->runtime, client->id, tr_node_actor(TR_ACTOR_BATCHER, 0), TR_MSG_CANCEL,
                        0, 0, buf) != TR_OK)
        tr_buf_unref(buf);
}

static bool client_is_open(const tr_client *client, uint64_t request)
{
    for (uint32_t i = 0; i < client->open_count; i++)
        if (client->open[i] == request)
            return true;
    return false;
}

static void client_end(tr_client *client, uint64_t request)
{
    uint32_t i = 0;
    while (client->open[i] != request)
        i++;
    assert(i < client->open_count);
    client->open[i] = client->open[--client->open_count];
}

/* The rows that are missing do not come any more. */
static void client_lose_rows(client_export *export)
{
    export->rows_left = 0;
    export->last = (tr_event){.kind = TR_EVENT_FAILED, .request = export->request};
    tr_fail(&export->last.error, TR_E_PEER, "a node is gone, and logits with it");
}

/* An event of the batcher: true when it is to be told now. */
static bool client_on_event(tr_client *client, const tr_event *event)
{
    if (!client_is_open(client, event->request))
        return false; /* it was ended when the batcher's node was given up */
    client_export *export = client_find_export(client, event->request);
    if (export == NULL || event->kind == TR_EVENT_TOKEN)
        return true;
    if (event->kind == TR_EVENT_FINISHED && event->finish != TR_FINISH_CANCELED &&
        export->rows_left > 0) {
        export->last = *event;
        export->ended = true;
        if (export->lost)
            client_lose_rows(export);
        return false;
    }
    export->request = 0; /* rows that are still on their way are not told any more */
    return true;
}

/* A row of the sampler: true when it is to be told, and then the payload is kept for it. */
static bool client_on_row(tr_client *client, const tr_msg *msg, tr_event *out)
{
    tr_logits_row row;
    if (msg->header.payload_size < sizeof(row))
        return false;
    memcpy(&row, msg->payload->data, sizeof(row));
    client_export *export = client_find_export(client, row.request);
    if (msg->header.payload_size != sizeof(row) + (uint64_t)row.width * sizeof(float) ||
        row.request == 0 || export == NULL || export->rows_left == 0)
        return false;
    export->rows_left--;
    client->rows = tr_buf_ref(msg->payload);
    *out = (tr_event){.kind = TR_EVENT_LOGITS,
                      .request = row.request,
                      .position = row.position,
                      .logits = (const void *)(msg->payload->data + sizeof(row))};
    return true;
}

/* Rows of the residual, likewise. */
static bool client_on_hidden(tr_client *client, const tr_msg *msg, tr_event *out)
{
    tr_hidden_rows rows;
    if (msg->header.payload_size < sizeof(rows))
        return false;
    memcpy(&rows, msg->payload->data, sizeof(rows));
    client_export *export = client_find_export(client, rows.request);
    uint64_t floats = (uint64_t)rows.rows_count * rows.width;
    if (rows.request == 0 || export == NULL || rows.rows_count > export->rows_left ||
        floats > UINT32_MAX || msg->header.payload_size != sizeof(rows) + floats * sizeof(float))
        return false;
    export->rows_left -= rows.rows_count;
    client->rows = tr_buf_ref(msg->payload);
    *out = (tr_event){.kind = TR_EVENT_HIDDEN,
                      .request = rows.request,
                      .position = rows.position,
                      .layer = rows.layer,
                      .rows_count = rows.rows_count,
                      .width = rows.width,
                      .hidden = (const void *)(msg->payload->data + sizeof(rows))};
    return true;
}

/* Rows may have been lost with the node. Requests that go on hear of it from the batcher, unless it
 * was the batcher's node. */
static void client_on_peer_down(tr_client *client, uint32_t node)
{
    client->batcher_gone |= node == client->cluster->placement->batcher_node;
    for (uint32_t i = 0; i < CLIENT_EXPORTS_MAX; i++) {
        client_export *export = &client->exports[i];
        export->lost = export->request != 0;
        if (export->ended && export->rows_left > 0)
            client_lose_rows(export);
    }
}

/* A last event that has waited and need not any more. */
static bool client_next_ended(tr_client *client, tr_event *out)
{
    for (uint32_t i = 0; i < CLIENT_EXPORTS_MAX; i++) {
        client_export *export = &client->exports[i];
        if (!export->ended || export->rows_left > 0)
            continue;
        *out = export->last;
        *export = (client_export){0};
        return true;
    }
    return false;
}

/* The batcher is gone and nothing of it is left to read: what is open has failed. */
static bool client_next_lost(tr_client *client, tr_event *out)
{
    if (!client->batcher_gone || client->open_count == 0)
        return false;
    const tr_cluster *c = client->cluster;
    *out = (tr_event){.kind = TR_EVENT_FAILED, .request = client->open[0]};
    tr_fail(&out->error, TR_E_PEER, "node %s is gone, and the batcher with it",
            c->placement->nodes[c->placement->batcher_node].name);
    client_export *export = client_find_export(client, out->request);
    if (export != NULL)
        *export = (client_export){0};
    client_end(client, out->request);
    return true;
}

/* The next event, without care for what it ends. */
static bool client_next_event(tr_client *client, tr_event *out)
{
    tr_msg msg;
    bool told;

    do {
        if (client_next_ended(client, out))
            return true;
        if (!tr_runtime_port_next(client->cluster->runtime, client->id, &msg))
            return false;
        told = false;
        if (msg.header.kind == TR_MSG_EVENT && msg.header.payload_size == sizeof(*out)) {
            memcpy(out, msg.payload->data, sizeof(*out));
            told = client_on_event(client, out);
        } else if (msg.header.kind == TR_MSG_LOGITS_ROW) {
            told = client_on_row(client, &msg, out);
        } else if (msg.header.kind == TR_MSG_HIDDEN_ROWS) {
            told = client_on_hidden(client, &msg, out);
        } else if (msg.header.kind == TR_MSG_PEER_DOWN) {
            client_on_peer_down(client, msg.header.argument);
        }
        tr_buf_unref(msg.payload);
    } while (!told);
    return true;
}

bool tr_client_next(tr_client *client, tr_event *out)
{
    tr_buf_unref(client->rows);
    client->rows = NULL;
    if (!client_next_event(client, out))
        return client_next_lost(client, out);
    if (out->kind == TR_EVENT_FINISHED || out->kind == TR_EVENT_FAILED)
        client_end(client, out->request);
    return true;
}

bool tr_client_wait(tr_client *client, tr_event *out, uint64_t deadline_ns)
{
    assert(client->wake_fd >= 0);
    while (!tr_client_next(client, out)) {
        uint64_t now = tr_clock_ns(), count;
        if (now >= deadline_ns)
            return false;
        uint64_t left_ms = (deadline_ns - now) / 1000000 + 1;
        struct pollfd fd = {.fd = client->wake_fd, .events = POLLIN};
        if (poll(&fd, 1, left_ms > 1000 ? 1000 : (int)left_ms) > 0) {
            ssize_t got = read(client->wake_fd, &count, sizeof(count));
            (void)got; /* the port is looked at again either way */
        }
    }
    return true;
}
