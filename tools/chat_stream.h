/* chat_stream.h - reads the server-sent events of a chat completion, as they come in any pieces.
 *
 * A body that is no stream (an error object) is kept and understood at the end. */
#ifndef TR_TOOLS_CHAT_STREAM_H
#define TR_TOOLS_CHAT_STREAM_H

#include "core/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define CHAT_STREAM_LINE_MAX (1u << 20) /* bytes of one event, or of an error body */

typedef enum { CHAT_REASONING, CHAT_CONTENT, CHAT_TOOL_CALL } chat_part;

typedef struct {
    /* A piece of the answer, whole UTF-8 characters. Borrowed for the call. */
    void (*emit)(void *ctx, chat_part part, const char *text, size_t size);
    void *ctx;

    bool done;              /* "[DONE]" has come */
    bool has_error;         /* the server said an error, in error */
    char error[240];        /* one sentence */
    char finish_reason[24]; /* "" while there is none */
    long long completion_tokens;

    /* private */
    char *line; /* owns; [line_size] the part of a line that has come */
    size_t line_size;
    size_t line_capacity;
} chat_stream;

void chat_stream_init(chat_stream *s,
                      void (*emit)(void *ctx, chat_part part, const char *text, size_t size),
                      void *ctx);
void chat_stream_teardown(chat_stream *s);

/* errors  TR_E_INVALID: a line is too long or an event is not JSON; TR_E_NOMEM */
tr_status chat_stream_push(chat_stream *s, const char *bytes, size_t size, tr_error *err);

/* The body is complete. Looks at what stands behind the last line end: an error object. */
void chat_stream_end(chat_stream *s);

#endif
