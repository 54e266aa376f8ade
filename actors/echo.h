/* echo.h - the smallest whole actor; a new actor starts as a copy of echo.c. */
#ifndef TR_ACTORS_ECHO_H
#define TR_ACTORS_ECHO_H

#include "core/actor.h"

typedef struct {
    uint32_t pings_max; /* answers given before the actor closes, >= 1 */
} tr_echo_config;

extern const tr_actor_ops tr_echo_ops;

#endif
