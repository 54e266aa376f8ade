/* stamp.h - kernel spans for the trace. */
#ifndef TR_ACTORS_STAMP_H
#define TR_ACTORS_STAMP_H

#include "core/message.h"
#include "core/trace.h"
#include "kernels/kernels.h"

/* Ends a span that began at *since_ns and begins the next one. */
static inline void tr_stamp(tr_kernel_number kernel, tr_actor_id self, uint64_t step,
                            uint64_t *since_ns)
{
    tr_trace_span(TR_TRACE_KERNEL, (uint16_t)kernel, self, step, *since_ns);
    *since_ns = tr_clock_ns();
}

#endif
