/* trace_json.h - a joined trace as Chrome trace JSON, for Perfetto and chrome://tracing.
 *
 * One process per node, one thread per track. Events: M (names), X (slices), s and f (arrows from
 * a send to its receive, bound to the slices around them). Times are microseconds with three
 * decimals after the first event, which is exact. */
#ifndef TR_TOOLS_TRACE_JSON_H
#define TR_TOOLS_TRACE_JSON_H

#include "tools/trace_join.h"

#include <stdio.h>

/* Writes the whole document. nodes are those that the join was made of. The caller looks at
 * ferror(out) or at the result of fclose. Thread: any. */
void tr_trace_json_write(const tr_trace_join *join, const tr_trace_node *nodes,
                         uint32_t nodes_count, FILE *out);

#endif
