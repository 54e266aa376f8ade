#include "tools/admin_client.h"

#include "core/trace.h"
#include "tools/json_out.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_URL "tcp://127.0.0.1:7701"
#define PATIENCE_NS 3000000000ull

static int read_placement(tr_admin_targets *out, const char *path)
{
    tr_placement placement;
    tr_error err = {0};

    if (tr_placement_read(&placement, path, &err) != TR_OK)
        return tr_cli_fail(&err);
    for (uint32_t i = 0; i < placement.nodes_count; i++) {
        const tr_placement_node *node = &placement.nodes[i];
        if (node->control[0] == '\0') {
            tr_fail(&err, TR_E_INVALID, "%s: nodes[%u].control: missing, so nobody can ask %s",
                    path, i, node->name);
            tr_placement_free(&placement);
            return tr_cli_fail(&err);
        }
        memcpy(out->rows[i].name, node->name, sizeof(out->rows[i].name));
        memcpy(out->rows[i].url, node->control, sizeof(out->rows[i].url));
    }
    out->count = placement.nodes_count;
    tr_placement_free(&placement);
    return 0;
}

int tr_admin_targets_read(tr_admin_targets *out, const tr_cli_args *args)
{
    const char *placement = tr_cli_get(args, "placement");
    const char *url;

    *out = (tr_admin_targets){.by_url = tr_cli_has(args, "node")};
    if (placement != NULL && tr_cli_has(args, "node"))
        return tr_cli_usage(args, "--node and --placement exclude each other");
    if (placement != NULL)
        return read_placement(out, placement);
    for (uint32_t i = 0; (url = tr_cli_get_at(args, "node", i)) != NULL; i++) {
        if (i == TR_NODES_MAX)
            return tr_cli_usage(args, "more than %d nodes", TR_NODES_MAX);
        if (strlen(url) >= sizeof(out->rows[i].url))
            return tr_cli_usage(args, "--node: a URL has at most %d characters", TR_URL_SIZE - 1);
        snprintf(out->rows[i].url, sizeof(out->rows[i].url), "%s", url);
        out->count++;
    }
    if (out->count == 0) {
        snprintf(out->rows[0].url, sizeof(out->rows[0].url), "%s", DEFAULT_URL);
        out->count = 1;
    }
    return 0;
}

/* The peers of a reply that are alive and can be asked. */
static void read_peers(tr_admin_targets *out, const msgpack_object *map)
{
    const msgpack_object_array *peers = tr_map_list(map, "peers");

    for (uint32_t i = 0; peers != NULL && i < peers->size && out->count < TR_NODES_MAX; i++) {
        const msgpack_object *peer = &peers->ptr[i];
        tr_admin_target *row = &out->rows[out->count];
        bool alive = false, self = false;
        (void)tr_map_bool(peer, "self", &self);
        (void)tr_map_bool(peer, "alive", &alive);
        if ((self || alive) && tr_map_text(peer, "name", row->name, sizeof(row->name)) &&
            tr_map_text(peer, "control", row->url, sizeof(row->url)) && row->url[0] != '\0')
            out->count++;
    }
}

tr_status tr_admin_targets_expand(tr_admin_targets *targets, tr_error *err)
{
    tr_control_reply reply;
    tr_admin_targets all = {.by_url = targets->by_url};

    tr_status status = tr_admin_ask(&targets->rows[0], "peers", &reply, err);
    if (status == TR_OK)
        read_peers(&all, reply.map);
    tr_control_reply_free(&reply);
    if (status == TR_OK && all.count > 0)
        *targets = all;
    return status;
}

tr_status tr_admin_call(tr_control_client *client, const char *method, int64_t ring,
                        tr_control_reply *reply, tr_error *err)
{
    msgpack_sbuffer request;
    msgpack_packer pk;

    msgpack_sbuffer_init(&request);
    msgpack_packer_init(&pk, &request, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&pk, ring >= 0 ? 2 : 1);
    tr_pack_text(&pk, "method", method);
    if (ring >= 0)
        tr_pack_i64(&pk, "ring", ring);
    tr_status status = tr_control_call(client, &request, tr_clock_ns() + PATIENCE_NS, reply, err);
    msgpack_sbuffer_destroy(&request);
    return status;
}

tr_status tr_admin_request(const tr_admin_target *target, const char *method,
                           const tr_admin_argument *arguments, uint32_t arguments_count,
                           tr_control_reply *reply, tr_error *err)
{
    tr_control_client *client = NULL;
    msgpack_sbuffer request;
    msgpack_packer pk;

    *reply = (tr_control_reply){0};
    tr_status status = tr_control_client_open(&client, target->url, err);
    if (status != TR_OK)
        return status;
    msgpack_sbuffer_init(&request);
    msgpack_packer_init(&pk, &request, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&pk, 1 + arguments_count);
    tr_pack_text(&pk, "method", method);
    for (uint32_t i = 0; i < arguments_count; i++) {
        if (arguments[i].text != NULL)
            tr_pack_text(&pk, arguments[i].key, arguments[i].text);
        else
            tr_pack_u64(&pk, arguments[i].key, arguments[i].number);
    }
    status = tr_control_call(client, &request, tr_clock_ns() + PATIENCE_NS, reply, err);
    msgpack_sbuffer_destroy(&request);
    tr_control_client_close(client);
    return status;
}

tr_status tr_admin_ask(const tr_admin_target *target, const char *method, tr_control_reply *reply,
                       tr_error *err)
{
    tr_control_client *client = NULL;

    *reply = (tr_control_reply){0};
    tr_status status = tr_control_client_open(&client, target->url, err);
    if (status == TR_OK)
        status = tr_admin_call(client, method, -1, reply, err);
    tr_control_client_close(client);
    return status;
}

static json_t *json_of_map(const msgpack_object_map *map)
{
    json_t *out = json_object();

    for (uint32_t i = 0; out != NULL && i < map->size; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        char text[128];
        if (key->type != MSGPACK_OBJECT_STR || key->via.str.size >= sizeof(text))
            continue; /* no method of ours has such a key */
        memcpy(text, key->via.str.ptr, key->via.str.size);
        text[key->via.str.size] = '\0';
        (void)json_object_set_new(out, text, tr_admin_json(&map->ptr[i].val));
    }
    return out;
}

static json_t *json_of_list(const msgpack_object_array *list)
{
    json_t *out = json_array();

    for (uint32_t i = 0; out != NULL && i < list->size; i++)
        (void)json_array_append_new(out, tr_admin_json(&list->ptr[i]));
    return out;
}

/* Nesting was bounded when the reply was checked. */
json_t *tr_admin_json(const msgpack_object *object)
{
    switch (object->type) {
    case MSGPACK_OBJECT_BOOLEAN:
        return json_boolean(object->via.boolean);
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        if (object->via.u64 > INT64_MAX) /* what jansson's integers hold */
            return json_real((double)object->via.u64);
        return json_integer((json_int_t)object->via.u64);
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return json_integer(object->via.i64);
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return json_real(object->via.f64);
    case MSGPACK_OBJECT_STR:
        return tr_json_out_text(object->via.str.ptr, object->via.str.size);
    case MSGPACK_OBJECT_ARRAY:
        return json_of_list(&object->via.array);
    case MSGPACK_OBJECT_MAP:
        return json_of_map(&object->via.map);
    case MSGPACK_OBJECT_NIL:
    case MSGPACK_OBJECT_BIN:
    case MSGPACK_OBJECT_EXT:
        break;
    }
    return json_null();
}

int tr_admin_print_json(json_t *document)
{
    tr_error err;
    return tr_json_out_print(document, JSON_INDENT(2), &err) == TR_OK ? 0 : tr_cli_fail(&err);
}

const char *tr_admin_text(const msgpack_object *map, const char *key, char *text, size_t size)
{
    if (!tr_map_text(map, key, text, size) || text[0] == '\0')
        snprintf(text, size, "-");
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return text;
}

uint64_t tr_admin_u64(const msgpack_object *map, const char *key)
{
    uint64_t value = 0;

    (void)tr_map_u64(map, key, &value);
    return value;
}
