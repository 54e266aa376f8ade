/* inspect_report.h - what a model consists of, in numbers: bytes per part, format and node. */
#ifndef TR_TOOLS_INSPECT_REPORT_H
#define TR_TOOLS_INSPECT_REPORT_H

#include "core/error.h"
#include "core/model/model.h"

#include <stdint.h>

#define TR_INSPECT_NODES 2 /* of the default placement that is shown */

#define TR_INSPECT_PART_MAP(X)                                                                     \
    X(EMBEDDING, "embedding")                                                                      \
    X(STREAMS, "residual streams")                                                                 \
    X(ATTENTION, "attention")                                                                      \
    X(INDEX, "attention index")                                                                    \
    X(ROUTER, "router")                                                                            \
    X(EXPERTS, "experts")                                                                          \
    X(ALWAYS, "shared expert")                                                                     \
    X(DENSE, "dense feed-forward")                                                                 \
    X(NGRAM, "n-gram projections")                                                                 \
    X(TABLE, "n-gram table")                                                                       \
    X(NORMS, "norms")                                                                              \
    X(HEAD, "output matrix")

typedef enum {
#define X(name, text) TR_INSPECT_##name,
    TR_INSPECT_PART_MAP(X)
#undef X
        TR_INSPECT_PARTS
} tr_inspect_part;

const char *tr_inspect_part_name(tr_inspect_part part);

/* What a weight is for. layer is ignored for global roles but must be one of the model. */
tr_inspect_part tr_inspect_part_of(const tr_model *model, uint32_t layer, tr_weight_role role);

typedef struct {
    uint64_t weights; /* elements */
    uint64_t bytes;
    uint64_t matrices;
    uint64_t node_bytes[TR_INSPECT_NODES]; /* what each node reads; mirrored parts count on both */
} tr_inspect_row;

/* Tensors that are recognised and not used, for one reason. */
typedef struct {
    const char *reason; /* static storage */
    uint64_t count, bytes;
    char example[96]; /* the first name */
} tr_inspect_skipped;

#define TR_INSPECT_SKIPPED_MAX 16 /* reasons; tr_skip_reason knows fewer */

typedef struct {
    tr_inspect_row parts[TR_INSPECT_PARTS];
    tr_inspect_row formats[TR_FORMATS_COUNT]; /* node_bytes unused */
    tr_inspect_row total;
    tr_inspect_skipped skipped[TR_INSPECT_SKIPPED_MAX];
    uint32_t skipped_reasons;
    uint64_t skipped_count, skipped_bytes; /* over all reasons */
    uint64_t tensor_bytes;                 /* of all tensors, used and skipped */
} tr_inspect_report;

/* Adds everything up. A tied output matrix counts as the embedding.
 * errors  those of tr_plan_make */
tr_status tr_inspect_make(tr_inspect_report *out, const tr_model *model, tr_error *err);

#endif
