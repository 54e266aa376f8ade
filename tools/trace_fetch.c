#include "tools/trace_fetch.h"

#include <stdlib.h>
#include <string.h>

#define CLOCK_ASKS 16 /* the fastest round trip of these counts */
#define NAMES_MAX  4096

/* The node's clock minus ours, from the fastest of several round trips: the reading was taken
 * somewhere within it, and the middle is wrong by at most half of it. */
static tr_status fetch_clock(tr_control_client *client, int64_t *offset_ns, tr_error *err)
{
    uint64_t fastest_ns = UINT64_MAX;

    for (uint32_t i = 0; i < CLOCK_ASKS; i++) {
        tr_control_reply reply;
        uint64_t clock_ns = 0, before_ns = tr_clock_ns();
        tr_status status = tr_admin_call(client, "clock", -1, &reply, err);
        uint64_t took_ns = tr_clock_ns() - before_ns;
        bool told = status == TR_OK && tr_map_u64(reply.map, "clock_ns", &clock_ns);
        tr_control_reply_free(&reply);
        if (status != TR_OK)
            return status;
        if (!told)
            return tr_fail(err, TR_E_INVALID, "clock_ns: missing in the answer");
        if (took_ns < fastest_ns) {
            fastest_ns = took_ns;
            *offset_ns = (int64_t)(clock_ns - (before_ns + took_ns / 2));
        }
    }
    return TR_OK;
}

/* A list of {id, name}; the caller frees *out. */
static tr_status read_names(const msgpack_object *map, const char *key, tr_trace_name **out,
                            uint32_t *count, tr_error *err)
{
    const msgpack_object_array *list = tr_map_list(map, key);

    if (list == NULL || list->size > NAMES_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: missing in the answer, or more than %d", key,
                       NAMES_MAX);
    *out = calloc(list->size + 1, sizeof(**out));
    if (*out == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %u names", list->size);
    for (uint32_t i = 0; i < list->size; i++) {
        tr_trace_name *row = &(*out)[i];
        if (!tr_map_u64(&list->ptr[i], "id", &row->id) ||
            !tr_map_text(&list->ptr[i], "name", row->name, sizeof(row->name)))
            return tr_fail(err, TR_E_INVALID, "%s[%u]: found no id and name", key, i);
    }
    *count = list->size;
    return TR_OK;
}

static tr_status fetch_overview(tr_control_client *client, tr_trace_node *out,
                                uint32_t *rings_count, tr_error *err)
{
    tr_control_reply reply;
    uint64_t rings = 0;

    tr_status status = tr_admin_call(client, "trace", -1, &reply, err);
    if (status == TR_OK && (!tr_map_text(reply.map, "node", out->name, sizeof(out->name)) ||
                            !tr_map_u64(reply.map, "rings", &rings) || rings > TR_TRACE_RINGS_MAX))
        status = tr_fail(err, TR_E_INVALID, "node, rings: missing in the answer, or wrong");
    if (status == TR_OK)
        status = read_names(reply.map, "actors", &out->actors, &out->actors_count, err);
    if (status == TR_OK)
        status = read_names(reply.map, "kernels", &out->kernels, &out->kernels_count, err);
    tr_control_reply_free(&reply);
    *rings_count = (uint32_t)rings;
    return status;
}

static tr_status read_ring(tr_trace_ring *out, const msgpack_object *map, tr_error *err)
{
    const void *bytes = NULL;
    size_t size = 0;

    if (!tr_map_text(map, "thread", out->thread, sizeof(out->thread)) ||
        !tr_map_bytes(map, "events", &bytes, &size) || size % sizeof(tr_trace_event) != 0)
        return tr_fail(err, TR_E_INVALID,
                       "thread, events: missing in the answer, or not a multiple of %zu bytes",
                       sizeof(tr_trace_event));
    out->events = malloc(size + 1);
    if (out->events == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %zu bytes of events", size);
    memcpy(out->events, bytes, size);
    out->events_count = size / sizeof(tr_trace_event);
    return TR_OK;
}

static tr_status fetch_rings(tr_control_client *client, tr_trace_node *out, uint32_t rings_count,
                             tr_error *err)
{
    out->rings = calloc(rings_count + 1, sizeof(*out->rings));
    if (out->rings == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %u rings", rings_count);
    for (uint32_t i = 0; i < rings_count; i++) {
        tr_control_reply reply;
        tr_status status = tr_admin_call(client, "trace", i, &reply, err);
        if (status == TR_OK)
            status = read_ring(&out->rings[i], reply.map, err);
        tr_control_reply_free(&reply);
        if (status != TR_OK)
            return status;
        out->rings_count++;
    }
    return TR_OK;
}

tr_status tr_trace_fetch(tr_trace_node *out, const tr_admin_target *target, tr_error *err)
{
    tr_control_client *client = NULL;
    tr_trace_node node = {0};
    uint32_t rings_count = 0;

    tr_status status = tr_control_client_open(&client, target->url, err);
    if (status != TR_OK)
        return status;
    status = fetch_clock(client, &node.clock_offset_ns, err);
    if (status == TR_OK)
        status = fetch_overview(client, &node, &rings_count, err);
    if (status == TR_OK)
        status = fetch_rings(client, &node, rings_count, err);
    tr_control_client_close(client);
    if (status != TR_OK) {
        tr_trace_node_free(&node);
        return status;
    }
    *out = node;
    return TR_OK;
}
