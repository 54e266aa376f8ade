/* jinja_sequences.c - filters that walk over lists, dicts and strings. */
#include "core/model/jinja_filters.h"

#include "core/model/jinja_eval.h"

#include <string.h>

/* ---- ends, order ---- */

static bool end_of(tj_call *c, bool last)
{
    static const tj_string name = {.bytes = "an item of an empty sequence", .size = 28};
    const tj_list *items;

    if (!tj_elements(c->run, c->self, &items))
        return false;
    if (items->count == 0)
        *c->out = (tj_value){.kind = TJ_UNDEFINED, .as.string = &name};
    else
        *c->out = items->items[last ? items->count - 1 : 0];
    return true;
}

bool tj_filter_first(tj_call *c)
{
    return end_of(c, false);
}

bool tj_filter_last(tj_call *c)
{
    return end_of(c, true);
}

bool tj_filter_list(tj_call *c)
{
    const tj_list *items;

    if (!tj_elements(c->run, c->self, &items) ||
        !tj_list_make(c->run, TJ_LIST, items->count, c->out))
        return false;
    for (size_t i = 0; i < items->count; i++)
        if (!tj_list_push(c->run, c->out->as.list, items->items[i]))
            return false;
    c->out->input = c->self.input;
    return true;
}

/* A string gives a string, everything else an iterator. */
bool tj_filter_reverse(tj_call *c)
{
    const tj_list *items;
    tj_builder b = {0};

    if (!tj_elements(c->run, c->self, &items))
        return false;
    if (c->self.kind == TJ_STRING) {
        for (size_t i = items->count; i > 0; i--)
            if (!tj_put_string(c->run, &b, items->items[i - 1].as.string))
                return false;
        return tj_built(c->run, &b, c->out);
    }
    if (!tj_list_make(c->run, TJ_ITERATOR, items->count, c->out))
        return false;
    for (size_t i = items->count; i > 0; i--)
        if (!tj_list_push(c->run, c->out->as.list, items->items[i - 1]))
            return false;
    return true;
}

bool tj_filter_items(tj_call *c)
{
    static const tj_string name = {.bytes = "items", .size = 5};

    if (c->self.kind == TJ_UNDEFINED)
        return tj_list_make(c->run, TJ_ITERATOR, 0, c->out);
    if (c->self.kind != TJ_DICT)
        return tj_fail(c->run, "Can only get item pairs from a mapping.");
    return tj_call_builtin(c->run, tj_find_method(TJ_DICT, &name), c->self, &c->arguments, c->out);
}

/* What elements are ordered and told apart by: an attribute if one is asked for, strings without
 * their case unless it matters. */
static bool key_of(tj_run *run, tj_value item, const tj_value *attribute, bool case_sensitive,
                   tj_value *key)
{
    *key = item;
    if (attribute != NULL && !tj_get_path(run, item, *attribute, key))
        return false;
    if (key->kind == TJ_STRING && !case_sensitive)
        return tj_change_case(run, key->as.string, false, key);
    return true;
}

static const tj_value *attribute_argument(const tj_call *c, size_t i)
{
    return c->given[i] && c->arg[i].kind != TJ_NONE ? &c->arg[i] : NULL;
}

/* Sorts pairs of key and value by key: a merge sort, which keeps the order of equal keys. */
static bool merge_sort(tj_run *run, tj_pair *pairs, tj_pair *spare, size_t count, bool reverse)
{
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = start + 2 * width < count ? start + 2 * width : count;
            size_t left = start, right = middle;
            for (size_t at = start; at < end; at++) {
                int order = -1;
                if (left < middle && right < end &&
                    !(reverse ? tj_compare(run, pairs[right].key, pairs[left].key, &order)
                              : tj_compare(run, pairs[left].key, pairs[right].key, &order)))
                    return false;
                bool take_left = right == end || (left < middle && order <= 0);
                spare[at] = take_left ? pairs[left++] : pairs[right++];
            }
        }
        memcpy(pairs, spare, count * sizeof(*pairs));
    }
    return true;
}

static bool sorted_pairs(tj_call *c, const tj_list *items, const tj_value *attribute,
                         bool case_sensitive, bool reverse, tj_pair **out)
{
    tj_pair *pairs = tj_take(c->run, (items->count + 1) * sizeof(*pairs));
    tj_pair *spare = tj_take(c->run, (items->count + 1) * sizeof(*spare));

    if (pairs == NULL || spare == NULL)
        return false;
    for (size_t i = 0; i < items->count; i++) {
        pairs[i].value = items->items[i];
        if (!key_of(c->run, items->items[i], attribute, case_sensitive, &pairs[i].key))
            return false;
    }
    *out = pairs;
    return merge_sort(c->run, pairs, spare, items->count, reverse);
}

bool tj_filter_sort(tj_call *c)
{
    const tj_list *items;
    tj_pair *pairs;

    if (!tj_elements(c->run, c->self, &items) ||
        !sorted_pairs(c, items, attribute_argument(c, 2), tj_arg_truth(c, 1, false),
                      tj_arg_truth(c, 0, false), &pairs) ||
        !tj_list_make(c->run, TJ_LIST, items->count, c->out))
        return false;
    for (size_t i = 0; i < items->count; i++)
        if (!tj_list_push(c->run, c->out->as.list, pairs[i].value))
            return false;
    c->out->input = c->self.input;
    return true;
}

bool tj_filter_dictsort(tj_call *c)
{
    static const tj_string items_name = {.bytes = "items", .size = 5};
    const tj_string *by;
    tj_value items, which = tj_int(0);
    tj_pair *pairs;

    if (c->self.kind != TJ_DICT)
        return tj_fail(c->run, "dictsort takes a dict, not %s", tj_type_name(c->self));
    if (!tj_arg_string(c, 1, &by))
        return false;
    if (by != NULL && tj_string_is(by, "value"))
        which = tj_int(1);
    else if (by != NULL && !tj_string_is(by, "key"))
        return tj_fail(c->run, "You can only sort by either \"key\" or \"value\"");
    if (!tj_call_builtin(c->run, tj_find_method(TJ_DICT, &items_name), c->self, &(tj_arguments){0},
                         &items) ||
        !sorted_pairs(c, items.as.list, &which, tj_arg_truth(c, 0, false),
                      tj_arg_truth(c, 2, false), &pairs) ||
        !tj_list_make(c->run, TJ_LIST, items.as.list->count, c->out))
        return false;
    for (size_t i = 0; i < items.as.list->count; i++)
        if (!tj_list_push(c->run, c->out->as.list, pairs[i].value))
            return false;
    return true;
}

static bool extreme(tj_call *c, int sign)
{
    static const tj_string name = {.bytes = "an item of an empty sequence", .size = 28};
    bool case_sensitive = tj_arg_truth(c, 0, false);
    const tj_value *attribute = attribute_argument(c, 1);
    const tj_list *items;
    tj_value best = tj_none(), key;

    if (!tj_elements(c->run, c->self, &items))
        return false;
    *c->out = (tj_value){.kind = TJ_UNDEFINED, .as.string = &name};
    for (size_t i = 0; i < items->count; i++) {
        int order = -1;
        if (!key_of(c->run, items->items[i], attribute, case_sensitive, &key) ||
            (i > 0 && !tj_compare(c->run, key, best, &order)))
            return false;
        if (i == 0 || order * sign > 0) {
            best = key;
            *c->out = items->items[i];
        }
    }
    return true;
}

bool tj_filter_max(tj_call *c)
{
    return extreme(c, 1);
}

bool tj_filter_min(tj_call *c)
{
    return extreme(c, -1);
}

bool tj_filter_unique(tj_call *c)
{
    bool case_sensitive = tj_arg_truth(c, 0, false);
    const tj_value *attribute = attribute_argument(c, 1);
    const tj_list *items;
    tj_value keys, key;

    if (!tj_elements(c->run, c->self, &items) || !tj_list_make(c->run, TJ_LIST, 0, &keys) ||
        !tj_list_make(c->run, TJ_ITERATOR, 0, c->out))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        bool seen;
        if (!key_of(c->run, items->items[i], attribute, case_sensitive, &key))
            return false;
        if (key.kind == TJ_LIST || key.kind == TJ_DICT)
            return tj_fail(c->run, "unhashable type: '%s'", tj_type_name(key));
        if (!tj_contains(c->run, keys, key, &seen))
            return false;
        if (!seen && (!tj_list_push(c->run, keys.as.list, key) ||
                      !tj_list_push(c->run, c->out->as.list, items->items[i])))
            return false;
    }
    return true;
}

bool tj_filter_join(tj_call *c)
{
    const tj_list *items;
    const tj_string *separator = NULL;
    const tj_value *attribute = attribute_argument(c, 1);
    tj_builder b = {0};

    if (!tj_elements(c->run, c->self, &items) ||
        (c->given[0] && !tj_to_string(c->run, c->arg[0], &separator)))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        tj_value item = items->items[i];
        if ((attribute != NULL && !tj_get_path(c->run, item, *attribute, &item)) ||
            (i > 0 && separator != NULL && !tj_put_string(c->run, &b, separator)) ||
            !tj_put_str(c->run, &b, item))
            return false;
    }
    return tj_built(c->run, &b, c->out);
}

bool tj_filter_sum(tj_call *c)
{
    const tj_value *attribute = attribute_argument(c, 0);
    const tj_list *items;

    if (!tj_elements(c->run, c->self, &items))
        return false;
    *c->out = c->given[1] ? c->arg[1] : tj_int(0);
    for (size_t i = 0; i < items->count; i++) {
        tj_value item = items->items[i];
        if ((attribute != NULL && !tj_get_path(c->run, item, *attribute, &item)) ||
            !tj_arithmetic(c->run, TJ_OP_ADD, *c->out, item, c->out))
            return false;
    }
    return true;
}

/* ---- map, select, reject ---- */

/* What they walk over: as in Jinja nothing at all when the value is false, even if it is none. */
static bool walked_elements(tj_call *c, const tj_list **items)
{
    static const tj_list nothing;

    *items = &nothing;
    if (!tj_list_make(c->run, TJ_ITERATOR, 0, c->out))
        return false;
    return !tj_truth(c->self) || tj_elements(c->run, c->self, items);
}

static const tj_value *keyword(const tj_call *c, const char *name)
{
    for (size_t i = 0; i < c->arguments.count; i++)
        if (c->arguments.items[i].keyword != NULL &&
            tj_string_is(c->arguments.items[i].keyword, name))
            return &c->arguments.items[i].value;
    return NULL;
}

/* map(attribute="a.b", default=x). */
static bool map_attribute(tj_call *c, const tj_list *items, const tj_value *attribute)
{
    const tj_value *fallback = keyword(c, "default");

    if (c->arguments.count != 1 + (size_t)(fallback != NULL))
        return tj_fail(c->run, "map takes attribute and default, or the name of a filter");
    for (size_t i = 0; i < items->count; i++) {
        tj_value v;
        if (!tj_get_path(c->run, items->items[i], *attribute, &v))
            return false;
        if (v.kind == TJ_UNDEFINED && fallback != NULL)
            v = *fallback;
        if (!tj_list_push(c->run, c->out->as.list, v))
            return false;
    }
    return true;
}

bool tj_filter_map(tj_call *c)
{
    const tj_value *attribute = keyword(c, "attribute");
    const tj_list *items;
    tj_value v;

    if (!walked_elements(c, &items))
        return false;
    if (attribute != NULL)
        return map_attribute(c, items, attribute);
    if (c->arguments.count == 0 || c->arguments.items[0].keyword != NULL ||
        c->arguments.items[0].value.kind != TJ_STRING)
        return tj_fail(c->run, "map requires a filter argument");
    const tj_string *name = c->arguments.items[0].value.as.string;
    const tj_builtin *filter = tj_find_filter(name);
    if (filter == NULL)
        return tj_fail(c->run, "no filter named '%.*s'", (int)(name->size > 60 ? 60 : name->size),
                       name->bytes);
    tj_arguments rest = {.items = c->arguments.items + 1, .count = c->arguments.count - 1};
    for (size_t i = 0; i < items->count; i++)
        if (!tj_call_builtin(c->run, filter, items->items[i], &rest, &v) ||
            !tj_list_push(c->run, c->out->as.list, v))
            return false;
    return true;
}

/* Keeps the elements for which a test (or truth, when none is named) gives wanted; by_attribute:
 * asks about the attribute that the first argument names. */
static bool choose(tj_call *c, bool wanted, bool by_attribute)
{
    tj_arguments rest = c->arguments;
    const tj_value *attribute = NULL;
    const tj_builtin *test = NULL;
    const tj_list *items;

    if (by_attribute) {
        if (rest.count == 0 || rest.items[0].keyword != NULL)
            return tj_fail(c->run, "Missing parameter for attribute name");
        attribute = &rest.items[0].value;
        rest = (tj_arguments){.items = rest.items + 1, .count = rest.count - 1};
    }
    if (rest.count > 0) {
        if (rest.items[0].keyword != NULL || rest.items[0].value.kind != TJ_STRING)
            return tj_fail(c->run, "%s takes the name of a test", c->name);
        const tj_string *name = rest.items[0].value.as.string;
        test = tj_find_test(name);
        if (test == NULL)
            return tj_fail(c->run, "no test named '%.*s'", (int)(name->size > 60 ? 60 : name->size),
                           name->bytes);
        rest = (tj_arguments){.items = rest.items + 1, .count = rest.count - 1};
    }
    if (!walked_elements(c, &items))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        tj_value v = items->items[i];
        if ((attribute != NULL && !tj_get_path(c->run, v, *attribute, &v)) ||
            (test != NULL && !tj_call_builtin(c->run, test, v, &rest, &v)))
            return false;
        if (tj_truth(v) == wanted && !tj_list_push(c->run, c->out->as.list, items->items[i]))
            return false;
    }
    return true;
}

bool tj_filter_select(tj_call *c)
{
    return choose(c, true, false);
}

bool tj_filter_reject(tj_call *c)
{
    return choose(c, false, false);
}

bool tj_filter_selectattr(tj_call *c)
{
    return choose(c, true, true);
}

bool tj_filter_rejectattr(tj_call *c)
{
    return choose(c, false, true);
}
