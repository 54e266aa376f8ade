/* messages.h - what the payload of each message kind holds.
 *
 * Data-plane payloads that describe a step share one form: a tr_step_head, segments, outputs, then
 * arrays whose place the head gives. They may come from another process, so the readers here check
 * every count and size before a pointer into the payload is handed out.
 *
 *   kind            from -> to                      answer       lost / twice
 *   STEP            batcher -> routers, first span  TOKENS       the step's deadline / refused
 *   RESIDUAL        router -> routers, next span    -            likewise
 *   ATTENTION_ROWS  router -> attention shards      PARTIAL      likewise
 *   EXPERT_ROWS     router -> expert shards         PARTIAL      likewise
 *   PARTIAL         shard -> routers of the span    -            likewise
 *   FINAL_ROWS      router, last span -> samplers   LOGITS       likewise
 *   LOGITS          sampler -> lead sampler         -            likewise
 *   TOKENS          lead sampler -> batcher         -            likewise
 *   NGRAM_ROWS      router -> n-gram tables         NGRAM_ADD    likewise
 *   NGRAM_ADD       n-gram tables -> routers        -            likewise
 *   PING            probe -> expert shards          PONG         the probe's deadline
 *   STEP_FAILED     anyone -> batcher               -            the step's deadline
 *   KV_RESERVE      batcher -> KV pools             KV_RESERVED  the request's deadline
 *   KV_RELEASE      batcher -> KV pools             KV_RELEASED  the death of the pool's node
 *   KV_LEASE        KV pool -> shard beside it      -            same process
 *   KV_REVOKE       likewise                        KV_RETURNED  same process
 *   SUBMIT, CANCEL  client -> batcher               EVENT        same process or lossless transport
 *   EVENT           batcher -> client
 *   LOGITS_ROW      lead sampler -> client
 *   HIDDEN_ROWS     span's first router, lead sampler -> client */
#ifndef TR_ACTORS_MESSAGES_H
#define TR_ACTORS_MESSAGES_H

#include "actors/client.h"
#include "core/message.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_SEQUENCES_MAX   256  /* sequences at once in a cluster */
#define TR_STEP_ROWS_LIMIT 4096 /* rows of one step, upper bound for any placement file */
#define TR_TOP_K_MAX       64   /* routed experts per row */

/* Which form of a recurrence computes a segment. Both are exact to rounding, but their bits differ,
 * so the batcher decides once: prompt positions are PREFILL, generated ones are DECODE, also when
 * a sequence is read again. */
typedef enum { TR_FORM_DECODE = 0, TR_FORM_PREFILL = 1 } tr_segment_form;

/* Consecutive rows of a step that belong to one sequence. */
typedef struct {
    uint16_t sequence; /* slot, < TR_SEQUENCES_MAX */
    uint16_t takes; /* 1 + slot whose state slot is copied to the sequence's before the first row;
                       0: none. What is in pages is shared by the leases. */
    uint16_t
        leaves; /* 1 + slot to which the sequence's state slot is copied before that; 0: none */
    uint16_t rows_count;
    uint32_t first_position; /* of its first row; PREFILL: a multiple of TR_CHUNK_ROWS */
    uint16_t form;           /* tr_segment_form */
    uint16_t
        generation; /* of the slot's lease: rows of a step that failed cannot touch the next one */
} tr_segment;

#define TR_OUTPUT_SAMPLE   1u  /* draw a token from this row */
#define TR_OUTPUT_EXPORT   2u  /* send the row of logits to the client */
#define TR_OUTPUT_LOGPROBS 4u  /* compute logprobs of the drawn token and the top ones */
#define TR_OUTPUT_FAILED   8u  /* the row met NaN or infinity; set by a router */
#define TR_OUTPUT_HIDDEN   16u /* send the residual before each layer to the client */

/* A row whose logits somebody wants, with all that the sampler must know: it keeps no state. */
typedef struct {
    uint32_t row; /* of the step, < rows_count */
    uint32_t sequence;
    uint32_t position; /* of the row in its sequence */
    uint32_t flags;    /* TR_OUTPUT_* */
    uint64_t request;
    uint64_t client; /* tr_actor_id, for EXPORT and HIDDEN */
    tr_sampling sampling;
    uint32_t top_logprobs; /* <= TR_TOP_LOGPROBS_MAX */
    uint32_t reserved;
} tr_output;

/* Opens every step-shaped payload. Offsets are bytes from the payload's start; 0: absent. */
typedef struct {
    uint32_t rows_count;
    uint32_t segments_count;
    uint32_t outputs_count;
    uint32_t layer; /* of ATTENTION_ROWS, EXPERT_ROWS, RESIDUAL, PARTIAL, NGRAM_* */
    uint32_t width; /* columns of rows: hidden_size; RESIDUAL, NGRAM_*: streams * hidden_size;
                       LOGITS: vocabulary rows in the message */
    uint32_t first; /* LOGITS: first vocabulary row; EXPERT_ROWS: top_k; otherwise 0 */
    uint32_t segments_offset; /* tr_segment [segments_count] */
    uint32_t outputs_offset;  /* tr_output [outputs_count] */
    uint32_t tokens_offset;   /* i32 [rows_count] */
    uint32_t exponent_offset; /* i32 [rows_count] */
    uint32_t flags_offset;    /* u8 [rows_count] */
    uint32_t expert_offset;   /* u32 [rows_count, top_k] */
    uint32_t weight_offset;   /* f32 [rows_count, top_k] */
    uint32_t rows_offset;     /* f32 [rows_count, width], or packed sums (PARTIAL) to the end */
    uint32_t output_first;    /* LOGITS: its rows are outputs output_first .. + rows_count */
    uint32_t reserved;
} tr_step_head;

static_assert(sizeof(tr_step_head) == 64, "one cache line, and the wire format");
static_assert(sizeof(tr_segment) == 16, "wire format");
static_assert(sizeof(tr_output) == 64, "wire format");

/* The sub-layer that a PARTIAL answers, in tr_msg_header.argument. */
typedef enum { TR_SUB_ATTENTION = 0, TR_SUB_CHANNEL = 1 } tr_sub_layer;

/* What one kind's payload must contain; checked by tr_step_read. */
typedef struct {
    uint32_t rows_max;    /* largest rows_count */
    uint32_t outputs_max; /* largest outputs_count */
    uint32_t sequences_max;
    uint32_t context_max;
    uint32_t layers_count;
    uint32_t hidden_size;
    uint32_t bank_size; /* columns of RESIDUAL and NGRAM_*: streams * hidden_size */
    uint32_t vocab_size;
} tr_step_limits;

/* A checked view into a step-shaped payload; borrows from the message. Arrays that the kind does
 * not have are NULL. */
typedef struct {
    tr_step_head head;
    const tr_segment *segments;
    const tr_output *outputs;
    const int32_t *tokens;
    const int32_t *exponent;
    const uint8_t *flags;
    const uint32_t *expert;
    const float *weight;
    const float *rows;   /* all kinds but PARTIAL */
    const uint8_t *sums; /* PARTIAL */
    size_t sums_size;
} tr_step_view;

/* Checks msg (STEP, RESIDUAL, NGRAM_*, ATTENTION_ROWS, EXPERT_ROWS, PARTIAL, FINAL_ROWS or LOGITS)
 * against limits: counts, offsets inside the payload and aligned, segments in order that cover the
 * rows, positions inside the context, token ids inside the vocabulary, output rows inside the step.
 * errors  TR_E_INVALID naming kind, field, found, allowed. Thread: any. */
tr_status tr_step_read(tr_step_view *out, const tr_msg *msg, const tr_step_limits *limits,
                       tr_error *err);

/* Lays out a step-shaped payload of a kind in place.
 *
 *   head  in: counts, layer, width, first, output_first; out: all offsets that the kind has
 *
 * Returns the payload's size in bytes; sums counts as rows_count * width * 8, to be cut by the
 * writer. The arrays are 64-byte aligned. */
uint32_t tr_step_layout(tr_step_head *head, tr_msg_kind kind);

/* Writable array of a payload that was laid out so. */
static inline void *tr_step_at(tr_buf *buf, uint32_t offset)
{
    assert(offset != 0);
    assert(offset <= buf->capacity);
    return buf->data + offset;
}

/* TOKENS: tr_token_head, then tr_token [count]. */
typedef struct {
    uint32_t count;
    uint32_t reserved[15];
} tr_token_head;

typedef struct {
    uint64_t request;
    uint32_t sequence;
    int32_t token;   /* drawn token; -1 when the output was for export only */
    uint32_t failed; /* 1: the row met NaN or infinity */
    float logprob;   /* 0 unless asked for */
    uint32_t top_count;
    uint32_t reserved;
    tr_logprob top[TR_TOP_LOGPROBS_MAX];
} tr_token;

/* The tokens of a message after all counts were checked, NULL otherwise. */
const tr_token *tr_tokens_read(const tr_msg *msg, uint32_t outputs_max, uint32_t *count);

/* KV_RESERVE: argument = sequence; payload tr_kv_reserve. KV_RESERVED: argument = sequence, payload
 * tr_kv_reserved. KV_RELEASE, KV_RELEASED, KV_REVOKE, KV_RETURNED: argument = sequence. */
typedef struct {
    uint64_t tokens;       /* most positions that the sequence will have */
    uint32_t generation;   /* low 16 bits count the leases of the slot */
    uint16_t shared_with;  /* slot, leased, whose first pages the sequence shares */
    uint16_t shared_pages; /* how many; 0: none */
} tr_kv_reserve;

static_assert(sizeof(tr_kv_reserve) == 16, "wire format");

typedef struct {
    uint32_t admitted; /* 1 or 0 */
    uint32_t node;
} tr_kv_reserved;

/* KV_LEASE: argument = sequence. Memory that the attention shard owns until it answers KV_REVOKE;
 * never leaves the process. Followed by the page addresses. */
typedef struct {
    uint8_t *state; /* recurrent and convolution state, zeroed */
    uint32_t pages_count;
    uint32_t generation;
    uint8_t *pages[]; /* [pages_count] */
} tr_kv_lease;

/* SUBMIT: tr_submit, then i32 tokens [tokens_count]. CANCEL: step field unused, payload tr_cancel.
 */
typedef struct {
    uint64_t request;
    uint32_t tokens_count;
    uint32_t tokens_max;
    tr_sampling sampling;
    int32_t stop_tokens[TR_STOP_TOKENS_MAX];
    uint32_t stop_tokens_count;
    uint32_t want_logits;
    uint32_t prefill_rows;
    uint32_t want_logprobs;
    uint32_t top_logprobs;
    uint32_t want_hidden;
} tr_submit;

typedef struct {
    uint64_t request;
} tr_cancel;

/* EVENT: one tr_event, without pointers. LOGITS_ROW: tr_logits_row, then f32 [vocab_size].
 * HIDDEN_ROWS: tr_hidden_rows, then f32 [rows_count, width]. */
typedef struct {
    uint64_t request;
    uint32_t position;
    uint32_t width;
    uint8_t reserved[48];
} tr_logits_row;

typedef struct {
    uint64_t request;
    uint32_t position; /* of the first row */
    uint32_t rows_count;
    uint32_t layer; /* that the rows enter; layers_count: the output matrix */
    uint32_t width;
    uint8_t reserved[40];
} tr_hidden_rows;

static_assert(sizeof(tr_logits_row) == 64, "the row behind it is aligned");
static_assert(sizeof(tr_hidden_rows) == 64, "the rows behind it are aligned");

#endif
