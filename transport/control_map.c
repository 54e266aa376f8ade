/* control_map.c - members of the maps that travel on the control plane. */
#include "transport/control.h"

#include <string.h>

/* Packing into a growing buffer fails only when memory is gone; the message is then shorter than
 * its map says, and the receiver's check refuses it. So the results are not looked at. */

static void pack_string(msgpack_packer *pk, const char *text)
{
    size_t size = strlen(text);

    (void)msgpack_pack_str(pk, size);
    (void)msgpack_pack_str_body(pk, text, size);
}

void tr_pack_text(msgpack_packer *pk, const char *key, const char *value)
{
    pack_string(pk, key);
    pack_string(pk, value);
}

void tr_pack_u64(msgpack_packer *pk, const char *key, uint64_t value)
{
    pack_string(pk, key);
    (void)msgpack_pack_uint64(pk, value);
}

void tr_pack_i64(msgpack_packer *pk, const char *key, int64_t value)
{
    pack_string(pk, key);
    (void)msgpack_pack_int64(pk, value);
}

void tr_pack_bool(msgpack_packer *pk, const char *key, bool value)
{
    pack_string(pk, key);
    (void)(value ? msgpack_pack_true(pk) : msgpack_pack_false(pk));
}

void tr_pack_bytes(msgpack_packer *pk, const char *key, const void *bytes, size_t size)
{
    pack_string(pk, key);
    (void)msgpack_pack_bin(pk, size);
    (void)msgpack_pack_bin_body(pk, bytes, size);
}

void tr_pack_list(msgpack_packer *pk, const char *key, uint32_t items)
{
    pack_string(pk, key);
    (void)msgpack_pack_array(pk, items);
}

const msgpack_object *tr_map_get(const msgpack_object *map, const char *key)
{
    size_t size = strlen(key);

    if (map == NULL || map->type != MSGPACK_OBJECT_MAP)
        return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *pair = &map->via.map.ptr[i];
        if (pair->key.type == MSGPACK_OBJECT_STR && pair->key.via.str.size == size &&
            memcmp(pair->key.via.str.ptr, key, size) == 0)
            return &pair->val;
    }
    return NULL;
}

bool tr_map_text(const msgpack_object *map, const char *key, char *out, size_t size)
{
    const msgpack_object *value = tr_map_get(map, key);

    if (value == NULL || value->type != MSGPACK_OBJECT_STR || value->via.str.size >= size ||
        memchr(value->via.str.ptr, '\0', value->via.str.size) != NULL)
        return false;
    memcpy(out, value->via.str.ptr, value->via.str.size);
    out[value->via.str.size] = '\0';
    return true;
}

bool tr_map_u64(const msgpack_object *map, const char *key, uint64_t *out)
{
    const msgpack_object *value = tr_map_get(map, key);

    if (value == NULL || value->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return false;
    *out = value->via.u64;
    return true;
}

bool tr_map_i64(const msgpack_object *map, const char *key, int64_t *out)
{
    const msgpack_object *value = tr_map_get(map, key);

    if (value == NULL)
        return false;
    if (value->type == MSGPACK_OBJECT_POSITIVE_INTEGER && value->via.u64 <= INT64_MAX) {
        *out = (int64_t)value->via.u64;
        return true;
    }
    if (value->type != MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return false;
    *out = value->via.i64;
    return true;
}

bool tr_map_bool(const msgpack_object *map, const char *key, bool *out)
{
    const msgpack_object *value = tr_map_get(map, key);

    if (value == NULL || value->type != MSGPACK_OBJECT_BOOLEAN)
        return false;
    *out = value->via.boolean;
    return true;
}

bool tr_map_bytes(const msgpack_object *map, const char *key, const void **bytes, size_t *size)
{
    const msgpack_object *value = tr_map_get(map, key);

    if (value == NULL || value->type != MSGPACK_OBJECT_BIN)
        return false;
    *bytes = value->via.bin.ptr;
    *size = value->via.bin.size;
    return true;
}

const msgpack_object_array *tr_map_list(const msgpack_object *map, const char *key)
{
    const msgpack_object *value = tr_map_get(map, key);

    return value != NULL && value->type == MSGPACK_OBJECT_ARRAY ? &value->via.array : NULL;
}
