/* inspect_tensors.h - every tensor of a model: what it is stored as, and what it is for. */
#ifndef TR_TOOLS_INSPECT_TENSORS_H
#define TR_TOOLS_INSPECT_TENSORS_H

#include "core/error.h"
#include "core/model/model.h"

#include <jansson.h>

typedef struct tr_inspect_tensors tr_inspect_tensors;

/* Finds out what each tensor is for. The caller frees with tr_inspect_tensors_free.
 * errors  TR_E_NOMEM */
tr_status tr_inspect_tensors_make(tr_inspect_tensors **out, const tr_model *model, tr_error *err);
void tr_inspect_tensors_free(tr_inspect_tensors *list);

/* A line for each on standard output, in the order of the names. */
void tr_inspect_tensors_print(const tr_inspect_tensors *list);

/* The same as an array of objects; NULL: no memory. */
json_t *tr_inspect_tensors_json(const tr_inspect_tensors *list);

#endif
