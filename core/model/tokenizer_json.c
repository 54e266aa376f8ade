/* tokenizer_json.c - reads Hugging Face's tokenizer.json.
 *
 * The file is a chain of components. Those that byte-level BPE models use are known; any other is
 * refused by its name, because a step that is skipped gives other tokens and no error. */
#include "core/model/json.h"
#include "core/model/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tr_tokenizer *t;
    const char *name; /* of the file, for errors */
    tr_error *err;
    bool byte_level; /* the pre-tokenizer has a ByteLevel, which must be the last */
} reader;

static tr_status refuse(const reader *r, const char *key, const json_t *found, const char *expected)
{
    if (json_is_string(found))
        return tr_fail(r->err, TR_E_INVALID, "%s: %s: \"%.60s\", expected %s", r->name, key,
                       json_string_value(found), expected);
    return tr_fail(r->err, TR_E_INVALID, "%s: %s: %s, expected %s", r->name, key,
                   tr_json_kind(found), expected);
}

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

/* The type of a component, "" when it has none. */
static const char *type_of(const json_t *component)
{
    const char *type = json_string_value(json_object_get(component, "type"));
    return type == NULL ? "" : type;
}

/* An optional flag. */
static tr_status read_flag(const reader *r, const json_t *object, const char *key, bool fallback,
                           bool *out)
{
    const json_t *value = json_object_get(object, key);

    *out = fallback;
    if (is_absent(value))
        return TR_OK;
    if (!json_is_boolean(value))
        return refuse(r, key, value, "true or false");
    *out = json_is_true(value);
    return TR_OK;
}

/* ---- normaliser ---- */

static tr_status read_normalizer(reader *r, const json_t *component)
{
    static const struct {
        const char *type;
        tr_normal_form form;
    } forms[] = {{"NFC", TR_NORMAL_NFC},
                 {"NFD", TR_NORMAL_NFD},
                 {"NFKC", TR_NORMAL_NFKC},
                 {"NFKD", TR_NORMAL_NFKD}};
    const json_t *inner;
    size_t i;

    if (is_absent(component))
        return TR_OK;
    if (strcmp(type_of(component), "Sequence") == 0) {
        const json_t *list = json_object_get(component, "normalizers");
        if (!json_is_array(list) || json_array_size(list) > 1)
            return refuse(r, "normalizer.normalizers", list, "an array of at most one");
        json_array_foreach((json_t *)list, i, inner)
        {
            if (strcmp(type_of(inner), "Sequence") == 0)
                return refuse(r, "normalizer", json_object_get(inner, "type"),
                              "no nested Sequence");
            tr_status status = read_normalizer(r, inner);
            if (status != TR_OK)
                return status;
        }
        return TR_OK;
    }
    for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (strcmp(type_of(component), forms[i].type) == 0) {
            r->t->normal = forms[i].form;
            return TR_OK;
        }
    return refuse(r, "normalizer.type", json_object_get(component, "type"),
                  "NFC, NFD, NFKC, NFKD or Sequence");
}

/* ---- pre-tokenizer ---- */

static tr_status add_split(reader *r, const char *pattern, size_t size, bool drop_matches,
                           bool drop_gaps)
{
    char where[128];
    tr_split *split = &r->t->splits[r->t->splits_count];

    if (r->t->splits_count == TR_SPLITS_MAX)
        return tr_fail(r->err, TR_E_INVALID, "%s: pre_tokenizer: more than %d steps", r->name,
                       TR_SPLITS_MAX);
    snprintf(where, sizeof(where), "%.80s: pre_tokenizer", r->name);
    tr_status status = tr_pattern_compile(&split->code, pattern, size, where, r->err);
    if (status != TR_OK)
        return status;
    split->drop_matches = drop_matches;
    split->drop_gaps = drop_gaps;
    r->t->splits_count++;
    return TR_OK;
}

/* A literal as a pattern: what has a meaning in patterns is escaped. */
static tr_status add_literal_split(reader *r, const json_t *literal, bool drop_matches,
                                   bool drop_gaps)
{
    const char *text = json_string_value(literal);
    size_t size = json_string_length(literal), used = 0;
    char pattern[512];

    if (size == 0 || 2 * size > sizeof(pattern))
        return refuse(r, "pre_tokenizer.pattern.String", literal, "1 to 256 bytes");
    for (size_t i = 0; i < size; i++) {
        if (strchr("\\^$.[]|()?*+{}", text[i]) != NULL)
            pattern[used++] = '\\';
        pattern[used++] = text[i];
    }
    return add_split(r, pattern, used, drop_matches, drop_gaps);
}

static tr_status read_split(reader *r, const json_t *component)
{
    const json_t *pattern = json_object_get(component, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *behavior = json_object_get(component, "behavior");
    const char *kind = json_is_string(behavior) ? json_string_value(behavior) : "";
    bool invert;

    tr_status status = read_flag(r, component, "invert", false, &invert);
    if (status != TR_OK)
        return status;
    bool removed = strcmp(kind, "Removed") == 0;
    if (!removed && strcmp(kind, "Isolated") != 0)
        return refuse(r, "pre_tokenizer.behavior", behavior, "Isolated or Removed");
    bool drop_matches = removed && !invert, drop_gaps = removed && invert;
    if (json_is_string(regex))
        return add_split(r, json_string_value(regex), json_string_length(regex), drop_matches,
                         drop_gaps);
    if (json_is_string(literal))
        return add_literal_split(r, literal, drop_matches, drop_gaps);
    return refuse(r, "pre_tokenizer.pattern", pattern, "{\"Regex\": ...} or {\"String\": ...}");
}

static tr_status read_byte_level(reader *r, const json_t *component)
{
    bool add_prefix_space, use_regex;

    tr_status status = read_flag(r, component, "add_prefix_space", true, &add_prefix_space);
    if (status == TR_OK)
        status = read_flag(r, component, "use_regex", true, &use_regex);
    if (status != TR_OK)
        return status;
    if (add_prefix_space)
        return tr_fail(r->err, TR_E_INVALID,
                       "%s: pre_tokenizer.add_prefix_space: true, expected false", r->name);
    r->byte_level = true;
    if (!use_regex)
        return TR_OK;
    return add_split(r, tr_pattern_gpt2, strlen(tr_pattern_gpt2), false, false);
}

static tr_status read_digits(reader *r, const json_t *component)
{
    bool individual;

    tr_status status = read_flag(r, component, "individual_digits", false, &individual);
    if (status != TR_OK)
        return status;
    return individual ? add_split(r, "\\p{N}", 5, false, false)
                      : add_split(r, "\\p{N}+", 6, false, false);
}

static tr_status read_pre_tokenizer(reader *r, const json_t *component)
{
    const char *type = type_of(component);

    if (r->byte_level)
        return refuse(r, "pre_tokenizer", json_object_get(component, "type"),
                      "nothing behind ByteLevel");
    if (strcmp(type, "Split") == 0)
        return read_split(r, component);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(r, component);
    if (strcmp(type, "Digits") == 0)
        return read_digits(r, component);
    return refuse(r, "pre_tokenizer.type", json_object_get(component, "type"),
                  "Sequence, Split, Digits or ByteLevel");
}

static tr_status read_pre_tokenizers(reader *r, const json_t *component)
{
    tr_status status = TR_OK;
    const json_t *inner;
    size_t i;

    if (strcmp(type_of(component), "Sequence") != 0)
        status = read_pre_tokenizer(r, component);
    else {
        const json_t *list = json_object_get(component, "pretokenizers");
        if (!json_is_array(list))
            return refuse(r, "pre_tokenizer.pretokenizers", list, "an array");
        json_array_foreach((json_t *)list, i, inner)
        {
            status = read_pre_tokenizer(r, inner);
            if (status != TR_OK)
                return status;
        }
    }
    if (status == TR_OK && !r->byte_level)
        return refuse(r, "pre_tokenizer", component, "a ByteLevel at its end");
    return status;
}

/* ---- post-processor and decoder ---- */

/* "single" of a TemplateProcessing: at most one special token, then the text. */
static tr_status read_template(reader *r, const json_t *component)
{
    const json_t *single = json_object_get(component, "single");
    const json_t *item;
    bool text_seen = false;
    size_t i;

    if (!json_is_array(single))
        return refuse(r, "post_processor.single", single, "an array");
    json_array_foreach((json_t *)single, i, item)
    {
        const json_t *special = json_object_get(json_object_get(item, "SpecialToken"), "id");
        if (json_object_get(item, "Sequence") != NULL && !text_seen) {
            text_seen = true;
            continue;
        }
        if (!json_is_string(special) || text_seen || r->t->bos >= 0)
            return refuse(r, "post_processor.single", special,
                          "at most one special token, and that before the text");
        r->t->bos =
            tr_vocab_find(&r->t->vocab, json_string_value(special), json_string_length(special));
        if (r->t->bos < 0)
            return refuse(r, "post_processor.single", special, "a token of this file");
    }
    return TR_OK;
}

static tr_status read_post_processor(reader *r, const json_t *component, bool nested)
{
    const char *type = type_of(component);
    const json_t *inner;
    size_t i;

    if (is_absent(component) || strcmp(type, "ByteLevel") == 0)
        return TR_OK; /* ByteLevel only moves offsets, which we do not have */
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(r, component);
    const json_t *list = json_object_get(component, "processors");
    if (strcmp(type, "Sequence") != 0 || nested || !json_is_array(list))
        return refuse(r, "post_processor.type", json_object_get(component, "type"),
                      "ByteLevel, TemplateProcessing or a Sequence of these");
    json_array_foreach((json_t *)list, i, inner)
    {
        tr_status status = read_post_processor(r, inner, true);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

static tr_status check_decoder(const reader *r, const json_t *component)
{
    if (!is_absent(component) && strcmp(type_of(component), "ByteLevel") != 0)
        return refuse(r, "decoder.type", json_object_get(component, "type"), "ByteLevel");
    return TR_OK;
}

/* ---- vocabulary, added tokens, merges ---- */

static tr_status check_id(const reader *r, const char *key, const char *text, const json_t *id)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= (json_int_t)TR_TOKENS_MAX)
        return tr_fail(r->err, TR_E_INVALID, "%s: %s: id of \"%.40s\" is %s, expected 0 to %u",
                       r->name, key, text, json_is_integer(id) ? "out of range" : tr_json_kind(id),
                       TR_TOKENS_MAX - 1);
    return TR_OK;
}

/* Checks all ids and finds the largest before anything is taken. */
static tr_status count_tokens(const reader *r, json_t *vocab, json_t *added, uint32_t *count)
{
    const char *text;
    json_t *value;
    size_t i;
    tr_status status = TR_OK;

    *count = 0;
    json_object_foreach(vocab, text, value)
    {
        status = check_id(r, "model.vocab", text, value);
        if (status != TR_OK)
            return status;
        if (json_integer_value(value) >= *count)
            *count = (uint32_t)json_integer_value(value) + 1;
    }
    json_array_foreach(added, i, value)
    {
        const json_t *content = json_object_get(value, "content");
        const json_t *id = json_object_get(value, "id");
        if (!json_is_string(content) || json_string_length(content) == 0)
            return refuse(r, "added_tokens.content", content, "a text");
        status = check_id(r, "added_tokens", json_string_value(content), id);
        if (status != TR_OK)
            return status;
        if (json_integer_value(id) >= *count)
            *count = (uint32_t)json_integer_value(id) + 1;
    }
    return TR_OK;
}

static tr_status read_added_token(reader *r, const json_t *item)
{
    tr_tokenizer *t = r->t;
    const json_t *content = json_object_get(item, "content");
    uint32_t id = (uint32_t)json_integer_value(json_object_get(item, "id"));
    tr_added added = {
        .text = json_string_value(content), .size = json_string_length(content), .id = (int32_t)id};
    bool normalized;

    tr_status status = read_flag(r, item, "special", false, &added.special);
    if (status == TR_OK)
        status = read_flag(r, item, "single_word", false, &added.single_word);
    if (status == TR_OK)
        status = read_flag(r, item, "lstrip", false, &added.lstrip);
    if (status == TR_OK)
        status = read_flag(r, item, "rstrip", false, &added.rstrip);
    if (status == TR_OK)
        status = read_flag(r, item, "normalized", !added.special, &normalized);
    if (status != TR_OK)
        return status;

    const tr_token *known = &t->vocab.tokens[id];
    int32_t other = tr_vocab_find(&t->vocab, added.text, added.size);
    if (other >= 0 && other != added.id)
        return tr_fail(r->err, TR_E_INVALID,
                       "%s: added_tokens: \"%.40s\" has id %u here and id %d before", r->name,
                       added.text, id, (int)other);
    if (known->text == NULL) {
        status =
            tr_vocab_set(&t->vocab, id, added.text, added.size, TR_TEXT_PLAIN, r->name, r->err);
        if (status != TR_OK)
            return status;
    } else if (known->text_size != added.size || memcmp(known->text, added.text, added.size) != 0) {
        return tr_fail(r->err, TR_E_INVALID,
                       "%s: added_tokens: id %u is \"%.40s\", but \"%.40s\" in model.vocab",
                       r->name, id, added.text, known->text);
    }
    t->special[id] = added.special;
    return tr_added_push(normalized ? &t->added_normalized : &t->added, &added, r->name, r->err);
}

static tr_status read_vocab(reader *r, json_t *vocab, json_t *added)
{
    tr_tokenizer *t = r->t;
    uint32_t count;
    const char *text;
    json_t *value;
    size_t i;

    tr_status status = count_tokens(r, vocab, added, &count);
    if (status == TR_OK)
        status = tr_vocab_init(&t->vocab, count, r->name, r->err);
    if (status != TR_OK)
        return status;
    t->special = calloc(count, 1);
    if (t->special == NULL)
        return tr_fail(r->err, TR_E_NOMEM, "%s: no memory for %u tokens", r->name, count);
    json_object_foreach(vocab, text, value)
    {
        status = tr_vocab_set(&t->vocab, (uint32_t)json_integer_value(value), text, strlen(text),
                              TR_TEXT_ALPHABET, r->name, r->err);
        if (status != TR_OK)
            return status;
    }
    json_array_foreach(added, i, value)
    {
        status = read_added_token(r, value);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

/* The two halves of a merge: ["a", "b"], or "a b" cut at its only space (tokens have none: a space
 * is another letter in the byte alphabet). */
static bool merge_halves(const json_t *merge, const char **left, size_t *left_size,
                         const char **right, size_t *right_size)
{
    if (json_is_string(merge)) {
        const char *space = strchr(json_string_value(merge), ' ');
        if (space == NULL)
            return false;
        *left = json_string_value(merge);
        *left_size = (size_t)(space - *left);
        *right = space + 1;
        *right_size = json_string_length(merge) - *left_size - 1;
        return true;
    }
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b))
        return false;
    *left = json_string_value(a);
    *left_size = json_string_length(a);
    *right = json_string_value(b);
    *right_size = json_string_length(b);
    return true;
}

static tr_status read_merges(reader *r, json_t *merges)
{
    const char *left, *right;
    size_t left_size, right_size, i;
    json_t *merge;

    tr_status status = tr_merges_init(&r->t->merges, json_array_size(merges), r->name, r->err);
    if (status != TR_OK)
        return status;
    json_array_foreach(merges, i, merge)
    {
        if (i == 0 && json_is_string(merge) &&
            strncmp(json_string_value(merge), "#version", 8) == 0)
            continue;
        if (!merge_halves(merge, &left, &left_size, &right, &right_size))
            return refuse(r, "model.merges", merge, "\"a b\" or [\"a\", \"b\"]");
        status =
            tr_tokenizer_add_merge(r->t, i, left, left_size, right, right_size, r->name, r->err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

/* Fields of the model that would change the result and that byte-level models leave empty. */
static tr_status check_model(const reader *r, const json_t *model)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    const json_t *dropout = json_object_get(model, "dropout");
    bool byte_fallback;

    /* Old files leave the type out; a vocabulary with merges is BPE then. */
    if (type != NULL && strcmp(type_of(model), "BPE") != 0)
        return refuse(r, "model.type", type, "BPE");
    if (!is_absent(dropout) && json_number_value(dropout) != 0)
        return refuse(r, "model.dropout", dropout, "null");
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        const json_t *value = json_object_get(model, empty[i]);
        if (!is_absent(value) && (!json_is_string(value) || json_string_length(value) > 0))
            return refuse(r, empty[i], value, "null");
    }
    tr_status status = read_flag(r, model, "byte_fallback", false, &byte_fallback);
    if (status == TR_OK && byte_fallback)
        return tr_fail(r->err, TR_E_INVALID, "%s: model.byte_fallback: true, expected false",
                       r->name);
    return status;
}

static tr_status read_model(reader *r, json_t *model, json_t *added)
{
    tr_tokenizer *t = r->t;
    json_t *vocab = json_object_get(model, "vocab");
    json_t *merges = json_object_get(model, "merges");
    const json_t *unknown = json_object_get(model, "unk_token");

    tr_status status = check_model(r, model);
    if (status != TR_OK)
        return status;
    if (!json_is_object(vocab))
        return refuse(r, "model.vocab", vocab, "an object");
    if (!json_is_array(merges))
        return refuse(r, "model.merges", merges, "an array");
    if (!is_absent(added) && !json_is_array(added))
        return refuse(r, "added_tokens", added, "an array");

    status = read_vocab(r, vocab, json_is_array(added) ? added : NULL);
    if (status == TR_OK)
        status = read_merges(r, merges);
    if (status == TR_OK)
        status = read_flag(r, model, "ignore_merges", false, &t->ignore_merges);
    if (status == TR_OK)
        status = read_flag(r, model, "fuse_unk", false, &t->fuse_unknown);
    if (status != TR_OK || is_absent(unknown))
        return status;
    if (json_is_string(unknown))
        t->unknown =
            tr_vocab_find(&t->vocab, json_string_value(unknown), json_string_length(unknown));
    return t->unknown < 0 ? refuse(r, "model.unk_token", unknown, "a token of this file") : TR_OK;
}

tr_status tr_tokenizer_read_json(tr_tokenizer *t, const char *name, const char *bytes, size_t size,
                                 tr_error *err)
{
    reader r = {.t = t, .name = name, .err = err};
    json_t *root;

    t->bos = -1;
    t->unknown = -1;
    tr_status status = tr_json_parse(&root, name, bytes, size, err);
    if (status != TR_OK)
        return status;
    json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        status = refuse(&r, "model", model, "an object");
    if (status == TR_OK)
        status = read_model(&r, model, json_object_get(root, "added_tokens"));
    if (status == TR_OK)
        status = read_normalizer(&r, json_object_get(root, "normalizer"));
    if (status == TR_OK)
        status = read_pre_tokenizers(&r, json_object_get(root, "pre_tokenizer"));
    if (status == TR_OK)
        status = read_post_processor(&r, json_object_get(root, "post_processor"), false);
    if (status == TR_OK)
        status = check_decoder(&r, json_object_get(root, "decoder"));
    json_decref(root);
    return status == TR_OK ? tr_tokenizer_seal(t, name, err) : status;
}
