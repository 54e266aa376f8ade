/* tokenizer_spm.c - SentencePiece's BPE: merges by the scores of tokens instead of a list of pairs.
 *
 * Spaces are written U+2581 and a segment begins with one. Two neighbours merge when what they form
 * is a token, the highest score first, leftmost at equal score. Symbols lie at the offset of their
 * first byte, so a symbol's text needs no pointer; symbol.id is its size, 0 once it is merged. What
 * is no token in the end is spelled in byte tokens. */
#include "core/model/tokenizer_impl.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK      "\u2581"
#define BLOCK_SIZE 3

#define NO_SYMBOL UINT32_MAX

/* Of tokens that text never becomes: control, unknown and byte tokens. */
#define NO_RANK UINT32_MAX

/* ---- one piece ---- */

/* The token that is text, -1 when there is none that text may become. */
static int32_t spm_find(const tr_tokenizer *t, const char *text, size_t size)
{
    int32_t id = tr_vocab_find(&t->vocab, text, size);

    return id >= 0 && t->ranks[id] != NO_RANK ? id : -1;
}

/* Pushes the pair that begins at symbol at, if it can merge. */
static size_t spm_consider(const tr_tokenizer *t, const char *text, const tr_merge_scratch *scratch,
                           size_t count, uint32_t at)
{
    const tr_symbol *symbols = scratch->symbols;

    if (at == NO_SYMBOL || symbols[at].next == NO_SYMBOL)
        return count;
    int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    int32_t id = spm_find(t, text + at, (size_t)left + (size_t)right);
    if (id < 0)
        return count;
    return tr_candidates_push(
        scratch->heap, count,
        (tr_candidate){
            .key = (uint64_t)t->ranks[id] << 32 | at, .left = left, .right = right, .id = id});
}

/* One symbol per character; a byte that belongs to none is one itself. */
static void spm_fill(tr_symbol *symbols, const char *text, size_t size)
{
    uint32_t last = NO_SYMBOL;

    for (size_t at = 0; at < size;) {
        uint32_t code;
        size_t length = tr_utf8_decode(text + at, size - at, &code);
        if (length == 0)
            length = 1;
        symbols[at] = (tr_symbol){.id = (int32_t)length,
                                  .prev = last,
                                  .next = at + length < size ? (uint32_t)(at + length) : NO_SYMBOL};
        last = (uint32_t)at;
        at += length;
    }
}

static void spm_emit(const tr_tokenizer *t, const char *text, size_t size, tr_ids *out)
{
    int32_t id = spm_find(t, text, size);

    if (id >= 0) {
        tr_ids_push(out, id);
        return;
    }
    for (size_t i = 0; i < size; i++) {
        id = t->byte_ids[(unsigned char)text[i]];
        tr_ids_push(out, id >= 0 ? id : t->unknown);
    }
}

static tr_status spm_piece(const tr_tokenizer *t, tr_merge_scratch *scratch, const char *text,
                           size_t size, tr_ids *out, tr_error *err)
{
    tr_candidate top;
    size_t heap_count = 0;

    tr_status status = tr_merge_scratch_reserve(scratch, size, err);
    if (status != TR_OK)
        return status;
    tr_symbol *symbols = scratch->symbols;
    spm_fill(symbols, text, size);
    for (uint32_t at = 0; at != NO_SYMBOL; at = symbols[at].next)
        heap_count = spm_consider(t, text, scratch, heap_count, at);

    while (heap_count > 0) {
        heap_count = tr_candidates_pop(scratch->heap, heap_count, &top);
        uint32_t at = (uint32_t)top.key;
        uint32_t next = symbols[at].next;
        if (symbols[at].id != top.left || next == NO_SYMBOL || symbols[next].id != top.right)
            continue; /* the pair is gone */
        symbols[at].id += top.right;
        symbols[at].next = symbols[next].next;
        symbols[next].id = 0;
        if (symbols[at].next != NO_SYMBOL)
            symbols[symbols[at].next].prev = at;
        heap_count = spm_consider(t, text, scratch, heap_count, symbols[at].prev);
        heap_count = spm_consider(t, text, scratch, heap_count, at);
        assert(heap_count < 2 * scratch->capacity);
    }
    for (uint32_t at = 0; at != NO_SYMBOL; at = symbols[at].next)
        spm_emit(t, text + at, (size_t)symbols[at].id, out);
    return TR_OK;
}

/* ---- one segment ---- */

static bool is_block(const char *text, size_t size)
{
    return size >= BLOCK_SIZE && memcmp(text, BLOCK, BLOCK_SIZE) == 0;
}

/* Bytes up to the first block that stands behind something else: no token reaches over it. */
static size_t spm_piece_size(const char *text, size_t size)
{
    size_t at = 0;

    while (is_block(text + at, size - at))
        at += BLOCK_SIZE;
    while (at < size && !is_block(text + at, size - at))
        at++;
    return at;
}

/* Writes text with blocks for spaces to out [BLOCK_SIZE * (size + 1)], returns the size. */
static size_t spm_write_blocks(const tr_tokenizer *t, const char *text, size_t size, char *out)
{
    size_t used = 0;

    if (t->space_prefix) {
        memcpy(out, BLOCK, BLOCK_SIZE);
        used = BLOCK_SIZE;
    }
    for (size_t i = 0; i < size; i++) {
        if (text[i] == ' ') {
            memcpy(out + used, BLOCK, BLOCK_SIZE);
            used += BLOCK_SIZE;
        } else {
            out[used++] = text[i];
        }
    }
    return used;
}

tr_status tr_spm_encode(const tr_tokenizer *t, tr_merge_scratch *scratch, const char *text,
                        size_t size, tr_ids *out, tr_error *err)
{
    tr_status status = TR_OK;
    char *blocks = malloc(BLOCK_SIZE * (size + 1));

    if (blocks == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory to tokenize %zu bytes", size);
    size_t blocks_size = spm_write_blocks(t, text, size, blocks);
    for (size_t at = 0; at < blocks_size && status == TR_OK;) {
        size_t rest = blocks_size - at;
        size_t piece = t->cut_at_spaces ? spm_piece_size(blocks + at, rest) : rest;
        status = spm_piece(t, scratch, blocks + at, piece, out, err);
        at += piece;
    }
    free(blocks);
    return status;
}

/* ---- loading ---- */

typedef struct {
    float score;
    uint32_t id;
} spm_score;

static int spm_compare_scores(const void *a, const void *b)
{
    const spm_score *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static tr_status spm_rank(tr_tokenizer *t, const float *scores, const char *where, tr_error *err)
{
    uint32_t count = t->vocab.count, rank = 0;
    spm_score *order = malloc(count * sizeof(*order));

    t->ranks = malloc(count * sizeof(*t->ranks));
    if (order == NULL || t->ranks == NULL) {
        free(order);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %u scores", where, count);
    }
    for (uint32_t id = 0; id < count; id++)
        order[id] = (spm_score){.score = scores[id], .id = id};
    qsort(order, count, sizeof(*order), spm_compare_scores);
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 && order[i].score != order[i - 1].score)
            rank = i;
        t->ranks[order[i].id] = t->special[order[i].id] ? NO_RANK : rank;
    }
    free(order);
    return TR_OK;
}

/* Whether a space stands behind another character in any token that text can become. */
static bool spm_has_inner_space(const tr_tokenizer *t)
{
    for (uint32_t id = 0; id < t->vocab.count; id++) {
        const tr_token *token = &t->vocab.tokens[id];
        if (t->ranks[id] != NO_RANK &&
            spm_piece_size(token->text, token->text_size) < token->text_size)
            return true;
    }
    return false;
}

tr_status tr_spm_seal(tr_tokenizer *t, const float *scores, const char *where, tr_error *err)
{
    static const char digits[] = "0123456789ABCDEF";

    tr_added_seal(&t->added);
    tr_status status = spm_rank(t, scores, where, err);
    if (status != TR_OK)
        return status;
    for (int byte = 0; byte < 256; byte++) {
        char text[] = {'<', '0', 'x', digits[byte / 16], digits[byte % 16], '>'};
        int32_t id = tr_vocab_find(&t->vocab, text, sizeof(text));
        if (id >= 0 && t->vocab.tokens[id].bytes_size == 1)
            t->ranks[id] = NO_RANK;
        else
            id = -1;
        t->byte_ids[byte] = id;
        if (id < 0 && t->unknown < 0)
            return tr_fail(
                err, TR_E_INVALID,
                "%s: no token for byte 0x%02X and no unknown token, expected one of them", where,
                (unsigned int)byte);
    }
    /* A space is one byte of text, and no text may have more tokens than twice its bytes. */
    if (spm_find(t, BLOCK, BLOCK_SIZE) < 0)
        return tr_fail(err, TR_E_INVALID, "%s: no token for U+2581, which stands for a space",
                       where);
    t->cut_at_spaces = !spm_has_inner_space(t);
    return TR_OK;
}
