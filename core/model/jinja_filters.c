/* jinja_filters.c - filters over one value, and the table of all filters. Those that walk over
 * sequences are in jinja_sequences.c. */
#include "core/model/jinja_filters.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/tokenizer_utf8.h"

/* ---- strings ---- */

static bool filter_upper(tj_call *c)
{
    const tj_string *s;
    return tj_self_text(c, &s) && tj_change_case(c->run, s, true, c->out);
}

static bool filter_lower(tj_call *c)
{
    const tj_string *s;
    return tj_self_text(c, &s) && tj_change_case(c->run, s, false, c->out);
}

static bool filter_capitalize(tj_call *c)
{
    const tj_string *s;
    return tj_self_text(c, &s) && tj_capitalize(c->run, s, c->out);
}

static bool begins_word(uint32_t code)
{
    return tj_is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' ||
           code == '<';
}

/* Words begin behind white space, hyphens and opening brackets, as Jinja has it. */
static bool filter_title(tj_call *c)
{
    const tj_string *s;
    size_t start = 0;
    tj_builder b = {0};

    if (!tj_self_text(c, &s))
        return false;
    for (size_t at = 0; at <= s->size;) {
        uint32_t code = ' ';
        size_t length = at < s->size ? tr_utf8_decode(s->bytes + at, s->size - at, &code) : 1;
        if (at == s->size || begins_word(code)) {
            tj_value word, changed;
            if (!tj_string_cut(c->run, s, start, at, &word) ||
                !tj_capitalize(c->run, word.as.string, &changed) ||
                !tj_put_string(c->run, &b, changed.as.string) ||
                (at < s->size && !tj_put_part(c->run, &b, s, at, at + length)))
                return false;
            start = at + length;
        }
        at += length;
    }
    return tj_built(c->run, &b, c->out);
}

static bool filter_trim(tj_call *c)
{
    const tj_string *s, *chars;

    return tj_self_text(c, &s) && tj_arg_string(c, 0, &chars) &&
           tj_strip(c->run, s, chars, true, true, c->out);
}

static bool filter_replace(tj_call *c)
{
    const tj_string *s, *old, *with;
    int64_t count;

    if (!tj_self_text(c, &s) || !tj_to_string(c->run, c->arg[0], &old) ||
        !tj_to_string(c->run, c->arg[1], &with) || !tj_arg_integer(c, 2, -1, &count))
        return false;
    return tj_replace(c->run, s, old, with, count, c->out);
}

static bool filter_string(tj_call *c)
{
    const tj_string *s;

    if (!tj_self_text(c, &s))
        return false;
    *c->out = (tj_value){.kind = TJ_STRING, .as.string = s};
    return true;
}

static bool filter_escape(tj_call *c)
{
    static const struct {
        char character;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    const tj_string *s;
    tj_builder b = {0};

    if (!tj_self_text(c, &s))
        return false;
    for (size_t at = 0; at < s->size; at++) {
        const char *entity = NULL;
        for (size_t i = 0; i < sizeof(entities) / sizeof(entities[0]); i++)
            if (s->bytes[at] == entities[i].character)
                entity = entities[i].entity;
        if (entity != NULL ? !tj_put_text(c->run, &b, entity, tj_mark(s, at))
                           : !tj_put_part(c->run, &b, s, at, at + 1))
            return false;
    }
    return tj_charge_bytes(c->run, s->size) && tj_built(c->run, &b, c->out);
}

/* All lines but the first (first: also that) are indented; empty ones only if blank says so. Line
 * ends of all sorts become newlines, as in Jinja. */
static bool filter_indent(tj_call *c)
{
    static const char blanks[] = "                                                                ";
    static const tj_string splitlines = {.bytes = "splitlines", .size = 10};
    const tj_string *s;
    tj_string spaces = {.bytes = blanks, .size = 4};
    bool first = tj_arg_truth(c, 1, false), blank = tj_arg_truth(c, 2, false);
    int64_t width = 4;
    tj_value lines, text;
    tj_builder b = {0};

    if (c->self.kind == TJ_UNDEFINED)
        return tj_fail_undefined(c->run, c->self);
    if (c->self.kind != TJ_STRING)
        return tj_fail(c->run, "indent takes a str, not %s", tj_type_name(c->self));
    s = c->self.as.string;
    if (c->given[0] && c->arg[0].kind == TJ_STRING)
        spaces = *c->arg[0].as.string;
    else if (!tj_arg_integer(c, 0, 4, &width))
        return false;
    else if (width > (int64_t)sizeof(blanks) - 1)
        return tj_fail(c->run, "indent takes at most %zu", sizeof(blanks) - 1);
    else
        spaces.size = width < 0 ? 0 : (size_t)width;

    /* A newline at the end, so that the text behind the last one counts as a line. */
    if (!tj_put_string(c->run, &b, s) || !tj_put_text(c->run, &b, "\n", false) ||
        !tj_built(c->run, &b, &text) ||
        !tj_call_builtin(c->run, tj_find_method(TJ_STRING, &splitlines), text, &(tj_arguments){0},
                         &lines))
        return false;
    b = (tj_builder){0};
    for (size_t i = 0; i < lines.as.list->count; i++) {
        const tj_string *line = lines.as.list->items[i].as.string;
        bool indented = i == 0 ? first : blank || line->size > 0;
        /* Lines are parts of text: the byte before one is the line end that it follows. */
        size_t start = (size_t)(line->bytes - text.as.string->bytes);
        if ((i > 0 && !tj_put_text(c->run, &b, "\n", tj_mark(text.as.string, start - 1))) ||
            (indented && !tj_put_string(c->run, &b, &spaces)) || !tj_put_string(c->run, &b, line))
            return false;
    }
    return tj_built(c->run, &b, c->out);
}

/* ---- numbers ---- */

static bool filter_abs(tj_call *c)
{
    if (!tj_is_number(c->self))
        return tj_fail(c->run, "bad operand type for abs(): '%s'", tj_type_name(c->self));
    *c->out = c->self;
    if (c->self.kind == TJ_FLOAT)
        c->out->as.real = fabs(c->self.as.real);
    else if (c->self.kind == TJ_BOOL)
        *c->out = tj_int(c->self.as.truth);
    else if (c->self.as.integer == INT64_MIN)
        return tj_fail(c->run, "a number beyond 64 bits");
    else
        c->out->as.integer = c->self.as.integer < 0 ? -c->self.as.integer : c->self.as.integer;
    return true;
}

/* A string as a number: white space around it is allowed, nothing else. */
static bool parse_number(const tj_string *s, bool real, int base, tj_value *out)
{
    char text[64], *end;
    size_t start = 0, stop = s->size;

    while (start < stop && tj_is_space((unsigned char)s->bytes[start]))
        start++;
    while (stop > start && tj_is_space((unsigned char)s->bytes[stop - 1]))
        stop--;
    if (stop == start || stop - start >= sizeof(text))
        return false;
    memcpy(text, s->bytes + start, stop - start);
    text[stop - start] = '\0';
    if (strlen(text) != stop - start || strpbrk(text, real ? "xXpP_" : "_ ") != NULL)
        return false;
    errno = 0;
    if (real)
        *out = tj_float(strtod(text, &end));
    else
        *out = tj_int(strtoll(text, &end, base));
    return *end == '\0' && (real || errno == 0);
}

/* The number, or the default when the value is none. Reals are cut towards zero. */
static bool filter_int(tj_call *c)
{
    int64_t base;
    tj_value real;

    if (!tj_arg_integer(c, 1, 10, &base))
        return false;
    if (base < 2 || base > 36)
        return tj_fail(c->run, "int() base must be >= 2 and <= 36");
    *c->out = c->given[0] ? c->arg[0] : tj_int(0);
    if (c->self.kind == TJ_UNDEFINED)
        return tj_fail_undefined(c->run, c->self);
    if (c->self.kind == TJ_STRING) {
        if (!parse_number(c->self.as.string, false, (int)base, &real) &&
            (!parse_number(c->self.as.string, true, 10, &real)))
            return true;
    } else if (tj_is_number(c->self)) {
        real = c->self;
    } else {
        return true;
    }
    if (real.kind == TJ_FLOAT) {
        /* 2^63 is the first double that is too large. */
        if (!(fabs(real.as.real) < 9223372036854775808.0))
            return isnan(real.as.real) || isinf(real.as.real)
                       ? true
                       : tj_fail(c->run, "a number beyond 64 bits");
        *c->out = tj_int((int64_t)real.as.real);
    } else {
        *c->out = real.kind == TJ_BOOL ? tj_int(real.as.truth) : real;
    }
    c->out->input = c->self.kind == TJ_STRING ? c->self.as.string->input : c->self.input;
    return true;
}

static bool filter_float(tj_call *c)
{
    tj_value real;

    *c->out = c->given[0] ? c->arg[0] : tj_float(0);
    if (c->self.kind == TJ_UNDEFINED)
        return tj_fail_undefined(c->run, c->self);
    if (c->self.kind == TJ_STRING && parse_number(c->self.as.string, true, 10, &real))
        *c->out = real;
    else if (tj_is_number(c->self))
        *c->out = tj_float(tj_to_double(c->self));
    return true;
}

/* common: to the nearest, ties to even as Python's round does; ceil; floor. */
static bool filter_round(tj_call *c)
{
    int64_t precision;
    const tj_string *method;
    char text[400];

    if (!tj_arg_integer(c, 0, 0, &precision) || !tj_arg_string(c, 1, &method))
        return false;
    if (!tj_is_number(c->self))
        return tj_fail(c->run, "type %s has no round", tj_type_name(c->self));
    if (precision < 0 || precision > 15)
        return tj_fail(c->run, "round takes a precision of 0 to 15");
    double value = tj_to_double(c->self);
    if (method == NULL || tj_string_is(method, "common")) {
        if (c->self.kind != TJ_FLOAT) {
            *c->out = c->self.kind == TJ_BOOL ? tj_int(c->self.as.truth) : c->self;
            return true;
        }
        snprintf(text, sizeof(text), "%.*f", (int)precision, value); /* rounds exactly */
        *c->out = tj_float(strtod(text, NULL));
        return true;
    }
    double factor = pow(10, (double)precision);
    if (tj_string_is(method, "ceil"))
        *c->out = tj_float(ceil(value * factor) / factor);
    else if (tj_string_is(method, "floor"))
        *c->out = tj_float(floor(value * factor) / factor);
    else
        return tj_fail(c->run, "method must be common, ceil or floor");
    return true;
}

/* ---- any value ---- */

static bool filter_default(tj_call *c)
{
    bool falsy = tj_arg_truth(c, 1, false);

    if (c->self.kind != TJ_UNDEFINED && (!falsy || tj_truth(c->self))) {
        *c->out = c->self;
        return true;
    }
    if (!c->given[0])
        return tj_text(c->run, "", c->out);
    *c->out = c->arg[0];
    return true;
}

static bool filter_length(tj_call *c)
{
    size_t length;

    if (!tj_length(c->run, c->self, &length))
        return false;
    *c->out = tj_int((int64_t)length);
    return true;
}

/* Only what is an attribute, not an entry of a dict. */
static bool filter_attr(tj_call *c)
{
    const tj_string *name;

    if (!tj_arg_string(c, 0, &name))
        return false;
    if (name == NULL)
        return tj_fail(c->run, "attr takes a name");
    if (c->self.kind == TJ_DICT && tj_find_method(TJ_DICT, name) == NULL) {
        *c->out = (tj_value){.kind = TJ_UNDEFINED, .owner = TJ_DICT, .as.string = name};
        return true;
    }
    return tj_get_attribute(c->run, c->self, name, c->out);
}

const tj_builtin *tj_find_filter(const tj_string *name)
{
    static const tj_builtin filters[] = {
        {"abs", "", 0, filter_abs},
        {"attr", "name", 1, filter_attr},
        {"capitalize", "", 0, filter_capitalize},
        {"count", "", 0, filter_length},
        {"d", "default_value boolean", 0, filter_default},
        {"default", "default_value boolean", 0, filter_default},
        {"dictsort", "case_sensitive by reverse", 0, tj_filter_dictsort},
        {"e", "", 0, filter_escape},
        {"escape", "", 0, filter_escape},
        {"first", "", 0, tj_filter_first},
        {"float", "default", 0, filter_float},
        {"indent", "width first blank", 0, filter_indent},
        {"int", "default base", 0, filter_int},
        {"items", "", 0, tj_filter_items},
        {"join", "d attribute", 0, tj_filter_join},
        {"last", "", 0, tj_filter_last},
        {"length", "", 0, filter_length},
        {"list", "", 0, tj_filter_list},
        {"lower", "", 0, filter_lower},
        {"map", NULL, 0, tj_filter_map},
        {"max", "case_sensitive attribute", 0, tj_filter_max},
        {"min", "case_sensitive attribute", 0, tj_filter_min},
        {"reject", NULL, 0, tj_filter_reject},
        {"rejectattr", NULL, 0, tj_filter_rejectattr},
        {"replace", "old new count", 2, filter_replace},
        {"reverse", "", 0, tj_filter_reverse},
        {"round", "precision method", 0, filter_round},
        {"safe", "", 0, filter_string},
        {"select", NULL, 0, tj_filter_select},
        {"selectattr", NULL, 0, tj_filter_selectattr},
        {"sort", "reverse case_sensitive attribute", 0, tj_filter_sort},
        {"string", "", 0, filter_string},
        {"sum", "attribute start", 0, tj_filter_sum},
        {"title", "", 0, filter_title},
        {"tojson", "ensure_ascii indent separators sort_keys", 0, tj_filter_tojson},
        {"trim", "chars", 0, filter_trim},
        {"unique", "case_sensitive attribute", 0, tj_filter_unique},
        {"upper", "", 0, filter_upper},
    };

    return tj_find_builtin(filters, sizeof(filters) / sizeof(filters[0]), name);
}
