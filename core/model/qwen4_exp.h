/* qwen4_exp.h - a model family; see qwen4_exp.c. */
#ifndef TR_CORE_MODEL_QWEN4_EXP_H
#define TR_CORE_MODEL_QWEN4_EXP_H

#include "core/model/family.h"

extern const tr_family tr_family_qwen4_exp;

#endif
