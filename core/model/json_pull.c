#include "core/model/json_pull.h"

#include "core/model/json.h"
#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(TR_JSON_DEPTH_MAX <= 64, "begun has a bit for each depth");

void tr_json_pull_open(tr_json_pull *p, const char *name, const char *text, size_t size,
                       tr_error *err)
{
    *p = (tr_json_pull){.name = name, .text = text, .size = size, .err = err};
}

void tr_json_pull_close(tr_json_pull *p)
{
    free(p->decoded);
    p->decoded = NULL;
}

/* The first error, with line and column of where reading stands. */
static tr_status pull_fail(tr_json_pull *p, const char *found, const char *expected)
{
    size_t line = 1, column = 1;

    if (p->failed)
        return TR_E_INVALID;
    p->failed = true;
    for (size_t i = 0; i < p->at && i < p->size; i++) {
        column = p->text[i] == '\n' ? 1 : column + 1;
        line += p->text[i] == '\n';
    }
    return tr_fail(p->err, TR_E_INVALID, "%s: line %zu, column %zu: %s, expected %s", p->name, line,
                   column, found, expected);
}

/* The next byte behind white space, -1 at the end. */
static int pull_peek(tr_json_pull *p)
{
    while (p->at < p->size && (p->text[p->at] == ' ' || p->text[p->at] == '\n' ||
                               p->text[p->at] == '\r' || p->text[p->at] == '\t'))
        p->at++;
    return p->at < p->size ? (unsigned char)p->text[p->at] : -1;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* Bytes of the number at text, 0 when it is none. *integer: no fraction and no exponent. */
static size_t number_size(const char *text, size_t size, bool *integer)
{
    size_t at = 0, begin;

    *integer = true;
    if (at < size && text[at] == '-')
        at++;
    begin = at;
    while (at < size && is_digit(text[at]))
        at++;
    if (at == begin || (text[begin] == '0' && at > begin + 1))
        return 0;
    if (at < size && text[at] == '.') {
        begin = ++at;
        while (at < size && is_digit(text[at]))
            at++;
        if (at == begin)
            return 0;
        *integer = false;
    }
    if (at < size && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < size && (text[at] == '+' || text[at] == '-'))
            at++;
        begin = at;
        while (at < size && is_digit(text[at]))
            at++;
        if (at == begin)
            return 0;
        *integer = false;
    }
    return at;
}

const char *tr_json_pull_kind(tr_json_pull *p)
{
    bool integer;
    int c = pull_peek(p);

    switch (c) {
    case '{':
        return "an object";
    case '[':
        return "a list";
    case '"':
        return "a string";
    case 't':
        return "true";
    case 'f':
        return "false";
    case 'n':
        return "null";
    case -1:
        return "nothing";
    }
    if (number_size(p->text + p->at, p->size - p->at, &integer) == 0)
        return "something unknown";
    return integer ? "an integer" : "a number with a fraction";
}

bool tr_json_pull_is(tr_json_pull *p, const char *kind)
{
    return strcmp(tr_json_pull_kind(p), kind) == 0;
}

/* ---- containers ---- */

static tr_status pull_enter(tr_json_pull *p, char open, const char *expected)
{
    if (p->failed || pull_peek(p) != open)
        return pull_fail(p, tr_json_pull_kind(p), expected);
    if (p->depth == TR_JSON_DEPTH_MAX)
        return pull_fail(p, "values nested deeper than 64 levels", "fewer");
    p->begun &= ~((uint64_t)1 << p->depth);
    p->depth++;
    p->at++;
    return TR_OK;
}

tr_status tr_json_pull_object(tr_json_pull *p)
{
    return pull_enter(p, '{', "an object");
}

tr_status tr_json_pull_array(tr_json_pull *p)
{
    return pull_enter(p, '[', "a list");
}

/* Steps over a comma to the next element, or over the closing bracket. */
static tr_status pull_next(tr_json_pull *p, char close, bool *more)
{
    assert(p->failed || p->depth > 0);
    *more = false;
    if (p->failed)
        return TR_E_INVALID;
    uint64_t bit = (uint64_t)1 << (p->depth - 1);
    int c = pull_peek(p);
    if (c == close) {
        p->depth--;
        p->at++;
        return TR_OK;
    }
    if ((p->begun & bit) != 0) {
        if (c != ',')
            return pull_fail(p, tr_json_pull_kind(p), close == '}' ? "',' or '}'" : "',' or ']'");
        p->at++;
    }
    p->begun |= bit;
    *more = true;
    return TR_OK;
}

tr_status tr_json_pull_key(tr_json_pull *p, const char **key, size_t *size, bool *more)
{
    tr_status status = pull_next(p, '}', more);

    if (status != TR_OK || !*more)
        return status;
    *more = false;
    status = tr_json_pull_text(p, key, size);
    if (status != TR_OK)
        return status;
    if (pull_peek(p) != ':')
        return pull_fail(p, tr_json_pull_kind(p), "':'");
    p->at++;
    *more = true;
    return TR_OK;
}

tr_status tr_json_pull_item(tr_json_pull *p, bool *more)
{
    return pull_next(p, ']', more);
}

/* ---- values ---- */

/* Four hexadecimal digits at text, -1 when they are none. */
static int32_t hex4(const char *text, size_t size)
{
    int32_t value = 0;

    for (size_t i = 0; i < 4; i++) {
        int c = i < size ? (unsigned char)text[i] : -1;
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = 16 * value + digit;
    }
    return value;
}

/* The character of the escape \uXXXX at text (on the backslash), *size its bytes; -1: none. */
static int32_t unicode_escape(const char *text, size_t rest, size_t *size)
{
    int32_t code = hex4(text + 2, rest - 2), low;

    *size = 6;
    if (code < 0xD800 || code > 0xDFFF)
        return code == 0 ? -1 : code;
    if (code > 0xDBFF || rest < 12 || text[6] != '\\' || text[7] != 'u')
        return -1;
    low = hex4(text + 8, rest - 8);
    *size = 12;
    return low < 0xDC00 || low > 0xDFFF ? -1 : 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
}

/* Writes the text of an escape to out, returns its bytes in the file; 0: it is none. */
static size_t pull_escape(const char *text, size_t rest, char *out, size_t *used)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    size_t size;

    if (rest < 2)
        return 0;
    if (text[1] == 'u') {
        int32_t code = unicode_escape(text, rest, &size);
        if (code < 0)
            return 0;
        *used += tr_utf8_encode((uint32_t)code, out + *used);
        return size;
    }
    const char *letter = text[1] == '\0' ? NULL : strchr(letters, text[1]);
    if (letter == NULL)
        return 0;
    out[(*used)++] = values[letter - letters];
    return 2;
}

/* Decodes text [size], which has escapes, into p->decoded. */
static tr_status pull_decode(tr_json_pull *p, const char *text, size_t size, size_t *used)
{
    if (size > p->decoded_max) { /* an escape is at least as long as what it stands for */
        free(p->decoded);
        p->decoded_max = 2 * size;
        p->decoded = malloc(p->decoded_max);
        if (p->decoded == NULL) {
            p->failed = true;
            p->decoded_max = 0;
            return tr_fail(p->err, TR_E_NOMEM, "%s: no memory for a string", p->name);
        }
    }
    *used = 0;
    for (size_t at = 0; at < size;) {
        if (text[at] != '\\') {
            p->decoded[(*used)++] = text[at++];
            continue;
        }
        size_t escape = pull_escape(text + at, size - at, p->decoded, used);
        if (escape == 0) {
            p->at = (size_t)(text - p->text) + at;
            return pull_fail(p, "a backslash", "an escape of JSON other than \\u0000");
        }
        at += escape;
    }
    return TR_OK;
}

tr_status tr_json_pull_text(tr_json_pull *p, const char **text, size_t *size)
{
    bool escapes = false, ascii = true;

    if (p->failed || pull_peek(p) != '"')
        return pull_fail(p, tr_json_pull_kind(p), "a string");
    size_t begin = ++p->at;
    while (p->at < p->size && p->text[p->at] != '"') {
        unsigned char c = (unsigned char)p->text[p->at];
        if (c < 0x20)
            return pull_fail(p, "a control character in a string", "\" at its end");
        ascii = ascii && c < 0x80;
        if (c == '\\') {
            escapes = true;
            p->at++;
        }
        p->at++;
    }
    if (p->at >= p->size) {
        p->at = begin - 1;
        return pull_fail(p, "a string without end", "\" at its end");
    }
    *text = p->text + begin;
    *size = p->at - begin;
    if (!ascii && tr_utf8_valid_prefix(*text, *size) != *size) {
        p->at = begin + tr_utf8_valid_prefix(*text, *size);
        return pull_fail(p, "bytes that are not UTF-8", "valid UTF-8");
    }
    if (escapes) {
        tr_status status = pull_decode(p, *text, *size, size);
        if (status != TR_OK)
            return status;
        *text = p->decoded;
    }
    p->at++;
    return TR_OK;
}

tr_status tr_json_pull_u64(tr_json_pull *p, uint64_t *value)
{
    bool integer;
    uint64_t sum = 0;

    if (p->failed || pull_peek(p) < 0)
        return pull_fail(p, "nothing", "an integer");
    const char *text = p->text + p->at;
    size_t size = number_size(text, p->size - p->at, &integer);
    if (size == 0 || !integer || text[0] == '-')
        return pull_fail(p, size > 0 && integer ? "a negative integer" : tr_json_pull_kind(p),
                         "an integer of at least 0");
    for (size_t i = 0; i < size; i++)
        if (__builtin_mul_overflow(sum, 10u, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(text[i] - '0'), &sum) || sum > INT64_MAX)
            return pull_fail(p, "an integer that is too big", "at most 2^63 - 1");
    p->at += size;
    *value = sum;
    return TR_OK;
}

/* true, false, null or a number. */
static tr_status pull_skip_plain(tr_json_pull *p)
{
    static const char *const words[] = {"true", "false", "null"};
    const char *text = p->text + p->at;
    size_t rest = p->size - p->at;
    bool integer;

    for (size_t i = 0; i < 3; i++) {
        size_t size = strlen(words[i]);
        if (rest >= size && memcmp(text, words[i], size) == 0) {
            p->at += size;
            return TR_OK;
        }
    }
    size_t size = number_size(text, rest, &integer);
    if (size == 0)
        return pull_fail(p, tr_json_pull_kind(p), "a value");
    p->at += size;
    return TR_OK;
}

/* Steps to the next value inside the container, whichever it is; *more false when it has ended. */
static tr_status pull_step(tr_json_pull *p, bool object, bool *more)
{
    const char *key;
    size_t size;

    return object ? tr_json_pull_key(p, &key, &size, more) : tr_json_pull_item(p, more);
}

tr_status tr_json_pull_skip(tr_json_pull *p)
{
    uint32_t outside = p->depth;
    uint64_t objects = 0; /* bit d: the container at depth d is an object */

    if (p->failed)
        return TR_E_INVALID;
    do {
        const char *text;
        size_t size;
        bool more = false;
        int c = pull_peek(p);
        tr_status status = c == '{'   ? tr_json_pull_object(p)
                           : c == '[' ? tr_json_pull_array(p)
                           : c == '"' ? tr_json_pull_text(p, &text, &size)
                                      : pull_skip_plain(p);

        if (status == TR_OK && (c == '{' || c == '[')) {
            uint64_t bit = (uint64_t)1 << (p->depth - 1);
            objects = c == '{' ? objects | bit : objects & ~bit;
        }
        while (status == TR_OK && !more && p->depth > outside)
            status = pull_step(p, (objects >> (p->depth - 1) & 1) != 0, &more);
        if (status != TR_OK)
            return status;
    } while (p->depth > outside);
    return TR_OK;
}

tr_status tr_json_pull_end(tr_json_pull *p)
{
    if (p->failed || pull_peek(p) >= 0)
        return pull_fail(p, tr_json_pull_kind(p), "the end");
    return TR_OK;
}
