/* test_answer.c - from tokens to reasoning, content and tool calls, with the bundled tokenizer.
 *
 * Method: an answer is written as text with special tokens in it and tokenized. The parts that
 * come out are joined by sort; a call is written as name(arguments). */
#include "tests/check.h"

#include "api/answer.h"

#include <stdlib.h>

#define TOKENS_MAX 512

static tr_tokenizer *tokenizer;
static tr_sentinels sentinels;
static json_t *tools;

typedef struct {
    tr_text reasoning, content, calls;
} parts;

static void parts_emit(void *ctx, tr_part part, const char *text, size_t size)
{
    parts *p = ctx;
    assert_true(size > 0 || part == TR_PART_CALL_END);
    assert_true(size == 0 || ((unsigned char)text[0] & 0xc0) != 0x80); /* whole characters */
    switch (part) {
    case TR_PART_REASONING:
        tr_text_append(&p->reasoning, text, size);
        break;
    case TR_PART_CONTENT:
        tr_text_append(&p->content, text, size);
        break;
    case TR_PART_CALL_BEGIN:
        tr_text_append(&p->calls, text, size);
        tr_text_append(&p->calls, "(", 1);
        break;
    case TR_PART_CALL_ARGUMENTS:
        tr_text_append(&p->calls, text, size);
        break;
    case TR_PART_CALL_END:
        tr_text_append(&p->calls, ")", 1);
        break;
    }
}

static void parts_free(parts *p)
{
    tr_text_free(&p->reasoning);
    tr_text_free(&p->content);
    tr_text_free(&p->calls);
}

static void check_text(const char *what, const tr_text *t, const char *expected)
{
    size_t size = strlen(expected);
    if (t->size != size || (size > 0 && memcmp(t->bytes, expected, size) != 0))
        print_error("%s: got \"%.*s\", expected \"%s\"\n", what, (int)t->size,
                    t->size > 0 ? t->bytes : "", expected);
    assert_int_equal(t->size, size);
    if (size > 0)
        assert_memory_equal(t->bytes, expected, size);
}

static size_t encode(const char *text, size_t size, bool specials, int32_t *ids, size_t count)
{
    tr_error err = {0};
    CHECK_STATUS(
        tr_tokenizer_encode(tokenizer, text, size, specials, ids, TOKENS_MAX, &count, &err), TR_OK);
    return count;
}

static tr_answer_config chat_config(tr_channel channel, const tr_stop_strings *stops, parts *out)
{
    return (tr_answer_config){.tokenizer = tokenizer,
                              .sentinels = &sentinels,
                              .channel = channel,
                              .stops = stops,
                              .tools = tools,
                              .emit = parts_emit,
                              .ctx = out};
}

/* Feeds the tokens; returns how many were taken before the answer said that it is over. */
static size_t run(const tr_answer_config *config, const int32_t *ids, size_t count, bool *has_calls)
{
    tr_answer a;
    size_t taken = 0;
    tr_answer_init(&a, config);
    while (taken < count && !tr_answer_token(&a, ids[taken]))
        taken++;
    tr_answer_end(&a);
    *has_calls = tr_answer_has_calls(&a);
    tr_answer_teardown(&a);
    return taken;
}

#define CALL_F                                                                                     \
    "<|tool_call:start|>f\n<|tool_arg:start|>s<|tool_arg:value|>x<|tool_arg:end|>\n<|tool_call:"   \
    "end|>"

typedef struct {
    const char *answer;
    tr_channel channel;
    bool tools;
    const char *reasoning, *content, *calls;
} row;

static const row rows[] = {
    {"Hello.", TR_CHANNEL_CONTENT, true, "", "Hello.", ""},
    {" \n Hello. ", TR_CHANNEL_CONTENT, true, "", " \n Hello. ", ""},
    {"", TR_CHANNEL_REASONING, true, "", "", ""},
    {"Hm.<|think:end|>Yes.", TR_CHANNEL_REASONING, true, "Hm.", "Yes.", ""},
    {"Hm.<|think:end|>", TR_CHANNEL_REASONING, true, "Hm.", "", ""},
    {"Hm", TR_CHANNEL_REASONING, true, "Hm", "", ""},
    {"<|think:end|>\n\nYes.", TR_CHANNEL_REASONING, false, "", "\n\nYes.", ""},
    {"<|think:start|>Hm.<|think:end|>Yes.", TR_CHANNEL_CONTENT, false, "Hm.", "Yes.", ""},
    {"Yes.<|im:end|>", TR_CHANNEL_CONTENT, false, "", "Yes.", ""}, /* specials are not printed */

    {"Hm.<|think:end|>" CALL_F, TR_CHANNEL_REASONING, true, "Hm.", "", "f({\"s\": \"x\"})"},
    {"Hm." CALL_F, TR_CHANNEL_REASONING, true, "Hm.", "", "f({\"s\": \"x\"})"},
    {"Hm.<|think:end|>\n\n" CALL_F, TR_CHANNEL_REASONING, true, "Hm.", "", "f({\"s\": \"x\"})"},
    {"I look.\n" CALL_F, TR_CHANNEL_CONTENT, true, "", "I look.\n", "f({\"s\": \"x\"})"},
    {CALL_F "\n" CALL_F, TR_CHANNEL_CONTENT, true, "", "", "f({\"s\": \"x\"})f({\"s\": \"x\"})"},
    {CALL_F "Done.", TR_CHANNEL_CONTENT, true, "", "", "f({\"s\": \"x\"})"},
    {CALL_F "<|think:start|>x<|think:end|>", TR_CHANNEL_CONTENT, true, "", "", "f({\"s\": \"x\"})"},

    /* without tools in the request the marks mean nothing */
    {"a<|tool_call:start|>f\n<|tool_call:end|>", TR_CHANNEL_CONTENT, false, "", "af\n", ""},

    /* no call is complete: everything is content */
    {"\n<|tool_call:start|>f\nab", TR_CHANNEL_CONTENT, true, "", "\n<|tool_call:start|>f\nab",
     "f("},
    {"<|tool_call:start|>\n<|tool_call:end|>!", TR_CHANNEL_CONTENT, true, "",
     "<|tool_call:start|>\n<|tool_call:end|>!", ""},
};

static void answers_are_split_into_their_parts(void **state)
{
    (void)state;
    static const tr_stop_strings no_stops;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        parts out = {0};
        bool has_calls;
        int32_t ids[TOKENS_MAX];
        size_t count = encode(rows[i].answer, strlen(rows[i].answer), true, ids, 0);
        tr_answer_config config = chat_config(rows[i].channel, &no_stops, &out);
        if (!rows[i].tools)
            config.tools = NULL;
        run(&config, ids, count, &has_calls);
        check_text(rows[i].answer, &out.reasoning, rows[i].reasoning);
        check_text(rows[i].answer, &out.content, rows[i].content);
        check_text(rows[i].answer, &out.calls, rows[i].calls);
        assert_int_equal(has_calls, strchr(rows[i].calls, ')') != NULL);
        parts_free(&out);
    }
}

/* A mark is a token. The same characters written by ordinary tokens are text, wherever the tokens
 * cut them. */
static void the_spelling_of_a_mark_is_text_wherever_it_is_cut(void **state)
{
    (void)state;
    static const tr_stop_strings no_stops;
    static const char *const marks[] = {
        "<|think:start|>",    "<|think:end|>",      "<|tool_call:start|>", "<|tool_call:end|>",
        "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>",
    };
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        size_t size = strlen(marks[i]);
        for (size_t cut = 0; cut <= size; cut++) {
            static const tr_channel channels[] = {TR_CHANNEL_REASONING, TR_CHANNEL_CONTENT};
            for (int c = 0; c < 2; c++) {
                parts out = {0};
                bool has_calls;
                int32_t ids[TOKENS_MAX];
                size_t count = encode(marks[i], cut, false, ids, 0);
                count = encode(marks[i] + cut, size - cut, false, ids, count);
                tr_answer_config config = chat_config(channels[c], &no_stops, &out);
                run(&config, ids, count, &has_calls);
                assert_false(has_calls);
                check_text(marks[i], c == 0 ? &out.reasoning : &out.content, marks[i]);
                check_text(marks[i], c == 0 ? &out.content : &out.reasoning, "");
                parts_free(&out);
            }
        }
    }
}

static void a_spelled_mark_inside_an_argument_belongs_to_it(void **state)
{
    (void)state;
    static const tr_stop_strings no_stops;
    static const char begin[] = "<|tool_call:start|>f\n<|tool_arg:start|>s<|tool_arg:value|>";
    static const char mark[] = "<|tool_arg:end|>";
    static const char end[] = "<|tool_arg:end|><|tool_call:end|>";
    for (size_t cut = 0; cut <= strlen(mark); cut++) {
        parts out = {0};
        bool has_calls;
        int32_t ids[TOKENS_MAX];
        size_t count = encode(begin, strlen(begin), true, ids, 0);
        count = encode(mark, cut, false, ids, count);
        count = encode(mark + cut, strlen(mark) - cut, false, ids, count);
        count = encode(end, strlen(end), true, ids, count);
        tr_answer_config config = chat_config(TR_CHANNEL_CONTENT, &no_stops, &out);
        run(&config, ids, count, &has_calls);
        check_text("calls", &out.calls, "f({\"s\": \"<|tool_arg:end|>\"})");
        parts_free(&out);
    }
}

static void characters_of_several_tokens_come_whole(void **state)
{
    (void)state;
    static const tr_stop_strings no_stops;
    static const char text[] = "\xf0\x9f\x98\x80 \xe4\xb8\xad\xe6\x96\x87 \xed\x95\x9c";
    parts out = {0};
    bool has_calls;
    int32_t ids[TOKENS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < strlen(text); i++) /* one token per byte */
        count = encode(text + i, 1, false, ids, count);
    tr_answer_config config = chat_config(TR_CHANNEL_CONTENT, &no_stops, &out);
    run(&config, ids, count, &has_calls);
    check_text("content", &out.content, text);
    parts_free(&out);
}

static void half_a_character_at_the_end_becomes_a_mark(void **state)
{
    (void)state;
    static const tr_stop_strings no_stops;
    parts out = {0};
    bool has_calls;
    int32_t ids[TOKENS_MAX];
    size_t count = encode("a\xe4\xb8", 3, false, ids, 0);
    tr_answer_config config = chat_config(TR_CHANNEL_CONTENT, &no_stops, &out);
    run(&config, ids, count, &has_calls);
    assert_true(out.content.size > 1);
    assert_memory_equal(out.content.bytes, "a\xef\xbf\xbd", 4);
    parts_free(&out);
}

static tr_stop_strings stop_at(const char *text)
{
    tr_stop_strings stops = {.count = 1};
    stops.strings[0].size = strlen(text);
    memcpy(stops.strings[0].text, text, strlen(text));
    return stops;
}

static void a_stop_string_ends_the_content_and_not_the_reasoning(void **state)
{
    (void)state;
    tr_stop_strings stops = stop_at(", two");
    parts out = {0};
    bool has_calls;
    int32_t ids[TOKENS_MAX];
    static const char text[] = "one, two<|think:end|>one, two, three";
    size_t count = encode(text, strlen(text), true, ids, 0);
    tr_answer_config config = chat_config(TR_CHANNEL_REASONING, &stops, &out);
    assert_true(run(&config, ids, count, &has_calls) < count);
    check_text("reasoning", &out.reasoning, "one, two");
    check_text("content", &out.content, "one");
    parts_free(&out);
}

static void one_call_is_enough_when_no_more_are_wanted(void **state)
{
    (void)state;
    static const tr_stop_strings no_stops;
    parts out = {0};
    bool has_calls;
    int32_t ids[TOKENS_MAX];
    static const char text[] = CALL_F "\n" CALL_F;
    size_t count = encode(text, strlen(text), true, ids, 0);
    tr_answer_config config = chat_config(TR_CHANNEL_CONTENT, &no_stops, &out);
    config.one_call = true;
    assert_true(run(&config, ids, count, &has_calls) < count / 2 + 1);
    assert_true(has_calls);
    check_text("calls", &out.calls, "f({\"s\": \"x\"})");
    parts_free(&out);
}

static void the_last_mark_of_the_prompt_decides_where_an_answer_begins(void **state)
{
    (void)state;
    static const struct {
        const char *prompt;
        tr_channel channel;
    } prompts[] = {
        {"Hello", TR_CHANNEL_CONTENT},
        {"<|think:start|>", TR_CHANNEL_REASONING},
        {"<|think:start|><|think:end|>", TR_CHANNEL_CONTENT},
        {"<|think:start|>a<|think:end|>b<|think:start|>", TR_CHANNEL_REASONING},
        {"<|think:start|>a<|think:end|>b<|think:start|><|think:end|>", TR_CHANNEL_CONTENT},
    };
    for (size_t i = 0; i < sizeof(prompts) / sizeof(prompts[0]); i++) {
        int32_t ids[TOKENS_MAX];
        size_t count = encode(prompts[i].prompt, strlen(prompts[i].prompt), true, ids, 0);
        assert_int_equal(tr_channel_at_start(&sentinels, ids, count), prompts[i].channel);
    }
    tr_sentinels none = {.think_start = -1, .think_end = -1};
    assert_int_equal(tr_channel_at_start(&none, (int32_t[]){5}, 1), TR_CHANNEL_CONTENT);
}

static int open_tokenizer(void **state)
{
    (void)state;
    tr_error err = {0};
    if (tr_tokenizer_open(&tokenizer, MODELS_DIR "/tiny-solar-nvfp4", &err) != TR_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    tr_sentinels_find(&sentinels, tokenizer);
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    return sentinels.think_end < 0 || !tr_sentinels_have_tools(&sentinels);
}

static int close_tokenizer(void **state)
{
    (void)state;
    json_decref(tools);
    tr_tokenizer_close(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_split_into_their_parts),
        cmocka_unit_test(the_spelling_of_a_mark_is_text_wherever_it_is_cut),
        cmocka_unit_test(a_spelled_mark_inside_an_argument_belongs_to_it),
        cmocka_unit_test(characters_of_several_tokens_come_whole),
        cmocka_unit_test(half_a_character_at_the_end_becomes_a_mark),
        cmocka_unit_test(a_stop_string_ends_the_content_and_not_the_reasoning),
        cmocka_unit_test(one_call_is_enough_when_no_more_are_wanted),
        cmocka_unit_test(the_last_mark_of_the_prompt_decides_where_an_answer_begins),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
