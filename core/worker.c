/* worker.c - one thread that runs actors.
 *
 * A turn:
 *   1. timers that are due become TIMER messages
 *   2. outboxes that could not be emptied are tried again
 *   3. every ready actor handles up to TR_BATCH_MAX messages
 *   4. worker 0: messages that wait for room, messages to other nodes, pollers
 * A turn that did nothing is followed by a short rest: relax the core, then offer it to others,
 * then sleep on a futex. */
#include "core/runtime_parts.h"

#include "core/allocation_guard.h"
#include "core/log.h"
#include "core/trace.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORKER_TIMER_RETRY 100000u   /* ns; after a TIMER found its mailbox full */
#define WORKER_BLOCKED_NS  50000u    /* longest sleep while an outbox or a list waits for room */
#define WORKER_ALONE_NS    50000000u /* longest sleep without pollers: somebody always wakes us */

static void worker_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

uint64_t tr_worker_trace_id(tr_worker *worker)
{
    /* node | worker | counter: unique without asking anybody. Worker 255 is every outside thread,
     * see tr_runtime_post. */
    return (uint64_t)worker->rt->node_index << 56 | (uint64_t)worker->index << 48 |
           (++worker->trace_next & 0xffffffffffffu);
}

void tr_worker_ready_own(tr_worker *worker, const tr_local *local)
{
    worker->again[local->ready_word] |= local->ready_bit;
}

void tr_worker_ready(tr_worker *worker, const tr_local *local)
{
    /* seq_cst: publishes the push to the worker's exchange (release), and comes before the look at
     * sleeping in the one order that worker_sleep relies on. */
    uint64_t before = atomic_fetch_or_explicit(&worker->ready[local->ready_word], local->ready_bit,
                                               memory_order_seq_cst);
    if ((before & local->ready_bit) == 0)
        tr_worker_wake(worker);
}

void tr_worker_wake(tr_worker *worker)
{
    /* seq_cst: see worker_sleep. The exchange lets one of several wakers do the system call. */
    if (atomic_load_explicit(&worker->sleeping, memory_order_seq_cst) == 1 &&
        atomic_exchange_explicit(&worker->sleeping, 0, memory_order_seq_cst) == 1)
        syscall(SYS_futex, &worker->sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Hands one message to the actor; begin_ns is when it got its turn, the end is returned. */
static uint64_t worker_receive(tr_local *a, const tr_msg *msg, uint64_t begin_ns)
{
    tr_status status = TR_OK;
    bool failed = atomic_load_explicit(&a->failed, memory_order_relaxed);
    if (failed) {
        tr_local_refuse(a, &msg->header);
    } else {
        a->sends = 0;
        a->active = true;
        if (!a->ops->may_allocate)
            tr_guard_enter(a->entry->name, msg->header.kind);
        status = a->ops->receive(a->state, msg);
        tr_guard_leave();
        a->active = false;
    }
    tr_buf_unref(msg->payload);

    uint64_t end_ns = tr_clock_ns();
    tr_trace_span_until(TR_TRACE_RECEIVE, msg->header.kind, a->entry->id, msg->header.trace_id,
                        begin_ns, end_ns);
    /* relaxed, and no read-modify-write: only this thread writes these. */
    atomic_store_explicit(&a->received_count,
                          atomic_load_explicit(&a->received_count, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(
        &a->busy_ns, atomic_load_explicit(&a->busy_ns, memory_order_relaxed) + (end_ns - begin_ns),
        memory_order_relaxed);
    if (status != TR_OK)
        tr_local_failed(a, &msg->header, status);
    return end_ns;
}

/* After a message: an actor whose outbox holds something does not run until it is empty. */
static bool worker_block_if_full(tr_worker *worker, tr_local *a)
{
    if (a->outbox_count == 0)
        return false;
    worker->blocked[a->ready_word] |= a->ready_bit;
    return true;
}

/* Takes one piece of news about some node out of the bits. A node that went and came, or came and
 * went, since the actor last ran: what is true now comes last. */
static tr_msg_kind worker_next_news(const tr_runtime *rt, uint32_t *news, uint32_t *node)
{
    *node = (uint32_t)__builtin_ctz(*news | *news >> TR_NEWS_UP);
    uint32_t down = 1u << *node, up = down << TR_NEWS_UP;
    bool dead = atomic_load_explicit(&rt->dead_nodes, memory_order_relaxed) >> *node & 1;
    bool tell_up = (*news & up) != 0 && (dead || (*news & down) == 0);

    *news &= ~(tell_up ? up : down);
    return tell_up ? TR_MSG_PEER_UP : TR_MSG_PEER_DOWN;
}

/* Up to messages_max messages for one actor; returns how many. Inline, because workers spend their
 * time here: with a call for each turn of an actor a round trip took 5 % longer. */
static inline uint32_t worker_run_actor(tr_worker *worker, tr_local *a, uint32_t messages_max)
{
    uint32_t count = 0;
    uint64_t now_ns = tr_clock_ns();

    /* relaxed look first: this is nearly always zero. acquire on the exchange pairs with the
     * fetch_or in delivery.c. */
    if (atomic_load_explicit(&a->peers_news, memory_order_relaxed) != 0) {
        uint32_t news = atomic_exchange_explicit(&a->peers_news, 0, memory_order_acquire);
        while (news != 0) {
            uint32_t node;
            tr_msg_kind kind = worker_next_news(worker->rt, &news, &node);
            tr_msg msg = tr_runtime_message(worker->rt, 0, a->entry->id, kind, 0, node,
                                            tr_worker_trace_id(worker), NULL);
            now_ns = worker_receive(a, &msg, now_ns);
            count++;
            if (worker_block_if_full(worker, a)) {
                atomic_fetch_or_explicit(&a->peers_news, news, memory_order_relaxed);
                return count;
            }
        }
    }

    tr_msg msg;
    while (count < messages_max) {
        if (!tr_mailbox_pop(a->mailbox, &msg))
            return count;
        now_ns = worker_receive(a, &msg, now_ns);
        count++;
        if (worker_block_if_full(worker, a))
            return count;
    }
    tr_worker_ready_own(worker, a); /* there may be more */
    return count;
}

static uint32_t worker_run_ready(tr_worker *worker)
{
    uint32_t count = 0;
    for (uint32_t word = 0; word < worker->ready_words; word++) {
        uint64_t bits = worker->again[word];
        worker->again[word] = 0;
        /* relaxed look first, so that an idle worker does not write the line that producers want.
         * seq_cst on the exchange (acquire would do): we see every push whose bit we take, and a
         * push whose bit comes later in the order of this word makes another turn. */
        if (atomic_load_explicit(&worker->ready[word], memory_order_relaxed) != 0)
            bits |= atomic_exchange_explicit(&worker->ready[word], 0, memory_order_seq_cst);
        bits &= ~worker->blocked[word]; /* those get their bit back when the outbox is empty */
        while (bits != 0) {
            uint32_t bit = (uint32_t)__builtin_ctzll(bits);
            bits &= bits - 1;
            count += worker_run_actor(worker, worker->actors[word * 64 + bit], TR_BATCH_MAX);
        }
    }
    return count;
}

/* Tries the outboxes that were left with something; returns how many are empty now. */
static inline uint32_t worker_flush(tr_worker *worker)
{
    uint32_t count = 0;
    for (uint32_t word = 0; word < worker->ready_words; word++) {
        uint64_t bits = worker->blocked[word];
        while (bits != 0) {
            uint32_t bit = (uint32_t)__builtin_ctzll(bits);
            bits &= bits - 1;
            tr_local *a = worker->actors[word * 64 + bit];
            if (!tr_local_flush(a))
                continue;
            worker->blocked[word] &= ~a->ready_bit;
            tr_worker_ready_own(worker, a); /* its ready bit may have been dropped meanwhile */
            count++;
        }
    }
    return count;
}

bool tr_worker_is_blocked(const tr_worker *worker)
{
    for (uint32_t word = 0; word < worker->ready_words; word++) {
        if (worker->blocked[word] != 0)
            return true;
    }
    return worker->index == 0 && (worker->rt->waiting_count > 0 || worker->rt->outgoing_again != 0);
}

static inline uint32_t worker_run_timers(tr_worker *worker)
{
    if (worker->timers.count == 0)
        return 0;
    uint32_t count = 0;
    uint64_t now_ns = tr_runtime_now_ns(worker->rt);
    tr_timer timer;
    while (count < TR_BATCH_MAX && tr_timers_next(&worker->timers, now_ns, &timer)) {
        tr_local *a = timer.owner;
        tr_msg msg = tr_runtime_message(worker->rt, a->entry->id, a->entry->id, TR_MSG_TIMER, 0,
                                        timer.cookie, tr_worker_trace_id(worker), NULL);
        count++;
        if (tr_mailbox_push(a->mailbox, &msg) == TR_OK) {
            tr_worker_ready_own(worker, a);
        } else {
            /* There is room: this one has just left. */
            tr_status status =
                tr_timers_add(&worker->timers, now_ns + WORKER_TIMER_RETRY, a, timer.cookie);
            assert(status == TR_OK);
            (void)status;
        }
    }
    return count;
}

static inline uint32_t worker_exchange(tr_runtime *rt)
{
    uint32_t events = tr_runtime_retry_waiting(rt);
    events += tr_runtime_send_outgoing(rt);
    for (uint32_t i = 0; i < rt->pollers_count; i++)
        events += rt->pollers[i].poll(rt->pollers[i].ctx);
    return events;
}

static uint32_t worker_turn(tr_worker *worker)
{
    uint32_t events = worker_run_timers(worker);
    events += worker_flush(worker);
    events += worker_run_ready(worker);
    if (worker->index == 0)
        events += worker_exchange(worker->rt);
    return events;
}

/* -- for by_hand.c -- */

uint32_t tr_worker_prepare(tr_worker *worker)
{
    uint32_t events = worker_run_timers(worker);
    events += worker_flush(worker);
    return worker->index == 0 ? events + worker_exchange(worker->rt) : events;
}

uint32_t tr_worker_run_one(tr_worker *worker, tr_local *a)
{
    return worker_run_actor(worker, a, 1);
}

/* -- sleep -- */

static bool worker_has_work(tr_worker *worker)
{
    tr_runtime *rt = worker->rt;
    for (uint32_t word = 0; word < worker->ready_words; word++) {
        if (worker->again[word] != 0 || /* a poller delivered and said that nothing happened */
            atomic_load_explicit(&worker->ready[word], memory_order_seq_cst) != 0)
            return true;
    }
    if (worker->index == 0 && atomic_load_explicit(&rt->outgoing_ready, memory_order_seq_cst) != 0)
        return true;
    return atomic_load_explicit(&rt->stopping, memory_order_seq_cst);
}

/* Sleeps until woken, at most until the next timer or until pollers want to be called.
 *
 * The worker stores sleeping and then looks for work; a producer stores work and then looks at
 * sleeping. All four are seq_cst, so at least one of the two sees the other's store: either we find
 * the work here, or the producer clears sleeping and the futex does not wait. */
static void worker_sleep(tr_worker *worker, uint64_t now_ns)
{
    tr_runtime *rt = worker->rt;
    uint64_t sleep_ns =
        worker->index == 0 && rt->pollers_count > 0 ? rt->idle_sleep_ns : WORKER_ALONE_NS;
    if (tr_worker_is_blocked(worker) && sleep_ns > WORKER_BLOCKED_NS)
        sleep_ns = WORKER_BLOCKED_NS;
    uint64_t timer_ns = tr_timers_first_ns(&worker->timers);
    if (timer_ns <= now_ns)
        return;
    if (timer_ns - now_ns < sleep_ns)
        sleep_ns = timer_ns - now_ns;

    atomic_store_explicit(&worker->sleeping, 1, memory_order_seq_cst);
    if (!worker_has_work(worker)) {
        struct timespec wait = {.tv_sec = (time_t)(sleep_ns / 1000000000u),
                                .tv_nsec = (long)(sleep_ns % 1000000000u)};
        /* Whatever it returns (woken, timed out, interrupted, not asleep any more), we look. */
        syscall(SYS_futex, &worker->sleeping, FUTEX_WAIT_PRIVATE, 1, &wait, NULL, 0);
    }
    atomic_store_explicit(&worker->sleeping, 0, memory_order_seq_cst);
}

static void worker_idle(tr_worker *worker)
{
    tr_runtime *rt = worker->rt;
    uint64_t now_ns = tr_clock_ns();
    if (worker->idle_since_ns == 0)
        worker->idle_since_ns = now_ns;
    uint64_t idle_ns = now_ns - worker->idle_since_ns;

    if (idle_ns >= rt->idle_spin_ns) {
        if (worker->slept_since_ns == 0)
            worker->slept_since_ns = now_ns;
        worker_sleep(worker, now_ns);
    } else if (idle_ns >= rt->relax_ns) {
        sched_yield(); /* there may be fewer cores than threads that spin */
    } else {
        worker_relax();
    }
}

/* One WAIT span for the whole time without work, however often the sleep was interrupted:
 * otherwise an idle node would fill its ring with sleeps. */
static void worker_end_idle(tr_worker *worker)
{
    if (worker->slept_since_ns != 0)
        tr_trace_span(TR_TRACE_WAIT, 0, 0, 0, worker->slept_since_ns);
    worker->slept_since_ns = 0;
    worker->idle_since_ns = 0;
}

void *tr_worker_main(void *arg)
{
    tr_worker *worker = arg;
    tr_runtime *rt = worker->rt;
    char name[TR_ACTOR_NAME_SIZE + 16];
    snprintf(name, sizeof(name), "%s/worker%u", rt->node_name, worker->index);

    tr_error err;
    if (tr_trace_attach(name, TR_WORKER_TRACE_EVENTS, &err) != TR_OK)
        tr_log(TR_LOG_WARN, NULL, "trace_off", "thread=%s reason=\"%s\"", name, err.text);
    /* acquire: pairs with tr_runtime_stop. */
    while (!atomic_load_explicit(&rt->stopping, memory_order_acquire)) {
        if (worker_turn(worker) == 0)
            worker_idle(worker);
        else if (worker->idle_since_ns != 0)
            worker_end_idle(worker);
    }
    tr_trace_detach();
    return NULL;
}
