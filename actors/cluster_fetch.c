#include "actors/cluster_fetch.h"
#include "actors/cluster_states.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FETCH_ASK_NS     10000000000u /* microseconds, unless the machine is starved */
#define FETCH_CALL_NS    5000000000u  /* a control call with states */
#define FETCH_BYTES      (4u << 20)   /* of the pieces of one call, unless one has more */
#define FETCH_BYTES_MAX  (32u << 20)  /* that a node gives at once */
#define FETCH_LIVE_BYTES (256u << 10) /* that the attention shard copies between two messages */

bool cluster_part_comes(const tr_cluster *c, const tr_kv_part *part, const tr_plan *before,
                        const tr_plan *plan)
{
    return tr_kv_part_stands(part, plan, c->node_index) &&
           !tr_kv_part_stands(part, before, c->node_index);
}

/* Bytes of a piece, which has at most CLUSTER_PIECE_PAGES_MAX pages. */
static size_t piece_size(const cluster_piece *piece, const tr_kv_part *part)
{
    return (piece->with_state != 0 ? part->state_size : 0) + piece->pages_count * part->page_size;
}

/* -- what others are given -- */

tr_status cluster_ask_leases(tr_cluster *c, cluster_leases *out, tr_error *err)
{
    tr_switch question = {.what = TR_SWITCH_LEASES, .leases = out->rows};
    return cluster_ask(c, &c->questions, TR_ACTOR_ATTENTION_SHARD, &question,
                       cluster_after(c, FETCH_ASK_NS), err);
}

/* Whether peers may ask for states now. */
static tr_status fetch_may_read(tr_cluster *c, tr_error *err)
{
    cluster_lock(c, &c->change.lock);
    cluster_change_phase phase = c->change.phase;
    pthread_mutex_unlock(&c->change.lock);
    if (phase == CLUSTER_CHANGE_READY || phase == CLUSTER_CHANGE_FETCHING ||
        cluster_states_are_open(c))
        return TR_OK;
    return tr_fail(err, TR_E_INVALID, "states are given away only while the placement changes");
}

/* The parts of pieces, and their bytes together. */
static tr_status read_check(tr_cluster *c, const cluster_piece *pieces, uint32_t count, bool live,
                            tr_kv_part *parts, size_t *size, tr_error *err)
{
    *size = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!tr_kv_find_part(c->node.spec, pieces[i].layer, pieces[i].term, &parts[i]) ||
            pieces[i].sequence >= c->node.limits.sequences_max ||
            pieces[i].pages_count > CLUSTER_PIECE_PAGES_MAX || (live && pieces[i].with_state != 0))
            return tr_fail(err, TR_E_INVALID,
                           "state of sequence %u, layer %u, term %u: no such part",
                           pieces[i].sequence, pieces[i].layer, pieces[i].term);
        *size += piece_size(&pieces[i], &parts[i]);
        if (*size > FETCH_BYTES_MAX)
            return tr_fail(err, TR_E_INVALID, "states: more than %u bytes at once",
                           FETCH_BYTES_MAX);
    }
    return TR_OK;
}

static tr_status piece_not_held(const cluster_piece *piece, tr_error *err)
{
    return tr_fail(err, TR_E_INVALID, "state of sequence %u: it is not held here", piece->sequence);
}

tr_status cluster_piece_check(const tr_lease_view *lease, const cluster_piece *piece, tr_error *err)
{
    bool held = lease->held && lease->generation == (uint16_t)piece->generation &&
                piece->page_first <= lease->pages_count &&
                piece->pages_count <= lease->pages_count - piece->page_first;
    return held ? TR_OK : piece_not_held(piece, err);
}

const uint8_t *cluster_piece_place(const tr_lease_view *lease, const cluster_piece *piece,
                                   const tr_kv_part *part, const uint8_t *in)
{
    if (piece->with_state != 0 && part->state_size > 0) {
        memcpy(lease->state + part->state_offset, in, part->state_size);
        in += part->state_size;
    }
    for (uint32_t i = 0; part->page_size > 0 && i < piece->pages_count; i++, in += part->page_size)
        memcpy(lease->pages[piece->page_first + i] + part->page_offset, in, part->page_size);
    return in;
}

/* While nothing runs: straight from the leases, which the caller has asked for. */
static tr_status read_still(const cluster_leases *leases, const cluster_piece *piece,
                            const tr_kv_part *part, uint8_t *to, tr_error *err)
{
    const tr_lease_view *lease = &leases->rows[piece->sequence];

    tr_status status = cluster_piece_check(lease, piece, err);
    if (status != TR_OK)
        return status;
    if (piece->with_state != 0 && part->state_size > 0) {
        memcpy(to, lease->state + part->state_offset, part->state_size);
        to += part->state_size;
    }
    for (uint32_t i = 0; part->page_size > 0 && i < piece->pages_count; i++, to += part->page_size)
        memcpy(to, lease->pages[piece->page_first + i] + part->page_offset, part->page_size);
    return TR_OK;
}

/* While steps run: the actor itself copies full pages. questions.lock is held by the caller. */
static tr_status read_live(tr_cluster *c, const cluster_piece *piece, const tr_kv_part *part,
                           uint8_t *to, tr_error *err)
{
    size_t size = piece_size(piece, part);
    tr_page_copy *copy = cluster_lend(sizeof(*copy) + size);

    if (copy == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %zu bytes of state", size);
    *copy = (tr_page_copy){.sequence = piece->sequence,
                           .generation = piece->generation,
                           .page_first = piece->page_first,
                           .pages_count = piece->pages_count,
                           .offset = part->page_offset,
                           .size = part->page_size};
    tr_switch question = {.what = TR_SWITCH_PAGES, .copy = copy};
    tr_status status = cluster_ask(c, &c->questions, TR_ACTOR_ATTENTION_SHARD, &question,
                                   cluster_after(c, FETCH_ASK_NS), err);
    bool answered = status == TR_OK;
    if (answered && copy->held)
        memcpy(to, copy->bytes, size);
    else if (answered)
        status = piece_not_held(piece, err);
    cluster_take_back(c, copy, answered);
    return status;
}

tr_status cluster_change_read(tr_cluster *c, const cluster_piece *pieces, uint32_t count, bool live,
                              void **bytes, size_t *size, tr_error *err)
{
    tr_kv_part parts[CLUSTER_PIECES_MAX];

    if (count > CLUSTER_PIECES_MAX)
        return tr_fail(err, TR_E_INVALID, "states: %u pieces, expected at most %u", count,
                       CLUSTER_PIECES_MAX);
    tr_status status = read_check(c, pieces, count, live, parts, size, err);
    if (status == TR_OK)
        status = fetch_may_read(c, err);
    if (status != TR_OK)
        return status;
    uint8_t *out = malloc(*size > 0 ? *size : 1), *to = out;
    if (out == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %zu bytes of state", *size);
    cluster_lock(c, &c->questions.lock);
    if (!live)
        status = cluster_ask_leases(c, &c->change.asked, err);
    for (uint32_t i = 0; status == TR_OK && i < count; i++) {
        status = live ? read_live(c, &pieces[i], &parts[i], to, err)
                      : read_still(&c->change.asked, &pieces[i], &parts[i], to, err);
        to += piece_size(&pieces[i], &parts[i]);
    }
    pthread_mutex_unlock(&c->questions.lock);
    if (status == TR_OK)
        *bytes = out;
    else
        free(out);
    return status;
}

tr_status cluster_change_read_ngram(tr_cluster *c, uint32_t sequence, void **bytes, size_t *size,
                                    tr_error *err)
{
    *size = tr_ngram_sequence_size(&c->node);
    if (c->shape.ngram_tables == 0 || sequence >= c->node.limits.sequences_max)
        return tr_fail(err, TR_E_INVALID, "n-gram state of sequence %u: there is none", sequence);
    tr_status status = fetch_may_read(c, err);
    if (status != TR_OK)
        return status;
    uint8_t *out = malloc(*size), *copy = cluster_lend(*size);
    if (out == NULL || copy == NULL) {
        free(out);
        if (copy != NULL)
            cluster_take_back(c, copy, true);
        return tr_fail(err, TR_E_NOMEM, "no memory for %zu bytes of state", *size);
    }
    tr_switch question = {.what = TR_SWITCH_NGRAM, .sequence = sequence, .bytes = copy};
    cluster_lock(c, &c->questions.lock);
    status = cluster_ask(c, &c->questions, TR_ACTOR_NGRAM, &question,
                         cluster_after(c, FETCH_ASK_NS), err);
    if (status == TR_OK)
        memcpy(out, copy, *size);
    cluster_take_back(c, copy, status == TR_OK);
    pthread_mutex_unlock(&c->questions.lock);
    if (status == TR_OK)
        *bytes = out;
    else
        free(out);
    return status;
}

/* -- what comes -- */

typedef struct {
    tr_kv_part part;
    uint32_t source;
} coming_part;

/* All parts that come to this node, from the nodes that have them. */
typedef struct {
    tr_cluster *c;
    const tr_plan *before, *plan;
    bool live; /* steps run: full pages alone */
    cluster_lines lines;
    coming_part *parts; /* owns */
    uint32_t parts_count;

    /* the call that is being put together */
    uint32_t source;
    cluster_piece pieces[CLUSTER_PIECES_MAX];
    const tr_kv_part *pieces_parts[CLUSTER_PIECES_MAX];
    uint32_t pieces_count;
    size_t bytes;
} fetch_run;

static void count_coming(void *ctx, const tr_kv_part *part)
{
    fetch_run *f = ctx;
    f->parts_count += cluster_part_comes(f->c, part, f->before, f->plan);
}

static void list_coming(void *ctx, const tr_kv_part *part)
{
    fetch_run *f = ctx;
    uint32_t n = 0;

    if (!cluster_part_comes(f->c, part, f->before, f->plan))
        return;
    while (n < f->before->nodes_count && !tr_kv_part_stands(part, f->before, n))
        n++;
    f->parts[f->parts_count++] = (coming_part){.part = *part, .source = n};
}

/* Opens a run: what comes, and what memory the sequences have here. */
static tr_status fetch_open(fetch_run *f, tr_error *err)
{
    tr_cluster *c = f->c;

    tr_kv_each_part(c->node.spec, count_coming, f);
    f->parts = calloc(f->parts_count > 0 ? f->parts_count : 1, sizeof(*f->parts));
    if (f->parts == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a list of %u parts", f->parts_count);
    f->parts_count = 0;
    tr_kv_each_part(c->node.spec, list_coming, f);
    /* Not held while peers are asked: they may be asking us. */
    cluster_lock(c, &c->questions.lock);
    tr_status status = cluster_ask_leases(c, &c->change.ours, err);
    pthread_mutex_unlock(&c->questions.lock);
    return status;
}

static void fetch_close(fetch_run *f)
{
    cluster_close_lines(&f->lines);
    free(f->parts);
}

/* Others ask for the sum meanwhile. */
static void fetch_add_bytes(tr_cluster *c, size_t size)
{
    cluster_lock(c, &c->change.lock);
    c->change.bytes += size;
    pthread_mutex_unlock(&c->change.lock);
}

/* Puts what a peer answered where the sequences' memory is. */
static tr_status fetch_place(fetch_run *f, const msgpack_object *reply, tr_error *err)
{
    const void *bytes = NULL;
    size_t size = 0;

    if (!tr_map_bytes(reply, "bytes", &bytes, &size) || size != f->bytes)
        return tr_fail(err, TR_E_INVALID, "states: %zu bytes, expected %zu", size, f->bytes);
    const uint8_t *in = bytes;
    for (uint32_t p = 0; p < f->pieces_count; p++) {
        const cluster_piece *piece = &f->pieces[p];
        in = cluster_piece_place(&f->c->change.ours.rows[piece->sequence], piece,
                                 f->pieces_parts[p], in);
    }
    fetch_add_bytes(f->c, size);
    return TR_OK;
}

/* Asks for what has been put together. */
static tr_status fetch_flush(fetch_run *f, tr_error *err)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    tr_control_reply reply;

    if (f->pieces_count == 0)
        return TR_OK;
    if (atomic_load(&f->c->change.abandoned))
        return tr_fail(err, TR_E_CANCELED, "the change was given up");
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 3);
    tr_pack_text(&pk, "method", "states_read");
    tr_pack_bool(&pk, "live", f->live);
    tr_pack_bytes(&pk, "pieces", f->pieces, f->pieces_count * sizeof(*f->pieces));
    tr_status status = cluster_call_node(f->c, &f->lines, f->source, &buffer,
                                         cluster_after(f->c, FETCH_CALL_NS), &reply, err);
    msgpack_sbuffer_destroy(&buffer);
    if (status == TR_OK)
        status = fetch_place(f, reply.map, err);
    tr_control_reply_free(&reply);
    f->pieces_count = 0;
    f->bytes = 0;
    return status;
}

static tr_status fetch_add(fetch_run *f, const cluster_piece *piece, const tr_kv_part *part,
                           tr_error *err)
{
    size_t size = piece_size(piece, part);

    if (f->pieces_count == CLUSTER_PIECES_MAX || f->bytes + size > FETCH_BYTES) {
        tr_status status = fetch_flush(f, err);
        if (status != TR_OK)
            return status; /* what had been put together is still there */
    }
    assert(f->pieces_count < CLUSTER_PIECES_MAX);
    f->pieces[f->pieces_count] = *piece;
    f->pieces_parts[f->pieces_count++] = part;
    f->bytes += size;
    return TR_OK;
}

/* Pages of one part that one piece may have. */
static uint32_t fetch_pages_max(const fetch_run *f, const tr_kv_part *part)
{
    size_t most = (f->live ? FETCH_LIVE_BYTES : FETCH_BYTES) / (part->page_size + 1);
    return most < 1 ? 1 : most > CLUSTER_PIECE_PAGES_MAX ? CLUSTER_PIECE_PAGES_MAX : (uint32_t)most;
}

/* Pages first..end-1 of a sequence, and unless steps run its state, of all parts from one node. */
static tr_status fetch_sequence(fetch_run *f, uint32_t sequence, uint32_t first, uint32_t end,
                                tr_error *err)
{
    const tr_lease_view *lease = &f->c->change.ours.rows[sequence];
    tr_status status = TR_OK;

    if (end > lease->pages_count && f->c->node.kv.page_size > 0)
        return tr_fail(err, TR_E_INVALID, "sequence %u: %u pages, %u are held", sequence, end,
                       lease->pages_count);
    for (uint32_t i = 0; i < f->parts_count; i++) {
        const tr_kv_part *part = &f->parts[i].part;
        bool state = !f->live && part->state_size > 0;
        uint32_t page = part->page_size > 0 ? first : end, most = fetch_pages_max(f, part);
        if (f->parts[i].source != f->source)
            continue;
        while (status == TR_OK && (page < end || state)) {
            cluster_piece piece = {.sequence = sequence,
                                   .generation = lease->generation,
                                   .layer = part->layer,
                                   .term = part->term,
                                   .page_first = page,
                                   .pages_count = end - page < most ? end - page : most,
                                   .with_state = state};
            if (part->page_size == 0)
                piece.page_first = piece.pages_count = 0;
            status = fetch_add(f, &piece, part, err);
            page += piece.pages_count;
            state = false;
        }
    }
    return status;
}

/* Of a sequence that still is what it was: what is missing of its full pages. */
static tr_status fetch_live_sequence(fetch_run *f, uint32_t i, tr_error *err)
{
    cluster_change *change = &f->c->change;
    const tr_lease_view *lease = &change->ours.rows[i];
    const tr_sequence_place *place = &change->places[i];
    cluster_warm *warm = &change->warm[i];
    uint32_t full = place->position / TR_KV_PAGE_TOKENS;
    tr_status status = TR_OK;

    if (full == 0 || !lease->held || lease->generation != (uint16_t)place->generation)
        return TR_OK;
    if (warm->generation != place->generation)
        *warm = (cluster_warm){.generation = place->generation};
    if (full <= warm->pages)
        return TR_OK;
    for (f->source = 0; status == TR_OK && f->source < f->before->nodes_count; f->source++) {
        status = fetch_sequence(f, i, warm->pages, full, err);
        if (status == TR_OK)
            status = fetch_flush(f, err);
    }
    if (status == TR_OK)
        warm->pages = full;
    f->pieces_count = 0; /* of one that failed */
    f->bytes = 0;
    /* It may have ended meanwhile. Whatever else is wrong shows when it is fetched. */
    return status == TR_E_INVALID ? TR_OK : status;
}

tr_status cluster_fetch_full_pages(tr_cluster *c, tr_error *err)
{
    fetch_run f = {.c = c, .before = &c->view->plan, .plan = &c->change.view->plan, .live = true};

    tr_status status = fetch_open(&f, err);
    for (uint32_t i = 0; status == TR_OK && i < c->node.limits.sequences_max; i++)
        status = fetch_live_sequence(&f, i, err);
    fetch_close(&f);
    return status;
}

static tr_status fetch_ngram_sequence(fetch_run *f, uint32_t sequence, void *fresh, tr_error *err)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    tr_control_reply reply;
    const void *bytes = NULL;
    size_t size = 0, expected = tr_ngram_sequence_size(&f->c->node);

    if (atomic_load(&f->c->change.abandoned))
        return tr_fail(err, TR_E_CANCELED, "the change was given up");
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 2);
    tr_pack_text(&pk, "method", "ngram_read");
    tr_pack_u64(&pk, "sequence", sequence);
    tr_status status = cluster_call_node(f->c, &f->lines, f->before->ngram_node, &buffer,
                                         cluster_after(f->c, FETCH_CALL_NS), &reply, err);
    msgpack_sbuffer_destroy(&buffer);
    if (status != TR_OK) {
        tr_control_reply_free(&reply);
        return status;
    }
    if (!tr_map_bytes(reply.map, "bytes", &bytes, &size) || size != expected)
        status = tr_fail(err, TR_E_INVALID, "n-gram state of sequence %u: %zu bytes, expected %zu",
                         sequence, size, expected);
    else
        tr_ngram_import(fresh, sequence, bytes);
    fetch_add_bytes(f->c, size);
    tr_control_reply_free(&reply);
    return status;
}

/* Where the sequences stand in n-gram tables that come to this node. */
static tr_status fetch_ngram(fetch_run *f, tr_error *err)
{
    const cluster_change *change = &f->c->change;
    uint32_t actor = 0;

    if (f->c->shape.ngram_tables == 0 || f->plan->ngram_node != f->c->node_index ||
        f->before->ngram_node == f->c->node_index)
        return TR_OK;
    while (f->c->actors[actor].kind != TR_ACTOR_NGRAM)
        actor++;
    tr_status status = TR_OK;
    for (uint32_t i = 0; status == TR_OK && i < f->c->node.limits.sequences_max; i++)
        if (change->positions[i] > 0)
            status = fetch_ngram_sequence(f, i, change->view->actors[actor].fresh, err);
    return status;
}

tr_status cluster_fetch_states(tr_cluster *c, tr_error *err)
{
    const cluster_change *change = &c->change;
    fetch_run f = {.c = c, .before = &c->view->plan, .plan = &change->view->plan};

    tr_status status = fetch_open(&f, err);
    for (f.source = 0; status == TR_OK && f.source < f.before->nodes_count; f.source++) {
        for (uint32_t i = 0; status == TR_OK && i < c->node.limits.sequences_max; i++) {
            const tr_lease_view *lease = &change->ours.rows[i];
            uint32_t position = change->positions[i], full = position / TR_KV_PAGE_TOKENS;
            const cluster_warm *warm = &change->warm[i];
            uint32_t first = (uint16_t)warm->generation == lease->generation ? warm->pages : 0;
            if (position == 0 || !lease->held)
                continue;
            status = fetch_sequence(&f, i, first < full ? first : full,
                                    (position + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS, err);
        }
        if (status == TR_OK)
            status = fetch_flush(&f, err);
    }
    if (status == TR_OK)
        status = fetch_ngram(&f, err);
    fetch_close(&f);
    return status;
}
