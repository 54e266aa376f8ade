/* admin_snapshot.h - the admin methods snapshot and restore: states of sequences to a file on this
 * node, and back. They are followed with "change", like changes of placement. */
#ifndef TR_API_ADMIN_SNAPSHOT_H
#define TR_API_ADMIN_SNAPSHOT_H

#include "actors/cluster.h"

/* Adds the methods to the node's control server, before it listens. */
void tr_admin_snapshot_register(tr_cluster *cluster);

#endif
