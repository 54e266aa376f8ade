/* batcher_prefix.c - states at the ends of prompts, kept for requests that begin with the same
 * tokens.
 *
 * A prefix is a slot like that of a sequence, so that moves, losses and the KV pools know nothing
 * else of it. It ends at a multiple of TR_CHUNK_ROWS in a prompt: there the bits of everything that
 * follows are those of a prompt that was read from its beginning. Generated positions are never in
 * it, because the other form of a recurrence has computed them.
 *
 *   a prefix   FREE --a sequence is on its way to the boundary--> RESERVING (shares its pages)
 *              RESERVING --KV_RESERVED by all pools--> KEPT, empty
 *              KEPT --the sequence's step that begins at the boundary ends--> KEPT, saved
 *              KEPT --room is needed, state lost, or its sequence ends before--> RELEASING
 *              RELEASING --KV_RELEASED by all pools--> FREE
 *
 * What lies in pages is shared by both leases, as a full page never changes. What lies in state
 * slots and n-gram tables is copied by their owners, layer by layer, before the first row of a
 * segment: from a sequence to its prefix (tr_segment.leaves), or from a prefix to the sequence that
 * begins with it (takes).
 *
 * A model that keeps nothing but pages can begin in the middle of a prefix, at any full page. For
 * the others a prompt that parts from a kept one also leaves its state where it parts. */
#include "actors/batcher.h"

#include <string.h>

#define SHARED_PAGES_MAX UINT16_MAX /* in a reservation */

static_assert(TR_KV_PAGE_TOKENS % TR_CHUNK_ROWS == 0 && TR_CHUNK_ROWS % TR_KV_PAGE_TOKENS == 0,
              "a prefix ends with a page and with a chunk");

static bool has_pages_only(const batcher_state *s)
{
    return s->node->kv.state_size == 0 && s->node->plan->shape.ngram_tables == 0;
}

static uint32_t slot_of(const batcher_state *s, const batcher_sequence *q)
{
    return (uint32_t)(q - s->sequences);
}

batcher_sequence *batcher_free_slot(batcher_state *s)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++)
        if (s->sequences[i].phase == SEQUENCE_FREE && s->sequences[i].events_count == 0)
            return &s->sequences[i];
    return NULL;
}

static uint32_t common_count(const int32_t *a, const int32_t *b, uint32_t count)
{
    uint32_t i = 0;
    if (memcmp(a, b, count * sizeof(*a)) == 0)
        return count;
    while (a[i] == b[i])
        i++;
    return i;
}

/* Positions of a prompt with which a prefix helps. At least one row is left to be computed. */
static uint32_t usable_count(const batcher_state *s, const batcher_sequence *prefix,
                             const batcher_sequence *q)
{
    uint32_t most = (q->prompt_count - 1) / TR_CHUNK_ROWS * TR_CHUNK_ROWS;
    if (most / TR_KV_PAGE_TOKENS > SHARED_PAGES_MAX) /* a longer one came from a file */
        most = SHARED_PAGES_MAX * TR_KV_PAGE_TOKENS;
    if (prefix->phase != SEQUENCE_KEPT || !prefix->saved || prefix->continues)
        return 0;
    if (!has_pages_only(s) && prefix->tokens_count > most)
        return 0;
    uint32_t count = prefix->tokens_count < most ? prefix->tokens_count : most;
    /* Long beginnings are often the same, ends are not. */
    if (count == 0 || (!has_pages_only(s) && prefix->tokens[count - 1] != q->tokens[count - 1]))
        return 0;
    uint32_t common =
        common_count(prefix->tokens, q->tokens, count) / TR_CHUNK_ROWS * TR_CHUNK_ROWS;
    return common == prefix->tokens_count || has_pages_only(s) ? common : 0;
}

/* The prefix that helps most, or NULL. */
static batcher_sequence *find_prefix(batcher_state *s, const batcher_sequence *q, uint32_t *count)
{
    batcher_sequence *best = NULL;
    *count = 0;
    for (uint32_t i = 0; s->prefixes_count > 0 && i < s->node->limits.sequences_max; i++) {
        uint32_t usable = s->sequences[i].is_prefix ? usable_count(s, &s->sequences[i], q) : 0;
        if (usable > *count) {
            best = &s->sequences[i];
            *count = usable;
        }
    }
    return best;
}

/* Where q parts from a prompt that was kept: others may part there, too, as behind a system prompt.
 * Where pages are all, whatever is kept serves up to there. */
static uint32_t fork_count(const batcher_state *s, const batcher_sequence *q)
{
    uint32_t most = 0;
    for (uint32_t i = 0; !has_pages_only(s) && i < s->node->limits.sequences_max; i++) {
        const batcher_sequence *p = &s->sequences[i];
        if (!p->is_prefix || p->phase == SEQUENCE_RELEASING || p->continues)
            continue;
        uint32_t count = p->tokens_count < q->prompt_count ? p->tokens_count : q->prompt_count;
        uint32_t common = common_count(p->tokens, q->tokens, count);
        most = common > most ? common : most;
    }
    return most / TR_CHUNK_ROWS * TR_CHUNK_ROWS;
}

bool batcher_begin(batcher_state *s, batcher_sequence *q)
{
    uint32_t count = 0;
    uint64_t tokens = (uint64_t)q->submit.tokens_count + q->submit.tokens_max;
    /* Who wants the logits of every position computes every position. */
    batcher_sequence *prefix = q->submit.want_logits ? NULL : find_prefix(s, q, &count);
    uint32_t pages = s->pages.pages_max > 0 ? count / TR_KV_PAGE_TOKENS : 0;

    if (!batcher_reserve(s, q, tokens, prefix, pages)) {
        /* One that would be taken whole holds nothing that the request does not. */
        if (!s->starved && !batcher_make_room(s, ROOM_PAGES, prefix) && prefix != NULL &&
            count < prefix->tokens_count)
            (void)batcher_make_room(s, ROOM_PAGES, NULL);
        return false;
    }
    q->computed_count = count;
    q->source = 0;
    q->heir = 0;
    q->boundary = q->boundary_next = 0;
    if (prefix != NULL) {
        q->source = 1 + slot_of(s, prefix);
        prefix->users_count++;
        prefix->used = ++s->uses;
    }
    uint32_t end = (q->prompt_count - 1) / TR_CHUNK_ROWS * TR_CHUNK_ROWS;
    if (s->node->prefixes_max > 0 && !q->submit.want_logits && end > count &&
        end / TR_KV_PAGE_TOKENS <= SHARED_PAGES_MAX) {
        uint32_t fork = fork_count(s, q);
        q->boundary = fork > count && fork < end ? fork : end;
        q->boundary_next = q->boundary < end ? end : 0;
    }
    return true;
}

/* -- to keep -- */

/* Whether somebody keeps, or is about to keep, what q would. */
static bool is_kept(const batcher_state *s, const batcher_sequence *q)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        const batcher_sequence *p = &s->sequences[i];
        if (p->is_prefix && !p->continues && p->phase != SEQUENCE_RELEASING && !p->replay &&
            p->tokens_count >= q->boundary &&
            (p->tokens_count == q->boundary || has_pages_only(s)) &&
            memcmp(p->tokens, q->tokens, q->boundary * sizeof(*q->tokens)) == 0)
            return true;
    }
    return false;
}

static void pass_boundary(batcher_sequence *q)
{
    q->boundary = q->boundary_next;
    q->boundary_next = 0;
}

/* Reserves a slot for what q is about to reach. */
static void keep_prefix(batcher_state *s, batcher_sequence *q)
{
    batcher_sequence *p = batcher_free_slot(s);

    if (is_kept(s, q)) {
        pass_boundary(q);
        return;
    }
    if (p == NULL || s->prefixes_count >= s->node->prefixes_max) {
        if (!batcher_make_room(s, ROOM_SLOT, NULL) && !s->paused)
            pass_boundary(q); /* all are in use */
        return;
    }
    int32_t *tokens = p->tokens;
    *p = (batcher_sequence){.tokens = tokens,
                            .tokens_count = q->boundary,
                            .prompt_count = q->boundary,
                            .computed_count = q->boundary,
                            .generation = p->generation,
                            .is_prefix = true,
                            .users_count = 1,
                            .used = ++s->uses};
    uint32_t pages = s->pages.pages_max > 0 ? q->boundary / TR_KV_PAGE_TOKENS : 0;
    if (!batcher_reserve(s, p, q->boundary, q, pages)) {
        p->is_prefix = false; /* no buffer: later */
        return;
    }
    memcpy(tokens, q->tokens, q->boundary * sizeof(*tokens));
    s->prefixes_count++;
    q->heir = 1 + slot_of(s, p);
}

void batcher_keep_prefixes(batcher_state *s)
{
    for (uint32_t i = 0; s->node->prefixes_max > 0 && i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if ((q->phase == SEQUENCE_READY || q->phase == SEQUENCE_IN_STEP) && q->boundary > 0 &&
            q->heir == 0 && !q->replay)
            keep_prefix(s, q);
    }
}

bool batcher_awaits_heir(const batcher_state *s, const batcher_sequence *q)
{
    return q->boundary > 0 && q->computed_count == q->boundary &&
           (q->heir == 0 || s->sequences[q->heir - 1].phase != SEQUENCE_KEPT);
}

/* -- ends -- */

static void leave_source(batcher_state *s, batcher_sequence *q)
{
    if (q->source == 0)
        return;
    assert(s->sequences[q->source - 1].users_count > 0);
    s->sequences[q->source - 1].users_count--;
    q->source = 0;
}

void batcher_end_exchange(batcher_state *s, batcher_sequence *q)
{
    q->exchanges = false;
    leave_source(s, q);
    if (q->heir == 0 || q->computed_count != q->boundary)
        return;
    batcher_sequence *p = &s->sequences[q->heir - 1];
    p->saved = true;
    p->users_count = 0;
    q->heir = 0;
    pass_boundary(q);
}

void batcher_forget_prefixes(batcher_state *s, batcher_sequence *q)
{
    uint32_t heir = q->heir;
    leave_source(s, q);
    q->exchanges = false;
    q->boundary = q->boundary_next = 0;
    q->heir = 0;
    if (heir != 0) /* after its sequence: late rows of a step that failed find neither */
        batcher_drop_prefix(s, &s->sequences[heir - 1]);
}

void batcher_drop_prefix(batcher_state *s, batcher_sequence *prefix)
{
    assert(prefix->is_prefix);
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (q->heir == 1 + slot_of(s, prefix)) {
            q->heir = 0;
            pass_boundary(q);
        }
        if (q->source == 1 + slot_of(s, prefix)) {
            assert(q->replay || s->lost.code != TR_OK); /* it does not go on from there */
            q->source = 0;
        }
    }
    prefix->saved = false;
    prefix->replay = false;
    batcher_release(s, prefix);
}

bool batcher_make_room(batcher_state *s, batcher_room room, const batcher_sequence *except)
{
    batcher_sequence *least = NULL;

    for (uint32_t i = 0; s->prefixes_count > 0 && i < s->node->limits.sequences_max; i++) {
        batcher_sequence *p = &s->sequences[i];
        if (!p->is_prefix)
            continue;
        if (p->phase == SEQUENCE_RELEASING)
            return true;
        if (room == ROOM_PAGES && !tr_page_book_has_own(&s->pages, i))
            continue; /* whoever shares its pages keeps them */
        if (p->phase == SEQUENCE_KEPT && p->users_count == 0 && p != except &&
            (least == NULL || p->used < least->used))
            least = p;
    }
    if (least == NULL || s->paused)
        return false;
    batcher_drop_prefix(s, least);
    return true;
}
