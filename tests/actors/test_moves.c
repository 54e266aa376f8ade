/* test_moves.c - parts move while requests run, and nothing that a stream says changes.
 *
 * Method: two nodes in this process over the loop transport, with the model of the argument.
 * Streams run without a pause from one thread; this one moves random parts (experts, slices, head
 * groups with their states, layers, routers, vocabulary rows, the sampler, n-gram tables), makes
 * replicas, drains nodes and gives them back what they had. Every stream must be equal to the one
 * of a cluster of one node where nothing moved. Moves that cannot be are refused, and some are
 * aborted; then nothing has changed. The seed is printed and taken from TR_SEED, the number of
 * changes from TR_MOVES. */
#include "actors/cluster_fetch.h"
#include "actors/cluster_moves.h" /* calls that come late or falsely are made directly */
#include "core/plan_edit.h"
#include "tests/actors/paused_batcher.h"
#include "tests/actors/streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint32_t moves_count = 25;

static void random_part(const cluster *c, char *out, size_t size)
{
    const tr_plan_shape *shape = &c->shape;
    uint32_t layer = random_below(shape->layers_count);
    uint32_t granules = (shape->vocab_size - 1) / shape->vocab_granule + 1;
    if (shape->ngram_tables > 0 && random_below(6) == 0) {
        snprintf(out, size, "ngram");
        return;
    }
    switch (random_below(8)) {
    case 0:
        if (shape->experts[layer] > 0) {
            snprintf(out, size, "expert/%u.%u", layer, random_below(shape->experts[layer]));
            break;
        } /* fall through */
    case 1:
        if (shape->slices[layer] > 0) {
            snprintf(out, size, "slice/%u.all", layer);
            break;
        } /* fall through */
    case 2:
        snprintf(out, size, "attention/%u.%u", layer, random_below(shape->attention_terms[layer]));
        break;
    case 3:
        snprintf(out, size, "attention/all.%u", random_below(shape->attention_terms[layer]));
        break;
    case 4:
        snprintf(out, size, "layers/%u-%u", layer,
                 layer + random_below(shape->layers_count - layer));
        break;
    case 5:
        snprintf(out, size, "router/%u-%u", layer,
                 layer + random_below(shape->layers_count - layer));
        break;
    case 6: {
        uint32_t first = random_below(granules);
        uint32_t last = first + random_below(granules - first);
        snprintf(out, size, "vocabulary/%u-%u", first * shape->vocab_granule,
                 last + 1 == granules ? shape->vocab_size - 1
                                      : (last + 1) * shape->vocab_granule - 1);
        break;
    }
    default:
        snprintf(out, size, "sampler");
        break;
    }
}

/* Begins a change of a random sort, of a part that has been drawn. */
static tr_status random_change(cluster *c, const char *part, const char *node, uint64_t *number,
                               tr_error *err)
{
    char experts[64];

    switch (random_below(12)) {
    case 0:
        return tr_cluster_drain(c->nodes[0], node, number, err);
    case 1:
        return tr_cluster_undrain(c->nodes[0], node, number, err);
    case 2: /* a mirror; refused where the node has no work for it */
        return tr_cluster_replicate(c->nodes[0], "router/all", node, number, err);
    case 3:
    case 4: { /* a replica of some experts of all layers, or of all */
        uint32_t first = random_below(4);
        snprintf(experts, sizeof(experts), first == 0 ? "expert/all.all" : "expert/all.%u-%u",
                 first, first + 1);
        return tr_cluster_replicate(c->nodes[0], experts, node, number, err);
    }
    default:
        return tr_cluster_move(c->nodes[0], part, node, number, err);
    }
}

static void streams_do_not_notice_moves_and_drains(void **state)
{
    static answers expected;
    static streaming s;
    cluster c;
    pthread_t thread;
    uint32_t done = 0, refused = 0, aborted = 0;
    double longest_pause_ms = 0;
    (void)state;

    reference(&expected);
    open_nodes(&c, "ab");
    s = (streaming){.c = &c, .expected = &expected};
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &s), 0);
    while (done < moves_count && s.wrong[0] == '\0') {
        char part[64];
        const char *node = random_below(2) ? "a" : "b";
        uint64_t number = 0;
        tr_error err = {0};
        random_part(&c, part, sizeof(part));
        tr_status status = random_change(&c, part, node, &number, &err);
        if (status == TR_E_INVALID) { /* it stands there already */
            refused++;
            continue;
        }
        if (status != TR_OK)
            fail_msg("%s to %s: %s", part, node, err.text);
        bool aborts = random_below(6) == 0 && tr_cluster_abort(c.nodes[0], &number, NULL) == TR_OK;
        tr_change_report report = cluster_await_change(&c, number);
        if (aborts && report.error.code == TR_E_CANCELED) {
            aborted++;
            continue;
        }
        if (report.error.code != TR_OK)
            fail_msg("%s: %s", report.what, report.error.text);
        if ((double)report.pause_ns / 1e6 > longest_pause_ms)
            longest_pause_ms = (double)report.pause_ns / 1e6;
        done++;
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    fprintf(stderr,
            "%u changes, %u refused, %u aborted, %u rounds of %d streams, longest pause %.1f ms\n",
            done, refused, aborted, atomic_load(&s.rounds), PROMPTS, longest_pause_ms);
    if (s.wrong[0] != '\0')
        fail_msg("%s", s.wrong);
    cluster_close(&c);
}

/* Awaits a change that must have begun and be done.
 *   number  read here, after the call that gives begun and fills it */
static tr_change_report done_change(cluster *c, tr_status begun, const uint64_t *number)
{
    CHECK_STATUS(begun, TR_OK);
    tr_change_report report = cluster_await_change(c, *number);
    if (report.error.code != TR_OK)
        fail_msg("%s: %s", report.what, report.error.text);
    return report;
}

static void a_change_that_is_aborted_has_changed_nothing(void **state)
{
    cluster c;
    tr_error err = {0};
    uint64_t number = 0, ended = 0, epoch = 1;
    uint32_t aborted = 0;
    const char *to = "b";
    (void)state;

    open_nodes(&c, "ab");
    CHECK_STATUS(tr_cluster_abort(c.nodes[0], &ended, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "under way");
    CHECK_STATUS(tr_cluster_abort(c.nodes[1], &ended, &err), TR_E_NOTSUP);
    for (uint32_t i = 0; i < 30; i++) {
        tr_plan plan;
        struct timespec later = {.tv_nsec = i % 10 * 500000}; /* in one phase or another */
        CHECK_STATUS(tr_cluster_move(c.nodes[0], "attention/all.all", to, &number, &err), TR_OK);
        nanosleep(&later, NULL);
        bool in_time = tr_cluster_abort(c.nodes[0], &ended, NULL) == TR_OK;
        tr_change_report report = cluster_await_change(&c, number);
        CHECK_STATUS(tr_cluster_plan(c.nodes[0], &plan, &err), TR_OK);
        if (report.error.code == TR_OK) { /* it was at its switch */
            assert_true(plan.epoch > epoch);
            to = to[0] == 'b' ? "a" : "b";
        } else {
            assert_true(in_time);
            assert_int_equal(ended, number);
            CHECK_STATUS(report.error.code, TR_E_CANCELED);
            CHECK_ERR_NAMES(report.error, "aborted");
            assert_int_equal(plan.epoch, epoch);
            aborted++;
        }
        epoch = plan.epoch;
        tr_plan_free(&plan);
    }
    print_message("# %u of 30 were aborted\n", aborted);
    assert_true(aborted > 0);
    CHECK_STATUS(tr_cluster_abort(c.nodes[0], &ended, NULL), TR_E_INVALID);
    cluster_close(&c);
}

static void experts_that_others_hold_too_are_not_loaded_when_a_node_is_drained(void **state)
{
    cluster c;
    uint64_t number = 0;
    tr_plan home, plan;
    (void)state;

    open_nodes(&c, "ab");
    tr_cluster *a = c.nodes[0];
    CHECK_STATUS(tr_cluster_plan(a, &home, NULL), TR_OK);
    tr_change_report alone = done_change(&c, tr_cluster_drain(a, "b", &number, NULL), &number);
    (void)done_change(&c, tr_cluster_undrain(a, "b", &number, NULL), &number);
    CHECK_STATUS(tr_cluster_plan(a, &plan, NULL), TR_OK);
    size_t terms = (size_t)home.shape.layers_count * TR_TERMS_MAX;
    assert_memory_equal(plan.attention, home.attention, terms);
    assert_memory_equal(plan.channel, home.channel, terms * sizeof(*home.channel));
    assert_int_equal(plan.spans_count, home.spans_count);
    tr_plan_free(&plan);
    CHECK_STATUS(tr_cluster_undrain(a, "b", &number, NULL), TR_E_INVALID);

    (void)done_change(&c, tr_cluster_replicate(a, "expert/all.all", "a", &number, NULL), &number);
    CHECK_STATUS(tr_cluster_replicate(a, "expert/all.all", "a", &number, NULL), TR_E_INVALID);
    tr_change_report held = done_change(&c, tr_cluster_drain(a, "b", &number, NULL), &number);
    assert_true(held.bytes < alone.bytes);
    CHECK_STATUS(tr_cluster_plan(a, &plan, NULL), TR_OK);
    assert_false(tr_plan_uses(&plan, 1));
    tr_plan_free(&plan);
    tr_plan_free(&home);
    cluster_close(&c);
}

static void what_cannot_be_is_refused_and_nothing_changes(void **state)
{
    cluster c;
    tr_error err = {0};
    uint64_t number = 0;
    tr_plan before, later;
    (void)state;

    open_nodes(&c, "ab");
    CHECK_STATUS(tr_cluster_plan(c.nodes[0], &before, &err), TR_OK);
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "expert/999.0", "b", &number, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "layers 999-999");
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "sampler", "nobody", &number, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "nobody");
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "sampler", "a", &number, &err), TR_E_INVALID);
    CHECK_STATUS(tr_cluster_move(c.nodes[1], "sampler", "b", &number, &err), TR_E_NOTSUP);
    CHECK_ERR_NAMES(err, "node a");
    CHECK_STATUS(tr_cluster_plan(c.nodes[0], &later, &err), TR_OK);
    assert_int_equal(later.epoch, before.epoch);
    tr_plan_free(&before);
    tr_plan_free(&later);
    cluster_close(&c);
}

/* Node b has memory for its share and for nothing more. */
static void a_node_without_room_refuses_and_streams_go_on(void **state)
{
    static answers expected;
    static streaming s;
    cluster c;
    pthread_t thread;
    char memory[32];
    tr_error err = {0};
    uint64_t number = 0;
    tr_plan before, later;
    tr_cluster_stat stat, stat_later;
    (void)state;

    reference(&expected);
    open_nodes(&c, "ab");
    snprintf(memory, sizeof(memory), "%llu B",
             (unsigned long long)tr_budget_total(tr_cluster_budget(c.nodes[1])));
    cluster_close(&c);

    open_with(&c, "ab", memory);
    CHECK_STATUS(tr_cluster_plan(c.nodes[1], &before, &err), TR_OK);
    tr_cluster_stats(c.nodes[1], &stat);
    s = (streaming){.c = &c, .expected = &expected};
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &s), 0);
    static const char *const parts[] = {"attention/all.all", "expert/all.all"};
    uint32_t begun = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (tr_cluster_move(c.nodes[0], parts[i], "b", &number, &err) != TR_OK)
            continue; /* the model has no experts */
        begun++;
        tr_change_report report = cluster_await_change(&c, number);
        assert_string_equal(report.phase, "failed");
        CHECK_ERR_NAMES(report.error, "node b: ");
        CHECK_ERR_NAMES(report.error, "its limit is");
        assert_int_equal(report.pause_ns, 0); /* no stream has waited for it */
    }
    assert_true(begun > 0);
    for (uint32_t n = 0; n < 2; n++) {
        CHECK_STATUS(tr_cluster_plan(c.nodes[n], &later, &err), TR_OK);
        assert_int_equal(later.epoch, before.epoch);
        assert_memory_equal(later.attention, before.attention,
                            (size_t)before.shape.layers_count * TR_TERMS_MAX);
        tr_plan_free(&later);
    }
    tr_cluster_stats(c.nodes[1], &stat_later);
    assert_int_equal(stat_later.memory_bytes, stat.memory_bytes);
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    if (s.wrong[0] != '\0')
        fail_msg("%s", s.wrong);
    tr_plan_free(&before);
    cluster_close(&c);
}

static void await_phase(tr_cluster *node, cluster_change_phase phase)
{
    uint64_t bytes, deadline = tr_clock_ns() + DEADLINE_NS;
    tr_error err = {0};
    while (cluster_change_status(node, &bytes, &err) != phase) {
        struct timespec t = {.tv_nsec = 1000000};
        if (tr_clock_ns() > deadline)
            fail_msg("phase %u does not come: %s", phase, err.text);
        nanosleep(&t, NULL);
    }
}

/* The plan of a cluster with all attention on its second node, as bytes. */
static void *other_plan(cluster *c, uint64_t epoch, size_t *size)
{
    tr_plan plan;
    uint32_t moved;
    void *bytes = NULL;
    CHECK_STATUS(tr_cluster_plan(c->nodes[0], &plan, NULL), TR_OK);
    CHECK_STATUS(tr_plan_move(&plan, "attention/all.all", 1, &moved, NULL), TR_OK);
    plan.epoch = epoch;
    CHECK_STATUS(tr_plan_encode(&plan, &bytes, size, NULL), TR_OK);
    tr_plan_free(&plan);
    return bytes;
}

/* Pages alone; none are ever copied here, as steps that run write to them. */
static tr_status read_state(tr_cluster *node, uint32_t sequence, uint32_t generation,
                            uint32_t layer, uint32_t page_first, uint32_t pages_count)
{
    void *bytes = NULL;
    size_t size = 0;
    const cluster_piece piece = {.sequence = sequence,
                                 .generation = generation,
                                 .layer = layer,
                                 .page_first = page_first,
                                 .pages_count = pages_count};
    tr_status status = cluster_change_read(node, &piece, 1, false, &bytes, &size, NULL);
    free(bytes);
    return status;
}

/* A sequence in slot 0, where it stays until the batcher is resumed. Returns the generation of its
 * lease. One that ended before the pause is submitted again. */
static uint32_t hold_in_slot_0(cluster *c)
{
    tr_sequence_place *places = calloc(c->nodes[0]->node.limits.sequences_max, sizeof(*places));
    tr_event e = {0};

    assert_non_null(places);
    for (;;) {
        uint64_t number = submit(c, 0, 250);
        while (e.request != number) /* it has begun */
            assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
        pause_batcher(c, places);
        if (places[0].position > 0)
            break;
        resume_batcher(c);
        while (e.kind != TR_EVENT_FINISHED)
            assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
    }
    uint32_t generation = places[0].generation;
    free(places);
    return generation;
}

static void calls_out_of_order_or_of_another_change_are_refused(void **state)
{
    cluster c;
    tr_error err = {0};
    size_t size, cut;
    tr_cluster_stat before, later;
    (void)state;

    open_nodes(&c, "ab");
    tr_cluster *b = c.nodes[1];
    uint32_t sequences = b->node.limits.sequences_max;
    uint32_t *positions = calloc(sequences, sizeof(*positions));
    tr_cluster_stats(b, &before);

    /* No change is under way. */
    CHECK_STATUS(cluster_change_fetch(b, 2, positions, sequences, &err), TR_E_INVALID);
    CHECK_STATUS(cluster_change_commit(b, 2, &err), TR_E_INVALID);
    CHECK_STATUS(cluster_change_retire(b, 2, &err), TR_E_INVALID);
    CHECK_STATUS(cluster_change_abort(b, 2, &err), TR_OK); /* nothing to undo */
    CHECK_STATUS(read_state(b, 0, 0, 0, 0, 0), TR_E_INVALID);
    void *plan = other_plan(&c, 1, &cut);
    CHECK_STATUS(cluster_change_prepare(b, plan, cut, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "epoch 1, expected more than 1");
    CHECK_STATUS(cluster_change_prepare(b, plan, cut - 1, &err), TR_E_INVALID);
    free(plan);

    /* Given up while it loads, or just afterwards: both end where it began. */
    for (uint64_t epoch = 2; epoch < 8; epoch++) {
        plan = other_plan(&c, epoch, &size);
        CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
        if (epoch % 2 == 1)
            await_phase(b, CLUSTER_CHANGE_READY);
        CHECK_STATUS(cluster_change_abort(b, epoch - 1, &err), TR_E_INVALID);
        CHECK_STATUS(cluster_change_abort(b, epoch, &err), TR_OK);
        (void)cluster_change_abort(b, epoch, NULL); /* twice does no harm */
        await_phase(b, CLUSTER_CHANGE_NONE);
        tr_cluster_stats(b, &later);
        assert_int_equal(later.memory_bytes, before.memory_bytes);
        CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_E_INVALID); /* late */
        free(plan);
    }
    CHECK_ERR_NAMES(err, "epoch 7, expected more than 7");

    plan = other_plan(&c, 9, &size);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK); /* the answer was lost */
    void *another = other_plan(&c, 8, &cut);
    CHECK_STATUS(cluster_change_prepare(b, another, cut, &err), TR_E_INVALID);
    free(another);
    await_phase(b, CLUSTER_CHANGE_READY);
    CHECK_STATUS(cluster_change_commit(b, 8, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "epoch 8, the change under way has 9");
    CHECK_STATUS(cluster_change_retire(b, 9, &err), TR_E_INVALID);
    CHECK_STATUS(cluster_change_fetch(b, 8, positions, sequences, &err), TR_E_INVALID);
    CHECK_STATUS(cluster_change_fetch(b, 9, positions, sequences - 1, &err), TR_E_INVALID);
    positions[0] = UINT32_MAX;
    CHECK_STATUS(cluster_change_fetch(b, 9, positions, sequences, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "positions[0]: 4294967295, expected at most 256");

    /* States are given away now, but only those that are there. */
    uint32_t generation = hold_in_slot_0(&c);
    CHECK_STATUS(read_state(b, 0, generation, 0, 0, 0), TR_OK);
    CHECK_STATUS(read_state(b, 0, generation + 1, 0, 0, 0), TR_E_INVALID);
    CHECK_STATUS(read_state(b, 0, generation, 0, UINT32_MAX, 1), TR_E_INVALID);
    CHECK_STATUS(read_state(b, 0, generation, 0, UINT32_MAX - 62, 64), TR_E_INVALID);
    CHECK_STATUS(read_state(b, 0, generation, 0, 0, 64), TR_E_INVALID);
    CHECK_STATUS(read_state(b, 0, generation, 0, 0, UINT32_MAX), TR_E_INVALID);
    CHECK_STATUS(read_state(b, 0, generation, UINT32_MAX, 0, 0), TR_E_INVALID);
    CHECK_STATUS(read_state(b, sequences, generation, 0, 0, 0), TR_E_INVALID);
    CHECK_STATUS(read_state(b, UINT32_MAX, generation, 0, 0, 0), TR_E_INVALID);
    resume_batcher(&c);
    CHECK_STATUS(cluster_change_abort(b, 9, &err), TR_OK);
    await_phase(b, CLUSTER_CHANGE_NONE);

    /* And the cluster still moves. */
    uint64_t number = 0;
    c.nodes[0]->moves->last_epoch = 9; /* as if its coordinator had asked for all this */
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "sampler", "b", &number, &err), TR_OK);
    tr_change_report report = cluster_await_change(&c, number);
    assert_string_equal(report.phase, "done");
    free(plan);
    free(positions);
    cluster_close(&c);
}

/* Node b never heard that a change was given up: the next one that it hears of says so. */
static void what_a_lost_abort_has_left_is_undone_by_the_next_change(void **state)
{
    cluster c;
    tr_error err = {0};
    uint64_t number = 0, bytes, deadline = tr_clock_ns() + DEADLINE_NS;
    size_t size;
    tr_cluster_stat before, later;
    tr_status status = TR_E_AGAIN;
    (void)state;

    open_nodes(&c, "ab");
    tr_cluster *b = c.nodes[1];
    tr_cluster_stats(b, &before);
    void *plan = other_plan(&c, 2, &size);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
    await_phase(b, CLUSTER_CHANGE_READY);
    free(plan);
    plan = other_plan(&c, 3, &size);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
    free(plan);
    plan = other_plan(&c, 4, &size); /* it loads, or has just loaded */
    while (status == TR_E_AGAIN) {
        assert_true(tr_clock_ns() < deadline);
        status = cluster_change_prepare(b, plan, size, &err);
    }
    CHECK_STATUS(status, TR_OK);
    free(plan);
    await_phase(b, CLUSTER_CHANGE_READY);

    c.nodes[0]->moves->last_epoch = 4;
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "sampler", "b", &number, &err), TR_OK);
    tr_change_report report = cluster_await_change(&c, number);
    if (report.error.code != TR_OK)
        fail_msg("%s", report.error.text);
    assert_int_equal(cluster_change_status(b, &bytes, &err), CLUSTER_CHANGE_NONE);
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "sampler", "a", &number, &err), TR_OK);
    assert_string_equal(cluster_await_change(&c, number).phase, "done");
    tr_cluster_stats(b, &later);
    assert_int_equal(later.memory_bytes, before.memory_bytes);
    cluster_close(&c);
}

/* The answer to a plan is lost, and the plan sent again when there would be room for it. */
static void a_refusal_is_the_same_when_it_is_asked_for_again(void **state)
{
    cluster c;
    tr_error err = {0};
    size_t size;
    (void)state;

    open_nodes(&c, "ab");
    tr_cluster *b = c.nodes[1];
    uint64_t limit = b->budget.bytes_max;
    void *plan = other_plan(&c, 2, &size);
    b->budget.bytes_max = 1;
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_E_NOMEM);
    b->budget.bytes_max = limit;
    err = (tr_error){0};
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "its limit is 1 B");
    free(plan);
    plan = other_plan(&c, 3, &size);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
    free(plan);
    cluster_close(&c);
}

/* A node that refuses a plan is asked before one that holds what a former plan has left there. */
static void a_plan_that_was_not_seen_is_given_up_with_what_a_former_one_left(void **state)
{
    cluster c;
    tr_error err = {0};
    size_t size;
    (void)state;

    open_nodes(&c, "ab");
    tr_cluster *b = c.nodes[1];
    void *plan = other_plan(&c, 2, &size);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
    CHECK_STATUS(cluster_change_abort(b, 3, &err), TR_OK); /* while it loads */
    await_phase(b, CLUSTER_CHANGE_NONE);
    free(plan);
    plan = other_plan(&c, 4, &size);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
    await_phase(b, CLUSTER_CHANGE_READY);
    CHECK_STATUS(cluster_change_abort(b, 3, &err), TR_E_INVALID); /* late */
    CHECK_STATUS(cluster_change_abort(b, 5, &err), TR_OK);
    await_phase(b, CLUSTER_CHANGE_NONE);
    free(plan);
    cluster_close(&c);
}

/* How many parts of the state of a sequence come to the second node with the change that it is
 * ready for. */
typedef struct {
    const tr_cluster *node;
    uint32_t count;
} coming;

static void count_part(void *ctx, const tr_kv_part *part)
{
    coming *parts = ctx;
    const tr_cluster *c = parts->node;
    parts->count += cluster_part_comes(c, part, &c->view->plan, &c->change.view->plan);
}

/* So many sequences that their pieces do not fit one call (with states of a few KiB, by their
 * number), and the change is given up before the first call is made. */
static void a_fetch_that_is_given_up_ends_with_its_first_call(void **state)
{
    enum { SEQUENCES = 48 };
    char yaml[1024];
    cluster c;
    tr_error err = {0};
    size_t size;
    uint64_t deadline = tr_clock_ns() + DEADLINE_NS;
    (void)state;

    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes: [{name: a, memory: 1 GiB}, {name: b, memory: "
             "1 GiB}]\nattention: [{node: a}]\n"
             "limits: {context: 256, sequences: %d, cache_tokens: %d, peer_timeout: 20 s}\n",
             model_path, SEQUENCES, SEQUENCES * 256);
    cluster_open(&c, yaml);
    tr_cluster *b = c.nodes[1];
    void *plan = other_plan(&c, 7, &size);
    CHECK_STATUS(cluster_change_prepare(b, plan, size, &err), TR_OK);
    await_phase(b, CLUSTER_CHANGE_READY);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        (void)submit(&c, i % PROMPTS, 150);
    for (uint32_t held = 0; held < SEQUENCES; usleep(1000)) {
        assert_true(tr_clock_ns() < deadline);
        pthread_mutex_lock(&b->questions.lock);
        CHECK_STATUS(cluster_ask_leases(b, &b->change.ours, &err), TR_OK);
        pthread_mutex_unlock(&b->questions.lock);
        held = 0;
        for (uint32_t i = 0; i < SEQUENCES; i++)
            held += b->change.ours.rows[i].held;
    }
    coming parts = {.node = b};
    tr_kv_each_part(b->node.spec, count_part, &parts);
    assert_true(SEQUENCES * parts.count > CLUSTER_PIECES_MAX);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        b->change.positions[i] = 1;
    atomic_store(&b->change.abandoned, true);
    CHECK_STATUS(cluster_fetch_states(b, &err), TR_E_CANCELED);
    CHECK_STATUS(cluster_change_abort(b, 7, &err), TR_OK);
    await_phase(b, CLUSTER_CHANGE_NONE);
    free(plan);
    cluster_close(&c);
}

/* The coordinator's last call of a change is lost on its way to b. */
static void a_retire_that_is_lost_is_made_up_for(void **state)
{
    cluster c;
    tr_error err = {0};
    size_t size;
    uint64_t number = 0;
    tr_cluster_stat before, later;
    (void)state;

    open_nodes(&c, "ab");
    tr_cluster_stats(c.nodes[1], &before);
    void *plan = other_plan(&c, 7, &size);
    for (uint32_t n = 0; n < 2; n++) {
        CHECK_STATUS(cluster_change_prepare(c.nodes[n], plan, size, &err), TR_OK);
        await_phase(c.nodes[n], CLUSTER_CHANGE_READY);
        CHECK_STATUS(cluster_change_commit(c.nodes[n], 7, &err), TR_OK);
    }
    CHECK_STATUS(cluster_change_retire(c.nodes[0], 7, &err), TR_OK);
    CHECK_STATUS(cluster_change_retire(c.nodes[0], 7, &err), TR_OK); /* twice does no harm */
    await_phase(c.nodes[0], CLUSTER_CHANGE_NONE);
    CHECK_STATUS(cluster_change_retire(c.nodes[0], 7, &err), TR_OK);
    CHECK_STATUS(cluster_change_retire(c.nodes[1], 6, &err), TR_E_INVALID);
    await_phase(c.nodes[1], CLUSTER_CHANGE_COMMITTED);

    CHECK_STATUS(tr_cluster_move(c.nodes[0], "attention/all.all", "a", &number, &err), TR_OK);
    tr_change_report report = cluster_await_change(&c, number);
    if (report.error.code != TR_OK)
        fail_msg("%s", report.error.text);
    CHECK_STATUS(tr_cluster_drain(c.nodes[0], "b", &number, &err), TR_OK);
    assert_string_equal(cluster_await_change(&c, number).phase, "done");
    tr_cluster_stats(c.nodes[1], &later);
    assert_true(later.memory_bytes < before.memory_bytes);
    free(plan);
    cluster_close(&c);
}

/* It dies after the last look before the switch: nothing stood on it, so nobody missed it then. */
static void a_node_that_is_lost_before_it_gets_its_first_share_is_missed(void **state)
{
    cluster c;
    tr_health health;
    tr_error err = {0};
    size_t size;
    uint64_t number = 0, deadline = tr_clock_ns() + 60000000000u;
    (void)state;

    open_nodes(&c, "ab");
    CHECK_STATUS(tr_cluster_drain(c.nodes[0], "b", &number, &err), TR_OK);
    assert_string_equal(cluster_await_change(&c, number).phase, "done");
    void *plan = other_plan(&c, 7, &size);
    CHECK_STATUS(cluster_change_prepare(c.nodes[0], plan, size, &err), TR_OK);
    await_phase(c.nodes[0], CLUSTER_CHANGE_READY);
    cluster_peer_lost(c.nodes[0], 1, "the test says so");
    tr_cluster_health(c.nodes[0], &health);
    assert_int_equal(health.state, TR_HEALTH_SERVING);
    CHECK_STATUS(cluster_change_commit(c.nodes[0], 7, &err), TR_OK);
    for (bool used = true; used; usleep(1000)) { /* its share is taken over */
        tr_plan now;
        assert_true(tr_clock_ns() < deadline);
        CHECK_STATUS(tr_cluster_plan(c.nodes[0], &now, NULL), TR_OK);
        used = tr_plan_uses(&now, 1);
        tr_plan_free(&now);
    }
    tr_cluster_health(c.nodes[0], &health);
    assert_int_equal(health.state, TR_HEALTH_DEGRADED);
    assert_int_equal(health.missing, 1u << 1);
    free(plan);
    cluster_close(&c);
}

static uint64_t part_bytes(tr_cluster *node, const char *part)
{
    tr_budget parts;
    tr_cluster_memory(node, &parts);
    for (uint32_t i = 0; i < parts.rows_count; i++)
        if (strcmp(parts.rows[i].part, part) == 0)
            return parts.rows[i].bytes;
    return 0;
}

static void parts_of_memory_are_those_of_now(void **state)
{
    cluster c;
    tr_error err = {0};
    uint64_t number = 0;
    (void)state;

    open_nodes(&c, "ab");
    uint64_t a = part_bytes(c.nodes[0], "attention weights");
    uint64_t b = part_bytes(c.nodes[1], "attention weights");
    assert_true(a > 0 && b > 0);
    CHECK_STATUS(tr_cluster_drain(c.nodes[0], "b", &number, &err), TR_OK);
    assert_string_equal(cluster_await_change(&c, number).phase, "done");
    assert_true(part_bytes(c.nodes[0], "attention weights") > a);
    assert_true(part_bytes(c.nodes[1], "attention weights") < 4096); /* of tables */
    CHECK_STATUS(tr_cluster_move(c.nodes[0], "attention/all.all", "b", &number, &err), TR_OK);
    assert_string_equal(cluster_await_change(&c, number).phase, "done");
    assert_true(part_bytes(c.nodes[0], "attention weights") < 4096);
    for (uint32_t n = 0; n < 2; n++) {
        tr_budget parts;
        tr_cluster_stat stat;
        tr_cluster_memory(c.nodes[n], &parts);
        tr_cluster_stats(c.nodes[n], &stat);
        assert_in_range(stat.memory_bytes, 1, tr_budget_total(&parts));
    }
    cluster_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_do_not_notice_moves_and_drains),
        cmocka_unit_test(a_change_that_is_aborted_has_changed_nothing),
        cmocka_unit_test(experts_that_others_hold_too_are_not_loaded_when_a_node_is_drained),
        cmocka_unit_test(what_cannot_be_is_refused_and_nothing_changes),
        cmocka_unit_test(a_node_without_room_refuses_and_streams_go_on),
        cmocka_unit_test(calls_out_of_order_or_of_another_change_are_refused),
        cmocka_unit_test(what_a_lost_abort_has_left_is_undone_by_the_next_change),
        cmocka_unit_test(a_refusal_is_the_same_when_it_is_asked_for_again),
        cmocka_unit_test(a_plan_that_was_not_seen_is_given_up_with_what_a_former_one_left),
        cmocka_unit_test(a_fetch_that_is_given_up_ends_with_its_first_call),
        cmocka_unit_test(a_retire_that_is_lost_is_made_up_for),
        cmocka_unit_test(a_node_that_is_lost_before_it_gets_its_first_share_is_missed),
        cmocka_unit_test(parts_of_memory_are_those_of_now),
    };
    const char *seed = getenv("TR_SEED"), *count = getenv("TR_MOVES");
    if (argc != 2) {
        fprintf(stderr, "usage: test_moves MODEL\n");
        return 2;
    }
    model_path = argv[1];
    random_state = seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    if (count != NULL)
        moves_count = (uint32_t)strtoul(count, NULL, 10);
    fprintf(stderr, "TR_SEED=%llu\n", (unsigned long long)random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
