/* cluster_mirrors.c - nodes whose kernels give different bits may serve together, as long as
 * nothing is computed by two of them that has to come out the same.
 *
 * A router that is alone decides for all: rows, exponents and routing travel in its messages, and a
 * shard computes its terms from them, which nobody else does. Computed by several nodes are the
 * residual rows where a layer has several routers, what a layer of attention keeps once (latents,
 * an index: TR_KV_LAYER) where its heads stand on several nodes, and an expert with replicas, whose
 * holder depends on what else is in the step. */
#include "actors/cluster_node.h"
#include "core/log.h"

static uint64_t fingerprint_of(const tr_cluster *c, uint32_t node)
{
    return node == c->node_index ? c->fingerprint : atomic_load(&c->peers[node].fingerprint);
}

/* Whether the nodes of a mask give the same bits; otherwise two that do not. */
static bool are_alike(const tr_cluster *c, uint32_t nodes, uint32_t *one, uint32_t *other)
{
    *one = TR_NODES_MAX;
    for (uint32_t n = 0; nodes >> n != 0; n++) {
        if (!(nodes >> n & 1))
            continue;
        if (*one == TR_NODES_MAX)
            *one = n;
        *other = n;
        if (fingerprint_of(c, n) != fingerprint_of(c, *one))
            return false;
    }
    return true;
}

static tr_status check_nodes(const tr_cluster *c, uint32_t nodes, uint32_t layer, const char *what,
                             const char *key, tr_error *err)
{
    uint32_t one, other;
    if (are_alike(c, nodes, &one, &other))
        return TR_OK;
    return tr_fail(err, TR_E_INVALID,
                   "layer %u: %s on %s and %s, whose kernels give different bits: let one of them "
                   "have it (placement file: %s), or use the same kernels",
                   layer, what, c->placement->nodes[one].name, c->placement->nodes[other].name,
                   key);
}

typedef struct {
    const tr_cluster *c;
    const tr_plan *plan;
    uint32_t there;
    tr_error *err;
    tr_status status;
} part_check;

static void check_part(void *ctx, const tr_kv_part *part)
{
    part_check *check = ctx;
    uint32_t nodes = 0;
    if (part->term != TR_KV_LAYER || check->status != TR_OK)
        return;
    for (uint32_t t = 0; t < check->plan->shape.attention_terms[part->layer]; t++)
        nodes |= 1u << tr_plan_attention_node(check->plan, part->layer, t);
    check->status =
        check_nodes(check->c, nodes & check->there, part->layer,
                    "what its attention keeps once is computed", "attention", check->err);
}

tr_status cluster_check_mirrors(const tr_cluster *c, const tr_plan *plan, uint32_t there,
                                tr_error *err)
{
    part_check parts = {.c = c, .plan = plan, .there = there, .err = err};
    uint32_t one, other;
    tr_status status = TR_OK;

    if (are_alike(c, there, &one, &other))
        return TR_OK;
    for (uint32_t i = 0; status == TR_OK && i < plan->spans_count; i++)
        status = check_nodes(c, plan->spans[i].nodes & there, plan->spans[i].first_layer,
                             "there are routers", "routers", err);
    for (uint32_t l = 0; l < plan->shape.layers_count; l++)
        for (uint32_t e = 0; status == TR_OK && e < plan->shape.experts[l]; e++)
            status = check_nodes(c, tr_plan_channel_nodes(plan, l, e) & there, l,
                                 "an expert stands", "replicas", err);
    if (status == TR_OK) {
        tr_kv_each_part(c->node.spec, check_part, &parts);
        status = parts.status;
    }
    return status;
}

void cluster_note_kernels(const tr_cluster *c)
{
    uint32_t one, other;
    if (!are_alike(c, cluster_members(c), &one, &other))
        tr_log(TR_LOG_WARN, NULL, "kernels_differ",
               "nodes=%s,%s effect=\"answers depend in their last bits on what stands where\"",
               c->placement->nodes[one].name, c->placement->nodes[other].name);
}
