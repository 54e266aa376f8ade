/* test_rebalance.c - which experts should stand elsewhere.
 *
 * Goal: a prediction is what one computes by hand; uneven heat gives a gain, even heat gives none,
 * and the search stays within what it was allowed. Method: made-up figures of two or three nodes;
 * routings are drawn from a generator with a fixed seed. */
#include "actors/rebalance.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS = 3, EXPERTS = 40, TOP_K = 2, STEPS = 120 };

typedef struct {
    tr_placement placement;
    tr_plan plan;
    tr_load load;
    uint32_t words[LAYERS][TR_ROUTING_WORDS];
} fixture;

/* Nodes a, b, ...; rules: more lines of the placement file. Costs 1000 ns + 100 ns a row. */
static void make(fixture *x, const char *nodes, const char *rules)
{
    tr_plan_shape shape = {.layers_count = LAYERS, .vocab_size = 64, .vocab_granule = 64};
    char yaml[1024];
    tr_error err = {0};

    memset(x, 0, sizeof(*x));
    snprintf(yaml, sizeof(yaml), "model: m\nnodes: %s\n%s", nodes, rules);
    CHECK_STATUS(tr_placement_parse(&x->placement, "test.yaml", yaml, strlen(yaml), &err), TR_OK);
    for (uint32_t l = 0; l < LAYERS; l++) {
        shape.attention_terms[l] = (uint16_t)x->placement.nodes_count;
        shape.experts[l] = EXPERTS;
    }
    CHECK_STATUS(tr_plan_make(&x->plan, &x->placement, &shape, &err), TR_OK);
    x->load.step_ns = 1;
    x->load.nodes = (1u << x->placement.nodes_count) - 1;
    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        x->load.room_bytes[n] = UINT64_MAX;
    for (uint32_t l = 0; l < LAYERS; l++) {
        x->load.layers[l].expert_bytes = 1 << 20;
        x->load.layers[l].routing = x->words[l];
        for (uint32_t n = 0; n < x->placement.nodes_count; n++)
            x->load.layers[l].expert[n] =
                (tr_heat_cost){.fixed_ns = 1000, .row_ns = 100, .steps = 1};
    }
}

static void drop(fixture *x)
{
    tr_plan_free(&x->plan);
    tr_placement_free(&x->placement);
}

static uint32_t random_below(uint32_t n)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

/* One recorded step: rows of each expert, those with rows in order of number. */
static void put_step(fixture *x, uint32_t layer, const uint32_t *rows, uint32_t rows_count)
{
    tr_load_layer *l = &x->load.layers[layer];
    l->routing[l->routing_count++] = TR_ROUTING_HEAD << 16 | rows_count;
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (rows[e] > 0)
            l->routing[l->routing_count++] = e << 16 | rows[e];
    assert_true(l->routing_count <= TR_ROUTING_WORDS);
}

/* Steps of so many rows; each row has TOP_K different experts, hot_percent of the choices among the
 * first hot experts, the others among all. */
static void put_steps(fixture *x, uint32_t rows_count, uint32_t hot, uint32_t hot_percent)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t s = 0; s < STEPS; s++) {
            uint32_t rows[EXPERTS] = {0};
            for (uint32_t t = 0; t < rows_count; t++) {
                uint32_t last = UINT32_MAX;
                for (uint32_t k = 0; k < TOP_K;) {
                    uint32_t e = random_below(random_below(100) < hot_percent ? hot : EXPERTS);
                    if (e == last)
                        continue;
                    rows[e]++;
                    last = e;
                    k++;
                }
            }
            put_step(x, l, rows, rows_count);
        }
}

static tr_rebalance run(fixture *x)
{
    tr_rebalance r;
    tr_error err = {0};
    CHECK_STATUS(tr_rebalance_plan(&r, &x->plan, &x->load, NULL, &err), TR_OK);
    return r;
}

static void a_prediction_is_the_slowest_way_through_each_layer(void **state)
{
    fixture x;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", ""); /* experts 0-19 on a, 20-39 on b */
    x.load.nodes = 0;                       /* only predict */
    x.load.hop_ns[0][1] = x.load.hop_ns[1][0] = 7000;
    for (uint32_t s = 0; s < 20; s++) {
        uint32_t on_a[EXPERTS] = {3, 3}, on_both[EXPERTS] = {[0] = 3, [20] = 3};
        put_step(&x, 0, on_a, 3);    /* 2 * (1000 + 300), then the sums go to b's router */
        put_step(&x, 1, on_both, 3); /* 1300, and the hop */
    }
    x.load.layers[2].expert[0].steps = x.load.layers[2].expert[1].steps = 0; /* unknown */
    tr_rebalance r = run(&x);
    assert_int_equal(r.edits_count, 0);
    assert_int_equal(r.steps, 10);
    assert_true(fabs(r.before_ns - (2 * 1300 + 7000 + 1300 + 7000)) < 1e-6);
    assert_true(r.before_ns == r.after_ns && tr_rebalance_gain(&r) == 0);
    tr_rebalance_free(&r);
    drop(&x);
}

static void rows_travel_to_nodes_without_a_router(void **state)
{
    fixture x;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "routers: [{node: a}]\n");
    x.load.nodes = 0;
    x.load.hop_ns[0][1] = 5000, x.load.hop_ns[1][0] = 6000;
    for (uint32_t s = 0; s < 20; s++) {
        uint32_t on_a[EXPERTS] = {1}, on_b[EXPERTS] = {[39] = 1};
        put_step(&x, 0, on_a, 1);
        put_step(&x, 1, on_b, 1);
    }
    tr_rebalance r = run(&x);
    assert_true(fabs(r.before_ns - (1100 + 5000 + 1100 + 6000)) < 1e-6);
    tr_rebalance_free(&r);
    drop(&x);
}

static void even_heat_gives_no_gain(void **state)
{
    static const uint32_t rows[] = {1, 4, 16};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        fixture x;
        make(&x, "[{name: a}, {name: b}]", "");
        put_steps(&x, rows[i], 1, 0);
        tr_rebalance r = run(&x); /* of the feed-forwards alone, which a step holds */
        if (fabs(tr_rebalance_gain(&r)) > 0.03)
            fail_msg("%u rows: gain %.3f", rows[i], tr_rebalance_gain(&r));
        tr_rebalance_free(&r);
        drop(&x);
    }
}

static void uneven_heat_gives_a_gain(void **state)
{
    fixture x;
    uint32_t on_b = 0;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "");
    put_steps(&x, 16, 8, 80); /* eight hot experts, all of them on a */
    tr_rebalance r = run(&x);
    assert_true(tr_rebalance_gain(&r) > 0.15);
    assert_true(r.moves > 0 && r.edits_count > 0);
    for (uint32_t e = 0; e < 8; e++)
        on_b += tr_plan_channel_nodes(&x.plan, 0, e) >> 1 & 1;
    assert_true(on_b >= 3 && on_b <= 6);
    tr_rebalance_free(&r);

    tr_rebalance again = run(&x); /* the search has come to its end: nothing more to gain */
    assert_true(fabs(tr_rebalance_gain(&again)) < 0.01);
    tr_rebalance_free(&again);
    drop(&x);
}

static void edits_say_what_has_become_of_the_plan(void **state)
{
    fixture x;
    tr_plan before;
    uint32_t differ = 0, added = 0;
    (void)state;
    make(&x, "[{name: a}, {name: b}, {name: c}]", "");
    put_steps(&x, 16, 4, 70);
    CHECK_STATUS(tr_plan_copy(&before, &x.plan, NULL), TR_OK);
    tr_rebalance r = run(&x);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            uint32_t old = tr_plan_channel_nodes(&before, l, e);
            uint32_t now = tr_plan_channel_nodes(&x.plan, l, e);
            if (old == now)
                continue;
            assert_true(differ < r.edits_count);
            const tr_rebalance_edit *edit = &r.edits[differ++];
            assert_true(edit->layer == l && edit->expert == e && edit->before == old &&
                        edit->after == now);
            added += (uint32_t)__builtin_popcount(now & ~old);
        }
    assert_int_equal(differ, r.edits_count);
    assert_int_equal(r.moves + r.replicas, added);
    assert_true(r.bytes == (uint64_t)added << 20);
    assert_true(r.after_ns < r.before_ns);
    tr_rebalance_free(&r);
    tr_plan_free(&before);
    drop(&x);
}

static void experts_come_to_a_router_that_is_far_from_the_others(void **state)
{
    fixture x;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "routers: [{node: a}]\nexperts: [{node: b}]\n");
    x.load.hop_ns[0][1] = x.load.hop_ns[1][0] = 50000;
    put_steps(&x, 1, 4, 95);
    tr_rebalance r = run(&x);
    assert_true(tr_rebalance_gain(&r) > 0.5);
    for (uint32_t e = 0; e < 4; e++)
        assert_true(tr_plan_channel_nodes(&x.plan, 1, e) & 1);
    tr_rebalance_free(&r);
    drop(&x);
}

static void only_the_hottest_get_replicas(void **state)
{
    fixture x;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "");
    put_steps(&x, 64, 2, 50); /* more rows of one expert than one block */
    tr_rebalance r = run(&x);
    assert_true(r.replicas > 0 && r.replicas <= LAYERS * EXPERTS / 20);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 2; e < EXPERTS; e++)
            assert_int_equal(__builtin_popcount(tr_plan_channel_nodes(&x.plan, l, e)), 1);
    tr_rebalance_free(&r);
    drop(&x);
}

static void nothing_goes_where_there_is_no_room(void **state)
{
    fixture x;
    uint32_t came = 0;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "");
    put_steps(&x, 16, 8, 80);
    x.load.room_bytes[0] = 0;
    x.load.room_bytes[1] = (2 << 20) + 5; /* for two */
    tr_rebalance r = run(&x);
    for (uint32_t i = 0; i < r.edits_count; i++)
        came += r.edits[i].after >> 1 & 1;
    assert_int_equal(r.edits_count, 2);
    assert_int_equal(came, 2);
    tr_rebalance_free(&r);

    x.load.room_bytes[1] = UINT64_MAX;
    x.load.nodes = 1; /* b is gone */
    x.load.room_bytes[0] = 0;
    r = run(&x);
    assert_int_equal(r.edits_count, 0);
    tr_rebalance_free(&r);
    drop(&x);
}

static void a_slow_node_gets_less(void **state)
{
    fixture x;
    uint32_t on_a = 0, on_b = 0;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "");
    put_steps(&x, 16, 1, 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        x.load.layers[l].expert[1] = (tr_heat_cost){.fixed_ns = 4000, .row_ns = 400, .steps = 1};
    tr_rebalance r = run(&x);
    assert_true(tr_rebalance_gain(&r) > 0.3);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        on_a += tr_plan_channel_nodes(&x.plan, 0, e) & 1;
        on_b += tr_plan_channel_nodes(&x.plan, 0, e) >> 1 & 1;
    }
    assert_true(on_a > 2 * on_b && on_b > 0);
    assert_false(r.costs_assumed);
    tr_rebalance_free(&r);
    drop(&x);
}

static void a_node_without_a_time_of_its_own_gets_that_of_the_others(void **state)
{
    fixture x;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "experts: [{node: a}]\n");
    put_steps(&x, 16, 1, 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        x.load.layers[l].expert[1] = (tr_heat_cost){0};
    tr_rebalance r = run(&x);
    assert_true(r.costs_assumed);
    assert_true(tr_rebalance_gain(&r) > 0.3); /* about half of them go */
    tr_rebalance_free(&r);
    drop(&x);
}

static void little_knowledge_moves_nothing(void **state)
{
    fixture x;
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "experts: [{node: a}]\n");
    tr_rebalance r = run(&x); /* no step at all */
    assert_true(r.steps == 0 && r.edits_count == 0 && tr_rebalance_gain(&r) == 0);
    tr_rebalance_free(&r);
    const uint32_t rows[EXPERTS] = {1, 1};
    for (uint32_t s = 0; s < 15; s++)
        put_step(&x, 0, rows, 1);
    r = run(&x);
    assert_true(r.steps == 0 && r.edits_count == 0);
    tr_rebalance_free(&r);
    drop(&x);
}

static void a_search_that_is_given_up_changes_nothing(void **state)
{
    const _Atomic bool given_up = true;
    fixture x;
    tr_rebalance r;
    tr_error err = {0};
    (void)state;
    make(&x, "[{name: a}, {name: b}]", "experts: [{node: a}]\n");
    put_steps(&x, 16, 8, 80);
    CHECK_STATUS(tr_rebalance_plan(&r, &x.plan, &x.load, &given_up, &err), TR_E_CANCELED);
    for (uint32_t e = 0; e < EXPERTS; e++)
        assert_int_equal(tr_plan_channel_nodes(&x.plan, 0, e), 1);
    drop(&x);
}

static void routings_from_outside_are_checked(void **state)
{
    const uint32_t head = TR_ROUTING_HEAD << 16;
    const uint32_t good[] = {head | 2, 3 << 16 | 2, 0 << 16 | 1, head | 0, head | 1, 3 << 16 | 1};
    const uint32_t headless[] = {3 << 16 | 2}, beyond[] = {head | 1, 4 << 16 | 1};
    const uint32_t twice[] = {head | 2, 3 << 16 | 1, 3 << 16 | 1}, empty[] = {head | 1, 3 << 16};
    (void)state;
    assert_true(tr_routing_check(good, 6, 4));
    assert_true(tr_routing_check(good, 0, 4));
    assert_false(tr_routing_check(headless, 1, 4));
    assert_false(tr_routing_check(beyond, 2, 4));
    assert_false(tr_routing_check(twice, 3, 4));
    assert_false(tr_routing_check(empty, 2, 4));
    assert_false(tr_routing_check(good, TR_ROUTING_WORDS + 1, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prediction_is_the_slowest_way_through_each_layer),
        cmocka_unit_test(rows_travel_to_nodes_without_a_router),
        cmocka_unit_test(even_heat_gives_no_gain),
        cmocka_unit_test(uneven_heat_gives_a_gain),
        cmocka_unit_test(edits_say_what_has_become_of_the_plan),
        cmocka_unit_test(experts_come_to_a_router_that_is_far_from_the_others),
        cmocka_unit_test(only_the_hottest_get_replicas),
        cmocka_unit_test(nothing_goes_where_there_is_no_room),
        cmocka_unit_test(a_slow_node_gets_less),
        cmocka_unit_test(a_node_without_a_time_of_its_own_gets_that_of_the_others),
        cmocka_unit_test(little_knowledge_moves_nothing),
        cmocka_unit_test(a_search_that_is_given_up_changes_nothing),
        cmocka_unit_test(routings_from_outside_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
