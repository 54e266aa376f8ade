#include "core/timers.h"

#include <stdlib.h>

tr_status tr_timers_init(tr_timers *timers, uint32_t timers_max, tr_error *err)
{
    tr_timer *heap = calloc(timers_max, sizeof(*heap));
    if (heap == NULL)
        return tr_fail(err, TR_E_NOMEM, "timers: no memory for %u timers", timers_max);
    *timers = (tr_timers){.heap = heap, .timers_max = timers_max};
    return TR_OK;
}

void tr_timers_teardown(tr_timers *timers)
{
    free(timers->heap);
    *timers = (tr_timers){.heap = NULL};
}

static bool timers_before(const tr_timer *a, const tr_timer *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void timers_swap(tr_timer *a, tr_timer *b)
{
    tr_timer keep = *a;
    *a = *b;
    *b = keep;
}

static void timers_sift_up(tr_timers *timers, uint32_t i)
{
    while (i > 0 && timers_before(&timers->heap[i], &timers->heap[(i - 1) / 2])) {
        timers_swap(&timers->heap[i], &timers->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
}

static void timers_sift_down(tr_timers *timers, uint32_t i)
{
    for (;;) {
        uint32_t first = i;
        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < timers->count; child++) {
            if (timers_before(&timers->heap[child], &timers->heap[first]))
                first = child;
        }
        if (first == i)
            return;
        timers_swap(&timers->heap[i], &timers->heap[first]);
        i = first;
    }
}

tr_status tr_timers_add(tr_timers *timers, uint64_t at_ns, void *owner, uint32_t cookie)
{
    if (timers->count == timers->timers_max)
        return TR_E_NOMEM;
    timers->heap[timers->count] =
        (tr_timer){.at_ns = at_ns, .order = timers->order_next++, .owner = owner, .cookie = cookie};
    timers->count++;
    timers_sift_up(timers, timers->count - 1);
    return TR_OK;
}

bool tr_timers_next(tr_timers *timers, uint64_t now_ns, tr_timer *out)
{
    if (timers->count == 0 || timers->heap[0].at_ns > now_ns)
        return false;
    *out = timers->heap[0];
    timers->count--;
    timers->heap[0] = timers->heap[timers->count];
    timers_sift_down(timers, 0);
    return true;
}

uint64_t tr_timers_first_ns(const tr_timers *timers)
{
    return timers->count == 0 ? UINT64_MAX : timers->heap[0].at_ns;
}

void tr_timers_drop(tr_timers *timers, const void *owner)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < timers->count; i++) {
        if (timers->heap[i].owner != owner)
            timers->heap[kept++] = timers->heap[i];
    }
    timers->count = kept;
    for (uint32_t i = kept / 2; i > 0; i--)
        timers_sift_down(timers, i - 1);
}
