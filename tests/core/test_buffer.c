/* test_buffer.c - buffers: classes, references, exhaustion, and giving back from other threads. */
#include "tests/check.h"

#include "core/buffer.h"

#include <pthread.h>
#include <stdatomic.h>

static const tr_pool_class two_classes[] = {{100, 3}, {4096, 2}};

static tr_pool *open_pool(const tr_pool_class *classes, uint32_t classes_count)
{
    tr_pool *pool = NULL;
    tr_error err = {0};
    CHECK_STATUS(tr_pool_open(&pool, classes, classes_count, &err), TR_OK);
    return pool;
}

static void a_buffer_has_the_size_asked_for_and_is_aligned(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(two_classes, 2);

    tr_buf *small = tr_pool_take(pool, 100);
    tr_buf *large = tr_pool_take(pool, 129);
    assert_int_equal(small->size, 100);
    assert_int_equal(small->capacity, 128); /* rounded up to whole lines */
    assert_int_equal(large->size, 129);
    assert_int_equal(large->capacity, 4096);
    assert_int_equal((uintptr_t)small->data % 64, 0);
    assert_int_equal((uintptr_t)large->data % 64, 0);
    assert_int_equal(tr_pool_free_count(pool), 3);
    assert_int_equal(tr_pool_capacity_max(pool), 4096);

    tr_buf_unref(small);
    tr_buf_unref(large);
    assert_int_equal(tr_pool_free_count(pool), 5);
    tr_pool_close(pool);
}

static void what_must_fit_leaves_the_larger_class_alone(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(two_classes, 2);
    tr_buf *held[3];

    for (int i = 0; i < 3; i++) {
        held[i] = tr_pool_take_fitting(pool, 1);
        assert_non_null(held[i]);
        assert_int_equal(held[i]->capacity, 128);
    }
    assert_null(tr_pool_take_fitting(pool, 1));
    assert_null(tr_pool_take_fitting(pool, 4097)); /* no class is that large */
    assert_int_equal(tr_pool_free_count(pool), 2);
    for (int i = 0; i < 3; i++)
        tr_buf_unref(held[i]);
    tr_pool_close(pool);
}

static void an_empty_class_falls_back_to_the_larger_one_and_then_to_nothing(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(two_classes, 2);
    tr_buf *held[5];

    for (int i = 0; i < 5; i++) {
        held[i] = tr_pool_take(pool, 1);
        assert_non_null(held[i]);
        assert_int_equal(held[i]->capacity, i < 3 ? 128 : 4096);
    }
    assert_null(tr_pool_take(pool, 1));
    assert_int_equal(tr_pool_free_count(pool), 0);

    tr_buf_unref(held[4]);
    assert_null(tr_pool_take(pool, 4097)); /* no class is that large */
    held[4] = tr_pool_take(pool, 1);
    assert_non_null(held[4]);
    for (int i = 0; i < 5; i++)
        tr_buf_unref(held[i]);
    tr_pool_close(pool);
}

static void the_last_reference_gives_the_buffer_back(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(two_classes, 1);
    tr_buf *buf = tr_pool_take(pool, 8);

    assert_ptr_equal(tr_buf_ref(buf), buf);
    tr_buf_unref(buf);
    assert_int_equal(tr_pool_free_count(pool), 2);
    tr_buf_unref(buf);
    assert_int_equal(tr_pool_free_count(pool), 3);
    tr_buf_unref(NULL); /* allowed: a message without payload */
    tr_pool_close(pool);
}

static void the_memory_for_registration_holds_every_buffer(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(two_classes, 2);
    void *base;
    size_t size;
    tr_pool_memory(pool, &base, &size);
    assert_int_equal((uintptr_t)base % 4096, 0);
    assert_int_equal(size % 4096, 0);

    tr_buf *held[5];
    for (int i = 0; i < 5; i++) {
        held[i] = tr_pool_take(pool, 1);
        assert_true(held[i]->data >= (uint8_t *)base);
        assert_true(held[i]->data + held[i]->capacity <= (uint8_t *)base + size);
        memset(held[i]->data, i, held[i]->capacity);
    }
    for (int i = 0; i < 5; i++) {
        for (uint32_t at = 0; at < held[i]->capacity; at++)
            assert_int_equal(held[i]->data[at], i); /* nobody wrote into a neighbour */
        tr_buf_unref(held[i]);
    }
    tr_pool_close(pool);
}

static void counting_needs_at_least_what_the_buffers_hold(void **state)
{
    (void)state;
    size_t bytes = tr_pool_bytes(two_classes, 2);
    assert_true(bytes >= 3 * 128 + 2 * 4096);
    assert_true(bytes < 3 * 128 + 2 * 4096 + 4 * 4096);
}

static void wrong_classes_are_refused_by_field(void **state)
{
    (void)state;
    static const struct {
        tr_pool_class classes[2];
        uint32_t count;
        const char *names;
    } cases[] = {
        {{{64, 1}}, 0, "0 classes"},
        {{{64, 1}}, 5, "5 classes"},
        {{{0, 1}}, 1, "capacity 0"},
        {{{UINT32_MAX, 1}}, 1, "capacity 4294967295"},
        {{{64, 0}}, 1, "count 0"},
        {{{64, UINT32_MAX}}, 1, "count 4294967295"},
        {{{128, 1}, {64, 1}}, 2, "class 1: capacity 64"},
        {{{65, 1}, {128, 1}}, 2, "class 1: capacity 128"}, /* the same after rounding */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_pool *pool = NULL;
        tr_error err = {0};
        CHECK_STATUS(tr_pool_open(&pool, cases[i].classes, cases[i].count, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, cases[i].names);
        assert_null(pool);
        assert_true(tr_pool_bytes(cases[i].classes, cases[i].count) == SIZE_MAX);
    }
}

/* -- threads -- */

#define EXCHANGES 20000
#define SLOTS     8

typedef struct {
    tr_pool *pool;
    _Atomic(tr_buf *) slots[SLOTS]; /* buffers on their way from one thread to the other */
    _Atomic uint32_t wrong;
} exchange;

/* Takes buffers, marks them, and leaves them for the other thread, whose buffers it gives back. */
static void *exchange_run(void *arg)
{
    exchange *x = arg;
    for (uint32_t n = 0; n < EXCHANGES; n++) {
        tr_buf *buf = tr_pool_take(x->pool, 64);
        if (buf != NULL) {
            memset(buf->data, (int)n & 0xff, 64);
            for (uint32_t i = 0; i < 64; i++) {
                if (buf->data[i] != (n & 0xff))
                    atomic_fetch_add(&x->wrong, 1); /* two threads hold the same buffer */
            }
        }
        tr_buf_unref(atomic_exchange(&x->slots[n % SLOTS], buf));
    }
    return NULL;
}

static void threads_that_give_back_each_others_buffers_lose_none(void **state)
{
    (void)state;
    static const tr_pool_class small[] = {{64, 6}}; /* fewer than slots: it runs empty, too */
    exchange x = {.pool = open_pool(small, 1)};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, exchange_run, &x), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        tr_buf_unref(x.slots[i]);
    assert_int_equal(x.wrong, 0);
    assert_int_equal(tr_pool_free_count(x.pool), 6);
    tr_pool_close(x.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_has_the_size_asked_for_and_is_aligned),
        cmocka_unit_test(what_must_fit_leaves_the_larger_class_alone),
        cmocka_unit_test(an_empty_class_falls_back_to_the_larger_one_and_then_to_nothing),
        cmocka_unit_test(the_last_reference_gives_the_buffer_back),
        cmocka_unit_test(the_memory_for_registration_holds_every_buffer),
        cmocka_unit_test(counting_needs_at_least_what_the_buffers_hold),
        cmocka_unit_test(wrong_classes_are_refused_by_field),
        cmocka_unit_test(threads_that_give_back_each_others_buffers_lose_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
