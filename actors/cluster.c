/* cluster.c - opens, starts, stops and closes one node. */
#include "actors/cluster_hand.h"
#include "actors/cluster_node.h"
#include "actors/cluster_stream.h"
#include "core/log.h"
#include "core/trace.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

/* -- transport hooks: they run on worker 0 inside the transport's poll -- */

static void cluster_on_deliver(void *ctx, uint32_t source_node, const tr_msg *msg)
{
    tr_cluster *c = ctx;
    (void)source_node;
    tr_runtime_deliver(c->runtime, msg);
}

static void cluster_on_transport_down(void *ctx, uint32_t node, const char *reason)
{
    cluster_peer_lost(ctx, node, reason);
}

static tr_status cluster_remote_send(void *ctx, uint32_t node, const tr_msg *msg)
{
    tr_cluster *c = ctx;
    return c->transport_ops->send(c->transport, node, msg);
}

static void cluster_on_stalled(void *ctx, uint32_t node)
{
    cluster_peer_lost(ctx, node, "it answers, but takes no messages");
}

static uint32_t cluster_poll_transport(void *ctx)
{
    tr_cluster *c = ctx;
    if (atomic_load_explicit(&c->relink, memory_order_relaxed) != 0)
        cluster_relink(c);
    return c->transport_ops->poll(c->transport);
}

static tr_status cluster_find_transport(tr_cluster *c, tr_error *err)
{
    const tr_placement *p = c->placement;
    const tr_cluster_hand *hand = c->options.hand;

    if (p->nodes_count == 1)
        return TR_OK;
    c->transport_ops = hand != NULL ? hand->transport : tr_transport_find(p->transport);
    if (c->transport_ops == NULL)
        return tr_fail(err, TR_E_NOTSUP, "%s: transport: \"%s\" is not in this build", p->source,
                       p->transport);
    return TR_OK;
}

static tr_status cluster_open_transport(tr_cluster *c, tr_error *err)
{
    const tr_placement *p = c->placement;
    const tr_cluster_hand *hand = c->options.hand;
    char loop_name[64];

    if (c->transport_ops == NULL)
        return TR_OK;
    const char *options =
        hand != NULL ? hand->transport_options : p->nodes[c->node_index].transport_options;
    if (hand == NULL && strcmp(p->transport, "loop") == 0 && options[0] == '\0') {
        /* One hub per placement object: clusters of one process do not meet by accident. */
        snprintf(loop_name, sizeof(loop_name), "cluster=%p", (const void *)p);
        options = loop_name;
    }
    tr_transport_config config = {.node_index = c->node_index,
                                  .nodes_count = c->placement->nodes_count,
                                  .pool = c->pool,
                                  .options = options[0] != '\0' ? options : NULL,
                                  .deliver = cluster_on_deliver,
                                  .peer_down = cluster_on_transport_down,
                                  .ctx = c};
    tr_status status = c->transport_ops->open(&c->transport, &config, err);
    if (status != TR_OK)
        return status;
    status = c->transport_ops->address(c->transport, c->address, sizeof(c->address),
                                       &c->address_size, err);
    if (status != TR_OK)
        return status;
    tr_runtime_set_epoch(c->runtime, c->view->plan.epoch);
    /* A node may be busy with its longest step, and its worker 0 with it. */
    tr_runtime_set_remote(c->runtime, (tr_remote){.ctx = c,
                                                  .send = cluster_remote_send,
                                                  .stall_ns = c->node.step_timeout_ns,
                                                  .stalled = cluster_on_stalled});
    tr_runtime_add_poller(c->runtime, cluster_poll_transport, c);
    return TR_OK;
}

static tr_status cluster_open_model(tr_cluster *c, tr_error *err)
{
    tr_plan plan;
    const char *name = c->options.kernels != NULL ? c->options.kernels : "cpu";

    tr_status status = tr_kernels_find(&c->kernels, name, err);
    if (status == TR_OK)
        status = cluster_stream_open(c, err);
    if (status != TR_OK)
        return status;
    if (c->placement->activations_nvfp4 && !tr_model_has_input_scales(c->model))
        return tr_fail(err, TR_E_INVALID,
                       "%s: activations: found nvfp4, but no matrix of this checkpoint has "
                       "a scale for activations (input_scale)",
                       c->placement->model);
    if (c->options.hand == NULL) /* nobody asks a node that is run by hand */
        c->fingerprint = tr_kernels_fingerprint(c->kernels);
    tr_model_plan_shape(c->model, &c->shape);
    if (c->options.may_join && (status = cluster_ask_plan(c, &plan, &c->joins, err)) != TR_OK)
        return status;
    if (!c->joins)
        status = tr_plan_make(&plan, c->placement, &c->shape, err);
    if (status != TR_OK)
        return status;
    status = cluster_stream_check(c, &plan, err);
    if (status != TR_OK) {
        tr_plan_free(&plan);
        return status;
    }
    c->view = cluster_view_new(&plan);
    return c->view != NULL ? TR_OK : tr_fail(err, TR_E_NOMEM, "no memory for the plan");
}

static uint64_t cluster_new_life(void)
{
    uint64_t life = 0;
    /* The clock is as good where there is no randomness yet: no two lives begin at once. */
    if (getrandom(&life, sizeof(life), GRND_NONBLOCK) != sizeof(life))
        life = tr_clock_ns();
    return life != 0 ? life : 1;
}

tr_status tr_cluster_open(tr_cluster **out, const tr_placement *placement, uint32_t node_index,
                          const tr_cluster_options *options, tr_error *err)
{
    assert(node_index < placement->nodes_count);
    tr_cluster *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a node");
    c->placement = placement;
    c->node_index = node_index;
    if (options != NULL)
        c->options = *options;
    c->life = c->options.hand != NULL ? cluster_now(c) + 1 : cluster_new_life();
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->peers_lock, NULL);
    pthread_mutex_init(&c->questions.lock, NULL);
    pthread_mutex_init(&c->batcher_questions.lock, NULL);
    pthread_mutex_init(&c->hops.lock, NULL);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    tr_status status = c->wake_fd >= 0 ? cluster_find_transport(c, err)
                                       : tr_fail(err, TR_E_NOMEM, "eventfd: %s", strerror(errno));
    if (status == TR_OK)
        status = cluster_open_model(c, err);
    if (status == TR_OK && (status = cluster_count_memory(c, err)) == TR_E_NOMEM &&
        c->options.hand == NULL)
        tr_budget_print(&c->budget, stderr);
    if (status == TR_OK)
        status = cluster_take_memory(c, err);
    cluster_stream_end(c);
    if (status == TR_OK)
        status = cluster_open_transport(c, err);
    if (status == TR_OK)
        status =
            c->options.hand != NULL ? cluster_hand_open_peers(c, err) : cluster_open_peers(c, err);
    if (status == TR_OK && c->control != NULL)
        status = cluster_change_open(c, err);
    if (status == TR_OK && c->change.opened && c->options.hand == NULL)
        status = cluster_hops_open(c, err);
    if (status == TR_OK && c->change.opened && placement->batcher_node == node_index)
        status = cluster_moves_open(c, err);
    if (status != TR_OK) {
        tr_cluster_close(c);
        return status;
    }
    *out = c;
    return TR_OK;
}

tr_status tr_cluster_start(tr_cluster *c, tr_error *err)
{
    uint64_t deadline = tr_clock_ns() + (uint64_t)c->placement->limits.start_timeout_s * 1000000000;

    tr_status status = c->joins ? cluster_join(c, err) : cluster_meet_peers(c, deadline, err);
    if (status == TR_OK && !c->joins) {
        status = cluster_start_workers(c, err);
        atomic_store(&c->started, status == TR_OK);
    }
    if (status == TR_OK && !c->joins)
        status = cluster_await_ready(c, deadline, err);
    if (status != TR_OK)
        return status;
    cluster_note_kernels(c);
    status = cluster_start_heartbeats(c, err);
    if (status != TR_OK)
        return status;
    atomic_store(&c->serving, true);
    return TR_OK;
}

uint32_t tr_cluster_peers(tr_cluster *c, tr_peer_stat *rows, uint32_t rows_max)
{
    uint32_t count = c->placement->nodes_count;
    for (uint32_t n = 0; n < count && n < rows_max; n++) {
        cluster_peer *peer = &c->peers[n];
        bool self = n == c->node_index;
        rows[n] = (tr_peer_stat){.self = self, .alive = self || atomic_load(&peer->alive)};
        snprintf(rows[n].name, sizeof(rows[n].name), "%s", c->placement->nodes[n].name);
        rows[n].path = self ? "" : c->transport_ops->path(c->transport, n);
        uint64_t round_trip = self ? 0 : atomic_load(&peer->round_trip_ns);
        rows[n].round_trip_ns = round_trip == UINT64_MAX ? 0 : round_trip;
        rows[n].clock_offset_ns = self ? 0 : atomic_load(&peer->clock_offset_ns);
    }
    return count;
}

static uint64_t counter(_Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

void tr_cluster_stats(tr_cluster *c, tr_cluster_stat *out)
{
    tr_node_counters *n = &c->counters;
    *out = (tr_cluster_stat){
        .sequences_active = atomic_load_explicit(&n->sequences_active, memory_order_relaxed),
        .sequences_max = c->node.limits.sequences_max - c->node.prefixes_max,
        .prefixes_kept = atomic_load_explicit(&n->prefixes_kept, memory_order_relaxed),
        .requests_waiting = atomic_load_explicit(&n->requests_waiting, memory_order_relaxed),
        .kv_pages_used = atomic_load_explicit(&n->pages_used, memory_order_relaxed),
        .kv_pages_max = c->node.pages_max,
        .steps = counter(&n->steps),
        .prompt_tokens = counter(&n->prompt_tokens),
        .generated_tokens = counter(&n->generated_tokens),
        .cached_tokens = counter(&n->cached_tokens),
        .requests_finished = counter(&n->requests_finished),
        .requests_failed = counter(&n->requests_failed),
        .buffers_free = tr_pool_free_count(c->pool),
        .buffers_max = c->pool_count,
        .memory_bytes = cluster_memory_taken(c)};
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
    return c->placement;
}

tr_status tr_cluster_plan(tr_cluster *c, tr_plan *out, tr_error *err)
{
    pthread_mutex_lock(&c->lock);
    tr_status status = tr_plan_copy(out, &c->view->plan, err);
    pthread_mutex_unlock(&c->lock);
    return status;
}

const tr_expert_heat *tr_cluster_heat(const tr_cluster *c)
{
    return &c->heat;
}

uint64_t tr_cluster_expert_bytes(const tr_cluster *c, uint32_t layer)
{
    return tr_expert_term_bytes(&c->node, layer, 0);
}

const tr_budget *tr_cluster_budget(const tr_cluster *c)
{
    return &c->budget;
}

void tr_cluster_memory(tr_cluster *c, tr_budget *out)
{
    pthread_mutex_lock(&c->lock);
    *out = c->view->parts;
    pthread_mutex_unlock(&c->lock);
}

uint32_t tr_cluster_node_index(const tr_cluster *c)
{
    return c->node_index;
}

uint32_t tr_cluster_context_max(const tr_cluster *c)
{
    return c->node.limits.context_max;
}

tr_control_server *tr_cluster_control(tr_cluster *c)
{
    return c->control;
}

void tr_cluster_request_shutdown(tr_cluster *c)
{
    atomic_store(&c->shutdown_requested, true);
    uint64_t one = 1;
    ssize_t written = write(c->wake_fd, &one, sizeof(one));
    (void)written; /* an eventfd that is already readable is as good */
}

void tr_cluster_request_shutdown_all(tr_cluster *c)
{
    atomic_store(&c->shutdown_all, true);
    tr_cluster_request_shutdown(c);
}

tr_status tr_cluster_wait_shutdown(tr_cluster *c, uint64_t deadline_ns, tr_error *err)
{
    for (;;) {
        if (atomic_load(&c->shutdown_requested))
            return TR_OK;
        pthread_mutex_lock(&c->lock);
        tr_error lost = c->lost;
        pthread_mutex_unlock(&c->lock);
        uint32_t batcher = c->placement->batcher_node; /* without it nothing can be served again */
        bool hopeless = batcher != c->node_index && !atomic_load(&c->peers[batcher].alive);
        if (lost.code != TR_OK && (hopeless || c->placement->limits.exit_on_peer_loss)) {
            if (err != NULL)
                *err = lost;
            return lost.code;
        }
        uint64_t now = tr_clock_ns();
        if (now >= deadline_ns)
            return TR_E_TIMEOUT;
        uint64_t left_ms = (deadline_ns - now) / 1000000 + 1;
        struct pollfd fd = {.fd = c->wake_fd, .events = POLLIN};
        uint64_t count;
        if (poll(&fd, 1, left_ms > 1000 ? 1000 : (int)left_ms) > 0) {
            ssize_t got = read(c->wake_fd, &count, sizeof(count));
            (void)got; /* the flags above say what happened */
        }
    }
}

void tr_cluster_stop(tr_cluster *c)
{
    if (atomic_exchange(&c->stopping, true))
        return;
    cluster_moves_stop(c);
    cluster_close_peers(c);
    if (c->options.hand != NULL && c->control != NULL)
        c->options.hand->end_answers(c->options.hand->ctx);
    if (c->control != NULL)
        tr_control_server_close(c->control);
    c->control = NULL;
    atomic_store(&c->change.abandoned, true); /* nobody can begin another change now */
    if (c->runtime != NULL)
        tr_runtime_stop(c->runtime);
    if (c->transport != NULL)
        c->transport_ops->close(c->transport);
    c->transport = NULL;
}

void tr_cluster_close(tr_cluster *c)
{
    tr_cluster_stop(c);
    for (uint32_t i = 0; i < c->clients_count; i++)
        cluster_free_client(c->clients[i]);
    cluster_moves_close(c);
    cluster_change_close(c);
    cluster_free_memory(c);
    cluster_stream_close(c);
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    pthread_mutex_destroy(&c->hops.lock);
    pthread_mutex_destroy(&c->batcher_questions.lock);
    pthread_mutex_destroy(&c->questions.lock);
    pthread_mutex_destroy(&c->peers_lock);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
