/* test_cluster_snapshot.c - states go to a file and come back into another cluster, and every
 * answer has the bits of one that was never interrupted.
 *
 * Method: nodes in this process over the loop transport, with the model of the argument. Requests
 * are asked on a cluster of one node that keeps nothing; then on one of two nodes, where a snapshot
 * is taken while some of them run; then on new clusters with other placements that took the file.
 */
#include "actors/cluster_states.h"
#include "actors/snapshot.h"
#include "core/trace.h"
#include "tests/actors/whole_cluster.h"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LIVE        4 /* requests that run while the snapshot is taken */
#define ENDED       3 /* requests that have ended and left a prefix */
#define REQUESTS    (LIVE + ENDED)
#define GENERATED   90
#define DEADLINE_NS 120000000000u

static const char *model_path;
static char file_path[] = "/tmp/troupe-states-XXXXXX";

static const uint32_t prompt_counts[REQUESTS] = {5, 160, 64, 70, 66, 130, 65};

typedef struct {
    int32_t tokens[GENERATED];
    uint32_t count, cached;
    uint64_t number;
    bool ended;
} answer;

static void open_nodes(cluster *c, const char *rest)
{
    char yaml[1024];
    snprintf(yaml, sizeof(yaml), "model: %s\ntransport: loop\n%s", model_path, rest);
    cluster_open(c, yaml);
}

static void ask(cluster *c, uint32_t which, answer *a)
{
    int32_t tokens[256];
    tr_error err = {0};

    for (uint32_t i = 0; i < prompt_counts[which]; i++)
        tokens[i] = cluster_prompt_token(c, which, i);
    tr_request r = {.tokens = tokens,
                    .tokens_count = prompt_counts[which],
                    .tokens_max = which < LIVE ? GENERATED : 5,
                    .sampling = {.temperature = which % 2 ? 0.8f : 0, .top_p = 0.95f, .seed = 7}};
    *a = (answer){0};
    if (tr_client_submit(c->client, &r, &a->number, &err) != TR_OK)
        fail_msg("%s", err.text);
}

static void take(const tr_event *e, answer *all, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && all[i].number != e->request)
        i++;
    assert_true(i < count);
    if (e->kind == TR_EVENT_FAILED)
        fail_msg("request %u: %s", i, e->error.text);
    if (e->kind == TR_EVENT_TOKEN) {
        assert_true(all[i].count < GENERATED);
        all[i].tokens[all[i].count++] = e->token;
    } else {
        all[i].ended = true;
        all[i].cached = e->cached_tokens;
    }
}

/* Reads events until every one of count answers has so many tokens, or has ended. */
static void collect(cluster *c, answer *all, uint32_t count, uint32_t least)
{
    for (;;) {
        tr_event e;
        uint32_t enough = 0;
        for (uint32_t k = 0; k < count; k++)
            enough += all[k].ended || all[k].count >= least;
        if (enough == count)
            return;
        assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
        take(&e, all, count);
    }
}

/* Reads events of live requests until one has a token. */
static void collect_first(cluster *c, answer *all)
{
    tr_event e;
    assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
    assert_int_equal(e.kind, TR_EVENT_TOKEN);
    for (uint32_t i = 0; i < LIVE; i++)
        if (all[i].number == e.request)
            all[i].tokens[all[i].count++] = e.token;
}

static void check_equal(const answer *got, const answer *expected, uint32_t which)
{
    if (got->count != expected->count ||
        memcmp(got->tokens, expected->tokens, got->count * sizeof(got->tokens[0])) != 0)
        fail_msg("%s: request %u: other tokens", model_path, which);
}

static tr_change_report restore(cluster *c, const char *path)
{
    uint64_t number = 0;
    tr_error err = {0};
    CHECK_STATUS(tr_cluster_restore(c->nodes[0], path, &number, &err), TR_OK);
    return cluster_await_change(c, number);
}

static void reference(answer *expected)
{
    cluster c;
    open_nodes(&c, "nodes: [{name: a, memory: 1 GiB}]\nlimits: {context: 256}\n");
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ask(&c, i, &expected[i]);
        collect(&c, &expected[i], 1, UINT32_MAX);
    }
    cluster_close(&c);
}

/* Takes events that have come already; returns how many of the live requests have not ended. */
static uint32_t running_still(cluster *c, answer *all)
{
    tr_event e;
    uint32_t running = 0;

    while (tr_client_next(c->client, &e))
        take(&e, all, LIVE);
    for (uint32_t i = 0; i < LIVE; i++)
        running += !all[i].ended;
    return running;
}

/* Asks the live requests, writes the file while they run, and awaits their ends, which are as if
 * nothing had been. Returns how many of them are in the file: not those that ended before the
 * pause, because the threads that write it got no turn.
 *   early  when one has its first token, and others are in the middle of their prompts */
static uint32_t write_while_they_run(cluster *c, answer *got, const answer *expected, bool early)
{
    uint64_t number = 0;
    tr_error err = {0};

    for (uint32_t i = 0; i < LIVE; i++)
        ask(c, i, &got[i]);
    if (early)
        collect_first(c, got);
    else
        collect(c, got, LIVE, 3);
    CHECK_STATUS(tr_cluster_snapshot(c->nodes[0], file_path, &number, &err), TR_OK);
    tr_change_report report = cluster_await_change(c, number);
    if (report.error.code != TR_OK)
        fail_msg("%s", report.error.text);
    assert_in_range(report.sequences, early ? 0 : running_still(c, got), LIVE);
    assert_true(report.prefixes >= ENDED);
    assert_true(report.pause_ns > 0);
    collect(c, got, LIVE, UINT32_MAX);
    for (uint32_t i = 0; i < LIVE; i++)
        check_equal(&got[i], &expected[i], i);
    return report.sequences;
}

/* Writes the file while requests run. Returns how many of the live ones are in it. */
static uint32_t take_snapshot(const answer *expected, bool early)
{
    answer got[REQUESTS];
    cluster c;
    uint32_t saved = 0, wanted = early ? 1 : LIVE;
    uint64_t number = 0;
    tr_error err = {0};

    open_nodes(&c, "nodes: [{name: a, memory: 1 GiB}, {name: b, memory: 1 GiB}]\n"
                   "limits: {context: 256, cache_tokens: 4096, sequences: 6, prefix_cache: 6,"
                   " step_rows: 128, peer_timeout: 20 s}\n");
    for (uint32_t i = LIVE; i < REQUESTS; i++) {
        ask(&c, i, &got[i]);
        collect(&c, &got[i], 1, UINT32_MAX);
        check_equal(&got[i], &expected[i], i);
    }
    CHECK_STATUS(tr_cluster_snapshot(c.nodes[1], file_path, &number, &err), TR_E_NOTSUP);
    CHECK_STATUS(tr_cluster_snapshot(c.nodes[0], "states", &number, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "expected a path from /");
    for (int attempt = 0; attempt < 20 && saved < wanted; attempt++)
        saved = write_while_they_run(&c, got, expected, early);
    assert_true(saved >= wanted);
    CHECK_STATUS(tr_cluster_snapshot(c.nodes[0], "/no/such/folder/states", &number, &err), TR_OK);
    tr_change_report report = cluster_await_change(&c, number);
    CHECK_ERR_NAMES(report.error, "/no/such/folder/states.part: ");
    cluster_close(&c);
    return saved;
}

static void states_come_back(bool early)
{
    static const char *const placements[] = {
        "nodes: [{name: a, memory: 1 GiB}]\n"
        "limits: {context: 256, cache_tokens: 4096, sequences: 6, prefix_cache: 6}\n",
        "nodes: [{name: a, memory: 1 GiB}, {name: b, memory: 1 GiB}, {name: c, memory: 1 GiB}]\n"
        "attention: [{node: c}]\nbatcher: a\n"
        "limits: {context: 256, cache_tokens: 4096, sequences: 6, prefix_cache: 6,"
        " peer_timeout: 20 s}\n",
    };
    answer expected[REQUESTS], got[REQUESTS];

    reference(expected);
    uint32_t saved = take_snapshot(expected, early);
    for (size_t p = 0; p < sizeof(placements) / sizeof(placements[0]); p++) {
        cluster c;
        open_nodes(&c, placements[p]);
        tr_change_report report = restore(&c, file_path);
        if (report.error.code != TR_OK)
            fail_msg("%s", report.error.text);
        assert_int_equal(report.sequences, saved);
        assert_true(report.prefixes >= ENDED);
        assert_int_equal(report.left, 0);
        for (uint32_t i = 0; i < REQUESTS; i++)
            ask(&c, i, &got[i]);
        collect(&c, got, REQUESTS, UINT32_MAX);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            check_equal(&got[i], &expected[i], i);
            if (i >= LIVE)
                assert_int_equal(got[i].cached, (prompt_counts[i] - 1) / 64 * 64);
            else if (!early)
                assert_int_equal(got[i].cached, prompt_counts[i]);
        }
        cluster_close(&c);
    }
}

static void states_come_back_under_any_placement(void **state)
{
    (void)state;
    states_come_back(false);
}

static void prompts_go_on_in_the_middle(void **state)
{
    (void)state;
    states_come_back(true);
}

/* A cluster with less room takes what it can hold, and gives it up for requests. */
static void what_has_no_room_is_left(void **state)
{
    answer expected[REQUESTS], got[REQUESTS];
    cluster c;
    (void)state;

    reference(expected);
    open_nodes(&c, "nodes: [{name: a, memory: 1 GiB}]\n"
                   "limits: {context: 256, cache_tokens: 512, sequences: 2}\n");
    tr_change_report report = restore(&c, file_path);
    if (report.error.code != TR_OK)
        fail_msg("%s", report.error.text);
    assert_true(report.sequences + report.prefixes <= 2);
    assert_true(report.left >= REQUESTS - 2);
    for (uint32_t i = REQUESTS; i > 0; i--)
        ask(&c, i - 1, &got[i - 1]);
    collect(&c, got, REQUESTS, UINT32_MAX);
    for (uint32_t i = 0; i < REQUESTS; i++)
        check_equal(&got[i], &expected[i], i);
    cluster_close(&c);
}

static void files_that_are_wrong_change_nothing(void **state)
{
    char path[64];
    cluster c;
    (void)state;

    open_nodes(&c, "nodes: [{name: a, memory: 1 GiB}]\nlimits: {context: 256}\n");
    tr_change_report report = restore(&c, "/no/such/file");
    CHECK_ERR_NAMES(report.error, "/no/such/file: ");
    snprintf(path, sizeof(path), "%s.cut", file_path);
    FILE *from = fopen(file_path, "rb"), *to = fopen(path, "wb");
    assert_non_null(from);
    assert_non_null(to);
    for (int i = 0, byte; i < 5000 && (byte = fgetc(from)) != EOF; i++)
        fputc(byte, to);
    fclose(from);
    fclose(to);
    report = restore(&c, path);
    CHECK_ERR_NAMES(report.error, "5000 bytes");
    assert_int_equal(report.prefixes + report.sequences, 0);
    assert_int_equal(unlink(path), 0);
    tr_cluster_stat stat;
    tr_cluster_stats(c.nodes[0], &stat);
    assert_int_equal(stat.prefixes_kept, 0);
    cluster_close(&c);
}

static void state_that_does_not_fit_is_refused(void **state)
{
    static const struct {
        cluster_piece piece;
        const char *named;
    } wrong[] = {
        {{.sequence = 1u << 20, .with_state = 1}, "no such part"},
        {{.layer = 1u << 20, .with_state = 1}, "no such part"},
        {{.term = 1u << 20, .with_state = 1}, "no such part"},
        {{.generation = 77, .with_state = 1}, "it is not held here"},
        {{.page_first = UINT32_MAX, .pages_count = 2}, "it is not held here"},
        {{.pages_count = UINT32_MAX}, "it is not held here"},
    };
    const cluster_piece none = {.with_state = 0};
    uint8_t bytes[16] = {0};
    tr_error err = {0};
    cluster c;
    (void)state;

    open_nodes(&c, "nodes: [{name: a, memory: 1 GiB}, {name: b, memory: 1 GiB}]\n"
                   "attention: [{node: a}]\nlimits: {context: 256, peer_timeout: 20 s}\n");
    CHECK_STATUS(cluster_states_write(c.nodes[0], &none, 1, bytes, 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "states are taken only from a snapshot");
    for (int n = 0; n < 2; n++)
        atomic_store(&c.nodes[n]->states_open_ns, cluster_after(c.nodes[n], DEADLINE_NS));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_STATUS(
            cluster_states_write(c.nodes[0], &wrong[i].piece, 1, bytes, sizeof(bytes), &err),
            TR_E_INVALID);
        CHECK_ERR_NAMES(err, wrong[i].named);
    }
    CHECK_STATUS(cluster_states_write(c.nodes[0], NULL, 0, bytes, 1, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "1 bytes too many");
    /* All heads are a's: b has no memory for their state. */
    CHECK_STATUS(cluster_states_write(c.nodes[1], &none, 1, bytes, 0, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "it stands elsewhere");
    cluster_close(&c);
}

/* A file that is a hole for the most part, and takes long to be hashed: sequences of the longest
 * tokens, all 0, and the end. */
static void write_long_file(const char *path)
{
    tr_snapshot_head head;
    tr_snapshot_slot slot = {.kind = TR_SNAPSHOT_SEQUENCE,
                             .tokens_count = 1u << 24,
                             .prompt_count = 1u << 24,
                             .computed_count = (1u << 24) - 64,
                             .tokens_max = 1};
    int from = open(file_path, O_RDONLY | O_CLOEXEC);
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(from >= 0 && to >= 0);
    assert_int_equal(read(from, &head, sizeof(head)), sizeof(head));
    assert_int_equal(pwrite(to, &head, sizeof(head), 0), sizeof(head));
    uint64_t at = sizeof(head);
    for (int i = 0; i < 64 && at < UINT64_C(1) << 36; i++) {
        assert_int_equal(pwrite(to, &slot, sizeof(slot), (off_t)at), sizeof(slot));
        at += sizeof(slot) + slot.tokens_count * sizeof(int32_t) +
              tr_snapshot_state_size(&head, slot.computed_count);
    }
    assert_int_equal(ftruncate(to, (off_t)(at + sizeof(slot) + sizeof(uint64_t))), 0);
    close(from);
    close(to);
}

static void a_loss_does_not_wait_for_a_long_file(void **state)
{
    char path[64];
    cluster c;
    uint64_t number = 0;
    tr_error err = {0};
    (void)state;

    snprintf(path, sizeof(path), "%s.long", file_path);
    write_long_file(path);
    open_nodes(&c, "nodes: [{name: a, memory: 1 GiB}, {name: b, memory: 1 GiB}]\n"
                   "limits: {context: 256, peer_timeout: 20 s}\n");
    CHECK_STATUS(tr_cluster_restore(c.nodes[0], path, &number, &err), TR_OK);
    tr_cluster_request_shutdown(c.nodes[1]);
    tr_cluster_stop(c.nodes[1]); /* says goodbye */
    tr_change_report report = cluster_await_change(&c, number);
    CHECK_ERR_NAMES(report.error, "given up: a node was lost");
    uint64_t deadline = tr_clock_ns() + DEADLINE_NS; /* what follows from the loss comes next */
    while (!tr_cluster_change_report(c.nodes[0], number + 1, &report))
        assert_true(tr_clock_ns() < deadline);
    report = cluster_await_change(&c, number + 1);
    assert_string_equal(report.what, "go on without b");
    assert_string_equal(report.phase, "done");
    CHECK_STATUS(tr_cluster_restore(c.nodes[0], path, &number, &err), TR_OK);
    cluster_close(&c); /* the end does not wait for it either */
    assert_int_equal(unlink(path), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_go_on_in_the_middle),
        cmocka_unit_test(states_come_back_under_any_placement), /* leaves its file for the next */
        cmocka_unit_test(what_has_no_room_is_left),
        cmocka_unit_test(files_that_are_wrong_change_nothing),
        cmocka_unit_test(state_that_does_not_fit_is_refused),
        cmocka_unit_test(a_loss_does_not_wait_for_a_long_file),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_cluster_snapshot MODEL\n");
        return 2;
    }
    model_path = argv[1];
    int fd = mkstemp(file_path);
    if (fd < 0)
        return 2;
    close(fd);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(file_path);
    return failed;
}
