#include "tools/chat_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void chat_stream_init(chat_stream *s,
                      void (*emit)(void *ctx, chat_part part, const char *text, size_t size),
                      void *ctx)
{
    *s = (chat_stream){.emit = emit, .ctx = ctx};
}

void chat_stream_teardown(chat_stream *s)
{
    free(s->line);
    s->line = NULL;
}

static tr_status stream_keep(chat_stream *s, const char *bytes, size_t size, tr_error *err)
{
    if (size == 0)
        return TR_OK; /* an empty line before there is memory for one */
    if (size > CHAT_STREAM_LINE_MAX - s->line_size)
        return tr_fail(err, TR_E_INVALID, "the server sent an event of more than %u bytes",
                       CHAT_STREAM_LINE_MAX);
    if (s->line_size + size > s->line_capacity) {
        size_t capacity = s->line_capacity == 0 ? 4096 : s->line_capacity;
        while (capacity < s->line_size + size)
            capacity *= 2;
        char *line = realloc(s->line, capacity);
        if (line == NULL)
            return tr_fail(err, TR_E_NOMEM, "no memory for an event of %zu bytes", capacity);
        s->line = line;
        s->line_capacity = capacity;
    }
    memcpy(s->line + s->line_size, bytes, size);
    s->line_size += size;
    return TR_OK;
}

static void stream_emit(chat_stream *s, chat_part part, const json_t *text)
{
    if (json_string_length(text) > 0)
        s->emit(s->ctx, part, json_string_value(text), json_string_length(text));
}

static void stream_on_choice(chat_stream *s, const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");
    stream_emit(s, CHAT_REASONING, json_object_get(delta, "reasoning_content"));
    stream_emit(s, CHAT_CONTENT, json_object_get(delta, "content"));

    size_t i;
    const json_t *call;
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call)
    {
        const json_t *function = json_object_get(call, "function");
        stream_emit(s, CHAT_TOOL_CALL, json_object_get(function, "name"));
        stream_emit(s, CHAT_TOOL_CALL, json_object_get(function, "arguments"));
    }
    const char *reason = json_string_value(json_object_get(choice, "finish_reason"));
    if (reason != NULL)
        snprintf(s->finish_reason, sizeof(s->finish_reason), "%s", reason);
}

static void stream_on_error(chat_stream *s, const json_t *error)
{
    const char *message = json_string_value(json_object_get(error, "message"));
    s->has_error = true;
    snprintf(s->error, sizeof(s->error), "%s",
             message != NULL ? message : "the server reports an error without a message");
}

static void stream_on_object(chat_stream *s, const json_t *object)
{
    const json_t *error = json_object_get(object, "error");
    if (error != NULL)
        stream_on_error(s, error);
    const json_t *choice = json_array_get(json_object_get(object, "choices"), 0);
    if (choice != NULL)
        stream_on_choice(s, choice);
    const json_t *tokens = json_object_get(json_object_get(object, "usage"), "completion_tokens");
    if (json_is_integer(tokens))
        s->completion_tokens = json_integer_value(tokens);
}

static tr_status stream_on_line(chat_stream *s, tr_error *err)
{
    static const char prefix[] = "data:";
    size_t size = s->line_size;
    const char *text = s->line;
    s->line_size = 0;
    if (size > 0 && text[size - 1] == '\r')
        size--;
    if (size < sizeof(prefix) - 1 || memcmp(text, prefix, sizeof(prefix) - 1) != 0)
        return TR_OK; /* an empty line, a comment, or a field that we do not need */
    text += sizeof(prefix) - 1;
    size -= sizeof(prefix) - 1;
    if (size > 0 && text[0] == ' ') {
        text++;
        size--;
    }
    if (size == 6 && memcmp(text, "[DONE]", 6) == 0) {
        s->done = true;
        return TR_OK;
    }
    json_error_t error;
    json_t *object = json_loadb(text, size, 0, &error);
    if (object == NULL)
        return tr_fail(err, TR_E_INVALID, "the server sent an event that is not JSON: %s",
                       error.text);
    stream_on_object(s, object);
    json_decref(object);
    return TR_OK;
}

tr_status chat_stream_push(chat_stream *s, const char *bytes, size_t size, tr_error *err)
{
    while (size > 0) {
        const char *end = memchr(bytes, '\n', size);
        size_t piece = end == NULL ? size : (size_t)(end - bytes);
        tr_status status = stream_keep(s, bytes, piece, err);
        if (status == TR_OK && end != NULL)
            status = stream_on_line(s, err);
        if (status != TR_OK)
            return status;
        piece += end != NULL;
        bytes += piece;
        size -= piece;
    }
    return TR_OK;
}

void chat_stream_end(chat_stream *s)
{
    json_t *object = s->line_size == 0 ? NULL : json_loadb(s->line, s->line_size, 0, NULL);
    if (object != NULL)
        stream_on_object(s, object);
    json_decref(object);
    s->line_size = 0;
}
