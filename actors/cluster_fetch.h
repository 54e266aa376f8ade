/* cluster_fetch.h - states of sequences between nodes, while the placement changes: what a node
 * gives to others, and what it fetches for itself. */
#ifndef TR_ACTORS_CLUSTER_FETCH_H
#define TR_ACTORS_CLUSTER_FETCH_H

#include "actors/cluster_node.h"

/* Whether a part of the sequences' state stands on this node under plan and did not under before.
 */
bool cluster_part_comes(const tr_cluster *c, const tr_kv_part *part, const tr_plan *before,
                        const tr_plan *plan);

/* What memory the sequences have on this node. The caller holds questions.lock. */
tr_status cluster_ask_leases(tr_cluster *c, cluster_leases *out, tr_error *err);

#define CLUSTER_PIECES_MAX      256u /* in one call */
#define CLUSTER_PIECE_PAGES_MAX 64u

/* A piece of the state of a sequence: the part of the state slot, then those of pages. What travels
 * between nodes. */
typedef struct {
    uint32_t sequence, generation; /* of its lease */
    uint32_t layer, term;          /* as in tr_kv_part */
    uint32_t page_first, pages_count;
    uint32_t with_state; /* 0 or 1 */
} cluster_piece;

/* Whether a lease has the memory of a piece. errors  TR_E_INVALID */
tr_status cluster_piece_check(const tr_lease_view *lease, const cluster_piece *piece,
                              tr_error *err);

/* Copies a piece that has been checked into its lease's memory. Returns where the next one's bytes
 * begin. */
const uint8_t *cluster_piece_place(const tr_lease_view *lease, const cluster_piece *piece,
                                   const tr_kv_part *part, const uint8_t *in);

/* Pieces, one behind the other. Only during a change, or while states are
 * open (cluster_states.h).
 *   live   steps run: full pages alone, copied by the actor that has them
 *   bytes  malloc'd, the caller frees
 * errors  TR_E_INVALID: no such part, or a sequence is not (any more) held */
tr_status cluster_change_read(tr_cluster *c, const cluster_piece *pieces, uint32_t count, bool live,
                              void **bytes, size_t *size, tr_error *err);

/* Where a sequence stands in the n-gram tables of this node; bytes as above. */
tr_status cluster_change_read_ngram(tr_cluster *c, uint32_t sequence, void **bytes, size_t *size,
                                    tr_error *err);

/* Copies the full pages that come to this node, for change.places, while steps run; notes in
 * change.warm what is there. Long; by the change's thread. */
tr_status cluster_fetch_full_pages(tr_cluster *c, tr_error *err);

/* Fetches all states that come to this node, for change.positions, but for the pages that are there
 * already. By the change's thread, while no step runs. */
tr_status cluster_fetch_states(tr_cluster *c, tr_error *err);

#endif
