#include "tools/inspect_report.h"

#include "core/model/role.h"
#include "core/model/skipped.h"
#include "core/model/weights.h"
#include "core/placement.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

const char *tr_inspect_part_name(tr_inspect_part part)
{
    static const char *const names[TR_INSPECT_PARTS] = {
#define X(name, text) [TR_INSPECT_##name] = text,
        TR_INSPECT_PART_MAP(X)
#undef X
    };

    assert((unsigned)part < TR_INSPECT_PARTS);
    return names[part];
}

/* Which nodes read a weight, and how much of it. */
typedef enum {
    SHARE_MIRRORED,   /* all of it on every node: what routers hold */
    SHARE_ATTENTION,  /* by attention terms */
    SHARE_KEPT,       /* all of it wherever the layer has an attention term */
    SHARE_EXPERT,     /* where the expert stands */
    SHARE_SLICES,     /* by slices */
    SHARE_VOCABULARY, /* by vocabulary rows */
    SHARE_NGRAM       /* where the n-gram tables stand */
} inspect_share;

typedef struct {
    tr_inspect_part part;
    inspect_share share;
} inspect_role;

/* Every role by name, so that the compiler asks where a new one belongs. */
static inspect_role inspect_role_of(tr_weight_role role, bool sparse)
{
    switch (role) {
    case TR_W_INPUT_NORM:
    case TR_W_POST_NORM:
    case TR_W_FINAL_NORM:
        return (inspect_role){TR_INSPECT_NORMS, SHARE_MIRRORED};
    case TR_W_HC_ATTENTION_FN:
    case TR_W_HC_ATTENTION_BASE:
    case TR_W_HC_ATTENTION_SCALE:
    case TR_W_HC_CHANNEL_FN:
    case TR_W_HC_CHANNEL_BASE:
    case TR_W_HC_CHANNEL_SCALE:
    case TR_W_HC_ATTENTION_NORM:
    case TR_W_HC_ATTENTION_DOWN:
    case TR_W_HC_ATTENTION_UP:
    case TR_W_HC_ATTENTION_INJECT:
    case TR_W_HC_CHANNEL_NORM:
    case TR_W_HC_CHANNEL_DOWN:
    case TR_W_HC_CHANNEL_UP:
    case TR_W_HC_CHANNEL_INJECT:
    case TR_W_HC_FINAL_NORM:
    case TR_W_HC_FINAL_DOWN:
    case TR_W_HC_FINAL_UP:
        return (inspect_role){TR_INSPECT_STREAMS, SHARE_MIRRORED};
    case TR_W_EMBED:
        return (inspect_role){TR_INSPECT_EMBEDDING, SHARE_MIRRORED};
    case TR_W_ROUTER:
    case TR_W_ROUTER_BIAS:
        return (inspect_role){TR_INSPECT_ROUTER, SHARE_MIRRORED};
    case TR_W_Q:
    case TR_W_K:
    case TR_W_V:
    case TR_W_O:
    case TR_W_QKV:
    case TR_W_QKV_CONV:
    case TR_W_ATTENTION_GATE:
    case TR_W_Q_CONV:
    case TR_W_K_CONV:
    case TR_W_V_CONV:
    case TR_W_F_B:
    case TR_W_G_B:
    case TR_W_F:
    case TR_W_G:
    case TR_W_DT_BIAS:
    case TR_W_A:
    case TR_W_BETA:
    case TR_W_Q_B:
    case TR_W_KV_B:
    case TR_W_K_B:
    case TR_W_V_B:
        return (inspect_role){TR_INSPECT_ATTENTION, SHARE_ATTENTION};
    case TR_W_F_A:
    case TR_W_G_A:
    case TR_W_Q_NORM:
    case TR_W_K_NORM:
    case TR_W_O_NORM:
    case TR_W_Q_A:
    case TR_W_Q_A_NORM:
    case TR_W_KV_A:
    case TR_W_KV_A_NORM:
        return (inspect_role){TR_INSPECT_ATTENTION, SHARE_KEPT};
    case TR_W_INDEX_QK:
    case TR_W_INDEX_Q_NORM:
    case TR_W_INDEX_K_NORM:
    case TR_W_INDEX_Q:
    case TR_W_INDEX_K:
    case TR_W_INDEX_K_BIAS:
    case TR_W_INDEX_WEIGHTS:
    case TR_W_INDEX_GATE:
    case TR_W_INDEX_APE:
        return (inspect_role){TR_INSPECT_INDEX, SHARE_KEPT};
    case TR_W_EXPERT_GATE:
    case TR_W_EXPERT_UP:
    case TR_W_EXPERT_DOWN:
        return (inspect_role){TR_INSPECT_EXPERTS, SHARE_EXPERT};
    case TR_W_ALWAYS_GATE:
    case TR_W_ALWAYS_UP:
    case TR_W_ALWAYS_DOWN:
        return (inspect_role){sparse ? TR_INSPECT_ALWAYS : TR_INSPECT_DENSE, SHARE_SLICES};
    case TR_W_ALWAYS_SCALE:
        return (inspect_role){TR_INSPECT_ALWAYS, SHARE_MIRRORED};
    case TR_W_NGRAM_KEY:
    case TR_W_NGRAM_VALUE:
    case TR_W_NGRAM_KEY_NORM:
    case TR_W_NGRAM_QUERY_NORM:
    case TR_W_NGRAM_CONV_NORM:
    case TR_W_NGRAM_CONV:
        return (inspect_role){TR_INSPECT_NGRAM, SHARE_NGRAM};
    case TR_W_NGRAM_TABLE:
    case TR_W_NGRAM_SCALE: /* these four are names alone */
    case TR_W_NGRAM_MULTIPLIERS:
    case TR_W_NGRAM_MODULI:
    case TR_W_NGRAM_OFFSETS:
        return (inspect_role){TR_INSPECT_TABLE, SHARE_NGRAM};
    case TR_W_HEAD:
        return (inspect_role){TR_INSPECT_HEAD, SHARE_VOCABULARY};
    case TR_WEIGHTS_COUNT:
        break;
    }
    assert(!"a role");
    return (inspect_role){TR_INSPECT_ATTENTION, SHARE_ATTENTION};
}

tr_inspect_part tr_inspect_part_of(const tr_model *model, uint32_t layer, tr_weight_role role)
{
    return inspect_role_of(role, tr_model_get_spec(model)->layers[layer].channel.experts > 0).part;
}

typedef struct {
    tr_inspect_report *report;
    const tr_model *model;
    const tr_plan *plan;
} inspect_walk;

/* Bytes of the weight that node reads. */
static uint64_t inspect_node_bytes(const inspect_walk *w, uint32_t node, uint32_t layer,
                                   inspect_share share, uint32_t expert, uint64_t bytes)
{
    const tr_layer_spec *l = &tr_model_get_spec(w->model)->layers[layer];
    uint32_t terms = tr_layer_attention_terms(l), here = 0;

    switch (share) {
    case SHARE_MIRRORED:
        return bytes;
    case SHARE_ATTENTION:
    case SHARE_KEPT:
        for (uint32_t t = 0; t < terms; t++)
            here += tr_plan_attention_node(w->plan, layer, t) == node;
        return share == SHARE_ATTENTION ? bytes * here / terms : (here > 0 ? bytes : 0);
    case SHARE_EXPERT:
        return tr_plan_channel_nodes(w->plan, layer, expert) >> node & 1 ? bytes : 0;
    case SHARE_SLICES:
        for (uint32_t s = 0; s < l->channel.slices; s++)
            here += tr_plan_channel_node(w->plan, layer, l->channel.experts + s) == node;
        return bytes * here / l->channel.slices;
    case SHARE_VOCABULARY: {
        uint64_t rows = 0;
        for (uint32_t r = 0; r < w->plan->ranges_count; r++)
            if (w->plan->ranges[r].node == node)
                rows += (uint64_t)w->plan->ranges[r].last - w->plan->ranges[r].first + 1;
        return bytes / w->plan->shape.vocab_size * rows;
    }
    case SHARE_NGRAM:
        return w->plan->ngram_node == node ? bytes : 0;
    }
    return 0;
}

static void inspect_add(tr_inspect_row *row, const tr_weight *weight)
{
    row->weights += (uint64_t)weight->rows * weight->cols;
    row->bytes += tr_weight_bytes(weight);
    row->matrices++;
}

static void inspect_add_weight(const inspect_walk *w, uint32_t layer, tr_weight_role role,
                               uint32_t expert)
{
    bool sparse = tr_model_get_spec(w->model)->layers[layer].channel.experts > 0;
    inspect_role r = inspect_role_of(role, sparse);
    tr_weight weight = tr_model_weight(w->model, layer, role, expert);
    tr_inspect_row *part = &w->report->parts[r.part];

    inspect_add(part, &weight);
    inspect_add(&w->report->formats[weight.format], &weight);
    inspect_add(&w->report->total, &weight);
    for (uint32_t node = 0; node < TR_INSPECT_NODES; node++) {
        uint64_t bytes =
            inspect_node_bytes(w, node, layer, r.share, expert, tr_weight_bytes(&weight));
        part->node_bytes[node] += bytes;
        w->report->total.node_bytes[node] += bytes;
    }
}

static void inspect_add_role(const inspect_walk *w, tr_weight_role role)
{
    const tr_model_spec *spec = tr_model_get_spec(w->model);
    uint32_t layers = tr_role_is_global(role) ? 1 : spec->layers_count;

    if (role == TR_W_HEAD && tr_model_is_tied(w->model))
        return;
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t count = tr_role_is_global(role) ? 1 : tr_role_count(&spec->layers[layer], role);

        for (uint32_t e = 0; e < count && tr_model_has(w->model, layer, role); e++)
            inspect_add_weight(w, layer, role, e);
    }
}

typedef struct {
    tr_inspect_report *report;
    uint32_t layers_count;
} inspect_skip_walk;

static void inspect_count_skipped(void *ctx, const tr_tensor *tensor)
{
    const inspect_skip_walk *walk = ctx;
    tr_inspect_report *report = walk->report;
    const char *reason = tr_skip_reason(tensor->name, walk->layers_count);
    uint32_t i = 0;

    while (i < report->skipped_reasons && report->skipped[i].reason != reason)
        i++;
    assert(i < TR_INSPECT_SKIPPED_MAX);
    tr_inspect_skipped *row = &report->skipped[i];
    if (i == report->skipped_reasons) {
        report->skipped_reasons++;
        row->reason = reason;
        snprintf(row->example, sizeof(row->example), "%s", tensor->name);
    }
    row->count++;
    row->bytes += tensor->size;
    report->skipped_count++;
    report->skipped_bytes += tensor->size;
}

tr_status tr_inspect_make(tr_inspect_report *out, const tr_model *model, tr_error *err)
{
    tr_placement *placement = calloc(1, sizeof(*placement));
    tr_plan *plan = calloc(1, sizeof(*plan));
    tr_plan_shape shape;
    tr_status status = TR_E_NOMEM;

    *out = (tr_inspect_report){0};
    if (placement == NULL || plan == NULL) {
        tr_fail(err, status, "%s: no memory for its placement", tr_model_path(model));
        goto free_plan;
    }
    tr_placement_local(placement, tr_model_path(model), 1);
    placement->nodes[1] = placement->nodes[0];
    snprintf(placement->nodes[1].name, sizeof(placement->nodes[1].name), "second");
    placement->nodes_count = TR_INSPECT_NODES;
    tr_model_plan_shape(model, &shape);
    status = tr_plan_make(plan, placement, &shape, err);
    if (status == TR_OK) {
        inspect_walk walk = {.report = out, .model = model, .plan = plan};

        for (int role = 0; role < TR_WEIGHTS_COUNT; role++)
            inspect_add_role(&walk, (tr_weight_role)role);
        inspect_skip_walk skipped = {out, shape.layers_count};
        tr_model_skipped(model, inspect_count_skipped, &skipped);
        for (uint32_t i = 0; i < tr_model_tensors_count(model); i++)
            out->tensor_bytes += tr_model_tensor(model, i)->size;
        tr_plan_free(plan);
    }
    tr_placement_free(placement);

free_plan:
    free(plan);
    free(placement);
    return status;
}
