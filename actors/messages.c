/* messages.c - layout and checking of step-shaped payloads. */
#include "actors/messages.h"

#include "kernels/kernels.h"

#include <string.h>

/* Which arrays a kind has. */
enum {
    HAS_SEGMENTS = 1,
    HAS_OUTPUTS = 2,
    HAS_TOKENS = 4,
    HAS_EXPONENT = 8,
    HAS_FLAGS = 16,
    HAS_ROUTING = 32,
    HAS_ROWS = 64,
    HAS_SUMS = 128
};

static unsigned step_arrays(tr_msg_kind kind)
{
    if (kind == TR_MSG_STEP)
        return HAS_SEGMENTS | HAS_OUTPUTS | HAS_TOKENS;
    if (kind == TR_MSG_RESIDUAL)
        return HAS_SEGMENTS | HAS_OUTPUTS | HAS_TOKENS | HAS_FLAGS | HAS_ROWS;
    if (kind == TR_MSG_NGRAM_ROWS)
        return HAS_SEGMENTS | HAS_TOKENS | HAS_ROWS;
    if (kind == TR_MSG_NGRAM_ADD)
        return HAS_ROWS;
    if (kind == TR_MSG_ATTENTION_ROWS)
        return HAS_SEGMENTS | HAS_EXPONENT | HAS_ROWS;
    if (kind == TR_MSG_EXPERT_ROWS)
        return HAS_EXPONENT | HAS_ROUTING | HAS_ROWS;
    if (kind == TR_MSG_PARTIAL)
        return HAS_FLAGS | HAS_SUMS;
    if (kind == TR_MSG_FINAL_ROWS)
        return HAS_OUTPUTS | HAS_ROWS;
    if (kind == TR_MSG_LOGITS)
        return HAS_ROWS;
    return 0;
}

/* The next array of count elements; moves *at to its end. Sizes cannot overflow: counts are bounded
 * by TR_STEP_ROWS_LIMIT and widths by the vocabulary before this is called. */
static uint32_t layout_array(uint64_t *at, uint64_t count, uint64_t element_size)
{
    uint64_t begin = (*at + 63) & ~(uint64_t)63;
    *at = begin + count * element_size;
    return (uint32_t)begin;
}

static uint64_t step_layout(tr_step_head *h, unsigned arrays, bool outputs_are_rows)
{
    uint64_t at = sizeof(*h);
    uint64_t rows = outputs_are_rows ? h->outputs_count : h->rows_count;

    h->segments_offset = h->outputs_offset = h->tokens_offset = h->exponent_offset = 0;
    h->flags_offset = h->expert_offset = h->weight_offset = h->rows_offset = 0;
    if (arrays & HAS_SEGMENTS)
        h->segments_offset = layout_array(&at, h->segments_count, sizeof(tr_segment));
    if (arrays & HAS_OUTPUTS)
        h->outputs_offset = layout_array(&at, h->outputs_count, sizeof(tr_output));
    if (arrays & HAS_TOKENS)
        h->tokens_offset = layout_array(&at, h->rows_count, sizeof(int32_t));
    if (arrays & HAS_EXPONENT)
        h->exponent_offset = layout_array(&at, h->rows_count, sizeof(int32_t));
    if (arrays & HAS_FLAGS)
        h->flags_offset = layout_array(&at, h->rows_count, 1);
    if (arrays & HAS_ROUTING) {
        h->expert_offset = layout_array(&at, (uint64_t)h->rows_count * h->first, sizeof(uint32_t));
        h->weight_offset = layout_array(&at, (uint64_t)h->rows_count * h->first, sizeof(float));
    }
    if (arrays & HAS_ROWS)
        h->rows_offset = layout_array(&at, rows * h->width, sizeof(float));
    if (arrays & HAS_SUMS)
        h->rows_offset = layout_array(&at, rows * h->width, sizeof(int64_t));
    return at;
}

uint32_t tr_step_layout(tr_step_head *head, tr_msg_kind kind)
{
    unsigned arrays = step_arrays(kind);
    assert(arrays != 0);
    uint64_t size = step_layout(head, arrays, kind == TR_MSG_FINAL_ROWS);
    assert(size <= UINT32_MAX);
    return (uint32_t)size;
}

static tr_status read_fail(tr_error *err, const tr_msg *msg, const char *field,
                           unsigned long long found, unsigned long long allowed)
{
    return tr_fail(err, TR_E_INVALID, "message %s: %s is %llu, at most %llu allowed",
                   tr_msg_kind_name(msg->header.kind), field, found, allowed);
}

static tr_status read_counts(const tr_msg *msg, const tr_step_head *h, const tr_step_limits *l,
                             tr_error *err)
{
    tr_msg_kind kind = (tr_msg_kind)msg->header.kind;
    bool bank = kind == TR_MSG_RESIDUAL || kind == TR_MSG_NGRAM_ROWS || kind == TR_MSG_NGRAM_ADD;
    uint32_t columns = bank ? l->bank_size : l->hidden_size;
    uint32_t width_max = kind == TR_MSG_LOGITS ? l->vocab_size : columns;

    if (h->rows_count > l->rows_max)
        return read_fail(err, msg, "rows_count", h->rows_count, l->rows_max);
    if (h->segments_count > l->rows_max)
        return read_fail(err, msg, "segments_count", h->segments_count, l->rows_max);
    if (h->outputs_count > l->outputs_max)
        return read_fail(err, msg, "outputs_count", h->outputs_count, l->outputs_max);
    if (h->layer >= l->layers_count)
        return read_fail(err, msg, "layer", h->layer, l->layers_count - 1);
    if (h->width > width_max)
        return read_fail(err, msg, "width", h->width, width_max);
    if (kind != TR_MSG_LOGITS && kind != TR_MSG_STEP && h->width != columns)
        return tr_fail(err, TR_E_INVALID, "message %s: width is %u, expected %u",
                       tr_msg_kind_name(msg->header.kind), h->width, columns);
    if (kind == TR_MSG_EXPERT_ROWS && h->first > TR_TOP_K_MAX)
        return read_fail(err, msg, "top_k", h->first, TR_TOP_K_MAX);
    if (kind == TR_MSG_LOGITS) {
        if (h->first > l->vocab_size - h->width)
            return read_fail(err, msg, "first", h->first, l->vocab_size - h->width);
        if (h->rows_count > l->outputs_max || h->output_first > l->outputs_max - h->rows_count)
            return read_fail(err, msg, "output_first", h->output_first, l->outputs_max);
    }
    return TR_OK;
}

static tr_status read_segments(const tr_msg *msg, const tr_step_view *v, const tr_step_limits *l,
                               tr_error *err)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < v->head.segments_count; i++) {
        const tr_segment *s = &v->segments[i];
        if (s->sequence >= l->sequences_max)
            return read_fail(err, msg, "segment.sequence", s->sequence, l->sequences_max - 1);
        if (s->takes > l->sequences_max)
            return read_fail(err, msg, "segment.takes", s->takes, l->sequences_max);
        if (s->leaves > l->sequences_max)
            return read_fail(err, msg, "segment.leaves", s->leaves, l->sequences_max);
        if (s->rows_count == 0 || s->rows_count > l->rows_max)
            return read_fail(err, msg, "segment.rows_count", s->rows_count, l->rows_max);
        if (s->form > TR_FORM_PREFILL)
            return read_fail(err, msg, "segment.form", s->form, TR_FORM_PREFILL);
        if ((uint64_t)s->first_position + s->rows_count > l->context_max)
            return read_fail(err, msg, "segment.first_position", s->first_position,
                             l->context_max - s->rows_count);
        if (s->form == TR_FORM_PREFILL && s->first_position % TR_CHUNK_ROWS != 0)
            return tr_fail(err, TR_E_INVALID,
                           "message %s: a prefill segment begins at position %u, expected a "
                           "multiple of %d",
                           tr_msg_kind_name(msg->header.kind), s->first_position, TR_CHUNK_ROWS);
        rows += s->rows_count;
    }
    if (rows != v->head.rows_count)
        return tr_fail(err, TR_E_INVALID, "message %s: segments have %llu rows, rows_count is %u",
                       tr_msg_kind_name(msg->header.kind), (unsigned long long)rows,
                       v->head.rows_count);
    return TR_OK;
}

static tr_status read_outputs(const tr_msg *msg, const tr_step_view *v, const tr_step_limits *l,
                              tr_error *err)
{
    for (uint32_t i = 0; i < v->head.outputs_count; i++) {
        const tr_output *o = &v->outputs[i];
        if (o->row >= v->head.rows_count)
            return read_fail(err, msg, "output.row", o->row, v->head.rows_count);
        if (o->sequence >= l->sequences_max)
            return read_fail(err, msg, "output.sequence", o->sequence, l->sequences_max - 1);
        if (o->top_logprobs > TR_TOP_LOGPROBS_MAX)
            return read_fail(err, msg, "output.top_logprobs", o->top_logprobs, TR_TOP_LOGPROBS_MAX);
    }
    return TR_OK;
}

tr_status tr_step_read(tr_step_view *out, const tr_msg *msg, const tr_step_limits *limits,
                       tr_error *err)
{
    tr_msg_kind kind = (tr_msg_kind)msg->header.kind;
    unsigned arrays = step_arrays(kind);
    assert(arrays != 0);
    uint32_t size = msg->header.payload_size;
    tr_step_view v = {0};

    if (msg->payload == NULL || size < sizeof(tr_step_head))
        return tr_fail(err, TR_E_INVALID, "message %s: payload has %u bytes, at least %zu expected",
                       tr_msg_kind_name(kind), size, sizeof(tr_step_head));
    memcpy(&v.head, msg->payload->data, sizeof(v.head));
    tr_status status = read_counts(msg, &v.head, limits, err);
    if (status != TR_OK)
        return status;

    /* The offsets follow from the counts, so those of the peer must equal ours. Packed sums are cut
     * to what was written. */
    tr_step_head expected = v.head;
    uint64_t full = step_layout(&expected, arrays, kind == TR_MSG_FINAL_ROWS);
    if (memcmp(&expected, &v.head, sizeof(expected)) != 0)
        return tr_fail(err, TR_E_INVALID, "message %s: array offsets differ from the layout",
                       tr_msg_kind_name(kind));
    uint64_t least = arrays & HAS_SUMS ? v.head.rows_offset : full;
    if (size < least || size > full)
        return tr_fail(err, TR_E_INVALID, "message %s: payload has %u bytes, expected %llu to %llu",
                       tr_msg_kind_name(kind), size, (unsigned long long)least,
                       (unsigned long long)full);

    const uint8_t *base = msg->payload->data;
    v.segments = arrays & HAS_SEGMENTS ? (const void *)(base + v.head.segments_offset) : NULL;
    v.outputs = arrays & HAS_OUTPUTS ? (const void *)(base + v.head.outputs_offset) : NULL;
    v.tokens = arrays & HAS_TOKENS ? (const void *)(base + v.head.tokens_offset) : NULL;
    v.exponent = arrays & HAS_EXPONENT ? (const void *)(base + v.head.exponent_offset) : NULL;
    v.flags = arrays & HAS_FLAGS ? base + v.head.flags_offset : NULL;
    v.expert = arrays & HAS_ROUTING ? (const void *)(base + v.head.expert_offset) : NULL;
    v.weight = arrays & HAS_ROUTING ? (const void *)(base + v.head.weight_offset) : NULL;
    v.rows = arrays & HAS_ROWS ? (const void *)(base + v.head.rows_offset) : NULL;
    if (arrays & HAS_SUMS) {
        v.sums = base + v.head.rows_offset;
        v.sums_size = size - v.head.rows_offset;
    }
    if (v.segments != NULL && (status = read_segments(msg, &v, limits, err)) != TR_OK)
        return status;
    if (v.outputs != NULL && (status = read_outputs(msg, &v, limits, err)) != TR_OK)
        return status;
    for (uint32_t t = 0; v.tokens != NULL && t < v.head.rows_count; t++)
        if (v.tokens[t] < 0 || (uint32_t)v.tokens[t] >= limits->vocab_size)
            return tr_fail(err, TR_E_INVALID, "message %s: token %d of row %u, vocabulary is %u",
                           tr_msg_kind_name(kind), v.tokens[t], t, limits->vocab_size);
    *out = v;
    return TR_OK;
}

const tr_token *tr_tokens_read(const tr_msg *msg, uint32_t outputs_max, uint32_t *count)
{
    tr_token_head head;
    if (msg->payload == NULL || msg->header.payload_size < sizeof(head))
        return NULL;
    memcpy(&head, msg->payload->data, sizeof(head));
    if (head.count > outputs_max ||
        msg->header.payload_size != sizeof(head) + head.count * sizeof(tr_token))
        return NULL;
    *count = head.count;
    return (const void *)(msg->payload->data + sizeof(head));
}
