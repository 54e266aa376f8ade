/* fuzz_answer.c - what a model may write, as tokens: every complete tool call must have arguments
 * that are a JSON object, and all text must be UTF-8.
 *
 * A byte below 17 is that special token of the bundled tokenizer, any other one an ordinary token.
 * The first byte says where the answer begins and what is wanted. */
#include "api/answer.h"

#include "api/json_writer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tr_tokenizer *tokenizer;
static tr_sentinels sentinels;
static json_t *tools;
static tr_stop_strings stops;

typedef struct {
    tr_text arguments;
    uint32_t begun, completed;
} sink;

static void check_utf8(const char *text, size_t size)
{
    json_t *string = json_stringn(text, size); /* checks */
    assert(string != NULL);
    json_decref(string);
}

static void sink_emit(void *ctx, tr_part part, const char *text, size_t size)
{
    sink *s = ctx;
    check_utf8(text, size);
    switch (part) {
    case TR_PART_REASONING:
    case TR_PART_CONTENT:
        assert(size > 0);
        break;
    case TR_PART_CALL_BEGIN:
        s->begun++;
        s->arguments.size = 0;
        break;
    case TR_PART_CALL_ARGUMENTS:
        tr_text_append(&s->arguments, text, size);
        break;
    case TR_PART_CALL_END: {
        json_t *object = json_loadb(s->arguments.bytes, s->arguments.size,
                                    JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        assert(json_is_object(object));
        json_decref(object);
        s->completed++;
        assert(s->completed <= s->begun);
        break;
    }
    }
}

static void open_tokenizer(void)
{
    tr_error err = {0};
    if (tr_tokenizer_open(&tokenizer, MODEL, &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    tr_sentinels_find(&sentinels, tokenizer);
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":"
                       "{\"properties\":{\"b\":{\"type\":\"integer\"},\"c\":{\"type\":[\"array\","
                       "\"null\"]}}}}}]",
                       0, NULL);
    stops.count = 1;
    stops.strings[0].size = 2;
    memcpy(stops.strings[0].text, "ab", 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (tokenizer == NULL)
        open_tokenizer();
    if (size == 0)
        return 0;
    sink out = {0};
    tr_stop_strings none = {0};
    tr_answer_config config = {
        .tokenizer = tokenizer,
        .sentinels = (data[0] & 1) != 0 ? &sentinels : NULL,
        .channel = (data[0] & 2) != 0 ? TR_CHANNEL_REASONING : TR_CHANNEL_CONTENT,
        .stops = (data[0] & 4) != 0 ? &stops : &none,
        .tools = (data[0] & 8) != 0 ? tools : NULL,
        .one_call = (data[0] & 16) != 0,
        .begun_calls_are_out = (data[0] & 32) != 0,
        .emit = sink_emit,
        .ctx = &out,
    };
    tr_answer a;
    tr_answer_init(&a, &config);
    for (size_t i = 1; i < size; i++) {
        int32_t token = data[i];
        if (tr_answer_token(&a, token))
            break;
    }
    tr_answer_end(&a);
    assert(tr_answer_has_calls(&a) == (out.completed > 0));
    tr_answer_teardown(&a);
    tr_text_free(&out.arguments);
    return 0;
}
