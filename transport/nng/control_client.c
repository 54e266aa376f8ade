/* control_client.c - one lasting connection of an NNG req socket, one request at a time.
 *
 * NNG dials in the background and again after a loss. It never sends a request twice here: a
 * request whose connection was lost may have been carried out, and only the caller can tell
 * whether asking again is harmless.
 *
 * Deadlines are ours. In NNG 1.5 the thread that ends what is late looks at context and socket when
 * both may be closed already (seen: a panic in pthread_mutex_lock). And a socket that is closed
 * just when an answer comes may never be closed (library.c), so an answer that is late is waited
 * for before that, for a while. */
#include "transport/control.h"

#include "transport/nng/compat.h"

#include "core/trace.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLIENT_URL_SIZE  256
#define MESSAGE_SIZE_MAX (64u << 20) /* bytes; the same as tr_msgpack_check's */
#define REDIAL_MIN_MS    20
#define REDIAL_MAX_MS    250
#define LOOK_NS          20000000   /* how often a waiting call looks whether the node is there */
#define LATE_NS          500000000u /* for an answer that nobody wants any more, before a close */

struct tr_control_client {
    nng_socket socket;
    nng_ctx ctx;
    nng_aio *aio; /* owns */
    char url[CLIENT_URL_SIZE];
    /* Connections that stand. NNG's threads write it, a call reads it to tell "nobody there" from
     * "no answer"; nothing else depends on it, so relaxed. */
    _Atomic int connections;
    atomic_flag in_call;       /* finds two calls at once, which is a bug of the caller */
    const _Atomic bool *there; /* borrows, or NULL */
    bool late;                 /* the last call has ended, and its answer may still come */
    pthread_mutex_t lock;      /* guards what follows */
    pthread_cond_t ended;
    bool under_way; /* an operation of the aio; cleared by NNG's thread */
};

static void client_on_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    tr_control_client *client = arg;

    (void)pipe;
    if (event == NNG_PIPE_EV_ADD_POST)
        atomic_fetch_add_explicit(&client->connections, 1, memory_order_relaxed);
    if (event == NNG_PIPE_EV_REM_POST)
        atomic_fetch_sub_explicit(&client->connections, 1, memory_order_relaxed);
}

static void client_on_end(void *arg)
{
    tr_control_client *client = arg;

    pthread_mutex_lock(&client->lock);
    client->under_way = false;
    pthread_cond_signal(&client->ended);
    pthread_mutex_unlock(&client->lock);
}

static int client_configure(tr_control_client *client)
{
    nng_socket s = client->socket;
    int rv = nng_socket_set_size(s, NNG_OPT_RECVMAXSZ, MESSAGE_SIZE_MAX);

    if (rv == 0)
        rv = nng_socket_set_ms(s, NNG_OPT_RECONNMINT, REDIAL_MIN_MS);
    if (rv == 0)
        rv = nng_socket_set_ms(s, NNG_OPT_RECONNMAXT, REDIAL_MAX_MS);
    if (rv == 0)
        rv = nng_socket_set_ms(s, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (rv == 0)
        rv = nng_pipe_notify(s, NNG_PIPE_EV_ADD_POST, client_on_pipe, client);
    if (rv == 0)
        rv = nng_pipe_notify(s, NNG_PIPE_EV_REM_POST, client_on_pipe, client);
    if (rv == 0)
        rv = nng_ctx_open(&client->ctx, s);
    return rv;
}

static void client_init_wait(tr_control_client *client)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&client->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&client->lock, NULL);
}

static void client_free(tr_control_client *client)
{
    pthread_cond_destroy(&client->ended);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

tr_status tr_control_client_open(tr_control_client **out, const char *url, tr_error *err)
{
    int rv = tr_nng_init();

    if (strlen(url) >= CLIENT_URL_SIZE)
        return tr_fail(err, TR_E_INVALID, "%.60s...: a URL of %zu bytes, expected at most %d", url,
                       strlen(url), CLIENT_URL_SIZE - 1);
    tr_control_client *client = calloc(1, sizeof(*client));
    if (client == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a control client", url);
    snprintf(client->url, sizeof(client->url), "%s", url);
    atomic_flag_clear(&client->in_call);
    client_init_wait(client);

    if (rv == 0)
        rv = nng_aio_alloc(&client->aio, client_on_end, client);
    if (rv != 0)
        goto free_client;
    rv = nng_req0_open(&client->socket);
    if (rv != 0)
        goto free_aio;
    rv = client_configure(client);
    if (rv == 0)
        rv = nng_dial(client->socket, url, NULL, NNG_FLAG_NONBLOCK);
    if (rv != 0)
        goto close_socket;
    *out = client;
    return TR_OK;

close_socket:
    tr_nng_socket_close(client->socket);
free_aio:
    nng_aio_free(client->aio);
free_client:
    client_free(client);
    return tr_fail(err, TR_E_INVALID, "control socket %s: %s", url, nng_strerror(rv));
}

void tr_control_client_while(tr_control_client *client, const _Atomic bool *there)
{
    client->there = there;
}

/* -- an operation of the aio -- */

static bool client_given_up(const tr_control_client *client)
{
    return client->there != NULL && !atomic_load(client->there);
}

static bool client_is_connected(const tr_control_client *client)
{
    return atomic_load_explicit(&client->connections, memory_order_relaxed) > 0;
}

/* Before it is begun. */
static void client_begin(tr_control_client *client)
{
    pthread_mutex_lock(&client->lock);
    client->under_way = true;
    pthread_mutex_unlock(&client->lock);
}

/* Waits until it has ended, the deadline has passed, or the node is known to be gone. False: it has
 * not ended. */
static bool client_watch(tr_control_client *client, uint64_t deadline_ns)
{
    pthread_mutex_lock(&client->lock);
    while (client->under_way && !client_given_up(client)) {
        uint64_t now_ns = tr_clock_ns();
        if (now_ns >= deadline_ns)
            break;
        uint64_t until_ns = deadline_ns;
        if (client->there != NULL && until_ns - now_ns > LOOK_NS)
            until_ns = now_ns + LOOK_NS;
        struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                 .tv_nsec = (long)(until_ns % 1000000000)};
        pthread_cond_timedwait(&client->ended, &client->lock, &until);
    }
    bool under_way = client->under_way;
    pthread_mutex_unlock(&client->lock);
    return !under_way;
}

/* Ends it, unless it has ended. Returns an NNG error: how. */
static int client_end(tr_control_client *client)
{
    nng_aio_cancel(client->aio);
    nng_aio_wait(client->aio);
    return nng_aio_result(client->aio);
}

/* Drops the answer to a call that has ended before it. */
static void client_end_late(tr_control_client *client)
{
    if (!client->late)
        return;
    client->late = false;
    if (client_end(client) == 0)
        nng_msg_free(nng_aio_get_msg(client->aio));
}

void tr_control_client_close(tr_control_client *client)
{
    if (client == NULL)
        return;
    if (client->late && client_is_connected(client))
        (void)client_watch(client, tr_clock_ns() + LATE_NS);
    client_end_late(client);
    nng_aio_free(client->aio);
    (void)nng_ctx_close(client->ctx);        /* before its socket: see control_server.c */
    if (tr_nng_socket_close(client->socket)) /* else client_on_pipe may still be called */
        client_free(client);
}

/* -- one call -- */

/* Why an operation has not ended well. rv: an NNG error; 0: it has not ended at all. */
static tr_status client_fail(const tr_control_client *client, int rv, const char *doing,
                             tr_error *err)
{
    if (client_given_up(client))
        return tr_fail(err, TR_E_PEER, "%s: the node is gone", client->url);
    if (rv != 0 && rv != NNG_ECANCELED)
        return tr_fail(err, TR_E_PEER, "%s: %s: %s", client->url, doing, nng_strerror(rv));
    if (!client_is_connected(client))
        return tr_fail(err, TR_E_PEER, "%s: nobody answers there", client->url);
    return tr_fail(err, TR_E_TIMEOUT, "%s: no answer within the deadline", client->url);
}

static tr_status client_send(tr_control_client *client, const msgpack_sbuffer *request,
                             uint64_t deadline_ns, tr_error *err)
{
    nng_msg *msg = NULL;

    if (tr_clock_ns() >= deadline_ns)
        return tr_fail(err, TR_E_TIMEOUT, "%s: the deadline had passed before the request",
                       client->url);
    if (nng_msg_alloc(&msg, 0) != 0)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a request", client->url);
    if (nng_msg_append(msg, request->data, request->size) != 0) {
        nng_msg_free(msg);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a request", client->url);
    }
    client_end_late(client);
    nng_aio_set_msg(client->aio, msg);
    client_begin(client);
    nng_ctx_send(client->ctx, client->aio);
    (void)client_watch(client, deadline_ns);
    int rv = client_end(client);
    if (rv == 0)
        return TR_OK;
    nng_msg_free(nng_aio_get_msg(client->aio)); /* it stayed ours */
    return client_fail(client, rv, "sending the request", err);
}

static tr_status client_receive(tr_control_client *client, uint64_t deadline_ns, nng_msg **out,
                                tr_error *err)
{
    client_begin(client);
    nng_ctx_recv(client->ctx, client->aio);
    client->late = !client_watch(client, deadline_ns);
    int rv = client->late ? 0 : client_end(client);
    if (client->late || rv != 0)
        return client_fail(client, rv, "waiting for the answer", err);
    *out = nng_aio_get_msg(client->aio);
    return TR_OK;
}

static void client_free_message(void *msg)
{
    nng_msg_free(msg);
}

tr_status tr_control_call(tr_control_client *client, const msgpack_sbuffer *request,
                          uint64_t deadline_ns, tr_control_reply *out, tr_error *err)
{
    nng_msg *msg = NULL;
    bool busy = atomic_flag_test_and_set(&client->in_call);

    assert(!busy);
    tr_control_reply_init(out);
    /* Its former life may still answer, and faster than a wait looks. */
    tr_status status = client_given_up(client)
                           ? tr_fail(err, TR_E_PEER, "%s: the node is gone", client->url)
                           : client_send(client, request, deadline_ns, err);
    if (status == TR_OK)
        status = client_receive(client, deadline_ns, &msg, err);
    if (status == TR_OK)
        status = tr_control_reply_read(out, client->url, nng_msg_body(msg), nng_msg_len(msg),
                                       client_free_message, msg, err);
    atomic_flag_clear(&client->in_call);
    return status;
}
