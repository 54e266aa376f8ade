/* skipped.h - why a tensor that a family recognises is not used, in words. */
#ifndef TR_CORE_MODEL_SKIPPED_H
#define TR_CORE_MODEL_SKIPPED_H

#include "core/model/model_spec.h"

#include <stdint.h>

/* "vision tower: ...". The same pointer for the same reason; static storage.
 *
 *   layers_count  of the model: layers beyond are those that draft tokens */
const char *tr_skip_reason(const char *name, uint32_t layers_count);

/* Logs what a model skips, a line for each reason: somebody may expect the model to see. */
void tr_skip_log(const tr_model *model);

#endif
