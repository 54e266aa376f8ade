/* glm5_next.h - a model family; see glm5_next.c. */
#ifndef TR_CORE_MODEL_GLM5_NEXT_H
#define TR_CORE_MODEL_GLM5_NEXT_H

#include "core/model/family.h"

extern const tr_family tr_family_glm5_next;

#endif
