/* test_json_writer.c - what the writer writes, jansson reads back. */
#include "tests/check.h"

#include "api/json_writer.h"

#include <jansson.h>
#include <math.h>

static void commas_stand_between_values_only(void **state)
{
    (void)state;
    char out[256];
    tr_json w;
    tr_json_init(&w, out, sizeof(out));
    tr_json_object_begin(&w);
    tr_json_key(&w, "a");
    tr_json_array_begin(&w);
    tr_json_int(&w, -1);
    tr_json_array_begin(&w);
    tr_json_array_end(&w);
    tr_json_bool(&w, true);
    tr_json_null(&w);
    tr_json_array_end(&w);
    tr_json_pair_string(&w, "b", "c");
    tr_json_key(&w, "d");
    tr_json_object_begin(&w);
    tr_json_object_end(&w);
    tr_json_key(&w, "e");
    tr_json_number(&w, 0.25);
    tr_json_key(&w, "f");
    tr_json_number(&w, NAN);
    tr_json_pair_int(&w, "g", INT64_MIN);
    tr_json_object_end(&w);
    assert_false(w.overflow);
    out[w.size] = '\0';
    assert_string_equal(out, "{\"a\":[-1,[],true,null],\"b\":\"c\",\"d\":{},\"e\":0.25,\"f\":null,"
                             "\"g\":-9223372036854775808}");
}

/* Writes text as a string and gives back what jansson reads. */
static json_t *read_back(const char *text, size_t size)
{
    char out[2048];
    tr_json w;
    tr_json_init(&w, out, sizeof(out));
    tr_json_text(&w, text, size);
    assert_false(w.overflow);
    assert_true(w.size <= TR_JSON_ESCAPED_MAX(size) + 2);
    json_error_t error;
    json_t *value = json_loadb(out, w.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (value == NULL)
        print_error("%.*s: %s\n", (int)w.size, out, error.text);
    assert_non_null(value);
    return value;
}

static void every_ascii_byte_comes_back(void **state)
{
    (void)state;
    char text[128];
    for (int i = 0; i < 128; i++)
        text[i] = (char)i;
    json_t *value = read_back(text, sizeof(text));
    assert_int_equal(json_string_length(value), sizeof(text));
    assert_memory_equal(json_string_value(value), text, sizeof(text));
    json_decref(value);
}

static void utf8_is_kept_and_anything_else_is_mended(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"},
        {"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf", "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"},
        {"a\x80z", "a\xef\xbf\xbdz"},
        {"\xff", "\xef\xbf\xbd"},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"x\xe4\xb8", "x\xef\xbf\xbd\xef\xbf\xbd"}, /* cut short */
        {"\xe4\xb8\"", "\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *value = read_back(rows[i].text, strlen(rows[i].text));
        assert_string_equal(json_string_value(value), rows[i].expected);
        json_decref(value);
    }
}

static void what_does_not_fit_is_reported_and_never_written(void **state)
{
    (void)state;
    for (size_t capacity = 0; capacity < 12; capacity++) {
        char out[16];
        memset(out, '#', sizeof(out));
        tr_json w;
        tr_json_init(&w, out, capacity);
        tr_json_object_begin(&w);
        tr_json_pair_string(&w, "k", "\n\"x");
        tr_json_object_end(&w);
        assert_int_equal(w.overflow, true);
        for (size_t i = w.size; i < sizeof(out); i++)
            assert_int_equal(out[i], '#');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_stand_between_values_only),
        cmocka_unit_test(every_ascii_byte_comes_back),
        cmocka_unit_test(utf8_is_kept_and_anything_else_is_mended),
        cmocka_unit_test(what_does_not_fit_is_reported_and_never_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
