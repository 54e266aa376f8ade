/* chat_template.c - finds the chat template of a checkpoint, turns JSON into the template's
 * variables and hands the result out. The language itself is in jinja_*.c. */
#include "core/model/chat_template.h"

#include "core/model/gguf.h"
#include "core/model/jinja_ast.h"
#include "core/model/json.h"
#include "core/model/map.h"
#include "core/model/tokenizer_impl.h"
#include "core/model/tokenizer_utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Variables that the checkpoint gives; the caller's go before them. */
#define TOKEN_NAMES_COUNT 4
static const char *const token_names[TOKEN_NAMES_COUNT] = {"bos_token", "eos_token", "unk_token",
                                                           "pad_token"};

struct tr_chat_template {
    tj_template parsed;
    char *tokens[TOKEN_NAMES_COUNT]; /* owns; NULL: undefined */
    size_t token_sizes[TOKEN_NAMES_COUNT];
};

/* ---- opening ---- */

tr_status tr_chat_template_parse(tr_chat_template **out, const char *name, const char *source,
                                 size_t size, tr_error *err)
{
    tr_chat_template *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a template", name);
    tr_status status = tj_parse(&t->parsed, name, source, size, err);
    if (status != TR_OK) {
        free(t);
        return status;
    }
    *out = t;
    return TR_OK;
}

void tr_chat_template_close(tr_chat_template *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < TOKEN_NAMES_COUNT; i++)
        free(t->tokens[i]);
    tj_template_free(&t->parsed);
    free(t);
}

static tr_status set_token(tr_chat_template *t, size_t i, const char *text, size_t size,
                           tr_error *err)
{
    if (tr_utf8_valid_prefix(text, size) != size)
        return tr_fail(err, TR_E_INVALID, "%s: %s is not UTF-8", t->parsed.name, token_names[i]);
    t->tokens[i] = malloc(size + 1);
    if (t->tokens[i] == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a template", t->parsed.name);
    memcpy(t->tokens[i], text, size);
    t->token_sizes[i] = size;
    return TR_OK;
}

/* The template in tokenizer_config.json: a string, or a list of named ones of which "default" is
 * meant. NULL when there is none. */
static const json_t *config_template(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *item;
    size_t i;

    if (json_is_string(value))
        return value;
    json_array_foreach((json_t *)value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name != NULL && strcmp(name, "default") == 0 &&
            json_is_string(json_object_get(item, "template")))
            return json_object_get(item, "template");
    }
    return NULL;
}

/* "bos_token": "<s>" or {"content": "<s>", ...}. */
static tr_status read_config_tokens(tr_chat_template *t, const json_t *config, tr_error *err)
{
    for (size_t i = 0; i < TOKEN_NAMES_COUNT; i++) {
        const json_t *value = json_object_get(config, token_names[i]);
        if (json_is_object(value))
            value = json_object_get(value, "content");
        if (!json_is_string(value))
            continue;
        tr_status status =
            set_token(t, i, json_string_value(value), json_string_length(value), err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

tr_status tr_chat_template_from_files(tr_chat_template **out, const char *folder, const char *jinja,
                                      size_t size, const json_t *config, tr_error *err)
{
    const json_t *source = config_template(config);
    tr_status status;

    if (jinja != NULL)
        status = tr_chat_template_parse(out, "chat_template.jinja", jinja, size, err);
    else if (source != NULL)
        status = tr_chat_template_parse(out, "tokenizer_config.json: chat_template",
                                        json_string_value(source), json_string_length(source), err);
    else
        status = tr_fail(err, TR_E_NOTSUP,
                         "%s: no chat template, neither chat_template.jinja nor chat_template in "
                         "tokenizer_config.json",
                         folder);
    if (status != TR_OK)
        return status;
    status = read_config_tokens(*out, config, err);
    if (status != TR_OK)
        tr_chat_template_close(*out);
    return status;
}

static tr_status open_folder(tr_chat_template **out, const char *folder, tr_error *err)
{
    char path[4096];
    struct stat st;
    json_t *config;
    uint8_t *text = NULL;
    size_t size = 0;

    tr_status status = tr_json_read_beside(&config, folder, "tokenizer_config.json", err);
    if (status != TR_OK)
        return status;
    if (snprintf(path, sizeof(path), "%s/chat_template.jinja", folder) >= (int)sizeof(path))
        status = tr_fail(err, TR_E_INVALID, "%.80s...: the path is too long", folder);
    else if (stat(path, &st) == 0)
        status = tr_file_read(&text, &size, path, err);
    if (status == TR_OK)
        status = tr_chat_template_from_files(out, folder, (const char *)text, size, config, err);
    free(text);
    json_decref(config);
    return status;
}

static tr_status read_gguf_token(tr_chat_template *t, size_t i, const tr_gguf *gguf,
                                 const char *key, tr_error *err)
{
    const char *text = NULL;
    tr_gguf_array tokens;
    size_t size = 0;
    uint64_t id;

    if (!tr_gguf_has(gguf, key))
        return TR_OK;
    tr_status status = tr_gguf_u64(gguf, key, &id, err);
    if (status == TR_OK)
        status = tr_gguf_get_array(gguf, "tokenizer.ggml.tokens", TR_GGUF_TEXT, &tokens, err);
    if (status != TR_OK)
        return status;
    if (id >= tokens.count)
        return tr_fail(err, TR_E_INVALID, "%s: %s: %llu, expected below %llu", tr_gguf_name(gguf),
                       key, (unsigned long long)id, (unsigned long long)tokens.count);
    for (uint64_t k = 0; k <= id; k++)
        tr_gguf_array_next_text(&tokens, &text, &size);
    return set_token(t, i, text, size, err);
}

static tr_status open_gguf(tr_chat_template **out, const char *path, tr_error *err)
{
    static const char *const keys[TOKEN_NAMES_COUNT] = {
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"};
    const char *source;
    size_t size;
    tr_gguf *gguf;

    tr_status status = tr_gguf_open(&gguf, path, err);
    if (status != TR_OK)
        return status;
    if (!tr_gguf_has(gguf, "tokenizer.chat_template")) {
        status = tr_fail(err, TR_E_NOTSUP, "%s: no chat template (tokenizer.chat_template)", path);
        goto close_gguf;
    }
    status = tr_gguf_text(gguf, "tokenizer.chat_template", &source, &size, err);
    if (status == TR_OK)
        status = tr_chat_template_parse(out, "tokenizer.chat_template", source, size, err);
    if (status != TR_OK)
        goto close_gguf;
    for (size_t i = 0; i < TOKEN_NAMES_COUNT && status == TR_OK; i++)
        status = read_gguf_token(*out, i, gguf, keys[i], err);
    if (status != TR_OK)
        tr_chat_template_close(*out);

close_gguf:
    tr_gguf_close(gguf);
    return status;
}

tr_status tr_chat_template_open(tr_chat_template **out, const char *model_path, tr_error *err)
{
    tr_chat_template *t = NULL;
    struct stat st;

    if (stat(model_path, &st) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: %s", model_path, strerror(errno));
    tr_status status =
        S_ISDIR(st.st_mode) ? open_folder(&t, model_path, err) : open_gguf(&t, model_path, err);
    if (status == TR_OK)
        *out = t;
    return status;
}

/* ---- variables ---- */

static bool convert(tj_run *run, const json_t *json, uint32_t depth, tj_value *out);

static bool convert_text(tj_run *run, const char *text, size_t size, tj_value *out)
{
    return tj_string_make(run, text, size, true, out);
}

static bool convert_object(tj_run *run, const json_t *json, uint32_t depth, tj_value *out)
{
    const char *name;
    json_t *member;

    if (!tj_dict_make(run, TJ_DICT, json_object_size(json), out))
        return false;
    json_object_foreach((json_t *)json, name, member)
    {
        /* Keys differ already, so nothing is looked up. */
        tj_pair *pair = &out->as.dict->pairs[out->as.dict->count];
        if (!convert_text(run, name, strlen(name), &pair->key) ||
            !convert(run, member, depth + 1, &pair->value))
            return false;
        out->as.dict->count++;
    }
    return true;
}

static bool convert_array(tj_run *run, const json_t *json, uint32_t depth, tj_value *out)
{
    json_t *item;
    size_t i;

    if (!tj_list_make(run, TJ_LIST, json_array_size(json), out))
        return false;
    json_array_foreach((json_t *)json, i, item)
    {
        if (!convert(run, item, depth + 1, &out->as.list->items[i]))
            return false;
        out->as.list->count++;
    }
    return true;
}

/* A JSON value as a template value from the input. Texts are shared with the JSON. */
static bool convert(tj_run *run, const json_t *json, uint32_t depth, tj_value *out)
{
    bool done = true;

    if (depth > TJ_DEPTH_MAX)
        return tj_fail_plain(run, "a template's variables nest too deeply", 39);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        done = convert_object(run, json, depth, out);
        break;
    case JSON_ARRAY:
        done = convert_array(run, json, depth, out);
        break;
    case JSON_STRING:
        return convert_text(run, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER:
        *out = tj_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = tj_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = tj_bool(json_is_true(json));
        break;
    case JSON_NULL:
        *out = tj_none();
        break;
    }
    out->input = true;
    return done;
}

static bool make_context(const tr_chat_template *t, tj_run *run, const json_t *variables,
                         tj_value *out)
{
    if (!json_is_object(variables))
        return tj_fail_plain(run, "a template's variables are no object", 36);
    if (!convert(run, variables, 0, out))
        return false;
    for (size_t i = 0; i < TOKEN_NAMES_COUNT; i++) {
        const tj_string name = {.bytes = token_names[i], .size = strlen(token_names[i])};
        tj_value key, text;
        if (t->tokens[i] == NULL || tj_dict_find_text(out->as.dict, &name) != NULL)
            continue;
        if (!tj_string_make(run, name.bytes, name.size, false, &key) ||
            !tj_string_make(run, t->tokens[i], t->token_sizes[i], false, &text) ||
            !tj_dict_set(run, out->as.dict, key, text))
            return false;
    }
    return true;
}

/* ---- rendering ---- */

static tr_status copy_out(const tj_string *s, tr_rendered *out, tr_error *err)
{
    char *text = malloc(s->size + 1);
    unsigned char *input = malloc(s->size + 1);

    if (text == NULL || input == NULL) {
        free(text);
        free(input);
        return tr_fail(err, TR_E_NOMEM, "no memory for a rendered template of %zu bytes", s->size);
    }
    memcpy(text, s->bytes, s->size);
    text[s->size] = '\0';
    if (s->marks != NULL)
        memcpy(input, s->marks, s->size);
    else
        memset(input, s->input, s->size);
    *out = (tr_rendered){.text = text, .input = input, .size = s->size};
    return TR_OK;
}

tr_status tr_chat_template_render_at(const tr_chat_template *t, const json_t *variables,
                                     int64_t now_s, tr_rendered *out, tr_error *err)
{
    tj_run run = {.name = t->parsed.name, .err = err, .now_s = now_s};
    const tj_string *text;
    tj_value context;
    tr_status status;

    if (make_context(t, &run, variables, &context))
        status = tj_render(&t->parsed, &run, context.as.dict, &text);
    else
        status = run.status;
    if (status == TR_OK)
        status = copy_out(text, out, err);
    tj_arena_free(&run.arena);
    return status;
}

tr_status tr_chat_template_render(const tr_chat_template *t, const json_t *variables,
                                  tr_rendered *out, tr_error *err)
{
    return tr_chat_template_render_at(t, variables, (int64_t)time(NULL), out, err);
}

void tr_rendered_free(tr_rendered *r)
{
    free(r->text);
    free(r->input);
    *r = (tr_rendered){0};
}

tr_status tr_rendered_encode(const tr_rendered *r, const tr_tokenizer *tokenizer, int32_t *ids,
                             size_t ids_max, size_t *ids_count, tr_error *err)
{
    return tr_tokenizer_encode_marked(tokenizer, r->text, r->size, true, r->input, ids, ids_max,
                                      ids_count, err);
}
