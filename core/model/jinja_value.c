/* jinja_value.c - making, comparing and looking up values. Printing is in jinja_print.c. */
#include "core/model/jinja_value.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

struct tj_arena_block {
    tj_arena_block *next;
    max_align_t data[];
};

/* What a block holds unless one thing needs more. */
#define ARENA_BLOCK_BYTES ((size_t)64 << 10)

void *tj_arena_take(tj_arena *arena, size_t size, size_t bytes_max)
{
    size_t align = alignof(max_align_t);

    if (size > bytes_max)
        return NULL;
    size = (size + align - 1) / align * align;
    if (arena->blocks == NULL || arena->size - arena->used < size) {
        size_t block_size = size > ARENA_BLOCK_BYTES ? size : ARENA_BLOCK_BYTES;
        if (block_size > bytes_max - arena->total)
            return NULL;
        tj_arena_block *block = calloc(1, sizeof(*block) + block_size);
        if (block == NULL)
            return NULL;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->size = block_size;
        arena->used = 0;
        arena->total += block_size;
    }
    void *taken = (char *)arena->blocks->data + arena->used;
    arena->used += size;
    return taken;
}

void tj_arena_free(tj_arena *arena)
{
    while (arena->blocks != NULL) {
        tj_arena_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
    *arena = (tj_arena){0};
}

void *tj_take(tj_run *run, size_t size)
{
    void *taken = tj_arena_take(&run->arena, size, TJ_ARENA_BYTES_MAX);

    if (taken == NULL)
        tj_record(run, "the template needs more than %zu MiB of memory", TJ_ARENA_BYTES_MAX >> 20);
    return taken;
}

/* ---- errors and limits ---- */

void tj_record(tj_run *run, const char *fmt, ...)
{
    char text[sizeof(run->err->text)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (run->status == TR_OK) /* the first error is the cause */
        run->status = tr_fail(run->err, TR_E_INVALID, "%s:%u:%u: %s", run->name, run->line,
                              run->column, text);
}

bool tj_fail_plain(tj_run *run, const char *text, size_t size)
{
    if (run->status == TR_OK)
        run->status =
            tr_fail(run->err, TR_E_INVALID, "%.*s", (int)(size > 1000 ? 1000 : size), text);
    return false;
}

bool tj_charge(tj_run *run, size_t steps)
{
    if (steps > TJ_STEPS_MAX - run->steps)
        return tj_fail(run, "the template takes more than %u steps", TJ_STEPS_MAX);
    run->steps += (uint32_t)steps;
    return true;
}

bool tj_charge_bytes(tj_run *run, size_t bytes)
{
    return tj_charge(run, bytes / 1024);
}

bool tj_fail_undefined(tj_run *run, tj_value v)
{
    const tj_string *name = v.as.string;
    int size = (int)(name->size > 60 ? 60 : name->size);

    assert(v.kind == TJ_UNDEFINED);
    if (v.owner == TJ_UNDEFINED)
        return tj_fail(run, "'%.*s' is undefined", size, name->bytes);
    return tj_fail(run, "'%s object' has no attribute '%.*s'",
                   tj_type_name((tj_value){.kind = v.owner}), size, name->bytes);
}

/* ---- strings ---- */

bool tj_string_make(tj_run *run, const char *bytes, size_t size, bool input, tj_value *out)
{
    tj_string *s = tj_take(run, sizeof(*s));

    if (s == NULL)
        return false;
    if (size > TJ_STRING_BYTES_MAX)
        return tj_fail(run, "a string of more than %zu MiB", TJ_STRING_BYTES_MAX >> 20);
    *s = (tj_string){.bytes = bytes, .size = size, .input = input};
    *out = (tj_value){.kind = TJ_STRING, .as.string = s};
    return true;
}

bool tj_text(tj_run *run, const char *text, tj_value *out)
{
    return tj_string_make(run, text, strlen(text), false, out);
}

bool tj_string_cut(tj_run *run, const tj_string *s, size_t start, size_t end, tj_value *out)
{
    tj_string *cut = tj_take(run, sizeof(*cut));

    assert(start <= end);
    assert(end <= s->size);
    if (cut == NULL)
        return false;
    *cut = (tj_string){.bytes = s->bytes + start,
                       .marks = s->marks == NULL ? NULL : s->marks + start,
                       .size = end - start,
                       .input = s->input};
    *out = (tj_value){.kind = TJ_STRING, .as.string = cut};
    return true;
}

bool tj_string_is(const tj_string *s, const char *text)
{
    return s->size == strlen(text) && memcmp(s->bytes, text, s->size) == 0;
}

bool tj_string_equal(const tj_string *a, const tj_string *b)
{
    return a->size == b->size && (a->size == 0 || memcmp(a->bytes, b->bytes, a->size) == 0);
}

size_t tj_string_chars(const tj_string *s)
{
    size_t chars = 0;

    for (size_t i = 0; i < s->size; i++)
        chars += ((unsigned char)s->bytes[i] & 0xC0) != 0x80;
    return chars;
}

size_t tj_string_offset(const tj_string *s, size_t index)
{
    size_t at = 0;

    for (; index > 0 && at < s->size; index--) {
        at++;
        while (at < s->size && ((unsigned char)s->bytes[at] & 0xC0) == 0x80)
            at++;
    }
    return at;
}

size_t tj_string_find(const tj_string *s, const tj_string *needle, size_t start, size_t end,
                      bool last)
{
    size_t found = SIZE_MAX;

    assert(end <= s->size);
    if (start > end || needle->size > end - start)
        return SIZE_MAX;
    if (needle->size == 0)
        return last ? end : start;
    while (start < end) {
        const char *at = memmem(s->bytes + start, end - start, needle->bytes, needle->size);
        if (at == NULL)
            break;
        found = (size_t)(at - s->bytes);
        if (!last)
            break;
        start = found + 1;
    }
    return found;
}

/* ---- lists and dicts ---- */

bool tj_list_make(tj_run *run, tj_kind kind, size_t capacity, tj_value *out)
{
    tj_list *list = tj_take(run, sizeof(*list));

    if (list == NULL)
        return false;
    if (capacity > 0) {
        list->items = tj_take(run, capacity * sizeof(*list->items));
        if (list->items == NULL)
            return false;
        list->capacity = capacity;
    }
    *out = (tj_value){.kind = (uint8_t)kind, .as.list = list};
    return true;
}

bool tj_list_push(tj_run *run, tj_list *list, tj_value item)
{
    if (!tj_charge(run, 1))
        return false;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 8 : 2 * list->capacity;
        tj_value *items = tj_take(run, capacity * sizeof(*items));
        if (items == NULL)
            return false;
        if (list->count > 0)
            memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}

bool tj_dict_make(tj_run *run, tj_kind kind, size_t capacity, tj_value *out)
{
    tj_dict *dict = tj_take(run, sizeof(*dict));

    if (dict == NULL)
        return false;
    if (capacity > 0) {
        dict->pairs = tj_take(run, capacity * sizeof(*dict->pairs));
        if (dict->pairs == NULL)
            return false;
        dict->capacity = capacity;
    }
    *out = (tj_value){.kind = (uint8_t)kind, .as.dict = dict};
    return true;
}

const tj_value *tj_dict_find_text(const tj_dict *dict, const tj_string *key)
{
    for (size_t i = 0; i < dict->count; i++)
        if (dict->pairs[i].key.kind == TJ_STRING &&
            tj_string_equal(dict->pairs[i].key.as.string, key))
            return &dict->pairs[i].value;
    return NULL;
}

bool tj_dict_find(tj_run *run, const tj_dict *dict, tj_value key, const tj_value **found)
{
    *found = NULL;
    if (!tj_charge(run, dict->count / 16))
        return false;
    if (key.kind == TJ_STRING) {
        *found = tj_dict_find_text(dict, key.as.string);
        return true;
    }
    for (size_t i = 0; i < dict->count && *found == NULL; i++) {
        bool equal;
        if (!tj_equal(run, dict->pairs[i].key, key, &equal))
            return false;
        if (equal)
            *found = &dict->pairs[i].value;
    }
    return true;
}

static bool is_hashable(tj_value v)
{
    return v.kind != TJ_LIST && v.kind != TJ_DICT && v.kind != TJ_UNDEFINED;
}

bool tj_dict_set(tj_run *run, tj_dict *dict, tj_value key, tj_value value)
{
    const tj_value *found;

    if (!is_hashable(key))
        return tj_fail(run, "a %s cannot be the key of a dict", tj_type_name(key));
    if (!tj_charge(run, 1) || !tj_dict_find(run, dict, key, &found))
        return false;
    if (found != NULL) {
        *(tj_value *)found = value; /* lies in dict, which we may write */
        return true;
    }
    if (dict->count == dict->capacity) {
        size_t capacity = dict->capacity == 0 ? 8 : 2 * dict->capacity;
        tj_pair *pairs = tj_take(run, capacity * sizeof(*pairs));
        if (pairs == NULL)
            return false;
        if (dict->count > 0)
            memcpy(pairs, dict->pairs, dict->count * sizeof(*pairs));
        dict->pairs = pairs;
        dict->capacity = capacity;
    }
    dict->pairs[dict->count++] = (tj_pair){.key = key, .value = value};
    return true;
}

/* ---- asking values ---- */

bool tj_is_number(tj_value v)
{
    return v.kind == TJ_BOOL || v.kind == TJ_INT || v.kind == TJ_FLOAT;
}

double tj_to_double(tj_value v)
{
    assert(tj_is_number(v));
    if (v.kind == TJ_FLOAT)
        return v.as.real;
    return v.kind == TJ_INT ? (double)v.as.integer : v.as.truth;
}

bool tj_truth(tj_value v)
{
    switch ((tj_kind)v.kind) {
    case TJ_UNDEFINED:
    case TJ_NONE:
        return false;
    case TJ_BOOL:
        return v.as.truth;
    case TJ_INT:
        return v.as.integer != 0;
    case TJ_FLOAT:
        return v.as.real != 0;
    case TJ_STRING:
        return v.as.string->size > 0;
    case TJ_LIST:
    case TJ_TUPLE:
        return v.as.list->count > 0;
    case TJ_DICT:
        return v.as.dict->count > 0;
    case TJ_NAMESPACE:
    case TJ_ITERATOR:
    case TJ_LOOP:
    case TJ_CALLABLE:
        return true;
    }
    return false;
}

const char *tj_type_name(tj_value v)
{
    static const char *const names[] = {[TJ_UNDEFINED] = "Undefined", [TJ_NONE] = "NoneType",
                                        [TJ_BOOL] = "bool",           [TJ_INT] = "int",
                                        [TJ_FLOAT] = "float",         [TJ_STRING] = "str",
                                        [TJ_LIST] = "list",           [TJ_TUPLE] = "tuple",
                                        [TJ_DICT] = "dict",           [TJ_NAMESPACE] = "Namespace",
                                        [TJ_ITERATOR] = "generator",  [TJ_LOOP] = "LoopContext",
                                        [TJ_CALLABLE] = "function"};

    return names[v.kind];
}

/* Exact for all pairs of int64 and double: both fit a long double of 64 bits or more. */
static int compare_numbers(tj_value a, tj_value b)
{
    long double x = a.kind == TJ_INT ? (long double)a.as.integer : (long double)tj_to_double(a);
    long double y = b.kind == TJ_INT ? (long double)b.as.integer : (long double)tj_to_double(b);

    return x < y ? -1 : x > y;
}

static bool is_nan(tj_value v)
{
    return v.kind == TJ_FLOAT && v.as.real != v.as.real;
}

static bool equal_at(tj_run *run, tj_value a, tj_value b, uint32_t depth, bool *equal);

static bool equal_dicts(tj_run *run, const tj_dict *a, const tj_dict *b, uint32_t depth,
                        bool *equal)
{
    *equal = a->count == b->count;
    for (size_t i = 0; i < a->count && *equal; i++) {
        const tj_value *other;
        if (!tj_dict_find(run, b, a->pairs[i].key, &other))
            return false;
        *equal = other != NULL;
        if (*equal && !equal_at(run, a->pairs[i].value, *other, depth + 1, equal))
            return false;
    }
    return true;
}

static bool equal_at(tj_run *run, tj_value a, tj_value b, uint32_t depth, bool *equal)
{
    *equal = false;
    if (depth > TJ_DEPTH_MAX)
        return tj_fail(run, "values nested more than %u deep", TJ_DEPTH_MAX);
    if (!tj_charge(run, 1))
        return false;
    if (tj_is_number(a) && tj_is_number(b)) {
        *equal = !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
        return true;
    }
    if (a.kind != b.kind)
        return true;
    switch ((tj_kind)a.kind) {
    case TJ_UNDEFINED:
    case TJ_NONE:
        *equal = true;
        return true;
    case TJ_STRING:
        *equal = tj_string_equal(a.as.string, b.as.string);
        return tj_charge_bytes(run, a.as.string->size);
    case TJ_LIST:
    case TJ_TUPLE:
        *equal = a.as.list->count == b.as.list->count;
        for (size_t i = 0; i < a.as.list->count && *equal; i++)
            if (!equal_at(run, a.as.list->items[i], b.as.list->items[i], depth + 1, equal))
                return false;
        return true;
    case TJ_DICT:
        return equal_dicts(run, a.as.dict, b.as.dict, depth, equal);
    case TJ_NAMESPACE:
    case TJ_ITERATOR:
    case TJ_LOOP:
    case TJ_CALLABLE:
        *equal = a.as.list == b.as.list; /* the same object */
        return true;
    case TJ_BOOL:
    case TJ_INT:
    case TJ_FLOAT:
        break; /* handled above */
    }
    return true;
}

bool tj_equal(tj_run *run, tj_value a, tj_value b, bool *equal)
{
    return equal_at(run, a, b, 0, equal);
}

static bool compare_at(tj_run *run, tj_value a, tj_value b, uint32_t depth, int *order)
{
    if (depth > TJ_DEPTH_MAX)
        return tj_fail(run, "values nested more than %u deep", TJ_DEPTH_MAX);
    if (!tj_charge(run, 1))
        return false;
    if (a.kind == TJ_UNDEFINED || b.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, a.kind == TJ_UNDEFINED ? a : b);
    if (tj_is_number(a) && tj_is_number(b)) {
        *order = compare_numbers(a, b);
        return true;
    }
    if (a.kind == TJ_STRING && b.kind == TJ_STRING) {
        /* UTF-8 sorts as its characters do. */
        const tj_string *x = a.as.string, *y = b.as.string;
        size_t common = x->size < y->size ? x->size : y->size;
        *order = common == 0 ? 0 : memcmp(x->bytes, y->bytes, common);
        if (*order == 0)
            *order = x->size < y->size ? -1 : x->size > y->size;
        return tj_charge_bytes(run, common);
    }
    if (a.kind == b.kind && (a.kind == TJ_LIST || a.kind == TJ_TUPLE)) {
        const tj_list *x = a.as.list, *y = b.as.list;
        for (size_t i = 0; i < x->count && i < y->count; i++) {
            bool equal;
            if (!equal_at(run, x->items[i], y->items[i], depth + 1, &equal))
                return false;
            if (!equal)
                return compare_at(run, x->items[i], y->items[i], depth + 1, order);
        }
        *order = x->count < y->count ? -1 : x->count > y->count;
        return true;
    }
    return tj_fail(run, "'<' not supported between instances of '%s' and '%s'", tj_type_name(a),
                   tj_type_name(b));
}

bool tj_compare(tj_run *run, tj_value a, tj_value b, int *order)
{
    return compare_at(run, a, b, 0, order);
}
