/* budget.h - memory is counted before it is taken.
 *
 * A budget is a table of parts with bytes. A launch that does not fit is refused with the table
 * that says what each part needs and what would have to change. */
#ifndef TR_CORE_BUDGET_H
#define TR_CORE_BUDGET_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TR_BUDGET_ROWS_MAX 64

typedef struct {
    char part[48];   /* "expert weights", "kv pages", ... */
    char change[64]; /* what makes it smaller: "limits.context", "" if nothing does */
    uint64_t bytes;
} tr_budget_row;

typedef struct {
    char node[64];
    uint64_t bytes_max; /* what it may take; 0: no limit */
    char limit_why[64]; /* where that comes from, for the table; "" when it was said */
    tr_budget_row rows[TR_BUDGET_ROWS_MAX];
    uint32_t rows_count;
} tr_budget;

void tr_budget_init(tr_budget *budget, const char *node, uint64_t bytes_max);

/* Adds bytes to the row named part (a new row when there is none). Overflow saturates. */
void tr_budget_add(tr_budget *budget, const char *part, const char *change, uint64_t bytes);

uint64_t tr_budget_total(const tr_budget *budget);

/* Prints the table, largest part first, with units, the sum and the limit. */
void tr_budget_print(const tr_budget *budget, FILE *out);

/* TR_OK, or TR_E_NOMEM naming the node, the sum, the limit and the largest part. Nothing has been
 * taken either way. */
tr_status tr_budget_check(const tr_budget *budget, tr_error *err);

/* "14.2 GiB", "512 KiB": writes at most size bytes, returns text. */
const char *tr_bytes_text(char *text, size_t size, uint64_t bytes);

/* Cuts one block of memory into parts. With base == NULL it only counts. */
typedef struct {
    char *base;
    size_t used;
} tr_layout;

/* The next size bytes at the given alignment (a power of two); NULL while counting. */
void *tr_layout_take(tr_layout *layout, size_t size, size_t alignment);

#endif
