/* exchange.c
 *
 *   PREPARING --read--> RUNNING --first token--> STREAMING --last event--> (freed)
 *       |                  |  '--- not streamed: collected, one answer ---'
 *       |                  '------ failed before the first token: a status and an error object
 *       '-- refused, or the client left meanwhile: freed when the thread pool is done
 *
 * An exchange whose client has left, or whose answer is complete early (stop string), cancels its
 * request and forgets it: events of unknown requests are dropped. */
#include "api/exchange.h"

#include "api/answer.h"
#include "api/openai.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONTENT_TYPE_JSON "application/json"

/* When the queue is full, a place comes free within about this time. */
#define RETRY_QUEUE_S 1
/* When a node is gone: time of a restart. */
#define RETRY_PEER_S 5

struct tr_exchange {
    tr_exchanges *all;
    tr_exchange *next;
    tr_exchange **link;        /* what points to this one */
    tr_connection *connection; /* NULL when the client has left during PREPARING */
    uv_work_t work;

    char *body; /* owns, while PREPARING */
    size_t body_size;
    size_t body_counted; /* of *all->bodies_size, also when the client has left */
    bool read_ok;
    tr_api_request request;
    tr_api_error error;

    uint64_t number; /* of the request at the client; 0 while PREPARING */
    uint64_t deadline_ms;
    uint64_t last_ns; /* when the request came, later when its last token came */
    bool streaming;   /* the head of a stream was sent */
    bool slow;        /* an event did not fit the connection's queue */
    tr_answer answer;
    tr_openai_head head;
    tr_openai_answer collected; /* not streamed; streamed with logprobs: content of one token */
    uint32_t tokens_count;      /* generated */
    uint32_t cached_count;      /* of the prompt; known at the end */
    uint32_t calls_count;       /* begun */
    size_t content_size;        /* of the whole answer so far */
};

void tr_respond_error(tr_connection *c, const tr_api_error *err)
{
    char *body = malloc(TR_API_ERROR_JSON_MAX);
    tr_json w;
    tr_json_init(&w, body, body == NULL ? 0 : TR_API_ERROR_JSON_MAX);
    tr_api_error_write(&w, err);
    tr_connection_respond(c,
                          &(tr_response_head){.status = err->status,
                                              .content_type = CONTENT_TYPE_JSON,
                                              .retry_after_s = err->retry_after_s},
                          body, w.overflow ? 0 : w.size);
}

static void exchange_free_body(tr_exchange *x)
{
    assert(*x->all->bodies_size >= x->body_counted);
    *x->all->bodies_size -= x->body_counted;
    x->body_counted = 0;
    free(x->body);
    x->body = NULL;
}

static void exchange_free(tr_exchange *x)
{
    *x->link = x->next;
    if (x->next != NULL)
        x->next->link = x->link;
    x->all->count--;
    tr_gauge_add(x->all->metrics->in_flight, -1);
    exchange_free_body(x);
    if (x->read_ok)
        tr_api_request_free(&x->request);
    tr_answer_teardown(&x->answer);
    tr_openai_answer_free(&x->collected);
    free(x);
}

/* The answer is over (the connection lives on). */
static void exchange_detach(tr_exchange *x)
{
    tr_connection_set_user(x->connection, NULL);
    x->connection = NULL;
}

/* -- streaming -- */

/* All exchanges of a thread write their events here, one after the other. */
static _Thread_local char exchange_event[TR_OPENAI_EVENT_MAX];

static tr_json exchange_writer(void)
{
    tr_json w;
    tr_json_init(&w, exchange_event, sizeof(exchange_event));
    return w;
}

static void exchange_send(tr_exchange *x, const tr_json *w)
{
    if (x->slow)
        return;
    /* An event that is too large for the buffer ends the stream as if its reader were too slow. */
    x->slow = w->overflow || tr_connection_stream_write(x->connection, w->out, w->size) != TR_OK;
}

static void exchange_begin_stream(tr_exchange *x)
{
    if (x->streaming)
        return;
    x->streaming = true;
    tr_connection_stream_begin(x->connection, "text/event-stream; charset=utf-8");
    if (x->head.kind == TR_API_CHAT) {
        tr_json w = exchange_writer();
        tr_openai_event_role(&w, &x->head);
        exchange_send(x, &w);
    }
}

static void exchange_send_piece(tr_exchange *x, tr_part part, const char *text, size_t size)
{
    tr_json w = exchange_writer();
    switch (part) {
    case TR_PART_REASONING:
        tr_openai_event_reasoning(&w, &x->head, text, size);
        break;
    case TR_PART_CONTENT:
        tr_openai_event_content(&w, &x->head, text, size, NULL, NULL);
        break;
    case TR_PART_CALL_BEGIN:
        tr_openai_event_call_begin(&w, &x->head, x->calls_count++, text, size);
        break;
    case TR_PART_CALL_ARGUMENTS:
        tr_openai_event_call_arguments(&w, &x->head, x->calls_count - 1, text, size);
        break;
    case TR_PART_CALL_END:
        return;
    }
    exchange_send(x, &w);
}

static void exchange_send_part(tr_exchange *x, tr_part part, const char *text, size_t size)
{
    exchange_begin_stream(x);
    do {
        size_t piece = tr_text_cut(text, size, TR_OPENAI_PIECE_MAX);
        exchange_send_piece(x, part, text, piece);
        text += piece;
        size -= piece;
    } while (size > 0);
}

/* tr_answer_emit */
static void exchange_on_part(void *ctx, tr_part part, const char *text, size_t size)
{
    tr_exchange *x = ctx;
    if (part == TR_PART_CONTENT)
        x->content_size += size;
    /* With logprobs, the content of a token goes out together with its logprob. */
    bool later = x->request.want_logprobs && part == TR_PART_CONTENT;
    if (x->request.stream && !later)
        exchange_send_part(x, part, text, size);
    else
        tr_openai_answer_add(&x->collected, &x->head, part, text, size);
}

/* Sends the content that exchange_on_part kept, cut only if it is long. */
static void exchange_send_content(tr_exchange *x, const tr_openai_logprob *logprob)
{
    const char *text = x->collected.content.bytes;
    size_t size = x->collected.content.size;
    exchange_begin_stream(x);
    while (size > TR_OPENAI_PIECE_MAX) {
        size_t piece = tr_text_cut(text, size, TR_OPENAI_PIECE_MAX);
        exchange_send_piece(x, TR_PART_CONTENT, text, piece);
        text += piece;
        size -= piece;
    }
    tr_json w = exchange_writer();
    tr_openai_event_content(&w, &x->head, text, size, logprob, x->all->model->tokenizer);
    exchange_send(x, &w);
    x->collected.content.size = 0;
}

/* -- the end of an answer -- */

static tr_openai_usage exchange_usage(const tr_exchange *x)
{
    return (tr_openai_usage){.prompt_tokens = (uint32_t)x->request.tokens_count,
                             .cached_tokens = x->cached_count,
                             .completion_tokens = x->tokens_count,
                             .reasoning_tokens = x->answer.reasoning_tokens};
}

static void exchange_abort_slow(tr_exchange *x)
{
    tr_connection *c = x->connection;
    tr_counter_add(x->all->metrics->canceled, 1);
    tr_client_cancel(x->all->client, x->number);
    exchange_detach(x);
    tr_connection_abort(c);
    exchange_free(x);
}

static void exchange_fail(tr_exchange *x, const tr_api_error *err)
{
    tr_connection *c = x->connection;
    if (!x->streaming) {
        tr_counter_add(x->all->metrics->refused, 1);
        exchange_detach(x);
        tr_respond_error(c, err);
        exchange_free(x);
        return;
    }
    tr_json w = exchange_writer();
    tr_openai_event_error(&w, err);
    exchange_send(x, &w);
    if (x->slow) {
        exchange_abort_slow(x);
        return;
    }
    exchange_detach(x);
    tr_connection_stream_end(c);
    exchange_free(x);
}

static void exchange_finish_stream(tr_exchange *x, const char *reason)
{
    if (x->collected.content.size > 0)
        exchange_send_content(x, NULL);
    exchange_begin_stream(x); /* an answer without any text */
    tr_json w = exchange_writer();
    tr_openai_event_finish(&w, &x->head, reason);
    if (x->head.include_usage) {
        tr_openai_usage usage = exchange_usage(x);
        tr_openai_event_usage(&w, &x->head, &usage);
    }
    tr_openai_event_done(&w);
    exchange_send(x, &w);
    if (x->slow) {
        exchange_abort_slow(x);
        return;
    }
    tr_connection *c = x->connection;
    exchange_detach(x);
    tr_connection_stream_end(c);
    exchange_free(x);
}

static void exchange_finish_whole(tr_exchange *x, const char *reason)
{
    size_t size = 0;
    tr_openai_usage usage = exchange_usage(x);
    bool null_content = tr_answer_has_calls(&x->answer) || x->all->model->sentinels.think_end >= 0;
    char *body = tr_openai_answer_body(&x->collected, &x->head, reason, &usage, null_content,
                                       x->request.want_logprobs, &size);
    if (body == NULL) {
        tr_api_error err;
        tr_api_fail(&err, 503, NULL, NULL, "There is no memory for the answer.");
        exchange_fail(x, &err);
        return;
    }
    tr_connection *c = x->connection;
    exchange_detach(x);
    tr_connection_respond(c, &(tr_response_head){.status = 200, .content_type = CONTENT_TYPE_JSON},
                          body, size);
    exchange_free(x);
}

static void exchange_finish(tr_exchange *x, const char *reason)
{
    tr_answer_end(&x->answer);
    if (strcmp(reason, "stop") == 0 && tr_answer_has_calls(&x->answer))
        reason = "tool_calls";
    if (x->request.stream)
        exchange_finish_stream(x, reason);
    else
        exchange_finish_whole(x, reason);
}

/* -- events of the request -- */

static void exchange_observe_token(tr_exchange *x)
{
    uint64_t now_ns = uv_hrtime();
    const tr_server_metrics *m = x->all->metrics;
    tr_histogram_observe(x->tokens_count == 0 ? m->first_token : m->next_token,
                         now_ns - x->last_ns);
    x->last_ns = now_ns;
}

static void exchange_on_token(tr_exchange *x, const tr_event *event)
{
    size_t offset = x->content_size;
    exchange_observe_token(x);
    x->tokens_count++;
    bool was_content = x->answer.channel == TR_CHANNEL_CONTENT;
    bool over = tr_answer_token(&x->answer, event->token);
    if (x->request.want_logprobs && was_content && !over &&
        x->answer.channel == TR_CHANNEL_CONTENT &&
        !tr_tokenizer_is_special(x->all->model->tokenizer, event->token)) {
        tr_openai_logprob logprob = {.token = event->token,
                                     .logprob = event->logprob,
                                     .top = event->top,
                                     .top_count = event->top_count,
                                     .text_offset = offset};
        if (x->request.stream)
            exchange_send_content(x, &logprob);
        else
            tr_openai_answer_add_logprob(&x->collected, &x->head, &logprob,
                                         x->all->model->tokenizer);
    }
    if (x->slow) {
        exchange_abort_slow(x);
    } else if (over) {
        tr_client_cancel(x->all->client, x->number);
        exchange_finish(x, "stop");
    }
}

static void exchange_on_failed(tr_exchange *x, const tr_event *event)
{
    tr_api_error err;
    switch (event->error.code) {
    case TR_E_INVALID:
        tr_api_fail(&err, event->refused ? 400 : 500, NULL, NULL, "%s", event->error.text);
        break;
    case TR_E_NOMEM:
        tr_api_fail(&err, event->refused ? 400 : 503, NULL, NULL, "%s", event->error.text);
        err.retry_after_s = event->refused ? 0 : RETRY_PEER_S;
        break;
    case TR_E_AGAIN:
    case TR_E_PEER:
    case TR_E_CANCELED:
        tr_api_fail(&err, 503, NULL, NULL, "%s", event->error.text);
        err.retry_after_s = RETRY_PEER_S;
        break;
    case TR_E_TIMEOUT:
        tr_api_fail(&err, 504, NULL, NULL, "%s", event->error.text);
        break;
    default:
        tr_api_fail(&err, 500, NULL, NULL, "%s", event->error.text);
        break;
    }
    exchange_fail(x, &err);
}

static void exchange_on_finished(tr_exchange *x, const tr_event *event)
{
    tr_api_error err;
    switch (event->finish) {
    case TR_FINISH_STOP:
        exchange_finish(x, "stop");
        break;
    case TR_FINISH_LENGTH:
        exchange_finish(x, "length");
        break;
    case TR_FINISH_CANCELED: /* not by us: then it would be forgotten */
        tr_api_fail(&err, 503, NULL, NULL, "The request was cancelled: the server is stopping.");
        err.retry_after_s = RETRY_PEER_S;
        exchange_fail(x, &err);
        break;
    }
}

static void exchange_on_event(tr_exchange *x, const tr_event *event)
{
    x->deadline_ms = uv_now(x->all->loop) + x->all->stall_timeout_ms;
    switch (event->kind) {
    case TR_EVENT_TOKEN:
        exchange_on_token(x, event);
        break;
    case TR_EVENT_LOGITS: /* never asked for */
    case TR_EVENT_HIDDEN:
        break;
    case TR_EVENT_FINISHED:
        x->cached_count = event->cached_tokens;
        exchange_on_finished(x, event);
        break;
    case TR_EVENT_FAILED:
        exchange_on_failed(x, event);
        break;
    }
}

bool tr_exchanges_poll(tr_exchanges *all, uint32_t max)
{
    tr_event event;
    for (uint32_t i = 0; i < max; i++) {
        if (!tr_client_next(all->client, &event))
            return false;
        tr_exchange *x = all->first;
        while (x != NULL && (x->number == 0 || x->number != event.request))
            x = x->next;
        if (x != NULL)
            exchange_on_event(x, &event);
    }
    return true;
}

/* -- the beginning -- */

static void exchange_init_answer(tr_exchange *x)
{
    const tr_api_model *model = x->all->model;
    tr_answer_config config = {
        .tokenizer = model->tokenizer,
        .sentinels = x->request.kind == TR_API_CHAT ? &model->sentinels : NULL,
        .channel = x->request.channel,
        .stops = &x->request.stops,
        .tools = x->request.tools,
        .one_call = x->request.one_call,
        .begun_calls_are_out = x->request.stream,
        .emit = exchange_on_part,
        .ctx = x,
    };
    tr_answer_init(&x->answer, &config);
    x->head = (tr_openai_head){.kind = x->request.kind,
                               .include_usage = x->request.include_usage,
                               .model = model->name,
                               .serial = ++x->all->serial,
                               .created = time(NULL)};
}

static void exchange_submit(tr_exchange *x)
{
    const tr_api_model *model = x->all->model;
    tr_request r = {
        .tokens = x->request.tokens,
        .tokens_count = (uint32_t)x->request.tokens_count,
        .tokens_max = x->request.tokens_max,
        .sampling = x->request.sampling,
        .stop_tokens_count = model->stop_tokens_count,
        .want_logprobs = x->request.want_logprobs,
        .top_logprobs = x->request.top_logprobs,
    };
    memcpy(r.stop_tokens, model->stop_tokens, sizeof(r.stop_tokens));

    tr_error error = {0};
    tr_status status = tr_client_submit(x->all->client, &r, &x->number, &error);
    if (status == TR_OK) {
        x->deadline_ms = uv_now(x->all->loop) + x->all->stall_timeout_ms;
        return;
    }
    x->number = 0;
    tr_api_error err;
    tr_api_fail(&err, status == TR_E_INVALID ? 400 : 503, NULL, NULL, "%s", error.text);
    err.retry_after_s = status == TR_E_INVALID ? 0
                        : status == TR_E_AGAIN ? RETRY_QUEUE_S
                                               : RETRY_PEER_S;
    exchange_fail(x, &err);
}

/* On a thread of the pool: touches only what nobody else does meanwhile. */
static void exchange_on_work(uv_work_t *work)
{
    tr_exchange *x = work->data;
    x->read_ok = tr_api_request_read(&x->request, x->all->model, x->request.kind, x->body,
                                     x->body_size, &x->error);
}

static void exchange_on_read(uv_work_t *work, int status)
{
    tr_exchange *x = work->data;
    exchange_free_body(x);
    if (x->connection == NULL) {
        exchange_free(x);
        return;
    }
    if (status != 0)
        tr_api_fail(&x->error, 503, NULL, NULL, "The server is stopping.");
    if (!x->read_ok) {
        exchange_fail(x, &x->error);
        return;
    }
    exchange_init_answer(x);
    exchange_submit(x);
}

void tr_exchange_start(tr_exchanges *all, tr_connection *c, tr_api_kind kind, char *body,
                       size_t size)
{
    tr_api_error err;
    tr_counter_add(all->metrics->requests, 1);
    tr_exchange *x = calloc(1, sizeof(*x));
    if (x == NULL) {
        free(body);
        tr_api_fail(&err, 503, NULL, NULL, "There is no memory for another request.");
        tr_respond_error(c, &err);
        return;
    }
    x->all = all;
    x->connection = c;
    x->body = body;
    x->body_size = size;
    x->body_counted = tr_connection_pass_body(c);
    x->request.kind = kind;
    x->deadline_ms = UINT64_MAX; /* while PREPARING: reading is bounded by its own limits */
    x->last_ns = uv_hrtime();
    x->work.data = x;
    x->next = all->first;
    x->link = &all->first;
    if (x->next != NULL)
        x->next->link = &x->next;
    all->first = x;
    all->count++;
    tr_gauge_add(all->metrics->in_flight, 1);
    tr_connection_set_user(c, x);
    if (uv_queue_work(all->loop, &x->work, exchange_on_work, exchange_on_read) != 0) {
        tr_api_fail(&err, 503, NULL, NULL, "The request cannot be read now.");
        exchange_fail(x, &err);
    }
}

void tr_exchange_gone(tr_exchange *x)
{
    tr_counter_add(x->all->metrics->canceled, 1);
    x->connection = NULL;
    if (x->number == 0)
        return; /* PREPARING: exchange_on_read frees it */
    tr_client_cancel(x->all->client, x->number);
    exchange_free(x);
}

void tr_exchanges_check(tr_exchanges *all, uint64_t now_ms)
{
    tr_exchange *next;
    for (tr_exchange *x = all->first; x != NULL; x = next) {
        next = x->next;
        if (x->number == 0 || now_ms < x->deadline_ms)
            continue;
        tr_api_error err;
        tr_api_fail(&err, 504, NULL, NULL, "The model has not answered for %u seconds.",
                    all->stall_timeout_ms / 1000);
        tr_client_cancel(all->client, x->number);
        exchange_fail(x, &err);
    }
}

void tr_exchanges_abort(tr_exchanges *all, const char *why)
{
    tr_exchange *next;
    for (tr_exchange *x = all->first; x != NULL; x = next) {
        next = x->next;
        tr_api_error err;
        tr_api_fail(&err, 503, NULL, NULL, "%s", why);
        err.retry_after_s = RETRY_PEER_S;
        if (x->number != 0) {
            tr_client_cancel(all->client, x->number);
            exchange_fail(x, &err);
        } else if (x->connection != NULL) {
            tr_connection *c = x->connection;
            exchange_detach(x);
            tr_respond_error(c, &err);
        }
    }
}
