/* fuzz_load.c - what a node tells the coordinator of its load: whatever was accepted can be
 * rebalanced, the plan stays one, and the gain is a number. */
#include "actors/cluster_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, EXPERTS = 8, NODES = 3 };

static tr_plan plan_of(uint8_t *attention, uint16_t *channel)
{
    tr_plan plan = {.epoch = 1, .nodes_count = NODES, .spans_count = 1};

    memset(attention, 0, LAYERS * TR_TERMS_MAX);
    memset(channel, 0, LAYERS * TR_TERMS_MAX * sizeof(*channel));
    plan.shape = (tr_plan_shape){.layers_count = LAYERS, .vocab_size = 64, .vocab_granule = 64};
    plan.spans[0] = (tr_plan_span){.last_layer = LAYERS - 1, .nodes = 3};
    plan.attention = attention;
    plan.channel = channel;
    for (uint32_t l = 0; l < LAYERS; l++) {
        plan.shape.experts[l] = EXPERTS;
        plan.shape.slices[l] = 1;
        for (uint32_t t = 0; t <= EXPERTS; t++)
            channel[l * TR_TERMS_MAX + t] = (uint16_t)(1u << t % NODES);
    }
    return plan;
}

static void check(const tr_plan *plan, const tr_rebalance *found)
{
    if (!isfinite(tr_rebalance_gain(found)))
        abort();
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            uint32_t nodes = tr_plan_channel_nodes(plan, l, e);
            if (nodes == 0 || nodes >> NODES != 0)
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t attention[LAYERS * TR_TERMS_MAX];
    static uint16_t channel[LAYERS * TR_TERMS_MAX];
    static tr_plan_range all = {.last = 63};
    tr_plan plan = plan_of(attention, channel), edited;
    msgpack_unpacked map;
    tr_rebalance found;
    tr_error err;

    if (tr_msgpack_check(data, size, &err) != TR_OK)
        return 0;
    plan.ranges = &all;
    plan.ranges_count = 1;
    tr_load *load = calloc(1, sizeof(*load));
    if (load == NULL)
        abort();
    msgpack_unpacked_init(&map);
    if (msgpack_unpack_next(&map, (const char *)data, size, NULL) == MSGPACK_UNPACK_SUCCESS) {
        bool good = cluster_load_add(load, 0, &map.data, &plan, true, &err) == TR_OK;
        load->nodes = (1u << NODES) - 1; /* as if the others had said the same */
        load->room_bytes[1] = load->room_bytes[2] = load->room_bytes[0];
        if (good && tr_plan_copy(&edited, &plan, &err) == TR_OK) {
            if (tr_rebalance_plan(&found, &edited, load, NULL, &err) != TR_OK)
                abort();
            check(&edited, &found);
            tr_rebalance_free(&found);
            tr_plan_free(&edited);
        }
    }
    msgpack_unpacked_destroy(&map);
    cluster_load_free(load);
    return 0;
}
