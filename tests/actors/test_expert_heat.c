/* test_expert_heat.c - counters of experts, and the line through what was measured.
 *
 * Goal: figures of one term touch no other's, the line is the one that the measurements lie on, and
 * it never says that rows cost less than nothing. */
#include "actors/expert_heat.h"
#include "tests/check.h"

#include <math.h>

/* Layers of four experts and two slices, of no experts, and of three experts alone. */
static const tr_plan_shape shape = {
    .layers_count = 3, .experts = {4, 0, 3}, .slices = {2, 1, 0}, .vocab_size = 64};

static int set_up(void **state)
{
    static tr_expert_heat heat;
    CHECK_STATUS(tr_expert_heat_init(&heat, &shape, NULL), TR_OK);
    *state = &heat;
    return 0;
}

static int tear_down(void **state)
{
    tr_expert_heat_teardown(*state);
    return 0;
}

static void figures_of_a_term_touch_no_other(void **state)
{
    tr_expert_heat *heat = *state;

    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t t = 0; t < (uint32_t)shape.experts[l] + shape.slices[l]; t++)
            for (uint32_t i = 0; i <= t; i++)
                tr_expert_heat_add(heat, l, t, 10 * l + 1, 100 + t);
    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t t = 0; t < (uint32_t)shape.experts[l] + shape.slices[l]; t++) {
            tr_heat_count count = tr_expert_heat_count(heat, l, t);
            assert_int_equal(count.steps, t + 1);
            assert_int_equal(count.rows, (t + 1) * (10 * l + 1));
            assert_int_equal(count.busy_ns, (t + 1) * (100 + t));
        }
}

static void the_line_goes_through_what_was_measured(void **state)
{
    tr_expert_heat *heat = *state;

    for (uint32_t i = 0; i < 60; i++)
        tr_expert_heat_add(heat, 0, i % 4, 1 + i % 7, 3000 + 250 * (1 + i % 7));
    tr_expert_heat_add(heat, 0, 4, 64, 1); /* slices are another sort */
    tr_heat_cost cost = tr_expert_heat_cost(heat, 0, false);
    assert_int_equal(cost.steps, 60);
    assert_true(fabs(cost.fixed_ns - 3000) < 0.01 && fabs(cost.row_ns - 250) < 0.01);
}

static void steps_that_are_all_alike_have_a_mean_and_no_slope(void **state)
{
    tr_expert_heat *heat = *state;

    for (uint32_t i = 0; i < 10; i++)
        tr_expert_heat_add(heat, 2, i % 3, 1, 500 + 20 * i);
    tr_heat_cost cost = tr_expert_heat_cost(heat, 2, false);
    assert_true(fabs(cost.fixed_ns - 590) < 0.01 && cost.row_ns == 0);
}

static void no_part_of_a_cost_is_negative(void **state)
{
    tr_expert_heat *heat = *state;

    tr_expert_heat_add(heat, 0, 0, 1, 900); /* more rows, less time: noise */
    tr_expert_heat_add(heat, 0, 1, 9, 100);
    tr_heat_cost cost = tr_expert_heat_cost(heat, 0, false);
    assert_true(cost.fixed_ns == 500 && cost.row_ns == 0);

    tr_expert_heat_add(heat, 1, 0, 2, 100); /* steeper than a line through zero */
    tr_expert_heat_add(heat, 1, 0, 4, 1000);
    cost = tr_expert_heat_cost(heat, 1, true);
    assert_true(cost.fixed_ns == 0 && fabs(cost.row_ns - 210) < 0.01);
}

static void what_was_never_asked_has_no_cost(void **state)
{
    assert_int_equal(tr_expert_heat_cost(*state, 0, false).steps, 0);
    assert_int_equal(tr_expert_heat_cost(*state, 2, true).steps, 0);
}

static void the_routing_of_a_step_is_a_head_and_its_experts(void **state)
{
    tr_expert_heat *heat = *state;
    const uint32_t expert[3][2] = {{2, 0}, {2, 1}, {1, 2}};
    uint32_t words[TR_ROUTING_WORDS];

    for (uint64_t step = 1; step < TR_ROUTING_EVERY; step++) /* not these */
        tr_expert_heat_record(heat, 2, step, &expert[0][0], 3, 2);
    assert_int_equal(tr_expert_heat_routing(heat, 2, words), 0);
    tr_expert_heat_record(heat, 2, TR_ROUTING_EVERY, &expert[0][0], 3, 2);
    tr_expert_heat_record(heat, 2, 2 * TR_ROUTING_EVERY, &expert[0][0], 1, 2);
    const uint32_t expected[] = {TR_ROUTING_HEAD << 16 | 3, 2 << 16 | 3, 0 << 16 | 1, 1 << 16 | 2,
                                 TR_ROUTING_HEAD << 16 | 1, 2 << 16 | 1, 0 << 16 | 1};
    assert_int_equal(tr_expert_heat_routing(heat, 2, words), 7);
    assert_memory_equal(words, expected, sizeof(expected));
    assert_int_equal(tr_expert_heat_routing(heat, 0, words), 0); /* another layer's ring */
}

static void the_oldest_steps_make_room_as_a_whole(void **state)
{
    tr_expert_heat *heat = *state;
    static uint32_t words[TR_ROUTING_WORDS];

    for (uint32_t i = 0; i < TR_ROUTING_WORDS; i++) { /* steps of three and of two words */
        const uint32_t expert[] = {i % 4, i % 2 == 0 ? (i + 1) % 4 : i % 4};
        tr_expert_heat_record(heat, 0, i * TR_ROUTING_EVERY, expert, 2, 1);
    }
    uint32_t count = tr_expert_heat_routing(heat, 0, words);
    assert_true(count > TR_ROUTING_WORDS - 3);
    assert_int_equal(words[0] >> 16, TR_ROUTING_HEAD);
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool head = words[i] >> 16 == TR_ROUTING_HEAD;
        assert_true(head == (left == 0)); /* the rows of a step's experts add up */
        left = head ? (words[i] & 0xffff) : left - (words[i] & 0xffff);
    }
    assert_int_equal(left, 0);
}

static void waiting_is_a_mean_of_the_last(void **state)
{
    tr_expert_heat *heat = *state;

    assert_int_equal(tr_expert_heat_waited(heat, 2), 0);
    tr_expert_heat_wait(heat, 2, 6400);
    assert_int_equal(tr_expert_heat_waited(heat, 2), 6400);
    for (uint32_t i = 0; i < 1000; i++)
        tr_expert_heat_wait(heat, 2, 64000);
    assert_in_range(tr_expert_heat_waited(heat, 2), 60000, 64000);
    assert_int_equal(tr_expert_heat_waited(heat, 0), 0);
}

int main(void)
{
#define WITH_HEAT(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_HEAT(figures_of_a_term_touch_no_other),
        WITH_HEAT(the_line_goes_through_what_was_measured),
        WITH_HEAT(steps_that_are_all_alike_have_a_mean_and_no_slope),
        WITH_HEAT(no_part_of_a_cost_is_negative),
        WITH_HEAT(what_was_never_asked_has_no_cost),
        WITH_HEAT(the_routing_of_a_step_is_a_head_and_its_experts),
        WITH_HEAT(waiting_is_a_mean_of_the_last),
        WITH_HEAT(the_oldest_steps_make_room_as_a_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
