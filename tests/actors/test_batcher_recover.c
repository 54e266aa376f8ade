/* test_batcher_recover.c - what becomes of requests when a node is lost (batcher_recover.c).
 *
 * Method: the batcher alone, on a node that recovers, with a placement over two nodes; the test
 * plays client, KV pools, sampler and coordinator. */
#include "actors/switch.h"
#include "tests/actors/fake_env.h"

#include <stdatomic.h>

static const tr_actor_id client = ((tr_actor_id)TR_ACTOR_CLIENT << 48) + 3;

typedef struct {
    fake f;
    fake_cluster c;
    tr_plan_range range;
    tr_plan without; /* the placement without node 1 */
    tr_node_context node;
    void *batcher;
    _Atomic uint32_t done;
    uint32_t positions[3];
} fixture;

static void open_batcher(fixture *x)
{
    memset(x, 0, sizeof(*x));
    fake_cluster_make(&x->c, 2);
    x->c.node.recovers = true;
    fake_open(&x->f, tr_node_actor(TR_ACTOR_BATCHER, 0));
    x->batcher = fake_actor_open(&x->f, &x->c, &tr_batcher_ops, tr_batcher_count);
    x->range = (tr_plan_range){.last = x->c.node.limits.vocab_size - 1};
    x->c.plan.ranges = &x->range;
    x->c.plan.ranges_count = 1;
    CHECK_STATUS(tr_plan_copy(&x->without, &x->c.plan, NULL), TR_OK);
    x->without.epoch++;
    x->without.attention[1] = 0;
    x->without.spans[0].nodes = 1;
    x->node = x->c.node;
    x->node.plan = &x->without;
}

static void close_batcher(fixture *x)
{
    tr_plan_free(&x->without);
    fake_actor_close(&x->c, &tr_batcher_ops, x->batcher);
    fake_close(&x->f);
}

static void give(fixture *x, tr_actor_id source, tr_msg_kind kind, uint64_t step, uint32_t argument,
                 const void *payload, size_t size)
{
    fake_give(&x->f, &tr_batcher_ops, x->batcher, source, kind, step, argument, payload, size);
}

static void tell(fixture *x, tr_switch_what what, const tr_error *error)
{
    tr_switch s = {.what = what,
                   .node = &x->node,
                   .positions = x->positions,
                   .error = error,
                   .done = &x->done};
    give(x, tr_actor_id_make(TR_ACTOR_SUPERVISOR, 0), TR_MSG_SWITCH, 0, 0, &s, sizeof(s));
}

static void reserved(fixture *x, uint32_t nodes)
{
    for (uint32_t n = 0; n < nodes; n++) {
        tr_kv_reserved answer = {.admitted = true, .node = n};
        give(x, tr_node_actor(TR_ACTOR_KV_POOL, n), TR_MSG_KV_RESERVED, 0, 0, &answer,
             sizeof(answer));
    }
}

static void token(fixture *x, uint64_t step, int32_t value)
{
    struct {
        tr_token_head head;
        tr_token token;
    } payload = {.head = {.count = 1}, .token = {.request = 7, .token = value}};
    give(x, tr_node_actor(TR_ACTOR_SAMPLER, 0), TR_MSG_TOKENS, step, 0, &payload, sizeof(payload));
}

/* A prompt of 70 tokens; three are drawn, and a step for the fourth is in flight. */
static void start_request(fixture *x)
{
    struct {
        tr_submit submit;
        int32_t tokens[70];
    } payload = {.submit = {.request = 7, .tokens_count = 70, .tokens_max = 20}};
    give(x, client, TR_MSG_SUBMIT, 0, 0, &payload, sizeof(payload));
    reserved(x, 2);
    for (uint64_t step = 1; step <= 3; step++)
        token(x, step, 40 + (int32_t)step);
    fake_clear(&x->f);
}

static tr_step_view read_step(const fixture *x)
{
    tr_step_view v = {0};
    const tr_msg *msg = fake_find(&x->f, TR_MSG_STEP);
    assert_non_null(msg);
    CHECK_STATUS(tr_step_read(&v, msg, &x->c.node.limits, NULL), TR_OK);
    return v;
}

static void lose_node(fixture *x)
{
    give(x, 0, TR_MSG_PEER_DOWN, 0, 1, NULL, 0);
}

static void a_sequence_is_read_again_from_its_tokens(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x);
    start_request(&x);
    lose_node(&x);
    /* Routers drop the step, and it waits for another placement. */
    assert_true(fake_count(&x.f, TR_MSG_STEP_FAILED) > 0);
    assert_int_equal(x.f.sent_count, fake_count(&x.f, TR_MSG_STEP_FAILED));
    tell(&x, TR_SWITCH_PAUSE, NULL);
    assert_int_equal(x.done, 1); /* nothing is in flight any more */
    tell(&x, TR_SWITCH_GO_OVER, NULL);
    tell(&x, TR_SWITCH_RESUME, NULL);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1); /* the pool that is left */
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    reserved(&x, 1);

    tr_step_view v = read_step(&x); /* the prompt as a prompt, and nobody wants a token of it */
    assert_int_equal(v.head.rows_count, 70);
    assert_int_equal(v.head.outputs_count, 0);
    assert_int_equal(v.segments[0].first_position, 0);
    assert_int_equal(v.segments[0].form, TR_FORM_PREFILL);
    fake_clear(&x.f);
    tr_token_head none = {0};
    give(&x, tr_node_actor(TR_ACTOR_SAMPLER, 0), TR_MSG_TOKENS, 5, 0, &none, sizeof(none));
    v = read_step(&x); /* what was drawn as drawn, and a token of the last */
    assert_int_equal(v.head.rows_count, 3);
    assert_int_equal(v.segments[0].first_position, 70);
    assert_int_equal(v.segments[0].form, TR_FORM_DECODE);
    assert_int_equal(v.tokens[0], 41);
    assert_int_equal(v.tokens[2], 43);
    assert_int_equal(v.head.outputs_count, 1);
    assert_int_equal(v.outputs[0].row, 2);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 0); /* nothing is told twice */
    close_batcher(&x);
}

static void an_aborted_change_does_not_forget_the_loss(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x);
    start_request(&x);
    tell(&x, TR_SWITCH_PAUSE, NULL); /* of a move, which the loss will abort */
    lose_node(&x);
    tell(&x, TR_SWITCH_RESUME, NULL);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 0); /* the placement still uses the node */
    tell(&x, TR_SWITCH_PAUSE, NULL);
    tell(&x, TR_SWITCH_GO_OVER, NULL);
    tell(&x, TR_SWITCH_RESUME, NULL);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    reserved(&x, 1);
    assert_int_equal(read_step(&x).segments[0].first_position, 0);
    close_batcher(&x);
}

static uint32_t events_of(const fixture *x, tr_event_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < x->f.sent_count; i++) {
        tr_event event;
        if (x->f.sent[i].header.kind != TR_MSG_EVENT)
            continue;
        memcpy(&event, x->f.sent[i].payload->data, sizeof(event));
        count += event.kind == kind;
    }
    return count;
}

static void a_cancelled_one_hears_its_end_once(void **state)
{
    fixture x;
    tr_cancel cancel = {.request = 7};
    (void)state;
    open_batcher(&x);
    start_request(&x);
    lose_node(&x);
    give(&x, client, TR_MSG_CANCEL, 0, 0, &cancel, sizeof(cancel));
    tell(&x, TR_SWITCH_PAUSE, NULL);
    tell(&x, TR_SWITCH_GO_OVER, NULL);
    tell(&x, TR_SWITCH_RESUME, NULL);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(events_of(&x, TR_EVENT_FINISHED), 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0);
    assert_int_equal(atomic_load(&x.c.counters.sequences_active), 0);
    close_batcher(&x);
}

/* Cancelled while its memory comes back: it takes none again, of which there may be too little. */
static void a_cancelled_one_is_not_read_again(void **state)
{
    fixture x;
    tr_cancel cancel = {.request = 7};
    (void)state;
    open_batcher(&x);
    start_request(&x);
    lose_node(&x);
    tell(&x, TR_SWITCH_PAUSE, NULL);
    tell(&x, TR_SWITCH_GO_OVER, NULL);
    tell(&x, TR_SWITCH_RESUME, NULL);
    fake_clear(&x.f);
    give(&x, client, TR_MSG_CANCEL, 0, 0, &cancel, sizeof(cancel));
    assert_int_equal(x.f.sent_count, 0);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 1);
    const tr_event *event = (const void *)fake_find(&x.f, TR_MSG_EVENT)->payload->data;
    assert_int_equal(event->kind, TR_EVENT_FINISHED);
    assert_int_equal(event->finish, TR_FINISH_CANCELED);
    close_batcher(&x);
}

static void when_nothing_can_take_its_place_requests_end_with_the_reason(void **state)
{
    fixture x;
    tr_error why;
    (void)state;
    open_batcher(&x);
    tr_fail(&why, TR_E_NOMEM, "node a: too little memory");
    start_request(&x);
    lose_node(&x);
    tell(&x, TR_SWITCH_GIVE_UP, &why);
    assert_int_equal(events_of(&x, TR_EVENT_FAILED), 1);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(atomic_load(&x.c.counters.sequences_active), 0);
    close_batcher(&x);
}

static void a_replay_that_is_given_up_hears_the_reason(void **state)
{
    fixture x;
    tr_error why;
    (void)state;
    open_batcher(&x);
    tr_fail(&why, TR_E_NOMEM, "node a: too little memory");
    start_request(&x);
    lose_node(&x);
    tell(&x, TR_SWITCH_PAUSE, NULL);
    tell(&x, TR_SWITCH_GO_OVER, NULL);
    tell(&x, TR_SWITCH_RESUME, NULL); /* its memory is on the way back */
    tell(&x, TR_SWITCH_GIVE_UP, &why);
    assert_int_equal(events_of(&x, TR_EVENT_FAILED), 1);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0);
    assert_int_equal(atomic_load(&x.c.counters.sequences_active), 0);
    close_batcher(&x);
}

static void the_loss_of_a_node_that_is_not_used_is_not_noticed(void **state)
{
    fixture x;
    (void)state;
    open_batcher(&x);
    start_request(&x);
    tell(&x, TR_SWITCH_PAUSE, NULL);
    token(&x, 4, 44);
    tell(&x, TR_SWITCH_GO_OVER, NULL);
    tell(&x, TR_SWITCH_RESUME, NULL);
    fake_clear(&x.f);
    lose_node(&x);
    token(&x, 5, 45);
    assert_int_equal(events_of(&x, TR_EVENT_TOKEN), 1);
    assert_int_equal(read_step(&x).segments[0].first_position, 74);
    close_batcher(&x);
}

/* -- the node is there again -- */

/* The request goes on without node 1, with a step in flight. */
static uint64_t go_on_without(fixture *x)
{
    open_batcher(x);
    start_request(x);
    lose_node(x);
    tell(x, TR_SWITCH_PAUSE, NULL);
    tell(x, TR_SWITCH_GO_OVER, NULL);
    tell(x, TR_SWITCH_RESUME, NULL);
    give(x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    reserved(x, 1);
    uint64_t step = fake_find(&x->f, TR_MSG_STEP)->header.step;
    fake_clear(&x->f);
    return step;
}

static void answer_late(fixture *x, bool admitted)
{
    tr_kv_reserved answer = {.admitted = admitted, .node = 1};
    give(x, tr_node_actor(TR_ACTOR_KV_POOL, 1), TR_MSG_KV_RESERVED, 0, 0, &answer, sizeof(answer));
}

static void node_is_back(fixture *x)
{
    give(x, 0, TR_MSG_PEER_UP, 0, 1, NULL, 0);
}

static void a_node_that_is_back_gives_memory_before_a_pause_is_answered(void **state)
{
    fixture x;
    tr_kv_reserve asked;
    (void)state;
    uint64_t step = go_on_without(&x);
    node_is_back(&x);
    assert_int_equal(x.f.sent_count, 1);
    const tr_msg *msg = fake_find(&x.f, TR_MSG_KV_RESERVE);
    assert_non_null(msg);
    assert_true(msg->header.target == tr_node_actor(TR_ACTOR_KV_POOL, 1));
    memcpy(&asked, msg->payload->data, sizeof(asked));
    assert_int_equal(asked.tokens, 90);
    assert_int_equal(asked.generation, 2); /* the lease that the other pool has given */
    uint32_t before = x.done;
    tell(&x, TR_SWITCH_PAUSE, NULL);
    token(&x, step, 44);
    assert_int_equal(x.done, before); /* no step is in flight, but a part could come to node 1 */
    answer_late(&x, true);
    assert_int_equal(x.done, before + 1);
    tell(&x, TR_SWITCH_RESUME, NULL);
    /* From now on it is asked with the others. */
    fake_clear(&x.f);
    tr_cancel cancel = {.request = 7};
    token(&x, step + 1, 45);
    give(&x, client, TR_MSG_CANCEL, 0, 0, &cancel, sizeof(cancel));
    token(&x, step + 2, 46);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 2);
    close_batcher(&x);
}

static void a_refusal_of_a_node_that_is_back_is_asked_again(void **state)
{
    fixture x;
    (void)state;
    (void)go_on_without(&x);
    node_is_back(&x);
    fake_clear(&x.f);
    answer_late(&x, false);
    assert_int_equal(x.f.sent_count, 1); /* not at once */
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 1), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 1);
    close_batcher(&x);
}

/* Else its first answer would be taken for the second. */
static void what_was_refused_comes_back_once(void **state)
{
    fixture x;
    tr_cancel cancel = {.request = 7};
    (void)state;
    uint64_t step = go_on_without(&x);
    node_is_back(&x);
    answer_late(&x, false);
    fake_clear(&x.f);
    token(&x, step, 44);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 0); /* the first has not come back */
    give(&x, client, TR_MSG_CANCEL, 0, 0, &cancel, sizeof(cancel));
    token(&x, step + 1, 45);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASE), 1); /* node 1 has been told */
    start_request(&x);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(x.c.counters.sequences_active, 2); /* it waits for node 1 */
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 1), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    assert_int_equal(x.c.counters.sequences_active, 1);
    close_batcher(&x);
}

static void a_node_that_goes_again_is_not_waited_for(void **state)
{
    fixture x;
    (void)state;
    uint64_t step = go_on_without(&x);
    node_is_back(&x);
    uint32_t before = x.done;
    tell(&x, TR_SWITCH_PAUSE, NULL);
    token(&x, step, 44);
    assert_int_equal(x.done, before);
    lose_node(&x);
    assert_int_equal(x.done, before + 1);
    close_batcher(&x);
}

static void what_was_given_up_is_served_again(void **state)
{
    struct {
        tr_submit submit;
        int32_t tokens[70];
    } payload = {.submit = {.request = 8, .tokens_count = 70, .tokens_max = 20}};
    fixture x;
    tr_error why;
    (void)state;
    open_batcher(&x);
    start_request(&x);
    lose_node(&x);
    tr_fail(&why, TR_E_PEER, "node b is gone; the others cannot take its share");
    tell(&x, TR_SWITCH_GIVE_UP, &why);
    give(&x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, 0, NULL, 0);
    fake_clear(&x.f);
    give(&x, client, TR_MSG_SUBMIT, 0, 0, &payload, sizeof(payload));
    assert_int_equal(fake_count(&x.f, TR_MSG_EVENT), 1); /* refused */
    node_is_back(&x);
    tell(&x, TR_SWITCH_SERVE, NULL);
    fake_clear(&x.f);
    give(&x, client, TR_MSG_SUBMIT, 0, 0, &payload, sizeof(payload));
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RESERVE), 2);
    reserved(&x, 2);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP), 2); /* to both routers again */
    close_batcher(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_is_read_again_from_its_tokens),
        cmocka_unit_test(an_aborted_change_does_not_forget_the_loss),
        cmocka_unit_test(a_cancelled_one_hears_its_end_once),
        cmocka_unit_test(a_cancelled_one_is_not_read_again),
        cmocka_unit_test(when_nothing_can_take_its_place_requests_end_with_the_reason),
        cmocka_unit_test(a_replay_that_is_given_up_hears_the_reason),
        cmocka_unit_test(the_loss_of_a_node_that_is_not_used_is_not_noticed),
        cmocka_unit_test(a_node_that_is_back_gives_memory_before_a_pause_is_answered),
        cmocka_unit_test(a_refusal_of_a_node_that_is_back_is_asked_again),
        cmocka_unit_test(what_was_refused_comes_back_once),
        cmocka_unit_test(a_node_that_goes_again_is_not_waited_for),
        cmocka_unit_test(what_was_given_up_is_served_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
