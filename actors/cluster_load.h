/* cluster_load.h - figures for rebalancing: every node answers with them, the coordinator collects
 * them. */
#ifndef TR_ACTORS_CLUSTER_LOAD_H
#define TR_ACTORS_CLUSTER_LOAD_H

#include "actors/cluster_node.h"
#include "actors/rebalance.h"

/* Adds the control methods load_read, and room_read for the room alone. */
void cluster_load_register(tr_cluster *c);

/* Adds a node's answer, which comes from outside. plan is the current one; a node that holds none
 * of its terms does not become one of load->nodes. batcher  the node has the batcher, which
 * measures steps errors  TR_E_INVALID naming what is wrong, TR_E_NOMEM */
tr_status cluster_load_add(tr_load *load, uint32_t node, const msgpack_object *map,
                           const tr_plan *plan, bool batcher, tr_error *err);

/* Frees what is inside and *load itself, which was malloc'd. NULL is allowed. */
void cluster_load_free(tr_load *load);

#endif
