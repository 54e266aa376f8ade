/* test_stream.c - a node without a checkpoint of its own serves like any other.
 *
 * Method: clusters in this process over the loop transport, with the bundled model; nodes with
 * `checkpoint: stream` get every byte of it over the control sockets. Answers must be those of one
 * node that has the files, at the start, after moves, and after the loss of one of two that have
 * them. Without anybody who has the model, changes are refused. */
#include "actors/cluster_node.h" /* what a node answers is asked directly */
#include "core/trace.h"
#include "tests/actors/whole_cluster.h"

#include <stdlib.h>
#include <time.h>

#define PROMPTS     4
#define GENERATED   24
#define DEADLINE_NS 120000000000u

static const char *model_path;

typedef struct {
    int32_t tokens[PROMPTS][GENERATED];
} answers;

/* nodes: lines of the placement file. */
static void open_nodes(cluster *c, const char *nodes)
{
    char yaml[1024];
    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes:\n%slimits: {context: 128, peer_timeout: 20 s}\n",
             model_path, nodes);
    cluster_open(c, yaml);
}

static void ask(cluster *c, answers *out)
{
    uint64_t numbers[PROMPTS];
    uint32_t counts[PROMPTS] = {0};
    for (uint32_t p = 0; p < PROMPTS; p++) {
        int32_t tokens[40];
        tr_error err = {0};
        for (uint32_t i = 0; i < 40; i++)
            tokens[i] = cluster_prompt_token(c, p, i);
        tr_request r = {.tokens = tokens, .tokens_count = 40, .tokens_max = GENERATED};
        CHECK_STATUS(tr_client_submit(c->client, &r, &numbers[p], &err), TR_OK);
    }
    for (uint32_t open = PROMPTS; open > 0;) {
        tr_event e;
        assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
        uint32_t p = 0;
        while (p < PROMPTS && numbers[p] != e.request)
            p++;
        assert_in_range(p, 0, PROMPTS - 1);
        if (e.kind == TR_EVENT_FAILED)
            fail_msg("prompt %u: %s", p, e.error.text);
        if (e.kind == TR_EVENT_TOKEN)
            out->tokens[p][counts[p]++] = e.token;
        else
            open--;
    }
}

static void check_answers(cluster *c, const answers *expected)
{
    answers got = {0};
    ask(c, &got);
    assert_memory_equal(&got, expected, sizeof(got));
}

static void reference(answers *out)
{
    cluster c;
    open_nodes(&c, "  - {name: a}\n");
    ask(&c, out);
    cluster_close(&c);
}

static void move(cluster *c, const char *part, const char *node)
{
    uint64_t number = 0;
    tr_error err = {0};
    tr_status status = part != NULL ? tr_cluster_move(c->nodes[0], part, node, &number, &err)
                                    : tr_cluster_drain(c->nodes[0], node, &number, &err);
    if (status != TR_OK)
        fail_msg("%s", err.text);
    tr_change_report report = cluster_await_change(c, number);
    if (report.error.code != TR_OK)
        fail_msg("%s", report.error.text);
}

/* Which node has the batcher does not matter; here it streams, too. */
static void a_node_that_streams_gives_the_same_answers(void **state)
{
    answers expected;
    cluster c;
    (void)state;

    reference(&expected);
    for (uint32_t first = 0; first < 2; first++) {
        open_nodes(&c, first ? "  - {name: a, checkpoint: stream}\n  - {name: b}\n"
                             : "  - {name: a}\n  - {name: b, checkpoint: stream}\n");
        tr_cluster *streams = c.nodes[!first];
        assert_string_not_equal(tr_model_path(tr_cluster_model(streams)), model_path);
        assert_string_equal(tr_model_path(tr_cluster_model(c.nodes[first])), model_path);
        check_answers(&c, &expected);
        move(&c, "expert/all.all", first ? "a" : "b");
        check_answers(&c, &expected);
        move(&c, "attention/all.all", first ? "a" : "b");
        check_answers(&c, &expected);
        move(&c, NULL, first ? "b" : "a");
        check_answers(&c, &expected);
        move(&c, NULL, first ? "a" : "b");
        check_answers(&c, &expected);
        tr_cluster_stat stat;
        tr_budget parts;
        tr_cluster_stats(streams, &stat);
        tr_cluster_memory(streams, &parts);
        assert_in_range(stat.memory_bytes, 1, tr_budget_total(&parts));
        cluster_close(&c);
    }
}

/* Until nothing is placed on the second node any more. */
static void await_unused(cluster *c)
{
    tr_plan plan;
    tr_error err = {0};
    uint64_t deadline = tr_clock_ns() + DEADLINE_NS;
    for (bool used = true; used;) {
        CHECK_STATUS(tr_cluster_plan(c->nodes[0], &plan, &err), TR_OK);
        used = tr_plan_uses(&plan, 1);
        tr_plan_free(&plan);
        assert_true(tr_clock_ns() < deadline);
    }
}

/* The second node is lost. In the first round the third streams from the first, as before; in the
 * second the first has streamed from the lost one, and asks the third. */
static void after_a_loss_weights_come_from_who_is_left(void **state)
{
    answers expected;
    cluster c;
    (void)state;

    reference(&expected);
    for (uint32_t round = 0; round < 2; round++) {
        open_nodes(&c, round == 0
                           ? "  - {name: a}\n  - {name: b}\n  - {name: c, checkpoint: stream}\n"
                           : "  - {name: a, checkpoint: stream}\n  - {name: b}\n  - {name: c}\n");
        check_answers(&c, &expected);
        tr_cluster_stop(c.nodes[1]); /* it says so: the others go on without it */
        check_answers(&c, &expected);
        await_unused(&c);
        check_answers(&c, &expected);
        cluster_close(&c);
    }
}

static void without_anybody_who_has_the_model_changes_are_refused(void **state)
{
    answers expected;
    cluster c;
    tr_error err = {0};
    uint64_t number = 0;
    (void)state;

    reference(&expected);
    open_nodes(&c, "  - {name: a, checkpoint: stream}\n  - {name: b}\n"
                   "  - {name: c, checkpoint: stream}\n");
    move(&c, NULL, "b");
    tr_cluster_stop(c.nodes[1]);
    check_answers(&c, &expected); /* b was not needed any more */
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "sampler", "c", &number, &err), TR_OK);
    tr_change_report report = cluster_await_change(&c, number);
    assert_string_equal(report.phase, "failed");
    CHECK_ERR_NAMES(report.error,
                    "has no checkpoint of its own, and no node that has one is there");
    assert_int_equal(report.pause_ns, 0);
    check_answers(&c, &expected);
    cluster_close(&c);
}

/* Drained and lost, a node leaves the tables to another that reads them from its files. */
static void tables_of_n_grams_stay_where_the_model_is(void **state)
{
    answers expected;
    cluster c;
    tr_plan plan;
    tr_error err = {0};
    uint64_t number = 0;
    (void)state;

    reference(&expected);
    open_nodes(&c, "  - {name: a}\n  - {name: b}\n  - {name: c, checkpoint: stream}\n");
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "ngram", "c", &number, &err), TR_OK);
    tr_change_report report = cluster_await_change(&c, number);
    CHECK_ERR_NAMES(report.error, "expected another node for ngram");
    move(&c, NULL, "a");
    check_answers(&c, &expected);
    CHECK_STATUS(tr_cluster_plan(c.nodes[0], &plan, &err), TR_OK);
    assert_int_equal(plan.ngram_node, 1);
    tr_plan_free(&plan);
    tr_cluster_stop(c.nodes[1]);
    check_answers(&c, &expected);
    await_unused(&c);
    CHECK_STATUS(tr_cluster_plan(c.nodes[0], &plan, &err), TR_OK);
    assert_int_equal(plan.ngram_node, 0);
    tr_plan_free(&plan);
    cluster_close(&c);
}

/* -- what a node that has the model answers, to whoever asks -- */

static tr_status ask_node(cluster *c, uint32_t node, const char *method, const void *ranges,
                          size_t size, tr_control_reply *reply, tr_error *err)
{
    char url[TR_URL_SIZE + 64];
    tr_control_client *client;
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    cluster_control_url(c->nodes[node], node, url, sizeof(url));
    CHECK_STATUS(tr_control_client_open(&client, url, err), TR_OK);
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, ranges != NULL ? 2 : 1);
    tr_pack_text(&pk, "method", method);
    if (ranges != NULL)
        tr_pack_bytes(&pk, "ranges", ranges, size);
    tr_status status = tr_control_call(client, &buffer, tr_clock_ns() + DEADLINE_NS, reply, err);
    msgpack_sbuffer_destroy(&buffer);
    tr_control_client_close(client);
    return status;
}

static void readings_that_cannot_be_are_refused(void **state)
{
    cluster c;
    tr_error err = {0};
    tr_control_reply reply;
    const void *bytes;
    size_t size;
    static const struct {
        uint32_t file, size;
        uint64_t offset;
    } wrong[] = {{9999, 1, 0}, {0, 1, UINT64_MAX}, {0, UINT32_MAX, 0}, {UINT32_MAX, 0, 0}},
      good = {0, 8, 0};
    (void)state;

    open_nodes(&c, "  - {name: a}\n  - {name: b, checkpoint: stream}\n");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_STATUS(ask_node(&c, 0, "model_read", &wrong[i], sizeof(wrong[i]), &reply, &err),
                     TR_E_INVALID);
        tr_control_reply_free(&reply);
    }
    static const size_t sizes[] = {0, 1, 15, 17};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        CHECK_STATUS(ask_node(&c, 0, "model_read", wrong, sizes[i], &reply, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "ranges");
        tr_control_reply_free(&reply);
    }
    CHECK_STATUS(ask_node(&c, 0, "model_read", &good, sizeof(good), &reply, &err), TR_OK);
    assert_true(tr_map_bytes(reply.map, "bytes", &bytes, &size));
    assert_int_equal(size, 8);
    tr_control_reply_free(&reply);
    CHECK_STATUS(ask_node(&c, 1, "model_files", NULL, 0, &reply, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "node b has no checkpoint of its own");
    tr_control_reply_free(&reply);
    CHECK_STATUS(ask_node(&c, 1, "model_read", &good, sizeof(good), &reply, &err), TR_E_INVALID);
    tr_control_reply_free(&reply);
    cluster_close(&c);
}

static void nobody_to_ask_is_one_sentence_in_time(void **state)
{
    tr_placement placement;
    tr_cluster *node = NULL;
    tr_error err = {0};
    char yaml[512];
    (void)state;

    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes: [{name: a}, {name: b, checkpoint: stream}]\n"
             "limits: {start_timeout: 1 s}\n",
             model_path);
    CHECK_STATUS(tr_placement_parse(&placement, "test.yaml", yaml, strlen(yaml), &err), TR_OK);
    CHECK_STATUS(tr_cluster_open(&node, &placement, 1, NULL, &err), TR_E_PEER);
    CHECK_ERR_NAMES(err, "b has no checkpoint of its own: node a: ");
    tr_placement_free(&placement);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_that_streams_gives_the_same_answers),
        cmocka_unit_test(after_a_loss_weights_come_from_who_is_left),
        cmocka_unit_test(without_anybody_who_has_the_model_changes_are_refused),
        cmocka_unit_test(readings_that_cannot_be_are_refused),
        cmocka_unit_test(nobody_to_ask_is_one_sentence_in_time),
    };
    const struct CMUnitTest with_tables[] = {
        cmocka_unit_test(tables_of_n_grams_stay_where_the_model_is),
    };
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: test_stream MODEL [ngram]\n");
        return 2;
    }
    model_path = argv[1];
    return argc == 3 ? cmocka_run_group_tests(with_tables, NULL, NULL)
                     : cmocka_run_group_tests(tests, NULL, NULL);
}
