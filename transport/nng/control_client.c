/* control_client.c - one lasting connection of an NNG req socket, one request at a time.
 *
 * NNG dials in the background and again after a loss. It never sends a request twice here: a
 * request whose connection was lost may have been carried out, and only the caller can tell
 * whether asking again is harmless. */
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
#define LOOK_NS          20000000 /* how often a waiting call looks whether the node is there */

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

void tr_control_client_close(tr_control_client *client)
{
    if (client == NULL)
        return;
    (void)nng_ctx_close(client->ctx); /* before its socket: see control_server.c */
    tr_nng_socket_close(client->socket);
    nng_aio_free(client->aio);
    client_free(client);
}

void tr_control_client_while(tr_control_client *client, const _Atomic bool *there)
{
    client->there = there;
}

/* -- one call -- */

static bool client_given_up(const tr_control_client *client)
{
    return client->there != NULL && !atomic_load(client->there);
}

/* Before an operation of the aio is begun. */
static void client_begin(tr_control_client *client)
{
    pthread_mutex_lock(&client->lock);
    client->under_way = true;
    pthread_mutex_unlock(&client->lock);
}

/* Until the operation has ended, or the node is known to be gone. */
static void client_watch(tr_control_client *client)
{
    pthread_mutex_lock(&client->lock);
    while (client->under_way && !client_given_up(client)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&client->ended, &client->lock, &until);
    }
    pthread_mutex_unlock(&client->lock);
}

/* Lets the operation that was begun on the aio end, by itself or at the deadline. */
static tr_status client_wait(tr_control_client *client, const char *doing, tr_error *err)
{
    if (client->there != NULL) {
        client_watch(client);
        nng_aio_cancel(client->aio); /* nothing, when it has ended */
    }
    nng_aio_wait(client->aio);
    int rv = nng_aio_result(client->aio);
    if (rv == 0)
        return TR_OK;
    if (rv == NNG_ECANCELED)
        return tr_fail(err, TR_E_PEER, "%s: the node is gone", client->url);
    if (rv == NNG_ETIMEDOUT &&
        atomic_load_explicit(&client->connections, memory_order_relaxed) == 0)
        return tr_fail(err, TR_E_PEER, "%s: nobody answers there", client->url);
    if (rv == NNG_ETIMEDOUT)
        return tr_fail(err, TR_E_TIMEOUT, "%s: no answer within the deadline", client->url);
    return tr_fail(err, TR_E_PEER, "%s: %s: %s", client->url, doing, nng_strerror(rv));
}

/* What is left until the deadline, rounded up; false when it has passed. */
static bool client_set_timeout(tr_control_client *client, uint64_t deadline_ns)
{
    uint64_t now_ns = tr_clock_ns();

    if (now_ns >= deadline_ns)
        return false;
    uint64_t ms = (deadline_ns - now_ns - 1) / 1000000 + 1;
    nng_aio_set_timeout(client->aio, ms < INT32_MAX ? (nng_duration)ms : INT32_MAX);
    return true;
}

static tr_status client_send(tr_control_client *client, const msgpack_sbuffer *request,
                             uint64_t deadline_ns, tr_error *err)
{
    nng_msg *msg = NULL;

    if (!client_set_timeout(client, deadline_ns))
        return tr_fail(err, TR_E_TIMEOUT, "%s: the deadline had passed before the request",
                       client->url);
    if (nng_msg_alloc(&msg, 0) != 0)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a request", client->url);
    if (nng_msg_append(msg, request->data, request->size) != 0) {
        nng_msg_free(msg);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a request", client->url);
    }
    nng_aio_set_msg(client->aio, msg);
    client_begin(client);
    nng_ctx_send(client->ctx, client->aio);
    tr_status status = client_wait(client, "sending the request", err);
    if (status != TR_OK) /* the message stayed ours */
        nng_msg_free(nng_aio_get_msg(client->aio));
    return status;
}

static tr_status client_receive(tr_control_client *client, uint64_t deadline_ns, nng_msg **out,
                                tr_error *err)
{
    if (!client_set_timeout(client, deadline_ns))
        return tr_fail(err, TR_E_TIMEOUT, "%s: no answer within the deadline", client->url);
    client_begin(client);
    nng_ctx_recv(client->ctx, client->aio);
    tr_status status = client_wait(client, "waiting for the answer", err);
    if (status == TR_OK)
        *out = nng_aio_get_msg(client->aio);
    return status;
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
