#include "core/model/shard_index.h"

#include "core/model/json.h"
#include "core/model/json_pull.h"
#include "core/model/map.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name; /* of the index, for errors */
    tr_json_pull pull;
    tr_shard_index *index;
    size_t text_used;
    uint32_t entries_max; /* room in file_of and tensors */
    uint32_t files_max;
    tr_error *err;
} index_reader;

/* A name from an index must stay in its folder: one plain component. */
static bool index_is_plain(const char *file, size_t size)
{
    if (size == 0 || size >= TR_SHARD_NAME_SIZE || file[0] == '.')
        return false;
    for (size_t i = 0; i < size; i++)
        if (file[i] == '/' || file[i] == '\\' || (unsigned char)file[i] < 0x20 || file[i] == 0x7f ||
            (file[i] == '.' && i > 0 && file[i - 1] == '.'))
            return false;
    return true;
}

static bool index_is_file(const tr_shard_index *index, uint32_t i, const char *file, size_t size)
{
    return strlen(index->files[i]) == size && memcmp(index->files[i], file, size) == 0;
}

/* The number of a file; a new one is added. */
static tr_status index_file(index_reader *r, const char *file, size_t size, uint32_t hint,
                            uint32_t *number)
{
    tr_shard_index *index = r->index;

    *number = hint; /* entries of a file mostly stand together */
    if (hint < index->files_count && index_is_file(index, hint, file, size))
        return TR_OK;
    for (*number = 0; *number < index->files_count; ++*number)
        if (index_is_file(index, *number, file, size))
            return TR_OK;
    if (index->files_count == r->files_max)
        return tr_fail(r->err, TR_E_INVALID, "%s: more than %u files of weights", r->name,
                       r->files_max);
    memcpy(index->files[index->files_count], file, size);
    index->files[index->files_count][size] = '\0';
    index->files_count++;
    return TR_OK;
}

/* Room for one more entry. An entry has at least six bytes, so the size of the file bounds it. */
static tr_status index_reserve(index_reader *r)
{
    tr_shard_index *index = r->index;

    if (index->tensors.count < r->entries_max)
        return TR_OK;
    uint32_t entries_max = r->entries_max == 0 ? 1024 : 2 * r->entries_max;
    tr_name *rows = realloc(index->tensors.rows, entries_max * sizeof(*rows));
    if (rows != NULL)
        index->tensors.rows = rows;
    uint32_t *file_of = realloc(index->file_of, entries_max * sizeof(*file_of));
    if (file_of != NULL)
        index->file_of = file_of;
    if (rows == NULL || file_of == NULL)
        return tr_fail(r->err, TR_E_NOMEM, "%s: no memory for %u tensors", r->name, entries_max);
    index->tensors.count_max = entries_max;
    r->entries_max = entries_max;
    return TR_OK;
}

/* One entry of weight_map; the cursor stands behind its key. */
static tr_status index_entry(index_reader *r, const char *key, size_t key_size, uint32_t *hint)
{
    tr_shard_index *index = r->index;
    char *name = index->text + r->text_used;
    const char *file;
    size_t size;

    memcpy(name, key, key_size); /* the key is borrowed until the value is read */
    name[key_size] = '\0';
    r->text_used += key_size + 1;
    if (!tr_json_pull_is(&r->pull, "a string"))
        return tr_fail(r->err, TR_E_INVALID,
                       "%s: weight_map: %.80s: found %s, expected the plain name of a file",
                       r->name, name, tr_json_pull_kind(&r->pull));
    tr_status status = tr_json_pull_text(&r->pull, &file, &size);
    if (status == TR_OK && !index_is_plain(file, size))
        status = tr_fail(r->err, TR_E_INVALID,
                         "%s: weight_map: %.80s: found %.*s, expected the plain name of a file",
                         r->name, name, (int)(size < 80 ? size : 80), file);
    if (status == TR_OK)
        status = index_file(r, file, size, *hint, hint);
    if (status == TR_OK)
        status = index_reserve(r);
    if (status != TR_OK)
        return status;
    uint32_t entry = index->tensors.count;
    index->file_of[entry] = *hint;
    tr_names_add(&index->tensors, name, (uint32_t)key_size, entry);
    return TR_OK;
}

static tr_status index_map(index_reader *r)
{
    const char *key;
    size_t size;
    uint32_t hint = 0;
    bool more;

    if (!tr_json_pull_is(&r->pull, "an object"))
        return tr_fail(r->err, TR_E_INVALID, "%s: weight_map: %s, expected an object", r->name,
                       tr_json_pull_kind(&r->pull));
    tr_status status = tr_json_pull_object(&r->pull);
    while (status == TR_OK) {
        status = tr_json_pull_key(&r->pull, &key, &size, &more);
        if (status != TR_OK || !more)
            break;
        status = index_entry(r, key, size, &hint);
    }
    return status;
}

static tr_status index_root(index_reader *r)
{
    const char *key;
    size_t size;
    bool more, seen = false;

    tr_status status = tr_json_pull_object(&r->pull);
    while (status == TR_OK) {
        status = tr_json_pull_key(&r->pull, &key, &size, &more);
        if (status != TR_OK || !more)
            break;
        if (size != strlen("weight_map") || memcmp(key, "weight_map", size) != 0) {
            status = tr_json_pull_skip(&r->pull);
            continue;
        }
        if (seen)
            return tr_fail(r->err, TR_E_INVALID, "%s: duplicate weight_map, expected one", r->name);
        seen = true;
        status = index_map(r);
    }
    if (status == TR_OK && !seen)
        status =
            tr_fail(r->err, TR_E_INVALID, "%s: weight_map: absent, expected an object", r->name);
    return status == TR_OK ? tr_json_pull_end(&r->pull) : status;
}

static tr_status index_parse(index_reader *r, const char *text, size_t size)
{
    tr_shard_index *index = r->index;

    if (size > TR_JSON_SIZE_MAX)
        return tr_fail(r->err, TR_E_INVALID, "%s: %zu bytes of JSON, expected at most %u", r->name,
                       size, TR_JSON_SIZE_MAX);
    index->text = malloc(size + 1); /* each name stands in the file, quoted */
    index->files = calloc(r->files_max, sizeof(*index->files));
    if (index->text == NULL || index->files == NULL)
        return tr_fail(r->err, TR_E_NOMEM, "%s: no memory for its names", r->name);
    tr_json_pull_open(&r->pull, r->name, text, size, r->err);
    tr_status status = index_root(r);
    tr_json_pull_close(&r->pull);
    if (status != TR_OK)
        return status;
    const tr_name *twice = tr_names_seal(&index->tensors);
    if (twice != NULL)
        return tr_fail(r->err, TR_E_INVALID, "%s: duplicate tensor %.100s, expected one", r->name,
                       twice->name);
    return TR_OK;
}

tr_status tr_shard_index_parse(tr_shard_index *out, const char *name, const char *text, size_t size,
                               uint32_t files_max, tr_error *err)
{
    index_reader r = {.name = name, .index = out, .files_max = files_max, .err = err};

    *out = (tr_shard_index){0};
    tr_status status = index_parse(&r, text, size);
    if (status != TR_OK)
        tr_shard_index_free(out);
    return status;
}

tr_status tr_shard_index_read(tr_shard_index *out, const char *path, uint32_t files_max,
                              tr_error *err)
{
    uint8_t *text;
    size_t size;

    tr_status status = tr_file_read(&text, &size, path, err);
    if (status != TR_OK)
        return status;
    status =
        tr_shard_index_parse(out, tr_path_base(path), (const char *)text, size, files_max, err);
    free(text);
    return status;
}

void tr_shard_index_free(tr_shard_index *index)
{
    tr_names_teardown(&index->tensors);
    free(index->file_of);
    free(index->files);
    free(index->text);
    *index = (tr_shard_index){0};
}
