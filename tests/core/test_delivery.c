/* test_delivery.c - two runtimes joined by a fake link that is narrow and sometimes says no.
 *
 * Each direction of the link is a mailbox of a few slots. send refuses every third time, so that
 * all the places where a message may have to wait are used. */
#include "tests/core/runtime_fixture.h"

#include "core/log.h"
#include "core/mailbox.h"

#define PORT_A test_id(1)
#define ECHO   test_id(20) /* on node 1, worker 1 */
#define TALKER test_id(30) /* + worker, on node 0 */

typedef struct {
    tr_mailbox *lanes[2]; /* [receiving node] */
    tr_runtime *nodes[2];
    uint32_t calls; /* of send on node 0 */
} cable;

static tr_status link_send_from_0(void *ctx, uint32_t node_index, const tr_msg *msg)
{
    cable *l = ctx;
    if (l->calls++ % 3 == 0)
        return TR_E_AGAIN;
    return tr_mailbox_push(l->lanes[node_index], msg);
}

static tr_status link_send_from_1(void *ctx, uint32_t node_index, const tr_msg *msg)
{
    return tr_mailbox_push(((cable *)ctx)->lanes[node_index], msg);
}

static uint32_t link_poll(cable *l, uint32_t node)
{
    uint32_t count = 0;
    tr_msg msg;
    while (tr_mailbox_pop(l->lanes[node], &msg)) {
        tr_runtime_deliver(l->nodes[node], &msg);
        count++;
    }
    return count;
}

static uint32_t link_poll_0(void *ctx)
{
    return link_poll(ctx, 0);
}

static uint32_t link_poll_1(void *ctx)
{
    return link_poll(ctx, 1);
}

static tr_status answer(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    if (msg->header.kind != TR_MSG_PING)
        return TR_OK;
    tr_buf *payload = msg->payload != NULL ? tr_buf_ref(msg->payload) : NULL;
    return env->send(env->ctx, msg->header.source, TR_MSG_PONG, msg->header.step,
                     msg->header.argument, payload);
}

/* -- actors of both workers of node 0 talk to one of node 1 -- */

#define ROUNDS 3000
#define AHEAD  4 /* pings under way at once */

typedef struct {
    uint64_t sent;
    uint64_t received;
    uint32_t wrong;
} talker_state;

static tr_status talk(void *ctx, const tr_env *env, const tr_msg *msg)
{
    talker_state *t = ctx;
    if (msg->header.kind == TR_MSG_PONG && msg->header.step != t->received++)
        t->wrong++;
    if (t->received == ROUNDS)
        return env->send(env->ctx, PORT_A, TR_MSG_EVENT, t->wrong, 0, NULL);
    while (t->sent < ROUNDS && t->sent < t->received + AHEAD) {
        tr_status status = env->send(env->ctx, ECHO, TR_MSG_PING, t->sent, 0, NULL);
        if (status != TR_OK)
            return status;
        t->sent++;
    }
    return TR_OK;
}

static tr_status talk_first(void *ctx, const tr_env *env)
{
    talker_state *t = ctx;
    return env->send(env->ctx, ECHO, TR_MSG_PING, t->sent++, 0, NULL);
}

static void open_link(cable *l, tr_pool *pool)
{
    *l = (cable){.calls = 0};
    for (uint32_t node = 0; node < 2; node++) {
        CHECK_STATUS(tr_mailbox_open(&l->lanes[node], 4, NULL), TR_OK);
        l->nodes[node] = open_runtime(node, 2, pool);
    }
    tr_runtime_set_remote(l->nodes[0], (tr_remote){.ctx = l, .send = link_send_from_0});
    tr_runtime_set_remote(l->nodes[1], (tr_remote){.ctx = l, .send = link_send_from_1});
    tr_runtime_add_poller(l->nodes[0], link_poll_0, l);
    tr_runtime_add_poller(l->nodes[1], link_poll_1, l);
}

static void close_link(cable *l)
{
    tr_runtime_stop(l->nodes[0]);
    tr_runtime_stop(l->nodes[1]);
    for (uint32_t node = 0; node < 2; node++) {
        tr_runtime_close(l->nodes[node]);
        tr_mailbox_close(l->lanes[node]);
    }
}

static void both_workers_and_init_reach_another_node_in_order(void **state)
{
    (void)state;
    cable l;
    open_link(&l, NULL);
    test_actor echo = {.receive = answer};
    /* Two slots: what arrives has to wait in the runtime's list. */
    const tr_actor_ops echo_ops = {TEST_ACTOR_OPS, .mailbox_slots = 2, .outbox_slots = 1};
    const tr_actor_ops talker_ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = AHEAD};
    talker_state states[2] = {{.sent = 0}, {.sent = 0}};
    test_actor talkers[2];
    CHECK_STATUS(tr_runtime_spawn(l.nodes[1], ECHO, "echo", &echo_ops, &echo, 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(l.nodes[0], ECHO, "echo", 1, NULL), TR_OK);
    for (uint32_t i = 0; i < 2; i++) {
        talkers[i] = (test_actor){.receive = talk, .init = talk_first, .ctx = &states[i]};
        CHECK_STATUS(tr_runtime_spawn(l.nodes[0], TALKER + i, i == 0 ? "t0" : "t1", &talker_ops,
                                      &talkers[i], i, NULL),
                     TR_OK);
        CHECK_STATUS(tr_runtime_add_remote(l.nodes[1], TALKER + i, i == 0 ? "t0" : "t1", 0, NULL),
                     TR_OK);
    }
    CHECK_STATUS(tr_runtime_add_port(l.nodes[0], PORT_A, "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(l.nodes[0], NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(l.nodes[1], NULL), TR_OK);
    for (uint32_t i = 0; i < 2; i++) {
        tr_msg msg = next_message(l.nodes[0], PORT_A);
        assert_int_equal(msg.header.kind, TR_MSG_EVENT);
        assert_int_equal(msg.header.step, 0); /* nothing was out of order */
    }
    close_link(&l);
}

static void threads_reach_another_node_with_payloads(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(16);
    cable l;
    open_link(&l, pool);
    test_actor echo = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(l.nodes[1], ECHO, "echo", &ops, &echo, 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(l.nodes[0], ECHO, "echo", 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(l.nodes[0], PORT_A, "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(l.nodes[1], PORT_A, "port", 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(l.nodes[0], NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(l.nodes[1], NULL), TR_OK);
    for (uint32_t i = 0; i < 500; i++) {
        tr_buf *payload = tr_pool_take(pool, 16);
        assert_non_null(payload);
        memset(payload->data, (int)(i & 0xff), 16);
        CHECK_STATUS(tr_runtime_post(l.nodes[0], PORT_A, ECHO, TR_MSG_PING, i, 0, payload), TR_OK);
        tr_msg msg = next_message(l.nodes[0], PORT_A);
        assert_int_equal(msg.header.step, i);
        assert_int_equal(msg.payload->data[15], i & 0xff);
        tr_buf_unref(msg.payload);
    }
    close_link(&l);
    assert_int_equal(tr_pool_free_count(pool), 16);
    tr_pool_close(pool);
}

static tr_status never_room(void *ctx, uint32_t node_index, const tr_msg *msg)
{
    (void)node_index;
    (void)msg;
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
    return TR_E_AGAIN;
}

static void what_waits_for_a_node_is_dropped_when_it_dies(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(8);
    tr_runtime *rt = open_runtime(0, 1, pool);
    _Atomic uint32_t tries = 0;
    test_actor echo = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, TALKER, "talker", &ops, &echo, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(rt, ECHO, "far", 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, PORT_A, "port", 16, NULL, NULL, NULL), TR_OK);
    tr_runtime_set_remote(rt, (tr_remote){.ctx = &tries, .send = never_room});
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);

    /* One stays in the actor's outbox (its answer to a far source), three in the node's queue. */
    CHECK_STATUS(tr_runtime_post(rt, ECHO, TALKER, TR_MSG_PING, 0, 0, tr_pool_take(pool, 8)),
                 TR_OK);
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(tr_runtime_post(rt, PORT_A, ECHO, TR_MSG_PING, 0, 0, tr_pool_take(pool, 8)),
                     TR_OK);
    uint64_t deadline_ns = tr_clock_ns() + DEADLINE_NS;
    while (atomic_load(&tries) < 10)
        assert_true(tr_clock_ns() < deadline_ns);
    assert_true(tr_pool_free_count(pool) == 4);

    tr_runtime_peer_down(rt, 1);
    while (tr_pool_free_count(pool) != 8) {
        assert_true(tr_clock_ns() < deadline_ns);
        sched_yield();
    }
    /* And the actor runs again. */
    post_patiently(rt, PORT_A, TALKER, TR_MSG_PING, 9, 0);
    tr_msg msg = next_message(rt, PORT_A);
    while (msg.header.kind == TR_MSG_PEER_DOWN)
        msg = next_message(rt, PORT_A);
    assert_int_equal(msg.header.step, 9);
    tr_runtime_close(rt);
    tr_pool_close(pool);
}

/* -- what a peer may send -- */

typedef struct {
    tr_runtime *rt;
    tr_pool *pool;
    tr_actor_id target;
    uint32_t count; /* messages that one call delivers */
    _Atomic bool go;
    _Atomic uint32_t done;
} flood;

static uint32_t flood_poll(void *ctx)
{
    flood *f = ctx;
    if (!atomic_exchange(&f->go, false))
        return 0;
    for (uint32_t i = 0; i < f->count; i++) {
        tr_msg msg = {.header = {.kind = TR_MSG_PING, .target = f->target, .step = i}};
        if (i == 0) {
            msg.payload = tr_pool_take(f->pool, 8);
            msg.header.payload_size = 8;
        }
        tr_runtime_deliver(f->rt, &msg);
    }
    atomic_fetch_add(&f->done, 1);
    return f->count;
}

static void a_message_for_nobody_is_dropped_with_its_payload(void **state)
{
    (void)state;
    tr_log_set_level(TR_LOG_ERROR);
    tr_pool *pool = open_pool(2);
    tr_runtime *rt = open_runtime(0, 1, pool);
    flood f = {.rt = rt, .pool = pool, .target = test_id(77), .count = 3};
    tr_runtime_add_poller(rt, flood_poll, &f);
    CHECK_STATUS(tr_runtime_add_remote(rt, test_id(78), "elsewhere", 1, NULL), TR_OK);
    tr_runtime_set_remote(rt, (tr_remote){.ctx = &f.done, .send = never_room});
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    atomic_store(&f.go, true);
    wait_for(&f.done, 1);
    assert_int_equal(tr_pool_free_count(pool), 2);
    f.target = test_id(78); /* a target that does not stand here is as wrong as an unknown one */
    atomic_store(&f.go, true);
    wait_for(&f.done, 2);
    assert_int_equal(tr_pool_free_count(pool), 2);
    tr_runtime_close(rt);
    tr_pool_close(pool);
}

static void a_flood_waits_in_order_and_what_is_too_much_is_dropped(void **state)
{
    (void)state;
    tr_log_set_level(TR_LOG_ERROR);
    tr_pool *pool = open_pool(2);
    tr_runtime *rt = open_runtime(0, 1, pool);
    flood f = {.rt = rt, .pool = pool, .target = PORT_A, .count = 5000};
    tr_runtime_add_poller(rt, flood_poll, &f);
    CHECK_STATUS(tr_runtime_add_port(rt, PORT_A, "port", 8, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    atomic_store(&f.go, true);
    wait_for(&f.done, 1);
    /* 8 in the port and 4096 in the list; nobody read meanwhile. */
    for (uint64_t i = 0; i < 8 + 4096; i++) {
        tr_msg msg = next_message(rt, PORT_A);
        assert_int_equal(msg.header.step, i);
        tr_buf_unref(msg.payload);
    }
    tr_runtime_stop(rt);
    tr_msg msg;
    assert_false(tr_runtime_port_next(rt, PORT_A, &msg));
    tr_runtime_close(rt);
    assert_int_equal(tr_pool_free_count(pool), 2);
    tr_pool_close(pool);
}

static void what_still_waits_at_the_end_is_given_back(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(2);
    tr_runtime *rt = open_runtime(0, 1, pool);
    flood f = {.rt = rt, .pool = pool, .target = PORT_A, .count = 1};
    tr_runtime_add_poller(rt, flood_poll, &f);
    CHECK_STATUS(tr_runtime_add_port(rt, PORT_A, "port", 2, NULL, NULL, NULL), TR_OK);
    post_patiently(rt, 0, PORT_A, TR_MSG_PING, 0, 0);
    post_patiently(rt, 0, PORT_A, TR_MSG_PING, 0, 0);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    atomic_store(&f.go, true);
    wait_for(&f.done, 1);
    assert_int_equal(tr_pool_free_count(pool), 1);
    tr_runtime_close(rt);
    assert_int_equal(tr_pool_free_count(pool), 2);
    tr_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_workers_and_init_reach_another_node_in_order),
        cmocka_unit_test(threads_reach_another_node_with_payloads),
        cmocka_unit_test(what_waits_for_a_node_is_dropped_when_it_dies),
        cmocka_unit_test(a_message_for_nobody_is_dropped_with_its_payload),
        cmocka_unit_test(a_flood_waits_in_order_and_what_is_too_much_is_dropped),
        cmocka_unit_test(what_still_waits_at_the_end_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
