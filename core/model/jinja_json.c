/* jinja_json.c - the tojson filter: what Python's json.dumps writes, with the keyword arguments
 * that Hugging Face's templates may give. */
#include "core/model/jinja_builtins.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tj_run *run;
    tj_builder out;
    const tj_string *indent; /* of one level; NULL: everything on one line */
    tj_string between, colon;
    bool ascii, sort_keys;
} writer;

static bool put_escaped(writer *w, const tj_string *s)
{
    bool input = s->size > 0 && tj_mark(s, 0);

    if (!tj_put_text(w->run, &w->out, "\"", input))
        return false;
    for (size_t at = 0; at < s->size;) {
        static const char letters[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
        char escape[16] = "";
        uint32_t code = 0;
        size_t length = tr_utf8_decode(s->bytes + at, s->size - at, &code);
        assert(length > 0);
        const char *letter = code == 0 || code > 0x7F ? NULL : strchr(letters, (int)code);
        if (letter != NULL)
            snprintf(escape, sizeof(escape), "\\%c", names[letter - letters]);
        else if (code < 0x20 || (w->ascii && code > 0x7E && code < 0x10000))
            snprintf(escape, sizeof(escape), "\\u%04x", code);
        else if (w->ascii && code >= 0x10000)
            snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xD7C0 + (code >> 10),
                     0xDC00 + (code & 0x3FF));
        input = tj_mark(s, at);
        if (escape[0] != '\0' ? !tj_put_text(w->run, &w->out, escape, input)
                              : !tj_put(w->run, &w->out, s->bytes + at, length, input))
            return false;
        at += length;
    }
    return tj_put_text(w->run, &w->out, "\"", input);
}

static bool put_number(writer *w, tj_value v)
{
    char text[32];

    if (v.kind == TJ_BOOL)
        return tj_put_text(w->run, &w->out, v.as.truth ? "true" : "false", v.input);
    if (v.kind == TJ_INT) {
        snprintf(text, sizeof(text), "%lld", (long long)v.as.integer);
        return tj_put_text(w->run, &w->out, text, v.input);
    }
    if (isnan(v.as.real))
        return tj_put_text(w->run, &w->out, "NaN", v.input);
    if (isinf(v.as.real))
        return tj_put_text(w->run, &w->out, v.as.real < 0 ? "-Infinity" : "Infinity", v.input);
    return tj_put_float(w->run, &w->out, v.as.real, v.input);
}

static bool put_line(writer *w, uint32_t depth, bool input)
{
    if (w->indent == NULL)
        return true;
    if (!tj_put_text(w->run, &w->out, "\n", input))
        return false;
    for (uint32_t i = 0; i < depth; i++)
        if (!tj_put(w->run, &w->out, w->indent->bytes, w->indent->size, input))
            return false;
    return true;
}

static bool put_separator(writer *w, const tj_string *separator, bool input)
{
    return tj_put(w->run, &w->out, separator->bytes, separator->size, input);
}

static bool put_json(writer *w, tj_value v, uint32_t depth);

static bool put_array(writer *w, tj_value v, uint32_t depth)
{
    const tj_list *list = v.as.list;

    if (list->count == 0)
        return tj_put_text(w->run, &w->out, "[]", v.input);
    if (!tj_put_text(w->run, &w->out, "[", v.input))
        return false;
    for (size_t i = 0; i < list->count; i++)
        if ((i > 0 && !put_separator(w, &w->between, v.input)) ||
            !put_line(w, depth + 1, v.input) || !put_json(w, list->items[i], depth + 1))
            return false;
    return put_line(w, depth, v.input) && tj_put_text(w->run, &w->out, "]", v.input);
}

/* Keys become strings: true, 1, 1.5 and null are written as JSON writes them. */
static bool put_key(writer *w, tj_value key)
{
    if (key.kind == TJ_STRING)
        return put_escaped(w, key.as.string);
    if (!tj_is_number(key) && key.kind != TJ_NONE)
        return tj_fail(w->run, "keys must be str, int, float, bool or None, not %s",
                       tj_type_name(key));
    return tj_put_text(w->run, &w->out, "\"", key.input) &&
           (key.kind == TJ_NONE ? tj_put_text(w->run, &w->out, "null", key.input)
                                : put_number(w, key)) &&
           tj_put_text(w->run, &w->out, "\"", key.input);
}

/* An order of the pairs by key, found by insertion: objects in templates are small, and each step
 * is charged. */
static bool sorted_pairs(writer *w, const tj_dict *dict, const tj_pair ***out)
{
    const tj_pair **order = tj_take(w->run, (dict->count + 1) * sizeof(*order));

    if (order == NULL)
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        for (; at > 0; at--) {
            int compared;
            if (!tj_compare(w->run, dict->pairs[i].key, order[at - 1]->key, &compared))
                return false;
            if (compared >= 0)
                break;
            order[at] = order[at - 1];
        }
        order[at] = &dict->pairs[i];
    }
    *out = order;
    return true;
}

static bool put_object(writer *w, tj_value v, uint32_t depth)
{
    const tj_dict *dict = v.as.dict;
    const tj_pair **order = NULL;

    if (dict->count == 0)
        return tj_put_text(w->run, &w->out, "{}", v.input);
    if ((w->sort_keys && !sorted_pairs(w, dict, &order)) ||
        !tj_put_text(w->run, &w->out, "{", v.input))
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        const tj_pair *pair = order != NULL ? order[i] : &dict->pairs[i];
        if ((i > 0 && !put_separator(w, &w->between, v.input)) ||
            !put_line(w, depth + 1, v.input) || !put_key(w, pair->key) ||
            !put_separator(w, &w->colon, v.input) || !put_json(w, pair->value, depth + 1))
            return false;
    }
    return put_line(w, depth, v.input) && tj_put_text(w->run, &w->out, "}", v.input);
}

static bool put_json(writer *w, tj_value v, uint32_t depth)
{
    if (depth > TJ_DEPTH_MAX)
        return tj_fail(w->run, "values nested more than %u deep", TJ_DEPTH_MAX);
    if (!tj_charge(w->run, 1))
        return false;
    switch ((tj_kind)v.kind) {
    case TJ_NONE:
        return tj_put_text(w->run, &w->out, "null", v.input);
    case TJ_BOOL:
    case TJ_INT:
    case TJ_FLOAT:
        return put_number(w, v);
    case TJ_STRING:
        return put_escaped(w, v.as.string);
    case TJ_LIST:
    case TJ_TUPLE:
        return put_array(w, v, depth);
    case TJ_DICT:
        return put_object(w, v, depth);
    case TJ_UNDEFINED:
    case TJ_NAMESPACE:
    case TJ_ITERATOR:
    case TJ_LOOP:
    case TJ_CALLABLE:
        break;
    }
    return tj_fail(w->run, "Object of type %s is not JSON serializable", tj_type_name(v));
}

/* indent: a number of spaces or a string. */
static bool read_indent(tj_call *c, writer *w, tj_string *spaces)
{
    static const char blanks[] = "                                                                ";
    int64_t width;

    if (c->given[1] && c->arg[1].kind == TJ_STRING) {
        w->indent = c->arg[1].as.string;
        return true;
    }
    if (!c->given[1] || c->arg[1].kind == TJ_NONE)
        return true;
    if (!tj_arg_integer(c, 1, 0, &width))
        return false;
    if (width > (int64_t)sizeof(blanks) - 1)
        return tj_fail(c->run, "tojson indents by at most %zu", sizeof(blanks) - 1);
    *spaces = (tj_string){.bytes = blanks, .size = width < 0 ? 0 : (size_t)width};
    w->indent = spaces;
    return true;
}

bool tj_filter_tojson(tj_call *c)
{
    tj_string spaces;
    writer w = {.run = c->run,
                .ascii = tj_arg_truth(c, 0, false),
                .sort_keys = tj_arg_truth(c, 3, false),
                .colon = {.bytes = ": ", .size = 2}};

    if (!read_indent(c, &w, &spaces))
        return false;
    w.between = (tj_string){.bytes = ", ", .size = w.indent == NULL ? 2 : 1};
    if (c->given[2] && c->arg[2].kind != TJ_NONE) {
        tj_value pair = c->arg[2];
        if ((pair.kind != TJ_TUPLE && pair.kind != TJ_LIST) || pair.as.list->count != 2 ||
            pair.as.list->items[0].kind != TJ_STRING || pair.as.list->items[1].kind != TJ_STRING)
            return tj_fail(c->run, "tojson takes two strings as separators");
        w.between = *pair.as.list->items[0].as.string;
        w.colon = *pair.as.list->items[1].as.string;
    }
    return put_json(&w, c->self, 0) && tj_built(c->run, &w.out, c->out);
}
