/* json.h - reads JSON that comes from outside, within limits.
 *
 * Before the parser builds anything, one linear scan bounds depth and number of values, so that a
 * small file cannot ask for much memory or stack. Duplicate keys are refused. */
#ifndef TR_CORE_MODEL_JSON_H
#define TR_CORE_MODEL_JSON_H

#include "core/error.h"

#include <jansson.h>

#define TR_JSON_DEPTH_MAX      64
#define TR_JSON_CONTAINERS_MAX (3u << 20)
#define TR_JSON_VALUES_MAX     (16u << 20)
#define TR_JSON_SIZE_MAX       100000000u /* bytes; the limit that safetensors gives its headers */

/* Parses one JSON object. name stands for the file in errors. The caller owns *out (json_decref).
 * thread  any; errors TR_E_INVALID with name, line, column, or the limit that was met */
tr_status tr_json_parse(json_t **out, const char *name, const char *text, size_t size,
                        tr_error *err);

/* The same for a file. */
tr_status tr_json_read(json_t **out, const char *path, tr_error *err);

/* The same for a file that a folder may have: *out is NULL when it has none. */
tr_status tr_json_read_beside(json_t **out, const char *folder, const char *file, tr_error *err);

/* "a string", "an integer", ...: how errors name what was found. */
const char *tr_json_kind(const json_t *value);

#endif
