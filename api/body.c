#include "api/body.h"

#include <stdbool.h>
#include <string.h>

/* Walks over the text without understanding more than strings and brackets. Whatever it lets
 * through that is not JSON, jansson refuses. */
static bool body_check_limits(const char *body, size_t size, size_t values_max, tr_api_error *err)
{
    size_t depth = 0;
    size_t values = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = body[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            values++;
            if (++depth > TR_BODY_DEPTH_MAX)
                return tr_api_fail(err, 400, NULL, "invalid_json",
                                   "The JSON body is nested deeper than %d at byte %zu.",
                                   TR_BODY_DEPTH_MAX, i);
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == ',') {
            values++;
        }
        if (values > values_max)
            return tr_api_fail(err, 400, NULL, "invalid_json",
                               "The JSON body has more than %zu values.", values_max);
    }
    return true;
}

json_t *tr_body_read(const char *body, size_t size, size_t values_max, tr_api_error *err)
{
    json_error_t error;
    if (!body_check_limits(body, size, values_max, err))
        return NULL;
    if (size == 0) {
        tr_api_fail(err, 400, NULL, "invalid_json", "The body is empty, expected a JSON object.");
        return NULL;
    }
    json_t *root = json_loadb(body, size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        tr_api_fail(err, 400, NULL, "invalid_json", "The body is not JSON: line %d, column %d: %s.",
                    error.line, error.column, error.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        tr_api_fail(err, 400, NULL, "invalid_json", "The body is %s, expected a JSON object.",
                    tr_json_type_text(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

const char *tr_json_type_text(const json_t *value)
{
    if (value == NULL)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}
