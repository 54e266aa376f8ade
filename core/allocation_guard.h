/* allocation_guard.h - turns "receive does not allocate" from a comment into a fact.
 *
 * In builds with TR_ALLOCATION_GUARD (-Dallocation_guard=true) an allocation on a thread
 * between enter and leave aborts with the name of the actor and the kind of the message. In other
 * builds all of this is nothing. Private to core/. */
#ifndef TR_CORE_ALLOCATION_GUARD_H
#define TR_CORE_ALLOCATION_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#ifdef TR_ALLOCATION_GUARD

/* actor: borrowed until leave. Does not nest. */
void tr_guard_enter(const char *actor, uint32_t msg_kind);
void tr_guard_leave(void);

/* For calls out of receive into somebody else's code (a transport, a port's wake): returns what
 * tr_guard_resume needs. */
bool tr_guard_pause(void);
void tr_guard_resume(bool was_on);

#else

static inline void tr_guard_enter(const char *actor, uint32_t msg_kind)
{
    (void)actor;
    (void)msg_kind;
}
static inline void tr_guard_leave(void)
{
}
static inline bool tr_guard_pause(void)
{
    return false;
}
static inline void tr_guard_resume(bool was_on)
{
    (void)was_on;
}

#endif

#endif
