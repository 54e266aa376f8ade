/* trace.c - per-thread rings of events, and a registry through which others read them.
 *
 * Writer (the ring's thread), for event n:      Reader (any thread):
 *   begun = n + 1       relaxed                   h = done        acquire
 *   slot[n % size] = .. release, word by word     copy slots      acquire, word by word
 *   done = n + 1        release                   b = begun       relaxed
 *
 * Event i is whole in the copy when no event that had begun by then shares its slot: i + size >= b.
 * If one word of a later event m was read instead, its acquire makes begun >= m + 1 visible, so the
 * check fails and the event is dropped. No fence is needed, and a reader never disturbs the writer.
 *
 * The registry is control plane: a lock guards it (threads that start or end, and readers). */
#include "core/trace.h"

#include <assert.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRACE_NAME_SIZE 64
#define TRACE_WORDS     4
#define TRACE_LINE      64

static_assert(sizeof(tr_trace_event) == TRACE_WORDS * sizeof(uint64_t), "an event is four words");

typedef struct {
    _Atomic uint64_t words[TRACE_WORDS];
} trace_slot;

typedef struct {
    alignas(TRACE_LINE) _Atomic uint64_t begun; /* events whose writing has begun */
    _Atomic uint64_t done;                      /* events that are whole; begun - done <= 1 */
    uint64_t mask;                              /* events_max - 1 */
    char name[TRACE_NAME_SIZE];
    alignas(TRACE_LINE) trace_slot slots[]; /* [events_max] */
} trace_ring;

static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER; /* guards trace_rings */
static trace_ring *trace_rings[TR_TRACE_RINGS_MAX];
static _Thread_local trace_ring *trace_mine;

uint64_t tr_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

size_t tr_trace_bytes(uint32_t events_max)
{
    size_t size = sizeof(trace_ring) + (size_t)events_max * sizeof(trace_slot);
    return (size + TRACE_LINE - 1) & ~(size_t)(TRACE_LINE - 1);
}

tr_status tr_trace_attach(const char *name, uint32_t events_max, tr_error *err)
{
    assert(trace_mine == NULL);
    if (events_max < 2 || (events_max & (events_max - 1)) != 0 || events_max > 1u << 24)
        return tr_fail(err, TR_E_INVALID,
                       "trace: ring of %u events, expected a power of two from 2 to %u", events_max,
                       1u << 24);
    size_t size = tr_trace_bytes(events_max);
    trace_ring *ring = aligned_alloc(TRACE_LINE, size);
    if (ring == NULL)
        return tr_fail(err, TR_E_NOMEM, "trace: no memory for a ring of %u events", events_max);
    memset(ring, 0, size); /* touched now, so that no event faults later */
    ring->mask = events_max - 1;
    snprintf(ring->name, sizeof(ring->name), "%s", name);

    pthread_mutex_lock(&trace_lock);
    uint32_t i = 0;
    while (i < TR_TRACE_RINGS_MAX && trace_rings[i] != NULL)
        i++;
    if (i < TR_TRACE_RINGS_MAX)
        trace_rings[i] = ring;
    pthread_mutex_unlock(&trace_lock);

    if (i == TR_TRACE_RINGS_MAX) {
        free(ring);
        return tr_fail(err, TR_E_NOMEM, "trace: %d threads have a ring already, \"%s\" gets none",
                       TR_TRACE_RINGS_MAX, name);
    }
    trace_mine = ring;
    return TR_OK;
}

void tr_trace_detach(void)
{
    trace_ring *ring = trace_mine;
    if (ring == NULL)
        return;
    trace_mine = NULL;
    pthread_mutex_lock(&trace_lock);
    for (uint32_t i = 0; i < TR_TRACE_RINGS_MAX; i++) {
        if (trace_rings[i] == ring)
            trace_rings[i] = NULL;
    }
    pthread_mutex_unlock(&trace_lock);
    free(ring);
}

static void trace_write(trace_ring *ring, const tr_trace_event *event)
{
    uint64_t words[TRACE_WORDS];
    memcpy(words, event, sizeof(words));

    /* Orders: see the drawing at the top. begun is read back relaxed: only this thread writes it.
     */
    uint64_t n = atomic_load_explicit(&ring->begun, memory_order_relaxed);
    atomic_store_explicit(&ring->begun, n + 1, memory_order_relaxed);
    trace_slot *slot = &ring->slots[n & ring->mask];
    for (uint32_t i = 0; i < TRACE_WORDS; i++)
        atomic_store_explicit(&slot->words[i], words[i], memory_order_release);
    atomic_store_explicit(&ring->done, n + 1, memory_order_release);
}

void tr_trace_instant(tr_trace_kind kind, uint16_t detail, uint64_t actor, uint64_t id)
{
    if (trace_mine == NULL)
        return;
    tr_trace_event event = {.begin_ns = tr_clock_ns(),
                            .kind = (uint16_t)kind,
                            .detail = detail,
                            .actor = actor,
                            .id = id};
    trace_write(trace_mine, &event);
}

void tr_trace_span(tr_trace_kind kind, uint16_t detail, uint64_t actor, uint64_t id,
                   uint64_t begin_ns)
{
    if (trace_mine != NULL)
        tr_trace_span_until(kind, detail, actor, id, begin_ns, tr_clock_ns());
}

void tr_trace_span_until(tr_trace_kind kind, uint16_t detail, uint64_t actor, uint64_t id,
                         uint64_t begin_ns, uint64_t end_ns)
{
    if (trace_mine == NULL)
        return;
    assert(end_ns >= begin_ns);
    uint64_t duration_ns = end_ns - begin_ns;
    tr_trace_event event = {.begin_ns = begin_ns,
                            .duration_ns =
                                duration_ns < UINT32_MAX ? (uint32_t)duration_ns : UINT32_MAX,
                            .kind = (uint16_t)kind,
                            .detail = detail,
                            .actor = actor,
                            .id = id};
    trace_write(trace_mine, &event);
}

/* Copies what is whole, oldest first, and returns how many. out has room for the ring. */
static size_t trace_copy(trace_ring *ring, tr_trace_event *out)
{
    uint64_t size = ring->mask + 1;
    uint64_t done = atomic_load_explicit(&ring->done, memory_order_acquire);
    uint64_t first = done > size ? done - size : 0;
    for (uint64_t n = first; n < done; n++) {
        uint64_t words[TRACE_WORDS];
        for (uint32_t i = 0; i < TRACE_WORDS; i++)
            words[i] =
                atomic_load_explicit(&ring->slots[n & ring->mask].words[i], memory_order_acquire);
        memcpy(&out[n - first], words, sizeof(words));
    }
    uint64_t begun = atomic_load_explicit(&ring->begun, memory_order_relaxed);
    uint64_t whole = begun > size ? begun - size : 0; /* the first event that nobody overtook */
    if (whole <= first)
        return (size_t)(done - first);
    if (whole >= done)
        return 0;
    memmove(out, out + (whole - first), (size_t)(done - whole) * sizeof(*out));
    return (size_t)(done - whole);
}

void tr_trace_read(void (*each)(void *ctx, const char *thread, const tr_trace_event *events,
                                size_t count),
                   void *ctx)
{
    for (uint32_t i = 0; i < TR_TRACE_RINGS_MAX; i++) {
        char name[TRACE_NAME_SIZE];
        tr_trace_event *events = NULL;
        size_t count = 0;

        /* The lock keeps the ring from being freed; it is given back before each, which may do
         * what it likes. */
        pthread_mutex_lock(&trace_lock);
        trace_ring *ring = trace_rings[i];
        if (ring != NULL)
            events = malloc((size_t)(ring->mask + 1) * sizeof(*events));
        if (events != NULL) {
            memcpy(name, ring->name, sizeof(name));
            count = trace_copy(ring, events);
        }
        pthread_mutex_unlock(&trace_lock);

        if (events != NULL)
            each(ctx, name, events, count);
        free(events);
    }
}
