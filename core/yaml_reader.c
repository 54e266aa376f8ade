#include "core/yaml_reader.h"

#include <yaml.h>

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define YAML_PATH_SIZE  96
#define YAML_NAME_SHOWN 90 /* of the file's name in an error: the end is what tells files apart */
#define YAML_TEXT_SHOWN 40 /* of a value in an error */
#define YAML_FIELDS_MAX 32

struct tr_yaml {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; owned, deleted when the next one is fetched */
    const char *name;   /* borrowed */
    tr_error *err;      /* borrowed */
    char path[YAML_PATH_SIZE];
};

tr_status tr_yaml_open(tr_yaml **out, const char *name, const char *text, size_t size,
                       tr_error *err)
{
    if (size > TR_YAML_SIZE_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %zu bytes, expected at most %u", name, size,
                       TR_YAML_SIZE_MAX);
    tr_yaml *y = calloc(1, sizeof(*y));
    if (y == NULL || yaml_parser_initialize(&y->parser) == 0) {
        free(y);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory to read it", name);
    }
    yaml_parser_set_input_string(&y->parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&y->parser, YAML_UTF8_ENCODING);
    y->name = name;
    y->err = err;
    *out = y;
    return TR_OK;
}

void tr_yaml_close(tr_yaml *y)
{
    if (y == NULL)
        return;
    yaml_event_delete(&y->event);
    yaml_parser_delete(&y->parser);
    free(y);
}

/* -- errors -- */

static tr_yaml_mark yaml_mark_of(yaml_mark_t mark)
{
    return (tr_yaml_mark){(uint32_t)mark.line + 1, (uint32_t)mark.column + 1};
}

tr_yaml_mark tr_yaml_here(const tr_yaml *y)
{
    return yaml_mark_of(y->event.start_mark);
}

const char *tr_yaml_path(const tr_yaml *y)
{
    return y->path;
}

static tr_status yaml_fail(tr_yaml *y, tr_yaml_mark mark, const char *path, const char *text)
{
    size_t size = strlen(y->name);
    const char *name = size > YAML_NAME_SHOWN ? y->name + size - YAML_NAME_SHOWN : y->name;

    return tr_fail(y->err, TR_E_INVALID, "%s%s:%u:%u: %s%s%s", name != y->name ? "..." : "", name,
                   mark.line, mark.column, path, path[0] != '\0' ? ": " : "", text);
}

tr_status tr_yaml_wrong_at(tr_yaml *y, tr_yaml_mark mark, const char *path, const char *fmt, ...)
{
    char text[240];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return yaml_fail(y, mark, path, text);
}

/* What stands at the current event, for people. */
static void yaml_describe(const tr_yaml *y, char *text, size_t size)
{
    const yaml_event_t *e = &y->event;

    switch (e->type) {
    case YAML_SCALAR_EVENT:
        if (e->data.scalar.length == 0)
            snprintf(text, size, "nothing");
        else
            snprintf(text, size, "'%.*s'", YAML_TEXT_SHOWN, (const char *)e->data.scalar.value);
        return;
    case YAML_SEQUENCE_START_EVENT:
        snprintf(text, size, "a list");
        return;
    case YAML_MAPPING_START_EVENT:
        snprintf(text, size, "a mapping");
        return;
    case YAML_ALIAS_EVENT:
        snprintf(text, size, "an alias");
        return;
    case YAML_DOCUMENT_START_EVENT:
        snprintf(text, size, "a second document");
        return;
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_NO_EVENT:
        break;
    }
    snprintf(text, size, "nothing");
}

tr_status tr_yaml_wrong(tr_yaml *y, const char *fmt, ...)
{
    char found[YAML_TEXT_SHOWN + 8], expected[180];
    va_list args;

    yaml_describe(y, found, sizeof(found));
    va_start(args, fmt);
    vsnprintf(expected, sizeof(expected), fmt, args);
    va_end(args);
    return tr_yaml_wrong_at(y, tr_yaml_here(y), y->path, "found %s, expected %s", found, expected);
}

/* -- events -- */

static tr_status yaml_syntax_error(tr_yaml *y)
{
    const yaml_parser_t *p = &y->parser;
    const char *problem = p->problem != NULL ? p->problem : "not YAML";

    if (p->error == YAML_MEMORY_ERROR)
        return tr_fail(y->err, TR_E_NOMEM, "%s: no memory to read it", y->name);
    if (p->error == YAML_READER_ERROR) /* bytes that are not UTF-8: there is no mark yet */
        return tr_yaml_wrong_at(y, yaml_mark_of(p->mark), y->path, "%s at byte %zu", problem,
                                p->problem_offset);
    if (p->context != NULL)
        return tr_yaml_wrong_at(y, yaml_mark_of(p->problem_mark), y->path, "%s, %s", problem,
                                p->context);
    return tr_yaml_wrong_at(y, yaml_mark_of(p->problem_mark), y->path, "%s", problem);
}

/* Moves to the next event. Anchors, aliases and tags are refused here, once for all. */
static tr_status yaml_next(tr_yaml *y)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;

    yaml_event_delete(&y->event);
    if (yaml_parser_parse(&y->parser, &y->event) == 0)
        return yaml_syntax_error(y);
    if (y->event.type == YAML_ALIAS_EVENT)
        return tr_yaml_wrong(y, "the value itself");
    if (y->event.type == YAML_SCALAR_EVENT) {
        anchor = y->event.data.scalar.anchor;
        tag = y->event.data.scalar.tag;
    } else if (y->event.type == YAML_SEQUENCE_START_EVENT) {
        anchor = y->event.data.sequence_start.anchor;
        tag = y->event.data.sequence_start.tag;
    } else if (y->event.type == YAML_MAPPING_START_EVENT) {
        anchor = y->event.data.mapping_start.anchor;
        tag = y->event.data.mapping_start.tag;
    }
    if (anchor != NULL)
        return tr_yaml_wrong_at(y, tr_yaml_here(y), y->path,
                                "found the anchor '&%.*s', expected the value alone",
                                YAML_TEXT_SHOWN, (const char *)anchor);
    if (tag != NULL)
        return tr_yaml_wrong_at(y, tr_yaml_here(y), y->path,
                                "found the tag '%.*s', expected the value alone", YAML_TEXT_SHOWN,
                                (const char *)tag);
    return TR_OK;
}

/* -- the path of keys -- */

static size_t yaml_path_add_key(tr_yaml *y, const char *key)
{
    size_t kept = strlen(y->path);

    snprintf(y->path + kept, sizeof(y->path) - kept, "%s%s", kept > 0 ? "." : "", key);
    return kept;
}

static size_t yaml_path_add_index(tr_yaml *y, uint32_t index)
{
    size_t kept = strlen(y->path);

    snprintf(y->path + kept, sizeof(y->path) - kept, "[%u]", index);
    return kept;
}

/* -- mappings and lists -- */

static tr_status yaml_unknown_key(tr_yaml *y, const char *key, const tr_yaml_field *fields,
                                  uint32_t fields_count)
{
    char known[160] = "";
    size_t used = 0;

    for (uint32_t i = 0; i < fields_count && used < sizeof(known); i++)
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                 fields[i].key);
    return tr_yaml_wrong_at(y, tr_yaml_here(y), y->path,
                            "found the unknown key '%.*s', expected one of %s", YAML_TEXT_SHOWN,
                            key, known);
}

static tr_status yaml_second_key(tr_yaml *y, const char *key)
{
    return tr_yaml_wrong_at(y, tr_yaml_here(y), y->path,
                            "found the key '%.*s' a second time, expected each once",
                            YAML_TEXT_SHOWN, key);
}

/* One pair: the reader stands at its key. */
static tr_status yaml_read_field(tr_yaml *y, void *target, const tr_yaml_field *fields,
                                 uint32_t fields_count, uint32_t *seen)
{
    const char *key = tr_yaml_scalar(y, "a key");
    if (key == NULL)
        return TR_E_INVALID;

    uint32_t i = 0;
    while (i < fields_count && strcmp(fields[i].key, key) != 0)
        i++;
    if (i == fields_count)
        return yaml_unknown_key(y, key, fields, fields_count);
    if ((*seen & (1u << i)) != 0)
        return yaml_second_key(y, key);
    *seen |= 1u << i;

    size_t kept = yaml_path_add_key(y, fields[i].key);
    tr_status status = yaml_next(y);
    if (status == TR_OK)
        status = fields[i].read(y, (char *)target + fields[i].offset, &fields[i]);
    if (status == TR_OK)
        y->path[kept] = '\0';
    return status;
}

tr_status tr_yaml_map(tr_yaml *y, void *target, const tr_yaml_field *fields, uint32_t fields_count)
{
    tr_yaml_mark start = tr_yaml_here(y);
    uint32_t seen = 0; /* bit i: fields[i] was given */

    assert(fields_count <= YAML_FIELDS_MAX);
    if (y->event.type != YAML_MAPPING_START_EVENT)
        return tr_yaml_wrong(y, "a mapping with keys such as %s", fields[0].key);
    for (;;) {
        tr_status status = yaml_next(y);
        if (status != TR_OK)
            return status;
        if (y->event.type == YAML_MAPPING_END_EVENT)
            break;
        status = yaml_read_field(y, target, fields, fields_count, &seen);
        if (status != TR_OK)
            return status;
    }
    for (uint32_t i = 0; i < fields_count; i++)
        if (fields[i].required && (seen & (1u << i)) == 0)
            return tr_yaml_wrong_at(y, start, y->path, "found no '%s', expected one",
                                    fields[i].key);
    return TR_OK;
}

tr_status tr_yaml_pairs(tr_yaml *y, void *target,
                        tr_status (*read)(tr_yaml *y, void *target, const char *key))
{
    char keys[TR_YAML_PAIRS_MAX][YAML_TEXT_SHOWN];
    uint32_t count = 0;

    if (y->event.type != YAML_MAPPING_START_EVENT)
        return tr_yaml_wrong(y, "a mapping");
    for (;; count++) {
        tr_status status = yaml_next(y);
        if (status != TR_OK)
            return status;
        if (y->event.type == YAML_MAPPING_END_EVENT)
            return TR_OK;
        const char *key = tr_yaml_scalar(y, "a key");
        if (key == NULL)
            return TR_E_INVALID;
        if (count == TR_YAML_PAIRS_MAX || strlen(key) >= sizeof(keys[0]))
            return tr_yaml_wrong(y, "at most %d keys of fewer than %zu characters",
                                 TR_YAML_PAIRS_MAX, sizeof(keys[0]));
        for (uint32_t i = 0; i < count; i++)
            if (strcmp(keys[i], key) == 0)
                return yaml_second_key(y, key);
        snprintf(keys[count], sizeof(keys[count]), "%s", key);

        size_t kept = yaml_path_add_key(y, keys[count]);
        status = yaml_next(y);
        if (status == TR_OK)
            status = read(y, target, keys[count]);
        if (status != TR_OK)
            return status;
        y->path[kept] = '\0';
    }
}

tr_status tr_yaml_list(tr_yaml *y, void *target, uint32_t items_max,
                       tr_status (*read)(tr_yaml *y, void *target, uint32_t index))
{
    if (y->event.type != YAML_SEQUENCE_START_EVENT)
        return tr_yaml_wrong(y, "a list");
    for (uint32_t i = 0;; i++) {
        size_t kept = yaml_path_add_index(y, i); /* before the event: its errors name the item */
        tr_status status = yaml_next(y);
        if (status != TR_OK)
            return status;
        if (y->event.type == YAML_SEQUENCE_END_EVENT) {
            y->path[kept] = '\0';
            return TR_OK;
        }
        if (i == items_max)
            return tr_yaml_wrong(y, "at most %u items", items_max);
        status = read(y, target, i);
        if (status != TR_OK)
            return status;
        y->path[kept] = '\0';
    }
}

tr_status tr_yaml_document(tr_yaml *y, void *target, const tr_yaml_field *fields,
                           uint32_t fields_count)
{
    tr_status status = yaml_next(y); /* stream start */

    if (status == TR_OK)
        status = yaml_next(y); /* document start, or the end of an empty file */
    if (status == TR_OK && y->event.type == YAML_DOCUMENT_START_EVENT)
        status = yaml_next(y);
    if (status == TR_OK)
        status = tr_yaml_map(y, target, fields, fields_count);
    if (status == TR_OK)
        status = yaml_next(y); /* document end */
    if (status == TR_OK)
        status = yaml_next(y);
    if (status == TR_OK && y->event.type != YAML_STREAM_END_EVENT)
        status = tr_yaml_wrong(y, "the end of the file");
    return status;
}

/* -- scalars -- */

const char *tr_yaml_scalar(tr_yaml *y, const char *expected)
{
    if (y->event.type != YAML_SCALAR_EVENT) {
        tr_yaml_wrong(y, "%s", expected);
        return NULL;
    }
    const char *text = (const char *)y->event.data.scalar.value;
    for (size_t i = 0; i < y->event.data.scalar.length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f) {
            tr_yaml_wrong_at(y, tr_yaml_here(y), y->path,
                             "found the control character 0x%02x, expected %s", c, expected);
            return NULL;
        }
    }
    return text;
}

static bool yaml_is_plain(const tr_yaml *y)
{
    return y->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* What YAML 1.1 reads as null or as a boolean when it has no quotes. */
static bool yaml_is_special(const char *text)
{
    static const char *const special[] = {"~",  "null", "true", "false", "yes",
                                          "no", "on",   "off",  "y",     "n"};

    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
        if (strcasecmp(text, special[i]) == 0)
            return true;
    return false;
}

tr_status tr_yaml_text(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    const char *text = tr_yaml_scalar(y, "a text");
    if (text == NULL)
        return TR_E_INVALID;
    if (text[0] == '\0')
        return tr_yaml_wrong(y, "a text");
    if (yaml_is_plain(y) && yaml_is_special(text))
        return tr_yaml_wrong(y, "a text (in quotes, if this is one)");
    if (strlen(text) >= field->max)
        return tr_yaml_wrong(y, "at most %llu bytes", (unsigned long long)field->max - 1);
    memcpy(target, text, strlen(text) + 1);
    return TR_OK;
}

static tr_status yaml_number(tr_yaml *y, uint64_t *out, const tr_yaml_field *field)
{
    const char *text = tr_yaml_scalar(y, "a whole number");
    if (text == NULL)
        return TR_E_INVALID;

    uint64_t value = 0;
    size_t digits = strspn(text, "0123456789");
    bool fits = digits > 0 && digits < 19 && text[digits] == '\0' && yaml_is_plain(y);
    for (size_t i = 0; fits && i < digits; i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    if (!fits || value < field->min || value > field->max)
        return tr_yaml_wrong(y, "a whole number from %llu to %llu", (unsigned long long)field->min,
                             (unsigned long long)field->max);
    *out = value;
    return TR_OK;
}

tr_status tr_yaml_u32(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    uint64_t value = 0;

    assert(field->max <= UINT32_MAX);
    tr_status status = yaml_number(y, &value, field);
    if (status == TR_OK)
        *(uint32_t *)target = (uint32_t)value;
    return status;
}

tr_status tr_yaml_u16(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    uint64_t value = 0;

    assert(field->max <= UINT16_MAX);
    tr_status status = yaml_number(y, &value, field);
    if (status == TR_OK)
        *(uint16_t *)target = (uint16_t)value;
    return status;
}

tr_status tr_yaml_boolean(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    const char *text = tr_yaml_scalar(y, "true or false");
    if (text == NULL)
        return TR_E_INVALID;
    bool is_true = strcmp(text, "true") == 0;
    if (!yaml_is_plain(y) || (!is_true && strcmp(text, "false") != 0))
        return tr_yaml_wrong(y, "true or false");
    *(bool *)target = is_true;
    return TR_OK;
}
