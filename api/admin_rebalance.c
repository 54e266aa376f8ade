#include "api/admin_rebalance.h"

#include <string.h>

#define PERMILLE_MAX 1000
#define NS_MAX       1e18 /* other nodes may have answered anything */

static tr_status on_rebalance(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                              uint32_t *pairs, tr_error *err)
{
    tr_rebalance_options options = {0};
    uint64_t permille = 0, dry_run = 0, number = 0;

    if (!tr_map_u64(request, "threshold_permille", &permille) || permille > PERMILLE_MAX)
        return tr_fail(err, TR_E_INVALID, "threshold_permille: missing, expected 0 to %d",
                       PERMILLE_MAX);
    if (!tr_map_u64(request, "dry_run", &dry_run) || dry_run > 1)
        return tr_fail(err, TR_E_INVALID, "dry_run: missing, expected 0 or 1");
    options.threshold = (double)permille / PERMILLE_MAX;
    options.dry_run = dry_run == 1;
    tr_status status = tr_cluster_rebalance(ctx, &options, &number, err);
    if (status != TR_OK)
        return status;
    tr_pack_u64(reply, "change", number);
    *pairs += 1;
    return TR_OK;
}

static void pack_nodes(msgpack_packer *reply, const tr_placement *placement, const char *key,
                       uint32_t nodes)
{
    tr_pack_list(reply, key, (uint32_t)__builtin_popcount(nodes));
    for (uint32_t n = 0; nodes >> n != 0; n++)
        if (nodes >> n & 1) {
            const char *name = placement->nodes[n].name;
            (void)msgpack_pack_str(reply, strlen(name));
            (void)msgpack_pack_str_body(reply, name, strlen(name));
        }
}

/* A time that was measured or predicted; whole nanoseconds are enough. */
static void pack_ns(msgpack_packer *reply, const char *key, double ns)
{
    tr_pack_u64(reply, key, ns <= 0 ? 0 : ns >= NS_MAX ? (uint64_t)NS_MAX : (uint64_t)(ns + 0.5));
}

static void pack_hops(msgpack_packer *reply, const tr_placement *placement,
                      const tr_rebalance_report *r)
{
    uint32_t nodes = (uint32_t)__builtin_popcount(r->nodes);

    tr_pack_list(reply, "hops", nodes * (nodes - 1) / 2);
    for (uint32_t a = 0; r->nodes >> a != 0; a++)
        for (uint32_t b = a + 1; r->nodes >> b != 0; b++)
            if ((r->nodes >> a & 1) && (r->nodes >> b & 1)) {
                (void)msgpack_pack_map(reply, 2);
                pack_nodes(reply, placement, "between", 1u << a | 1u << b);
                pack_ns(reply, "one_way_ns", r->hop_ns[a][b]);
            }
}

static void pack_costs(msgpack_packer *reply, const tr_placement *placement,
                       const tr_rebalance_report *r)
{
    tr_pack_list(reply, "costs", (uint32_t)__builtin_popcount(r->nodes));
    for (uint32_t n = 0; r->nodes >> n != 0; n++)
        if (r->nodes >> n & 1) {
            (void)msgpack_pack_map(reply, 4);
            tr_pack_text(reply, "node", placement->nodes[n].name);
            tr_pack_u64(reply, "measured", r->costs[n].steps);
            pack_ns(reply, "expert_ns", r->costs[n].fixed_ns);
            pack_ns(reply, "row_ns", r->costs[n].row_ns);
        }
}

static void pack_edits(msgpack_packer *reply, const tr_placement *placement,
                       const tr_rebalance *found)
{
    tr_pack_list(reply, "edits", found->edits_count);
    for (uint32_t i = 0; i < found->edits_count; i++) {
        const tr_rebalance_edit *edit = &found->edits[i];
        (void)msgpack_pack_map(reply, 4);
        tr_pack_u64(reply, "layer", edit->layer);
        tr_pack_u64(reply, "expert", edit->expert);
        pack_nodes(reply, placement, "before", edit->before);
        pack_nodes(reply, placement, "after", edit->after);
    }
}

static tr_status on_result(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                           uint32_t *pairs, tr_error *err)
{
    const tr_placement *placement = tr_cluster_placement(ctx);
    tr_rebalance_report r;
    uint64_t number = 0;

    if (!tr_map_u64(request, "change", &number))
        return tr_fail(err, TR_E_INVALID, "change: missing, expected a number");
    if (!tr_cluster_rebalance_report(ctx, number, &r))
        return tr_fail(err, TR_E_INVALID,
                       "change: found %llu, which is not the last rebalance that was measured",
                       (unsigned long long)number);
    tr_pack_u64(reply, "change", r.number);
    tr_pack_bool(reply, "dry_run", r.options.dry_run);
    tr_pack_bool(reply, "changes", r.changes);
    tr_pack_u64(reply, "threshold_permille", (uint64_t)(r.options.threshold * PERMILLE_MAX + 0.5));
    tr_pack_i64(reply, "gain_ppm", (int64_t)(tr_rebalance_gain(&r.found) * 1e6));
    pack_ns(reply, "step_ns", r.found.step_ns);
    pack_ns(reply, "experts_ns", r.found.waited_ns);
    pack_ns(reply, "experts_before_ns", r.found.before_ns);
    pack_ns(reply, "experts_after_ns", r.found.after_ns);
    tr_pack_u64(reply, "recorded_steps", r.found.steps);
    tr_pack_u64(reply, "moves", r.found.moves);
    tr_pack_u64(reply, "replicas", r.found.replicas);
    tr_pack_u64(reply, "bytes", r.found.bytes);
    tr_pack_bool(reply, "costs_assumed", r.found.costs_assumed);
    pack_hops(reply, placement, &r);
    pack_costs(reply, placement, &r);
    pack_edits(reply, placement, &r.found);
    *pairs += 17;
    tr_rebalance_free(&r.found);
    return TR_OK;
}

void tr_admin_rebalance_register(tr_cluster *cluster)
{
    tr_control_server *server = tr_cluster_control(cluster);

    tr_control_server_handle(server, "rebalance", on_rebalance, cluster);
    tr_control_server_handle(server, "rebalance_result", on_result, cluster);
}
