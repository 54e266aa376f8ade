/* test_batcher_snapshot.c - every arrow of the state diagram in batcher_snapshot.c.
 *
 * Method: the batcher alone, with three slots; the test plays client, KV pool, sampler and the
 * cluster's thread. */
#include "tests/actors/lone_batcher.h"

static void submit(fixture *x, uint64_t request, uint32_t count, uint32_t tokens_max, uint64_t seed)
{
    struct {
        tr_submit submit;
        int32_t tokens[400];
    } payload = {.submit = {.request = request,
                            .tokens_count = count,
                            .tokens_max = tokens_max,
                            .sampling = {.temperature = 1, .seed = seed}}};
    for (uint32_t i = 0; i < count; i++)
        payload.tokens[i] = (int32_t)(i % 100);
    give(x, client, TR_MSG_SUBMIT, 0, 0, &payload, sizeof(tr_submit) + count * sizeof(int32_t));
}

static tr_kv_reserve read_reserve(const fixture *x)
{
    tr_kv_reserve reserve = {0};
    const tr_msg *msg = fake_find(&x->f, TR_MSG_KV_RESERVE);
    assert_non_null(msg);
    memcpy(&reserve, msg->payload->data, sizeof(reserve));
    return reserve;
}

/* The tokens of the events that were sent, in order. */
static uint32_t read_told(const fixture *x, int32_t *tokens)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < x->f.sent_count; i++) {
        tr_event event;
        if (x->f.sent[i].header.kind != TR_MSG_EVENT)
            continue;
        memcpy(&event, x->f.sent[i].payload->data, sizeof(event));
        if (event.kind == TR_EVENT_TOKEN)
            tokens[count++] = event.token;
    }
    return count;
}

/* Adopts a request of 70 tokens that has drawn 50, 51 and 52, the last of which is not computed. */
static void adopt_sequence(fixture *x)
{
    x->view.slot = (tr_snapshot_slot){.kind = TR_SNAPSHOT_SEQUENCE,
                                      .tokens_count = 73,
                                      .prompt_count = 70,
                                      .computed_count = 72,
                                      .tokens_max = 9,
                                      .sampling = {.temperature = 1, .seed = 5},
                                      .used = 4};
    for (int32_t i = 0; i < 73; i++)
        x->tokens[i] = i < 70 ? i % 100 : i - 20;
    tell(x, TR_SWITCH_ADOPT);
    assert_int_equal(x->done, 0); /* the pools have not answered */
    assert_int_equal(read_reserve(x).tokens, 79);
    reserved(x, 0, true);
    assert_int_equal(x->done, 1);
    assert_true(x->view.taken);
    assert_int_equal(x->view.number, 0);
    assert_int_equal(x->view.generation, 1);
    fake_clear(&x->f);
}

static void the_same_request_hears_what_was_drawn_and_goes_on(void **state)
{
    fixture x;
    int32_t told[8];
    (void)state;
    batcher_open(&x, 0, 0);
    adopt_sequence(&x);
    submit(&x, 1, 70, 9, 5); /* its state is not there yet: it is another */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    tell(&x, TR_SWITCH_SETTLE);
    assert_int_equal(x.done, 2);
    fake_clear(&x.f);
    submit(&x, 2, 70, 9, 5);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0);
    assert_int_equal(read_told(&x, told), 3);
    assert_int_equal(told[0], 50);
    assert_int_equal(told[2], 52);
    tr_segment segment = read_segment(&x);
    assert_int_equal(segment.sequence, 0);
    assert_int_equal(segment.generation, 1);
    assert_int_equal(segment.first_position, 72);
    assert_int_equal(segment.rows_count, 1);
    assert_int_equal(segment.form, TR_FORM_DECODE);
    end_step(&x, 2, 0, 53);
    assert_int_equal(read_told(&x, told), 1);
    assert_int_equal(told[0], 53);
    assert_int_equal(atomic_load(&x.c.counters.cached_tokens), 70);
    batcher_close(&x);
}

static void another_request_does_not_take_it(void **state)
{
    fixture x;
    (void)state;
    batcher_open(&x, 0, 0);
    adopt_sequence(&x);
    tell(&x, TR_SWITCH_SETTLE);
    submit(&x, 1, 70, 9, 6); /* another seed */
    submit(&x, 2, 70, 3, 5); /* which would have ended */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 2);
    fake_clear(&x.f);
    submit(&x, 3, 70, 10, 5); /* for which it has no memory; and now it has to give its slot */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1);
    fake_clear(&x.f);
    released(&x, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    assert_int_equal(atomic_load(&x.c.counters.prefixes_kept), 0);
    batcher_close(&x);
}

static void no_drawn_token_is_lost_when_buffers_run_out(void **state)
{
    fixture x;
    int32_t told[8];
    tr_submit submit_one = {.request = 2,
                            .tokens_count = 70,
                            .tokens_max = 9,
                            .sampling = {.temperature = 1, .seed = 5}};
    tr_msg msg = {.header = {.kind = TR_MSG_SUBMIT,
                             .source = client,
                             .payload_size = sizeof(tr_submit) + 70 * sizeof(int32_t)}};
    (void)state;
    batcher_open(&x, 0, 0);
    adopt_sequence(&x);
    tell(&x, TR_SWITCH_SETTLE);
    msg.payload = tr_pool_take(x.f.pool, msg.header.payload_size);
    memcpy(msg.payload->data, &submit_one, sizeof(submit_one));
    memcpy(msg.payload->data + sizeof(submit_one), x.tokens, 70 * sizeof(int32_t));
    fake_clear(&x.f);
    x.f.pool_empty = true;
    CHECK_STATUS(tr_batcher_ops.receive(x.batcher, &msg), TR_OK);
    tr_buf_unref(msg.payload);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0);
    x.f.pool_empty = false;
    give(&x, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    assert_int_equal(read_told(&x, told), 3);
    assert_int_equal(told[0], 50);
    assert_int_equal(told[1], 51);
    assert_int_equal(told[2], 52);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 1);
    batcher_close(&x);
}

static void what_has_no_room_or_no_state_is_not_kept(void **state)
{
    fixture x;
    (void)state;
    batcher_open(&x, 0, 0);
    submit(&x, 1, 300, 90, 0); /* 7 of 8 pages */
    fake_clear(&x.f);
    x.view.slot = (tr_snapshot_slot){.kind = TR_SNAPSHOT_PREFIX,
                                     .tokens_count = 128,
                                     .prompt_count = 128,
                                     .computed_count = 128};
    tell(&x, TR_SWITCH_ADOPT);
    assert_int_equal(x.done, 1);
    assert_false(x.view.taken);
    assert_int_equal(x.f.sent_count, 0);
    x.view.slot.tokens_count = x.view.slot.prompt_count = x.view.slot.computed_count = 64;
    tell(&x, TR_SWITCH_ADOPT);
    reserved(&x, 1, false); /* some pool has no buffer */
    assert_int_equal(x.done, 2);
    assert_false(x.view.taken);
    released(&x, 1);
    tell(&x, TR_SWITCH_ADOPT);
    reserved(&x, 1, true);
    assert_true(x.view.taken);
    fake_clear(&x.f);
    tell(&x, TR_SWITCH_DROP); /* its state could not be read */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1);
    released(&x, 1);
    assert_int_equal(atomic_load(&x.c.counters.prefixes_kept), 0);
    batcher_close(&x);
}

static void one_that_nobody_settles_goes_with_the_next(void **state)
{
    fixture x;
    (void)state;
    batcher_open(&x, 0, 0);
    adopt_sequence(&x);
    tell(&x, TR_SWITCH_ADOPT);
    const tr_msg *msg = fake_find(&x.f, TR_MSG_KV_RELEASE);
    assert_non_null(msg);
    assert_int_equal(msg->header.argument, 0);
    assert_int_equal(fake_find(&x.f, TR_MSG_KV_RESERVE)->header.argument, 1);
    reserved(&x, 1, true);
    assert_int_equal(x.view.number, 1);
    batcher_close(&x);
}

/* A pool takes longer to answer than the cluster's thread waits. */
static void one_that_is_dropped_while_it_is_adopted_leaves_nothing(void **state)
{
    fixture x;
    (void)state;
    batcher_open(&x, 0, 0);
    x.view.slot = (tr_snapshot_slot){
        .kind = TR_SNAPSHOT_PREFIX, .tokens_count = 64, .prompt_count = 64, .computed_count = 64};
    tell(&x, TR_SWITCH_ADOPT);
    tell(&x, TR_SWITCH_DROP);
    assert_int_equal(x.done, 2); /* the first is answered, too */
    assert_false(x.view.taken);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1);
    reserved(&x, 0, true); /* late */
    assert_int_equal(x.done, 2);
    assert_false(x.view.taken);
    released(&x, 0);
    assert_int_equal(atomic_load(&x.c.counters.prefixes_kept), 0);
    fake_clear(&x.f);
    tell(&x, TR_SWITCH_DROP); /* there is nothing any more */
    assert_int_equal(x.f.sent_count, 0);
    submit(&x, 1, 300, 90, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    batcher_close(&x);
}

/* It holds memory for all that its request may yet generate, not for its tokens alone. */
static void a_node_that_comes_back_gets_the_same_memory_for_it(void **state)
{
    fixture x;
    (void)state;
    batcher_open(&x, 0, 0);
    adopt_sequence(&x);
    tell(&x, TR_SWITCH_SETTLE);
    give(&x, tr_actor_id_make(TR_ACTOR_SUPERVISOR, 0), TR_MSG_PEER_UP, 0, 1, NULL, 0);
    const tr_msg *msg = fake_find(&x.f, TR_MSG_KV_RESERVE);
    assert_non_null(msg);
    assert_int_equal(msg->header.target, tr_node_actor(TR_ACTOR_KV_POOL, 1));
    assert_int_equal(read_reserve(&x).tokens, 79);
    assert_int_equal(read_reserve(&x).generation, 1);
    batcher_close(&x);
}

static void a_slot_is_described_during_a_pause(void **state)
{
    fixture x;
    (void)state;
    batcher_open(&x, 0, 0);
    submit(&x, 1, 70, 9, 5);
    reserved(&x, 0, true);
    end_step(&x, 1, 0, 42);
    tell(&x, TR_SWITCH_DESCRIBE);
    assert_int_equal(x.view.slot.kind, TR_SNAPSHOT_END); /* a step may be writing to it */
    tell(&x, TR_SWITCH_PAUSE);
    end_step(&x, 1, 0, 43);
    assert_int_equal(x.done, 2);
    tell(&x, TR_SWITCH_DESCRIBE);
    assert_int_equal(x.view.slot.kind, TR_SNAPSHOT_SEQUENCE);
    assert_int_equal(x.view.slot.tokens_count, 72);
    assert_int_equal(x.view.slot.prompt_count, 70);
    assert_int_equal(x.view.slot.computed_count, 71);
    assert_int_equal(x.view.slot.tokens_max, 9);
    assert_int_equal(x.view.slot.sampling.seed, 5);
    assert_int_equal(x.view.generation, 1);
    assert_int_equal(x.tokens[71], 43);
    x.view.number = 1;
    tell(&x, TR_SWITCH_DESCRIBE);
    assert_int_equal(x.view.slot.kind, TR_SNAPSHOT_END); /* an empty slot */
    batcher_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_request_hears_what_was_drawn_and_goes_on),
        cmocka_unit_test(another_request_does_not_take_it),
        cmocka_unit_test(no_drawn_token_is_lost_when_buffers_run_out),
        cmocka_unit_test(what_has_no_room_or_no_state_is_not_kept),
        cmocka_unit_test(one_that_nobody_settles_goes_with_the_next),
        cmocka_unit_test(one_that_is_dropped_while_it_is_adopted_leaves_nothing),
        cmocka_unit_test(a_node_that_comes_back_gets_the_same_memory_for_it),
        cmocka_unit_test(a_slot_is_described_during_a_pause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
