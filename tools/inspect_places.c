#include "tools/inspect_places.h"

#include <stdlib.h>

static int places_compare(const void *a, const void *b, void *model)
{
    const uint8_t *x = tr_model_tensor(model, *(const uint32_t *)a)->data;
    const uint8_t *y = tr_model_tensor(model, *(const uint32_t *)b)->data;

    return x < y ? -1 : x > y;
}

tr_status tr_inspect_places_make(tr_inspect_places *out, const tr_model *model, tr_error *err)
{
    *out = (tr_inspect_places){.model = model, .count = tr_model_tensors_count(model)};
    out->by_place = calloc(out->count + 1, sizeof(*out->by_place));
    if (out->by_place == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for the places of %u tensors",
                       tr_model_path(model), out->count);
    for (uint32_t i = 0; i < out->count; i++)
        out->by_place[i] = i;
    qsort_r(out->by_place, out->count, sizeof(*out->by_place), places_compare, (void *)model);
    return TR_OK;
}

void tr_inspect_places_free(tr_inspect_places *places)
{
    free(places->by_place);
}

uint32_t tr_inspect_place_of(const tr_inspect_places *places, const uint8_t *data)
{
    uint32_t low = 0, high = places->count;

    while (low < high) { /* ends behind the last tensor that begins at or before data */
        uint32_t middle = low + (high - low) / 2;
        if (tr_model_tensor(places->model, places->by_place[middle])->data <= data)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low > 0; low--) {
        const tr_tensor *t = tr_model_tensor(places->model, places->by_place[low - 1]);
        if (t->size == 0)
            continue;
        return data < t->data + t->size ? places->by_place[low - 1] : TR_INSPECT_NOWHERE;
    }
    return TR_INSPECT_NOWHERE;
}
