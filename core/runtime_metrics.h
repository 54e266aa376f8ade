/* runtime_metrics.h - puts the figures of a runtime on its node's metrics page. */
#ifndef TR_CORE_RUNTIME_METRICS_H
#define TR_CORE_RUNTIME_METRICS_H

#include "core/metrics.h"
#include "core/runtime.h"

/* Metrics that tr_runtime_register_metrics adds for a runtime with this many actors and ports. */
#define TR_RUNTIME_METRICS(actors_count) (4 * (actors_count) + 8)

/* Registers mailbox depth, messages received, busy time and restarts of each actor and port of this
 * node, messages dropped by reason, and free buffers of the pool. Values are read when somebody
 * asks for the page; nothing is added to what the workers do.
 *
 * After the last spawn, before start. The runtime must outlive the last page.
 * errors  those of registration in core/metrics.h */
tr_status tr_runtime_register_metrics(tr_runtime *rt, tr_metrics *metrics, tr_error *err);

#endif
