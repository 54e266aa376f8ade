#include "api/admin_load.h"

static void pack_held(msgpack_packer *reply, const tr_plan *plan, uint32_t layer, uint32_t node)
{
    uint32_t experts = plan->shape.experts[layer], count = 0;

    for (uint32_t e = 0; e < experts; e++)
        count += (tr_plan_channel_nodes(plan, layer, e) >> node & 1);
    tr_pack_list(reply, "held", count);
    for (uint32_t e = 0; e < experts; e++)
        if ((tr_plan_channel_nodes(plan, layer, e) >> node & 1))
            (void)msgpack_pack_uint32(reply, e);
}

/* The figures of a layer as lists by expert: an answer has a largest number of objects. */
static void pack_layer(msgpack_packer *reply, tr_cluster *cluster, const tr_plan *plan,
                       uint32_t layer)
{
    const tr_expert_heat *heat = tr_cluster_heat(cluster);
    uint32_t experts = plan->shape.experts[layer];

    (void)msgpack_pack_map(reply, 6);
    tr_pack_u64(reply, "layer", layer);
    tr_pack_u64(reply, "expert_bytes", tr_cluster_expert_bytes(cluster, layer));
    pack_held(reply, plan, layer, tr_cluster_node_index(cluster));
    tr_pack_list(reply, "rows", experts);
    for (uint32_t e = 0; e < experts; e++)
        (void)msgpack_pack_uint64(reply, tr_expert_heat_count(heat, layer, e).rows);
    tr_pack_list(reply, "steps", experts);
    for (uint32_t e = 0; e < experts; e++)
        (void)msgpack_pack_uint64(reply, tr_expert_heat_count(heat, layer, e).steps);
    tr_pack_list(reply, "busy_ns", experts);
    for (uint32_t e = 0; e < experts; e++)
        (void)msgpack_pack_uint64(reply, tr_expert_heat_count(heat, layer, e).busy_ns);
}

static tr_status on_load(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                         uint32_t *pairs, tr_error *err)
{
    tr_cluster *cluster = ctx;
    tr_plan plan = {0};
    uint32_t layers = 0;

    (void)request;
    tr_status status = tr_cluster_plan(cluster, &plan, err);
    if (status != TR_OK)
        return status;
    for (uint32_t l = 0; l < plan.shape.layers_count; l++)
        layers += plan.shape.experts[l] > 0;
    tr_pack_text(reply, "node",
                 tr_cluster_placement(cluster)->nodes[tr_cluster_node_index(cluster)].name);
    tr_pack_u64(reply, "epoch", plan.epoch);
    tr_pack_list(reply, "layers", layers);
    for (uint32_t l = 0; l < plan.shape.layers_count; l++)
        if (plan.shape.experts[l] > 0)
            pack_layer(reply, cluster, &plan, l);
    tr_plan_free(&plan);
    *pairs += 3;
    return TR_OK;
}

void tr_admin_load_register(tr_cluster *cluster)
{
    tr_control_server_handle(tr_cluster_control(cluster), "load", on_load, cluster);
}
