/* inspect_places.h - which tensor of a model a byte belongs to. */
#ifndef TR_TOOLS_INSPECT_PLACES_H
#define TR_TOOLS_INSPECT_PLACES_H

#include "core/error.h"
#include "core/model/model.h"

#include <stdint.h>

#define TR_INSPECT_NOWHERE UINT32_MAX

typedef struct {
    const tr_model *model; /* borrows */
    uint32_t *by_place;    /* owns, [count]: indices of tensors in the order of their bytes */
    uint32_t count;
} tr_inspect_places;

/* The caller frees with tr_inspect_places_free, also after an error. errors  TR_E_NOMEM */
tr_status tr_inspect_places_make(tr_inspect_places *out, const tr_model *model, tr_error *err);
void tr_inspect_places_free(tr_inspect_places *places);

/* The index of the tensor that holds this byte of its file, or TR_INSPECT_NOWHERE. */
uint32_t tr_inspect_place_of(const tr_inspect_places *places, const uint8_t *data);

#endif
