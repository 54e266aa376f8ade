/* test_replica.c - who computes which rows of experts with replicas.
 *
 * Method: a layer of 8 experts over three nodes, placed by hand; the dealt nodes are compared with
 * a table, then random placements and routings are checked for the rules alone. */
#include "tests/actors/fake_env.h"

#include "actors/replica.h"

enum { EXPERTS = 8, TOP_K = 2, ROWS_MAX = 128 };

typedef struct {
    fake_cluster c;
    tr_arena arena;
    size_t arena_size;
    tr_replicas r;
} fixture;

/* Expert e on the nodes of masks[e], the slice on node 0, routers on a mask. */
static void open_fixture(fixture *x, const uint16_t *masks, uint32_t routers)
{
    fake_cluster_make(&x->c, 3);
    x->c.layers[0].channel = (tr_channel_spec){.experts = EXPERTS, .top_k = TOP_K};
    x->c.plan.shape.experts[0] = EXPERTS;
    x->c.plan.shape.slices[0] = 1;
    x->c.plan.spans[0].nodes = routers;
    memcpy(x->c.channel, masks, EXPERTS * sizeof(*masks));
    x->c.channel[EXPERTS] = 1;
    x->arena = (tr_arena){0};
    tr_replicas_load(&x->r, &x->c.node, &x->arena);
    x->arena_size = x->arena.layout.used;
    CHECK_STATUS(tr_arena_allocate(&x->arena, x->arena_size, NULL), TR_OK);
    tr_replicas_load(&x->r, &x->c.node, &x->arena);
    assert_int_equal(x->arena.layout.used, x->arena_size);
}

static void close_fixture(fixture *x)
{
    tr_arena_free(&x->arena, x->arena_size);
    tr_kv_memory_close(&x->c.kv_memory);
}

static uint32_t deal(fixture *x, const uint32_t *expert, uint32_t rows)
{
    uint32_t nodes = 0;
    assert_true(tr_replicas_deal(&x->r, &x->c.node, 0, expert, rows, TOP_K, &nodes));
    return nodes;
}

static void without_replicas_everyone_computes_what_it_has(void **state)
{
    const uint16_t masks[EXPERTS] = {1, 1, 2, 2, 2, 4, 4, 4};
    const uint32_t expert[] = {0, 2, 7, 1, 3, 4};
    const uint8_t expected[] = {0, 1, 2, 0, 1, 1};
    fixture x;
    (void)state;

    open_fixture(&x, masks, 7);
    assert_int_equal(deal(&x, expert, 3), 7);
    assert_memory_equal(x.r.node, expected, sizeof(expected));
    assert_int_equal(deal(&x, expert, 1), 3); /* nobody else is sent rows */
    close_fixture(&x);
}

static void a_holder_beside_a_router_comes_first(void **state)
{
    const uint16_t masks[EXPERTS] = {2 | 4, 2 | 4, 2 | 4, 2 | 4, 2 | 4, 2 | 4, 2 | 4, 1 | 4};
    const uint32_t expert[] = {0, 7, 1, 2, 3, 4};
    const uint8_t expected[] = {1, 0, 1, 1, 1, 1};
    fixture x;
    (void)state;

    open_fixture(&x, masks, 1 | 2);
    assert_int_equal(deal(&x, expert, 3), 3);
    assert_memory_equal(x.r.node, expected, sizeof(expected));
    close_fixture(&x);
}

static void rows_go_to_the_holder_with_fewer_and_ties_to_the_lowest(void **state)
{
    /* Three rows: the slice gives node 0 three, expert 5 two to node 2. Expert 0's two rows go to
     * node 1, expert 1's one row to node 1 or 2, which are even, and expert 2's to node 2. */
    const uint16_t masks[EXPERTS] = {7, 7, 7, 7, 7, 4, 7, 7};
    const uint32_t expert[] = {0, 5, 1, 5, 0, 2};
    const uint8_t expected[] = {1, 2, 1, 2, 1, 2};
    fixture x;
    (void)state;

    open_fixture(&x, masks, 7);
    assert_int_equal(deal(&x, expert, 3), 6);
    assert_memory_equal(x.r.node, expected, sizeof(expected));
    close_fixture(&x);
}

static void many_rows_of_one_expert_are_dealt_in_blocks(void **state)
{
    const uint16_t masks[EXPERTS] = {1, 6, 1, 1, 1, 1, 1, 1};
    uint32_t expert[ROWS_MAX * TOP_K], counts[3] = {0};
    fixture x;
    (void)state;

    for (uint32_t i = 0; i < ROWS_MAX * TOP_K; i++)
        expert[i] = i % 2; /* every row: experts 0 and 1 */
    open_fixture(&x, masks, 7);
    assert_int_equal(deal(&x, expert, ROWS_MAX), 7);
    for (uint32_t t = 0; t < ROWS_MAX; t++) {
        assert_int_equal(x.r.node[2 * t], 0);
        assert_int_equal(x.r.node[2 * t + 1], 1 + t / TR_REPLICA_ROWS % 2);
        counts[x.r.node[2 * t + 1]]++;
    }
    assert_int_equal(counts[1], counts[2]);
    close_fixture(&x);
}

static void an_expert_that_the_layer_has_not_is_refused(void **state)
{
    const uint16_t masks[EXPERTS] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t expert[] = {0, EXPERTS}, nodes;
    fixture x;
    (void)state;

    open_fixture(&x, masks, 7);
    assert_false(tr_replicas_deal(&x.r, &x.c.node, 0, expert, 1, TOP_K, &nodes));
    expert[1] = UINT32_MAX;
    assert_false(tr_replicas_deal(&x.r, &x.c.node, 0, expert, 1, TOP_K, &nodes));
    close_fixture(&x);
}

static uint32_t random_state;

/* In [0, n): a linear congruence, enough for tests. */
static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

/* Every row has a node that holds its expert and, if a holder has a router, one that has. */
static void check_dealt(const fixture *x, const uint32_t *expert, uint32_t rows, uint32_t nodes)
{
    uint32_t routers = x->c.plan.spans[0].nodes, seen = 0;
    for (uint32_t i = 0; i < rows * TOP_K; i++) {
        uint32_t holders = tr_plan_channel_nodes(&x->c.plan, 0, expert[i]);
        uint32_t bit = 1u << x->r.node[i];
        assert_true(holders & bit);
        assert_true((holders & routers) == 0 || (routers & bit));
        seen |= bit;
    }
    assert_int_equal(seen, nodes);
}

static void random_rows_have_one_holder_each_and_all_agree(void **state)
{
    (void)state;

    for (uint32_t round = 0; round < 500; round++) {
        uint16_t masks[EXPERTS];
        uint32_t expert[ROWS_MAX * TOP_K], rows, nodes;
        uint8_t before[ROWS_MAX * TOP_K];
        fixture x;

        random_state = round + 1;
        rows = 1 + random_below(ROWS_MAX);
        for (uint32_t e = 0; e < EXPERTS; e++)
            masks[e] = (uint16_t)(1 + random_below(7));
        for (uint32_t t = 0; t < rows; t++) {
            expert[2 * t] = random_below(EXPERTS);
            expert[2 * t + 1] = (expert[2 * t] + 1 + random_below(EXPERTS - 1)) % EXPERTS;
        }
        open_fixture(&x, masks, 1 + random_below(7));
        nodes = deal(&x, expert, rows);
        check_dealt(&x, expert, rows, nodes);
        memcpy(before, x.r.node, rows * TOP_K);
        uint32_t other[] = {random_below(EXPERTS), 0};
        deal(&x, other, 1); /* what another step leaves behind is not seen */
        x.c.node.node_index = random_below(3);
        assert_int_equal(deal(&x, expert, rows), nodes);
        assert_memory_equal(x.r.node, before, rows * TOP_K);
        close_fixture(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_replicas_everyone_computes_what_it_has),
        cmocka_unit_test(a_holder_beside_a_router_comes_first),
        cmocka_unit_test(rows_go_to_the_holder_with_fewer_and_ties_to_the_lowest),
        cmocka_unit_test(many_rows_of_one_expert_are_dealt_in_blocks),
        cmocka_unit_test(an_expert_that_the_layer_has_not_is_refused),
        cmocka_unit_test(random_rows_have_one_holder_each_and_all_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
