#include "core/model/names.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tr_status tr_names_init(tr_names *names, uint32_t count_max, tr_error *err)
{
    *names = (tr_names){.count_max = count_max};
    names->rows = calloc(count_max > 0 ? count_max : 1, sizeof(*names->rows));
    if (names->rows == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a table of %u names", count_max);
    return TR_OK;
}

void tr_names_teardown(tr_names *names)
{
    free(names->rows);
    *names = (tr_names){0};
}

void tr_names_add(tr_names *names, const char *name, uint32_t size, uint32_t index)
{
    assert(names->count < names->count_max);
    assert(index != TR_NAME_NONE);
    names->rows[names->count++] = (tr_name){.name = name, .size = size, .index = index};
}

static int names_compare(const void *a, const void *b)
{
    const tr_name *x = a, *y = b;
    uint32_t common = x->size < y->size ? x->size : y->size;
    int order = common > 0 ? memcmp(x->name, y->name, common) : 0;

    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

const tr_name *tr_names_seal(tr_names *names)
{
    if (names->count > 1) /* without names there is no array */
        qsort(names->rows, names->count, sizeof(*names->rows), names_compare);
    for (uint32_t i = 1; i < names->count; i++)
        if (names_compare(&names->rows[i - 1], &names->rows[i]) == 0)
            return &names->rows[i];
    return NULL;
}

uint32_t tr_names_find(const tr_names *names, const char *name, size_t size)
{
    if (size > UINT32_MAX)
        return TR_NAME_NONE;
    tr_name key = {.name = name, .size = (uint32_t)size};
    const tr_name *row =
        bsearch(&key, names->rows, names->count, sizeof(*names->rows), names_compare);

    return row == NULL ? TR_NAME_NONE : row->index;
}
