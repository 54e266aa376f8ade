/* test_kv_pool.c - every arrow of the state diagram in kv_pool.c, and misuse. */
#include "tests/actors/fake_env.h"

static const tr_actor_id batcher = (tr_actor_id)TR_ACTOR_BATCHER << 48;

typedef struct {
    fake f;
    fake_cluster c;
    void *pool;
} fixture;

static void open_pool(fixture *x)
{
    fake_cluster_make(&x->c, 1);
    fake_open(&x->f, tr_node_actor(TR_ACTOR_KV_POOL, 0));
    x->pool = fake_actor_open(&x->f, &x->c, &tr_kv_pool_ops, tr_kv_pool_count);
}

static void close_pool(fixture *x)
{
    fake_actor_close(&x->c, &tr_kv_pool_ops, x->pool);
    fake_close(&x->f);
}

/* Asks for a sequence; returns whether it was admitted. */
static bool reserve(fixture *x, uint32_t sequence, uint64_t tokens)
{
    tr_kv_reserve request = {.tokens = tokens, .generation = 7};
    fake_clear(&x->f);
    fake_give(&x->f, &tr_kv_pool_ops, x->pool, batcher, TR_MSG_KV_RESERVE, 0, sequence, &request,
              sizeof(request));
    const tr_msg *answer = fake_find(&x->f, TR_MSG_KV_RESERVED);
    assert_non_null(answer);
    assert_int_equal(answer->header.argument, sequence);
    tr_kv_reserved reserved;
    memcpy(&reserved, answer->payload->data, sizeof(reserved));
    return reserved.admitted;
}

static void release(fixture *x, uint32_t sequence)
{
    fake_give(&x->f, &tr_kv_pool_ops, x->pool, batcher, TR_MSG_KV_RELEASE, 0, sequence, NULL, 0);
    fake_give(&x->f, &tr_kv_pool_ops, x->pool, tr_node_actor(TR_ACTOR_ATTENTION_SHARD, 0),
              TR_MSG_KV_RETURNED, 0, sequence, NULL, 0);
}

static void a_lease_carries_distinct_pages_and_the_generation(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    assert_true(reserve(&x, 0, 130));
    const tr_msg *msg = fake_find(&x.f, TR_MSG_KV_LEASE);
    assert_non_null(msg);
    const tr_kv_lease *lease = (const void *)msg->payload->data;
    assert_int_equal(lease->pages_count, 3); /* 130 positions of 64 */
    assert_int_equal(lease->generation, 7);
    assert_ptr_not_equal(lease->pages[0], lease->pages[1]);
    assert_ptr_not_equal(lease->pages[1], lease->pages[2]);
    close_pool(&x);
}

static void what_does_not_fit_is_refused_and_nothing_is_taken(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    assert_true(reserve(&x, 0, 400)); /* 7 of 8 pages */
    assert_false(reserve(&x, 1, 65)); /* 2 pages */
    assert_null(fake_find(&x.f, TR_MSG_KV_LEASE));
    assert_true(reserve(&x, 1, 64));
    assert_false(reserve(&x, 2, 401)); /* past the context */
    close_pool(&x);
}

static void pages_come_back_only_when_the_shard_has_returned_them(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    assert_true(reserve(&x, 0, 400));
    fake_clear(&x.f);
    fake_give(&x.f, &tr_kv_pool_ops, x.pool, batcher, TR_MSG_KV_RELEASE, 0, 0, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_REVOKE), 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASED), 0);
    assert_false(reserve(&x, 1, 400));
    fake_clear(&x.f);
    fake_give(&x.f, &tr_kv_pool_ops, x.pool, tr_node_actor(TR_ACTOR_ATTENTION_SHARD, 0),
              TR_MSG_KV_RETURNED, 0, 0, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASED), 1);
    assert_true(reserve(&x, 1, 400));
    close_pool(&x);
}

static void messages_that_no_arrow_has_change_nothing(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    release(&x, 999999); /* no such sequence */
    fake_give(&x.f, &tr_kv_pool_ops, x.pool, tr_node_actor(TR_ACTOR_ATTENTION_SHARD, 0),
              TR_MSG_KV_RETURNED, 0, 0, NULL, 0); /* never leased */
    assert_int_equal(x.f.sent_count, 0);
    assert_true(reserve(&x, 0, 64));
    assert_false(reserve(&x, 0, 64)); /* leased already */
    release(&x, 0);
    release(&x, 0);
    assert_true(reserve(&x, 0, 64));
    fake_give(&x.f, &tr_kv_pool_ops, x.pool, batcher, TR_MSG_KV_RESERVE, 0, 1, "cut", 3);
    close_pool(&x);
}

/* KV_RESERVE for sequence 0 while no buffer is free. */
static void reserve_without_buffers(fixture *x, uint64_t tokens)
{
    tr_kv_reserve request = {.tokens = tokens};
    tr_msg msg = {
        .header = {.kind = TR_MSG_KV_RESERVE, .source = batcher, .payload_size = sizeof(request)}};
    msg.payload = tr_pool_take(x->f.pool, sizeof(request));
    memcpy(msg.payload->data, &request, sizeof(request));
    x->f.pool_empty = true;
    CHECK_STATUS(tr_kv_pool_ops.receive(x->pool, &msg), TR_OK);
    x->f.pool_empty = false;
    tr_buf_unref(msg.payload);
}

static bool share(fixture *x, uint32_t sequence, uint64_t tokens, uint32_t other, uint32_t pages)
{
    tr_kv_reserve request = {
        .tokens = tokens, .shared_with = (uint16_t)other, .shared_pages = (uint16_t)pages};
    tr_kv_reserved reserved;
    fake_clear(&x->f);
    fake_give(&x->f, &tr_kv_pool_ops, x->pool, batcher, TR_MSG_KV_RESERVE, 0, sequence, &request,
              sizeof(request));
    memcpy(&reserved, fake_find(&x->f, TR_MSG_KV_RESERVED)->payload->data, sizeof(reserved));
    return reserved.admitted;
}

static void pages_that_are_shared_come_back_with_the_last_holder(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    assert_true(reserve(&x, 0, 320)); /* 5 of 8 pages */
    assert_true(share(&x, 1, 384, 0, 4));
    const tr_kv_lease *lease = (const void *)fake_find(&x.f, TR_MSG_KV_LEASE)->payload->data;
    assert_int_equal(lease->pages_count, 6);
    assert_true(reserve(&x, 2, 1)); /* the last: 2 of sequence 1 are its own */
    release(&x, 2);
    release(&x, 0);
    assert_false(reserve(&x, 0, 129)); /* its own page and the one of sequence 2 are free */
    assert_true(reserve(&x, 0, 128));
    release(&x, 0);
    release(&x, 1);
    assert_true(reserve(&x, 0, 400));
    close_pool(&x);
}

static void nothing_is_shared_that_is_not_there(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    assert_false(share(&x, 1, 128, 0, 1)); /* not leased */
    assert_true(reserve(&x, 0, 100));      /* 2 pages */
    assert_false(share(&x, 1, 256, 0, 3));
    assert_false(share(&x, 1, 64, 0, 2)); /* more than it asks for */
    assert_false(share(&x, 1, 64, 999, 1));
    assert_false(share(&x, 1, 64, 1, 1)); /* itself */
    assert_true(share(&x, 1, 64, 0, 1));
    close_pool(&x);
}

static void without_a_buffer_for_the_lease_the_pages_stay(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    reserve_without_buffers(&x, 400);
    assert_true(reserve(&x, 0, 400));
    close_pool(&x);
}

/* The batcher waits for an answer of every pool: to the reservation, and to the release that
 * follows. */
static void a_pool_that_refused_answers_all_the_same(void **state)
{
    fixture x;
    (void)state;
    open_pool(&x);
    reserve_without_buffers(&x, 400);
    const tr_msg *answer = fake_find(&x.f, TR_MSG_KV_RESERVED);
    assert_non_null(answer);
    assert_null(answer->payload); /* a refusal */
    fake_clear(&x.f);
    fake_give(&x.f, &tr_kv_pool_ops, x.pool, batcher, TR_MSG_KV_RELEASE, 0, 0, NULL, 0);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_RELEASED), 1);
    assert_int_equal(fake_count(&x.f, TR_MSG_KV_REVOKE), 0);
    close_pool(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lease_carries_distinct_pages_and_the_generation),
        cmocka_unit_test(what_does_not_fit_is_refused_and_nothing_is_taken),
        cmocka_unit_test(pages_come_back_only_when_the_shard_has_returned_them),
        cmocka_unit_test(messages_that_no_arrow_has_change_nothing),
        cmocka_unit_test(pages_that_are_shared_come_back_with_the_last_holder),
        cmocka_unit_test(nothing_is_shared_that_is_not_there),
        cmocka_unit_test(without_a_buffer_for_the_lease_the_pages_stay),
        cmocka_unit_test(a_pool_that_refused_answers_all_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
