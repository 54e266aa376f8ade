/* real_cluster.h - the bundled model planned over two nodes, for one actor under test that has
 * weights. The other actors are the test. */
#ifndef TR_TESTS_ACTORS_REAL_CLUSTER_H
#define TR_TESTS_ACTORS_REAL_CLUSTER_H

#include "tests/actors/fake_env.h"

typedef struct {
    tr_placement placement;
    tr_model *model;
    tr_plan plan;
    tr_node_counters counters;
    tr_node_context node;
    tr_kv_memory kv_memory;
    tr_arena arena;
    size_t arena_size;
    tr_actor_config config;
    tr_team *team;
} real_cluster;

/* Node 0 of two. rules: more lines of the placement file, or "". */
static inline void real_cluster_make(real_cluster *c, const char *model_path, const char *rules)
{
    char yaml[2048];
    tr_plan_shape shape;
    tr_error err = {0};

    memset(c, 0, sizeof(*c));
    snprintf(yaml, sizeof(yaml), "model: %s\ntransport: loop\nnodes: [{name: a}, {name: b}]\n%s",
             model_path, rules);
    CHECK_STATUS(tr_placement_parse(&c->placement, "test.yaml", yaml, strlen(yaml), &err), TR_OK);
    CHECK_STATUS(tr_model_open(&c->model, model_path, &err), TR_OK);
    tr_model_plan_shape(c->model, &shape);
    CHECK_STATUS(tr_plan_make(&c->plan, &c->placement, &shape, &err), TR_OK);
    CHECK_STATUS(tr_team_open(&c->team, 1, &err), TR_OK);
    const tr_model_spec *spec = tr_model_get_spec(c->model);
    c->node = (tr_node_context){.spec = spec,
                                .model = c->model,
                                .plan = &c->plan,
                                .kernels = tr_kernels_best(),
                                .steps_in_flight = 2,
                                .buffer_size_max = 65536,
                                .placement = &c->placement,
                                .counters = &c->counters};
    c->node.limits = (tr_step_limits){.rows_max = 64,
                                      .outputs_max = 4,
                                      .sequences_max = 3,
                                      .context_max = 400,
                                      .layers_count = spec->layers_count,
                                      .hidden_size = spec->hidden_size,
                                      .bank_size = tr_model_streams(spec) * spec->hidden_size,
                                      .vocab_size = spec->vocab_size};
    tr_kv_layout_make(&c->node.kv, spec, &c->plan, 0);
    CHECK_STATUS(tr_kv_memory_open(&c->kv_memory, &c->node.kv, c->node.pages_max,
                                   c->node.limits.sequences_max, NULL),
                 TR_OK);
    c->node.kv_memory = &c->kv_memory;
}

static inline void *real_actor_open(fake *f, real_cluster *c, const tr_actor_ops *ops,
                                    void (*count)(const tr_node_context *, tr_arena *, tr_budget *))
{
    tr_budget budget;
    tr_error err = {0};
    tr_budget_init(&budget, "test", 0);
    c->arena = (tr_arena){.kernels = c->node.kernels, .model = c->model};
    count(&c->node, &c->arena, &budget);
    c->arena_size = c->arena.layout.used;
    CHECK_STATUS(tr_arena_allocate(&c->arena, c->arena_size, &err), TR_OK);
    c->config = (tr_actor_config){.node = &c->node, .arena = &c->arena, .team = c->team};
    void *actor = aligned_alloc(64, (ops->state_size + 63) / 64 * 64);
    memset(actor, 0, ops->state_size);
    CHECK_STATUS(ops->init(actor, &f->env, &c->config, &err), TR_OK);
    assert_int_equal(c->arena.layout.used, c->arena_size); /* taken == counted */
    return actor;
}

static inline void real_actor_close(real_cluster *c, const tr_actor_ops *ops, void *actor)
{
    ops->teardown(actor);
    tr_arena_free(&c->arena, c->arena_size);
    tr_kv_memory_close(&c->kv_memory);
    free(actor);
    tr_team_close(c->team);
    tr_plan_free(&c->plan);
    tr_model_close(c->model);
    tr_placement_free(&c->placement);
}

#endif
