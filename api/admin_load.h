/* admin_load.h - the admin method load: what the experts of a node were asked for. */
#ifndef TR_API_ADMIN_LOAD_H
#define TR_API_ADMIN_LOAD_H

#include "actors/cluster.h"

/* Adds the method to the node's control server, before it listens. */
void tr_admin_load_register(tr_cluster *cluster);

#endif
