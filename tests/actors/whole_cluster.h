/* whole_cluster.h - all nodes of a small cluster in this process, over the loop transport. */
#ifndef TR_TESTS_ACTORS_WHOLE_CLUSTER_H
#define TR_TESTS_ACTORS_WHOLE_CLUSTER_H

#include "actors/cluster.h"
#include "core/trace.h"
#include "tests/check.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define WHOLE_CLUSTER_NODES 3 /* at most */

typedef struct {
    tr_placement placement;
    tr_cluster *nodes[WHOLE_CLUSTER_NODES];
    tr_client *client; /* of node 0 */
    tr_plan_shape shape;
} cluster;

typedef struct {
    cluster *c;
    uint32_t index;
    tr_cluster_options options;
    tr_status status;
    tr_error err;
} cluster_starting;

/* A node may need another that runs before it can be opened. */
static void *cluster_start_main(void *ctx)
{
    cluster_starting *s = ctx;
    cluster *c = s->c;
    s->status = tr_cluster_open(&c->nodes[s->index], &c->placement, s->index, &s->options, &s->err);
    if (s->status == TR_OK && s->index == 0)
        s->status = tr_client_open(&c->client, c->nodes[0], NULL, NULL, &s->err);
    if (s->status == TR_OK)
        s->status = tr_cluster_start(c->nodes[s->index], &s->err);
    return NULL;
}

/* Opens and starts every node of a placement file, and says how the first that failed did. The test
 * fails when one cannot be opened.
 *   kernels  [nodes] backend of each node, or NULL */
static inline tr_status cluster_try(cluster *c, const char *yaml, const char *const *kernels,
                                    tr_error *err)
{
    tr_status status = TR_OK;
    cluster_starting starts[WHOLE_CLUSTER_NODES];
    pthread_t threads[WHOLE_CLUSTER_NODES];

    *c = (cluster){0};
    if (tr_placement_parse(&c->placement, "test.yaml", yaml, strlen(yaml), err) != TR_OK)
        fail_msg("%s\n%s", err->text, yaml);
    assert_in_range(c->placement.nodes_count, 1, WHOLE_CLUSTER_NODES);
    for (uint32_t n = 0; n < c->placement.nodes_count; n++) {
        starts[n] = (cluster_starting){
            .c = c, .index = n, .options.kernels = kernels != NULL ? kernels[n] : NULL};
        assert_int_equal(pthread_create(&threads[n], NULL, cluster_start_main, &starts[n]), 0);
    }
    for (uint32_t n = 0; n < c->placement.nodes_count; n++)
        pthread_join(threads[n], NULL);
    for (uint32_t n = c->placement.nodes_count; n-- > 0;)
        if (starts[n].status != TR_OK) {
            *err = starts[n].err;
            status = starts[n].status;
            if (c->nodes[n] == NULL)
                fail_msg("%s\n%s", err->text, yaml);
        }
    tr_model_plan_shape(tr_cluster_model(c->nodes[0]), &c->shape);
    return status;
}

/* The same; the test fails when a node does not start. */
static inline void cluster_open(cluster *c, const char *yaml)
{
    tr_error err = {0};
    if (cluster_try(c, yaml, NULL, &err) != TR_OK)
        fail_msg("%s\n%s", err.text, yaml);
}

static inline void cluster_close(cluster *c)
{
    for (uint32_t n = 0; n < c->placement.nodes_count; n++)
        tr_cluster_request_shutdown(c->nodes[n]);
    for (uint32_t n = 0; n < c->placement.nodes_count; n++)
        tr_cluster_stop(c->nodes[n]);
    for (uint32_t n = 0; n < c->placement.nodes_count; n++)
        tr_cluster_close(c->nodes[n]);
    tr_placement_free(&c->placement);
}

/* Waits for the end of a change of placement. */
static inline tr_change_report cluster_await_change(const cluster *c, uint64_t number)
{
    tr_change_report report;
    uint64_t deadline = tr_clock_ns() + UINT64_C(120000000000);
    for (;;) {
        struct timespec t = {.tv_nsec = 1000000};
        assert_true(tr_cluster_change_report(c->nodes[0], number, &report));
        if (strcmp(report.phase, "done") == 0 || strcmp(report.phase, "failed") == 0)
            return report;
        if (tr_clock_ns() > deadline)
            fail_msg("%s: still in phase %s", report.what, report.phase);
        nanosleep(&t, NULL);
    }
}

/* Token i of a prompt: different for each prompt, and past the special ones. */
static inline int32_t cluster_prompt_token(const cluster *c, uint32_t prompt, uint32_t i)
{
    return (int32_t)((7 * i * i + 3 * i + 11 + 997 * prompt) % (c->shape.vocab_size - 20) + 20);
}

#endif
