#include "core/runtime_metrics.h"

#include "core/runtime_parts.h"

/* All readers look at relaxed statistics; see runtime_parts.h. */

static uint64_t runtime_metrics_depth(const void *local)
{
    return tr_mailbox_depth(((const tr_local *)local)->mailbox);
}

static uint64_t runtime_metrics_received(const void *local)
{
    return atomic_load_explicit(&((const tr_local *)local)->received_count, memory_order_relaxed);
}

static uint64_t runtime_metrics_busy(const void *local)
{
    return atomic_load_explicit(&((const tr_local *)local)->busy_ns, memory_order_relaxed);
}

static uint64_t runtime_metrics_restarts(const void *local)
{
    return atomic_load_explicit(&((const tr_local *)local)->restarts, memory_order_relaxed);
}

static uint64_t runtime_metrics_dropped(const void *counter)
{
    return atomic_load_explicit((const _Atomic uint64_t *)counter, memory_order_relaxed);
}

static uint64_t runtime_metrics_pool_free(const void *pool)
{
    return tr_pool_free_count(pool);
}

static tr_status runtime_metrics_add_actor(tr_metrics *metrics, const tr_local *local,
                                           tr_error *err)
{
    static const struct {
        const char *name;
        const char *help;
        uint64_t (*read)(const void *local);
        tr_status (*add)(tr_metrics *metrics, const tr_metric_name *name,
                         uint64_t (*read)(const void *ctx), const void *ctx, tr_error *err);
    } rows[] = {
        {"troupe_actor_mailbox_depth", "Messages that wait in the actor's mailbox.",
         runtime_metrics_depth, tr_metrics_gauge_from},
        {"troupe_actor_messages_received_total", "Messages that the actor has handled.",
         runtime_metrics_received, tr_metrics_counter_from},
        {"troupe_actor_busy_nanoseconds_total", "Time that the actor spent handling messages.",
         runtime_metrics_busy, tr_metrics_counter_from},
        {"troupe_actor_restarts_total", "Times that the supervisor gave the actor a fresh state.",
         runtime_metrics_restarts, tr_metrics_counter_from},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_metric_name name = {.name = rows[i].name,
                               .help = rows[i].help,
                               .label_key = "actor",
                               .label_value = local->entry->name};
        tr_status status = rows[i].add(metrics, &name, rows[i].read, local, err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

static tr_status runtime_metrics_add_dropped(tr_metrics *metrics, const tr_runtime *rt,
                                             tr_error *err)
{
    const struct {
        const char *reason;
        const _Atomic uint64_t *counter;
    } rows[] = {
        {"target_unknown", &rt->dropped_unknown},
        {"mailbox_full", &rt->dropped_full},
        {"actor_failed", &rt->dropped_failed},
        {"node_dead", &rt->dropped_dead},
        {"other_epoch", &rt->dropped_epoch},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_metric_name name = {.name = "troupe_messages_dropped_total",
                               .help = "Messages that reached nobody.",
                               .label_key = "reason",
                               .label_value = rows[i].reason};
        tr_status status =
            tr_metrics_counter_from(metrics, &name, runtime_metrics_dropped, rows[i].counter, err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

tr_status tr_runtime_register_metrics(tr_runtime *rt, tr_metrics *metrics, tr_error *err)
{
    assert(!rt->started);
    for (uint32_t i = 0; i < rt->directory.entries_count; i++) {
        const tr_local *local = rt->directory.entries[i].local;
        tr_status status = local == NULL ? TR_OK : runtime_metrics_add_actor(metrics, local, err);
        if (status != TR_OK)
            return status;
    }
    tr_status status = runtime_metrics_add_dropped(metrics, rt, err);
    if (status != TR_OK || rt->pool == NULL)
        return status;
    tr_metric_name name = {.name = "troupe_pool_buffers_free",
                           .help = "Message buffers that nobody holds."};
    return tr_metrics_gauge_from(metrics, &name, runtime_metrics_pool_free, rt->pool, err);
}
