/* team.h - a few threads that do one kernel together.
 *
 * A team belongs to one caller at a time. Results never depend on its size: each output element is
 * computed by one thread in a fixed order. Helpers spin for work for a short while, then sleep. */
#ifndef TR_KERNELS_TEAM_H
#define TR_KERNELS_TEAM_H

#include "core/error.h"

#include <stdint.h>

typedef struct tr_team tr_team;

/* threads >= 1, the caller's own included; 1 starts no thread. */
tr_status tr_team_open(tr_team **out, uint32_t threads, tr_error *err);
void tr_team_close(tr_team *team);
uint32_t tr_team_size(const tr_team *team);

/* Runs fn for part = 0..parts-1, spread over the threads; returns when all are done. thread is
 * < tr_team_size, for per-thread scratch. team NULL: all on the caller. Does not nest. */
void tr_team_run(tr_team *team, uint32_t parts,
                 void (*fn)(void *ctx, uint32_t part, uint32_t thread), void *ctx);

#endif
