#include "core/plan_edit.h"

#include "core/plan_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* -- parts as people write them -- */

typedef struct {
    uint32_t first, last; /* inclusive; last UINT32_MAX: to the end */
} part_range;

/* "a", "a-b" or "all" up to end or a '.'; NULL when it is none, else what follows. */
static const char *range_read(const char *text, part_range *out)
{
    char *end;

    if (strncmp(text, "all", 3) == 0) {
        *out = (part_range){0, UINT32_MAX};
        return text + 3;
    }
    if (*text < '0' || *text > '9')
        return NULL;
    unsigned long first = strtoul(text, &end, 10), last = first;
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9')
            return NULL;
        last = strtoul(end + 1, &end, 10);
    }
    if (first > last || last >= UINT32_MAX)
        return NULL;
    *out = (part_range){(uint32_t)first, (uint32_t)last};
    return end;
}

static tr_status range_check(const char *text, const char *what, const part_range *r,
                             uint32_t count, tr_error *err)
{
    if (count == 0)
        return tr_fail(err, TR_E_INVALID, "%s: the model has no %s there", text, what);
    if (r->first < count && (r->last == UINT32_MAX || r->last < count))
        return TR_OK;
    return tr_fail(err, TR_E_INVALID, "%s: %s %" PRIu32 "-%" PRIu32 ", the model has 0-%" PRIu32,
                   text, what, r->first, r->last, count - 1);
}

/* What "LAYERS.TERMS" behind the name of a kind names. */
typedef struct {
    part_range layers, terms; /* layers.last is a layer */
} part_place;

static tr_status layers_check(const char *text, part_range *layers, uint32_t layers_count,
                              tr_error *err)
{
    tr_status status = range_check(text, "layers", layers, layers_count, err);
    if (status == TR_OK && layers->last == UINT32_MAX)
        layers->last = layers_count - 1;
    return status;
}

static tr_status place_read(part_place *out, const tr_plan_terms *kind, uint32_t layers_count,
                            const char *text, tr_error *err)
{
    uint32_t largest = 0;

    const char *rest = range_read(text + strlen(kind->part), &out->layers);
    rest = rest != NULL && *rest == '.' ? range_read(rest + 1, &out->terms) : NULL;
    if (rest == NULL || *rest != '\0')
        return tr_fail(err, TR_E_INVALID, "%s: expected %sLAYERS.%s, as in %s0-3.0", text,
                       kind->part, kind->what, kind->part);
    tr_status status = layers_check(text, &out->layers, layers_count, err);
    if (status != TR_OK)
        return status;
    for (uint32_t l = out->layers.first; l <= out->layers.last; l++)
        largest = kind->counts[l] > largest ? kind->counts[l] : largest;
    return range_check(text, kind->what, &out->terms, largest, err);
}

/* Lets the terms stand on the node; besides: and where they stand already. */
static void terms_put(const tr_plan_terms *kind, const part_place *place, uint32_t node,
                      bool besides, uint32_t *moved_count)
{
    for (uint32_t l = place->layers.first; l <= place->layers.last; l++)
        for (uint32_t t = place->terms.first; t < kind->counts[l] && t <= place->terms.last; t++) {
            uint32_t now = tr_terms_nodes(kind, l, t);
            uint32_t then = 1u << node | (besides ? now : 0);
            *moved_count += now != then;
            tr_terms_set(kind, l, t, then);
        }
}

static tr_status move_terms(tr_plan *plan, const tr_plan_terms *kind, const char *text,
                            uint32_t node, uint32_t *moved_count, tr_error *err)
{
    part_place place;
    tr_status status = place_read(&place, kind, plan->shape.layers_count, text, err);
    if (status != TR_OK)
        return status;
    terms_put(kind, &place, node, false, moved_count);
    tr_plan_settle_routers(plan);
    return TR_OK;
}

/* The layers of "layers/L" or "router/L". */
static tr_status layers_read(const tr_plan *plan, const char *text, part_range *out, tr_error *err)
{
    const char *numbers = strchr(text, '/') + 1, *rest = range_read(numbers, out);
    int name = (int)(numbers - text);

    if (rest == NULL || *rest != '\0')
        return tr_fail(err, TR_E_INVALID, "%s: expected %.*sLAYERS, as in %.*s0-3", text, name,
                       text, name, text);
    return layers_check(text, out, plan->shape.layers_count, err);
}

static void move_routers(tr_plan *plan, const part_range *layers, uint32_t node,
                         uint32_t *moved_count)
{
    uint32_t routers[TR_LAYERS_MAX];

    tr_plan_get_routers(plan, routers);
    for (uint32_t l = layers->first; l <= layers->last; l++) {
        *moved_count += routers[l] != 1u << node;
        routers[l] = 1u << node;
    }
    tr_plan_set_routers(plan, routers);
}

/* "layers/L": all terms of the layers and their routers; "router/L": these alone. */
static tr_status move_layers(tr_plan *plan, const char *text, bool with_terms, uint32_t node,
                             uint32_t *moved_count, tr_error *err)
{
    part_place place = {.terms = {0, UINT32_MAX}};

    tr_status status = layers_read(plan, text, &place.layers, err);
    if (status != TR_OK)
        return status;
    for (int i = 0; with_terms && i < TR_TERMS_KINDS; i++) {
        tr_plan_terms kind = tr_plan_terms_of(plan, (tr_terms_kind)i);
        terms_put(&kind, &place, node, false, moved_count);
    }
    move_routers(plan, &place.layers, node, moved_count);
    return TR_OK;
}

/* A mirror of the routers of "router/L", where the node has work for it. */
static tr_status mirror_routers(tr_plan *plan, const char *text, uint32_t node,
                                uint32_t *added_count, tr_error *err)
{
    uint32_t before[TR_LAYERS_MAX], routers[TR_LAYERS_MAX], added = 0;
    part_range layers;

    tr_status status = layers_read(plan, text, &layers, err);
    if (status != TR_OK)
        return status;
    tr_plan_get_routers(plan, before);
    memcpy(routers, before, sizeof(routers));
    for (uint32_t l = layers.first; l <= layers.last; l++) {
        added += !(before[l] >> node & 1);
        routers[l] |= 1u << node;
    }
    tr_plan_set_routers(plan, routers);
    tr_plan_get_routers(plan, routers);
    for (uint32_t l = layers.first; l <= layers.last; l++)
        if (!(routers[l] >> node & 1)) {
            tr_plan_set_routers(plan, before);
            return tr_fail(err, TR_E_INVALID,
                           "%s: a mirror is of use where the node has attention or slices in each "
                           "layer, from layer %" PRIu32 " on it has not",
                           text, l);
        }
    *added_count = added;
    return TR_OK;
}

tr_status tr_plan_place_rows(tr_plan *plan, uint32_t first, uint32_t last, uint32_t node,
                             uint32_t *moved_count, tr_error *err)
{
    /* Each old range gives at most a part before, and one of them a part after; and the new one. */
    tr_plan_range *ranges = calloc(plan->ranges_count + 3, sizeof(*ranges));
    uint32_t count = 0;
    if (ranges == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %" PRIu32 " vocabulary ranges",
                       plan->ranges_count);
    for (uint32_t i = 0; i < plan->ranges_count; i++) {
        const tr_plan_range old = plan->ranges[i];
        tr_plan_range parts[3];
        uint32_t parts_count = 0;
        if (old.first < first)
            parts[parts_count++] =
                (tr_plan_range){old.first, old.last < first ? old.last : first - 1, old.node};
        if (old.first <= last && old.last >= first) {
            *moved_count += old.node != node;
            parts[parts_count++] = (tr_plan_range){old.first > first ? old.first : first,
                                                   old.last < last ? old.last : last, node};
        }
        if (old.last > last)
            parts[parts_count++] =
                (tr_plan_range){old.first > last ? old.first : last + 1, old.last, old.node};
        for (uint32_t p = 0; p < parts_count; p++) {
            if (count > 0 && ranges[count - 1].node == parts[p].node)
                ranges[count - 1].last = parts[p].last;
            else
                ranges[count++] = parts[p];
        }
    }
    free(plan->ranges);
    plan->ranges = ranges;
    plan->ranges_count = count;
    return TR_OK;
}

static tr_status move_vocabulary(tr_plan *plan, const char *text, uint32_t node,
                                 uint32_t *moved_count, tr_error *err)
{
    part_range rows;
    uint32_t granule = plan->shape.vocab_granule, vocab = plan->shape.vocab_size;

    const char *rest = range_read(text + strlen("vocabulary/"), &rows);
    if (rest == NULL || *rest != '\0')
        return tr_fail(err, TR_E_INVALID, "%s: expected vocabulary/ROWS, as in vocabulary/0-65535",
                       text);
    tr_status status = range_check(text, "rows", &rows, vocab, err);
    if (status != TR_OK)
        return status;
    uint32_t last = rows.last == UINT32_MAX ? vocab - 1 : rows.last;
    if (rows.first % granule != 0 || ((last + 1) % granule != 0 && last + 1 != vocab))
        return tr_fail(err, TR_E_INVALID, "%s: ranges are cut at multiples of %" PRIu32, text,
                       granule);
    return tr_plan_place_rows(plan, rows.first, last, node, moved_count, err);
}

tr_status tr_plan_move(tr_plan *plan, const char *text, uint32_t node, uint32_t *moved_count,
                       tr_error *err)
{
    const tr_plan_shape *shape = &plan->shape;

    assert(node < plan->nodes_count);
    *moved_count = 0;
    for (int i = 0; i < TR_TERMS_KINDS; i++) {
        tr_plan_terms kind = tr_plan_terms_of(plan, (tr_terms_kind)i);
        if (strncmp(text, kind.part, strlen(kind.part)) == 0)
            return move_terms(plan, &kind, text, node, moved_count, err);
    }
    if (strncmp(text, "layers/", strlen("layers/")) == 0)
        return move_layers(plan, text, true, node, moved_count, err);
    if (strncmp(text, "router/", strlen("router/")) == 0)
        return move_layers(plan, text, false, node, moved_count, err);
    if (strncmp(text, "vocabulary/", strlen("vocabulary/")) == 0)
        return move_vocabulary(plan, text, node, moved_count, err);
    if (strcmp(text, "sampler") == 0) {
        *moved_count = plan->sampler_node != node;
        plan->sampler_node = node;
        return TR_OK;
    }
    if (strcmp(text, "ngram") == 0) {
        if (shape->ngram_tables == 0)
            return tr_fail(err, TR_E_INVALID, "ngram: the model has no n-gram table");
        *moved_count = plan->ngram_node != node;
        plan->ngram_node = node;
        return TR_OK;
    }
    return tr_fail(err, TR_E_INVALID,
                   "%s: expected expert/LAYERS.EXPERTS, slice/LAYERS.SLICES, "
                   "attention/LAYERS.TERMS, layers/LAYERS, router/LAYERS, vocabulary/ROWS, "
                   "sampler or ngram",
                   text);
}

tr_status tr_plan_replicate(tr_plan *plan, const char *text, uint32_t node, uint32_t *added_count,
                            tr_error *err)
{
    tr_plan_terms kind = tr_plan_terms_of(plan, TR_TERMS_EXPERTS);
    part_place place;

    assert(node < plan->nodes_count);
    *added_count = 0;
    if (strncmp(text, "router/", strlen("router/")) == 0)
        return mirror_routers(plan, text, node, added_count, err);
    if (strncmp(text, kind.part, strlen(kind.part)) != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: only experts and routers have replicas, expected "
                       "expert/LAYERS.EXPERTS or router/LAYERS",
                       text);
    tr_status status = place_read(&place, &kind, plan->shape.layers_count, text, err);
    if (status == TR_OK)
        terms_put(&kind, &place, node, true, added_count);
    return status;
}
