#include "core/model/safetensors.h"

#include "core/model/json.h"
#include "core/model/json_pull.h"
#include "core/model/map.h"
#include "core/model/names.h"
#include "core/model/numbers.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAFETENSORS_NAME_SIZE_MAX 1024 /* bytes of a tensor's name */

struct tr_safetensors {
    tr_map map; /* of the whole file; without data after tr_safetensors_parse */
    char name[256];
    tr_tensor *tensors; /* owns, [count] */
    uint32_t count;
    char *names;   /* owns; all names, each terminated */
    uint64_t head; /* bytes before the tensors */
};

typedef struct {
    uint64_t begin, end; /* relative to the end of the header */
    uint32_t index;
} safetensors_span;

static bool safetensors_dtype(const char *name, tr_tensor *t, uint32_t *bits)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } rows[] = {
#define X(id, width) {#id, width},
        TR_DTYPE_MAP(X)
#undef X
    };

    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].name, name) == 0) {
            t->dtype = (tr_dtype)i;
            t->type = rows[i].name;
            *bits = rows[i].bits;
            t->has_format =
                t->dtype == TR_DTYPE_F32 || t->dtype == TR_DTYPE_BF16 || t->dtype == TR_DTYPE_F16;
            t->format = t->dtype == TR_DTYPE_F32    ? TR_FORMAT_F32
                        : t->dtype == TR_DTYPE_BF16 ? TR_FORMAT_BF16
                                                    : TR_FORMAT_F16;
            return true;
        }
    }
    return false;
}

static tr_status safetensors_check_name(const tr_safetensors *f, const char *name, size_t size,
                                        tr_error *err)
{
    if (size == 0 || size > SAFETENSORS_NAME_SIZE_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: a tensor's name of %zu bytes, expected 1..%d",
                       f->name, size, SAFETENSORS_NAME_SIZE_MAX);
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return tr_fail(err, TR_E_INVALID,
                           "%s: a tensor's name holds the control byte 0x%02x at %zu", f->name,
                           (unsigned char)name[i], i);
    return TR_OK;
}

/* The reader of JSON knows the place only: says of which tensor, too. */
static tr_status safetensors_in_tensor(const tr_safetensors *f, const tr_tensor *t,
                                       const char *field, tr_status status, tr_error *err)
{
    size_t file = strlen(f->name) + strlen(": ");

    if (status == TR_OK || err == NULL)
        return status;
    tr_error inner = *err;
    bool named = strncmp(inner.text, f->name, strlen(f->name)) == 0;
    return tr_fail(err, status, "%s: tensor %.80s: %s: %s", f->name, t->name, field,
                   named ? inner.text + file : inner.text);
}

/* A list of integers, at most count_max of them. */
static tr_status safetensors_read_integers(const tr_safetensors *f, const tr_tensor *t,
                                           tr_json_pull *p, const char *field, uint64_t *out,
                                           uint32_t count_max, uint32_t *count, tr_error *err)
{
    bool more;

    if (!tr_json_pull_is(p, "a list"))
        return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: %s: %s, expected a list", f->name,
                       t->name, field, tr_json_pull_kind(p));
    tr_status status = tr_json_pull_array(p);
    for (*count = 0; status == TR_OK; ++*count) {
        status = tr_json_pull_item(p, &more);
        if (status != TR_OK || !more)
            return status;
        if (*count == count_max)
            return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: %s: more than %u, expected fewer",
                           f->name, t->name, field, count_max);
        if (!tr_json_pull_is(p, "an integer"))
            return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: %s holds %s, expected integers",
                           f->name, t->name, field, tr_json_pull_kind(p));
        status = safetensors_in_tensor(f, t, field, tr_json_pull_u64(p, &out[*count]), err);
    }
    return status;
}

/* The bytes that type and shape ask for. Left to right, as the format's reference does: a zero
 * dimension does not excuse an overflow before it. */
static tr_status safetensors_size(const tr_safetensors *f, tr_tensor *t, uint32_t bits,
                                  tr_error *err)
{
    uint64_t size = 1;
    bool overflow = false;
    char shape[80];

    for (uint32_t i = 0; i < t->dims_count; i++)
        overflow |= __builtin_mul_overflow(size, t->dims[i], &size);
    overflow |= __builtin_mul_overflow(size, (uint64_t)bits, &size);
    if (overflow || size % 8 != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: shape %s of %s %s, expected whole bytes below 2^61",
                       f->name, t->name,
                       tr_tensor_shape_text(shape, sizeof(shape), t->dims, t->dims_count), t->type,
                       overflow ? "overflows" : "does not fill bytes");
    t->size = size / 8;
    return TR_OK;
}

static tr_status safetensors_read_dtype(const tr_safetensors *f, tr_tensor *t, tr_json_pull *p,
                                        uint32_t *bits, tr_error *err)
{
    const char *text;
    char dtype[16];
    size_t size;

    if (!tr_json_pull_is(p, "a string"))
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: dtype %s, expected a type of the safetensors format",
                       f->name, t->name, tr_json_pull_kind(p));
    tr_status status = tr_json_pull_text(p, &text, &size);
    if (status != TR_OK)
        return status;
    snprintf(dtype, sizeof(dtype), "%.*s", (int)(size < sizeof(dtype) ? size : 0), text);
    if (!safetensors_dtype(dtype, t, bits))
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: dtype %.*s, expected a type of the safetensors format",
                       f->name, t->name, (int)(size < 40 ? size : 40), text);
    return TR_OK;
}

/* The fields of an entry, as bits of those that were seen. */
enum { FIELD_DTYPE = 1, FIELD_SHAPE = 2, FIELD_OFFSETS = 4, FIELDS_ALL = 7 };

static uint32_t safetensors_field(const char *key, size_t size)
{
    static const struct {
        const char *key;
        uint32_t field;
    } rows[] = {{"dtype", FIELD_DTYPE}, {"shape", FIELD_SHAPE}, {"data_offsets", FIELD_OFFSETS}};

    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strlen(rows[i].key) == size && memcmp(rows[i].key, key, size) == 0)
            return rows[i].field;
    return 0;
}

static tr_status safetensors_read_field(const tr_safetensors *f, tr_tensor *t, tr_json_pull *p,
                                        uint32_t field, uint64_t *offsets, uint32_t *bits,
                                        tr_error *err)
{
    uint32_t count = 0;
    tr_status status;

    switch (field) {
    case FIELD_DTYPE:
        return safetensors_read_dtype(f, t, p, bits, err);
    case FIELD_SHAPE:
        return safetensors_read_integers(f, t, p, "shape", t->dims, TR_TENSOR_DIMS_MAX,
                                         &t->dims_count, err);
    case FIELD_OFFSETS:
        status = safetensors_read_integers(f, t, p, "data_offsets", offsets, 2, &count, err);
        if (status == TR_OK && count != 2)
            status = tr_fail(err, TR_E_INVALID,
                             "%s: tensor %.100s: data_offsets: %u integers, expected 2", f->name,
                             t->name, count);
        return status;
    default:
        return tr_json_pull_skip(p);
    }
}

static tr_status safetensors_read_tensor(const tr_safetensors *f, tr_tensor *t,
                                         safetensors_span *span, tr_json_pull *p, tr_error *err)
{
    static const char *const names[] = {"", "dtype", "shape", "", "data_offsets"};
    uint64_t offsets[2] = {0, 0};
    uint32_t bits = 0, seen = 0;
    const char *key;
    size_t size;
    bool more;

    if (!tr_json_pull_is(p, "an object"))
        return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: %s, expected an object", f->name,
                       t->name, tr_json_pull_kind(p));
    tr_status status = tr_json_pull_object(p);
    while (status == TR_OK) {
        status = tr_json_pull_key(p, &key, &size, &more);
        if (status != TR_OK || !more)
            break;
        uint32_t field = safetensors_field(key, size);
        if ((seen & field) != 0)
            return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: duplicate %s, expected one",
                           f->name, t->name, names[field]);
        seen |= field;
        status = safetensors_read_field(f, t, p, field, offsets, &bits, err);
    }
    if (status != TR_OK)
        return status;
    if (seen != FIELDS_ALL)
        return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: no %s, expected one", f->name,
                       t->name,
                       names[~seen & FIELD_DTYPE   ? FIELD_DTYPE
                             : ~seen & FIELD_SHAPE ? FIELD_SHAPE
                                                   : FIELD_OFFSETS]);
    status = safetensors_size(f, t, bits, err);
    if (status != TR_OK)
        return status;
    *span = (safetensors_span){.begin = offsets[0], .end = offsets[1], .index = f->count};
    if (span->begin > span->end || span->end - span->begin != t->size)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: data_offsets [%" PRIu64 ", %" PRIu64
                       "], expected a span of %" PRIu64 " bytes",
                       f->name, t->name, span->begin, span->end, t->size);
    return TR_OK;
}

static int safetensors_compare(const void *a, const void *b)
{
    const safetensors_span *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Sorted by place, each tensor begins where the one before it ended, and the last ends the file. */
static tr_status safetensors_place(tr_safetensors *f, safetensors_span *spans, const uint8_t *data,
                                   uint64_t size, tr_error *err)
{
    uint64_t pos = 0;

    if (f->count > 1) /* without tensors there is no array */
        qsort(spans, f->count, sizeof(*spans), safetensors_compare);
    for (uint32_t i = 0; i < f->count; i++) {
        tr_tensor *t = &f->tensors[spans[i].index];

        if (spans[i].begin != pos)
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %.100s: begins at %" PRIu64 ", expected %" PRIu64
                           " (no gap, no overlap)",
                           f->name, t->name, spans[i].begin, pos);
        if (spans[i].end > size)
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %.100s: ends at %" PRIu64 ", the file has %" PRIu64
                           " bytes of data",
                           f->name, t->name, spans[i].end, size);
        t->data = data + spans[i].begin;
        pos = spans[i].end;
    }
    if (pos != size)
        return tr_fail(err, TR_E_INVALID,
                       "%s: %" PRIu64 " bytes of data, expected %" PRIu64
                       " (what the tensors take)",
                       f->name, size, pos);
    return TR_OK;
}

static tr_status safetensors_check_metadata(const tr_safetensors *f, tr_json_pull *p, tr_error *err)
{
    const char *key;
    char name[80];
    size_t size;
    bool more = true;

    if (tr_json_pull_is(p, "null"))
        return tr_json_pull_skip(p);
    if (!tr_json_pull_is(p, "an object"))
        return tr_fail(err, TR_E_INVALID, "%s: __metadata__: %s, expected an object", f->name,
                       tr_json_pull_kind(p));
    tr_status status = tr_json_pull_object(p);
    while (status == TR_OK) {
        status = tr_json_pull_key(p, &key, &size, &more);
        if (status != TR_OK || !more)
            break;
        snprintf(name, sizeof(name), "%.*s", (int)(size < 79 ? size : 79), key);
        if (!tr_json_pull_is(p, "a string"))
            return tr_fail(err, TR_E_INVALID, "%s: __metadata__: %s: %s, expected a string",
                           f->name, name, tr_json_pull_kind(p));
        status = tr_json_pull_skip(p);
    }
    return status;
}

/* What grows while a header is read. */
typedef struct {
    tr_safetensors *f;
    tr_json_pull pull;
    safetensors_span *spans; /* owns, [count_max] */
    uint32_t count_max;      /* of spans and f->tensors */
    size_t names_used;       /* of f->names */
    bool metadata_seen;
    tr_error *err;
} safetensors_reader;

/* Room for one more tensor. An entry has some forty bytes, so what a header of the largest size can
 * make us take is bounded. */
static tr_status safetensors_reserve(safetensors_reader *r)
{
    tr_safetensors *f = r->f;

    if (f->count < r->count_max)
        return TR_OK;
    uint32_t count_max = r->count_max == 0 ? 64 : 2 * r->count_max;
    safetensors_span *spans = realloc(r->spans, count_max * sizeof(*spans));
    if (spans != NULL)
        r->spans = spans;
    tr_tensor *tensors = realloc(f->tensors, count_max * sizeof(*tensors));
    if (tensors != NULL)
        f->tensors = tensors;
    if (spans == NULL || tensors == NULL)
        return tr_fail(r->err, TR_E_NOMEM, "%s: no memory for %u tensors", f->name, count_max);
    r->count_max = count_max;
    return TR_OK;
}

static tr_status safetensors_read_entry(safetensors_reader *r, const char *key, size_t size)
{
    tr_safetensors *f = r->f;

    if (size == strlen("__metadata__") && memcmp(key, "__metadata__", size) == 0) {
        if (r->metadata_seen)
            return tr_fail(r->err, TR_E_INVALID, "%s: duplicate __metadata__, expected one",
                           f->name);
        r->metadata_seen = true;
        return safetensors_check_metadata(f, &r->pull, r->err);
    }
    tr_status status = safetensors_check_name(f, key, size, r->err);
    if (status == TR_OK)
        status = safetensors_reserve(r);
    if (status != TR_OK)
        return status;
    char *name = f->names + r->names_used;
    memcpy(name, key, size);
    name[size] = '\0';
    r->names_used += size + 1;
    tr_tensor *t = &f->tensors[f->count];
    *t = (tr_tensor){.name = name, .file = f->name};
    status = safetensors_read_tensor(f, t, &r->spans[f->count], &r->pull, r->err);
    if (status == TR_OK)
        f->count++;
    return status;
}

static tr_status safetensors_refuse_twice(const tr_safetensors *f, tr_error *err)
{
    tr_names names;

    tr_status status = tr_names_init(&names, f->count, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < f->count; i++)
        tr_names_add(&names, f->tensors[i].name, (uint32_t)strlen(f->tensors[i].name), i);
    const tr_name *twice = tr_names_seal(&names);
    if (twice != NULL)
        status = tr_fail(err, TR_E_INVALID, "%s: duplicate tensor %.100s, expected one", f->name,
                         twice->name);
    tr_names_teardown(&names);
    return status;
}

static tr_status safetensors_read(tr_safetensors *f, const char *header, size_t header_size,
                                  const uint8_t *data, uint64_t size, tr_error *err)
{
    safetensors_reader r = {.f = f, .err = err};
    const char *key;
    size_t key_size;
    bool more;

    f->names = malloc(header_size + 1); /* each name stands in the header, quoted */
    if (f->names == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for its names", f->name);
    tr_json_pull_open(&r.pull, f->name, header, header_size, err);
    tr_status status = tr_json_pull_object(&r.pull);
    while (status == TR_OK) {
        status = tr_json_pull_key(&r.pull, &key, &key_size, &more);
        if (status != TR_OK || !more)
            break;
        status = safetensors_read_entry(&r, key, key_size);
    }
    if (status == TR_OK)
        status = tr_json_pull_end(&r.pull);
    if (status == TR_OK)
        status = safetensors_refuse_twice(f, err);
    if (status == TR_OK)
        status = safetensors_place(f, r.spans, data, size, err);
    tr_json_pull_close(&r.pull);
    free(r.spans);
    return status;
}

tr_status tr_safetensors_parse(tr_safetensors **out, const char *name, const uint8_t *data,
                               size_t size, tr_error *err)
{
    if (size < 8)
        return tr_fail(err, TR_E_INVALID, "%s: %zu bytes, a safetensors file has at least 8", name,
                       size);
    uint64_t header = tr_load_u64(data);
    if (header > TR_JSON_SIZE_MAX || header > size - 8)
        return tr_fail(err, TR_E_INVALID,
                       "%s: header of %" PRIu64 " bytes, expected at most %u and what the file of "
                       "%zu bytes holds",
                       name, header, TR_JSON_SIZE_MAX, size);
    tr_safetensors *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a safetensors file", name);
    f->map.fd = -1;
    f->head = 8 + header;
    snprintf(f->name, sizeof(f->name), "%s", name);
    char *text = malloc((size_t)header + 1); /* a copy: what was checked must not change */
    if (text == NULL) {
        tr_safetensors_close(f);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for its header", name);
    }
    memcpy(text, data + 8, (size_t)header);
    tr_status status =
        safetensors_read(f, text, (size_t)header, data + 8 + header, size - 8 - header, err);
    free(text);
    if (status != TR_OK) {
        tr_safetensors_close(f);
        return status;
    }
    *out = f;
    return TR_OK;
}

tr_status tr_safetensors_open(tr_safetensors **out, const char *path, tr_error *err)
{
    tr_map map;

    tr_status status = tr_map_open(&map, path, err);
    if (status != TR_OK)
        return status;
    status = tr_safetensors_parse(out, tr_path_base(path), map.data, map.size, err);
    if (status != TR_OK) {
        tr_map_close(&map);
        return status;
    }
    (*out)->map = map;
    return TR_OK;
}

tr_status tr_safetensors_check(const tr_safetensors *f, tr_error *err)
{
    return tr_map_check(&f->map, f->name, err);
}

void tr_safetensors_close(tr_safetensors *f)
{
    if (f == NULL)
        return;
    free(f->names);
    free(f->tensors);
    if (f->map.fd >= 0)
        tr_map_close(&f->map);
    free(f);
}

const tr_map *tr_safetensors_file(const tr_safetensors *f, char *name, uint64_t *head)
{
    snprintf(name, sizeof(f->name), "%s", f->name);
    *head = f->head;
    return &f->map;
}

uint32_t tr_safetensors_count(const tr_safetensors *f)
{
    return f->count;
}

const tr_tensor *tr_safetensors_at(const tr_safetensors *f, uint32_t index)
{
    assert(index < f->count);
    return &f->tensors[index];
}
