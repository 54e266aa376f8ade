#include "api/admin_snapshot.h"

static tr_status begin_with_file(tr_status (*begin)(tr_cluster *, const char *, uint64_t *,
                                                    tr_error *),
                                 tr_cluster *cluster, const msgpack_object *request,
                                 msgpack_packer *reply, uint32_t *pairs, tr_error *err)
{
    char path[TR_PATH_SIZE];
    uint64_t number = 0;

    if (!tr_map_text(request, "file", path, sizeof(path)))
        return tr_fail(err, TR_E_INVALID, "file: missing, or longer than %zu bytes",
                       sizeof(path) - 1);
    tr_status status = begin(cluster, path, &number, err);
    if (status != TR_OK)
        return status;
    tr_pack_u64(reply, "change", number);
    *pairs += 1;
    return TR_OK;
}

static tr_status on_snapshot(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                             uint32_t *pairs, tr_error *err)
{
    return begin_with_file(tr_cluster_snapshot, ctx, request, reply, pairs, err);
}

static tr_status on_restore(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                            uint32_t *pairs, tr_error *err)
{
    return begin_with_file(tr_cluster_restore, ctx, request, reply, pairs, err);
}

void tr_admin_snapshot_register(tr_cluster *cluster)
{
    tr_control_server *server = tr_cluster_control(cluster);

    tr_control_server_handle(server, "snapshot", on_snapshot, cluster);
    tr_control_server_handle(server, "restore", on_restore, cluster);
}
