/* test_sim.c - the simulated network: what it keeps, what it varies, and what it breaks when asked.
 */
#include "tests/check.h"
#include "tests/transport/node.h"
#include "transport/sim/sim.h"

#include <stdlib.h>

#define MESSAGES 100

static tr_sim_net *net;
static node nodes[3];

static tr_sim_config usual(uint64_t seed)
{
    return (tr_sim_config){
        .seed = seed, .delay_ns = 2000, .delay_max_ns = 50000, .room = 16, .notice_ns = 100000};
}

static void open_net(const tr_sim_config *config, uint32_t count)
{
    tr_error err = {0};
    CHECK_STATUS(tr_sim_net_open(&net, config, &err), TR_OK);
    for (uint32_t n = 0; n < count; n++)
        CHECK_STATUS(
            node_open(&nodes[n], &tr_sim_ops, tr_sim_net_options(net), n, count, 64, 0, &err),
            TR_OK);
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = 0; b < count; b++)
            if (a != b)
                CHECK_STATUS(node_connect(&nodes[a], &nodes[b], &err), TR_OK);
}

static int close_net(void **state)
{
    bool complete = true;
    (void)state;
    for (uint32_t n = 0; n < 3; n++)
        complete &= node_finish(&nodes[n]);
    memset(nodes, 0, sizeof(nodes));
    tr_sim_net_close(net);
    net = NULL;
    return complete ? 0 : -1;
}

/* Moves the clock to the next thing that happens anywhere; false when there is none. */
static bool turn(uint32_t count)
{
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t n = 0; n < count; n++)
        if (nodes[n].transport != NULL && tr_sim_next_ns(net, n) < next_ns)
            next_ns = tr_sim_next_ns(net, n);
    if (next_ns == UINT64_MAX)
        return false;
    if (next_ns > tr_sim_now_ns(net))
        tr_sim_set_now_ns(net, next_ns);
    for (uint32_t n = 0; n < count; n++)
        if (nodes[n].transport != NULL)
            (void)nodes[n].ops->poll(nodes[n].transport);
    return true;
}

/* Sends MESSAGES of mixed sizes from 0 to 1, and from 1 to 0. */
static void exchange(void)
{
    for (uint32_t i = 0; i < MESSAGES; i++)
        for (uint32_t from = 0; from < 2; from++)
            while (node_send(&nodes[from], i * 37 % 4096) == TR_E_AGAIN)
                assert_true(turn(2));
    while (turn(2))
        ;
}

static void order_and_bytes_of_a_pair_are_kept(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        tr_sim_config config = usual(seed);
        open_net(&config, 2);
        exchange();
        for (uint32_t n = 0; n < 2; n++) {
            assert_int_equal(nodes[n].delivered_count, MESSAGES);
            assert_false(nodes[n].broken);
        }
        assert_int_equal(tr_sim_under_way(net), 0);
        assert_int_equal(close_net(NULL), 0);
    }
}

static uint64_t hash_of(uint64_t seed)
{
    tr_sim_config config = usual(seed);
    open_net(&config, 2);
    exchange();
    uint64_t hash = tr_sim_hash(net);
    assert_int_equal(close_net(NULL), 0);
    return hash;
}

static void a_seed_is_one_history(void **state)
{
    (void)state;
    assert_true(hash_of(1) == hash_of(1));
    assert_true(hash_of(1) != hash_of(2));
}

static void a_full_pair_is_no_error(void **state)
{
    tr_sim_config config = usual(1);
    (void)state;
    open_net(&config, 2);
    for (uint32_t i = 0; i < config.room; i++)
        CHECK_STATUS(node_send(&nodes[0], 10), TR_OK);
    CHECK_STATUS(node_send(&nodes[0], 10), TR_E_AGAIN);
    while (turn(2))
        ;
    CHECK_STATUS(node_send(&nodes[0], 10), TR_OK);
}

static void an_empty_pool_makes_messages_wait(void **state)
{
    tr_sim_config config = usual(1);
    (void)state;
    open_net(&config, 2);
    nodes[1].hold = true;
    for (uint32_t i = 0; i < 64; i++)
        while (node_send(&nodes[0], 10) == TR_E_AGAIN)
            assert_true(turn(2));
    while (nodes[1].delivered_count < 64)
        assert_true(turn(2));
    CHECK_STATUS(node_send(&nodes[0], 10), TR_OK);
    for (uint32_t i = 0; i < 100; i++)
        assert_true(turn(2)); /* the clock goes on, the message does not */
    assert_int_equal(nodes[1].delivered_count, 64);
    node_release_held(&nodes[1]);
    while (turn(2))
        ;
    assert_int_equal(nodes[1].delivered_count, 65);
    assert_false(nodes[1].broken);
}

static void what_a_cut_holds_back_comes_after_it(void **state)
{
    tr_sim_config config = usual(1);
    (void)state;
    open_net(&config, 3);
    tr_sim_cut(net, 0, 1, 1000000);
    assert_false(tr_sim_reaches(net, 1, 0));
    assert_true(tr_sim_reaches(net, 1, 2));
    CHECK_STATUS(node_send(&nodes[0], 10), TR_OK);
    assert_int_equal(tr_sim_next_ns(net, 1), 1000000);
    while (turn(3))
        ;
    assert_int_equal(tr_sim_now_ns(net), 1000000);
    assert_int_equal(nodes[1].delivered_count, 1);
    assert_true(tr_sim_reaches(net, 1, 0));
}

static void a_crash_loses_the_end_of_what_was_sent(void **state)
{
    bool some_lost = false, some_came = false;
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        tr_sim_config config = usual(seed);
        open_net(&config, 2);
        for (uint32_t i = 0; i < 10; i++)
            for (uint32_t n = 0; n < 2; n++)
                CHECK_STATUS(node_send(&nodes[n], 100), TR_OK);
        tr_sim_crash(net, 1);
        node_close(&nodes[1]);
        assert_false(tr_sim_reaches(net, 0, 1));
        while (turn(1))
            ;
        assert_false(nodes[0].broken);
        assert_int_equal(nodes[0].downs_count, 1);
        CHECK_STATUS(node_send(&nodes[0], 100), TR_E_PEER);
        some_lost |= nodes[0].delivered_count < 10;
        some_came |= nodes[0].delivered_count > 0;
        assert_int_equal(close_net(NULL), 0);
    }
    assert_true(some_lost);
    assert_true(some_came);
}

static void a_node_that_closes_is_heard_to_the_end(void **state)
{
    tr_sim_config config = usual(3);
    (void)state;
    open_net(&config, 2);
    for (uint32_t i = 0; i < 10; i++)
        CHECK_STATUS(node_send(&nodes[1], 100), TR_OK);
    node_finish(&nodes[1]); /* its pool is gone, too */
    while (turn(1))
        ;
    assert_int_equal(nodes[0].delivered_count, 10);
    assert_false(nodes[0].broken);
    assert_int_equal(nodes[0].downs_count, 1);
    assert_string_equal(nodes[0].down_reason, "closed");
}

static void nothing_reaches_a_successor(void **state)
{
    tr_sim_config config = usual(1);
    (void)state;
    open_net(&config, 2);
    for (uint32_t i = 0; i < 10; i++)
        CHECK_STATUS(node_send(&nodes[0], 100), TR_OK);
    node_finish(&nodes[0]);
    node_finish(&nodes[1]);
    for (uint32_t n = 0; n < 2; n++)
        CHECK_STATUS(node_open(&nodes[n], &tr_sim_ops, tr_sim_net_options(net), n, 2, 64, 0, NULL),
                     TR_OK);
    for (uint32_t n = 0; n < 2; n++)
        CHECK_STATUS(node_connect(&nodes[n], &nodes[1 - n], NULL), TR_OK);
    assert_false(turn(2));
    CHECK_STATUS(node_send(&nodes[0], 100), TR_OK);
    while (turn(2))
        ;
    assert_int_equal(nodes[1].delivered_count, 1);
    assert_int_equal(nodes[1].downs_count, 0);
}

static void every_bug_is_seen_by_the_receiver(void **state)
{
    static const tr_sim_bug bugs[] = {TR_SIM_BUG_DROP, TR_SIM_BUG_TWICE, TR_SIM_BUG_SWAP,
                                      TR_SIM_BUG_FLIP};
    (void)state;
    for (size_t i = 0; i < sizeof(bugs) / sizeof(bugs[0]); i++) {
        tr_sim_config config = usual(1);
        config.bug = bugs[i];
        config.bug_one_in = 10;
        open_net(&config, 2);
        exchange();
        assert_true(nodes[0].broken || nodes[1].broken);
        assert_int_equal(close_net(NULL), 0);
    }
}

static void a_wrong_option_is_named(void **state)
{
    static const char *const wrong[][2] = {{"net=no", "net=no"}, {"hub=1", "hub"}, {NULL, "net="}};
    tr_sim_config config = usual(1);
    (void)state;
    CHECK_STATUS(tr_sim_net_open(&net, &config, NULL), TR_OK);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tr_error err = {0};
        node n;
        CHECK_STATUS(node_open(&n, &tr_sim_ops, wrong[i][0], 0, 2, 4, 0, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, wrong[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(order_and_bytes_of_a_pair_are_kept, close_net),
        cmocka_unit_test_teardown(a_seed_is_one_history, close_net),
        cmocka_unit_test_teardown(a_full_pair_is_no_error, close_net),
        cmocka_unit_test_teardown(an_empty_pool_makes_messages_wait, close_net),
        cmocka_unit_test_teardown(what_a_cut_holds_back_comes_after_it, close_net),
        cmocka_unit_test_teardown(a_crash_loses_the_end_of_what_was_sent, close_net),
        cmocka_unit_test_teardown(a_node_that_closes_is_heard_to_the_end, close_net),
        cmocka_unit_test_teardown(nothing_reaches_a_successor, close_net),
        cmocka_unit_test_teardown(every_bug_is_seen_by_the_receiver, close_net),
        cmocka_unit_test_teardown(a_wrong_option_is_named, close_net),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
