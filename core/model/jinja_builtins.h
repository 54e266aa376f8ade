/* jinja_builtins.h - filters, tests, methods and functions: how they are declared and called.
 *
 * To add one: write its function and its row in the table of its file. The row names its
 * parameters, so that positions and keywords are bound in one place. */
#ifndef TR_CORE_MODEL_JINJA_BUILTINS_H
#define TR_CORE_MODEL_JINJA_BUILTINS_H

#include "core/model/jinja_value.h"

#define TJ_PARAMS_MAX 6

/* Arguments as they were written. */
typedef struct {
    const tj_string *keyword; /* NULL: positional */
    tj_value value;
} tj_argument;

typedef struct {
    const tj_argument *items;
    size_t count;
} tj_arguments;

typedef struct {
    tj_run *run;
    const char *name;
    tj_value self;               /* what a filter, test or method is applied to */
    tj_value arg[TJ_PARAMS_MAX]; /* bound to the parameters */
    bool given[TJ_PARAMS_MAX];
    tj_arguments arguments; /* for those that bind their own */
    tj_value *out;
} tj_call;

typedef struct tj_builtin {
    const char *name;
    const char *params; /* names between single spaces; NULL: binds its own arguments */
    uint32_t required;  /* the first so many must be given */
    bool (*call)(tj_call *c);
} tj_builtin;

/* NULL when there is none. */
const tj_builtin *tj_find_filter(const tj_string *name);
const tj_builtin *tj_find_test(const tj_string *name);
const tj_builtin *tj_find_function(const tj_string *name);
const tj_builtin *tj_find_method(tj_kind kind, const tj_string *name);
const tj_builtin *tj_find_loop_method(const tj_string *name);

/* The row with this name among count, NULL when there is none. */
const tj_builtin *tj_find_builtin(const tj_builtin *rows, size_t count, const tj_string *name);

/* Binds arguments and calls. */
bool tj_call_builtin(tj_run *run, const tj_builtin *builtin, tj_value self,
                     const tj_arguments *arguments, tj_value *out);

/* Argument i as a string, integer or truth; an error that names the parameter's type. When it was
 * not given the fallback (NULL for strings: an error cannot happen, *s becomes NULL). */
bool tj_arg_string(tj_call *c, size_t i, const tj_string **s);
bool tj_arg_integer(tj_call *c, size_t i, int64_t fallback, int64_t *integer);
bool tj_arg_truth(const tj_call *c, size_t i, bool fallback);

/* self as a string: strings as they are, other values as str() prints them. */
bool tj_self_text(tj_call *c, const tj_string **s);

/* ---- what several files need ---- */

/* All elements of an iterable as a list: characters of a string, keys of a dict; an iterator is
 * used up. Undefined gives none. */
bool tj_elements(tj_run *run, tj_value v, const tj_list **out);

/* len(); an error for what has none. */
bool tj_length(tj_run *run, tj_value v, size_t *length);

/* v.name and v[key]: undefined when there is no such thing, an error when v is undefined. */
bool tj_get_attribute(tj_run *run, tj_value v, const tj_string *name, tj_value *out);
bool tj_get_item(tj_run *run, tj_value v, tj_value key, tj_value *out);

/* "a.b.0" as map, sort and their like take it. */
bool tj_get_path(tj_run *run, tj_value v, tj_value path, tj_value *out);

bool tj_contains(tj_run *run, tj_value container, tj_value item, bool *contains);

/* JSON as Python's json.dumps writes it with ensure_ascii=False. */
bool tj_filter_tojson(tj_call *c);

/* Strings that the filters and methods share. */
bool tj_change_case(tj_run *run, const tj_string *s, bool upper, tj_value *out);
bool tj_capitalize(tj_run *run, const tj_string *s, tj_value *out);
bool tj_strip(tj_run *run, const tj_string *s, const tj_string *chars, bool left, bool right,
              tj_value *out);
bool tj_replace(tj_run *run, const tj_string *s, const tj_string *old, const tj_string *with,
                int64_t count, tj_value *out);

/* What str.isspace and str.strip call white space. */
bool tj_is_space(uint32_t code);

#endif
