#include "core/by_hand.h"

#include "core/runtime_parts.h"

tr_status tr_runtime_start_by_hand(tr_runtime *rt, tr_error *err)
{
    return tr_runtime_seal(rt, err);
}

/* Actors of a word that may run. Moves the bits that producers set to those of the worker. */
static uint64_t by_hand_ready(tr_worker *worker, uint32_t word)
{
    /* acquire: we see every push whose bit we take. */
    worker->again[word] |= atomic_exchange_explicit(&worker->ready[word], 0, memory_order_acquire);
    return worker->again[word] & ~worker->blocked[word];
}

static uint32_t by_hand_count(tr_runtime *rt)
{
    uint32_t count = 0;
    for (uint32_t w = 0; w < rt->workers_count; w++)
        for (uint32_t word = 0; word < rt->workers[w].ready_words; word++)
            count += (uint32_t)__builtin_popcountll(by_hand_ready(&rt->workers[w], word));
    return count;
}

/* The ready actor of this number, which loses its bit. */
static tr_local *by_hand_take(tr_runtime *rt, uint64_t number)
{
    for (uint32_t w = 0; w < rt->workers_count; w++) {
        tr_worker *worker = &rt->workers[w];
        for (uint32_t word = 0; word < worker->ready_words; word++) {
            uint64_t bits = worker->again[word] & ~worker->blocked[word];
            while (bits != 0) {
                uint64_t bit = bits & -bits;
                bits &= bits - 1;
                if (number-- > 0)
                    continue;
                worker->again[word] &= ~bit;
                return worker->actors[word * 64 + (uint32_t)__builtin_ctzll(bit)];
            }
        }
    }
    return NULL;
}

bool tr_runtime_step(tr_runtime *rt, uint64_t choice)
{
    uint32_t events = 0;

    assert(rt->started);
    for (uint32_t w = 0; w < rt->workers_count; w++)
        events += tr_worker_prepare(&rt->workers[w]);
    /* A bit may stand for a message that has been handled already: then another actor has its turn.
     */
    for (uint32_t ready = by_hand_count(rt); ready > 0; ready--) {
        tr_local *a = by_hand_take(rt, choice % ready);
        if (tr_worker_run_one(a->worker, a) > 0)
            return true;
    }
    return events > 0;
}

uint64_t tr_runtime_next_ns(const tr_runtime *rt)
{
    uint64_t next_ns = UINT64_MAX;

    /* One thread does everything, so relaxed loads see all. */
    if (atomic_load_explicit(&rt->outgoing_ready, memory_order_relaxed) != 0)
        return 0;
    for (uint32_t w = 0; w < rt->workers_count; w++) {
        const tr_worker *worker = &rt->workers[w];
        for (uint32_t word = 0; word < worker->ready_words; word++) {
            uint64_t bits = worker->again[word] |
                            atomic_load_explicit(&worker->ready[word], memory_order_relaxed);
            if ((bits & ~worker->blocked[word]) != 0)
                return 0;
        }
        uint64_t timer_ns = tr_timers_first_ns(&worker->timers);
        next_ns = timer_ns < next_ns ? timer_ns : next_ns;
    }
    return next_ns;
}

bool tr_runtime_is_blocked(const tr_runtime *rt)
{
    for (uint32_t w = 0; w < rt->workers_count; w++)
        if (tr_worker_is_blocked(&rt->workers[w]))
            return true;
    return false;
}
