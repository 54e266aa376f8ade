#include "actors/selection.h"

/* Rows that are scored together: bounds the matrix of scores, whose rows are as long as the longest
 * sequence has blocks. */
#define SCORED_ROWS 16

tr_selection tr_selection_cut(tr_layout *layout, const tr_node_context *node,
                              const tr_index_spec *spec)
{
    size_t rows = node->limits.rows_max;
    tr_selection s = {.ld_scores = node->limits.context_max / spec->block + 1,
                      .ld = (size_t)spec->top * spec->block + spec->block - 1};

    s.scores = tr_layout_take(layout, SCORED_ROWS * s.ld_scores * sizeof(*s.scores), 64);
    s.blocks = tr_layout_take(layout, (size_t)SCORED_ROWS * spec->top * sizeof(*s.blocks), 64);
    s.counts = tr_layout_take(layout, rows * sizeof(*s.counts), 64);
    if (s.ld > node->limits.context_max)
        s.ld = node->limits.context_max;
    s.positions = tr_layout_take(layout, rows * s.ld * sizeof(*s.positions), 64);
    return s;
}

size_t tr_selection_keys_size(const tr_index_spec *spec)
{
    return (size_t)(TR_KV_PAGE_TOKENS / spec->block) * spec->head_dim * sizeof(float);
}

tr_paged_rows tr_selection_keys(const tr_index_spec *spec, const tr_sequence_lease *lease,
                                size_t offset)
{
    return (tr_paged_rows){.pages = lease->pages,
                           .pages_count = lease->pages_count,
                           .offset = offset,
                           .per_page = TR_KV_PAGE_TOKENS / spec->block,
                           .dim = spec->head_dim};
}

uint32_t tr_selection_dense_rows(const tr_index_spec *spec, uint32_t first, uint32_t rows)
{
    /* a row at position p has (p + 1) / block complete blocks */
    uint64_t sparse = ((uint64_t)spec->top + 1) * spec->block - 1;

    if (first >= sparse)
        return 0;
    return sparse - first < rows ? (uint32_t)(sparse - first) : rows;
}

/* The list of a row at a position; returns its length. */
static uint32_t selection_list(uint32_t *positions, const uint32_t *blocks,
                               const tr_index_spec *spec, uint32_t position)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < spec->top; i++)
        for (uint32_t r = 0; r < spec->block; r++)
            positions[n++] = blocks[i] * spec->block + r;
    for (uint32_t p = (position + 1) / spec->block * spec->block; p <= position; p++)
        positions[n++] = p;
    return n;
}

/* The lists of count rows from `row` on, of which the first stands at position first. */
static void selection_some(const tr_mixer_call *call, const tr_index_spec *spec,
                           const tr_selection *s, const tr_paged_rows *keys,
                           const tr_selection_queries *queries, uint32_t row, uint32_t first,
                           uint32_t count)
{
    const tr_kernels *k = call->node->kernels;
    uint32_t blocks[SCORED_ROWS];

    for (uint32_t t = 0; t < count; t++)
        blocks[t] = (first + t + 1) / spec->block;
    k->index_scores(call->team, s->scores, s->ld_scores, queries->q + row * queries->ld_q,
                    queries->ld_q,
                    queries->weight == NULL ? NULL : queries->weight + (size_t)row * spec->heads,
                    spec->heads, keys, spec->heads, queries->scale, blocks, count);
    k->select_top(call->team, s->blocks, spec->top, s->scores, s->ld_scores, blocks, spec->top,
                  count);
    for (uint32_t t = 0; t < count; t++)
        s->counts[row + t] = selection_list(s->positions + (row + t) * s->ld,
                                            s->blocks + (size_t)t * spec->top, spec, first + t);
}

void tr_selection_make(const tr_mixer_call *call, const tr_index_spec *spec,
                       const tr_selection *selection, const tr_paged_rows *keys,
                       const tr_selection_queries *queries, const tr_segment *segment, uint32_t row)
{
    uint32_t first = segment->first_position, rows = segment->rows_count;

    for (uint32_t t = tr_selection_dense_rows(spec, first, rows); t < rows; t += SCORED_ROWS)
        selection_some(call, spec, selection, keys, queries, row + t, first + t,
                       rows - t < SCORED_ROWS ? rows - t : SCORED_ROWS);
}
