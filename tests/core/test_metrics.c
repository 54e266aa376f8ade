/* test_metrics.c - registration, values from several threads, and the page, byte for byte. */
#include "tests/core/runtime_fixture.h"

#include "core/metrics.h"
#include "core/runtime_metrics.h"

#include <pthread.h>
#include <stdlib.h>

static tr_metrics *open_metrics(uint32_t metrics_max)
{
    tr_metrics *metrics = NULL;
    CHECK_STATUS(tr_metrics_open(&metrics, metrics_max, NULL), TR_OK);
    return metrics;
}

static uint64_t read_number(const void *ctx)
{
    return *(const uint64_t *)ctx;
}

static void the_page_groups_names_and_escapes_labels(void **state)
{
    (void)state;
    tr_metrics *metrics = open_metrics(8);
    tr_counter *requests;
    tr_counter *errors;
    tr_gauge *active;
    uint64_t depth = 3;
    CHECK_STATUS(tr_metrics_counter(&requests, metrics,
                                    &(tr_metric_name){"hits_total", "Hits.", "path", "/v1"}, NULL),
                 TR_OK);
    CHECK_STATUS(
        tr_metrics_gauge(&active, metrics, &(tr_metric_name){"active", "Now.", NULL, NULL}, NULL),
        TR_OK);
    CHECK_STATUS(tr_metrics_counter(&errors, metrics,
                                    &(tr_metric_name){"hits_total", "Hits.", "path", "a\"b\\c\nd"},
                                    NULL),
                 TR_OK);
    CHECK_STATUS(tr_metrics_gauge_from(metrics, &(tr_metric_name){"depth", "Depth.", NULL, NULL},
                                       read_number, &depth, NULL),
                 TR_OK);
    tr_counter_add(requests, 2);
    tr_counter_add(requests, 5);
    tr_counter_add(errors, UINT64_MAX);
    tr_gauge_set(active, 4);
    tr_gauge_add(active, -9);
    assert_int_equal(tr_counter_value(requests), 7);
    assert_int_equal(tr_gauge_value(active), -5);

    static const char expected[] = "# HELP hits_total Hits.\n"
                                   "# TYPE hits_total counter\n"
                                   "hits_total{path=\"/v1\"} 7\n"
                                   "hits_total{path=\"a\\\"b\\\\c\\nd\"} 18446744073709551615\n"
                                   "# HELP active Now.\n"
                                   "# TYPE active gauge\n"
                                   "active -5\n"
                                   "# HELP depth Depth.\n"
                                   "# TYPE depth gauge\n"
                                   "depth 3\n";
    char text[1024];
    assert_int_equal(tr_metrics_write(metrics, text, sizeof(text)), strlen(expected));
    assert_string_equal(text, expected);
    tr_metrics_close(metrics);
}

static void a_histogram_counts_up_to_and_with_each_bound(void **state)
{
    (void)state;
    tr_metrics *metrics = open_metrics(1);
    tr_histogram *wait;
    static const uint64_t bounds[] = {1000000, 10000000, 500000000};
    CHECK_STATUS(tr_metrics_histogram(&wait, metrics,
                                      &(tr_metric_name){"wait_seconds", "Wait.", "node", "a"},
                                      bounds, 3, 1e-9, NULL),
                 TR_OK);
    static const uint64_t values[] = {0, 1000000, 1000001, 10000000, 500000001, 2000000000};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        tr_histogram_observe(wait, values[i]);
    static const char expected[] = "# HELP wait_seconds Wait.\n"
                                   "# TYPE wait_seconds histogram\n"
                                   "wait_seconds_bucket{node=\"a\",le=\"0.001\"} 2\n"
                                   "wait_seconds_bucket{node=\"a\",le=\"0.01\"} 4\n"
                                   "wait_seconds_bucket{node=\"a\",le=\"0.5\"} 4\n"
                                   "wait_seconds_bucket{node=\"a\",le=\"+Inf\"} 6\n"
                                   "wait_seconds_sum{node=\"a\"} 2.512\n"
                                   "wait_seconds_count{node=\"a\"} 6\n";
    char text[1024];
    tr_metrics_write(metrics, text, sizeof(text));
    assert_string_equal(text, expected);
    tr_metrics_close(metrics);
}

static void a_text_that_is_too_small_ends_with_a_whole_line(void **state)
{
    (void)state;
    tr_metrics *metrics = open_metrics(1);
    tr_gauge *gauge;
    CHECK_STATUS(tr_metrics_gauge(&gauge, metrics, &(tr_metric_name){"g", "G.", NULL, NULL}, NULL),
                 TR_OK);
    static const char whole[] = "# HELP g G.\n# TYPE g gauge\ng 0\n";
    char text[64];
    for (size_t size = 0; size <= sizeof(whole); size++) {
        memset(text, 'x', sizeof(text));
        assert_int_equal(tr_metrics_write(metrics, text, size), strlen(whole));
        assert_int_equal(text[size], 'x'); /* nothing behind the end */
        if (size == 0)
            continue;
        size_t used = strlen(text);
        assert_true(used < size);
        assert_memory_equal(text, whole, used);
        assert_true(used == 0 || text[used - 1] == '\n');
    }
    assert_string_equal(text, whole);
    tr_metrics_close(metrics);
}

static void a_stream_gets_the_same_page(void **state)
{
    (void)state;
    tr_metrics *metrics = open_metrics(1);
    tr_gauge *gauge;
    CHECK_STATUS(tr_metrics_gauge(&gauge, metrics, &(tr_metric_name){"g", "G.", NULL, NULL}, NULL),
                 TR_OK);
    char *streamed = NULL;
    size_t streamed_size = 0;
    FILE *out = open_memstream(&streamed, &streamed_size);
    assert_non_null(out);
    CHECK_STATUS(tr_metrics_print(metrics, out), TR_OK);
    fclose(out);
    char text[64];
    tr_metrics_write(metrics, text, sizeof(text));
    assert_string_equal(streamed, text);
    free(streamed);

    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    setvbuf(full, NULL, _IONBF, 0);
    CHECK_STATUS(tr_metrics_print(metrics, full), TR_E_INVALID);
    fclose(full);
    tr_metrics_close(metrics);
}

static void wrong_registrations_are_refused_by_name(void **state)
{
    (void)state;
    tr_metrics *metrics = NULL;
    tr_error err = {0};
    CHECK_STATUS(tr_metrics_open(&metrics, 0, &err), TR_E_INVALID);
    metrics = open_metrics(2);
    char long_text[300];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    const struct {
        tr_metric_name name;
        const char *names;
    } cases[] = {
        {{"", "H.", NULL, NULL}, "name \"\""},
        {{"Upper", "H.", NULL, NULL}, "Upper"},
        {{"1st", "H.", NULL, NULL}, "1st"},
        {{"with space", "H.", NULL, NULL}, "with space"},
        {{long_text, "H.", NULL, NULL}, "at most 95"},
        {{"ok", "H.", "bad-key", "v"}, "bad-key"},
        {{"ok", "H.", "key", long_text}, "299 bytes"},
    };
    tr_counter *counter = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_STATUS(tr_metrics_counter(&counter, metrics, &cases[i].name, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, cases[i].names);
    }
    assert_null(counter);

    tr_metric_name name = {"n_total", "N.", "k", "a"};
    tr_gauge *gauge;
    tr_histogram *histogram;
    CHECK_STATUS(tr_metrics_counter(&counter, metrics, &name, &err), TR_OK);
    CHECK_STATUS(tr_metrics_counter(&counter, metrics, &name, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "\"n_total\" with label \"a\"");
    name.label_value = "b";
    CHECK_STATUS(tr_metrics_gauge(&gauge, metrics, &name, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "another sort");
    CHECK_STATUS(tr_metrics_counter(&counter, metrics, &name, &err), TR_OK);
    name.label_value = "c";
    CHECK_STATUS(tr_metrics_counter(&counter, metrics, &name, &err), TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "one too many");

    name = (tr_metric_name){"h", "H.", NULL, NULL};
    static const uint64_t flat[] = {1, 1};
    CHECK_STATUS(tr_metrics_histogram(&histogram, metrics, &name, flat, 2, 1.0, &err),
                 TR_E_INVALID);
    CHECK_ERR_NAMES(err, "bound 1");
    CHECK_STATUS(tr_metrics_histogram(&histogram, metrics, &name, flat, 0, 1.0, &err),
                 TR_E_INVALID);
    CHECK_ERR_NAMES(err, "0 bounds");
    CHECK_STATUS(tr_metrics_histogram(&histogram, metrics, &name, flat, 1, 0.0, &err),
                 TR_E_INVALID);
    CHECK_ERR_NAMES(err, "scale 0");
    tr_metrics_close(metrics);
}

/* -- threads -- */

#define ADDS 20000

typedef struct {
    tr_counter *counter;
    tr_gauge *gauge;
    tr_histogram *histogram;
} shared;

static void *change_values(void *arg)
{
    shared *s = arg;
    for (uint64_t i = 0; i < ADDS; i++) {
        tr_counter_add(s->counter, 1);
        tr_gauge_add(s->gauge, i % 2 == 0 ? 1 : -1);
        tr_histogram_observe(s->histogram, i % 3);
    }
    return NULL;
}

static void no_change_is_lost_between_threads(void **state)
{
    (void)state;
    tr_metrics *metrics = open_metrics(3);
    shared s;
    static const uint64_t bounds[] = {0, 1};
    CHECK_STATUS(tr_metrics_counter(&s.counter, metrics,
                                    &(tr_metric_name){"c_total", "C.", NULL, NULL}, NULL),
                 TR_OK);
    CHECK_STATUS(
        tr_metrics_gauge(&s.gauge, metrics, &(tr_metric_name){"g", "G.", NULL, NULL}, NULL), TR_OK);
    CHECK_STATUS(tr_metrics_histogram(&s.histogram, metrics,
                                      &(tr_metric_name){"h", "H.", NULL, NULL}, bounds, 2, 1.0,
                                      NULL),
                 TR_OK);
    pthread_t threads[3];
    char text[1024];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, change_values, &s), 0);
    for (int i = 0; i < 20; i++)
        tr_metrics_write(metrics, text, sizeof(text)); /* reading meanwhile disturbs nobody */
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    tr_metrics_write(metrics, text, sizeof(text));
    assert_non_null(strstr(text, "c_total 60000\n"));
    assert_non_null(strstr(text, "g 0\n"));
    assert_non_null(strstr(text, "h_count 60000\n"));
    assert_non_null(strstr(text, "h_bucket{le=\"+Inf\"} 60000\n"));
    tr_metrics_close(metrics);
}

/* -- the runtime's figures -- */

static tr_status answer(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    return env->send(env->ctx, msg->header.source, TR_MSG_PONG, 0, 0, NULL);
}

static void a_runtime_shows_its_actors_pool_and_drops(void **state)
{
    (void)state;
    tr_pool *pool = open_pool(5);
    tr_runtime *rt = open_runtime(0, 1, pool);
    test_actor actor = {.receive = answer};
    const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 16, .outbox_slots = 1};
    tr_metrics *metrics = open_metrics(TR_RUNTIME_METRICS(2));
    CHECK_STATUS(tr_runtime_spawn(rt, test_id(1), "echo@spark1", &ops, &actor, 0, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_add_port(rt, test_id(2), "port", 16, NULL, NULL, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_register_metrics(rt, metrics, NULL), TR_OK);
    CHECK_STATUS(tr_runtime_start(rt, NULL), TR_OK);
    for (int i = 0; i < 4; i++)
        post_patiently(rt, test_id(2), test_id(1), TR_MSG_PING, 0, 0);
    for (int i = 0; i < 3; i++)
        next_message(rt, test_id(2));
    uint64_t deadline_ns = tr_clock_ns() + DEADLINE_NS;
    char text[4096];
    do {
        assert_true(tr_clock_ns() < deadline_ns);
        assert_true(tr_metrics_write(metrics, text, sizeof(text)) < sizeof(text));
    } while (strstr(text, "troupe_actor_mailbox_depth{actor=\"port\"} 1\n") == NULL ||
             strstr(text, "messages_received_total{actor=\"echo@spark1\"} 4\n") == NULL);
    assert_non_null(strstr(text, "troupe_pool_buffers_free 5\n"));
    assert_non_null(strstr(text, "troupe_messages_dropped_total{reason=\"node_dead\"} 0\n"));
    assert_non_null(strstr(text, "troupe_actor_restarts_total{actor=\"echo@spark1\"} 0\n"));
    tr_metrics_close(metrics);
    tr_runtime_close(rt);
    tr_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_groups_names_and_escapes_labels),
        cmocka_unit_test(a_histogram_counts_up_to_and_with_each_bound),
        cmocka_unit_test(a_text_that_is_too_small_ends_with_a_whole_line),
        cmocka_unit_test(a_stream_gets_the_same_page),
        cmocka_unit_test(wrong_registrations_are_refused_by_name),
        cmocka_unit_test(no_change_is_lost_between_threads),
        cmocka_unit_test(a_runtime_shows_its_actors_pool_and_drops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
