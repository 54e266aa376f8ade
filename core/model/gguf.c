#include "core/model/gguf.h"

#include "core/model/map.h"
#include "core/model/names.h"
#include "core/model/numbers.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits of what is believed. The largest published files have about 60 keys and 2,000 tensors. */
#define GGUF_KEYS_MAX          (1u << 16)
#define GGUF_TENSORS_MAX       (1u << 20)
#define GGUF_KEY_SIZE_MAX      65535u
#define GGUF_TEXT_SIZE_MAX     (1u << 30)
#define GGUF_ARRAY_COUNT_MAX   (1u << 30)
#define GGUF_DEFAULT_ALIGNMENT 32u

typedef struct {
    const char *key;
    uint32_t key_size;
    tr_gguf_value type;
    const uint8_t *value; /* a text starts with its length, an array with its type and count */
} gguf_pair;

struct tr_gguf {
    tr_map map; /* of the whole file; without data after tr_gguf_parse */
    char name[256];
    const uint8_t *head; /* [head_max]: keys and descriptions of tensors; data, or owned */
    size_t head_max;
    bool head_owned;
    const uint8_t *data; /* [size] */
    size_t size;
    size_t head_size;
    uint64_t alignment;
    gguf_pair *pairs; /* owns, [pairs_count] */
    uint32_t pairs_count;
    tr_gguf_tensor *tensors; /* owns, [tensors_count] */
    uint32_t tensors_count;
    tr_names keys;         /* owns; index into pairs */
    tr_names tensor_names; /* owns; index into tensors */
};

/* -- tables -- */

static const char *gguf_value_name(uint32_t type)
{
    switch (type) {
#define X(name, value, text, size)                                                                 \
    case value:                                                                                    \
        return text;
        TR_GGUF_VALUE_MAP(X)
#undef X
    default:
        return NULL;
    }
}

static uint32_t gguf_value_size(uint32_t type)
{
    switch (type) {
#define X(name, value, text, size)                                                                 \
    case value:                                                                                    \
        return size;
        TR_GGUF_VALUE_MAP(X)
#undef X
    default:
        return 0;
    }
}

const char *tr_gguf_type_name(uint32_t type)
{
    switch (type) {
#define X(name, id, elements, bytes)                                                               \
    case id:                                                                                       \
        return #name;
        TR_GGUF_TYPE_MAP(X)
#undef X
    default:
        return NULL;
    }
}

static bool gguf_type_block(uint32_t type, uint64_t *elements, uint64_t *bytes)
{
    switch (type) {
#define X(name, id, block_elements, block_bytes)                                                   \
    case id:                                                                                       \
        *elements = (block_elements);                                                              \
        *bytes = (block_bytes);                                                                    \
        return true;
        TR_GGUF_TYPE_MAP(X)
#undef X
    default:
        return false;
    }
}

/* -- reading: nothing is believed before it is known to lie inside the file -- */

typedef struct {
    tr_gguf *gguf;
    size_t pos;
} gguf_reader;

static size_t gguf_left(const gguf_reader *r)
{
    return r->gguf->head_max - r->pos;
}

/* The next size bytes, or NULL with an error that says what was being read. */
static const uint8_t *gguf_take(gguf_reader *r, uint64_t size, const char *what, tr_error *err)
{
    if (size > gguf_left(r)) {
        tr_fail(err, TR_E_INVALID, "%s: the file ends inside %s: %zu bytes left, expected %" PRIu64,
                r->gguf->name, what, gguf_left(r), size);
        return NULL;
    }
    const uint8_t *at = r->gguf->head + r->pos;
    r->pos += (size_t)size;
    return at;
}

static tr_status gguf_take_u32(gguf_reader *r, uint32_t *value, const char *what, tr_error *err)
{
    const uint8_t *at = gguf_take(r, sizeof(*value), what, err);
    if (at == NULL)
        return TR_E_INVALID;
    *value = tr_load_u32(at);
    return TR_OK;
}

static tr_status gguf_take_u64(gguf_reader *r, uint64_t *value, const char *what, tr_error *err)
{
    const uint8_t *at = gguf_take(r, sizeof(*value), what, err);
    if (at == NULL)
        return TR_E_INVALID;
    *value = tr_load_u64(at);
    return TR_OK;
}

static tr_status gguf_take_text(gguf_reader *r, const char **text, uint32_t *size,
                                uint32_t size_max, const char *what, tr_error *err)
{
    uint64_t length;

    tr_status status = gguf_take_u64(r, &length, what, err);
    if (status != TR_OK)
        return status;
    if (length > size_max)
        return tr_fail(err, TR_E_INVALID, "%s: %s: length %" PRIu64 ", expected at most %u",
                       r->gguf->name, what, length, size_max);
    const uint8_t *at = gguf_take(r, length, what, err);
    if (at == NULL)
        return TR_E_INVALID;
    *text = (const char *)at;
    *size = (uint32_t)length;
    return TR_OK;
}

static tr_status gguf_check_bools(const gguf_reader *r, const uint8_t *at, uint64_t count,
                                  const char *what, tr_error *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (at[i] > 1)
            return tr_fail(err, TR_E_INVALID, "%s: %s: truth value %u, expected 0 or 1",
                           r->gguf->name, what, at[i]);
    return TR_OK;
}

static tr_status gguf_skip_array(gguf_reader *r, const char *what, tr_error *err)
{
    uint32_t type;
    uint64_t count;
    const char *text;
    uint32_t text_size;

    tr_status status = gguf_take_u32(r, &type, what, err);
    if (status != TR_OK)
        return status;
    status = gguf_take_u64(r, &count, what, err);
    if (status != TR_OK)
        return status;
    if (gguf_value_name(type) == NULL || type == TR_GGUF_ARRAY)
        return tr_fail(err, TR_E_INVALID, "%s: %s: array of type %u, expected 0..8 or 10..12",
                       r->gguf->name, what, type);
    if (count > GGUF_ARRAY_COUNT_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %s: %" PRIu64 " elements, expected at most %u",
                       r->gguf->name, what, count, GGUF_ARRAY_COUNT_MAX);
    if (type != TR_GGUF_TEXT) {
        const uint8_t *at = gguf_take(r, count * gguf_value_size(type), what, err);
        if (at == NULL)
            return TR_E_INVALID;
        return type == TR_GGUF_BOOL ? gguf_check_bools(r, at, count, what, err) : TR_OK;
    }
    for (uint64_t i = 0; i < count && status == TR_OK; i++)
        status = gguf_take_text(r, &text, &text_size, GGUF_TEXT_SIZE_MAX, what, err);
    return status;
}

static tr_status gguf_read_pair(gguf_reader *r, gguf_pair *pair, tr_error *err)
{
    const char *text;
    uint32_t text_size;
    uint32_t type;
    char what[80];

    tr_status status =
        gguf_take_text(r, &pair->key, &pair->key_size, GGUF_KEY_SIZE_MAX, "a key", err);
    if (status != TR_OK)
        return status;
    if (pair->key_size == 0 || memchr(pair->key, '\0', pair->key_size) != NULL)
        return tr_fail(err, TR_E_INVALID, "%s: a key is empty or holds a zero byte, expected text",
                       r->gguf->name);
    snprintf(what, sizeof(what), "key %.*s", (int)pair->key_size, pair->key);

    status = gguf_take_u32(r, &type, what, err);
    if (status != TR_OK)
        return status;
    if (gguf_value_name(type) == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: %s: value type %u, expected 0..12", r->gguf->name,
                       what, type);
    pair->type = (tr_gguf_value)type;
    pair->value = r->gguf->head + r->pos;
    if (type == TR_GGUF_TEXT)
        return gguf_take_text(r, &text, &text_size, GGUF_TEXT_SIZE_MAX, what, err);
    if (type == TR_GGUF_ARRAY)
        return gguf_skip_array(r, what, err);
    const uint8_t *at = gguf_take(r, gguf_value_size(type), what, err);
    if (at == NULL)
        return TR_E_INVALID;
    return type == TR_GGUF_BOOL ? gguf_check_bools(r, at, 1, what, err) : TR_OK;
}

static tr_status gguf_read_pairs(gguf_reader *r, uint64_t count, tr_error *err)
{
    tr_gguf *g = r->gguf;

    g->pairs = calloc(count > 0 ? (size_t)count : 1, sizeof(*g->pairs));
    if (g->pairs == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %" PRIu64 " keys", g->name, count);
    tr_status status = tr_names_init(&g->keys, (uint32_t)count, err);
    for (; status == TR_OK && g->pairs_count < count; g->pairs_count++) {
        gguf_pair *pair = &g->pairs[g->pairs_count];

        status = gguf_read_pair(r, pair, err);
        if (status != TR_OK)
            return status;
        tr_names_add(&g->keys, pair->key, pair->key_size, g->pairs_count);
    }
    if (status != TR_OK)
        return status;
    const tr_name *twice = tr_names_seal(&g->keys);
    if (twice != NULL)
        return tr_fail(err, TR_E_INVALID, "%s: key %.*s stands there twice, expected once", g->name,
                       (int)(twice->size < 128 ? twice->size : 128), twice->name);
    return TR_OK;
}

static tr_status gguf_read_alignment(tr_gguf *g, tr_error *err)
{
    static const char key[] = "general.alignment";
    uint32_t index = tr_names_find(&g->keys, key, strlen(key));

    g->alignment = GGUF_DEFAULT_ALIGNMENT;
    if (index == TR_NAME_NONE)
        return TR_OK;
    if (g->pairs[index].type != TR_GGUF_U32)
        return tr_fail(err, TR_E_INVALID, "%s: key %s: type %s, expected u32", g->name, key,
                       gguf_value_name(g->pairs[index].type));
    g->alignment = tr_load_u32(g->pairs[index].value);
    if (g->alignment == 0 || (g->alignment & (g->alignment - 1)) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: key %s: found %" PRIu64 ", expected a power of two",
                       g->name, key, g->alignment);
    return TR_OK;
}

/* Bytes of a tensor, every product checked. */
static tr_status gguf_tensor_size(const tr_gguf *g, tr_gguf_tensor *t, tr_error *err)
{
    uint64_t elements, bytes;

    if (!gguf_type_block(t->type, &elements, &bytes))
        return tr_fail(err, TR_E_INVALID, "%s: tensor %s: type %u, expected a block format of GGUF",
                       g->name, t->name, t->type);
    if (t->dims[0] % elements != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %s: rows of %" PRIu64
                       " elements, expected a multiple of %" PRIu64 " for %s",
                       g->name, t->name, t->dims[0], elements, tr_gguf_type_name(t->type));
    uint64_t size = t->dims[0] / elements;
    bool overflow = __builtin_mul_overflow(size, bytes, &size);
    for (uint32_t i = 1; i < TR_GGUF_DIMS_MAX; i++)
        overflow |= __builtin_mul_overflow(size, t->dims[i], &size);
    if (overflow || size > INT64_MAX)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %s: dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64
                       " x %" PRIu64 " overflow, expected at most 2^63-1 bytes",
                       g->name, t->name, t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
    t->size = size;
    return TR_OK;
}

/* offset: where the packing rule says that this tensor starts; moved on behind it. */
static tr_status gguf_read_tensor(gguf_reader *r, tr_gguf_tensor *t, uint64_t *offset,
                                  tr_error *err)
{
    const tr_gguf *g = r->gguf;
    const char *name = NULL;
    uint32_t name_size = 0;
    uint64_t found = 0;

    tr_status status =
        gguf_take_text(r, &name, &name_size, TR_GGUF_NAME_SIZE - 1, "a tensor's name", err);
    if (status != TR_OK)
        return status;
    if (name_size == 0 || memchr(name, '\0', name_size) != NULL)
        return tr_fail(err, TR_E_INVALID,
                       "%s: a tensor's name is empty or holds a zero byte, expected text", g->name);
    memcpy(t->name, name, name_size);

    status = gguf_take_u32(r, &t->dims_count, t->name, err);
    if (status != TR_OK)
        return status;
    if (t->dims_count < 1 || t->dims_count > TR_GGUF_DIMS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: tensor %s: %u dimensions, expected 1..%u", g->name,
                       t->name, t->dims_count, TR_GGUF_DIMS_MAX);
    for (uint32_t i = 0; i < TR_GGUF_DIMS_MAX; i++) {
        t->dims[i] = 1;
        if (i >= t->dims_count)
            continue;
        status = gguf_take_u64(r, &t->dims[i], t->name, err);
        if (status != TR_OK)
            return status;
        if (t->dims[i] < 1 || t->dims[i] > INT64_MAX)
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %s: dimension %u is %" PRId64 ", expected at least 1",
                           g->name, t->name, i, (int64_t)t->dims[i]);
    }
    status = gguf_take_u32(r, &t->type, t->name, err);
    if (status != TR_OK)
        return status;
    status = gguf_take_u64(r, &found, t->name, err);
    if (status != TR_OK)
        return status;
    status = gguf_tensor_size(g, t, err);
    if (status != TR_OK)
        return status;
    if (found != *offset)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %s: offset %" PRIu64 ", expected %" PRIu64
                       " (tensors follow each other without gaps)",
                       g->name, t->name, found, *offset);
    uint64_t end;
    if (__builtin_add_overflow(*offset, t->size, &end) ||
        __builtin_add_overflow(end, g->alignment - 1, &end))
        return tr_fail(err, TR_E_INVALID, "%s: tensor %s: ends beyond 2^64", g->name, t->name);
    *offset = end & ~(g->alignment - 1);
    return TR_OK;
}

/* Gives each tensor its bytes once it is known where the data begins. */
static tr_status gguf_place_tensors(tr_gguf *g, size_t infos_end, tr_error *err)
{
    uint64_t start = ((uint64_t)infos_end + g->alignment - 1) & ~(g->alignment - 1);

    if (g->tensors_count == 0)
        return TR_OK;
    for (uint32_t i = 0; i < g->tensors_count; i++) {
        tr_gguf_tensor *t = &g->tensors[i];

        if (start > g->size || t->size > g->size - start)
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %s: needs bytes up to %" PRIu64 ", the file has %zu",
                           g->name, t->name, start + t->size, g->size);
        t->data = g->data + start;
        start += t->size;
        start = (start + g->alignment - 1) & ~(g->alignment - 1);
    }
    return TR_OK;
}

static tr_status gguf_read_tensors(gguf_reader *r, uint64_t count, tr_error *err)
{
    tr_gguf *g = r->gguf;
    uint64_t offset = 0;

    g->tensors = calloc(count > 0 ? (size_t)count : 1, sizeof(*g->tensors));
    if (g->tensors == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %" PRIu64 " tensors", g->name, count);
    tr_status status = tr_names_init(&g->tensor_names, (uint32_t)count, err);
    for (; status == TR_OK && g->tensors_count < count; g->tensors_count++) {
        tr_gguf_tensor *t = &g->tensors[g->tensors_count];

        status = gguf_read_tensor(r, t, &offset, err);
        if (status != TR_OK)
            return status;
        tr_names_add(&g->tensor_names, t->name, (uint32_t)strlen(t->name), g->tensors_count);
    }
    if (status != TR_OK)
        return status;
    const tr_name *twice = tr_names_seal(&g->tensor_names);
    if (twice != NULL)
        return tr_fail(err, TR_E_INVALID, "%s: tensor %s stands there twice, expected once",
                       g->name, twice->name);
    g->head_size = r->pos;
    return gguf_place_tensors(g, r->pos, err);
}

static tr_status gguf_read(tr_gguf *g, tr_error *err)
{
    gguf_reader r = {.gguf = g};
    uint32_t version = 0;
    uint64_t tensors = 0, keys = 0;

    if (g->size < 24 || g->head_max < 24)
        return tr_fail(err, TR_E_INVALID, "%s: %zu bytes, a GGUF file has at least 24", g->name,
                       g->size);
    if (memcmp(g->head, "GGUF", 4) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: begins with %02x %02x %02x %02x, expected \"GGUF\"",
                       g->name, g->head[0], g->head[1], g->head[2], g->head[3]);
    r.pos = 4;
    (void)gguf_take_u32(&r, &version, "the header", NULL); /* 24 bytes are there */
    (void)gguf_take_u64(&r, &tensors, "the header", NULL);
    (void)gguf_take_u64(&r, &keys, "the header", NULL);
    if ((version & 0xffff) == 0)
        return tr_fail(err, TR_E_INVALID, "%s: a big-endian file, expected little-endian", g->name);
    if (version != 2 && version != 3)
        return tr_fail(err, TR_E_INVALID, "%s: version %u, expected 2 or 3", g->name, version);
    /* A pair takes at least 8 + 4 + 1 bytes, a tensor info 8 + 1 + 4 + 8 + 4. */
    if (keys > gguf_left(&r) / 13 || keys > GGUF_KEYS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %" PRIu64 " keys, expected at most %u in %zu bytes",
                       g->name, keys, GGUF_KEYS_MAX, g->size);
    if (tensors > gguf_left(&r) / 25 || tensors > GGUF_TENSORS_MAX)
        return tr_fail(err, TR_E_INVALID,
                       "%s: %" PRIu64 " tensors, expected at most %u in %zu bytes", g->name,
                       tensors, GGUF_TENSORS_MAX, g->size);

    tr_status status = gguf_read_pairs(&r, keys, err);
    if (status != TR_OK)
        return status;
    status = gguf_read_alignment(g, err);
    if (status != TR_OK)
        return status;
    return gguf_read_tensors(&r, tensors, err);
}

/* -- life -- */

/* from->head is given to the new file, whether it is opened or not. */
static tr_status gguf_open_parts(tr_gguf **out, const char *name, const tr_gguf *from,
                                 tr_error *err)
{
    tr_gguf *g = malloc(sizeof(*g));
    if (g == NULL) {
        if (from->head_owned)
            free((void *)(uintptr_t)from->head);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a GGUF file", name);
    }
    *g = *from;
    g->map.fd = -1;
    snprintf(g->name, sizeof(g->name), "%s", name);

    tr_status status = gguf_read(g, err);
    if (status != TR_OK) {
        tr_gguf_close(g);
        return status;
    }
    *out = g;
    return TR_OK;
}

tr_status tr_gguf_parse(tr_gguf **out, const char *name, const uint8_t *data, size_t size,
                        tr_error *err)
{
    const tr_gguf parts = {.head = data, .head_max = size, .data = data, .size = size};

    return gguf_open_parts(out, name, &parts, err);
}

/* Reads the head twice: first to see how long it is, then from a copy. What was checked must not
 * change, and keys are looked at as long as the file is open. */
tr_status tr_gguf_open(tr_gguf **out, const char *path, tr_error *err)
{
    const char *name = tr_path_base(path);
    tr_gguf *first;
    tr_map map;

    tr_status status = tr_map_open(&map, path, err);
    if (status != TR_OK)
        return status;
    status = tr_gguf_parse(&first, name, map.data, map.size, err);
    if (status != TR_OK)
        goto close_map;
    tr_gguf parts = {
        .head_max = first->head_size, .head_owned = true, .data = map.data, .size = map.size};
    tr_gguf_close(first);
    uint8_t *head = malloc(parts.head_max);
    if (head == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory for its keys", name);
        goto close_map;
    }
    memcpy(head, map.data, parts.head_max);
    parts.head = head;
    status = gguf_open_parts(out, name, &parts, err);
    if (status != TR_OK)
        goto close_map;
    (*out)->map = map;
    return TR_OK;

close_map:
    tr_map_close(&map);
    return status;
}

tr_status tr_gguf_check(const tr_gguf *g, tr_error *err)
{
    return tr_map_check(&g->map, g->name, err);
}

void tr_gguf_close(tr_gguf *g)
{
    if (g == NULL)
        return;
    tr_names_teardown(&g->tensor_names);
    tr_names_teardown(&g->keys);
    free(g->tensors);
    free(g->pairs);
    if (g->head_owned)
        free((void *)(uintptr_t)g->head);
    if (g->map.fd >= 0)
        tr_map_close(&g->map);
    free(g);
}

const char *tr_gguf_name(const tr_gguf *g)
{
    return g->name;
}

/* -- metadata -- */

static const gguf_pair *gguf_find(const tr_gguf *g, const char *key)
{
    uint32_t index = tr_names_find(&g->keys, key, strlen(key));

    return index == TR_NAME_NONE ? NULL : &g->pairs[index];
}

static tr_status gguf_mismatch(const tr_gguf *g, const char *key, const gguf_pair *pair,
                               const char *expected, tr_error *err)
{
    return tr_fail(err, TR_E_INVALID, "%s: key %s: %s, expected %s", g->name, key,
                   pair == NULL ? "absent" : gguf_value_name(pair->type), expected);
}

bool tr_gguf_has(const tr_gguf *g, const char *key)
{
    return gguf_find(g, key) != NULL;
}

tr_status tr_gguf_text(const tr_gguf *g, const char *key, const char **text, size_t *size,
                       tr_error *err)
{
    const gguf_pair *pair = gguf_find(g, key);

    if (pair == NULL || pair->type != TR_GGUF_TEXT)
        return gguf_mismatch(g, key, pair, "a string", err);
    *size = (size_t)tr_load_u64(pair->value);
    *text = (const char *)pair->value + 8;
    return TR_OK;
}

/* One integer of any width. Returns false for other types. */
static bool gguf_integer(uint32_t type, const uint8_t *at, int64_t *value)
{
    switch (type) {
    case TR_GGUF_U8:
    case TR_GGUF_BOOL:
        *value = at[0];
        return true;
    case TR_GGUF_I8:
        *value = (int8_t)at[0];
        return true;
    case TR_GGUF_U16:
        *value = tr_load_u16(at);
        return true;
    case TR_GGUF_I16:
        *value = (int16_t)tr_load_u16(at);
        return true;
    case TR_GGUF_U32:
        *value = tr_load_u32(at);
        return true;
    case TR_GGUF_I32:
        *value = (int32_t)tr_load_u32(at);
        return true;
    case TR_GGUF_U64: {
        uint64_t wide = tr_load_u64(at);
        *value = wide > INT64_MAX ? INT64_MAX : (int64_t)wide;
        return true;
    }
    case TR_GGUF_I64:
        *value = (int64_t)tr_load_u64(at);
        return true;
    default:
        return false;
    }
}

static double gguf_float(tr_gguf_value type, const uint8_t *at)
{
    double value;

    if (type == TR_GGUF_F32)
        return tr_load_f32(at);
    memcpy(&value, at, sizeof(value));
    return value;
}

tr_status tr_gguf_u64(const tr_gguf *g, const char *key, uint64_t *value, tr_error *err)
{
    const gguf_pair *pair = gguf_find(g, key);
    int64_t integer;

    if (pair == NULL || pair->type == TR_GGUF_BOOL ||
        !gguf_integer(pair->type, pair->value, &integer))
        return gguf_mismatch(g, key, pair, "an integer", err);
    if (integer < 0)
        return tr_fail(err, TR_E_INVALID, "%s: key %s: found %" PRId64 ", expected at least 0",
                       g->name, key, integer);
    *value = (uint64_t)integer;
    return TR_OK;
}

tr_status tr_gguf_f64(const tr_gguf *g, const char *key, double *value, tr_error *err)
{
    const gguf_pair *pair = gguf_find(g, key);

    if (pair == NULL || (pair->type != TR_GGUF_F32 && pair->type != TR_GGUF_F64))
        return gguf_mismatch(g, key, pair, "f32 or f64", err);
    double found = gguf_float(pair->type, pair->value);
    if (!isfinite(found))
        return tr_fail(err, TR_E_INVALID, "%s: key %s: found %g, expected a finite number", g->name,
                       key, found);
    *value = found;
    return TR_OK;
}

tr_status tr_gguf_bool(const tr_gguf *g, const char *key, bool *value, tr_error *err)
{
    const gguf_pair *pair = gguf_find(g, key);

    if (pair == NULL || pair->type != TR_GGUF_BOOL)
        return gguf_mismatch(g, key, pair, "bool", err);
    *value = pair->value[0] != 0;
    return TR_OK;
}

static bool gguf_same_kind(tr_gguf_value type, tr_gguf_value expected)
{
    switch (expected) {
    case TR_GGUF_TEXT:
    case TR_GGUF_BOOL:
        return type == expected;
    case TR_GGUF_F32:
    case TR_GGUF_F64:
        return type == TR_GGUF_F32 || type == TR_GGUF_F64;
    default:
        return type != TR_GGUF_TEXT && type != TR_GGUF_BOOL && type != TR_GGUF_F32 &&
               type != TR_GGUF_F64;
    }
}

tr_status tr_gguf_get_array(const tr_gguf *g, const char *key, tr_gguf_value expected,
                            tr_gguf_array *out, tr_error *err)
{
    const gguf_pair *pair = gguf_find(g, key);
    char text[40];

    assert(expected != TR_GGUF_ARRAY);
    snprintf(text, sizeof(text), "an array of %s", gguf_value_name(expected));
    if (pair == NULL || pair->type != TR_GGUF_ARRAY)
        return gguf_mismatch(g, key, pair, text, err);
    tr_gguf_value type = (tr_gguf_value)tr_load_u32(pair->value);
    if (!gguf_same_kind(type, expected))
        return tr_fail(err, TR_E_INVALID, "%s: key %s: an array of %s, expected %s", g->name, key,
                       gguf_value_name(type), text);
    *out = (tr_gguf_array){
        .type = type, .count = tr_load_u64(pair->value + 4), .data = pair->value + 12};
    return TR_OK;
}

void tr_gguf_array_next_text(tr_gguf_array *cursor, const char **text, size_t *size)
{
    assert(cursor->type == TR_GGUF_TEXT);
    assert(cursor->count > 0);
    *size = (size_t)tr_load_u64(cursor->data);
    *text = (const char *)cursor->data + 8;
    cursor->data += 8 + *size;
    cursor->count--;
}

int64_t tr_gguf_array_i64(const tr_gguf_array *array, uint64_t index)
{
    int64_t value = 0;

    assert(index < array->count);
    bool integer =
        gguf_integer(array->type, array->data + index * gguf_value_size(array->type), &value);
    assert(integer);
    (void)integer;
    return value;
}

double tr_gguf_array_f64(const tr_gguf_array *array, uint64_t index)
{
    assert(index < array->count);
    assert(array->type == TR_GGUF_F32 || array->type == TR_GGUF_F64);
    return gguf_float(array->type, array->data + index * gguf_value_size(array->type));
}

uint32_t tr_gguf_keys_count(const tr_gguf *g)
{
    return g->pairs_count;
}

void tr_gguf_key(const tr_gguf *g, uint32_t index, const char **key, size_t *size)
{
    assert(index < g->pairs_count);
    *key = g->pairs[index].key;
    *size = g->pairs[index].key_size;
}

void tr_gguf_head(const tr_gguf *g, const uint8_t **data, size_t *size)
{
    *data = g->head;
    *size = g->head_size;
}

const tr_map *tr_gguf_file(const tr_gguf *g, char *name, uint64_t *head)
{
    snprintf(name, sizeof(g->name), "%s", g->name);
    *head = g->head_size;
    return &g->map;
}

/* -- tensors -- */

uint32_t tr_gguf_tensors_count(const tr_gguf *g)
{
    return g->tensors_count;
}

const tr_gguf_tensor *tr_gguf_tensor_at(const tr_gguf *g, uint32_t index)
{
    assert(index < g->tensors_count);
    return &g->tensors[index];
}
