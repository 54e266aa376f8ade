/* cluster_health.c - what a node says of the cluster: whether it serves, and what is missing.
 *
 *   STARTING     the nodes have not met yet
 *   SERVING      everything is there; a node that was drained before it went is not missed
 *   DEGRADED     requests are answered, but a node is gone: its share is being taken over (then
 *                streams wait), or has been, or is on its way back
 *   NOT_SERVING  requests would fail, or wait for longer than people do */
#include "actors/cluster_node.h"
#include "core/trace.h"

/* How long requests are still taken in while a lost node's share is taken over: they wait. */
#define HEALTH_PATIENCE_NS 10000000000u

bool cluster_outlives(const tr_cluster *c, uint32_t node)
{
    return node != c->placement->batcher_node && !c->placement->limits.exit_on_peer_loss;
}

void cluster_note_lost(tr_cluster *c, uint32_t node, const char *reason)
{
    const char *name = c->placement->nodes[node].name;
    c->missing |= 1u << node;
    if (c->lost.code != TR_OK)
        return;
    tr_fail(&c->lost, TR_E_PEER, "node %s is gone: %s", name, reason);
    c->lost_ns = cluster_now(c);
    c->recovering = cluster_outlives(c, node);
}

uint32_t cluster_review_losses(tr_cluster *c, const tr_plan *before)
{
    uint32_t missed = 0;

    pthread_mutex_lock(&c->lock);
    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        if (!tr_plan_uses(&c->view->plan, n)) {
            /* Somebody has drained it: what is there loses its share by nothing else. */
            if (before != NULL && tr_plan_uses(before, n) && cluster_is_alive(c, n))
                c->missing &= ~(1u << n);
            continue;
        }
        if (cluster_is_alive(c, n)) {
            c->missing &= ~(1u << n);
            continue;
        }
        missed |= 1u << n;
        cluster_note_lost(c, n, "it was lost while it got its share");
    }
    if (missed == 0) {
        c->lost = (tr_error){0};
        c->recovering = false;
    }
    pthread_mutex_unlock(&c->lock);
    return missed;
}

/* Nodes of a mask by their names, "a, b". */
static void health_names(const tr_cluster *c, uint32_t nodes, char *out, size_t size)
{
    out[0] = '\0';
    for (size_t n = 0, used = 0; nodes >> n != 0 && used < size; n++)
        if (nodes >> n & 1)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "",
                                     c->placement->nodes[n].name);
}

/* A node that the placement uses is gone. */
static void health_of_loss(const tr_error *lost, bool recovering, uint64_t since_ns, tr_health *out)
{
    bool patient = since_ns < HEALTH_PATIENCE_NS;
    out->state = recovering && patient ? TR_HEALTH_DEGRADED : TR_HEALTH_NOT_SERVING;
    if (recovering)
        snprintf(out->text, sizeof(out->text), "%.180s; the others take over its share (%.1f s)",
                 lost->text, (double)since_ns / 1e9);
    else
        snprintf(out->text, sizeof(out->text), "%s", lost->text);
}

/* Everything is served, by fewer nodes than the placement was made for. */
static void health_of_missing(tr_cluster *c, uint32_t missing, tr_health *out)
{
    char names[160];
    uint32_t gone = 0;
    for (uint32_t n = 0; missing >> n != 0; n++)
        gone |= (missing >> n & 1) && !cluster_is_alive(c, n) ? 1u << n : 0;
    out->state = TR_HEALTH_DEGRADED;
    health_names(c, gone != 0 ? gone : missing, names, sizeof(names));
    snprintf(out->text, sizeof(out->text), "%s %s: the others serve its share",
             gone != 0 ? "without" : "not yet with all of", names);
}

void tr_cluster_health(tr_cluster *c, tr_health *out)
{
    *out = (tr_health){.state = TR_HEALTH_SERVING, .text = "serving"};
    pthread_mutex_lock(&c->lock);
    tr_error lost = c->lost;
    bool recovering = c->recovering;
    uint64_t lost_ns = c->lost_ns;
    out->missing = c->missing;
    pthread_mutex_unlock(&c->lock);
    if (atomic_load(&c->counters.broken)) {
        out->state = TR_HEALTH_NOT_SERVING;
        snprintf(out->text, sizeof(out->text), "%s",
                 lost.code != TR_OK ? lost.text : "a step did not end in time");
    } else if (lost.code != TR_OK) {
        health_of_loss(&lost, recovering, cluster_now(c) - lost_ns, out);
    } else if (!atomic_load(&c->serving)) {
        out->state = TR_HEALTH_STARTING;
        snprintf(out->text, sizeof(out->text), "starting");
    } else if (out->missing != 0) {
        health_of_missing(c, out->missing, out);
    }
}
