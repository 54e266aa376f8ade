/* control_server.c - answers requests on an NNG rep socket.
 *
 * TR_CONTROL_AT_ONCE threads, each with a context of its own: receive, handle, send. A handler may
 * therefore wait (for instance for a reply of another node) without holding up NNG's own threads or
 * the others. Nothing runs inside an NNG callback.
 *
 *   OPEN --listen--> LISTENING --close--> (freed) <--close-- OPEN */
#include "transport/control.h"

#include "transport/nng/compat.h"

#include "core/log.h"
#include "core/trace.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVER_METHODS_MAX 64
#define METHOD_NAME_SIZE   64
#define MESSAGE_SIZE_MAX   (64u << 20) /* bytes; the same as tr_msgpack_check's */
#define REPLY_SEND_MS      1000        /* a client that does not read its reply loses it */
#define CLOSE_WAIT_NS      1000000000u /* for requests that are being handled */
#define LINGER_NS          50000000u   /* for replies to leave: NNG drops what it holds at close */

typedef struct {
    const char *name; /* static storage */
    tr_control_handler handler;
    void *ctx; /* borrowed */
} server_method;

typedef struct {
    tr_control_server *server; /* borrows its owner */
    nng_ctx ctx;
    nng_aio *aio; /* owns */
    pthread_t thread;
} server_worker;

struct tr_control_server {
    nng_socket socket;
    server_method methods[SERVER_METHODS_MAX]; /* not changed after listen */
    uint32_t methods_count;
    server_worker workers[TR_CONTROL_AT_ONCE];
    uint32_t workers_count;      /* whose context and aio exist */
    bool listening;              /* the threads run */
    _Atomic uint32_t busy;       /* requests being handled; close waits for 0 */
    _Atomic uint64_t replied_ns; /* when the last reply was given to NNG. Both relaxed: they only
                                    decide how long close waits */
    _Atomic bool closing; /* close to the threads: a failed wait is the end. Relaxed: the failed
                             wait itself orders it */
};

/* -- one request -- */

/* Appends "ok": false, "error": text, "full": whether memory was the trouble, as a whole map. */
static void reply_error(msgpack_sbuffer *out, tr_status status, const tr_error *err)
{
    msgpack_packer pk;

    msgpack_packer_init(&pk, out, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&pk, 3);
    tr_pack_bool(&pk, "ok", false);
    tr_pack_text(&pk, "error", err->text);
    tr_pack_bool(&pk, "full", status == TR_E_NOMEM);
}

static tr_status server_call(tr_control_server *server, const msgpack_object *request,
                             msgpack_sbuffer *pairs, uint32_t *pairs_count, tr_error *err)
{
    char name[METHOD_NAME_SIZE];
    msgpack_packer pk;

    if (request->type != MSGPACK_OBJECT_MAP)
        return tr_fail(err, TR_E_INVALID, "the request is not a map");
    if (!tr_map_text(request, "method", name, sizeof(name)))
        return tr_fail(err, TR_E_INVALID, "method: missing, or not a text of at most %d bytes",
                       METHOD_NAME_SIZE - 1);
    msgpack_packer_init(&pk, pairs, msgpack_sbuffer_write);
    for (uint32_t i = 0; i < server->methods_count; i++) {
        const server_method *method = &server->methods[i];
        if (strcmp(method->name, name) == 0)
            return method->handler(method->ctx, request, &pk, pairs_count, err);
    }
    return tr_fail(err, TR_E_INVALID, "method: this node has no '%s'", name);
}

void tr_control_server_answer(tr_control_server *server, const void *bytes, size_t size,
                              msgpack_sbuffer *reply)
{
    tr_error err = {0};
    msgpack_unpacked request;
    msgpack_sbuffer pairs;
    uint32_t pairs_count = 0;

    msgpack_unpacked_init(&request);
    msgpack_sbuffer_init(&pairs);
    tr_status status = tr_msgpack_check(bytes, size, &err);
    if (status == TR_OK &&
        msgpack_unpack_next(&request, bytes, size, NULL) != MSGPACK_UNPACK_SUCCESS)
        status = tr_fail(&err, TR_E_INVALID, "the request cannot be decoded");
    if (status == TR_OK)
        status = server_call(server, &request.data, &pairs, &pairs_count, &err);
    if (status == TR_OK && pairs.size > MESSAGE_SIZE_MAX - 64)
        status = tr_fail(&err, TR_E_INVALID, "the answer has %zu bytes, at most %u can be sent",
                         pairs.size, MESSAGE_SIZE_MAX - 64);
    if (status == TR_OK) {
        msgpack_packer pk;
        msgpack_packer_init(&pk, reply, msgpack_sbuffer_write);
        (void)msgpack_pack_map(&pk, pairs_count + 1);
        tr_pack_bool(&pk, "ok", true);
        (void)msgpack_sbuffer_write(reply, pairs.data, pairs.size);
    } else {
        reply_error(reply, status, &err);
    }
    msgpack_sbuffer_destroy(&pairs);
    msgpack_unpacked_destroy(&request);
}

/* -- threads -- */

/* The next request, or NULL when the server closes. */
static nng_msg *worker_receive(server_worker *w)
{
    for (;;) {
        nng_aio_set_timeout(w->aio, NNG_DURATION_INFINITE); /* close ends it */
        nng_ctx_recv(w->ctx, w->aio);
        nng_aio_wait(w->aio);
        int rv = nng_aio_result(w->aio);
        if (rv == 0)
            return nng_aio_get_msg(w->aio);
        if (atomic_load_explicit(&w->server->closing, memory_order_relaxed))
            return NULL;
        static tr_log_limit limit;
        tr_log_limited(&limit, TR_LOG_WARN, NULL, "control_receive_failed", "reason=\"%s\"",
                       nng_strerror(rv));
        usleep(10 * 1000); /* whatever it is, do not spin on it */
    }
}

static void worker_send(server_worker *w, const msgpack_sbuffer *reply)
{
    nng_msg *msg = NULL;

    if (nng_msg_alloc(&msg, 0) != 0)
        return; /* the client's deadline tells it */
    if (nng_msg_append(msg, reply->data, reply->size) != 0) {
        nng_msg_free(msg);
        return;
    }
    nng_aio_set_msg(w->aio, msg);
    nng_aio_set_timeout(w->aio, REPLY_SEND_MS);
    nng_ctx_send(w->ctx, w->aio);
    nng_aio_wait(w->aio);
    if (nng_aio_result(w->aio) != 0) /* the client is gone; the message stayed ours */
        nng_msg_free(nng_aio_get_msg(w->aio));
}

static void *worker_run(void *arg)
{
    server_worker *w = arg;
    tr_control_server *server = w->server;
    nng_msg *request;

    while ((request = worker_receive(w)) != NULL) {
        msgpack_sbuffer reply;
        atomic_fetch_add_explicit(&server->busy, 1, memory_order_relaxed);
        msgpack_sbuffer_init(&reply);
        tr_control_server_answer(server, nng_msg_body(request), nng_msg_len(request), &reply);
        nng_msg_free(request);
        worker_send(w, &reply);
        msgpack_sbuffer_destroy(&reply);
        atomic_store_explicit(&server->replied_ns, tr_clock_ns(), memory_order_relaxed);
        atomic_fetch_sub_explicit(&server->busy, 1, memory_order_relaxed);
    }
    return NULL;
}

/* -- life -- */

static int server_open_workers(tr_control_server *server)
{
    for (uint32_t i = 0; i < TR_CONTROL_AT_ONCE; i++) {
        server_worker *w = &server->workers[i];
        w->server = server;
        int rv = nng_aio_alloc(&w->aio, NULL, NULL);
        if (rv != 0)
            return rv;
        rv = nng_ctx_open(&w->ctx, server->socket);
        if (rv != 0) {
            nng_aio_free(w->aio);
            return rv;
        }
        server->workers_count++;
    }
    return 0;
}

tr_status tr_control_server_open(tr_control_server **out, tr_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? TR_OK : tr_fail(err, TR_E_NOMEM, "no memory for a control server");
}

void tr_control_server_handle(tr_control_server *server, const char *method,
                              tr_control_handler handler, void *ctx)
{
    assert(!server->listening);
    assert(server->methods_count < SERVER_METHODS_MAX);
    assert(strlen(method) < METHOD_NAME_SIZE);
    for (uint32_t i = 0; i < server->methods_count; i++)
        assert(strcmp(server->methods[i].name, method) != 0);
    server->methods[server->methods_count++] = (server_method){method, handler, ctx};
}

/* Lets the requests that are being handled end, and their replies leave: the one that asked for the
 * shutdown among them. */
static void server_drain(tr_control_server *server)
{
    uint64_t deadline_ns = tr_clock_ns() + CLOSE_WAIT_NS;

    while (atomic_load_explicit(&server->busy, memory_order_relaxed) > 0 &&
           tr_clock_ns() < deadline_ns)
        usleep(1000);
    uint64_t since_ns =
        tr_clock_ns() - atomic_load_explicit(&server->replied_ns, memory_order_relaxed);
    if (since_ns < LINGER_NS)
        usleep((useconds_t)((LINGER_NS - since_ns) / 1000));
}

/* Ends the threads of the first count workers.
 *
 * Note: the socket is still open. In NNG 1.5, closing it while a thread is inside nng_ctx_send or
 * nng_ctx_recv frees the socket under the context that the thread lets go of (seen: a panic in
 * pthread_mutex_lock, one run in four). A stopped aio fails all its operations, so the threads
 * leave by themselves. */
static void server_join(tr_control_server *server, uint32_t count)
{
    atomic_store_explicit(&server->closing, true, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++)
        nng_aio_stop(server->workers[i].aio);
    for (uint32_t i = 0; i < count; i++)
        pthread_join(server->workers[i].thread, NULL);
}

static void server_close_socket(tr_control_server *server)
{
    for (uint32_t i = 0; i < server->workers_count; i++) {
        nng_aio_free(server->workers[i].aio);        /* first: see control_client.c */
        (void)nng_ctx_close(server->workers[i].ctx); /* fails only when closed already */
    }
    server->workers_count = 0;
    tr_nng_socket_close(server->socket);
}

static tr_status server_open_socket(tr_control_server *server, tr_error *err)
{
    int rv = tr_nng_init();
    if (rv == 0)
        rv = nng_rep0_open(&server->socket);
    if (rv != 0)
        return tr_fail(err, TR_E_NOMEM, "control server: %s", nng_strerror(rv));
    rv = nng_socket_set_size(server->socket, NNG_OPT_RECVMAXSZ, MESSAGE_SIZE_MAX);
    if (rv == 0)
        rv = server_open_workers(server);
    if (rv == 0)
        return TR_OK;
    server_close_socket(server);
    return tr_fail(err, TR_E_NOMEM, "control server: %s", nng_strerror(rv));
}

static tr_status server_start(tr_control_server *server, const char *url, tr_error *err)
{
    int rv = nng_listen(server->socket, url, NULL, 0);
    if (rv != 0)
        return tr_fail(err, TR_E_INVALID, "control socket %s: %s", url, nng_strerror(rv));
    for (uint32_t i = 0; i < TR_CONTROL_AT_ONCE; i++) {
        if (pthread_create(&server->workers[i].thread, NULL, worker_run, &server->workers[i]) !=
            0) {
            server_join(server, i);
            return tr_fail(err, TR_E_NOMEM, "control socket %s: no thread could be started", url);
        }
    }
    return TR_OK;
}

tr_status tr_control_server_listen(tr_control_server *server, const char *url, tr_error *err)
{
    assert(!server->listening);
    tr_status status = server_open_socket(server, err);
    if (status != TR_OK)
        return status;
    status = server_start(server, url, err);
    if (status == TR_OK)
        server->listening = true;
    else
        server_close_socket(server);
    return status;
}

void tr_control_server_close(tr_control_server *server)
{
    if (server == NULL)
        return;
    if (server->listening) {
        server_drain(server);
        server_join(server, TR_CONTROL_AT_ONCE);
        server_close_socket(server);
    }
    free(server);
}
