/* test_mailbox.c - the queue alone: order, back-pressure, depth, payloads, many producers. */
#include "tests/check.h"

#include "core/mailbox.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static tr_mailbox *open_mailbox(uint32_t slots)
{
    tr_mailbox *mailbox = NULL;
    tr_error err = {0};
    CHECK_STATUS(tr_mailbox_open(&mailbox, slots, &err), TR_OK);
    return mailbox;
}

static tr_msg numbered(uint64_t producer, uint64_t number)
{
    return (tr_msg){.header = {.kind = TR_MSG_PING, .source = producer, .step = number}};
}

static void messages_come_out_in_order_over_many_rounds(void **state)
{
    (void)state;
    tr_mailbox *mailbox = open_mailbox(4);
    uint64_t pushed = 0;
    uint64_t popped = 0;
    tr_msg msg;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 1 + round % 4; i++) {
            msg = numbered(0, pushed++);
            CHECK_STATUS(tr_mailbox_push(mailbox, &msg), TR_OK);
        }
        assert_int_equal(tr_mailbox_depth(mailbox), pushed - popped);
        while (tr_mailbox_pop(mailbox, &msg))
            assert_int_equal(msg.header.step, popped++);
        assert_int_equal(pushed, popped);
    }
    tr_mailbox_close(mailbox);
}

static void a_full_mailbox_refuses_and_takes_again_after_a_pop(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {2, 8};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        tr_mailbox *mailbox = open_mailbox(sizes[s]);
        tr_msg msg;
        for (uint32_t i = 0; i < sizes[s]; i++) {
            msg = numbered(0, i);
            CHECK_STATUS(tr_mailbox_push(mailbox, &msg), TR_OK);
        }
        msg = numbered(0, 99);
        CHECK_STATUS(tr_mailbox_push(mailbox, &msg), TR_E_AGAIN);
        assert_int_equal(tr_mailbox_depth(mailbox), sizes[s]);
        assert_int_equal(tr_mailbox_slots(mailbox), sizes[s]);

        tr_msg out;
        assert_true(tr_mailbox_pop(mailbox, &out));
        assert_int_equal(out.header.step, 0);
        CHECK_STATUS(tr_mailbox_push(mailbox, &msg), TR_OK);
        for (uint32_t i = 1; i < sizes[s]; i++)
            assert_true(tr_mailbox_pop(mailbox, &out));
        assert_true(tr_mailbox_pop(mailbox, &out));
        assert_int_equal(out.header.step, 99);
        assert_false(tr_mailbox_pop(mailbox, &out));
        assert_int_equal(tr_mailbox_depth(mailbox), 0);
        tr_mailbox_close(mailbox);
    }
}

static void all_fields_that_actors_look_at_survive(void **state)
{
    (void)state;
    tr_mailbox *mailbox = open_mailbox(2);
    tr_msg in = {.header = {.kind = TR_MSG_PARTIAL,
                            .version = TR_MSG_VERSION,
                            .flags = 0x8001,
                            .source = tr_actor_id_make(TR_ACTOR_EXPERT_SHARD, UINT32_MAX),
                            .target = tr_actor_id_make(TR_ACTOR_ROUTER, 7),
                            .epoch = UINT64_MAX - 1,
                            .step = UINT64_MAX - 2,
                            .trace_id = UINT64_MAX - 3,
                            .payload_size = UINT32_MAX - 4,
                            .argument = UINT32_MAX - 5}};
    tr_msg out;
    memset(&out, 0xaa, sizeof(out));
    CHECK_STATUS(tr_mailbox_push(mailbox, &in), TR_OK);
    assert_true(tr_mailbox_pop(mailbox, &out));
    assert_memory_equal(&out, &in, sizeof(in));
    tr_mailbox_close(mailbox);
}

static void closing_gives_the_payloads_back(void **state)
{
    (void)state;
    tr_pool *pool = NULL;
    CHECK_STATUS(tr_pool_open(&pool, &(tr_pool_class){64, 2}, 1, NULL), TR_OK);
    tr_mailbox *mailbox = open_mailbox(4);
    for (int i = 0; i < 2; i++) {
        tr_msg msg = {.payload = tr_pool_take(pool, 8)};
        CHECK_STATUS(tr_mailbox_push(mailbox, &msg), TR_OK);
    }
    assert_int_equal(tr_pool_free_count(pool), 0);
    tr_mailbox_close(mailbox);
    assert_int_equal(tr_pool_free_count(pool), 2);
    tr_pool_close(pool);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, 3, 100, TR_MAILBOX_SLOTS_MAX * 2};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tr_mailbox *mailbox = NULL;
        tr_error err = {0};
        CHECK_STATUS(tr_mailbox_open(&mailbox, sizes[i], &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "power of two");
        assert_null(mailbox);
    }
}

/* -- threads -- */

#define PRODUCERS 3
#define MESSAGES  20000

typedef struct {
    tr_mailbox *mailbox;
    uint64_t number;
    uint64_t refused;
} producer;

static void *produce(void *arg)
{
    producer *p = arg;
    for (uint64_t n = 0; n < MESSAGES; n++) {
        tr_msg msg = numbered(p->number, n);
        msg.header.epoch =
            n * 3 + p->number; /* a message that is torn would not agree with itself */
        while (tr_mailbox_push(p->mailbox, &msg) != TR_OK) {
            p->refused++;
            sched_yield();
        }
    }
    return NULL;
}

static void each_of_several_producers_keeps_its_order(void **state)
{
    (void)state;
    tr_mailbox *mailbox = open_mailbox(16);
    producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (producer){.mailbox = mailbox, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    uint64_t next[PRODUCERS] = {0};
    uint64_t wrong = 0;
    uint32_t deepest = 0;
    for (uint64_t n = 0; n < PRODUCERS * MESSAGES;) {
        uint32_t depth = tr_mailbox_depth(mailbox);
        deepest = depth > deepest ? depth : deepest;
        tr_msg msg;
        if (!tr_mailbox_pop(mailbox, &msg)) {
            sched_yield();
            continue;
        }
        n++;
        uint64_t from = msg.header.source;
        if (from >= PRODUCERS || msg.header.step != next[from] ||
            msg.header.epoch != msg.header.step * 3 + from)
            wrong++;
        else
            next[from]++;
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
    assert_true(deepest <= 16);
    assert_int_equal(tr_mailbox_depth(mailbox), 0);
    tr_mailbox_close(mailbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_out_in_order_over_many_rounds),
        cmocka_unit_test(a_full_mailbox_refuses_and_takes_again_after_a_pop),
        cmocka_unit_test(all_fields_that_actors_look_at_survive),
        cmocka_unit_test(closing_gives_the_payloads_back),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(each_of_several_producers_keeps_its_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
