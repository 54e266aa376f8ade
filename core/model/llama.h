/* llama.h - a model family; see llama.c. */
#ifndef TR_CORE_MODEL_LLAMA_H
#define TR_CORE_MODEL_LLAMA_H

#include "core/model/family.h"

extern const tr_family tr_family_llama;

#endif
