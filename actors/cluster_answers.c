/* cluster_answers.c - the control methods of a change of placement: what each node answers to the
 * coordinator (cluster_moves_run.c), and to nodes that fetch states. Everything that comes in is
 * checked here; cluster_change.c does it. */
#include "actors/cluster_fetch.h"
#include "actors/cluster_states.h"
#include "actors/cluster_node.h"

#include <stdlib.h>
#include <string.h>

static tr_status on_prepare(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                            uint32_t *pairs, tr_error *err)
{
    const void *bytes;
    size_t size;
    (void)reply, (void)pairs;
    if (!tr_map_bytes(request, "plan", &bytes, &size))
        return tr_fail(err, TR_E_INVALID, "plan_prepare: plan: missing");
    return cluster_change_prepare(ctx, bytes, size, err);
}

static tr_status on_status(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                           uint32_t *pairs, tr_error *err)
{
    uint64_t bytes;
    tr_error why = {0};
    (void)request, (void)err;
    cluster_change_phase phase = cluster_change_status(ctx, &bytes, &why);
    tr_pack_u64(reply, "phase", phase);
    tr_pack_u64(reply, "bytes", bytes);
    tr_pack_text(reply, "error", why.text);
    *pairs += 3;
    return TR_OK;
}

static bool read_epoch(const msgpack_object *request, uint64_t *epoch, tr_error *err)
{
    if (tr_map_u64(request, "epoch", epoch))
        return true;
    tr_fail(err, TR_E_INVALID, "epoch: missing, expected an unsigned integer");
    return false;
}

static tr_status on_fetch(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                          uint32_t *pairs, tr_error *err)
{
    uint64_t epoch;
    const void *bytes;
    size_t size;
    uint32_t positions[TR_SEQUENCES_MAX];
    (void)reply, (void)pairs;
    if (!read_epoch(request, &epoch, err))
        return TR_E_INVALID;
    if (!tr_map_bytes(request, "positions", &bytes, &size) || size > sizeof(positions) ||
        size % sizeof(positions[0]) != 0)
        return tr_fail(err, TR_E_INVALID, "plan_fetch: positions: missing or too many");
    memcpy(positions, bytes, size);
    return cluster_change_fetch(ctx, epoch, positions, (uint32_t)(size / sizeof(positions[0])),
                                err);
}

static tr_status on_warm(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                         uint32_t *pairs, tr_error *err)
{
    uint64_t epoch;
    const void *bytes;
    size_t size;
    tr_sequence_place places[TR_SEQUENCES_MAX];
    (void)reply, (void)pairs;
    if (!read_epoch(request, &epoch, err))
        return TR_E_INVALID;
    if (!tr_map_bytes(request, "places", &bytes, &size) || size > sizeof(places) ||
        size % sizeof(places[0]) != 0)
        return tr_fail(err, TR_E_INVALID, "plan_warm: places: missing or too many");
    memcpy(places, bytes, size);
    return cluster_change_warm(ctx, epoch, places, (uint32_t)(size / sizeof(places[0])), err);
}

static tr_status on_commit(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                           uint32_t *pairs, tr_error *err)
{
    uint64_t epoch;
    (void)reply, (void)pairs;
    return read_epoch(request, &epoch, err) ? cluster_change_commit(ctx, epoch, err) : TR_E_INVALID;
}

static tr_status on_abort(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                          uint32_t *pairs, tr_error *err)
{
    uint64_t epoch;
    (void)reply, (void)pairs;
    return read_epoch(request, &epoch, err) ? cluster_change_abort(ctx, epoch, err) : TR_E_INVALID;
}

static tr_status on_retire(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                           uint32_t *pairs, tr_error *err)
{
    uint64_t epoch;
    (void)reply, (void)pairs;
    return read_epoch(request, &epoch, err) ? cluster_change_retire(ctx, epoch, err) : TR_E_INVALID;
}

static tr_status on_states_read(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                uint32_t *pairs, tr_error *err)
{
    cluster_piece pieces[CLUSTER_PIECES_MAX];
    const void *rows;
    void *bytes = NULL;
    size_t size;
    bool live = false;

    if (!tr_map_bytes(request, "pieces", &rows, &size) || size > sizeof(pieces) ||
        size % sizeof(pieces[0]) != 0)
        return tr_fail(err, TR_E_INVALID, "states_read: pieces: missing or too many");
    memcpy(pieces, rows, size);
    (void)tr_map_bool(request, "live", &live); /* absent: nothing runs */
    tr_status status = cluster_change_read(ctx, pieces, (uint32_t)(size / sizeof(pieces[0])), live,
                                           &bytes, &size, err);
    if (status != TR_OK)
        return status;
    tr_pack_bytes(reply, "bytes", bytes, size);
    *pairs += 1;
    free(bytes);
    return TR_OK;
}

static tr_status on_ngram_read(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                               uint32_t *pairs, tr_error *err)
{
    uint64_t sequence = 0;
    void *bytes = NULL;
    size_t size = 0;

    if (!tr_map_u64(request, "sequence", &sequence) || sequence > UINT32_MAX)
        return tr_fail(err, TR_E_INVALID, "ngram_read: sequence: missing or too large");
    tr_status status = cluster_change_read_ngram(ctx, (uint32_t)sequence, &bytes, &size, err);
    if (status != TR_OK)
        return status;
    tr_pack_bytes(reply, "bytes", bytes, size);
    *pairs += 1;
    free(bytes);
    return TR_OK;
}

void cluster_answers_register(tr_cluster *c)
{
    tr_control_server_handle(c->control, "plan_prepare", on_prepare, c);
    tr_control_server_handle(c->control, "plan_status", on_status, c);
    tr_control_server_handle(c->control, "plan_warm", on_warm, c);
    tr_control_server_handle(c->control, "plan_fetch", on_fetch, c);
    tr_control_server_handle(c->control, "plan_commit", on_commit, c);
    tr_control_server_handle(c->control, "plan_abort", on_abort, c);
    tr_control_server_handle(c->control, "plan_retire", on_retire, c);
    tr_control_server_handle(c->control, "states_read", on_states_read, c);
    cluster_states_register(c);
    tr_control_server_handle(c->control, "ngram_read", on_ngram_read, c);
}
