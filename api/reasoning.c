#include "api/reasoning.h"

void tr_sentinels_find(tr_sentinels *s, const tr_tokenizer *tokenizer)
{
    static const char *const names[TR_TOOL_SENTINELS_COUNT] = {
        [TR_SENTINEL_CALL_START] = "<|tool_call:start|>",
        [TR_SENTINEL_CALL_END] = "<|tool_call:end|>",
        [TR_SENTINEL_ARG_START] = "<|tool_arg:start|>",
        [TR_SENTINEL_ARG_VALUE] = "<|tool_arg:value|>",
        [TR_SENTINEL_ARG_END] = "<|tool_arg:end|>",
    };
    bool complete = true;
    for (int i = 0; i < TR_TOOL_SENTINELS_COUNT; i++) {
        s->tools[i] = tr_tokenizer_find(tokenizer, names[i]);
        complete = complete && s->tools[i] >= 0;
    }
    for (int i = 0; i < TR_TOOL_SENTINELS_COUNT && !complete; i++)
        s->tools[i] = -1;
    s->think_start = tr_tokenizer_find(tokenizer, "<|think:start|>");
    s->think_end = tr_tokenizer_find(tokenizer, "<|think:end|>");
    if (s->think_start < 0 || s->think_end < 0)
        s->think_start = s->think_end = -1;
}

tr_channel tr_channel_at_start(const tr_sentinels *s, const int32_t *prompt, size_t count)
{
    while (s->think_start >= 0 && count-- > 0) {
        if (prompt[count] == s->think_start)
            return TR_CHANNEL_REASONING;
        if (prompt[count] == s->think_end)
            break;
    }
    return TR_CHANNEL_CONTENT;
}

tr_channel tr_channel_after(const tr_sentinels *s, tr_channel channel, bool calls, int32_t token)
{
    if (token < 0 || channel == TR_CHANNEL_CALLS)
        return channel;
    if (calls && token == s->tools[TR_SENTINEL_CALL_START])
        return TR_CHANNEL_CALLS;
    if (token == s->think_start)
        return TR_CHANNEL_REASONING;
    if (token == s->think_end)
        return TR_CHANNEL_CONTENT;
    return channel;
}

bool tr_sentinels_tool(const tr_sentinels *s, int32_t token, tr_tool_sentinel *out)
{
    for (int i = 0; i < TR_TOOL_SENTINELS_COUNT; i++) {
        if (token >= 0 && s->tools[i] == token) {
            *out = (tr_tool_sentinel)i;
            return true;
        }
    }
    return false;
}

bool tr_sentinels_have(const tr_sentinels *s, int32_t token)
{
    tr_tool_sentinel sentinel;
    return token >= 0 && (token == s->think_start || token == s->think_end ||
                          tr_sentinels_tool(s, token, &sentinel));
}
