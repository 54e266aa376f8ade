#include "api/admin.h"

#include "core/log.h"
#include "core/trace.h"

#include <stdlib.h>
#include <string.h>

/* The newest events of a ring that one answer carries: 32 MiB, half of the largest answer. */
#define ADMIN_EVENTS_MAX (1u << 20)

/* -- status -- */

static const char *health_name(tr_health_state state)
{
    switch (state) {
    case TR_HEALTH_STARTING:
        return "starting";
    case TR_HEALTH_SERVING:
        return "serving";
    case TR_HEALTH_DEGRADED:
        return "degraded";
    case TR_HEALTH_NOT_SERVING:
        return "not_serving";
    }
    return "unknown";
}

static const tr_placement_node *own_node(tr_cluster *cluster)
{
    return &tr_cluster_placement(cluster)->nodes[tr_cluster_node_index(cluster)];
}

static void pack_key_of_map(msgpack_packer *pk, const char *key, uint32_t pairs)
{
    size_t size = strlen(key);

    (void)msgpack_pack_str(pk, size);
    (void)msgpack_pack_str_body(pk, key, size);
    (void)msgpack_pack_map(pk, pairs);
}

static void pack_model(msgpack_packer *pk, tr_cluster *cluster)
{
    const tr_model *model = tr_cluster_model(cluster);
    const tr_model_spec *spec = tr_model_get_spec(model);

    pack_key_of_map(pk, "model", 5);
    tr_pack_text(pk, "path", tr_model_path(model));
    tr_pack_text(pk, "architecture", spec->architecture);
    tr_pack_u64(pk, "layers", spec->layers_count);
    tr_pack_u64(pk, "vocabulary", spec->vocab_size);
    tr_pack_u64(pk, "context_tokens", tr_cluster_context_max(cluster));
}

static void pack_memory(msgpack_packer *pk, tr_cluster *cluster)
{
    tr_budget budget;
    tr_cluster_stat stat;

    tr_cluster_memory(cluster, &budget);
    tr_cluster_stats(cluster, &stat);
    pack_key_of_map(pk, "memory", 3);
    tr_pack_u64(pk, "limit_bytes", budget.bytes_max);
    tr_pack_u64(pk, "used_bytes", stat.memory_bytes);
    tr_pack_list(pk, "parts", budget.rows_count);
    for (uint32_t i = 0; i < budget.rows_count; i++) {
        const tr_budget_row *row = &budget.rows[i];
        (void)msgpack_pack_map(pk, 3);
        tr_pack_text(pk, "part", row->part);
        tr_pack_u64(pk, "bytes", row->bytes);
        tr_pack_text(pk, "change", row->change);
    }
}

static void pack_peers(msgpack_packer *pk, tr_cluster *cluster)
{
    const tr_placement *placement = tr_cluster_placement(cluster);
    tr_peer_stat rows[TR_NODES_MAX];
    uint32_t count = tr_cluster_peers(cluster, rows, TR_NODES_MAX);

    tr_pack_list(pk, "peers", count);
    for (uint32_t i = 0; i < count; i++) {
        (void)msgpack_pack_map(pk, 7);
        tr_pack_text(pk, "name", rows[i].name);
        tr_pack_text(pk, "control", placement->nodes[i].control);
        tr_pack_bool(pk, "self", rows[i].self);
        tr_pack_bool(pk, "alive", rows[i].alive);
        tr_pack_text(pk, "path", rows[i].path != NULL ? rows[i].path : ""); /* not met yet */
        tr_pack_i64(pk, "clock_offset_ns", rows[i].clock_offset_ns);
        tr_pack_u64(pk, "round_trip_ns", rows[i].round_trip_ns);
    }
}

static void pack_stats(msgpack_packer *pk, tr_cluster *cluster)
{
    tr_cluster_stat stat = {0};

    tr_cluster_stats(cluster, &stat);
    pack_key_of_map(pk, "stats", 12);
    tr_pack_u64(pk, "sequences_active", stat.sequences_active);
    tr_pack_u64(pk, "sequences_max", stat.sequences_max);
    tr_pack_u64(pk, "requests_waiting", stat.requests_waiting);
    tr_pack_u64(pk, "requests_finished", stat.requests_finished);
    tr_pack_u64(pk, "requests_failed", stat.requests_failed);
    tr_pack_u64(pk, "steps", stat.steps);
    tr_pack_u64(pk, "prompt_tokens", stat.prompt_tokens);
    tr_pack_u64(pk, "generated_tokens", stat.generated_tokens);
    tr_pack_u64(pk, "prefixes_kept", stat.prefixes_kept);
    tr_pack_u64(pk, "cached_tokens", stat.cached_tokens);
    tr_pack_u64(pk, "kv_pages_used", stat.kv_pages_used);
    tr_pack_u64(pk, "kv_pages_max", stat.kv_pages_max);
}

/* Names of the nodes of a mask. */
static void pack_missing(msgpack_packer *pk, const tr_placement *placement, uint32_t missing)
{
    tr_pack_list(pk, "missing", (uint32_t)__builtin_popcount(missing));
    for (uint32_t n = 0; missing >> n != 0; n++) {
        size_t size = strlen(placement->nodes[n].name);
        if (!(missing >> n & 1))
            continue;
        (void)msgpack_pack_str(pk, size);
        (void)msgpack_pack_str_body(pk, placement->nodes[n].name, size);
    }
}

static tr_status admin_on_status(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                 uint32_t *pairs, tr_error *err)
{
    tr_cluster *cluster = ctx;
    const tr_placement *placement = tr_cluster_placement(cluster);
    tr_health health;

    (void)request, (void)err;
    tr_cluster_health(cluster, &health);
    tr_pack_text(reply, "node", own_node(cluster)->name);
    tr_pack_text(reply, "health", health_name(health.state));
    tr_pack_text(reply, "health_text", health.text);
    pack_missing(reply, placement, health.missing);
    tr_pack_text(reply, "transport", placement->transport);
    tr_pack_bool(reply, "batcher", placement->batcher_node == tr_cluster_node_index(cluster));
    tr_pack_text(reply, "api_host", placement->api_host);
    tr_pack_u64(reply, "api_port", placement->api_port);
    pack_model(reply, cluster);
    pack_memory(reply, cluster);
    pack_stats(reply, cluster);
    pack_peers(reply, cluster);
    *pairs = 12;
    return TR_OK;
}

static tr_status admin_on_peers(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                uint32_t *pairs, tr_error *err)
{
    tr_cluster *cluster = ctx;

    (void)request, (void)err;
    tr_pack_text(reply, "node", own_node(cluster)->name);
    pack_peers(reply, cluster);
    *pairs = 2;
    return TR_OK;
}

/* -- actors -- */

/* All actors and ports of this node; the caller frees *out. Returns their number. */
static uint32_t read_actors(tr_cluster *cluster, tr_actor_stat **out)
{
    tr_actor_stat *rows = calloc(TR_ACTORS_MAX, sizeof(*rows));
    uint32_t count = 0;

    if (rows != NULL)
        count = tr_runtime_stats(tr_cluster_runtime(cluster), rows, TR_ACTORS_MAX);
    *out = rows;
    return count < TR_ACTORS_MAX ? count : TR_ACTORS_MAX;
}

static void pack_actor(msgpack_packer *pk, const tr_actor_stat *row)
{
    (void)msgpack_pack_map(pk, 10);
    tr_pack_u64(pk, "id", row->id);
    tr_pack_text(pk, "name", row->name);
    tr_pack_text(pk, "kind", row->kind);
    tr_pack_u64(pk, "worker", row->worker);
    tr_pack_u64(pk, "mailbox_depth", row->mailbox_depth);
    tr_pack_u64(pk, "mailbox_slots", row->mailbox_slots);
    tr_pack_u64(pk, "received", row->received_count);
    tr_pack_u64(pk, "busy_ns", row->busy_ns);
    tr_pack_u64(pk, "restarts", row->restarts);
    tr_pack_bool(pk, "failed", row->failed);
}

static tr_status admin_on_actors(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                 uint32_t *pairs, tr_error *err)
{
    tr_cluster *cluster = ctx;
    tr_actor_stat *rows = NULL;
    uint32_t count = read_actors(cluster, &rows);

    (void)request;
    if (rows == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for the list of actors");
    tr_pack_text(reply, "node", own_node(cluster)->name);
    tr_pack_list(reply, "actors", count);
    for (uint32_t i = 0; i < count; i++)
        pack_actor(reply, &rows[i]);
    free(rows);
    *pairs = 2;
    return TR_OK;
}

/* -- trace -- */

static tr_status admin_on_clock(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                uint32_t *pairs, tr_error *err)
{
    (void)ctx, (void)request, (void)err;
    tr_pack_u64(reply, "clock_ns", tr_clock_ns());
    *pairs = 1;
    return TR_OK;
}

static void count_ring(void *ctx, const char *thread, const tr_trace_event *events, size_t count)
{
    uint32_t *rings_count = ctx;

    (void)thread, (void)events, (void)count;
    (*rings_count)++;
}

/* Without "ring": how many rings there are, and the names that their events use. */
static tr_status trace_overview(tr_cluster *cluster, msgpack_packer *reply, uint32_t *pairs,
                                tr_error *err)
{
    tr_actor_stat *rows = NULL;
    uint32_t actors_count = read_actors(cluster, &rows);
    uint32_t rings_count = 0;

    if (rows == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for the list of actors");
    tr_trace_read(count_ring, &rings_count);
    tr_pack_text(reply, "node", own_node(cluster)->name);
    tr_pack_u64(reply, "rings", rings_count);
    tr_pack_list(reply, "actors", actors_count);
    for (uint32_t i = 0; i < actors_count; i++) {
        (void)msgpack_pack_map(reply, 2);
        tr_pack_u64(reply, "id", rows[i].id);
        tr_pack_text(reply, "name", rows[i].name);
    }
    tr_pack_list(reply, "kernels", TR_KERNELS_COUNT);
    for (uint32_t i = 0; i < TR_KERNELS_COUNT; i++) {
        (void)msgpack_pack_map(reply, 2);
        tr_pack_u64(reply, "id", i);
        tr_pack_text(reply, "name", tr_kernel_name(i));
    }
    free(rows);
    *pairs = 4;
    return TR_OK;
}

/* The ring that a request asks for. */
typedef struct {
    msgpack_packer *reply;
    uint64_t wanted;
    uint64_t seen; /* rings before this one */
} ring_search;

static void pack_ring(void *ctx, const char *thread, const tr_trace_event *events, size_t count)
{
    ring_search *search = ctx;

    if (search->seen++ != search->wanted)
        return;
    if (count > ADMIN_EVENTS_MAX) {
        events += count - ADMIN_EVENTS_MAX;
        count = ADMIN_EVENTS_MAX;
    }
    tr_pack_text(search->reply, "thread", thread);
    tr_pack_bytes(search->reply, "events", events, count * sizeof(*events));
}

/* One ring for each request: an answer has a largest size, and threads come and go. */
static tr_status admin_on_trace(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                uint32_t *pairs, tr_error *err)
{
    ring_search search = {.reply = reply};

    if (tr_map_get(request, "ring") == NULL)
        return trace_overview(ctx, reply, pairs, err);
    if (!tr_map_u64(request, "ring", &search.wanted))
        return tr_fail(err, TR_E_INVALID, "ring: not an unsigned integer");
    tr_trace_read(pack_ring, &search);
    if (search.seen <= search.wanted)
        return tr_fail(err, TR_E_INVALID, "ring: found %llu, this node has %llu",
                       (unsigned long long)search.wanted, (unsigned long long)search.seen);
    *pairs = 2;
    return TR_OK;
}

/* -- shutdown -- */

static tr_status admin_on_shutdown_all(void *ctx, const msgpack_object *request,
                                       msgpack_packer *reply, uint32_t *pairs, tr_error *err)
{
    tr_cluster *cluster = ctx;

    (void)request, (void)err;
    tr_log(TR_LOG_INFO, NULL, "shutdown_asked", "by=admin nodes=all");
    tr_pack_text(reply, "node", own_node(cluster)->name);
    *pairs = 1;
    tr_cluster_request_shutdown_all(cluster);
    return TR_OK;
}

static tr_status admin_on_shutdown(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                   uint32_t *pairs, tr_error *err)
{
    tr_cluster *cluster = ctx;

    (void)request, (void)err;
    tr_log(TR_LOG_INFO, NULL, "shutdown_asked", "by=admin");
    tr_pack_text(reply, "node", own_node(cluster)->name);
    *pairs = 1;
    tr_cluster_request_shutdown(cluster);
    return TR_OK;
}

void tr_admin_register(tr_cluster *cluster)
{
    static const struct {
        const char *method;
        tr_control_handler handler;
    } rows[] = {
        {"status", admin_on_status},
        {"actors", admin_on_actors},
        {"peers", admin_on_peers},
        {"clock", admin_on_clock},
        {"trace", admin_on_trace},
        {"shutdown", admin_on_shutdown},
        {"shutdown_all", admin_on_shutdown_all},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tr_control_server_handle(tr_cluster_control(cluster), rows[i].method, rows[i].handler,
                                 cluster);
}
