/* names.h - finds things by name: a table that is filled, sorted once, and then only asked.
 *
 * Sorted, not hashed: names come from outside, and no file can be made for which sorting or
 * bisecting is slow. */
#ifndef TR_CORE_MODEL_NAMES_H
#define TR_CORE_MODEL_NAMES_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

#define TR_NAME_NONE UINT32_MAX

typedef struct {
    const char *name; /* borrows; [size] bytes, no terminator needed */
    uint32_t size;
    uint32_t index; /* the caller's */
} tr_name;

typedef struct {
    tr_name *rows; /* owns; [count], in byte order once sealed */
    uint32_t count;
    uint32_t count_max;
} tr_names;

tr_status tr_names_init(tr_names *names, uint32_t count_max, tr_error *err);
void tr_names_teardown(tr_names *names);

/* Adds one of at most count_max names (asserted). The bytes outlive the table. */
void tr_names_add(tr_names *names, const char *name, uint32_t size, uint32_t index);

/* Sorts. Returns the row of a name that stands there twice, or NULL. */
const tr_name *tr_names_seal(tr_names *names);

/* The index that was added with this name, or TR_NAME_NONE. Thread: any, once sealed. */
uint32_t tr_names_find(const tr_names *names, const char *name, size_t size);

#endif
