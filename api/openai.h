/* openai.h - OpenAI's JSON of answers: whole bodies and server-sent events. Writing only. */
#ifndef TR_API_OPENAI_H
#define TR_API_OPENAI_H

#include "actors/client.h"
#include "api/answer.h"
#include "api/api_error.h"
#include "api/json_writer.h"
#include "api/request.h"
#include "api/text.h"

#include <stdint.h>

/* What all events of one answer have in common. */
typedef struct {
    tr_api_kind kind;
    bool include_usage;
    const char *model; /* borrows */
    uint64_t serial;   /* unique; the ids are made of it */
    int64_t created;   /* seconds since 1970 */
} tr_openai_head;

typedef struct {
    uint32_t prompt_tokens;
    uint32_t cached_tokens; /* of the prompt tokens: kept from another request */
    uint32_t completion_tokens;
    uint32_t reasoning_tokens; /* of the completion tokens */
} tr_openai_usage;

/* Text of a piece that goes into one event; longer ones are cut (tr_text_cut). */
#define TR_OPENAI_PIECE_MAX 4096

/* A buffer of this size holds any single event below. */
#define TR_OPENAI_EVENT_MAX (96 * 1024)

typedef struct {
    int32_t token;
    float logprob;
    const tr_logprob *top; /* [top_count] */
    uint32_t top_count;
    size_t text_offset; /* bytes of content before this token; for completions */
} tr_openai_logprob;

/* Each writes one event, "data: ...\n\n". Text is at most TR_OPENAI_PIECE_MAX bytes. */
void tr_openai_event_role(tr_json *w, const tr_openai_head *head);
void tr_openai_event_reasoning(tr_json *w, const tr_openai_head *head, const char *text,
                               size_t size);
/* logprob NULL: none; otherwise text may be empty. */
void tr_openai_event_content(tr_json *w, const tr_openai_head *head, const char *text, size_t size,
                             const tr_openai_logprob *logprob, const tr_tokenizer *tokenizer);
void tr_openai_event_call_begin(tr_json *w, const tr_openai_head *head, uint32_t call_index,
                                const char *name, size_t size);
void tr_openai_event_call_arguments(tr_json *w, const tr_openai_head *head, uint32_t call_index,
                                    const char *text, size_t size);
void tr_openai_event_finish(tr_json *w, const tr_openai_head *head, const char *reason);
void tr_openai_event_usage(tr_json *w, const tr_openai_head *head, const tr_openai_usage *usage);
void tr_openai_event_error(tr_json *w, const tr_api_error *err);
void tr_openai_event_done(tr_json *w);

/* A whole answer, collected. */
typedef struct {
    tr_text content;
    tr_text reasoning;
    tr_text calls;              /* JSON of the calls, "{...},{...}" */
    size_t calls_complete_size; /* of calls, up to the end of the last complete call */
    uint32_t calls_count;       /* begun */
    tr_text logprobs[4]; /* JSON members without brackets: chat uses [0]; completions uses tokens,
                            token_logprobs, top_logprobs, text_offset */
} tr_openai_answer;

void tr_openai_answer_free(tr_openai_answer *a);

/* Collects a part of the answer, of any size. */
void tr_openai_answer_add(tr_openai_answer *a, const tr_openai_head *head, tr_part part,
                          const char *text, size_t size);
void tr_openai_answer_add_logprob(tr_openai_answer *a, const tr_openai_head *head,
                                  const tr_openai_logprob *logprob, const tr_tokenizer *tokenizer);

/* The body of an answer that is complete: malloc'ed, [*size]; NULL when there is no memory.
 *
 *   null_content  chat: empty content is null and not "" */
char *tr_openai_answer_body(const tr_openai_answer *a, const tr_openai_head *head,
                            const char *reason, const tr_openai_usage *usage, bool null_content,
                            bool logprobs, size_t *size);

/* The body of GET /v1/models. */
void tr_openai_models(tr_json *w, const tr_api_model *model, int64_t created);

#endif
