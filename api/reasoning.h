/* reasoning.h - which part of an answer a token belongs to: reasoning, content or tool calls.
 *
 * Models that reason mark the parts with special tokens. Working on token ids, nothing is held
 * back and no text that merely looks like a mark is taken for one. */
#ifndef TR_API_REASONING_H
#define TR_API_REASONING_H

#include "api/tool_calls.h"
#include "core/model/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

#define TR_TOOL_SENTINELS_COUNT 5

/* Token ids of the marks, -1 where the tokenizer has none. */
typedef struct {
    int32_t think_start, think_end;
    int32_t tools[TR_TOOL_SENTINELS_COUNT]; /* by tr_tool_sentinel; all or none */
} tr_sentinels;

void tr_sentinels_find(tr_sentinels *s, const tr_tokenizer *tokenizer);

static inline bool tr_sentinels_have_tools(const tr_sentinels *s)
{
    return s->tools[0] >= 0;
}

typedef enum { TR_CHANNEL_REASONING, TR_CHANNEL_CONTENT, TR_CHANNEL_CALLS } tr_channel;

/* Where an answer to this prompt begins: in reasoning when the last mark of the prompt opens it.
 * Earlier turns contain closed pairs, so only the last mark counts. */
tr_channel tr_channel_at_start(const tr_sentinels *s, const int32_t *prompt, size_t count);

/* The channel behind token. A tool call ends reasoning as well (a model may forget to close it),
 * and nothing but calls comes after the first call.
 *
 *   calls  the request wants tool calls; otherwise their marks mean nothing */
tr_channel tr_channel_after(const tr_sentinels *s, tr_channel channel, bool calls, int32_t token);

/* token is any of the marks, also if the tokenizer does not call it special. */
bool tr_sentinels_have(const tr_sentinels *s, int32_t token);

/* True and *out when token is one of the tool marks. */
bool tr_sentinels_tool(const tr_sentinels *s, int32_t token, tr_tool_sentinel *out);

#endif
