/* test_rejoin.c - nodes go and come back while requests run, and nothing that a stream says
 * changes.
 *
 * Method: three nodes in this process over the loop transport, with the model of the argument.
 * Streams run without a pause from one thread; this one stops nodes and starts them again, one or
 * two at a time, before or after the others have taken their share over, and some again while they
 * come back. In the end everything stands where it stood. The seed is printed and taken from
 * TR_SEED, the number of losses from TR_LOSSES. */
#include "actors/cluster_node.h"
#include "core/plan_edit.h"
#include "tests/actors/streams.h"

#include <stdlib.h>
#include <time.h>

static uint32_t losses_count = 6;

static void pause_ms(uint32_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* A node that is started again, as troupe node does it, until it is a member or told to stop. */
typedef struct {
    cluster *c;
    uint32_t node;
    pthread_t thread;
    pthread_mutex_t lock; /* guards cluster.nodes[node] while the thread runs */
    _Atomic bool stop;
    tr_status status;
    tr_error err;
} returning;

static void *return_main(void *ctx)
{
    returning *r = ctx;
    const tr_cluster_options options = {.may_join = true};
    for (int tries = 0; tries < 20 && !atomic_load(&r->stop); tries++) {
        tr_cluster *node = NULL;
        r->status = tr_cluster_open(&node, &r->c->placement, r->node, &options, &r->err);
        if (r->status != TR_OK)
            return NULL;
        pthread_mutex_lock(&r->lock);
        r->c->nodes[r->node] = node;
        if (atomic_load(&r->stop))
            tr_cluster_request_shutdown(node);
        pthread_mutex_unlock(&r->lock);
        r->status = tr_cluster_start(node, &r->err);
        if (r->status == TR_OK)
            return NULL;
        pthread_mutex_lock(&r->lock);
        r->c->nodes[r->node] = NULL;
        pthread_mutex_unlock(&r->lock);
        tr_cluster_close(node);
        if (r->status != TR_E_AGAIN)
            return NULL;
    }
    return NULL;
}

static void return_begin(returning *r, cluster *c, uint32_t node)
{
    *r = (returning){.c = c, .node = node};
    pthread_mutex_init(&r->lock, NULL);
    assert_int_equal(pthread_create(&r->thread, NULL, return_main, r), 0);
}

static void return_stop(returning *r)
{
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->stop, true);
    if (r->c->nodes[r->node] != NULL)
        tr_cluster_request_shutdown(r->c->nodes[r->node]);
    pthread_mutex_unlock(&r->lock);
}

static void return_end(returning *r)
{
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
}

static void lose(cluster *c, uint32_t node)
{
    if (c->nodes[node] == NULL)
        return;
    tr_cluster_request_shutdown(c->nodes[node]);
    tr_cluster_close(c->nodes[node]);
    c->nodes[node] = NULL;
}

static void await_health(cluster *c, tr_health_state state)
{
    uint64_t deadline = tr_clock_ns() + DEADLINE_NS;
    tr_health health;
    for (;;) {
        tr_cluster_health(c->nodes[0], &health);
        if (health.state == state)
            return;
        if (tr_clock_ns() > deadline)
            fail_msg("health is %d: %s", (int)health.state, health.text);
        pause_ms(2);
    }
}

/* The nodes of a mask come back at once. */
static void come_back(cluster *c, uint32_t nodes)
{
    returning r[WHOLE_CLUSTER_NODES];
    for (uint32_t n = 1; n < WHOLE_CLUSTER_NODES; n++)
        if (nodes >> n & 1)
            return_begin(&r[n], c, n);
    for (uint32_t n = 1; n < WHOLE_CLUSTER_NODES; n++) {
        if (!(nodes >> n & 1))
            continue;
        return_end(&r[n]);
        if (r[n].status != TR_OK)
            fail_msg("node %u: %s", n, r[n].err.text);
    }
}

/* A node comes back and goes again at any moment of that. */
static void come_and_go(cluster *c, uint32_t node)
{
    returning r;
    return_begin(&r, c, node);
    pause_ms(random_below(60));
    return_stop(&r);
    return_end(&r);
    lose(c, node);
}

static void check_same_plan(const tr_plan *a, const tr_plan *b)
{
    void *bytes[2];
    size_t sizes[2];
    tr_plan copy = {0};
    CHECK_STATUS(tr_plan_copy(&copy, b, NULL), TR_OK);
    copy.epoch = a->epoch;
    CHECK_STATUS(tr_plan_encode(a, &bytes[0], &sizes[0], NULL), TR_OK);
    CHECK_STATUS(tr_plan_encode(&copy, &bytes[1], &sizes[1], NULL), TR_OK);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
    free(bytes[0]);
    free(bytes[1]);
    tr_plan_free(&copy);
}

static void streams_do_not_notice_nodes_that_go_and_come(void **state)
{
    cluster c;
    answers expected = {0};
    tr_plan home, now;
    pthread_t thread;
    (void)state;
    reference(&expected);
    open_nodes(&c, "abc");
    CHECK_STATUS(tr_cluster_plan(c.nodes[0], &home, NULL), TR_OK);
    streaming s = {.c = &c, .expected = &expected};
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &s), 0);
    for (uint32_t i = 0; i < losses_count && s.wrong[0] == '\0'; i++) {
        uint32_t nodes = i < 3 ? (i + 1) << 1 : (1 + random_below(3)) << 1; /* each, then any */
        pause_ms(random_below(150));
        for (uint32_t n = 1; n < WHOLE_CLUSTER_NODES; n++)
            if (nodes >> n & 1)
                lose(&c, n);
        if (random_below(2) == 0)
            pause_ms(random_below(200)); /* mostly the others have gone over by then */
        if (i % 2 == 1)
            come_and_go(&c, nodes >> 1 & 1 ? 1 : 2);
        come_back(&c, nodes);
        await_health(&c, TR_HEALTH_SERVING);
        CHECK_STATUS(tr_cluster_plan(c.nodes[0], &now, NULL), TR_OK);
        check_same_plan(&home, &now);
        tr_plan_free(&now);
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    if (s.wrong[0] != '\0')
        fail_msg("%s", s.wrong);
    print_message("# %u losses, %u rounds of streams\n", losses_count, atomic_load(&s.rounds));
    tr_plan_free(&home);
    cluster_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_do_not_notice_nodes_that_go_and_come),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    model_path = argv[1];
    const char *seed = getenv("TR_SEED"), *losses = getenv("TR_LOSSES");
    random_state = seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    if (losses != NULL)
        losses_count = (uint32_t)strtoul(losses, NULL, 10);
    fprintf(stderr, "TR_SEED=%llu\n", (unsigned long long)random_state);
    return cmocka_run_group_tests_name("rejoin", tests, NULL, NULL);
}
