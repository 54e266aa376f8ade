/* admin_rebalance.h - the admin methods rebalance and rebalance_result: experts stand where they
 * are best, as far as that is worth a change. */
#ifndef TR_API_ADMIN_REBALANCE_H
#define TR_API_ADMIN_REBALANCE_H

#include "actors/cluster.h"

/* Adds the methods to the node's control server, before it listens. */
void tr_admin_rebalance_register(tr_cluster *cluster);

#endif
