/* plan.c - the complete placement: the default shares, then the file's rules on top.
 *
 * A default share is contiguous and nearly equal: item i of n goes to node i * nodes / n. */
#include "core/plan_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Where errors come from: list and index of the rule being applied. */
typedef struct {
    const tr_placement *placement;
    const char *list; /* "attention" */
    uint32_t index;
    tr_error *err;
} rule_site;

static tr_status rule_fail(const rule_site *site, const char *key, uint32_t first, uint32_t last,
                           const char *what, uint32_t count)
{
    return tr_fail(
        site->err, TR_E_INVALID, "%.90s: %s[%u].%s: found %u-%u, but the model has %u %s (0 to %u)",
        site->placement->source, site->list, site->index, key, first, last, count, what, count - 1);
}

static uint32_t default_node(uint32_t item, uint32_t items_count, uint32_t nodes_count)
{
    return (uint32_t)((uint64_t)item * nodes_count / items_count);
}

static uint32_t uint32_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The layers of a rule as [first, last] of this model. */
static tr_status rule_layers(const rule_site *site, const tr_placement_rule *rule,
                             uint32_t layers_count, uint32_t *first, uint32_t *last)
{
    bool to_the_end = rule->last_layer == UINT32_MAX;

    if (rule->first_layer >= layers_count || (!to_the_end && rule->last_layer >= layers_count))
        return rule_fail(site, "layers", rule->first_layer,
                         to_the_end ? rule->first_layer : rule->last_layer, "layers", layers_count);
    *first = rule->first_layer;
    *last = to_the_end ? layers_count - 1 : rule->last_layer;
    return TR_OK;
}

/* -- terms: attention terms, experts, slices -- */

/* Layers may differ in their number of terms: the rule holds for those that a layer has, and must
 * fit the largest of its layers.
 *   besides  the terms stand on the node, too, and not on it alone */
static tr_status apply_term_rule(const rule_site *site, const tr_plan_terms *terms,
                                 const tr_placement_rule *rule, bool besides, uint32_t layers_count)
{
    uint32_t first_layer = 0, last_layer = 0, largest = 0;
    bool to_the_end = rule->last == UINT32_MAX;

    tr_status status = rule_layers(site, rule, layers_count, &first_layer, &last_layer);
    if (status != TR_OK)
        return status;
    for (uint32_t layer = first_layer; layer <= last_layer; layer++)
        if (terms->counts[layer] > largest)
            largest = terms->counts[layer];
    if (largest == 0)
        return tr_fail(
            site->err, TR_E_INVALID, "%.90s: %s[%u]: layers %u-%u of the model have no %s",
            site->placement->source, site->list, site->index, first_layer, last_layer, terms->what);
    if (rule->first >= largest || (!to_the_end && rule->last >= largest))
        return rule_fail(site, terms->what, rule->first, to_the_end ? rule->first : rule->last,
                         terms->what, largest);
    for (uint32_t layer = first_layer; layer <= last_layer; layer++) {
        uint32_t end =
            to_the_end ? terms->counts[layer] : uint32_min(rule->last + 1, terms->counts[layer]);
        for (uint32_t term = rule->first; term < end; term++)
            tr_terms_set(terms, layer, term,
                         1u << rule->node | (besides ? tr_terms_nodes(terms, layer, term) : 0));
    }
    return TR_OK;
}

static tr_status apply_term_rules(const tr_placement *placement, const tr_plan_terms *terms,
                                  const char *list, const tr_placement_rules *rules, bool besides,
                                  uint32_t layers_count, tr_error *err)
{
    for (uint32_t i = 0; i < rules->count; i++) {
        rule_site site = {placement, list, i, err};
        tr_status status = apply_term_rule(&site, terms, &rules->rules[i], besides, layers_count);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

static tr_status place_terms(const tr_placement *placement, const tr_plan_terms *terms,
                             const tr_placement_rules *rules, uint32_t layers_count, tr_error *err)
{
    for (uint32_t layer = 0; layer < layers_count; layer++)
        for (uint32_t term = 0; term < terms->counts[layer]; term++)
            tr_terms_set(terms, layer, term,
                         1u << default_node(term, terms->counts[layer], placement->nodes_count));
    return apply_term_rules(placement, terms, terms->list, rules, false, layers_count, err);
}

/* -- routers -- */

/* Whether a node has work in a layer that every step asks for: attention, or an always-chosen
 * slice. */
static bool has_work(const tr_plan *plan, uint32_t layer, uint32_t node)
{
    const tr_plan_shape *shape = &plan->shape;

    for (uint32_t t = 0; t < shape->attention_terms[layer]; t++)
        if (tr_plan_attention_node(plan, layer, t) == node)
            return true;
    for (uint32_t t = 0; t < shape->slices[layer]; t++)
        if (tr_plan_channel_node(plan, layer, (uint32_t)shape->experts[layer] + t) == node)
            return true;
    return false;
}

/* Takes the routers of a span away that nobody would wait for. One that feeds something in every
 * layer is at most one sub-layer behind its mirrors, because they need what it feeds. One that does
 * not can fall behind without end, and what its peers have sent to it holds their buffers. */
static void drop_idle_mirrors(const tr_plan *plan, tr_plan_span *span)
{
    uint32_t busy = 0;

    for (uint32_t node = 0; span->nodes >> node != 0; node++) {
        bool needed = (span->nodes >> node & 1) != 0;
        for (uint32_t layer = span->first_layer; layer <= span->last_layer; layer++)
            needed = needed && has_work(plan, layer, node);
        busy |= (uint32_t)needed << node;
    }
    span->nodes = busy != 0 ? busy : span->nodes & -span->nodes; /* a router alone feeds all */
}

/* Neighbouring spans of the same nodes become one. */
static void merge_spans(tr_plan *plan)
{
    uint32_t count = 1;

    for (uint32_t i = 1; i < plan->spans_count; i++) {
        if (plan->spans[i].nodes == plan->spans[count - 1].nodes)
            plan->spans[count - 1].last_layer = plan->spans[i].last_layer;
        else
            plan->spans[count++] = plan->spans[i];
    }
    plan->spans_count = count;
}

void tr_plan_settle_routers(tr_plan *plan)
{
    for (uint32_t i = 0; i < plan->spans_count; i++)
        drop_idle_mirrors(plan, &plan->spans[i]);
    merge_spans(plan);
}

void tr_plan_get_routers(const tr_plan *plan, uint32_t *nodes)
{
    for (uint32_t i = 0; i < plan->spans_count; i++)
        for (uint32_t l = plan->spans[i].first_layer; l <= plan->spans[i].last_layer; l++)
            nodes[l] = plan->spans[i].nodes;
}

void tr_plan_set_routers(tr_plan *plan, const uint32_t *nodes)
{
    plan->spans_count = 0;
    for (uint32_t layer = 0; layer < plan->shape.layers_count; layer++) {
        assert(nodes[layer] != 0);
        if (layer == 0 || nodes[layer] != nodes[layer - 1])
            plan->spans[plan->spans_count++] =
                (tr_plan_span){.first_layer = layer, .nodes = nodes[layer]};
        plan->spans[plan->spans_count - 1].last_layer = layer;
    }
    tr_plan_settle_routers(plan);
}

static tr_status place_routers(tr_plan *plan, const tr_placement *placement, tr_error *err)
{
    uint32_t layers_count = plan->shape.layers_count;
    uint32_t nodes[TR_LAYERS_MAX] = {0}; /* bit mask of each layer */

    for (uint32_t i = 0; i < placement->routers.count; i++) {
        const tr_placement_rule *rule = &placement->routers.rules[i];
        rule_site site = {placement, "routers", i, err};
        uint32_t first = 0, last = 0;
        tr_status status = rule_layers(&site, rule, layers_count, &first, &last);
        if (status != TR_OK)
            return status;
        for (uint32_t layer = first; layer <= last; layer++)
            nodes[layer] |= 1u << rule->node;
    }
    for (uint32_t layer = 0; layer < layers_count; layer++) {
        if (placement->routers.count == 0)
            nodes[layer] = (1u << placement->nodes_count) - 1;
        if (nodes[layer] == 0)
            return tr_fail(err, TR_E_INVALID,
                           "%.90s: routers: layer %u has no router, expected rules for all %u "
                           "layers or for none",
                           placement->source, layer, layers_count);
    }
    tr_plan_set_routers(plan, nodes);
    return TR_OK;
}

/* -- vocabulary -- */

/* owners [granules_count] node of each granule of rows */
static tr_status apply_vocabulary_rule(const rule_site *site, const tr_plan_shape *shape,
                                       const tr_placement_rule *rule, uint8_t *owners)
{
    uint32_t last = rule->last == UINT32_MAX ? shape->vocab_size - 1 : rule->last;

    if (rule->first >= shape->vocab_size || last >= shape->vocab_size)
        return rule_fail(site, "rows", rule->first, rule->last == UINT32_MAX ? rule->first : last,
                         "rows", shape->vocab_size);
    if (rule->first % shape->vocab_granule != 0 ||
        ((last + 1) % shape->vocab_granule != 0 && last + 1 != shape->vocab_size))
        return tr_fail(site->err, TR_E_INVALID,
                       "%.90s: %s[%u].rows: found %u-%u, but ranges are cut at multiples of %u",
                       site->placement->source, site->list, site->index, rule->first, last,
                       shape->vocab_granule);
    for (uint32_t g = rule->first / shape->vocab_granule; g <= last / shape->vocab_granule; g++)
        owners[g] = (uint8_t)rule->node;
    return TR_OK;
}

/* Neighbouring granules of one node become one range; returns the number of ranges. */
static uint32_t merge_ranges(tr_plan_range *ranges, const tr_plan_shape *shape,
                             const uint8_t *owners, uint32_t granules_count)
{
    uint32_t count = 0;

    for (uint32_t g = 0; g < granules_count; g++) {
        if (g == 0 || owners[g] != owners[g - 1])
            ranges[count++] = (tr_plan_range){.first = g * shape->vocab_granule, .node = owners[g]};
        ranges[count - 1].last =
            g + 1 == granules_count ? shape->vocab_size - 1 : (g + 1) * shape->vocab_granule - 1;
    }
    return count;
}

static tr_status place_vocabulary(tr_plan *plan, const tr_placement *placement, tr_error *err)
{
    const tr_plan_shape *shape = &plan->shape;
    uint32_t granules_count = (shape->vocab_size - 1) / shape->vocab_granule + 1;
    tr_status status = TR_OK;

    uint8_t *owners = calloc(granules_count, sizeof(*owners));
    plan->ranges = calloc(granules_count, sizeof(*plan->ranges));
    if (owners == NULL || plan->ranges == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "no memory for %u vocabulary ranges", granules_count);
        goto free_owners;
    }
    for (uint32_t g = 0; g < granules_count; g++)
        owners[g] = (uint8_t)default_node(g, granules_count, placement->nodes_count);
    for (uint32_t i = 0; i < placement->vocabulary.count && status == TR_OK; i++) {
        rule_site site = {placement, "vocabulary", i, err};
        status = apply_vocabulary_rule(&site, shape, &placement->vocabulary.rules[i], owners);
    }
    if (status == TR_OK)
        plan->ranges_count = merge_ranges(plan->ranges, shape, owners, granules_count);
free_owners:
    free(owners);
    return status;
}

/* -- all of it -- */

/* The shape comes from a checkpoint's config. */
static tr_status check_shape(const tr_plan_shape *shape, tr_error *err)
{
    if (shape->layers_count == 0 || shape->layers_count > TR_LAYERS_MAX)
        return tr_fail(err, TR_E_INVALID, "the model has %u layers, expected 1 to %d",
                       shape->layers_count, TR_LAYERS_MAX);
    if (shape->vocab_size == 0 || shape->vocab_size > INT32_MAX)
        return tr_fail(err, TR_E_INVALID, "the model's vocabulary has %u rows, expected 1 to %d",
                       shape->vocab_size, INT32_MAX);
    assert(shape->vocab_granule >= 1); /* ours, not the checkpoint's */
    for (uint32_t layer = 0; layer < shape->layers_count; layer++) {
        uint32_t channel = (uint32_t)shape->experts[layer] + shape->slices[layer];
        if (shape->attention_terms[layer] > TR_TERMS_MAX || channel > TR_TERMS_MAX)
            return tr_fail(err, TR_E_INVALID,
                           "layer %u of the model has %u attention terms and %u experts and "
                           "slices, expected at most %d of each",
                           layer, shape->attention_terms[layer], channel, TR_TERMS_MAX);
    }
    return TR_OK;
}

static tr_status place_all_terms(tr_plan *plan, const tr_placement *placement, tr_error *err)
{
    const tr_placement_rules *rules[TR_TERMS_KINDS] = {
        [TR_TERMS_ATTENTION] = &placement->attention,
        [TR_TERMS_EXPERTS] = &placement->experts,
        [TR_TERMS_SLICES] = &placement->slices,
    };

    for (int kind = 0; kind < TR_TERMS_KINDS; kind++) {
        tr_plan_terms terms = tr_plan_terms_of(plan, (tr_terms_kind)kind);
        tr_status status =
            place_terms(placement, &terms, rules[kind], plan->shape.layers_count, err);
        if (status != TR_OK)
            return status;
    }
    tr_plan_terms experts = tr_plan_terms_of(plan, TR_TERMS_EXPERTS);
    return apply_term_rules(placement, &experts, "replicas", &placement->replicas, true,
                            plan->shape.layers_count, err);
}

tr_status tr_plan_make(tr_plan *out, const tr_placement *placement, const tr_plan_shape *shape,
                       tr_error *err)
{
    assert(placement->nodes_count >= 1 && placement->nodes_count <= TR_NODES_MAX);
    assert(placement->batcher_node < placement->nodes_count);
    assert(placement->sampler_node < placement->nodes_count);
    assert(placement->ngram_node < placement->nodes_count);

    tr_status status = check_shape(shape, err);
    if (status != TR_OK)
        return status;
    if (placement->ngram_named && shape->ngram_tables == 0)
        return tr_fail(err, TR_E_INVALID,
                       "%.90s: ngram: found %s, but the model has no n-gram table",
                       placement->source, placement->nodes[placement->ngram_node].name);

    tr_plan plan = {
        .epoch = 1,
        .shape = *shape,
        .nodes_count = placement->nodes_count,
        .batcher_node = placement->batcher_node,
        .sampler_node = placement->sampler_node,
        .ngram_node = placement->ngram_node,
    };
    plan.attention = calloc(shape->layers_count, TR_TERMS_MAX);
    plan.channel = calloc(shape->layers_count, TR_TERMS_MAX * sizeof(*plan.channel));
    if (plan.attention == NULL || plan.channel == NULL)
        status =
            tr_fail(err, TR_E_NOMEM, "no memory for the plan of %u layers", shape->layers_count);
    if (status == TR_OK)
        status = place_all_terms(&plan, placement, err);
    if (status == TR_OK)
        status = place_routers(&plan, placement, err);
    if (status == TR_OK)
        status = place_vocabulary(&plan, placement, err);
    if (status != TR_OK) {
        tr_plan_free(&plan);
        return status;
    }
    *out = plan;
    return TR_OK;
}

bool tr_plan_uses(const tr_plan *plan, uint32_t node)
{
    bool used = plan->sampler_node == node || plan->batcher_node == node;

    used |= plan->shape.ngram_tables > 0 && plan->ngram_node == node;
    for (uint32_t i = 0; i < plan->spans_count; i++)
        used |= plan->spans[i].nodes >> node & 1;
    for (uint32_t i = 0; i < plan->ranges_count; i++)
        used |= plan->ranges[i].node == node;
    for (uint32_t l = 0; l < plan->shape.layers_count; l++) {
        for (uint32_t t = 0; t < plan->shape.attention_terms[l]; t++)
            used |= tr_plan_attention_node(plan, l, t) == node;
        for (uint32_t t = 0; t < (uint32_t)plan->shape.experts[l] + plan->shape.slices[l]; t++)
            used |= tr_plan_channel_nodes(plan, l, t) >> node & 1;
    }
    return used;
}

tr_status tr_plan_copy(tr_plan *out, const tr_plan *plan, tr_error *err)
{
    size_t terms = (size_t)plan->shape.layers_count * TR_TERMS_MAX;
    tr_plan copy = *plan;

    copy.attention = malloc(terms * sizeof(*copy.attention));
    copy.channel = malloc(terms * sizeof(*copy.channel));
    copy.ranges = malloc(plan->ranges_count * sizeof(*copy.ranges));
    if (copy.attention == NULL || copy.channel == NULL || copy.ranges == NULL) {
        tr_plan_free(&copy);
        return tr_fail(err, TR_E_NOMEM, "no memory for a plan of %u layers",
                       plan->shape.layers_count);
    }
    memcpy(copy.attention, plan->attention, terms * sizeof(*copy.attention));
    memcpy(copy.channel, plan->channel, terms * sizeof(*copy.channel));
    memcpy(copy.ranges, plan->ranges, plan->ranges_count * sizeof(*copy.ranges));
    *out = copy;
    return TR_OK;
}

void tr_plan_free(tr_plan *plan)
{
    free(plan->attention);
    free(plan->channel);
    free(plan->ranges);
    *plan = (tr_plan){0};
}
