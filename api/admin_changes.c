#include "api/admin_changes.h"

static tr_status pack_number(msgpack_packer *reply, uint32_t *pairs, uint64_t number)
{
    tr_pack_u64(reply, "change", number);
    *pairs += 1;
    return TR_OK;
}

static tr_status read_text(const msgpack_object *request, const char *key, char *out, size_t size,
                           tr_error *err)
{
    if (tr_map_text(request, key, out, size))
        return TR_OK;
    return tr_fail(err, TR_E_INVALID, "%s: missing, or longer than %zu bytes", key, size - 1);
}

/* Begins a change that is about a part and a node, or about a node alone; answers its number. */
typedef tr_status (*part_change)(tr_cluster *c, const char *part, const char *node,
                                 uint64_t *number, tr_error *err);
typedef tr_status (*node_change)(tr_cluster *c, const char *node, uint64_t *number, tr_error *err);

static tr_status begin_of_part(part_change begin, tr_cluster *c, const msgpack_object *request,
                               msgpack_packer *reply, uint32_t *pairs, tr_error *err)
{
    char part[128], node[TR_NAME_SIZE];
    uint64_t number = 0;

    tr_status status = read_text(request, "part", part, sizeof(part), err);
    if (status == TR_OK)
        status = read_text(request, "to", node, sizeof(node), err);
    if (status == TR_OK)
        status = begin(c, part, node, &number, err);
    return status == TR_OK ? pack_number(reply, pairs, number) : status;
}

static tr_status begin_of_node(node_change begin, const char *key, tr_cluster *c,
                               const msgpack_object *request, msgpack_packer *reply,
                               uint32_t *pairs, tr_error *err)
{
    char node[TR_NAME_SIZE];
    uint64_t number = 0;

    tr_status status = read_text(request, key, node, sizeof(node), err);
    if (status == TR_OK)
        status = begin(c, node, &number, err);
    return status == TR_OK ? pack_number(reply, pairs, number) : status;
}

static tr_status on_move(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                         uint32_t *pairs, tr_error *err)
{
    return begin_of_part(tr_cluster_move, ctx, request, reply, pairs, err);
}

static tr_status on_replicate(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                              uint32_t *pairs, tr_error *err)
{
    return begin_of_part(tr_cluster_replicate, ctx, request, reply, pairs, err);
}

static tr_status on_drain(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                          uint32_t *pairs, tr_error *err)
{
    return begin_of_node(tr_cluster_drain, "from", ctx, request, reply, pairs, err);
}

static tr_status on_undrain(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                            uint32_t *pairs, tr_error *err)
{
    return begin_of_node(tr_cluster_undrain, "to", ctx, request, reply, pairs, err);
}

static tr_status on_abort(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                          uint32_t *pairs, tr_error *err)
{
    uint64_t number = 0;
    (void)request;
    tr_status status = tr_cluster_abort(ctx, &number, err);
    return status == TR_OK ? pack_number(reply, pairs, number) : status;
}

static tr_status on_change(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                           uint32_t *pairs, tr_error *err)
{
    tr_change_report report;
    uint64_t number = 0;

    if (!tr_map_u64(request, "change", &number))
        return tr_fail(err, TR_E_INVALID, "change: missing, expected a number");
    if (!tr_cluster_change_report(ctx, number, &report))
        return tr_fail(err, TR_E_INVALID, "change: found %llu, which is not known here",
                       (unsigned long long)number);
    tr_pack_u64(reply, "change", report.number);
    tr_pack_text(reply, "what", report.what);
    tr_pack_text(reply, "phase", report.phase);
    tr_pack_u64(reply, "moved", report.moved);
    tr_pack_u64(reply, "prefixes", report.prefixes);
    tr_pack_u64(reply, "sequences", report.sequences);
    tr_pack_u64(reply, "left", report.left);
    tr_pack_u64(reply, "epoch", report.epoch);
    tr_pack_u64(reply, "bytes", report.bytes);
    tr_pack_u64(reply, "pause_bytes", report.pause_bytes);
    tr_pack_u64(reply, "prepare_ns", report.prepare_ns);
    tr_pack_u64(reply, "pause_ns", report.pause_ns);
    tr_pack_u64(reply, "gap_ns", report.gap_ns);
    tr_pack_u64(reply, "total_ns", report.total_ns);
    tr_pack_text(reply, "why", report.error.text);
    *pairs += 15;
    return TR_OK;
}

void tr_admin_changes_register(tr_cluster *cluster)
{
    tr_control_server *server = tr_cluster_control(cluster);

    tr_control_server_handle(server, "move", on_move, cluster);
    tr_control_server_handle(server, "replicate", on_replicate, cluster);
    tr_control_server_handle(server, "drain", on_drain, cluster);
    tr_control_server_handle(server, "undrain", on_undrain, cluster);
    tr_control_server_handle(server, "abort", on_abort, cluster);
    tr_control_server_handle(server, "change", on_change, cluster);
}
