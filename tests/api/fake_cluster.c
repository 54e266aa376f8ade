#include "tests/api/fake_cluster.h"

#include "actors/echo.h"
#include "core/trace.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tr_cluster {
    tr_placement placement;
    uint32_t node_index;
    tr_model *model;
    tr_budget budget;
    tr_pool *pool;
    tr_runtime *runtime;
    tr_control_server *control;
    _Atomic bool stop;
};

static void must(tr_status status, const tr_error *err)
{
    if (status == TR_OK)
        return;
    fprintf(stderr, "fake cluster: %s\n", err->text);
    abort();
}

#define ECHO_ID(node) tr_actor_id_make(TR_ACTOR_TEST, (node))

/* Node 0 sends messages 1 to 10, node 1 receives them: it must be opened later. */
static void trace_something(uint32_t node_index)
{
    tr_error err = {0};

    must(tr_trace_attach("fake", 1024, &err), &err);
    for (uint64_t i = 1; i <= 10; i++) {
        uint64_t begin_ns = tr_clock_ns();
        if (node_index == 0)
            tr_trace_instant(TR_TRACE_SEND, TR_MSG_PONG, ECHO_ID(node_index), i);
        tr_trace_span(TR_TRACE_RECEIVE, TR_MSG_PONG, ECHO_ID(node_index),
                      node_index == 0 ? i + 10 : i, begin_ns);
    }
    for (uint32_t i = 0; i < FAKE_EVENTS; i++)
        tr_trace_span(TR_TRACE_KERNEL, TR_KERNEL_MATMUL, 0, 0, tr_clock_ns());
}

tr_cluster *fake_cluster_open(const char *const urls[2], uint32_t node_index, const char *model)
{
    tr_error err = {0};
    char text[1024];
    tr_pool_class class = {.capacity = 256, .count = 16};
    tr_cluster *c = calloc(1, sizeof(*c));

    if (c == NULL)
        abort();
    c->node_index = node_index;
    snprintf(text, sizeof(text),
             "model: m\nnodes:\n  - {name: spark1, control: '%s'}\n"
             "  - {name: spark2, control: '%s'}\n",
             urls[0], urls[1]);
    must(tr_placement_parse(&c->placement, "fake.yaml", text, strlen(text), &err), &err);
    must(tr_model_open(&c->model, model, &err), &err);
    tr_budget_init(&c->budget, c->placement.nodes[node_index].name, 2ull << 30);
    tr_budget_add(&c->budget, "expert weights", "", 1ull << 30);
    tr_budget_add(&c->budget, "kv pages", "limits.cache_tokens", 1ull << 20);
    must(tr_pool_open(&c->pool, &class, 1, &err), &err);
    must(tr_runtime_open(&c->runtime,
                         &(tr_runtime_config){.node_name = c->placement.nodes[node_index].name,
                                              .node_index = node_index,
                                              .workers_count = 1,
                                              .pool = c->pool},
                         &err),
         &err);
    must(tr_runtime_spawn(c->runtime, ECHO_ID(node_index),
                          node_index == 0 ? "echo@spark1" : "echo@spark2", &tr_echo_ops,
                          &(tr_echo_config){.pings_max = 1}, 0, &err),
         &err);
    must(tr_control_server_open(&c->control, &err), &err);
    trace_something(node_index);
    return c;
}

void fake_cluster_start(tr_cluster *c)
{
    tr_error err = {0};

    must(tr_runtime_start(c->runtime, &err), &err);
    must(tr_control_server_listen(c->control, c->placement.nodes[c->node_index].control, &err),
         &err);
}

bool fake_cluster_was_asked_to_stop(tr_cluster *c)
{
    return atomic_load(&c->stop);
}

void fake_cluster_close(tr_cluster *c)
{
    tr_trace_detach();
    tr_control_server_close(c->control);
    tr_runtime_close(c->runtime);
    tr_pool_close(c->pool);
    tr_model_close(c->model);
    tr_placement_free(&c->placement);
    free(c);
}

/* -- what admin.c uses of actors/cluster.h -- */

void tr_cluster_health(tr_cluster *c, tr_health *out)
{
    (void)c;
    *out = (tr_health){.state = TR_HEALTH_SERVING, .text = "serving"};
}

uint32_t tr_cluster_peers(tr_cluster *c, tr_peer_stat *rows, uint32_t rows_max)
{
    for (uint32_t i = 0; i < 2 && i < rows_max; i++) {
        rows[i] = (tr_peer_stat){.self = i == c->node_index,
                                 .alive = true,
                                 .path = i == c->node_index ? "" : "posix",
                                 .clock_offset_ns = i == c->node_index ? 0 : -1500,
                                 .round_trip_ns = i == c->node_index ? 0 : 183000};
        snprintf(rows[i].name, sizeof(rows[i].name), "%s", c->placement.nodes[i].name);
    }
    return 2;
}

void tr_cluster_stats(tr_cluster *c, tr_cluster_stat *out)
{
    (void)c;
    *out = (tr_cluster_stat){.sequences_active = 2,
                             .sequences_max = 16,
                             .kv_pages_used = 3,
                             .kv_pages_max = 64,
                             .steps = 1000,
                             .generated_tokens = 777,
                             .memory_bytes = (1ull << 30) + (1ull << 20)};
}

tr_runtime *tr_cluster_runtime(tr_cluster *c)
{
    return c->runtime;
}

const tr_model *tr_cluster_model(const tr_cluster *c)
{
    return c->model;
}

const tr_placement *tr_cluster_placement(const tr_cluster *c)
{
    return &c->placement;
}

void tr_cluster_memory(tr_cluster *c, tr_budget *out)
{
    *out = c->budget;
}

const tr_budget *tr_cluster_budget(const tr_cluster *c)
{
    return &c->budget;
}

uint32_t tr_cluster_node_index(const tr_cluster *c)
{
    return c->node_index;
}

uint32_t tr_cluster_context_max(const tr_cluster *c)
{
    (void)c;
    return 4096;
}

tr_control_server *tr_cluster_control(tr_cluster *c)
{
    return c->control;
}

void tr_cluster_request_shutdown(tr_cluster *c)
{
    atomic_store(&c->stop, true);
}

void tr_cluster_request_shutdown_all(tr_cluster *c)
{
    tr_cluster_request_shutdown(c);
}

const char *tr_kernel_name(uint32_t number)
{
    return number == TR_KERNEL_MATMUL ? "MATMUL" : "OTHER";
}
