/* jinja_builtins.c - calling filters, tests, methods and functions, and what they share: elements,
 * lengths, containment, attribute paths; the functions themselves (range, namespace, ...). */
#include "core/model/jinja_builtins.h"

#include "core/model/jinja_eval.h"
#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- finding and binding ---- */

const tj_builtin *tj_find_builtin(const tj_builtin *rows, size_t count, const tj_string *name)
{
    for (size_t i = 0; i < count; i++)
        if (tj_string_is(name, rows[i].name))
            return &rows[i];
    return NULL;
}

/* Position of a name in "a b c", SIZE_MAX when it is not there; *count: how many there are. */
static size_t parameter_index(const char *params, const tj_string *name, size_t *count)
{
    size_t index = SIZE_MAX;

    *count = 0;
    while (*params != '\0') {
        size_t length = strcspn(params, " ");
        if (name != NULL && name->size == length && memcmp(name->bytes, params, length) == 0)
            index = *count;
        (*count)++;
        params += length + (params[length] == ' ');
    }
    return index;
}

static bool bind(tj_call *c, const tj_builtin *builtin)
{
    size_t count;

    parameter_index(builtin->params, NULL, &count);
    assert(count <= TJ_PARAMS_MAX);
    for (size_t i = 0; i < c->arguments.count; i++) {
        const tj_argument *argument = &c->arguments.items[i];
        size_t index = i;
        if (argument->keyword != NULL) {
            index = parameter_index(builtin->params, argument->keyword, &count);
            if (index == SIZE_MAX)
                return tj_fail(c->run, "%s has no parameter '%.*s'", builtin->name,
                               (int)(argument->keyword->size > 40 ? 40 : argument->keyword->size),
                               argument->keyword->bytes);
        }
        if (index >= count)
            return tj_fail(c->run, "%s takes at most %zu arguments", builtin->name, count);
        if (c->given[index])
            return tj_fail(c->run, "%s gets an argument twice", builtin->name);
        c->arg[index] = argument->value;
        c->given[index] = true;
    }
    for (size_t i = 0; i < builtin->required; i++)
        if (!c->given[i])
            return tj_fail(c->run, "%s needs %u arguments", builtin->name, builtin->required);
    return true;
}

bool tj_call_builtin(tj_run *run, const tj_builtin *builtin, tj_value self,
                     const tj_arguments *arguments, tj_value *out)
{
    tj_value result = tj_none();
    tj_call c = {
        .run = run, .name = builtin->name, .self = self, .arguments = *arguments, .out = &result};

    if (!tj_charge(run, 1) || (builtin->params != NULL && !bind(&c, builtin)))
        return false;
    if (run->nesting == TJ_NESTING_MAX) /* map can call map */
        return tj_fail(run, "evaluation nested more than %u deep", TJ_NESTING_MAX);
    run->nesting++;
    bool done = builtin->call(&c);
    run->nesting--;
    if (done)
        *out = result;
    return done;
}

bool tj_arg_string(tj_call *c, size_t i, const tj_string **s)
{
    *s = NULL;
    if (!c->given[i] || c->arg[i].kind == TJ_NONE)
        return true;
    if (c->arg[i].kind == TJ_UNDEFINED)
        return tj_fail_undefined(c->run, c->arg[i]);
    if (c->arg[i].kind != TJ_STRING)
        return tj_fail(c->run, "argument %zu of %s is a %s, expected a str", i + 1, c->name,
                       tj_type_name(c->arg[i]));
    *s = c->arg[i].as.string;
    return true;
}

bool tj_arg_integer(tj_call *c, size_t i, int64_t fallback, int64_t *integer)
{
    *integer = fallback;
    if (!c->given[i] || c->arg[i].kind == TJ_NONE)
        return true;
    if (c->arg[i].kind == TJ_UNDEFINED)
        return tj_fail_undefined(c->run, c->arg[i]);
    if (c->arg[i].kind != TJ_INT && c->arg[i].kind != TJ_BOOL)
        return tj_fail(c->run, "argument %zu of %s is a %s, expected an int", i + 1, c->name,
                       tj_type_name(c->arg[i]));
    *integer = c->arg[i].kind == TJ_INT ? c->arg[i].as.integer : c->arg[i].as.truth;
    return true;
}

bool tj_arg_truth(const tj_call *c, size_t i, bool fallback)
{
    return c->given[i] ? tj_truth(c->arg[i]) : fallback;
}

bool tj_self_text(tj_call *c, const tj_string **s)
{
    return tj_to_string(c->run, c->self, s);
}

/* ---- elements, lengths, containment ---- */

static bool string_elements(tj_run *run, const tj_string *s, tj_list *list)
{
    for (size_t at = 0; at < s->size;) {
        uint32_t code;
        tj_value character;
        size_t length = tr_utf8_decode(s->bytes + at, s->size - at, &code);
        assert(length > 0);
        if (!tj_string_cut(run, s, at, at + length, &character) ||
            !tj_list_push(run, list, character))
            return false;
        at += length;
    }
    return true;
}

bool tj_elements(tj_run *run, tj_value v, const tj_list **out)
{
    tj_value made;

    if (v.kind == TJ_LIST || v.kind == TJ_TUPLE) {
        *out = v.as.list;
        return true;
    }
    if (!tj_list_make(run, TJ_LIST, 0, &made))
        return false;
    *out = made.as.list;
    switch ((tj_kind)v.kind) {
    case TJ_UNDEFINED:
        return true;
    case TJ_STRING:
        return string_elements(run, v.as.string, made.as.list);
    case TJ_DICT:
        for (size_t i = 0; i < v.as.dict->count; i++)
            if (!tj_list_push(run, made.as.list, v.as.dict->pairs[i].key))
                return false;
        return true;
    case TJ_ITERATOR:
        for (; v.as.list->next < v.as.list->count; v.as.list->next++)
            if (!tj_list_push(run, made.as.list, v.as.list->items[v.as.list->next]))
                return false;
        return true;
    default:
        return tj_fail(run, "'%s' object is not iterable", tj_type_name(v));
    }
}

bool tj_length(tj_run *run, tj_value v, size_t *length)
{
    switch ((tj_kind)v.kind) {
    case TJ_UNDEFINED:
        *length = 0;
        return true;
    case TJ_STRING:
        *length = tj_string_chars(v.as.string);
        return tj_charge_bytes(run, v.as.string->size);
    case TJ_LIST:
    case TJ_TUPLE:
        *length = v.as.list->count;
        return true;
    case TJ_DICT:
        *length = v.as.dict->count;
        return true;
    case TJ_LOOP:
        *length = v.as.loop->items->count;
        return true;
    default:
        return tj_fail(run, "object of type '%s' has no length", tj_type_name(v));
    }
}

bool tj_contains(tj_run *run, tj_value container, tj_value item, bool *contains)
{
    const tj_list *items;
    const tj_value *found;

    *contains = false;
    if (container.kind == TJ_STRING) {
        if (item.kind == TJ_UNDEFINED)
            return tj_fail_undefined(run, item);
        if (item.kind != TJ_STRING)
            return tj_fail(run, "'in <string>' requires string as left operand, not %s",
                           tj_type_name(item));
        const tj_string *s = container.as.string;
        *contains = tj_string_find(s, item.as.string, 0, s->size, false) != SIZE_MAX;
        return tj_charge_bytes(run, s->size);
    }
    if (container.kind == TJ_DICT) {
        if (item.kind == TJ_LIST || item.kind == TJ_DICT)
            return tj_fail(run, "unhashable type: '%s'", tj_type_name(item));
        if (!tj_dict_find(run, container.as.dict, item, &found))
            return false;
        *contains = found != NULL;
        return true;
    }
    if (!tj_elements(run, container, &items))
        return false;
    for (size_t i = 0; i < items->count && !*contains; i++)
        if (!tj_equal(run, items->items[i], item, contains))
            return false;
    return true;
}

bool tj_get_path(tj_run *run, tj_value v, tj_value path, tj_value *out)
{
    *out = v;
    if (path.kind != TJ_STRING)
        return tj_get_item(run, v, path, out);
    const tj_string *s = path.as.string;
    for (size_t start = 0; start <= s->size;) {
        const char *dot = s->size == start ? NULL : memchr(s->bytes + start, '.', s->size - start);
        size_t end = dot == NULL ? s->size : (size_t)(dot - s->bytes);
        int64_t index = 0;
        bool digits = end > start && end - start < 10;
        for (size_t i = start; i < end && digits; i++) {
            digits = s->bytes[i] >= '0' && s->bytes[i] <= '9';
            index = index * 10 + (s->bytes[i] - '0');
        }
        tj_value key = tj_int(index);
        if ((!digits && !tj_string_cut(run, s, start, end, &key)) ||
            !tj_get_item(run, *out, key, out))
            return false;
        start = end + 1;
    }
    return true;
}

/* ---- functions ---- */

static bool call_range(tj_call *c)
{
    int64_t start = 0, stop, step;

    if (!tj_arg_integer(c, 0, 0, &stop) || !tj_arg_integer(c, 2, 1, &step))
        return false;
    if (c->given[1]) {
        start = stop;
        if (!tj_arg_integer(c, 1, 0, &stop))
            return false;
    }
    if (step == 0)
        return tj_fail(c->run, "range() arg 3 must not be zero");
    /* In long double the distance cannot overflow. */
    long double count = ((long double)stop - (long double)start) / (long double)step;
    if (count > TJ_RANGE_MAX)
        return tj_fail(c->run, "range too big: more than %d elements", TJ_RANGE_MAX);
    if (!tj_list_make(c->run, TJ_LIST, 0, c->out))
        return false;
    for (int64_t n = 0; n < count; n++)
        if (!tj_list_push(c->run, c->out->as.list, tj_int(start + n * step)))
            return false;
    return true;
}

/* namespace(a=1) and dict(a=1), both also from a dict. */
static bool collect(tj_call *c, tj_kind kind)
{
    if (!tj_dict_make(c->run, kind, 0, c->out))
        return false;
    for (size_t i = 0; i < c->arguments.count; i++) {
        const tj_argument *argument = &c->arguments.items[i];
        tj_value key = {.kind = TJ_STRING, .as.string = argument->keyword};
        if (argument->keyword != NULL) {
            if (!tj_dict_set(c->run, c->out->as.dict, key, argument->value))
                return false;
            continue;
        }
        if (argument->value.kind != TJ_DICT || i > 0)
            return tj_fail(c->run, "%s takes one dict and keywords", c->name);
        const tj_dict *from = argument->value.as.dict;
        for (size_t k = 0; k < from->count; k++)
            if (!tj_dict_set(c->run, c->out->as.dict, from->pairs[k].key, from->pairs[k].value))
                return false;
    }
    return true;
}

static bool call_namespace(tj_call *c)
{
    return collect(c, TJ_NAMESPACE);
}

static bool call_dict(tj_call *c)
{
    return collect(c, TJ_DICT);
}

static bool call_raise_exception(tj_call *c)
{
    const tj_string *message;

    if (!tj_to_string(c->run, c->arg[0], &message))
        return false;
    return tj_fail_plain(c->run, message->bytes, message->size);
}

static bool call_strftime_now(tj_call *c)
{
    char format[128], text[512];
    const tj_string *s;
    time_t now = (time_t)c->run->now_s;
    tj_builder b = {0};
    struct tm local;

    if (!tj_arg_string(c, 0, &s))
        return false;
    if (s == NULL || s->size >= sizeof(format) || memchr(s->bytes, '\0', s->size) != NULL)
        return tj_fail(c->run, "strftime_now takes a format of less than %zu bytes",
                       sizeof(format));
    memcpy(format, s->bytes, s->size);
    format[s->size] = '\0';
    if (localtime_r(&now, &local) == NULL)
        return tj_fail(c->run, "strftime_now: the clock is out of range");
    size_t size = s->size == 0 ? 0 : strftime(text, sizeof(text), format, &local);
    return tj_put(c->run, &b, text, size, false) && tj_built(c->run, &b, c->out);
}

const tj_builtin *tj_find_function(const tj_string *name)
{
    static const tj_builtin functions[] = {
        {"range", "start stop step", 1, call_range},
        {"namespace", NULL, 0, call_namespace},
        {"dict", NULL, 0, call_dict},
        {"raise_exception", "message", 1, call_raise_exception},
        {"strftime_now", "format", 1, call_strftime_now},
    };

    return tj_find_builtin(functions, sizeof(functions) / sizeof(functions[0]), name);
}

/* ---- methods of loop ---- */

static bool call_cycle(tj_call *c)
{
    if (c->arguments.count == 0)
        return tj_fail(c->run, "loop.cycle needs arguments");
    *c->out = c->arguments.items[c->self.as.loop->index % c->arguments.count].value;
    return true;
}

static bool call_changed(tj_call *c)
{
    tj_loop *loop = c->self.as.loop;
    tj_value value;
    bool equal = false;

    if (!tj_list_make(c->run, TJ_TUPLE, 0, &value))
        return false;
    for (size_t i = 0; i < c->arguments.count; i++)
        if (!tj_list_push(c->run, value.as.list, c->arguments.items[i].value))
            return false;
    if (loop->changed_before && !tj_equal(c->run, loop->changed, value, &equal))
        return false;
    loop->changed_before = true;
    loop->changed = value;
    *c->out = tj_bool(!equal);
    return true;
}

const tj_builtin *tj_find_loop_method(const tj_string *name)
{
    static const tj_builtin methods[] = {
        {"cycle", NULL, 0, call_cycle},
        {"changed", NULL, 0, call_changed},
    };

    return tj_find_builtin(methods, sizeof(methods) / sizeof(methods[0]), name);
}
