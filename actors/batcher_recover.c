/* batcher_recover.c - the loss of a node, from the view of the requests.
 *
 *   loss       steps in flight are given up; nothing is formed until the placement has changed
 *   GO_OVER    what was lost is known: sequences of lost steps, and all of them when the node held
 *              sequence state
 *   RESUME     those are replayed: their leases are given back and taken again, empty, and they are
 *              read anew from their token ids. Prompt positions are read as prompts, drawn tokens
 *              as drawn ones (tr_segment_form), so the bits are the same; nothing is told twice,
 *              because only the last position asks for a token.
 *
 * A replaying sequence: RELEASING --all pools--> RESERVING --all pools--> READY at position 0, or
 * where a kept prefix ends that is not lost; or FREE, when it was cancelled meanwhile. */
#include "actors/batcher.h"

bool batcher_misses_node(const batcher_state *s)
{
    bool misses = false;
    for (uint32_t n = 0; s->dead_nodes >> n != 0; n++)
        misses |= (s->dead_nodes >> n & 1) && tr_plan_uses(s->node->plan, n);
    return misses;
}

void batcher_suspend(batcher_state *s)
{
    s->paused = true;
    for (uint32_t i = 0; i < s->node->steps_in_flight; i++) {
        batcher_step *record = &s->steps[i];
        for (uint32_t j = 0; record->step != 0 && j < record->sequences_count; j++) {
            batcher_sequence *q = &s->sequences[record->sequences[j]];
            if (q->phase == SEQUENCE_IN_STEP) {
                q->phase = SEQUENCE_READY;
                q->replay = true;
            }
        }
        if (record->step != 0)
            batcher_drop_step(s, record);
    }
}

static bool node_has_state(const tr_plan *plan, uint32_t node)
{
    for (uint32_t l = 0; l < plan->shape.layers_count; l++)
        for (uint32_t t = 0; t < plan->shape.attention_terms[l]; t++)
            if (tr_plan_attention_node(plan, l, t) == node)
                return true;
    return plan->shape.ngram_tables > 0 && plan->ngram_node == node;
}

void batcher_note_lost_state(batcher_state *s)
{
    bool state_lost = false;
    for (uint32_t n = 0; s->dead_nodes >> n != 0; n++)
        state_lost |= (s->dead_nodes >> n & 1) && node_has_state(s->node->plan, n);
    for (uint32_t i = 0; state_lost && i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (q->is_prefix) {
            q->replay |= q->saved; /* it goes when the sequences are replayed */
            q->saved = false;
        } else {
            q->replay |= q->phase == SEQUENCE_READY && q->computed_count > 0;
            q->replay |= q->phase == SEQUENCE_RESERVING && q->source != 0;
        }
    }
}

void batcher_replay(batcher_state *s)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (q->replay && q->phase == SEQUENCE_KEPT)
            batcher_drop_prefix(s, q);
        if (!q->replay || q->phase != SEQUENCE_READY)
            continue;
        if (q->submit.want_logits) {
            tr_error err;
            tr_fail(&err, TR_E_PEER, "a node is gone, and logits with it");
            batcher_fail(s, q, &err);
        } else if (q->canceled) {
            batcher_finish(s, q, TR_FINISH_CANCELED, -1);
        } else {
            batcher_release(s, q);
        }
    }
}

bool batcher_reserve(batcher_state *s, batcher_sequence *q, uint64_t tokens,
                     const batcher_sequence *other, uint32_t shared_pages)
{
    uint32_t slot = (uint32_t)(q - s->sequences);
    uint32_t shared_with = other != NULL ? (uint32_t)(other - s->sequences) : 0;
    uint32_t pages = (uint32_t)batcher_pages_of(s->node, tokens); /* what is admitted has room */
    if (!tr_page_book_take(&s->pages, slot, pages, shared_with, shared_pages))
        return false;
    tr_buf *buf = s->env->take(s->env->ctx, sizeof(tr_kv_reserve));
    if (buf == NULL) {
        tr_page_book_give(&s->pages, slot);
        s->starved = true;
        return false;
    }
    q->phase = SEQUENCE_RESERVING;
    q->generation++;
    q->positions_max = tokens;
    q->refused = false;
    q->pools = q->leased = s->pools;
    q->late = q->returning = 0;
    q->asked_ns = s->env->now_ns(s->env->ctx);
    *(tr_kv_reserve *)(void *)buf->data = (tr_kv_reserve){.tokens = tokens,
                                                          .generation = q->generation,
                                                          .shared_with = (uint16_t)shared_with,
                                                          .shared_pages = (uint16_t)shared_pages};
    for (uint32_t n = 0; s->pools >> n != 0; n++)
        if (s->pools >> n & 1)
            /* A dead node is reported by PEER_DOWN. */
            (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_KV_POOL, n), TR_MSG_KV_RESERVE,
                               0, slot, tr_buf_ref(buf));
    tr_buf_unref(buf);
    return true;
}

bool batcher_retry_replays(batcher_state *s)
{
    bool all = true;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (!q->replay || q->phase != SEQUENCE_RELEASING || q->pools != 0)
            continue;
        if (q->canceled) { /* it does not wait for memory that nobody needs */
            q->replay = false;
            batcher_tell_finished(s, q, TR_FINISH_CANCELED, -1);
            batcher_end_releasing(s, q);
            continue;
        }
        q->replay = !batcher_begin(s, q);
        all &= !q->replay;
    }
    return all;
}
