#include "actors/expert_heat.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t layer_terms(const tr_plan_shape *shape, uint32_t layer)
{
    return (uint32_t)shape->experts[layer] + shape->slices[layer];
}

static size_t all_terms(const tr_plan_shape *shape)
{
    size_t count = 0;
    for (uint32_t l = 0; l < shape->layers_count; l++)
        count += layer_terms(shape, l);
    return count;
}

static size_t all_rings(const tr_plan_shape *shape)
{
    size_t count = 0;
    for (uint32_t l = 0; l < shape->layers_count; l++)
        count += shape->experts[l] > 0;
    return count;
}

static uint32_t experts_max(const tr_plan_shape *shape)
{
    uint32_t most = 1;
    for (uint32_t l = 0; l < shape->layers_count; l++)
        most = shape->experts[l] > most ? shape->experts[l] : most;
    return most;
}

uint64_t tr_expert_heat_bytes(const tr_plan_shape *shape)
{
    return shape->layers_count *
               (2 * sizeof(uint32_t) + 2 * sizeof(tr_heat_moments) + sizeof(uint64_t)) +
           all_terms(shape) * sizeof(tr_heat_term) + all_rings(shape) * sizeof(tr_routing_ring) +
           experts_max(shape) * sizeof(uint32_t);
}

tr_status tr_expert_heat_init(tr_expert_heat *heat, const tr_plan_shape *shape, tr_error *err)
{
    uint32_t layers_count = shape->layers_count;
    *heat = (tr_expert_heat){.shape = shape,
                             .first = calloc(layers_count, sizeof(*heat->first)),
                             .terms = calloc(all_terms(shape), sizeof(*heat->terms)),
                             .moments = calloc(2 * (size_t)layers_count, sizeof(*heat->moments)),
                             .rings = calloc(all_rings(shape) + 1, sizeof(*heat->rings)),
                             .ring = calloc(layers_count, sizeof(*heat->ring)),
                             .waited_ns = calloc(layers_count, sizeof(*heat->waited_ns)),
                             .asked = calloc(experts_max(shape), sizeof(*heat->asked))};
    if (heat->first == NULL || heat->terms == NULL || heat->moments == NULL ||
        heat->rings == NULL || heat->ring == NULL || heat->waited_ns == NULL ||
        heat->asked == NULL) {
        tr_expert_heat_teardown(heat);
        return tr_fail(err, TR_E_NOMEM, "no memory for the counters of experts");
    }
    for (uint32_t l = 0, first = 0, ring = 0; l < layers_count; l++) {
        heat->first[l] = first;
        heat->ring[l] = ring;
        first += layer_terms(shape, l);
        ring += shape->experts[l] > 0;
    }
    return TR_OK;
}

void tr_expert_heat_teardown(tr_expert_heat *heat)
{
    free(heat->first);
    free(heat->terms);
    free(heat->moments);
    free(heat->rings);
    free(heat->ring);
    free(heat->waited_ns);
    free(heat->asked);
    *heat = (tr_expert_heat){0};
}

static uint64_t heat_read(const _Atomic uint64_t *figure)
{
    return atomic_load_explicit(figure, memory_order_relaxed);
}

/* One thread writes, so no addition of another can be lost. */
static void heat_grow(_Atomic uint64_t *figure, uint64_t by)
{
    atomic_store_explicit(figure, heat_read(figure) + by, memory_order_relaxed);
}

static tr_heat_term *heat_term(const tr_expert_heat *heat, uint32_t layer, uint32_t term)
{
    assert(layer < heat->shape->layers_count && term < layer_terms(heat->shape, layer));
    return &heat->terms[heat->first[layer] + term];
}

void tr_expert_heat_add(tr_expert_heat *heat, uint32_t layer, uint32_t term, uint32_t rows,
                        uint64_t busy_ns)
{
    tr_heat_term *t = heat_term(heat, layer, term);
    bool slice = term >= heat->shape->experts[layer];
    tr_heat_moments *m = &heat->moments[2 * layer + slice];

    heat_grow(&t->rows, rows);
    heat_grow(&t->steps, 1);
    heat_grow(&t->busy_ns, busy_ns);
    heat_grow(&m->rows_squared, (uint64_t)rows * rows);
    heat_grow(&m->rows_busy_ns, rows * busy_ns);
}

/* The caller has said that so many words begin. */
static void ring_put(tr_routing_ring *ring, uint64_t *at, uint32_t number, uint32_t rows)
{
    atomic_store_explicit(&ring->words[(*at)++ % TR_ROUTING_WORDS], number << 16 | rows,
                          memory_order_release);
}

void tr_expert_heat_record(tr_expert_heat *heat, uint32_t layer, uint64_t step,
                           const uint32_t *expert, uint32_t rows_count, uint32_t top_k)
{
    if (step % TR_ROUTING_EVERY != 0)
        return;
    tr_routing_ring *ring = &heat->rings[heat->ring[layer]];
    uint64_t at = atomic_load_explicit(&ring->done, memory_order_relaxed);
    size_t count = (size_t)rows_count * top_k;
    uint32_t words = 1;

    for (size_t i = 0; i < count; i++)
        words += heat->asked[expert[i]]++ == 0;
    atomic_store_explicit(&ring->begun, at + words, memory_order_relaxed);
    ring_put(ring, &at, TR_ROUTING_HEAD, rows_count);
    for (size_t i = 0; i < count; i++)
        if (heat->asked[expert[i]] > 0) {
            ring_put(ring, &at, expert[i], heat->asked[expert[i]]);
            heat->asked[expert[i]] = 0;
        }
    atomic_store_explicit(&ring->done, at, memory_order_release);
}

void tr_expert_heat_wait(tr_expert_heat *heat, uint32_t layer, uint64_t waited_ns)
{
    uint64_t mean = heat_read(&heat->waited_ns[layer]);
    mean = mean == 0 ? waited_ns : mean - mean / 64 + waited_ns / 64;
    atomic_store_explicit(&heat->waited_ns[layer], mean, memory_order_relaxed);
}

uint64_t tr_expert_heat_waited(const tr_expert_heat *heat, uint32_t layer)
{
    return heat_read(&heat->waited_ns[layer]);
}

uint32_t tr_expert_heat_routing(const tr_expert_heat *heat, uint32_t layer, uint32_t *words)
{
    const tr_routing_ring *ring = &heat->rings[heat->ring[layer]];
    uint64_t done = atomic_load_explicit(&ring->done, memory_order_acquire);
    uint64_t first = done > TR_ROUTING_WORDS ? done - TR_ROUTING_WORDS : 0;
    uint32_t count = (uint32_t)(done - first), kept = 0;

    for (uint32_t i = 0; i < count; i++)
        words[i] = atomic_load_explicit(&ring->words[(first + i) % TR_ROUTING_WORDS],
                                        memory_order_acquire);
    uint64_t begun = atomic_load_explicit(&ring->begun, memory_order_relaxed);
    while (kept < count &&
           (first + kept + TR_ROUTING_WORDS < begun || words[kept] >> 16 != TR_ROUTING_HEAD))
        kept++;
    memmove(words, words + kept, (count - kept) * sizeof(*words));
    return count - kept;
}

tr_heat_count tr_expert_heat_count(const tr_expert_heat *heat, uint32_t layer, uint32_t term)
{
    const tr_heat_term *t = heat_term(heat, layer, term);
    return (tr_heat_count){.rows = heat_read(&t->rows),
                           .steps = heat_read(&t->steps),
                           .busy_ns = heat_read(&t->busy_ns)};
}

tr_heat_cost tr_expert_heat_cost(const tr_expert_heat *heat, uint32_t layer, bool slices)
{
    const tr_plan_shape *shape = heat->shape;
    uint32_t first = slices ? shape->experts[layer] : 0;
    uint32_t end = slices ? layer_terms(shape, layer) : shape->experts[layer];
    uint64_t steps = 0;
    double rows = 0, busy = 0;

    for (uint32_t t = first; t < end; t++) {
        tr_heat_count count = tr_expert_heat_count(heat, layer, t);
        steps += count.steps;
        rows += (double)count.rows;
        busy += (double)count.busy_ns;
    }
    if (steps == 0)
        return (tr_heat_cost){0};
    double n = (double)steps;
    double squares = (double)heat_read(&heat->moments[2 * layer + slices].rows_squared);
    double products = (double)heat_read(&heat->moments[2 * layer + slices].rows_busy_ns);
    double spread = n * squares - rows * rows; /* n^2 times the variance of the rows */
    tr_heat_cost cost = {.fixed_ns = busy / n, .steps = steps};
    if (spread <= 1e-6 * n * squares)
        return cost;
    double slope = (n * products - rows * busy) / spread;
    double fixed = (busy - slope * rows) / n;
    if (slope <= 0)
        return cost;
    cost.row_ns = fixed >= 0 ? slope : products / squares; /* the line through zero */
    cost.fixed_ns = fixed >= 0 ? fixed : 0;
    return cost;
}
