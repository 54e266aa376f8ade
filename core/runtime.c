#include "core/runtime_parts.h"

#include "core/log.h"
#include "core/trace.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUNTIME_SPIN_NS  1000000u /* idle_spin_ns when it is 0 */
#define RUNTIME_SLEEP_NS 500000u  /* idle_sleep_ns when it is 0 */
#define RUNTIME_RELAX_NS                                                                           \
    20000u /* an answer over shared memory or from another worker is sooner                        \
            */

static_assert(TR_WORKERS_MAX < 255, "worker numbers and 255 share eight bits of a trace id");

static size_t runtime_lines(size_t size)
{
    return (size + TR_CACHE_LINE - 1) & ~(size_t)(TR_CACHE_LINE - 1);
}

/* Zeroed memory on lines of its own; the size is rounded up to whole lines. */
static void *runtime_take(size_t size)
{
    size = runtime_lines(size);
    void *memory = aligned_alloc(TR_CACHE_LINE, size);
    if (memory != NULL)
        memset(memory, 0, size);
    return memory;
}

uint64_t tr_runtime_bytes(uint32_t workers_count, uint32_t other_nodes)
{
    uint64_t worker = sizeof(tr_worker) + TR_TIMERS_MAX * sizeof(tr_timer) +
                      tr_trace_bytes(TR_WORKER_TRACE_EVENTS);
    return runtime_lines(sizeof(tr_runtime)) + runtime_lines(TR_WAITING_MAX * sizeof(tr_waiting)) +
           workers_count * worker + other_nodes * tr_mailbox_bytes(TR_OUTGOING_SLOTS);
}

/* One receive, the init of a restart, and the word to the batcher between them. */
static uint32_t runtime_outbox_max(const tr_actor_ops *ops)
{
    return 2 * ops->outbox_slots + 1;
}

uint64_t tr_runtime_actor_bytes(const tr_actor_ops *ops)
{
    return tr_runtime_port_bytes(ops->mailbox_slots) +
           runtime_lines(runtime_outbox_max(ops) * sizeof(tr_outbox_entry)) +
           runtime_lines(ops->state_size > 0 ? ops->state_size : 1);
}

uint64_t tr_runtime_port_bytes(uint32_t slots)
{
    return runtime_lines(sizeof(tr_local)) + tr_mailbox_bytes(slots);
}

static uint64_t runtime_clock(void *ctx)
{
    (void)ctx;
    return tr_clock_ns();
}

static void runtime_init_waiting(tr_runtime *rt)
{
    for (uint32_t i = 0; i < TR_WAITING_MAX; i++)
        rt->waiting[i].next = i + 1 < TR_WAITING_MAX ? i + 1 : TR_WAITING_NONE;
    rt->waiting_free = 0;
}

tr_status tr_runtime_open(tr_runtime **out, const tr_runtime_config *config, tr_error *err)
{
    if (config->node_index >= TR_NODES_MAX)
        return tr_fail(err, TR_E_INVALID, "runtime: node_index %u, expected at most %d",
                       config->node_index, TR_NODES_MAX - 1);
    if (config->workers_count < 1 || config->workers_count > TR_WORKERS_MAX)
        return tr_fail(err, TR_E_INVALID, "runtime: workers_count %u, expected 1 to %d",
                       config->workers_count, TR_WORKERS_MAX);

    tr_status status = TR_E_NOMEM;
    tr_runtime *rt = runtime_take(sizeof(*rt));
    if (rt == NULL)
        return tr_fail(err, status, "runtime: no memory");
    snprintf(rt->node_name, sizeof(rt->node_name), "%s", config->node_name);
    rt->node_index = config->node_index;
    rt->pool = config->pool;
    rt->idle_spin_ns = config->idle_spin_ns != 0 ? config->idle_spin_ns : RUNTIME_SPIN_NS;
    rt->now_ns = config->now_ns != NULL ? config->now_ns : runtime_clock;
    rt->clock_ctx = config->clock_ctx;
    rt->idle_sleep_ns = config->idle_sleep_ns != 0 ? config->idle_sleep_ns : RUNTIME_SLEEP_NS;
    /* On one core nobody can answer while we spin. */
    rt->relax_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? RUNTIME_RELAX_NS : 0;
    atomic_init(&rt->epoch, 1);

    rt->waiting = runtime_take(TR_WAITING_MAX * sizeof(*rt->waiting));
    rt->workers = runtime_take(config->workers_count * sizeof(*rt->workers));
    if (rt->waiting == NULL || rt->workers == NULL) {
        tr_fail(err, status, "runtime: no memory for %u workers", config->workers_count);
        goto close_runtime;
    }
    runtime_init_waiting(rt);
    for (uint32_t i = 0; i < config->workers_count; i++) {
        tr_worker *worker = &rt->workers[i];
        worker->rt = rt;
        worker->index = i;
        rt->workers_count = i + 1;
        status = tr_timers_init(&worker->timers, TR_TIMERS_MAX, err);
        if (status != TR_OK)
            goto close_runtime;
    }
    *out = rt;
    return TR_OK;

close_runtime:
    tr_runtime_close(rt);
    return status;
}

/* -- actors -- */

static tr_buf *runtime_env_take(void *ctx, uint32_t size)
{
    return tr_pool_take(((tr_local *)ctx)->rt->pool, size);
}

static tr_buf *runtime_env_take_fitting(void *ctx, uint32_t size)
{
    return tr_pool_take_fitting(((tr_local *)ctx)->rt->pool, size);
}

static uint64_t runtime_env_now(void *ctx)
{
    return tr_runtime_now_ns(((tr_local *)ctx)->rt);
}

static tr_status runtime_env_timer(void *ctx, uint64_t at_ns, uint32_t cookie)
{
    tr_local *local = ctx;
    assert(local->active);
    return tr_timers_add(&local->worker->timers, at_ns, local, cookie);
}

static void runtime_free_local(tr_local *local)
{
    while (local->outbox_count > 0) {
        tr_buf_unref(local->outbox[local->outbox_first].msg.payload);
        local->outbox_first = (local->outbox_first + 1) % local->outbox_max;
        local->outbox_count--;
    }
    tr_mailbox_close(local->mailbox);
    free(local->outbox);
    free(local->state);
    free(local);
}

/* What actors and ports have in common. */
static tr_status runtime_new_local(tr_local **out, tr_runtime *rt, uint32_t slots, tr_error *err)
{
    tr_local *local = runtime_take(sizeof(*local));
    if (local == NULL)
        return tr_fail(err, TR_E_NOMEM, "runtime: no memory for an actor");
    local->rt = rt;
    local->waiting_first = TR_WAITING_NONE;
    local->waiting_last = TR_WAITING_NONE;
    tr_status status = tr_mailbox_open(&local->mailbox, slots, err);
    if (status != TR_OK) {
        free(local);
        return status;
    }
    *out = local;
    return TR_OK;
}

/* Adds to the directory. local: NULL for an actor of another node. */
static tr_status runtime_enter(tr_runtime *rt, tr_actor_id id, const char *name,
                               uint32_t node_index, tr_local *local, tr_error *err)
{
    tr_directory_entry *entry = NULL;
    tr_status status = tr_directory_add(&rt->directory, id, name, node_index, &entry, err);
    if (status != TR_OK)
        return status;
    entry->local = local;
    if (local != NULL) {
        local->entry = entry;
        local->env.self = id;
    }
    if (tr_actor_id_kind(id) == TR_ACTOR_BATCHER)
        rt->batcher = entry;
    return TR_OK;
}

tr_status tr_runtime_spawn(tr_runtime *rt, tr_actor_id id, const char *name,
                           const tr_actor_ops *ops, const void *config, uint32_t worker_index,
                           tr_error *err)
{
    assert(!rt->started);
    assert(ops->init != NULL && ops->receive != NULL && ops->teardown != NULL);
    if (worker_index >= rt->workers_count)
        return tr_fail(err, TR_E_INVALID, "runtime: actor \"%s\" on worker %u, there are %u", name,
                       worker_index, rt->workers_count);
    tr_local *local = NULL;
    tr_status status = runtime_new_local(&local, rt, ops->mailbox_slots, err);
    if (status != TR_OK)
        return status;
    local->ops = ops;
    local->config = config;
    local->outbox_max = runtime_outbox_max(ops);
    local->outbox = runtime_take(local->outbox_max * sizeof(*local->outbox));
    local->state = runtime_take(ops->state_size > 0 ? ops->state_size : 1);
    if (local->outbox == NULL || local->state == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "runtime: no memory for actor \"%s\"", name);
        goto free_local;
    }
    local->env = (tr_env){.ctx = local,
                          .send = tr_local_send,
                          .take = runtime_env_take,
                          .take_fitting = runtime_env_take_fitting,
                          .now_ns = runtime_env_now,
                          .timer = runtime_env_timer};

    status = runtime_enter(rt, id, name, rt->node_index, local, err);
    if (status != TR_OK)
        goto free_local;

    tr_worker *worker = &rt->workers[worker_index];
    uint32_t bit = worker->actors_count++;
    worker->actors[bit] = local;
    worker->ready_words = (bit + 64) / 64;
    local->worker = worker;
    local->ready_word = bit / 64;
    local->ready_bit = 1ull << bit % 64;

    /* From here on the actor is the runtime's, which frees it also when init fails. */
    status = tr_local_init(local, err);
    if (local->outbox_count > 0)
        worker->blocked[local->ready_word] |= local->ready_bit;
    return status;

free_local:
    runtime_free_local(local);
    return status;
}

tr_status tr_runtime_add_port(tr_runtime *rt, tr_actor_id id, const char *name, uint32_t slots,
                              void (*wake)(void *ctx), void *wake_ctx, tr_error *err)
{
    assert(!rt->started);
    tr_local *local = NULL;
    tr_status status = runtime_new_local(&local, rt, slots, err);
    if (status != TR_OK)
        return status;
    local->wake = wake;
    local->wake_ctx = wake_ctx;
    status = runtime_enter(rt, id, name, rt->node_index, local, err);
    if (status != TR_OK)
        runtime_free_local(local);
    return status;
}

/* A message that waits in the port, or the news of a dead node. */
static bool runtime_port_take(tr_local *port, tr_msg *out)
{
    /* relaxed look first; acquire pairs with tr_runtime_peer_down. */
    uint32_t down = atomic_load_explicit(&port->peers_news, memory_order_relaxed);
    if (down == 0)
        return tr_mailbox_pop(port->mailbox, out);
    uint32_t node = (uint32_t)__builtin_ctz(down);
    atomic_fetch_and_explicit(&port->peers_news, ~(1u << node), memory_order_acquire);
    *out = tr_runtime_message(port->rt, 0, port->entry->id, TR_MSG_PEER_DOWN, 0, node, 0, NULL);
    return true;
}

bool tr_runtime_port_next(tr_runtime *rt, tr_actor_id id, tr_msg *out)
{
    const tr_directory_entry *entry = tr_directory_find(&rt->directory, id);
    assert(entry != NULL);
    tr_local *port = entry->local;
    assert(port != NULL);
    assert(port->ops == NULL);

    bool found = runtime_port_take(port, out);
    if (!found && port->wake != NULL) {
        /* seq_cst: see tr_local_notify. From here on a push wakes us again; one that came just
         * before is found by the second look. */
        atomic_exchange_explicit(&port->signaled, 0, memory_order_seq_cst);
        found = runtime_port_take(port, out);
    }
    if (found) {
        atomic_fetch_add_explicit(&port->received_count, 1, memory_order_relaxed);
        tr_trace_instant(TR_TRACE_RECEIVE, out->header.kind, id, out->header.trace_id);
    }
    return found;
}

/* -- other nodes -- */

tr_status tr_runtime_add_remote(tr_runtime *rt, tr_actor_id id, const char *name,
                                uint32_t node_index, tr_error *err)
{
    assert(!rt->started);
    if (node_index >= TR_NODES_MAX || node_index == rt->node_index)
        return tr_fail(err, TR_E_INVALID,
                       "runtime: actor \"%s\" on node %u, expected another node below %d", name,
                       node_index, TR_NODES_MAX);
    tr_outgoing *outgoing = &rt->outgoing[node_index];
    if (outgoing->queue == NULL) {
        tr_status status = tr_mailbox_open(&outgoing->queue, TR_OUTGOING_SLOTS, err);
        if (status != TR_OK)
            return status;
    }
    return runtime_enter(rt, id, name, node_index, NULL, err);
}

void tr_runtime_set_remote(tr_runtime *rt, tr_remote remote)
{
    assert(!rt->started);
    rt->remote = remote;
}

void tr_runtime_add_poller(tr_runtime *rt, uint32_t (*poll)(void *ctx), void *ctx)
{
    assert(!rt->started);
    assert(rt->pollers_count < TR_POLLERS_MAX);
    rt->pollers[rt->pollers_count].poll = poll;
    rt->pollers[rt->pollers_count].ctx = ctx;
    rt->pollers_count++;
}

void tr_runtime_set_epoch(tr_runtime *rt, uint64_t epoch)
{
    atomic_store_explicit(&rt->epoch, epoch, memory_order_relaxed); /* stands for nothing else */
}

uint64_t tr_runtime_epoch(const tr_runtime *rt)
{
    return atomic_load_explicit(&rt->epoch, memory_order_relaxed);
}

/* -- life -- */

tr_status tr_runtime_seal(tr_runtime *rt, tr_error *err)
{
    assert(!rt->started);
    for (uint32_t i = 0; i < rt->directory.entries_count; i++) {
        const tr_directory_entry *entry = &rt->directory.entries[i];
        if (entry->local == NULL && rt->remote.send == NULL)
            return tr_fail(err, TR_E_INVALID,
                           "runtime: actor \"%s\" stands on node %u, and no remote is set",
                           entry->name, entry->node_index);
    }
    rt->started = true;
    return TR_OK;
}

tr_status tr_runtime_start(tr_runtime *rt, tr_error *err)
{
    assert(rt->now_ns == runtime_clock);
    tr_status status = tr_runtime_seal(rt, err);
    if (status != TR_OK)
        return status;

    /* Signals are for the main thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    while (rt->workers_started < rt->workers_count && failed == 0) {
        tr_worker *worker = &rt->workers[rt->workers_started];
        failed = pthread_create(&worker->thread, NULL, tr_worker_main, worker);
        if (failed == 0)
            rt->workers_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    if (failed != 0) {
        tr_fail(err, TR_E_NOMEM, "runtime: worker thread %u of %u: %s", rt->workers_started,
                rt->workers_count, strerror(failed));
        tr_runtime_stop(rt);
        return TR_E_NOMEM;
    }
    return TR_OK;
}

void tr_runtime_stop(tr_runtime *rt)
{
    if (rt->torn_down)
        return;
    rt->torn_down = true;
    /* seq_cst: a worker on its way to sleep sees it, or we see that it sleeps. */
    atomic_store_explicit(&rt->stopping, true, memory_order_seq_cst);
    for (uint32_t i = 0; i < rt->workers_started; i++)
        tr_worker_wake(&rt->workers[i]);
    for (uint32_t i = 0; i < rt->workers_started; i++)
        pthread_join(rt->workers[i].thread, NULL);
    for (uint32_t i = rt->directory.entries_count; i > 0; i--) {
        tr_local *local = rt->directory.entries[i - 1].local;
        if (local != NULL && local->ops != NULL)
            tr_local_teardown(local);
    }
}

void tr_runtime_close(tr_runtime *rt)
{
    if (rt == NULL)
        return;
    tr_runtime_stop(rt);
    for (uint32_t i = 0; i < rt->directory.entries_count; i++) {
        tr_local *local = rt->directory.entries[i].local;
        if (local == NULL)
            continue;
        for (uint32_t w = local->waiting_first; w != TR_WAITING_NONE; w = rt->waiting[w].next)
            tr_buf_unref(rt->waiting[w].msg.payload);
        runtime_free_local(local);
    }
    for (uint32_t i = 0; i < TR_NODES_MAX; i++) {
        if (rt->outgoing[i].has_held)
            tr_buf_unref(rt->outgoing[i].held.payload);
        tr_mailbox_close(rt->outgoing[i].queue);
    }
    for (uint32_t i = 0; i < rt->workers_count; i++)
        tr_timers_teardown(&rt->workers[i].timers);
    free(rt->workers);
    free(rt->waiting);
    free(rt);
}

/* -- looking in from outside -- */

uint32_t tr_runtime_stats(const tr_runtime *rt, tr_actor_stat *rows, uint32_t rows_max)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rt->directory.entries_count; i++) {
        const tr_directory_entry *entry = &rt->directory.entries[i];
        const tr_local *local = entry->local;
        if (local == NULL)
            continue;
        if (count < rows_max)
            rows[count] = (tr_actor_stat){
                .id = entry->id,
                .name = entry->name,
                .kind = local->ops != NULL ? local->ops->kind : "port",
                .node_index = entry->node_index,
                .worker = local->ops != NULL ? local->worker->index : 0,
                .mailbox_depth = tr_mailbox_depth(local->mailbox),
                .mailbox_slots = tr_mailbox_slots(local->mailbox),
                .received_count =
                    atomic_load_explicit(&local->received_count, memory_order_relaxed),
                .busy_ns = atomic_load_explicit(&local->busy_ns, memory_order_relaxed),
                .restarts = atomic_load_explicit(&local->restarts, memory_order_relaxed),
                .failed = atomic_load_explicit(&local->failed, memory_order_relaxed)};
        count++;
    }
    return count;
}

const char *tr_runtime_actor_name(const tr_runtime *rt, tr_actor_id id)
{
    const tr_directory_entry *entry = tr_directory_find(&rt->directory, id);
    return entry != NULL ? entry->name : "unknown";
}
