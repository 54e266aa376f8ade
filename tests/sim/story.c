#include "tests/sim/story.h"

#include "tests/sim/requests.h"
#include "tests/sim/tiny_model.h"
#include "tests/sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define SPAN_NS      (10 * WORLD_MS)
#define SPAN_LONG_NS (80 * WORLD_MS) /* where the placement changes, which takes its time */
#define CHANGE_NS    (5 * WORLD_MS)  /* most changes end within it */
#define SPARE_MAX    (1u << 20)

/* -- the placement file -- */

typedef struct {
    char *text;
    size_t used;
} yaml_text;

static void __attribute__((format(printf, 2, 3))) add(yaml_text *y, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    y->used += (size_t)vsnprintf(y->text + y->used, STORY_YAML_SIZE - y->used, fmt, args);
    va_end(args);
    assert(y->used < STORY_YAML_SIZE);
}

static void add_routers(yaml_text *y, uint32_t nodes, sim_random *r)
{
    uint32_t cut = 1 + (uint32_t)sim_below(r, TINY_LAYERS - 1);
    if (sim_one_in(r, 2))
        return; /* mirrored on all nodes */
    add(y, "routers:\n");
    for (uint32_t span = 0; span < 2; span++) {
        uint32_t always = (uint32_t)sim_below(r, nodes);
        for (uint32_t n = 0; n < nodes; n++)
            if (n == always || sim_one_in(r, 2))
                add(y, "  - {node: n%u, layers: %u-%u}\n", n, span ? cut : 0,
                    span ? TINY_LAYERS - 1 : cut - 1);
    }
}

static void add_terms(yaml_text *y, uint32_t nodes, sim_random *r)
{
    add(y, "attention:\n");
    for (uint32_t l = 0; l < TINY_LAYERS; l++)
        for (uint32_t t = 0; t < tiny_attention_terms[l]; t++)
            add(y, "  - {node: n%u, layers: %u, terms: %u}\n", (uint32_t)sim_below(r, nodes), l, t);
    add(y, "experts:\n");
    for (uint32_t l = 1; l < TINY_LAYERS; l++)
        for (uint32_t e = 0; e < TINY_EXPERTS; e++)
            add(y, "  - {node: n%u, layers: %u, experts: %u}\n", (uint32_t)sim_below(r, nodes), l,
                e);
    add(y, "slices:\n");
    for (uint32_t l = 0; l < TINY_LAYERS; l++)
        for (uint32_t s = 0; s < tiny_slices[l]; s++)
            add(y, "  - {node: n%u, layers: %u, slices: %u}\n", (uint32_t)sim_below(r, nodes), l,
                s);
    add(y, "vocabulary:\n");
    for (uint32_t v = 0; v < TINY_VOCABULARY; v += TINY_VOCABULARY / 3)
        add(y, "  - {node: n%u, rows: %u-%u}\n", (uint32_t)sim_below(r, nodes), v,
            v + TINY_VOCABULARY / 3 - 1);
}

static void story_place(story *s, const char *model, sim_random *r)
{
    yaml_text y = {.text = s->yaml};
    s->nodes_count = sim_one_in(r, 8) ? 1 : 2 + (uint32_t)sim_below(r, sim_one_in(r, 2) ? 2 : 7);
    s->sequences = 1 + (uint32_t)sim_below(r, 4);
    s->prefixes = sim_one_in(r, 3) ? 1 + (uint32_t)sim_below(r, 4) : 0;
    s->cache_tokens = TINY_CONTEXT + 64 * (uint32_t)sim_below(r, s->sequences * 2);
    add(&y, "model: %s\nnodes:\n", model);
    for (uint32_t n = 0; n < s->nodes_count; n++)
        add(&y, "  - {name: n%u, memory: 1 GiB, threads: 1, workers: %u}\n", n,
            1 + (uint32_t)sim_below(r, 2));
    add(&y, "batcher: n%u\nsampler: n%u\n", (uint32_t)sim_below(r, s->nodes_count),
        (uint32_t)sim_below(r, s->nodes_count));
    add(&y,
        "limits: {context: %d, sequences: %u, cache_tokens: %u, prefix_cache: %u,"
        " steps_in_flight: %u, step_rows: %u, exit_on_peer_loss: false}\n",
        TINY_CONTEXT, s->sequences, s->cache_tokens, s->prefixes, 1 + (uint32_t)sim_below(r, 4),
        64 * (1 + (uint32_t)sim_below(r, 3)));
    add_routers(&y, s->nodes_count, r);
    if (!sim_one_in(r, 4)) /* else: the default, sliced */
        add_terms(&y, s->nodes_count, r);
}

/* -- parts that move -- */

enum {
    PART_EXPERT,
    PART_SLICE,
    PART_ATTENTION,
    PART_VOCABULARY,
    PART_SAMPLER,
    PART_LAYERS,
    PART_ROUTER,
    PARTS_COUNT
};

/* "2", "1-2" or "all" of count, from first on. */
static void print_range(uint32_t first, uint32_t count, sim_random *r, char text[24])
{
    uint32_t from = first + (uint32_t)sim_below(r, count);
    uint32_t to = from + (uint32_t)sim_below(r, first + count - from);
    if (sim_one_in(r, 4))
        snprintf(text, 24, "all");
    else if (sim_one_in(r, 2))
        snprintf(text, 24, "%u", from);
    else
        snprintf(text, 24, "%u-%u", from, to);
}

void story_part_print(const story_event *e, char *text, size_t size)
{
    sim_random r = {.state = e->value};
    uint32_t layer = (uint32_t)sim_below(&r, TINY_LAYERS);
    char range[24];
    switch (e->b) {
    case PART_EXPERT:
        print_range(0, TINY_EXPERTS, &r, range);
        snprintf(text, size, "expert/%u.%s", layer == 0 ? 1 : layer, range);
        return;
    case PART_SLICE:
        print_range(0, tiny_slices[layer], &r, range);
        snprintf(text, size, "slice/%u.%s", layer, range);
        return;
    case PART_ATTENTION:
        print_range(0, tiny_attention_terms[layer], &r, range);
        snprintf(text, size, "attention/%u.%s", layer, range);
        return;
    case PART_VOCABULARY:
        print_range(0, TINY_VOCABULARY, &r, range);
        snprintf(text, size, "vocabulary/%s", range);
        return;
    case PART_LAYERS:
    case PART_ROUTER:
        print_range(0, TINY_LAYERS, &r, range);
        snprintf(text, size, "%s/%s", e->b == PART_LAYERS ? "layers" : "router", range);
        return;
    default:
        snprintf(text, size, "sampler");
    }
}

/* -- the events -- */

static void tell(story *s, uint64_t at_ns, story_kind kind, uint32_t a, uint32_t b, uint64_t value)
{
    if (s->events_count < STORY_EVENTS_MAX)
        s->events[s->events_count++] =
            (story_event){.at_ns = at_ns, .kind = kind, .a = a, .b = b, .value = value};
}

static int compare_events(const void *a, const void *b)
{
    const story_event *x = a, *y = b;
    return x->at_ns < y->at_ns ? -1 : x->at_ns > y->at_ns;
}

/* Submissions in order of time, so that a cancel can name one by number. */
static void tell_requests(story *s, uint32_t count, bool cancels, sim_random *r)
{
    uint64_t at_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        at_ns += sim_one_in(r, 3) ? 0 : sim_below(r, 2 * s->span_ns / count);
        tell(s, at_ns, STORY_SUBMIT, (uint32_t)sim_below(r, SIM_STOCK),
             (uint32_t)sim_below(r, s->nodes_count), 64 * sim_below(r, 3));
        if (cancels && sim_one_in(r, 4))
            tell(s, at_ns + sim_below(r, s->span_ns / 2), STORY_CANCEL, i, 0, 0);
    }
}

/* Trouble that passes: nothing may be lost by it. */
static void tell_hiccups(story *s, uint32_t count, sim_random *r)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at_ns = sim_below(r, s->span_ns);
        uint32_t a = (uint32_t)sim_below(r, s->nodes_count);
        uint32_t b = (a + 1 + (uint32_t)sim_below(r, s->nodes_count - 1)) % s->nodes_count;
        switch (sim_below(r, 3)) {
        case 0:
            tell(s, at_ns, STORY_SLOW, a, 0, 2 + sim_below(r, 50));
            tell(s, at_ns + sim_below(r, s->span_ns), STORY_SLOW, a, 0, 1);
            break;
        case 1:
            tell(s, at_ns, STORY_STOP, a, 0, sim_below(r, 500 * WORLD_MS));
            break;
        default:
            if (a != b)
                tell(s, at_ns, STORY_CUT, a, b, sim_below(r, 500 * WORLD_MS));
        }
    }
}

/* Changes of placement, some of them too soon after another. Returns when one of them begins. */
static uint64_t tell_changes(story *s, uint32_t count, sim_random *r)
{
    uint64_t at_ns = 0, chosen_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t node = (uint32_t)sim_below(r, s->nodes_count);
        at_ns += sim_one_in(r, 6) ? 0 : sim_below(r, 2 * s->span_ns / count);
        switch (sim_below(r, 10)) {
        case 0:
            tell(s, at_ns, STORY_DRAIN, node, 0, 0);
            break;
        case 1:
            tell(s, at_ns, STORY_UNDRAIN, node, 0, 0);
            break;
        case 2:
        case 3:
            tell(s, at_ns, STORY_REPLICATE, node, PART_EXPERT, sim_next(r));
            break;
        default:
            tell(s, at_ns, STORY_MOVE, node, (uint32_t)sim_below(r, PARTS_COUNT), sim_next(r));
        }
        if (sim_one_in(r, i + 1))
            chosen_ns = at_ns;
    }
    return chosen_ns;
}

const char *const story_phases[STORY_PHASES] = {"prepare", "pause", "fetch", "switch", "retire"};

/* A node that is lost comes back, perhaps before anybody has noticed; some ask and move then. */
static void tell_return(story *s, uint32_t node, uint64_t lost_ns, sim_random *r)
{
    uint64_t at_ns =
        lost_ns + (sim_one_in(r, 3) ? sim_below(r, 50 * WORLD_MS) : sim_below(r, 3 * WORLD_SECOND));
    tell(s, at_ns, STORY_START, node, 0, 0);
    for (uint32_t i = (uint32_t)sim_below(r, 6); i > 0; i--)
        tell(s, at_ns + sim_below(r, sim_one_in(r, 2) ? WORLD_SECOND : 50 * WORLD_MS), STORY_SUBMIT,
             (uint32_t)sim_below(r, SIM_STOCK),
             sim_one_in(r, 2) ? node : (uint32_t)sim_below(r, s->nodes_count), 0);
    if (sim_one_in(r, 2))
        tell(s, at_ns + sim_below(r, WORLD_SECOND), STORY_MOVE,
             (uint32_t)sim_below(r, s->nodes_count), (uint32_t)sim_below(r, PARTS_COUNT),
             sim_next(r));
}

/* Trouble that costs a node. */
static void tell_loss(story *s, bool changes, uint64_t at_ns, sim_random *r)
{
    uint64_t long_ns = 2 * WORLD_SECOND + sim_below(r, WORLD_SECOND);
    bool back = s->restarts && !sim_one_in(r, 3);
    uint32_t a = (uint32_t)sim_below(r, s->nodes_count);
    uint32_t b = (a + 1 + (uint32_t)sim_below(r, s->nodes_count - 1)) % s->nodes_count;
    if (changes && sim_one_in(r, 2)) {
        tell(s, 0, STORY_AMBUSH, a, (uint32_t)sim_below(r, STORY_PHASES), 0);
        if (back)
            tell_return(s, a, s->span_ns, r);
        return;
    }
    if (back)
        tell_return(s, a, at_ns, r);
    switch (sim_below(r, 5)) {
    case 0:
        tell(s, at_ns, STORY_LEAVE, a, 0, 0);
        break;
    case 1:
        tell(s, at_ns, STORY_STOP, a, 0, long_ns);
        break;
    case 2:
        tell(s, at_ns, STORY_CUT, a, b, long_ns);
        break;
    default:
        tell(s, at_ns, STORY_CRASH, a, 0, 0);
    }
}

void story_write(story *s, const char *model, uint64_t seed)
{
    sim_random r = sim_seeded(seed, 1);

    *s = (story){
        .net = {.seed = sim_next(&r),
                .delay_ns = 1000 + sim_below(&r, 20000),
                .delay_max_ns = sim_below(&r, sim_one_in(&r, 4) ? 20 * WORLD_MS : 2 * WORLD_MS),
                .room = sim_one_in(&r, 4) ? 1 + (uint32_t)sim_below(&r, 8) : 128,
                .notice_ns = sim_one_in(&r, 3) ? UINT64_MAX : sim_below(&r, WORLD_SECOND)}};
    bool changes = !sim_one_in(&r, 3);
    s->restarts = sim_one_in(&r, 2);
    s->span_ns = changes ? SPAN_LONG_NS : SPAN_NS;
    story_place(s, model, &r);
    tell_requests(s, 1 + (uint32_t)sim_below(&r, changes ? 20 : 10), true, &r);
    changes &= s->nodes_count > 1;
    uint64_t change_ns = changes ? tell_changes(s, 1 + (uint32_t)sim_below(&r, 8), &r) : 0;
    if (s->nodes_count > 1 && sim_one_in(&r, 2))
        tell_hiccups(s, 1 + (uint32_t)sim_below(&r, 4), &r);
    /* Many losses come in the middle of a change; a second one may meet the recovery. */
    uint32_t losses = s->nodes_count == 1 || !sim_one_in(&r, changes ? 2 : 3) ? 0 : 1;
    losses += losses > 0 && sim_one_in(&r, 6);
    for (; losses > 0; losses--)
        tell_loss(s, changes,
                  changes && sim_one_in(&r, 2) ? change_ns + sim_below(&r, CHANGE_NS)
                                               : sim_below(&r, s->span_ns),
                  &r);
    if (sim_one_in(&r, 4))
        s->refuse_one_in = 8u << sim_below(&r, 9); /* from nearly all to nearly none */
    if (changes && sim_one_in(&r, 4))
        s->breaks_one_in = 4u << sim_below(&r, 6);
    s->load_max_ns = sim_one_in(&r, 3) ? 30 * WORLD_MS : WORLD_MS / 2;
    s->tight = sim_one_in(&r, 32);
    s->scarce = changes && sim_one_in(&r, 8);
    s->spare_bytes = s->scarce ? sim_below(&r, SPARE_MAX) : 0;
    qsort(s->events, s->events_count, sizeof(s->events[0]), compare_events);
}

void story_write_quiet(story *s, sim_random *r)
{
    s->events_count = 0;
    tell_requests(s, 1 + (uint32_t)sim_below(r, 4), false, r);
}

void story_event_print(const story_event *e, char *text, size_t size)
{
    char part[64];
    double at_ms = (double)e->at_ns / 1e6, value_ms = (double)e->value / 1e6;
    switch (e->kind) {
    case STORY_SUBMIT:
        snprintf(text, size, "%9.3f ms: request %u of the stock from n%u, prefill_rows %u", at_ms,
                 e->a, e->b, (uint32_t)e->value);
        return;
    case STORY_CANCEL:
        snprintf(text, size, "%9.3f ms: submission %u is cancelled", at_ms, e->a);
        return;
    case STORY_SLOW:
        snprintf(text, size, "%9.3f ms: n%u takes %u times as long", at_ms, e->a,
                 (uint32_t)e->value);
        return;
    case STORY_STOP:
        snprintf(text, size, "%9.3f ms: n%u stops for %.3f ms", at_ms, e->a, value_ms);
        return;
    case STORY_CUT:
        snprintf(text, size, "%9.3f ms: n%u and n%u are cut off for %.3f ms", at_ms, e->a, e->b,
                 value_ms);
        return;
    case STORY_CRASH:
        snprintf(text, size, "%9.3f ms: n%u crashes", at_ms, e->a);
        return;
    case STORY_START:
        snprintf(text, size, "%9.3f ms: n%u is started again", at_ms, e->a);
        return;
    case STORY_AMBUSH:
        snprintf(text, size, "%9.3f ms: n%u will crash when a change is in phase %s", at_ms, e->a,
                 story_phases[e->b]);
        return;
    case STORY_LEAVE:
        snprintf(text, size, "%9.3f ms: n%u is stopped", at_ms, e->a);
        return;
    case STORY_MOVE:
        story_part_print(e, part, sizeof(part));
        snprintf(text, size, "%9.3f ms: move %s to n%u", at_ms, part, e->a);
        return;
    case STORY_REPLICATE:
        story_part_print(e, part, sizeof(part));
        snprintf(text, size, "%9.3f ms: replicate %s on n%u", at_ms, part, e->a);
        return;
    case STORY_DRAIN:
    case STORY_UNDRAIN:
        snprintf(text, size, "%9.3f ms: %s n%u", at_ms,
                 e->kind == STORY_DRAIN ? "drain" : "undrain", e->a);
        return;
    }
}
