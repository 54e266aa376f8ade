/* jinja_print.c - strings in the making, and values as Python's str() and repr() print them. */
#include "core/model/jinja_value.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool builder_reserve(tj_run *run, tj_builder *b, size_t size)
{
    if (size > TJ_STRING_BYTES_MAX - b->size)
        return tj_fail(run, "a string of more than %zu MiB", TJ_STRING_BYTES_MAX >> 20);
    if (b->size + size <= b->capacity)
        return true;
    size_t capacity = b->capacity == 0 ? 64 : 2 * b->capacity;
    while (capacity < b->size + size)
        capacity *= 2;
    char *bytes = tj_take(run, capacity);
    unsigned char *marks = b->marks == NULL ? NULL : tj_take(run, capacity);
    if (bytes == NULL || (b->marks != NULL && marks == NULL))
        return false;
    if (b->size > 0) {
        memcpy(bytes, b->bytes, b->size);
        if (marks != NULL)
            memcpy(marks, b->marks, b->size);
    }
    b->bytes = bytes;
    b->marks = marks;
    b->capacity = capacity;
    return true;
}

bool tj_put(tj_run *run, tj_builder *b, const char *bytes, size_t size, bool input)
{
    if (size == 0)
        return true;
    if (!builder_reserve(run, b, size))
        return false;
    if (b->size == 0)
        b->input = input;
    if (b->marks == NULL && b->input != input) {
        b->marks = tj_take(run, b->capacity);
        if (b->marks == NULL)
            return false;
        memset(b->marks, b->input, b->size);
    }
    memcpy(b->bytes + b->size, bytes, size);
    if (b->marks != NULL)
        memset(b->marks + b->size, input, size);
    b->size += size;
    return true;
}

bool tj_put_text(tj_run *run, tj_builder *b, const char *text, bool input)
{
    return tj_put(run, b, text, strlen(text), input);
}

bool tj_put_code(tj_run *run, tj_builder *b, uint32_t code, bool input)
{
    char bytes[4];
    return tj_put(run, b, bytes, tr_utf8_encode(code, bytes), input);
}

bool tj_put_part(tj_run *run, tj_builder *b, const tj_string *s, size_t start, size_t end)
{
    assert(start <= end);
    assert(end <= s->size);
    while (start < end) {
        size_t stop = end;
        bool input = tj_mark(s, start);
        if (s->marks != NULL) {
            const unsigned char *other = memchr(s->marks + start, !input, end - start);
            stop = other == NULL ? end : (size_t)(other - s->marks);
        }
        if (!tj_put(run, b, s->bytes + start, stop - start, input))
            return false;
        start = stop;
    }
    return true;
}

bool tj_put_string(tj_run *run, tj_builder *b, const tj_string *s)
{
    return tj_put_part(run, b, s, 0, s->size);
}

bool tj_built(tj_run *run, const tj_builder *b, tj_value *out)
{
    tj_string *s = tj_take(run, sizeof(*s));

    if (s == NULL)
        return false;
    *s = (tj_string){.bytes = b->size == 0 ? "" : b->bytes,
                     .marks = b->marks,
                     .size = b->size,
                     .input = b->input};
    *out = (tj_value){.kind = TJ_STRING, .as.string = s};
    return true;
}

/* The shortest digits that read back as the same double, laid out as Python does: an exponent
 * below 1e-4 and from 1e16 on. */
bool tj_put_float(tj_run *run, tj_builder *b, double real, bool input)
{
    char text[40], digits[32];
    int precision = 1;

    if (isnan(real))
        return tj_put_text(run, b, "nan", input);
    if (isinf(real))
        return tj_put_text(run, b, real < 0 ? "-inf" : "inf", input);
    do
        snprintf(text, sizeof(text), "%.*e", precision - 1, real);
    while (strtod(text, NULL) != real && ++precision <= 17);

    const char *e = strchr(text, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        snprintf(digits, sizeof(digits), "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return tj_put(run, b, text, (size_t)(e - text), input) &&
               tj_put_text(run, b, digits, input);
    }
    int decimals = precision - 1 - exponent;
    snprintf(text, sizeof(text), "%.*f", decimals < 1 ? 1 : decimals, real);
    return tj_put_text(run, b, text, input);
}

/* What str.isprintable() says of one character. */
static bool is_printable(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return code == ' ';
    default:
        return true;
    }
}

static bool put_string_repr(tj_run *run, tj_builder *b, const tj_string *s)
{
    bool single = memchr(s->bytes, '\'', s->size) != NULL;
    bool both = single && memchr(s->bytes, '"', s->size) != NULL;
    char quote = single && !both ? '"' : '\'';
    bool input = s->size > 0 && tj_mark(s, 0);

    if (!tj_put(run, b, &quote, 1, input))
        return false;
    for (size_t at = 0; at < s->size;) {
        uint32_t code = 0;
        char escape[16] = "";
        size_t length = tr_utf8_decode(s->bytes + at, s->size - at, &code);
        assert(length > 0);
        if (code == (uint32_t)quote || code == '\\')
            snprintf(escape, sizeof(escape), "\\%c", (int)code);
        else if (code == '\n' || code == '\r' || code == '\t')
            snprintf(escape, sizeof(escape), "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (!is_printable(code))
            snprintf(escape, sizeof(escape),
                     code < 0x100     ? "\\x%02x"
                     : code < 0x10000 ? "\\u%04x"
                                      : "\\U%08x",
                     code);
        input = tj_mark(s, at);
        if (escape[0] != '\0' ? !tj_put_text(run, b, escape, input)
                              : !tj_put(run, b, s->bytes + at, length, input))
            return false;
        at += length;
    }
    return tj_put(run, b, &quote, 1, input);
}

static bool put_value(tj_run *run, tj_builder *b, tj_value v, bool quoted, uint32_t depth);

static bool put_list(tj_run *run, tj_builder *b, tj_value v, uint32_t depth)
{
    const tj_list *list = v.as.list;
    bool tuple = v.kind == TJ_TUPLE;

    if (!tj_put_text(run, b, tuple ? "(" : "[", v.input))
        return false;
    for (size_t i = 0; i < list->count; i++)
        if ((i > 0 && !tj_put_text(run, b, ", ", v.input)) ||
            !put_value(run, b, list->items[i], true, depth + 1))
            return false;
    return tj_put_text(run, b, tuple ? (list->count == 1 ? ",)" : ")") : "]", v.input);
}

static bool put_dict(tj_run *run, tj_builder *b, tj_value v, uint32_t depth)
{
    const tj_dict *dict = v.as.dict;

    if (!tj_put_text(run, b, "{", v.input))
        return false;
    for (size_t i = 0; i < dict->count; i++)
        if ((i > 0 && !tj_put_text(run, b, ", ", v.input)) ||
            !put_value(run, b, dict->pairs[i].key, true, depth + 1) ||
            !tj_put_text(run, b, ": ", v.input) ||
            !put_value(run, b, dict->pairs[i].value, true, depth + 1))
            return false;
    return tj_put_text(run, b, "}", v.input);
}

static bool put_value(tj_run *run, tj_builder *b, tj_value v, bool quoted, uint32_t depth)
{
    char text[32];

    if (depth > TJ_DEPTH_MAX)
        return tj_fail(run, "values nested more than %u deep", TJ_DEPTH_MAX);
    if (!tj_charge(run, 1))
        return false;
    switch ((tj_kind)v.kind) {
    case TJ_UNDEFINED:
        return !quoted || tj_put_text(run, b, "Undefined", v.input);
    case TJ_NONE:
        return tj_put_text(run, b, "None", v.input);
    case TJ_BOOL:
        return tj_put_text(run, b, v.as.truth ? "True" : "False", v.input);
    case TJ_INT:
        snprintf(text, sizeof(text), "%lld", (long long)v.as.integer);
        return tj_put_text(run, b, text, v.input);
    case TJ_FLOAT:
        return tj_put_float(run, b, v.as.real, v.input);
    case TJ_STRING:
        return quoted ? put_string_repr(run, b, v.as.string) : tj_put_string(run, b, v.as.string);
    case TJ_LIST:
    case TJ_TUPLE:
        return put_list(run, b, v, depth);
    case TJ_DICT:
        return put_dict(run, b, v, depth);
    case TJ_NAMESPACE:
    case TJ_ITERATOR:
    case TJ_LOOP:
    case TJ_CALLABLE:
        break;
    }
    return tj_fail(run, "a %s cannot be printed", tj_type_name(v));
}

bool tj_put_str(tj_run *run, tj_builder *b, tj_value v)
{
    return put_value(run, b, v, false, 0);
}

bool tj_put_repr(tj_run *run, tj_builder *b, tj_value v)
{
    return put_value(run, b, v, true, 0);
}

bool tj_to_string(tj_run *run, tj_value v, const tj_string **out)
{
    tj_builder b = {0};
    tj_value built;

    if (v.kind != TJ_STRING) {
        if (!tj_put_str(run, &b, v) || !tj_built(run, &b, &built))
            return false;
        v = built;
    }
    *out = v.as.string;
    return true;
}
