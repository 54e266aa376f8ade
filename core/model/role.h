/* role.h - which weights a layer has, and their shapes, derived from the spec alone. */
#ifndef TR_CORE_MODEL_ROLE_H
#define TR_CORE_MODEL_ROLE_H

#include "core/model/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

/* "Q_CONV". Static storage. */
const char *tr_role_name(tr_weight_role role);

/* EMBED and the roles after it: the model has one, not each layer. */
bool tr_role_is_global(tr_weight_role role);

/* EXPERT_*: each expert of a layer has one. */
bool tr_role_is_expert(tr_weight_role role);

/* Matrices of the role in the layer: one for each expert, or for each part of an n-gram table. */
uint32_t tr_role_count(const tr_layer_spec *layer, tr_weight_role role);

/* Whether the role exists in the layer (layer NULL: in the model), and its shape if so. */
bool tr_role_shape(const tr_model_spec *spec, const tr_layer_spec *layer, tr_weight_role role,
                   uint32_t *rows, uint32_t *cols);

/* Of a layer whose q, k and v are one tensor, in this order: its rows. *first is the first row of
 * one of these roles. */
uint32_t tr_role_fused_rows(const tr_model_spec *spec, const tr_layer_spec *layer,
                            tr_weight_role role, uint32_t *first);

/* Refuses a spec that the actors and kernels cannot compute: limits, and relations between sizes.
 * file stands in errors. */
tr_status tr_spec_check(const tr_model_spec *spec, const char *file, tr_error *err);

#endif
