/* server.c - owns the loop, the listener and the list of connections.
 *
 * Other threads reach the loop through two async handles: wake (the cluster has events) and stop.
 */
#include "api/server.h"

#include "api/routes.h"

#include <assert.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#define CONNECTIONS_MAX_DEFAULT  128
#define BODY_SIZE_MAX_DEFAULT    (8u << 20)
#define BODIES_SIZE_MAX_DEFAULT  (64u << 20)
#define IDLE_TIMEOUT_MS_DEFAULT  75000
#define READ_TIMEOUT_MS_DEFAULT  60000
#define WRITE_TIMEOUT_MS_DEFAULT 30000
#define STALL_TIMEOUT_MS_DEFAULT 600000

/* Connections that the kernel keeps while the loop is busy. */
#define BACKLOG 128

/* Deadlines are looked at this often: their precision. */
#define CHECK_PERIOD_MS 100

/* After this time a stopping server closes what has not closed by itself. */
#define STOP_TIMEOUT_MS 1500

/* Events that are handled before the loop looks at its sockets again. Few enough that a burst of
 * the largest usual events (twenty logprobs, 5 KiB) fits a connection's output. */
#define EVENTS_PER_TURN 16

/* Events that are still handled when the server stops: more than a cluster's port holds. */
#define EVENTS_AT_STOP 8192

struct tr_server {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_async_t wake;
    uv_async_t stop;
    uv_timer_t timer;
    pthread_t thread;
    bool running;
    uint16_t port;
    uint32_t connections_max;

    tr_api_model model;
    tr_exchanges exchanges;
    tr_server_metrics metrics;
    tr_routes routes;
    tr_connection_config connection_config;
    tr_connection *connections; /* list */
    uint32_t connections_count;
    size_t bodies_size;  /* bytes of bodies of requests that are held */
    uint64_t stop_at_ms; /* while routes.stopping */
};

/* -- callbacks of connections -- */

static void server_on_request(void *ctx, tr_connection *c, tr_http_request *r)
{
    tr_server *s = ctx;
    tr_routes_request(&s->routes, c, r);
}

static void server_on_gone(void *ctx, tr_connection *c)
{
    (void)ctx;
    tr_exchange *x = tr_connection_user(c);
    if (x != NULL)
        tr_exchange_gone(x);
}

static void server_on_closed(void *ctx, tr_connection *c)
{
    tr_server *s = ctx;
    tr_connection **link = &s->connections;
    while (*link != c)
        link = tr_connection_link(*link);
    *link = *tr_connection_link(c);
    s->connections_count--;
    tr_gauge_set(s->metrics.connections, s->connections_count);
}

/* -- callbacks of the loop -- */

static void server_on_refused_closed(uv_handle_t *handle)
{
    free(handle);
}

/* Too many connections: a word and a close. Whether the word arrives is not our problem. */
static void server_refuse_connection(tr_server *s)
{
    static char answer[] = "HTTP/1.1 503 Service Unavailable\r\n"
                           "Content-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n";
    uv_tcp_t *tcp = malloc(sizeof(*tcp));
    if (tcp == NULL)
        return; /* libuv holds the connection and offers it again with the next one */
    if (uv_tcp_init(&s->loop, tcp) != 0) {
        free(tcp);
        return;
    }
    uv_buf_t buf = uv_buf_init(answer, sizeof(answer) - 1);
    if (uv_accept((uv_stream_t *)&s->listener, (uv_stream_t *)tcp) == 0)
        (void)uv_try_write((uv_stream_t *)tcp, &buf, 1);
    uv_close((uv_handle_t *)tcp, server_on_refused_closed);
}

static void server_on_connection(uv_stream_t *listener, int status)
{
    tr_server *s = listener->data;
    if (status != 0)
        return; /* out of descriptors, for example; the next one may fare better */
    if (s->connections_count >= s->connections_max || s->routes.stopping) {
        server_refuse_connection(s);
        return;
    }
    tr_connection *c;
    if (tr_connection_accept(&c, &s->connection_config, listener) != TR_OK)
        return;
    *tr_connection_link(c) = s->connections;
    s->connections = c;
    s->connections_count++;
    tr_gauge_set(s->metrics.connections, s->connections_count);
}

static void server_on_wake(uv_async_t *wake)
{
    tr_server *s = wake->data;
    if (tr_exchanges_poll(&s->exchanges, EVENTS_PER_TURN))
        uv_async_send(&s->wake); /* there may be more, but sockets first */
}

static void server_on_timer(uv_timer_t *timer)
{
    tr_server *s = timer->data;
    uint64_t now_ms = uv_now(&s->loop);
    tr_exchanges_check(&s->exchanges, now_ms);
    for (tr_connection *c = s->connections; c != NULL; c = *tr_connection_link(c))
        tr_connection_check(c, now_ms); /* closes at most; memory is freed by a later callback */
    if (!s->routes.stopping)
        return;
    if (now_ms >= s->stop_at_ms) {
        for (tr_connection *c = s->connections; c != NULL; c = *tr_connection_link(c))
            tr_connection_abort(c);
    }
    if (s->connections == NULL && s->exchanges.count == 0)
        uv_stop(&s->loop);
}

static void server_on_stop(uv_async_t *stop)
{
    tr_server *s = stop->data;
    if (s->routes.stopping)
        return;
    s->routes.stopping = true;
    s->stop_at_ms = uv_now(&s->loop) + STOP_TIMEOUT_MS;
    uv_close((uv_handle_t *)&s->listener, NULL);
    for (tr_connection *c = s->connections; c != NULL; c = *tr_connection_link(c))
        tr_connection_finish(c);

    /* What the cluster has said by now about its requests goes out first, and if it is the
     * cluster that has ended, its reason is the better one. */
    (void)tr_exchanges_poll(&s->exchanges, EVENTS_AT_STOP);
    tr_health health;
    char why[300] = "The server is stopping.";
    s->routes.health(s->routes.health_ctx, &health);
    if (!tr_health_takes_requests(health.state))
        snprintf(why, sizeof(why), "The server is stopping: %s.", health.text);
    tr_exchanges_abort(&s->exchanges, why);
}

/* Called by a thread of the runtime. */
static void server_wake(void *ctx)
{
    tr_server *s = ctx;
    uv_async_send(&s->wake);
}

static void *server_run(void *arg)
{
    tr_server *s = arg;
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* -- opening -- */

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value != 0 ? value : fallback;
}

static void server_set_config(tr_server *s, const tr_server_config *config)
{
    s->connections_max = or_default(config->connections_max, CONNECTIONS_MAX_DEFAULT);
    s->model = (tr_api_model){
        .name = config->model_name,
        .tokenizer = config->tokenizer,
        .chat_template = config->chat_template,
        .context_max = config->context_max,
        .default_temperature = config->default_temperature,
        .default_top_p = config->default_top_p,
        .stop_tokens_count = config->stop_tokens_count,
    };
    memcpy(s->model.stop_tokens, config->stop_tokens,
           config->stop_tokens_count * sizeof(*config->stop_tokens));
    tr_sentinels_find(&s->model.sentinels, config->tokenizer);

    s->exchanges = (tr_exchanges){
        .loop = &s->loop,
        .model = &s->model,
        .bodies_size = &s->bodies_size,
        .metrics = &s->metrics,
        .stall_timeout_ms = or_default(config->stall_timeout_ms, STALL_TIMEOUT_MS_DEFAULT),
    };
    /* Ids of answers need not be secret, but should differ between two runs. */
    if (getrandom(&s->exchanges.serial, sizeof(s->exchanges.serial), GRND_NONBLOCK) < 0)
        s->exchanges.serial = (uint64_t)time(NULL) << 32;

    s->routes = (tr_routes){
        .exchanges = &s->exchanges,
        .health = config->health,
        .health_ctx = config->health_ctx,
        .started = time(NULL),
    };
    s->connection_config = (tr_connection_config){
        .loop = &s->loop,
        .body_size_max = or_default(config->body_size_max, BODY_SIZE_MAX_DEFAULT),
        .bodies_size_max = or_default(config->bodies_size_max, BODIES_SIZE_MAX_DEFAULT),
        .bodies_size = &s->bodies_size,
        .idle_timeout_ms = or_default(config->idle_timeout_ms, IDLE_TIMEOUT_MS_DEFAULT),
        .read_timeout_ms = or_default(config->read_timeout_ms, READ_TIMEOUT_MS_DEFAULT),
        .write_timeout_ms = or_default(config->write_timeout_ms, WRITE_TIMEOUT_MS_DEFAULT),
        .ctx = s,
        .request = server_on_request,
        .gone = server_on_gone,
        .closed = server_on_closed,
    };
}

static tr_status server_init_handles(tr_server *s, tr_error *err)
{
    int status = uv_tcp_init(&s->loop, &s->listener);
    if (status == 0)
        status = uv_timer_init(&s->loop, &s->timer);
    if (status == 0)
        status = uv_async_init(&s->loop, &s->wake, server_on_wake);
    if (status == 0)
        status = uv_async_init(&s->loop, &s->stop, server_on_stop);
    if (status != 0)
        return tr_fail(err, TR_E_NOMEM, "HTTP server: %s", uv_strerror(status));
    s->listener.data = s->timer.data = s->wake.data = s->stop.data = s;
    return TR_OK;
}

static tr_status server_listen(tr_server *s, const tr_server_config *config, tr_error *err)
{
    char service[8];
    snprintf(service, sizeof(service), "%u", config->port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *addresses;
    int found = getaddrinfo(config->host, service, &hints, &addresses);
    if (found != 0)
        return tr_fail(err, TR_E_INVALID,
                       "api host \"%.100s\": %s, expected an address of this "
                       "machine",
                       config->host, gai_strerror(found));

    int status = uv_tcp_bind(&s->listener, addresses->ai_addr, 0);
    freeaddrinfo(addresses);
    if (status == 0)
        status = uv_listen((uv_stream_t *)&s->listener, BACKLOG, server_on_connection);
    struct sockaddr_storage bound;
    int bound_size = sizeof(bound);
    if (status == 0)
        status = uv_tcp_getsockname(&s->listener, (struct sockaddr *)&bound, &bound_size);
    if (status == UV_EADDRINUSE)
        return tr_fail(
            err, TR_E_INVALID,
            "api port %u of %.100s is in use by another program; choose another api.port",
            config->port, config->host);
    if (status != 0)
        return tr_fail(err, TR_E_INVALID, "cannot listen on %.100s port %u: %s", config->host,
                       config->port, uv_strerror(status));
    s->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    return TR_OK;
}

static void server_close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Ends the loop of a server that does not run. The handles live until here, because the cluster
 * may call server_wake until it is stopped, and that is after the server. */
static void server_end_loop(tr_server *s)
{
    uv_walk(&s->loop, server_close_handle, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    int status = uv_loop_close(&s->loop);
    assert(status == 0);
    (void)status;
}

uint64_t tr_server_bytes(void)
{
    /* Bodies are compared with their limit when one of them has grown already. */
    return sizeof(tr_server) + CONNECTIONS_MAX_DEFAULT * tr_connection_bytes() +
           BODIES_SIZE_MAX_DEFAULT + BODY_SIZE_MAX_DEFAULT;
}

tr_status tr_server_open(tr_server **out, const tr_server_config *config, tr_error *err)
{
    assert(config->stop_tokens_count <= TR_STOP_TOKENS_MAX);
    tr_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for the HTTP server");
    json_object_seed(0); /* before several threads read bodies */
    server_set_config(s, config);

    int status = uv_loop_init(&s->loop);
    if (status != 0) {
        free(s);
        return tr_fail(err, TR_E_NOMEM, "HTTP server: %s", uv_strerror(status));
    }
    tr_status result = server_init_handles(s, err);
    if (result == TR_OK)
        result = server_listen(s, config, err);
    if (result == TR_OK)
        result = tr_client_open(&s->exchanges.client, config->cluster, server_wake, s, err);
    if (result == TR_OK) /* after the client, which is a port of the runtime */
        result = tr_server_metrics_open(&s->metrics, config->cluster, err);
    if (result != TR_OK) {
        server_end_loop(s);
        free(s);
        return result;
    }
    *out = s;
    return TR_OK;
}

tr_status tr_server_start(tr_server *s, tr_error *err)
{
    assert(!s->running);
    uv_timer_start(&s->timer, server_on_timer, CHECK_PERIOD_MS, CHECK_PERIOD_MS);

    /* Signals are for the main thread; and a write to a closed socket is an error, not a signal. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&s->thread, NULL, server_run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0)
        return tr_fail(err, TR_E_NOMEM, "HTTP server: no thread: %s", strerror(status));
    s->running = true;
    return TR_OK;
}

uint16_t tr_server_port(const tr_server *s)
{
    return s->port;
}

void tr_server_stop(tr_server *s)
{
    if (!s->running)
        return;
    uv_async_send(&s->stop);
    pthread_join(s->thread, NULL);
    s->running = false;
}

void tr_server_close(tr_server *s)
{
    if (s == NULL)
        return;
    assert(!s->running);
    server_end_loop(s);
    tr_server_metrics_close(&s->metrics);
    free(s);
}
