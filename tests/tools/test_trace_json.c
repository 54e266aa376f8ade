/* test_trace_json.c - events of two nodes with different clocks become one trace.
 *
 * Goal: one time axis, slices that nest on every track, arrows that never point backwards, and a
 * document that is JSON whatever a node calls itself. Method: a made-up event set. The document's
 * schema is checked by tests/e2e/check_trace.py. */
#include "tests/check.h"

#include "tests/tools/trace_sample.h"
#include "tools/trace_json.h"

#include "core/message.h"

#include <jansson.h>
#include <stdlib.h>

typedef struct {
    tr_trace_node nodes[SAMPLE_NODES];
    tr_trace_join join;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    sample_make(f->nodes);
    *state = f;
    CHECK_STATUS(tr_trace_join_make(&f->join, f->nodes, SAMPLE_NODES, NULL), TR_OK);
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    tr_trace_join_free(&f->join);
    for (uint32_t n = 0; n < SAMPLE_NODES; n++)
        tr_trace_node_free(&f->nodes[n]);
    free(f);
    return 0;
}

static void unknown_kinds_and_mad_clocks_are_left_out(void **state)
{
    const fixture *f = *state;

    for (size_t i = 0; i < f->join.slices_count; i++) {
        assert_true(f->join.slices[i].event->kind <= TR_TRACE_WAIT);
        assert_in_range(f->join.slices[i].begin_ns, 0, 20000000);
    }
    assert_int_equal(f->join.slices_count, SAMPLE_STEPS * 10 + 6);
}

static void the_first_event_is_at_zero(void **state)
{
    const fixture *f = *state;
    int64_t first_ns = INT64_MAX;

    for (size_t i = 0; i < f->join.slices_count; i++)
        if (f->join.slices[i].begin_ns < first_ns)
            first_ns = f->join.slices[i].begin_ns;
    assert_true(first_ns == 0);
}

static void messages_both_ways_mend_a_clock_that_was_measured_wrong(void **state)
{
    const fixture *f = *state;

    assert_true(f->join.clock_offset_ns[0] == 0);
    assert_true(f->join.clock_offset_ns[1] == SAMPLE_CLOCK_NS);
}

static void each_arrow_has_one_send_and_a_receive_after_it(void **state)
{
    const fixture *f = *state;
    size_t ends = 0;

    assert_int_equal(f->join.arrows_count, SAMPLE_ARROWS);
    for (size_t i = 0; i < f->join.slices_count; i++) {
        const tr_trace_slice *send = &f->join.slices[i];
        if (!send->has_arrow)
            continue;
        ends++;
        if (send->event->kind != TR_TRACE_SEND)
            continue;
        size_t receives = 0;
        for (size_t k = 0; k < f->join.slices_count; k++) {
            const tr_trace_slice *receive = &f->join.slices[k];
            if (!receive->has_arrow || receive->event->kind != TR_TRACE_RECEIVE ||
                receive->event->id != send->event->id)
                continue;
            receives++;
            assert_true(receive->begin_ns > send->begin_ns);
            if (receive->node != send->node)
                assert_true(receive->begin_ns - send->begin_ns >= SAMPLE_HOP_NS);
        }
        assert_int_equal(receives, 1);
    }
    assert_int_equal(ends, 2 * SAMPLE_ARROWS);
}

static void sends_inside_a_slice_have_none_of_their_own(void **state)
{
    const fixture *f = *state;
    size_t alone = 0;

    for (size_t i = 0; i < f->join.slices_count; i++)
        if (f->join.slices[i].event->kind == TR_TRACE_SEND && f->join.slices[i].slice)
            alone++;
    assert_int_equal(alone, 1); /* the one between two receives */
}

static void check_nesting(const tr_trace_join *join)
{
    int64_t ends[64];
    uint32_t depth = 0;

    for (size_t i = 0; i < join->slices_count; i++) {
        const tr_trace_slice *slice = &join->slices[i];
        if (i > 0 && slice->track != join->slices[i - 1].track) {
            assert_true(slice->track > join->slices[i - 1].track);
            depth = 0;
        }
        if (!slice->slice)
            continue;
        while (depth > 0 && ends[depth - 1] <= slice->begin_ns)
            depth--;
        int64_t end_ns = slice->begin_ns + slice->duration_ns;
        assert_true(depth == 0 || end_ns <= ends[depth - 1]);
        assert_true(depth < 64);
        ends[depth++] = end_ns;
    }
}

static void slices_nest_and_what_overlaps_has_a_lane_of_its_own(void **state)
{
    const fixture *f = *state;
    uint32_t steps = 0, requests = 0;

    check_nesting(&f->join);
    for (uint32_t t = 0; t < f->join.tracks_count; t++) {
        steps += f->join.tracks[t].kind == TR_TRACK_STEPS;
        requests += f->join.tracks[t].kind == TR_TRACK_REQUESTS;
    }
    assert_int_equal(steps, 2);    /* two in flight */
    assert_int_equal(requests, 2); /* 2 nests in 1, 3 does not */
}

/* Spans at random: whatever comes, the tracks nest. */
static void random_spans_nest_as_well(void **state)
{
    (void)state;
    enum { SPANS = 2000 };
    tr_trace_node node = {.name = "n", .rings_count = 1};
    tr_trace_join join;
    uint64_t random = 88172645463325252u;

    node.rings = calloc(1, sizeof(*node.rings));
    assert_non_null(node.rings);
    node.rings[0].events = calloc(SPANS, sizeof(*node.rings[0].events));
    assert_non_null(node.rings[0].events);
    node.rings[0].events_count = SPANS;
    for (int i = 0; i < SPANS; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        node.rings[0].events[i] = (tr_trace_event){.begin_ns = random % 5000,
                                                   .duration_ns = (uint32_t)(random >> 32) % 60,
                                                   .kind = (uint16_t)(1 + random % 6),
                                                   .actor = (random >> 20) % 3,
                                                   .id = (random >> 24) % 64};
    }
    CHECK_STATUS(tr_trace_join_make(&join, &node, 1, NULL), TR_OK);
    check_nesting(&join);
    assert_int_equal(join.slices_count, SPANS);
    tr_trace_join_free(&join);
    tr_trace_node_free(&node);
}

static char *write_json(const fixture *f)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    tr_trace_json_write(&f->join, f->nodes, SAMPLE_NODES, out);
    fclose(out);
    return text;
}

/* How many events have this phase and name. */
static size_t count_events(json_t *document, const char *phase, const char *name)
{
    size_t count = 0, i;
    json_t *event;

    json_array_foreach(json_object_get(document, "traceEvents"), i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0 &&
            strcmp(json_string_value(json_object_get(event, "name")), name) == 0)
            count++;
    }
    return count;
}

static void the_document_names_processes_tracks_slices_and_arrows(void **state)
{
    const fixture *f = *state;
    char *text = write_json(f);
    json_error_t err;
    json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, &err);

    if (document == NULL)
        print_error("%s at %d\n", err.text, err.position);
    assert_non_null(document);
    assert_int_equal(count_events(document, "M", "process_name"), 2);
    assert_int_equal(count_events(document, "M", "thread_name"), f->join.tracks_count);
    assert_int_equal(count_events(document, "X", "MATMUL"), 2 * SAMPLE_STEPS);
    assert_int_equal(count_events(document, "X", "ATTENTION_ROWS"), SAMPLE_STEPS);
    assert_int_equal(count_events(document, "X", "step 1"), 1);
    assert_int_equal(count_events(document, "X", "request 3"), 1);
    assert_int_equal(count_events(document, "X", "sleep"), 1);
    assert_int_equal(count_events(document, "s", "PARTIAL"), SAMPLE_STEPS);
    assert_int_equal(count_events(document, "f", "PARTIAL"), SAMPLE_STEPS);
    assert_non_null(strstr(text, "\"router/0-7@spark1\""));
    assert_non_null(strstr(text, "\"ts\":33.000")); /* a time with its fraction */
    json_decref(document);
    free(text);
}

static void names_from_a_node_cannot_break_the_document(void **state)
{
    fixture *f = *state;

    snprintf(f->nodes[1].name, sizeof(f->nodes[1].name), "%s", "a\"b\\c\n\xff\x01");
    snprintf(f->nodes[1].actors[0].name, sizeof(f->nodes[1].actors[0].name), "\"},{");
    char *text = write_json(f);
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    assert_non_null(strstr(text, "\"a\\\"b\\\\c???\""));
    json_decref(document);
    free(text);
}

static void a_node_without_events_is_still_a_document(void **state)
{
    (void)state;
    tr_trace_node node = {.name = "empty"};
    tr_trace_join join;
    char *text = NULL;
    size_t size = 0;

    CHECK_STATUS(tr_trace_join_make(&join, &node, 1, NULL), TR_OK);
    FILE *out = open_memstream(&text, &size);
    tr_trace_json_write(&join, &node, 1, out);
    fclose(out);
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    assert_int_equal(count_events(document, "M", "process_name"), 1);
    json_decref(document);
    free(text);
    tr_trace_join_free(&join);
}

int main(void)
{
#define WITH_SAMPLE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_SAMPLE(unknown_kinds_and_mad_clocks_are_left_out),
        WITH_SAMPLE(the_first_event_is_at_zero),
        WITH_SAMPLE(messages_both_ways_mend_a_clock_that_was_measured_wrong),
        WITH_SAMPLE(each_arrow_has_one_send_and_a_receive_after_it),
        WITH_SAMPLE(sends_inside_a_slice_have_none_of_their_own),
        WITH_SAMPLE(slices_nest_and_what_overlaps_has_a_lane_of_its_own),
        cmocka_unit_test(random_spans_nest_as_well),
        WITH_SAMPLE(the_document_names_processes_tracks_slices_and_arrows),
        WITH_SAMPLE(names_from_a_node_cannot_break_the_document),
        cmocka_unit_test(a_node_without_events_is_still_a_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
