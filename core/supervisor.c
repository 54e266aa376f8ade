/* supervisor.c - an actor whose receive failed.
 *
 *   RUNNING --receive fails, restarts < restarts_max--> RUNNING with a fresh state
 *   RUNNING --receive fails otherwise, or init fails again--> FAILED, for good
 *
 * Messages that wait in its mailbox stay for the fresh state; timers of the old one are forgotten.
 * The batcher learns of each step that lost a message here, so that the requests of that step end
 * with an error, and no others. */
#include "core/runtime_parts.h"

#include "core/log.h"

#include <string.h>

tr_status tr_local_init(tr_local *local, tr_error *err)
{
    memset(local->state, 0, local->ops->state_size);
    local->sends = 0;
    local->active = true;
    tr_status status = local->ops->init(local->state, &local->env, local->config, err);
    local->active = false;
    local->alive = status == TR_OK;
    return status;
}

void tr_local_teardown(tr_local *local)
{
    if (!local->alive)
        return;
    local->alive = false;
    local->ops->teardown(local->state);
}

/* argument: the failed actor's number; source says who it is in full. */
static void supervisor_tell_batcher(tr_local *local, uint64_t step)
{
    const tr_directory_entry *batcher = local->rt->batcher;
    if (batcher == NULL || batcher == local->entry)
        return;
    local->step_told = step;
    /* TR_E_PEER: the batcher's node is gone, and with it the requests. */
    (void)tr_local_send_to(local, batcher, TR_MSG_ACTOR_FAILED, step,
                           tr_actor_id_number(local->entry->id), NULL);
}

void tr_local_failed(tr_local *local, const tr_msg_header *header, tr_status status)
{
    const char *name = local->entry->name;
    uint32_t restarts = atomic_load_explicit(&local->restarts, memory_order_relaxed);
    bool restart = restarts < local->ops->restarts_max;

    tr_log(TR_LOG_ERROR, name, "actor_failed", "kind=%s step=%llu source=%s status=\"%s\" next=%s",
           tr_msg_kind_name(header->kind), (unsigned long long)header->step,
           tr_runtime_actor_name(local->rt, header->source), tr_status_text(status),
           restart ? "restart" : "stop");
    supervisor_tell_batcher(local, header->step);
    tr_timers_drop(&local->worker->timers, local);
    tr_local_teardown(local);
    if (restart) {
        tr_error err = {.code = TR_OK};
        atomic_store_explicit(&local->restarts, restarts + 1, memory_order_relaxed);
        if (tr_local_init(local, &err) == TR_OK)
            return;
        tr_log(TR_LOG_ERROR, name, "restart_failed", "reason=\"%s\"", err.text);
    }
    atomic_store_explicit(&local->failed, true, memory_order_relaxed);
}

void tr_local_refuse(tr_local *local, const tr_msg_header *header)
{
    atomic_fetch_add_explicit(&local->rt->dropped_failed, 1, memory_order_relaxed);
    if (header->step != 0 && header->step != local->step_told)
        supervisor_tell_batcher(local, header->step);
}
