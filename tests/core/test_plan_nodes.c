/* test_plan_nodes.c - a node gives everything away, and gets back what it had at home.
 *
 * Method: small plans by hand; then random homes from which nodes go and to which they come back in
 * another order, after which the plan must be home again. */
#include "tests/core/plans.h"

/* -- drain -- */

static void every_node_can_be_drained_until_one_has_everything(void **state)
{
    (void)state;

    for (uint32_t keep = 0; keep < 4; keep++) {
        tr_plan plan = make_small("sampler: n3\nngram: n2", 4);
        uint32_t mask = 15, batcher = plan.batcher_node;
        for (uint32_t node = 0; node < 4; node++) {
            uint32_t moved = 0;
            tr_error err = {0};
            if (node == keep)
                continue;
            mask &= ~(1u << node);
            CHECK_STATUS(tr_plan_drain(&plan, node, mask, NULL, &moved, &err), TR_OK);
            assert_true(moved > 0);
            check_complete(&plan, mask);
            assert_int_equal(tr_plan_uses(&plan, node), node == batcher);
            CHECK_STATUS(tr_plan_drain(&plan, node, mask, NULL, &moved, &err), TR_OK);
            assert_int_equal(moved, 0);
        }
        assert_int_equal(plan.ranges_count, 1); /* joined */
        assert_int_equal(plan.batcher_node, batcher);
        tr_plan_free(&plan);
    }
}

static void terms_of_a_drained_node_are_dealt_round_the_others(void **state)
{
    tr_plan plan = make_small("experts: [{node: n0}]", 3);
    uint32_t moved, counts[3] = {0};
    (void)state;

    CHECK_STATUS(tr_plan_drain(&plan, 0, 6, NULL, &moved, NULL), TR_OK);
    for (uint32_t l = 2; l < 6; l++)
        for (uint32_t t = 0; t < 8; t++)
            counts[tr_plan_channel_node(&plan, l, t)]++;
    assert_int_equal(counts[0], 0);
    assert_int_equal(counts[1] + counts[2], 32);
    assert_in_range(counts[1], 12, 20);
    tr_plan_free(&plan);
}

static void a_drained_node_is_dealt_by_the_room_of_the_others(void **state)
{
    static const struct {
        uint64_t room[4];
        uint32_t counts[4]; /* of 32 experts */
    } rows[] = {
        {{0, 1 << 30, 3u << 30, 0}, {0, 8, 24, 0}},
        {{0, 1 << 20, 1 << 20, 1 << 21}, {0, 8, 8, 16}},
        {{0, 1023, 0, 1024}, {0, 0, 0, 32}},                             /* no room */
        {{UINT64_MAX, UINT64_MAX, 1 << 30, UINT64_MAX}, {0, 16, 0, 16}}, /* no limit */
    };
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_plan plan =
            make_small("experts: [{node: n0}]\nattention: [{node: n0}]\nvocabulary: [{node: n0}]\n"
                       "sampler: n0\nrouters: [{node: n0, layers: all}]",
                       4);
        uint32_t moved, counts[4] = {0}, most = 1;
        uint64_t room[TR_NODES_MAX] = {0};
        memcpy(room, rows[i].room, sizeof(rows[i].room));
        for (uint32_t n = 1; n < 4; n++)
            most = room[n] > room[most] ? n : most;
        CHECK_STATUS(tr_plan_drain(&plan, 0, 14, room, &moved, NULL), TR_OK);
        for (uint32_t l = 2; l < 6; l++)
            for (uint32_t t = 0; t < 8; t++)
                counts[tr_plan_channel_node(&plan, l, t)]++;
        assert_memory_equal(counts, rows[i].counts, sizeof(counts));
        assert_int_equal(plan.ranges_count, 1);
        assert_int_equal(plan.ranges[0].node, most);
        assert_int_equal(plan.sampler_node, most);
        assert_int_equal(plan.spans[0].nodes, 1u << most);
        check_complete(&plan, 14);
        tr_plan_free(&plan);
    }
}

static void a_node_is_not_drained_when_nobody_has_room(void **state)
{
    tr_plan plan = make_small("", 3), before = make_small("", 3);
    const uint64_t room[TR_NODES_MAX] = {1 << 30, 1 << 30, 0};
    tr_error err = {0};
    uint32_t moved;
    (void)state;

    CHECK_STATUS(tr_plan_drain(&plan, 1, 4, room, &moved, &err), TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "no other node has room");
    assert_true(same_plan(&plan, &before));
    tr_plan_free(&plan);
    tr_plan_free(&before);
}

static void the_last_router_goes_to_the_first_of_the_others(void **state)
{
    tr_plan plan = make_small("routers: [{node: n1, layers: 0-2}, {node: n2, layers: 3-last}]", 3);
    uint32_t moved;
    (void)state;

    assert_int_equal(plan.spans_count, 2);
    CHECK_STATUS(tr_plan_drain(&plan, 2, 2, NULL, &moved, NULL), TR_OK);
    assert_int_equal(plan.spans_count, 1); /* joined with its neighbour */
    assert_int_equal(plan.spans[0].nodes, 2);
    CHECK_STATUS(tr_plan_drain(&plan, 1, 5, NULL, &moved, NULL), TR_OK);
    assert_int_equal(plan.spans[0].nodes, 1);
    assert_int_equal(plan.spans[0].last_layer, 5);
    tr_plan_free(&plan);
}

static void the_only_node_cannot_be_drained(void **state)
{
    tr_plan plan = make_small("", 2), before = make_small("", 2);
    tr_error err = {0};
    uint32_t moved;
    (void)state;

    CHECK_STATUS(tr_plan_drain(&plan, 1, 0, NULL, &moved, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "no other node");
    assert_true(same_plan(&plan, &before));
    tr_plan_free(&plan);
    tr_plan_free(&before);
}

static void a_replica_goes_with_its_node_and_nobody_takes_it_over(void **state)
{
    tr_plan plan = make_small("", 3);
    uint16_t *layer = plan.channel + 3 * TR_TERMS_MAX;
    uint32_t moved;
    (void)state;

    layer[0] = 1 | 2;
    layer[7] = 1 | 2 | 4;
    CHECK_STATUS(tr_plan_drain(&plan, 1, 5, NULL, &moved, NULL), TR_OK);
    assert_int_equal(layer[0], 1);
    assert_int_equal(layer[7], 1 | 4);
    check_complete(&plan, 5);
    tr_plan_free(&plan);
}

/* -- return -- */

static void what_stood_in_goes_and_what_shares_at_home_stays(void **state)
{
    tr_plan home = make_small("", 4), plan = make_small("", 4);
    size_t at = (size_t)3 * TR_TERMS_MAX;
    uint32_t moved;
    (void)state;

    static const struct {
        uint16_t home, now, expected;
    } rows[] = {
        {2, 1, 2},             /* drained to node 0 */
        {2, 1 | 4, 2},         /* and copied there */
        {2 | 4, 4, 2 | 4},     /* node 2 has kept it */
        {2 | 4, 1 | 4, 2 | 4}, /* node 0 stood in */
        {2 | 4, 8, 2},         /* node 2 has given it away, too: it comes back by itself */
        {2, 1 | 2, 1 | 2},     /* node 1 has it: nothing to give back */
        {1, 8, 8},             /* not its own */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        home.channel[at + i] = rows[i].home;
        plan.channel[at + i] = rows[i].now;
    }
    CHECK_STATUS(tr_plan_return(&plan, &home, 1, &moved, NULL), TR_OK);
    assert_int_equal(moved, 5);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(plan.channel[at + i], rows[i].expected);
    tr_plan_free(&home);
    tr_plan_free(&plan);
}

static void a_router_comes_back_with_the_work_of_its_node(void **state)
{
    const char *rules =
        "routers: [{node: n0, layers: 0-2}, {node: n1, layers: 0-2}, {node: n1, layers: 3-last}]";
    tr_plan home = make_small(rules, 2), plan = make_small(rules, 2);
    uint32_t moved;
    (void)state;

    assert_int_equal(home.spans_count, 2);
    CHECK_STATUS(tr_plan_drain(&plan, 1, 1, NULL, &moved, NULL), TR_OK);
    assert_int_equal(plan.spans_count, 1);
    CHECK_STATUS(tr_plan_return(&plan, &home, 1, &moved, NULL), TR_OK);
    assert_true(same_plan(&plan, &home));
    CHECK_STATUS(tr_plan_return(&plan, &home, 1, &moved, NULL), TR_OK);
    assert_int_equal(moved, 0);
    tr_plan_free(&home);
    tr_plan_free(&plan);
}

/* A home with replicas and spans. */
static tr_plan random_home(uint32_t nodes, const tr_plan_shape *shape)
{
    char rules[256];
    uint32_t cut = random_below(shape->layers_count), n = random_below(nodes);
    int size = snprintf(rules, sizeof(rules), "sampler: n%u\n", random_below(nodes));

    if (cut > 0 && random_below(2) != 0)
        snprintf(rules + size, sizeof(rules) - (size_t)size,
                 "routers: [{node: n%u, layers: 0-%u}, {node: n%u, layers: 0-%u}, "
                 "{node: n%u, layers: %u-last}]",
                 n, cut - 1, random_below(nodes), cut - 1, random_below(nodes), cut);
    tr_plan home = make(rules, nodes, shape);
    for (uint32_t l = 0; l < shape->layers_count; l++)
        for (uint32_t t = 0; t < shape->experts[l]; t++)
            if (random_below(3) == 0)
                home.channel[(size_t)l * TR_TERMS_MAX + t] |= (uint16_t)(1u << random_below(nodes));
    return home;
}

/* The nodes in a random order. */
static void shuffle(uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t k = random_below(i), kept = order[i - 1];
        order[i - 1] = order[k];
        order[k] = kept;
    }
}

static void nodes_that_went_and_came_back_leave_the_plan_as_at_home(void **state)
{
    (void)state;

    for (uint32_t round = 0; round < 300; round++) {
        random_state = round + 1;
        tr_plan_shape shape = random_shape();
        uint32_t nodes = 2 + random_below(5), order[TR_NODES_MAX], moved;
        tr_plan home = random_home(nodes, &shape), plan;
        uint32_t mask = (1u << nodes) - 1, gone = 1 + random_below(nodes - 1), left = 0;

        CHECK_STATUS(tr_plan_copy(&plan, &home, NULL), TR_OK);
        shuffle(order, nodes);
        for (uint32_t i = 0; i < gone; i++) {
            left |= 1u << order[i];
            CHECK_STATUS(tr_plan_drain(&plan, order[i], mask & ~left, NULL, &moved, NULL), TR_OK);
            check_complete(&plan, mask & ~left);
        }
        shuffle(order, nodes);
        for (uint32_t i = 0; i < nodes; i++) {
            left &= ~(1u << order[i]);
            CHECK_STATUS(tr_plan_return(&plan, &home, order[i], &moved, NULL), TR_OK);
            check_complete(&plan, mask & ~left);
        }
        if (!same_plan(&plan, &home))
            fail_msg("round %u", round);
        tr_plan_free(&plan);
        tr_plan_free(&home);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_node_can_be_drained_until_one_has_everything),
        cmocka_unit_test(terms_of_a_drained_node_are_dealt_round_the_others),
        cmocka_unit_test(a_drained_node_is_dealt_by_the_room_of_the_others),
        cmocka_unit_test(a_node_is_not_drained_when_nobody_has_room),
        cmocka_unit_test(the_last_router_goes_to_the_first_of_the_others),
        cmocka_unit_test(the_only_node_cannot_be_drained),
        cmocka_unit_test(a_replica_goes_with_its_node_and_nobody_takes_it_over),
        cmocka_unit_test(what_stood_in_goes_and_what_shares_at_home_stays),
        cmocka_unit_test(a_router_comes_back_with_the_work_of_its_node),
        cmocka_unit_test(nodes_that_went_and_came_back_leave_the_plan_as_at_home),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
