/* test_timers.c - the heap: order in time, ties, the limit, forgetting an owner. */
#include "tests/check.h"

#include "core/timers.h"

#include <stdlib.h>

static void timers_come_in_the_order_of_their_times(void **state)
{
    (void)state;
    tr_timers timers;
    CHECK_STATUS(tr_timers_init(&timers, 512, NULL), TR_OK);
    uint32_t random = 1;
    for (uint32_t i = 0; i < 512; i++) {
        random = random * 1664525u + 1013904223u;
        CHECK_STATUS(tr_timers_add(&timers, random % 100, NULL, i), TR_OK);
    }
    tr_timer timer;
    tr_timer last = {.at_ns = 0};
    for (uint32_t i = 0; i < 512; i++) {
        assert_int_equal(tr_timers_first_ns(&timers), timers.heap[0].at_ns);
        assert_true(tr_timers_next(&timers, 100, &timer));
        assert_true(timer.at_ns >= last.at_ns);
        if (i > 0 && timer.at_ns == last.at_ns)
            assert_true(timer.cookie > last.cookie); /* the one that was added first */
        last = timer;
    }
    assert_false(tr_timers_next(&timers, 100, &timer));
    assert_true(tr_timers_first_ns(&timers) == UINT64_MAX);
    tr_timers_teardown(&timers);
}

static void a_timer_waits_for_its_time(void **state)
{
    (void)state;
    tr_timers timers;
    tr_timer timer;
    CHECK_STATUS(tr_timers_init(&timers, 2, NULL), TR_OK);
    CHECK_STATUS(tr_timers_add(&timers, 10, NULL, 1), TR_OK);
    assert_false(tr_timers_next(&timers, 9, &timer));
    assert_true(tr_timers_next(&timers, 10, &timer));
    assert_int_equal(timer.cookie, 1);
    tr_timers_teardown(&timers);
}

static void the_limit_is_told_and_not_crossed(void **state)
{
    (void)state;
    tr_timers timers;
    CHECK_STATUS(tr_timers_init(&timers, 2, NULL), TR_OK);
    CHECK_STATUS(tr_timers_add(&timers, 1, NULL, 0), TR_OK);
    CHECK_STATUS(tr_timers_add(&timers, 1, NULL, 0), TR_OK);
    CHECK_STATUS(tr_timers_add(&timers, 1, NULL, 0), TR_E_NOMEM);
    tr_timers_teardown(&timers);
}

static void an_owner_is_forgotten_and_the_others_keep_their_order(void **state)
{
    (void)state;
    tr_timers timers;
    int owners[3];
    CHECK_STATUS(tr_timers_init(&timers, 90, NULL), TR_OK);
    for (uint32_t i = 0; i < 90; i++)
        CHECK_STATUS(tr_timers_add(&timers, (i * 37) % 90, &owners[i % 3], i), TR_OK);
    tr_timers_drop(&timers, &owners[1]);
    tr_timer timer;
    uint64_t last_ns = 0;
    uint32_t count = 0;
    while (tr_timers_next(&timers, UINT64_MAX, &timer)) {
        assert_ptr_not_equal(timer.owner, &owners[1]);
        assert_true(timer.at_ns >= last_ns);
        last_ns = timer.at_ns;
        count++;
    }
    assert_int_equal(count, 60);
    tr_timers_teardown(&timers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_come_in_the_order_of_their_times),
        cmocka_unit_test(a_timer_waits_for_its_time),
        cmocka_unit_test(the_limit_is_told_and_not_crossed),
        cmocka_unit_test(an_owner_is_forgotten_and_the_others_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
