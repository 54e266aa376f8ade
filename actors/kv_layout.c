#include "actors/kv_layout.h"

#include "actors/mixer.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t size_of(size_t (*size)(const tr_layer_spec *), const tr_layer_spec *layer)
{
    return size != NULL ? size(layer) : 0;
}

size_t tr_kv_term_page_size(const tr_layer_spec *layer)
{
    return size_of(tr_mixer_of(layer)->term_page_size, layer);
}

size_t tr_kv_term_state_size(const tr_layer_spec *layer)
{
    return size_of(tr_mixer_of(layer)->term_state_size, layer);
}

size_t tr_kv_layer_page_size(const tr_layer_spec *layer)
{
    return size_of(tr_mixer_of(layer)->layer_page_size, layer);
}

size_t tr_kv_layer_state_size(const tr_layer_spec *layer)
{
    return size_of(tr_mixer_of(layer)->layer_state_size, layer);
}

bool tr_kv_part_stands(const tr_kv_part *part, const tr_plan *plan, uint32_t node)
{
    if (part->term != TR_KV_LAYER)
        return tr_plan_attention_node(plan, part->layer, part->term) == node;
    for (uint32_t t = 0; t < plan->shape.attention_terms[part->layer]; t++)
        if (tr_plan_attention_node(plan, part->layer, t) == node)
            return true;
    return false;
}

void tr_kv_each_part(const tr_model_spec *spec, void (*each)(void *ctx, const tr_kv_part *part),
                     void *ctx)
{
    size_t page = 0, state = 0;

    for (uint32_t l = 0; l < spec->layers_count; l++) {
        const tr_layer_spec *layer = &spec->layers[l];
        for (uint32_t i = 0; i <= tr_layer_attention_terms(layer); i++) {
            bool once = i == 0;
            tr_kv_part part = {
                .layer = l,
                .term = once ? TR_KV_LAYER : i - 1,
                .page_offset = page,
                .page_size = once ? tr_kv_layer_page_size(layer) : tr_kv_term_page_size(layer),
                .state_offset = state,
                .state_size = once ? tr_kv_layer_state_size(layer) : tr_kv_term_state_size(layer)};
            page += part.page_size;
            state += part.state_size;
            if (part.page_size + part.state_size > 0)
                each(ctx, &part);
        }
    }
}

typedef struct {
    uint32_t layer, term;
    tr_kv_part *out;
    bool found;
} part_search;

static void search_part(void *ctx, const tr_kv_part *part)
{
    part_search *s = ctx;
    if (part->layer == s->layer && part->term == s->term) {
        *s->out = *part;
        s->found = true;
    }
}

bool tr_kv_find_part(const tr_model_spec *spec, uint32_t layer, uint32_t term, tr_kv_part *out)
{
    part_search s = {.layer = layer, .term = term, .out = out};
    tr_kv_each_part(spec, search_part, &s);
    return s.found;
}

typedef struct {
    tr_kv_layout *layout;
    const tr_plan *plan;
    uint32_t node;
} layout_sum;

static void layout_add(void *ctx, const tr_kv_part *part)
{
    layout_sum *sum = ctx;
    bool stands = tr_kv_part_stands(part, sum->plan, sum->node);
    sum->layout->page_size += part->page_size;
    sum->layout->state_size += part->state_size;
    sum->layout->page_present += stands ? part->page_size : 0;
    sum->layout->state_present += stands ? part->state_size : 0;
}

void tr_kv_layout_make(tr_kv_layout *out, const tr_model_spec *spec, const tr_plan *plan,
                       uint32_t node)
{
    *out = (tr_kv_layout){0};
    layout_sum sum = {.layout = out, .plan = plan, .node = node};
    tr_kv_each_part(spec, layout_add, &sum);
}

/* -- memory -- */

/* Address space of count strides; *out is NULL when there is nothing to reserve. */
static tr_status reserve(uint8_t **out, size_t stride, uint32_t count, tr_error *err)
{
    *out = NULL;
    if (stride == 0 || count == 0)
        return TR_OK;
    void *base = mmap(NULL, stride * count, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return tr_fail(err, TR_E_NOMEM, "%zu bytes of address space for sequence state: %s",
                       stride * count, strerror(errno));
    *out = base;
    return TR_OK;
}

tr_status tr_kv_memory_open(tr_kv_memory *out, const tr_kv_layout *layout, uint32_t pages_count,
                            uint32_t states_count, tr_error *err)
{
    *out = (tr_kv_memory){.pages_count = pages_count,
                          .states_count = states_count,
                          .page_size = layout->page_size,
                          .state_size = layout->state_size};
    tr_status status = reserve(&out->pages, layout->page_size, pages_count, err);
    if (status == TR_OK)
        status = reserve(&out->states, layout->state_size, states_count, err);
    if (status != TR_OK)
        tr_kv_memory_close(out);
    return status;
}

void tr_kv_memory_close(tr_kv_memory *memory)
{
    if (memory->pages != NULL)
        munmap(memory->pages, memory->page_size * memory->pages_count);
    if (memory->states != NULL)
        munmap(memory->states, memory->state_size * memory->states_count);
    *memory = (tr_kv_memory){0};
}

typedef struct {
    tr_kv_memory *memory;
    const tr_plan *before, *plan;
    uint32_t node;
} memory_change;

static void zero_parts(uint8_t *base, size_t stride, uint32_t count, size_t offset, size_t size)
{
    for (uint32_t i = 0; size > 0 && i < count; i++)
        memset(base + i * stride + offset, 0, size);
}

static void populate_part(void *ctx, const tr_kv_part *part)
{
    memory_change *c = ctx;
    tr_kv_memory *m = c->memory;
    if (!tr_kv_part_stands(part, c->plan, c->node) ||
        (c->before != NULL && tr_kv_part_stands(part, c->before, c->node)))
        return;
    zero_parts(m->pages, m->page_size, m->pages_count, part->page_offset, part->page_size);
    zero_parts(m->states, m->state_size, m->states_count, part->state_offset, part->state_size);
}

void tr_kv_memory_populate(tr_kv_memory *memory, const tr_model_spec *spec, const tr_plan *before,
                           const tr_plan *plan, uint32_t node)
{
    memory_change c = {.memory = memory, .before = before, .plan = plan, .node = node};
    tr_kv_each_part(spec, populate_part, &c);
}

/* Whole machine pages inside each part; what shares one with a neighbour stays. */
static void drop_parts(uint8_t *base, size_t stride, uint32_t count, size_t offset, size_t size)
{
    uintptr_t machine_page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; size > 0 && i < count; i++) {
        uintptr_t begin = (uintptr_t)(base + i * stride + offset), end = begin + size;
        begin = (begin + machine_page - 1) / machine_page * machine_page;
        end = end / machine_page * machine_page;
        if (begin < end) /* a refusal costs memory, nothing else */
            (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
}

static void release_part(void *ctx, const tr_kv_part *part)
{
    memory_change *c = ctx;
    tr_kv_memory *m = c->memory;
    if (tr_kv_part_stands(part, c->plan, c->node) || !tr_kv_part_stands(part, c->before, c->node))
        return;
    drop_parts(m->pages, m->page_size, m->pages_count, part->page_offset, part->page_size);
    drop_parts(m->states, m->state_size, m->states_count, part->state_offset, part->state_size);
}

void tr_kv_memory_release(tr_kv_memory *memory, const tr_model_spec *spec, const tr_plan *before,
                          const tr_plan *plan, uint32_t node)
{
    memory_change c = {.memory = memory, .before = before, .plan = plan, .node = node};
    tr_kv_each_part(spec, release_part, &c);
}
