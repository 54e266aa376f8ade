/* rebalance.h - which experts should stand elsewhere, from what was measured. A pure function: no
 * clock, no cluster.
 *
 * How long the feed-forward of a layer takes is computed for recorded steps, as it would be under a
 * placement: each expert's rows cost its node the measured time (actors/expert_heat.h), rows and
 * sums travel the measured hops, and the layer ends when the last router has the last sum. Of the
 * recorded steps every other one serves to choose, and the rest to predict, so that what looks good
 * by chance is not counted as gain. */
#ifndef TR_ACTORS_REBALANCE_H
#define TR_ACTORS_REBALANCE_H

#include "actors/expert_heat.h"

/* What was measured of the feed-forward of a layer. */
typedef struct {
    uint64_t expert_bytes;
    tr_heat_cost expert[TR_NODES_MAX]; /* of each node; steps 0: not measured there */
    tr_heat_cost slice[TR_NODES_MAX];
    uint64_t waited_ns; /* from rows to the last sum, as the router saw it */
    uint32_t *routing;  /* owns, [routing_count] tr_expert_heat_routing; NULL: none */
    uint32_t routing_count;
} tr_load_layer;

typedef struct {
    uint32_t nodes;                            /* bit per node that may hold experts */
    double hop_ns[TR_NODES_MAX][TR_NODES_MAX]; /* one way; 0 on the diagonal */
    uint64_t room_bytes[TR_NODES_MAX];         /* for experts that come to a node */
    double step_ns;                            /* a whole step, as measured */
    tr_load_layer layers[TR_LAYERS_MAX];
} tr_load;

/* Whether words are a routing of a layer with so many experts, each of them at most once in a step;
 * they may come from another node. */
bool tr_routing_check(const uint32_t *words, uint32_t count, uint32_t experts);

/* One expert that stands elsewhere. */
typedef struct {
    uint16_t layer, expert;
    uint16_t before, after; /* bit per node */
} tr_rebalance_edit;

typedef struct {
    double before_ns, after_ns; /* predicted: feed-forwards of a step, all layers, now and then */
    double waited_ns;           /* the same as before_ns, but measured by the routers */
    double step_ns;             /* as measured */
    uint32_t steps;             /* recorded ones that the prediction is a mean of, in the layer with
                                   the fewest; 0: nothing is known */
    uint32_t moves, replicas;
    uint64_t bytes;           /* of experts that come to nodes */
    bool costs_assumed;       /* some node's time was taken from others' */
    tr_rebalance_edit *edits; /* owns; in the order of layers and experts */
    uint32_t edits_count;
} tr_rebalance;

/* What the change saves, in parts of a whole step as measured. */
double tr_rebalance_gain(const tr_rebalance *r);

/* Edits plan, whose experts then stand where the steps would have been shortest: a search, one
 * expert at a time, the best first. Only the hottest 5 % of a layer get replicas, and none is taken
 * away.
 *
 *   given_up  once true the search ends (it can take seconds); NULL: never
 *
 * errors  TR_E_NOMEM, TR_E_CANCELED given up; the plan is then as it was */
tr_status tr_rebalance_plan(tr_rebalance *out, tr_plan *plan, const tr_load *load,
                            const _Atomic bool *given_up, tr_error *err);

void tr_rebalance_free(tr_rebalance *r);

#endif
