/* test_messages.c - step-shaped payloads that another process could send.
 *
 * Method: a good payload of each kind is laid out, read, then spoilt one field at a time. Each
 * spoilt one must be refused with a sentence that names the field. */
#include "actors/messages.h"
#include "tests/check.h"

#include <stdlib.h>

static const tr_step_limits limits = {.rows_max = 128,
                                      .outputs_max = 16,
                                      .sequences_max = 4,
                                      .context_max = 1000,
                                      .layers_count = 8,
                                      .hidden_size = 32,
                                      .bank_size = 64,
                                      .vocab_size = 500};

typedef struct {
    tr_buf buf;
    tr_msg msg;
    tr_step_head *head;
} sample;

/* A good message of a kind: 65 prompt rows of sequence 1 and one decode row of sequence 3. */
static void sample_make(sample *s, tr_msg_kind kind)
{
    tr_step_head head = {.rows_count = 66, .segments_count = 2, .outputs_count = 2, .width = 32};
    if (kind == TR_MSG_STEP)
        head.width = 0;
    if (kind == TR_MSG_RESIDUAL || kind == TR_MSG_NGRAM_ROWS || kind == TR_MSG_NGRAM_ADD)
        head.width = 64; /* two streams */
    if (kind == TR_MSG_EXPERT_ROWS)
        head.first = 2;
    if (kind == TR_MSG_LOGITS) {
        head.rows_count = 2;
        head.width = 100;
        head.first = 400;
    }
    uint32_t size = tr_step_layout(&head, kind);
    uint8_t *data = aligned_alloc(64, (size + 63) / 64 * 64);
    memset(data, 0, size);
    memcpy(data, &head, sizeof(head));
    *s = (sample){.buf = {.data = data, .size = size, .capacity = size}};
    s->msg.header.kind = (uint16_t)kind;
    s->msg.header.payload_size = size;
    s->head = (void *)data;
    if (head.segments_offset != 0) {
        tr_segment *segments = (void *)(data + head.segments_offset);
        segments[0] = (tr_segment){.sequence = 1, .rows_count = 65, .form = TR_FORM_PREFILL};
        segments[1] = (tr_segment){.sequence = 3, .first_position = 77, .rows_count = 1};
    }
    if (head.outputs_offset != 0) {
        tr_output *outputs = (void *)(data + head.outputs_offset);
        outputs[0] = (tr_output){.row = 64, .sequence = 1};
        outputs[1] = (tr_output){.row = 65, .sequence = 3};
    }
}

/* Reads the sample, whose payload pointer must be set late: the struct is moved about. */
static tr_status sample_read(sample *s, tr_step_view *v, tr_error *err)
{
    s->msg.payload = &s->buf;
    return tr_step_read(v, &s->msg, &limits, err);
}

static void every_kind_reads_back(void **state)
{
    static const tr_msg_kind kinds[] = {TR_MSG_STEP,        TR_MSG_RESIDUAL,  TR_MSG_ATTENTION_ROWS,
                                        TR_MSG_EXPERT_ROWS, TR_MSG_PARTIAL,   TR_MSG_FINAL_ROWS,
                                        TR_MSG_NGRAM_ROWS,  TR_MSG_NGRAM_ADD, TR_MSG_LOGITS};
    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        sample s;
        tr_step_view v;
        tr_error err = {0};
        sample_make(&s, kinds[i]);
        if (sample_read(&s, &v, &err) != TR_OK)
            print_error("%s: %s\n", tr_msg_kind_name(kinds[i]), err.text);
        CHECK_STATUS(sample_read(&s, &v, &err), TR_OK);
        assert_int_equal(v.head.rows_count, s.head->rows_count);
        free(s.buf.data);
    }
}

typedef struct {
    const char *what;
    tr_msg_kind kind;
    void (*spoil)(sample *s);
    const char *named;
} spoilt;

static tr_segment *segments_of(sample *s)
{
    return (void *)(s->buf.data + s->head->segments_offset);
}

static tr_output *outputs_of(sample *s)
{
    return (void *)(s->buf.data + s->head->outputs_offset);
}

static void too_many_rows(sample *s)
{
    s->head->rows_count = 129;
}
static void huge_rows(sample *s)
{
    s->head->rows_count = UINT32_MAX;
}
static void too_many_segments(sample *s)
{
    s->head->segments_count = UINT32_MAX / 16;
}
static void too_many_outputs(sample *s)
{
    s->head->outputs_count = 17;
}
static void layer_past_the_end(sample *s)
{
    s->head->layer = 8;
}
static void takes_from_nowhere(sample *s)
{
    segments_of(s)[1].takes = 4 + 1;
}
static void leaves_to_nowhere(sample *s)
{
    segments_of(s)[1].leaves = 4 + 1;
}
static void wrong_width(sample *s)
{
    s->head->width = 31;
}
static void offset_elsewhere(sample *s)
{
    s->head->rows_offset += 64;
}
static void payload_cut(sample *s)
{
    s->msg.header.payload_size -= 1;
}
static void payload_empty(sample *s)
{
    s->msg.header.payload_size = 0;
}
static void payload_longer(sample *s)
{
    s->msg.header.payload_size += 4;
}
static void sequence_past_the_end(sample *s)
{
    segments_of(s)[1].sequence = 4;
}
static void segment_without_rows(sample *s)
{
    segments_of(s)[1].rows_count = 0;
}
static void segments_do_not_cover(sample *s)
{
    segments_of(s)[1].rows_count = 2;
}
static void position_past_the_context(sample *s)
{
    segments_of(s)[1].first_position = 1000;
}
static void position_wraps(sample *s)
{
    segments_of(s)[1].first_position = UINT32_MAX;
}
static void prefill_off_the_grid(sample *s)
{
    segments_of(s)[0].first_position = 63;
}
static void unknown_form(sample *s)
{
    segments_of(s)[0].form = 2;
}
static void output_row_outside(sample *s)
{
    outputs_of(s)[1].row = 66;
}
static void output_sequence_outside(sample *s)
{
    outputs_of(s)[1].sequence = 99;
}
static void too_many_logprobs(sample *s)
{
    outputs_of(s)[0].top_logprobs = 21;
}
static void token_outside(sample *s)
{
    ((int32_t *)(void *)(s->buf.data + s->head->tokens_offset))[3] = 500;
}
static void token_negative(sample *s)
{
    ((int32_t *)(void *)(s->buf.data + s->head->tokens_offset))[3] = -1;
}
static void top_k_too_large(sample *s)
{
    s->head->first = TR_TOP_K_MAX + 1;
}
static void logits_past_the_vocabulary(sample *s)
{
    s->head->first = 401;
}
static void logits_past_the_outputs(sample *s)
{
    s->head->output_first = 15;
}

static void spoilt_payloads_are_refused_by_name(void **state)
{
    static const spoilt table[] = {
        {"too many rows", TR_MSG_STEP, too_many_rows, "rows_count"},
        {"huge rows", TR_MSG_PARTIAL, huge_rows, "rows_count"},
        {"too many segments", TR_MSG_STEP, too_many_segments, "segments_count"},
        {"too many outputs", TR_MSG_STEP, too_many_outputs, "outputs_count"},
        {"layer", TR_MSG_ATTENTION_ROWS, layer_past_the_end, "layer"},
        {"width", TR_MSG_ATTENTION_ROWS, wrong_width, "width"},
        {"width", TR_MSG_RESIDUAL, wrong_width, "width"},
        {"width", TR_MSG_NGRAM_ROWS, wrong_width, "width"},
        {"width", TR_MSG_NGRAM_ADD, wrong_width, "width"},
        {"offset", TR_MSG_ATTENTION_ROWS, offset_elsewhere, "offsets"},
        {"cut", TR_MSG_RESIDUAL, payload_cut, "bytes"},
        {"empty", TR_MSG_RESIDUAL, payload_empty, "bytes"},
        {"longer", TR_MSG_RESIDUAL, payload_longer, "bytes"},
        {"longer", TR_MSG_NGRAM_ADD, payload_longer, "bytes"},
        {"sums longer", TR_MSG_PARTIAL, payload_longer, "bytes"},
        {"sequence", TR_MSG_ATTENTION_ROWS, sequence_past_the_end, "segment.sequence"},
        {"takes", TR_MSG_ATTENTION_ROWS, takes_from_nowhere, "segment.takes"},
        {"leaves", TR_MSG_ATTENTION_ROWS, leaves_to_nowhere, "segment.leaves"},
        {"no rows", TR_MSG_ATTENTION_ROWS, segment_without_rows, "segment.rows_count"},
        {"not covered", TR_MSG_ATTENTION_ROWS, segments_do_not_cover, "rows_count"},
        {"not covered", TR_MSG_NGRAM_ROWS, segments_do_not_cover, "rows_count"},
        {"context", TR_MSG_STEP, position_past_the_context, "segment.first_position"},
        {"wrap", TR_MSG_STEP, position_wraps, "segment.first_position"},
        {"grid", TR_MSG_STEP, prefill_off_the_grid, "multiple of 64"},
        {"form", TR_MSG_STEP, unknown_form, "segment.form"},
        {"output row", TR_MSG_FINAL_ROWS, output_row_outside, "output.row"},
        {"output sequence", TR_MSG_FINAL_ROWS, output_sequence_outside, "output.sequence"},
        {"logprobs", TR_MSG_STEP, too_many_logprobs, "output.top_logprobs"},
        {"token", TR_MSG_STEP, token_outside, "token 500"},
        {"negative", TR_MSG_STEP, token_negative, "token -1"},
        {"token", TR_MSG_NGRAM_ROWS, token_outside, "NGRAM_ROWS: token 500"},
        {"negative", TR_MSG_RESIDUAL, token_negative, "RESIDUAL: token -1"},
        {"top_k", TR_MSG_EXPERT_ROWS, top_k_too_large, "top_k"},
        {"vocabulary", TR_MSG_LOGITS, logits_past_the_vocabulary, "first"},
        {"outputs", TR_MSG_LOGITS, logits_past_the_outputs, "output_first"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        sample s;
        tr_step_view v;
        tr_error err = {0};
        sample_make(&s, table[i].kind);
        table[i].spoil(&s);
        tr_status status = sample_read(&s, &v, &err);
        if (status != TR_E_INVALID || strstr(err.text, table[i].named) == NULL)
            print_error("%s: %s\n", table[i].what, err.text);
        CHECK_STATUS(status, TR_E_INVALID);
        CHECK_ERR_NAMES(err, table[i].named);
        free(s.buf.data);
    }
}

static void packed_sums_may_be_shorter_than_the_layout(void **state)
{
    sample s;
    tr_step_view v;
    (void)state;
    sample_make(&s, TR_MSG_PARTIAL);
    s.msg.header.payload_size = s.head->rows_offset + 66 * 32 * 4;
    CHECK_STATUS(sample_read(&s, &v, NULL), TR_OK);
    assert_int_equal(v.sums_size, 66 * 32 * 4);
    free(s.buf.data);
}

static void tokens_are_counted_before_they_are_believed(void **state)
{
    struct {
        tr_token_head head;
        tr_token tokens[2];
    } payload = {.head = {.count = 2}};
    tr_buf buf = {.data = (void *)&payload, .size = sizeof(payload), .capacity = sizeof(payload)};
    tr_msg msg = {.header = {.kind = TR_MSG_TOKENS, .payload_size = sizeof(payload)},
                  .payload = &buf};
    uint32_t count = 0;
    (void)state;
    assert_non_null(tr_tokens_read(&msg, 16, &count));
    assert_int_equal(count, 2);
    assert_null(tr_tokens_read(&msg, 1, &count));
    payload.head.count = 3;
    assert_null(tr_tokens_read(&msg, 16, &count));
    msg.header.payload_size = 8;
    assert_null(tr_tokens_read(&msg, 16, &count));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_reads_back),
        cmocka_unit_test(spoilt_payloads_are_refused_by_name),
        cmocka_unit_test(packed_sums_may_be_shorter_than_the_layout),
        cmocka_unit_test(tokens_are_counted_before_they_are_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
