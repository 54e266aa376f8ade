/* cluster_snapshot.c - the coordinator's half of snapshots: states of all sequences and of kept
 * prefixes into a file (snapshot.h), and from one.
 *
 *   snapshot  the batcher pauses; of every slot the nodes are asked for the parts that they hold;
 *             the batcher goes on; the file is put on the disk and gets its name
 *   restore   the file is checked; for every state in it the batcher reserves a slot, the nodes get
 *             the parts that stand on them, and the batcher may use it. Steps run on: nobody else
 *             looks at that slot before.
 *
 * Both run in the order of the changes of placement, so no part moves meanwhile. */
#include "actors/cluster_fetch.h"
#include "actors/cluster_moves.h"
#include "core/model/model.h"

#include <stdlib.h>
#include <string.h>

#define SNAPSHOT_PAUSE_NS 30000000000u  /* the longest step */
#define SNAPSHOT_CALL_NS  15000000000u  /* a control call with states */
#define SNAPSHOT_WRITE_NS 120000000000u /* streams wait meanwhile */
#define SNAPSHOT_LOAD_NS  600000000000u /* a file from a slow disk */
#define SNAPSHOT_WINDOW   (8u << 20)    /* bytes of neighbouring pieces, unless one has more */

typedef struct {
    cluster_piece piece;
    uint32_t nodes; /* bit per node on which its part stands */
    size_t size;
} window_piece;

/* Neighbouring pieces of the file, for one call to each node. */
typedef struct {
    window_piece pieces[CLUSTER_PIECES_MAX];
    uint32_t count;
    size_t bytes;
} states_window;

typedef struct states_run states_run;

/* One pass over the parts of a slot. */
struct states_run {
    cluster_moves *moves;
    tr_plan plan; /* owns; the current one */
    tr_snapshot_writer *writer;
    const tr_snapshot *file;
    states_window *window;               /* owns */
    tr_status (*flush)(states_run *run); /* what is done with a window */
    uint64_t at;                         /* reading: where the next part begins */
    uint64_t deadline;                   /* of the whole job */
    tr_change_report *report;
    tr_status status;
    tr_error *err;
};

static tr_status states_begin(states_run *run, tr_error *err)
{
    run->window = calloc(1, sizeof(*run->window));
    if (run->window == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory to copy states");
    tr_status status = tr_cluster_plan(run->moves->cluster, &run->plan, err);
    if (status != TR_OK)
        free(run->window);
    return status;
}

static void states_end(states_run *run)
{
    free(run->window);
    tr_plan_free(&run->plan);
}

static void head_of(tr_snapshot_head *out, const tr_cluster *c)
{
    tr_snapshot_head_make(out, c->node.spec);
    out->model = tr_model_identity(c->model);
    out->fingerprint = c->fingerprint;
    out->activations = c->placement->activations_nvfp4;
    out->ngram_size = (uint32_t)tr_ngram_sequence_size(&c->node);
}

static tr_status states_call(states_run *run, uint32_t node, const msgpack_sbuffer *request,
                             tr_control_reply *reply)
{
    cluster_moves *m = run->moves;
    tr_cluster *c = m->cluster;
    const char *name = c->placement->nodes[node].name;
    tr_error why = {0};

    tr_control_reply_init(reply);
    if (!cluster_is_alive(c, node))
        return tr_fail(run->err, TR_E_PEER, "node %s is gone", name);
    if (cluster_now(c) > run->deadline || atomic_load(&c->stopping))
        return tr_fail(run->err, TR_E_TIMEOUT, "the states have not been copied in time");
    tr_status status = cluster_call_node(c, &m->lines, node, request,
                                         cluster_after(c, SNAPSHOT_CALL_NS), reply, &why);
    return status == TR_OK ? status : tr_fail(run->err, status, "node %s: %.200s", name, why.text);
}

/* Lets the nodes give and take states for so long; 0: no longer. */
static tr_status states_open(states_run *run, uint64_t ns)
{
    const tr_cluster *c = run->moves->cluster;
    tr_status first = TR_OK;

    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        msgpack_sbuffer buffer;
        msgpack_packer pk;
        tr_control_reply reply;
        if (!cluster_is_alive(c, n))
            continue;
        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
        msgpack_pack_map(&pk, 2);
        tr_pack_text(&pk, "method", "states_open");
        tr_pack_u64(&pk, "ns", ns);
        tr_status status = states_call(run, n, &buffer, &reply);
        msgpack_sbuffer_destroy(&buffer);
        tr_control_reply_free(&reply);
        if (first == TR_OK)
            first = status;
    }
    return first;
}

/* -- pieces in windows -- */

static uint32_t nodes_of(const tr_kv_part *part, const tr_plan *plan)
{
    uint32_t nodes = 0;
    for (uint32_t n = 0; n < plan->nodes_count; n++)
        nodes |= (uint32_t)tr_kv_part_stands(part, plan, n) << n;
    return nodes;
}

static void window_flush(states_run *run)
{
    if (run->status == TR_OK && atomic_load(&run->moves->job_given_up))
        run->status =
            tr_fail(run->err, TR_E_CANCELED, "given up: a node was lost, or the cluster ends");
    if (run->status == TR_OK && run->window->count > 0)
        run->status = run->flush(run);
    run->window->count = 0;
    run->window->bytes = 0;
}

static void window_add_part(void *ctx, const tr_kv_part *part)
{
    states_run *run = ctx;
    const tr_slot_view *view = &run->moves->slot;
    states_window *w = run->window;
    uint32_t computed = view->slot.computed_count, done = 0;
    uint32_t pages =
        part->page_size > 0 ? (computed + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS : 0;
    size_t fits = part->page_size > 0 ? SNAPSHOT_WINDOW / part->page_size : 1;
    uint32_t most = fits > CLUSTER_PIECE_PAGES_MAX ? CLUSTER_PIECE_PAGES_MAX
                    : fits > 0                     ? (uint32_t)fits
                                                   : 1;

    do {
        uint32_t count = pages - done < most ? pages - done : most;
        window_piece piece = {.piece = {.sequence = view->number,
                                        .generation = view->generation,
                                        .layer = part->layer,
                                        .term = part->term,
                                        .page_first = done,
                                        .pages_count = count,
                                        .with_state = done == 0},
                              .nodes = nodes_of(part, &run->plan),
                              .size = (done == 0 ? part->state_size : 0) + count * part->page_size};
        if (w->count == CLUSTER_PIECES_MAX || w->bytes + piece.size > SNAPSHOT_WINDOW)
            window_flush(run);
        w->pieces[w->count++] = piece;
        w->bytes += piece.size;
        done += count;
    } while (run->status == TR_OK && done < pages);
}

/* Packs those pieces that a node is asked about. Returns their bytes; *count of them.
 *   first  only the nodes that are the first to have a part */
static size_t pack_pieces(msgpack_packer *pk, const states_window *w, uint32_t node, bool first,
                          uint32_t *count)
{
    cluster_piece pieces[CLUSTER_PIECES_MAX];
    size_t bytes = 0;
    *count = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        const window_piece *p = &w->pieces[i];
        if (first ? (uint32_t)__builtin_ctz(p->nodes) != node : !(p->nodes >> node & 1))
            continue;
        pieces[(*count)++] = p->piece;
        bytes += p->size;
    }
    if (pk != NULL)
        tr_pack_bytes(pk, "pieces", pieces, *count * sizeof(pieces[0]));
    return bytes;
}

/* -- snapshot -- */

static tr_status save_ask(states_run *run, uint32_t node, tr_control_reply *reply,
                          const uint8_t **bytes)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    uint32_t count;
    const void *from = NULL;
    size_t size = 0;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 2);
    tr_pack_text(&pk, "method", "states_read");
    size_t expected = pack_pieces(&pk, run->window, node, true, &count);
    tr_status status = count > 0 ? states_call(run, node, &buffer, reply) : TR_OK;
    msgpack_sbuffer_destroy(&buffer);
    if (status != TR_OK || count == 0)
        return status;
    if (!tr_map_bytes(reply->map, "bytes", &from, &size) || size != expected)
        return tr_fail(run->err, TR_E_INVALID, "states of sequence %u: %zu bytes, expected %zu",
                       run->moves->slot.number, size, expected);
    *bytes = from;
    return TR_OK;
}

/* Asks each node for its pieces, then writes them in their order. */
static tr_status save_window(states_run *run)
{
    const states_window *w = run->window;
    tr_control_reply replies[TR_NODES_MAX];
    const uint8_t *bytes[TR_NODES_MAX] = {NULL}; /* of each node: where its next piece begins */
    tr_status status = TR_OK;

    for (uint32_t n = 0; n < run->plan.nodes_count; n++)
        tr_control_reply_init(&replies[n]);
    for (uint32_t n = 0; n < run->plan.nodes_count && status == TR_OK; n++)
        status = save_ask(run, n, &replies[n], &bytes[n]);
    for (uint32_t i = 0; i < w->count && status == TR_OK; i++) {
        uint32_t node = (uint32_t)__builtin_ctz(w->pieces[i].nodes);
        status = tr_snapshot_add_state(run->writer, bytes[node], w->pieces[i].size, run->err);
        bytes[node] += w->pieces[i].size;
    }
    run->report->bytes += w->bytes;
    for (uint32_t n = 0; n < run->plan.nodes_count; n++)
        tr_control_reply_free(&replies[n]);
    return status;
}

static void save_ngram(states_run *run, uint32_t size)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    tr_control_reply reply;

    if (size == 0 || run->status != TR_OK)
        return;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 2);
    tr_pack_text(&pk, "method", "ngram_read");
    tr_pack_u64(&pk, "sequence", run->moves->slot.number);
    run->status = states_call(run, run->plan.ngram_node, &buffer, &reply);
    msgpack_sbuffer_destroy(&buffer);
    const void *bytes = NULL;
    size_t found = 0;
    if (run->status == TR_OK &&
        (!tr_map_bytes(reply.map, "bytes", &bytes, &found) || found != size))
        run->status =
            tr_fail(run->err, TR_E_INVALID, "n-gram state of sequence %u: %zu bytes, expected %u",
                    run->moves->slot.number, found, size);
    if (run->status == TR_OK)
        run->status = tr_snapshot_add_state(run->writer, bytes, size, run->err);
    tr_control_reply_free(&reply);
}

/* One slot of the batcher, if it holds something. */
static void save_slot(states_run *run, uint32_t number, const tr_snapshot_head *head)
{
    cluster_moves *m = run->moves;
    tr_slot_view *view = &m->slot;

    view->number = number;
    run->status = moves_ask_batcher(m, TR_SWITCH_DESCRIBE, SNAPSHOT_CALL_NS, run->err);
    if (run->status != TR_OK || view->slot.kind == TR_SNAPSHOT_END)
        return;
    run->status = tr_snapshot_add_slot(run->writer, &view->slot, view->tokens, run->err);
    tr_kv_each_part(m->cluster->node.spec, window_add_part, run);
    window_flush(run);
    save_ngram(run, head->ngram_size);
    run->report->prefixes += view->slot.kind == TR_SNAPSHOT_PREFIX;
    run->report->sequences += view->slot.kind == TR_SNAPSHOT_SEQUENCE;
    moves_phase(m, run->report, "write");
}

static tr_status save_all(cluster_moves *m, tr_change_report *report, tr_error *err)
{
    tr_cluster *c = m->cluster;
    states_run run = {.moves = m, .report = report, .flush = save_window, .err = err};
    tr_snapshot_head head;

    head_of(&head, c);
    tr_status status = states_begin(&run, err);
    if (status != TR_OK)
        return status;
    run.status = tr_snapshot_begin(&run.writer, m->job_path, &head, err);
    uint64_t begin = cluster_now(c);
    bool asked = run.status == TR_OK;
    if (asked)
        run.status = moves_ask_batcher(m, TR_SWITCH_PAUSE, SNAPSHOT_PAUSE_NS, err);
    run.deadline = cluster_after(c, SNAPSHOT_WRITE_NS);
    moves_phase(m, report, "write");
    if (run.status == TR_OK)
        run.status = states_open(&run, SNAPSHOT_WRITE_NS);
    for (uint32_t i = 0; i < c->node.limits.sequences_max && run.status == TR_OK; i++)
        save_slot(&run, i, &head);
    tr_error why = {0};
    status = run.status;
    if (asked) {
        run.err = &why;
        (void)states_open(&run, 0); /* they end by themselves */
        tr_status resumed = moves_ask_batcher(m, TR_SWITCH_RESUME, SNAPSHOT_CALL_NS, &why);
        report->pause_ns = cluster_now(c) - begin;
        if (status == TR_OK && resumed != TR_OK)
            status = tr_fail(err, resumed, "batcher: %.200s", why.text);
    }
    moves_phase(m, report, "sync");
    if (status == TR_OK)
        status = tr_snapshot_end(run.writer, &report->bytes, err);
    else
        tr_snapshot_abandon(run.writer);
    if (asked)
        moves_note_gap(m, report);
    states_end(&run);
    return status;
}

tr_status tr_cluster_snapshot(tr_cluster *c, const char *path, uint64_t *number, tr_error *err)
{
    return cluster_moves_begin_job(c, save_all, "snapshot to", "pause", path, number, err);
}

/* -- restore -- */

static tr_status load_send(states_run *run, uint32_t node, const uint8_t *bytes)
{
    const states_window *w = run->window;
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    tr_control_reply reply;
    uint32_t count;

    size_t size = pack_pieces(NULL, w, node, false, &count);
    if (count == 0)
        return TR_OK;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 3);
    tr_pack_text(&pk, "method", "states_write");
    (void)pack_pieces(&pk, w, node, false, &count);
    msgpack_pack_str_with_body(&pk, "bytes", 5);
    msgpack_pack_bin(&pk, size);
    for (uint32_t i = 0; i < w->count; bytes += w->pieces[i++].size)
        if (w->pieces[i].nodes >> node & 1)
            msgpack_pack_bin_body(&pk, bytes, w->pieces[i].size);
    tr_status status = states_call(run, node, &buffer, &reply);
    msgpack_sbuffer_destroy(&buffer);
    tr_control_reply_free(&reply);
    return status;
}

/* Reads the window, and gives each node its pieces. */
static tr_status load_window(states_run *run)
{
    const states_window *w = run->window;
    uint8_t *bytes = malloc(w->bytes > 0 ? w->bytes : 1);

    if (bytes == NULL)
        return tr_fail(run->err, TR_E_NOMEM, "no memory for %zu bytes of state", w->bytes);
    tr_status status = tr_snapshot_read(run->file, run->at, bytes, w->bytes, run->err);
    for (uint32_t n = 0; n < run->plan.nodes_count && status == TR_OK; n++)
        status = load_send(run, n, bytes);
    run->at += w->bytes;
    run->report->bytes += w->bytes;
    free(bytes);
    return status;
}

static void load_ngram(states_run *run, uint32_t size)
{
    const tr_slot_view *view = &run->moves->slot;
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    tr_control_reply reply;

    if (size == 0 || run->status != TR_OK)
        return;
    void *bytes = malloc(size);
    if (bytes == NULL) {
        run->status = tr_fail(run->err, TR_E_NOMEM, "no memory for %u bytes of state", size);
        return;
    }
    run->status = tr_snapshot_read(run->file, run->at, bytes, size, run->err);
    if (run->status == TR_OK) {
        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
        msgpack_pack_map(&pk, 5);
        tr_pack_text(&pk, "method", "ngram_write");
        tr_pack_u64(&pk, "sequence", view->number);
        tr_pack_u64(&pk, "generation", view->generation);
        tr_pack_u64(&pk, "position", view->slot.computed_count);
        tr_pack_bytes(&pk, "bytes", bytes, size);
        run->status = states_call(run, run->plan.ngram_node, &buffer, &reply);
        msgpack_sbuffer_destroy(&buffer);
        tr_control_reply_free(&reply);
    }
    free(bytes);
}

static bool fits_context(const tr_cluster *c, const tr_snapshot_slot *slot)
{
    uint64_t positions = slot->kind == TR_SNAPSHOT_SEQUENCE
                             ? (uint64_t)slot->prompt_count + slot->tokens_max
                             : slot->tokens_count;
    return positions <= c->node.limits.context_max;
}

/* One state of the file into a slot of the batcher, if there is room. */
static void load_entry(states_run *run, const tr_snapshot_entry *entry,
                       const tr_snapshot_head *head)
{
    cluster_moves *m = run->moves;
    tr_slot_view *view = &m->slot;

    if (!fits_context(m->cluster, &entry->slot)) {
        run->report->left++;
        return;
    }
    view->slot = entry->slot;
    view->taken = false;
    run->status = tr_snapshot_read_tokens(run->file, entry, head->vocab_size, 0,
                                          entry->slot.tokens_count, view->tokens, run->err);
    if (run->status != TR_OK)
        return;
    run->status = moves_ask_batcher(m, TR_SWITCH_ADOPT, SNAPSHOT_CALL_NS, run->err);
    if (run->status != TR_OK) { /* the batcher may have it yet, and nobody else will free it */
        (void)moves_ask_batcher(m, TR_SWITCH_DROP, SNAPSHOT_CALL_NS, NULL);
        return;
    }
    if (!view->taken) {
        run->report->left++;
        return;
    }
    run->at = entry->state_at;
    tr_kv_each_part(m->cluster->node.spec, window_add_part, run);
    window_flush(run);
    load_ngram(run, head->ngram_size);
    tr_error why = {0};
    tr_switch_what outcome = run->status == TR_OK ? TR_SWITCH_SETTLE : TR_SWITCH_DROP;
    tr_status settled = moves_ask_batcher(m, outcome, SNAPSHOT_CALL_NS, &why);
    if (run->status == TR_OK && settled != TR_OK)
        run->status = tr_fail(run->err, settled, "batcher: %.200s", why.text);
    if (run->status != TR_OK)
        return;
    run->report->prefixes += entry->slot.kind == TR_SNAPSHOT_PREFIX;
    run->report->sequences += entry->slot.kind == TR_SNAPSHOT_SEQUENCE;
    moves_phase(m, run->report, "load");
}

/* What there may be no room for comes last: sequences first, then prefixes, those first that were
 * used last. */
static int compare_entries(const void *a, const void *b)
{
    const tr_snapshot_entry *x = a, *y = b;
    if (x->slot.kind != y->slot.kind)
        return x->slot.kind < y->slot.kind ? 1 : -1;
    return x->slot.used < y->slot.used ? 1 : x->slot.used > y->slot.used ? -1 : 0;
}

static tr_status load_file(cluster_moves *m, tr_snapshot *file, const tr_snapshot_head *head,
                           tr_change_report *report, tr_error *err)
{
    tr_cluster *c = m->cluster;
    states_run run = {.moves = m,
                      .report = report,
                      .file = file,
                      .flush = load_window,
                      .deadline = cluster_after(c, SNAPSHOT_LOAD_NS),
                      .err = err};

    tr_status status = states_begin(&run, err);
    if (status != TR_OK)
        return status;
    moves_phase(m, report, "load");
    qsort(file->entries, file->entries_count, sizeof(file->entries[0]), compare_entries);
    run.status = states_open(&run, SNAPSHOT_LOAD_NS);
    for (uint32_t i = 0; i < file->entries_count && run.status == TR_OK; i++)
        load_entry(&run, &file->entries[i], head);
    status = run.status;
    tr_error why = {0};
    run.err = &why;
    (void)states_open(&run, 0); /* they end by themselves */
    states_end(&run);
    return status;
}

static tr_status load_all(cluster_moves *m, tr_change_report *report, tr_error *err)
{
    tr_snapshot_head head;

    head_of(&head, m->cluster);
    tr_snapshot *file = malloc(sizeof(*file));
    if (file == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory to read %.180s", m->job_path);
    tr_status status = tr_snapshot_open(file, m->job_path, &head, &m->job_given_up, err);
    if (status == TR_OK) {
        status = load_file(m, file, &head, report, err);
        tr_snapshot_close(file);
    }
    free(file);
    return status;
}

tr_status tr_cluster_restore(tr_cluster *c, const char *path, uint64_t *number, tr_error *err)
{
    return cluster_moves_begin_job(c, load_all, "restore from", "check", path, number, err);
}
