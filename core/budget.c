#include "core/budget.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void tr_budget_init(tr_budget *budget, const char *node, uint64_t bytes_max)
{
    memset(budget, 0, sizeof(*budget));
    snprintf(budget->node, sizeof(budget->node), "%s", node);
    budget->bytes_max = bytes_max;
}

static uint64_t budget_sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

void tr_budget_add(tr_budget *budget, const char *part, const char *change, uint64_t bytes)
{
    assert(strlen(part) < sizeof(budget->rows[0].part));
    assert(strlen(change) < sizeof(budget->rows[0].change));

    for (uint32_t i = 0; i < budget->rows_count; i++) {
        tr_budget_row *row = &budget->rows[i];
        if (strcmp(row->part, part) == 0) {
            row->bytes = budget_sum(row->bytes, bytes);
            return;
        }
    }
    assert(budget->rows_count < TR_BUDGET_ROWS_MAX); /* parts are named by our own code */
    tr_budget_row *row = &budget->rows[budget->rows_count++];
    snprintf(row->part, sizeof(row->part), "%s", part);
    snprintf(row->change, sizeof(row->change), "%s", change);
    row->bytes = bytes;
}

uint64_t tr_budget_total(const tr_budget *budget)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < budget->rows_count; i++)
        total = budget_sum(total, budget->rows[i].bytes);
    return total;
}

/* Largest first; equal rows in the order in which they were added, which is their address. */
static int budget_compare(const void *a, const void *b)
{
    const tr_budget_row *x = *(const tr_budget_row *const *)a;
    const tr_budget_row *y = *(const tr_budget_row *const *)b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : x > y;
}

/* Pointers to the rows in printing order; returns rows_count. */
static uint32_t budget_sort(const tr_budget *budget, const tr_budget_row **sorted)
{
    for (uint32_t i = 0; i < budget->rows_count; i++)
        sorted[i] = &budget->rows[i];
    qsort(sorted, budget->rows_count, sizeof(*sorted), budget_compare);
    return budget->rows_count;
}

void tr_budget_print(const tr_budget *budget, FILE *out)
{
    const tr_budget_row *sorted[TR_BUDGET_ROWS_MAX];
    uint32_t count = budget_sort(budget, sorted);
    uint64_t total = tr_budget_total(budget);
    char text[32];

    fprintf(out, "memory of %s\n", budget->node);
    for (uint32_t i = 0; i < count; i++) {
        const tr_budget_row *row = sorted[i];
        fprintf(out, "  %-30s %12s", row->part, tr_bytes_text(text, sizeof(text), row->bytes));
        if (row->change[0] != '\0')
            fprintf(out, "   smaller with %s", row->change);
        fputc('\n', out);
    }
    fprintf(out, "  %-30s %12s\n", "sum", tr_bytes_text(text, sizeof(text), total));
    if (budget->bytes_max == 0) {
        fprintf(out, "  %-30s %12s\n", "limit", "none");
        return;
    }
    fprintf(out, "  %-30s %12s%s%s\n", "limit",
            tr_bytes_text(text, sizeof(text), budget->bytes_max),
            budget->limit_why[0] != '\0' ? "   " : "", budget->limit_why);
    if (total > budget->bytes_max)
        fprintf(out, "  %-30s %12s\n", "too much by",
                tr_bytes_text(text, sizeof(text), total - budget->bytes_max));
}

tr_status tr_budget_check(const tr_budget *budget, tr_error *err)
{
    const tr_budget_row *sorted[TR_BUDGET_ROWS_MAX];
    uint64_t total = tr_budget_total(budget);
    char sum[32], limit[32], over[32], part[32];

    if (budget->bytes_max == 0 || total <= budget->bytes_max)
        return TR_OK;
    assert(budget->rows_count > 0);
    budget_sort(budget, sorted);
    return tr_fail(err, TR_E_NOMEM,
                   "node %s needs %s of memory, its limit is %s (%s too much); "
                   "the largest part is %s, %s",
                   budget->node, tr_bytes_text(sum, sizeof(sum), total),
                   tr_bytes_text(limit, sizeof(limit), budget->bytes_max),
                   tr_bytes_text(over, sizeof(over), total - budget->bytes_max), sorted[0]->part,
                   tr_bytes_text(part, sizeof(part), sorted[0]->bytes));
}

const char *tr_bytes_text(char *text, size_t size, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint32_t unit = 0;

    while (unit < 6 && bytes >> (10 * (unit + 1)) != 0)
        unit++;
    if ((bytes & ((1ull << (10 * unit)) - 1)) == 0) {
        snprintf(text, size, "%" PRIu64 " %s", bytes >> (10 * unit), units[unit]);
        return text;
    }
    double value = (double)bytes / (double)(1ull << (10 * unit));
    if (value >= 1023.95 && unit < 6) { /* would print as 1024.0 */
        value /= 1024;
        unit++;
    }
    snprintf(text, size, "%.1f %s", value, units[unit]);
    return text;
}

void *tr_layout_take(tr_layout *layout, size_t size, size_t alignment)
{
    assert(alignment != 0 && (alignment & (alignment - 1)) == 0);
    assert(((uintptr_t)layout->base & (alignment - 1)) == 0); /* NULL while counting */
    assert(layout->used <= SIZE_MAX - alignment);

    size_t begin = (layout->used + alignment - 1) & ~(alignment - 1);
    assert(size <= SIZE_MAX - begin);
    layout->used = begin + size;
    return layout->base != NULL ? layout->base + begin : NULL;
}
