/* test_control.c - requests and replies between two ends of the control plane.
 *
 * Goal: every way in which the other end can disappoint is a status and a sentence, in time.
 * Method: servers and clients of this process over ipc and tcp; for the death of a server this
 * program starts itself as "--server URL". */
#include "tests/check.h"

#include "core/trace.h"
#include "transport/control.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define SECOND_NS 1000000000ull
#define PATIENCE  (tr_clock_ns() + 60 * SECOND_NS) /* for what must come */

#define CLOSINGS 100

static char folder[64];

/* A URL that nobody else uses: ipc in our own folder. */
static const char *new_url(void)
{
    static char url[128];
    static int number;

    snprintf(url, sizeof(url), "ipc://%s/%d", folder, number++);
    return url;
}

/* -- handlers -- */

static tr_status handle_ping(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    uint64_t number = 0;

    (void)ctx;
    if (!tr_map_u64(request, "number", &number))
        return tr_fail(err, TR_E_INVALID, "number: missing, expected an unsigned integer");
    tr_pack_u64(reply, "number", number + 1);
    *pairs = 1;
    return TR_OK;
}

static tr_status handle_half(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    (void)ctx, (void)request;
    tr_pack_u64(reply, "half", 1);
    *pairs = 1;
    return tr_fail(err, TR_E_INVALID, "half way: found trouble, expected none");
}

static tr_status handle_full(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    (void)ctx, (void)request, (void)reply, (void)pairs;
    return tr_fail(err, TR_E_NOMEM, "7 MiB more than there are");
}

static tr_status handle_liar(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    (void)ctx, (void)request, (void)err;
    tr_pack_u64(reply, "one", 1);
    *pairs = 1000;
    return TR_OK;
}

static tr_status handle_huge(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    uint64_t size = 0;

    (void)ctx, (void)err;
    tr_map_u64(request, "size", &size);
    void *bytes = calloc(1, size);
    tr_pack_bytes(reply, "bytes", bytes, size);
    free(bytes);
    *pairs = 1;
    return TR_OK;
}

/* Holds the request until ctx is set, at most 30 s: a server that does not answer. */
static tr_status handle_wait(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    _Atomic bool *go_on = ctx;
    uint64_t deadline_ns = tr_clock_ns() + 30 * SECOND_NS;

    (void)request, (void)reply, (void)pairs, (void)err;
    while (!atomic_load(go_on) && tr_clock_ns() < deadline_ns)
        usleep(1000);
    return TR_OK;
}

/* Answers after so many microseconds. */
static tr_status handle_soon(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    uint64_t number = 0;

    (void)ctx, (void)reply, (void)pairs, (void)err;
    (void)tr_map_u64(request, "number", &number);
    usleep((useconds_t)number);
    return TR_OK;
}

/* Answers only when TR_CONTROL_AT_ONCE requests are inside at once. */
static tr_status handle_together(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                 uint32_t *pairs, tr_error *err)
{
    (void)request, (void)reply, (void)pairs, (void)err;
    pthread_barrier_wait(ctx);
    return TR_OK;
}

static tr_status handle_exit(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    (void)ctx, (void)request, (void)reply, (void)pairs, (void)err;
    _exit(3);
}

/* -- both ends -- */

static _Atomic bool go_on;
static pthread_barrier_t together;

static tr_control_server *open_server(const char *url)
{
    tr_control_server *server = NULL;
    tr_error err = {0};

    CHECK_STATUS(tr_control_server_open(&server, &err), TR_OK);
    tr_control_server_handle(server, "ping", handle_ping, NULL);
    tr_control_server_handle(server, "half", handle_half, NULL);
    tr_control_server_handle(server, "full", handle_full, NULL);
    tr_control_server_handle(server, "liar", handle_liar, NULL);
    tr_control_server_handle(server, "huge", handle_huge, NULL);
    tr_control_server_handle(server, "wait", handle_wait, &go_on);
    tr_control_server_handle(server, "soon", handle_soon, NULL);
    tr_control_server_handle(server, "together", handle_together, &together);
    tr_status status = tr_control_server_listen(server, url, &err);
    if (status != TR_OK)
        print_error("%s\n", err.text);
    assert_int_equal(status, TR_OK);
    return server;
}

static tr_control_client *open_client(const char *url)
{
    tr_control_client *client = NULL;

    CHECK_STATUS(tr_control_client_open(&client, url, NULL), TR_OK);
    return client;
}

/* One request of a method with one number. */
static tr_status call(tr_control_client *client, const char *method, const char *key,
                      uint64_t value, uint64_t deadline_ns, tr_control_reply *reply, tr_error *err)
{
    msgpack_sbuffer request;
    msgpack_packer pk;

    msgpack_sbuffer_init(&request);
    msgpack_packer_init(&pk, &request, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 2);
    tr_pack_text(&pk, "method", method);
    tr_pack_u64(&pk, key, value);
    tr_status status = tr_control_call(client, &request, deadline_ns, reply, err);
    msgpack_sbuffer_destroy(&request);
    return status;
}

static void check_ping(tr_control_client *client, uint64_t number)
{
    tr_control_reply reply;
    tr_error err = {0};
    uint64_t answer = 0;

    tr_status status = call(client, "ping", "number", number, PATIENCE, &reply, &err);
    if (status != TR_OK)
        print_error("%s\n", err.text);
    assert_int_equal(status, TR_OK);
    assert_true(tr_map_u64(reply.map, "number", &answer));
    assert_true(answer == number + 1);
    tr_control_reply_free(&reply);
}

/* -- tests -- */

/* A listening TCP socket on a free port of 127.0.0.1. */
static int listen_tcp(char *url, size_t size)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    snprintf(url, size, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    return fd;
}

/* A server on a port that was free a moment ago. Another program may have taken it since. */
static tr_control_server *open_tcp_server(char *url, size_t size)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        tr_control_server *server = NULL;
        tr_error err = {0};
        close(listen_tcp(url, size));
        CHECK_STATUS(tr_control_server_open(&server, &err), TR_OK);
        tr_control_server_handle(server, "ping", handle_ping, NULL);
        if (tr_control_server_listen(server, url, &err) == TR_OK)
            return server;
        tr_control_server_close(server);
        print_message("# %s\n", err.text);
    }
    fail_msg("no port stays free");
    return NULL;
}

static void a_request_is_answered_over_ipc_and_tcp(void **state)
{
    (void)state;

    for (int i = 0; i < 2; i++) {
        char url[128];
        snprintf(url, sizeof(url), "%s", new_url());
        tr_control_server *server = i == 0 ? open_server(url) : open_tcp_server(url, sizeof(url));
        tr_control_client *client = open_client(url);
        for (uint64_t k = 0; k < 20; k++)
            check_ping(client, k);
        tr_control_client_close(client);
        tr_control_server_close(server);
    }
}

static void errors_of_a_method_reach_the_caller_as_their_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *method, *key, *named;
        tr_status status;
    } rows[] = {
        {"ping", "nummer", "number: missing, expected an unsigned integer", TR_E_INVALID},
        {"half", "x", "half way: found trouble, expected none", TR_E_INVALID},
        {"full", "x", "7 MiB more than there are", TR_E_NOMEM},
        {"pong", "x", "method: this node has no 'pong'", TR_E_INVALID},
        {"", "x", "method: this node has no ''", TR_E_INVALID},
        {"a_name_that_is_longer_than_any_method_that_this_program_will_ever_have", "x",
         "method: missing, or not a text of at most 63 bytes", TR_E_INVALID},
    };
    const char *url = new_url();
    tr_control_server *server = open_server(url);
    tr_control_client *client = open_client(url);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_control_reply reply;
        tr_error err = {0};
        CHECK_STATUS(call(client, rows[i].method, rows[i].key, 1, PATIENCE, &reply, &err),
                     rows[i].status);
        CHECK_ERR_NAMES(err, rows[i].named);
        assert_null(reply.map);
        tr_control_reply_free(&reply);
    }
    check_ping(client, 1); /* and goes on serving */
    tr_control_client_close(client);
    tr_control_server_close(server);
}

static void bytes_that_are_no_request_get_a_sentence_and_harm_nobody(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *named;
    } rows[] = {
        {"", 0, "msgpack: byte 0 of 0"},
        {"\x01", 1, "the request is not a map"},
        {"\x80", 1, "method: missing"},
        {"\x81\xa6method\x07", 9, "method: missing, or not a text"},
        {"\xdd\x03\x00\x00\x00", 5, "claims more elements than are present"},
        {"\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01", 10, "deeper than 8"},
        {"\xd4\x01\x00", 3, "unknown type"},
        {"GET / HTTP/1.1\r\n\r\n", 18, "msgpack: byte 1 of 18: more than one object"},
    };
    const char *url = new_url();
    tr_control_server *server = open_server(url);
    tr_control_client *client = open_client(url);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        msgpack_sbuffer request;
        tr_control_reply reply;
        tr_error err = {0};
        msgpack_sbuffer_init(&request);
        if (rows[i].size > 0) /* msgpack-c hands its null buffer to memcpy otherwise */
            msgpack_sbuffer_write(&request, rows[i].bytes, rows[i].size);
        CHECK_STATUS(tr_control_call(client, &request, PATIENCE, &reply, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].named);
        tr_control_reply_free(&reply);
        msgpack_sbuffer_destroy(&request);
        check_ping(client, i);
    }
    tr_control_client_close(client);
    tr_control_server_close(server);
}

static void a_malformed_answer_is_refused(void **state)
{
    (void)state;
    const char *url = new_url();
    tr_control_server *server = open_server(url);
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};

    CHECK_STATUS(call(client, "liar", "x", 1, PATIENCE, &reply, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "bad answer: msgpack: byte 0");
    CHECK_ERR_NAMES(err, url);
    tr_control_reply_free(&reply);
    tr_control_client_close(client);
    tr_control_server_close(server);
}

static void an_answer_of_32_mib_arrives_and_one_of_64_is_a_sentence(void **state)
{
    (void)state;
    const char *url = new_url();
    tr_control_server *server = open_server(url);
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};
    const void *bytes = NULL;
    size_t size = 0;

    CHECK_STATUS(call(client, "huge", "size", 32u << 20, PATIENCE, &reply, &err), TR_OK);
    assert_true(tr_map_bytes(reply.map, "bytes", &bytes, &size));
    assert_int_equal(size, 32u << 20);
    tr_control_reply_free(&reply);
    CHECK_STATUS(call(client, "huge", "size", 64u << 20, PATIENCE, &reply, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "the answer has 67108");
    tr_control_reply_free(&reply);
    tr_control_client_close(client);
    tr_control_server_close(server);
}

static void a_silent_server_is_a_timeout_and_its_late_answer_is_not_mixed_up(void **state)
{
    (void)state;
    const char *url = new_url();
    tr_control_server *server = open_server(url);
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};

    check_ping(client, 1); /* connected */
    atomic_store(&go_on, false);
    /* Long enough for the request to leave, also where this thread gets few turns. */
    CHECK_STATUS(call(client, "wait", "x", 1, tr_clock_ns() + SECOND_NS, &reply, &err),
                 TR_E_TIMEOUT);
    CHECK_ERR_NAMES(err, "no answer within the deadline");
    tr_control_reply_free(&reply);
    atomic_store(&go_on, true);
    for (uint64_t k = 0; k < 10; k++)
        check_ping(client, k);
    tr_control_client_close(client);
    tr_control_server_close(server);
}

/* The answer comes at the deadline, so that both end the call, and the client is closed at once. */
static void a_client_may_be_closed_when_a_call_has_just_ended(void **state)
{
    const char *url = new_url();
    tr_control_server *server = open_server(url);
    uint32_t answered = 0;

    (void)state;
    for (uint32_t i = 0; i < CLOSINGS; i++) {
        tr_control_client *client = open_client(url);
        tr_control_reply reply;
        check_ping(client, i);
        answered += call(client, "soon", "number", 1500 + i % 50 * 50, tr_clock_ns() + 2000000,
                         &reply, NULL) == TR_OK;
        tr_control_reply_free(&reply);
        tr_control_client_close(client);
    }
    print_message("# %u of %d were answered in time\n", answered, CLOSINGS);
    tr_control_server_close(server);
}

static void *forget_soon(void *there)
{
    usleep(100000);
    atomic_store((_Atomic bool *)there, false);
    return NULL;
}

static void a_call_to_a_node_that_is_given_up_ends_at_once(void **state)
{
    (void)state;
    const char *url = new_url();
    tr_control_server *server = open_server(url);
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};
    _Atomic bool there = true;
    pthread_t thread;

    tr_control_client_while(client, &there);
    check_ping(client, 1);
    atomic_store(&go_on, false);
    assert_int_equal(pthread_create(&thread, NULL, forget_soon, &there), 0);
    tr_status status = call(client, "wait", "x", 1, UINT64_MAX, &reply, &err);
    pthread_join(thread, NULL);
    atomic_store(&go_on, true);
    CHECK_STATUS(status, TR_E_PEER);
    CHECK_ERR_NAMES(err, "the node is gone");
    tr_control_reply_free(&reply);
    CHECK_STATUS(call(client, "ping", "number", 1, UINT64_MAX, &reply, &err), TR_E_PEER);
    tr_control_reply_free(&reply);
    atomic_store(&there, true); /* it has come back */
    for (uint64_t k = 0; k < 10; k++)
        check_ping(client, k);
    tr_control_client_close(client);
    tr_control_server_close(server);
}

static void a_deadline_in_the_past_asks_nothing(void **state)
{
    (void)state;
    const char *url = new_url();
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};

    CHECK_STATUS(call(client, "ping", "number", 1, tr_clock_ns() - 1, &reply, &err), TR_E_TIMEOUT);
    tr_control_reply_free(&reply);
    tr_control_client_close(client);
}

static void nobody_at_the_address_is_a_peer_error_at_the_deadline(void **state)
{
    (void)state;
    const char *url = new_url();
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};

    CHECK_STATUS(call(client, "ping", "number", 1, tr_clock_ns() + SECOND_NS / 10, &reply, &err),
                 TR_E_PEER);
    CHECK_ERR_NAMES(err, "nobody answers there");
    CHECK_ERR_NAMES(err, url);
    tr_control_reply_free(&reply);
    tr_control_client_close(client);
}

static void something_else_on_the_port_is_a_peer_error(void **state)
{
    (void)state;
    char url[64];
    int fd = listen_tcp(url, sizeof(url)); /* accepts in the kernel, never says a word */
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};

    CHECK_STATUS(call(client, "ping", "number", 1, tr_clock_ns() + SECOND_NS / 5, &reply, &err),
                 TR_E_PEER);
    tr_control_reply_free(&reply);
    tr_control_client_close(client);
    close(fd);
}

static void a_server_that_goes_and_comes_back_is_found_again(void **state)
{
    (void)state;
    char url[128];
    snprintf(url, sizeof(url), "%s", new_url());
    tr_control_server *server = open_server(url);
    tr_control_client *client = open_client(url);
    tr_control_reply reply;
    tr_error err = {0};

    check_ping(client, 1);
    tr_control_server_close(server);
    /* Long enough for NNG's threads to see that the connection is gone. */
    CHECK_STATUS(call(client, "ping", "number", 1, tr_clock_ns() + 2 * SECOND_NS, &reply, &err),
                 TR_E_PEER);
    tr_control_reply_free(&reply);
    server = open_server(url);
    check_ping(client, 2);
    tr_control_client_close(client);
    tr_control_server_close(server);
}

static void a_server_that_dies_during_a_request_is_a_peer_error_before_the_deadline(void **state)
{
    (void)state;
    char url[128];
    snprintf(url, sizeof(url), "%s", new_url());
    char *argv[] = {"test_control", "--server", url, NULL};
    pid_t child = 0;
    int code = 0;
    tr_control_reply reply;
    tr_error err = {0};

    assert_int_equal(posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    tr_control_client *client = open_client(url);
    check_ping(client, 1);
    uint64_t deadline_ns = PATIENCE;
    tr_status status = call(client, "exit", "x", 1, deadline_ns, &reply, &err);
    assert_true(tr_clock_ns() < deadline_ns);
    tr_control_reply_free(&reply);
    tr_control_client_close(client);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 3);
    unlink(url + strlen("ipc://")); /* a killed server leaves its socket */
    assert_int_equal(status, TR_E_PEER);
    CHECK_ERR_NAMES(err, "waiting for the answer");
}

static void an_address_in_use_or_a_bad_one_is_named(void **state)
{
    (void)state;
    char url[64];
    int fd = listen_tcp(url, sizeof(url));
    const char *bad[] = {url, "7701", "tcp://nowhere.invalid:7701", "ipc:///nonexistent/dir/sock",
                         "carrier-pigeon://home"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tr_control_server *server = NULL;
        tr_error err = {0};
        CHECK_STATUS(tr_control_server_open(&server, &err), TR_OK);
        CHECK_STATUS(tr_control_server_listen(server, bad[i], &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, bad[i]);
        tr_control_server_close(server);
    }
    close(fd);

    tr_control_client *client = NULL;
    tr_error err = {0};
    CHECK_STATUS(tr_control_client_open(&client, "carrier-pigeon://home", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "carrier-pigeon://home");
}

/* A checking thread may not leave by longjmp, so it records. */
typedef struct {
    char url[128];
    tr_status status;
} caller;

static void *caller_run(void *arg)
{
    caller *c = arg;
    tr_control_client *client = NULL;
    tr_control_reply reply;

    c->status = tr_control_client_open(&client, c->url, NULL);
    if (c->status != TR_OK)
        return NULL;
    c->status = call(client, "together", "x", 1, PATIENCE, &reply, NULL);
    tr_control_reply_free(&reply);
    tr_control_client_close(client);
    return NULL;
}

static void so_many_requests_are_handled_at_once(void **state)
{
    (void)state;
    const char *url = new_url();
    pthread_t threads[TR_CONTROL_AT_ONCE];
    caller callers[TR_CONTROL_AT_ONCE];

    pthread_barrier_init(&together, NULL, TR_CONTROL_AT_ONCE);
    tr_control_server *server = open_server(url);
    for (int i = 0; i < TR_CONTROL_AT_ONCE; i++) {
        snprintf(callers[i].url, sizeof(callers[i].url), "%s", url);
        assert_int_equal(pthread_create(&threads[i], NULL, caller_run, &callers[i]), 0);
    }
    for (int i = 0; i < TR_CONTROL_AT_ONCE; i++) {
        pthread_join(threads[i], NULL);
        CHECK_STATUS(callers[i].status, TR_OK);
    }
    tr_control_server_close(server);
    pthread_barrier_destroy(&together);
}

static void a_server_that_never_listened_closes(void **state)
{
    (void)state;
    tr_control_server *server = NULL;

    CHECK_STATUS(tr_control_server_open(&server, NULL), TR_OK);
    tr_control_server_close(server);
    tr_control_server_close(NULL);
    tr_control_client_close(NULL);
}

/* The other process: serves until it is asked to exit, at most two minutes. */
static int serve(const char *url)
{
    tr_control_server *server = NULL;

    alarm(120);
    if (tr_control_server_open(&server, NULL) != TR_OK)
        return 1;
    tr_control_server_handle(server, "ping", handle_ping, NULL);
    tr_control_server_handle(server, "exit", handle_exit, NULL);
    if (tr_control_server_listen(server, url, NULL) != TR_OK)
        return 1;
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_answered_over_ipc_and_tcp),
        cmocka_unit_test(errors_of_a_method_reach_the_caller_as_their_sentence),
        cmocka_unit_test(bytes_that_are_no_request_get_a_sentence_and_harm_nobody),
        cmocka_unit_test(a_malformed_answer_is_refused),
        cmocka_unit_test(an_answer_of_32_mib_arrives_and_one_of_64_is_a_sentence),
        cmocka_unit_test(a_silent_server_is_a_timeout_and_its_late_answer_is_not_mixed_up),
        cmocka_unit_test(a_client_may_be_closed_when_a_call_has_just_ended),
        cmocka_unit_test(a_call_to_a_node_that_is_given_up_ends_at_once),
        cmocka_unit_test(a_deadline_in_the_past_asks_nothing),
        cmocka_unit_test(nobody_at_the_address_is_a_peer_error_at_the_deadline),
        cmocka_unit_test(something_else_on_the_port_is_a_peer_error),
        cmocka_unit_test(a_server_that_goes_and_comes_back_is_found_again),
        cmocka_unit_test(a_server_that_dies_during_a_request_is_a_peer_error_before_the_deadline),
        cmocka_unit_test(an_address_in_use_or_a_bad_one_is_named),
        cmocka_unit_test(so_many_requests_are_handled_at_once),
        cmocka_unit_test(a_server_that_never_listened_closes),
    };

    if (argc == 3 && strcmp(argv[1], "--server") == 0)
        return serve(argv[2]);
    snprintf(folder, sizeof(folder), "/tmp/troupe-control-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder); /* empty, unless a test failed */
    return failed;
}
