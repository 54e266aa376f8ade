/* cluster_memory.c - everything that a node needs is counted, checked against its budget, then
 * taken. */
#include "actors/cluster_hand.h"
#include "actors/cluster_node.h"
#include "actors/cluster_stream.h"
#include "core/free_memory.h"
#include "core/model/model.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT_DEFAULT 8192
#define QUEUE_MAX       64   /* waiting requests; each holds one prompt buffer */
#define OUTPUTS_MIN     64   /* rows of logits in a step, at least */
#define SMALL_BUFFER    1024 /* events, reservations, leases of short sequences */
#define SMALL_BUFFERS   2048 /* what clients may leave unread, two events a token */
#define STEP_TIMEOUT_NS                                                                            \
    120000000000u /* a step of a large prompt on a slow machine ends well before */

static_assert(sizeof(tr_event) <= SMALL_BUFFER, "any buffer carries an event");

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

bool cluster_recovers(const tr_cluster *c)
{
    return c->placement->nodes_count > 1 && c->placement->batcher_node == c->node_index &&
           !c->placement->limits.exit_on_peer_loss;
}

static void cluster_set_limits(tr_cluster *c)
{
    const tr_model_spec *spec = tr_model_get_spec(c->model);
    tr_node_context *n = &c->node;
    const tr_placement *p = c->placement;
    uint32_t context =
        p->limits.context > 0 ? p->limits.context : smaller(spec->context_max, CONTEXT_DEFAULT);
    uint64_t cache = p->limits.cache_tokens;
    if (cache == 0) {
        cache = (uint64_t)p->limits.sequences * context / 4;
        cache = cache < context ? context : cache;
    }

    *n = (tr_node_context){.spec = spec,
                           .model = c->model,
                           .kernels = c->kernels,
                           .node_index = c->node_index,
                           .steps_in_flight = p->limits.steps_in_flight,
                           .prefixes_max = p->limits.prefix_cache,
                           .queue_max = QUEUE_MAX,
                           .step_timeout_ns = STEP_TIMEOUT_NS,
                           .recovers = cluster_recovers(c),
                           .placement = p,
                           .counters = &c->counters,
                           .heat = &c->heat};
    n->limits = (tr_step_limits){.rows_max = p->limits.step_rows,
                                 .outputs_max = larger(OUTPUTS_MIN, p->limits.sequences),
                                 .sequences_max = p->limits.sequences + p->limits.prefix_cache,
                                 .context_max = context,
                                 .layers_count = spec->layers_count,
                                 .hidden_size = spec->hidden_size,
                                 .bank_size = tr_model_streams(spec) * spec->hidden_size,
                                 .vocab_size = spec->vocab_size};
    /* The batcher counts pages for all nodes, so every node has the same number, whether or not it
     * holds layers that use them; a model without any needs none. */
    tr_kv_layout_make(&n->kv, spec, &c->view->plan, c->node_index);
    n->pages_max =
        n->kv.page_size > 0 ? (uint32_t)((cache + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS) : 0;
    n->kv_memory = &c->kv_memory;
}

static tr_status cluster_check_limits(const tr_cluster *c, tr_error *err)
{
    const tr_step_limits *l = &c->node.limits;
    const char *source = c->placement->source;
    if (l->rows_max == 0 || l->rows_max > TR_STEP_ROWS_LIMIT || l->rows_max % TR_CHUNK_ROWS != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: limits.step_rows: %u, expected a multiple of %d up to %d", source,
                       l->rows_max, TR_CHUNK_ROWS, TR_STEP_ROWS_LIMIT);
    if (l->sequences_max == 0 || l->sequences_max > TR_SEQUENCES_MAX)
        return tr_fail(err, TR_E_INVALID,
                       "%s: limits.sequences + prefix_cache: %u, expected 1 to %d", source,
                       l->sequences_max, TR_SEQUENCES_MAX);
    if (l->context_max == 0 || l->context_max > tr_model_get_spec(c->model)->context_max)
        return tr_fail(err, TR_E_INVALID, "%s: limits.context: %u, the model was made for 1 to %u",
                       source, l->context_max, tr_model_get_spec(c->model)->context_max);
    return TR_OK;
}

static int compare_class(const void *a, const void *b)
{
    const tr_pool_class *x = a, *y = b;
    return x->capacity < y->capacity ? -1 : x->capacity > y->capacity;
}

/* Message buffers: counts are sums over who can hold one at a time. */
static void cluster_pool_classes(const tr_cluster *c, tr_pool_class classes[4])
{
    const tr_step_limits *l = &c->node.limits;
    uint32_t nodes = c->placement->nodes_count;
    uint32_t describe = 4096 +
                        l->rows_max * (uint32_t)(sizeof(tr_segment) + 16 + 8 * TR_TOP_K_MAX) +
                        l->outputs_max * (uint32_t)sizeof(tr_output);
    uint32_t row = l->hidden_size * (uint32_t)sizeof(int64_t); /* of sums */
    /* A bank travels to n-gram tables and between spans, of which a move can make more. */
    if (nodes > 1 || c->shape.ngram_tables > 0)
        row = larger(row, l->bank_size * (uint32_t)sizeof(float));
    uint32_t tokens = l->outputs_max * (uint32_t)sizeof(tr_token);
    /* Per step in flight: rows to shards and partial sums from each node, and the same once more
     * for a peer that is one sub-layer ahead. */
    uint32_t per_step = c->node.steps_in_flight * (2 * nodes + 4) * 2;
    uint32_t request = (uint32_t)sizeof(tr_submit) + l->context_max * 4;
    uint32_t logits = (uint32_t)sizeof(tr_logits_row) + l->vocab_size * 4;

    classes[0] = (tr_pool_class){.capacity = SMALL_BUFFER, .count = SMALL_BUFFERS};
    classes[1] = (tr_pool_class){
        .capacity = larger(2 * SMALL_BUFFER, describe + smaller(l->sequences_max, 16) * row),
        .count = per_step + 2 * l->sequences_max};
    classes[2] = (tr_pool_class){.capacity = larger(larger(request, logits), tokens + 4096),
                                 .count = QUEUE_MAX + 2 * l->outputs_max + 16};
    classes[3] = (tr_pool_class){.capacity = larger(describe + l->rows_max * row, logits + 4096),
                                 .count = per_step};
    qsort(classes, 4, sizeof(classes[0]), compare_class);
    for (int i = 1; i < 4; i++)
        if (classes[i].capacity <= classes[i - 1].capacity)
            classes[i].capacity = classes[i - 1].capacity + 64;
}

static void cluster_add_actor(tr_cluster *c, const tr_actor_ops *ops, tr_actor_kind kind,
                              uint32_t number, uint32_t worker,
                              void (*count)(const tr_node_context *, tr_arena *, tr_budget *))
{
    const tr_cluster_hand *hand = c->options.hand;
    if (hand != NULL && hand->replace != NULL)
        ops = hand->replace(kind, ops);
    c->actors[c->actors_count++] = (cluster_actor){
        .ops = ops, .kind = kind, .number = number, .worker = worker, .count = count};
}

static uint32_t cluster_threads_per_team(const tr_cluster *c)
{
    const tr_placement_node *n = &c->placement->nodes[c->node_index];
    uint32_t threads = n->threads / n->workers;
    return threads > 0 ? threads : 1;
}

/* The attention shard's scratch depends on its team's size. */
static void count_attention(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    const tr_placement_node *n = &node->placement->nodes[node->node_index];
    uint32_t threads = n->threads / n->workers;
    tr_attention_shard_count(node, counting, budget, threads > 0 ? threads : 1);
}

/* Every node has an actor of each kind, so that any part can come to stand on it. */
static void cluster_list_actors(tr_cluster *c)
{
    uint32_t me = c->node_index;
    uint32_t shards = c->placement->nodes[me].workers > 1 ? 1 : 0;

    cluster_add_actor(c, &tr_router_ops, TR_ACTOR_ROUTER, me, 0, tr_router_count);
    cluster_add_actor(c, &tr_kv_pool_ops, TR_ACTOR_KV_POOL, me, shards, tr_kv_pool_count);
    cluster_add_actor(c, &tr_attention_shard_ops, TR_ACTOR_ATTENTION_SHARD, me, shards,
                      count_attention);
    cluster_add_actor(c, &tr_expert_shard_ops, TR_ACTOR_EXPERT_SHARD, me, shards,
                      tr_expert_shard_count);
    cluster_add_actor(c, &tr_sampler_ops, TR_ACTOR_SAMPLER, me, 0, tr_sampler_count);
    if (c->shape.ngram_tables > 0)
        cluster_add_actor(c, &tr_ngram_ops, TR_ACTOR_NGRAM, me, shards, tr_ngram_count);
    if (c->placement->batcher_node == me)
        cluster_add_actor(c, &tr_batcher_ops, TR_ACTOR_BATCHER, 0, 0, tr_batcher_count);
}

/* Actors, all ports that there can be, and what the workers need. */
static uint64_t cluster_runtime_bytes(const tr_cluster *c)
{
    uint64_t bytes = tr_runtime_bytes(c->placement->nodes[c->node_index].workers,
                                      c->placement->nodes_count - 1) +
                     TR_NODE_CLIENTS_MAX * cluster_client_bytes() + cluster_hops_bytes();

    for (uint32_t i = 0; i < c->actors_count; i++)
        bytes += tr_runtime_actor_bytes(c->actors[i].ops);
    return bytes;
}

void cluster_count_fixed(const tr_cluster *c, tr_budget *budget)
{
    tr_pool_class classes[4];

    cluster_pool_classes(c, classes);
    tr_budget_add(budget, "message buffers", "limits.step_rows", tr_pool_bytes(classes, 4));
    tr_budget_add(budget, "counters of experts", "", tr_expert_heat_bytes(&c->shape));
    tr_budget_add(budget, "runtime (mailboxes, trace rings)", "", cluster_runtime_bytes(c));
    tr_budget_add(budget, "changes of placement", "limits.context", cluster_change_bytes(c));
    if (c->transport_ops != NULL)
        tr_budget_add(budget, "transport (what waits for buffers)", "",
                      c->transport_ops->bytes(c->placement->nodes_count));
    if (c->options.front_end_bytes > 0)
        tr_budget_add(budget, "front end (connections, bodies)", "", c->options.front_end_bytes);
    if (cluster_stream_bytes(c) > 0)
        tr_budget_add(budget, "weights on their way", "", cluster_stream_bytes(c));
}

/* An empty table with the limit of this node, which does not change any more. */
static tr_status cluster_open_budget(tr_cluster *c, tr_error *err)
{
    const tr_placement_node *self = &c->placement->nodes[c->node_index];
    uint64_t limit = self->memory_bytes, free_bytes = c->options.free_bytes;
    uint32_t sharers = 0;
    tr_error why;

    if (limit == 0 && free_bytes == 0 && c->options.hand == NULL) {
        tr_status status = tr_free_memory(&free_bytes, &why);
        if (status != TR_OK)
            return tr_fail(err, status, "%s: node %s: memory: not there, and %s",
                           c->placement->source, self->name, why.text);
    }
    if (limit == 0 && c->options.hand == NULL)
        limit = tr_placement_memory(c->placement, c->node_index, free_bytes, &sharers);
    tr_budget_init(&c->budget, self->name, limit);
    if (sharers == 1)
        snprintf(c->budget.limit_why, sizeof(c->budget.limit_why), "90 %% of what was free");
    else if (sharers > 1)
        snprintf(c->budget.limit_why, sizeof(c->budget.limit_why),
                 "of 90 %% of what was free, shared by %u nodes", sharers);
    return TR_OK;
}

tr_status cluster_count_memory(tr_cluster *c, tr_error *err)
{
    tr_pool_class classes[4];

    cluster_set_limits(c);
    tr_status status = cluster_check_limits(c, err);
    if (status == TR_OK)
        status = cluster_open_budget(c, err);
    if (status == TR_OK)
        status = tr_weight_store_open(&c->store, c->kernels, err);
    if (status != TR_OK)
        return status;
    cluster_pool_classes(c, classes);
    c->node.buffer_size_max = classes[3].capacity;
    cluster_list_actors(c);
    cluster_view_count(c, c->view, &c->budget);
    cluster_count_fixed(c, &c->budget);
    c->view->parts = c->budget;
    return tr_budget_check(&c->budget, err);
}

/* One name per actor, for people: "router/0-7@spark1". */
static void cluster_actor_name(const tr_cluster *c, tr_actor_kind kind, uint32_t node, char *out,
                               size_t size)
{
    const char *where = c->placement->nodes[node].name;
    const char *what = tr_actor_kind_name(kind);
    if (kind == TR_ACTOR_BATCHER)
        snprintf(out, size, "batcher@%s", where);
    else if (kind == TR_ACTOR_ROUTER || kind == TR_ACTOR_ATTENTION_SHARD)
        snprintf(out, size, "%s/0-%u@%s", what, c->shape.layers_count - 1, where);
    else
        snprintf(out, size, "%s/%s", what, where);
}

/* Tells the directory of every actor on other nodes. */
static tr_status cluster_add_remotes(tr_cluster *c, tr_error *err)
{
    static const tr_actor_kind kinds[] = {
        TR_ACTOR_ROUTER,  TR_ACTOR_ATTENTION_SHARD, TR_ACTOR_KV_POOL, TR_ACTOR_EXPERT_SHARD,
        TR_ACTOR_SAMPLER, TR_ACTOR_NGRAM,           TR_ACTOR_PROBE};
    char name[160];

    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        for (size_t k = 0; n != c->node_index && k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            cluster_actor_name(c, kinds[k], n, name, sizeof(name));
            tr_status status =
                tr_runtime_add_remote(c->runtime, tr_node_actor(kinds[k], n), name, n, err);
            if (status != TR_OK)
                return status;
        }
        for (uint32_t i = 0; n != c->node_index && i < TR_NODE_CLIENTS_MAX; i++) {
            snprintf(name, sizeof(name), "client%u@%s", i, c->placement->nodes[n].name);
            tr_status status =
                tr_runtime_add_remote(c->runtime, tr_node_client(n, i), name, n, err);
            if (status != TR_OK)
                return status;
        }
    }
    uint32_t batcher = c->placement->batcher_node;
    if (batcher == c->node_index)
        return TR_OK;
    cluster_actor_name(c, TR_ACTOR_BATCHER, batcher, name, sizeof(name));
    return tr_runtime_add_remote(c->runtime, tr_node_actor(TR_ACTOR_BATCHER, 0), name, batcher,
                                 err);
}

static tr_status cluster_spawn(tr_cluster *c, uint32_t i, tr_error *err)
{
    char name[160];
    const cluster_actor *a = &c->actors[i];
    tr_status status = cluster_view_allocate(c, c->view, i, err);
    if (status != TR_OK)
        return status;
    cluster_actor_name(c, a->kind, c->node_index, name, sizeof(name));
    return tr_runtime_spawn(c->runtime, tr_node_actor(a->kind, a->number), name, a->ops,
                            &c->view->actors[i].config, a->worker, err);
}

tr_status cluster_take_memory(tr_cluster *c, tr_error *err)
{
    const tr_placement_node *self = &c->placement->nodes[c->node_index];
    tr_pool_class classes[4];

    cluster_pool_classes(c, classes);
    tr_status status = tr_expert_heat_init(&c->heat, &c->shape, err);
    if (status == TR_OK)
        status = tr_pool_open(&c->pool, classes, 4, err);
    if (status != TR_OK)
        return status;
    c->pool_count = tr_pool_free_count(c->pool);
    tr_runtime_config config = {.node_name = self->name,
                                .node_index = c->node_index,
                                .workers_count = self->workers,
                                .pool = c->pool};
    if (c->options.hand != NULL) {
        config.now_ns = c->options.hand->now_ns;
        config.clock_ctx = c->options.hand->ctx;
    }
    status = tr_runtime_open(&c->runtime, &config, err);
    for (; status == TR_OK && c->teams_count < self->workers; c->teams_count++) {
        status = tr_team_open(&c->teams[c->teams_count], cluster_threads_per_team(c), err);
        if (status != TR_OK)
            break;
    }
    if (status == TR_OK)
        status = tr_kv_memory_open(&c->kv_memory, &c->node.kv, c->node.pages_max,
                                   c->node.limits.sequences_max, err);
    if (status == TR_OK)
        tr_kv_memory_populate(&c->kv_memory, c->node.spec, NULL, &c->view->plan, c->node_index);
    for (uint32_t i = 0; status == TR_OK && i < c->actors_count; i++)
        status = cluster_spawn(c, i, err);
    if (status == TR_OK) /* what a file has lost meanwhile was read as zeros */
        status = tr_model_check_files(c->model, err);
    tr_model_forget(c->model); /* what slices of columns have left cached */
    if (status == TR_OK)
        status = cluster_add_remotes(c, err);
    return status;
}

uint64_t cluster_memory_taken(tr_cluster *c)
{
    tr_budget fixed;

    tr_budget_init(&fixed, "", 0);
    cluster_count_fixed(c, &fixed);
    uint64_t bytes = tr_budget_total(&fixed) + tr_weight_store_bytes(c->store);
    pthread_mutex_lock(&c->lock); /* a view that was replaced is freed soon after */
    const tr_node_context *n = &c->view->node;
    bytes += n->pages_max * n->kv.page_present + n->limits.sequences_max * n->kv.state_present;
    for (uint32_t i = 0; i < c->actors_count; i++)
        bytes += c->view->actors[i].arena_size;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

void cluster_free_memory(tr_cluster *c)
{
    if (c->runtime != NULL)
        tr_runtime_close(c->runtime);
    cluster_free_lent(c);
    cluster_view_free(c, c->view);
    c->view = NULL;
    tr_weight_store_close(c->store);
    tr_kv_memory_close(&c->kv_memory);
    for (uint32_t i = 0; i < c->teams_count; i++)
        tr_team_close(c->teams[i]);
    if (c->pool != NULL)
        tr_pool_close(c->pool);
    tr_expert_heat_teardown(&c->heat);
}
