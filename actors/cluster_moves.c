/* cluster_moves.c - the changes of placement in their order, on the batcher's node: what people ask
 * for, and what losses make necessary. One change at a time; cluster_moves_run.c carries it out. */
#include "actors/cluster_moves.h"
#include "actors/cluster_stream.h"
#include "core/log.h"
#include "core/plan_edit.h"

#include <stdlib.h>
#include <string.h>

/* The report says how it ended; moves_next shows it. */
static tr_change_report moves_one(cluster_moves *m)
{
    tr_error err = {0};

    pthread_mutex_lock(&m->lock);
    tr_change_report report = m->reports[(m->next_number - 1) % MOVES_REPORTS];
    pthread_mutex_unlock(&m->lock);
    uint64_t begin = cluster_now(m->cluster);
    bool states = m->job != NULL && m->job != moves_balance;
    tr_status status = m->job != NULL ? m->job(m, &report, &err) : moves_run(m, &report, &err);
    if (status != TR_OK) /* a file says that it was given up, and not why */
        (void)moves_check_abort(m, &err);
    report.total_ns = cluster_now(m->cluster) - begin;
    if (status != TR_OK)
        report.error = err;
    tr_log(status == TR_OK ? TR_LOG_INFO : TR_LOG_WARN, NULL,
           states ? "states_file" : "placement_change", "what=\"%s\" %s=\"%s\" pause_ms=%.3f",
           report.what, status == TR_OK ? "done" : "failed", err.text,
           (double)report.pause_ns / 1e6);
    snprintf(report.phase, sizeof(report.phase), "%s", status == TR_OK ? "done" : "failed");
    tr_plan_free(&m->plan);
    m->drained = 0;
    m->job = NULL;
    return report;
}

void moves_number(cluster_moves *m, tr_plan *plan)
{
    m->last_epoch = (plan->epoch > m->last_epoch ? plan->epoch : m->last_epoch) + 1;
    plan->epoch = m->last_epoch;
}

/* m->plan is the next change, on behalf of a node. */
static void moves_report_next(cluster_moves *m, const char *what, uint32_t node, uint32_t moved,
                              uint32_t lost)
{
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->abort_asked, false);
    moves_number(m, &m->plan);
    tr_change_report *report = &m->reports[m->next_number % MOVES_REPORTS];
    *report = (tr_change_report){
        .number = m->next_number++, .moved = moved, .epoch = m->plan.epoch, .lost = lost};
    snprintf(report->what, sizeof(report->what), "%s %s", what,
             m->cluster->placement->nodes[node].name);
    snprintf(report->phase, sizeof(report->phase), "prepare");
    pthread_mutex_unlock(&m->lock);
}

tr_status moves_drain(const tr_cluster *c, tr_plan *plan, uint32_t nodes, const uint64_t *room,
                      uint32_t *moved, tr_error *err)
{
    uint32_t others = 0, part = 0;
    tr_status status = TR_OK;

    *moved = 0;
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        if (!(nodes >> n & 1) && cluster_is_alive(c, n))
            others |= 1u << n;
    for (uint32_t n = 0; status == TR_OK && nodes >> n != 0; n++)
        if (nodes >> n & 1) {
            status = tr_plan_drain(plan, n, others, room, &part, err);
            *moved += part;
            if (status == TR_OK)
                cluster_stream_place_ngram(c, plan, others);
        }
    return status;
}

/* Losses become a change: to the current plan without all nodes that are gone. */
static void moves_plan_loss(cluster_moves *m, uint32_t lost)
{
    tr_cluster *c = m->cluster;
    uint32_t moved = 0;
    tr_error err = {0};

    tr_status status = tr_cluster_plan(c, &m->plan, &err);
    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        if (cluster_is_alive(c, n))
            continue;
        if (status == TR_OK && tr_plan_uses(&m->plan, n))
            lost |= 1u << n; /* also one that died while the last change put something on it */
        else
            lost &= ~(1u << n);
    }
    if (status == TR_OK && lost != 0) {
        moves_note_home(m, &m->plan, lost);
        status = moves_drain(c, &m->plan, lost, NULL, &moved, &err);
    }
    if (status == TR_OK && lost == 0) { /* the placement does not use it any more */
        tr_plan_free(&m->plan);
        return;
    }
    if (status != TR_OK) { /* no memory, or nobody is left to take it */
        tr_plan_free(&m->plan);
        moves_give_up(m, &err);
        return;
    }
    m->drained = lost;
    moves_report_next(m, "go on without", (uint32_t)__builtin_ctz(lost), moved, lost);
}

/* What was lost meanwhile or has come back becomes the next change; false when there is none.
 *   ended  what has just come to its end: who reads that may begin the next, so it is shown with it
 */
static bool moves_next(cluster_moves *m, const tr_change_report *ended)
{
    uint32_t node = 0, moved = 0;

    pthread_mutex_lock(&m->lock);
    uint32_t lost = m->lost;
    if (ended->number != 0)
        m->reports[ended->number % MOVES_REPORTS] = *ended;
    moves_note_return(m, ended);
    m->lost = 0;
    m->busy = lost != 0 || m->returning != 0;
    bool more = m->busy;
    pthread_mutex_unlock(&m->lock);
    if (lost != 0)
        moves_plan_loss(m, lost);
    else if (more && moves_next_return(m, &m->plan, &node, &moved))
        moves_report_next(m, "give its share back to", node, moved, 0);
    return more;
}

/* The change that was asked for, if one was, then what follows from losses and returns. */
static void *moves_main(void *ctx)
{
    cluster_moves *m = ctx;
    tr_change_report ended;
    do {
        ended = (tr_change_report){0};
        if (m->plan.attention != NULL || m->job != NULL)
            ended = moves_one(m);
        else if (m->join.phase == MOVES_JOIN_ASKED)
            moves_join_run(m);
    } while (moves_next(m, &ended));
    return NULL;
}

tr_status moves_start_thread(cluster_moves *m, tr_error *err)
{
    if (m->stopped)
        return tr_fail(err, TR_E_AGAIN, "the node ends");
    cluster_thread_join(m->cluster, &m->thread); /* it has said that it is not busy any more */
    m->busy = cluster_thread_start(m->cluster, &m->thread, moves_main, m);
    return m->busy ? TR_OK : tr_fail(err, TR_E_NOMEM, "no thread for a change of placement");
}

/* Starts the thread for the change, or the job, whose report was made last; without a thread there
 * has been none. With the lock held. */
static tr_status moves_start_last(cluster_moves *m, tr_error *err)
{
    tr_status status = moves_start_thread(m, err);
    if (status != TR_OK) {
        m->next_number--;
        m->reports[m->next_number % MOVES_REPORTS] = (tr_change_report){.number = 0};
    }
    return status;
}

void cluster_moves_recover(tr_cluster *c, uint32_t node)
{
    cluster_moves *m = c->moves;
    pthread_mutex_lock(&m->lock);
    m->lost |= 1u << node;
    atomic_store(&m->job_given_up, true);
    if (!m->busy) /* without a thread the requests wait, and fail by their deadlines */
        (void)moves_start_thread(m, NULL);
    pthread_mutex_unlock(&m->lock);
}

/* -- what people ask -- */

/* The edit of a change: writes into plan, counts. An edit that changes nothing is refused. */
typedef tr_status (*moves_edit)(tr_cluster *c, tr_plan *plan, const char *part, uint32_t node,
                                uint32_t *moved, tr_error *err);

static tr_status edit_move(tr_cluster *c, tr_plan *plan, const char *part, uint32_t node,
                           uint32_t *moved, tr_error *err)
{
    tr_status status = tr_plan_move(plan, part, node, moved, err);
    if (status == TR_OK && *moved == 0)
        status = tr_fail(err, TR_E_INVALID, "nothing of %s stands elsewhere than on %s", part,
                         c->placement->nodes[node].name);
    return status;
}

static tr_status edit_replicate(tr_cluster *c, tr_plan *plan, const char *part, uint32_t node,
                                uint32_t *moved, tr_error *err)
{
    tr_status status = tr_plan_replicate(plan, part, node, moved, err);
    if (status == TR_OK && *moved == 0)
        status = tr_fail(err, TR_E_INVALID, "all of %s stands on %s already", part,
                         c->placement->nodes[node].name);
    return status;
}

static tr_status edit_drain(tr_cluster *c, tr_plan *plan, const char *part, uint32_t node,
                            uint32_t *moved, tr_error *err)
{
    (void)part;
    tr_status status = moves_drain(c, plan, 1u << node, NULL, moved, err);
    if (status == TR_OK && *moved == 0)
        status = tr_fail(err, TR_E_INVALID, "nothing stands on %s", c->placement->nodes[node].name);
    return status;
}

static tr_status edit_undrain(tr_cluster *c, tr_plan *plan, const char *part, uint32_t node,
                              uint32_t *moved, tr_error *err)
{
    tr_plan home; /* what the file says, as at the start */
    (void)part;
    tr_status status = tr_plan_make(&home, c->placement, &c->shape, err);
    if (status != TR_OK)
        return status;
    status = tr_plan_return(plan, &home, node, moved, err);
    tr_plan_free(&home);
    if (status == TR_OK && *moved == 0)
        status = tr_fail(err, TR_E_INVALID, "nothing that %.100s gives to %s stands elsewhere",
                         c->placement->source, c->placement->nodes[node].name);
    return status;
}

/* Whether this node may be asked for a change. */
static tr_status moves_check(const tr_cluster *c, tr_error *err)
{
    if (c->moves == NULL)
        return tr_fail(err, TR_E_NOTSUP, "changes of placement are made on node %s",
                       c->placement->nodes[c->placement->batcher_node].name);
    if (!atomic_load(&c->serving))
        return tr_fail(err, TR_E_AGAIN, "the cluster does not serve yet");
    return TR_OK;
}

static tr_status moves_begin(tr_cluster *c, moves_edit edit, const char *verb, const char *part,
                             const char *node_name, uint64_t *number, tr_error *err)
{
    cluster_moves *m = c->moves;
    uint32_t moved = 0, node = tr_placement_find_node(c->placement, node_name);
    tr_plan plan = {0};

    tr_status status = moves_check(c, err);
    if (status != TR_OK)
        return status;
    if (node == TR_NODES_MAX)
        return tr_fail(err, TR_E_INVALID, "node \"%s\" is not in %s", node_name,
                       c->placement->source);
    pthread_mutex_lock(&m->lock); /* from here on the plan is the one that changes */
    if (m->busy)
        status = tr_fail(err, TR_E_AGAIN, "another change of placement is under way");
    if (status == TR_OK)
        status = tr_cluster_plan(c, &plan, err);
    if (status == TR_OK && edit != edit_drain && !cluster_is_alive(c, node))
        status = tr_fail(err, TR_E_PEER, "node %s is gone", node_name);
    if (status == TR_OK)
        status = edit(c, &plan, part, node, &moved, err);
    if (status == TR_OK) {
        moves_number(m, &plan);
        tr_change_report *report = &m->reports[m->next_number % MOVES_REPORTS];
        *report = (tr_change_report){
            .number = m->next_number, .asked = true, .moved = moved, .epoch = plan.epoch};
        atomic_store(&m->abort_asked, false);
        snprintf(report->what, sizeof(report->what), "%s %s%s%s", verb, part,
                 part[0] != '\0' ? " to " : "", node_name);
        snprintf(report->phase, sizeof(report->phase), "prepare");
        *number = m->next_number++;
        m->plan = plan;
        m->drained = edit == edit_drain ? 1u << node : 0;
        plan = (tr_plan){0};
        status = moves_start_last(m, err);
        if (status != TR_OK) {
            tr_plan_free(&m->plan);
            m->drained = 0;
        }
    }
    pthread_mutex_unlock(&m->lock);
    tr_plan_free(&plan);
    return status;
}

/* With the lock held. what: the whole of it; phase: the first. */
static tr_status moves_start_job(cluster_moves *m, cluster_job job, const char *what,
                                 const char *phase, uint64_t *number, tr_error *err)
{
    tr_change_report *report = &m->reports[m->next_number % MOVES_REPORTS];
    *report = (tr_change_report){.number = m->next_number, .asked = true};
    atomic_store(&m->abort_asked, false);
    snprintf(report->what, sizeof(report->what), "%s", what);
    snprintf(report->phase, sizeof(report->phase), "%s", phase);
    *number = m->next_number++;
    m->job = job;
    atomic_store(&m->job_given_up, m->stopped);
    tr_status status = moves_start_last(m, err);
    if (status != TR_OK)
        m->job = NULL;
    return status;
}

tr_status cluster_moves_begin_job(tr_cluster *c, cluster_job job, const char *what,
                                  const char *phase, const char *path, uint64_t *number,
                                  tr_error *err)
{
    cluster_moves *m = c->moves;
    char whole[sizeof(m->reports[0].what)];
    tr_status status = moves_check(c, err);

    if (status != TR_OK)
        return status;
    if (path[0] != '/' || strlen(path) >= sizeof(m->job_path))
        return tr_fail(err, TR_E_INVALID,
                       "file: found '%.100s', expected a path from / on, of at "
                       "most %zu bytes",
                       path, sizeof(m->job_path) - 1);
    pthread_mutex_lock(&m->lock);
    if (m->busy)
        status = tr_fail(err, TR_E_AGAIN, "another change of placement is under way");
    if (status == TR_OK && m->slot.tokens == NULL) {
        m->slot.tokens = calloc(c->node.limits.context_max, sizeof(*m->slot.tokens));
        if (m->slot.tokens == NULL)
            status = tr_fail(err, TR_E_NOMEM, "no memory for the tokens of a sequence");
    }
    if (status == TR_OK) {
        snprintf(m->job_path, sizeof(m->job_path), "%s", path);
        snprintf(whole, sizeof(whole), "%s %.120s", what, path);
        status = moves_start_job(m, job, whole, phase, number, err);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

tr_status tr_cluster_move(tr_cluster *c, const char *part, const char *node, uint64_t *number,
                          tr_error *err)
{
    return moves_begin(c, edit_move, "move", part, node, number, err);
}

tr_status tr_cluster_drain(tr_cluster *c, const char *node, uint64_t *number, tr_error *err)
{
    return moves_begin(c, edit_drain, "drain", "", node, number, err);
}

tr_status tr_cluster_replicate(tr_cluster *c, const char *part, const char *node, uint64_t *number,
                               tr_error *err)
{
    return moves_begin(c, edit_replicate, "replicate", part, node, number, err);
}

tr_status tr_cluster_undrain(tr_cluster *c, const char *node, uint64_t *number, tr_error *err)
{
    return moves_begin(c, edit_undrain, "undrain", "", node, number, err);
}

tr_status tr_cluster_rebalance(tr_cluster *c, const tr_rebalance_options *options, uint64_t *number,
                               tr_error *err)
{
    cluster_moves *m = c->moves;
    tr_status status = moves_check(c, err);
    if (status != TR_OK)
        return status;
    pthread_mutex_lock(&m->lock);
    if (m->busy) {
        status = tr_fail(err, TR_E_AGAIN, "another change of placement is under way");
    } else {
        m->balance_options = *options;
        status = moves_start_job(m, moves_balance, "rebalance", "measure", number, err);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* With the lock held. */
static tr_status moves_may_abort(const cluster_moves *m, const tr_change_report *report,
                                 tr_error *err)
{
    const char *phase = report->phase;
    if (!m->busy || report->number == 0 || strcmp(phase, "done") == 0 ||
        strcmp(phase, "failed") == 0)
        return tr_fail(err, TR_E_INVALID, "no change of placement is under way");
    if (!report->asked)
        return tr_fail(err, TR_E_INVALID, "\"%.100s\" cannot be aborted: nobody has asked for it",
                       report->what);
    if (strcmp(phase, "switch") == 0 || strcmp(phase, "retire") == 0)
        return tr_fail(err, TR_E_INVALID, "\"%.100s\" cannot be aborted any more: %s", report->what,
                       phase);
    return TR_OK;
}

tr_status tr_cluster_abort(tr_cluster *c, uint64_t *number, tr_error *err)
{
    cluster_moves *m = c->moves;
    tr_status status = moves_check(c, err);
    if (status != TR_OK)
        return status;
    pthread_mutex_lock(&m->lock);
    const tr_change_report *report = &m->reports[(m->next_number - 1) % MOVES_REPORTS];
    status = moves_may_abort(m, report, err);
    if (status == TR_OK) {
        *number = report->number;
        atomic_store(&m->abort_asked, true);
        atomic_store(&m->job_given_up, true);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

bool tr_cluster_change_report(tr_cluster *c, uint64_t number, tr_change_report *out)
{
    cluster_moves *m = c->moves;
    if (m == NULL || number == 0)
        return false;
    pthread_mutex_lock(&m->lock);
    *out = m->reports[number % MOVES_REPORTS];
    pthread_mutex_unlock(&m->lock);
    return out->number == number;
}

tr_status cluster_moves_open(tr_cluster *c, tr_error *err)
{
    cluster_moves *m = calloc(1, sizeof(*m));
    if (m != NULL)
        m->positions = calloc(c->node.limits.sequences_max, sizeof(*m->positions));
    if (m != NULL)
        m->places = calloc(c->node.limits.sequences_max, sizeof(*m->places));
    if (m == NULL || m->positions == NULL || m->places == NULL) {
        if (m != NULL)
            free(m->positions);
        free(m);
        return tr_fail(err, TR_E_NOMEM, "no memory for changes of placement");
    }
    m->cluster = c;
    m->next_number = 1;
    pthread_mutex_init(&m->lock, NULL);
    c->moves = m;
    return TR_OK;
}

void cluster_moves_stop(tr_cluster *c)
{
    cluster_moves *m = c->moves;
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock); /* heartbeats and control calls still come */
    m->stopped = true;
    atomic_store(&m->job_given_up, true);
    pthread_mutex_unlock(&m->lock);
    cluster_thread_join(c, &m->thread);
    cluster_close_lines(&m->lines);
}

void cluster_moves_close(tr_cluster *c)
{
    cluster_moves *m = c->moves;
    if (m == NULL)
        return;
    pthread_mutex_destroy(&m->lock);
    tr_rebalance_free(&m->balance.found);
    tr_plan_free(&m->home);
    free(m->positions);
    free(m->slot.tokens);
    free(m->places);
    free(m);
    c->moves = NULL;
}
