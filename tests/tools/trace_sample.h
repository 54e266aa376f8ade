/* trace_sample.h - what two made-up nodes traced: a batcher with requests and steps that overlap, a
 * router on the first node, an attention shard on the second, messages both ways, kernels. */
#ifndef TR_TESTS_TRACE_SAMPLE_H
#define TR_TESTS_TRACE_SAMPLE_H

#include "tools/trace_join.h"

#define SAMPLE_NODES        2
#define SAMPLE_STEPS        20
#define SAMPLE_ARROWS       (3 * SAMPLE_STEPS) /* STEP, ATTENTION_ROWS, PARTIAL */
#define SAMPLE_CLOCK_NS     5000000ll          /* the second clock is ahead by this */
#define SAMPLE_CLOCK_ERR_NS 40000ll            /* and was measured wrong by this */
#define SAMPLE_HOP_NS       3000ll             /* fastest message between the nodes */

/* Fills nodes [SAMPLE_NODES]; each is freed with tr_trace_node_free. */
void sample_make(tr_trace_node *nodes);

#endif
