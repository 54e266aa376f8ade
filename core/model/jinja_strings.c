/* jinja_strings.c - what filters and methods do with strings. */
#include "core/model/jinja_builtins.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <string.h>
#include <utf8proc.h>

bool tj_is_space(uint32_t code)
{
    return tr_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

/* Upper-case forms of more than one character, from SpecialCasing.txt: those that occur in text. */
static const struct {
    uint32_t code;
    const char *upper;
} long_upper[] = {{0xDF, "SS"},   {0x149, "\u02BCN"}, {0x1F0, "J\u030C"}, {0xFB00, "FF"},
                  {0xFB01, "FI"}, {0xFB02, "FL"},     {0xFB03, "FFI"},    {0xFB04, "FFL"},
                  {0xFB05, "ST"}, {0xFB06, "ST"}};

static bool put_changed(tj_run *run, tj_builder *b, uint32_t code, bool upper, bool input)
{
    if (!upper && code == 0x130) /* capital I with dot */
        return tj_put_text(run, b, "i\u0307", input);
    for (size_t i = 0; upper && i < sizeof(long_upper) / sizeof(long_upper[0]); i++)
        if (code == long_upper[i].code)
            return tj_put_text(run, b, long_upper[i].upper, input);
    utf8proc_int32_t changed =
        upper ? utf8proc_toupper((utf8proc_int32_t)code) : utf8proc_tolower((utf8proc_int32_t)code);
    return tj_put_code(run, b, (uint32_t)changed, input);
}

static bool put_case(tj_run *run, tj_builder *b, const tj_string *s, size_t start, size_t end,
                     bool upper)
{
    for (size_t at = start; at < end;) {
        uint32_t code;
        size_t length = tr_utf8_decode(s->bytes + at, end - at, &code);
        assert(length > 0);
        if (!put_changed(run, b, code, upper, tj_mark(s, at)))
            return false;
        at += length;
    }
    return tj_charge_bytes(run, end - start);
}

bool tj_change_case(tj_run *run, const tj_string *s, bool upper, tj_value *out)
{
    tj_builder b = {0};

    return put_case(run, &b, s, 0, s->size, upper) && tj_built(run, &b, out);
}

bool tj_capitalize(tj_run *run, const tj_string *s, tj_value *out)
{
    size_t first = tj_string_offset(s, 1);
    tj_builder b = {0};

    return put_case(run, &b, s, 0, first, true) && put_case(run, &b, s, first, s->size, false) &&
           tj_built(run, &b, out);
}

/* Whether the character at bytes [start, end) of s is to be stripped: white space without chars,
 * otherwise one of them. */
static bool is_stripped(const tj_string *s, size_t start, size_t end, const tj_string *chars)
{
    uint32_t code;

    if (chars != NULL) {
        const tj_string one = {.bytes = s->bytes + start, .size = end - start};
        return tj_string_find(chars, &one, 0, chars->size, false) != SIZE_MAX;
    }
    return tr_utf8_decode(s->bytes + start, end - start, &code) > 0 && tj_is_space(code);
}

bool tj_strip(tj_run *run, const tj_string *s, const tj_string *chars, bool left, bool right,
              tj_value *out)
{
    size_t start = 0, end = s->size;

    while (left && start < end) {
        size_t next = start + 1;
        while (next < end && ((unsigned char)s->bytes[next] & 0xC0) == 0x80)
            next++;
        if (!is_stripped(s, start, next, chars))
            break;
        start = next;
    }
    while (right && end > start) {
        size_t before = end - 1;
        while (before > start && ((unsigned char)s->bytes[before] & 0xC0) == 0x80)
            before--;
        if (!is_stripped(s, before, end, chars))
            break;
        end = before;
    }
    return tj_charge_bytes(run,
                           (s->size - (end - start)) * (chars == NULL ? 1 : 1 + chars->size)) &&
           tj_string_cut(run, s, start, end, out);
}

bool tj_replace(tj_run *run, const tj_string *s, const tj_string *old, const tj_string *with,
                int64_t count, tj_value *out)
{
    tj_builder b = {0};
    size_t at = 0;

    if (!tj_charge_bytes(run, s->size))
        return false;
    for (; count != 0 && at <= s->size; count -= count > 0) {
        size_t found = tj_string_find(s, old, at, s->size, false);
        if (found == SIZE_MAX)
            break;
        if (!tj_charge(run, 1) || !tj_put_part(run, &b, s, at, found) ||
            !tj_put_string(run, &b, with))
            return false;
        at = found + old->size;
        if (old->size == 0) { /* between all characters, as in Python */
            const tj_string rest = {.bytes = s->bytes + at, .size = s->size - at};
            size_t length = tj_string_offset(&rest, 1);
            if (!tj_put_part(run, &b, s, at, at + length))
                return false;
            at += length == 0 ? 1 : length;
        }
    }
    return (at >= s->size || tj_put_part(run, &b, s, at, s->size)) && tj_built(run, &b, out);
}
