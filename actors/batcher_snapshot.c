/* batcher_snapshot.c - states of sequences that go to a file and come from one (snapshot.h).
 *
 * What comes from a file is a kept slot (batcher_prefix.c) that the cluster's thread fills:
 *
 *   FREE --ADOPT--> RESERVING --KV_RESERVED by all pools--> KEPT, empty --SETTLE--> KEPT, saved
 *                        |                                       |
 *                        +------------------DROP-----------------+----> RELEASING
 *
 * A prefix then serves every request that begins with it. The state of a request that had not ended
 * serves that request alone, when it is asked again: it hears the tokens that were drawn before,
 * and goes on as if nothing had been.
 *
 *   KEPT, saved --the same request--> READY, its tokens are told before its next step */
#include "actors/batcher.h"

#include <string.h>

#define TELL_MAX 256 /* tokens in one receive: the outbox has an end */

/* Whether a slot's state is whole and worth keeping. */
static bool may_keep(const batcher_sequence *q)
{
    if (q->is_prefix)
        return q->phase == SEQUENCE_KEPT && q->saved;
    /* Logprobs of tokens that were told are not known any more. */
    return q->phase == SEQUENCE_READY && q->computed_count > 0 && q->source == 0 && !q->replay &&
           !q->canceled && !q->submit.want_logits && !q->submit.want_logprobs;
}

void batcher_describe(const batcher_state *s, const tr_switch *what)
{
    tr_slot_view *view = what->slot;
    const batcher_sequence *q = &s->sequences[view->number];

    assert(view->number < s->node->limits.sequences_max);
    view->slot = (tr_snapshot_slot){.kind = TR_SNAPSHOT_END};
    if (!s->paused || !may_keep(q))
        return;
    view->generation = q->generation;
    view->slot = (tr_snapshot_slot){.kind = q->is_prefix && !q->continues ? TR_SNAPSHOT_PREFIX
                                                                          : TR_SNAPSHOT_SEQUENCE,
                                    .tokens_count = q->tokens_count,
                                    .prompt_count = q->prompt_count,
                                    .computed_count = q->computed_count,
                                    .tokens_max = q->submit.tokens_max,
                                    .stop_tokens_count = q->submit.stop_tokens_count,
                                    .sampling = q->submit.sampling,
                                    .used = q->used};
    memcpy(view->slot.stop_tokens, q->submit.stop_tokens, sizeof(view->slot.stop_tokens));
    memcpy(view->tokens, q->tokens, q->tokens_count * sizeof(*q->tokens));
}

void batcher_settle(batcher_state *s, bool is_there)
{
    batcher_sequence *p = s->adopted != 0 ? &s->sequences[s->adopted - 1] : NULL;

    s->adopted = 0;
    if (p == NULL || !p->is_prefix || p->phase == SEQUENCE_RELEASING)
        return; /* it went while its state came */
    p->users_count = 0;
    if (is_there && p->phase == SEQUENCE_KEPT)
        p->saved = true;
    else
        batcher_drop_prefix(s, p);
}

void batcher_adopt(batcher_state *s, const tr_switch *what)
{
    const tr_snapshot_slot *slot = &what->slot->slot;
    batcher_sequence *p = batcher_free_slot(s);

    if (s->adopt.done != NULL) /* nobody waits for it any more, but it is counted */
        tr_switch_done(&s->adopt);
    batcher_settle(s, false); /* likewise */
    s->adopt = *what;
    if (p == NULL || s->lost.code != TR_OK)
        return; /* no slot is adopted: refused */
    int32_t *tokens = p->tokens;
    *p = (batcher_sequence){.submit = {.tokens_count = slot->prompt_count,
                                       .tokens_max = slot->tokens_max,
                                       .sampling = slot->sampling,
                                       .stop_tokens_count = slot->stop_tokens_count},
                            .tokens = tokens,
                            .tokens_count = slot->tokens_count,
                            .prompt_count = slot->prompt_count,
                            .computed_count = slot->computed_count,
                            .generation = p->generation,
                            .is_prefix = true,
                            .continues = slot->kind == TR_SNAPSHOT_SEQUENCE,
                            .users_count = 1,
                            .used = slot->used};
    memcpy(p->submit.stop_tokens, slot->stop_tokens, sizeof(p->submit.stop_tokens));
    uint64_t positions =
        p->continues ? (uint64_t)slot->prompt_count + slot->tokens_max : slot->tokens_count;
    if (!batcher_reserve(s, p, positions, NULL, 0)) {
        p->is_prefix = false;
        return;
    }
    memcpy(tokens, what->slot->tokens, slot->tokens_count * sizeof(*tokens));
    s->prefixes_count++;
    s->uses = slot->used > s->uses ? slot->used : s->uses;
    s->adopted = 1 + (uint32_t)(p - s->sequences);
}

void batcher_answer_adopt(batcher_state *s)
{
    if (s->adopt.done == NULL)
        return;
    const batcher_sequence *p = s->adopted != 0 ? &s->sequences[s->adopted - 1] : NULL;
    if (p != NULL && p->phase == SEQUENCE_RESERVING)
        return;
    tr_slot_view *view = s->adopt.slot;
    view->taken = p != NULL && p->phase == SEQUENCE_KEPT;
    if (view->taken) {
        view->number = s->adopted - 1;
        view->generation = p->generation;
    } else {
        s->adopted = 0;
    }
    tr_switch_done(&s->adopt);
    s->adopt.done = NULL;
}

/* -- the same request again -- */

static bool is_same_sampling(const tr_sampling *a, const tr_sampling *b)
{
    if (a->temperature == 0 && b->temperature == 0)
        return true; /* nothing else is looked at */
    return a->temperature == b->temperature && a->top_p == b->top_p && a->top_k == b->top_k &&
           a->min_p == b->min_p && a->seed == b->seed;
}

static bool is_same_request(const batcher_sequence *p, const tr_submit *submit)
{
    const int32_t *tokens = (const void *)(submit + 1);
    uint32_t stops = submit->stop_tokens_count;
    return p->prompt_count == submit->tokens_count && !submit->want_logits &&
           !submit->want_logprobs && submit->tokens_max <= p->submit.tokens_max &&
           submit->tokens_max > p->tokens_count - p->prompt_count &&
           p->submit.stop_tokens_count == stops &&
           memcmp(p->submit.stop_tokens, submit->stop_tokens, stops * sizeof(int32_t)) == 0 &&
           is_same_sampling(&p->submit.sampling, &submit->sampling) &&
           memcmp(p->tokens, tokens, p->prompt_count * sizeof(*tokens)) == 0;
}

batcher_sequence *batcher_find_continued(batcher_state *s, const tr_submit *submit)
{
    for (uint32_t i = 0; s->prefixes_count > 0 && i < s->node->limits.sequences_max; i++) {
        batcher_sequence *p = &s->sequences[i];
        if (p->continues && p->phase == SEQUENCE_KEPT && p->saved && is_same_request(p, submit))
            return p;
    }
    return NULL;
}

void batcher_continue(batcher_state *s, batcher_sequence *q, const batcher_waiting *w)
{
    const tr_submit *submit = (const void *)w->submit->data;

    q->phase = SEQUENCE_READY;
    q->is_prefix = q->continues = q->saved = false;
    q->request = submit->request;
    q->client = w->client;
    q->submit = *submit;
    q->begin_ns = s->env->now_ns(s->env->ctx);
    q->untold_count = q->tokens_count - q->prompt_count;
    q->cached_count = q->computed_count < q->prompt_count ? q->computed_count : q->prompt_count;
    s->prefixes_count--;
    s->requests_count++;
    atomic_fetch_add_explicit(&s->node->counters->cached_tokens, q->cached_count,
                              memory_order_relaxed);
}

void batcher_tell_untold(batcher_state *s)
{
    uint32_t told = 0;

    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        while (q->phase == SEQUENCE_READY && q->untold_count > 0) {
            if (told == TELL_MAX || !batcher_flush_events(s, q)) {
                s->starved = true;
                break;
            }
            tr_token token = {.token = q->tokens[q->tokens_count - q->untold_count]};
            batcher_tell_token(s, q, &token);
            q->untold_count--;
            told++;
        }
    }
}
