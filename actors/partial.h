/* partial.h - what actors share that answer routers: how their results leave. */
#ifndef TR_ACTORS_PARTIAL_H
#define TR_ACTORS_PARTIAL_H

#include "actors/node_context.h"

/* Packs the sums of one sub-layer and sends them to every router of the layer, the one beside us
 * first.
 *
 *   v      the rows message that is answered: rows_count, layer, width
 *   sums   [rows_count, width]    flags [rows_count], bit 0: NaN or infinity was met
 *
 * errors  TR_E_NOMEM no buffer; TR_E_PEER a router's node is dead. Thread: the actor's. */
tr_status tr_partial_send(const tr_env *env, const tr_node_context *node, tr_team *team,
                          const tr_step_view *v, tr_sub_layer sub, uint64_t step,
                          const int64_t *sums, const uint8_t *flags);

/* Sends one buffer to every router of a layer, the one beside us first. Consumes buf.
 * errors  TR_E_PEER a router's node is dead. Thread: the actor's. */
tr_status tr_routers_send(const tr_env *env, const tr_node_context *node, uint32_t layer,
                          tr_msg_kind kind, uint64_t step, uint32_t argument, tr_buf *buf);

/* Tells the batcher that a step cannot be finished. */
void tr_step_failed_send(const tr_env *env, uint64_t step, tr_status why);

#endif
