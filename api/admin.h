/* admin.h - what the admin commands ask a running node, over its control socket.
 *
 * Methods: status, actors, peers, clock, trace, shutdown, shutdown_all. Requests and answers, key
 * by key: api/README.md. All but the last two only look. */
#ifndef TR_API_ADMIN_H
#define TR_API_ADMIN_H

#include "actors/cluster.h"

/* Adds the methods to the cluster's control server, before tr_cluster_start. The cluster must
 * outlive its control server, which it does by itself. Thread: main. */
void tr_admin_register(tr_cluster *cluster);

#endif
