/* plans.h - plans for the tests of those who edit them: a small shape, random ones, comparisons. */
#ifndef TR_TESTS_CORE_PLANS_H
#define TR_TESTS_CORE_PLANS_H

#include "tests/check.h"

#include "core/plan_edit.h"

#include <stdlib.h>

/* Layers 0 and 1: attention in 4 terms, dense, 2 slices. Layers 2 to 5: 8 terms, 8 experts, 1
 * slice. */
static inline tr_plan_shape small_shape(void)
{
    tr_plan_shape shape = {
        .layers_count = 6, .vocab_size = 1000, .vocab_granule = 64, .ngram_tables = 1};

    for (uint32_t layer = 0; layer < 6; layer++) {
        shape.attention_terms[layer] = layer < 2 ? 4 : 8;
        shape.experts[layer] = layer < 2 ? 0 : 8;
        shape.slices[layer] = layer < 2 ? 2 : 1;
    }
    return shape;
}

static inline tr_plan make(const char *rules, uint32_t nodes, const tr_plan_shape *shape)
{
    char text[1024];
    tr_placement placement;
    tr_plan plan;
    tr_error err = {0};

    snprintf(text, sizeof(text), "model: m\n%s\nnodes:\n", rules);
    for (uint32_t i = 0; i < nodes; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "  - name: n%u\n", i);
    CHECK_STATUS(tr_placement_parse(&placement, "p.yaml", text, strlen(text), &err), TR_OK);
    CHECK_STATUS(tr_plan_make(&plan, &placement, shape, &err), TR_OK);
    tr_placement_free(&placement);
    return plan;
}

static inline tr_plan make_small(const char *rules, uint32_t nodes)
{
    tr_plan_shape shape = small_shape();
    return make(rules, nodes, &shape);
}

static inline bool same_plan(const tr_plan *a, const tr_plan *b)
{
    size_t terms = (size_t)a->shape.layers_count * TR_TERMS_MAX;
    return a->epoch == b->epoch && a->nodes_count == b->nodes_count &&
           a->batcher_node == b->batcher_node && a->sampler_node == b->sampler_node &&
           a->ngram_node == b->ngram_node && a->spans_count == b->spans_count &&
           memcmp(a->spans, b->spans, a->spans_count * sizeof(*a->spans)) == 0 &&
           a->ranges_count == b->ranges_count &&
           memcmp(a->ranges, b->ranges, a->ranges_count * sizeof(*a->ranges)) == 0 &&
           memcmp(a->attention, b->attention, terms) == 0 &&
           memcmp(a->channel, b->channel, terms * sizeof(*a->channel)) == 0;
}

/* Every part has one node that is there, and only those of mask. */
static inline void check_complete(const tr_plan *plan, uint32_t mask)
{
    const tr_plan_shape *shape = &plan->shape;
    uint32_t next = 0;

    assert_in_range(plan->spans_count, 1, shape->layers_count);
    for (uint32_t i = 0; i < plan->spans_count; next = plan->spans[i++].last_layer + 1) {
        assert_int_equal(plan->spans[i].first_layer, next);
        assert_in_range(plan->spans[i].last_layer, next, shape->layers_count - 1);
        assert_true(plan->spans[i].nodes != 0 && (plan->spans[i].nodes & ~mask) == 0);
    }
    assert_int_equal(next, shape->layers_count);
    next = 0;
    for (uint32_t i = 0; i < plan->ranges_count; next = plan->ranges[i++].last + 1) {
        assert_int_equal(plan->ranges[i].first, next);
        assert_int_equal(next % shape->vocab_granule, 0);
        assert_in_range(plan->ranges[i].last, next, shape->vocab_size - 1);
        assert_true(mask >> plan->ranges[i].node & 1);
    }
    assert_int_equal(next, shape->vocab_size);
    for (uint32_t l = 0; l < shape->layers_count; l++) {
        for (uint32_t t = 0; t < shape->attention_terms[l]; t++)
            assert_true(mask >> tr_plan_attention_node(plan, l, t) & 1);
        for (uint32_t t = 0; t < (uint32_t)shape->experts[l] + shape->slices[l]; t++) {
            assert_int_not_equal(tr_plan_channel_nodes(plan, l, t), 0);
            assert_int_equal(tr_plan_channel_nodes(plan, l, t) & ~mask, 0);
        }
    }
    assert_true(mask >> plan->sampler_node & 1);
    assert_true(shape->ngram_tables == 0 || mask >> plan->ngram_node & 1);
}

static uint64_t random_state;

/* In [0, n): xorshift64*, enough for tests. */
static inline uint32_t random_below(uint32_t n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * 2685821657736338717ull) >> 33) % n;
}

static inline tr_plan_shape random_shape(void)
{
    tr_plan_shape shape = {.layers_count = 1 + random_below(12),
                           .vocab_size = 1 + random_below(5000),
                           .vocab_granule = 1u << random_below(8),
                           .ngram_tables = random_below(2)};

    for (uint32_t layer = 0; layer < shape.layers_count; layer++) {
        shape.attention_terms[layer] = (uint16_t)(1 + random_below(12));
        shape.experts[layer] = (uint16_t)(random_below(3) == 0 ? 0 : 1 + random_below(64));
        shape.slices[layer] =
            (uint16_t)(shape.experts[layer] == 0 ? 1 + random_below(8) : random_below(3));
    }
    return shape;
}

#endif
