/* plan_bytes.c - plans as bytes: a fixed head, spans, ranges, then layer after layer the node of
 * each attention term and the mask of nodes of each expert and slice. Little-endian, as in memory.
 */
#include "core/plan_edit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t epoch;
    uint32_t batcher_node, sampler_node, ngram_node;
    uint32_t reserved;
    uint32_t spans_count, ranges_count;
} plan_head;

static size_t terms_size(const tr_plan_shape *shape)
{
    size_t size = 0;
    for (uint32_t l = 0; l < shape->layers_count; l++)
        size += (size_t)shape->attention_terms[l] +
                ((size_t)shape->experts[l] + shape->slices[l]) * sizeof(uint16_t);
    return size;
}

static size_t plan_size(const tr_plan_shape *shape, uint32_t spans_count, uint32_t ranges_count)
{
    return sizeof(plan_head) + spans_count * sizeof(tr_plan_span) +
           ranges_count * sizeof(tr_plan_range) + terms_size(shape);
}

/* Copies the terms of every layer out of a plan, or into it. */
static void copy_terms(const tr_plan *plan, uint8_t *out, const uint8_t *in)
{
    const tr_plan_shape *shape = &plan->shape;
    size_t at = 0;
    for (uint32_t l = 0; l < shape->layers_count; l++) {
        void *rows[2] = {plan->attention + (size_t)l * TR_TERMS_MAX,
                         plan->channel + (size_t)l * TR_TERMS_MAX};
        size_t sizes[2] = {shape->attention_terms[l],
                           ((size_t)shape->experts[l] + shape->slices[l]) * sizeof(*plan->channel)};
        for (int i = 0; i < 2; at += sizes[i], i++) {
            if (out != NULL)
                memcpy(out + at, rows[i], sizes[i]);
            else
                memcpy(rows[i], in + at, sizes[i]);
        }
    }
}

tr_status tr_plan_encode(const tr_plan *plan, void **bytes, size_t *size, tr_error *err)
{
    plan_head head = {.epoch = plan->epoch,
                      .batcher_node = plan->batcher_node,
                      .sampler_node = plan->sampler_node,
                      .ngram_node = plan->ngram_node,
                      .spans_count = plan->spans_count,
                      .ranges_count = plan->ranges_count};
    size_t spans = plan->spans_count * sizeof(*plan->spans);
    size_t ranges = plan->ranges_count * sizeof(*plan->ranges);

    *size = plan_size(&plan->shape, plan->spans_count, plan->ranges_count);
    uint8_t *out = malloc(*size);
    if (out == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a plan of %zu bytes", *size);
    memcpy(out, &head, sizeof(head));
    memcpy(out + sizeof(head), plan->spans, spans);
    memcpy(out + sizeof(head) + spans, plan->ranges, ranges);
    copy_terms(plan, out + sizeof(head) + spans + ranges, NULL);
    *bytes = out;
    return TR_OK;
}

/* Every node exists, spans and ranges cover what they must. */
static tr_status plan_check(const tr_plan *plan, tr_error *err)
{
    const tr_plan_shape *shape = &plan->shape;
    uint32_t nodes = plan->nodes_count, granule = shape->vocab_granule, next = 0;

    if (plan->batcher_node >= nodes || plan->sampler_node >= nodes || plan->ngram_node >= nodes)
        return tr_fail(err, TR_E_INVALID,
                       "plan: batcher, sampler, ngram: nodes %" PRIu32 ", %" PRIu32 ", %" PRIu32
                       ", the cluster has %" PRIu32,
                       plan->batcher_node, plan->sampler_node, plan->ngram_node, nodes);
    for (uint32_t i = 0; i < plan->spans_count; i++) {
        const tr_plan_span *s = &plan->spans[i];
        if (s->first_layer != next || s->last_layer < next ||
            s->last_layer >= shape->layers_count || s->nodes == 0 || s->nodes >> nodes != 0)
            return tr_fail(err, TR_E_INVALID,
                           "plan: spans[%" PRIu32 "]: layers %" PRIu32 "-%" PRIu32
                           " on nodes %" PRIx32 ", expected to go on at layer %" PRIu32,
                           i, s->first_layer, s->last_layer, s->nodes, next);
        next = s->last_layer + 1;
    }
    if (next != shape->layers_count)
        return tr_fail(err, TR_E_INVALID, "plan: spans: end at layer %" PRIu32 " of %" PRIu32, next,
                       shape->layers_count);
    next = 0;
    for (uint32_t i = 0; i < plan->ranges_count; i++) {
        const tr_plan_range *r = &plan->ranges[i];
        if (r->first != next || r->last < next || r->last >= shape->vocab_size || r->node >= nodes)
            return tr_fail(err, TR_E_INVALID,
                           "plan: ranges[%" PRIu32 "]: rows %" PRIu32 "-%" PRIu32
                           " on node %" PRIu32 ", expected to go on at row %" PRIu32,
                           i, r->first, r->last, r->node, next);
        if ((r->last + 1) % granule != 0 && r->last + 1 != shape->vocab_size)
            return tr_fail(err, TR_E_INVALID,
                           "plan: ranges[%" PRIu32 "]: rows %" PRIu32 "-%" PRIu32
                           ", expected to end at a multiple of %" PRIu32,
                           i, r->first, r->last, granule);
        next = r->last + 1;
    }
    if (next != shape->vocab_size)
        return tr_fail(err, TR_E_INVALID, "plan: ranges: end at row %" PRIu32 " of %" PRIu32, next,
                       shape->vocab_size);
    for (uint32_t l = 0; l < shape->layers_count; l++) {
        uint32_t terms = (uint32_t)shape->experts[l] + shape->slices[l];
        for (uint32_t t = 0; t < shape->attention_terms[l]; t++)
            if (tr_plan_attention_node(plan, l, t) >= nodes)
                return tr_fail(err, TR_E_INVALID,
                               "plan: layer %" PRIu32 ": attention term %" PRIu32
                               " on node %" PRIu32 " of %" PRIu32,
                               l, t, tr_plan_attention_node(plan, l, t), nodes);
        for (uint32_t t = 0; t < terms; t++) {
            uint32_t holders = tr_plan_channel_nodes(plan, l, t);
            bool several = (holders & (holders - 1)) != 0;
            if (holders == 0 || holders >> nodes != 0 || (several && t >= shape->experts[l]))
                return tr_fail(err, TR_E_INVALID,
                               "plan: layer %" PRIu32 ": %s %" PRIu32 " on nodes %" PRIx32
                               ", expected %s of the first %" PRIu32,
                               l, t < shape->experts[l] ? "expert" : "slice",
                               t < shape->experts[l] ? t : t - shape->experts[l], holders,
                               t < shape->experts[l] ? "some" : "one", nodes);
        }
    }
    return TR_OK;
}

tr_status tr_plan_decode(tr_plan *out, const void *bytes, size_t size, const tr_plan_shape *shape,
                         uint32_t nodes_count, tr_error *err)
{
    const uint8_t *in = bytes;
    plan_head head;
    size_t terms = (size_t)shape->layers_count * TR_TERMS_MAX;

    if (size < sizeof(head))
        return tr_fail(err, TR_E_INVALID, "plan: %zu bytes, expected at least %zu", size,
                       sizeof(head));
    memcpy(&head, in, sizeof(head));
    if (head.reserved != 0)
        return tr_fail(err, TR_E_INVALID, "plan: reserved: %" PRIu32 ", expected 0", head.reserved);
    if (head.spans_count == 0 || head.spans_count > TR_LAYERS_MAX || head.ranges_count == 0 ||
        head.ranges_count > shape->vocab_size)
        return tr_fail(err, TR_E_INVALID, "plan: %" PRIu32 " spans and %" PRIu32 " ranges",
                       head.spans_count, head.ranges_count);
    if (size != plan_size(shape, head.spans_count, head.ranges_count))
        return tr_fail(err, TR_E_INVALID, "plan: %zu bytes, expected %zu for this model", size,
                       plan_size(shape, head.spans_count, head.ranges_count));
    tr_plan plan = {.epoch = head.epoch,
                    .shape = *shape,
                    .nodes_count = nodes_count,
                    .batcher_node = head.batcher_node,
                    .sampler_node = head.sampler_node,
                    .ngram_node = head.ngram_node,
                    .spans_count = head.spans_count,
                    .ranges_count = head.ranges_count};
    plan.attention = calloc(terms, 1);
    plan.channel = calloc(terms, sizeof(*plan.channel));
    plan.ranges = calloc(head.ranges_count, sizeof(*plan.ranges));
    tr_status status = TR_OK;
    if (plan.attention == NULL || plan.channel == NULL || plan.ranges == NULL)
        status = tr_fail(err, TR_E_NOMEM, "no memory for a plan of %zu bytes", size);
    if (status == TR_OK) {
        size_t spans = head.spans_count * sizeof(*plan.spans);
        size_t ranges = head.ranges_count * sizeof(*plan.ranges);
        memcpy(plan.spans, in + sizeof(head), spans);
        memcpy(plan.ranges, in + sizeof(head) + spans, ranges);
        copy_terms(&plan, NULL, in + sizeof(head) + spans + ranges);
        status = plan_check(&plan, err);
    }
    if (status != TR_OK) {
        tr_plan_free(&plan);
        return status;
    }
    *out = plan;
    return TR_OK;
}
