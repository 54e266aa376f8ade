/* test_by_hand.c - a runtime without threads: the caller's choices and the caller's clock decide.
 */
#include "tests/core/runtime_fixture.h"

#include "core/by_hand.h"

#include <stdlib.h>
#include <string.h>

#define PORT  1u
#define FIRST 2u
#define COUNT 3u

static uint64_t now_ns;

static uint64_t test_now(void *ctx)
{
    (void)ctx;
    return now_ns;
}

/* Who has received, in order. */
typedef struct {
    tr_actor_id order[64];
    uint32_t count;
} diary;

static tr_status diary_receive(void *ctx, const tr_env *env, const tr_msg *msg)
{
    diary *d = ctx;
    assert_true(d->count < 64);
    d->order[d->count++] = env->self;
    if (msg->header.kind == TR_MSG_PING && msg->header.argument > 0)
        return env->timer(env->ctx, env->now_ns(env->ctx) + msg->header.argument, 7);
    return TR_OK;
}

static const tr_actor_ops diary_ops = {TEST_ACTOR_OPS, .mailbox_slots = 8, .outbox_slots = 1};

static tr_runtime *open_diaries(test_actor *actors, diary *d, uint32_t workers_count)
{
    tr_runtime *rt = NULL;
    tr_runtime_config config = {
        .node_name = "spark1", .workers_count = workers_count, .now_ns = test_now};
    now_ns = 1000;
    CHECK_STATUS(tr_runtime_open(&rt, &config, NULL), TR_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        actors[i] = (test_actor){.receive = diary_receive, .ctx = d};
        CHECK_STATUS(tr_runtime_spawn(rt, test_id(FIRST + i), "diary", &diary_ops, &actors[i],
                                      i % workers_count, NULL),
                     TR_OK);
    }
    CHECK_STATUS(tr_runtime_start_by_hand(rt, NULL), TR_OK);
    return rt;
}

static void post(tr_runtime *rt, uint32_t target, uint32_t argument)
{
    CHECK_STATUS(tr_runtime_post(rt, 0, test_id(target), TR_MSG_PING, 0, argument, NULL), TR_OK);
}

/* Two messages for each of three actors, handled as the choices say. */
static void run_choices(const uint64_t *choices, uint32_t workers_count, diary *out)
{
    test_actor actors[COUNT];
    *out = (diary){.count = 0};
    tr_runtime *rt = open_diaries(actors, out, workers_count);
    assert_int_equal(tr_runtime_next_ns(rt), UINT64_MAX);
    for (uint32_t i = 0; i < 2 * COUNT; i++)
        post(rt, FIRST + i % COUNT, 0);
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        assert_int_equal(tr_runtime_next_ns(rt), 0);
        assert_int_equal(out->count, i); /* one message a step */
        assert_true(tr_runtime_step(rt, choices[i]));
    }
    assert_false(tr_runtime_step(rt, 0));
    assert_int_equal(out->count, 2 * COUNT);
    tr_runtime_close(rt);
}

static void the_choices_decide_the_order(void **state)
{
    static const uint64_t low[6] = {0, 0, 0, 0, 0, 0}, mixed[6] = {2, 1, 0, 5, 1, 0};
    (void)state;
    for (uint32_t workers = 1; workers <= 2; workers++) {
        diary a, b, again;
        run_choices(low, workers, &a);
        run_choices(mixed, workers, &b);
        run_choices(mixed, workers, &again);
        assert_memory_not_equal(a.order, b.order, 6 * sizeof(a.order[0]));
        assert_memory_equal(b.order, again.order, 6 * sizeof(b.order[0]));
    }
}

static void timers_are_due_when_the_callers_clock_says_so(void **state)
{
    test_actor actors[COUNT];
    diary d = {.count = 0};
    (void)state;
    tr_runtime *rt = open_diaries(actors, &d, 1);
    post(rt, FIRST, 500);
    while (tr_runtime_step(rt, 0))
        ;
    assert_int_equal(d.count, 1);
    assert_int_equal(tr_runtime_next_ns(rt), 1500);
    now_ns = 1499;
    assert_false(tr_runtime_step(rt, 0));
    now_ns = 1500;
    assert_true(tr_runtime_step(rt, 0));
    assert_int_equal(d.count, 2);
    assert_false(tr_runtime_step(rt, 0)); /* it had only that one */
    assert_int_equal(tr_runtime_next_ns(rt), UINT64_MAX);
    tr_runtime_close(rt);
}

/* -- a remote without room -- */

typedef struct {
    bool room;
    uint32_t sent;
} narrow_remote;

static tr_status narrow_send(void *ctx, uint32_t node_index, const tr_msg *msg)
{
    narrow_remote *r = ctx;
    (void)node_index;
    (void)msg;
    if (!r->room)
        return TR_E_AGAIN;
    r->sent++;
    return TR_OK;
}

static tr_status forward_receive(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    return env->send(env->ctx, test_id(PORT), TR_MSG_PONG, msg->header.step, 0, NULL);
}

/* A node with one actor, which forwards what it gets to another node. */
static tr_runtime *open_forward(test_actor *actor)
{
    tr_runtime *rt = open_runtime(0, 1, NULL);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(FIRST), "forward", &diary_ops, actor, 0, NULL),
                 TR_OK);
    CHECK_STATUS(tr_runtime_add_remote(rt, test_id(PORT), "far", 1, NULL), TR_OK);
    return rt;
}

static void an_actor_without_room_is_blocked_and_not_run(void **state)
{
    narrow_remote remote = {.room = false};
    test_actor actor = {.receive = forward_receive};
    tr_runtime *rt = open_forward(&actor);
    (void)state;
    tr_runtime_set_remote(rt, (tr_remote){.ctx = &remote, .send = narrow_send});
    CHECK_STATUS(tr_runtime_start_by_hand(rt, NULL), TR_OK);
    post(rt, FIRST, 0);
    post(rt, FIRST, 0);
    assert_true(tr_runtime_step(rt, 0));
    assert_true(tr_runtime_is_blocked(rt));
    assert_int_equal(tr_runtime_next_ns(rt), UINT64_MAX); /* only another try can tell */
    assert_false(tr_runtime_step(rt, 0));
    remote.room = true;
    while (tr_runtime_step(rt, 0))
        ;
    assert_int_equal(remote.sent, 2);
    assert_false(tr_runtime_is_blocked(rt));
    tr_runtime_close(rt);
}

static void give_up_far(void *ctx, uint32_t node_index)
{
    tr_runtime **rt = ctx;
    tr_runtime_peer_down(*rt, node_index);
}

static tr_status never_send(void *ctx, uint32_t node_index, const tr_msg *msg)
{
    (void)ctx, (void)node_index, (void)msg;
    return TR_E_AGAIN;
}

static void a_node_that_takes_nothing_for_too_long_is_given_up(void **state)
{
    test_actor actor = {.receive = forward_receive};
    tr_runtime *rt = open_forward(&actor);
    (void)state;
    tr_runtime_set_remote(
        rt, (tr_remote){.ctx = &rt, .send = never_send, .stall_ns = 100, .stalled = give_up_far});
    CHECK_STATUS(tr_runtime_start_by_hand(rt, NULL), TR_OK);
    now_ns = 1000;
    post(rt, FIRST, 0);
    assert_true(tr_runtime_step(rt, 0));
    now_ns = 1099;
    assert_false(tr_runtime_step(rt, 0));
    assert_true(tr_runtime_is_blocked(rt));
    now_ns = 1100;
    (void)tr_runtime_step(rt, 0); /* gives it up, and the next try drops the message */
    while (tr_runtime_step(rt, 0))
        ;
    assert_false(tr_runtime_is_blocked(rt));
    post(rt, FIRST, 0);
    assert_true(tr_runtime_step(rt, 0));
    assert_false(tr_runtime_is_blocked(rt));
    tr_runtime_close(rt);
}

/* -- nodes that go and come -- */

static tr_status note_kind(void *ctx, const tr_env *env, const tr_msg *msg)
{
    diary *d = ctx;
    (void)env;
    assert_true(d->count < 64);
    d->order[d->count++] = msg->header.kind;
    return TR_OK;
}

static tr_runtime *open_listener(test_actor *actor, diary *d)
{
    tr_runtime *rt = NULL;
    tr_runtime_config config = {.node_name = "spark1", .workers_count = 1, .now_ns = test_now};
    *actor = (test_actor){.receive = note_kind, .ctx = d};
    CHECK_STATUS(tr_runtime_open(&rt, &config, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(FIRST), "a", &diary_ops, actor, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(PORT), "port", 8, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start_by_hand(rt, NULL), TR_OK);
    return rt;
}

/* Letters: d the node goes, u it is there again, r the actor runs. */
static void check_news(const char *what, const char *told)
{
    test_actor actor;
    diary d = {.count = 0};
    tr_runtime *rt = open_listener(&actor, &d);
    for (const char *w = what; *w != '\0'; w++) {
        if (*w == 'd')
            tr_runtime_peer_down(rt, 3);
        else if (*w == 'u')
            tr_runtime_peer_up(rt, 3);
        while (*w == 'r' && tr_runtime_step(rt, 0))
            ;
    }
    assert_int_equal(d.count, strlen(told));
    for (uint32_t i = 0; i < d.count; i++)
        assert_int_equal(d.order[i], told[i] == 'd' ? TR_MSG_PEER_DOWN : TR_MSG_PEER_UP);
    tr_runtime_close(rt);
}

static void an_actor_is_told_of_a_node_that_comes_back(void **state)
{
    (void)state;
    check_news("ur", "");
    check_news("drur", "du");
    check_news("dur", "du");
    check_news("drudr", "dud"); /* what is true comes last */
    check_news("drudur", "ddu");
    check_news("druurdr", "dud");
}

static void a_step_of_another_placement_is_dropped_and_other_messages_are_not(void **state)
{
    test_actor actor;
    diary d = {.count = 0};
    tr_msg found;
    (void)state;
    tr_runtime *rt = open_listener(&actor, &d);
    tr_runtime_set_epoch(rt, 7);
    for (uint64_t epoch = 6; epoch <= 8; epoch++) {
        tr_msg msg = {.header = {.kind = TR_MSG_PONG, .target = test_id(FIRST), .epoch = epoch}};
        tr_runtime_deliver(rt, &msg);
        msg.header.kind = TR_MSG_PING;
        msg.header.step = 100 + epoch;
        tr_runtime_deliver(rt, &msg);
        msg.header.target = test_id(PORT);
        tr_runtime_deliver(rt, &msg);
        assert_true(tr_runtime_port_next(rt, test_id(PORT), &found));
        while (tr_runtime_step(rt, 0))
            ;
    }
    static const uint64_t kinds[] = {TR_MSG_PONG, TR_MSG_PONG, TR_MSG_PING, TR_MSG_PONG};
    assert_int_equal(d.count, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(d.order[i], kinds[i]);
    tr_runtime_close(rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choices_decide_the_order),
        cmocka_unit_test(timers_are_due_when_the_callers_clock_says_so),
        cmocka_unit_test(an_actor_without_room_is_blocked_and_not_run),
        cmocka_unit_test(a_node_that_takes_nothing_for_too_long_is_given_up),
        cmocka_unit_test(an_actor_is_told_of_a_node_that_comes_back),
        cmocka_unit_test(a_step_of_another_placement_is_dropped_and_other_messages_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
