/* batcher_events.c - what the batcher tells its clients. */
#include "actors/batcher.h"
#include "core/trace.h"

#include <stdio.h>
#include <string.h>

/* Field by field into zeroes: neither padding nor what lies behind a text leaves the process. */
static void batcher_write_event(tr_buf *buf, const tr_event *event)
{
    assert(buf->capacity >= sizeof(*event));
    tr_event *out = (void *)buf->data;
    memset(out, 0, sizeof(*out));
    out->kind = event->kind;
    out->request = event->request;
    out->token = event->token;
    out->logprob = event->logprob;
    out->top_count = event->top_count;
    memcpy(out->top, event->top, event->top_count * sizeof(event->top[0]));
    out->finish = event->finish;
    out->prompt_tokens = event->prompt_tokens;
    out->cached_tokens = event->cached_tokens;
    out->generated_tokens = event->generated_tokens;
    out->refused = event->refused;
    out->error.code = event->error.code;
    snprintf(out->error.text, sizeof(out->error.text), "%s", event->error.text);
    buf->size = sizeof(*event);
}

static bool batcher_send_event(batcher_state *s, tr_actor_id client, const tr_event *event)
{
    tr_buf *buf = s->env->take(s->env->ctx, sizeof(*event));
    if (buf == NULL)
        return false;
    batcher_write_event(buf, event);
    /* A client that is gone does not miss it. */
    (void)s->env->send(s->env->ctx, client, TR_MSG_EVENT, 0, 0, buf);
    return true;
}

bool batcher_flush_events(batcher_state *s, batcher_sequence *q)
{
    while (q->events_count > 0) {
        if (!batcher_send_event(s, q->client, &q->events[0]))
            return false;
        q->events_count--;
        memmove(&q->events[0], &q->events[1], q->events_count * sizeof(q->events[0]));
    }
    return true;
}

static void batcher_tell(batcher_state *s, batcher_sequence *q, const tr_event *event)
{
    if (batcher_flush_events(s, q) && batcher_send_event(s, q->client, event))
        return;
    assert(q->events_count < BATCHER_EVENTS_MAX);
    q->events[q->events_count++] = *event;
}

void batcher_begin_gaps(batcher_state *s)
{
    tr_node_counters *counters = s->node->counters;
    uint32_t open = 0;

    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        q->paused |= q->phase == SEQUENCE_READY && q->told_ns != 0;
        open += q->paused;
    }
    atomic_store_explicit(&counters->gap_ns_max, 0, memory_order_relaxed);
    atomic_store_explicit(&counters->gaps_open, open, memory_order_relaxed);
}

static void batcher_end_gap(batcher_state *s, batcher_sequence *q)
{
    if (q->paused) /* release: who sees none open sees how long they were */
        atomic_fetch_sub_explicit(&s->node->counters->gaps_open, 1, memory_order_release);
    q->paused = false;
}

static void batcher_note_token(batcher_state *s, batcher_sequence *q)
{
    _Atomic uint64_t *max = &s->node->counters->gap_ns_max;
    uint64_t now = s->env->now_ns(s->env->ctx);

    if (q->paused && now - q->told_ns > atomic_load_explicit(max, memory_order_relaxed))
        atomic_store_explicit(max, now - q->told_ns, memory_order_relaxed);
    batcher_end_gap(s, q);
    q->told_ns = now;
}

void batcher_tell_token(batcher_state *s, batcher_sequence *q, const tr_token *token)
{
    batcher_note_token(s, q);
    tr_event event = {.kind = TR_EVENT_TOKEN,
                      .request = q->request,
                      .token = token->token,
                      .logprob = token->logprob,
                      .top_count = token->top_count <= TR_TOP_LOGPROBS_MAX ? token->top_count : 0};
    memcpy(event.top, token->top, event.top_count * sizeof(event.top[0]));
    batcher_tell(s, q, &event);
}

/* Before its client is told: who has an answer finds it in the figures and in the trace. */
static void batcher_end_request(batcher_state *s, const batcher_sequence *q,
                                _Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    tr_trace_span(TR_TRACE_REQUEST, 0, s->env->self, q->request, q->begin_ns);
}

void batcher_tell_finished(batcher_state *s, batcher_sequence *q, tr_finish_reason reason,
                           int32_t token)
{
    tr_event event = {.kind = TR_EVENT_FINISHED,
                      .request = q->request,
                      .token = token,
                      .finish = reason,
                      .prompt_tokens = q->prompt_count,
                      .cached_tokens = q->cached_count,
                      .generated_tokens = q->tokens_count - q->prompt_count};
    batcher_end_request(s, q, &s->node->counters->requests_finished);
    batcher_end_gap(s, q);
    batcher_tell(s, q, &event);
}

void batcher_tell_failed(batcher_state *s, batcher_sequence *q, const tr_error *err)
{
    tr_event event = {.kind = TR_EVENT_FAILED, .request = q->request, .error = *err};
    batcher_end_request(s, q, &s->node->counters->requests_failed);
    batcher_end_gap(s, q);
    batcher_tell(s, q, &event);
}

/* The buffer of the SUBMIT carries the answer: a request can be ended when no other is free. */
static void batcher_answer_submit(batcher_state *s, tr_actor_id client, tr_buf *submit,
                                  const tr_event *event)
{
    tr_buf *buf = tr_buf_ref(submit);
    batcher_write_event(buf, event);
    /* A client that is gone does not miss it. */
    (void)s->env->send(s->env->ctx, client, TR_MSG_EVENT, 0, 0, buf);
}

void batcher_tell_refused(batcher_state *s, tr_actor_id client, uint64_t request, tr_buf *submit,
                          const tr_error *err)
{
    tr_event event = {.kind = TR_EVENT_FAILED, .request = request, .refused = true, .error = *err};
    atomic_fetch_add_explicit(&s->node->counters->requests_failed, 1, memory_order_relaxed);
    batcher_answer_submit(s, client, submit, &event);
}

void batcher_tell_withdrawn(batcher_state *s, const batcher_waiting *w)
{
    const tr_submit *submit = (const void *)w->submit->data;
    tr_event event = {.kind = TR_EVENT_FINISHED,
                      .request = submit->request,
                      .token = -1,
                      .finish = TR_FINISH_CANCELED,
                      .prompt_tokens = submit->tokens_count};
    atomic_fetch_add_explicit(&s->node->counters->requests_finished, 1, memory_order_relaxed);
    batcher_answer_submit(s, w->client, w->submit, &event);
}
