/* jinja_lexer.c - cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks.
 *
 * White space:  {%- and -%} (also on {{ and {#) take all white space on their side. Without a sign,
 * a block or comment takes the blanks between it and the start of its line, and one newline behind
 * it. A plus sign keeps both. The last newline of the source is dropped. */
#include "core/model/jinja_lexer.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BRACKETS_MAX 64

typedef struct {
    tj_arena *arena;
    const char *name;
    const char *source; /* newlines are \n */
    size_t size, at;
    uint32_t line, column; /* of source[counted] */
    size_t counted;
    tj_token *tokens;
    size_t count, capacity;
    tr_error *err;
} lexer;

/* ---- places and errors ---- */

/* Moves line and column on to offset; offsets only grow. */
static void locate(lexer *l, size_t offset)
{
    for (; l->counted < offset; l->counted++) {
        unsigned char byte = (unsigned char)l->source[l->counted];
        if (byte == '\n') {
            l->line++;
            l->column = 1;
        } else if ((byte & 0xC0) != 0x80) {
            l->column++;
        }
    }
}

static tr_status fail_at(lexer *l, size_t offset, const char *text)
{
    locate(l, offset);
    return tr_fail(l->err, TR_E_INVALID, "%s:%u:%u: %s", l->name, l->line, l->column, text);
}

static tr_status fail_memory(const lexer *l)
{
    return tr_fail(l->err, TR_E_NOMEM, "%s: no memory to read the template", l->name);
}

static tr_status push(lexer *l, size_t offset, tj_token token)
{
    if (l->count == l->capacity) {
        size_t capacity = l->capacity == 0 ? 256 : 2 * l->capacity;
        tj_token *tokens =
            tj_arena_take(l->arena, capacity * sizeof(*tokens), TJ_TEMPLATE_BYTES_MAX);
        if (tokens == NULL)
            return fail_memory(l);
        if (l->count > 0)
            memcpy(tokens, l->tokens, l->count * sizeof(*tokens));
        l->tokens = tokens;
        l->capacity = capacity;
    }
    locate(l, offset);
    token.line = l->line;
    token.column = l->column;
    l->tokens[l->count++] = token;
    return TR_OK;
}

static tr_status push_text(lexer *l, tj_token_kind kind, size_t start, size_t end)
{
    return push(l, start, (tj_token){.kind = kind, .text = l->source + start, .size = end - start});
}

/* ---- characters ---- */

static int byte_at(const lexer *l, size_t offset)
{
    return offset < l->size ? (unsigned char)l->source[offset] : -1;
}

static bool starts(const lexer *l, size_t offset, const char *text)
{
    size_t length = strlen(text);
    return offset <= l->size && l->size - offset >= length &&
           memcmp(l->source + offset, text, length) == 0;
}

/* What Python's \s and str.strip take: White_Space and the four separators of ASCII. */
static size_t space_length(const lexer *l, size_t offset)
{
    uint32_t code;

    if (offset >= l->size)
        return 0;
    size_t length = tr_utf8_decode(l->source + offset, l->size - offset, &code);
    return tr_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F) ? length : 0;
}

static size_t skip_spaces(const lexer *l, size_t offset)
{
    for (size_t length; (length = space_length(l, offset)) > 0;)
        offset += length;
    return offset;
}

/* End of [start, end) without the white space at its end. */
static size_t strip_end(const lexer *l, size_t start, size_t end)
{
    while (end > start) {
        size_t before = end - 1;
        while (before > start && ((unsigned char)l->source[before] & 0xC0) == 0x80)
            before--;
        if (space_length(l, before) != end - before)
            break;
        end = before;
    }
    return end;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(int c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* ---- inside a tag ---- */

/* One escape of a string literal, as Python's unicode-escape reads it. */
static bool unescape(const char *text, size_t size, size_t *at, char *out, size_t *used)
{
    static const char letters[] = "abfnrtv\\'\"", meanings[] = "\a\b\f\n\r\t\v\\'\"";
    char c = text[*at + 1];
    const char *letter = c == '\0' ? NULL : strchr(letters, c);
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;

    if (letter != NULL) {
        out[(*used)++] = meanings[letter - letters];
        *at += 2;
        return true;
    }
    if (c == '\n') { /* a joined line */
        *at += 2;
        return true;
    }
    if (c >= '0' && c <= '7') {
        *at += 1;
        for (digits = 0; digits < 3 && *at < size && text[*at] >= '0' && text[*at] <= '7'; digits++)
            code = code * 8 + (uint32_t)(text[(*at)++] - '0');
        *used += tr_utf8_encode(code, out + *used);
        return true;
    }
    if (digits == 0) { /* not an escape: both characters stay */
        out[(*used)++] = '\\';
        *at += 1;
        return c != 'N';
    }
    if (size - *at < 2 + digits)
        return false;
    for (size_t i = 0; i < digits; i++) {
        char digit[2] = {text[*at + 2 + i], '\0'}, *end;
        uint32_t value = (uint32_t)strtoul(digit, &end, 16);
        if (end == digit)
            return false;
        code = code * 16 + value;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return false;
    *used += tr_utf8_encode(code, out + *used);
    *at += 2 + digits;
    return true;
}

static tr_status lex_string(lexer *l)
{
    size_t start = l->at, at = start + 1, used = 0;
    int quote = byte_at(l, start);

    while (byte_at(l, at) != quote) {
        if (at >= l->size)
            return fail_at(l, start, "a string without its closing quote");
        at += byte_at(l, at) == '\\' ? 2 : 1;
    }
    size_t end = at;
    if (end > l->size)
        return fail_at(l, start, "a string without its closing quote");
    /* An escape is never shorter than what it stands for. */
    char *text = tj_arena_take(l->arena, end - start, TJ_TEMPLATE_BYTES_MAX);
    if (text == NULL)
        return fail_memory(l);
    for (at = start + 1; at < end;) {
        if (l->source[at] != '\\')
            text[used++] = l->source[at++];
        else if (!unescape(l->source, end, &at, text, &used))
            return fail_at(l, at,
                           "an escape that is not one of \\n \\t \\r \\\\ \\' \\\" \\xHH \\uHHHH "
                           "\\UHHHHHHHH \\ooo");
    }
    l->at = end + 1;
    return push(l, start, (tj_token){.kind = TJ_TOKEN_STRING, .text = text, .size = used});
}

/* Digits with single underscores between them: end of the run that begins at offset. */
static size_t digits_end(const lexer *l, size_t offset)
{
    while (is_digit(byte_at(l, offset)) ||
           (byte_at(l, offset) == '_' && is_digit(byte_at(l, offset + 1))))
        offset++;
    return offset;
}

static tr_status lex_number(lexer *l)
{
    size_t start = l->at, end = digits_end(l, start), used = 0;
    bool index = start > 0 && l->source[start - 1] == '.'; /* x.0.1 holds two integers */
    bool real = false;
    char text[64], *stop;
    tj_token token = {.kind = TJ_TOKEN_INTEGER};

    if (!index && byte_at(l, end) == '.' && is_digit(byte_at(l, end + 1))) {
        real = true;
        end = digits_end(l, end + 1);
    }
    if (!index && (byte_at(l, end) | 0x20) == 'e') {
        size_t sign = byte_at(l, end + 1) == '+' || byte_at(l, end + 1) == '-';
        if (is_digit(byte_at(l, end + 1 + sign))) {
            real = true;
            end = digits_end(l, end + 1 + sign);
        }
    }
    if (is_word(byte_at(l, end)))
        return fail_at(l, start, "a number that is not decimal");
    for (size_t i = start; i < end; i++)
        if (l->source[i] != '_' && used < sizeof(text) - 1)
            text[used++] = l->source[i];
    text[used] = '\0';
    if (!real && used > 1 && text[0] == '0' && strspn(text, "0") != used)
        return fail_at(l, start, "an integer with a leading zero");
    errno = 0;
    if (real) {
        token.kind = TJ_TOKEN_FLOAT;
        token.real = strtod(text, &stop);
    } else {
        token.integer = strtoll(text, &stop, 10);
    }
    if (used == sizeof(text) - 1 || errno != 0 || *stop != '\0')
        return fail_at(l, start, "a number beyond 64 bits");
    l->at = end;
    return push(l, start, token);
}

static tr_status lex_operator(lexer *l, char *brackets, uint32_t *depth)
{
    static const char *const two[] = {"==", "!=", ">=", "<=", "//", "**"};
    size_t start = l->at, length = 0;
    int c = byte_at(l, start);

    for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++)
        if (starts(l, start, two[i]))
            length = 2;
    if (length == 0 && c > 0 && strchr("+-*/%~[](){}><=.:|,;", c) != NULL)
        length = 1;
    if (length == 0)
        return fail_at(l, start, "a character that has no meaning here");
    if (c == '(' || c == '[' || c == '{') {
        if (*depth == BRACKETS_MAX)
            return fail_at(l, start, "brackets nested more than 64 deep");
        brackets[(*depth)++] = (char)(c == '(' ? ')' : c + 2);
    } else if (c == ')' || c == ']' || c == '}') {
        if (*depth == 0 || brackets[*depth - 1] != c)
            return fail_at(l, start, "a closing bracket that does not fit");
        (*depth)--;
    }
    l->at += length;
    return push_text(l, TJ_TOKEN_OPERATOR, start, l->at);
}

/* Length of the end of a tag at offset, signs included; 0 when it is none. */
static size_t tag_end_length(const lexer *l, size_t offset, bool print)
{
    const char *end = print ? "}}" : "%}";

    if (starts(l, offset, end))
        return 2;
    if (byte_at(l, offset) == '-' || (byte_at(l, offset) == '+' && !print))
        return starts(l, offset + 1, end) ? 3 : 0;
    return 0;
}

/* Moves behind the end of a tag [start, start + length) and the white space that it takes. */
static void pass_tag_end(lexer *l, size_t start, size_t length, bool trims)
{
    l->at = start + length;
    if (byte_at(l, start) == '-')
        l->at = skip_spaces(l, l->at);
    else if (trims && byte_at(l, start) != '+' && byte_at(l, l->at) == '\n')
        l->at++;
}

/* From behind {% or {{ to behind its end. */
static tr_status lex_tag(lexer *l, bool print)
{
    char brackets[BRACKETS_MAX];
    uint32_t depth = 0;
    tr_status status = TR_OK;

    while (status == TR_OK) {
        l->at = skip_spaces(l, l->at);
        int c = byte_at(l, l->at);
        size_t end = depth == 0 ? tag_end_length(l, l->at, print) : 0;
        if (end > 0) {
            size_t start = l->at;
            status =
                push(l, start, (tj_token){.kind = print ? TJ_TOKEN_PRINT_END : TJ_TOKEN_BLOCK_END});
            pass_tag_end(l, start, end, !print);
            return status;
        }
        if (c < 0)
            return fail_at(l, l->at,
                           print ? "the template ends inside {{" : "the template ends inside {%");
        if (is_digit(c)) {
            status = lex_number(l);
        } else if (is_word(c)) {
            size_t start = l->at;
            while (is_word(byte_at(l, l->at)))
                l->at++;
            status = push_text(l, TJ_TOKEN_NAME, start, l->at);
        } else if (c == '"' || c == '\'') {
            status = lex_string(l);
        } else {
            status = lex_operator(l, brackets, &depth);
        }
    }
    return status;
}

/* ---- between tags ---- */

/* Where text before a tag ends: all white space goes for a minus sign, the blanks of an otherwise
 * empty line start for a block or comment without a sign. */
static size_t text_end(const lexer *l, size_t start, size_t tag)
{
    int sign = byte_at(l, tag + 2);
    size_t line = tag;

    if (sign == '-')
        return strip_end(l, start, tag);
    if (sign == '+' || starts(l, tag, "{{"))
        return tag;
    while (line > start && l->source[line - 1] != '\n')
        line--;
    bool starts_line = line > 0 ? l->source[line - 1] == '\n' : true;
    return starts_line && strip_end(l, line, tag) == line ? line : tag;
}

/* A raw block whose {% raw %} begins at tag: its text as it is. False: it is another block. */
static bool raw_begin(const lexer *l, size_t tag, size_t *body, bool *minus)
{
    size_t at = tag + 2;

    if (byte_at(l, at) == '-' || byte_at(l, at) == '+')
        at++;
    at = skip_spaces(l, at);
    if (!starts(l, at, "raw") || is_word(byte_at(l, at + 3)))
        return false;
    at = skip_spaces(l, at + 3);
    size_t end = tag_end_length(l, at, false);
    *minus = end == 3;
    *body = at + end;
    return end > 0 && byte_at(l, at) != '+';
}

static tr_status lex_raw(lexer *l, size_t tag, size_t body, bool minus)
{
    size_t start = minus ? skip_spaces(l, body) : body;

    for (size_t at = start; at < l->size; at++) {
        if (!starts(l, at, "{%"))
            continue;
        size_t name = at + 2;
        if (byte_at(l, name) == '-' || byte_at(l, name) == '+')
            name++;
        name = skip_spaces(l, name);
        if (!starts(l, name, "endraw"))
            continue;
        size_t close = skip_spaces(l, name + 6);
        size_t end = tag_end_length(l, close, false);
        if (end == 0)
            continue;
        size_t stop = text_end(l, start, at);
        tr_status status = stop > start ? push_text(l, TJ_TOKEN_TEXT, start, stop) : TR_OK;
        pass_tag_end(l, close, end, true);
        return status;
    }
    return fail_at(l, tag, "a raw block without endraw");
}

static tr_status lex_comment(lexer *l, size_t tag)
{
    size_t start = tag + 2;

    if (byte_at(l, start) == '-' || byte_at(l, start) == '+')
        start++;
    for (size_t at = start; at < l->size; at++) {
        if (!starts(l, at, "#}"))
            continue;
        bool sign = at > start && (l->source[at - 1] == '-' || l->source[at - 1] == '+');
        pass_tag_end(l, at - sign, 2 + sign, true);
        return TR_OK;
    }
    return fail_at(l, tag, "a comment without #}");
}

static tr_status lex_all(lexer *l)
{
    tr_status status = TR_OK;

    while (status == TR_OK && l->at < l->size) {
        size_t start = l->at, tag = start, body;
        bool minus;

        while (tag < l->size && !starts(l, tag, "{{") && !starts(l, tag, "{%") &&
               !starts(l, tag, "{#"))
            tag++;
        size_t end = tag < l->size ? text_end(l, start, tag) : tag;
        if (end > start)
            status = push_text(l, TJ_TOKEN_TEXT, start, end);
        l->at = tag;
        if (status != TR_OK || tag == l->size)
            break;
        if (l->source[tag + 1] == '#') {
            status = lex_comment(l, tag);
        } else if (l->source[tag + 1] == '%' && raw_begin(l, tag, &body, &minus)) {
            status = lex_raw(l, tag, body, minus);
        } else {
            bool print = l->source[tag + 1] == '{';
            status = push(l, tag,
                          (tj_token){.kind = print ? TJ_TOKEN_PRINT_BEGIN : TJ_TOKEN_BLOCK_BEGIN});
            l->at = tag + 2;
            if (byte_at(l, l->at) == '-' || byte_at(l, l->at) == '+')
                l->at++;
            if (status == TR_OK)
                status = lex_tag(l, print);
        }
    }
    return status == TR_OK ? push(l, l->size, (tj_token){.kind = TJ_TOKEN_END}) : status;
}

/* Copies the source with \r\n and \r as \n and without its last newline. */
static char *copy_source(tj_arena *arena, const char *source, size_t size, size_t *used)
{
    char *copy = tj_arena_take(arena, size + 1, TJ_TEMPLATE_BYTES_MAX);

    *used = 0;
    for (size_t i = 0; copy != NULL && i < size; i++) {
        if (source[i] == '\r' && i + 1 < size && source[i + 1] == '\n')
            continue;
        copy[(*used)++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (*used > 0 && copy[*used - 1] == '\n')
        (*used)--;
    return copy;
}

tr_status tj_lex(tj_arena *arena, const char *name, const char *source, size_t size,
                 tj_token **tokens, size_t *count, tr_error *err)
{
    lexer l = {.arena = arena, .name = name, .line = 1, .column = 1, .err = err};

    if (size > TJ_SOURCE_BYTES_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %zu bytes, expected at most %zu", name, size,
                       TJ_SOURCE_BYTES_MAX);
    size_t valid = tr_utf8_valid_prefix(source, size);
    if (valid != size)
        return tr_fail(err, TR_E_INVALID, "%s: byte %zu: not UTF-8", name, valid);
    l.source = copy_source(arena, source, size, &l.size);
    if (l.source == NULL)
        return fail_memory(&l);
    tr_status status = lex_all(&l);
    if (status != TR_OK)
        return status;
    *tokens = l.tokens;
    *count = l.count;
    return TR_OK;
}
