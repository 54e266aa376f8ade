/* delivery.c - the way of a message from its sender to a mailbox, here or on another node.
 *
 *   actor -> actor of this node           push to its mailbox
 *   actor of worker 0 -> other node       remote.send, at once
 *   others -> other node                  outgoing[node].queue, which worker 0 drains
 *   other node -> actor of this node      tr_runtime_deliver: push to its mailbox
 *
 * A message that finds no room keeps its place: in the sender's outbox, in outgoing[node].held, or
 * in the waiting list. A sender always takes the same way to the same target, and a later message
 * queues behind an earlier one, so the order between two actors is kept. */
#include "core/runtime_parts.h"

#include "core/allocation_guard.h"
#include "core/log.h"
#include "core/trace.h"

static void delivery_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); /* a statistic */
}

static bool delivery_is_dead(const tr_runtime *rt, uint32_t node_index)
{
    /* relaxed: a message more or less at the moment of death makes no difference. */
    return (atomic_load_explicit(&rt->dead_nodes, memory_order_relaxed) >> node_index & 1) != 0;
}

tr_msg tr_runtime_message(const tr_runtime *rt, tr_actor_id source, tr_actor_id target,
                          tr_msg_kind kind, uint64_t step, uint32_t argument, uint64_t trace_id,
                          tr_buf *payload)
{
    assert(payload == NULL || payload->size > 0);
    return (tr_msg){.header = {.kind = (uint16_t)kind,
                               .version = TR_MSG_VERSION,
                               .source = source,
                               .target = target,
                               .epoch = atomic_load_explicit(&rt->epoch, memory_order_relaxed),
                               .step = step,
                               .trace_id = trace_id,
                               .payload_size = payload == NULL ? 0 : payload->size,
                               .argument = argument},
                    .payload = payload};
}

void tr_local_notify(tr_local *local)
{
    if (local->ops != NULL) {
        tr_worker_ready(local->worker, local);
        return;
    }
    if (local->wake == NULL)
        return;
    /* seq_cst (release would do): the push comes before it. If the reader's exchange in
     * tr_runtime_port_next comes first, we see 0 and wake it; if ours does, it sees the push. */
    if (atomic_exchange_explicit(&local->signaled, 1, memory_order_seq_cst) == 0) {
        bool guard = tr_guard_pause();
        local->wake(local->wake_ctx);
        tr_guard_resume(guard);
    }
}

/* from: the worker on whose thread we are, or NULL. TR_E_AGAIN: nothing was taken. */
static tr_status delivery_push(tr_worker *from, tr_local *to, const tr_msg *msg)
{
    tr_status status = tr_mailbox_push(to->mailbox, msg);
    if (status != TR_OK)
        return status;
    if (from != NULL && from == to->worker)
        tr_worker_ready_own(from, to);
    else
        tr_local_notify(to);
    return TR_OK;
}

/* Leaves a message for worker 0 to send. TR_E_AGAIN: nothing was taken. */
static tr_status delivery_push_outgoing(tr_runtime *rt, uint32_t node_index, const tr_msg *msg)
{
    tr_status status = tr_mailbox_push(rt->outgoing[node_index].queue, msg);
    if (status != TR_OK)
        return status;
    uint32_t bit = 1u << node_index;
    /* seq_cst: as in tr_worker_ready. */
    uint32_t before = atomic_fetch_or_explicit(&rt->outgoing_ready, bit, memory_order_seq_cst);
    if ((before & bit) == 0)
        tr_worker_wake(&rt->workers[0]);
    return TR_OK;
}

/* Hands a message to the remote, and notices when it has not taken any for too long. */
static tr_status delivery_send(tr_runtime *rt, uint32_t node_index, const tr_msg *msg)
{
    uint64_t *since_ns = &rt->no_room_since_ns[node_index];
    tr_status status = rt->remote.send(rt->remote.ctx, node_index, msg);

    assert(status == TR_OK || status == TR_E_AGAIN || status == TR_E_PEER);
    if (status != TR_E_AGAIN) {
        *since_ns = 0;
        return status;
    }
    uint64_t now_ns = tr_runtime_now_ns(rt);
    if (*since_ns == 0) {
        *since_ns = now_ns;
    } else if (rt->remote.stall_ns != 0 && now_ns - *since_ns >= rt->remote.stall_ns) {
        *since_ns = 0;
        rt->remote.stalled(rt->remote.ctx, node_index);
    }
    return status;
}

/* TR_OK: taken. TR_E_AGAIN: no room, nothing was taken. TR_E_PEER: the node is dead, dropped. */
static tr_status delivery_route(tr_local *sender, const tr_directory_entry *target,
                                const tr_msg *msg)
{
    tr_runtime *rt = sender->rt;
    if (target->local != NULL)
        return delivery_push(sender->worker, target->local, msg);
    if (delivery_is_dead(rt, target->node_index)) {
        delivery_count(&rt->dropped_dead);
        tr_buf_unref(msg->payload);
        return TR_E_PEER;
    }
    if (sender->worker->index != 0)
        return delivery_push_outgoing(rt, target->node_index, msg);
    if (!rt->started)
        return TR_E_AGAIN; /* sent by init: it keeps its place in the outbox until we run */

    bool guard = tr_guard_pause();
    tr_status status = delivery_send(rt, target->node_index, msg);
    tr_guard_resume(guard);
    return status;
}

tr_status tr_local_send_to(tr_local *local, const tr_directory_entry *target, tr_msg_kind kind,
                           uint64_t step, uint32_t argument, tr_buf *payload)
{
    tr_msg msg = tr_runtime_message(local->rt, local->entry->id, target->id, kind, step, argument,
                                    tr_worker_trace_id(local->worker), payload);
    tr_trace_instant(TR_TRACE_SEND, (uint16_t)kind, local->entry->id, msg.header.trace_id);

    if (local->outbox_count == 0) {
        tr_status status = delivery_route(local, target, &msg);
        if (status != TR_E_AGAIN)
            return status;
    }
    assert(local->outbox_count < local->outbox_max);
    uint32_t last = (local->outbox_first + local->outbox_count) % local->outbox_max;
    local->outbox[last] = (tr_outbox_entry){.msg = msg, .target = target};
    local->outbox_count++;
    return TR_OK;
}

tr_status tr_local_send(void *ctx, tr_actor_id target, tr_msg_kind kind, uint64_t step,
                        uint32_t argument, tr_buf *payload)
{
    tr_local *local = ctx;
    assert(local->active);
    assert(local->sends < local->ops->outbox_slots);
    local->sends++;

    const tr_directory_entry *entry = tr_directory_find(&local->rt->directory, target);
    if (entry == NULL) {
        tr_buf_unref(payload);
        return TR_E_INVALID;
    }
    return tr_local_send_to(local, entry, kind, step, argument, payload);
}

bool tr_local_flush(tr_local *local)
{
    while (local->outbox_count > 0) {
        tr_outbox_entry *first = &local->outbox[local->outbox_first];
        /* TR_E_PEER: dropped, and the actor hears of it by PEER_DOWN. */
        if (delivery_route(local, first->target, &first->msg) == TR_E_AGAIN)
            return false;
        local->outbox_first = (local->outbox_first + 1) % local->outbox_max;
        local->outbox_count--;
    }
    return true;
}

tr_status tr_runtime_post(tr_runtime *rt, tr_actor_id source, tr_actor_id target, tr_msg_kind kind,
                          uint64_t step, uint32_t argument, tr_buf *payload)
{
    const tr_directory_entry *entry = tr_directory_find(&rt->directory, target);
    if (entry == NULL)
        return TR_E_INVALID;
    if (entry->local == NULL && delivery_is_dead(rt, entry->node_index))
        return TR_E_PEER;

    /* relaxed: the number only has to be unique. 255 stands where actors have their worker. */
    uint64_t number = atomic_fetch_add_explicit(&rt->post_trace_next, 1, memory_order_relaxed);
    uint64_t trace_id = (uint64_t)rt->node_index << 56 | 255ull << 48 | (number & 0xffffffffffffu);
    tr_msg msg = tr_runtime_message(rt, source, target, kind, step, argument, trace_id, payload);
    tr_trace_instant(TR_TRACE_SEND, (uint16_t)kind, source, trace_id);
    return entry->local != NULL ? delivery_push(NULL, entry->local, &msg)
                                : delivery_push_outgoing(rt, entry->node_index, &msg);
}

uint32_t tr_runtime_send_outgoing(tr_runtime *rt)
{
    uint32_t count = 0;
    uint32_t nodes = rt->outgoing_again;
    rt->outgoing_again = 0;
    /* As in worker_run_ready: a look first, then seq_cst, of which acquire matters. */
    if (atomic_load_explicit(&rt->outgoing_ready, memory_order_relaxed) != 0)
        nodes |= atomic_exchange_explicit(&rt->outgoing_ready, 0, memory_order_seq_cst);
    while (nodes != 0) {
        uint32_t node = (uint32_t)__builtin_ctz(nodes);
        nodes &= nodes - 1;
        tr_outgoing *o = &rt->outgoing[node];
        uint32_t sent = 0;
        while (o->has_held || tr_mailbox_pop(o->queue, &o->held)) {
            o->has_held = true;
            tr_status status = TR_E_PEER;
            if (sent == TR_BATCH_MAX) {
                status = TR_E_AGAIN;
            } else if (delivery_is_dead(rt, node)) {
                delivery_count(&rt->dropped_dead);
                tr_buf_unref(o->held.payload);
            } else {
                status = delivery_send(rt, node, &o->held);
            }
            if (status == TR_E_AGAIN) {
                rt->outgoing_again |= 1u << node;
                break;
            }
            o->has_held = false;
            sent++;
        }
        count += sent;
    }
    return count;
}

/* -- from other nodes -- */

static void delivery_wait(tr_runtime *rt, tr_local *to, const tr_directory_entry *entry,
                          const tr_msg *msg)
{
    static tr_log_limit limit;
    uint32_t index = rt->waiting_free;
    if (index == TR_WAITING_NONE) {
        delivery_count(&rt->dropped_full);
        tr_log_limited(&limit, TR_LOG_WARN, entry->name, "dropped_full",
                       "kind=%s waiting=%d mailbox_slots=%u", tr_msg_kind_name(msg->header.kind),
                       TR_WAITING_MAX, tr_mailbox_slots(to->mailbox));
        tr_buf_unref(msg->payload);
        return;
    }
    tr_waiting *w = &rt->waiting[index];
    rt->waiting_free = w->next;
    w->msg = *msg;
    w->next = TR_WAITING_NONE;
    if (to->waiting_first == TR_WAITING_NONE)
        to->waiting_first = index;
    else
        rt->waiting[to->waiting_last].next = index;
    to->waiting_last = index;
    uint32_t number = (uint32_t)(entry - rt->directory.entries);
    rt->waiting_targets[number / 64] |= 1ull << number % 64;
    rt->waiting_count++;
}

void tr_runtime_deliver(tr_runtime *rt, const tr_msg *msg)
{
    static tr_log_limit limit;
    const tr_directory_entry *entry = tr_directory_find(&rt->directory, msg->header.target);
    if (entry == NULL || entry->local == NULL) {
        delivery_count(&rt->dropped_unknown);
        tr_log_limited(&limit, TR_LOG_WARN, NULL, "dropped_unknown",
                       "kind=%s target=%016llx source=%s", tr_msg_kind_name(msg->header.kind),
                       (unsigned long long)msg->header.target,
                       tr_runtime_actor_name(rt, msg->header.source));
        tr_buf_unref(msg->payload);
        return;
    }
    tr_local *to = entry->local;
    /* No step is in flight while the placement changes, so this one was given up, or its sender has
     * missed a change. Relaxed: see tr_runtime_set_epoch. */
    if (msg->header.step != 0 && to->ops != NULL && msg->header.epoch != tr_runtime_epoch(rt)) {
        delivery_count(&rt->dropped_epoch);
        tr_buf_unref(msg->payload);
        return;
    }
    if (to->waiting_first == TR_WAITING_NONE && delivery_push(&rt->workers[0], to, msg) == TR_OK)
        return;
    delivery_wait(rt, to, entry, msg);
}

uint32_t tr_runtime_retry_waiting(tr_runtime *rt)
{
    uint32_t count = 0;
    if (rt->waiting_count == 0)
        return 0;
    for (uint32_t word = 0; word < TR_READY_WORDS; word++) {
        uint64_t bits = rt->waiting_targets[word];
        while (bits != 0) {
            uint32_t bit = (uint32_t)__builtin_ctzll(bits);
            bits &= bits - 1;
            tr_local *to = rt->directory.entries[word * 64 + bit].local;
            while (to->waiting_first != TR_WAITING_NONE) {
                uint32_t index = to->waiting_first;
                tr_waiting *w = &rt->waiting[index];
                if (delivery_push(&rt->workers[0], to, &w->msg) != TR_OK)
                    break;
                to->waiting_first = w->next;
                w->next = rt->waiting_free;
                rt->waiting_free = index;
                rt->waiting_count--;
                count++;
            }
            if (to->waiting_first == TR_WAITING_NONE)
                rt->waiting_targets[word] &= ~(1ull << bit);
        }
    }
    return count;
}

/* A bit and not a message: it needs no room in the mailbox, and cannot be lost. */
static void delivery_tell_news(tr_runtime *rt, uint32_t bit, bool ports_too)
{
    for (uint32_t i = 0; i < rt->directory.entries_count; i++) {
        tr_local *local = rt->directory.entries[i].local;
        if (local == NULL || (local->ops == NULL && !ports_too))
            continue;
        /* release: pairs with the acquire of whoever takes the bit. */
        atomic_fetch_or_explicit(&local->peers_news, bit, memory_order_release);
        tr_local_notify(local);
    }
}

void tr_runtime_peer_up(tr_runtime *rt, uint32_t node_index)
{
    assert(node_index < TR_NODES_MAX);
    assert(node_index != rt->node_index);
    uint32_t bit = 1u << node_index;
    /* relaxed: as in tr_runtime_peer_down. */
    if ((atomic_fetch_and_explicit(&rt->dead_nodes, ~bit, memory_order_relaxed) & bit) != 0)
        delivery_tell_news(rt, bit << TR_NEWS_UP, false);
}

void tr_runtime_peer_down(tr_runtime *rt, uint32_t node_index)
{
    assert(node_index < TR_NODES_MAX);
    assert(node_index != rt->node_index);
    uint32_t bit = 1u << node_index;
    /* relaxed: the news itself travels by peers_news. */
    if ((atomic_fetch_or_explicit(&rt->dead_nodes, bit, memory_order_relaxed) & bit) != 0)
        return;
    delivery_tell_news(rt, bit, true);
    /* Worker 0 finds the queue of the dead node, and drops what is in it. */
    if (rt->outgoing[node_index].queue != NULL) {
        atomic_fetch_or_explicit(&rt->outgoing_ready, bit, memory_order_seq_cst);
        tr_worker_wake(&rt->workers[0]);
    }
}
