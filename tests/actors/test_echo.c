/* test_echo.c - the echo actor, alone, with a fake environment.
 *
 * Goal: every arrow of the state diagram in echo.c, and every way in which it can be misused.
 * Method: receive is called directly; sends are recorded. No threads. */
#include "tests/check.h"

#include "actors/echo.h"

#include <stdlib.h>

typedef struct {
    tr_status answer; /* of send */
    uint32_t sends;
    tr_actor_id target;
    tr_msg_kind kind;
    uint64_t step;
    uint32_t argument;
} fake;

static tr_status fake_send(void *ctx, tr_actor_id target, tr_msg_kind kind, uint64_t step,
                           uint32_t argument, tr_buf *payload)
{
    fake *f = ctx;
    (void)payload;
    f->target = target;
    f->kind = kind;
    f->step = step;
    f->argument = argument;
    f->sends++;
    return f->answer;
}

static const tr_msg ping = {.header = {.kind = TR_MSG_PING,
                                       .source = (uint64_t)TR_ACTOR_TEST << 48 | 5,
                                       .step = 3,
                                       .argument = 7}};

static void *open_echo(tr_env *env, fake *f, uint32_t pings_max)
{
    *env = (tr_env){.ctx = f, .send = fake_send};
    void *state = calloc(1, tr_echo_ops.state_size);
    assert_non_null(state);
    CHECK_STATUS(tr_echo_ops.init(state, env, &(tr_echo_config){.pings_max = pings_max}, NULL),
                 TR_OK);
    return state;
}

static void close_echo(void *state)
{
    tr_echo_ops.teardown(state);
    free(state);
}

static void a_ping_is_answered_to_its_source(void **unused)
{
    (void)unused;
    fake f = {.answer = TR_OK};
    tr_env env;
    void *state = open_echo(&env, &f, 2);

    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_OK);
    assert_int_equal(f.sends, 1);
    assert_int_equal(f.target, ping.header.source);
    assert_int_equal(f.kind, TR_MSG_PONG);
    assert_int_equal(f.step, 3);
    assert_int_equal(f.argument, 7);
    close_echo(state);
}

static void after_its_last_answer_it_is_closed(void **unused)
{
    (void)unused;
    fake f = {.answer = TR_OK};
    tr_env env;
    void *state = open_echo(&env, &f, 2);

    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_OK);
    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_OK);
    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_E_CANCELED);
    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_E_CANCELED);
    assert_int_equal(f.sends, 2);
    close_echo(state);
}

static void an_answer_that_nobody_can_get_is_not_counted(void **unused)
{
    (void)unused;
    fake f = {.answer = TR_E_PEER};
    tr_env env;
    void *state = open_echo(&env, &f, 1);

    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_OK);
    f.answer = TR_E_INVALID;
    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_OK);
    f.answer = TR_OK;
    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_OK); /* still had its one ping */
    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_E_CANCELED);
    close_echo(state);
}

static void other_kinds_are_refused_and_a_dead_peer_is_no_matter(void **unused)
{
    (void)unused;
    fake f = {.answer = TR_OK};
    tr_env env;
    void *state = open_echo(&env, &f, 1);
    static const uint16_t kinds[] = {
#define X(name, value) TR_MSG_##name,
        TR_MSG_MAP(X)
#undef X
            999};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i] == TR_MSG_PING)
            continue;
        tr_msg msg = ping;
        msg.header.kind = kinds[i];
        CHECK_STATUS(tr_echo_ops.receive(state, &msg),
                     kinds[i] == TR_MSG_PEER_DOWN || kinds[i] == TR_MSG_PEER_UP ? TR_OK
                                                                                : TR_E_NOTSUP);
    }
    assert_int_equal(f.sends, 0);
    CHECK_STATUS(tr_echo_ops.receive(state, &ping), TR_OK); /* and still OPEN */
    close_echo(state);
}

static void bad_config_names_the_field(void **unused)
{
    (void)unused;
    tr_error err = {0};
    void *state = calloc(1, tr_echo_ops.state_size);
    assert_non_null(state);
    CHECK_STATUS(tr_echo_ops.init(state, NULL, &(tr_echo_config){0}, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "pings_max");
    free(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ping_is_answered_to_its_source),
        cmocka_unit_test(after_its_last_answer_it_is_closed),
        cmocka_unit_test(an_answer_that_nobody_can_get_is_not_counted),
        cmocka_unit_test(other_kinds_are_refused_and_a_dead_peer_is_no_matter),
        cmocka_unit_test(bad_config_names_the_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
