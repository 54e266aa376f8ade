/* request.h - what a client asks for: POST bodies of /v1/completions and /v1/chat/completions.
 *
 * A field is accepted and then obeyed, or refused by name. Reading a request is a pure function of
 * body and model, so that it may run on any thread. */
#ifndef TR_API_REQUEST_H
#define TR_API_REQUEST_H

#include "actors/client.h"
#include "api/api_error.h"
#include "api/reasoning.h"
#include "api/stop_strings.h"
#include "core/model/chat_template.h"
#include "core/model/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* What the endpoints know of the model that is served. All pointers are borrowed. */
typedef struct {
    const char *name; /* as clients name it */
    const tr_tokenizer *tokenizer;
    const tr_chat_template *chat_template; /* NULL: no chat completions */
    uint32_t context_max;                  /* tokens of prompt and answer together */
    float default_temperature;
    float default_top_p;
    int32_t stop_tokens[TR_STOP_TOKENS_MAX];
    uint32_t stop_tokens_count;
    tr_sentinels sentinels;
} tr_api_model;

typedef enum { TR_API_COMPLETION, TR_API_CHAT } tr_api_kind;

typedef struct {
    tr_api_kind kind;
    bool stream;
    bool include_usage; /* a last event with the usage */
    tr_sampling sampling;
    uint32_t tokens_max; /* tokens to generate, >= 1; prompt and answer fit the context */
    tr_stop_strings stops;
    bool want_logprobs;
    uint32_t top_logprobs;
    int32_t *tokens; /* owns; [tokens_count] prompt, at least one */
    size_t tokens_count;
    tr_channel channel; /* where the answer begins */
    json_t *tools;      /* owns a reference; NULL: tool calls are not looked for */
    bool one_call;      /* parallel_tool_calls is false */
} tr_api_request;

/* Reads a body. On success the caller owns *out and ends it with tr_api_request_free.
 * errors  false and *err: status 400 (404 for another model's name) with the field's path */
bool tr_api_request_read(tr_api_request *out, const tr_api_model *model, tr_api_kind kind,
                         const char *body, size_t size, tr_api_error *err);
void tr_api_request_free(tr_api_request *r);

#endif
