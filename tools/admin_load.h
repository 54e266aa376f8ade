/* admin_load.h - "troupe admin load": the experts of each layer by heat, over all nodes. */
#ifndef TR_TOOLS_ADMIN_LOAD_H
#define TR_TOOLS_ADMIN_LOAD_H

#include "tools/admin_client.h"

/* Asks every node and adds up. --layer, --top and --json are read. Returns the exit code. */
int tr_admin_load(const tr_cli_args *args, tr_admin_targets *targets);

#endif
