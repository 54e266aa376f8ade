#include "api/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fixed text around the content of a whole answer. */
#define ANSWER_FRAME_MAX 4096

static void openai_id(tr_json *w, const tr_openai_head *head)
{
    char id[48];
    snprintf(id, sizeof(id), "%s-%016llx", head->kind == TR_API_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)head->serial);
    tr_json_pair_string(w, "id", id);
}

static void openai_begin(tr_json *w, const tr_openai_head *head, const char *object)
{
    tr_json_object_begin(w);
    openai_id(w, head);
    tr_json_pair_string(w, "object", object);
    tr_json_pair_int(w, "created", head->created);
    tr_json_pair_string(w, "model", head->model);
}

static void openai_event_begin(tr_json *w, const tr_openai_head *head)
{
    tr_json_raw(w, "data: ", 6);
    w->comma = false;
    openai_begin(w, head, head->kind == TR_API_CHAT ? "chat.completion.chunk" : "text_completion");
    tr_json_key(w, "choices");
    tr_json_array_begin(w);
}

static void openai_choice_begin(tr_json *w, const tr_openai_head *head)
{
    tr_json_object_begin(w);
    tr_json_pair_int(w, "index", 0);
    if (head->kind == TR_API_CHAT) {
        tr_json_key(w, "delta");
        tr_json_object_begin(w);
    }
}

static void openai_choice_end(tr_json *w, const char *reason)
{
    tr_json_key(w, "finish_reason");
    if (reason != NULL)
        tr_json_string(w, reason);
    else
        tr_json_null(w);
    tr_json_object_end(w);
}

static void openai_event_end(tr_json *w, const tr_openai_head *head)
{
    tr_json_array_end(w);
    if (head->include_usage) {
        tr_json_key(w, "usage");
        tr_json_null(w);
    }
    tr_json_object_end(w);
    tr_json_raw(w, "\n\n", 2);
}

static void openai_no_logprobs(tr_json *w)
{
    tr_json_key(w, "logprobs");
    tr_json_null(w);
}

static void openai_token_text(tr_json *w, const tr_tokenizer *tokenizer, int32_t token)
{
    const char *bytes;
    size_t size;
    tr_tokenizer_token_bytes(tokenizer, token, &bytes, &size);
    tr_json_text(w, bytes, size);
}

/* A token's text may be part of a character; its bytes are exact. */
static void openai_chat_token(tr_json *w, const tr_tokenizer *tokenizer, int32_t token,
                              float logprob)
{
    const char *bytes;
    size_t size;
    tr_tokenizer_token_bytes(tokenizer, token, &bytes, &size);
    tr_json_key(w, "token");
    tr_json_text(w, bytes, size);
    tr_json_key(w, "logprob");
    tr_json_number(w, logprob);
    tr_json_key(w, "bytes");
    tr_json_array_begin(w);
    for (size_t i = 0; i < size; i++)
        tr_json_int(w, (unsigned char)bytes[i]);
    tr_json_array_end(w);
}

static void openai_chat_logprob(tr_json *w, const tr_openai_logprob *logprob,
                                const tr_tokenizer *tokenizer)
{
    tr_json_object_begin(w);
    openai_chat_token(w, tokenizer, logprob->token, logprob->logprob);
    tr_json_key(w, "top_logprobs");
    tr_json_array_begin(w);
    for (uint32_t i = 0; i < logprob->top_count; i++) {
        tr_json_object_begin(w);
        openai_chat_token(w, tokenizer, logprob->top[i].token, logprob->top[i].logprob);
        tr_json_object_end(w);
    }
    tr_json_array_end(w);
    tr_json_object_end(w);
}

/* One member of each of the four arrays of a completion's logprobs. */
enum { TOKENS, TOKEN_LOGPROBS, TOP_LOGPROBS, TEXT_OFFSET };

static const char *const logprob_arrays[] = {
    [TOKENS] = "tokens",
    [TOKEN_LOGPROBS] = "token_logprobs",
    [TOP_LOGPROBS] = "top_logprobs",
    [TEXT_OFFSET] = "text_offset",
};

static void openai_completion_logprob(tr_json *w, int array, const tr_openai_logprob *logprob,
                                      const tr_tokenizer *tokenizer)
{
    switch (array) {
    case TOKENS:
        openai_token_text(w, tokenizer, logprob->token);
        break;
    case TOKEN_LOGPROBS:
        tr_json_number(w, logprob->logprob);
        break;
    case TOP_LOGPROBS:
        tr_json_object_begin(w);
        for (uint32_t i = 0; i < logprob->top_count; i++) {
            openai_token_text(w, tokenizer, logprob->top[i].token);
            tr_json_raw(w, ":", 1);
            w->comma = false;
            tr_json_number(w, logprob->top[i].logprob);
        }
        tr_json_object_end(w);
        break;
    case TEXT_OFFSET:
        tr_json_int(w, (int64_t)logprob->text_offset);
        break;
    }
}

static void openai_logprobs(tr_json *w, const tr_openai_head *head,
                            const tr_openai_logprob *logprob, const tr_tokenizer *tokenizer)
{
    tr_json_key(w, "logprobs");
    tr_json_object_begin(w);
    if (head->kind == TR_API_CHAT) {
        tr_json_key(w, "content");
        tr_json_array_begin(w);
        openai_chat_logprob(w, logprob, tokenizer);
        tr_json_array_end(w);
    } else {
        for (int i = TOKENS; i <= TEXT_OFFSET; i++) {
            tr_json_key(w, logprob_arrays[i]);
            tr_json_array_begin(w);
            openai_completion_logprob(w, i, logprob, tokenizer);
            tr_json_array_end(w);
        }
    }
    tr_json_object_end(w);
}

static void openai_usage(tr_json *w, const tr_openai_head *head, const tr_openai_usage *usage)
{
    tr_json_key(w, "usage");
    tr_json_object_begin(w);
    tr_json_pair_int(w, "prompt_tokens", usage->prompt_tokens);
    tr_json_pair_int(w, "completion_tokens", usage->completion_tokens);
    tr_json_pair_int(w, "total_tokens",
                     (int64_t)usage->prompt_tokens + (int64_t)usage->completion_tokens);
    tr_json_key(w, "prompt_tokens_details");
    tr_json_object_begin(w);
    tr_json_pair_int(w, "cached_tokens", usage->cached_tokens);
    tr_json_object_end(w);
    if (head->kind == TR_API_CHAT) {
        tr_json_key(w, "completion_tokens_details");
        tr_json_object_begin(w);
        tr_json_pair_int(w, "reasoning_tokens", usage->reasoning_tokens);
        tr_json_object_end(w);
    }
    tr_json_object_end(w);
}

/* An event whose delta has one text. */
static void openai_event_delta(tr_json *w, const tr_openai_head *head, const char *key,
                               const char *text, size_t size)
{
    openai_event_begin(w, head);
    openai_choice_begin(w, head);
    tr_json_key(w, key);
    tr_json_text(w, text, size);
    tr_json_object_end(w); /* delta */
    openai_no_logprobs(w);
    openai_choice_end(w, NULL);
    openai_event_end(w, head);
}

void tr_openai_event_role(tr_json *w, const tr_openai_head *head)
{
    openai_event_begin(w, head);
    openai_choice_begin(w, head);
    tr_json_pair_string(w, "role", "assistant");
    tr_json_pair_string(w, "content", "");
    tr_json_object_end(w);
    openai_no_logprobs(w);
    openai_choice_end(w, NULL);
    openai_event_end(w, head);
}

void tr_openai_event_reasoning(tr_json *w, const tr_openai_head *head, const char *text,
                               size_t size)
{
    openai_event_delta(w, head, "reasoning_content", text, size);
}

void tr_openai_event_content(tr_json *w, const tr_openai_head *head, const char *text, size_t size,
                             const tr_openai_logprob *logprob, const tr_tokenizer *tokenizer)
{
    openai_event_begin(w, head);
    openai_choice_begin(w, head);
    tr_json_key(w, head->kind == TR_API_CHAT ? "content" : "text");
    tr_json_text(w, text, size);
    if (head->kind == TR_API_CHAT)
        tr_json_object_end(w);
    if (logprob != NULL)
        openai_logprobs(w, head, logprob, tokenizer);
    else
        openai_no_logprobs(w);
    openai_choice_end(w, NULL);
    openai_event_end(w, head);
}

static void openai_call_id(tr_json *w, const tr_openai_head *head, uint32_t call_index)
{
    char id[48];
    snprintf(id, sizeof(id), "call_%016llx%02u", (unsigned long long)head->serial, call_index);
    tr_json_pair_string(w, "id", id);
    tr_json_pair_string(w, "type", "function");
}

static void openai_event_call(tr_json *w, const tr_openai_head *head, uint32_t call_index,
                              const char *name, size_t name_size, const char *arguments,
                              size_t arguments_size)
{
    openai_event_begin(w, head);
    openai_choice_begin(w, head);
    tr_json_key(w, "tool_calls");
    tr_json_array_begin(w);
    tr_json_object_begin(w);
    tr_json_pair_int(w, "index", call_index);
    if (name != NULL)
        openai_call_id(w, head, call_index);
    tr_json_key(w, "function");
    tr_json_object_begin(w);
    if (name != NULL) {
        tr_json_key(w, "name");
        tr_json_text(w, name, name_size);
    }
    tr_json_key(w, "arguments");
    tr_json_text(w, arguments, arguments_size);
    tr_json_object_end(w);
    tr_json_object_end(w);
    tr_json_array_end(w);
    tr_json_object_end(w);
    openai_no_logprobs(w);
    openai_choice_end(w, NULL);
    openai_event_end(w, head);
}

void tr_openai_event_call_begin(tr_json *w, const tr_openai_head *head, uint32_t call_index,
                                const char *name, size_t size)
{
    openai_event_call(w, head, call_index, name, size, "", 0);
}

void tr_openai_event_call_arguments(tr_json *w, const tr_openai_head *head, uint32_t call_index,
                                    const char *text, size_t size)
{
    openai_event_call(w, head, call_index, NULL, 0, text, size);
}

void tr_openai_event_finish(tr_json *w, const tr_openai_head *head, const char *reason)
{
    openai_event_begin(w, head);
    openai_choice_begin(w, head);
    if (head->kind == TR_API_CHAT)
        tr_json_object_end(w);
    else
        tr_json_pair_string(w, "text", "");
    openai_no_logprobs(w);
    openai_choice_end(w, reason);
    openai_event_end(w, head);
}

void tr_openai_event_usage(tr_json *w, const tr_openai_head *head, const tr_openai_usage *usage)
{
    openai_event_begin(w, head);
    tr_json_array_end(w);
    openai_usage(w, head, usage);
    tr_json_object_end(w);
    tr_json_raw(w, "\n\n", 2);
}

void tr_openai_event_error(tr_json *w, const tr_api_error *err)
{
    tr_json_raw(w, "data: ", 6);
    w->comma = false;
    tr_api_error_write(w, err);
    tr_json_raw(w, "\n\n", 2);
}

void tr_openai_event_done(tr_json *w)
{
    static const char done[] = "data: [DONE]\n\n";
    tr_json_raw(w, done, sizeof(done) - 1);
}

void tr_openai_answer_free(tr_openai_answer *a)
{
    tr_text_free(&a->content);
    tr_text_free(&a->reasoning);
    tr_text_free(&a->calls);
    for (size_t i = 0; i < sizeof(a->logprobs) / sizeof(a->logprobs[0]); i++)
        tr_text_free(&a->logprobs[i]);
}

static void openai_append_escaped(tr_text *t, const char *text, size_t size)
{
    char out[TR_JSON_ESCAPED_MAX(256)];
    while (size > 0) {
        tr_json w;
        size_t piece = tr_text_cut(text, size, 256);
        tr_json_init(&w, out, sizeof(out));
        tr_json_escaped(&w, text, piece);
        tr_text_append(t, out, w.size);
        text += piece;
        size -= piece;
    }
}

static void openai_append_string(tr_text *t, const char *text)
{
    tr_text_append(t, text, strlen(text));
}

/* {"id":...,"type":"function","function":{"name":"NAME","arguments":"   and later   "}} */
static void openai_answer_begin_call(tr_openai_answer *a, const tr_openai_head *head,
                                     const char *name, size_t size)
{
    char out[160];
    tr_json w;
    a->calls.size = a->calls_complete_size; /* a call that was never completed is forgotten */
    tr_json_init(&w, out, sizeof(out));
    tr_json_object_begin(&w);
    openai_call_id(&w, head, a->calls_count++);
    if (a->calls.size > 0)
        openai_append_string(&a->calls, ",");
    tr_text_append(&a->calls, out, w.size);
    openai_append_string(&a->calls, ",\"function\":{\"name\":\"");
    openai_append_escaped(&a->calls, name, size);
    openai_append_string(&a->calls, "\",\"arguments\":\"");
}

void tr_openai_answer_add(tr_openai_answer *a, const tr_openai_head *head, tr_part part,
                          const char *text, size_t size)
{
    switch (part) {
    case TR_PART_REASONING:
        tr_text_append(&a->reasoning, text, size);
        break;
    case TR_PART_CONTENT:
        tr_text_append(&a->content, text, size);
        break;
    case TR_PART_CALL_BEGIN:
        openai_answer_begin_call(a, head, text, size);
        break;
    case TR_PART_CALL_ARGUMENTS:
        openai_append_escaped(&a->calls, text, size);
        break;
    case TR_PART_CALL_END:
        openai_append_string(&a->calls, "\"}}");
        a->calls_complete_size = a->calls.size;
        break;
    }
}

void tr_openai_answer_add_logprob(tr_openai_answer *a, const tr_openai_head *head,
                                  const tr_openai_logprob *logprob, const tr_tokenizer *tokenizer)
{
    static _Thread_local char out[TR_OPENAI_EVENT_MAX];
    int arrays = head->kind == TR_API_CHAT ? 1 : 4;
    for (int i = 0; i < arrays; i++) {
        tr_json w;
        tr_json_init(&w, out, sizeof(out));
        w.comma = a->logprobs[i].size > 0;
        if (head->kind == TR_API_CHAT)
            openai_chat_logprob(&w, logprob, tokenizer);
        else
            openai_completion_logprob(&w, i, logprob, tokenizer);
        if (w.overflow)
            a->logprobs[i].failed = true;
        tr_text_append(&a->logprobs[i], out, w.size);
    }
}

static void openai_answer_logprobs(tr_json *w, const tr_openai_answer *a,
                                   const tr_openai_head *head)
{
    tr_json_key(w, "logprobs");
    tr_json_object_begin(w);
    for (int i = 0; i < (head->kind == TR_API_CHAT ? 1 : 4); i++) {
        tr_json_key(w, head->kind == TR_API_CHAT ? "content" : logprob_arrays[i]);
        tr_json_array_begin(w);
        tr_json_raw(w, a->logprobs[i].bytes, a->logprobs[i].size);
        tr_json_array_end(w);
    }
    tr_json_object_end(w);
}

static void openai_answer_message(tr_json *w, const tr_openai_answer *a, bool null_content)
{
    tr_json_key(w, "message");
    tr_json_object_begin(w);
    tr_json_pair_string(w, "role", "assistant");
    tr_json_key(w, "content");
    if (a->content.size == 0 && null_content)
        tr_json_null(w);
    else
        tr_json_text(w, a->content.bytes, a->content.size);
    if (a->reasoning.size > 0) {
        tr_json_key(w, "reasoning_content");
        tr_json_text(w, a->reasoning.bytes, a->reasoning.size);
    }
    if (a->calls_complete_size > 0) {
        tr_json_key(w, "tool_calls");
        tr_json_array_begin(w);
        tr_json_raw(w, a->calls.bytes, a->calls_complete_size);
        tr_json_array_end(w);
    }
    tr_json_object_end(w);
}

static void openai_answer_write(tr_json *w, const tr_openai_answer *a, const tr_openai_head *head,
                                const char *reason, const tr_openai_usage *usage, bool null_content,
                                bool logprobs)
{
    openai_begin(w, head, head->kind == TR_API_CHAT ? "chat.completion" : "text_completion");
    tr_json_key(w, "choices");
    tr_json_array_begin(w);
    tr_json_object_begin(w);
    tr_json_pair_int(w, "index", 0);
    if (head->kind == TR_API_CHAT) {
        openai_answer_message(w, a, null_content);
    } else {
        tr_json_key(w, "text");
        tr_json_text(w, a->content.bytes, a->content.size);
    }
    if (logprobs)
        openai_answer_logprobs(w, a, head);
    else
        openai_no_logprobs(w);
    openai_choice_end(w, reason);
    tr_json_array_end(w);
    openai_usage(w, head, usage);
    tr_json_object_end(w);
}

char *tr_openai_answer_body(const tr_openai_answer *a, const tr_openai_head *head,
                            const char *reason, const tr_openai_usage *usage, bool null_content,
                            bool logprobs, size_t *size)
{
    bool failed = a->content.failed || a->reasoning.failed || a->calls.failed;
    size_t capacity = ANSWER_FRAME_MAX + TR_JSON_ESCAPED_MAX(strlen(head->model)) +
                      TR_JSON_ESCAPED_MAX(a->content.size) +
                      TR_JSON_ESCAPED_MAX(a->reasoning.size) + a->calls.size;
    for (size_t i = 0; i < sizeof(a->logprobs) / sizeof(a->logprobs[0]); i++) {
        failed = failed || a->logprobs[i].failed;
        capacity += a->logprobs[i].size;
    }
    char *body = failed ? NULL : malloc(capacity);
    if (body == NULL)
        return NULL;
    tr_json w;
    tr_json_init(&w, body, capacity);
    openai_answer_write(&w, a, head, reason, usage, null_content, logprobs);
    if (w.overflow) {
        free(body);
        return NULL;
    }
    *size = w.size;
    return body;
}

void tr_openai_models(tr_json *w, const tr_api_model *model, int64_t created)
{
    tr_json_object_begin(w);
    tr_json_pair_string(w, "object", "list");
    tr_json_key(w, "data");
    tr_json_array_begin(w);
    tr_json_object_begin(w);
    tr_json_pair_string(w, "id", model->name);
    tr_json_pair_string(w, "object", "model");
    tr_json_pair_int(w, "created", created);
    tr_json_pair_string(w, "owned_by", "troupe");
    tr_json_pair_int(w, "max_model_len", model->context_max);
    tr_json_object_end(w);
    tr_json_array_end(w);
    tr_json_object_end(w);
}
