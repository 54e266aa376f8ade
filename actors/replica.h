/* replica.h - who computes which rows of experts that stand on several nodes.
 *
 * The rule looks at nothing but plan, layer and the routing of a message, so every router of a span
 * and every shard that gets the message come to the same answer without asking:
 *
 *   1. A holder beside a router of the layer comes before one without: its rows do not travel.
 *   2. An expert's rows are dealt in blocks of TR_REPLICA_ROWS, in the order in which their first
 *      rows come, each block to the holder that has the fewest rows by then; ties to the lowest.
 *      Slices count for their nodes with all rows, experts without replicas with theirs.
 *
 * Sums are exact, so the answer can change who works and never a bit. */
#ifndef TR_ACTORS_REPLICA_H
#define TR_ACTORS_REPLICA_H

#include "actors/node_context.h"

#define TR_REPLICA_ROWS 16 /* rows that are worth reading an expert's weights for once more */

/* Of the nodes that hold an expert, those that may compute its rows (rule 1).
 *   routers  bit per node with a router of the layer */
static inline uint32_t tr_replica_holders(uint32_t nodes, uint32_t routers)
{
    return (nodes & routers) != 0 ? nodes & routers : nodes;
}

/* Who of them takes the next block (rule 2). */
static inline uint32_t tr_replica_next(const uint32_t *rows, uint32_t nodes)
{
    uint32_t best = (uint32_t)__builtin_ctz(nodes);
    for (uint32_t n = best + 1; nodes >> n != 0; n++)
        if ((nodes >> n & 1) && rows[n] < rows[best])
            best = n;
    return best;
}

/* Workspace of one actor; lies in its arena. */
typedef struct {
    uint8_t *node;    /* [rows_max, top_k_max] who computes each row's experts */
    uint32_t *rest;   /* [experts_max] rows of a replicated expert in no block yet */
    uint32_t *block;  /* [experts_max] rows left in its current block */
    uint8_t *current; /* [experts_max] the node of that block */
    uint32_t experts_max;
} tr_replicas;

/* Counts with a counting arena, takes with a real one. */
void tr_replicas_load(tr_replicas *r, const tr_node_context *node, tr_arena *arena);

/* Fills r->node for the rows of one message.
 *
 *   expert  [rows_count, top_k] as routed; may come from outside
 *   nodes   gets a bit per node that has rows of experts
 *
 * Returns false when an expert is not one of the layer's. Thread: the actor's. */
bool tr_replicas_deal(tr_replicas *r, const tr_node_context *node, uint32_t layer,
                      const uint32_t *expert, uint32_t rows_count, uint32_t top_k, uint32_t *nodes);

#endif
