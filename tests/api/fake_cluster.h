/* fake_cluster.h - just enough of actors/cluster.h for the admin methods: a real runtime with an
 * echo actor, a real control server, real trace rings; made-up health, memory and peers. */
#ifndef TR_TESTS_FAKE_CLUSTER_H
#define TR_TESTS_FAKE_CLUSTER_H

#include "actors/cluster.h"

#define FAKE_EVENTS 100 /* in the ring of the thread that opened the cluster */

/* Opens node node_index of a two-node placement whose control sockets are urls[0] and urls[1], and
 * traces FAKE_EVENTS kernels and ten messages from node 0 to node 1. Aborts on trouble. */
tr_cluster *fake_cluster_open(const char *const urls[2], uint32_t node_index, const char *model);

/* Starts the runtime and listens. */
void fake_cluster_start(tr_cluster *cluster);

bool fake_cluster_was_asked_to_stop(tr_cluster *cluster);

void fake_cluster_close(tr_cluster *cluster);

#endif
