/* test_plan_edit.c - plans that are edited, and plans that come as bytes from another node.
 *
 * Method: tables for the forms that people write and for what is refused; random edits of random
 * plans for the codec, whose bytes are then cut, overwritten and flipped everywhere. Whatever is
 * accepted is a plan that covers its model. */
#include "tests/core/plans.h"

#include <stdlib.h>

/* -- moves -- */

static void every_form_of_a_part_moves_what_it_names(void **state)
{
    static const struct {
        const char *text;
        uint32_t moved; /* from a plan with everything on node 0 */
    } rows[] = {
        {"expert/2.3", 1},
        {"expert/2.3-5", 3},
        {"expert/2-3.0-1", 4},
        {"expert/2.all", 8},
        {"expert/all.7", 4},
        {"expert/all.all", 32},
        {"expert/0-2.1", 1}, /* layers 0 and 1 have none */
        {"slice/0.1", 1},
        {"slice/all.0", 6},
        {"slice/0-1.all", 4},
        {"slice/all.1", 2}, /* the others have one */
        {"attention/5.7", 1},
        {"attention/0-5.4", 4},
        {"attention/all.all", 40},
        {"vocabulary/0-63", 1},
        {"vocabulary/all", 1},
        {"vocabulary/960-999", 1},
        {"vocabulary/64-191", 1},
        {"sampler", 1},
        {"ngram", 1},
        {"layers/0", 4 + 2 + 1},
        {"layers/1-2", 6 + 17 + 2},
        {"layers/all", 40 + 32 + 8 + 6},
        {"router/0", 1},
        {"router/2-5", 4},
        {"router/all", 6},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_plan plan = make_small("attention: [{node: n0}]\nexperts: [{node: n0}]\n"
                                  "slices: [{node: n0}]\nvocabulary: [{node: n0}]",
                                  2);
        tr_error err = {0};
        uint32_t moved = 0;
        CHECK_STATUS(tr_plan_move(&plan, rows[i].text, 1, &moved, &err), TR_OK);
        if (moved != rows[i].moved)
            fail_msg("%s: %u moved, expected %u", rows[i].text, moved, rows[i].moved);
        check_complete(&plan, 3);
        CHECK_STATUS(tr_plan_move(&plan, rows[i].text, 1, &moved, &err), TR_OK);
        assert_int_equal(moved, 0); /* it stands there */
        tr_plan_free(&plan);
    }
}

static void a_move_changes_nothing_that_it_does_not_name(void **state)
{
    tr_plan plan = make_small("", 2), before = make_small("", 2);
    uint32_t moved = 0;
    (void)state;

    CHECK_STATUS(tr_plan_move(&plan, "expert/3.1-2", 1, &moved, NULL), TR_OK);
    assert_int_equal(moved, 2);
    for (uint32_t l = 0; l < 6; l++)
        for (uint32_t t = 0; t < TR_TERMS_MAX; t++) {
            bool named = l == 3 && (t == 1 || t == 2);
            assert_int_equal(tr_plan_channel_nodes(&plan, l, t),
                             named ? 1u << 1 : tr_plan_channel_nodes(&before, l, t));
        }
    CHECK_STATUS(tr_plan_move(&plan, "expert/3.1-2", 0, &moved, NULL), TR_OK);
    assert_true(same_plan(&plan, &before)); /* and back */
    tr_plan_free(&plan);
    tr_plan_free(&before);
}

static void what_is_no_part_of_the_model_is_refused_and_nothing_moves(void **state)
{
    static const struct {
        const char *text, *named;
    } rows[] = {
        {"", "expected expert/LAYERS.EXPERTS"},
        {"experts/0.0", "experts/0.0: expected expert/LAYERS.EXPERTS"},
        {"sampler/0", "sampler/0: expected"},
        {"expert/", "expert/: expected expert/LAYERS.experts"},
        {"expert/2", "expected expert/LAYERS.experts, as in expert/0-3.0"},
        {"expert/2.", "expected expert/"},
        {"expert/.2", "expected expert/"},
        {"expert/2.1.0", "expected expert/"},
        {"expert/2.1 ", "expected expert/"},
        {"expert/2.-1", "expected expert/"},
        {"expert/2.1-", "expected expert/"},
        {"expert/ 2.1", "expected expert/"},
        {"expert/+2.1", "expected expert/"},
        {"expert/2.0x1", "expected expert/"},
        {"expert/3-2.0", "expected expert/"},
        {"expert/allx.0", "expected expert/"},
        {"expert/4294967295.0", "expected expert/"},
        {"expert/99999999999999999999999.0", "expected expert/"},
        {"expert/6.0", "expert/6.0: layers 6-6, the model has 0-5"},
        {"expert/2-6.0", "layers 2-6, the model has 0-5"},
        {"expert/2.8", "experts 8-8, the model has 0-7"},
        {"expert/2.0-8", "experts 0-8, the model has 0-7"},
        {"expert/0-1.0", "the model has no experts there"},
        {"expert/0.all", "the model has no experts there"},
        {"slice/2.1", "slices 1-1, the model has 0-0"},
        {"attention/0.4", "terms 4-4, the model has 0-3"},
        {"layers/", "layers/: expected layers/LAYERS, as in layers/0-3"},
        {"layers/0.0", "expected layers/LAYERS"},
        {"layers/4-6", "layers 4-6, the model has 0-5"},
        {"router", "router: expected expert/LAYERS.EXPERTS"},
        {"router/x", "router/x: expected router/LAYERS, as in router/0-3"},
        {"router/6", "layers 6-6, the model has 0-5"},
        {"vocabulary/", "expected vocabulary/ROWS"},
        {"vocabulary/0-63.0", "expected vocabulary/ROWS"},
        {"vocabulary/0-1000", "rows 0-1000, the model has 0-999"},
        {"vocabulary/1-63", "ranges are cut at multiples of 64"},
        {"vocabulary/0-62", "ranges are cut at multiples of 64"},
        {"vocabulary/0", "ranges are cut at multiples of 64"},
    };
    tr_plan plan = make_small("", 2), before = make_small("", 2);
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_error err = {0};
        uint32_t moved = 7;
        CHECK_STATUS(tr_plan_move(&plan, rows[i].text, 1, &moved, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].named);
        assert_int_equal(moved, 0);
        assert_true(same_plan(&plan, &before));
    }
    plan.shape.ngram_tables = 0;
    tr_error err = {0};
    uint32_t moved;
    CHECK_STATUS(tr_plan_move(&plan, "ngram", 1, &moved, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "the model has no n-gram table");
    tr_plan_free(&plan);
    tr_plan_free(&before);
}

static void layers_move_with_their_routers_and_routers_without_them(void **state)
{
    tr_plan plan = make_small("", 2), before = make_small("", 2);
    const tr_plan_span apart[] = {{0, 1, 3}, {2, 3, 2}, {4, 5, 3}};
    uint32_t moved;
    (void)state;

    CHECK_STATUS(tr_plan_move(&plan, "router/2-3", 1, &moved, NULL), TR_OK);
    assert_int_equal(moved, 2);
    assert_int_equal(plan.spans_count, 3);
    assert_memory_equal(plan.spans, apart, sizeof(apart));
    assert_memory_equal(plan.attention, before.attention, 6 * TR_TERMS_MAX);
    assert_memory_equal(plan.channel, before.channel, 6 * TR_TERMS_MAX * sizeof(*plan.channel));

    CHECK_STATUS(tr_plan_move(&plan, "layers/2-3", 0, &moved, NULL), TR_OK);
    for (uint32_t l = 2; l < 4; l++) {
        for (uint32_t t = 0; t < plan.shape.attention_terms[l]; t++)
            assert_int_equal(tr_plan_attention_node(&plan, l, t), 0);
        for (uint32_t t = 0; t < 9; t++)
            assert_int_equal(tr_plan_channel_nodes(&plan, l, t), 1);
    }
    assert_int_equal(plan.spans[1].nodes, 1);
    tr_plan_free(&plan);
    tr_plan_free(&before);
}

static void a_replica_is_added_and_a_move_takes_all_others_away(void **state)
{
    tr_plan plan = make_small("", 3);
    const uint16_t *row = plan.channel + (size_t)2 * TR_TERMS_MAX;
    tr_error err = {0};
    uint32_t count;
    (void)state;

    CHECK_STATUS(tr_plan_replicate(&plan, "expert/2.0-2", 1, &count, &err), TR_OK);
    assert_int_equal(count, 3);
    assert_int_equal(row[0], 1 | 2);
    CHECK_STATUS(tr_plan_replicate(&plan, "expert/2.2-3", 2, &count, &err), TR_OK);
    assert_int_equal(count, 2);
    assert_int_equal(row[2], 1 | 2 | 4);
    CHECK_STATUS(tr_plan_replicate(&plan, "expert/2.0-2", 1, &count, &err), TR_OK);
    assert_int_equal(count, 0); /* it has them */
    check_complete(&plan, 7);
    assert_true(tr_plan_uses(&plan, 1));

    CHECK_STATUS(tr_plan_move(&plan, "expert/2.2", 2, &count, &err), TR_OK);
    assert_int_equal(count, 1);
    assert_int_equal(row[2], 4);
    CHECK_STATUS(tr_plan_move(&plan, "expert/2.2", 2, &count, &err), TR_OK);
    assert_int_equal(count, 0);
    tr_plan_free(&plan);
}

static void a_mirror_comes_back_to_its_work_by_command(void **state)
{
    tr_plan plan = make_small("", 2);
    tr_error err = {0};
    uint32_t count;
    (void)state;

    CHECK_STATUS(tr_plan_move(&plan, "layers/3", 0, &count, &err), TR_OK);
    CHECK_STATUS(tr_plan_move(&plan, "attention/3.4-7", 1, &count, &err), TR_OK);
    assert_int_equal(plan.spans_count, 3);
    CHECK_STATUS(tr_plan_replicate(&plan, "router/all", 1, &count, &err), TR_OK);
    assert_int_equal(count, 1);
    assert_int_equal(plan.spans_count, 1);
    CHECK_STATUS(tr_plan_replicate(&plan, "router/all", 1, &count, &err), TR_OK);
    assert_int_equal(count, 0);
    tr_plan_free(&plan);
}

static void what_has_no_replicas_is_refused(void **state)
{
    static const struct {
        const char *text, *named;
    } rows[] = {
        {"slice/2.0", "slice/2.0: only experts and routers have replicas"},
        {"attention/0.0", "only experts and routers have replicas"},
        {"layers/0", "only experts and routers have replicas"},
        {"sampler", "only experts and routers have replicas"},
        {"", "only experts and routers have replicas"},
        {"expert/2", "expected expert/LAYERS.experts"},
        {"expert/2.8", "experts 8-8, the model has 0-7"},
        {"expert/0.0", "the model has no experts there"},
        {"router/6", "layers 6-6, the model has 0-5"},
        {"router/0.0", "expected router/LAYERS, as in router/0-3"},
        {"router/all", "from layer 0 on it has not"}, /* node 0 has all of layer 3 */
        {"router/3", "from layer 3 on it has not"},
    };
    const char *rules = "attention: [{node: n0, layers: 3}]\nslices: [{node: n0, layers: 3}]";
    tr_plan plan = make_small(rules, 2), before = make_small(rules, 2);
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_error err = {0};
        uint32_t count = 7;
        CHECK_STATUS(tr_plan_replicate(&plan, rows[i].text, 1, &count, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].named);
        assert_int_equal(count, 0);
        assert_true(same_plan(&plan, &before));
    }
    tr_plan_free(&plan);
    tr_plan_free(&before);
}

static void vocabulary_ranges_are_split_and_joined(void **state)
{
    static const struct {
        const char *text;
        uint32_t node, moved, count;
        tr_plan_range ranges[5];
    } steps[] = {
        {"vocabulary/all", 0, 1, 1, {{0, 999, 0}}},
        {"vocabulary/128-255", 1, 1, 3, {{0, 127, 0}, {128, 255, 1}, {256, 999, 0}}},
        {"vocabulary/960-999", 2, 1, 4, {{0, 127, 0}, {128, 255, 1}, {256, 959, 0}, {960, 999, 2}}},
        {"vocabulary/64-191", 1, 1, 4, {{0, 63, 0}, {64, 255, 1}, {256, 959, 0}, {960, 999, 2}}},
        {"vocabulary/192-319",
         2,
         2,
         5,
         {{0, 63, 0}, {64, 191, 1}, {192, 319, 2}, {320, 959, 0}, {960, 999, 2}}},
        {"vocabulary/320-959", 2, 1, 3, {{0, 63, 0}, {64, 191, 1}, {192, 999, 2}}},
        {"vocabulary/0-255", 2, 2, 1, {{0, 999, 2}}},
    };
    tr_plan plan = make_small("", 3);
    (void)state;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        uint32_t moved = 0;
        CHECK_STATUS(tr_plan_move(&plan, steps[i].text, steps[i].node, &moved, NULL), TR_OK);
        assert_int_equal(plan.ranges_count, steps[i].count);
        assert_memory_equal(plan.ranges, steps[i].ranges, steps[i].count * sizeof(tr_plan_range));
        if (i > 0) /* the first starts from three shares */
            assert_int_equal(moved, steps[i].moved);
    }
    tr_plan_free(&plan);
}

static void a_router_that_a_move_leaves_without_work_goes(void **state)
{
    tr_plan plan = make_small("", 2);
    uint32_t moved;
    (void)state;

    CHECK_STATUS(tr_plan_move(&plan, "attention/3.all", 0, &moved, NULL), TR_OK);
    CHECK_STATUS(tr_plan_move(&plan, "expert/3.all", 1, &moved, NULL), TR_OK);
    assert_int_equal(plan.spans_count, 1);
    assert_int_equal(plan.spans[0].nodes, 1); /* layer 3's only slice is on node 0 as well */
    tr_plan_free(&plan);
}

/* -- bytes -- */

static void random_edit(tr_plan *plan)
{
    const tr_plan_shape *shape = &plan->shape;
    uint32_t moved, node = random_below(plan->nodes_count);
    uint32_t others = random_below(1u << plan->nodes_count) & ~(1u << node);
    uint32_t layer = random_below(shape->layers_count);
    uint32_t granule = random_below((shape->vocab_size - 1) / shape->vocab_granule + 1);
    uint32_t row = granule * shape->vocab_granule, last = row + shape->vocab_granule - 1;
    char text[64];

    switch (random_below(6)) {
    case 0:
        if (others != 0)
            CHECK_STATUS(tr_plan_drain(plan, node, others, NULL, &moved, NULL), TR_OK);
        return;
    case 1:
        snprintf(text, sizeof(text), "vocabulary/%u-%u", row,
                 last < shape->vocab_size ? last : shape->vocab_size - 1);
        break;
    case 2:
        snprintf(text, sizeof(text), "attention/%u.%u", layer,
                 random_below(shape->attention_terms[layer]));
        break;
    case 3:
        snprintf(text, sizeof(text), "%s/0-%u", random_below(2) != 0 ? "layers" : "router", layer);
        break;
    case 4:
        snprintf(text, sizeof(text), "expert/%u.all", layer);
        if (shape->experts[layer] > 0)
            CHECK_STATUS(tr_plan_replicate(plan, text, node, &moved, NULL), TR_OK);
        return;
    default:
        snprintf(text, sizeof(text), "sampler");
    }
    CHECK_STATUS(tr_plan_move(plan, text, node, &moved, NULL), TR_OK);
}

static void random_plans_come_back_as_they_went(void **state)
{
    (void)state;

    for (uint32_t round = 0; round < 300; round++) {
        random_state = round + 1;
        tr_plan_shape shape = random_shape();
        uint32_t nodes = 1 + random_below(6);
        tr_plan plan = make("", nodes, &shape), got;
        void *bytes;
        size_t size;
        tr_error err = {0};
        for (uint32_t edits = random_below(20); edits > 0; edits--)
            random_edit(&plan);
        check_complete(&plan, (1u << nodes) - 1);
        plan.epoch = random_below(1000);
        CHECK_STATUS(tr_plan_encode(&plan, &bytes, &size, &err), TR_OK);
        if (tr_plan_decode(&got, bytes, size, &shape, nodes, &err) != TR_OK)
            fail_msg("round %u: %s", round, err.text);
        assert_true(same_plan(&plan, &got));
        tr_plan_free(&got);
        free(bytes);
        tr_plan_free(&plan);
    }
}

typedef struct {
    tr_plan_shape shape;
    uint8_t *bytes;
    size_t size;
} encoded;

static encoded encode_small(void)
{
    encoded e = {.shape = small_shape()};
    tr_plan plan = make_small("routers: [{node: n0, layers: 0-2}, {node: n1, layers: 3-last}]", 3);
    void *bytes;
    CHECK_STATUS(tr_plan_encode(&plan, &bytes, &e.size, NULL), TR_OK);
    e.bytes = bytes;
    tr_plan_free(&plan);
    return e;
}

/* From a block of exactly that size, so that a sanitizer sees a read beyond it. */
static tr_status decode(const encoded *e, size_t size, tr_error *err)
{
    tr_plan plan;
    uint8_t *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, e->bytes, size);
    tr_status status = tr_plan_decode(&plan, copy, size, &e->shape, 3, err);
    free(copy);
    if (status == TR_OK) {
        check_complete(&plan, 7);
        tr_plan_free(&plan);
    }
    return status;
}

static void bytes_that_are_cut_are_refused(void **state)
{
    encoded e = encode_small();
    (void)state;

    CHECK_STATUS(decode(&e, e.size, NULL), TR_OK);
    for (size_t size = 0; size < e.size; size++) {
        tr_error err = {0};
        CHECK_STATUS(decode(&e, size, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "bytes, expected");
    }
    e.bytes = realloc(e.bytes, e.size + 1);
    e.bytes[e.size] = 0;
    CHECK_STATUS(decode(&e, e.size + 1, NULL), TR_E_INVALID);
    free(e.bytes);
}

static void every_field_that_lies_is_named(void **state)
{
    enum {
        HEAD = 32,
        SPANS = HEAD,
        RANGES = SPANS + 2 * 12,
        TERMS = RANGES + 3 * 12,
        LAYER_2 = TERMS + 2 * (4 + 2 * 2) /* a byte for a head group, two for a slice */
    };
    static const struct {
        size_t at; /* of 4 bytes */
        uint32_t value;
        const char *named;
    } rows[] = {
        {8, 3, "nodes 3, 0, 0, the cluster has 3"},  /* batcher */
        {12, 3, "nodes 0, 3, 0, the cluster has 3"}, /* sampler */
        {16, UINT32_MAX, "nodes 0, 0, 4294967295"},  /* ngram */
        {20, 1, "reserved: 1"},
        {24, 0, "0 spans"},
        {24, TR_LAYERS_MAX + 1, "257 spans"},
        {24, 3, "bytes, expected"},
        {28, 0, "0 ranges"},
        {28, 1001, "1001 ranges"},
        {28, UINT32_MAX, "ranges"},
        {SPANS, 1, "spans[0]: layers 1-2"},
        {SPANS + 4, 6, "spans[0]: layers 0-6"},
        {SPANS + 4, 3, "spans[1]"},
        {SPANS + 8, 0, "on nodes 0"},
        {SPANS + 8, 8, "on nodes 8"},
        {SPANS + 16, 4, "end at layer 5 of 6"},
        {SPANS + 16, 2, "spans[1]: layers 3-2"},
        {SPANS + 16, UINT32_MAX, "spans[1]"},
        {RANGES, 64, "ranges[0]: rows 64-"},
        {RANGES + 4, 100, "expected to end at a multiple of 64"},
        {RANGES + 8, 3, "on node 3"},
        {RANGES + 24 + 4, 1000, "ranges[2]"},
        {RANGES + 24 + 4, 959, "end at row 960 of 1000"},
        {RANGES + 24 + 4, UINT32_MAX, "ranges[2]"},
        {TERMS, 0x03000000, "layer 0: attention term 3 on node 3 of 3"},
        {TERMS + 4, 0x00010008, "layer 0: slice 0 on nodes 8, expected one of the first 3"},
        {TERMS + 4, 0x00000001, "layer 0: slice 1 on nodes 0, expected one of the first 3"},
        {TERMS + 4, 0x00010003, "layer 0: slice 0 on nodes 3, expected one"},
        {LAYER_2 + 8, 0x00010008, "layer 2: expert 0 on nodes 8, expected some of the first 3"},
        {LAYER_2 + 8, 0x00000001, "layer 2: expert 1 on nodes 0"},
    };
    encoded e = encode_small();
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint8_t kept[4];
        tr_error err = {0};
        memcpy(kept, e.bytes + rows[i].at, 4);
        memcpy(e.bytes + rows[i].at, &rows[i].value, 4);
        CHECK_STATUS(decode(&e, e.size, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].named);
        memcpy(e.bytes + rows[i].at, kept, 4);
    }
    free(e.bytes);
}

static void flipped_bits_give_another_plan_or_an_error(void **state)
{
    encoded e = encode_small();
    uint32_t accepted = 0;
    (void)state;

    for (size_t bit = 0; bit < 8 * e.size; bit++) {
        e.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        accepted += decode(&e, e.size, NULL) == TR_OK; /* checks what it accepts */
        e.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_in_range(accepted, 64, 8 * e.size); /* at least any epoch */
    free(e.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_a_part_moves_what_it_names),
        cmocka_unit_test(a_move_changes_nothing_that_it_does_not_name),
        cmocka_unit_test(what_is_no_part_of_the_model_is_refused_and_nothing_moves),
        cmocka_unit_test(layers_move_with_their_routers_and_routers_without_them),
        cmocka_unit_test(a_replica_is_added_and_a_move_takes_all_others_away),
        cmocka_unit_test(a_mirror_comes_back_to_its_work_by_command),
        cmocka_unit_test(what_has_no_replicas_is_refused),
        cmocka_unit_test(vocabulary_ranges_are_split_and_joined),
        cmocka_unit_test(a_router_that_a_move_leaves_without_work_goes),
        cmocka_unit_test(random_plans_come_back_as_they_went),
        cmocka_unit_test(bytes_that_are_cut_are_refused),
        cmocka_unit_test(every_field_that_lies_is_named),
        cmocka_unit_test(flipped_bits_give_another_plan_or_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
