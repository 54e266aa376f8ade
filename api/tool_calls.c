/* tool_calls.c
 *
 *            start          '\n' or sentinel       arg start       arg value
 *   OUTSIDE -------> NAME ------------------> BODY -----------> KEY ---------> VALUE
 *      ^              |                        ^  ^--------------'               |
 *      |              | name empty, too long   '---------- arg end --------------'
 *      |              v
 *      '-- end ----- SKIP                      end from any state leads to OUTSIDE
 *
 * A forgotten end is forgiven: a new start ends a call, a new argument or the end of the call ends
 * a value. Of two arguments with one key the first counts. */
#include "api/tool_calls.h"

#include "api/json_writer.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

enum { OUTSIDE, NAME, SKIP, BODY, KEY, VALUE };

/* Types that a schema allows, as bits. */
enum {
    TYPE_STRING = 1,
    TYPE_INTEGER = 2,
    TYPE_NUMBER = 4,
    TYPE_BOOLEAN = 8,
    TYPE_ARRAY = 16,
    TYPE_OBJECT = 32,
    TYPE_NULL = 64
};

/* Nesting of anyOf within a parameter's schema that is looked at. */
#define SCHEMA_DEPTH_MAX 4

/* Values and names are escaped in pieces of this many bytes. */
#define PIECE_SIZE 256

static void calls_emit(tr_tool_calls *c, const char *text)
{
    c->emit(c->ctx, TR_CALL_ARGUMENTS, text, strlen(text));
}

static void calls_emit_escaped(tr_tool_calls *c, const char *text, size_t size)
{
    char out[TR_JSON_ESCAPED_MAX(PIECE_SIZE)];
    while (size > 0) {
        tr_json w;
        size_t piece = tr_text_cut(text, size, PIECE_SIZE);
        tr_json_init(&w, out, sizeof(out));
        tr_json_escaped(&w, text, piece);
        assert(!w.overflow);
        c->emit(c->ctx, TR_CALL_ARGUMENTS, out, w.size);
        text += piece;
        size -= piece;
    }
}

static uint32_t type_of_name(const char *name)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {
        {"string", TYPE_STRING},   {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
        {"boolean", TYPE_BOOLEAN}, {"array", TYPE_ARRAY},     {"object", TYPE_OBJECT},
        {"null", TYPE_NULL},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (name != NULL && strcmp(types[i].name, name) == 0)
            return types[i].type;
    }
    return 0;
}

static uint32_t type_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER | TYPE_NUMBER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_NULL:
        return TYPE_NULL;
    }
    return 0;
}

static uint32_t types_of_schema(const json_t *schema, uint32_t depth)
{
    uint32_t types = 0;
    size_t i;
    const json_t *item;

    const json_t *type = json_object_get(schema, "type");
    types |= type_of_name(json_string_value(type));
    json_array_foreach(type, i, item) types |= type_of_name(json_string_value(item));
    if (json_is_true(json_object_get(schema, "nullable")))
        types |= TYPE_NULL;
    if (type == NULL) {
        json_array_foreach(json_object_get(schema, "enum"), i, item) types |= type_of_value(item);
    }
    if (depth < SCHEMA_DEPTH_MAX) {
        json_array_foreach(json_object_get(schema, "anyOf"), i, item) types |=
            types_of_schema(item, depth + 1);
        json_array_foreach(json_object_get(schema, "oneOf"), i, item) types |=
            types_of_schema(item, depth + 1);
    }
    return types;
}

/* The properties of the function called name, or NULL when the request does not declare it. */
static const json_t *calls_find_properties(const tr_tool_calls *c)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(c->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const json_t *name = json_object_get(function, "name");
        if (json_is_string(name) && json_string_length(name) == c->name_size &&
            memcmp(json_string_value(name), c->name, c->name_size) == 0)
            return json_object_get(json_object_get(function, "parameters"), "properties");
    }
    return NULL;
}

static void calls_trim(const char **text, size_t *size)
{
    while (*size > 0 && memchr(" \t\r\n", (*text)[0], 4) != NULL) {
        (*text)++;
        (*size)--;
    }
    while (*size > 0 && memchr(" \t\r\n", (*text)[*size - 1], 4) != NULL)
        (*size)--;
}

static void calls_on_name_end(tr_tool_calls *c)
{
    assert(c->state == NAME);
    const char *name = c->name;
    calls_trim(&name, &c->name_size);
    memmove(c->name, name, c->name_size);
    if (c->name_size == 0) {
        c->state = SKIP;
        return;
    }
    c->properties = calls_find_properties(c);
    c->arguments_count = 0;
    c->keys.size = 0;
    c->begun_count++;
    c->state = BODY;
    c->emit(c->ctx, TR_CALL_BEGIN, c->name, c->name_size);
}

/* Adds the key to those of this call; false when it was there. */
static bool calls_add_key(tr_tool_calls *c)
{
    tr_text_append(&c->key, "", 1);
    if (c->key.failed || strlen(c->key.bytes) + 1 != c->key.size)
        return false;
    for (size_t i = 0; i < c->keys.size; i += strlen(c->keys.bytes + i) + 1) {
        if (strcmp(c->keys.bytes + i, c->key.bytes) == 0)
            return false;
    }
    tr_text_append(&c->keys, c->key.bytes, c->key.size);
    c->key.size--;
    return !c->keys.failed;
}

static void calls_emit_key(tr_tool_calls *c)
{
    calls_emit(c, c->arguments_count == 0 ? "{\"" : ", \"");
    calls_emit_escaped(c, c->key.bytes, c->key.size);
    calls_emit(c, "\": ");
    c->arguments_count++;
}

static void calls_on_value_start(tr_tool_calls *c)
{
    assert(c->state == KEY);
    if (!calls_add_key(c)) {
        c->state = BODY; /* what follows up to the next sentinel is dropped */
        return;
    }
    /* add_key left the key NUL-terminated. */
    const json_t *schema = json_object_get(c->properties, c->key.bytes);
    c->types = types_of_schema(schema, 0);
    if (c->types == 0)
        c->types = TYPE_STRING;
    c->value.size = 0;
    c->streams = c->types == TYPE_STRING;
    c->state = VALUE;
    if (c->streams) {
        calls_emit_key(c);
        calls_emit(c, "\"");
    }
}

/* The value as JSON when it is of a type that the schema allows; otherwise as a string. */
static void calls_emit_value(tr_tool_calls *c)
{
    const char *text = c->value.bytes;
    size_t size = c->value.size;
    calls_trim(&text, &size);
    if ((c->types & TYPE_NULL) != 0 && size == 4 && strncasecmp(text, "null", 4) == 0) {
        calls_emit(c, "null");
        return;
    }
    json_t *value = size == 0 ? NULL : json_loadb(text, size, JSON_DECODE_ANY, NULL);
    uint32_t allowed = c->types & ~(uint32_t)TYPE_STRING;
    if (value != NULL && (type_of_value(value) & allowed) != 0) {
        c->emit(c->ctx, TR_CALL_ARGUMENTS, text, size);
    } else {
        calls_emit(c, "\"");
        calls_emit_escaped(c, c->value.bytes, c->value.size);
        calls_emit(c, "\"");
    }
    json_decref(value);
}

static void calls_on_value_end(tr_tool_calls *c)
{
    assert(c->state == VALUE);
    if (c->streams) {
        calls_emit(c, "\"");
    } else if (!c->value.failed) {
        calls_emit_key(c);
        calls_emit_value(c);
    }
    c->state = BODY;
}

static void calls_on_call_end(tr_tool_calls *c)
{
    if (c->state == NAME)
        calls_on_name_end(c);
    if (c->state == VALUE)
        calls_on_value_end(c);
    if (c->state == BODY || c->state == KEY) {
        calls_emit(c, c->arguments_count == 0 ? "{}" : "}");
        c->completed_count++;
        c->emit(c->ctx, TR_CALL_END, "", 0);
    }
    c->state = OUTSIDE;
}

static void calls_on_name_text(tr_tool_calls *c, const char *text, size_t size)
{
    const char *line_end = memchr(text, '\n', size);
    size_t name_size = line_end == NULL ? size : (size_t)(line_end - text);
    if (name_size > TR_TOOL_NAME_MAX - c->name_size) {
        c->state = SKIP;
        return;
    }
    memcpy(c->name + c->name_size, text, name_size);
    c->name_size += name_size;
    if (line_end != NULL)
        calls_on_name_end(c); /* what follows on the next lines belongs to no argument */
}

void tr_tool_calls_init(tr_tool_calls *c, const json_t *tools,
                        void (*emit)(void *ctx, tr_call_event event, const char *text, size_t size),
                        void *ctx)
{
    *c = (tr_tool_calls){.tools = tools, .emit = emit, .ctx = ctx, .state = OUTSIDE};
}

void tr_tool_calls_teardown(tr_tool_calls *c)
{
    tr_text_free(&c->key);
    tr_text_free(&c->keys);
    tr_text_free(&c->value);
}

void tr_tool_calls_text(tr_tool_calls *c, const char *text, size_t size)
{
    switch (c->state) {
    case NAME:
        calls_on_name_text(c, text, size);
        break;
    case KEY:
        tr_text_append(&c->key, text, size);
        break;
    case VALUE:
        if (c->streams)
            calls_emit_escaped(c, text, size);
        else
            tr_text_append(&c->value, text, size);
        break;
    default: /* between arguments or after a call: nothing that has a place in the answer */
        break;
    }
}

void tr_tool_calls_sentinel(tr_tool_calls *c, tr_tool_sentinel sentinel)
{
    switch (sentinel) {
    case TR_SENTINEL_CALL_START:
        if (c->state != OUTSIDE)
            calls_on_call_end(c);
        c->name_size = 0;
        c->state = NAME;
        break;
    case TR_SENTINEL_CALL_END:
        if (c->state != OUTSIDE)
            calls_on_call_end(c);
        break;
    case TR_SENTINEL_ARG_START:
        if (c->state == NAME)
            calls_on_name_end(c);
        if (c->state == VALUE)
            calls_on_value_end(c);
        if (c->state == BODY || c->state == KEY) {
            c->key.size = 0;
            c->state = KEY;
        }
        break;
    case TR_SENTINEL_ARG_VALUE:
        if (c->state == KEY)
            calls_on_value_start(c);
        break;
    case TR_SENTINEL_ARG_END:
        if (c->state == VALUE)
            calls_on_value_end(c);
        else if (c->state == KEY)
            c->state = BODY; /* a key without a value */
        break;
    }
}

bool tr_tool_calls_is_open(const tr_tool_calls *c)
{
    return c->state != OUTSIDE;
}
