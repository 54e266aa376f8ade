/* children.h - node processes that a command starts: here as children, elsewhere over ssh. */
#ifndef TR_TOOLS_CHILDREN_H
#define TR_TOOLS_CHILDREN_H

#include "core/placement.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct {
    pid_t pids[TR_NODES_MAX]; /* 0: not started, or ended and noticed */
    uint32_t count;           /* running */
} tr_children;

/* Starts `troupe node` for one node of a placement file. The child ends by itself when this process
 * does (parent-death signal). host 127.0.0.1, localhost or ::1: a child of this executable;
 * otherwise `ssh HOST troupe node ...` with the same absolute path of the file.
 *
 *   kernels  backend name for the child; NULL: its default
 *   free_bytes  what this machine had free before the first child, for the children that stand on
 *            it; 0: each looks for itself
 *   own_output  its standard output is ours; false: it goes to standard error, because ours is
 *            the command's result
 *
 * errors  TR_E_INVALID when the process cannot be started */
tr_status tr_children_start(tr_children *children, const tr_placement *placement, uint32_t node,
                            const char *kernels, uint64_t free_bytes, bool own_output,
                            tr_error *err);

/* A child that has ended since the last call: its node and exit code (128 + signal when it was
 * killed). False when none has. Does not block. */
bool tr_children_ended(tr_children *children, uint32_t *node, int *exit_code);

/* SIGTERM to all, SIGKILL to those that are left after grace_ms; returns when all have ended. */
void tr_children_stop(tr_children *children, uint32_t grace_ms);

#endif
