/* rope.h - stretched rotary positions: from the ways in which files describe them to divisors of
 * the frequencies. */
#ifndef TR_CORE_MODEL_ROPE_H
#define TR_CORE_MODEL_ROPE_H

#include "core/model/family.h"

/* Gives a draft its one scaling: dims / 2 divisors and the gain, all 1. NULL: no memory. The draft
 * owns it. */
tr_rope_scaling *tr_rope_scaling_new(tr_draft *draft, uint32_t dims);

#endif
