/* jinja_methods.c - the methods of strings, lists and dicts that do not change them. */
#include "core/model/jinja_builtins.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <string.h>
#include <utf8proc.h>

/* ---- strings: case and white space ---- */

static bool str_upper(tj_call *c)
{
    return tj_change_case(c->run, c->self.as.string, true, c->out);
}

static bool str_lower(tj_call *c)
{
    return tj_change_case(c->run, c->self.as.string, false, c->out);
}

static bool str_capitalize(tj_call *c)
{
    return tj_capitalize(c->run, c->self.as.string, c->out);
}

static bool is_cased(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
        return true;
    default:
        return false;
    }
}

/* A letter after a letter becomes small, any other letter large. */
static bool str_title(tj_call *c)
{
    const tj_string *s = c->self.as.string;
    bool after_letter = false;
    tj_builder b = {0};

    for (size_t at = 0; at < s->size;) {
        uint32_t code;
        size_t length = tr_utf8_decode(s->bytes + at, s->size - at, &code);
        assert(length > 0);
        utf8proc_int32_t changed = after_letter ? utf8proc_tolower((utf8proc_int32_t)code)
                                                : utf8proc_totitle((utf8proc_int32_t)code);
        if (!tj_put_code(c->run, &b, (uint32_t)changed, tj_mark(s, at)))
            return false;
        after_letter = is_cased(code);
        at += length;
    }
    return tj_charge_bytes(c->run, s->size) && tj_built(c->run, &b, c->out);
}

static bool strip(tj_call *c, bool left, bool right)
{
    const tj_string *chars;

    return tj_arg_string(c, 0, &chars) &&
           tj_strip(c->run, c->self.as.string, chars, left, right, c->out);
}

static bool str_strip(tj_call *c)
{
    return strip(c, true, true);
}

static bool str_lstrip(tj_call *c)
{
    return strip(c, true, false);
}

static bool str_rstrip(tj_call *c)
{
    return strip(c, false, true);
}

/* ---- strings: splitting and joining ---- */

static bool push_part(tj_run *run, tj_list *list, const tj_string *s, size_t start, size_t end)
{
    tj_value part;

    return tj_string_cut(run, s, start, end, &part) && tj_list_push(run, list, part);
}

static void reverse(tj_list *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        tj_value item = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = item;
    }
}

/* Steps over white space (or over the rest) in one direction; gives the new place. */
static size_t walk(const tj_string *s, size_t at, bool forward, bool over_space)
{
    for (;;) {
        size_t next = at;
        uint32_t code;
        if (forward ? at == s->size : at == 0)
            return at;
        if (forward) {
            next += tr_utf8_decode(s->bytes + at, s->size - at, &code);
        } else {
            do
                next--;
            while (((unsigned char)s->bytes[next] & 0xC0) == 0x80);
            (void)tr_utf8_decode(s->bytes + next, at - next, &code); /* strings are valid */
        }
        if (tj_is_space(code) != over_space)
            return at;
        at = next;
    }
}

/* split() without a separator: at runs of white space, none of which is kept. */
static bool split_spaces(tj_call *c, int64_t max, bool forward)
{
    const tj_string *s = c->self.as.string;
    tj_list *list = c->out->as.list;
    size_t at = forward ? 0 : s->size;

    for (;;) {
        size_t start = walk(s, at, forward, true);
        if (start == (forward ? s->size : 0))
            return true;
        size_t end = walk(s, start, forward, false);
        if (max >= 0 && (int64_t)list->count == max) {
            end = forward ? s->size : 0; /* the rest is one part, spaces at its far end kept */
        }
        if (!push_part(c->run, list, s, forward ? start : end, forward ? end : start))
            return false;
        at = end;
    }
}

/* Bytes that a search for the last place may look at: the needle again at each place. */
static size_t search_work(const tj_string *s, const tj_string *needle)
{
    return s->size * (1 + needle->size / 64);
}

static bool split_at(tj_call *c, const tj_string *separator, int64_t max, bool forward)
{
    const tj_string *s = c->self.as.string;
    tj_list *list = c->out->as.list;
    size_t start = 0, end = s->size;

    if (separator->size == 0)
        return tj_fail(c->run, "empty separator");
    while (max < 0 || (int64_t)list->count < max) {
        /* Backwards, each part costs a look at all that is left. */
        if (!forward && !tj_charge_bytes(c->run, search_work(s, separator)))
            return false;
        size_t found = tj_string_find(s, separator, start, end, !forward);
        if (found == SIZE_MAX)
            break;
        size_t behind = found + separator->size;
        if (!push_part(c->run, list, s, forward ? start : behind, forward ? found : end))
            return false;
        if (forward)
            start = behind;
        else
            end = found;
    }
    return push_part(c->run, list, s, start, end);
}

static bool split(tj_call *c, bool forward)
{
    const tj_string *separator;
    int64_t max;

    if (!tj_arg_string(c, 0, &separator) || !tj_arg_integer(c, 1, -1, &max) ||
        !tj_list_make(c->run, TJ_LIST, 0, c->out) ||
        !tj_charge_bytes(c->run, c->self.as.string->size))
        return false;
    bool done =
        separator == NULL ? split_spaces(c, max, forward) : split_at(c, separator, max, forward);
    if (!done)
        return false;
    if (!forward)
        reverse(c->out->as.list);
    return true;
}

static bool str_split(tj_call *c)
{
    return split(c, true);
}

static bool str_rsplit(tj_call *c)
{
    return split(c, false);
}

static bool is_line_end(uint32_t code)
{
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

static bool str_splitlines(tj_call *c)
{
    const tj_string *s = c->self.as.string;
    bool keep = tj_arg_truth(c, 0, false);
    size_t start = 0;

    if (!tj_list_make(c->run, TJ_LIST, 0, c->out))
        return false;
    for (size_t at = 0; at < s->size;) {
        uint32_t code;
        size_t length = tr_utf8_decode(s->bytes + at, s->size - at, &code);
        assert(length > 0);
        size_t end = at;
        at += length;
        if (!is_line_end(code))
            continue;
        if (code == '\r' && at < s->size && s->bytes[at] == '\n')
            at++;
        if (!push_part(c->run, c->out->as.list, s, start, keep ? at : end))
            return false;
        start = at;
    }
    return tj_charge_bytes(c->run, s->size) &&
           (start == s->size || push_part(c->run, c->out->as.list, s, start, s->size));
}

static bool str_join(tj_call *c)
{
    const tj_list *items;
    tj_builder b = {0};

    if (c->arg[0].kind == TJ_UNDEFINED)
        return tj_fail_undefined(c->run, c->arg[0]);
    if (!tj_elements(c->run, c->arg[0], &items))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        if (items->items[i].kind != TJ_STRING)
            return tj_fail(c->run, "sequence item %zu: expected str instance, %s found", i,
                           tj_type_name(items->items[i]));
        if ((i > 0 && !tj_put_string(c->run, &b, c->self.as.string)) ||
            !tj_put_string(c->run, &b, items->items[i].as.string))
            return false;
    }
    return tj_built(c->run, &b, c->out);
}

static bool str_replace(tj_call *c)
{
    const tj_string *old, *with;
    int64_t count;

    if (!tj_arg_string(c, 0, &old) || !tj_arg_string(c, 1, &with) ||
        !tj_arg_integer(c, 2, -1, &count))
        return false;
    if (old == NULL || with == NULL)
        return tj_fail(c->run, "replace takes two strings");
    return tj_replace(c->run, c->self.as.string, old, with, count, c->out);
}

/* ---- strings: searching ---- */

/* Byte range of the optional arguments start and end, which count characters. */
static bool search_range(tj_call *c, size_t *start, size_t *end)
{
    const tj_string *s = c->self.as.string;
    int64_t chars, first, last;

    *start = 0;
    *end = s->size;
    if (!c->given[1] && !c->given[2])
        return true;
    chars = (int64_t)tj_string_chars(s);
    if (!tj_arg_integer(c, 1, 0, &first) || !tj_arg_integer(c, 2, chars, &last))
        return false;
    first = first < 0 ? (first < -chars ? 0 : first + chars) : first;
    last = last < 0 ? (last < -chars ? 0 : last + chars) : last > chars ? chars : last;
    *start = first > chars ? s->size + 1 : tj_string_offset(s, (size_t)first);
    *end = tj_string_offset(s, (size_t)last);
    return true;
}

static bool search(tj_call *c, bool last, bool must)
{
    const tj_string *s = c->self.as.string, *needle;
    size_t start, end;

    if (!tj_arg_string(c, 0, &needle) || !search_range(c, &start, &end))
        return false;
    if (needle == NULL)
        return tj_fail(c->run, "%s takes a string", c->name);
    if (!tj_charge_bytes(c->run, last ? search_work(s, needle) : s->size))
        return false;
    size_t found = tj_string_find(s, needle, start, end, last);
    if (found == SIZE_MAX && must)
        return tj_fail(c->run, "substring not found");
    const tj_string before = {.bytes = s->bytes, .size = found == SIZE_MAX ? 0 : found};
    *c->out = tj_int(found == SIZE_MAX ? -1 : (int64_t)tj_string_chars(&before));
    return true;
}

static bool str_find(tj_call *c)
{
    return search(c, false, false);
}

static bool str_rfind(tj_call *c)
{
    return search(c, true, false);
}

static bool str_index(tj_call *c)
{
    return search(c, false, true);
}

static bool str_rindex(tj_call *c)
{
    return search(c, true, true);
}

static bool str_count(tj_call *c)
{
    const tj_string *s = c->self.as.string, *needle;
    size_t start, end;
    int64_t count = 0;

    if (!tj_arg_string(c, 0, &needle) || !search_range(c, &start, &end) ||
        !tj_charge_bytes(c->run, s->size))
        return false;
    if (needle == NULL)
        return tj_fail(c->run, "count takes a string");
    if (needle->size == 0) {
        const tj_string part = {.bytes = s->bytes + start, .size = start > end ? 0 : end - start};
        *c->out = tj_int(start > end ? 0 : (int64_t)tj_string_chars(&part) + 1);
        return true;
    }
    while (start <= end && (start = tj_string_find(s, needle, start, end, false)) != SIZE_MAX) {
        count++;
        start += needle->size;
    }
    *c->out = tj_int(count);
    return true;
}

/* Whether bytes [start, end) begin or end with a string, or with one of a tuple of strings. */
static bool affix(tj_call *c, bool at_end)
{
    const tj_string *s = c->self.as.string;
    const tj_list *list = NULL;
    size_t start, end, count = 1;
    bool truth = false;

    if (!search_range(c, &start, &end))
        return false;
    if (c->arg[0].kind == TJ_TUPLE) {
        list = c->arg[0].as.list;
        count = list->count;
    }
    for (size_t i = 0; i < count && !truth; i++) {
        tj_value item = list == NULL ? c->arg[0] : list->items[i];
        if (item.kind == TJ_UNDEFINED)
            return tj_fail_undefined(c->run, item);
        if (item.kind != TJ_STRING)
            return tj_fail(c->run, "%s first arg must be str or a tuple of str, not %s", c->name,
                           tj_type_name(item));
        const tj_string *part = item.as.string;
        truth =
            start <= end && part->size <= end - start &&
            memcmp(s->bytes + (at_end ? end - part->size : start), part->bytes, part->size) == 0;
    }
    *c->out = tj_bool(truth);
    return true;
}

static bool str_startswith(tj_call *c)
{
    return affix(c, false);
}

static bool str_endswith(tj_call *c)
{
    return affix(c, true);
}

static bool remove_affix(tj_call *c, bool at_end)
{
    const tj_string *s = c->self.as.string;
    size_t start = 0, end = s->size;

    if (!affix(c, at_end))
        return false;
    if (c->out->as.truth && c->arg[0].kind == TJ_STRING) {
        if (at_end)
            end -= c->arg[0].as.string->size;
        else
            start = c->arg[0].as.string->size;
    }
    return tj_string_cut(c->run, s, start, end, c->out);
}

static bool str_removeprefix(tj_call *c)
{
    return remove_affix(c, false);
}

static bool str_removesuffix(tj_call *c)
{
    return remove_affix(c, true);
}

/* ---- strings: what sort of characters ---- */

typedef bool (*char_test)(utf8proc_category_t category, uint32_t code);

static bool is_letter(utf8proc_category_t category, uint32_t code)
{
    (void)code;
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(utf8proc_category_t category, uint32_t code)
{
    (void)code;
    return category == UTF8PROC_CATEGORY_ND;
}

/* str.isdigit() also takes superscripts and circled digits; of the rest of No it takes none. */
static bool is_digit(utf8proc_category_t category, uint32_t code)
{
    return category == UTF8PROC_CATEGORY_ND || code == 0xB2 || code == 0xB3 || code == 0xB9 ||
           code == 0x2070 || (code >= 0x2074 && code <= 0x2079) ||
           (code >= 0x2080 && code <= 0x2089) || (code >= 0x2460 && code <= 0x2468);
}

static bool is_letter_or_number(utf8proc_category_t category, uint32_t code)
{
    return is_letter(category, code) ||
           (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

static bool is_white(utf8proc_category_t category, uint32_t code)
{
    (void)category;
    return tj_is_space(code);
}

/* True when there is a character and all pass. */
static bool all_chars(tj_call *c, char_test test)
{
    const tj_string *s = c->self.as.string;
    bool truth = s->size > 0;

    for (size_t at = 0; at < s->size && truth;) {
        uint32_t code = 0;
        at += tr_utf8_decode(s->bytes + at, s->size - at, &code);
        truth = test(utf8proc_category((utf8proc_int32_t)code), code);
    }
    *c->out = tj_bool(truth);
    return tj_charge_bytes(c->run, s->size);
}

static bool str_isalpha(tj_call *c)
{
    return all_chars(c, is_letter);
}

static bool str_isdecimal(tj_call *c)
{
    return all_chars(c, is_decimal);
}

static bool str_isdigit(tj_call *c)
{
    return all_chars(c, is_digit);
}

static bool str_isalnum(tj_call *c)
{
    return all_chars(c, is_letter_or_number);
}

static bool str_isspace(tj_call *c)
{
    return all_chars(c, is_white);
}

/* Whether there are cased letters and all are of one case. */
static bool one_case(tj_call *c, utf8proc_category_t wanted)
{
    const tj_string *s = c->self.as.string;
    bool some = false, all = true;

    for (size_t at = 0; at < s->size && all;) {
        uint32_t code = 0;
        at += tr_utf8_decode(s->bytes + at, s->size - at, &code);
        if (is_cased(code)) {
            some = true;
            all = utf8proc_category((utf8proc_int32_t)code) == wanted;
        }
    }
    *c->out = tj_bool(some && all);
    return tj_charge_bytes(c->run, s->size);
}

static bool str_isupper(tj_call *c)
{
    return one_case(c, UTF8PROC_CATEGORY_LU);
}

static bool str_islower(tj_call *c)
{
    return one_case(c, UTF8PROC_CATEGORY_LL);
}

/* ---- dicts ---- */

typedef enum { PART_KEYS, PART_VALUES, PART_ITEMS } dict_part;

static bool dict_list(tj_call *c, dict_part part)
{
    const tj_dict *dict = c->self.as.dict;

    if (!tj_list_make(c->run, TJ_LIST, dict->count, c->out))
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        tj_value item = part == PART_KEYS ? dict->pairs[i].key : dict->pairs[i].value;
        if (part == PART_ITEMS && (!tj_list_make(c->run, TJ_TUPLE, 2, &item) ||
                                   !tj_list_push(c->run, item.as.list, dict->pairs[i].key) ||
                                   !tj_list_push(c->run, item.as.list, dict->pairs[i].value)))
            return false;
        if (!tj_list_push(c->run, c->out->as.list, item))
            return false;
    }
    return true;
}

static bool dict_keys(tj_call *c)
{
    return dict_list(c, PART_KEYS);
}

static bool dict_values(tj_call *c)
{
    return dict_list(c, PART_VALUES);
}

static bool dict_items(tj_call *c)
{
    return dict_list(c, PART_ITEMS);
}

static bool dict_get(tj_call *c)
{
    const tj_value *found;

    if (!tj_dict_find(c->run, c->self.as.dict, c->arg[0], &found))
        return false;
    *c->out = found != NULL ? *found : c->given[1] ? c->arg[1] : tj_none();
    return true;
}

static bool value_copy(tj_call *c)
{
    *c->out = c->self; /* values do not change, so the same one will do */
    return true;
}

/* ---- lists ---- */

static bool list_find(tj_call *c, int64_t *first, int64_t *count)
{
    const tj_list *list = c->self.as.list;

    *first = -1;
    *count = 0;
    for (size_t i = 0; i < list->count; i++) {
        bool equal;
        if (!tj_equal(c->run, list->items[i], c->arg[0], &equal))
            return false;
        if (equal && (*count)++ == 0)
            *first = (int64_t)i;
    }
    return true;
}

static bool list_index(tj_call *c)
{
    int64_t first, count;

    if (!list_find(c, &first, &count))
        return false;
    if (count == 0)
        return tj_fail(c->run, "the value is not in the list");
    *c->out = tj_int(first);
    return true;
}

static bool list_count(tj_call *c)
{
    int64_t first, count;

    if (!list_find(c, &first, &count))
        return false;
    *c->out = tj_int(count);
    return true;
}

/* Python's sandbox refuses these as well. */
static bool refuse_change(tj_call *c)
{
    return tj_fail(c->run, "%s would change a value, which a template may not", c->name);
}

const tj_builtin *tj_find_method(tj_kind kind, const tj_string *name)
{
    static const tj_builtin strings[] = {
        {"capitalize", "", 0, str_capitalize},
        {"count", "sub start end", 1, str_count},
        {"endswith", "suffix start end", 1, str_endswith},
        {"find", "sub start end", 1, str_find},
        {"index", "sub start end", 1, str_index},
        {"isalnum", "", 0, str_isalnum},
        {"isalpha", "", 0, str_isalpha},
        {"isdecimal", "", 0, str_isdecimal},
        {"isdigit", "", 0, str_isdigit},
        {"islower", "", 0, str_islower},
        {"isspace", "", 0, str_isspace},
        {"isupper", "", 0, str_isupper},
        {"join", "iterable", 1, str_join},
        {"lower", "", 0, str_lower},
        {"lstrip", "chars", 0, str_lstrip},
        {"removeprefix", "prefix", 1, str_removeprefix},
        {"removesuffix", "suffix", 1, str_removesuffix},
        {"replace", "old new count", 2, str_replace},
        {"rfind", "sub start end", 1, str_rfind},
        {"rindex", "sub start end", 1, str_rindex},
        {"rsplit", "sep maxsplit", 0, str_rsplit},
        {"rstrip", "chars", 0, str_rstrip},
        {"split", "sep maxsplit", 0, str_split},
        {"splitlines", "keepends", 0, str_splitlines},
        {"startswith", "prefix start end", 1, str_startswith},
        {"strip", "chars", 0, str_strip},
        {"title", "", 0, str_title},
        {"upper", "", 0, str_upper},
    };
    static const tj_builtin dicts[] = {
        {"clear", NULL, 0, refuse_change},   {"copy", "", 0, value_copy},
        {"get", "key default", 1, dict_get}, {"items", "", 0, dict_items},
        {"keys", "", 0, dict_keys},          {"pop", NULL, 0, refuse_change},
        {"popitem", NULL, 0, refuse_change}, {"setdefault", NULL, 0, refuse_change},
        {"update", NULL, 0, refuse_change},  {"values", "", 0, dict_values},
    };
    static const tj_builtin lists[] = {
        {"append", NULL, 0, refuse_change}, {"clear", NULL, 0, refuse_change},
        {"copy", "", 0, value_copy},        {"count", "value", 1, list_count},
        {"extend", NULL, 0, refuse_change}, {"index", "value", 1, list_index},
        {"insert", NULL, 0, refuse_change}, {"pop", NULL, 0, refuse_change},
        {"remove", NULL, 0, refuse_change}, {"reverse", NULL, 0, refuse_change},
        {"sort", NULL, 0, refuse_change},
    };
    static const tj_builtin tuples[] = {
        {"count", "value", 1, list_count},
        {"index", "value", 1, list_index},
    };

    switch (kind) {
    case TJ_STRING:
        return tj_find_builtin(strings, sizeof(strings) / sizeof(strings[0]), name);
    case TJ_DICT:
        return tj_find_builtin(dicts, sizeof(dicts) / sizeof(dicts[0]), name);
    case TJ_LIST:
        return tj_find_builtin(lists, sizeof(lists) / sizeof(lists[0]), name);
    case TJ_TUPLE:
        return tj_find_builtin(tuples, sizeof(tuples) / sizeof(tuples[0]), name);
    default:
        return NULL;
    }
}
