/* test_kv_layout.c - the place of every part of sequence state, and the memory behind it.
 *
 * Method: a model of three layers with large heads, so that parts cover machine pages; plans of two
 * nodes written here. */
#include "actors/kv_layout.h"
#include "tests/check.h"

#define LAYERS 3
#define TERMS  4
#define PAGES  3

typedef struct {
    tr_layer_spec layers[LAYERS];
    tr_model_spec spec;
    uint8_t attention[2][LAYERS * TR_TERMS_MAX];
    tr_plan plans[2]; /* 0: all on node 0; 1: terms 2 and 3 on node 1 */
} fixture;

static void make(fixture *x)
{
    memset(x, 0, sizeof(*x));
    for (uint32_t l = 0; l < LAYERS; l++)
        x->layers[l] = (tr_layer_spec){.mixer = TR_MIXER_GQA,
                                       .gqa = {.heads = TERMS, .kv_heads = TERMS, .head_dim = 64}};
    x->spec = (tr_model_spec){.layers_count = LAYERS, .layers = x->layers};
    for (uint32_t p = 0; p < 2; p++) {
        x->plans[p] = (tr_plan){.nodes_count = 2, .attention = x->attention[p]};
        x->plans[p].shape.layers_count = LAYERS;
        for (uint32_t l = 0; l < LAYERS; l++) {
            x->plans[p].shape.attention_terms[l] = TERMS;
            for (uint32_t t = 0; t < TERMS; t++)
                x->attention[p][l * TR_TERMS_MAX + t] = p == 1 && t >= 2;
        }
    }
}

static void a_part_has_its_place_whatever_the_plan(void **state)
{
    static fixture x;
    tr_kv_layout all, some, rest;
    (void)state;
    make(&x);
    tr_kv_layout_make(&all, &x.spec, &x.plans[0], 0);
    tr_kv_layout_make(&some, &x.spec, &x.plans[1], 0);
    tr_kv_layout_make(&rest, &x.spec, &x.plans[1], 1);
    assert_true(all.page_size > 0);
    assert_int_equal(all.page_present, all.page_size);
    assert_int_equal(some.page_size, all.page_size);
    assert_int_equal(rest.page_size, all.page_size);
    assert_int_equal(some.state_size, all.state_size);
    assert_int_equal(some.page_present + rest.page_present, all.page_size);
    assert_int_equal(some.page_present, rest.page_present); /* half of the terms each */
}

typedef struct {
    size_t page_next, state_next;
    uint32_t parts;
} walk;

static void step(void *ctx, const tr_kv_part *part)
{
    walk *w = ctx;
    assert_int_equal(part->page_offset, w->page_next);
    assert_int_equal(part->state_offset, w->state_next);
    w->page_next += part->page_size;
    w->state_next += part->state_size;
    w->parts++;
}

static void parts_lie_one_after_the_other_without_gaps(void **state)
{
    static fixture x;
    tr_kv_layout layout;
    walk w = {0};
    (void)state;
    make(&x);
    tr_kv_layout_make(&layout, &x.spec, &x.plans[0], 0);
    tr_kv_each_part(&x.spec, step, &w);
    assert_int_equal(w.page_next, layout.page_size);
    assert_int_equal(w.state_next, layout.state_size);
    assert_int_equal(w.parts, LAYERS * TERMS); /* nothing is kept once by a layer of this kind */
}

/* What the parts of one side hold. */
typedef struct {
    const tr_kv_memory *memory;
    const tr_plan *plan;
    uint32_t node;
    uint8_t expected;
    uint8_t write; /* instead of comparing, if not 0 */
} look;

static void look_at(void *ctx, const tr_kv_part *part)
{
    look *k = ctx;
    if (!tr_kv_part_stands(part, k->plan, k->node))
        return;
    for (uint32_t i = 0; i < k->memory->pages_count; i++) {
        uint8_t *at = k->memory->pages + i * k->memory->page_size + part->page_offset;
        if (k->write != 0)
            memset(at, k->write, part->page_size);
        for (size_t b = 0; k->write == 0 && b < part->page_size; b++)
            assert_int_equal(at[b], k->expected);
    }
}

static void parts_that_come_are_zero_and_those_that_stay_are_kept(void **state)
{
    static fixture x;
    tr_kv_layout layout;
    tr_kv_memory memory;
    tr_error err = {0};
    (void)state;
    make(&x);
    const tr_plan *all = &x.plans[0], *some = &x.plans[1];
    tr_kv_layout_make(&layout, &x.spec, all, 0);
    CHECK_STATUS(tr_kv_memory_open(&memory, &layout, PAGES, 2, &err), TR_OK);
    tr_kv_memory_populate(&memory, &x.spec, NULL, all, 0);
    tr_kv_each_part(&x.spec, look_at,
                    &(look){.memory = &memory, .plan = all, .node = 0, .expected = 0});
    tr_kv_each_part(&x.spec, look_at,
                    &(look){.memory = &memory, .plan = all, .node = 0, .write = 0xa5});

    tr_kv_memory_release(&memory, &x.spec, all, some, 0);
    tr_kv_each_part(&x.spec, look_at,
                    &(look){.memory = &memory, .plan = some, .node = 0, .expected = 0xa5});
    /* What node 1 holds now has no memory here: heads are machine pages long, so it reads as 0. */
    tr_kv_each_part(&x.spec, look_at,
                    &(look){.memory = &memory, .plan = some, .node = 1, .expected = 0});

    tr_kv_each_part(&x.spec, look_at,
                    &(look){.memory = &memory, .plan = some, .node = 1, .write = 0x11});
    tr_kv_memory_populate(&memory, &x.spec, some, all, 0); /* they come back */
    tr_kv_each_part(&x.spec, look_at,
                    &(look){.memory = &memory, .plan = some, .node = 1, .expected = 0});
    tr_kv_each_part(&x.spec, look_at,
                    &(look){.memory = &memory, .plan = some, .node = 0, .expected = 0xa5});
    tr_kv_memory_close(&memory);
    assert_null(memory.pages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_has_its_place_whatever_the_plan),
        cmocka_unit_test(parts_lie_one_after_the_other_without_gaps),
        cmocka_unit_test(parts_that_come_are_zero_and_those_that_stay_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
