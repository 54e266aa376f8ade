#include "actors/cluster_stream.h"

#include "core/log.h"
#include "core/model/model.h"
#include "core/model/remote.h"

#include <stdlib.h>
#include <string.h>

#define STREAM_CALL_NS  10000000000u /* a disk that has to wake up */
#define STREAM_KEEP     (128u << 20) /* bytes on their way */
#define STREAM_RETRY_NS 100000000u

struct cluster_stream {
    tr_cluster *cluster;     /* borrows */
    tr_file_list own;        /* owns; of a node that has the model, when others stream */
    tr_remote_model *remote; /* owns; of a node that streams, and what follows too */
    uint64_t deadline_ns;    /* while the node opens: until then nobody need be there */
    uint32_t source;         /* who is asked */
    uint32_t verified;       /* bit per node that has been found to have the same model */
    uint64_t identity, layout;
    cluster_lines lines; /* owns */
};
typedef struct cluster_stream cluster_stream;

static bool stream_self(const tr_cluster *c)
{
    return c->placement->nodes[c->node_index].streams;
}

/* -- what a node with the model answers -- */

static tr_status on_model_files(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    const tr_file_list *list = &c->stream->own;
    (void)request;
    if (list->count == 0)
        return tr_fail(err, TR_E_INVALID, "node %s has no checkpoint of its own",
                       c->placement->nodes[c->node_index].name);
    tr_pack_text(reply, "name", list->name);
    tr_pack_bool(reply, "folder", list->folder);
    tr_pack_u64(reply, "identity", tr_model_identity(c->model));
    tr_pack_u64(reply, "layout", list->layout);
    tr_pack_list(reply, "files", list->count);
    for (uint32_t i = 0; i < list->count; i++) {
        (void)msgpack_pack_map(reply, 3);
        tr_pack_text(reply, "name", list->files[i].name);
        tr_pack_u64(reply, "size", list->files[i].size);
        tr_pack_u64(reply, "head", list->files[i].head);
    }
    *pairs += 5;
    return TR_OK;
}

static tr_status on_model_read(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                               uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    tr_file_range *ranges = NULL;
    const void *bytes;
    size_t size;

    if (c->stream->own.count == 0)
        return tr_fail(err, TR_E_INVALID, "node %s has no checkpoint of its own",
                       c->placement->nodes[c->node_index].name);
    if (!tr_map_bytes(request, "ranges", &bytes, &size) || size % sizeof(*ranges) != 0 ||
        size == 0 || size > TR_FILE_RANGES_MAX * sizeof(*ranges))
        return tr_fail(err, TR_E_INVALID, "model_read: ranges: missing or too many");
    uint32_t count = (uint32_t)(size / sizeof(*ranges));
    uint8_t *out = NULL;
    ranges = malloc(size); /* a copy, as the request is not aligned */
    tr_status status = TR_OK;
    if (ranges == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "model_read: no memory for %u ranges", count);
        goto done;
    }
    memcpy(ranges, bytes, size);
    uint64_t total = tr_file_ranges_size(ranges, count);
    if (total == UINT64_MAX) {
        status =
            tr_fail(err, TR_E_INVALID, "model_read: ranges: more than %u bytes", TR_FILE_BYTES_MAX);
        goto done;
    }
    out = malloc((size_t)total + 1);
    if (out == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "model_read: no memory for %llu bytes",
                         (unsigned long long)total);
        goto done;
    }
    status = tr_file_list_read(&c->stream->own, c->model, ranges, count, out, err);
    if (status == TR_OK) {
        tr_pack_bytes(reply, "bytes", out, (size_t)total);
        *pairs += 1;
    }

done:
    free(out);
    free(ranges);
    return status;
}

void cluster_stream_register(tr_cluster *c)
{
    if (c->stream == NULL)
        return;
    tr_control_server_handle(c->control, "model_files", on_model_files, c);
    tr_control_server_handle(c->control, "model_read", on_model_read, c);
}

/* -- what a node without it asks -- */

static bool stream_gives_up(const tr_cluster *c)
{
    return atomic_load(&c->stopping) || atomic_load(&c->shutdown_requested) ||
           atomic_load(&c->change.abandoned);
}

/* Whether a node may have the model. Before peers are known all are worth a try. */
static bool stream_may_ask(const tr_cluster *c, uint32_t node)
{
    return node != c->node_index && !c->placement->nodes[node].streams &&
           (c->control == NULL || cluster_is_alive(c, node));
}

/* While the node opens nothing is known of peers, and a call only ends by its deadline. */
static tr_status stream_send(cluster_stream *s, uint32_t node, const msgpack_sbuffer *request,
                             tr_control_reply *reply, tr_error *err)
{
    const tr_cluster *c = s->cluster;
    tr_control_client **client = &s->lines.clients[node];
    uint64_t deadline_ns = cluster_after(c, STREAM_CALL_NS);
    char url[TR_URL_SIZE + 64];

    if (s->deadline_ns == 0)
        return cluster_call_node(c, &s->lines, node, request, deadline_ns, reply, err);
    cluster_control_url(c, node, url, sizeof(url));
    tr_control_reply_init(reply);
    if (*client == NULL && tr_control_client_open(client, url, err) != TR_OK)
        return TR_E_INVALID;
    deadline_ns = s->deadline_ns < deadline_ns ? s->deadline_ns : deadline_ns;
    return tr_control_call(*client, request, deadline_ns, reply, err);
}

static tr_status stream_call(cluster_stream *s, uint32_t node, const char *method,
                             const tr_file_range *ranges, uint32_t count, tr_control_reply *reply,
                             tr_error *err)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    tr_error why = {0};

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&pk, ranges != NULL ? 2 : 1);
    tr_pack_text(&pk, "method", method);
    if (ranges != NULL)
        tr_pack_bytes(&pk, "ranges", ranges, count * sizeof(*ranges));
    tr_status status = stream_send(s, node, &buffer, reply, &why);
    msgpack_sbuffer_destroy(&buffer);
    if (status == TR_OK)
        return TR_OK;
    tr_control_reply_free(reply); /* a refusal is a reply, too */
    return tr_fail(err, status, "node %s: %.200s", s->cluster->placement->nodes[node].name,
                   why.text);
}

static tr_status list_read(tr_file_list *list, const msgpack_object *map, tr_error *err)
{
    const msgpack_object_array *files = tr_map_list(map, "files");

    if (files == NULL || files->size > TR_FILES_MAX ||
        !tr_map_text(map, "name", list->name, sizeof(list->name)) ||
        !tr_map_bool(map, "folder", &list->folder) || !tr_map_u64(map, "layout", &list->layout))
        return tr_fail(err, TR_E_INVALID, "model_files: a member is missing or too long");
    tr_status status = tr_file_list_take(list, files->size, err);
    for (; status == TR_OK && list->count < files->size; list->count++) {
        tr_file_entry *file = &list->files[list->count];
        const msgpack_object *row = &files->ptr[list->count];
        file->fd = -1;
        if (row->type != MSGPACK_OBJECT_MAP ||
            !tr_map_text(row, "name", file->name, sizeof(file->name)) ||
            !tr_map_u64(row, "size", &file->size) || !tr_map_u64(row, "head", &file->head))
            status = tr_fail(err, TR_E_INVALID, "model_files: files[%u]: expected name, size, head",
                             list->count);
    }
    if (status != TR_OK)
        tr_file_list_free(list);
    return status;
}

/* Asks a node for its files. list NULL: only whether it has the model that was opened. */
static tr_status stream_ask_files(cluster_stream *s, uint32_t node, tr_file_list *list,
                                  tr_error *err)
{
    tr_control_reply reply;
    uint64_t identity = 0, layout = 0;

    tr_status status = stream_call(s, node, "model_files", NULL, 0, &reply, err);
    if (status != TR_OK)
        return status;
    bool whole =
        tr_map_u64(reply.map, "identity", &identity) && tr_map_u64(reply.map, "layout", &layout);
    if (!whole)
        status = tr_fail(err, TR_E_INVALID, "model_files: identity or layout: missing");
    else if (list != NULL)
        status = list_read(list, reply.map, err);
    else if (identity != s->identity || layout != s->layout)
        status = tr_fail(err, TR_E_INVALID, "node %s has another model, or other files of it",
                         s->cluster->placement->nodes[node].name);
    tr_control_reply_free(&reply);
    if (status == TR_OK) {
        s->identity = identity;
        s->layout = layout;
        s->verified |= 1u << node;
    }
    return status;
}

static tr_status stream_read_from(cluster_stream *s, uint32_t node, const tr_file_range *ranges,
                                  uint8_t *const *to, uint32_t count, tr_error *err)
{
    tr_control_reply reply;
    const void *bytes = NULL;
    size_t size = 0;
    uint64_t expected = tr_file_ranges_size(ranges, count);
    tr_status status = TR_OK;

    if ((s->verified >> node & 1) == 0)
        status = stream_ask_files(s, node, NULL, err);
    if (status == TR_OK)
        status = stream_call(s, node, "model_read", ranges, count, &reply, err);
    if (status != TR_OK)
        return status;
    if (!tr_map_bytes(reply.map, "bytes", &bytes, &size) || size != expected)
        status =
            tr_fail(err, TR_E_INVALID, "node %s: %zu bytes of the model, expected %llu",
                    s->cluster->placement->nodes[node].name, size, (unsigned long long)expected);
    const uint8_t *in = bytes;
    for (uint32_t i = 0; status == TR_OK && i < count; in += ranges[i].size, i++)
        memcpy(to[i], in, ranges[i].size);
    tr_control_reply_free(&reply);
    return status;
}

/* One thing asked of whoever can answer it, the last one that did first. */
typedef tr_status (*stream_question)(cluster_stream *s, uint32_t node, void *ctx, tr_error *err);

static tr_status stream_ask_any(cluster_stream *s, stream_question ask, void *ctx, tr_error *err)
{
    const tr_cluster *c = s->cluster;
    tr_error why = {0};

    tr_fail(&why, TR_E_PEER, "no node that has the model is there");
    for (;;) {
        for (uint32_t i = 0; i < c->placement->nodes_count; i++) {
            uint32_t node = (s->source + i) % c->placement->nodes_count;
            if (stream_gives_up(c))
                return tr_fail(err, TR_E_CANCELED, "stopped while the model was asked for");
            if (!stream_may_ask(c, node))
                continue;
            if (ask(s, node, ctx, &why) == TR_OK) {
                s->source = node;
                return TR_OK;
            }
            s->verified &= ~(1u << node); /* it may come back as another */
        }
        if (s->deadline_ns == 0 || cluster_after(c, STREAM_RETRY_NS) >= s->deadline_ns)
            return tr_fail(err, TR_E_PEER, "%s has no checkpoint of its own: %.180s",
                           c->placement->nodes[c->node_index].name, why.text);
        cluster_sleep(c, STREAM_RETRY_NS);
    }
}

static tr_status ask_list(cluster_stream *s, uint32_t node, void *ctx, tr_error *err)
{
    return stream_ask_files(s, node, ctx, err);
}

typedef struct {
    const tr_file_range *ranges;
    uint8_t *const *to;
    uint32_t count;
} stream_reading;

static tr_status ask_bytes(cluster_stream *s, uint32_t node, void *ctx, tr_error *err)
{
    const stream_reading *r = ctx;
    return stream_read_from(s, node, r->ranges, r->to, r->count, err);
}

static tr_status stream_read(void *ctx, const tr_file_range *ranges, uint8_t *const *to,
                             uint32_t count, tr_error *err)
{
    stream_reading reading = {ranges, to, count};
    return stream_ask_any(ctx, ask_bytes, &reading, err);
}

/* -- life -- */

static tr_status stream_check_opened(const cluster_stream *s, tr_error *err)
{
    tr_file_list list;
    tr_status status = tr_file_list_make(&list, s->cluster->model, err);

    if (status != TR_OK)
        return status;
    bool same = list.layout == s->layout && tr_model_identity(s->cluster->model) == s->identity;
    tr_file_list_free(&list);
    return same ? TR_OK
                : tr_fail(err, TR_E_INVALID, "%s: what node %s gave is not the model that it has",
                          s->cluster->placement->model,
                          s->cluster->placement->nodes[s->source].name);
}

static tr_status stream_open_remote(cluster_stream *s, tr_error *err)
{
    tr_cluster *c = s->cluster;
    tr_file_list list = {0};

    s->deadline_ns = cluster_after(c, (uint64_t)c->placement->limits.start_timeout_s * 1000000000);
    tr_status status = stream_ask_any(s, ask_list, &list, err);
    if (status == TR_OK)
        status = tr_remote_open(&s->remote, &list, stream_read, s, STREAM_KEEP, err);
    tr_file_list_free(&list);
    if (status != TR_OK)
        return status;
    tr_remote_hold(s->remote);
    status = tr_model_open(&c->model, tr_remote_path(s->remote), err);
    tr_remote_drop(s->remote);
    if (status == TR_OK)
        status = stream_check_opened(s, err);
    if (status == TR_OK)
        tr_log(TR_LOG_INFO, NULL, "model_streamed", "from=%s bytes=%llu",
               c->placement->nodes[s->source].name,
               (unsigned long long)tr_remote_received(s->remote));
    return status;
}

tr_status cluster_stream_open(tr_cluster *c, tr_error *err)
{
    bool others = false;

    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        others |= c->placement->nodes[n].streams;
    if (!others)
        return tr_model_open(&c->model, c->placement->model, err);
    c->stream = calloc(1, sizeof(*c->stream));
    if (c->stream == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory to stream a model");
    c->stream->cluster = c;
    if (stream_self(c))
        return stream_open_remote(c->stream, err);
    tr_status status = tr_model_open(&c->model, c->placement->model, err);
    return status == TR_OK ? tr_file_list_make(&c->stream->own, c->model, err) : status;
}

void cluster_stream_close(tr_cluster *c)
{
    cluster_stream *s = c->stream;

    if (c->model != NULL)
        tr_model_close(c->model);
    c->model = NULL;
    if (s == NULL)
        return;
    tr_remote_close(s->remote);
    tr_file_list_free(&s->own);
    cluster_close_lines(&s->lines);
    free(s);
    c->stream = NULL;
}

tr_status cluster_stream_check(tr_cluster *c, const tr_plan *plan, tr_error *err)
{
    const char *name = c->placement->nodes[c->node_index].name;

    if (!stream_self(c))
        return TR_OK;
    if (plan->shape.ngram_tables > 0 && plan->ngram_node == c->node_index)
        return tr_fail(
            err, TR_E_NOTSUP,
            "%s has no checkpoint of its own, and n-gram tables are read from it all the "
            "time: expected another node for ngram",
            name);
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        if (stream_may_ask(c, n))
            return TR_OK;
    return tr_fail(err, TR_E_PEER,
                   "%s has no checkpoint of its own, and no node that has one is there", name);
}

void cluster_stream_place_ngram(const tr_cluster *c, tr_plan *plan, uint32_t others)
{
    const tr_placement_node *nodes = c->placement->nodes;

    if (plan->shape.ngram_tables == 0 || !nodes[plan->ngram_node].streams)
        return;
    for (uint32_t n = c->placement->nodes_count; n-- > 0;)
        if ((others >> n & 1) != 0 && !nodes[n].streams)
            plan->ngram_node = n;
}

void cluster_stream_end(tr_cluster *c)
{
    if (c->stream == NULL || c->stream->remote == NULL)
        return;
    tr_remote_drop(c->stream->remote);
    if (c->stream->deadline_ns != 0)
        cluster_close_lines(&c->stream->lines); /* those to come end with their node */
    c->stream->deadline_ns = 0;                 /* somebody is there now, or the change fails */
    tr_log(TR_LOG_INFO, NULL, "weights_streamed", "from=%s bytes=%llu",
           c->placement->nodes[c->stream->source].name,
           (unsigned long long)tr_remote_received(c->stream->remote));
}

uint64_t cluster_stream_bytes(const tr_cluster *c)
{
    return c->stream != NULL && c->stream->remote != NULL ? tr_remote_keep_max(c->stream->remote)
                                                          : 0;
}
