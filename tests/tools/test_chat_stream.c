/* test_chat_stream.c - the events of an answer, cut at every position. */
#include "tests/check.h"

#include "tools/chat_stream.h"

#include <stdlib.h>

typedef struct {
    char text[512];
    size_t size;
} sink;

/* r:reasoning c:content t:tool call, one after the other */
static void sink_emit(void *ctx, chat_part part, const char *text, size_t size)
{
    static const char letters[] = {
        [CHAT_REASONING] = 'r', [CHAT_CONTENT] = 'c', [CHAT_TOOL_CALL] = 't'};
    sink *s = ctx;
    assert_true(s->size + size + 3 < sizeof(s->text));
    s->size += (size_t)sprintf(s->text + s->size, "%c:%.*s ", letters[part], (int)size, text);
}

typedef struct {
    const char *bytes;
    const char *parts;
    bool done;
    const char *error;   /* what the server said; NULL: nothing */
    const char *refused; /* in the text of TR_E_INVALID; NULL: TR_OK */
} row;

#define DELTA(members) "data: {\"choices\":[{\"index\":0,\"delta\":{" members "}}]}\n\n"

static const row rows[] = {
    {"", "", false, NULL, NULL},
    {DELTA("\"role\":\"assistant\",\"content\":\"\"") DELTA("\"content\":\"a\"") "data: [DONE]\n\n",
     "c:a ", true, NULL, NULL},
    {DELTA("\"reasoning_content\":\"h\\u00e9\"") DELTA("\"content\":\"b\""), "r:h\xc3\xa9 c:b ",
     false, NULL, NULL},
    {DELTA("\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]")
         DELTA("\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]"),
     "t:f t:{} ", false, NULL, NULL},
    {": a comment\r\nevent: x\r\ndata:{\"choices\":[]}\r\n\r\ndata: [DONE]\r\n\r\n", "", true, NULL,
     NULL},
    {"data: {\"error\":{\"message\":\"node b is gone\"}}\n\n", "", false, "node b is gone", NULL},
    {"{\"error\":{\"message\":\"too long\"}}", "", false, "too long", NULL},
    {"{\"error\":{}}", "", false, "without a message", NULL},
    {"<html>no</html>", "", false, NULL, NULL},
    {"data: {\"choices\"\n\n", "", false, NULL, "not JSON"},
    {DELTA("\"content\":5") DELTA("\"content\":null") "data: {\"choices\":{}}\n\n", "", false, NULL,
     NULL},
};

static void check_row(const row *r, size_t cut, size_t step)
{
    chat_stream stream;
    sink out = {.text = ""};
    tr_error err = {0};
    tr_status status = TR_OK;
    size_t size = strlen(r->bytes);
    size_t piece = cut;

    chat_stream_init(&stream, sink_emit, &out);
    for (size_t used = 0; used < size && status == TR_OK; piece = step) {
        if (piece > size - used)
            piece = size - used;
        status = chat_stream_push(&stream, r->bytes + used, piece, &err);
        used += piece;
    }
    chat_stream_end(&stream);
    assert_string_equal(out.text, r->parts);
    assert_int_equal(status, r->refused == NULL ? TR_OK : TR_E_INVALID);
    if (r->refused != NULL)
        CHECK_ERR_NAMES(err, r->refused);
    assert_int_equal(stream.done, r->done);
    assert_int_equal(stream.has_error, r->error != NULL);
    if (r->error != NULL)
        assert_non_null(strstr(stream.error, r->error));
    chat_stream_teardown(&stream);
}

static void events_are_read_wherever_they_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_row(&rows[i], 1, 1);
        for (size_t cut = 1; cut <= strlen(rows[i].bytes); cut++)
            check_row(&rows[i], cut, 4096);
    }
}

static void an_event_without_end_is_refused(void **state)
{
    (void)state;
    static char bytes[65536];
    chat_stream stream;
    tr_error err = {0};
    tr_status status = TR_OK;
    memset(bytes, 'x', sizeof(bytes));
    chat_stream_init(&stream, sink_emit, NULL);
    for (size_t i = 0; i < 2 * CHAT_STREAM_LINE_MAX / sizeof(bytes) && status == TR_OK; i++)
        status = chat_stream_push(&stream, bytes, sizeof(bytes), &err);
    assert_int_equal(status, TR_E_INVALID);
    chat_stream_teardown(&stream);
}

static void the_end_of_an_answer_is_kept(void **state)
{
    (void)state;
    static const char bytes[] =
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
        "data: {\"choices\":[],\"usage\":{\"completion_tokens\":17}}\n\n";
    chat_stream stream;
    chat_stream_init(&stream, sink_emit, NULL);
    CHECK_STATUS(chat_stream_push(&stream, bytes, sizeof(bytes) - 1, NULL), TR_OK);
    assert_string_equal(stream.finish_reason, "length");
    assert_int_equal(stream.completion_tokens, 17);
    chat_stream_teardown(&stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_read_wherever_they_are_cut),
        cmocka_unit_test(an_event_without_end_is_refused),
        cmocka_unit_test(the_end_of_an_answer_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
