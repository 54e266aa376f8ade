/* cluster_states.h - a node's half of snapshots: for a while its states of sequences may be read
 * (cluster_fetch.h) and written by the batcher's node, which knows that no step touches them. */
#ifndef TR_ACTORS_CLUSTER_STATES_H
#define TR_ACTORS_CLUSTER_STATES_H

#include "actors/cluster_fetch.h"

/* Whether they may now. Any thread. */
bool cluster_states_are_open(const tr_cluster *c);

/* The control methods states_open, states_write, ngram_write. */
void cluster_states_register(tr_cluster *c);

/* Pieces, the same bytes that cluster_change_read gives.
 * errors  TR_E_INVALID: one does not fit, or its sequence has no such memory here (those before it
 *         are written), or states are not open */
tr_status cluster_states_write(tr_cluster *c, const cluster_piece *pieces, uint32_t count,
                               const uint8_t *bytes, size_t size, tr_error *err);

#endif
