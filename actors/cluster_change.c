/* cluster_change.c - a node's half of a change of placement.
 *
 *   state          event            next
 *   NONE           prepare          PREPARING
 *   PREPARING      weights loaded   READY
 *   READY          warm, fetch      FETCHING
 *   FETCHING       states here      READY
 *   READY          commit           COMMITTED
 *   COMMITTED      retire           RETIRING
 *   COMMITTED      prepare          PREPARING; the retire was lost, and is made up for
 *   READY, FAILED  prepare          PREPARING; likewise the abort
 *   PREPARING, FETCHING   prepare   ABORTING, then NONE; refused, and asked again
 *   RETIRING       memory freed     NONE
 *   PREPARING, FETCHING   a failure FAILED
 *   READY          actors silent    STUCK, for good
 *   up to READY, FAILED   abort     ABORTING
 *   ABORTING       memory freed     NONE
 *
 * The long parts run on a thread of their own, while the node serves. Who decides is
 * cluster_moves.c; what travels are control calls, which may come late or twice: each names the
 * epoch of the plan that it is about. A plan is begun only if it is newer than all that were seen:
 * then whoever decides has done with those. */
#include "actors/cluster_fetch.h"
#include "actors/cluster_node.h"
#include "actors/cluster_stream.h"
#include "core/log.h"
#include "core/plan_edit.h"
#include "core/trace.h"

#include <stdlib.h>
#include <string.h>

#define CHANGE_ASK_NS 10000000000u /* microseconds, unless the machine is starved */

static uint32_t pages_per_sequence(const tr_cluster *c)
{
    return (c->node.limits.context_max + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS;
}

static bool leases_open(cluster_leases *out, uint32_t sequences, uint32_t pages)
{
    out->rows = calloc(sequences, sizeof(*out->rows));
    out->pages = calloc((size_t)sequences * pages, sizeof(*out->pages));
    if (out->rows == NULL || out->pages == NULL)
        return false;
    for (uint32_t i = 0; i < sequences; i++)
        out->rows[i].pages = out->pages + (size_t)i * pages;
    return true;
}

static void leases_close(cluster_leases *leases)
{
    free(leases->rows);
    free(leases->pages);
}

uint64_t cluster_change_bytes(const tr_cluster *c)
{
    uint64_t leases = sizeof(tr_lease_view) + pages_per_sequence(c) * sizeof(uint8_t *);
    return c->node.limits.sequences_max *
           (sizeof(uint32_t) + sizeof(tr_sequence_place) + sizeof(cluster_warm) + 2 * leases);
}

tr_status cluster_change_open(tr_cluster *c, tr_error *err)
{
    cluster_change *change = &c->change;
    uint32_t sequences = c->node.limits.sequences_max, pages = pages_per_sequence(c);

    pthread_mutex_init(&change->lock, NULL);
    change->opened = true;
    change->positions = calloc(sequences, sizeof(*change->positions));
    change->places = calloc(sequences, sizeof(*change->places));
    change->warm = calloc(sequences, sizeof(*change->warm));
    if (change->positions == NULL || change->places == NULL || change->warm == NULL ||
        !leases_open(&change->ours, sequences, pages) ||
        !leases_open(&change->asked, sequences, pages))
        return tr_fail(err, TR_E_NOMEM, "no memory for changes of placement");
    return TR_OK;
}

void cluster_change_close(tr_cluster *c)
{
    cluster_change *change = &c->change;

    if (!change->opened)
        return;
    cluster_thread_join(c, &change->thread);
    cluster_view_free(c, change->view);
    cluster_view_free(c, change->before);
    free(change->positions);
    free(change->places);
    free(change->warm);
    leases_close(&change->ours);
    leases_close(&change->asked);
    pthread_mutex_destroy(&change->lock);
    change->opened = false;
}

/* Frees what was made for a placement that will not be. Phase ABORTING, by the change's thread, or
 * while none runs. */
static void change_free_view(tr_cluster *c)
{
    cluster_change *change = &c->change;

    tr_kv_memory_release(&c->kv_memory, c->node.spec, &change->view->plan, &c->view->plan,
                         c->node_index);
    cluster_view_free(c, change->view);
}

static void *change_discard(void *ctx)
{
    tr_cluster *c = ctx;
    cluster_change *change = &c->change;

    change_free_view(c);
    cluster_lock(c, &change->lock);
    change->view = NULL;
    change->err = (tr_error){0};
    change->phase = CLUSTER_CHANGE_NONE;
    pthread_mutex_unlock(&change->lock);
    return NULL;
}

/* The last act of the thread that loads or fetches. */
static void change_end(tr_cluster *c, tr_status status, const tr_error *err)
{
    cluster_change *change = &c->change;
    bool abandoned;

    cluster_lock(c, &change->lock);
    change->phase = status == TR_OK ? CLUSTER_CHANGE_READY : CLUSTER_CHANGE_FAILED;
    if (status != TR_OK)
        change->err = *err;
    abandoned = atomic_load(&change->abandoned);
    if (abandoned)
        change->phase = CLUSTER_CHANGE_ABORTING;
    pthread_mutex_unlock(&change->lock);
    if (abandoned)
        (void)change_discard(c);
}

/* The thread before has ended, or is about to: no phase with a running thread lets another begin.
 */
static tr_status change_begin_thread(tr_cluster *c, cluster_change_phase phase,
                                     void *(*run)(void *), tr_error *err)
{
    cluster_change *change = &c->change;
    cluster_change_phase before = change->phase;

    cluster_thread_join(c, &change->thread);
    change->phase = phase;
    if (cluster_thread_start(c, &change->thread, run, c))
        return TR_OK;
    change->phase = before;
    return tr_fail(err, TR_E_NOMEM, "no thread for a change of placement");
}

/* -- prepare -- */

/* Bytes of the parts of sequence state that come to the node. */
typedef struct {
    const tr_cluster *c;
    const tr_plan *before, *plan;
    uint64_t bytes;
} part_sum;

static void sum_part(void *ctx, const tr_kv_part *part)
{
    part_sum *sum = ctx;
    if (cluster_part_comes(sum->c, part, sum->before, sum->plan))
        sum->bytes += (uint64_t)sum->c->node.pages_max * part->page_size +
                      (uint64_t)sum->c->node.limits.sequences_max * part->state_size;
}

/* What the view needs on top of what the node has, against the budget. */
static tr_status change_check_budget(tr_cluster *c, cluster_view *view, uint64_t *bytes,
                                     tr_error *err)
{
    tr_budget parts, table; /* parts: rows of the whole view; only its sums matter here */
    char needed[24], used[24], most[24];
    part_sum sum = {.c = c, .before = &c->view->plan, .plan = &view->plan};

    tr_budget_init(&parts, c->budget.node, 0);
    tr_budget_init(&table, c->budget.node, c->budget.bytes_max);
    memcpy(table.limit_why, c->budget.limit_why, sizeof(table.limit_why));
    cluster_view_count(c, view, &parts);
    cluster_view_count_parts(c, view);
    tr_kv_each_part(c->node.spec, sum_part, &sum);
    *bytes = sum.bytes;
    for (uint32_t i = 0; i < c->actors_count; i++)
        *bytes += tr_arena_counted(&view->actors[i].arena);
    tr_budget_add(&table, "in use", "", cluster_memory_taken(c));
    tr_budget_add(&table, "weights, tables and states to come", "", *bytes);
    if (tr_budget_check(&table, NULL) == TR_OK)
        return TR_OK;
    if (c->options.hand == NULL)
        tr_budget_print(&table, stderr);
    return tr_fail(err, TR_E_NOMEM, "%s more than the %s in use, its limit is %s",
                   tr_bytes_text(needed, sizeof(needed), *bytes),
                   tr_bytes_text(used, sizeof(used), cluster_memory_taken(c)),
                   tr_bytes_text(most, sizeof(most), c->budget.bytes_max));
}

static void *change_load(void *ctx)
{
    tr_cluster *c = ctx;
    cluster_change *change = &c->change;
    tr_error err = {0};

    tr_kv_memory_populate(&c->kv_memory, c->node.spec, &c->view->plan, &change->view->plan,
                          c->node_index);
    tr_status status = cluster_view_load(c, change->view, &err);
    cluster_stream_end(c);
    change_end(c, status, &err);
    return NULL;
}

/* Frees what the change has left behind. */
static void change_free_before(tr_cluster *c)
{
    cluster_change *change = &c->change;

    tr_kv_memory_release(&c->kv_memory, c->node.spec, &change->before->plan, &c->view->plan,
                         c->node_index);
    cluster_view_free(c, change->before);
}

/* Whether a plan may be begun: it is newer than all that were seen, and what a former one has left
 * is gone. */
static tr_status change_make_way(tr_cluster *c, uint64_t epoch, tr_error *err)
{
    cluster_change *change = &c->change;
    uint64_t seen = change->epoch > c->view->plan.epoch ? change->epoch : c->view->plan.epoch;

    if (epoch <= seen)
        return tr_fail(err, TR_E_INVALID, "plan: epoch %llu, expected more than %llu",
                       (unsigned long long)epoch, (unsigned long long)seen);
    switch (change->phase) {
    case CLUSTER_CHANGE_NONE:
        return TR_OK;
    case CLUSTER_CHANGE_COMMITTED:
        change_free_before(c);
        change->before = NULL;
        break;
    case CLUSTER_CHANGE_READY:
    case CLUSTER_CHANGE_FAILED:
        change_free_view(c);
        change->view = NULL;
        break;
    case CLUSTER_CHANGE_PREPARING:
    case CLUSTER_CHANGE_FETCHING:
        atomic_store(&change->abandoned, true);
        return tr_fail(err, TR_E_AGAIN, "a former change of placement is being undone");
    case CLUSTER_CHANGE_ABORTING:
    case CLUSTER_CHANGE_RETIRING:
        return tr_fail(err, TR_E_AGAIN, "a former change of placement is coming to its end");
    case CLUSTER_CHANGE_STUCK:
        return tr_fail(err, TR_E_INVALID, "this node cannot go on after a former change");
    }
    change->phase = CLUSTER_CHANGE_NONE;
    return TR_OK;
}

/* Begins to load what a plan, which is taken over, gives to this node. */
static tr_status change_begin(tr_cluster *c, tr_plan *plan, tr_error *err)
{
    cluster_change *change = &c->change;

    change->epoch = plan->epoch;
    change->err = (tr_error){0};
    change->view = cluster_view_new(plan);
    if (change->view == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a plan");
    atomic_store(&change->abandoned, false);
    memset(change->warm, 0, c->node.limits.sequences_max * sizeof(*change->warm));
    tr_status status = cluster_stream_check(c, &change->view->plan, err);
    if (status == TR_OK)
        status = change_check_budget(c, change->view, &change->bytes, err);
    if (status == TR_OK)
        status = change_begin_thread(c, CLUSTER_CHANGE_PREPARING, change_load, err);
    if (status != TR_OK) {
        cluster_view_free(c, change->view);
        change->view = NULL;
    }
    return status;
}

static tr_status change_prepare(tr_cluster *c, const void *bytes, size_t size, tr_error *err)
{
    cluster_change *change = &c->change;
    tr_plan plan;
    tr_error why = {0};

    tr_status status =
        tr_plan_decode(&plan, bytes, size, &c->shape, c->placement->nodes_count, err);
    if (status != TR_OK)
        return status;
    /* The same again, because the answer was lost: it is answered as before. */
    bool same = plan.epoch == change->epoch;
    bool begun = change->phase == CLUSTER_CHANGE_PREPARING ||
                 change->phase == CLUSTER_CHANGE_READY || change->phase == CLUSTER_CHANGE_FAILED;
    bool refused = change->phase == CLUSTER_CHANGE_NONE && change->err.code != TR_OK;
    if (same && (begun || refused)) {
        tr_plan_free(&plan);
        return begun ? TR_OK : tr_fail(err, change->err.code, "%.250s", change->err.text);
    }
    status = change_make_way(c, plan.epoch, err);
    if (status != TR_OK) {
        tr_plan_free(&plan);
        return status;
    }
    status = change_begin(c, &plan, &why);
    if (status != TR_OK) {
        change->err = why;
        return tr_fail(err, status, "%.250s", why.text);
    }
    return TR_OK;
}

tr_status cluster_change_prepare(tr_cluster *c, const void *bytes, size_t size, tr_error *err)
{
    cluster_lock(c, &c->change.lock);
    tr_status status = change_prepare(c, bytes, size, err);
    pthread_mutex_unlock(&c->change.lock);
    return status;
}

cluster_change_phase cluster_change_status(tr_cluster *c, uint64_t *bytes, tr_error *err)
{
    cluster_lock(c, &c->change.lock);
    cluster_change_phase phase = c->change.phase;
    *bytes = c->change.bytes;
    *err = c->change.err;
    pthread_mutex_unlock(&c->change.lock);
    return phase;
}

/* -- fetch -- */

static void *change_fetch(void *ctx)
{
    tr_cluster *c = ctx;
    tr_error err = {0};
    tr_status status = cluster_fetch_states(c, &err);
    change_end(c, status, &err);
    return NULL;
}

static tr_status change_expect(const cluster_change *change, cluster_change_phase phase,
                               uint64_t epoch, const char *what, tr_error *err)
{
    if (change->phase != phase)
        return tr_fail(err, TR_E_INVALID, "%s: the change of placement is not ready for it", what);
    if (change->epoch != epoch)
        return tr_fail(err, TR_E_INVALID, "%s: epoch %llu, the change under way has %llu", what,
                       (unsigned long long)epoch, (unsigned long long)change->epoch);
    return TR_OK;
}

tr_status cluster_change_fetch(tr_cluster *c, uint64_t epoch, const uint32_t *positions,
                               uint32_t positions_count, tr_error *err)
{
    cluster_change *change = &c->change;

    cluster_lock(c, &change->lock);
    tr_status status = change_expect(change, CLUSTER_CHANGE_READY, epoch, "fetch", err);
    if (status == TR_OK && positions_count != c->node.limits.sequences_max)
        status = tr_fail(err, TR_E_INVALID, "fetch: positions: %u, expected %u", positions_count,
                         c->node.limits.sequences_max);
    for (uint32_t i = 0; status == TR_OK && i < positions_count; i++)
        if (positions[i] > c->node.limits.context_max)
            status = tr_fail(err, TR_E_INVALID, "fetch: positions[%u]: %u, expected at most %u", i,
                             positions[i], c->node.limits.context_max);
    if (status == TR_OK) {
        memcpy(change->positions, positions, positions_count * sizeof(*positions));
        status = change_begin_thread(c, CLUSTER_CHANGE_FETCHING, change_fetch, err);
    }
    pthread_mutex_unlock(&change->lock);
    return status;
}

static void *change_warm(void *ctx)
{
    tr_cluster *c = ctx;
    tr_error err = {0};
    tr_status status = cluster_fetch_full_pages(c, &err);
    change_end(c, status, &err);
    return NULL;
}

tr_status cluster_change_warm(tr_cluster *c, uint64_t epoch, const tr_sequence_place *places,
                              uint32_t count, tr_error *err)
{
    cluster_change *change = &c->change;

    cluster_lock(c, &change->lock);
    tr_status status = change_expect(change, CLUSTER_CHANGE_READY, epoch, "warm", err);
    if (status == TR_OK && count != c->node.limits.sequences_max)
        status = tr_fail(err, TR_E_INVALID, "warm: places: %u, expected %u", count,
                         c->node.limits.sequences_max);
    for (uint32_t i = 0; status == TR_OK && i < count; i++)
        if (places[i].position > c->node.limits.context_max)
            status = tr_fail(err, TR_E_INVALID, "warm: places[%u]: %u, expected at most %u", i,
                             places[i].position, c->node.limits.context_max);
    if (status == TR_OK) {
        memcpy(change->places, places, count * sizeof(*places));
        status = change_begin_thread(c, CLUSTER_CHANGE_FETCHING, change_warm, err);
    }
    pthread_mutex_unlock(&change->lock);
    return status;
}

/* -- commit, abort, retire -- */

tr_status cluster_change_commit(tr_cluster *c, uint64_t epoch, tr_error *err)
{
    cluster_change *change = &c->change;
    uint32_t missed = 0;

    cluster_lock(c, &change->lock);
    bool done = change->epoch == epoch && change->phase == CLUSTER_CHANGE_COMMITTED;
    tr_status status =
        done ? TR_OK : change_expect(change, CLUSTER_CHANGE_READY, epoch, "commit", err);
    if (status == TR_OK && !done) {
        cluster_lock(c, &c->questions.lock);
        status = cluster_view_switch(c, change->view, &change->before,
                                     cluster_after(c, CHANGE_ASK_NS), err);
        pthread_mutex_unlock(&c->questions.lock);
        /* An actor that did not answer may go over yet: nothing of either view may be freed. */
        change->phase = status == TR_OK ? CLUSTER_CHANGE_COMMITTED : CLUSTER_CHANGE_STUCK;
    }
    if (status == TR_OK && !done) {
        change->view = NULL;
        missed = cluster_review_losses(c, &change->before->plan);
        tr_log(TR_LOG_INFO, NULL, "placement_changed", "epoch=%llu", (unsigned long long)epoch);
    }
    pthread_mutex_unlock(&change->lock);
    /* When one was lost that only this placement uses, nobody else has begun to. */
    for (uint32_t n = 0; c->moves != NULL && cluster_recovers(c) && missed >> n != 0; n++)
        if (missed >> n & 1)
            cluster_moves_recover(c, n);
    return status;
}

/* A plan is given up that this node has not seen: another refused it first. What a former one has
 * left here is in the way of the next, too. */
static tr_status change_drop_former(tr_cluster *c, uint64_t epoch, tr_error *err)
{
    tr_error why = {0};
    tr_status status = change_make_way(c, epoch, &why);
    if (status == TR_OK || status == TR_E_AGAIN) /* who asks waits for the end of it */
        return TR_OK;
    return tr_fail(err, status, "%.250s", why.text);
}

tr_status cluster_change_abort(tr_cluster *c, uint64_t epoch, tr_error *err)
{
    cluster_change *change = &c->change;
    tr_status status = TR_OK;

    cluster_lock(c, &change->lock);
    if (change->phase == CLUSTER_CHANGE_NONE)
        ; /* it refused the plan */
    else if (change->epoch < epoch)
        status = change_drop_former(c, epoch, err);
    else if (change->epoch != epoch)
        status = change_expect(change, change->phase, epoch, "abort", err);
    else if (change->phase == CLUSTER_CHANGE_PREPARING || change->phase == CLUSTER_CHANGE_FETCHING)
        atomic_store(&change->abandoned, true);
    else if (change->phase == CLUSTER_CHANGE_READY || change->phase == CLUSTER_CHANGE_FAILED)
        status = change_begin_thread(c, CLUSTER_CHANGE_ABORTING, change_discard, err);
    else if (change->phase != CLUSTER_CHANGE_ABORTING)
        status = tr_fail(err, TR_E_INVALID, "abort: the change has been committed");
    pthread_mutex_unlock(&change->lock);
    return status;
}

static void *change_retire(void *ctx)
{
    tr_cluster *c = ctx;
    cluster_change *change = &c->change;

    change_free_before(c);
    cluster_lock(c, &change->lock);
    change->before = NULL;
    change->phase = CLUSTER_CHANGE_NONE;
    pthread_mutex_unlock(&change->lock);
    return NULL;
}

tr_status cluster_change_retire(tr_cluster *c, uint64_t epoch, tr_error *err)
{
    cluster_change *change = &c->change;

    cluster_lock(c, &change->lock);
    bool done = change->epoch == epoch &&
                (change->phase == CLUSTER_CHANGE_RETIRING || change->phase == CLUSTER_CHANGE_NONE);
    tr_status status =
        done ? TR_OK : change_expect(change, CLUSTER_CHANGE_COMMITTED, epoch, "retire", err);
    if (status == TR_OK && !done)
        status = change_begin_thread(c, CLUSTER_CHANGE_RETIRING, change_retire, err);
    pthread_mutex_unlock(&change->lock);
    return status;
}
