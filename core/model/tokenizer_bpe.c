/* tokenizer_bpe.c - merges the bytes of one piece into tokens.
 *
 * Symbols are a doubly linked list in an array; candidates lie in a binary heap, lowest rank
 * first, leftmost at equal rank. A candidate whose pair has changed meanwhile is dropped when it
 * comes up, so a piece of n bytes costs O(n log n) whatever it is made of. */
#include "core/model/tokenizer_impl.h"

#include <assert.h>
#include <stdlib.h>

#define NO_SYMBOL UINT32_MAX
#define FREE_PAIR UINT64_MAX

static uint64_t merge_pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Ids are small and regular; multiplying spreads them over the upper bits. */
static uint32_t merge_hash(uint64_t pair)
{
    return (uint32_t)((pair * 0x9E3779B97F4A7C15u) >> 32);
}

tr_status tr_merges_init(tr_merges *merges, size_t count, const char *where, tr_error *err)
{
    uint32_t slots = 16;

    if (count > TR_TOKENS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %zu merges, expected at most %u", where, count,
                       TR_TOKENS_MAX);
    while (slots < 2 * count)
        slots *= 2;
    *merges = (tr_merges){.slots = malloc(slots * sizeof(*merges->slots)), .slots_mask = slots - 1};
    if (merges->slots == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %zu merges", where, count);
    for (uint32_t i = 0; i < slots; i++)
        merges->slots[i].pair = FREE_PAIR;
    return TR_OK;
}

void tr_merges_free(tr_merges *merges)
{
    free(merges->slots);
    *merges = (tr_merges){0};
}

/* The slot of the pair, or the free one where it would go: at most half are taken. */
static tr_merge *merge_slot(const tr_merges *merges, uint64_t pair)
{
    uint32_t at = merge_hash(pair) & merges->slots_mask;

    while (merges->slots[at].pair != FREE_PAIR && merges->slots[at].pair != pair)
        at = (at + 1) & merges->slots_mask;
    return &merges->slots[at];
}

bool tr_merges_add(tr_merges *merges, int32_t left, int32_t right, int32_t id, uint32_t rank)
{
    assert(left >= 0);
    assert(right >= 0);
    assert(merges->count <= merges->slots_mask / 2);
    tr_merge *slot = merge_slot(merges, merge_pair(left, right));
    if (slot->pair != FREE_PAIR)
        return false;
    *slot = (tr_merge){.pair = merge_pair(left, right), .rank = rank, .id = id};
    merges->count++;
    return true;
}

tr_status tr_merge_scratch_reserve(tr_merge_scratch *scratch, size_t size, tr_error *err)
{
    if (size <= scratch->capacity)
        return TR_OK;
    size_t capacity = scratch->capacity == 0 ? 256 : scratch->capacity;
    while (capacity < size)
        capacity *= 2;
    tr_merge_scratch_free(scratch);
    scratch->symbols = malloc(capacity * sizeof(*scratch->symbols));
    /* size - 1 candidates at first; each merge takes one out and puts at most two in. */
    scratch->heap = malloc(2 * capacity * sizeof(*scratch->heap));
    scratch->alphabet = malloc(2 * capacity);
    if (scratch->symbols == NULL || scratch->heap == NULL || scratch->alphabet == NULL) {
        tr_merge_scratch_free(scratch);
        return tr_fail(err, TR_E_NOMEM, "no memory to tokenize a piece of %zu bytes", size);
    }
    scratch->capacity = capacity;
    return TR_OK;
}

void tr_merge_scratch_free(tr_merge_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch->alphabet);
    *scratch = (tr_merge_scratch){0};
}

size_t tr_candidates_push(tr_candidate *heap, size_t count, tr_candidate candidate)
{
    size_t at = count;

    while (at > 0 && candidate.key < heap[(at - 1) / 2].key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = candidate;
    return count + 1;
}

size_t tr_candidates_pop(tr_candidate *heap, size_t count, tr_candidate *top)
{
    assert(count > 0);
    *top = heap[0];
    tr_candidate last = heap[--count];
    size_t at = 0;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1].key < heap[child].key)
            child++;
        if (last.key <= heap[child].key)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return count;
}

/* Pushes the pair that begins at symbol at, if it can merge. */
static size_t consider(const tr_merges *merges, const tr_symbol *symbols, tr_candidate *heap,
                       size_t count, uint32_t at)
{
    if (at == NO_SYMBOL || symbols[at].next == NO_SYMBOL)
        return count;
    int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    const tr_merge *merge = merge_slot(merges, merge_pair(left, right));
    if (merge->pair == FREE_PAIR)
        return count;
    return tr_candidates_push(heap, count,
                              (tr_candidate){.key = (uint64_t)merge->rank << 32 | at,
                                             .left = left,
                                             .right = right,
                                             .id = merge->id});
}

/* One symbol per byte. A byte without a token becomes the unknown token or vanishes. */
static uint32_t fill_symbols(const tr_tokenizer *t, tr_symbol *symbols, const char *bytes,
                             size_t size)
{
    uint32_t count = 0;
    bool after_unknown = false;

    for (size_t i = 0; i < size; i++) {
        int32_t id = t->byte_ids[(unsigned char)bytes[i]];
        bool unknown = id < 0;
        if (unknown && (t->unknown < 0 || (after_unknown && t->fuse_unknown)))
            continue;
        after_unknown = unknown;
        symbols[count] = (tr_symbol){.id = unknown ? t->unknown : id,
                                     .prev = count == 0 ? NO_SYMBOL : count - 1,
                                     .next = count + 1};
        count++;
    }
    if (count > 0)
        symbols[count - 1].next = NO_SYMBOL;
    return count;
}

tr_status tr_merge_piece(const tr_tokenizer *t, tr_merge_scratch *scratch, const char *bytes,
                         size_t size, tr_ids *out, tr_error *err)
{
    tr_candidate top;
    size_t heap_count = 0;

    if (size == 0)
        return TR_OK;
    if (size == 1 && t->byte_ids[(unsigned char)bytes[0]] >= 0) {
        tr_ids_push(out, t->byte_ids[(unsigned char)bytes[0]]);
        return TR_OK;
    }
    tr_status status = tr_merge_scratch_reserve(scratch, size, err);
    if (status != TR_OK)
        return status;

    if (t->ignore_merges) {
        size_t letters = tr_bytes_to_alphabet(bytes, size, scratch->alphabet);
        int32_t whole = tr_vocab_find(&t->vocab, scratch->alphabet, letters);
        /* Note: a special token's text is in the vocabulary too. Without this check a user could
         * write one where specials are off. */
        if (whole >= 0 && !t->special[whole]) {
            tr_ids_push(out, whole);
            return TR_OK;
        }
    }

    tr_symbol *symbols = scratch->symbols;
    tr_candidate *heap = scratch->heap;
    uint32_t count = fill_symbols(t, symbols, bytes, size);
    if (count == 0)
        return TR_OK;
    for (uint32_t i = 0; i + 1 < count; i++)
        heap_count = consider(&t->merges, symbols, heap, heap_count, i);

    while (heap_count > 0) {
        heap_count = tr_candidates_pop(heap, heap_count, &top);
        uint32_t at = (uint32_t)top.key;
        uint32_t next = symbols[at].next;
        if (symbols[at].id != top.left || next == NO_SYMBOL || symbols[next].id != top.right)
            continue; /* the pair is gone */
        symbols[at].id = top.id;
        symbols[at].next = symbols[next].next;
        symbols[next].id = -1;
        if (symbols[at].next != NO_SYMBOL)
            symbols[symbols[at].next].prev = at;
        heap_count = consider(&t->merges, symbols, heap, heap_count, symbols[at].prev);
        heap_count = consider(&t->merges, symbols, heap, heap_count, at);
        assert(heap_count < 2 * scratch->capacity);
    }
    for (uint32_t at = 0; at != NO_SYMBOL; at = symbols[at].next)
        tr_ids_push(out, symbols[at].id);
    return TR_OK;
}
