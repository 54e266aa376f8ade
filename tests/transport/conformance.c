/* conformance.c - what every transport must do, run for each of them by name.
 *
 * Goal: the contract of transport.h. Method: two or three nodes in this process, driven by the main
 * thread, so that each step is in a known order; two threads where throughput is the point; a
 * second process where a node must die. A new transport is tested by a row in `variants`. */
#include "tests/check.h"
#include "tests/transport/node.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    const char *name;
    const char *transport;
    const char *options; /* "%d" becomes a number that differs by process and node */
    bool between_processes;
} variant;

static const variant variants[] = {
    {"loop", "loop", "cluster=conformance", false},
#ifdef TR_HAVE_UCX
    {"ucx", "ucx", NULL, true},
    {"ucx-tcp", "ucx", "tls=tcp,devices=lo", true},
#endif
    {"nng", "nng", NULL, true},
    {"nng-ipc", "nng", "listen=ipc:///tmp/troupe-conformance-%d", true},
};

#define WRITER_BYTES 32000 /* takes longer to copy than all else that is done for a message */
#define WRITER_KILLS 12

static const variant *chosen;
static const tr_transport_ops *ops;
static char *own_path;
static node nodes[3];

static const char *options_of(uint32_t node_index)
{
    static char text[3][128];

    if (chosen->options == NULL)
        return NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text[node_index], sizeof(text[0]), chosen->options,
             (int)getpid() * 4 + (int)node_index);
#pragma GCC diagnostic pop
    return text[node_index];
}

/* Opens node_index with room for rows and for large payloads. */
static node *open_node(uint32_t node_index, uint32_t nodes_count, uint32_t small_count,
                       uint32_t large_count)
{
    tr_error err = {0};
    node *n = &nodes[node_index];

    tr_status status = node_open(n, ops, options_of(node_index), node_index, nodes_count,
                                 small_count, large_count, &err);
    if (status != TR_OK)
        print_error("%s\n", err.text);
    assert_int_equal(status, TR_OK);
    return n;
}

static void connect_nodes(node *from, node *to)
{
    tr_error err = {0};
    tr_status status = node_connect(from, to, &err);

    if (status != TR_OK)
        print_error("%s\n", err.text);
    assert_int_equal(status, TR_OK);
}

/* Nodes 0 and 1, connected both ways. */
static void open_pair(void)
{
    open_node(0, 2, 1024, 8);
    open_node(1, 2, 1024, 8);
    connect_nodes(&nodes[0], &nodes[1]);
    connect_nodes(&nodes[1], &nodes[0]);
}

static int forget_nodes(void **state)
{
    (void)state;
    memset(nodes, 0, sizeof(nodes));
    return 0;
}

/* After every test, also a failed one: closing returns each buffer to its pool. */
static int buffers_come_back(void **state)
{
    bool complete = true;

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        complete &= node_finish(&nodes[i]);
    return complete ? 0 : -1;
}

static void every_size_arrives_unchanged(void **state)
{
    static const uint32_t sizes[] = {0, 1, 63, 64, 65, 4096, 8192, 65536, 65537, 1u << 20};

    (void)state;
    open_pair();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (uint32_t from = 0; from < 2; from++) {
            node *n = &nodes[from];
            node *other = &nodes[1 - from];

            CHECK_STATUS(node_send_patiently(n, other, sizes[i]), TR_OK);
            assert_true(node_wait(n, other, &other->delivered_count, i + 1));
            assert_false(other->broken);
            assert_int_equal(other->last.payload_size, sizes[i]);
            assert_int_equal(other->last.kind, TR_MSG_PING);
            assert_int_equal(other->last.epoch, 5);
            assert_int_equal(other->last.trace_id, 77);
            assert_int_equal(other->last.argument, 9);
            assert_true(other->last.source == tr_actor_id_make(TR_ACTOR_TEST, from + 1));
        }
    }
    assert_true(strlen(ops->path(nodes[0].transport, 1)) > 0);
    print_message("# path: %s\n", ops->path(nodes[0].transport, 1));
}

/* Large and small sizes alternate, so that two protocols of one library would overtake each other.
 */
static void mixed_sizes_arrive_in_order(void **state)
{
    static const uint32_t sizes[] = {300000, 8, 65536, 0, 100000, 4096, 70000, 1};
    const uint64_t count = 400;

    (void)state;
    open_pair();
    for (uint64_t i = 0; i < count; i++)
        CHECK_STATUS(node_send_patiently(&nodes[0], &nodes[1], sizes[i % 8]), TR_OK);
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[1].delivered_count, count));
    assert_false(nodes[1].broken);
}

#define ORDER_COUNT 100000

/* What one thread of the order test does; the main thread looks at the node afterwards. */
static _Atomic uint32_t order_finished;

static void *order_thread(void *arg)
{
    node *n = arg;
    uint64_t deadline_ns = tr_clock_ns() + 5 * NODE_PATIENCE_NS;
    bool counted = false;

    while (atomic_load(&order_finished) < 2 && tr_clock_ns() < deadline_ns) {
        uint32_t events = ops->poll(n->transport);

        for (uint32_t i = 0; i < 16 && n->sent_count < ORDER_COUNT; i++) {
            if (node_send(n, 64) != TR_OK)
                break;
            events++;
        }
        if (!counted && n->sent_count == ORDER_COUNT && n->delivered_count == ORDER_COUNT) {
            counted = true;
            atomic_fetch_add(&order_finished, 1);
        }
        if (events == 0)
            sched_yield();
    }
    return NULL;
}

static void many_small_messages_keep_their_order_both_ways(void **state)
{
    pthread_t threads[2];

    (void)state;
    open_pair();
    atomic_store(&order_finished, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, order_thread, &nodes[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(nodes[i].sent_count, ORDER_COUNT);
        assert_int_equal(nodes[i].delivered_count, ORDER_COUNT);
        assert_false(nodes[i].broken);
        assert_int_equal(nodes[i].downs_count, 0);
    }
}

#define BACK_PRESSURE_TRIES 1000

static void back_pressure(uint32_t size)
{
    const uint32_t room = size > 4096 ? 4 : 12; /* buffers that fit size at the receiver */
    uint32_t small = size > 4096 ? 1 : 8;
    uint64_t taken_after_full;

    open_node(0, 2, 1024, 300);
    open_node(1, 2, small, 4);
    connect_nodes(&nodes[0], &nodes[1]);
    connect_nodes(&nodes[1], &nodes[0]);

    nodes[1].hold = true;
    assert_true(nodes[1].delivered_count == 0);
    /* The receiver takes what it has room for, the sender fills what lies between, then waits: many
     * tries in a row are refused, however little time this thread got for them. */
    uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;
    uint64_t last_progress_ns = tr_clock_ns();
    uint32_t refused = 0;
    while (refused < BACK_PRESSURE_TRIES || nodes[1].delivered_count < room ||
           tr_clock_ns() < last_progress_ns + NODE_SECOND_NS / 4) {
        tr_status status = node_send(&nodes[0], size);
        assert_true(status == TR_OK || status == TR_E_AGAIN);
        refused = status == TR_OK ? 0 : refused + 1;
        if (status == TR_OK)
            last_progress_ns = tr_clock_ns();
        ops->poll(nodes[0].transport);
        ops->poll(nodes[1].transport);
        assert_true(nodes[0].sent_count < 100000);
        assert_true(tr_clock_ns() < deadline_ns);
    }
    assert_int_equal(nodes[1].delivered_count, room);
    taken_after_full = nodes[0].sent_count;

    /* Room again: everything that was taken arrives, in order, and more can be sent. */
    nodes[1].hold = false;
    node_release_held(&nodes[1]);
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[1].delivered_count, taken_after_full));
    for (int i = 0; i < 10; i++)
        CHECK_STATUS(node_send_patiently(&nodes[0], &nodes[1], size), TR_OK);
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[1].delivered_count, taken_after_full + 10));
    assert_false(nodes[1].broken);
    assert_int_equal(nodes[0].downs_count + nodes[1].downs_count, 0);
}

static void a_full_receiver_stops_the_sender_and_rows_wait(void **state)
{
    (void)state;
    back_pressure(4096);
}

static void a_full_receiver_stops_the_sender_and_large_payloads_wait(void **state)
{
    (void)state;
    back_pressure(200000);
}

/* Each side sends until nothing more is taken and waits for the other: all of it must still leave.
 */
static void two_full_nodes_do_not_lock_each_other(void **state)
{
    (void)state;
    open_pair();
    for (int round = 0; round < 20; round++) {
        for (uint32_t from = 0; from < 2; from++)
            for (int i = 0; i < 2000 && node_send(&nodes[from], 4096) == TR_OK; i++)
                ;
        ops->poll(nodes[0].transport);
        ops->poll(nodes[1].transport);
    }
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[0].delivered_count, nodes[1].sent_count));
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[1].delivered_count, nodes[0].sent_count));
    assert_true(nodes[0].sent_count > 16);
    assert_false(nodes[0].broken || nodes[1].broken);
}

static void a_node_may_send_before_its_peer_has_connected_back(void **state)
{
    (void)state;
    open_node(0, 2, 64, 2);
    open_node(1, 2, 64, 2);
    connect_nodes(&nodes[0], &nodes[1]);
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(node_send_patiently(&nodes[0], NULL, 4096), TR_OK);
    CHECK_STATUS(node_send_patiently(&nodes[0], NULL, 500000), TR_OK);
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[1].delivered_count, 4));

    connect_nodes(&nodes[1], &nodes[0]);
    CHECK_STATUS(node_send_patiently(&nodes[1], &nodes[0], 100), TR_OK);
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[0].delivered_count, 1));
    assert_false(nodes[0].broken || nodes[1].broken);
}

static void the_source_node_is_told_apart(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        open_node(i, 3, 64, 2);
    for (uint32_t from = 0; from < 3; from++)
        for (uint32_t to = 0; to < 3; to++)
            if (from != to)
                connect_nodes(&nodes[from], &nodes[to]);
    nodes[0].peer = 2;
    nodes[1].peer = 2;
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(node_send_patiently(&nodes[0], &nodes[2], 10), TR_OK);
    for (int i = 0; i < 7; i++)
        CHECK_STATUS(node_send_patiently(&nodes[1], &nodes[2], 10), TR_OK);
    assert_true(node_wait(&nodes[2], &nodes[0], &nodes[2].delivered_from[0], 5));
    assert_true(node_wait(&nodes[2], &nodes[1], &nodes[2].delivered_from[1], 7));
    assert_false(nodes[2].broken);
}

/* Also: what it sent before it closed arrives, peer_down comes once, sends then say TR_E_PEER. */
static void a_peer_that_closes_is_reported_once(void **state)
{
    (void)state;
    open_pair();
    for (int i = 0; i < 20; i++)
        CHECK_STATUS(node_send_patiently(&nodes[1], NULL, 4096), TR_OK);
    assert_true(node_wait(&nodes[0], &nodes[1], &nodes[0].delivered_count, 20));

    uint64_t begin_ns = tr_clock_ns();
    node_close(&nodes[1]);
    assert_true(node_wait_down(&nodes[0]));
    print_message("# %s: \"%s\" after %.3f s\n", chosen->name, nodes[0].down_reason,
                  (double)(tr_clock_ns() - begin_ns) * 1e-9);
    assert_int_equal(nodes[0].down_node, 1);

    CHECK_STATUS(node_send(&nodes[0], 4096), TR_E_PEER);
    CHECK_STATUS(node_send(&nodes[0], 0), TR_E_PEER);
    for (int i = 0; i < 100; i++)
        ops->poll(nodes[0].transport);
    assert_int_equal(nodes[0].downs_count, 1);
    assert_false(nodes[0].broken);
}

/* Node 1 in its next life, and both meet again. What it and node 0 have seen begins anew. */
static void meet_again(void)
{
    ops->forget(nodes[0].transport, 1);
    nodes[0].sent_count = nodes[0].delivered_count = 0;
    nodes[0].delivered_from[1] = 0;
    nodes[0].downs_count = 0;
    open_node(1, 2, 1024, 8);
    connect_nodes(&nodes[0], &nodes[1]);
    connect_nodes(&nodes[1], &nodes[0]);
}

static void exchange(uint64_t rounds)
{
    static const uint32_t sizes[] = {300000, 8, 65536, 0};

    for (uint64_t i = 0; i < rounds; i++)
        for (uint32_t from = 0; from < 2; from++)
            CHECK_STATUS(node_send_patiently(&nodes[from], &nodes[1 - from], sizes[i % 4]), TR_OK);
    for (uint32_t to = 0; to < 2; to++) {
        assert_true(node_wait(&nodes[to], &nodes[1 - to], &nodes[to].delivered_count, rounds));
        assert_int_equal(nodes[to].delivered_count, rounds);
        assert_false(nodes[to].broken);
    }
}

static void a_peer_that_closed_comes_back(void **state)
{
    (void)state;
    open_pair();
    for (int life = 0; life < 3; life++) {
        exchange(12);
        assert_true(node_finish(&nodes[1]));
        assert_true(node_wait_down(&nodes[0]));
        assert_int_equal(nodes[0].downs_count, 1);
        meet_again();
    }
    exchange(12);
    assert_int_equal(nodes[0].downs_count, 0);
}

/* It hung with messages of both on their way, and was given up before the transport knew. */
static void a_peer_is_forgotten_while_it_is_connected(void **state)
{
    (void)state;
    open_pair();
    exchange(4);
    for (int i = 0; i < 30; i++) {
        (void)node_send(&nodes[0], i % 8 == 0 ? 500000 : 4096); /* some may find no room */
        (void)node_send(&nodes[1], i % 8 == 0 ? 500000 : 4096);
    }
    for (int i = 0; i < 20; i++)
        ops->poll(nodes[0].transport);
    ops->forget(nodes[0].transport, 1);
    uint64_t before = nodes[0].delivered_count;
    for (int i = 0; i < 200; i++) {
        ops->poll(nodes[0].transport);
        ops->poll(nodes[1].transport);
    }
    assert_int_equal(nodes[0].delivered_count, before);
    assert_true(node_finish(&nodes[1]));
    meet_again();
    exchange(12);
    assert_int_equal(nodes[0].downs_count, 0);
}

static void *close_thread(void *arg)
{
    node_close(arg);
    return NULL;
}

static void what_was_taken_before_close_arrives(void **state)
{
    pthread_t thread;

    (void)state;
    open_pair();
    for (int i = 0; i < 40; i++)
        CHECK_STATUS(node_send_patiently(&nodes[1], &nodes[0], i == 20 ? 300000 : 4096), TR_OK);
    assert_int_equal(pthread_create(&thread, NULL, close_thread, &nodes[1]), 0);
    bool down = node_wait_down(&nodes[0]);
    pthread_join(thread, NULL);
    assert_true(down);
    assert_int_equal(nodes[0].delivered_count, 40);
    assert_false(nodes[0].broken);
}

#define TEST_TARGET (((tr_actor_id)TR_ACTOR_TEST << 48) | 2)

static void send_raw(tr_msg_header header)
{
    tr_msg msg = {.header = header};

    msg.header.source = tr_actor_id_make(TR_ACTOR_TEST, 1);
    CHECK_STATUS(ops->send(nodes[0].transport, 1, &msg), TR_OK);
}

static void a_malformed_header_ends_the_connection_and_is_not_delivered(void **state)
{
    static const struct {
        tr_msg_header header;
        const char *field;
    } cases[] = {
        {{.kind = TR_MSG_PING, .target = TEST_TARGET, .flags = 4}, "flags"},
        {{.kind = 9999, .target = TEST_TARGET}, "kind"},
        {{.kind = TR_MSG_PING, .target = 12}, "target"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_pair();
        CHECK_STATUS(node_send_patiently(&nodes[0], &nodes[1], 64), TR_OK);
        send_raw(cases[i].header);
        CHECK_STATUS(node_send_patiently(&nodes[0], NULL, 64), TR_OK);
        uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;
        while (nodes[1].downs_count == 0 && tr_clock_ns() < deadline_ns) {
            ops->poll(nodes[0].transport);
            ops->poll(nodes[1].transport);
        }
        assert_int_equal(nodes[1].downs_count, 1);
        assert_non_null(strstr(nodes[1].down_reason, cases[i].field));
        assert_int_equal(nodes[1].delivered_count, 1);
        assert_int_equal(buffers_come_back(NULL), 0);
    }
}

static void a_payload_that_no_buffer_can_hold_is_refused(void **state)
{
    (void)state;
    open_node(0, 2, 64, 2);
    open_node(1, 2, 64, 0);
    connect_nodes(&nodes[0], &nodes[1]);
    connect_nodes(&nodes[1], &nodes[0]);
    CHECK_STATUS(node_send_patiently(&nodes[0], &nodes[1], 100000), TR_OK);
    uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;
    while (nodes[1].downs_count == 0 && tr_clock_ns() < deadline_ns) {
        ops->poll(nodes[0].transport);
        ops->poll(nodes[1].transport);
    }
    assert_int_equal(nodes[1].downs_count, 1);
    assert_non_null(strstr(nodes[1].down_reason, "payload_size"));
    assert_int_equal(nodes[1].delivered_count, 0);
}

static void a_wrong_address_is_refused(void **state)
{
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    size_t size = 0;
    tr_error err = {0};

    (void)state;
    open_node(0, 2, 8, 0);
    open_node(1, 2, 8, 0);
    tr_transport *t = nodes[0].transport;
    CHECK_STATUS(ops->address(nodes[1].transport, address, 1, &size, &err), TR_E_INVALID);
    CHECK_STATUS(ops->address(nodes[1].transport, address, sizeof(address), &size, &err), TR_OK);

    uint64_t deadline_ns = tr_clock_ns() + NODE_SECOND_NS;
    CHECK_STATUS(ops->connect(t, 1, address, 0, deadline_ns, &err), TR_E_INVALID);
    CHECK_STATUS(ops->connect(t, 1, address, size - 1, deadline_ns, &err), TR_E_INVALID);
    CHECK_STATUS(ops->connect(t, 0, address, size, deadline_ns, &err), TR_E_INVALID);
    CHECK_STATUS(ops->connect(t, 2, address, size, deadline_ns, &err), TR_E_INVALID);
    for (size_t i = 0; i < size; i++) {
        address[i] ^= 0x55;
        CHECK_STATUS(ops->connect(t, 1, address, size, deadline_ns, &err), TR_E_INVALID);
        address[i] ^= 0x55;
    }
}

static void wrong_options_are_named(void **state)
{
    static const struct {
        const char *options, *named;
    } cases[] = {
        {"colour=blue", "colour"},
        {"blue", "blue"},
        {",", "key=value"},
    };
    node n;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_error err = {0};
        CHECK_STATUS(node_open(&n, ops, cases[i].options, 0, 2, 8, 0, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, cases[i].named);
    }
    tr_error err = {0};
    CHECK_STATUS(node_open(&n, ops, NULL, 2, 2, 8, 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "node_index");
    CHECK_STATUS(node_open(&n, ops, NULL, 0, 99, 8, 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "nodes_count");
}

/* -- a peer in another process -- */

static bool write_all(int fd, const void *bytes, size_t size)
{
    return write(fd, bytes, size) == (ssize_t)size;
}

static bool read_all(int fd, void *bytes, size_t size)
{
    char *at = bytes;

    while (size > 0) {
        ssize_t got = read(fd, at, size);
        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

/* Addresses over a pipe: size, then bytes. */
static bool write_address(int fd, node *n)
{
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    size_t size = 0;

    return ops->address(n->transport, address, sizeof(address), &size, NULL) == TR_OK &&
           write_all(fd, &size, sizeof(size)) && write_all(fd, address, size);
}

static tr_status read_address_and_connect(int fd, node *n)
{
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    size_t size = 0;
    tr_error err = {0};

    if (!read_all(fd, &size, sizeof(size)) || size > sizeof(address) ||
        !read_all(fd, address, size))
        return TR_E_INVALID;
    tr_status status =
        ops->connect(n->transport, n->peer, address, size, tr_clock_ns() + NODE_PATIENCE_NS, &err);
    if (status != TR_OK)
        fprintf(stderr, "connect: %s\n", err.text);
    return status;
}

/* What the other process is. */
typedef enum {
    PEER_QUIET, /* node 1 of 2: sends one message, then only polls until it is killed */
    PEER_WRITER /* node 2 of 3: sends to node 0 without end, so that it is killed while it writes */
} peer_kind;

static const char *const peer_modes[] = {[PEER_QUIET] = "--peer", [PEER_WRITER] = "--writer"};

static int be_the_peer(peer_kind kind)
{
    uint32_t index = kind == PEER_QUIET ? 1 : 2;
    node *n = &nodes[index];
    tr_error err = {0};

    if (node_open(n, ops, options_of(index), index, index + 1, 64, 8, &err) != TR_OK) {
        fprintf(stderr, "peer: %s\n", err.text);
        return 1;
    }
    n->peer = 0;
    if (!write_address(STDOUT_FILENO, n) || read_address_and_connect(STDIN_FILENO, n) != TR_OK)
        return 1;
    if (node_send_patiently(n, NULL, 4096) != TR_OK)
        return 1;
    uint64_t deadline_ns = tr_clock_ns() + 3 * NODE_PATIENCE_NS;
    while (tr_clock_ns() < deadline_ns) {
        bool wrote = kind == PEER_WRITER && node_send(n, WRITER_BYTES) == TR_OK;
        if (!wrote && ops->poll(n->transport) == 0)
            sched_yield();
    }
    return 1;
}

static pid_t spawn_peer(peer_kind kind, int *to_peer, int *from_peer)
{
    char *args[] = {own_path, (char *)(uintptr_t)chosen->name, (char *)(uintptr_t)peer_modes[kind],
                    NULL};
    extern char **environ;
    int in[2], out[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;

    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&actions, in[i]);
        posix_spawn_file_actions_addclose(&actions, out[i]);
    }
    int failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    *to_peer = in[1];
    *from_peer = out[0];
    return failed ? -1 : pid;
}

static void what_it_keeps_beside_the_pool_is_counted(void **state)
{
    (void)state;
    assert_true(ops->bytes(2) > sizeof(tr_msg)); /* its own struct at least */
    for (uint32_t count = 3; count <= 16; count++)
        assert_true(ops->bytes(count) > ops->bytes(count - 1));
}

/* Reaped at once: a zombie still counts as alive for whoever looks into /proc, as UCX does. */
static void kill_peer(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void a_killed_peer_is_reported(void **state)
{
    int to_peer, from_peer;

    (void)state;
    if (!chosen->between_processes)
        return; /* nobody to kill; cmocka's skip() would read as a failure in TAP */
    node *n = open_node(0, 2, 64, 8);
    pid_t pid = spawn_peer(PEER_QUIET, &to_peer, &from_peer);
    bool met = pid > 0 && read_address_and_connect(from_peer, n) == TR_OK &&
               write_address(to_peer, n) && node_wait(n, NULL, &n->delivered_count, 1) &&
               node_send_patiently(n, NULL, 4096) == TR_OK;

    /* It dies with large and small messages on their way. */
    for (int i = 0; i < 40 && met; i++)
        (void)node_send(n, i % 8 == 0 ? 500000 : 4096); /* some may find no room */
    uint64_t begin_ns = tr_clock_ns();
    kill_peer(pid);
    bool down = met && node_wait_down(n);
    uint64_t took_ns = tr_clock_ns() - begin_ns;
    close(to_peer);
    close(from_peer);

    assert_true(met);
    assert_true(down);
    print_message("# %s: \"%s\" after %.3f s\n", chosen->name, n->down_reason,
                  (double)took_ns * 1e-9);
    assert_int_equal(n->downs_count, 1);
    CHECK_STATUS(node_send(n, 4096), TR_E_PEER);
    assert_false(n->broken);
}

/* A life of node 2 writes to node 0, and is killed in the middle of it. */
static void kill_a_writer(node *n)
{
    int to_peer, from_peer;

    n->peer = 2;
    n->downs_count = 0;
    n->delivered_from[2] = 0;
    pid_t pid = spawn_peer(PEER_WRITER, &to_peer, &from_peer);
    bool met = pid > 0 && read_address_and_connect(from_peer, n) == TR_OK &&
               write_address(to_peer, n) && node_wait(n, NULL, &n->delivered_from[2], 100);
    kill_peer(pid);
    bool down = met && node_wait_down(n);
    close(to_peer);
    close(from_peer);
    n->peer = 1;
    assert_true(met);
    assert_true(down);
    assert_int_equal(n->down_node, 2);
}

/* Whatever it has left half written is nobody else's, and not its next life's. */
static void a_peer_that_is_killed_while_it_writes_stops_nobody(void **state)
{
    (void)state;
    if (!chosen->between_processes)
        return;
    for (uint32_t i = 0; i < 2; i++)
        open_node(i, 3, 64, 16);
    connect_nodes(&nodes[0], &nodes[1]);
    connect_nodes(&nodes[1], &nodes[0]);
    for (uint64_t round = 1; round <= WRITER_KILLS; round++) {
        kill_a_writer(&nodes[0]);
        CHECK_STATUS(node_send_patiently(&nodes[1], &nodes[0], 4096), TR_OK);
        CHECK_STATUS(node_send_patiently(&nodes[0], &nodes[1], 4096), TR_OK);
        assert_true(node_wait(&nodes[0], &nodes[1], &nodes[0].delivered_from[1], round));
        assert_true(node_wait(&nodes[1], &nodes[0], &nodes[1].delivered_from[0], round));
        ops->forget(nodes[0].transport, 2);
    }
    assert_false(nodes[0].broken);
}

int main(int argc, char **argv)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, forget_nodes, buffers_come_back)
    const struct CMUnitTest tests[] = {
        CASE(every_size_arrives_unchanged),
        CASE(mixed_sizes_arrive_in_order),
        CASE(many_small_messages_keep_their_order_both_ways),
        CASE(a_full_receiver_stops_the_sender_and_rows_wait),
        CASE(a_full_receiver_stops_the_sender_and_large_payloads_wait),
        CASE(two_full_nodes_do_not_lock_each_other),
        CASE(a_node_may_send_before_its_peer_has_connected_back),
        CASE(the_source_node_is_told_apart),
        CASE(a_peer_that_closes_is_reported_once),
        CASE(a_peer_that_closed_comes_back),
        CASE(a_peer_is_forgotten_while_it_is_connected),
        CASE(what_was_taken_before_close_arrives),
        CASE(a_malformed_header_ends_the_connection_and_is_not_delivered),
        CASE(a_payload_that_no_buffer_can_hold_is_refused),
        CASE(a_wrong_address_is_refused),
        CASE(wrong_options_are_named),
        CASE(what_it_keeps_beside_the_pool_is_counted),
        CASE(a_killed_peer_is_reported),
        CASE(a_peer_that_is_killed_while_it_writes_stops_nobody),
    };
    peer_kind peer = PEER_QUIET;
    bool is_peer = false;

    own_path = argv[0];
    for (size_t i = 0; argc >= 2 && i < sizeof(variants) / sizeof(variants[0]); i++)
        if (strcmp(variants[i].name, argv[1]) == 0)
            chosen = &variants[i];
    ops = chosen != NULL ? tr_transport_find(chosen->transport) : NULL;
    if (ops == NULL) {
        fprintf(stderr,
                "usage: %s VARIANT [TEST]\nVARIANT is a row of `variants` that this build has\n",
                argv[0]);
        return 2;
    }
    for (uint32_t kind = PEER_QUIET; argc == 3 && !is_peer && kind <= PEER_WRITER; kind++)
        if ((is_peer = strcmp(argv[2], peer_modes[kind]) == 0))
            peer = kind;
    if (is_peer)
        return be_the_peer(peer);
    if (argc == 3)
        cmocka_set_test_filter(argv[2]); /* a name, with * and ? */
    return cmocka_run_group_tests_name(chosen->name, tests, NULL, NULL);
}
