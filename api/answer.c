#include "api/answer.h"

#include <assert.h>
#include <string.h>

/* Bytes of a token that are looked at together; tokens are seldom longer than twenty. */
#define PIECE_SIZE 256

/* White space before the content that is held back for a call that may follow. */
#define BLANKS_MAX 256

static void answer_emit(tr_answer *a, tr_part part, const char *text, size_t size)
{
    if (size > 0 || part == TR_PART_CALL_END)
        a->config.emit(a->config.ctx, part, text, size);
}

static void answer_on_unstopped(void *ctx, const char *text, size_t size)
{
    answer_emit(ctx, TR_PART_CONTENT, text, size);
}

static void answer_push_content(tr_answer *a, const char *text, size_t size)
{
    (void)tr_stop_filter_push(&a->stop_filter, text, size, answer_on_unstopped, a);
}

static void answer_flush_blanks(tr_answer *a)
{
    answer_push_content(a, a->blanks.bytes, a->blanks.size);
    a->blanks.size = 0;
}

static void answer_on_content(tr_answer *a, const char *text, size_t size)
{
    if (a->config.tools != NULL && !a->content_begun) {
        size_t blank = 0;
        while (blank < size && memchr(" \t\r\n", text[blank], 4) != NULL)
            blank++;
        if (blank == size && a->blanks.size + size <= BLANKS_MAX) {
            tr_text_append(&a->blanks, text, size);
            return;
        }
        a->content_begun = true;
        answer_flush_blanks(a);
    }
    answer_push_content(a, text, size);
}

static void answer_on_call(void *ctx, tr_call_event event, const char *text, size_t size)
{
    static const tr_part parts[] = {
        [TR_CALL_BEGIN] = TR_PART_CALL_BEGIN,
        [TR_CALL_ARGUMENTS] = TR_PART_CALL_ARGUMENTS,
        [TR_CALL_END] = TR_PART_CALL_END,
    };
    answer_emit(ctx, parts[event], text, size);
}

/* Whole characters of the current channel. */
static void answer_on_text(tr_answer *a, const char *text, size_t size)
{
    if (size == 0)
        return;
    switch (a->channel) {
    case TR_CHANNEL_REASONING:
        answer_emit(a, TR_PART_REASONING, text, size);
        break;
    case TR_CHANNEL_CONTENT:
        answer_on_content(a, text, size);
        break;
    case TR_CHANNEL_CALLS:
        if (a->calls.completed_count == 0)
            tr_text_append(&a->calls_text, text, size);
        tr_tool_calls_text(&a->calls, text, size);
        break;
    }
}

static void answer_push_bytes(tr_answer *a, const char *bytes, size_t size, bool final)
{
    char text[3 * PIECE_SIZE + 12];
    do {
        size_t piece = size < PIECE_SIZE ? size : PIECE_SIZE;
        bool last = final && piece == size;
        size_t text_size = tr_utf8_stream_push(&a->utf8, bytes, piece, last, text, sizeof(text));
        answer_on_text(a, text, text_size);
        bytes += piece;
        size -= piece;
    } while (size > 0);
}

/* The channel ends here; what was held back belongs to it. */
static void answer_end_channel(tr_answer *a)
{
    answer_push_bytes(a, "", 0, true);
    if (a->channel == TR_CHANNEL_CONTENT)
        tr_stop_filter_end(&a->stop_filter, answer_on_unstopped, a);
}

static void answer_on_mark(tr_answer *a, int32_t token)
{
    bool calls = a->config.tools != NULL;
    tr_channel next = tr_channel_after(a->config.sentinels, a->channel, calls, token);
    if (next != a->channel)
        answer_end_channel(a);
    a->channel = next;

    tr_tool_sentinel sentinel;
    if (a->channel != TR_CHANNEL_CALLS || !tr_sentinels_tool(a->config.sentinels, token, &sentinel))
        return; /* special tokens are not printed */
    if (a->calls.completed_count == 0) {
        const char *bytes;
        size_t size;
        tr_tokenizer_token_bytes(a->config.tokenizer, token, &bytes, &size);
        tr_text_append(&a->calls_text, bytes, size);
    }
    answer_push_bytes(a, "", 0, true); /* a character does not reach over a sentinel */
    tr_tool_calls_sentinel(&a->calls, sentinel);
}

void tr_answer_init(tr_answer *a, const tr_answer_config *config)
{
    *a = (tr_answer){.config = *config, .channel = config->channel};
    if (config->sentinels == NULL)
        a->channel = TR_CHANNEL_CONTENT;
    tr_stop_filter_init(&a->stop_filter, config->stops);
    tr_tool_calls_init(&a->calls, config->tools, answer_on_call, a);
}

void tr_answer_teardown(tr_answer *a)
{
    tr_tool_calls_teardown(&a->calls);
    tr_text_free(&a->blanks);
    tr_text_free(&a->calls_text);
}

bool tr_answer_token(tr_answer *a, int32_t token)
{
    if (a->channel == TR_CHANNEL_REASONING)
        a->reasoning_tokens++;
    if (a->config.sentinels != NULL && tr_sentinels_have(a->config.sentinels, token)) {
        answer_on_mark(a, token);
    } else if (!tr_tokenizer_is_special(a->config.tokenizer, token)) {
        const char *bytes;
        size_t size;
        tr_tokenizer_token_bytes(a->config.tokenizer, token, &bytes, &size);
        answer_push_bytes(a, bytes, size, false);
    }
    return a->stop_filter.matched || (a->config.one_call && a->calls.completed_count > 0);
}

void tr_answer_end(tr_answer *a)
{
    answer_end_channel(a);
    bool calls_count =
        a->calls.completed_count > 0 || (a->calls.begun_count > 0 && a->config.begun_calls_are_out);
    if (calls_count || a->stop_filter.matched)
        return;
    /* No call after all: white space and whatever looked like one are content. */
    answer_flush_blanks(a);
    answer_emit(a, TR_PART_CONTENT, a->calls_text.bytes, a->calls_text.size);
    tr_stop_filter_end(&a->stop_filter, answer_on_unstopped, a);
}

bool tr_answer_has_calls(const tr_answer *a)
{
    return a->calls.completed_count > 0;
}
