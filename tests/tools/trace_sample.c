#include "tests/tools/trace_sample.h"

#include "core/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHER   tr_actor_id_make(TR_ACTOR_BATCHER, 0)
#define ROUTER    tr_actor_id_make(TR_ACTOR_ROUTER, 0)
#define ATTENTION tr_actor_id_make(TR_ACTOR_ATTENTION_SHARD, 1)
#define US        1000ull
#define START_NS  7000000000ull
#define RING_SIZE 256

static void add(tr_trace_ring *ring, tr_trace_event event)
{
    if (ring->events_count == RING_SIZE)
        abort();
    ring->events[ring->events_count++] = event;
}

static void add_name(tr_trace_name *names, uint32_t *count, uint64_t id, const char *name)
{
    names[*count].id = id;
    snprintf(names[*count].name, sizeof(names[*count].name), "%s", name);
    (*count)++;
}

static void make_node(tr_trace_node *node, const char *name, int64_t offset_ns)
{
    *node = (tr_trace_node){.clock_offset_ns = offset_ns, .rings_count = 1};
    snprintf(node->name, sizeof(node->name), "%s", name);
    node->rings = calloc(1, sizeof(*node->rings));
    node->actors = calloc(4, sizeof(*node->actors));
    node->kernels = calloc(4, sizeof(*node->kernels));
    if (node->rings == NULL || node->actors == NULL || node->kernels == NULL)
        abort();
    snprintf(node->rings[0].thread, sizeof(node->rings[0].thread), "worker 0");
    node->rings[0].events = calloc(RING_SIZE, sizeof(*node->rings[0].events));
    if (node->rings[0].events == NULL)
        abort();
    add_name(node->kernels, &node->kernels_count, 2, "MATMUL");
}

/* One step: batcher -> router -> attention shard on the other node -> router. */
static void add_step(tr_trace_ring *a, tr_trace_ring *b, uint64_t step)
{
    uint64_t t = START_NS + step * 400 * US;
    uint64_t jitter = step % 4 * US; /* a message is not always the fastest */
    uint64_t id = 0x0100000000000000ull + 10 * step;
    uint64_t there = t + 30 * US + SAMPLE_HOP_NS + jitter;
    uint64_t back = there + 60 * US + SAMPLE_HOP_NS + (3 - step % 4) * US;

    add(a, (tr_trace_event){t, 10 * US, TR_TRACE_RECEIVE, TR_MSG_TIMER, BATCHER, id});
    add(a, (tr_trace_event){t + 5 * US, 0, TR_TRACE_SEND, TR_MSG_STEP, BATCHER, id + 1});
    add(a, (tr_trace_event){t + 12 * US, 20 * US, TR_TRACE_RECEIVE, TR_MSG_STEP, ROUTER, id + 1});
    add(a, (tr_trace_event){t + 14 * US, 10 * US, TR_TRACE_KERNEL, 2, 0, 0});
    add(a, (tr_trace_event){t + 30 * US, 0, TR_TRACE_SEND, TR_MSG_ATTENTION_ROWS, ROUTER, id + 2});
    add(b, (tr_trace_event){there + SAMPLE_CLOCK_NS, 61 * US, TR_TRACE_RECEIVE,
                            TR_MSG_ATTENTION_ROWS, ATTENTION, id + 2});
    add(b, (tr_trace_event){there + SAMPLE_CLOCK_NS + 2 * US, 50 * US, TR_TRACE_KERNEL, 2, 0, 0});
    add(b, (tr_trace_event){there + SAMPLE_CLOCK_NS + 60 * US, 0, TR_TRACE_SEND, TR_MSG_PARTIAL,
                            ATTENTION, id + 3});
    add(a, (tr_trace_event){back, 5 * US, TR_TRACE_RECEIVE, TR_MSG_PARTIAL, ROUTER, id + 3});
    /* Two steps are in flight: their spans overlap. */
    add(a, (tr_trace_event){t, 600 * US, TR_TRACE_STEP, 0, BATCHER, step + 1});
}

void sample_make(tr_trace_node *nodes)
{
    make_node(&nodes[0], "spark1", 0);
    make_node(&nodes[1], "spark2", SAMPLE_CLOCK_NS + SAMPLE_CLOCK_ERR_NS);
    add_name(nodes[0].actors, &nodes[0].actors_count, BATCHER, "batcher");
    add_name(nodes[0].actors, &nodes[0].actors_count, ROUTER, "router/0-7@spark1");
    add_name(nodes[1].actors, &nodes[1].actors_count, ATTENTION, "attention/0-7.h0-1@spark2");

    tr_trace_ring *a = &nodes[0].rings[0], *b = &nodes[1].rings[0];
    for (uint64_t step = 0; step < SAMPLE_STEPS; step++)
        add_step(a, b, step);
    /* A request inside another's time, and one across its end. */
    add(a, (tr_trace_event){START_NS, 5000 * US, TR_TRACE_REQUEST, 0, BATCHER, 1});
    add(a, (tr_trace_event){START_NS + 1000 * US, 1000 * US, TR_TRACE_REQUEST, 0, BATCHER, 2});
    add(a, (tr_trace_event){START_NS + 4000 * US, 3000 * US, TR_TRACE_REQUEST, 0, BATCHER, 3});
    add(a, (tr_trace_event){START_NS + 350 * US, 40 * US, TR_TRACE_WAIT, 0, 0, 0});
    /* Its receive is not in the ring, a send without one, a kind of a later version, a mad clock.
     */
    add(a, (tr_trace_event){START_NS + 90 * US, 0, TR_TRACE_SEND, TR_MSG_EVENT, BATCHER, 77});
    add(b, (tr_trace_event){START_NS + SAMPLE_CLOCK_NS, 9, TR_TRACE_RECEIVE, TR_MSG_TIMER,
                            ATTENTION, 78});
    add(b, (tr_trace_event){START_NS, 9, 999, 9, 9, 9});
    add(b, (tr_trace_event){UINT64_MAX - 5, 9, TR_TRACE_WAIT, 0, 0, 0});
}
