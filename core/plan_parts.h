/* plan_parts.h - what plans are made of, for those who make and edit them (plan*.c): the kinds of
 * terms, rows of the vocabulary, routers layer by layer. */
#ifndef TR_CORE_PLAN_PARTS_H
#define TR_CORE_PLAN_PARTS_H

#include "core/placement.h"

typedef enum {
    TR_TERMS_ATTENTION,
    TR_TERMS_EXPERTS,
    TR_TERMS_SLICES,
    TR_TERMS_KINDS
} tr_terms_kind;

/* One kind of terms in a plan; borrows all from it. */
typedef struct {
    const char *list;       /* "slices", as rules and parts call them */
    const char *part;       /* "slice/" */
    const char *what;       /* what a range of them is called */
    const uint16_t *counts; /* [layers] */
    const uint16_t *starts; /* [layers] first term of this kind in the row; NULL: 0 */
    uint8_t *nodes;         /* [layers][TR_TERMS_MAX], or NULL where there are masks */
    uint16_t *masks;        /* [layers][TR_TERMS_MAX], or NULL */
} tr_plan_terms;

static inline tr_plan_terms tr_plan_terms_of(const tr_plan *plan, tr_terms_kind kind)
{
    const tr_plan_shape *s = &plan->shape;
    const tr_plan_terms kinds[TR_TERMS_KINDS] = {
        {"attention", "attention/", "terms", s->attention_terms, NULL, plan->attention, NULL},
        {"experts", "expert/", "experts", s->experts, NULL, NULL, plan->channel},
        {"slices", "slice/", "slices", s->slices, s->experts, NULL, plan->channel},
    };
    return kinds[kind];
}

static inline size_t tr_terms_at(const tr_plan_terms *terms, uint32_t layer, uint32_t term)
{
    return (size_t)layer * TR_TERMS_MAX + (terms->starts != NULL ? terms->starts[layer] : 0) + term;
}

/* Bit per node that holds the term. */
static inline uint32_t tr_terms_nodes(const tr_plan_terms *terms, uint32_t layer, uint32_t term)
{
    size_t at = tr_terms_at(terms, layer, term);
    return terms->nodes != NULL ? 1u << terms->nodes[at] : terms->masks[at];
}

/* Lets the term stand on the nodes of a mask: one, or several for an expert. */
static inline void tr_terms_set(const tr_plan_terms *terms, uint32_t layer, uint32_t term,
                                uint32_t nodes)
{
    size_t at = tr_terms_at(terms, layer, term);
    if (terms->nodes != NULL)
        terms->nodes[at] = (uint8_t)__builtin_ctz(nodes);
    else
        terms->masks[at] = (uint16_t)nodes;
}

/* Lets rows [first, last] of the vocabulary stand on a node; neighbours of one node are joined.
 *   moved_count  grows by the ranges that stood elsewhere
 * errors  TR_E_NOMEM */
tr_status tr_plan_place_rows(tr_plan *plan, uint32_t first, uint32_t last, uint32_t node,
                             uint32_t *moved_count, tr_error *err);

/* nodes [layers] gets a bit per node with a router of each layer. */
void tr_plan_get_routers(const tr_plan *plan, uint32_t *nodes);

/* Makes spans of what each layer's routers shall be (at least one bit each), then lets the mirrors
 * go that nobody would wait for (tr_plan_settle_routers). */
void tr_plan_set_routers(tr_plan *plan, const uint32_t *nodes);

#endif
