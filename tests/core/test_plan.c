/* test_plan.c - the complete placement: defaults, rules, and that nothing is ever left out.
 *
 * Method: tables for what a person would write; for the rest random placements of random models,
 * each of which must give every part exactly one node that the placement allows. */
#include "tests/check.h"

#include "core/placement.h"

#include <inttypes.h>
#include <stdlib.h>

/* Layers 0 and 1: attention in 4 terms, dense, 2 slices. Layers 2 to 5: 8 terms, 8 experts, 1
 * slice. */
static tr_plan_shape small_shape(void)
{
    tr_plan_shape shape = {.layers_count = 6, .vocab_size = 1000, .vocab_granule = 64};

    for (uint32_t layer = 0; layer < 6; layer++) {
        shape.attention_terms[layer] = layer < 2 ? 4 : 8;
        shape.experts[layer] = layer < 2 ? 0 : 8;
        shape.slices[layer] = layer < 2 ? 2 : 1;
    }
    return shape;
}

static tr_status make(tr_plan *plan, const char *rules, uint32_t nodes, tr_error *err)
{
    char text[1024];
    tr_placement placement;
    tr_plan_shape shape = small_shape();

    snprintf(text, sizeof(text), "model: m\n%s\nnodes:\n", rules);
    for (uint32_t i = 0; i < nodes; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "  - name: n%u\n", i);
    tr_status status = tr_placement_parse(&placement, "p.yaml", text, strlen(text), err);
    if (status != TR_OK)
        print_error("%s\n", err->text);
    assert_int_equal(status, TR_OK);
    status = tr_plan_make(plan, &placement, &shape, err);
    tr_placement_free(&placement);
    return status;
}

static void the_default_divides_everything_in_contiguous_equal_shares(void **state)
{
    (void)state;

    for (uint32_t nodes = 1; nodes <= 4; nodes++) {
        tr_plan plan;
        tr_error err = {0};
        CHECK_STATUS(make(&plan, "", nodes, &err), TR_OK);
        assert_int_equal(plan.epoch, 1);
        assert_int_equal(plan.spans_count, 1);
        assert_int_equal(plan.spans[0].first_layer, 0);
        assert_int_equal(plan.spans[0].last_layer, 5);
        assert_int_equal(plan.spans[0].nodes, (1u << nodes) - 1);
        assert_int_equal(plan.ranges_count, nodes);

        uint32_t terms[4] = {0}, experts[4] = {0};
        for (uint32_t term = 0; term < 8; term++) {
            uint32_t node = tr_plan_attention_node(&plan, 3, term);
            assert_true(term == 0 || node >= tr_plan_attention_node(&plan, 3, term - 1));
            terms[node]++;
            experts[tr_plan_channel_node(&plan, 3, term)]++;
        }
        for (uint32_t node = 0; node < nodes; node++) {
            assert_in_range(terms[node], 8 / nodes, (8 + nodes - 1) / nodes);
            assert_in_range(experts[node], 8 / nodes, (8 + nodes - 1) / nodes);
        }
        tr_plan_free(&plan);
    }
}

/* A router that nothing waits for could fall behind without end. */
static void a_mirror_without_work_in_every_layer_is_left_out(void **state)
{
    static const struct {
        const char *rules;
        uint32_t nodes;
    } cases[] = {
        /* node 2 has experts and vocabulary alone, and those not every step asks for */
        {"attention: [{node: n0, terms: 0-1}, {node: n1, terms: 2-7}]\nslices: [{node: n0}]", 3},
        /* the first has nothing: another one feeds */
        {"attention: [{node: n2}]\nslices: [{node: n2}]", 4},
        /* one layer without work is enough */
        {"attention: [{node: n1, layers: 3}]\nslices: [{node: n1, layers: 3}]", 2},
        /* nobody has work everywhere: the first feeds all */
        {"attention: [{node: n0, layers: 0-2}, {node: n1, layers: 3-5}]\n"
         "slices: [{node: n0, layers: 0-2}, {node: n1, layers: 3-5}]",
         1},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_plan plan;
        tr_error err = {0};
        CHECK_STATUS(make(&plan, cases[i].rules, 3, &err), TR_OK);
        assert_int_equal(plan.spans_count, 1);
        assert_int_equal(plan.spans[0].nodes, cases[i].nodes);
        tr_plan_free(&plan);
    }
}

static void the_default_for_two_nodes_is_the_sliced_one(void **state)
{
    (void)state;
    tr_plan plan;
    tr_error err = {0};

    CHECK_STATUS(make(&plan, "", 2, &err), TR_OK);
    assert_int_equal(tr_plan_attention_node(&plan, 0, 1), 0);
    assert_int_equal(tr_plan_attention_node(&plan, 0, 2), 1);
    assert_int_equal(tr_plan_channel_node(&plan, 0, 0), 0); /* dense: slices start at 0 */
    assert_int_equal(tr_plan_channel_node(&plan, 0, 1), 1);
    assert_int_equal(tr_plan_channel_node(&plan, 2, 3), 0); /* experts */
    assert_int_equal(tr_plan_channel_node(&plan, 2, 4), 1);
    assert_int_equal(tr_plan_channel_node(&plan, 2, 8), 0); /* the one slice */
    assert_int_equal(plan.ranges[0].first, 0);
    assert_int_equal(plan.ranges[0].last, 511);
    assert_int_equal(plan.ranges[1].first, 512);
    assert_int_equal(plan.ranges[1].last, 999);
    tr_plan_free(&plan);
}

static void later_rules_win_and_gaps_keep_their_default(void **state)
{
    (void)state;
    tr_plan plan;
    tr_error err = {0};

    CHECK_STATUS(make(&plan,
                      "attention: [{node: n1, layers: 3-4}, {node: n0, layers: 4, terms: 6-last}]\n"
                      "experts: [{node: n1, experts: 0-1}, {node: n0, layers: 5, experts: 1}]\n"
                      "slices: [{node: n1, slices: 0}]\n"
                      "vocabulary: [{node: n1, rows: 64-127}, {node: n0, rows: 960-last}]",
                      2, &err),
                 TR_OK);
    assert_int_equal(tr_plan_attention_node(&plan, 2, 0), 0); /* no rule */
    assert_int_equal(tr_plan_attention_node(&plan, 3, 0), 1);
    assert_int_equal(tr_plan_attention_node(&plan, 4, 5), 1);
    assert_int_equal(tr_plan_attention_node(&plan, 4, 6), 0);
    assert_int_equal(tr_plan_channel_node(&plan, 2, 0), 1);
    assert_int_equal(tr_plan_channel_node(&plan, 2, 2), 0);
    assert_int_equal(tr_plan_channel_node(&plan, 5, 0), 1);
    assert_int_equal(tr_plan_channel_node(&plan, 5, 1), 0);
    assert_int_equal(tr_plan_channel_node(&plan, 0, 0), 1);
    assert_int_equal(tr_plan_channel_node(&plan, 5, 8), 1);

    static const tr_plan_range expected[] = {
        {0, 63, 0}, {64, 127, 1}, {128, 511, 0}, {512, 959, 1}, {960, 999, 0}};
    assert_int_equal(plan.ranges_count, 5);
    assert_memory_equal(plan.ranges, expected, sizeof(expected));
    tr_plan_free(&plan);
}

static void replica_rules_add_to_those_who_hold_experts(void **state)
{
    (void)state;
    tr_plan plan;
    tr_error err = {0};

    CHECK_STATUS(make(&plan,
                      "experts: [{node: n1, layers: 3}]\n"
                      "replicas: [{node: n2, experts: 0}, {node: n0, layers: 3, experts: 0-1}]",
                      3, &err),
                 TR_OK);
    assert_int_equal(tr_plan_channel_nodes(&plan, 2, 0), 1 | 4);
    assert_int_equal(tr_plan_channel_nodes(&plan, 3, 0), 1 | 2 | 4);
    assert_int_equal(tr_plan_channel_nodes(&plan, 3, 1), 1 | 2);
    assert_int_equal(tr_plan_channel_nodes(&plan, 3, 2), 2);
    tr_plan_free(&plan);
}

static void router_rules_add_up_to_spans(void **state)
{
    (void)state;
    tr_plan plan;
    tr_error err = {0};

    CHECK_STATUS(make(&plan,
                      "routers: [{node: n0, layers: 0-3}, {node: n1, layers: 2-last},"
                      " {node: n0, layers: 5}]",
                      2, &err),
                 TR_OK);
    static const tr_plan_span expected[] = {{0, 1, 1}, {2, 3, 3}, {4, 4, 2}, {5, 5, 3}};
    assert_int_equal(plan.spans_count, 4);
    assert_memory_equal(plan.spans, expected, sizeof(expected));
    tr_plan_free(&plan);
}

static void a_rule_that_does_not_fit_the_model_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *rules, *named;
    } rows[] = {
        {"routers: [{node: n0, layers: 0-4}]", "routers: layer 5 has no router"},
        {"routers: [{node: n0, layers: 0-6}]",
         "routers[0].layers: found 0-6, but the model has 6 layers"},
        {"attention: [{node: n0}, {node: n1, layers: 6}]", "attention[1].layers: found 6-6"},
        {"attention: [{node: n1, layers: 6-last}]", "attention[0].layers: found 6-6"},
        {"attention: [{node: n1, terms: 8}]", "attention[0].terms: found 8-8, but the model has 8"},
        {"attention: [{node: n1, layers: 0-1, terms: 2-4}]", "attention[0].terms: found 2-4"},
        {"attention: [{node: n1, terms: 9-last}]", "attention[0].terms: found 9-9"},
        {"experts: [{node: n1, experts: 0-8}]", "experts[0].experts: found 0-8"},
        {"experts: [{node: n1, layers: 0-1}]",
         "experts[0]: layers 0-1 of the model have no experts"},
        {"slices: [{node: n1, layers: 2, slices: 1}]", "slices[0].slices: found 1-1"},
        {"replicas: [{node: n1}, {node: n1, experts: 8}]", "replicas[1].experts: found 8-8"},
        {"replicas: [{node: n1, layers: 0-1}]", "replicas[0]: layers 0-1 of the model have no"},
        {"vocabulary: [{node: n1, rows: 0-1000}]",
         "vocabulary[0].rows: found 0-1000, but the model"},
        {"vocabulary: [{node: n1, rows: 1000-last}]", "vocabulary[0].rows: found 1000-1000"},
        {"vocabulary: [{node: n1, rows: 10-127}]",
         "vocabulary[0].rows: found 10-127, but ranges are cut at multiples of 64"},
        {"vocabulary: [{node: n1, rows: 0-62}]", "vocabulary[0].rows: found 0-62, but ranges"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_plan plan;
        tr_error err = {0};
        CHECK_STATUS(make(&plan, rows[i].rules, 2, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].named);
        CHECK_ERR_NAMES(err, "p.yaml: ");
    }
}

static void a_model_beyond_the_limits_is_refused(void **state)
{
    (void)state;
    tr_placement placement;
    tr_plan plan;
    tr_error err = {0};
    tr_plan_shape shape = small_shape();

    tr_placement_local(&placement, "m", 1);
    shape.layers_count = TR_LAYERS_MAX + 1;
    CHECK_STATUS(tr_plan_make(&plan, &placement, &shape, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "257 layers");
    shape = small_shape();
    shape.experts[4] = TR_TERMS_MAX;
    CHECK_STATUS(tr_plan_make(&plan, &placement, &shape, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "layer 4");
    shape = small_shape();
    shape.vocab_size = 0;
    CHECK_STATUS(tr_plan_make(&plan, &placement, &shape, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "vocabulary");
}

/* -- random placements -- */

#define RANDOM_ROUNDS 2000

static uint64_t random_state;

/* In [0, n): xorshift64*, enough for tests. */
static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * 2685821657736338717ull) >> 33) % n;
}

static tr_plan_shape random_shape(void)
{
    tr_plan_shape shape = {.layers_count = 1 + random_below(12),
                           .vocab_size = 1 + random_below(5000),
                           .vocab_granule = 1u << random_below(8)};

    for (uint32_t layer = 0; layer < shape.layers_count; layer++) {
        shape.attention_terms[layer] = (uint16_t)(1 + random_below(12));
        shape.experts[layer] = (uint16_t)(random_below(3) == 0 ? 0 : 1 + random_below(64));
        shape.slices[layer] =
            (uint16_t)(shape.experts[layer] == 0 ? 1 + random_below(8) : random_below(3));
    }
    return shape;
}

/* Up to 4 rules, which fit the model more often than not. */
static void random_rules(tr_placement_rules *rules, const tr_placement *p,
                         const tr_plan_shape *shape, uint32_t items, uint32_t granule)
{
    uint32_t count = random_below(5);

    rules->rules = calloc(count > 0 ? count : 1, sizeof(*rules->rules));
    assert_non_null(rules->rules);
    rules->count = count;
    for (uint32_t i = 0; i < count; i++) {
        tr_placement_rule *rule = &rules->rules[i];
        rule->node = random_below(p->nodes_count);
        rule->first_layer = random_below(shape->layers_count);
        rule->last_layer =
            random_below(2) == 0
                ? UINT32_MAX
                : rule->first_layer + random_below(shape->layers_count - rule->first_layer);
        rule->first = random_below(items) / granule * granule;
        rule->last = random_below(2) == 0
                         ? UINT32_MAX
                         : rule->first + (1 + random_below(items / granule + 1)) * granule - 1;
    }
}

/* The last rule that names the item, or fallback. */
static uint32_t rule_says(const tr_placement_rules *rules, bool with_layers, uint32_t layer,
                          uint32_t item, uint32_t fallback)
{
    for (uint32_t i = rules->count; i-- > 0;) {
        const tr_placement_rule *rule = &rules->rules[i];
        bool layer_fits = layer >= rule->first_layer && layer <= rule->last_layer;
        if ((!with_layers || layer_fits) && item >= rule->first && item <= rule->last)
            return rule->node;
    }
    return fallback;
}

/* Bit per node of all replica rules that name the expert. */
static uint32_t replica_rules_say(const tr_placement *p, uint32_t layer, uint32_t expert)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < p->replicas.count; i++) {
        const tr_placement_rule *rule = &p->replicas.rules[i];
        if (layer >= rule->first_layer && layer <= rule->last_layer && expert >= rule->first &&
            expert <= rule->last)
            nodes |= 1u << rule->node;
    }
    return nodes;
}

static void check_terms(const tr_placement *p, const tr_plan *plan)
{
    const tr_plan_shape *shape = &plan->shape;

    for (uint32_t layer = 0; layer < shape->layers_count; layer++) {
        uint32_t terms = shape->attention_terms[layer];
        for (uint32_t i = 0; i < terms; i++)
            assert_int_equal(tr_plan_attention_node(plan, layer, i),
                             rule_says(&p->attention, true, layer, i, i * p->nodes_count / terms));
        uint32_t experts = shape->experts[layer], slices = shape->slices[layer];
        for (uint32_t i = 0; i < experts; i++)
            assert_int_equal(
                tr_plan_channel_nodes(plan, layer, i),
                1u << rule_says(&p->experts, true, layer, i, i * p->nodes_count / experts) |
                    replica_rules_say(p, layer, i));
        for (uint32_t i = 0; i < slices; i++)
            assert_int_equal(tr_plan_channel_node(plan, layer, experts + i),
                             rule_says(&p->slices, true, layer, i, i * p->nodes_count / slices));
    }
}

static void check_spans(const tr_placement *p, const tr_plan *plan)
{
    uint32_t next = 0;

    for (uint32_t s = 0; s < plan->spans_count; s++) {
        const tr_plan_span *span = &plan->spans[s];
        assert_int_equal(span->first_layer, next);
        assert_true(span->last_layer >= span->first_layer);
        assert_true(span->nodes != 0 && span->nodes < 1u << p->nodes_count);
        assert_true(s == 0 || span->nodes != span[-1].nodes);
        next = span->last_layer + 1;
    }
    assert_int_equal(next, plan->shape.layers_count);
}

static void check_ranges(const tr_placement *p, const tr_plan *plan)
{
    const tr_plan_shape *shape = &plan->shape;
    uint32_t next = 0;
    uint32_t granules = (shape->vocab_size - 1) / shape->vocab_granule + 1;

    for (uint32_t r = 0; r < plan->ranges_count; r++) {
        const tr_plan_range *range = &plan->ranges[r];
        assert_int_equal(range->first, next);
        assert_int_equal(range->first % shape->vocab_granule, 0);
        for (uint32_t row = range->first; row <= range->last; row++) {
            uint32_t share = row / shape->vocab_granule * p->nodes_count / granules;
            assert_int_equal(range->node, rule_says(&p->vocabulary, false, 0, row, share));
        }
        next = range->last + 1;
    }
    assert_int_equal(next, shape->vocab_size);
}

/* One random placement: refused with a sentence, or complete. Returns whether it was complete. */
static bool random_round(void)
{
    tr_placement p;
    tr_plan plan;
    tr_error err = {0};
    tr_plan_shape shape = random_shape();

    tr_placement_local(&p, "m", 1);
    p.nodes_count = 1 + random_below(TR_NODES_MAX);
    p.batcher_node = random_below(p.nodes_count);
    p.sampler_node = random_below(p.nodes_count);
    random_rules(&p.attention, &p, &shape, 4, 1);
    random_rules(&p.experts, &p, &shape, 16, 1);
    random_rules(&p.replicas, &p, &shape, 16, 1);
    random_rules(&p.slices, &p, &shape, 2, 1);
    random_rules(&p.vocabulary, &p, &shape, shape.vocab_size, shape.vocab_granule);
    random_rules(&p.routers, &p, &shape, 1, 1);
    if (p.routers.count > 0 && random_below(4) > 0) { /* one that leaves no gap */
        p.routers.rules[0].first_layer = 0;
        p.routers.rules[0].last_layer = UINT32_MAX;
    }

    tr_status status = tr_plan_make(&plan, &p, &shape, &err);
    if (status == TR_OK) {
        check_terms(&p, &plan);
        check_spans(&p, &plan);
        check_ranges(&p, &plan);
        assert_int_equal(plan.batcher_node, p.batcher_node);
        assert_int_equal(plan.sampler_node, p.sampler_node);
        tr_plan_free(&plan);
    } else {
        assert_int_equal(status, TR_E_INVALID);
        assert_true(strlen(err.text) > 0);
    }
    tr_placement_free(&p);
    return status == TR_OK;
}

static void random_placements_are_refused_or_complete(void **state)
{
    (void)state;
    const char *seed = getenv("TROUPE_SEED");
    uint32_t complete = 0;

    random_state = seed != NULL ? strtoull(seed, NULL, 10) : 20261129;
    print_message("# TROUPE_SEED=%" PRIu64 "\n", random_state);
    for (uint32_t i = 0; i < RANDOM_ROUNDS; i++)
        complete += random_round();
    print_message("# %u of %d were complete\n", complete, RANDOM_ROUNDS);
    assert_true(complete >= RANDOM_ROUNDS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_divides_everything_in_contiguous_equal_shares),
        cmocka_unit_test(a_mirror_without_work_in_every_layer_is_left_out),
        cmocka_unit_test(the_default_for_two_nodes_is_the_sliced_one),
        cmocka_unit_test(later_rules_win_and_gaps_keep_their_default),
        cmocka_unit_test(replica_rules_add_to_those_who_hold_experts),
        cmocka_unit_test(router_rules_add_up_to_spans),
        cmocka_unit_test(a_rule_that_does_not_fit_the_model_is_named),
        cmocka_unit_test(a_model_beyond_the_limits_is_refused),
        cmocka_unit_test(random_placements_are_refused_or_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
