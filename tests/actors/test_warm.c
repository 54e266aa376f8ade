/* test_warm.c - of long contexts only what was computed last is fetched while streams wait.
 *
 * Method: two nodes in this process; sequences with long prompts generate while all head groups go
 * to the other node and back. The tokens must be those of one node alone, and what came during the
 * pauses must be less than what the sequences have in full pages. Sequences end and begin
 * meanwhile, so that slots and pages have other owners between two copies. */
#include "actors/cluster_fetch.h" /* a node's half of a change is called directly, too */
#include "core/plan_edit.h"
#include "core/trace.h"
#include "tests/actors/paused_batcher.h"

#include <stdlib.h>
#include <time.h>

#define PROMPTS     6
#define GENERATED   48
#define DEADLINE_NS 240000000000u

static const char *model_path;
static uint32_t prompt_count = 700;

typedef struct {
    int32_t tokens[PROMPTS][GENERATED];
    uint32_t counts[PROMPTS];
    uint64_t numbers[PROMPTS];
    uint32_t open;
} run;

static void open_nodes(cluster *c, const char *nodes, uint32_t prefixes)
{
    char yaml[1024];
    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes:\n%s"
             "limits: {context: %u, sequences: 8, cache_tokens: %u, prefix_cache: %u, "
             "peer_timeout: 20 s}\n",
             model_path, nodes, prompt_count + 256, 8 * (prompt_count + 256), prefixes);
    cluster_open(c, yaml);
}

static void submit(cluster *c, run *r, uint32_t p)
{
    int32_t *tokens = malloc(prompt_count * sizeof(*tokens));
    tr_error err = {0};
    for (uint32_t i = 0; i < prompt_count; i++)
        tokens[i] = cluster_prompt_token(c, p, i);
    tr_request request = {
        .tokens = tokens, .tokens_count = prompt_count - 17 * p, .tokens_max = GENERATED};
    CHECK_STATUS(tr_client_submit(c->client, &request, &r->numbers[p], &err), TR_OK);
    free(tokens);
    r->counts[p] = 0;
    r->open++;
}

/* Takes events; false when none came within ns. */
static bool take(cluster *c, run *r, uint64_t ns)
{
    tr_event e;
    if (!tr_client_wait(c->client, &e, tr_clock_ns() + ns))
        return false;
    uint32_t p = 0;
    while (p < PROMPTS && r->numbers[p] != e.request)
        p++;
    if (e.kind == TR_EVENT_FAILED)
        fail_msg("prompt %u: %s", p, e.error.text);
    if (e.kind == TR_EVENT_TOKEN && p < PROMPTS) {
        assert_in_range(r->counts[p], 0, GENERATED - 1);
        r->tokens[p][r->counts[p]++] = e.token;
    } else if (p < PROMPTS) {
        r->open--;
    }
    return true;
}

static void take_all(cluster *c, run *r)
{
    while (r->open > 0)
        assert_true(take(c, r, DEADLINE_NS));
}

static tr_change_report move(cluster *c, run *r, const char *part, const char *node)
{
    uint64_t number = 0, deadline = tr_clock_ns() + DEADLINE_NS;
    tr_change_report report;
    tr_error err = {0};
    if (tr_cluster_move(c->nodes[0], part, node, &number, &err) != TR_OK)
        fail_msg("%s", err.text);
    do {
        (void)take(c, r, 1000000);
        assert_true(tr_cluster_change_report(c->nodes[0], number, &report));
        assert_true(tr_clock_ns() < deadline);
    } while (strcmp(report.phase, "done") != 0 && strcmp(report.phase, "failed") != 0);
    if (report.error.code != TR_OK)
        fail_msg("%s: %s", report.what, report.error.text);
    return report;
}

static void long_contexts_are_there_before_the_pause(void **state)
{
    static run expected, r;
    cluster c;
    double pauses_ms = 0;
    uint32_t moves = 0;
    (void)state;

    open_nodes(&c, "  - {name: a}\n", 0);
    for (uint32_t p = 0; p < PROMPTS; p++)
        submit(&c, &expected, p);
    take_all(&c, &expected);
    cluster_close(&c);

    open_nodes(&c, "  - {name: a}\n  - {name: b}\n", 2);
    (void)move(&c, &r, "attention/all.all", "a");
    for (uint32_t p = 0; p < PROMPTS; p++)
        submit(&c, &r, p);
    for (uint32_t p = 0; p < PROMPTS; p++) /* all prompts have been read */
        while (r.counts[p] == 0)
            assert_true(take(&c, &r, DEADLINE_NS));
    while (r.open == PROMPTS) {
        tr_change_report report = move(&c, &r, "attention/all.all", moves % 2 ? "a" : "b");
        /* States, and of pages those that were not full, or not yet, when the last round began. */
        const tr_kv_layout *kv = &c.nodes[0]->node.kv;
        assert_true(report.pause_bytes <= (PROMPTS + 2) * (kv->state_size + 4 * kv->page_size));
        fprintf(stderr, "pause %.2f ms, prepared %.2f ms, %llu of %llu bytes in the pause\n",
                (double)report.pause_ns / 1e6, (double)report.prepare_ns / 1e6,
                (unsigned long long)report.pause_bytes, (unsigned long long)report.bytes);
        pauses_ms += (double)report.pause_ns / 1e6;
        moves++;
    }
    take_all(&c, &r);
    fprintf(stderr, "%u moves of %u contexts of %u, mean pause %.2f ms\n", moves, PROMPTS,
            prompt_count, pauses_ms / moves);
    assert_true(moves > 0);
    assert_memory_equal(r.tokens, expected.tokens, sizeof(r.tokens));
    cluster_close(&c);
}

static void await_ready(tr_cluster *node)
{
    uint64_t bytes, deadline = tr_clock_ns() + DEADLINE_NS;
    tr_error err = {0};
    while (cluster_change_status(node, &bytes, &err) != CLUSTER_CHANGE_READY) {
        struct timespec t = {.tv_nsec = 1000000};
        if (tr_clock_ns() > deadline)
            fail_msg("it does not get ready: %s", err.text);
        nanosleep(&t, NULL);
    }
}

/* Submits prompt p and pauses the batcher while the request is in slot 0: however slow this thread
 * is, the sequence stays where it is. One that ended before the pause is submitted again. */
static void hold_in_slot_0(cluster *c, run *r, uint32_t p, tr_sequence_place *places)
{
    uint64_t deadline = tr_clock_ns() + DEADLINE_NS;
    for (;;) {
        tr_cluster_stat stat;
        do { /* until the slot is free */
            assert_true(tr_clock_ns() < deadline);
            tr_cluster_stats(c->nodes[0], &stat);
        } while (stat.kv_pages_used > 0);
        submit(c, r, p);
        while (r->counts[p] == 0)
            assert_true(take(c, r, DEADLINE_NS));
        pause_batcher(c, places);
        if (places[0].position > 0)
            return;
        resume_batcher(c);
        take_all(c, r);
    }
}

/* One piece of the pages of slot 0; layer and term are those of a part that has pages. */
static tr_status read_live(tr_cluster *node, const tr_kv_part *part, uint32_t generation,
                           bool with_state)
{
    const cluster_piece piece = {.generation = generation,
                                 .layer = part->layer,
                                 .term = part->term,
                                 .pages_count = 1,
                                 .with_state = with_state};
    void *bytes = NULL;
    size_t size = 0;
    tr_status status = cluster_change_read(node, &piece, 1, true, &bytes, &size, NULL);
    if (status == TR_OK)
        assert_int_equal(size, part->page_size);
    free(bytes);
    return status;
}

static void find_paged(void *ctx, const tr_kv_part *part)
{
    tr_kv_part *out = ctx;
    if (out->page_size == 0)
        *out = *part;
}

/* Between two copies the slot is given to another request. */
static void copies_of_a_sequence_that_has_ended_do_not_count(void **state)
{
    static run r;
    cluster c;
    tr_error err = {0};
    tr_plan plan;
    uint32_t moved;
    void *bytes = NULL;
    size_t size;
    tr_sequence_place places[8] = {0}, later[8] = {0};
    tr_kv_part part = {0};
    (void)state;

    r = (run){0};
    open_nodes(&c, "  - {name: a}\n  - {name: b}\n", 0);
    tr_cluster *b = c.nodes[1];
    tr_kv_each_part(b->node.spec, find_paged, &part);
    (void)move(&c, &r, "attention/all.all", "a");
    hold_in_slot_0(&c, &r, 0, places);
    assert_true(places[0].position >= prompt_count);
    CHECK_STATUS(tr_cluster_plan(c.nodes[0], &plan, &err), TR_OK);
    CHECK_STATUS(tr_plan_move(&plan, "attention/all.all", 1, &moved, &err), TR_OK);
    plan.epoch = 77;
    CHECK_STATUS(tr_plan_encode(&plan, &bytes, &size, &err), TR_OK);
    tr_plan_free(&plan);
    CHECK_STATUS(cluster_change_warm(b, 77, places, 8, &err), TR_E_INVALID); /* not prepared */
    for (uint32_t n = 0; n < 2; n++) {
        CHECK_STATUS(cluster_change_prepare(c.nodes[n], bytes, size, &err), TR_OK);
        await_ready(c.nodes[n]);
    }
    CHECK_STATUS(cluster_change_warm(b, 76, places, 8, &err), TR_E_INVALID);
    CHECK_STATUS(cluster_change_warm(b, 77, places, 7, &err), TR_E_INVALID);
    CHECK_STATUS(cluster_change_warm(b, 77, places, 8, &err), TR_OK);
    await_ready(b);
    assert_int_equal(b->change.warm[0].pages, places[0].position / TR_KV_PAGE_TOKENS);
    CHECK_STATUS(read_live(c.nodes[0], &part, places[0].generation, false), TR_OK);
    CHECK_STATUS(read_live(c.nodes[0], &part, places[0].generation, true), TR_E_INVALID);

    resume_batcher(&c);
    tr_client_cancel(c.client, r.numbers[0]);
    take_all(&c, &r);
    hold_in_slot_0(&c, &r, 1, later);
    assert_int_not_equal(later[0].generation, places[0].generation);
    CHECK_STATUS(read_live(c.nodes[0], &part, places[0].generation, false), TR_E_INVALID);
    b->change.warm[0] = (cluster_warm){0};
    CHECK_STATUS(cluster_change_warm(b, 77, places, 8, &err), TR_OK);
    await_ready(b);
    assert_int_equal(b->change.warm[0].pages, 0);
    CHECK_STATUS(cluster_change_warm(b, 77, later, 8, &err), TR_OK);
    await_ready(b);
    assert_int_equal(b->change.warm[0].generation, later[0].generation);
    assert_int_equal(b->change.warm[0].pages, later[0].position / TR_KV_PAGE_TOKENS);
    places[0].position = c.nodes[0]->node.limits.context_max + 1;
    CHECK_STATUS(cluster_change_warm(b, 77, places, 8, &err), TR_E_INVALID);
    /* A node that stops does not wait for its actors; what they may yet write to is not lost. */
    atomic_store(&c.nodes[0]->stopping, true);
    tr_status status = read_live(c.nodes[0], &part, later[0].generation, false);
    atomic_store(&c.nodes[0]->stopping, false); /* its heartbeats may have ended */
    assert_true(status == TR_OK || c.nodes[0]->lent != NULL);
    for (uint32_t n = 0; n < 2; n++)
        CHECK_STATUS(cluster_change_abort(c.nodes[n], 77, &err), TR_OK);
    free(bytes);
    cluster_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_contexts_are_there_before_the_pause),
        cmocka_unit_test(copies_of_a_sequence_that_has_ended_do_not_count),
    };
    const char *count = getenv("TR_PROMPT");
    if (argc != 2) {
        fprintf(stderr, "usage: test_warm MODEL\n");
        return 2;
    }
    model_path = argv[1];
    if (count != NULL)
        prompt_count = (uint32_t)strtoul(count, NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
