/* qwen3_moe.h - the family qwen3_moe (GGUF: qwen3moe). */
#ifndef TR_CORE_MODEL_QWEN3_MOE_H
#define TR_CORE_MODEL_QWEN3_MOE_H

#include "core/model/family.h"

extern const tr_family tr_family_qwen3_moe;

#endif
