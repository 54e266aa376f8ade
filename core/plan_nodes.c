/* plan_nodes.c - edits that are about a whole node: it gives everything away, or gets back what it
 * had at home. */
#include "core/plan_edit.h"
#include "core/plan_parts.h"

#include <assert.h>

/* -- drain -- */

/* The nodes of a mask in turn. */
typedef struct {
    uint32_t nodes;
    uint32_t last;
} node_turn;

static uint32_t turn_next(node_turn *turn)
{
    do
        turn->last = (turn->last + 1) % TR_NODES_MAX;
    while (!(turn->nodes >> turn->last & 1));
    return turn->last;
}

static void drain_terms(const tr_plan_terms *kind, uint32_t layer, uint32_t node, node_turn *turn,
                        uint32_t *moved_count)
{
    for (uint32_t t = 0; t < kind->counts[layer]; t++) {
        uint32_t holders = tr_terms_nodes(kind, layer, t), rest = holders & ~(1u << node);
        if (holders == rest)
            continue;
        tr_terms_set(kind, layer, t, rest != 0 ? rest : 1u << turn_next(turn));
        ++*moved_count;
    }
}

/* Every layer's routers lose the node. */
static void drain_routers(tr_plan *plan, uint32_t node, uint32_t first_other, uint32_t *moved_count)
{
    uint32_t nodes[TR_LAYERS_MAX];

    tr_plan_get_routers(plan, nodes);
    for (uint32_t l = 0; l < plan->shape.layers_count; l++) {
        uint32_t rest = nodes[l] & ~(1u << node);
        *moved_count += nodes[l] != rest;
        nodes[l] = rest != 0 ? rest : 1u << first_other;
    }
    tr_plan_set_routers(plan, nodes);
}

tr_status tr_plan_drain(tr_plan *plan, uint32_t node, uint32_t others, uint32_t *moved_count,
                        tr_error *err)
{
    node_turn turn = {.nodes = others, .last = TR_NODES_MAX - 1};

    assert(!(others >> node & 1));
    *moved_count = 0;
    if (others == 0)
        return tr_fail(err, TR_E_INVALID, "no other node is there to take what stands on it");
    uint32_t first = (uint32_t)__builtin_ctz(others);
    for (uint32_t l = 0; l < plan->shape.layers_count; l++)
        for (int i = 0; i < TR_TERMS_KINDS; i++) {
            tr_plan_terms kind = tr_plan_terms_of(plan, (tr_terms_kind)i);
            drain_terms(&kind, l, node, &turn, moved_count);
        }
    for (uint32_t i = 0; i < plan->ranges_count;) {
        if (plan->ranges[i].node != node) {
            i++;
            continue;
        }
        tr_plan_range range = plan->ranges[i];
        tr_status status =
            tr_plan_place_rows(plan, range.first, range.last, turn_next(&turn), moved_count, err);
        if (status != TR_OK)
            return status;
        i = 0; /* neighbours may have been joined */
    }
    drain_routers(plan, node, first, moved_count);
    if (plan->sampler_node == node) {
        plan->sampler_node = first;
        ++*moved_count;
    }
    if (plan->shape.ngram_tables > 0 && plan->ngram_node == node) {
        plan->ngram_node = first;
        ++*moved_count;
    }
    return TR_OK;
}

/* -- return -- */

/* The nodes of something that home has on `node`: besides it, those that share it at home and have
 * it now. Whoever else has it has stood in. */
static uint32_t back_home(uint32_t now, uint32_t home, uint32_t node)
{
    return (now | 1u << node) & home;
}

static void return_terms(const tr_plan_terms *now, const tr_plan_terms *home, uint32_t layer,
                         uint32_t node, uint32_t *moved_count)
{
    for (uint32_t t = 0; t < now->counts[layer]; t++) {
        uint32_t holders = tr_terms_nodes(now, layer, t);
        uint32_t holders_home = tr_terms_nodes(home, layer, t);
        if (!(holders_home >> node & 1) || (holders >> node & 1))
            continue;
        tr_terms_set(now, layer, t, back_home(holders, holders_home, node));
        ++*moved_count;
    }
}

static void return_routers(tr_plan *plan, const tr_plan *home, uint32_t node, uint32_t *moved_count)
{
    uint32_t before[TR_LAYERS_MAX], nodes[TR_LAYERS_MAX], nodes_home[TR_LAYERS_MAX];
    uint32_t layers_count = plan->shape.layers_count;

    tr_plan_get_routers(plan, before);
    tr_plan_get_routers(home, nodes_home);
    for (uint32_t l = 0; l < layers_count; l++)
        nodes[l] = (nodes_home[l] >> node & 1) && !(before[l] >> node & 1)
                       ? back_home(before[l], nodes_home[l], node)
                       : before[l];
    tr_plan_set_routers(plan, nodes);
    tr_plan_get_routers(plan, nodes);
    for (uint32_t l = 0; l < layers_count; l++) /* those that have found work */
        *moved_count += (nodes[l] & ~before[l]) >> node & 1;
}

tr_status tr_plan_return(tr_plan *plan, const tr_plan *home, uint32_t node, uint32_t *moved_count,
                         tr_error *err)
{
    assert(node < plan->nodes_count && home->nodes_count == plan->nodes_count);
    assert(home->shape.layers_count == plan->shape.layers_count);
    assert(home->shape.vocab_size == plan->shape.vocab_size);
    *moved_count = 0;
    for (uint32_t l = 0; l < plan->shape.layers_count; l++)
        for (int i = 0; i < TR_TERMS_KINDS; i++) {
            tr_plan_terms now = tr_plan_terms_of(plan, (tr_terms_kind)i);
            tr_plan_terms then = tr_plan_terms_of(home, (tr_terms_kind)i);
            return_terms(&now, &then, l, node, moved_count);
        }
    for (uint32_t i = 0; i < home->ranges_count; i++) {
        const tr_plan_range *range = &home->ranges[i];
        if (range->node != node)
            continue;
        tr_status status =
            tr_plan_place_rows(plan, range->first, range->last, node, moved_count, err);
        if (status != TR_OK)
            return status;
    }
    return_routers(plan, home, node, moved_count);
    if (home->sampler_node == node && plan->sampler_node != node) {
        plan->sampler_node = node;
        ++*moved_count;
    }
    if (plan->shape.ngram_tables > 0 && home->ngram_node == node && plan->ngram_node != node) {
        plan->ngram_node = node;
        ++*moved_count;
    }
    return TR_OK;
}
