/* test_batcher_prefix.c - every arrow of the state diagram in batcher_prefix.c.
 *
 * Method: the batcher alone, with one slot for prefixes beside two for requests; the test plays
 * client, KV pool, sampler and coordinator. */
#include "tests/actors/lone_batcher.h"

/* with_states: of a model that keeps more than pages. */
static void open_batcher(fixture *x, bool with_states)
{
    batcher_open(x, 1, with_states ? 64 : 0);
}

/* A prompt of count tokens; those of another talk differ from the first on, from 10 on after 100.
 */
static void submit(fixture *x, uint64_t request, uint32_t talk, uint32_t count, uint32_t tokens_max)
{
    struct {
        tr_submit submit;
        int32_t tokens[400];
    } payload = {.submit = {.request = request, .tokens_count = count, .tokens_max = tokens_max}};
    for (uint32_t i = 0; i < count; i++)
        payload.tokens[i] = (int32_t)((i + (talk < 10 || i >= 100 ? talk : 0)) % 100);
    give(x, client, TR_MSG_SUBMIT, 0, 0, &payload, sizeof(tr_submit) + count * sizeof(int32_t));
}

static const tr_msg *find_slot(const fixture *x, tr_msg_kind kind, uint32_t slot)
{
    for (uint32_t i = 0; i < x->f.sent_count; i++)
        if (x->f.sent[i].header.kind == kind && x->f.sent[i].header.argument == slot)
            return &x->f.sent[i];
    return NULL;
}

static tr_kv_reserve read_reserve(const fixture *x, uint32_t slot)
{
    tr_kv_reserve reserve = {0};
    const tr_msg *msg = find_slot(x, TR_MSG_KV_RESERVE, slot);
    assert_non_null(msg);
    memcpy(&reserve, msg->payload->data, sizeof(reserve));
    return reserve;
}

/* Request 1 of 70 tokens in slot 0 ends and leaves a prefix of 64 in slot 1. */
static void keep_one(fixture *x)
{
    submit(x, 1, 0, 70, 1);
    reserved(x, 0, true);
    reserved(x, 1, true);
    end_step(x, 0, 0, 42);
    end_step(x, 1, 0, 42);
    released(x, 0);
    assert_int_equal(atomic_load(&x->c.counters.prefixes_kept), 1);
    assert_int_equal(atomic_load(&x->c.counters.sequences_active), 0);
    fake_clear(&x->f);
}

/* The same of 200 tokens: a prefix of 192. */
static void keep_192(fixture *x)
{
    submit(x, 1, 0, 200, 1);
    reserved(x, 0, true);
    reserved(x, 1, true);
    for (uint32_t i = 0; i < 2; i++)
        end_step(x, 0, 0, 42);
    end_step(x, 1, 0, 42);
    released(x, 0);
    fake_clear(&x->f);
}

static void a_prompt_leaves_its_state_at_the_last_multiple_of_64(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    submit(&x, 1, 0, 70, 1);
    reserved(&x, 0, true);
    tr_kv_reserve reserve = read_reserve(&x, 1);
    assert_int_equal(reserve.tokens, 64);
    assert_int_equal(reserve.shared_with, 0);
    assert_int_equal(reserve.shared_pages, 1);
    assert_int_equal(atomic_load(&x.c.counters.pages_used), 2); /* it takes none of its own */
    tr_segment segment = read_segment(&x);
    assert_int_equal(segment.rows_count, 64);
    assert_int_equal(segment.leaves, 0);
    end_step(&x, 0, 0, 42);
    assert_null(fake_find(&x.f, TR_MSG_STEP)); /* the pool has not answered for the prefix */
    reserved(&x, 1, true);
    segment = read_segment(&x);
    assert_int_equal(segment.first_position, 64);
    assert_int_equal(segment.rows_count, 6);
    assert_int_equal(segment.leaves, 1 + 1);
    assert_int_equal(segment.takes, 0);
    end_step(&x, 1, 0, 42);
    assert_non_null(find_slot(&x, TR_MSG_KV_RELEASE, 0));
    assert_null(find_slot(&x, TR_MSG_KV_RELEASE, 1));
    released(&x, 0);
    assert_int_equal(atomic_load(&x.c.counters.pages_used), 1);
    batcher_close(&x);
}

static void a_prompt_that_begins_alike_takes_it(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    keep_one(&x);
    submit(&x, 2, 0, 65, 3);
    tr_kv_reserve reserve = read_reserve(&x, 0);
    assert_int_equal(reserve.tokens, 68);
    assert_int_equal(reserve.shared_with, 1);
    assert_int_equal(reserve.shared_pages, 1);
    reserved(&x, 0, true);
    tr_segment segment = read_segment(&x);
    assert_int_equal(segment.first_position, 64);
    assert_int_equal(segment.rows_count, 1);
    assert_int_equal(segment.form, TR_FORM_PREFILL);
    assert_int_equal(segment.takes, 1 + 1);
    assert_int_equal(segment.leaves, 0); /* it is kept already */
    end_step(&x, 2, 0, 42);
    assert_int_equal(read_segment(&x).takes, 0);
    end_step(&x, 2, 0, 42);
    end_step(&x, 2, 0, 42);
    tr_event event = {0};
    for (uint32_t i = 0; i < x.f.sent_count; i++) /* the last one */
        if (x.f.sent[i].header.kind == TR_MSG_EVENT)
            memcpy(&event, x.f.sent[i].payload->data, sizeof(event));
    assert_int_equal(event.kind, TR_EVENT_FINISHED);
    assert_int_equal(event.cached_tokens, 64);
    assert_int_equal(atomic_load(&x.c.counters.cached_tokens), 64);
    batcher_close(&x);
}

static void nothing_is_taken_that_differs_or_leaves_no_row(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    keep_one(&x);
    submit(&x, 2, 0, 64, 1); /* whose last row must be computed */
    assert_int_equal(read_reserve(&x, 0).shared_pages, 0);
    fake_clear(&x.f);
    submit(&x, 3, 1, 70, 1); /* another text */
    assert_int_equal(read_reserve(&x, 2).shared_pages, 0);
    batcher_close(&x);
}

static void a_prompt_that_parts_from_a_kept_one_leaves_its_state_there_too(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    keep_192(&x);
    submit(&x, 2, 10, 200, 1); /* parts from it after 100 */
    assert_int_equal(read_reserve(&x, 0).shared_pages, 0);
    reserved(&x, 0, true);
    assert_int_equal(read_segment(&x).rows_count, 64);
    released(&x, 1); /* the only slot for prefixes */
    assert_int_equal(read_reserve(&x, 1).tokens, 64);
    end_step(&x, 0, 0, 42);
    reserved(&x, 1, true);
    tr_segment segment = read_segment(&x);
    assert_int_equal(segment.first_position, 64);
    assert_int_equal(segment.leaves, 1 + 1);
    assert_int_equal(segment.rows_count, 128); /* up to where the prompt ends */
    end_step(&x, 0, 0, 42);
    released(&x, 1); /* for the state there */
    assert_int_equal(read_reserve(&x, 1).tokens, 192);
    reserved(&x, 1, true);
    segment = read_segment(&x);
    assert_int_equal(segment.first_position, 192);
    assert_int_equal(segment.leaves, 1 + 1);
    batcher_close(&x);
}

static void pages_alone_serve_prompts_that_part_earlier(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, false);
    keep_192(&x);
    submit(&x, 2, 0, 150, 1);
    assert_int_equal(read_reserve(&x, 0).shared_pages, 2);
    reserved(&x, 0, true);
    assert_int_equal(read_segment(&x).first_position, 128);
    batcher_close(&x);
}

static void a_prefix_that_is_taken_in_part_gives_way_when_nothing_else_does(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, false);
    submit(&x, 1, 0, 390, 1); /* keeps 384, 6 of 8 pages */
    reserved(&x, 0, true);
    reserved(&x, 1, true);
    for (uint32_t i = 0; i < 3; i++)
        end_step(&x, 0, 0, 42);
    end_step(&x, 1, 0, 42);
    released(&x, 0);
    fake_clear(&x.f);
    submit(&x, 2, 10, 390, 10); /* 7 pages, one of them shared */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0);
    assert_non_null(find_slot(&x, TR_MSG_KV_RELEASE, 1));
    released(&x, 1);
    assert_int_equal(read_reserve(&x, 0).shared_pages, 0);
    batcher_close(&x);
}

static void a_request_that_ends_early_leaves_nothing(void **state)
{
    fixture x;
    tr_cancel cancel = {.request = 1};
    (void)state;
    open_batcher(&x, true);
    submit(&x, 1, 0, 70, 1);
    reserved(&x, 0, true);
    give(&x, client, TR_MSG_CANCEL, 0, 0, &cancel, sizeof(cancel));
    end_step(&x, 0, 0, 42);
    assert_int_equal(x.f.sent[0].header.kind, TR_MSG_EVENT);
    uint32_t at = 0; /* the sequence goes before its prefix */
    while (x.f.sent[at].header.kind != TR_MSG_KV_RELEASE)
        at++;
    assert_int_equal(x.f.sent[at].header.argument, 0);
    assert_int_equal(x.f.sent[at + 1].header.kind, TR_MSG_KV_RELEASE);
    assert_int_equal(x.f.sent[at + 1].header.argument, 1);
    reserved(&x, 1, true); /* too late */
    released(&x, 0);
    released(&x, 1);
    assert_int_equal(atomic_load(&x.c.counters.prefixes_kept), 0);
    assert_int_equal(atomic_load(&x.c.counters.pages_used), 0);
    batcher_close(&x);
}

static void a_refused_prefix_holds_nobody_up(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    submit(&x, 1, 0, 70, 1);
    reserved(&x, 0, true);
    end_step(&x, 0, 0, 42);
    reserved(&x, 1, false);
    assert_int_equal(read_segment(&x).first_position, 64);
    assert_int_equal(read_segment(&x).leaves, 0);
    assert_non_null(find_slot(&x, TR_MSG_KV_RELEASE, 1)); /* other pools may have admitted it */
    batcher_close(&x);
}

static void what_is_kept_gives_way_but_not_while_states_travel(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    keep_one(&x);
    tell(&x, TR_SWITCH_PAUSE);
    assert_int_equal(x.done, 1);
    assert_int_equal(x.positions[1], 64); /* it travels like that of a sequence */
    assert_int_equal(x.positions[0], 0);
    submit(&x, 2, 1, 390, 10); /* 7 of 8 pages */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 0);
    submit(&x, 3, 2, 60, 4); /* the eighth is that of the prefix */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 0);
    tell(&x, TR_SWITCH_RESUME);
    assert_non_null(find_slot(&x, TR_MSG_KV_RELEASE, 1));
    fake_clear(&x.f);
    released(&x, 1);
    assert_int_equal(read_reserve(&x, 1).shared_pages, 0);
    batcher_close(&x);
}

static void the_least_used_goes_for_a_new_one(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    keep_one(&x);
    submit(&x, 2, 1, 70, 1);
    reserved(&x, 0, true);
    assert_non_null(find_slot(&x, TR_MSG_KV_RELEASE, 1));
    end_step(&x, 0, 0, 42);
    assert_null(fake_find(&x.f, TR_MSG_STEP)); /* it waits for the slot */
    released(&x, 1);
    assert_int_equal(read_reserve(&x, 1).shared_with, 0);
    reserved(&x, 1, true);
    assert_int_equal(read_segment(&x).leaves, 1 + 1);
    batcher_close(&x);
}

static void what_was_lost_with_a_node_is_kept_no_longer(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, true);
    x.c.node.recovers = true;
    keep_one(&x);
    submit(&x, 2, 0, 70, 1); /* is to begin with it */
    assert_int_equal(read_reserve(&x, 0).shared_pages, 1);
    x.c.attention[0] = 1; /* as if the layer stood on node 1, which goes */
    x.c.plan.nodes_count = 2;
    give(&x, tr_actor_id_make(TR_ACTOR_SUPERVISOR, 0), TR_MSG_PEER_DOWN, 0, 1, NULL, 0);
    tell(&x, TR_SWITCH_PAUSE);
    tell(&x, TR_SWITCH_GO_OVER);
    x.c.attention[0] = 0;
    fake_clear(&x.f);
    tell(&x, TR_SWITCH_RESUME);
    assert_non_null(find_slot(&x, TR_MSG_KV_RELEASE, 1));
    fake_clear(&x.f);
    reserved(&x, 0, true); /* for what it was to begin with */
    assert_non_null(find_slot(&x, TR_MSG_KV_RELEASE, 0));
    fake_clear(&x.f);
    released(&x, 0);
    assert_int_equal(read_reserve(&x, 0).shared_pages, 0);
    reserved(&x, 0, true);
    assert_int_equal(read_segment(&x).first_position, 0);
    assert_int_equal(read_segment(&x).takes, 0);
    released(&x, 1);
    batcher_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_leaves_its_state_at_the_last_multiple_of_64),
        cmocka_unit_test(a_prompt_that_begins_alike_takes_it),
        cmocka_unit_test(nothing_is_taken_that_differs_or_leaves_no_row),
        cmocka_unit_test(a_prompt_that_parts_from_a_kept_one_leaves_its_state_there_too),
        cmocka_unit_test(pages_alone_serve_prompts_that_part_earlier),
        cmocka_unit_test(a_prefix_that_is_taken_in_part_gives_way_when_nothing_else_does),
        cmocka_unit_test(a_request_that_ends_early_leaves_nothing),
        cmocka_unit_test(a_refused_prefix_holds_nobody_up),
        cmocka_unit_test(what_is_kept_gives_way_but_not_while_states_travel),
        cmocka_unit_test(the_least_used_goes_for_a_new_one),
        cmocka_unit_test(what_was_lost_with_a_node_is_kept_no_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
