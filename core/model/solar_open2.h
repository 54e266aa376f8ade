/* solar_open2.h - a model family; see solar_open2.c. */
#ifndef TR_CORE_MODEL_SOLAR_OPEN2_H
#define TR_CORE_MODEL_SOLAR_OPEN2_H

#include "core/model/family.h"

extern const tr_family tr_family_solar_open2;

#endif
