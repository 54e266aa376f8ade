/* timers.h - what is to happen at which time: a binary heap of fixed size, owned by one thread. */
#ifndef TR_CORE_TIMERS_H
#define TR_CORE_TIMERS_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t at_ns;
    uint64_t order; /* among equal times the one that was added first comes first */
    void *owner;    /* borrowed; whom it concerns */
    uint32_t cookie;
} tr_timer;

/* Invariant: heap[i] does not come after heap[2i+1] and heap[2i+2]. */
typedef struct {
    tr_timer *heap; /* owns; [timers_max] */
    uint32_t count;
    uint32_t timers_max;
    uint64_t order_next;
} tr_timers;

tr_status tr_timers_init(tr_timers *timers, uint32_t timers_max, tr_error *err);
void tr_timers_teardown(tr_timers *timers);

/* TR_E_NOMEM when timers_max are waiting. */
tr_status tr_timers_add(tr_timers *timers, uint64_t at_ns, void *owner, uint32_t cookie);

/* Takes the first timer whose time has come; false when there is none. */
bool tr_timers_next(tr_timers *timers, uint64_t now_ns, tr_timer *out);

/* Time of the first timer, UINT64_MAX when there is none. */
uint64_t tr_timers_first_ns(const tr_timers *timers);

/* Forgets all timers of an owner. */
void tr_timers_drop(tr_timers *timers, const void *owner);

#endif
