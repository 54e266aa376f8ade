/* test_stop_strings.c - what passes depends on the text and never on how it is cut. */
#include "tests/check.h"

#include "api/stop_strings.h"

#include <stdlib.h>

typedef struct {
    char text[4096];
    size_t size;
} sink;

static void sink_emit(void *ctx, const char *text, size_t size)
{
    sink *s = ctx;
    assert_true(size > 0 && s->size + size <= sizeof(s->text));
    memcpy(s->text + s->size, text, size);
    s->size += size;
}

static tr_stop_strings make_stops(const char *const *strings)
{
    tr_stop_strings stops = {0};
    for (; strings[stops.count] != NULL; stops.count++) {
        stops.strings[stops.count].size = strlen(strings[stops.count]);
        memcpy(stops.strings[stops.count].text, strings[stops.count], strlen(strings[stops.count]));
    }
    return stops;
}

typedef struct {
    const char *stops[4]; /* ends with NULL */
    const char *text;
    const char *passed;
    bool matched;
} row;

static const row rows[] = {
    {{NULL}, "abc", "abc", false},
    {{"x", NULL}, "", "", false},
    {{"x", NULL}, "abc", "abc", false},
    {{"b", NULL}, "abc", "a", true},
    {{"abc", NULL}, "ababcd", "ab", true},
    {{"abc", NULL}, "ababab", "ababab", false}, /* the end was held back and comes at the end */
    {{"aab", NULL}, "aaab", "a", true},
    {{"abcd", "c", NULL}, "abcd", "ab", true}, /* "c" is complete first */
    {{"cd", "bcd", NULL}, "abcd", "a", true},  /* both complete at once: the longer */
    {{"\n\n", NULL}, "a\nb\n\nc", "a\nb", true},
    {{"\xe4\xb8\xad", NULL}, "a\xe4\xb8\xab\xe4\xb8\xad", "a\xe4\xb8\xab", true},
    {{"END", "STOP", NULL}, "EN STO END", "EN STO ", true},
};

static void check_row(const row *r, size_t cut, size_t step)
{
    tr_stop_strings stops = make_stops(r->stops);
    tr_stop_filter filter;
    sink out = {0};
    size_t size = strlen(r->text);
    size_t done = 0;
    size_t piece = cut;

    tr_stop_filter_init(&filter, &stops);
    while (done < size) {
        if (piece > size - done)
            piece = size - done;
        if (tr_stop_filter_push(&filter, r->text + done, piece, sink_emit, &out))
            break;
        done += piece;
        piece = step;
    }
    tr_stop_filter_end(&filter, sink_emit, &out);
    assert_int_equal(filter.matched, r->matched);
    assert_int_equal(out.size, strlen(r->passed));
    assert_memory_equal(out.text, r->passed, out.size);
}

static void the_text_before_the_first_complete_stop_passes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_row(&rows[i], 1, 1);
        for (size_t cut = 1; cut <= strlen(rows[i].text); cut++)
            check_row(&rows[i], cut, 4096);
    }
}

static void nothing_is_held_back_that_cannot_begin_a_stop(void **state)
{
    (void)state;
    tr_stop_strings stops = make_stops((const char *const[]){"xyz", NULL});
    tr_stop_filter filter;
    sink out = {0};
    tr_stop_filter_init(&filter, &stops);
    tr_stop_filter_push(&filter, "abxy", 4, sink_emit, &out);
    assert_int_equal(out.size, 2);
    tr_stop_filter_push(&filter, "a", 1, sink_emit, &out);
    assert_int_equal(out.size, 5);
}

static void long_texts_and_the_longest_stop_work(void **state)
{
    (void)state;
    static char text[3000];
    static tr_stop_strings stops;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i * i % 23);
    stops.count = 1;
    stops.strings[0].size = TR_STOP_STRING_SIZE_MAX;
    memcpy(stops.strings[0].text, text + 2000, TR_STOP_STRING_SIZE_MAX);

    tr_stop_filter filter;
    sink out = {0};
    tr_stop_filter_init(&filter, &stops);
    bool matched = tr_stop_filter_push(&filter, text, sizeof(text), sink_emit, &out);
    size_t expected = 0;
    while (memcmp(text + expected, stops.strings[0].text, TR_STOP_STRING_SIZE_MAX) != 0)
        expected++;
    assert_true(matched);
    assert_int_equal(out.size, expected);
    assert_memory_equal(out.text, text, expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_before_the_first_complete_stop_passes),
        cmocka_unit_test(nothing_is_held_back_that_cannot_begin_a_stop),
        cmocka_unit_test(long_texts_and_the_longest_stop_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
