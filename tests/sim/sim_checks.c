/* sim_checks.c - what must hold before a simulation, and when it has come to rest. */
#include "tests/sim/sim_inside.h"

#include "core/plan_edit.h"
#include "core/runtime.h"

#include <stdlib.h>
#include <string.h>

static void sim_check_actors(simulation *s, uint32_t n)
{
    tr_actor_stat rows[32];
    uint32_t count = tr_runtime_stats(tr_cluster_runtime(s->world.nodes[n].cluster), rows, 32);
    assert(count <= 32);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].failed || rows[i].restarts > 0 || rows[i].mailbox_depth > 0)
            sim_fail(s, "%s: failed %d, restarts %u, mailbox depth %u at rest", rows[i].name,
                     rows[i].failed, rows[i].restarts, rows[i].mailbox_depth);
}

/* All nodes have the plan of the batcher's. */
static void sim_check_plan(simulation *s, uint32_t n)
{
    void *bytes[2] = {NULL, NULL};
    size_t sizes[2] = {0, 0};
    for (uint32_t i = 0; i < 2; i++) {
        tr_plan plan = {0};
        tr_status status =
            tr_cluster_plan(i == 0 ? sim_batcher(s) : s->world.nodes[n].cluster, &plan, NULL);
        if (status == TR_OK)
            status = tr_plan_encode(&plan, &bytes[i], &sizes[i], NULL);
        assert(status == TR_OK);
        tr_plan_free(&plan);
    }
    if (sizes[0] != sizes[1] || memcmp(bytes[0], bytes[1], sizes[0]) != 0)
        sim_fail(s, "n%u at rest has another plan than the batcher's node", n);
    free(bytes[0]);
    free(bytes[1]);
}

/* All nodes are there, and see one another: then all have their shares again. Two that have lost
 * each other are noticed by the next request. */
static bool sim_is_whole(const simulation *s)
{
    bool whole = true;
    for (uint32_t n = 0; n < s->world.nodes_count; n++)
        for (uint32_t other = 0; other < s->world.nodes_count; other++)
            whole = whole && sim_is_in(s, n) && sim_sees(s->world.nodes[n].cluster, other);
    return whole;
}

/* A cluster that serves holds nothing when it rests, whoever it has lost. */
static void sim_check_rest(simulation *s)
{
    for (uint32_t n = 0; n < s->world.nodes_count; n++) {
        tr_cluster *c = s->world.nodes[n].cluster;
        tr_cluster_stat stat;
        tr_health health;
        if (!sim_is_in(s, n))
            continue;
        sim_check_plan(s, n);
        tr_cluster_stats(c, &stat);
        tr_cluster_health(c, &health);
        sim_check_actors(s, n);
        /* What waits for a node that died in silence is dropped when that is started again. */
        if (stat.buffers_free + tr_sim_stranded(s->world.net, n) != stat.buffers_max)
            sim_fail(s, "n%u at rest: %u of %u buffers are free", n, stat.buffers_free,
                     stat.buffers_max);
        /* A prefix that is kept has pages; the probe asks for those, too. */
        bool pages = stat.kv_pages_used > 0 && stat.prefixes_kept == 0;
        if (stat.sequences_active > 0 || stat.requests_waiting > 0 || pages)
            sim_fail(s, "n%u at rest: %u sequences, %u waiting requests, %u pages", n,
                     stat.sequences_active, stat.requests_waiting, stat.kv_pages_used);
        /* Others may miss one that was lost while it was drained although it is there again. */
        bool truth = n == s->world.placement.batcher_node && sim_is_whole(s);
        if (health.state != TR_HEALTH_SERVING && (truth || health.state != TR_HEALTH_DEGRADED))
            sim_fail(s, "n%u at rest does not serve: %s", n, health.text);
        if (stat.memory_bytes > s->world.placement.nodes[n].memory_bytes)
            sim_fail(s, "n%u at rest: %llu bytes taken, %llu allowed", n,
                     (unsigned long long)stat.memory_bytes,
                     (unsigned long long)s->world.placement.nodes[n].memory_bytes);
    }
}

void sim_check_memory(simulation *s)
{
    for (uint32_t n = 0; n < s->world.nodes_count; n++) {
        tr_cluster *c = s->world.nodes[n].cluster;
        tr_cluster_stat stat;
        tr_cluster_stats(c, &stat);
        uint64_t counted = tr_budget_total(tr_cluster_budget(c));
        if (stat.memory_bytes > counted || counted > s->world.placement.nodes[n].memory_bytes)
            sim_fail(s, "n%u: %llu bytes taken, %llu counted, %llu allowed", n,
                     (unsigned long long)stat.memory_bytes, (unsigned long long)counted,
                     (unsigned long long)s->world.placement.nodes[n].memory_bytes);
    }
}

/* A node with one byte too little is refused; with that byte it starts. */
void sim_check_refusal(simulation *s)
{
    uint32_t n = (uint32_t)sim_below(&s->random, s->world.nodes_count);
    uint64_t *memory = &s->world.placement.nodes[n].memory_bytes;
    uint64_t needed = tr_budget_total(tr_cluster_budget(s->world.nodes[n].cluster));
    tr_error err = {0};

    world_stop_all(&s->world);
    *memory = needed - 1;
    if (world_boot(&s->world, &err) != TR_E_NOMEM)
        sim_fail(s, "n%u starts with a byte less than the %llu that it counted", n,
                 (unsigned long long)needed);
    world_stop_all(&s->world);
    s->story.scarce = true; /* no room for anybody else's share */
    *memory = needed;
    if (!s->out->failed && world_boot(&s->world, &err) != TR_OK)
        sim_fail(s, "n%u does not start with what it counted: %s", n, err.text);
}

/* Every node is left little more than it needs. */
void sim_make_scarce(simulation *s)
{
    uint64_t needed[WORLD_NODES_MAX];
    tr_error err = {0};

    for (uint32_t n = 0; n < s->world.nodes_count; n++)
        needed[n] = tr_budget_total(tr_cluster_budget(s->world.nodes[n].cluster));
    world_stop_all(&s->world);
    for (uint32_t n = 0; n < s->world.nodes_count; n++)
        s->world.placement.nodes[n].memory_bytes = needed[n] + s->story.spare_bytes;
    if (world_boot(&s->world, &err) != TR_OK)
        sim_fail(s, "the cluster does not start with what it counted: %s", err.text);
}

/* Requests that need every slot and every page at once: a leaked one is missed now. */
static void sim_probe(simulation *s)
{
    static const int32_t prompt[TINY_CONTEXT];
    uint32_t pages = (s->story.cache_tokens + 63) / 64, slots = s->story.sequences;
    uint32_t node = s->world.placement.batcher_node, steps = 0, ended = 0;
    tr_client *client = s->world.nodes[node].client;
    tr_event e;

    for (uint32_t i = 0; i < slots; i++) {
        uint64_t number;
        tr_error err = {0};
        uint32_t share = pages / slots + (i < pages % slots);
        uint32_t tokens = share > TINY_CONTEXT / 64 ? TINY_CONTEXT : share == 0 ? 2 : share * 64;
        tr_request request = {.tokens = prompt, .tokens_count = tokens - 1, .tokens_max = 1};
        if (tr_client_submit(client, &request, &number, &err) != TR_OK)
            sim_fail(s, "a request at rest is refused: %s", err.text);
    }
    while (!s->out->failed && ended < slots && steps++ < STEPS_MAX) {
        (void)world_step(&s->world, world_next_ns(&s->world));
        while (tr_client_next(client, &e)) {
            if (e.kind == TR_EVENT_FAILED)
                sim_fail(s, "a request at rest fails: %s", e.error.text);
            ended += e.kind == TR_EVENT_FINISHED;
        }
    }
    if (ended < slots)
        sim_fail(s, "%u of %u requests for all slots and pages do not end", slots - ended, slots);
}

/* What is left of the cluster rests, has everything, and serves. */
void sim_check_service(simulation *s)
{
    tr_cluster_stat stat;
    tr_cluster_stats(sim_batcher(s), &stat);
    s->out->cached += stat.cached_tokens;
    if (!s->out->failed)
        sim_check_rest(s);
    if (!s->out->failed && s->world.nodes_count > 1 && !s->story.scarce)
        sim_probe_change(s);
    if (!s->out->failed)
        sim_probe(s);
    sim_settle(s);
    if (!s->out->failed)
        sim_check_rest(s);
}
