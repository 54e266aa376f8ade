#include "actors/node_context.h"

const tr_plan_span *tr_plan_span_of(const tr_plan *plan, uint32_t layer)
{
    for (uint32_t i = 0; i < plan->spans_count; i++)
        if (layer <= plan->spans[i].last_layer)
            return &plan->spans[i];
    assert(!"spans cover all layers");
    return NULL;
}

bool tr_span_feeds(const tr_plan_span *span, uint32_t self, uint32_t target)
{
    if (span->nodes >> target & 1)
        return target == self;
    uint32_t first = 0;
    while (!(span->nodes >> first & 1))
        first++;
    return first == self;
}
