/* qwen3_5_moe.h - a model family; see qwen3_5_moe.c. */
#ifndef TR_CORE_MODEL_QWEN3_5_MOE_H
#define TR_CORE_MODEL_QWEN3_5_MOE_H

#include "core/model/family.h"

extern const tr_family tr_family_qwen3_5_moe;

#endif
