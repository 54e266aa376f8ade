/* test_losses.c - losses, and other trouble of changes and snapshots, that once went wrong.
 *
 * Method: three nodes by hand. A test brings about one trouble and waits for the end: the right one
 * where the batcher's node is there, else an error; and nothing is left behind. */
#include "tests/check.h"

#include "actors/cluster_moves.h"
#include "actors/snapshot.h"
#include "core/log.h"
#include "core/plan_edit.h"
#include "tests/sim/requests.h"
#include "tests/sim/tiny_model.h"
#include "tests/sim/world.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_NS (8ull * WORLD_SECOND)
#define LONG_STOCK  1 /* a request of the stock with 48 tokens */
#define SHORT_STOCK 3
#define ROWS_STOCK  2 /* one that asks for logits */

static char model[64];

typedef struct {
    world world;
    uint64_t request;
    uint32_t stock;
    uint32_t client; /* node of it */
    sim_answer answer;
    world_task *loads; /* of n2: its disk is slow, and it looks up only when it is to give up */
    const _Atomic bool *given_up;
} fixture;

/* A cluster of n0, n1 and n2, its default placement or what rules say; limits: more of them, behind
 * a comma; client: who will ask. */
static void open_fixture_with(fixture *x, const char *rules, const char *limits, uint32_t client,
                              uint64_t notice_ns)
{
    char yaml[1024];
    tr_error err = {0};
    tr_sim_config net = {
        .seed = 1, .delay_ns = 5000, .delay_max_ns = 50000, .room = 128, .notice_ns = notice_ns};

    *x = (fixture){.client = client};
    snprintf(yaml, sizeof(yaml),
             "model: %s\nnodes: [{name: n0, memory: 1 GiB}, {name: n1, memory: 1 GiB},"
             " {name: n2, memory: 1 GiB}]\n%s"
             "limits: {context: %d, exit_on_peer_loss: false%s}\n",
             model, rules, TINY_CONTEXT, limits);
    CHECK_STATUS(world_open(&x->world, yaml, &net, 1, &err), TR_OK);
    CHECK_STATUS(world_boot(&x->world, &err), TR_OK);
}

static void open_fixture(fixture *x, const char *rules, uint32_t client, uint64_t notice_ns)
{
    open_fixture_with(x, rules, "", client, notice_ns);
}

static void step(fixture *x)
{
    if (x->loads != NULL && atomic_load(x->given_up)) {
        x->loads->wake_ns = world_now_ns(&x->world);
        x->loads = NULL;
    }
    (void)world_step(&x->world, world_next_ns(&x->world));
}

static void ask(fixture *x, uint32_t stock)
{
    int32_t prompt[TINY_CONTEXT];
    tr_request request;
    tr_error err = {0};
    x->stock = stock;
    sim_request_make(stock, &request, prompt);
    CHECK_STATUS(tr_client_submit(x->world.nodes[x->client].client, &request, &x->request, &err),
                 TR_OK);
}

/* The next event of the request, soon. */
static void hear(fixture *x)
{
    uint64_t deadline_ns = world_now_ns(&x->world) + PATIENCE_NS;
    tr_event event;
    while (!tr_client_next(x->world.nodes[x->client].client, &event)) {
        assert_true(world_next_ns(&x->world) < deadline_ns);
        step(x);
    }
    assert_true(event.request == x->request);
    assert_null(sim_answer_add(&x->answer, &event));
}

/* A long request, which has had its first token. */
static void ask_long(fixture *x)
{
    ask(x, LONG_STOCK);
    hear(x);
    assert_int_equal(x->answer.tokens_count, 1);
}

/* The request ends, once. */
static void hear_end(fixture *x)
{
    tr_event event;
    while (x->answer.last.kind != TR_EVENT_FAILED && x->answer.last.kind != TR_EVENT_FINISHED)
        hear(x);
    assert_false(tr_client_next(x->world.nodes[x->client].client, &event));
}

static void expect_error(fixture *x)
{
    hear_end(x);
    assert_int_equal(x->answer.last.kind, TR_EVENT_FAILED);
    assert_int_equal(x->answer.last.error.code, TR_E_PEER);
    world_close(&x->world);
}

static void expect_right_end(fixture *x)
{
    tr_error err = {0};
    hear_end(x);
    assert_int_equal(x->answer.last.kind, TR_EVENT_FINISHED);
    assert_null(sim_answer_check(&x->answer, sim_right_answer(model, x->stock, &err)));
    world_close(&x->world);
}

static void the_batchers_node_dies_and_takes_the_requests_of_others_along(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 2, WORLD_SECOND);
    ask_long(&x);
    world_crash(&x.world, 0);
    expect_error(&x);
}

static void a_node_dies_and_only_its_silence_says_so(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 0, UINT64_MAX);
    ask_long(&x);
    world_crash(&x.world, 1);
    expect_right_end(&x);
}

static void a_node_that_was_stopped_and_given_up_gives_up_too(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 1, UINT64_MAX);
    ask_long(&x);
    x.world.nodes[1].awake_ns = world_now_ns(&x.world) + 3 * WORLD_SECOND;
    expect_error(&x);
}

static void two_nodes_lose_each_other_and_the_batcher_neither(void **state)
{
    fixture x;
    tr_health health;
    (void)state;
    open_fixture(&x, "", 0, UINT64_MAX);
    ask_long(&x);
    tr_sim_cut(x.world.net, 1, 2, world_now_ns(&x.world) + 4 * WORLD_SECOND);
    tr_cluster_health(x.world.nodes[0].cluster, &health);
    assert_int_equal(health.state, TR_HEALTH_SERVING);
    expect_right_end(&x);
}

/* Sampler and client have lost each other, and the batcher neither: the rows go nowhere. */
static void rows_that_cannot_come_are_not_waited_for(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x,
                 "batcher: n2\nsampler: n0\nrouters: [{node: n2, layers: all}]\n"
                 "vocabulary: [{node: n0}]\n",
                 1, UINT64_MAX);
    tr_sim_cut(x.world.net, 0, 1, world_now_ns(&x.world) + 4 * WORLD_SECOND);
    while (!x.world.lost)
        step(&x);
    ask(&x, ROWS_STOCK);
    expect_error(&x);
}

/* The batcher may still have what the former life asked for, under the same number. */
static void a_client_that_comes_back_hears_nothing_of_its_former_life(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 2, 0);
    ask_long(&x);
    world_crash(&x.world, 2);
    world_restart(&x.world, 2, world_now_ns(&x.world));
    x.world.nodes[1].slow = 200; /* the stream takes longer than the return */
    while (x.world.nodes[2].client == NULL)
        step(&x);
    x.answer = (sim_answer){.tokens_count = 0};
    ask(&x, SHORT_STOCK);
    expect_right_end(&x);
}

/* A part moves to n2, which does not come to an end of loading it. */
static void begin_to_load(fixture *x)
{
    tr_cluster *n2 = x->world.nodes[2].cluster;
    tr_error err = {0};
    uint64_t number;
    CHECK_STATUS(tr_cluster_move(x->world.nodes[0].cluster, "vocabulary/all", "n2", &number, &err),
                 TR_OK);
    while (n2->change.phase != CLUSTER_CHANGE_PREPARING)
        step(x);
    x->loads = n2->change.thread.task;
    x->given_up = &n2->change.abandoned;
    x->loads->wake_ns = UINT64_MAX;
}

/* Streams wait from the loss on. */
static void a_loss_does_not_wait_for_a_node_that_loads(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 0, 0);
    ask_long(&x);
    begin_to_load(&x);
    world_crash(&x.world, 1);
    expect_right_end(&x);
}

/* -- nobody has room for a share -- */

/* Memory of a node for spare bytes more than it has now. */
static void leave_room(fixture *x, uint32_t node, uint64_t spare)
{
    tr_cluster *c = x->world.nodes[node].cluster;
    c->budget.bytes_max = cluster_memory_taken(c) + spare;
}

static void await_giving_up(fixture *x)
{
    while (!x->world.nodes[0].cluster->moves->gave_up)
        step(x);
}

/* The cluster serves within a few seconds, without some of its nodes or with all. */
static void expect_service(fixture *x, uint32_t missing)
{
    uint64_t deadline_ns = world_now_ns(&x->world) + PATIENCE_NS;
    tr_health_state wanted = missing != 0 ? TR_HEALTH_DEGRADED : TR_HEALTH_SERVING;
    tr_health health = {.state = TR_HEALTH_STARTING};
    while (health.state != wanted || health.missing != missing ||
           !world_tasks_are_idle(&x->world)) {
        assert_true(world_now_ns(&x->world) < deadline_ns);
        step(x);
        tr_cluster_health(x->world.nodes[0].cluster, &health);
    }
    x->answer = (sim_answer){.tokens_count = 0};
    ask(x, SHORT_STOCK);
    expect_right_end(x);
}

/* n0 has room for its part of what n2 had (0.8 MiB), and not for all that both others had (1.2). */
static void who_comes_back_takes_over_from_those_who_do_not(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 0, 0);
    leave_room(&x, 0, 1 << 20);
    world_crash(&x.world, 1);
    world_crash(&x.world, 2);
    await_giving_up(&x);
    world_restart(&x.world, 1, world_now_ns(&x.world));
    expect_service(&x, 1u << 2);
}

/* It is waited for, but not once its next life has said that this one is over. */
static void a_node_that_dies_while_it_joins_joins_again_at_once(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 0, 0);
    const cluster_moves *m = x.world.nodes[0].cluster->moves;
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t deadline_ns = world_now_ns(&x.world) + PATIENCE_NS;
        world_crash(&x.world, 2);
        world_restart(&x.world, 2, world_now_ns(&x.world));
        while (i == 0 && m->join.phase != MOVES_JOIN_LINKED) {
            assert_true(world_now_ns(&x.world) < deadline_ns);
            step(&x);
        }
    }
    expect_service(&x, 0);
}

static void a_lost_node_is_drained_when_others_have_room_again(void **state)
{
    fixture x;
    tr_error err = {0};
    uint64_t number;
    (void)state;
    open_fixture(&x, "", 0, 0);
    leave_room(&x, 0, 1024);
    leave_room(&x, 2, 1024);
    world_crash(&x.world, 1);
    await_giving_up(&x);
    while (!world_tasks_are_idle(&x.world))
        step(&x);
    leave_room(&x, 0, 1u << 30);
    leave_room(&x, 2, 1u << 30);
    CHECK_STATUS(tr_cluster_drain(x.world.nodes[0].cluster, "n1", &number, &err), TR_OK);
    expect_service(&x, 1u << 1);
}

/* Of the share of n1 each other would get one half, which is 1.0 MiB with its tables. */
static void a_share_goes_where_there_is_room(void **state)
{
    fixture x;
    (void)state;
    open_fixture(&x, "", 0, 0);
    leave_room(&x, 0, 900 * 1024);
    ask_long(&x);
    world_crash(&x.world, 1);
    expect_right_end(&x);
}

static void a_drained_node_gives_to_those_who_have_room(void **state)
{
    fixture x;
    tr_change_report report = {.phase = "none"};
    tr_error err = {0};
    uint64_t number;
    (void)state;
    open_fixture(&x, "", 0, 0);
    tr_cluster *n0 = x.world.nodes[0].cluster;
    leave_room(&x, 0, 900 * 1024);
    ask_long(&x);
    CHECK_STATUS(tr_cluster_drain(n0, "n1", &number, &err), TR_OK);
    while (strcmp(report.phase, "done") != 0 && strcmp(report.phase, "failed") != 0) {
        step(&x);
        assert_true(tr_cluster_change_report(n0, number, &report));
    }
    assert_string_equal(report.error.text, "");
    assert_false(tr_plan_uses(&n0->view->plan, 1));
    expect_right_end(&x);
}

/* -- states from a file -- */

static tr_change_report await_job(fixture *x, tr_status begun, const uint64_t *number)
{
    tr_change_report report = {.phase = "none"};
    CHECK_STATUS(begun, TR_OK);
    while (strcmp(report.phase, "done") != 0 && strcmp(report.phase, "failed") != 0) {
        step(x);
        assert_true(tr_cluster_change_report(x->world.nodes[0].cluster, *number, &report));
    }
    return report;
}

/* n1 is stopped for longer than the batcher is asked to adopt a state, and then gives memory for
 * it. */
static void a_state_that_came_too_late_holds_no_memory(void **state)
{
    fixture x;
    char path[96];
    tr_error err = {0};
    tr_cluster_stat stat;
    uint64_t number;
    (void)state;
    open_fixture_with(&x, "", ", peer_timeout: 60 s", 0, 0);
    tr_cluster *n0 = x.world.nodes[0].cluster, *n1 = x.world.nodes[1].cluster;
    snprintf(path, sizeof(path), "%s/states", model);
    ask_long(&x);
    tr_change_report report = await_job(&x, tr_cluster_snapshot(n0, path, &number, &err), &number);
    assert_int_equal(report.sequences, 1);
    hear_end(&x);
    CHECK_STATUS(tr_cluster_restore(n0, path, &number, &err), TR_OK);
    while (atomic_load(&n1->states_open_ns) <= cluster_now(n1))
        step(&x);
    x.world.nodes[1].awake_ns = world_now_ns(&x.world) + 20ull * WORLD_SECOND;
    report = await_job(&x, TR_OK, &number);
    assert_int_equal(report.error.code, TR_E_TIMEOUT);
    while (world_now_ns(&x.world) < x.world.nodes[1].awake_ns || !world_is_quiet(&x.world))
        step(&x);
    for (int n = 0; n < 3; n++) {
        tr_cluster_stats(x.world.nodes[n].cluster, &stat);
        assert_int_equal(stat.kv_pages_used, 0);
    }
    assert_int_equal(unlink(path), 0);
    world_close(&x.world);
}

/* What is read is a token no longer; taken all the same, it would fail the steps of others. */
static void a_file_that_changes_while_it_is_restored_is_refused(void **state)
{
    fixture x;
    char path[96];
    tr_error err = {0};
    uint64_t number;
    (void)state;
    open_fixture(&x, "", 0, 0);
    tr_cluster *n0 = x.world.nodes[0].cluster, *n1 = x.world.nodes[1].cluster;
    snprintf(path, sizeof(path), "%s/states", model);
    ask_long(&x);
    (void)await_job(&x, tr_cluster_snapshot(n0, path, &number, &err), &number);
    hear_end(&x);
    CHECK_STATUS(tr_cluster_restore(n0, path, &number, &err), TR_OK);
    while (atomic_load(&n1->states_open_ns) <= cluster_now(n1)) /* it has been checked */
        step(&x);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    const int32_t token = -1;
    assert_int_equal(
        pwrite(fd, &token, sizeof(token), sizeof(tr_snapshot_head) + sizeof(tr_snapshot_slot)),
        sizeof(token));
    close(fd);
    tr_change_report report = await_job(&x, TR_OK, &number);
    CHECK_ERR_NAMES(report.error, "token -1");
    assert_int_equal(unlink(path), 0);
    world_close(&x.world);
}

static void *no_task(void *ctx, void *(*run)(void *), void *arg)
{
    (void)ctx, (void)run, (void)arg;
    return NULL;
}

/* A machine without threads: whoever asks hears it, and nothing is under way for ever. */
static void a_change_without_a_thread_leaves_no_report(void **state)
{
    fixture x;
    tr_change_report report;
    tr_error err = {0};
    uint64_t number;
    (void)state;
    open_fixture(&x, "", 0, 0);
    tr_cluster *n0 = x.world.nodes[0].cluster;
    x.world.nodes[0].hand.spawn = no_task;
    CHECK_STATUS(tr_cluster_move(n0, "sampler", "n1", &number, &err), TR_E_NOMEM);
    assert_false(tr_cluster_change_report(n0, 1, &report));
    CHECK_STATUS(tr_cluster_snapshot(n0, "/tmp/states", &number, &err), TR_E_NOMEM);
    assert_false(tr_cluster_change_report(n0, 1, &report));
    x.world.nodes[0].hand.spawn = world_spawn;
    CHECK_STATUS(tr_cluster_move(n0, "sampler", "n1", &number, &err), TR_OK);
    report = await_job(&x, TR_OK, &number);
    assert_string_equal(report.what, "move sampler to n1");
    assert_string_equal(report.phase, "done");
    world_close(&x.world);
}

/* It would never notice that a node is gone. By hand there are no heartbeats; they are begun as a
 * node with threads begins them. */
static void a_node_that_cannot_watch_the_others_does_not_start(void **state)
{
    fixture x;
    tr_error err = {0};
    (void)state;
    open_fixture(&x, "", 0, 0);
    x.world.nodes[0].hand.spawn = no_task;
    CHECK_STATUS(cluster_start_heartbeats(x.world.nodes[0].cluster, &err), TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "no thread to watch node n1");
    world_close(&x.world);
}

/* A coordinator whose change never ends. It is busy before the node asks for the plan, or when the
 * node is open and asks to join; by whose clock some hours pass. */
static void nobody_is_told_to_wait_for_ever(void **state)
{
    (void)state;
    for (int open = 0; open < 2; open++) {
        fixture x;
        open_fixture(&x, "", 0, 0);
        struct cluster_moves *moves = x.world.nodes[0].cluster->moves;
        world_crash(&x.world, 2);
        while (moves->busy || !world_tasks_are_idle(&x.world))
            step(&x);
        moves->busy = open == 0;
        world_restart(&x.world, 2, world_now_ns(&x.world));
        while (open == 1 && x.world.nodes[2].cluster == NULL)
            step(&x);
        moves->busy = true;
        uint64_t begin_ns = world_now_ns(&x.world);
        while (world_now_ns(&x.world) < begin_ns + WORLD_SECOND)
            step(&x);
        assert_false(x.world.nodes[2].start_failed);
        x.world.nodes[2].clock.offset_ns += 3ull * 3600 * WORLD_SECOND;
        while (!x.world.nodes[2].start_failed) {
            assert_true(world_now_ns(&x.world) < begin_ns + PATIENCE_NS);
            step(&x);
        }
        moves->busy = false;
        world_close(&x.world);
    }
}

/* n2 never heard that a change was given up, and still loads it. */
static void a_node_that_still_loads_a_former_change_is_waited_for(void **state)
{
    fixture x;
    tr_plan plan;
    tr_error err = {0};
    void *bytes;
    size_t size;
    uint64_t number;
    (void)state;
    open_fixture(&x, "", 0, 0);
    tr_cluster *n0 = x.world.nodes[0].cluster, *n2 = x.world.nodes[2].cluster;
    CHECK_STATUS(tr_cluster_plan(n0, &plan, &err), TR_OK);
    plan.epoch = n0->moves->last_epoch = plan.epoch + 1;
    CHECK_STATUS(tr_plan_encode(&plan, &bytes, &size, &err), TR_OK);
    CHECK_STATUS(cluster_change_prepare(n2, bytes, size, &err), TR_OK);
    free(bytes);
    tr_plan_free(&plan);
    x.loads = n2->change.thread.task;
    x.loads->wake_ns = UINT64_MAX;
    x.given_up = &n2->change.abandoned;
    tr_change_report report =
        await_job(&x, tr_cluster_move(n0, "sampler", "n1", &number, &err), &number);
    assert_string_equal(report.error.text, "");
    world_close(&x.world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_batchers_node_dies_and_takes_the_requests_of_others_along),
        cmocka_unit_test(a_node_dies_and_only_its_silence_says_so),
        cmocka_unit_test(a_node_that_was_stopped_and_given_up_gives_up_too),
        cmocka_unit_test(two_nodes_lose_each_other_and_the_batcher_neither),
        cmocka_unit_test(rows_that_cannot_come_are_not_waited_for),
        cmocka_unit_test(a_client_that_comes_back_hears_nothing_of_its_former_life),
        cmocka_unit_test(a_loss_does_not_wait_for_a_node_that_loads),
        cmocka_unit_test(who_comes_back_takes_over_from_those_who_do_not),
        cmocka_unit_test(a_node_that_dies_while_it_joins_joins_again_at_once),
        cmocka_unit_test(a_lost_node_is_drained_when_others_have_room_again),
        cmocka_unit_test(a_share_goes_where_there_is_room),
        cmocka_unit_test(a_drained_node_gives_to_those_who_have_room),
        cmocka_unit_test(a_state_that_came_too_late_holds_no_memory),
        cmocka_unit_test(a_file_that_changes_while_it_is_restored_is_refused),
        cmocka_unit_test(a_change_without_a_thread_leaves_no_report),
        cmocka_unit_test(a_node_that_cannot_watch_the_others_does_not_start),
        cmocka_unit_test(nobody_is_told_to_wait_for_ever),
        cmocka_unit_test(a_node_that_still_loads_a_former_change_is_waited_for),
    };
    tr_error err;
    tr_log_set_level(TR_LOG_NONE);
    if (tiny_model_write(model, sizeof(model), &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sim_requests_close();
    sim_tasks_close();
    tiny_model_remove(model);
    return failures;
}
