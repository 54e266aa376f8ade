/* tokenizer_pattern.c - compiles a pre-tokenizer pattern for PCRE2.
 *
 * The patterns of tokenizer.json are written for oniguruma in its own syntax. This file walks over
 * a pattern, copies what both engines read alike, rewrites what PCRE2 would read differently, and
 * refuses the rest by name. Differences that matter (PCRE2 10.42, oniguruma 6.9.8):
 *
 *   \s \S        PCRE2 counts U+180E as white space        explicit ranges
 *   [X&&[^Y]]    no class intersection in PCRE2            (?:(?=[^Y])[X])
 *   \p{Han}      PCRE2 means script extensions             \p{sc:Han}
 *   \uHHHH       unknown to PCRE2                          \x{HHHH}
 *   $  .  \v     other meanings                            (?=\n|\z)  [^\n]  \x{0B}
 *   (?i:ss)      oniguruma also matches a sharp s          refused, with its like
 *   \w \h \b ..  other sets of characters                  refused */
#include "core/model/tokenizer_impl.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* White_Space as class items, and its complement. */
#define SPACE_ITEMS                                                                                \
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}"           \
    "\\x{202F}\\x{205F}\\x{3000}"
#define NO_SPACE_ITEMS                                                                             \
    "\\x{00}-\\x{08}\\x{0E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}"                \
    "\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}"                 \
    "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"

#define PATTERN_BYTES_MAX   16384
#define PATTERN_NESTING_MAX 32

const char tr_pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char tr_pattern_number[] = "\\p{N}";

typedef struct {
    const char *text; /* borrowed, valid UTF-8 */
    size_t size, at;
    FILE *out; /* the rewritten pattern */
    const char *where;
    tr_error *err;
    bool caseless[PATTERN_NESTING_MAX + 1]; /* by nesting of groups */
    uint32_t nesting;
} rewriter;

static tr_status refuse(rewriter *r, const char *what)
{
    return tr_fail(r->err, TR_E_INVALID, "%s: pattern, byte %zu: %s", r->where, r->at, what);
}

static int peek(const rewriter *r, size_t ahead)
{
    return r->at + ahead < r->size ? (unsigned char)r->text[r->at + ahead] : -1;
}

static bool follows(const rewriter *r, const char *text)
{
    size_t length = strlen(text);
    return r->size - r->at >= length && memcmp(r->text + r->at, text, length) == 0;
}

static bool is_hex(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_general_category(const char *name, size_t size)
{
    static const char names[] = " C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd "
                                "Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs ";
    char key[5];

    if (size == 0 || size > 2)
        return false;
    snprintf(key, sizeof(key), " %.*s ", (int)size, name);
    return strstr(names, key) != NULL;
}

/* Asks PCRE2 itself whether it knows the script. */
static bool is_script(const char *name, size_t size)
{
    char probe[64];
    int error;
    PCRE2_SIZE offset;

    for (size_t i = 0; i < size; i++)
        if (!((name[i] >= 'A' && name[i] <= 'Z') || (name[i] >= 'a' && name[i] <= 'z') ||
              name[i] == '_'))
            return false;
    if (size == 0 || size > 32)
        return false;
    snprintf(probe, sizeof(probe), "\\p{sc:%.*s}", (int)size, name);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)probe, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* \p{Name}, \P{Name}, \p{^Name}; at is on the backslash. */
static tr_status rewrite_property(rewriter *r)
{
    bool negated = peek(r, 1) == 'P';

    if (peek(r, 2) != '{')
        return refuse(r, "a property without braces, expected \\p{Name}");
    size_t start = r->at + 3;
    if (start < r->size && r->text[start] == '^') {
        negated = !negated;
        start++;
    }
    const char *close = memchr(r->text + start, '}', r->size - start);
    if (close == NULL)
        return refuse(r, "a property without }");
    const char *name = r->text + start;
    int size = (int)(close - name);
    if (is_general_category(name, (size_t)size))
        fprintf(r->out, "\\%c{%.*s}", negated ? 'P' : 'p', size, name);
    else if (is_script(name, (size_t)size))
        fprintf(r->out, "\\%c{sc:%.*s}", negated ? 'P' : 'p', size, name);
    else
        return tr_fail(r->err, TR_E_INVALID,
                       "%s: pattern, byte %zu: property \"%.*s\", expected a general category or a "
                       "script",
                       r->where, r->at, size > 40 ? 40 : size, name);
    r->at = (size_t)(close - r->text) + 1;
    return TR_OK;
}

/* \uHHHH, \xHH, \x{H...}: one character by number. */
static tr_status rewrite_number(rewriter *r)
{
    bool braces = peek(r, 1) == 'x' && peek(r, 2) == '{';
    size_t start = r->at + (braces ? 3 : 2);
    size_t digits_max = peek(r, 1) == 'u' ? 4 : braces ? 6 : 2;
    size_t digits = 0;
    uint32_t code = 0;

    while (digits < digits_max && start + digits < r->size &&
           is_hex((unsigned char)r->text[start + digits])) {
        char digit[2] = {r->text[start + digits], '\0'};
        code = code * 16 + (uint32_t)strtoul(digit, NULL, 16);
        digits++;
    }
    size_t end = start + digits;
    if (digits == 0 || (!braces && digits != digits_max) ||
        (braces && (end >= r->size || r->text[end] != '}')) || code > 0x10FFFF ||
        (code >= 0xD800 && code <= 0xDFFF) || (peek(r, 1) == 'x' && !braces && code > 0x7F))
        return refuse(r, "a character number that is not \\uHHHH, \\x00 to \\x7F or \\x{H...}");
    fprintf(r->out, "\\x{%X}", code);
    r->at = end + (braces ? 1 : 0);
    return TR_OK;
}

/* An escape, at on the backslash. *is_set: it stands for several characters. */
static tr_status rewrite_escape(rewriter *r, bool in_class, bool *is_set)
{
    int c = peek(r, 1);

    *is_set = c == 's' || c == 'S' || c == 'd' || c == 'D' || c == 'p' || c == 'P';
    switch (c) {
    case 'p':
    case 'P':
        return rewrite_property(r);
    case 'u':
    case 'x':
        return rewrite_number(r);
    case 's':
        fputs(in_class ? SPACE_ITEMS : "[" SPACE_ITEMS "]", r->out);
        break;
    case 'S':
        fputs(in_class ? NO_SPACE_ITEMS : "[" NO_SPACE_ITEMS "]", r->out);
        break;
    case 'd':
        fputs("\\p{Nd}", r->out);
        break;
    case 'D':
        fputs("\\P{Nd}", r->out);
        break;
    case 'v':
        fputs("\\x{0B}", r->out);
        break;
    case 'r':
    case 'n':
    case 't':
    case 'f':
        fprintf(r->out, "\\%c", c);
        break;
    default:
        if (c < 0x21 || c > 0x7E || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
            (c >= 'a' && c <= 'z')) {
            char text[64];
            snprintf(text, sizeof(text), "escape \\%c, which engines read differently",
                     c < 0x21 || c > 0x7E ? '?' : c);
            return refuse(r, text);
        }
        fprintf(r->out, "\\%c", c);
        break;
    }
    r->at += 2;
    return TR_OK;
}

/* Items of a class up to ] or &&, which stay unread. */
static tr_status rewrite_class_items(rewriter *r)
{
    bool after_set = false, first = true;

    for (;;) {
        int c = peek(r, 0);
        if (c < 0)
            return refuse(r, "a class without ]");
        if (c == ']' || follows(r, "&&"))
            return first ? refuse(r, "an empty class") : TR_OK;
        if (c == '[')
            return refuse(r, "a class inside a class, expected it after && only");
        int next = peek(r, 1);
        if (c == '-' && !first && next != ']') {
            /* Note: a rewritten set ends with a character, which would begin a range here. */
            bool before_set =
                next == '\\' && peek(r, 2) > 0 && strchr("sSdDpP", peek(r, 2)) != NULL;
            if (after_set || before_set || next == '[')
                return refuse(r, "a range whose end is a set");
        }
        first = false;
        if (c == '\\') {
            tr_status status = rewrite_escape(r, true, &after_set);
            if (status != TR_OK)
                return status;
        } else {
            fputc(c, r->out);
            after_set = false;
            r->at++;
        }
    }
}

/* The items after && are a class of their own or bare; writes them as one class. */
static tr_status rewrite_class_operand(rewriter *r)
{
    bool nested = peek(r, 0) == '[';

    fputc('[', r->out);
    if (nested) {
        r->at++;
        if (peek(r, 0) == '^') {
            fputc('^', r->out);
            r->at++;
        }
    }
    tr_status status = rewrite_class_items(r);
    if (status != TR_OK)
        return status;
    fputc(']', r->out);
    if (nested) {
        if (peek(r, 0) != ']')
            return refuse(r, "&& inside a nested class");
        r->at++;
        if (peek(r, 0) != ']' && !follows(r, "&&"))
            return refuse(r, "items beside a nested class");
    }
    return TR_OK;
}

/* A class, at on [. An intersection [X&&A&&B] becomes (?:(?=A)(?=B)[X]): the first operand is
 * rewritten to the side and written last. */
static tr_status rewrite_class(rewriter *r)
{
    FILE *out = r->out;
    char *first = NULL;
    size_t first_size = 0;
    tr_status status;

    r->at++;
    bool negated = peek(r, 0) == '^';
    if (negated)
        r->at++;
    r->out = open_memstream(&first, &first_size);
    if (r->out == NULL) {
        r->out = out;
        return tr_fail(r->err, TR_E_NOMEM, "%s: no memory for the pattern", r->where);
    }
    status = rewrite_class_items(r);
    fclose(r->out);
    r->out = out;
    if (status != TR_OK)
        goto free_first;

    bool intersection = follows(r, "&&");
    if (intersection && negated) {
        status = refuse(r, "an intersection in a negated class");
        goto free_first;
    }
    if (intersection)
        fputs("(?:", out);
    while (follows(r, "&&")) {
        r->at += 2;
        fputs("(?=", out);
        status = rewrite_class_operand(r);
        if (status != TR_OK)
            goto free_first;
        fputs(")", out);
    }
    assert(peek(r, 0) == ']');
    r->at++;
    fprintf(out, "[%s%s]%s", negated ? "^" : "", first, intersection ? ")" : "");

free_first:
    free(first);
    return status;
}

static tr_status rewrite_group(rewriter *r)
{
    static const char *const heads[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    const char *head = NULL;

    if (r->nesting == PATTERN_NESTING_MAX)
        return refuse(r, "groups nested too deeply");
    if (peek(r, 1) == '*')
        return refuse(r, "a verb (*...)");
    if (peek(r, 1) != '?')
        head = "(";
    for (size_t i = 0; head == NULL && i < sizeof(heads) / sizeof(heads[0]); i++)
        if (follows(r, heads[i]))
            head = heads[i];
    if (head == NULL)
        return refuse(r, "a group other than ( (?: (?= (?! (?<= (?<! (?> (?i:");
    fputs(head, r->out);
    r->at += strlen(head);
    bool caseless = r->caseless[r->nesting];
    r->caseless[++r->nesting] =
        strcmp(head, "(?i:") == 0 || (caseless && strcmp(head, "(?-i:") != 0);
    return TR_OK;
}

/* {n}, {n,} or {n,m}, then ? for the last two. */
static tr_status rewrite_interval(rewriter *r)
{
    size_t end = r->at + 1;
    bool comma = false;

    while (end < r->size && ((r->text[end] >= '0' && r->text[end] <= '9') ||
                             (r->text[end] == ',' && !comma && end > r->at + 1))) {
        comma = comma || r->text[end] == ',';
        end++;
    }
    if (end == r->at + 1 || end >= r->size || r->text[end] != '}')
        return refuse(r, "{ that is not {n}, {n,} or {n,m}");
    int next = end + 1 < r->size ? (unsigned char)r->text[end + 1] : -1;
    if (next == '+')
        return refuse(r, "{...}+, which is possessive for PCRE2 alone");
    if (next == '?' && !comma)
        return refuse(r, "{n}?, which engines read differently");
    fwrite(r->text + r->at, 1, end + 1 - r->at, r->out);
    r->at = end + 1;
    return TR_OK;
}

/* An ordinary character. Case folding of oniguruma also joins two letters into one character. */
static tr_status rewrite_literal(rewriter *r)
{
    int c = peek(r, 0);

    if (r->caseless[r->nesting]) {
        static const char *const joined[] = {"ss", "ff", "fi", "fl", "st"};
        for (size_t i = 0; i < sizeof(joined) / sizeof(joined[0]); i++)
            if ((c | 0x20) == joined[i][0] && (peek(r, 1) | 0x20) == joined[i][1])
                return refuse(r, "two letters under (?i: that fold into one character");
        if (c >= 0x80)
            return refuse(r, "a letter beyond ASCII under (?i:");
    }
    fputc(c, r->out);
    r->at++;
    return TR_OK;
}

static tr_status rewrite_one(rewriter *r)
{
    bool is_set;
    int c = peek(r, 0);

    switch (c) {
    case '\\':
        return rewrite_escape(r, false, &is_set);
    case '[':
        return rewrite_class(r);
    case '(':
        return rewrite_group(r);
    case ')':
        if (r->nesting == 0)
            return refuse(r, ") without (");
        r->nesting--;
        break;
    case '{':
        return rewrite_interval(r);
    case '^':
        return refuse(r, "^, which engines read differently");
    case '$':
        fputs("(?=\\n|\\z)", r->out);
        r->at++;
        return TR_OK;
    case '.':
        fputs("[^\\n]", r->out);
        r->at++;
        return TR_OK;
    case '|':
    case '*':
    case '+':
    case '?':
    case ']':
    case '}':
        break;
    default:
        return rewrite_literal(r);
    }
    fputc(c, r->out);
    r->at++;
    return TR_OK;
}

tr_status tr_pattern_compile(pcre2_code **out, const char *pattern, size_t size, const char *where,
                             tr_error *err)
{
    rewriter r = {.text = pattern, .size = size, .where = where, .err = err};
    char *text = NULL;
    size_t text_size = 0;
    int error;
    PCRE2_SIZE offset;
    tr_status status = TR_OK;

    if (size == 0 || size > PATTERN_BYTES_MAX || tr_utf8_valid_prefix(pattern, size) != size)
        return tr_fail(err, TR_E_INVALID,
                       "%s: pattern of %zu bytes, expected 1 to %d bytes of UTF-8", where, size,
                       PATTERN_BYTES_MAX);
    r.out = open_memstream(&text, &text_size);
    if (r.out == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for the pattern", where);
    while (status == TR_OK && r.at < r.size)
        status = rewrite_one(&r);
    fclose(r.out);
    if (status == TR_OK && text == NULL)
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory for the pattern", where);
    if (status != TR_OK)
        goto free_text;

    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)text, text_size,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE,
                      &error, &offset, NULL);
    if (code == NULL) {
        PCRE2_UCHAR message[120];
        pcre2_get_error_message(error, message, sizeof(message));
        status = tr_fail(err, TR_E_INVALID, "%s: pattern: %s", where, (const char *)message);
        goto free_text;
    }
    /* Where there is no JIT the interpreter runs: slower, with the same result. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    *out = code;

free_text:
    free(text);
    return status;
}
