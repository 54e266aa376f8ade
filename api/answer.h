/* answer.h - from generated tokens to the parts of an answer: reasoning, content, tool calls.
 *
 *   token -> channel -> bytes -> whole characters -+-> reasoning
 *                                                  +-> stop strings -> content
 *                                                  '-> tool calls
 *
 * Knows nothing of HTTP or JSON events, waits for nothing, and does not allocate per token. */
#ifndef TR_API_ANSWER_H
#define TR_API_ANSWER_H

#include "api/reasoning.h"
#include "api/stop_strings.h"
#include "api/tool_calls.h"
#include "core/model/tokenizer.h"

typedef enum {
    TR_PART_REASONING,
    TR_PART_CONTENT,
    TR_PART_CALL_BEGIN,     /* text: the function's name */
    TR_PART_CALL_ARGUMENTS, /* text: a piece of the arguments' JSON */
    TR_PART_CALL_END        /* the call that began last is complete; no text */
} tr_part;

/* A part is never empty but CALL_END, consists of whole UTF-8 characters, and is borrowed for the
 * call. */
typedef void (*tr_answer_emit)(void *ctx, tr_part part, const char *text, size_t size);

typedef struct {
    const tr_tokenizer *tokenizer;
    const tr_sentinels *sentinels; /* NULL: a plain text, all of it is content */
    tr_channel channel;            /* of the first token; ignored without sentinels */
    const tr_stop_strings *stops;
    const json_t *tools;      /* the request's tools; NULL: tool calls are not looked for */
    bool one_call;            /* end after the first complete call */
    bool begun_calls_are_out; /* what was emitted for a call that is never completed cannot be
                                 taken back; false: it can, and its text becomes content */
    tr_answer_emit emit;
    void *ctx;
} tr_answer_config;

typedef struct {
    tr_answer_config config; /* pointers are borrowed and outlive the answer */
    tr_channel channel;
    tr_utf8_stream utf8;
    tr_stop_filter stop_filter;
    tr_tool_calls calls;
    tr_text blanks; /* white space before the content, dropped if a call comes first */
    bool content_begun;
    tr_text calls_text;        /* what was written since the first call, until one is complete */
    uint32_t reasoning_tokens; /* counted while in TR_CHANNEL_REASONING, its end included */
} tr_answer;

void tr_answer_init(tr_answer *a, const tr_answer_config *config);
void tr_answer_teardown(tr_answer *a);

/* Takes a token. Returns true when the answer is over, whatever the model would still write: a
 * stop string is complete, or the one call that was wanted. */
bool tr_answer_token(tr_answer *a, int32_t token);

/* The last token has been taken (also after true from tr_answer_token): passes on what was held
 * back. */
void tr_answer_end(tr_answer *a);

/* There is at least one complete tool call. */
bool tr_answer_has_calls(const tr_answer *a);

#endif
