/* test_json_pull.c - the reader of large headers against jansson.
 *
 * Goal: it takes exactly what jansson takes (but for duplicate keys, which are the caller's), and
 * gives the same strings and integers. Method: texts that somebody could write, each cut at every
 * byte, and texts made of pieces of JSON at random. */
#include "tests/check.h"

#include "core/model/json_pull.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* Reads any value and compares it with what jansson made of it. */
static tr_status same(tr_json_pull *p, const json_t *expected)
{
    const char *text;
    size_t size;
    bool more;
    uint64_t integer;
    tr_status status;

    switch (json_typeof(expected)) {
    case JSON_OBJECT:
        assert_true(tr_json_pull_is(p, "an object"));
        status = tr_json_pull_object(p);
        while (status == TR_OK && (status = tr_json_pull_key(p, &text, &size, &more)) == TR_OK &&
               more) {
            const json_t *value = json_object_getn(expected, text, size);
            assert_non_null(value);
            status = same(p, value);
        }
        return status;
    case JSON_ARRAY:
        status = tr_json_pull_array(p);
        for (size_t i = 0; status == TR_OK; i++) {
            status = tr_json_pull_item(p, &more);
            assert_int_equal(more, status == TR_OK && i < json_array_size(expected));
            if (!more)
                break;
            status = same(p, json_array_get(expected, i));
        }
        return status;
    case JSON_STRING:
        status = tr_json_pull_text(p, &text, &size);
        if (status == TR_OK) {
            assert_int_equal(size, json_string_length(expected));
            assert_memory_equal(text, json_string_value(expected), size);
        }
        return status;
    case JSON_INTEGER:
        assert_true(tr_json_pull_is(p, "an integer"));
        if (json_integer_value(expected) <= 0) /* -0 is an integer, too */
            return tr_json_pull_skip(p);
        status = tr_json_pull_u64(p, &integer);
        assert_true(status != TR_OK || integer == (uint64_t)json_integer_value(expected));
        return status;
    case JSON_REAL:
        assert_true(tr_json_pull_is(p, "a number with a fraction"));
        return tr_json_pull_skip(p);
    case JSON_TRUE:
    case JSON_FALSE:
    case JSON_NULL:
        return tr_json_pull_skip(p);
    }
    return TR_E_INVALID;
}

static void compare(const char *text, size_t size)
{
    tr_json_pull p;
    tr_error err = {0};
    json_error_t where;
    char *copy = malloc(size + 1); /* so that a sanitizer sees a byte too far */

    assert_non_null(copy);
    memcpy(copy, text, size);
    json_t *root = json_loadb(copy, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    bool duplicate = root == NULL && json_error_code(&where) == json_error_duplicate_key;
    /* What does not fit 64 bits is refused by jansson; skipping does not look. */
    bool range = root == NULL && json_error_code(&where) == json_error_numeric_overflow;

    tr_json_pull_open(&p, "text", copy, size, &err);
    tr_status status = tr_json_pull_skip(&p);
    if (status == TR_OK)
        status = tr_json_pull_end(&p);
    if (!duplicate && !range && (status == TR_OK) != (root != NULL))
        fail_msg("%.*s: \"%s\", jansson \"%s\"", (int)size, text, err.text, where.text);
    if (status != TR_OK)
        CHECK_ERR_NAMES(err, "text: line ");
    tr_json_pull_close(&p);
    if (root != NULL) {
        tr_json_pull_open(&p, "text", copy, size, &err);
        CHECK_STATUS(same(&p, root), TR_OK);
        CHECK_STATUS(tr_json_pull_end(&p), TR_OK);
        tr_json_pull_close(&p);
    }
    json_decref(root);
    free(copy);
}

static void texts_that_people_write_are_read_as_jansson_does(void **state)
{
    static const char *const texts[] = {
        "{\"a\": 1, \"b\": [true, false, null], \"c\": {\"d\": -1.5e+10}}",
        "[\"\\u00e9\\uD83D\\uDE00\\\\\\\"\\/\\b\\f\\n\\r\\t\", \"\xC3\xA9\xF0\x9F\x98\x80\"]",
        "{\"\\u0041\": \"x\", \"\": {}, \"y\": []}",
        " [ 0 , -0 , 10, 9223372036854775807, 1E5, 1e-5, 0.5 ] \n\t\r ",
        "[01]",
        "[1.]",
        "[.5]",
        "[1e]",
        "[+1]",
        "[-]",
        "[1 2]",
        "[1,]",
        "[,1]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{a: 1}",
        "{\"a\": 1,}",
        "[\"\\u0000\"]",
        "[\"\\uD800\"]",
        "[\"\\uDC00\"]",
        "[\"\\uD800\\u0041\"]",
        "[\"\\x\"]",
        "[\"\x01\"]",
        "[\"\xFF\"]",
        "[\"\xC0\xAF\"]",
        "[\"\xED\xA0\x80\"]",
        "[nul]",
        "[nullx]",
        "[tru",
        "{\"a\": 1} x",
        "]",
        "",
        " ",
        "[\"a]",
        "{\"a\": 1, \"a\": 2}",
        "[{}, {\"x\": [[], [{}]]}, [[[[]]]]]",
        "[1}",
        "{\"a\": 1]",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        for (size_t size = strlen(texts[i]);; size--) {
            compare(texts[i], size);
            if (size == 0)
                break;
        }
}

static void texts_made_at_random_are_read_as_jansson_does(void **state)
{
    static const char *const pieces[] = {"{",        "}", "[",       "]",    ",",    ":", "\"a\"",
                                         "\"b\\n\"", "1", "-2.5",    "true", "null", " ", "\"",
                                         "\\",       "0", "{\"a\":", "[1,",  "]}"};
    const char *seed = getenv("TR_SEED");
    char text[256];

    (void)state;
    srand(seed != NULL ? (unsigned int)atoi(seed) : 31);
    for (int round = 0; round < 30000; round++) {
        size_t size = 0, count = 1 + (size_t)rand() % 14;
        for (size_t i = 0; i < count; i++)
            size += (size_t)snprintf(text + size, sizeof(text) - size, "%s",
                                     pieces[(size_t)rand() % (sizeof(pieces) / sizeof(pieces[0]))]);
        compare(text, size);
    }
}

static void depth_is_limited(void **state)
{
    char text[256];
    tr_json_pull p;
    tr_error err = {0};

    (void)state;
    for (size_t depth = 63; depth <= 65; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        tr_json_pull_open(&p, "text", text, 2 * depth, &err);
        CHECK_STATUS(tr_json_pull_skip(&p), depth <= 64 ? TR_OK : TR_E_INVALID);
        CHECK_STATUS(tr_json_pull_end(&p), depth <= 64 ? TR_OK : TR_E_INVALID);
        tr_json_pull_close(&p);
    }
    CHECK_ERR_NAMES(err, "nested deeper than 64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_that_people_write_are_read_as_jansson_does),
        cmocka_unit_test(texts_made_at_random_are_read_as_jansson_does),
        cmocka_unit_test(depth_is_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
