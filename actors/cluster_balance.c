/* cluster_balance.c - the coordinator measures, and decides whether experts should stand elsewhere.
 */
#include "actors/cluster_load.h"
#include "actors/cluster_moves.h"

#include <stdlib.h>

/* Figures of all nodes that are there. */
static tr_status balance_measure(cluster_moves *m, tr_load *load, const tr_plan *plan,
                                 tr_error *err)
{
    tr_cluster *c = m->cluster;
    const moves_request ask = {.method = "load_read", .epoch = plan->epoch};

    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        tr_control_reply reply;
        tr_error why = {0};
        if (!cluster_is_alive(c, n))
            continue;
        tr_status status = moves_call(m, n, &ask, &reply, err);
        if (status != TR_OK)
            return status;
        status = cluster_load_add(load, n, reply.map, plan, n == plan->batcher_node, &why);
        tr_control_reply_free(&reply);
        if (status != TR_OK)
            return tr_fail(err, status, "node %s: %.180s", c->placement->nodes[n].name, why.text);
    }
    if (load->step_ns == 0)
        return tr_fail(err, TR_E_AGAIN, "no step has been measured yet: ask for some tokens first");
    for (uint32_t a = 0; load->nodes >> a != 0; a++)
        for (uint32_t b = a + 1; load->nodes >> b != 0; b++)
            if ((load->nodes >> a & 1) && (load->nodes >> b & 1) && load->hop_ns[a][b] == 0)
                return tr_fail(err, TR_E_AGAIN, "no message came back from %s to %s in time",
                               c->placement->nodes[b].name, c->placement->nodes[a].name);
    return TR_OK;
}

/* Each node's times, as means over the layers in which it computed experts. */
static void balance_costs(const tr_load *load, tr_heat_cost costs[TR_NODES_MAX])
{
    for (uint32_t n = 0; n < TR_NODES_MAX; n++) {
        uint32_t layers = 0;
        costs[n] = (tr_heat_cost){0};
        for (uint32_t l = 0; l < TR_LAYERS_MAX; l++) {
            const tr_heat_cost *cost = &load->layers[l].expert[n];
            if (cost->steps == 0)
                continue;
            layers++;
            costs[n].steps += cost->steps;
            costs[n].fixed_ns += cost->fixed_ns;
            costs[n].row_ns += cost->row_ns;
        }
        if (layers > 0) {
            costs[n].fixed_ns /= layers;
            costs[n].row_ns /= layers;
        }
    }
}

static tr_status balance_find(cluster_moves *m, tr_plan *plan, tr_rebalance_report *out,
                              tr_error *err)
{
    tr_load *load = calloc(1, sizeof(*load));
    if (load == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for what was measured");
    tr_status status = balance_measure(m, load, plan, err);
    if (status == TR_OK)
        status = tr_rebalance_plan(&out->found, plan, load, &m->job_given_up, err);
    if (status == TR_OK) {
        memcpy(out->hop_ns, load->hop_ns, sizeof(out->hop_ns));
        balance_costs(load, out->costs);
        out->nodes = load->nodes;
    }
    cluster_load_free(load);
    if (status == TR_OK && out->found.steps == 0) {
        tr_rebalance_free(&out->found);
        return tr_fail(err, TR_E_AGAIN,
                       "the routing of too few steps is recorded: ask for more tokens first");
    }
    return status;
}

tr_status moves_balance(cluster_moves *m, tr_change_report *report, tr_error *err)
{
    tr_plan plan = {0};
    tr_rebalance_report result = {.number = report->number, .options = m->balance_options};

    tr_status status = tr_cluster_plan(m->cluster, &plan, err);
    if (status == TR_OK)
        status = balance_find(m, &plan, &result, err);
    if (status == TR_OK && (status = moves_check_abort(m, err)) != TR_OK)
        tr_rebalance_free(&result.found);
    if (status != TR_OK) {
        tr_plan_free(&plan);
        return status;
    }
    result.changes = !result.options.dry_run && result.found.edits_count > 0 &&
                     tr_rebalance_gain(&result.found) >= result.options.threshold;
    pthread_mutex_lock(&m->lock);
    tr_rebalance_free(&m->balance.found);
    m->balance = result;
    if (result.changes) {
        moves_number(m, &plan);
        m->plan = plan;
        report->moved = result.found.moves + result.found.replicas;
        snprintf(report->phase, sizeof(report->phase), "prepare");
    }
    report->epoch = plan.epoch;
    m->reports[report->number % MOVES_REPORTS] = *report;
    pthread_mutex_unlock(&m->lock);
    if (result.changes)
        return moves_run(m, report, err);
    tr_plan_free(&plan);
    return TR_OK;
}

bool tr_cluster_rebalance_report(tr_cluster *c, uint64_t number, tr_rebalance_report *out)
{
    cluster_moves *m = c->moves;
    bool found = false;

    if (m == NULL || number == 0)
        return false;
    pthread_mutex_lock(&m->lock);
    if (m->balance.number == number) {
        *out = m->balance;
        out->found.edits = malloc((out->found.edits_count + 1) * sizeof(*out->found.edits));
        found = out->found.edits != NULL;
        if (found && out->found.edits_count > 0)
            memcpy(out->found.edits, m->balance.found.edits,
                   out->found.edits_count * sizeof(*out->found.edits));
    }
    pthread_mutex_unlock(&m->lock);
    return found;
}
