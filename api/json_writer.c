#include "api/json_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void tr_json_init(tr_json *w, char *out, size_t capacity)
{
    *w = (tr_json){.out = out, .capacity = capacity};
}

void tr_json_raw(tr_json *w, const char *bytes, size_t size)
{
    if (w->overflow || size > w->capacity - w->size) {
        w->overflow = true;
        return;
    }
    if (size == 0)
        return; /* bytes may be NULL */
    memcpy(w->out + w->size, bytes, size);
    w->size += size;
}

static void json_before_value(tr_json *w)
{
    if (w->comma)
        tr_json_raw(w, ",", 1);
    w->comma = true;
}

static void json_begin(tr_json *w, const char *bracket)
{
    json_before_value(w);
    tr_json_raw(w, bracket, 1);
    w->comma = false;
}

static void json_end(tr_json *w, const char *bracket)
{
    tr_json_raw(w, bracket, 1);
    w->comma = true;
}

void tr_json_object_begin(tr_json *w)
{
    json_begin(w, "{");
}

void tr_json_object_end(tr_json *w)
{
    json_end(w, "}");
}

void tr_json_array_begin(tr_json *w)
{
    json_begin(w, "[");
}

void tr_json_array_end(tr_json *w)
{
    json_end(w, "]");
}

/* Bytes of the UTF-8 character at text, 0 when there is none (RFC 3629: no surrogates, no
 * overlong forms, nothing above U+10FFFF). */
static size_t json_character_size(const unsigned char *text, size_t size)
{
    unsigned char c = text[0];
    if (c < 0x80)
        return 1;
    size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || length > size)
        return 0;
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return length;
}

static bool json_is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\';
}

static void json_escape_ascii(tr_json *w, unsigned char c)
{
    static const char codes[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                 ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    char text[8];
    if (codes[c] != 0) {
        text[0] = '\\';
        text[1] = codes[c];
        tr_json_raw(w, text, 2);
    } else {
        tr_json_raw(w, text, (size_t)snprintf(text, sizeof(text), "\\u%04x", c));
    }
}

void tr_json_escaped(tr_json *w, const char *text, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t start = 0; /* of the run that can be copied */
    size_t i = 0;
    if (size == 0)
        return; /* text may be NULL */
    while (i < size) {
        size_t length = json_character_size(bytes + i, size - i);
        if (length > 1 || (length == 1 && json_is_plain(bytes[i]))) {
            i += length;
            continue;
        }
        tr_json_raw(w, text + start, i - start);
        if (length == 0)
            tr_json_raw(w, "\xef\xbf\xbd", 3);
        else
            json_escape_ascii(w, bytes[i]);
        start = ++i;
    }
    tr_json_raw(w, text + start, size - start);
}

void tr_json_text(tr_json *w, const char *text, size_t size)
{
    json_before_value(w);
    tr_json_raw(w, "\"", 1);
    tr_json_escaped(w, text, size);
    tr_json_raw(w, "\"", 1);
}

void tr_json_string(tr_json *w, const char *text)
{
    tr_json_text(w, text, strlen(text));
}

void tr_json_key(tr_json *w, const char *key)
{
    tr_json_string(w, key);
    tr_json_raw(w, ":", 1);
    w->comma = false;
}

void tr_json_int(tr_json *w, int64_t value)
{
    char text[24];
    json_before_value(w);
    tr_json_raw(w, text, (size_t)snprintf(text, sizeof(text), "%lld", (long long)value));
}

void tr_json_number(tr_json *w, double value)
{
    char text[32];
    json_before_value(w);
    if (isfinite(value))
        tr_json_raw(w, text, (size_t)snprintf(text, sizeof(text), "%.9g", value));
    else
        tr_json_raw(w, "null", 4);
}

void tr_json_bool(tr_json *w, bool value)
{
    json_before_value(w);
    tr_json_raw(w, value ? "true" : "false", value ? 4 : 5);
}

void tr_json_null(tr_json *w)
{
    json_before_value(w);
    tr_json_raw(w, "null", 4);
}

void tr_json_pair_string(tr_json *w, const char *key, const char *value)
{
    tr_json_key(w, key);
    tr_json_string(w, value);
}

void tr_json_pair_int(tr_json *w, const char *key, int64_t value)
{
    tr_json_key(w, key);
    tr_json_int(w, value);
}
