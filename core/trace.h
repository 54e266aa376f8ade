/* trace.h - rings of fixed-size events, one per thread, always on.
 *
 * Writing an event is a store of 32 bytes and one release store: no lock, no system call, no
 * allocation. The ring keeps the newest events. Reading copies a ring while it is being written
 * and drops what was overtaken. */
#ifndef TR_CORE_TRACE_H
#define TR_CORE_TRACE_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

#define TR_TRACE_MAP(X)                                                              \
    X(RECEIVE, 1, "receive") /* span; actor, detail = message kind, id = trace id */ \
    X(SEND, 2, "send")       /* instant; actor, detail = message kind, id = trace id */ \
    X(KERNEL, 3, "kernel")   /* span; actor = 0, detail = tr_kernel_name number */   \
    X(STEP, 4, "step")       /* span; actor = batcher, detail = sequences, id = step number */ \
    X(REQUEST, 5, "request") /* span; actor = batcher, id = request number */        \
    X(WAIT, 6, "wait")       /* span; a worker that slept */

#define TR_TRACE_RINGS_MAX 256 /* threads of this process that trace at the same time */

typedef enum {
#define X(name, value, text) TR_TRACE_##name = (value),
    TR_TRACE_MAP(X)
#undef X
} tr_trace_kind;

typedef struct {
    uint64_t begin_ns;    /* CLOCK_MONOTONIC of this machine */
    uint32_t duration_ns; /* 0 for instants, saturates */
    uint16_t kind;        /* tr_trace_kind */
    uint16_t detail;      /* meaning by kind */
    uint64_t actor;       /* tr_actor_id or 0 */
    uint64_t id;          /* trace id, step or request number */
} tr_trace_event;

/* Gives the calling thread a ring of its own, events_max a power of two. Call once per thread
 * before the first event; threads without a ring trace nothing. name is copied, cut to 63 bytes.
 * errors  TR_E_INVALID events_max; TR_E_NOMEM no memory, or TR_TRACE_RINGS_MAX threads have one */
tr_status tr_trace_attach(const char *name, uint32_t events_max, tr_error *err);

/* Bytes of such a ring. */
size_t tr_trace_bytes(uint32_t events_max);

/* Gives the ring back when the thread ends; its events are gone then. */
void tr_trace_detach(void);

/* Nanoseconds of CLOCK_MONOTONIC (vDSO, no system call). */
uint64_t tr_clock_ns(void);

void tr_trace_instant(tr_trace_kind kind, uint16_t detail, uint64_t actor, uint64_t id);
void tr_trace_span(tr_trace_kind kind, uint16_t detail, uint64_t actor, uint64_t id,
                   uint64_t begin_ns);

/* The same for a caller who has read the clock already: no clock is read here. */
void tr_trace_span_until(tr_trace_kind kind, uint16_t detail, uint64_t actor, uint64_t id,
                         uint64_t begin_ns, uint64_t end_ns);

/* Copies the events of all rings of this process, oldest first within a ring.
 *
 *   each   called for each ring with its thread name and events [count]; borrowed for the call
 *
 * thread  any; never disturbs the writers */
void tr_trace_read(void (*each)(void *ctx, const char *thread, const tr_trace_event *events,
                                size_t count),
                   void *ctx);

#endif
