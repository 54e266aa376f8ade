/* test_supervisor.c - an actor whose receive fails: who learns of it, and what becomes of it.
 *
 * A port stands in for the batcher where the test wants to see what the batcher is told. */
#include "tests/core/runtime_fixture.h"

#include "core/log.h"

#define BATCHER tr_actor_id_make(TR_ACTOR_BATCHER, 0)
#define PATIENT test_id(7)

/* Fails for every message with argument 1; answers the others. */
static tr_status fail_on_one(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    if (msg->header.kind == TR_MSG_TIMER)
        return env->send(env->ctx, BATCHER, TR_MSG_EVENT, 0, msg->header.argument, NULL);
    if (msg->header.argument == 1)
        return TR_E_INVALID;
    if (msg->header.argument == 2)
        return env->timer(env->ctx, 0, 5);
    return env->send(env->ctx, BATCHER, TR_MSG_PONG, msg->header.step, 0, NULL);
}

static tr_runtime *open_patient(test_actor *actor, const tr_actor_ops *ops)
{
    tr_log_set_level(TR_LOG_ERROR);
    tr_runtime *rt = open_runtime(0, 1, NULL);
    CHECK_STATUS(tr_runtime_spawn(rt, PATIENT, "patient", ops, actor, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, BATCHER, "batcher", 64, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    return rt;
}

static tr_actor_stat stat_of_patient(tr_runtime *rt)
{
    tr_actor_stat rows[2];
    assert_int_equal(tr_runtime_stats(rt, rows, 2), 2);
    assert_int_equal(rows[0].id, PATIENT);
    return rows[0];
}

static void expect(tr_runtime *rt, tr_msg_kind kind, uint64_t step)
{
    tr_msg msg = next_message(rt, BATCHER);
    assert_string_equal(tr_msg_kind_name(msg.header.kind), tr_msg_kind_name(kind));
    assert_int_equal(msg.header.step, step);
    assert_int_equal(msg.header.source, PATIENT);
    if (kind == TR_MSG_ACTOR_FAILED)
        assert_int_equal(msg.header.argument, 7);
}

static void a_failed_actor_stays_down_and_each_lost_step_is_told_once(void **state)
{
    (void)state;
    test_actor actor = {.receive = fail_on_one};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    tr_runtime *rt = open_patient(&actor, &ops);

    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 10, 0);
    expect(rt, TR_MSG_PONG, 10);
    assert_false(stat_of_patient(rt).failed);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 11, 1);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 11, 0); /* the same step: not told again */
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 0, 0);  /* no step: nobody waits for it */
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 12, 0);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 12, 0);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 13, 0);
    expect(rt, TR_MSG_ACTOR_FAILED, 11);
    expect(rt, TR_MSG_ACTOR_FAILED, 12);
    expect(rt, TR_MSG_ACTOR_FAILED, 13);
    assert_true(stat_of_patient(rt).failed);
    assert_int_equal(stat_of_patient(rt).restarts, 0);

    tr_runtime_stop(rt);
    tr_msg msg;
    assert_false(tr_runtime_port_next(rt, BATCHER, &msg));
    assert_int_equal(actor.inits, 1);
    assert_int_equal(actor.teardowns, 1); /* at the failure, and not again at the stop */
    tr_runtime_close(rt);
}

static void a_failed_actor_is_restarted_as_often_as_its_policy_says(void **state)
{
    (void)state;
    test_actor actor = {.receive = fail_on_one};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1,
                              .restarts_max = 2};
    tr_runtime *rt = open_patient(&actor, &ops);

    for (uint64_t step = 1; step <= 2; step++) {
        post_patiently(rt, 0, PATIENT, TR_MSG_PING, step, 1);
        expect(rt, TR_MSG_ACTOR_FAILED, step);
        post_patiently(rt, 0, PATIENT, TR_MSG_PING, step, 0);
        expect(rt, TR_MSG_PONG, step); /* the fresh state works */
        assert_int_equal(actor.inits, step + 1);
        assert_int_equal(stat_of_patient(rt).restarts, step);
        assert_false(stat_of_patient(rt).failed);
    }
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 3, 1);
    expect(rt, TR_MSG_ACTOR_FAILED, 3);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 4, 0);
    expect(rt, TR_MSG_ACTOR_FAILED, 4);
    assert_true(stat_of_patient(rt).failed);
    tr_runtime_close(rt);
    assert_int_equal(actor.inits, 3);
    assert_int_equal(actor.teardowns, 3);
}

static tr_status fail_to_begin_again(void *ctx, const tr_env *env)
{
    (void)env;
    return atomic_fetch_add((_Atomic uint32_t *)ctx, 1) == 0 ? TR_OK : TR_E_NOMEM;
}

static void an_actor_that_cannot_begin_again_stays_down(void **state)
{
    (void)state;
    _Atomic uint32_t begun = 0;
    test_actor actor = {.receive = fail_on_one, .init = fail_to_begin_again, .ctx = &begun};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1,
                              .restarts_max = 9};
    tr_runtime *rt = open_patient(&actor, &ops);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 1, 1);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 2, 0);
    expect(rt, TR_MSG_ACTOR_FAILED, 1);
    expect(rt, TR_MSG_ACTOR_FAILED, 2);
    tr_runtime_close(rt);
    assert_int_equal(begun, 2);
    assert_int_equal(actor.teardowns, 1); /* of the first life; the second never was */
}

static void timers_of_the_failed_life_are_forgotten(void **state)
{
    (void)state;
    test_actor actor = {.receive = fail_on_one};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1,
                              .restarts_max = 1};
    tr_log_set_level(TR_LOG_ERROR);
    tr_runtime *rt = open_runtime(0, 1, NULL);
    CHECK_STATUS(tr_runtime_spawn(rt, PATIENT, "patient", &ops, &actor, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, BATCHER, "batcher", 64, NULL, NULL, NULL), TR_OK);
    /* Both are there before the first turn, so the timer is set and the failure comes before the
     * worker looks at its timers again. */
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 1, 2);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 2, 1);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 3, 0);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    expect(rt, TR_MSG_ACTOR_FAILED, 2);
    expect(rt, TR_MSG_PONG, 3);
    post_patiently(rt, 0, PATIENT, TR_MSG_PING, 4, 0);
    expect(rt, TR_MSG_PONG, 4); /* and no EVENT of the timer before it */
    tr_runtime_close(rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_actor_stays_down_and_each_lost_step_is_told_once),
        cmocka_unit_test(a_failed_actor_is_restarted_as_often_as_its_policy_says),
        cmocka_unit_test(an_actor_that_cannot_begin_again_stays_down),
        cmocka_unit_test(timers_of_the_failed_life_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
