/* cluster_stream.h - the model's files between nodes: a node without a checkpoint of its own opens
 * and loads what another node reads for it.
 *
 *   model_files  {}        what files the model has; identity, and where its tensors lie
 *   model_read   {ranges}  bytes of files, at most 4 MiB
 *
 * One node is asked until it fails, then the next that has the same model. */
#ifndef TR_ACTORS_CLUSTER_STREAM_H
#define TR_ACTORS_CLUSTER_STREAM_H

#include "actors/cluster_node.h"

/* Opens c->model: from its path, or, on a node that streams, from whoever has it before
 * limits.start_timeout is over. */
tr_status cluster_stream_open(tr_cluster *c, tr_error *err);

/* Closes c->model. */
void cluster_stream_close(tr_cluster *c);

/* The answers above. */
void cluster_stream_register(tr_cluster *c);

/* Whether a plan can be loaded here now. errors  TR_E_PEER nobody is there who has the model,
 * TR_E_NOTSUP the plan needs a part that is read from the model's files all the time */
tr_status cluster_stream_check(tr_cluster *c, const tr_plan *plan, tr_error *err);

/* N-gram tables that an edit has put on a node that streams go to the first of others (a bit per
 * node) that has the model, if there is one. */
void cluster_stream_place_ngram(const tr_cluster *c, tr_plan *plan, uint32_t others);

/* Weights have been loaded, or will not be: lets go of what came. */
void cluster_stream_end(tr_cluster *c);

/* The most memory that weights take on their way. */
uint64_t cluster_stream_bytes(const tr_cluster *c);

#endif
