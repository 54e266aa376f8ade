/* test_balance.c - a cluster measures itself and lets its experts stand where they are best.
 *
 * Method: two nodes in this process over the loop transport; all experts stand on the second.
 * Streams run; then experts are rebalanced, while other streams run, and nothing that a stream says
 * changes. What the coordinator gets from other nodes is read from made-up answers, too. */
#include "actors/cluster_load.h"
#include "core/trace.h"
#include "tests/actors/whole_cluster.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#define STREAMS     4
#define GENERATED   60
#define DEADLINE_NS 120000000000u

static const char *model_path;

static void open_cluster(cluster *c, const char *nodes, const char *rules)
{
    char yaml[1024];
    snprintf(
        yaml, sizeof(yaml),
        "model: %s\ntransport: loop\nnodes: %s\n%slimits: {context: 256, peer_timeout: 20 s}\n",
        model_path, nodes, rules);
    cluster_open(c, yaml);
}

typedef struct {
    int32_t tokens[STREAMS][GENERATED];
} answers;

static void submit_all(cluster *c, uint64_t numbers[STREAMS])
{
    for (uint32_t p = 0; p < STREAMS; p++) {
        int32_t tokens[64];
        uint32_t count = 7 + 15 * p;
        tr_error err = {0};
        for (uint32_t i = 0; i < count; i++)
            tokens[i] = cluster_prompt_token(c, p, i);
        tr_request r = {.tokens = tokens,
                        .tokens_count = count,
                        .tokens_max = GENERATED,
                        .sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = p}};
        if (tr_client_submit(c->client, &r, &numbers[p], &err) != TR_OK)
            fail_msg("%s", err.text);
    }
}

static void collect(cluster *c, const uint64_t numbers[STREAMS], answers *out)
{
    uint32_t counts[STREAMS] = {0};
    for (uint32_t open = STREAMS; open > 0;) {
        tr_event e;
        uint32_t p = 0;
        assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
        while (p < STREAMS && numbers[p] != e.request)
            p++;
        assert_true(p < STREAMS && e.kind != TR_EVENT_FAILED);
        if (e.kind == TR_EVENT_TOKEN) {
            assert_true(counts[p] < GENERATED);
            out->tokens[p][counts[p]++] = e.token;
        } else {
            open--;
        }
    }
}

static void stream(cluster *c, answers *out)
{
    uint64_t numbers[STREAMS];
    submit_all(c, numbers);
    collect(c, numbers, out);
}

static tr_change_report rebalance(cluster *c, bool dry_run, double threshold)
{
    const tr_rebalance_options options = {.dry_run = dry_run, .threshold = threshold};
    uint64_t number = 0;
    tr_error err = {0};

    CHECK_STATUS(tr_cluster_rebalance(c->nodes[0], &options, &number, &err), TR_OK);
    return cluster_await_change(c, number);
}

static uint32_t experts_on(cluster *c, uint32_t node)
{
    tr_plan plan;
    uint32_t count = 0;
    CHECK_STATUS(tr_cluster_plan(c->nodes[0], &plan, NULL), TR_OK);
    for (uint32_t l = 0; l < plan.shape.layers_count; l++)
        for (uint32_t e = 0; e < plan.shape.experts[l]; e++)
            count += tr_plan_channel_nodes(&plan, l, e) >> node & 1;
    tr_plan_free(&plan);
    return count;
}

static void experts_go_where_they_are_best_and_no_stream_notices(void **state)
{
    static answers expected, got;
    cluster c;
    uint64_t numbers[STREAMS];
    tr_rebalance_report result;
    (void)state;

    open_cluster(&c, "[{name: a}]", "");
    stream(&c, &expected);
    cluster_close(&c);

    open_cluster(&c, "[{name: a}, {name: b}]", "experts: [{node: b}]\n");
    tr_change_report report = rebalance(&c, false, 0); /* nothing is known yet */
    assert_string_equal(report.phase, "failed");
    CHECK_ERR_NAMES(report.error, "no step has been measured");
    assert_false(tr_cluster_rebalance_report(c.nodes[0], report.number, &result));

    stream(&c, &got);
    assert_memory_equal(&got, &expected, sizeof(got));
    report = rebalance(&c, true, 0);
    assert_string_equal(report.phase, "done");
    assert_true(report.moved == 0 && report.epoch == 1);
    assert_true(tr_cluster_rebalance_report(c.nodes[0], report.number, &result));
    assert_true(!result.changes && result.found.steps > 0 && result.found.edits_count > 0);
    assert_true(result.found.step_ns > 0 && result.found.before_ns > result.found.after_ns);
    assert_true(result.hop_ns[0][1] > 0 && result.hop_ns[0][1] == result.hop_ns[1][0]);
    assert_true(result.found.waited_ns > 0);
    assert_true(result.costs[1].steps > 0 && result.costs[0].steps == 0);
    assert_true(result.found.costs_assumed); /* a has computed no expert */
    tr_rebalance_free(&result.found);
    assert_int_equal(experts_on(&c, 0), 0);

    report = rebalance(&c, false, 1); /* more than can be gained */
    assert_true(report.moved == 0 && strcmp(report.phase, "done") == 0);
    assert_int_equal(experts_on(&c, 0), 0);

    submit_all(&c, numbers);
    report = rebalance(&c, false, 0);
    assert_string_equal(report.phase, "done");
    collect(&c, numbers, &got);
    assert_memory_equal(&got, &expected, sizeof(got));
    assert_true(tr_cluster_rebalance_report(c.nodes[0], report.number, &result));
    assert_true(result.changes && report.epoch == 2);
    assert_int_equal(report.moved, result.found.moves + result.found.replicas);
    tr_rebalance_free(&result.found);
    assert_true(experts_on(&c, 0) > 0);
    stream(&c, &got);
    assert_memory_equal(&got, &expected, sizeof(got));
    cluster_close(&c);
}

static void a_drained_node_stays_empty(void **state)
{
    static answers got;
    cluster c;
    uint64_t number = 0;
    tr_rebalance_report result;
    tr_error err = {0};
    (void)state;

    open_cluster(&c, "[{name: a}, {name: b}]", "");
    CHECK_STATUS(tr_cluster_drain(c.nodes[0], "b", &number, &err), TR_OK);
    assert_string_equal(cluster_await_change(&c, number).phase, "done");
    stream(&c, &got);
    tr_change_report report = rebalance(&c, false, 0);
    assert_string_equal(report.phase, "done");
    assert_true(report.moved == 0 && experts_on(&c, 1) == 0);
    assert_true(tr_cluster_rebalance_report(c.nodes[0], report.number, &result));
    assert_true(result.nodes == 1 && result.found.edits_count == 0);
    tr_rebalance_free(&result.found);
    cluster_close(&c);
}

static void who_may_not_rebalance_says_why(void **state)
{
    const tr_rebalance_options options = {.threshold = 0};
    cluster c;
    uint64_t number = 0;
    tr_rebalance_report result;
    tr_error err = {0};
    (void)state;

    open_cluster(&c, "[{name: a}, {name: b}]", "");
    CHECK_STATUS(tr_cluster_rebalance(c.nodes[1], &options, &number, &err), TR_E_NOTSUP);
    CHECK_ERR_NAMES(err, "node a");
    assert_false(tr_cluster_rebalance_report(c.nodes[1], 1, &result));
    assert_false(tr_cluster_rebalance_report(c.nodes[0], 0, &result));
    cluster_close(&c);
}

/* -- answers from outside -- */

/* A made-up answer of a node of two, about a model with experts in layer 0 alone. */
typedef struct {
    uint32_t node;
    uint32_t hops;
    uint64_t layer;
    double fixed_ns;
    const uint32_t *routing;
    size_t routing_size;
    bool room;
} answer;

static tr_status add(const answer *a, tr_load *load, tr_plan *plan, tr_error *err)
{
    msgpack_sbuffer bytes;
    msgpack_packer pk;
    msgpack_unpacked map;

    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&pk, &bytes, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 4);
    tr_pack_list(&pk, "hops", a->hops);
    for (uint32_t n = 0; n < a->hops; n++)
        msgpack_pack_uint64(&pk, 500 * n);
    tr_pack_u64(&pk, a->room ? "room" : "rooms", 1000);
    tr_pack_u64(&pk, "step_ns", 7000);
    tr_pack_list(&pk, "layers", 1);
    msgpack_pack_map(&pk, 6);
    tr_pack_u64(&pk, "layer", a->layer);
    tr_pack_u64(&pk, "waited_ns", 90000);
    tr_pack_u64(&pk, "expert_bytes", 100);
    for (int i = 0; i < 2; i++) {
        tr_pack_list(&pk, i == 0 ? "expert" : "slice", 3);
        msgpack_pack_uint64(&pk, 9);
        msgpack_pack_double(&pk, a->fixed_ns);
        msgpack_pack_double(&pk, 2);
    }
    tr_pack_bytes(&pk, "routing", a->routing, a->routing_size);
    msgpack_unpacked_init(&map);
    assert_int_equal(msgpack_unpack_next(&map, bytes.data, bytes.size, NULL),
                     MSGPACK_UNPACK_SUCCESS);
    tr_status status = cluster_load_add(load, a->node, &map.data, plan, true, err);
    msgpack_unpacked_destroy(&map);
    msgpack_sbuffer_destroy(&bytes);
    return status;
}

static void answers_of_other_nodes_are_checked(void **state)
{
    static const uint32_t routing[] = {TR_ROUTING_HEAD << 16 | 1, 3 << 16 | 1};
    static const uint32_t beyond[] = {TR_ROUTING_HEAD << 16 | 1, 4 << 16 | 1};
    const answer good = {
        .hops = 2, .fixed_ns = 30, .routing = routing, .routing_size = 8, .room = true};
    static uint16_t channel[2 * TR_TERMS_MAX] = {1, 1, 1, 1}; /* all experts on node 0 */
    tr_plan plan = {.nodes_count = 2, .spans_count = 1, .channel = channel};
    tr_error err = {0};
    (void)state;

    plan.shape.layers_count = 2;
    plan.shape.experts[0] = 4;
    plan.spans[0] = (tr_plan_span){.last_layer = 1, .nodes = 3};
    tr_load *load = calloc(1, sizeof(*load));
    CHECK_STATUS(add(&good, load, &plan, &err), TR_OK);
    assert_true(load->nodes == 1 && load->step_ns == 7000 && load->room_bytes[0] == 1000);
    assert_true(load->hop_ns[0][1] == 500 && load->hop_ns[1][0] == 500);
    assert_true(load->layers[0].expert[0].fixed_ns == 30 && load->layers[0].routing_count == 2);
    assert_true(load->layers[0].waited_ns == 90000);
    answer other = good;
    other.node = 1; /* nothing stands there, so nothing is to come there */
    CHECK_STATUS(add(&other, load, &plan, &err), TR_OK);
    assert_int_equal(load->nodes, 1);
    cluster_load_free(load);

    enum { WRONG = 9 };
    answer wrong[WRONG];
    for (uint32_t i = 0; i < WRONG; i++)
        wrong[i] = good;
    wrong[8].fixed_ns = 1e13;
    wrong[0].hops = 3;
    wrong[1].layer = 1; /* has no experts */
    wrong[2].layer = 1u << 31;
    wrong[3].fixed_ns = NAN;
    wrong[4].fixed_ns = -1;
    wrong[5].routing = beyond;
    wrong[6].routing_size = 7;
    wrong[7].room = false;
    for (uint32_t i = 0; i < WRONG; i++) {
        load = calloc(1, sizeof(*load));
        CHECK_STATUS(add(&wrong[i], load, &plan, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "load_read");
        cluster_load_free(load);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_go_where_they_are_best_and_no_stream_notices),
        cmocka_unit_test(a_drained_node_stays_empty),
        cmocka_unit_test(who_may_not_rebalance_says_why),
        cmocka_unit_test(answers_of_other_nodes_are_checked),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_balance MODEL\n");
        return 2;
    }
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
