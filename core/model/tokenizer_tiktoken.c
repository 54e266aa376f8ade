/* tokenizer_tiktoken.c - a folder with tiktoken.model, as the Kimi models are published.
 *
 * The file has a line per token: its bytes in base64, a space, its id. There is no list of merges:
 * two neighbours merge when what they form is a token, and the lowest id goes first. So the merges
 * are all the ways to cut a token in two tokens, ranked by the id of the whole. Pattern and special
 * tokens are not in the file: the pattern is in the program that comes with the model (known here
 * by its class), the special tokens are in tokenizer_config.json. */
#include "core/model/tokenizer_impl.h"

#include "core/model/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The longest tokens of published files have some hundred bytes. */
#define TOKEN_BYTES_MAX 1024

typedef struct {
    tr_tokenizer *t;
    const char *name; /* of tiktoken.model, for errors */
    tr_error *err;
    const char *text; /* borrows; the whole file */
    size_t text_size;
    char bytes[TOKEN_BYTES_MAX]; /* of the token of the current line */
    size_t bytes_size;
    uint32_t id;
} reader;

/* ---- lines ---- */

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c == '\0' ? NULL : strchr(digits, c);

    return at == NULL ? -1 : (int)(at - digits);
}

/* Decodes text [size] to r->bytes; false when it is not padded base64 of 1 to TOKEN_BYTES_MAX. */
static bool read_base64(reader *r, const char *text, size_t size)
{
    size_t used = 0;

    if (size == 0 || size % 4 != 0 || size / 4 * 3 > TOKEN_BYTES_MAX)
        return false;
    for (size_t at = 0; at < size; at += 4) {
        bool last = at + 4 == size;
        size_t padding = !last ? 0 : (text[at + 3] == '=') + (size_t)(text[at + 2] == '=');
        uint32_t bits = 0;

        if (padding == 1 && text[at + 3] != '=')
            return false;
        for (size_t i = 0; i < 4; i++) {
            int value = i < 4 - padding ? base64_value(text[at + i]) : 0;
            if (value < 0)
                return false;
            bits = bits << 6 | (uint32_t)value;
        }
        for (size_t i = 0; i < 3 - padding; i++)
            r->bytes[used++] = (char)(bits >> (16 - 8 * i));
    }
    r->bytes_size = used;
    return used > 0;
}

/* Reads "BASE64 ID" of a line [size] without its end. */
static tr_status read_line(reader *r, size_t number, const char *line, size_t size)
{
    const char *space = memchr(line, ' ', size);
    uint64_t id = 0;

    if (space == NULL || !read_base64(r, line, (size_t)(space - line)) || space + 1 == line + size)
        goto refuse;
    for (const char *at = space + 1; at < line + size; at++) {
        if (*at < '0' || *at > '9')
            goto refuse;
        id = 10 * id + (uint64_t)(*at - '0');
        if (id >= TR_TOKENS_MAX)
            goto refuse;
    }
    r->id = (uint32_t)id;
    return TR_OK;

refuse:
    return tr_fail(r->err, TR_E_INVALID,
                   "%s: line %zu: \"%.*s\", expected a token in base64 and its id below %u",
                   r->name, number, (int)(size > 60 ? 60 : size), line, TR_TOKENS_MAX);
}

typedef tr_status (*line_function)(reader *r, uint32_t *count);

/* Calls each for every line that is not empty. */
static tr_status each_line(reader *r, line_function each, uint32_t *count)
{
    const char *text = r->text;
    tr_status status = TR_OK;

    for (size_t at = 0, number = 1; at < r->text_size && status == TR_OK; number++) {
        const char *end = memchr(text + at, '\n', r->text_size - at);
        size_t size = end == NULL ? r->text_size - at : (size_t)(end - (text + at));
        size_t next = at + size + 1;

        if (size > 0 && text[at + size - 1] == '\r')
            size--;
        if (size > 0) {
            status = read_line(r, number, text + at, size);
            if (status == TR_OK)
                status = each(r, count);
        }
        at = next;
    }
    return status;
}

static tr_status count_line(reader *r, uint32_t *count)
{
    if (r->id >= *count)
        *count = r->id + 1;
    return TR_OK;
}

static tr_status set_line(reader *r, uint32_t *count)
{
    char letters[2 * TOKEN_BYTES_MAX];
    size_t size = tr_bytes_to_alphabet(r->bytes, r->bytes_size, letters);

    (void)count;
    if (tr_vocab_find(&r->t->vocab, letters, size) >= 0)
        return tr_fail(r->err, TR_E_INVALID, "%s: token %u is there already", r->name, r->id);
    return tr_vocab_set(&r->t->vocab, r->id, letters, size, TR_TEXT_ALPHABET, r->name, r->err);
}

/* ---- merges ---- */

/* Calls add for each way to cut the token in two tokens; returns how many there are. */
static size_t each_cut(tr_tokenizer *t, uint32_t id,
                       void (*add)(tr_tokenizer *t, int32_t left, int32_t right, uint32_t id))
{
    const tr_token *token = &t->vocab.tokens[id];
    size_t count = 0;

    for (uint32_t at = 1; token->bytes_size > 1 && at < token->text_size; at++) {
        if (((unsigned char)token->text[at] & 0xC0) == 0x80)
            continue; /* inside a letter of the alphabet */
        int32_t left = tr_vocab_find(&t->vocab, token->text, at);
        int32_t right = tr_vocab_find(&t->vocab, token->text + at, token->text_size - at);
        if (left < 0 || right < 0)
            continue;
        count++;
        if (add != NULL)
            add(t, left, right, id);
    }
    return count;
}

static void add_cut(tr_tokenizer *t, int32_t left, int32_t right, uint32_t id)
{
    (void)tr_merges_add(&t->merges, left, right, (int32_t)id, id); /* a pair has one whole */
}

static tr_status make_merges(reader *r)
{
    size_t count = 0;

    for (uint32_t id = 0; id < r->t->vocab.count; id++)
        count += each_cut(r->t, id, NULL);
    tr_status status = tr_merges_init(&r->t->merges, count, r->name, r->err);
    for (uint32_t id = 0; status == TR_OK && id < r->t->vocab.count; id++)
        each_cut(r->t, id, add_cut);
    return status;
}

/* ---- tokenizer_config.json ---- */

/* The id that is the key of an entry of added_tokens_decoder. */
static tr_status read_added_id(const reader *r, const char *key, uint32_t *id)
{
    char *end;

    errno = 0;
    unsigned long value = strtoul(key, &end, 10);
    if (key[0] < '0' || key[0] > '9' || *end != '\0' || errno != 0 || value >= TR_TOKENS_MAX)
        return tr_fail(r->err, TR_E_INVALID,
                       "tokenizer_config.json: added_tokens_decoder: \"%.40s\", expected an id "
                       "below %u",
                       key, TR_TOKENS_MAX);
    *id = (uint32_t)value;
    return TR_OK;
}

static tr_status count_added(const reader *r, json_t *added, uint32_t *count)
{
    const char *key;
    json_t *item;
    uint32_t id = 0;

    json_object_foreach(added, key, item)
    {
        tr_status status = read_added_id(r, key, &id);
        if (status != TR_OK)
            return status;
        if (id >= *count)
            *count = id + 1;
    }
    return TR_OK;
}

static tr_status read_added(reader *r, json_t *added)
{
    const char *key;
    json_t *item;
    uint32_t id = 0;

    json_object_foreach(added, key, item)
    {
        const json_t *content = json_object_get(item, "content");
        tr_status status = read_added_id(r, key, &id);

        if (status == TR_OK && (!json_is_string(content) || json_string_length(content) == 0))
            status = tr_fail(r->err, TR_E_INVALID,
                             "tokenizer_config.json: added_tokens_decoder.%s.content: %s, expected "
                             "a text",
                             key, tr_json_kind(content));
        if (status == TR_OK)
            status = tr_vocab_set(&r->t->vocab, id, json_string_value(content),
                                  json_string_length(content), TR_TEXT_PLAIN,
                                  "tokenizer_config.json", r->err);
        if (status != TR_OK)
            return status;
        bool special = json_is_true(json_object_get(item, "special"));
        r->t->special[id] = special;
        status = tr_added_push(&r->t->added,
                               &(tr_added){.text = json_string_value(content),
                                           .size = json_string_length(content),
                                           .id = (int32_t)id,
                                           .special = special},
                               "tokenizer_config.json", r->err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

static tr_status check_class(const reader *r, const json_t *config)
{
    const json_t *class = json_object_get(config, "tokenizer_class");

    if (json_is_string(class) && strcmp(json_string_value(class), "TikTokenTokenizer") == 0)
        return TR_OK;
    return tr_fail(r->err, TR_E_INVALID,
                   "tokenizer_config.json: tokenizer_class: %s%.60s, expected TikTokenTokenizer "
                   "beside a tiktoken.model",
                   json_is_string(class) ? "" : tr_json_kind(class),
                   json_is_string(class) ? json_string_value(class) : "");
}

static tr_status read_parts(reader *r, json_t *config)
{
    tr_tokenizer *t = r->t;
    json_t *added = json_object_get(config, "added_tokens_decoder");
    uint32_t count = 0;

    tr_status status = check_class(r, config);
    if (status == TR_OK)
        status = each_line(r, count_line, &count);
    if (status == TR_OK)
        status = count_added(r, added, &count);
    if (status == TR_OK)
        status = tr_vocab_init(&t->vocab, count, r->name, r->err);
    if (status != TR_OK)
        return status;
    t->special = calloc(count, 1);
    if (t->special == NULL)
        return tr_fail(r->err, TR_E_NOMEM, "%s: no memory for %u tokens", r->name, count);
    status = each_line(r, set_line, &count);
    if (status == TR_OK) /* before the special tokens: no merge makes one */
        status = make_merges(r);
    if (status == TR_OK)
        status = read_added(r, added);
    if (status == TR_OK)
        status = tr_pattern_compile(&t->splits[0].code, tr_pattern_kimi, strlen(tr_pattern_kimi),
                                    r->name, r->err);
    if (status != TR_OK)
        return status;
    t->splits_count = 1;
    t->ignore_merges = true; /* as in the program: a piece that is a token is taken as it is */
    return tr_tokenizer_seal(t, r->name, r->err);
}

tr_status tr_tokenizer_read_tiktoken(tr_tokenizer *t, const char *bytes, size_t size,
                                     json_t *config, tr_error *err)
{
    reader *r = calloc(1, sizeof(*r));

    t->bos = -1;
    t->unknown = -1;
    if (r == NULL)
        return tr_fail(err, TR_E_NOMEM, "tiktoken.model: no memory to read it");
    *r = (reader){.t = t, .name = "tiktoken.model", .err = err, .text = bytes, .text_size = size};
    tr_status status = read_parts(r, config);
    free(r);
    return status;
}
