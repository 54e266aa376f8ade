#include "core/model/json.h"

#include "core/model/map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Depth and counts by brackets and commas outside strings. Malformed text may be miscounted: the
 * parser refuses it anyway, and never builds more than was counted. */
static tr_status json_scan(const char *name, const char *text, size_t size, tr_error *err)
{
    uint32_t depth = 0, containers = 0, values = 1;
    bool in_string = false;

    for (size_t i = 0; i < size; i++) {
        char c = text[i];

        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == ',') {
            if (++values > TR_JSON_VALUES_MAX)
                return tr_fail(err, TR_E_INVALID, "%s: more than %u values", name,
                               TR_JSON_VALUES_MAX);
        } else if (c == '{' || c == '[') {
            if (++depth > TR_JSON_DEPTH_MAX)
                return tr_fail(err, TR_E_INVALID, "%s: nested deeper than %u levels", name,
                               TR_JSON_DEPTH_MAX);
            if (++containers > TR_JSON_CONTAINERS_MAX)
                return tr_fail(err, TR_E_INVALID, "%s: more than %u objects and lists", name,
                               TR_JSON_CONTAINERS_MAX);
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return TR_OK;
}

tr_status tr_json_parse(json_t **out, const char *name, const char *text, size_t size,
                        tr_error *err)
{
    json_error_t where;

    if (size > TR_JSON_SIZE_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %zu bytes of JSON, expected at most %u", name, size,
                       TR_JSON_SIZE_MAX);
    tr_status status = json_scan(name, text, size, err);
    if (status != TR_OK)
        return status;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (root == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: line %d, column %d: %s", name, where.line,
                       where.column, where.text);
    if (!json_is_object(root)) {
        tr_fail(err, TR_E_INVALID, "%s: %s, expected an object", name, tr_json_kind(root));
        json_decref(root);
        return TR_E_INVALID;
    }
    *out = root;
    return TR_OK;
}

tr_status tr_json_read(json_t **out, const char *path, tr_error *err)
{
    uint8_t *text;
    size_t size;

    tr_status status = tr_file_read(&text, &size, path, err);
    if (status != TR_OK)
        return status;
    status = tr_json_parse(out, tr_path_base(path), (const char *)text, size, err);
    free(text);
    return status;
}

tr_status tr_json_read_beside(json_t **out, const char *folder, const char *file, tr_error *err)
{
    char path[4096];
    struct stat st;

    *out = NULL;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, file) >= sizeof(path))
        return tr_fail(err, TR_E_INVALID, "%.80s...: the path is too long", folder);
    return stat(path, &st) != 0 && errno == ENOENT ? TR_OK : tr_json_read(out, path, err);
}

const char *tr_json_kind(const json_t *value)
{
    if (value == NULL)
        return "absent";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "something unknown";
}
