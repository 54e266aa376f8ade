#include "kernels/team.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_MAX 1024
/* Looks at the word before sleeping: about 20 us, longer than the gap between two kernels of one
 * layer, shorter than what a waiting core costs its neighbours. */
#define SPINS_MAX       2000
#define PARTS_PER_ROUND 0xffffu

/* One round of work is one 64-bit word: generation (32 bits), parts (16), next part (16). A thread
 * claims a part by adding one to the word with a compare-and-swap, so a helper that slept through
 * a round can neither claim a part of another one, nor does anybody wait for it.
 *
 * fn, ctx and base are plain: they are written before the word is published (release) and read
 * only by a thread that holds a claim (acquire); the caller does not write them again before each
 * claimed part is counted in done. */
struct tr_team {
    _Alignas(64) _Atomic uint64_t word;
    void (*fn)(void *ctx, uint32_t part, uint32_t thread);
    void *ctx;
    uint32_t base;

    _Alignas(64) _Atomic uint32_t done; /* parts finished in this round; the caller's futex */
    _Atomic uint32_t caller_sleeps;

    _Alignas(64) _Atomic uint32_t sleepers; /* helpers that sleep or are about to */
    _Atomic uint32_t wakes;                 /* the helpers' futex: changes with each wake-up */
    _Atomic bool closing;

    uint32_t threads;
    uint32_t spins;
    struct helper {
        tr_team *team;
        uint32_t thread;
        pthread_t handle;
    } * helpers; /* [threads - 1], owned */
};

static void team_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static void team_futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void team_futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static bool team_has_work(uint64_t word)
{
    return (word & 0xffff) < (word >> 16 & 0xffff);
}

/* Takes parts of the current round until there are none. */
static void team_work(tr_team *team, uint32_t thread)
{
    uint64_t word = atomic_load_explicit(&team->word, memory_order_acquire);

    while (team_has_work(word)) {
        /* acquire: pairs with the release that published fn, ctx and base */
        if (!atomic_compare_exchange_weak_explicit(&team->word, &word, word + 1,
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        uint32_t parts = word >> 16 & 0xffff;
        team->fn(team->ctx, team->base + (uint32_t)(word & 0xffff), thread);
        /* seq_cst: what fn wrote is visible to the caller, who reads done; and either it sees that
         * we are done, or we see that it sleeps. */
        if (atomic_fetch_add_explicit(&team->done, 1, memory_order_seq_cst) + 1 == parts &&
            atomic_load_explicit(&team->caller_sleeps, memory_order_seq_cst) != 0)
            team_futex_wake(&team->done, 1);
        word = atomic_load_explicit(&team->word, memory_order_acquire);
    }
}

/* Spins, then sleeps, until there is work or the team closes. */
static void team_wait_for_work(tr_team *team)
{
    for (uint32_t i = 0; i < team->spins; i++) {
        if (team_has_work(atomic_load_explicit(&team->word, memory_order_acquire)) ||
            atomic_load_explicit(&team->closing, memory_order_relaxed))
            return;
        team_pause();
    }

    /* sleepers, then word, both sequentially consistent; the caller publishes the word, then
     * reads sleepers. So either we see the word or the caller sees us and changes wakes. */
    atomic_fetch_add_explicit(&team->sleepers, 1, memory_order_seq_cst);
    uint32_t wakes = atomic_load_explicit(&team->wakes, memory_order_seq_cst);
    if (!team_has_work(atomic_load_explicit(&team->word, memory_order_seq_cst)) &&
        !atomic_load_explicit(&team->closing, memory_order_seq_cst))
        team_futex_wait(&team->wakes, wakes);
    atomic_fetch_sub_explicit(&team->sleepers, 1, memory_order_seq_cst);
}

static void *team_helper(void *arg)
{
    struct helper *helper = arg;
    tr_team *team = helper->team;

    while (!atomic_load_explicit(&team->closing, memory_order_acquire)) {
        team_work(team, helper->thread);
        team_wait_for_work(team);
    }
    return NULL;
}

static void team_wake_helpers(tr_team *team)
{
    if (atomic_load_explicit(&team->sleepers, memory_order_seq_cst) == 0)
        return;
    atomic_fetch_add_explicit(&team->wakes, 1, memory_order_seq_cst);
    team_futex_wake(&team->wakes, THREADS_MAX);
}

/* Waits until done reaches parts. The parts are running on our own threads, so this ends. */
static void team_wait_for_done(tr_team *team, uint32_t parts)
{
    for (uint32_t i = 0; i < team->spins; i++) {
        if (atomic_load_explicit(&team->done, memory_order_acquire) == parts)
            return;
        team_pause();
    }
    atomic_store_explicit(&team->caller_sleeps, 1, memory_order_seq_cst);
    uint32_t done;
    while ((done = atomic_load_explicit(&team->done, memory_order_seq_cst)) != parts)
        team_futex_wait(&team->done, done);
    atomic_store_explicit(&team->caller_sleeps, 0, memory_order_relaxed);
}

tr_status tr_team_open(tr_team **out, uint32_t threads, tr_error *err)
{
    if (threads == 0 || threads > THREADS_MAX)
        return tr_fail(err, TR_E_INVALID, "kernel team: %u threads, expected 1..%u", threads,
                       (unsigned)THREADS_MAX);
    tr_team *team = aligned_alloc(64, sizeof(*team));
    if (team == NULL)
        return tr_fail(err, TR_E_NOMEM, "kernel team: no memory for %u threads", threads);
    memset(team, 0, sizeof(*team));
    team->threads = 1;
    /* With fewer processors than threads a spinning thread only delays the one it waits for. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    team->spins = online >= (long)threads ? SPINS_MAX : 0;
    team->helpers = calloc(threads, sizeof(*team->helpers));
    if (team->helpers == NULL) {
        tr_team_close(team);
        return tr_fail(err, TR_E_NOMEM, "kernel team: no memory for %u threads", threads);
    }
    for (uint32_t i = 1; i < threads; i++) {
        struct helper *helper = &team->helpers[i - 1];
        *helper = (struct helper){.team = team, .thread = i};
        int code = pthread_create(&helper->handle, NULL, team_helper, helper);
        if (code != 0) {
            tr_team_close(team);
            return tr_fail(err, TR_E_NOMEM, "kernel team: thread %u of %u: %s", i, threads,
                           strerror(code));
        }
        team->threads++;
    }
    *out = team;
    return TR_OK;
}

void tr_team_close(tr_team *team)
{
    if (team == NULL)
        return;
    atomic_store_explicit(&team->closing, true, memory_order_seq_cst);
    team_wake_helpers(team);
    for (uint32_t i = 1; i < team->threads; i++)
        pthread_join(team->helpers[i - 1].handle, NULL);
    free(team->helpers);
    free(team);
}

uint32_t tr_team_size(const tr_team *team)
{
    return team == NULL ? 1 : team->threads;
}

/* One round: parts <= PARTS_PER_ROUND, numbered from base. */
static void team_round(tr_team *team, uint32_t base, uint32_t parts,
                       void (*fn)(void *ctx, uint32_t part, uint32_t thread), void *ctx)
{
    uint64_t word = atomic_load_explicit(&team->word, memory_order_relaxed);

    assert(!team_has_work(word)); /* does not nest */
    team->fn = fn;
    team->ctx = ctx;
    team->base = base;
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    word = ((word >> 32) + 1) << 32 | (uint64_t)parts << 16;
    atomic_store_explicit(&team->word, word, memory_order_seq_cst);
    team_wake_helpers(team);
    team_work(team, 0);
    team_wait_for_done(team, parts);
}

void tr_team_run(tr_team *team, uint32_t parts,
                 void (*fn)(void *ctx, uint32_t part, uint32_t thread), void *ctx)
{
    if (team == NULL || team->threads == 1 || parts == 1) {
        for (uint32_t part = 0; part < parts; part++)
            fn(ctx, part, 0);
        return;
    }
    for (uint32_t base = 0; base < parts; base += PARTS_PER_ROUND) {
        uint32_t left = parts - base;
        team_round(team, base, left < PARTS_PER_ROUND ? left : PARTS_PER_ROUND, fn, ctx);
    }
}
