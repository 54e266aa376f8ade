/* admin_changes.h - the admin methods that change a placement while it serves: move, drain, change.
 */
#ifndef TR_API_ADMIN_CHANGES_H
#define TR_API_ADMIN_CHANGES_H

#include "actors/cluster.h"

/* Adds the methods to the node's control server, before it listens. */
void tr_admin_changes_register(tr_cluster *cluster);

#endif
