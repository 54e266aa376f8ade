/* generation.h - how a checkpoint wants to be sampled: where generation ends, and the defaults. */
#ifndef TR_CORE_MODEL_GENERATION_H
#define TR_CORE_MODEL_GENERATION_H

#include "core/error.h"
#include "core/model/gguf.h"
#include "core/model/model_spec.h"

#include <jansson.h>

/* Fills bos_token, eos_tokens, default_temperature and default_top_p from generation_config.json in
 * folder, and where it is silent or absent from config (config.json).
 * errors  TR_E_INVALID naming file, key, found, expected; a token beyond vocab_size */
tr_status tr_generation_read(tr_model_spec *spec, const char *folder, const json_t *config,
                             tr_error *err);

/* The same from what was read: beside is generation_config.json, or NULL. */
tr_status tr_generation_read_json(tr_model_spec *spec, const json_t *beside, const json_t *config,
                                  tr_error *err);

/* The same from tokenizer.ggml.* and general.sampling.*. */
tr_status tr_generation_read_gguf(tr_model_spec *spec, const tr_gguf *gguf, tr_error *err);

#endif
