/* kimi_linear.h - a model family; see kimi_linear.c. */
#ifndef TR_CORE_MODEL_KIMI_LINEAR_H
#define TR_CORE_MODEL_KIMI_LINEAR_H

#include "core/model/family.h"

extern const tr_family tr_family_kimi_linear;

#endif
