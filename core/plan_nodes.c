/* plan_nodes.c - edits that are about a whole node: it gives everything away, or gets back what it
 * had at home. */
#include "core/plan_edit.h"
#include "core/plan_parts.h"

#include <assert.h>

/* -- drain -- */

#define ROOM_UNIT 1024u               /* bytes; a smaller room is none */
#define ROOM_MAX  (UINT64_C(1) << 40) /* units: a node without a limit has so much */
static_assert(ROOM_MAX <= UINT64_MAX / ((uint64_t)TR_LAYERS_MAX * TR_TERMS_MAX + 1),
              "a room times what is dealt fits 64 bits");

/* Deals things to the nodes of a mask: in turn, or to each in proportion to its room. Sizes are not
 * known here; but within a kind they are much alike, so every kind is dealt by itself. */
typedef struct {
    uint32_t nodes;
    uint32_t last;
    bool by_room;
    uint64_t room[TR_NODES_MAX]; /* in units */
    uint32_t dealt[TR_TERMS_KINDS][TR_NODES_MAX];
} node_deal;

static uint32_t deal_turn(node_deal *deal)
{
    do
        deal->last = (deal->last + 1) % TR_NODES_MAX;
    while (!(deal->nodes >> deal->last & 1));
    return deal->last;
}

static uint32_t deal_next(node_deal *deal, tr_terms_kind kind)
{
    uint32_t *dealt = deal->dealt[kind], best = (uint32_t)__builtin_ctz(deal->nodes);

    if (!deal->by_room)
        return deal_turn(deal);
    for (uint32_t n = best + 1; deal->nodes >> n != 0; n++)
        if ((deal->nodes >> n & 1) &&
            deal->room[n] * (dealt[best] + 1) > deal->room[best] * (dealt[n] + 1))
            best = n;
    dealt[best]++;
    return best;
}

/* Begins to deal; false when there is nobody, or nobody has room. */
static bool deal_begin(node_deal *deal, uint32_t nodes, const uint64_t *room_bytes)
{
    *deal = (node_deal){.last = TR_NODES_MAX - 1, .by_room = room_bytes != NULL};
    for (uint32_t n = 0; nodes >> n != 0; n++) {
        uint64_t room = room_bytes != NULL ? room_bytes[n] / ROOM_UNIT : 1;
        deal->room[n] = room < ROOM_MAX ? room : ROOM_MAX;
        deal->nodes |= (nodes >> n & 1) && room > 0 ? 1u << n : 0;
    }
    return deal->nodes != 0;
}

/* Who takes what there is only one of: the node with the most room, or the first. */
static uint32_t deal_first(const node_deal *deal)
{
    uint32_t best = (uint32_t)__builtin_ctz(deal->nodes);
    for (uint32_t n = best; deal->by_room && deal->nodes >> n != 0; n++)
        if ((deal->nodes >> n & 1) && deal->room[n] > deal->room[best])
            best = n;
    return best;
}

static void drain_terms(tr_plan *plan, tr_terms_kind kind, uint32_t layer, uint32_t node,
                        node_deal *deal, uint32_t *moved_count)
{
    tr_plan_terms terms = tr_plan_terms_of(plan, kind);
    for (uint32_t t = 0; t < terms.counts[layer]; t++) {
        uint32_t holders = tr_terms_nodes(&terms, layer, t), rest = holders & ~(1u << node);
        if (holders == rest)
            continue;
        tr_terms_set(&terms, layer, t, rest != 0 ? rest : 1u << deal_next(deal, kind));
        ++*moved_count;
    }
}

/* Rows of the vocabulary are not cut: a range goes as a whole. */
static tr_status drain_rows(tr_plan *plan, uint32_t node, node_deal *deal, uint32_t *moved_count,
                            tr_error *err)
{
    for (uint32_t i = 0; i < plan->ranges_count;) {
        if (plan->ranges[i].node != node) {
            i++;
            continue;
        }
        tr_plan_range range = plan->ranges[i];
        uint32_t to = deal->by_room ? deal_first(deal) : deal_turn(deal);
        tr_status status = tr_plan_place_rows(plan, range.first, range.last, to, moved_count, err);
        if (status != TR_OK)
            return status;
        i = 0; /* neighbours may have been joined */
    }
    return TR_OK;
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

tr_status tr_plan_drain(tr_plan *plan, uint32_t node, uint32_t others, const uint64_t *room_bytes,
                        uint32_t *moved_count, tr_error *err)
{
    node_deal deal;

    assert(!(others >> node & 1));
    *moved_count = 0;
    if (others == 0)
        return tr_fail(err, TR_E_INVALID, "no other node is there to take what stands on it");
    if (!deal_begin(&deal, others, room_bytes))
        return tr_fail(err, TR_E_NOMEM, "no other node has room for what stands on it");
    uint32_t first = deal_first(&deal);
    for (uint32_t l = 0; l < plan->shape.layers_count; l++)
        for (int i = 0; i < TR_TERMS_KINDS; i++)
            drain_terms(plan, (tr_terms_kind)i, l, node, &deal, moved_count);
    tr_status status = drain_rows(plan, node, &deal, moved_count, err);
    if (status != TR_OK)
        return status;
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
