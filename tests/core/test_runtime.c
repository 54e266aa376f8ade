/* test_runtime.c - one node: order, back-pressure, ports, timers, dead peers, stopping. */
#include "tests/core/runtime_fixture.h"

#include "core/mailbox.h"

#define PORT   1u
#define SOURCE 2u
#define SINK   3u

/* -- a source that sends numbers to a sink -- */

#define BURST 8

typedef struct {
    uint32_t next; /* number that is sent next */
    uint32_t count;
} source_state;

/* Sends BURST numbers to the sink, then asks itself for more. */
static tr_status source_receive(void *ctx, const tr_env *env, const tr_msg *msg)
{
    source_state *s = ctx;
    (void)msg;
    for (uint32_t i = 0; i < BURST && s->next < s->count; i++) {
        tr_status status = env->send(env->ctx, test_id(SINK), TR_MSG_STEP, s->next, 0, NULL);
        if (status != TR_OK)
            return status;
        s->next++;
    }
    if (s->next == s->count)
        return TR_OK;
    return env->send(env->ctx, env->self, TR_MSG_PING, 0, 0, NULL);
}

typedef struct {
    uint32_t expected;
    uint32_t count;
} sink_state;

/* Reports the end, or the first number that is out of order, to the port. */
static tr_status sink_receive(void *ctx, const tr_env *env, const tr_msg *msg)
{
    sink_state *s = ctx;
    if (msg->header.step != s->expected)
        return env->send(env->ctx, test_id(PORT), TR_MSG_STEP_FAILED, msg->header.step, s->expected,
                         NULL);
    s->expected++;
    if (s->expected < s->count)
        return TR_OK;
    return env->send(env->ctx, test_id(PORT), TR_MSG_PONG, 0, 0, NULL);
}

static void run_source_and_sink(uint32_t workers_count, uint32_t sink_slots, uint32_t count)
{
    tr_runtime *rt = open_runtime(0, workers_count, NULL);
    source_state source = {.count = count};
    sink_state sink = {.count = count};
    test_actor source_actor = {.receive = source_receive, .ctx = &source};
    test_actor sink_actor = {.receive = sink_receive, .ctx = &sink};
    const tr_actor_ops source_ops = {TEST_ACTOR_OPS, .mailbox_slots = 4, .outbox_slots = BURST + 1};
    const tr_actor_ops sink_ops = {TEST_ACTOR_OPS, .mailbox_slots = sink_slots, .outbox_slots = 1};
    CHECK_STATUS(
        tr_runtime_spawn(rt, test_id(SOURCE), "source", &source_ops, &source_actor, 0, NULL),
        TR_OK);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SINK), "sink", &sink_ops, &sink_actor,
                                  workers_count - 1, NULL),
                 TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);

    CHECK_STATUS(tr_runtime_post(rt, test_id(PORT), test_id(SOURCE), TR_MSG_PING, 0, 0, NULL),
                 TR_OK);
    tr_msg msg = next_message(rt, test_id(PORT));
    assert_int_equal(msg.header.kind, TR_MSG_PONG);
    assert_int_equal(msg.header.source, test_id(SINK));
    assert_int_equal(msg.header.target, test_id(PORT));
    tr_runtime_stop(rt);
    assert_int_equal(sink.expected, count);
    assert_int_equal(sink_actor.inits, 1);
    assert_int_equal(sink_actor.teardowns, 1);
    tr_runtime_close(rt);
}

static void messages_keep_their_order_on_one_worker(void **state)
{
    (void)state;
    run_source_and_sink(1, 1024, 20000);
}

static void messages_keep_their_order_between_workers(void **state)
{
    (void)state;
    run_source_and_sink(2, 1024, 20000);
}

static void a_mailbox_of_two_slots_slows_the_sender_and_loses_nothing(void **state)
{
    (void)state;
    run_source_and_sink(1, 2, 5000);
    run_source_and_sink(2, 2, 5000);
}

/* -- an actor with something in its outbox is not run -- */

typedef struct {
    _Atomic uint32_t receives;
} counting_state;

static tr_status send_to_port(void *ctx, const tr_env *env, const tr_msg *msg)
{
    counting_state *s = ctx;
    atomic_fetch_add(&s->receives, 1);
    return env->send(env->ctx, test_id(PORT), TR_MSG_PONG, msg->header.step, 0, NULL);
}

static void an_actor_is_not_run_while_its_outbox_holds_something(void **state)
{
    (void)state;
    tr_runtime *rt = open_runtime(0, 1, NULL);
    counting_state counting = {.receives = 0};
    test_actor actor = {.receive = send_to_port, .ctx = &counting};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SOURCE), "source", &ops, &actor, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 2, NULL, NULL, NULL), TR_OK);
    for (uint64_t i = 0; i < 10; i++)
        CHECK_STATUS(tr_runtime_post(rt, 0, test_id(SOURCE), TR_MSG_PING, i, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);

    wait_for(&counting.receives, 3); /* two in the port, one in the outbox */
    uint64_t until_ns = tr_clock_ns() + 5000000;
    while (tr_clock_ns() < until_ns)
        assert_int_equal(atomic_load(&counting.receives), 3);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(next_message(rt, test_id(PORT)).header.step, i);
    assert_int_equal(counting.receives, 10);
    tr_runtime_close(rt);
}

/* -- ports and posts -- */

static tr_status answer(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    tr_buf *payload = msg->payload != NULL ? tr_buf_ref(msg->payload) : NULL;
    return env->send(env->ctx, msg->header.source, TR_MSG_PONG, msg->header.step,
                     msg->header.argument, payload);
}

static void count_wake(void *ctx)
{
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
}

static void a_port_is_woken_when_it_was_empty(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(4);
    tr_runtime *rt = open_runtime(0, 1, pool);
    test_actor actor = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    _Atomic uint32_t wakes = 0;
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SINK), "sink", &ops, &actor, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 16, count_wake, &wakes, NULL),
                 TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);

    for (uint32_t round = 1; round <= 3; round++) {
        tr_buf *payload = tr_pool_take(pool, 8);
        memset(payload->data, (int)round, 8);
        CHECK_STATUS(
            tr_runtime_post(rt, test_id(PORT), test_id(SINK), TR_MSG_PING, round, 7, payload),
            TR_OK);
        wait_for(&wakes, round);
        tr_msg msg = next_message(rt, test_id(PORT));
        assert_int_equal(msg.header.step, round);
        assert_int_equal(msg.header.argument, 7);
        assert_int_equal(msg.header.payload_size, 8);
        assert_int_equal(msg.header.epoch, 1);
        assert_int_equal(msg.payload->data[7], round);
        tr_buf_unref(msg.payload);
        assert_false(tr_runtime_port_next(rt, test_id(PORT), &msg));
        assert_int_equal(wakes, round); /* once for each time that it was found empty */
    }
    tr_runtime_close(rt);
    assert_int_equal(tr_pool_free_count(pool), 4);
    tr_pool_close(pool);
}

static void a_post_that_fails_leaves_the_payload_with_the_caller(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(3);
    tr_runtime *rt = open_runtime(0, 1, pool);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 2, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(rt, test_id(SINK), "sink", 3, NULL), TR_OK);
    tr_buf *payload = tr_pool_take(pool, 8);

    CHECK_STATUS(tr_runtime_post(rt, 0, test_id(99), TR_MSG_PING, 0, 0, payload), TR_E_INVALID);
    tr_runtime_peer_down(rt, 3);
    CHECK_STATUS(tr_runtime_post(rt, 0, test_id(SINK), TR_MSG_PING, 0, 0, payload), TR_E_PEER);
    CHECK_STATUS(tr_runtime_post(rt, 0, test_id(PORT), TR_MSG_PING, 0, 0, tr_buf_ref(payload)),
                 TR_OK);
    CHECK_STATUS(tr_runtime_post(rt, 0, test_id(PORT), TR_MSG_PING, 0, 0, tr_buf_ref(payload)),
                 TR_OK);
    CHECK_STATUS(tr_runtime_post(rt, 0, test_id(PORT), TR_MSG_PING, 0, 0, payload), TR_E_AGAIN);
    tr_buf_unref(payload);
    assert_int_equal(tr_pool_free_count(pool), 2); /* the port still holds it, twice */
    tr_runtime_close(rt);
    assert_int_equal(tr_pool_free_count(pool), 3);
    tr_pool_close(pool);
}

static void sleeping_workers_wake_for_each_message(void **state)
{
    (void)state;
    tr_runtime *rt = NULL;
    /* Without spinning each round trip finds both workers on their way to sleep: if a wake-up were
     * lost, a round trip would take 50 ms. */
    tr_runtime_config config = {.node_name = "spark1", .workers_count = 2, .idle_spin_ns = 1};
    CHECK_STATUS(tr_runtime_open(&rt, &config, NULL), TR_OK);
    test_actor near = {.receive = answer};
    test_actor far = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SOURCE), "near", &ops, &near, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SINK), "far", &ops, &far, 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    for (uint32_t i = 0; i < 2000; i++) {
        CHECK_STATUS(tr_runtime_post(rt, test_id(PORT), test_id(i % 2 == 0 ? SOURCE : SINK),
                                     TR_MSG_PING, i, 0, NULL),
                     TR_OK);
        assert_int_equal(next_message(rt, test_id(PORT)).header.step, i);
    }
    tr_runtime_close(rt);
}

/* -- timers -- */

static tr_status set_timers(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    if (msg->header.kind == TR_MSG_TIMER)
        return env->send(env->ctx, test_id(PORT), TR_MSG_PONG, env->now_ns(env->ctx),
                         msg->header.argument, NULL);
    uint64_t now_ns = env->now_ns(env->ctx);
    tr_status status = env->timer(env->ctx, now_ns + 3000000, 3);
    if (status == TR_OK)
        status = env->timer(env->ctx, now_ns + 1000000, 1);
    if (status == TR_OK)
        status = env->timer(env->ctx, now_ns + 1000000, 2);
    if (status == TR_OK)
        status = env->timer(env->ctx, 0, 0); /* long past: at once */
    if (status == TR_OK)
        status = env->send(env->ctx, test_id(PORT), TR_MSG_PONG, now_ns, 99, NULL);
    return status;
}

static void timers_come_in_order_and_not_too_early(void **state)
{
    (void)state;
    tr_runtime *rt = open_runtime(0, 1, NULL);
    test_actor actor = {.receive = set_timers};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 2, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SOURCE), "clock", &ops, &actor, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_post(rt, 0, test_id(SOURCE), TR_MSG_PING, 0, 0, NULL), TR_OK);

    uint64_t set_ns = next_message(rt, test_id(PORT)).header.step;
    static const uint64_t at_ns[] = {0, 1000000, 1000000, 3000000};
    for (uint32_t i = 0; i < 4; i++) {
        tr_msg msg = next_message(rt, test_id(PORT));
        assert_int_equal(msg.header.argument, i);
        assert_true(msg.header.step >= set_ns + at_ns[i]);
    }
    tr_runtime_close(rt);
}

/* -- dead peers -- */

static tr_status report_peer_down(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    if (msg->header.kind != TR_MSG_PEER_DOWN)
        return TR_OK;
    tr_status status = env->send(env->ctx, test_id(SINK), TR_MSG_PING, 0, 0, NULL);
    return env->send(env->ctx, test_id(PORT), TR_MSG_PONG, (uint64_t)(status == TR_E_PEER),
                     msg->header.argument, NULL);
}

static tr_status never_called(void *ctx, uint32_t node_index, const tr_msg *msg)
{
    (void)node_index;
    tr_buf_unref(msg->payload);
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
    return TR_OK;
}

static void a_dead_peer_is_told_to_everybody_once(void **state)
{
    (void)state;
    tr_runtime *rt = open_runtime(0, 2, NULL);
    test_actor actors[2] = {{.receive = report_peer_down}, {.receive = report_peer_down}};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 2, .outbox_slots = 2};
    _Atomic uint32_t sent = 0;
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(10), "a", &ops, &actors[0], 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(11), "b", &ops, &actors[1], 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(rt, test_id(SINK), "sink", 5, NULL), TR_OK);
    tr_runtime_set_remote(rt, (tr_remote){.ctx = &sent, .send = never_called});
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);

    for (int i = 0; i < 3; i++)
        tr_runtime_peer_down(rt, 5);
    uint32_t pongs = 0;
    uint32_t news = 0;
    while (pongs < 2 || news < 1) {
        tr_msg msg = next_message(rt, test_id(PORT));
        assert_int_equal(msg.header.argument, 5);
        if (msg.header.kind == TR_MSG_PEER_DOWN) {
            news++;
        } else {
            assert_int_equal(msg.header.step, 1); /* its send to the dead node failed */
            pongs++;
        }
    }
    tr_runtime_peer_down(rt, 5);
    tr_runtime_stop(rt);
    tr_msg msg;
    assert_false(tr_runtime_port_next(rt, test_id(PORT), &msg));
    assert_int_equal(pongs, 2);
    assert_int_equal(news, 1);
    assert_int_equal(sent, 0);
    tr_runtime_close(rt);
}

/* -- stopping -- */

static tr_status play(void *ctx, const tr_env *env, const tr_msg *msg)
{
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
    tr_actor_id other = test_id(env->self == test_id(SOURCE) ? SINK : SOURCE);
    tr_buf *payload = msg->payload != NULL ? tr_buf_ref(msg->payload) : NULL;
    return env->send(env->ctx, other, TR_MSG_PING, 0, 0, payload);
}

static void stopping_while_messages_fly_ends_and_gives_all_buffers_back(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(8);
    tr_runtime *rt = open_runtime(0, 2, pool);
    _Atomic uint32_t plays = 0;
    test_actor one = {.receive = play, .ctx = &plays};
    test_actor two = {.receive = play, .ctx = &plays};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SOURCE), "one", &ops, &one, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SINK), "two", &ops, &two, 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    for (int i = 0; i < 8; i++)
        CHECK_STATUS(
            tr_runtime_post(rt, 0, test_id(SOURCE), TR_MSG_PING, 0, 0, tr_pool_take(pool, 8)),
            TR_OK);
    uint64_t deadline_ns = tr_clock_ns() + DEADLINE_NS;
    while (atomic_load(&plays) < 1000) {
        assert_true(tr_clock_ns() < deadline_ns);
        sched_yield();
    }
    tr_runtime_stop(rt);
    assert_int_equal(one.teardowns, 1);
    assert_int_equal(two.teardowns, 1);
    uint32_t at_stop = plays;
    tr_runtime_stop(rt); /* again: nothing */
    assert_int_equal(one.teardowns, 1);
    tr_runtime_close(rt);
    assert_int_equal(plays, at_stop);
    assert_int_equal(tr_pool_free_count(pool), 8);
    tr_pool_close(pool);
}

static void a_runtime_that_never_started_closes(void **state)
{
    (void)state;
    tr_runtime *rt = open_runtime(0, 3, NULL);
    test_actor actor = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SINK), "sink", &ops, &actor, 2, NULL), TR_OK);
    tr_runtime_close(rt);
    assert_int_equal(actor.teardowns, 1);
}

/* -- refusals and statistics -- */

static tr_status refuse_to_begin(void *ctx, const tr_env *env)
{
    (void)ctx;
    (void)env;
    return TR_E_NOMEM;
}

static void what_is_wrong_before_start_is_refused_with_a_name(void **state)
{
    (void)state;
    tr_runtime *rt = NULL;
    tr_error err = {0};
    tr_runtime_config config = {.node_name = "x", .node_index = TR_NODES_MAX, .workers_count = 1};
    CHECK_STATUS(tr_runtime_open(&rt, &config, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "node_index 16");
    config = (tr_runtime_config){.node_name = "x", .workers_count = 0};
    CHECK_STATUS(tr_runtime_open(&rt, &config, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "workers_count 0");

    rt = open_runtime(0, 1, NULL);
    test_actor actor = {.receive = answer};
    tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(1), "one", &ops, &actor, 1, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "worker 1");
    CHECK_STATUS(tr_runtime_spawn(rt, 0, "one", &ops, &actor, 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "id 0");
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(1), "one", &ops, &actor, 0, &err), TR_OK);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(1), "two", &ops, &actor, 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "\"one\" and \"two\"");
    char long_name[200];
    memset(long_name, 'n', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(2), long_name, 16, NULL, NULL, &err),
                 TR_E_INVALID);
    CHECK_ERR_NAMES(err, "199 bytes");
    CHECK_STATUS(tr_runtime_add_remote(rt, test_id(2), "here", 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "node 0");
    ops.mailbox_slots = 5;
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(3), "three", &ops, &actor, 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "5 slots");
    ops.mailbox_slots = 16;
    test_actor unwilling = {.receive = answer, .init = refuse_to_begin};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(4), "four", &ops, &unwilling, 0, &err), TR_E_NOMEM);
    CHECK_STATUS(tr_runtime_add_remote(rt, test_id(5), "far", 1, &err), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "no remote");
    tr_runtime_close(rt);
    assert_int_equal(unwilling.teardowns, 0); /* its init failed: nothing is owed */
}

static void statistics_and_names_tell_what_happened(void **state)
{
    (void)state;
    tr_runtime *rt = open_runtime(2, 2, NULL);
    test_actor actor = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SINK), "sink@spark2", &ops, &actor, 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 8, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(rt, test_id(50), "far@spark1", 0, NULL), TR_OK);
    _Atomic uint32_t sent = 0;
    tr_runtime_set_remote(rt, (tr_remote){.ctx = &sent, .send = never_called});
    tr_runtime_set_epoch(rt, 4);
    assert_int_equal(tr_runtime_epoch(rt), 4);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    uint64_t trace_id = 0;
    for (int i = 0; i < 3; i++) {
        post_patiently(rt, test_id(PORT), test_id(SINK), TR_MSG_PING, 0, 0);
        tr_msg msg = next_message(rt, test_id(PORT));
        assert_int_equal(msg.header.epoch, 4);
        assert_int_equal(msg.header.trace_id >> 56, 2); /* the node */
        assert_int_not_equal(msg.header.trace_id, trace_id);
        trace_id = msg.header.trace_id;
    }
    tr_runtime_stop(rt);

    tr_actor_stat rows[4];
    assert_int_equal(tr_runtime_stats(rt, rows, 1), 2);
    assert_int_equal(tr_runtime_stats(rt, rows, 4), 2);
    assert_int_equal(rows[0].id, test_id(SINK));
    assert_string_equal(rows[0].name, "sink@spark2");
    assert_string_equal(rows[0].kind, "test");
    assert_int_equal(rows[0].node_index, 2);
    assert_int_equal(rows[0].worker, 1);
    assert_int_equal(rows[0].mailbox_slots, 16);
    assert_int_equal(rows[0].mailbox_depth, 0);
    assert_int_equal(rows[0].received_count, 3);
    assert_true(rows[0].busy_ns > 0);
    assert_false(rows[0].failed);
    assert_string_equal(rows[1].kind, "port");
    assert_int_equal(rows[1].received_count, 3);
    assert_string_equal(tr_runtime_actor_name(rt, test_id(50)), "far@spark1");
    assert_string_equal(tr_runtime_actor_name(rt, test_id(51)), "unknown");
    tr_runtime_close(rt);
}

/* -- trace -- */

typedef struct {
    uint64_t ids[3]; /* trace ids of the hops that are looked for */
    uint32_t sends[3];
    uint32_t receives[3];
} hops;

static void look_for_hops(void *ctx, const char *thread, const tr_trace_event *events, size_t count)
{
    hops *h = ctx;
    (void)thread;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t hop = 0; hop < 3; hop++) {
            if (events[i].id != h->ids[hop])
                continue;
            h->sends[hop] += events[i].kind == TR_TRACE_SEND;
            h->receives[hop] += events[i].kind == TR_TRACE_RECEIVE;
        }
    }
}

static void each_hop_is_stamped_where_it_begins_and_where_it_ends(void **state)
{
    (void)state;
    tr_runtime *rt = open_runtime(1, 2, NULL);
    test_actor near = {.receive = answer};
    test_actor far = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SOURCE), "near", &ops, &near, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(SINK), "far", &ops, &far, 1, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_trace_attach("main", 256, NULL), TR_OK); /* the port's reader traces, too */
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    hops h = {.sends = {0}};
    for (uint32_t i = 0; i < 3; i++) {
        post_patiently(rt, test_id(PORT), test_id(i % 2 == 0 ? SOURCE : SINK), TR_MSG_PING, 0, 0);
        h.ids[i] = next_message(rt, test_id(PORT)).header.trace_id;
    }
    tr_trace_read(look_for_hops, &h);
    tr_trace_detach();
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(h.sends[i], 1);
        assert_int_equal(h.receives[i], 1);
        assert_true(i == 0 || h.ids[i] != h.ids[i - 1]);
    }
    tr_runtime_close(rt);
}

/* A change of the sizes that open and spawn take has to be made in what is counted, too. */
static void what_is_counted_grows_with_what_is_taken(void **state)
{
    (void)state;
    tr_actor_ops small = {.mailbox_slots = 64, .outbox_slots = 1, .state_size = 64};
    tr_actor_ops large = {.mailbox_slots = 4096, .outbox_slots = 1, .state_size = 64 + 6400};

    assert_true(tr_runtime_bytes(1, 0) > TR_ACTORS_MAX * 100); /* the directory */
    assert_true(tr_runtime_bytes(3, 0) - tr_runtime_bytes(1, 0) > 2 * tr_trace_bytes(1u << 15));
    assert_int_equal(tr_runtime_bytes(1, 3) - tr_runtime_bytes(1, 0), 3 * tr_mailbox_bytes(1024));
    assert_true(tr_runtime_port_bytes(4096) > tr_mailbox_bytes(4096));
    assert_true(tr_runtime_actor_bytes(&small) > tr_runtime_port_bytes(64) + small.state_size);
    assert_int_equal(tr_runtime_actor_bytes(&large) - tr_runtime_actor_bytes(&small),
                     tr_mailbox_bytes(4096) - tr_mailbox_bytes(64) + 6400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_keep_their_order_on_one_worker),
        cmocka_unit_test(messages_keep_their_order_between_workers),
        cmocka_unit_test(a_mailbox_of_two_slots_slows_the_sender_and_loses_nothing),
        cmocka_unit_test(an_actor_is_not_run_while_its_outbox_holds_something),
        cmocka_unit_test(a_port_is_woken_when_it_was_empty),
        cmocka_unit_test(a_post_that_fails_leaves_the_payload_with_the_caller),
        cmocka_unit_test(sleeping_workers_wake_for_each_message),
        cmocka_unit_test(timers_come_in_order_and_not_too_early),
        cmocka_unit_test(a_dead_peer_is_told_to_everybody_once),
        cmocka_unit_test(stopping_while_messages_fly_ends_and_gives_all_buffers_back),
        cmocka_unit_test(a_runtime_that_never_started_closes),
        cmocka_unit_test(what_is_counted_grows_with_what_is_taken),
        cmocka_unit_test(what_is_wrong_before_start_is_refused_with_a_name),
        cmocka_unit_test(statistics_and_names_tell_what_happened),
        cmocka_unit_test(each_hop_is_stamped_where_it_begins_and_where_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
