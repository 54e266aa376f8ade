/* admin_rebalance.h - "troupe admin rebalance": shows what was measured, what is predicted and what
 * was done. */
#ifndef TR_TOOLS_ADMIN_REBALANCE_H
#define TR_TOOLS_ADMIN_REBALANCE_H

#include "tools/admin_client.h"

/* --dry-run, --threshold and --json are read. Returns the exit code: 0 also when nothing was worth
 * a change. */
int tr_admin_rebalance(const tr_cli_args *args, const tr_admin_targets *targets);

#endif
