/* batcher_step.c - forms steps: which rows of which sequences go through the model together.
 *
 * A step takes one row of every ready sequence that generates, then prompt rows under the row
 * budget. A sequence is in one step at a time. Prompt pieces begin at multiples of TR_CHUNK_ROWS,
 * so that chunked recurrences are cut at the same places whatever else is in the step. Where that
 * leaves a prompt no room, prompts come first in the next step, or they would wait for as long as
 * anybody generates. */
#include "actors/batcher.h"

#include <string.h>

/* A step while it is being formed. */
typedef struct {
    batcher_step *record;
    uint32_t rows, segments, outputs;
} step_draft;

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Rows that a sequence could contribute now; 0: none. */
static uint32_t step_rows_of(const batcher_state *s, const batcher_sequence *q, const step_draft *d)
{
    uint32_t rows_left = s->node->limits.rows_max - d->rows;
    uint32_t outputs_left = s->node->limits.outputs_max - d->outputs;
    if (rows_left == 0 || outputs_left == 0)
        return 0;
    if (q->computed_count >= q->prompt_count) /* one, but for a sequence that is read again */
        return least(least(q->tokens_count - q->computed_count, rows_left), TR_CHUNK_ROWS);

    uint32_t end = q->boundary > q->computed_count        ? q->boundary
                   : q->boundary_next > q->computed_count ? q->boundary_next
                                                          : q->prompt_count;
    uint32_t rows = end - q->computed_count;
    uint32_t most = rows_left;
    if (q->submit.prefill_rows > 0)
        most = least(most, q->submit.prefill_rows);
    if (q->submit.want_logits)
        most = least(most, outputs_left);
    return rows <= most ? rows : most / TR_CHUNK_ROWS * TR_CHUNK_ROWS;
}

/* Lengths only: the first pass chooses, the second writes, because offsets follow from counts.
 * Returns whether somebody who could go found no room. */
static bool step_choose(batcher_state *s, step_draft *d, bool generating)
{
    bool left_out = false;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        uint32_t at = (s->next_turn + i) % s->node->limits.sequences_max;
        batcher_sequence *q = &s->sequences[at];
        if (q->phase != SEQUENCE_READY || q->events_count > 0 || q->untold_count > 0 ||
            (q->computed_count >= q->prompt_count) != generating || batcher_awaits_heir(s, q))
            continue;
        uint32_t rows = step_rows_of(s, q, d);
        if (rows == 0) {
            left_out = true;
            continue;
        }
        d->record->sequences[d->segments] = at;
        d->record->rows[d->segments] = rows;
        d->segments++;
        d->rows += rows;
        bool reaches_end = q->computed_count + rows == q->tokens_count;
        d->outputs += q->submit.want_logits && !generating ? rows : reaches_end;
        q->phase = SEQUENCE_IN_STEP;
    }
    return left_out;
}

static void step_write_outputs(const batcher_sequence *q, uint32_t sequence, uint32_t row,
                               uint32_t rows, tr_output *outputs, uint32_t *count)
{
    bool prompt = q->computed_count < q->prompt_count;
    bool reaches_end = q->computed_count + rows == q->tokens_count;
    bool every = prompt && q->submit.want_logits;

    for (uint32_t t = every ? 0 : rows - 1; t < rows && (every || reaches_end); t++) {
        bool last = t + 1 == rows && reaches_end;
        uint32_t flags = every ? TR_OUTPUT_EXPORT : 0;
        if (every && q->submit.want_hidden)
            flags |= TR_OUTPUT_HIDDEN;
        if (last && q->submit.tokens_max > 0)
            flags |= TR_OUTPUT_SAMPLE | (q->submit.want_logprobs ? TR_OUTPUT_LOGPROBS : 0);
        outputs[(*count)++] = (tr_output){.row = row + t,
                                          .sequence = sequence,
                                          .position = q->computed_count + t,
                                          .flags = flags,
                                          .request = q->request,
                                          .client = q->client,
                                          .sampling = q->submit.sampling,
                                          .top_logprobs = q->submit.top_logprobs};
    }
}

static tr_buf *step_write(batcher_state *s, const step_draft *d)
{
    tr_step_head head = {
        .rows_count = d->rows, .segments_count = d->segments, .outputs_count = d->outputs};
    uint32_t size = tr_step_layout(&head, TR_MSG_STEP);
    tr_buf *buf = s->env->take(s->env->ctx, size);
    if (buf == NULL)
        return NULL;

    memset(buf->data, 0, size); /* padding leaves the process */
    memcpy(buf->data, &head, sizeof(head));
    tr_segment *segments = tr_step_at(buf, head.segments_offset);
    tr_output *outputs = tr_step_at(buf, head.outputs_offset);
    int32_t *tokens = tr_step_at(buf, head.tokens_offset);
    uint32_t row = 0, outputs_count = 0;
    for (uint32_t i = 0; i < d->segments; i++) {
        uint32_t at = d->record->sequences[i], rows = d->record->rows[i];
        batcher_sequence *q = &s->sequences[at];
        bool prompt = q->computed_count < q->prompt_count;
        bool keeps = q->boundary > 0 && q->computed_count == q->boundary;
        q->exchanges = keeps || q->source != 0;
        segments[i] = (tr_segment){.sequence = (uint16_t)at,
                                   .takes = (uint16_t)q->source,
                                   .leaves = (uint16_t)(keeps ? q->heir : 0),
                                   .first_position = q->computed_count,
                                   .rows_count = (uint16_t)rows,
                                   .form = prompt ? TR_FORM_PREFILL : TR_FORM_DECODE,
                                   .generation = q->generation};
        memcpy(tokens + row, q->tokens + q->computed_count, rows * sizeof(*tokens));
        step_write_outputs(q, at, row, rows, outputs, &outputs_count);
        row += rows;
    }
    assert(outputs_count == d->outputs);
    return buf;
}

/* Forms and sends one step. False when nothing is ready or no buffer is free. */
static bool batcher_form_step(batcher_state *s)
{
    batcher_step *record = &s->steps[s->next_step % s->node->steps_in_flight];
    step_draft draft = {.record = record};
    if (record->step != 0)
        return false; /* the slot's step has not ended: its successor waits */

    bool prompts_first = s->prompts_first;
    (void)step_choose(s, &draft, !prompts_first);
    bool left_out = step_choose(s, &draft, prompts_first);
    if (draft.segments == 0)
        return false;
    tr_buf *buf = step_write(s, &draft);
    if (buf == NULL) {
        s->starved = true;
        for (uint32_t i = 0; i < draft.segments; i++)
            s->sequences[record->sequences[i]].phase = SEQUENCE_READY;
        return false;
    }
    record->step = s->next_step++;
    record->begin_ns = s->env->now_ns(s->env->ctx);
    record->sequences_count = draft.segments;
    s->steps_count++;
    s->prompts_first = left_out && !prompts_first;
    s->next_turn = (record->sequences[draft.segments - 1] + 1) % s->node->limits.sequences_max;
    uint32_t routers = s->node->plan->spans[0].nodes;
    for (uint32_t n = 0; routers >> n != 0; n++)
        if (routers >> n & 1)
            /* A dead node is reported by PEER_DOWN, which ends the step. */
            (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_ROUTER, n), TR_MSG_STEP,
                               record->step, 0, tr_buf_ref(buf));
    tr_buf_unref(buf);
    return true;
}

void batcher_form_steps(batcher_state *s)
{
    while (!s->paused && s->steps_count < s->node->steps_in_flight && batcher_form_step(s))
        ;
}
