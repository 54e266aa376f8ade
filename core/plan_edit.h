/* plan_edit.h - a plan that differs from another: what somebody asked to move, checked against the
 * model's shape; and plans as bytes, for other nodes. */
#ifndef TR_CORE_PLAN_EDIT_H
#define TR_CORE_PLAN_EDIT_H

#include "core/placement.h"

#include <stddef.h>

/* Parts as people write them, all ranges inclusive:
 *
 *   expert/L.E         experts E of layers L        expert/17.200-219
 *   slice/L.S          slices of the shared expert or of dense layers
 *   attention/L.T      groups of heads              attention/0-11.0-3
 *   layers/L           all of these of layers L, and the routers of the layers: their residual rows
 *   router/L           the routers alone
 *   vocabulary/R       rows of the output matrix    vocabulary/0-65535
 *   sampler            who draws the tokens
 *   ngram              the n-gram tables
 *
 * L, E, S, T and R are "a", "a-b" or "all". */

/* Lets the parts that text names stand on a node, and nowhere else: replicas and mirrors of them
 * go. A mirror of the routers that is left without work in some layer goes, too
 * (tr_plan_settle_routers); none comes.
 *
 *   moved_count  how many terms, routers of layers, ranges or actors stand elsewhere than before
 *
 * errors  TR_E_INVALID naming text and what the model has. The plan is then as it was. */
tr_status tr_plan_move(tr_plan *plan, const char *text, uint32_t node, uint32_t *moved_count,
                       tr_error *err);

/* Lets the experts ("expert/L.E") or the routers ("router/L") that text names stand on a node, too.
 * Everything else has state or is always chosen, and has no replicas.
 *
 *   added_count  how many experts, or routers of layers, the node had not
 *
 * errors  TR_E_INVALID naming text and what the model has, or why a mirror would not stay
 *         (tr_plan_settle_routers). The plan is then as it was. */
tr_status tr_plan_replicate(tr_plan *plan, const char *text, uint32_t node, uint32_t *added_count,
                            tr_error *err);

/* Lets everything that stands on a node stand on others: terms and ranges dealt round the nodes of
 * the mask, routers left to those that hold them already, or given to the first. An expert that
 * other nodes hold, too, stays with them. The batcher stays. With the others' room, terms of each
 * kind are dealt in proportion to it, and all else goes to the node with the most.
 *
 *   others      bit per node that may take something; not node itself
 *   room_bytes  [TR_NODES_MAX], who has less than a KiB takes nothing; or NULL
 *
 * errors  TR_E_INVALID others is empty; TR_E_NOMEM, also when none of the others has room */
tr_status tr_plan_drain(tr_plan *plan, uint32_t node, uint32_t others, const uint64_t *room_bytes,
                        uint32_t *moved_count, tr_error *err);

/* Lets stand on a node what another plan of the same shape, home, has there and this one has not:
 * after it was drained, or lost and started again. The node gets routers as at home, where the work
 * that it has then asks for them. Of several holders at home those stay that hold it now; whoever
 * else holds it has stood in, and goes. The batcher stays.
 *
 * errors  TR_E_NOMEM */
tr_status tr_plan_return(tr_plan *plan, const tr_plan *home, uint32_t node, uint32_t *moved_count,
                         tr_error *err);

/* A plan as bytes; malloc'd, the caller frees. The shape is not part of it. errors TR_E_NOMEM */
tr_status tr_plan_encode(const tr_plan *plan, void **bytes, size_t *size, tr_error *err);

/* Reads them back for a model of a shape and a cluster of so many nodes. The bytes come from
 * outside. errors  TR_E_INVALID with field, found, expected; TR_E_NOMEM */
tr_status tr_plan_decode(tr_plan *out, const void *bytes, size_t size, const tr_plan_shape *shape,
                         uint32_t nodes_count, tr_error *err);

#endif
