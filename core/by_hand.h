/* by_hand.h - runs the actors of a node without threads: the caller decides what happens next, and
 * what time it is (tr_runtime_config.now_ns). Everything else is the runtime that serves.
 *
 * Life: open -> spawn, set remote and pollers -> start by hand -> step ... -> stop -> close. All
 * calls come from one thread. Workers are only a division of the actors here. */
#ifndef TR_CORE_BY_HAND_H
#define TR_CORE_BY_HAND_H

#include "core/runtime.h"

/* Instead of tr_runtime_start; errors as there. */
tr_status tr_runtime_start_by_hand(tr_runtime *rt, tr_error *err);

/* Turns due timers into messages, tries what waits for room, calls the pollers; then one of the
 * actors that have a message handles one: choice modulo their number says which, in the order in
 * which they were spawned. Returns whether anything happened. */
bool tr_runtime_step(tr_runtime *rt, uint64_t choice);

/* When a step may have something to do: 0 for now, else the time of the first timer, UINT64_MAX for
 * never. What only a poller knows is not in it. */
uint64_t tr_runtime_next_ns(const tr_runtime *rt);

/* Whether something waits for room elsewhere, and wants a step from time to time. */
bool tr_runtime_is_blocked(const tr_runtime *rt);

#endif
