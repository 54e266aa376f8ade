#include "actors/replica.h"

#include <string.h>

void tr_replicas_load(tr_replicas *r, const tr_node_context *node, tr_arena *arena)
{
    const tr_model_spec *spec = node->spec;
    uint32_t experts_max = 0, top_k_max = 0;

    for (uint32_t l = 0; l < spec->layers_count; l++) {
        const tr_channel_spec *channel = &spec->layers[l].channel;
        if (channel->experts == 0)
            continue;
        experts_max = channel->experts > experts_max ? channel->experts : experts_max;
        top_k_max = channel->top_k > top_k_max ? channel->top_k : top_k_max;
    }
    r->node = tr_arena_take(arena, (size_t)node->limits.rows_max * top_k_max);
    r->rest = tr_arena_take(arena, experts_max * sizeof(*r->rest));
    r->block = tr_arena_take(arena, experts_max * sizeof(*r->block));
    r->current = tr_arena_take(arena, experts_max);
    r->experts_max = experts_max;
}

static bool is_single(uint32_t nodes)
{
    return (nodes & (nodes - 1)) == 0;
}

/* Bit per node that may compute rows of an expert. */
static uint32_t replica_holders(const tr_plan *plan, uint32_t layer, uint32_t routers,
                                uint32_t expert)
{
    return tr_replica_holders(tr_plan_channel_nodes(plan, layer, expert), routers);
}

/* The replicated ones, after `load` has the rows of all others. */
static void deal_blocks(tr_replicas *r, const tr_plan *plan, uint32_t layer, uint32_t routers,
                        const uint32_t *expert, size_t count, uint32_t *load)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t e = expert[i], holders = replica_holders(plan, layer, routers, e);
        if (is_single(holders))
            continue;
        if (r->block[e] == 0) {
            r->block[e] = r->rest[e] < TR_REPLICA_ROWS ? r->rest[e] : TR_REPLICA_ROWS;
            r->rest[e] -= r->block[e];
            r->current[e] = (uint8_t)tr_replica_next(load, holders);
            load[r->current[e]] += r->block[e];
        }
        r->block[e]--;
        r->node[i] = r->current[e];
    }
}

bool tr_replicas_deal(tr_replicas *r, const tr_node_context *node, uint32_t layer,
                      const uint32_t *expert, uint32_t rows_count, uint32_t top_k, uint32_t *nodes)
{
    const tr_plan *plan = node->plan;
    const tr_plan_shape *shape = &plan->shape;
    uint32_t routers = tr_plan_span_of(plan, layer)->nodes;
    uint32_t load[TR_NODES_MAX] = {0};
    size_t count = (size_t)rows_count * top_k;
    bool replicated = false;

    for (size_t i = 0; i < count; i++) {
        if (expert[i] >= shape->experts[layer])
            return false;
        uint32_t holders = replica_holders(plan, layer, routers, expert[i]);
        if (is_single(holders)) {
            r->node[i] = (uint8_t)__builtin_ctz(holders);
            load[r->node[i]]++;
            continue;
        }
        if (!replicated) {
            memset(r->rest, 0, r->experts_max * sizeof(*r->rest));
            memset(r->block, 0, r->experts_max * sizeof(*r->block));
            replicated = true;
        }
        r->rest[expert[i]]++;
    }
    if (replicated) {
        for (uint32_t t = 0; t < shape->slices[layer]; t++)
            load[tr_plan_channel_node(plan, layer, (uint32_t)shape->experts[layer] + t)] +=
                rows_count;
        deal_blocks(r, plan, layer, routers, expert, count, load);
    }
    *nodes = 0;
    for (size_t i = 0; i < count; i++)
        *nodes |= 1u << r->node[i];
    return true;
}
