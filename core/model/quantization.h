/* quantization.h - what a checkpoint says about its own quantisation. */
#ifndef TR_CORE_MODEL_QUANTIZATION_H
#define TR_CORE_MODEL_QUANTIZATION_H

#include "core/error.h"

#include <jansson.h>

/* Formats are read off the tensors (weights.h), so a description that is incomplete or wrong does
 * no harm. One that names a scheme which we cannot compute is refused by that name, before a
 * tensor's absence would give a less useful sentence. config is config.json; folder may hold
 * ModelOpt's hf_quant_config.json.
 *
 * errors  TR_E_INVALID naming file, key, found, expected */
tr_status tr_quantization_check(const json_t *config, const char *folder, tr_error *err);

/* The same for what was read: beside is hf_quant_config.json, or NULL. */
tr_status tr_quantization_check_json(const json_t *config, const json_t *beside, tr_error *err);

#endif
