/* admin_change.h - "troupe admin move", replicate, drain, undrain, snapshot and restore: begins a
 * change, or what is done in their order, and follows it to its end. */
#ifndef TR_TOOLS_ADMIN_CHANGE_H
#define TR_TOOLS_ADMIN_CHANGE_H

#include "tools/admin_client.h"

/* How many words follow the name of a change, its arguments: 2 a part and a node, 1 a node or a
 * file; 0 for what is none. */
uint32_t tr_admin_change_words(const char *name);

/* Positional 0 names the change, its words follow. Returns the exit code. */
int tr_admin_change(const tr_cli_args *args, const tr_admin_targets *targets);

/* Ends the change that is under way. Returns the exit code: 1 also when it was too late for that.
 */
int tr_admin_change_abort(const tr_cli_args *args, const tr_admin_targets *targets);

/* For commands that begin a change in another way. Begin asks the targets in turn until one
 * coordinates; follow asks that one until the change has ended, and tells phases and why it failed
 * on standard error; print writes what became of it. The first two return the exit code; the reply
 * is freed whatever it is. */
int tr_admin_change_begin(const tr_admin_targets *targets, const char *method,
                          const tr_admin_argument *arguments, uint32_t arguments_count,
                          const tr_admin_target **target, uint64_t *number);
int tr_admin_change_follow(const tr_admin_target *target, uint64_t number, tr_control_reply *reply);
void tr_admin_change_print(const msgpack_object *map);

#endif
