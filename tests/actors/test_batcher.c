/* test_batcher.c - every arrow of the state diagram in batcher.c.
 *
 * Method: the batcher alone; the test plays client, KV pool and sampler. */
#include "actors/switch.h"
#include "tests/actors/fake_env.h"

static const tr_actor_id client = ((tr_actor_id)TR_ACTOR_CLIENT << 48) + 3;

typedef struct {
    fake f;
    fake_cluster c;
    void *batcher;
    uint64_t ends_told; /* by counting_send */
} fixture;

static void open_batcher(fixture *x, uint32_t nodes)
{
    x->ends_told = 0;
    fake_cluster_make(&x->c, nodes);
    fake_open(&x->f, tr_node_actor(TR_ACTOR_BATCHER, 0));
    x->batcher = fake_actor_open(&x->f, &x->c, &tr_batcher_ops, tr_batcher_count);
}

static void close_batcher(fixture *x)
{
    fake_actor_close(&x->c, &tr_batcher_ops, x->batcher);
    fake_close(&x->f);
}

static void submit(fixture *x, uint64_t request, uint32_t prompt, uint32_t tokens_max)
{
    struct {
        tr_submit submit;
        int32_t tokens[400];
    } payload = {.submit = {.request = request,
                            .tokens_count = prompt,
                            .tokens_max = tokens_max,
                            .stop_tokens = {9},
                            .stop_tokens_count = 1}};
    for (uint32_t i = 0; i < prompt; i++)
        payload.tokens[i] = (int32_t)(i % 100);
    fake_give(&x->f, &tr_batcher_ops, x->batcher, client, TR_MSG_SUBMIT, 0, 0, &payload,
              sizeof(tr_submit) + prompt * sizeof(int32_t));
}

static void answer_reserve(fixture *x, uint32_t node, uint32_t sequence, bool admitted)
{
    tr_kv_reserved answer = {.admitted = admitted, .node = node};
    fake_give(&x->f, &tr_batcher_ops, x->batcher, tr_node_actor(TR_ACTOR_KV_POOL, node),
              TR_MSG_KV_RESERVED, 0, sequence, &answer, sizeof(answer));
}

static void answer_release(fixture *x, uint32_t node, uint32_t sequence)
{
    fake_give(&x->f, &tr_batcher_ops, x->batcher, tr_node_actor(TR_ACTOR_KV_POOL, node),
              TR_MSG_KV_RELEASED, 0, sequence, NULL, 0);
}

/* The tokens of a step: one for each (request, sequence) pair given. */
static void answer_step(fixture *x, uint64_t step, uint32_t count, const uint64_t *requests,
                        const uint32_t *sequences, int32_t token)
{
    struct {
        tr_token_head head;
        tr_token tokens[4];
    } payload = {.head = {.count = count}};
    for (uint32_t i = 0; i < count; i++)
        payload.tokens[i] =
            (tr_token){.request = requests[i], .sequence = sequences[i], .token = token};
    fake_give(&x->f, &tr_batcher_ops, x->batcher, tr_node_actor(TR_ACTOR_SAMPLER, 0), TR_MSG_TOKENS,
              step, 0, &payload, sizeof(tr_token_head) + count * sizeof(tr_token));
}

static tr_step_view read_step(const fixture *x, uint32_t which)
{
    tr_step_view v = {0};
    tr_error err = {0};
    for (uint32_t i = 0; i < x->f.sent_count; i++)
        if (x->f.sent[i].header.kind == TR_MSG_STEP && which-- == 0) {
            CHECK_STATUS(tr_step_read(&v, &x->f.sent[i], &x->c.node.limits, &err), TR_OK);
            return v;
        }
    fail_msg("no such step");
    return v;
}

static tr_event read_event(const fixture *x)
{
    tr_event event = {0};
    const tr_msg *msg = fake_find(&x->f, TR_MSG_EVENT);
    assert_non_null(msg);
    memcpy(&event, msg->payload->data, sizeof(event));
    return event;
}

static void a_request_lives_from_submit_to_release(void **state)
{
    fixture x;
    uint64_t request = 11;
    uint32_t sequence = 0;
    (void)state;
    open_batcher(&x, 2);
    submit(&x, 11, 70, 2);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 2);
    answer_reserve(&x, 0, 0, true);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0); /* the other pool has not answered */
    answer_reserve(&x, 1, 0, true);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 2); /* both routers */
    tr_step_view v = read_step(&x, 0);
    assert_int_equal(v.head.rows_count, 70);
    assert_int_equal(v.head.outputs_count, 1);
    assert_int_equal(v.outputs[0].row, 69);
    assert_int_equal(v.segments[0].form, TR_FORM_PREFILL);

    fake_clear(&x.f);
    answer_step(&x, 1, 1, &request, &sequence, 42);
    assert_int_equal(read_event(&x).token, 42);
    v = read_step(&x, 0);
    assert_int_equal(v.head.rows_count, 1);
    assert_int_equal(v.tokens[0], 42);
    assert_int_equal(v.segments[0].first_position, 70);
    assert_int_equal(v.segments[0].form, TR_FORM_DECODE);

    fake_clear(&x.f);
    answer_step(&x, 2, 1, &request, &sequence, 43); /* the second and last one */
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 2);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 2);
    assert_int_equal(atomic_load(&x.c.counters.sequences_active), 1);
    answer_release(&x, 0, 0);
    answer_release(&x, 1, 0);
    assert_int_equal(atomic_load(&x.c.counters.sequences_active), 0);
    assert_int_equal(atomic_load(&x.c.counters.pages_used), 0);
    close_batcher(&x);
}

static void long_prompts_are_cut_at_multiples_of_64(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 300, 1);
    answer_reserve(&x, 0, 0, true);
    uint32_t expected[] = {128, 128, 44};
    for (uint32_t i = 0; i < 3; i++) {
        tr_step_view v = read_step(&x, 0);
        assert_int_equal(v.head.rows_count, expected[i]);
        assert_int_equal(v.segments[0].first_position, i * 128);
        assert_int_equal(v.head.outputs_count, i == 2);
        fake_clear(&x.f);
        if (i < 2)
            answer_step(&x, i + 1, 0, NULL, NULL, 0);
    }
    close_batcher(&x);
}

static void generating_rows_go_before_prompt_rows(void **state)
{
    fixture x;
    uint64_t request = 1;
    uint32_t sequence = 0;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 50);
    answer_reserve(&x, 0, 0, true);
    submit(&x, 2, 200, 50);
    fake_clear(&x.f);
    answer_reserve(&x, 0, 1, true);
    tr_step_view v = read_step(&x, 0); /* the second step in flight: the prompt alone */
    assert_int_equal(v.head.rows_count, 128);
    answer_step(&x, 2, 0, NULL, NULL, 0);
    fake_clear(&x.f);
    answer_step(&x, 1, 1, &request, &sequence, 5);
    v = read_step(&x, 0); /* step 3: the new token's row, then the rest of the prompt */
    assert_int_equal(v.segments[0].sequence, 0);
    assert_int_equal(v.segments[0].form, TR_FORM_DECODE);
    assert_int_equal(v.segments[1].sequence, 1);
    assert_int_equal(v.head.rows_count, 1 + 72);
    close_batcher(&x);
}

static void a_prompt_is_not_kept_waiting_by_those_who_generate(void **state)
{
    fixture x;
    const uint64_t requests[] = {1, 2};
    const uint32_t sequences[] = {0, 1};
    bool begun = false;
    (void)state;
    fake_cluster_make(&x.c, 1);
    x.c.node.limits.rows_max = TR_CHUNK_ROWS; /* a row beside a piece of a prompt is too much */
    fake_open(&x.f, tr_node_actor(TR_ACTOR_BATCHER, 0));
    x.batcher = fake_actor_open(&x.f, &x.c, &tr_batcher_ops, tr_batcher_count);
    for (uint32_t i = 0; i < 2; i++) { /* each in a step of its own */
        submit(&x, requests[i], 4, 50);
        answer_reserve(&x, 0, i, true);
    }
    submit(&x, 3, 200, 50);
    answer_reserve(&x, 0, 2, true);
    for (uint32_t step = 1; step <= 6 && !begun; step++) {
        fake_clear(&x.f);
        answer_step(&x, step, 1, &requests[(step - 1) % 2], &sequences[(step - 1) % 2], 5);
        if (fake_count(&x.f, TR_MSG_STEP) > 0)
            begun = read_step(&x, 0).segments[0].sequence == 2;
    }
    assert_true(begun);
    close_batcher(&x);
}

static void a_stop_token_ends_and_is_not_a_token(void **state)
{
    fixture x;
    uint64_t request = 1;
    uint32_t sequence = 0;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 50);
    answer_reserve(&x, 0, 0, true);
    fake_clear(&x.f);
    answer_step(&x, 1, 1, &request, &sequence, 9);
    tr_event event = read_event(&x);
    assert_int_equal(event.kind, TR_EVENT_FINISHED);
    assert_int_equal(event.finish, TR_FINISH_STOP);
    assert_int_equal(event.generated_tokens, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 1);
    close_batcher(&x);
}

static void cancel_ends_a_request_within_its_step(void **state)
{
    fixture x;
    uint64_t request = 1;
    uint32_t sequence = 0;
    tr_cancel cancel = {.request = 1};
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 50);
    answer_reserve(&x, 0, 0, true);
    fake_clear(&x.f);
    fake_give(&x.f, &tr_batcher_ops, x.batcher, client + 1, TR_MSG_CANCEL, 0, 0, &cancel,
              sizeof(cancel)); /* another client's word does not count */
    fake_give(&x.f, &tr_batcher_ops, x.batcher, client, TR_MSG_CANCEL, 0, 0, &cancel,
              sizeof(cancel));
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 0); /* it is in a step */
    answer_step(&x, 1, 1, &request, &sequence, 5);
    assert_int_equal(read_event(&x).finish, TR_FINISH_CANCELED);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0);
    close_batcher(&x);
}

static void waiting_requests_can_be_cancelled(void **state)
{
    fixture x;
    tr_cancel cancel = {.request = 3};
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 300, 90); /* 7 of 8 pages */
    submit(&x, 2, 300, 90);
    submit(&x, 3, 300, 90);
    assert_int_equal(atomic_load(&x.c.counters.requests_waiting), 2);
    fake_give(&x.f, &tr_batcher_ops, x.batcher, client, TR_MSG_CANCEL, 0, 0, &cancel,
              sizeof(cancel));
    assert_int_equal(read_event(&x).request, 3);
    assert_int_equal(atomic_load(&x.c.counters.requests_waiting), 1);
    close_batcher(&x);
}

static void bad_and_too_many_requests_are_refused_with_a_reason(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 390, 11); /* past the context */
    assert_int_equal(read_event(&x).error.code, TR_E_INVALID);
    assert_true(read_event(&x).refused);
    fake_clear(&x.f);
    for (uint64_t i = 2; i <= 6; i++) /* one runs, queue_max wait */
        submit(&x, i, 300, 90);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 0);
    submit(&x, 7, 300, 90);
    assert_int_equal(read_event(&x).error.code, TR_E_AGAIN);
    close_batcher(&x);
}

static void a_refusing_pool_fails_the_request(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 2);
    submit(&x, 1, 4, 4);
    answer_reserve(&x, 0, 0, true);
    answer_reserve(&x, 1, 0, false);
    assert_int_equal(read_event(&x).error.code, TR_E_NOMEM);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 2);
    close_batcher(&x);
}

/* fake_send, which looks at the figures when somebody is told of an end: it must be counted. */
static tr_status counting_send(void *ctx, tr_actor_id target, tr_msg_kind kind, uint64_t step,
                               uint32_t argument, tr_buf *payload)
{
    fixture *x = (fixture *)ctx; /* its first member is the environment */
    if (kind == TR_MSG_EVENT) {
        tr_event event;
        memcpy(&event, payload->data, sizeof(event));
        x->ends_told += event.kind == TR_EVENT_FINISHED || event.kind == TR_EVENT_FAILED;
        assert_int_equal(x->c.counters.requests_finished + x->c.counters.requests_failed,
                         x->ends_told);
    }
    return fake_send(ctx, target, kind, step, argument, payload);
}

static void who_is_told_of_an_end_finds_it_counted(void **state)
{
    fixture x;
    uint64_t request = 1;
    uint32_t sequence = 0;
    (void)state;
    open_batcher(&x, 1);
    x.f.env.send = counting_send;
    submit(&x, 1, 4, 1); /* finishes */
    answer_reserve(&x, 0, 0, true);
    answer_step(&x, 1, 1, &request, &sequence, 5);
    submit(&x, 2, 4, 4); /* fails */
    answer_reserve(&x, 0, 1, false);
    submit(&x, 3, 390, 11);           /* is refused */
    for (uint64_t i = 4; i <= 6; i++) /* the last two wait */
        submit(&x, i, 300, 90);
    tr_cancel cancel = {.request = 6}; /* is withdrawn */
    fake_give(&x.f, &tr_batcher_ops, x.batcher, client, TR_MSG_CANCEL, 0, 0, &cancel,
              sizeof(cancel));
    assert_int_equal(x.ends_told, 4);
    assert_int_equal(x.c.counters.requests_finished, 2);
    close_batcher(&x);
}

static void a_failed_step_ends_its_requests_and_no_others(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 4);
    answer_reserve(&x, 0, 0, true);
    submit(&x, 2, 4, 4);
    answer_reserve(&x, 0, 1, true);
    fake_clear(&x.f);
    fake_give(&x.f, &tr_batcher_ops, x.batcher, tr_node_actor(TR_ACTOR_ROUTER, 0),
              TR_MSG_STEP_FAILED, 1, (uint32_t)-TR_E_NOMEM, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 1);
    assert_int_equal(read_event(&x).request, 1);
    tr_event event = read_event(&x);
    CHECK_ERR_NAMES(event.error, "router");
    assert_false(event.refused);
    close_batcher(&x);
}

static void a_lost_node_fails_everything_then_and_later(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 2);
    submit(&x, 1, 300, 90);
    answer_reserve(&x, 0, 0, true);
    answer_reserve(&x, 1, 0, true);
    submit(&x, 2, 300, 90); /* waits */
    fake_clear(&x.f);
    fake_give(&x.f, &tr_batcher_ops, x.batcher, 0, TR_MSG_PEER_DOWN, 0, 1, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 2);
    tr_event event = read_event(&x);
    CHECK_ERR_NAMES(event.error, "spark2");
    fake_clear(&x.f);
    submit(&x, 3, 4, 4);
    assert_int_equal(read_event(&x).error.code, TR_E_PEER);
    close_batcher(&x);
}

/* Two other nodes have lost each other, and the batcher sees both. */
static void a_node_that_lost_another_ends_everything(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 2);
    submit(&x, 1, 4, 4);
    answer_reserve(&x, 0, 0, true);
    answer_reserve(&x, 1, 0, true);
    submit(&x, 2, 4, 4); /* in no step yet */
    fake_clear(&x.f);
    fake_give(&x.f, &tr_batcher_ops, x.batcher, tr_node_actor(TR_ACTOR_ROUTER, 1),
              TR_MSG_STEP_FAILED, 1, (uint32_t)-TR_E_PEER, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 2);
    tr_event event = read_event(&x);
    assert_int_equal(event.error.code, TR_E_PEER);
    CHECK_ERR_NAMES(event.error, "spark2");
    assert_true(atomic_load(&x.c.counters.broken));
    close_batcher(&x);
}

static void routers_hear_that_a_step_has_failed(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 2);
    submit(&x, 1, 4, 4);
    answer_reserve(&x, 0, 0, true);
    answer_reserve(&x, 1, 0, true);
    fake_clear(&x.f);
    fake_give(&x.f, &tr_batcher_ops, x.batcher, tr_node_actor(TR_ACTOR_EXPERT_SHARD, 1),
              TR_MSG_STEP_FAILED, 1, (uint32_t)-TR_E_NOMEM, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 2);
    assert_int_equal(fake_find(&x.f, TR_MSG_STEP_FAILED)->header.step, 1);
    close_batcher(&x);
}

static void requests_that_wait_end_although_no_buffer_is_free(void **state)
{
    fixture x;
    tr_cancel cancel = {.request = 2};
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 300, 90); /* 7 of 8 pages */
    submit(&x, 2, 300, 90);
    submit(&x, 3, 300, 90);
    fake_clear(&x.f);
    x.f.pool_empty = true;
    fake_give(&x.f, &tr_batcher_ops, x.batcher, client, TR_MSG_CANCEL, 0, 0, &cancel,
              sizeof(cancel));
    tr_event event = read_event(&x);
    assert_int_equal(event.request, 2);
    assert_int_equal(event.kind, TR_EVENT_FINISHED);
    assert_int_equal(event.finish, TR_FINISH_CANCELED);
    assert_int_equal(event.prompt_tokens, 300);
    fake_clear(&x.f);
    submit(&x, 4, 390, 11); /* past the context */
    assert_int_equal(read_event(&x).request, 4);
    assert_int_equal(read_event(&x).error.code, TR_E_INVALID);
    x.f.pool_empty = false;
    close_batcher(&x);
}

static void a_batcher_without_buffers_tries_again_by_itself(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 1);
    uint32_t timers = x.f.timers_count;
    x.f.pool_empty = true;
    submit(&x, 1, 4, 4);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0);
    assert_int_equal(x.f.timers_count, timers + 1);
    fake_give(&x.f, &tr_batcher_ops, x.batcher, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    assert_int_equal(x.f.timers_count, timers + 2); /* still none: asked again */
    x.f.pool_empty = false;
    fake_give(&x.f, &tr_batcher_ops, x.batcher, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    assert_int_equal(x.f.timers_count, timers + 2);
    x.f.pool_empty = true;
    answer_reserve(&x, 0, 0, true);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0);
    assert_int_equal(x.f.timers_count, timers + 3);
    x.f.pool_empty = false;
    fake_give(&x.f, &tr_batcher_ops, x.batcher, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 1);
    close_batcher(&x);
}

static void a_step_that_does_not_end_is_given_up(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 4);
    answer_reserve(&x, 0, 0, true);
    fake_clear(&x.f);
    x.f.now_ns += 2000; /* step_timeout_ns is 1000 */
    fake_give(&x.f, &tr_batcher_ops, x.batcher, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    assert_int_equal(read_event(&x).error.code, TR_E_TIMEOUT);
    assert_true(atomic_load(&x.c.counters.broken));
    close_batcher(&x);
}

/* Its slot would never be free again, and a request that is to be read again would wait for ever.
 */
static void a_pool_that_gives_nothing_back_is_not_waited_for(void **state)
{
    fixture x;
    uint64_t request = 1;
    uint32_t sequence = 0;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 1);
    answer_reserve(&x, 0, 0, true);
    x.f.now_ns += 900; /* step_timeout_ns is 1000 */
    answer_step(&x, 1, 1, &request, &sequence, 5);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1);
    for (uint32_t i = 0; i < 2; i++) {
        assert_false(atomic_load(&x.c.counters.broken));
        x.f.now_ns += 900;
        fake_give(&x.f, &tr_batcher_ops, x.batcher, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    }
    assert_true(atomic_load(&x.c.counters.broken));
    fake_clear(&x.f);
    submit(&x, 2, 4, 4);
    assert_int_equal(read_event(&x).error.code, TR_E_TIMEOUT);
    close_batcher(&x);
}

static void no_token_is_lost_when_buffers_run_out(void **state)
{
    fixture x;
    uint64_t request = 1;
    uint32_t sequence = 0;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 50);
    answer_reserve(&x, 0, 0, true);
    fake_clear(&x.f);
    x.f.pool_empty = true;
    answer_step(&x, 1, 1, &request, &sequence, 5);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0); /* the sequence waits for its event */
    x.f.pool_empty = false;
    fake_give(&x.f, &tr_batcher_ops, x.batcher, 0, TR_MSG_TIMER, 0, x.f.timer_cookie, NULL, 0);
    assert_int_equal(read_event(&x).token, 5);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 1);
    close_batcher(&x);
}

/* -- the placement changes -- */

static void give_switch(fixture *x, tr_switch_what what, uint32_t *positions,
                        _Atomic uint32_t *done)
{
    tr_switch question = {.what = what, .positions = positions, .done = done};
    fake_give(&x->f, &tr_batcher_ops, x->batcher, 0, TR_MSG_SWITCH, 0, 0, &question,
              sizeof(question));
}

static void a_pause_is_answered_at_once_when_no_step_is_in_flight(void **state)
{
    fixture x;
    uint32_t positions[3] = {7, 7, 7};
    _Atomic uint32_t done = 0;
    (void)state;
    open_batcher(&x, 1);
    give_switch(&x, TR_SWITCH_PAUSE, positions, &done);
    assert_int_equal(done, 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(positions[i], 0); /* no sequence has state */
    submit(&x, 1, 4, 4);                   /* admitted, but no step */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    answer_reserve(&x, 0, 0, true);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0);
    assert_int_equal(done, 1); /* one answer to one question */
    give_switch(&x, TR_SWITCH_RESUME, NULL, &done);
    assert_int_equal(done, 2);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 1);
    close_batcher(&x);
}

static void a_pause_waits_for_the_last_step_and_forms_none(void **state)
{
    fixture x;
    uint64_t requests[] = {1, 2};
    uint32_t sequences[] = {0, 1}, positions[3] = {7, 7, 7};
    _Atomic uint32_t done = 0;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 50);
    answer_reserve(&x, 0, 0, true);
    submit(&x, 2, 300, 50);
    answer_reserve(&x, 0, 1, true);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 2); /* 4 rows, and the first 128 of 300 */
    fake_clear(&x.f);
    give_switch(&x, TR_SWITCH_PAUSE, positions, &done);
    answer_step(&x, 1, 1, requests, sequences, 5);
    assert_int_equal(done, 0);
    assert_int_equal(positions[0], 7); /* nothing is said before the answer */
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0);
    answer_step(&x, 2, 0, NULL, NULL, 0);
    assert_int_equal(done, 1);
    assert_int_equal(positions[0], 4);
    assert_int_equal(positions[1], 128);
    assert_int_equal(positions[2], 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0);
    give_switch(&x, TR_SWITCH_RESUME, NULL, &done);
    assert_int_equal(done, 2);
    tr_step_view v = read_step(&x, 0); /* both go on where they were */
    assert_int_equal(v.segments[0].first_position, 4);
    assert_int_equal(v.segments[1].first_position, 128);
    close_batcher(&x);
}

/* Who asked has given up waiting: both are counted, and steps are formed again. */
static void a_pause_is_measured_between_the_tokens_of_a_stream(void **state)
{
    fixture x;
    uint64_t request = 1;
    uint32_t sequence = 0, positions[3];
    _Atomic uint32_t done = 0;
    (void)state;
    open_batcher(&x, 1);
    tr_node_counters *counters = &x.c.counters;
    submit(&x, 1, 4, 50);
    answer_reserve(&x, 0, 0, true);
    x.f.now_ns = 100;
    give_switch(&x, TR_SWITCH_PAUSE, positions, &done);
    answer_step(&x, 1, 1, &request, &sequence, 5); /* the last before it */
    assert_int_equal(done, 1);
    assert_int_equal(atomic_load(&counters->gaps_open), 1);
    x.f.now_ns = 150;
    give_switch(&x, TR_SWITCH_RESUME, NULL, &done);
    assert_int_equal(atomic_load(&counters->gaps_open), 1);
    x.f.now_ns = 180;
    answer_step(&x, 2, 1, &request, &sequence, 6);
    assert_int_equal(atomic_load(&counters->gaps_open), 0);
    assert_int_equal(atomic_load(&counters->gap_ns_max), 80);
    x.f.now_ns = 400; /* only what a pause is in between of */
    answer_step(&x, 3, 1, &request, &sequence, 7);
    assert_int_equal(atomic_load(&counters->gap_ns_max), 80);
    close_batcher(&x);
}

static void a_resume_ends_a_pause_that_was_not_answered(void **state)
{
    fixture x;
    uint32_t positions[3] = {7, 7, 7};
    _Atomic uint32_t done = 0;
    (void)state;
    open_batcher(&x, 1);
    submit(&x, 1, 4, 50);
    answer_reserve(&x, 0, 0, true);
    give_switch(&x, TR_SWITCH_PAUSE, positions, &done);
    assert_int_equal(done, 0);
    give_switch(&x, TR_SWITCH_RESUME, NULL, &done);
    assert_int_equal(done, 2);
    uint64_t request = 1;
    uint32_t sequence = 0;
    fake_clear(&x.f);
    answer_step(&x, 1, 1, &request, &sequence, 5);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 1);
    assert_int_equal(done, 2);
    assert_int_equal(positions[0], 7);
    close_batcher(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_lives_from_submit_to_release),
        cmocka_unit_test(long_prompts_are_cut_at_multiples_of_64),
        cmocka_unit_test(generating_rows_go_before_prompt_rows),
        cmocka_unit_test(a_prompt_is_not_kept_waiting_by_those_who_generate),
        cmocka_unit_test(a_stop_token_ends_and_is_not_a_token),
        cmocka_unit_test(cancel_ends_a_request_within_its_step),
        cmocka_unit_test(waiting_requests_can_be_cancelled),
        cmocka_unit_test(bad_and_too_many_requests_are_refused_with_a_reason),
        cmocka_unit_test(a_refusing_pool_fails_the_request),
        cmocka_unit_test(who_is_told_of_an_end_finds_it_counted),
        cmocka_unit_test(a_failed_step_ends_its_requests_and_no_others),
        cmocka_unit_test(a_lost_node_fails_everything_then_and_later),
        cmocka_unit_test(a_node_that_lost_another_ends_everything),
        cmocka_unit_test(routers_hear_that_a_step_has_failed),
        cmocka_unit_test(requests_that_wait_end_although_no_buffer_is_free),
        cmocka_unit_test(a_batcher_without_buffers_tries_again_by_itself),
        cmocka_unit_test(a_step_that_does_not_end_is_given_up),
        cmocka_unit_test(a_pool_that_gives_nothing_back_is_not_waited_for),
        cmocka_unit_test(no_token_is_lost_when_buffers_run_out),
        cmocka_unit_test(a_pause_is_answered_at_once_when_no_step_is_in_flight),
        cmocka_unit_test(a_pause_waits_for_the_last_step_and_forms_none),
        cmocka_unit_test(a_pause_is_measured_between_the_tokens_of_a_stream),
        cmocka_unit_test(a_resume_ends_a_pause_that_was_not_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
