/* fake_env.h - an environment for one actor under test: sends are recorded, time is a number. */
#ifndef TR_TESTS_ACTORS_FAKE_ENV_H
#define TR_TESTS_ACTORS_FAKE_ENV_H

#include "actors/node_context.h"
#include "tests/check.h"

#include <stdlib.h>

#define FAKE_SENT_MAX 256

typedef struct {
    tr_env env;
    tr_pool *pool;
    bool pool_empty; /* take gives nothing */
    uint64_t now_ns;
    tr_msg sent[FAKE_SENT_MAX]; /* counts the payloads */
    uint32_t sent_count;
    uint32_t timers_count;
    uint32_t timer_cookie;
} fake;

static tr_status fake_send(void *ctx, tr_actor_id target, tr_msg_kind kind, uint64_t step,
                           uint32_t argument, tr_buf *payload)
{
    fake *f = ctx;
    assert_true(f->sent_count < FAKE_SENT_MAX);
    f->sent[f->sent_count++] =
        (tr_msg){.header = {.kind = (uint16_t)kind,
                            .source = f->env.self,
                            .target = target,
                            .step = step,
                            .argument = argument,
                            .payload_size = payload != NULL ? payload->size : 0},
                 .payload = payload};
    return TR_OK;
}

static tr_buf *fake_take(void *ctx, uint32_t size)
{
    fake *f = ctx;
    return f->pool_empty ? NULL : tr_pool_take(f->pool, size);
}

static tr_buf *fake_take_fitting(void *ctx, uint32_t size)
{
    fake *f = ctx;
    return f->pool_empty ? NULL : tr_pool_take_fitting(f->pool, size);
}

static uint64_t fake_now(void *ctx)
{
    return ((fake *)ctx)->now_ns;
}

static tr_status fake_timer(void *ctx, uint64_t at_ns, uint32_t cookie)
{
    fake *f = ctx;
    (void)at_ns;
    f->timers_count++;
    f->timer_cookie = cookie;
    return TR_OK;
}

static inline void fake_open(fake *f, tr_actor_id self)
{
    tr_pool_class classes[] = {{.capacity = 1024, .count = 128}, {.capacity = 65536, .count = 32}};
    *f = (fake){.env = {.ctx = f,
                        .self = self,
                        .send = fake_send,
                        .take = fake_take,
                        .take_fitting = fake_take_fitting,
                        .now_ns = fake_now,
                        .timer = fake_timer},
                .now_ns = 1};
    CHECK_STATUS(tr_pool_open(&f->pool, classes, 2, NULL), TR_OK);
}

/* Forgets what was sent. */
static inline void fake_clear(fake *f)
{
    for (uint32_t i = 0; i < f->sent_count; i++)
        tr_buf_unref(f->sent[i].payload);
    f->sent_count = 0;
}

/* Checks that every buffer came back. */
static inline void fake_close(fake *f)
{
    fake_clear(f);
    assert_int_equal(tr_pool_free_count(f->pool), 160);
    tr_pool_close(f->pool);
}

static inline uint32_t fake_count(const fake *f, tr_msg_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->sent_count; i++)
        count += f->sent[i].header.kind == kind;
    return count;
}

/* The first message of a kind, or NULL. */
static inline const tr_msg *fake_find(const fake *f, tr_msg_kind kind)
{
    for (uint32_t i = 0; i < f->sent_count; i++)
        if (f->sent[i].header.kind == kind)
            return &f->sent[i];
    return NULL;
}

/* Hands a message to an actor. size 0: no payload. */
static inline void fake_give(fake *f, const tr_actor_ops *ops, void *actor, tr_actor_id source,
                             tr_msg_kind kind, uint64_t step, uint32_t argument, const void *data,
                             size_t size)
{
    tr_msg msg = {.header = {.kind = (uint16_t)kind,
                             .source = source,
                             .step = step,
                             .argument = argument,
                             .payload_size = (uint32_t)size}};
    if (size > 0) {
        msg.payload = tr_pool_take(f->pool, (uint32_t)size);
        memcpy(msg.payload->data, data, size);
    }
    CHECK_STATUS(ops->receive(actor, &msg), TR_OK);
    tr_buf_unref(msg.payload);
}

/* A cluster's shape for actors without weights: `nodes` nodes, one GQA layer with a term on each.
 */
typedef struct {
    tr_layer_spec layers[1];
    tr_model_spec spec;
    uint8_t attention[TR_TERMS_MAX];
    uint16_t channel[TR_TERMS_MAX];
    tr_plan plan;
    tr_placement placement;
    tr_node_counters counters;
    tr_node_context node;
    tr_kv_memory kv_memory;
    tr_arena arena;
    size_t arena_size;
    tr_actor_config config;
} fake_cluster;

static inline void fake_cluster_make(fake_cluster *c, uint32_t nodes)
{
    memset(c, 0, sizeof(*c));
    c->layers[0] = (tr_layer_spec){.mixer = TR_MIXER_GQA,
                                   .gqa = {.heads = nodes, .kv_heads = nodes, .head_dim = 8}};
    c->spec = (tr_model_spec){
        .vocab_size = 100, .hidden_size = 16, .layers_count = 1, .layers = c->layers};
    c->plan = (tr_plan){.epoch = 1,
                        .nodes_count = nodes,
                        .spans_count = 1,
                        .attention = c->attention,
                        .channel = c->channel};
    c->plan.shape.layers_count = 1;
    c->plan.shape.attention_terms[0] = (uint16_t)nodes;
    c->plan.spans[0] = (tr_plan_span){.nodes = (1u << nodes) - 1};
    for (uint32_t n = 0; n < nodes; n++) {
        c->attention[n] = (uint8_t)n;
        snprintf(c->placement.nodes[n].name, TR_NAME_SIZE, "spark%u", n + 1);
    }
    c->placement.nodes_count = nodes;
    c->node = (tr_node_context){.spec = &c->spec,
                                .plan = &c->plan,
                                .steps_in_flight = 2,
                                .queue_max = 4,
                                .pages_max = 8,
                                .step_timeout_ns = 1000,
                                .placement = &c->placement,
                                .counters = &c->counters};
    c->node.limits = (tr_step_limits){.rows_max = 128,
                                      .outputs_max = 64,
                                      .sequences_max = 3,
                                      .context_max = 400,
                                      .layers_count = 1,
                                      .hidden_size = 16,
                                      .bank_size = 16,
                                      .vocab_size = 100};
    tr_kv_layout_make(&c->node.kv, &c->spec, &c->plan, 0);
    CHECK_STATUS(tr_kv_memory_open(&c->kv_memory, &c->node.kv, c->node.pages_max,
                                   c->node.limits.sequences_max, NULL),
                 TR_OK);
    c->node.kv_memory = &c->kv_memory;
}

/* Counts, allocates and starts an actor as a cluster does; *actor is freed by fake_actor_close. */
static inline void *fake_actor_open(fake *f, fake_cluster *c, const tr_actor_ops *ops,
                                    void (*count)(const tr_node_context *, tr_arena *, tr_budget *))
{
    tr_budget budget;
    tr_error err = {0};
    tr_budget_init(&budget, "test", 0);
    c->arena = (tr_arena){0};
    count(&c->node, &c->arena, &budget);
    c->arena_size = c->arena.layout.used;
    assert_true(tr_budget_total(&budget) >= c->arena_size);
    CHECK_STATUS(tr_arena_allocate(&c->arena, c->arena_size, &err), TR_OK);
    c->config = (tr_actor_config){.node = &c->node, .arena = &c->arena};
    void *actor = aligned_alloc(64, (ops->state_size + 63) / 64 * 64);
    memset(actor, 0, ops->state_size);
    CHECK_STATUS(ops->init(actor, &f->env, &c->config, &err), TR_OK);
    assert_int_equal(c->arena.layout.used, c->arena_size); /* taken == counted */
    return actor;
}

static inline void fake_actor_close(fake_cluster *c, const tr_actor_ops *ops, void *actor)
{
    ops->teardown(actor);
    tr_arena_free(&c->arena, c->arena_size);
    tr_kv_memory_close(&c->kv_memory);
    free(actor);
}

#endif
