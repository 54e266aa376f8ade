/* test_tool_calls.c - the tool call parser, alone.
 *
 * Method: a call is written as one string in which sentinels are single letters behind a '\x01':
 * S start, E end, A argument, V value, Z argument end. Each row is fed with the text between
 * sentinels whole, byte by byte, and cut in two at every position; all must give the same calls. */
#include "tests/check.h"

#include "api/tool_calls.h"

#include <stdlib.h>

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},"
    "\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":\"array\"},\"o\":{\"type\":\"object\"},"
    "\"sn\":{\"type\":[\"string\",\"null\"]},"
    "\"in\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]},"
    "\"si\":{\"type\":[\"string\",\"integer\"]},"
    "\"e\":{\"enum\":[1,2,\"x\"]},"
    "\"nu\":{\"type\":\"integer\",\"nullable\":true}"
    "}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

/* Calls as text: "name(arguments)" for a complete one, "name(arguments" for an open one. */
typedef struct {
    char text[2048];
    size_t size;
} sink;

static void sink_add(sink *s, const char *text, size_t size)
{
    assert_true(s->size + size < sizeof(s->text));
    memcpy(s->text + s->size, text, size);
    s->size += size;
    s->text[s->size] = '\0';
}

static void sink_emit(void *ctx, tr_call_event event, const char *text, size_t size)
{
    switch (event) {
    case TR_CALL_BEGIN:
        assert_true(size > 0);
        sink_add(ctx, text, size);
        sink_add(ctx, "(", 1);
        break;
    case TR_CALL_ARGUMENTS:
        assert_true(size > 0);
        sink_add(ctx, text, size);
        break;
    case TR_CALL_END:
        assert_int_equal(size, 0);
        sink_add(ctx, ")", 1);
        break;
    }
}

typedef struct {
    const char *input;
    const char *calls;
    uint32_t completed;
} row;

#define S "\x01S"
#define E                                                                                          \
    "\x01"                                                                                         \
    "E"
#define A                                                                                          \
    "\x01"                                                                                         \
    "A"
#define V               "\x01V"
#define Z               "\x01Z"
#define ARG(key, value) A key V value Z "\n"

static const row rows[] = {
    /* the grammar */
    {"", "", 0},
    {S "f\n" E, "f({})", 1},
    {S "f\n" ARG("s", "x y") E, "f({\"s\": \"x y\"})", 1},
    {S "f\n" ARG("s", "a") ARG("i", "3") E, "f({\"s\": \"a\", \"i\": 3})", 1},
    {S "f\n" ARG("s", "1") E "\n" S "g\n" ARG("k", "2") E, "f({\"s\": \"1\"})g({\"k\": \"2\"})", 2},
    {S " f \r\n" E, "f({})", 1},
    {S "f" E, "f({})", 1},
    {S "f" ARG("s", "x") E, "f({\"s\": \"x\"})", 1},
    {S "f\ntext that belongs nowhere" ARG("s", "x") "more" E "after", "f({\"s\": \"x\"})", 1},

    /* values: strings are kept as they are */
    {S "f\n" ARG("s", "") E, "f({\"s\": \"\"})", 1},
    {S "f\n" ARG("s", " \"q\"\\\n\ttab ") E, "f({\"s\": \" \\\"q\\\"\\\\\\n\\ttab \"})", 1},
    {S "f\n" ARG("s", "5") E, "f({\"s\": \"5\"})", 1},
    {S "f\n" ARG("s", "null") E, "f({\"s\": \"null\"})", 1},
    {S "f\n" ARG("s", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80") E,
     "f({\"s\": \"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\"})", 1},
    {S "f\n" ARG("undeclared", "7") E, "f({\"undeclared\": \"7\"})", 1},
    {S "g\n" ARG("x", "true") E, "g({\"x\": \"true\"})", 1},
    {S "unknown\n" ARG("x", "1") E, "unknown({\"x\": \"1\"})", 1},

    /* values: other types are JSON, or a string when they are not what the schema says */
    {S "f\n" ARG("i", " 42\n") E, "f({\"i\": 42})", 1},
    {S "f\n" ARG("i", "4.5") E, "f({\"i\": \"4.5\"})", 1},
    {S "f\n" ARG("i", "many") E, "f({\"i\": \"many\"})", 1},
    {S "f\n" ARG("i", "") E, "f({\"i\": \"\"})", 1},
    {S "f\n" ARG("n", "-1e3") E, "f({\"n\": -1e3})", 1},
    {S "f\n" ARG("n", "7") E, "f({\"n\": 7})", 1},
    {S "f\n" ARG("b", "false") E, "f({\"b\": false})", 1},
    {S "f\n" ARG("b", "False") E, "f({\"b\": \"False\"})", 1},
    {S "f\n" ARG("a", "[1, \"x\"]") E, "f({\"a\": [1, \"x\"]})", 1},
    {S "f\n" ARG("a", "[1, ") E, "f({\"a\": \"[1, \"})", 1},
    {S "f\n" ARG("o", "{\"k\": {}}") E, "f({\"o\": {\"k\": {}}})", 1},
    {S "f\n" ARG("o", "[1]") E, "f({\"o\": \"[1]\"})", 1},
    {S "f\n" ARG("sn", "null") E, "f({\"sn\": null})", 1},
    {S "f\n" ARG("sn", " NULL ") E, "f({\"sn\": null})", 1},
    {S "f\n" ARG("sn", "nullable") E, "f({\"sn\": \"nullable\"})", 1},
    {S "f\n" ARG("sn", "5") E, "f({\"sn\": \"5\"})", 1},
    {S "f\n" ARG("in", "null") E, "f({\"in\": null})", 1},
    {S "f\n" ARG("in", "8") E, "f({\"in\": 8})", 1},
    {S "f\n" ARG("nu", "null") E, "f({\"nu\": null})", 1},
    {S "f\n" ARG("i", "null") E, "f({\"i\": \"null\"})", 1},
    {S "f\n" ARG("si", "9") E, "f({\"si\": 9})", 1},
    {S "f\n" ARG("si", "nine") E, "f({\"si\": \"nine\"})", 1},
    {S "f\n" ARG("e", "2") E, "f({\"e\": 2})", 1},
    {S "f\n" ARG("e", "x") E, "f({\"e\": \"x\"})", 1},

    /* keys */
    {S "f\n" ARG("s", "1") ARG("s", "2") E, "f({\"s\": \"1\"})", 1},
    {S "f\n" ARG("", "1") E, "f({\"\": \"1\"})", 1},
    {S "f\n" ARG("a\"b", "1") E, "f({\"a\\\"b\": \"1\"})", 1},

    /* what was forgotten */
    {S "f\n" A "s" V "x" E, "f({\"s\": \"x\"})", 1},
    {S "f\n" A "s" V "x" A "i" V "1" Z E, "f({\"s\": \"x\", \"i\": 1})", 1},
    {S "f\n" ARG("s", "x") S "g\n" E, "f({\"s\": \"x\"})g({})", 2},
    {S "f\n" A "s" Z E, "f({})", 1},
    {S "f\n" A "s" E, "f({})", 1},
    {S "f\n" A "s" A "i" V "1" Z E, "f({\"i\": 1})", 1},
    {S "f\n" V "x" Z E, "f({})", 1},
    {S "f\n" ARG("s", "x"), "f({\"s\": \"x\"", 0},
    {S "f\n", "f(", 0},
    {S "f", "", 0},
    {S "\n" ARG("s", "x") E, "", 0},
    {S E, "", 0},
    {S "  " E S "f\n" E, "f({})", 1},
    {E A "s" V "x" Z, "", 0},
};

static void feed_text(tr_tool_calls *calls, const char *text, size_t size, size_t cut)
{
    if (cut > 0 && cut < size) {
        tr_tool_calls_text(calls, text, cut);
        tr_tool_calls_text(calls, text + cut, size - cut);
    } else {
        tr_tool_calls_text(calls, text, size);
    }
}

static size_t character_size(const char *text)
{
    size_t size = 1;
    while (((unsigned char)text[size] & 0xc0) == 0x80)
        size++;
    return size;
}

/* cut: position in every text, 0: whole, SIZE_MAX: character by character. */
static void feed(tr_tool_calls *calls, const char *input, size_t cut)
{
    static const char letters[] = "SEAVZ";
    while (*input != '\0') {
        if (*input == '\x01') {
            tr_tool_calls_sentinel(calls, (tr_tool_sentinel)(strchr(letters, input[1]) - letters));
            input += 2;
            continue;
        }
        size_t size = strcspn(input, "\x01");
        if (cut == SIZE_MAX) {
            size = character_size(input);
            feed_text(calls, input, size, 0);
        } else {
            size_t at = cut;
            while (at < size && ((unsigned char)input[at] & 0xc0) == 0x80)
                at++; /* the parser gets whole characters */
            feed_text(calls, input, size, at);
        }
        input += size;
    }
}

static void check_row(const row *r, const json_t *tools, size_t cut)
{
    tr_tool_calls calls;
    sink out = {.text = ""};
    tr_tool_calls_init(&calls, tools, sink_emit, &out);
    feed(&calls, r->input, cut);
    if (strcmp(out.text, r->calls) != 0)
        print_error("cut %zu: got %s, expected %s\n", cut, out.text, r->calls);
    assert_string_equal(out.text, r->calls);
    assert_int_equal(calls.completed_count, r->completed);
    tr_tool_calls_teardown(&calls);
}

static void calls_are_read_however_their_text_is_cut(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_json, 0, NULL);
    assert_non_null(tools);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_row(&rows[i], tools, SIZE_MAX);
        for (size_t cut = 0; cut < strlen(rows[i].input); cut++)
            check_row(&rows[i], tools, cut);
    }
    json_decref(tools);
}

static void arguments_of_complete_calls_are_json(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_json, 0, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *begin = strchr(rows[i].calls, '(');
        if (rows[i].completed != 1 || begin == NULL)
            continue;
        size_t size = strlen(begin) - 2; /* without the brackets */
        json_t *arguments = json_loadb(begin + 1, size, JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_is_object(arguments));
        json_decref(arguments);
    }
    json_decref(tools);
}

static void a_string_is_passed_on_as_it_comes(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_json, 0, NULL);
    tr_tool_calls calls;
    sink out = {.text = ""};
    tr_tool_calls_init(&calls, tools, sink_emit, &out);
    feed(&calls, S "f\n" A "s" V "hello", 0);
    assert_string_equal(out.text, "f({\"s\": \"hello");
    assert_true(tr_tool_calls_is_open(&calls));
    feed(&calls, Z A "i" V "4", 0); /* other types come when they are complete */
    assert_string_equal(out.text, "f({\"s\": \"hello\"");
    feed(&calls, "2" Z E, 0);
    assert_string_equal(out.text, "f({\"s\": \"hello\", \"i\": 42})");
    assert_false(tr_tool_calls_is_open(&calls));
    tr_tool_calls_teardown(&calls);
    json_decref(tools);
}

static void a_name_that_is_too_long_is_no_call(void **state)
{
    (void)state;
    tr_tool_calls calls;
    sink out = {.text = ""};
    tr_tool_calls_init(&calls, NULL, sink_emit, &out);
    feed(&calls, S, 0);
    for (int i = 0; i <= TR_TOOL_NAME_MAX; i++)
        tr_tool_calls_text(&calls, "n", 1);
    feed(&calls, "\n" ARG("s", "x") E S "g\n" E, 0);
    assert_string_equal(out.text, "g({})");
    tr_tool_calls_teardown(&calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_read_however_their_text_is_cut),
        cmocka_unit_test(arguments_of_complete_calls_are_json),
        cmocka_unit_test(a_string_is_passed_on_as_it_comes),
        cmocka_unit_test(a_name_that_is_too_long_is_no_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
