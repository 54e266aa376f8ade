/* solar_open.h - the family solar_open (Solar Open 1). */
#ifndef TR_CORE_MODEL_SOLAR_OPEN_H
#define TR_CORE_MODEL_SOLAR_OPEN_H

#include "core/model/family.h"

extern const tr_family tr_family_solar_open;

#endif
