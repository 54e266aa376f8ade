/* expert_heat.h - how often the experts of each layer were asked on this node, and what it took.
 *
 * Counters of every term of the feed-forwards (routed experts, then slices), which the expert shard
 * alone writes; and how the rows of the last steps were routed, which the router alone writes.
 * Anybody reads them. They belong to the node, not to a placement: experts come and go, what was
 * counted stays. */
#ifndef TR_ACTORS_EXPERT_HEAT_H
#define TR_ACTORS_EXPERT_HEAT_H

#include "core/placement.h"

#include <stdatomic.h>

typedef struct {
    _Atomic uint64_t rows;    /* that were computed */
    _Atomic uint64_t steps;   /* in which it had rows */
    _Atomic uint64_t busy_ns; /* that they took */
} tr_heat_term;

/* Over all terms of one sort and layer: with the sums of the terms enough for a line through
 * (rows of a step, time). */
typedef struct {
    _Atomic uint64_t rows_squared;
    _Atomic uint64_t rows_busy_ns;
} tr_heat_moments;

/* The routing of a step is a head and one word for each expert that had rows, in the order of their
 * first rows: number in the upper half, rows in the lower. The head has TR_ROUTING_HEAD for a
 * number and all rows of the step. */
#define TR_ROUTING_HEAD 0xffffu
#define TR_ROUTING_WORDS                                                                           \
    8192                   /* of each layer: 900 steps of a row with 8 experts, 60 of 16 rows      \
                            */
#define TR_ROUTING_EVERY 4 /* steps of which one is recorded */

static_assert(TR_TERMS_MAX <= TR_ROUTING_HEAD, "a number is an expert or the mark of a head");

/* The newest words of a layer. How a reader knows what is whole: trace.c. */
typedef struct {
    _Atomic uint32_t words[TR_ROUTING_WORDS];
    _Atomic uint64_t begun, done; /* words whose writing has begun, and that are whole */
} tr_routing_ring;

typedef struct {
    const tr_plan_shape *shape;  /* borrows */
    uint32_t *first;             /* owns, [layers_count]; where a layer's terms begin */
    tr_heat_term *terms;         /* owns */
    tr_heat_moments *moments;    /* owns, [layers_count][2]: routed experts, slices */
    tr_routing_ring *rings;      /* owns; of the layers with routed experts, in order */
    uint32_t *ring;              /* owns, [layers_count] which of them is a layer's */
    _Atomic uint64_t *waited_ns; /* owns, [layers_count]; the router's alone */
    uint32_t *asked;             /* owns, [experts_max] rows of each expert; the router's alone */
} tr_expert_heat;

/* What init takes, for the budget. */
uint64_t tr_expert_heat_bytes(const tr_plan_shape *shape);

tr_status tr_expert_heat_init(tr_expert_heat *heat, const tr_plan_shape *shape, tr_error *err);

/* Also of one that was never made, all zero. */
void tr_expert_heat_teardown(tr_expert_heat *heat);

/* One step's rows of a term and their time. Thread: the expert shard's; no lock, no allocation. */
void tr_expert_heat_add(tr_expert_heat *heat, uint32_t layer, uint32_t term, uint32_t rows,
                        uint64_t busy_ns);

/* Records how a step's rows were routed, of some steps.
 *
 *   expert  [rows_count, top_k] experts of the layer
 *
 * Thread: the router's; no lock, no allocation. */
void tr_expert_heat_record(tr_expert_heat *heat, uint32_t layer, uint64_t step,
                           const uint32_t *expert, uint32_t rows_count, uint32_t top_k);

/* How long a layer's experts and slices let a step wait, from their rows to the last sum. Thread:
 * the router's. */
void tr_expert_heat_wait(tr_expert_heat *heat, uint32_t layer, uint64_t waited_ns);

/* The mean of about the last 64 of them; 0: none. Thread: any. */
uint64_t tr_expert_heat_waited(const tr_expert_heat *heat, uint32_t layer);

/* Copies what is recorded of a layer with routed experts, oldest step first.
 *   words  gets [<= TR_ROUTING_WORDS], beginning with a head; returns how many. Thread: any */
uint32_t tr_expert_heat_routing(const tr_expert_heat *heat, uint32_t layer, uint32_t *words);

typedef struct {
    uint64_t rows, steps, busy_ns;
} tr_heat_count;

tr_heat_count tr_expert_heat_count(const tr_expert_heat *heat, uint32_t layer, uint32_t term);

/* The time of one step's rows of a term as fixed_ns + rows * row_ns. */
typedef struct {
    double fixed_ns, row_ns; /* never negative */
    uint64_t steps;          /* measured; 0: the node has not computed such a term */
} tr_heat_cost;

/* The line with the least squares through all that was measured of the routed experts of a layer,
 * or of its slices. When all steps had the same number of rows it goes through the mean with
 * row_ns 0. */
tr_heat_cost tr_expert_heat_cost(const tr_expert_heat *heat, uint32_t layer, bool slices);

#endif
