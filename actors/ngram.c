/* ngram.c - owns the n-gram tables of a model: looks rows up by what the last tokens were, and
 * turns them into what routers add to the residual before a layer.
 *
 *   NGRAM_ROWS --> NGRAM_ADD to each router of the layer's span
 *
 *   a sequence, per table:   any --segment at position 0--> at its end (history and state fresh)
 *                            at p --segment at position p--> at its end
 *                            any --segment that takes from a sequence at its position--> at its end
 *                            anything else fails the step
 *
 * A table can be larger than the node's memory (51 GB in Qwen3.8-Flash-Next), so it is never
 * copied: rows are read through the mapping of the file. The mapping is told to expect no order;
 * the rows of a message are asked for together; what reading made resident is let go every
 * NGRAM_HELD_ROWS rows. These are the only system calls on the way of a token, for what takes a
 * disk a hundred times as long.
 *
 * owns     projections, norms, convolution state and last tokens of each sequence
 * sends    one NGRAM_ADD to each router of the span for each NGRAM_ROWS
 * load     one rows message per step in flight */
#include "actors/partial.h"
#include "actors/residual.h"
#include "actors/stamp.h"
#include "actors/switch.h"
#include "core/model/map.h"
#include "core/model/ngram.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A row that is read brings at most the 64 KiB around it into the mapping (what Linux maps at once
 * of what it has cached), so at most 64 MiB stay. */
#define NGRAM_HELD_ROWS 1024u

/* Where a sequence stands in a layer. */
typedef struct {
    uint16_t generation;
    bool begun;
    uint32_t position;                      /* of the next row */
    int32_t history[TR_NGRAM_SIZE_MAX - 1]; /* last tokens, the newest first */
    float *state;                           /* [(taps - 1) * size, width] */
} ngram_sequence;

typedef struct {
    tr_weight *parts; /* [spec.parts] in the mapped file */
    tr_matrix key, value;
    const float *key_norm, *query_norm, *conv_norm; /* [width] */
    const float *conv;                              /* [width, taps] */
    ngram_sequence *sequences;                      /* [sequences_max] */
    uint32_t held; /* rows read since what they made resident was let go */
} ngram_table;

typedef struct {
    const tr_env *env;
    const tr_node_context *node;
    tr_team *team;
    ngram_table *tables; /* [layers_count]; parts NULL where the layer has none */
    uint32_t *rows;      /* [rows_max, heads] of the table */
    float *embed;        /* [rows_max, embed_dim] */
    float *value;        /* [rows_max, hidden] */
    float *key, *query;  /* [rows_max, width] each */
} ngram_state;

static ngram_table ngram_load_table(const tr_node_context *node, uint32_t layer, tr_arena *arena)
{
    const tr_ngram_spec *n = &node->spec->layers[layer].ngram;
    float offset = node->spec->norm_offset;
    ngram_table t = {.parts = tr_arena_take(arena, n->parts * sizeof(*t.parts))};
    tr_weight w;

    for (uint32_t i = 0; t.parts != NULL && i < n->parts; i++)
        t.parts[i] = tr_model_weight(node->model, layer, TR_W_NGRAM_TABLE, i);
    w = tr_model_weight(node->model, layer, TR_W_NGRAM_KEY, 0);
    t.key = tr_arena_matrix(arena, "n-gram key_proj", &w);
    w = tr_model_weight(node->model, layer, TR_W_NGRAM_VALUE, 0);
    t.value = tr_arena_matrix(arena, "n-gram value_proj", &w);
    w = tr_model_weight(node->model, layer, TR_W_NGRAM_KEY_NORM, 0);
    t.key_norm = tr_arena_norm(arena, &w, offset);
    w = tr_model_weight(node->model, layer, TR_W_NGRAM_QUERY_NORM, 0);
    t.query_norm = tr_arena_norm(arena, &w, offset);
    w = tr_model_weight(node->model, layer, TR_W_NGRAM_CONV_NORM, 0);
    t.conv_norm = tr_arena_norm(arena, &w, offset);
    w = tr_model_weight(node->model, layer, TR_W_NGRAM_CONV, 0);
    t.conv = tr_arena_vector(arena, &w);
    return t;
}

static size_t ngram_state_size(const tr_node_context *node, uint32_t layer)
{
    return tr_ngram_history(&node->spec->layers[layer].ngram) * sizeof(float) *
           tr_residual_width(node->spec);
}

static void ngram_load_sequences(ngram_table *t, const tr_node_context *node, uint32_t layer,
                                 tr_arena *arena)
{
    uint32_t sequences = node->limits.sequences_max;

    t->sequences = tr_arena_take(arena, sequences * sizeof(*t->sequences));
    for (uint32_t i = 0; i < sequences; i++) {
        float *state = tr_arena_take(arena, ngram_state_size(node, layer));
        if (t->sequences != NULL)
            t->sequences[i].state = state;
    }
}

static void ngram_load_workspace(ngram_state *s, const tr_node_context *node, tr_arena *arena)
{
    size_t rows = node->limits.rows_max, width = tr_residual_width(node->spec);
    uint32_t embed = 0, heads = 0;

    for (uint32_t l = 0; l < node->spec->layers_count; l++) {
        const tr_ngram_spec *n = &node->spec->layers[l].ngram;
        if (n->size == 0)
            continue;
        embed = n->embed_dim > embed ? n->embed_dim : embed;
        heads = tr_ngram_heads(n) > heads ? tr_ngram_heads(n) : heads;
    }
    s->rows = tr_arena_take(arena, rows * heads * sizeof(*s->rows));
    s->embed = tr_arena_take(arena, rows * embed * sizeof(*s->embed));
    s->value = tr_arena_take(arena, rows * node->spec->hidden_size * sizeof(*s->value));
    s->key = tr_arena_take(arena, rows * width * sizeof(*s->key));
    s->query = tr_arena_take(arena, rows * width * sizeof(*s->query));
}

/* Whether the tables stand on this node; elsewhere the actor has nothing. */
static bool ngram_stands(const tr_node_context *node)
{
    return node->plan->shape.ngram_tables > 0 && node->plan->ngram_node == node->node_index;
}

/* Counts with a counting arena, loads with a real one. sizes [2]: bytes of weights and sequences.
 */
static void ngram_load(ngram_state *s, const tr_node_context *node, tr_arena *arena,
                       uint64_t sizes[2])
{
    uint32_t layers = node->spec->layers_count;

    sizes[0] = sizes[1] = 0;
    if (!ngram_stands(node))
        return;
    s->tables = tr_arena_take(arena, layers * sizeof(*s->tables));
    for (uint32_t l = 0; l < layers; l++) {
        if (node->spec->layers[l].ngram.size == 0)
            continue;
        uint64_t before = tr_arena_counted(arena);
        ngram_table t = ngram_load_table(node, l, arena);
        sizes[0] += tr_arena_counted(arena) - before;
        before = tr_arena_counted(arena);
        ngram_load_sequences(&t, node, l, arena);
        sizes[1] += tr_arena_counted(arena) - before;
        if (s->tables != NULL)
            s->tables[l] = t;
    }
    ngram_load_workspace(s, node, arena);
}

/* The table takes nothing, but people ask where it is. */
static void ngram_name_table(const tr_node_context *node, tr_budget *budget)
{
    uint64_t bytes = 0;
    char text[24], part[sizeof(budget->rows[0].part)];

    for (uint32_t l = 0; l < node->spec->layers_count; l++) {
        const tr_ngram_spec *n = &node->spec->layers[l].ngram;
        for (uint32_t i = 0; n->size > 0 && i < n->parts; i++) {
            tr_weight w = tr_model_weight(node->model, l, TR_W_NGRAM_TABLE, i);
            bytes += (uint64_t)w.rows * w.row_size;
        }
    }
    snprintf(part, sizeof(part), "n-gram table (%s, stays in the file)",
             tr_bytes_text(text, sizeof(text), bytes));
    tr_budget_add(budget, part, "", 0);
}

void tr_ngram_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    ngram_state s = {0};
    uint64_t before = tr_arena_counted(counting), sizes[2];

    if (!ngram_stands(node))
        return;
    ngram_load(&s, node, counting, sizes);
    ngram_name_table(node, budget);
    tr_budget_add(budget, "n-gram projections", "", sizes[0]);
    tr_budget_add(budget, "n-gram states", "limits.sequences", sizes[1]);
    tr_budget_add(budget, "n-gram workspaces", "limits.step_rows",
                  tr_arena_counted(counting) - before - sizes[0] - sizes[1]);
}

static uintptr_t ngram_page(void)
{
    return (uintptr_t)sysconf(_SC_PAGESIZE);
}

/* Advice about the whole pages of a table, which lie between other tensors. */
static void ngram_advise(const ngram_table *t, const tr_ngram_spec *n, int advice)
{
    uintptr_t page = ngram_page();

    for (uint32_t i = 0; i < n->parts; i++) {
        const tr_weight *w = &t->parts[i];
        uintptr_t begin = ((uintptr_t)w->data + page - 1) & ~(page - 1);
        uintptr_t end = ((uintptr_t)w->data + (size_t)w->rows * w->row_size) & ~(page - 1);
        if (begin < end)
            (void)madvise((void *)begin, end - begin, advice); /* nothing depends on it */
    }
}

static tr_status ngram_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    ngram_state *s = state;
    const tr_actor_config *c = config;
    uint64_t sizes[2];

    s->env = env;
    s->node = c->node;
    s->team = c->team;
    c->arena->err = err;
    ngram_load(s, c->node, c->arena, sizes);
    for (uint32_t l = 0; s->tables != NULL && l < c->node->spec->layers_count; l++)
        if (s->tables[l].parts != NULL)
            ngram_advise(&s->tables[l], &c->node->spec->layers[l].ngram, MADV_RANDOM);
    return c->arena->status;
}

/* bf16(x), ties to even. */
static float ngram_round(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static tr_weight ngram_row(const ngram_table *t, const tr_ngram_spec *n, uint32_t row)
{
    uint32_t part_rows = (uint32_t)(n->rows / n->parts);
    return tr_weight_slice(&t->parts[row / part_rows], row % part_rows, 1, 0, tr_ngram_row_size(n));
}

/* out [count, row size]: the rows, one after the other. All are asked for before the first is
 * waited for, so that a disk works on many at once. */
static void ngram_fetch(ngram_table *t, const tr_ngram_spec *n, const uint32_t *rows,
                        uint32_t count, float *out)
{
    uint32_t size = tr_ngram_row_size(n);
    uintptr_t page = ngram_page();

    for (uint32_t i = 0; i < count; i++) {
        tr_weight row = ngram_row(t, n, rows[i]);
        uintptr_t begin = (uintptr_t)row.data & ~(page - 1);
        uintptr_t end = (uintptr_t)row.data + row.row_size;
        (void)madvise((void *)begin, end - begin, MADV_WILLNEED); /* nothing depends on it */
    }
    for (uint32_t i = 0; i < count; i++, out += size) {
        tr_weight row = ngram_row(t, n, rows[i]);
        tr_weight_to_f32(out, &row);
        /* A table with a BF16 scale is made of BF16 products. */
        if (row.format == TR_FORMAT_FP8 && row.scales_format == TR_FORMAT_BF16)
            for (uint32_t d = 0; d < size; d++)
                out[d] = ngram_round(out[d]);
        if (++t->held == NGRAM_HELD_ROWS) {
            ngram_advise(t, n, MADV_DONTNEED);
            t->held = 0;
        }
    }
}

/* Whether the files have all that was read of them; what they have lost reads as zeros. */
static bool ngram_is_whole(const ngram_table *t, const tr_ngram_spec *n)
{
    bool whole = true;

    for (uint32_t i = 0; i < n->parts; i++)
        whole = whole && tr_map_is_whole(t->parts[i].data);
    return whole;
}

static void ngram_copy(ngram_table *t, uint32_t to, uint32_t from, size_t state_size)
{
    float *state = t->sequences[to].state;
    t->sequences[to] = t->sequences[from];
    t->sequences[to].state = state;
    memcpy(state, t->sequences[from].state, state_size);
}

/* A segment goes on where another sequence stands, or leaves its place to one. */
static tr_status ngram_exchange(ngram_table *t, const tr_segment *seg, size_t state_size)
{
    if (seg->takes != 0) {
        const ngram_sequence *other = &t->sequences[seg->takes - 1];
        if (!other->begun || other->position != seg->first_position)
            return TR_E_INVALID;
        ngram_copy(t, seg->sequence, seg->takes - 1, state_size);
        t->sequences[seg->sequence].generation = seg->generation;
    }
    const ngram_sequence *q = &t->sequences[seg->sequence];
    if (seg->leaves != 0) {
        if (!q->begun || q->generation != seg->generation || q->position != seg->first_position)
            return TR_E_INVALID;
        ngram_copy(t, seg->leaves - 1, seg->sequence, state_size);
    }
    return TR_OK;
}

/* rows [rows_count, heads]: of a segment's tokens. Moves the sequence on. */
static tr_status ngram_look_up(ngram_table *t, const tr_ngram_spec *n, const tr_segment *seg,
                               const int32_t *tokens, uint32_t *rows, size_t state_size)
{
    ngram_sequence *q = &t->sequences[seg->sequence];

    if (seg->first_position == 0) {
        *q = (ngram_sequence){.generation = seg->generation, .begun = true, .state = q->state};
        for (uint32_t j = 0; j + 1 < n->size; j++)
            q->history[j] = n->separator;
        memset(q->state, 0, state_size);
    } else if (!q->begun || q->generation != seg->generation ||
               q->position != seg->first_position) {
        return TR_E_INVALID; /* rows of a step that failed before this sequence began */
    }
    for (uint32_t i = 0; i < seg->rows_count; i++, rows += tr_ngram_heads(n)) {
        tr_ngram_rows(n, q->history, tokens[i], rows);
        for (uint32_t j = n->size - 2; j > 0; j--)
            q->history[j] = q->history[j - 1];
        q->history[0] = tokens[i];
    }
    q->position += seg->rows_count;
    return TR_OK;
}

/* add [T, width] from the rows in s->embed and the bank. */
static void ngram_compute(ngram_state *s, ngram_table *t, const tr_ngram_spec *n,
                          const tr_step_view *v, float *add)
{
    const tr_kernels *k = s->node->kernels;
    const tr_model_spec *spec = s->node->spec;
    uint32_t T = v->head.rows_count, D = spec->hidden_size, streams = tr_model_streams(spec);
    uint32_t width = streams * D, E = n->embed_dim;
    float eps = spec->rms_norm_eps;

    k->matmul(s->team, s->key, width, s->embed, E, NULL, &t->key, T);
    k->group_norm(s->team, s->key, s->key, t->key_norm, eps, streams, T, D);
    k->group_norm(s->team, s->query, v->rows, t->query_norm, eps, streams, T, D);
    k->matmul(s->team, s->value, D, s->embed, E, NULL, &t->value, T);
    k->ngram_gate(s->team, add, s->key, s->query, s->value, streams, T, D);
    k->group_norm(s->team, s->key, add, t->conv_norm, eps, streams, T, D);
    for (uint32_t i = 0, row = 0; i < v->head.segments_count; i++) {
        const tr_segment *seg = &v->segments[i];
        k->ngram_conv(s->team, add + (size_t)row * width, s->key + (size_t)row * width, t->conv,
                      t->sequences[seg->sequence].state, n->conv_taps, n->size, seg->rows_count,
                      width);
        row += seg->rows_count;
    }
}

static tr_status ngram_on_rows(ngram_state *s, const tr_msg *msg)
{
    tr_step_view v;
    tr_error why;

    tr_status status = tr_step_read(&v, msg, &s->node->limits, &why);
    if (status != TR_OK)
        return status;
    if (s->tables == NULL || s->tables[v.head.layer].parts == NULL)
        return TR_E_INVALID;
    ngram_table *t = &s->tables[v.head.layer];
    const tr_ngram_spec *n = &s->node->spec->layers[v.head.layer].ngram;
    uint64_t since = tr_clock_ns();

    tr_step_head head = {
        .rows_count = v.head.rows_count, .layer = v.head.layer, .width = v.head.width};
    tr_buf *buf = s->env->take(s->env->ctx, tr_step_layout(&head, TR_MSG_NGRAM_ADD));
    if (buf == NULL)
        return TR_E_NOMEM;
    memset(buf->data, 0, head.rows_offset); /* padding leaves the process */
    memcpy(buf->data, &head, sizeof(head));
    for (uint32_t i = 0, row = 0; i < v.head.segments_count && status == TR_OK; i++) {
        size_t state_size = ngram_state_size(s->node, v.head.layer);
        status = ngram_exchange(t, &v.segments[i], state_size);
        if (status == TR_OK)
            status = ngram_look_up(t, n, &v.segments[i], v.tokens + row,
                                   s->rows + (size_t)row * tr_ngram_heads(n), state_size);
        row += v.segments[i].rows_count;
    }
    if (status == TR_OK) {
        ngram_fetch(t, n, s->rows, v.head.rows_count * tr_ngram_heads(n), s->embed);
        status = ngram_is_whole(t, n) ? TR_OK : TR_E_INVALID; /* no answer from zeros */
    }
    if (status != TR_OK) {
        tr_buf_unref(buf);
        return status;
    }
    ngram_compute(s, t, n, &v, tr_step_at(buf, head.rows_offset));
    tr_stamp(TR_KERNEL_EMBED, s->env->self, msg->header.step, &since);
    return tr_routers_send(s->env, s->node, v.head.layer, TR_MSG_NGRAM_ADD, msg->header.step, 0,
                           buf);
}

/* Where the sequences stand lives on. */
static void ngram_adopt(void *fresh, void *state)
{
    ngram_state *f = fresh, *s = state;
    f->env = s->env;
    for (uint32_t l = 0; f->tables != NULL && s->tables != NULL && l < s->node->spec->layers_count;
         l++)
        for (uint32_t i = 0; s->tables[l].parts != NULL && i < s->node->limits.sequences_max; i++) {
            float *own = f->tables[l].sequences[i].state;
            memcpy(own, s->tables[l].sequences[i].state, ngram_state_size(s->node, l));
            f->tables[l].sequences[i] = s->tables[l].sequences[i];
            f->tables[l].sequences[i].state = own;
        }
}

/* -- where a sequence stands, as bytes: table after table the struct, then the convolution state --
 */

size_t tr_ngram_sequence_size(const tr_node_context *node)
{
    size_t size = 0;

    for (uint32_t l = 0; l < node->spec->layers_count; l++)
        if (node->spec->layers[l].ngram.size > 0)
            size += sizeof(ngram_sequence) + ngram_state_size(node, l);
    return size;
}

static void ngram_export(const ngram_state *s, const tr_switch *question)
{
    uint8_t *out = question->bytes;

    memset(out, 0, tr_ngram_sequence_size(s->node));
    for (uint32_t l = 0; s->tables != NULL && l < s->node->spec->layers_count; l++) {
        if (s->tables[l].parts == NULL)
            continue;
        ngram_sequence q = s->tables[l].sequences[question->sequence];
        memcpy(out + sizeof(q), q.state, ngram_state_size(s->node, l));
        q.state = NULL; /* an address of this node */
        memcpy(out, &q, sizeof(q));
        out += sizeof(q) + ngram_state_size(s->node, l);
    }
    tr_switch_done(question);
}

bool tr_ngram_stands_at(const tr_node_context *node, const uint8_t *bytes, uint32_t position)
{
    for (uint32_t l = 0; l < node->spec->layers_count; l++) {
        ngram_sequence q;
        if (node->spec->layers[l].ngram.size == 0)
            continue;
        memcpy(&q.position, bytes + offsetof(ngram_sequence, position), sizeof(q.position));
        if (bytes[offsetof(ngram_sequence, begun)] != 1 || q.position != position)
            return false;
        bytes += sizeof(q) + ngram_state_size(node, l);
    }
    return true;
}

void tr_ngram_import(void *fresh, uint32_t sequence, const uint8_t *bytes)
{
    ngram_state *s = fresh;

    for (uint32_t l = 0; l < s->node->spec->layers_count; l++) {
        if (s->tables[l].parts == NULL)
            continue;
        ngram_sequence *q = &s->tables[l].sequences[sequence];
        float *state = q->state;
        memcpy(q, bytes, sizeof(*q));
        q->begun = bytes[offsetof(ngram_sequence, begun)] == 1; /* any byte may have come */
        q->state = state;
        memcpy(state, bytes + sizeof(*q), ngram_state_size(s->node, l));
        bytes += sizeof(*q) + ngram_state_size(s->node, l);
    }
}

static void ngram_set(ngram_state *s, const tr_switch *question)
{
    tr_ngram_import(s, question->sequence, question->bytes);
    for (uint32_t l = 0; l < s->node->spec->layers_count; l++)
        if (s->tables[l].parts != NULL)
            s->tables[l].sequences[question->sequence].generation = question->generation;
    tr_switch_done(question);
}

static tr_status ngram_receive(void *state, const tr_msg *msg)
{
    ngram_state *s = state;
    const tr_switch *question = tr_switch_read(msg);

    if (question != NULL && question->what == TR_SWITCH_NGRAM)
        ngram_export(s, question);
    if (question != NULL && question->what == TR_SWITCH_NGRAM_SET && s->tables != NULL)
        ngram_set(s, question);
    tr_switch_apply(msg, s, sizeof(*s), ngram_adopt);
    if (msg->header.kind == TR_MSG_NGRAM_ROWS) {
        tr_status status = ngram_on_rows(s, msg);
        if (status != TR_OK)
            tr_step_failed_send(s->env, msg->header.step, status);
    }
    return TR_OK;
}

static void ngram_teardown(void *state)
{
    (void)state; /* everything lies in the arena, which the cluster owns */
}

const tr_actor_ops tr_ngram_ops = {
    .kind = "ngram",
    .state_size = sizeof(ngram_state),
    .mailbox_slots = 512,
    .outbox_slots = 64,
    .init = ngram_init,
    .receive = ngram_receive,
    .teardown = ngram_teardown,
};
