/* test_trace.c - rings: what is kept, what is dropped, and reading while somebody writes. */
#include "tests/check.h"

#include "core/trace.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#define RING 64

/* What a reader saw of the ring with the given name. Checked by the main thread later. */
typedef struct {
    const char *name;
    uint32_t rings;
    size_t count;
    tr_trace_event events[RING];
    bool too_many;
} seen;

static void remember(void *ctx, const char *thread, const tr_trace_event *events, size_t count)
{
    seen *s = ctx;
    if (strcmp(thread, s->name) != 0)
        return;
    s->rings++;
    s->too_many = count > RING;
    s->count = s->too_many ? RING : count;
    memcpy(s->events, events, s->count * sizeof(events[0]));
}

static void events_come_back_as_they_were_written(void **state)
{
    (void)state;
    CHECK_STATUS(tr_trace_attach("main", RING, NULL), TR_OK);
    uint64_t before = tr_clock_ns();
    tr_trace_instant(TR_TRACE_SEND, 14, 7, 99);
    tr_trace_span(TR_TRACE_KERNEL, 3, 0, 5, before);
    tr_trace_span_until(TR_TRACE_WAIT, 0, 0, 0, 1000, 1000 + 5ull * UINT32_MAX);
    seen s = {.name = "main"};
    tr_trace_read(remember, &s);
    tr_trace_detach();

    assert_int_equal(s.count, 3);
    assert_int_equal(s.events[0].kind, TR_TRACE_SEND);
    assert_int_equal(s.events[0].detail, 14);
    assert_int_equal(s.events[0].actor, 7);
    assert_int_equal(s.events[0].id, 99);
    assert_int_equal(s.events[0].duration_ns, 0);
    assert_true(s.events[0].begin_ns >= before);
    assert_int_equal(s.events[1].begin_ns, before);
    assert_true(s.events[1].duration_ns >= s.events[0].begin_ns - before);
    assert_int_equal(s.events[2].duration_ns, UINT32_MAX); /* saturates */
}

static void a_full_ring_keeps_the_newest(void **state)
{
    (void)state;
    CHECK_STATUS(tr_trace_attach("full", RING, NULL), TR_OK);
    for (uint64_t i = 0; i < 3 * RING + 5; i++)
        tr_trace_instant(TR_TRACE_STEP, 0, 0, i);
    seen s = {.name = "full"};
    tr_trace_read(remember, &s);
    tr_trace_detach();

    assert_int_equal(s.count, RING);
    for (uint64_t i = 0; i < RING; i++)
        assert_int_equal(s.events[i].id, 2 * RING + 5 + i);
}

static void a_thread_without_a_ring_traces_nothing(void **state)
{
    (void)state;
    tr_trace_instant(TR_TRACE_STEP, 0, 0, 1);
    tr_trace_span(TR_TRACE_STEP, 0, 0, 1, tr_clock_ns());
    tr_trace_detach();
    seen s = {.name = "main"};
    tr_trace_read(remember, &s);
    assert_int_equal(s.rings, 0);
}

static void ring_sizes_are_checked(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, 3, 100, 1u << 25};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tr_error err = {0};
        CHECK_STATUS(tr_trace_attach("x", sizes[i], &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "power of two");
    }
}

/* -- reading while the ring is overrun -- */

typedef struct {
    _Atomic bool ready;
    _Atomic bool stop;
} writer;

/* All fields of an event carry the same number, so that a torn event shows. */
static void *write_quickly(void *arg)
{
    writer *w = arg;
    if (tr_trace_attach("writer", RING, NULL) != TR_OK)
        return NULL;
    for (uint64_t n = 0; !atomic_load(&w->stop); n++) {
        tr_trace_span_until(TR_TRACE_STEP, (uint16_t)n, n, n, n, n + (uint32_t)(n & 0xffff));
        if (n == RING)
            atomic_store(&w->ready, true);
    }
    tr_trace_detach();
    return NULL;
}

static void a_reader_never_sees_a_torn_or_overtaken_event(void **state)
{
    (void)state;
    writer w = {.stop = false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_quickly, &w), 0);
    while (!atomic_load(&w.ready))
        sched_yield();

    size_t events = 0;
    bool whole = true;
    bool in_order = true;
    for (int reads = 0; reads < 3000 || events == 0; reads++) { /* the writer may overtake many */
        seen s = {.name = "writer"};
        tr_trace_read(remember, &s);
        events += s.count;
        whole = whole && !s.too_many;
        for (size_t i = 0; i < s.count; i++) {
            const tr_trace_event *e = &s.events[i];
            whole = whole && e->id == e->actor && e->id == e->begin_ns &&
                    e->detail == (uint16_t)e->id && e->duration_ns == (e->id & 0xffff);
            in_order = in_order && (i == 0 || e->id == e[-1].id + 1);
        }
    }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    assert_true(whole);
    assert_true(in_order);
}

static void *hold_a_ring(void *arg)
{
    writer *w = arg;
    bool attached = tr_trace_attach("holder", 2, NULL) == TR_OK;
    atomic_store(&w->ready, true);
    while (!atomic_load(&w->stop))
        usleep(1000); /* hundreds of threads: they must not spin */
    tr_trace_detach();
    return attached ? w : NULL;
}

static void a_thread_too_many_is_told_so(void **state)
{
    (void)state;
    static writer writers[TR_TRACE_RINGS_MAX];
    static pthread_t threads[TR_TRACE_RINGS_MAX];
    for (int i = 0; i < TR_TRACE_RINGS_MAX; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hold_a_ring, &writers[i]), 0);
    for (int i = 0; i < TR_TRACE_RINGS_MAX; i++) {
        while (!atomic_load(&writers[i].ready))
            sched_yield();
    }
    tr_error err = {0};
    tr_status status = tr_trace_attach("main", RING, &err);
    bool attached = true;
    for (int i = 0; i < TR_TRACE_RINGS_MAX; i++) {
        void *got;
        atomic_store(&writers[i].stop, true);
        pthread_join(threads[i], &got);
        attached = attached && got != NULL;
    }
    assert_true(attached);
    CHECK_STATUS(status, TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "256 threads");

    CHECK_STATUS(tr_trace_attach("main", RING, NULL), TR_OK); /* their rings are free again */
    tr_trace_detach();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_back_as_they_were_written),
        cmocka_unit_test(a_full_ring_keeps_the_newest),
        cmocka_unit_test(a_thread_without_a_ring_traces_nothing),
        cmocka_unit_test(ring_sizes_are_checked),
        cmocka_unit_test(a_reader_never_sees_a_torn_or_overtaken_event),
        cmocka_unit_test(a_thread_too_many_is_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
