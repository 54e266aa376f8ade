/* cluster_load.c - what a node has measured, for the coordinator: how much room it has, and for a
 * rebalance how long its experts take, how far the other nodes are, how rows were routed. */
#include "actors/cluster_load.h"

#include <stdlib.h>
#include <string.h>

#define LOAD_NS_MAX 1000000000000u /* no expert, way or step takes a quarter of an hour */

/* -- what a node answers -- */

/* What is left of the memory when the tables of a placement to come stand beside those of now. */
static uint64_t load_room(tr_cluster *c)
{
    uint64_t limit = c->budget.bytes_max, used = cluster_memory_taken(c);

    if (limit == 0)
        return UINT64_MAX;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->actors_count; i++)
        used += c->view->actors[i].arena_size;
    pthread_mutex_unlock(&c->lock);
    return used < limit ? limit - used : 0;
}

static void pack_cost(msgpack_packer *reply, const char *key, const tr_heat_cost *cost)
{
    tr_pack_list(reply, key, 3);
    (void)msgpack_pack_uint64(reply, cost->steps);
    (void)msgpack_pack_double(reply, cost->fixed_ns);
    (void)msgpack_pack_double(reply, cost->row_ns);
}

/* words: workspace for a routing */
static void pack_layer(msgpack_packer *reply, const tr_cluster *c, uint32_t layer, uint32_t *words)
{
    tr_heat_cost expert = tr_expert_heat_cost(&c->heat, layer, false);
    tr_heat_cost slice = tr_expert_heat_cost(&c->heat, layer, true);
    uint32_t count = tr_expert_heat_routing(&c->heat, layer, words);

    (void)msgpack_pack_map(reply, 6);
    tr_pack_u64(reply, "layer", layer);
    tr_pack_u64(reply, "expert_bytes", tr_cluster_expert_bytes(c, layer));
    pack_cost(reply, "expert", &expert);
    pack_cost(reply, "slice", &slice);
    tr_pack_u64(reply, "waited_ns", tr_expert_heat_waited(&c->heat, layer));
    tr_pack_bytes(reply, "routing", words, count * sizeof(*words));
}

static tr_status on_load_read(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                              uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    uint64_t hop_ns[TR_NODES_MAX];
    uint32_t layers = 0;
    uint32_t *words = malloc(TR_ROUTING_WORDS * sizeof(*words));

    (void)request;
    if (words == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for the routing of a layer");
    if (!cluster_hops_measure(c, hop_ns)) {
        free(words);
        return tr_fail(err, TR_E_AGAIN, "load_read: the ways to other nodes are being measured");
    }
    tr_pack_list(reply, "hops", c->placement->nodes_count);
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        (void)msgpack_pack_uint64(reply, hop_ns[n]);
    tr_pack_u64(reply, "room", load_room(c));
    tr_pack_u64(reply, "step_ns",
                atomic_load_explicit(&c->counters.step_ns_mean, memory_order_relaxed));
    for (uint32_t l = 0; l < c->shape.layers_count; l++)
        layers += c->shape.experts[l] > 0;
    tr_pack_list(reply, "layers", layers);
    for (uint32_t l = 0; l < c->shape.layers_count; l++)
        if (c->shape.experts[l] > 0)
            pack_layer(reply, c, l, words);
    *pairs += 4;
    free(words);
    return TR_OK;
}

static tr_status on_room_read(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                              uint32_t *pairs, tr_error *err)
{
    (void)request, (void)err;
    tr_pack_u64(reply, "room", load_room(ctx));
    *pairs += 1;
    return TR_OK;
}

void cluster_load_register(tr_cluster *c)
{
    tr_control_server_handle(c->control, "room_read", on_room_read, c);
    tr_control_server_handle(c->control, "load_read", on_load_read, c);
}

/* -- what the coordinator makes of it -- */

static bool read_cost(const msgpack_object *map, const char *key, tr_heat_cost *out)
{
    const msgpack_object_array *list = tr_map_list(map, key);

    if (list == NULL || list->size != 3 || list->ptr[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
        list->ptr[1].type != MSGPACK_OBJECT_FLOAT64 || list->ptr[2].type != MSGPACK_OBJECT_FLOAT64)
        return false;
    *out = (tr_heat_cost){.steps = list->ptr[0].via.u64,
                          .fixed_ns = list->ptr[1].via.f64,
                          .row_ns = list->ptr[2].via.f64};
    return out->fixed_ns >= 0 && out->fixed_ns <= LOAD_NS_MAX && out->row_ns >= 0 &&
           out->row_ns <= LOAD_NS_MAX; /* which no NaN is */
}

/* Of a layer only the node's routing is kept whose router records it. */
static tr_status read_layer(tr_load *load, uint32_t node, const msgpack_object *map,
                            const tr_plan *plan, tr_error *err)
{
    uint64_t number = UINT64_MAX, waited_ns = 0;
    const void *bytes;
    size_t size;

    if (!tr_map_u64(map, "layer", &number) || number >= plan->shape.layers_count ||
        plan->shape.experts[number] == 0)
        return tr_fail(err, TR_E_INVALID, "load_read: layers: not one with experts");
    tr_load_layer *layer = &load->layers[number];
    if (!tr_map_u64(map, "expert_bytes", &layer->expert_bytes) ||
        !read_cost(map, "expert", &layer->expert[node]) ||
        !read_cost(map, "slice", &layer->slice[node]) ||
        !tr_map_u64(map, "waited_ns", &waited_ns) || waited_ns > LOAD_NS_MAX ||
        !tr_map_bytes(map, "routing", &bytes, &size))
        return tr_fail(err, TR_E_INVALID, "load_read: layer %u: a figure is missing or impossible",
                       (unsigned)number);
    if ((uint32_t)__builtin_ctz(tr_plan_span_of(plan, (uint32_t)number)->nodes) != node)
        return TR_OK;
    if (layer->routing != NULL || size > TR_ROUTING_WORDS * sizeof(*layer->routing) ||
        size % sizeof(*layer->routing) != 0)
        return tr_fail(err, TR_E_INVALID, "load_read: layer %u: routing: %zu bytes, or twice",
                       (unsigned)number, size);
    layer->waited_ns = waited_ns;
    layer->routing = malloc(size + 1);
    if (layer->routing == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for the routing of a layer");
    if (size > 0)
        memcpy(layer->routing, bytes, size);
    layer->routing_count = (uint32_t)(size / sizeof(*layer->routing));
    if (!tr_routing_check(layer->routing, layer->routing_count, plan->shape.experts[number]))
        return tr_fail(err, TR_E_INVALID, "load_read: layer %u: routing: not one",
                       (unsigned)number);
    return TR_OK;
}

/* A node that holds nothing was drained, or is not meant to hold anything: it gets no experts. */
static bool load_stands_on(const tr_plan *plan, uint32_t node)
{
    for (uint32_t l = 0; l < plan->shape.layers_count; l++) {
        uint32_t terms = (uint32_t)plan->shape.experts[l] + plan->shape.slices[l];
        for (uint32_t t = 0; t < terms; t++)
            if (tr_plan_channel_nodes(plan, l, t) >> node & 1)
                return true;
        for (uint32_t t = 0; t < plan->shape.attention_terms[l]; t++)
            if (tr_plan_attention_node(plan, l, t) == node)
                return true;
    }
    return false;
}

tr_status cluster_load_add(tr_load *load, uint32_t node, const msgpack_object *map,
                           const tr_plan *plan, bool batcher, tr_error *err)
{
    const msgpack_object_array *hops = tr_map_list(map, "hops"),
                               *layers = tr_map_list(map, "layers");
    uint64_t step_ns = 0;

    if (hops == NULL || hops->size != plan->nodes_count || layers == NULL ||
        !tr_map_u64(map, "room", &load->room_bytes[node]) ||
        !tr_map_u64(map, "step_ns", &step_ns) || step_ns > LOAD_NS_MAX)
        return tr_fail(err, TR_E_INVALID, "load_read: a key is missing, or step_ns is impossible");
    if (batcher)
        load->step_ns = (double)step_ns;
    for (uint32_t n = 0; n < plan->nodes_count; n++) {
        if (hops->ptr[n].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
            hops->ptr[n].via.u64 > LOAD_NS_MAX)
            return tr_fail(err, TR_E_INVALID, "load_read: hops: not a time");
        /* Both ends have measured it; a way is not longer than the shorter says. */
        double ns = (double)hops->ptr[n].via.u64, *there = &load->hop_ns[node][n];
        if (ns > 0 && (*there == 0 || ns < *there))
            *there = load->hop_ns[n][node] = ns;
    }
    if (load_stands_on(plan, node))
        load->nodes |= 1u << node;
    for (uint32_t i = 0; i < layers->size; i++) {
        tr_status status = read_layer(load, node, &layers->ptr[i], plan, err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

void cluster_load_free(tr_load *load)
{
    for (uint32_t l = 0; load != NULL && l < TR_LAYERS_MAX; l++)
        free(load->layers[l].routing);
    free(load);
}
