/* trace_fetch.h - asks a running node for its trace rings and its clock. */
#ifndef TR_TOOLS_TRACE_FETCH_H
#define TR_TOOLS_TRACE_FETCH_H

#include "tools/admin_client.h"
#include "tools/trace_join.h"

/* Fills *out with everything the node has; its clock_offset_ns is against this process's clock.
 * tr_trace_node_free frees it.
 * errors  those of tr_control_call; TR_E_INVALID an answer that makes no sense, named */
tr_status tr_trace_fetch(tr_trace_node *out, const tr_admin_target *target, tr_error *err);

#endif
