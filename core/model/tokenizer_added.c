/* tokenizer_added.c - finds added tokens in a text.
 *
 * The tokens are sorted by text, so those that begin with the bytes seen so far are a range that
 * each further byte narrows by binary search. */
#include "core/model/tokenizer_impl.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tr_status tr_added_push(tr_added_set *set, const tr_added *added, const char *where, tr_error *err)
{
    assert(added->size > 0);
    if (set->count == set->capacity) {
        uint32_t capacity = set->capacity == 0 ? 32 : 2 * set->capacity;
        tr_added *items = realloc(set->items, capacity * sizeof(*items));
        if (items == NULL)
            return tr_fail(err, TR_E_NOMEM, "%s: no memory for added tokens", where);
        set->items = items;
        set->capacity = capacity;
    }
    char *text = malloc(added->size + 1);
    if (text == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for added tokens", where);
    memcpy(text, added->text, added->size);
    text[added->size] = '\0';
    set->items[set->count] = *added;
    set->items[set->count].text = text;
    set->count++;
    return TR_OK;
}

static int added_compare(const void *a, const void *b)
{
    const tr_added *x = a, *y = b;
    size_t common = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->text, y->text, common);

    if (order != 0)
        return order;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void tr_added_seal(tr_added_set *set)
{
    if (set->count > 0)
        qsort(set->items, set->count, sizeof(*set->items), added_compare);
}

void tr_added_free(tr_added_set *set)
{
    for (uint32_t i = 0; i < set->count; i++)
        free((char *)set->items[i].text);
    free(set->items);
    *set = (tr_added_set){0};
}

/* First item in [low, high) whose byte at depth is >= byte; items that end at depth come first. */
static uint32_t added_lower_bound(const tr_added_set *set, uint32_t low, uint32_t high,
                                  size_t depth, unsigned int byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tr_added *item = &set->items[middle];
        if (item->size <= depth || (unsigned char)item->text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that text [size] begins with, NULL when there is none. */
static const tr_added *added_longest(const tr_added_set *set, const char *text, size_t size)
{
    const tr_added *found = NULL;
    uint32_t low = 0, high = set->count;

    for (size_t depth = 0; depth < size && low < high; depth++) {
        unsigned int byte = (unsigned char)text[depth];
        low = added_lower_bound(set, low, high, depth, byte);
        high = added_lower_bound(set, low, high, depth, byte + 1);
        if (low < high && set->items[low].size == depth + 1)
            found = &set->items[low];
    }
    return found;
}

/* Start of the character that ends at end. Broken UTF-8 counts as one byte. */
static size_t char_before(const char *text, size_t end, uint32_t *code)
{
    size_t start = end - 1;

    while (start > 0 && end - start < 4 && ((unsigned char)text[start] & 0xC0) == 0x80)
        start--;
    if (tr_utf8_decode(text + start, end - start, code) == end - start)
        return start;
    *code = 0xFFFD;
    return end - 1;
}

static bool touches_word(const char *text, size_t size, size_t start, size_t end)
{
    uint32_t code;

    if (start > 0) {
        char_before(text, start, &code);
        if (tr_utf8_is_word(code))
            return true;
    }
    return end < size && tr_utf8_decode(text + end, size - end, &code) != 0 &&
           tr_utf8_is_word(code);
}

static size_t spaces_before(const char *text, size_t floor, size_t start)
{
    uint32_t code;

    while (start > floor) {
        size_t before = char_before(text, start, &code);
        if (!tr_utf8_is_space(code) || before < floor)
            break;
        start = before;
    }
    return start;
}

static size_t spaces_after(const char *text, size_t size, size_t end)
{
    uint32_t code;

    while (end < size) {
        size_t length = tr_utf8_decode(text + end, size - end, &code);
        if (length == 0 || !tr_utf8_is_space(code))
            break;
        end += length;
    }
    return end;
}

bool tr_added_next(const tr_added_set *set, const char *text, size_t size, size_t *scan,
                   size_t floor, bool specials, const unsigned char *input, tr_added_hit *hit)
{
    if (set->count == 0)
        return false;
    while (*scan < size) {
        const tr_added *item = added_longest(set, text + *scan, size - *scan);
        if (item == NULL) {
            (*scan)++;
            continue;
        }
        size_t start = *scan, end = start + item->size;
        *scan = end;
        if (item->special &&
            (!specials || (input != NULL && memchr(input + start, 1, item->size) != NULL)))
            continue;
        if (item->single_word && touches_word(text, size, start, end))
            continue;
        hit->start = item->lstrip ? spaces_before(text, floor, start) : start;
        hit->end = item->rstrip ? spaces_after(text, size, end) : end;
        hit->id = item->id;
        return true;
    }
    return false;
}
