/* request.c - one row per field. A field that is not in the table is refused by name; null stands
 * for "not given". To add a field: a reader and a row. */
#include "api/request.h"

#include "api/body.h"
#include "api/request_chat.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* OpenAI's default for completions. */
#define COMPLETION_TOKENS_DEFAULT 16

/* Values in a body beside prompt tokens: messages, tools and their schemas. */
#define BODY_VALUES_MAX 65536

enum { FOR_COMPLETION = 1, FOR_CHAT = 2, FOR_BOTH = 3 };

/* A request while its fields are read. What is borrowed lives in the body. */
typedef struct {
    tr_api_request *out;
    const tr_api_model *model;
    const json_t *prompt;
    const json_t *messages;
    const json_t *tools;
    const json_t *template_arguments;
    const char *reasoning_effort;
    bool tools_are_off; /* tool_choice is "none" */
    bool has_tokens_max;
    bool has_seed;
    bool has_stream_options;
    bool has_top_logprobs;
} request_draft;

typedef struct request_field {
    const char *name;
    int endpoints;
    bool (*read)(request_draft *d, const struct request_field *field, const json_t *value,
                 tr_api_error *err);
    double min, max; /* of numbers, both inclusive */
} request_field;

static bool field_wrong_type(const request_field *field, const char *expected, const json_t *found,
                             tr_api_error *err)
{
    return tr_api_fail(err, 400, field->name, "invalid_type", "%s is %s, expected %s.", field->name,
                       tr_json_type_text(found), expected);
}

static bool field_unsupported(const request_field *field, const char *accepted, tr_api_error *err)
{
    return tr_api_fail(err, 400, field->name, "unsupported_value",
                       "This value of %s is not supported by this server; accepted: %s.",
                       field->name, accepted);
}

static bool field_number(const request_field *field, const json_t *value, double *out,
                         tr_api_error *err)
{
    if (!json_is_number(value))
        return field_wrong_type(field, "a number", value, err);
    double number = json_number_value(value);
    if (!(number >= field->min && number <= field->max))
        return tr_api_fail(err, 400, field->name, "invalid_value",
                           "%s is %.9g, expected %.9g to %.9g.", field->name, number, field->min,
                           field->max);
    *out = number;
    return true;
}

static bool field_integer(const request_field *field, const json_t *value, int64_t *out,
                          tr_api_error *err)
{
    if (!json_is_integer(value))
        return field_wrong_type(field, "an integer", value, err);
    json_int_t number = json_integer_value(value);
    if ((double)number < field->min || (double)number > field->max)
        return tr_api_fail(err, 400, field->name, "invalid_value",
                           "%s is %lld, expected %.0f to %.0f.", field->name, (long long)number,
                           field->min, field->max);
    *out = number;
    return true;
}

static bool field_boolean(const request_field *field, const json_t *value, bool *out,
                          tr_api_error *err)
{
    if (!json_is_boolean(value))
        return field_wrong_type(field, "a boolean", value, err);
    *out = json_is_true(value);
    return true;
}

static bool read_model(request_draft *d, const request_field *field, const json_t *value,
                       tr_api_error *err)
{
    if (!json_is_string(value))
        return field_wrong_type(field, "a string", value, err);
    if (strcmp(json_string_value(value), d->model->name) == 0)
        return true;
    return tr_api_fail(err, 404, "model", "model_not_found",
                       "The model \"%.100s\" is not served here; this server has \"%.100s\".",
                       json_string_value(value), d->model->name);
}

static bool read_prompt(request_draft *d, const request_field *field, const json_t *value,
                        tr_api_error *err)
{
    (void)field;
    (void)err;
    d->prompt = value;
    return true;
}

static bool read_messages(request_draft *d, const request_field *field, const json_t *value,
                          tr_api_error *err)
{
    (void)field;
    (void)err;
    d->messages = value;
    return true;
}

static bool read_tools(request_draft *d, const request_field *field, const json_t *value,
                       tr_api_error *err)
{
    (void)field;
    if (!tr_chat_check_tools(value, err))
        return false;
    d->tools = json_array_size(value) > 0 ? value : NULL;
    return true;
}

static bool read_tool_choice(request_draft *d, const request_field *field, const json_t *value,
                             tr_api_error *err)
{
    const char *choice = json_string_value(value);
    if (choice != NULL && strcmp(choice, "none") == 0)
        d->tools_are_off = true;
    else if (choice == NULL || strcmp(choice, "auto") != 0)
        return field_unsupported(field, "\"auto\", \"none\"", err);
    return true;
}

static bool read_parallel_tool_calls(request_draft *d, const request_field *field,
                                     const json_t *value, tr_api_error *err)
{
    bool parallel = true;
    if (!field_boolean(field, value, &parallel, err))
        return false;
    d->out->one_call = !parallel;
    return true;
}

static bool read_tokens_max(request_draft *d, const request_field *field, const json_t *value,
                            tr_api_error *err)
{
    int64_t number = 0;
    if (!field_integer(field, value, &number, err))
        return false;
    if (d->has_tokens_max && d->out->tokens_max != number)
        return tr_api_fail(err, 400, field->name, "invalid_value",
                           "max_tokens and max_completion_tokens are two names of one field and "
                           "have different values.");
    d->out->tokens_max = (uint32_t)number;
    d->has_tokens_max = true;
    return true;
}

static bool read_temperature(request_draft *d, const request_field *field, const json_t *value,
                             tr_api_error *err)
{
    double number = 0;
    if (!field_number(field, value, &number, err))
        return false;
    d->out->sampling.temperature = (float)number;
    return true;
}

static bool read_top_p(request_draft *d, const request_field *field, const json_t *value,
                       tr_api_error *err)
{
    double number = 0;
    if (!field_number(field, value, &number, err))
        return false;
    if (number <= 0)
        return tr_api_fail(err, 400, field->name, "invalid_value",
                           "top_p is 0, expected more than 0 and at most 1.");
    d->out->sampling.top_p = (float)number;
    return true;
}

static bool read_min_p(request_draft *d, const request_field *field, const json_t *value,
                       tr_api_error *err)
{
    double number = 0;
    if (!field_number(field, value, &number, err))
        return false;
    d->out->sampling.min_p = (float)number;
    return true;
}

static bool read_top_k(request_draft *d, const request_field *field, const json_t *value,
                       tr_api_error *err)
{
    int64_t number = 0;
    if (!field_integer(field, value, &number, err))
        return false;
    d->out->sampling.top_k = number < 0 ? 0 : (uint32_t)number; /* -1 is another name of "off" */
    return true;
}

static bool read_seed(request_draft *d, const request_field *field, const json_t *value,
                      tr_api_error *err)
{
    if (!json_is_integer(value))
        return field_wrong_type(field, "an integer", value, err);
    d->out->sampling.seed = (uint64_t)json_integer_value(value);
    d->has_seed = true;
    return true;
}

static bool request_add_stop(tr_stop_strings *stops, const json_t *value, tr_api_error *err)
{
    if (!json_is_string(value))
        return tr_api_fail(err, 400, "stop", "invalid_type",
                           "stop contains %s, expected a string or an array of strings.",
                           tr_json_type_text(value));
    size_t size = json_string_length(value);
    if (size == 0 || size > TR_STOP_STRING_SIZE_MAX)
        return tr_api_fail(err, 400, "stop", "invalid_value",
                           "A stop string has %zu bytes, expected 1 to %d.", size,
                           TR_STOP_STRING_SIZE_MAX);
    if (stops->count == TR_STOP_STRINGS_MAX)
        return tr_api_fail(err, 400, "stop", "invalid_value",
                           "There are more than %d stop strings.", TR_STOP_STRINGS_MAX);
    stops->strings[stops->count].size = size;
    memcpy(stops->strings[stops->count].text, json_string_value(value), size);
    stops->count++;
    return true;
}

static bool read_stop(request_draft *d, const request_field *field, const json_t *value,
                      tr_api_error *err)
{
    (void)field;
    if (!json_is_array(value))
        return request_add_stop(&d->out->stops, value, err);
    size_t i;
    const json_t *item;
    json_array_foreach(value, i, item)
    {
        if (!request_add_stop(&d->out->stops, item, err))
            return false;
    }
    return true;
}

static bool read_stream(request_draft *d, const request_field *field, const json_t *value,
                        tr_api_error *err)
{
    return field_boolean(field, value, &d->out->stream, err);
}

static bool read_stream_options(request_draft *d, const request_field *field, const json_t *value,
                                tr_api_error *err)
{
    if (!json_is_object(value))
        return field_wrong_type(field, "an object", value, err);
    const char *key;
    json_t *option;
    json_object_foreach((json_t *)value, key, option)
    {
        if (strcmp(key, "include_usage") != 0 || !json_is_boolean(option))
            return tr_api_fail(err, 400, "stream_options", "unsupported_parameter",
                               "stream_options.%.40s is not supported by this server; accepted: "
                               "include_usage, a boolean.",
                               key);
        d->out->include_usage = json_is_true(option);
    }
    d->has_stream_options = true;
    return true;
}

static bool read_logprobs_flag(request_draft *d, const request_field *field, const json_t *value,
                               tr_api_error *err)
{
    return field_boolean(field, value, &d->out->want_logprobs, err);
}

static bool read_logprobs_count(request_draft *d, const request_field *field, const json_t *value,
                                tr_api_error *err)
{
    int64_t number = 0;
    if (!field_integer(field, value, &number, err))
        return false;
    d->out->want_logprobs = true;
    d->out->top_logprobs = (uint32_t)number;
    return true;
}

static bool read_top_logprobs(request_draft *d, const request_field *field, const json_t *value,
                              tr_api_error *err)
{
    int64_t number = 0;
    if (!field_integer(field, value, &number, err))
        return false;
    d->has_top_logprobs = true;
    d->out->top_logprobs = (uint32_t)number;
    return true;
}

static bool read_reasoning_effort(request_draft *d, const request_field *field, const json_t *value,
                                  tr_api_error *err)
{
    if (!json_is_string(value))
        return field_wrong_type(field, "a string", value, err);
    d->reasoning_effort = json_string_value(value);
    return true;
}

static bool read_template_arguments(request_draft *d, const request_field *field,
                                    const json_t *value, tr_api_error *err)
{
    static const char *const ours[] = {"messages", "tools", "add_generation_prompt"};
    if (!json_is_object(value))
        return field_wrong_type(field, "an object", value, err);
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if (json_object_get(value, ours[i]) != NULL)
            return tr_api_fail(err, 400, field->name, "unsupported_parameter",
                               "chat_template_kwargs.%s cannot be set by a request.", ours[i]);
    }
    d->template_arguments = value;
    return true;
}

/* A number that may be given as long as it changes nothing. */
static bool read_fixed_number(request_draft *d, const request_field *field, const json_t *value,
                              tr_api_error *err)
{
    char accepted[32];
    (void)d;
    if (json_is_number(value) && json_number_value(value) == field->min)
        return true;
    snprintf(accepted, sizeof(accepted), "%.0f", field->min);
    return field_unsupported(field, accepted, err);
}

static bool read_fixed_false(request_draft *d, const request_field *field, const json_t *value,
                             tr_api_error *err)
{
    (void)d;
    return json_is_false(value) ? true : field_unsupported(field, "false", err);
}

static bool read_empty_object(request_draft *d, const request_field *field, const json_t *value,
                              tr_api_error *err)
{
    (void)d;
    if (json_is_object(value) && json_object_size(value) == 0)
        return true;
    return field_unsupported(field, "{}", err);
}

static bool read_response_format(request_draft *d, const request_field *field, const json_t *value,
                                 tr_api_error *err)
{
    (void)d;
    const char *type = json_string_value(json_object_get(value, "type"));
    if (type != NULL && strcmp(type, "text") == 0)
        return true;
    return field_unsupported(field, "{\"type\": \"text\"}", err);
}

/* Fields that tell the provider something about the client and change no answer. */
static bool read_ignored(request_draft *d, const request_field *field, const json_t *value,
                         tr_api_error *err)
{
    (void)d;
    (void)field;
    (void)value;
    (void)err;
    return true;
}

static const request_field request_fields[] = {
    {"model", FOR_BOTH, read_model, 0, 0},
    {"prompt", FOR_COMPLETION, read_prompt, 0, 0},
    {"messages", FOR_CHAT, read_messages, 0, 0},
    {"tools", FOR_CHAT, read_tools, 0, 0},
    {"tool_choice", FOR_CHAT, read_tool_choice, 0, 0},
    {"parallel_tool_calls", FOR_CHAT, read_parallel_tool_calls, 0, 0},
    {"max_tokens", FOR_BOTH, read_tokens_max, 1, INT32_MAX},
    {"max_completion_tokens", FOR_CHAT, read_tokens_max, 1, INT32_MAX},
    {"temperature", FOR_BOTH, read_temperature, 0, 2},
    {"top_p", FOR_BOTH, read_top_p, 0, 1},
    {"top_k", FOR_BOTH, read_top_k, -1, INT32_MAX},
    {"min_p", FOR_BOTH, read_min_p, 0, 1},
    {"seed", FOR_BOTH, read_seed, 0, 0},
    {"stop", FOR_BOTH, read_stop, 0, 0},
    {"stream", FOR_BOTH, read_stream, 0, 0},
    {"stream_options", FOR_BOTH, read_stream_options, 0, 0},
    {"logprobs", FOR_CHAT, read_logprobs_flag, 0, 0},
    {"logprobs", FOR_COMPLETION, read_logprobs_count, 0, TR_TOP_LOGPROBS_MAX},
    {"top_logprobs", FOR_CHAT, read_top_logprobs, 0, TR_TOP_LOGPROBS_MAX},
    {"reasoning_effort", FOR_CHAT, read_reasoning_effort, 0, 0},
    {"chat_template_kwargs", FOR_CHAT, read_template_arguments, 0, 0},
    {"n", FOR_BOTH, read_fixed_number, 1, 1},
    {"best_of", FOR_COMPLETION, read_fixed_number, 1, 1},
    {"presence_penalty", FOR_BOTH, read_fixed_number, 0, 0},
    {"frequency_penalty", FOR_BOTH, read_fixed_number, 0, 0},
    {"repetition_penalty", FOR_BOTH, read_fixed_number, 1, 1},
    {"echo", FOR_COMPLETION, read_fixed_false, 0, 0},
    {"logit_bias", FOR_BOTH, read_empty_object, 0, 0},
    {"response_format", FOR_CHAT, read_response_format, 0, 0},
    {"user", FOR_BOTH, read_ignored, 0, 0},
    {"metadata", FOR_BOTH, read_ignored, 0, 0},
    {"store", FOR_BOTH, read_ignored, 0, 0},
    {"safety_identifier", FOR_BOTH, read_ignored, 0, 0},
    {"prompt_cache_key", FOR_BOTH, read_ignored, 0, 0},
    {"service_tier", FOR_BOTH, read_ignored, 0, 0},
};

static bool request_read_fields(request_draft *d, const json_t *body, tr_api_error *err)
{
    int endpoint = d->out->kind == TR_API_CHAT ? FOR_CHAT : FOR_COMPLETION;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value)
    {
        const request_field *field = NULL;
        for (size_t i = 0; i < sizeof(request_fields) / sizeof(request_fields[0]); i++) {
            if ((request_fields[i].endpoints & endpoint) != 0 &&
                strcmp(request_fields[i].name, key) == 0)
                field = &request_fields[i];
        }
        if (json_is_null(value))
            continue;
        if (field == NULL)
            return tr_api_fail(err, 400, key, "unsupported_parameter",
                               "The field \"%.60s\" is not supported by this server.", key);
        if (!field->read(d, field, value, err))
            return false;
    }
    return true;
}

/* What only shows when all fields are known. */
static bool request_check_fields(const request_draft *d, tr_api_error *err)
{
    if (d->has_stream_options && !d->out->stream)
        return tr_api_fail(err, 400, "stream_options", "invalid_value",
                           "stream_options is given, but stream is not true.");
    if (d->has_top_logprobs && !d->out->want_logprobs)
        return tr_api_fail(err, 400, "top_logprobs", "invalid_value",
                           "top_logprobs is given, but logprobs is not true.");
    return true;
}

static bool prompt_from_text(request_draft *d, const json_t *text, tr_api_error *err)
{
    size_t size = json_string_length(text);
    size_t tokens_max = tr_tokenizer_ids_max(d->model->tokenizer, size);
    if (tokens_max > d->model->context_max)
        tokens_max = d->model->context_max;
    d->out->tokens = malloc((tokens_max + 1) * sizeof(*d->out->tokens));
    if (d->out->tokens == NULL)
        return tr_api_fail(err, 503, "prompt", NULL, "There is no memory for %zu tokens.",
                           tokens_max);
    tr_error error = {0};
    tr_status status =
        tr_tokenizer_encode_prompt(d->model->tokenizer, json_string_value(text), size, true,
                                   d->out->tokens, tokens_max, &d->out->tokens_count, &error);
    if (status == TR_E_NOMEM)
        return tr_prompt_too_long(d->model, "prompt", d->out->tokens_count, err);
    if (status != TR_OK)
        return tr_api_fail(err, 400, "prompt", NULL, "The prompt cannot be tokenized: %s",
                           error.text);
    return true;
}

static bool prompt_from_tokens(request_draft *d, const json_t *tokens, tr_api_error *err)
{
    size_t count = json_array_size(tokens);
    uint32_t vocab_size = tr_tokenizer_vocab_size(d->model->tokenizer);
    if (count >= d->model->context_max)
        return tr_prompt_too_long(d->model, "prompt", count, err);
    d->out->tokens = malloc((count + 1) * sizeof(*d->out->tokens));
    if (d->out->tokens == NULL)
        return tr_api_fail(err, 503, "prompt", NULL, "There is no memory for %zu tokens.", count);
    size_t i;
    const json_t *token;
    json_array_foreach(tokens, i, token)
    {
        json_int_t id = json_integer_value(token);
        if (!json_is_integer(token))
            return tr_api_fail(err, 400, "prompt", "invalid_type",
                               "prompt[%zu] is %s, expected a token id like the first element.", i,
                               tr_json_type_text(token));
        if (id < 0 || id >= vocab_size)
            return tr_api_fail(err, 400, "prompt", "invalid_value",
                               "prompt[%zu] is %lld, expected a token id from 0 to %u.", i,
                               (long long)id, vocab_size - 1);
        d->out->tokens[i] = (int32_t)id;
    }
    d->out->tokens_count = count;
    return true;
}

static bool request_make_completion(request_draft *d, tr_api_error *err)
{
    const json_t *prompt = d->prompt;
    const json_t *first = json_array_get(prompt, 0);
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(prompt) != 1)
            return tr_api_fail(err, 400, "prompt", "unsupported_value",
                               "prompt is a list of %zu prompts, this server takes one a request.",
                               json_array_size(prompt));
        prompt = first;
    }
    if (!json_is_string(prompt) && !json_is_array(prompt))
        return tr_api_fail(err, 400, "prompt", "invalid_type",
                           "prompt is %s, expected a string or an array of token ids.",
                           tr_json_type_text(prompt));
    bool ok = json_is_string(prompt) ? prompt_from_text(d, prompt, err)
                                     : prompt_from_tokens(d, prompt, err);
    if (ok && d->out->tokens_count == 0)
        return tr_api_fail(err, 400, "prompt", "invalid_value",
                           "prompt is empty, expected at least one token.");
    d->out->channel = TR_CHANNEL_CONTENT;
    return ok;
}

static bool request_make_chat(request_draft *d, tr_api_error *err)
{
    json_t *messages = tr_chat_messages(d->messages, err);
    if (messages == NULL)
        return false;
    json_t *variables =
        d->template_arguments != NULL ? json_copy((json_t *)d->template_arguments) : json_object();
    bool tools = d->tools != NULL && !d->tools_are_off;
    bool ok = json_object_set_new(variables, "messages", messages) == 0 &&
              json_object_set_new(variables, "add_generation_prompt", json_true()) == 0;
    if (ok && tools)
        ok = json_object_set(variables, "tools", (json_t *)d->tools) == 0;
    if (ok && d->reasoning_effort != NULL)
        ok = json_object_set_new(variables, "reasoning_effort", json_string(d->reasoning_effort)) ==
             0;
    if (!ok)
        tr_api_fail(err, 503, "messages", NULL, "There is no memory for the messages.");
    else
        ok = tr_chat_prompt(d->model, variables, &d->out->tokens, &d->out->tokens_count, err);
    json_decref(variables);
    if (!ok)
        return false;
    d->out->channel =
        tr_channel_at_start(&d->model->sentinels, d->out->tokens, d->out->tokens_count);
    if (tools && tr_sentinels_have_tools(&d->model->sentinels))
        d->out->tools = json_incref((json_t *)d->tools);
    return true;
}

static bool request_fit_context(request_draft *d, tr_api_error *err)
{
    tr_api_request *r = d->out;
    uint32_t context_max = d->model->context_max;
    if (r->tokens_count >= context_max)
        return tr_prompt_too_long(d->model, r->kind == TR_API_CHAT ? "messages" : "prompt",
                                  r->tokens_count, err);
    uint32_t left = context_max - (uint32_t)r->tokens_count;
    if (!d->has_tokens_max) {
        r->tokens_max = left;
        if (r->kind == TR_API_COMPLETION && left > COMPLETION_TOKENS_DEFAULT)
            r->tokens_max = COMPLETION_TOKENS_DEFAULT;
        return true;
    }
    if (r->tokens_max > left)
        return tr_api_fail(err, 400, "max_tokens", "context_length_exceeded",
                           "The context of this server is %u tokens; the prompt has %zu and "
                           "max_tokens asks for %u more, at most %u are left.",
                           context_max, r->tokens_count, r->tokens_max, left);
    return true;
}

bool tr_api_request_read(tr_api_request *out, const tr_api_model *model, tr_api_kind kind,
                         const char *body, size_t size, tr_api_error *err)
{
    request_draft d = {.out = out, .model = model};
    *out = (tr_api_request){
        .kind = kind,
        .sampling = {.temperature = model->default_temperature, .top_p = model->default_top_p}};

    json_t *root = tr_body_read(body, size, BODY_VALUES_MAX + model->context_max, err);
    if (root == NULL)
        return false;
    bool ok =
        request_read_fields(&d, root, err) && request_check_fields(&d, err) &&
        (kind == TR_API_CHAT ? request_make_chat(&d, err) : request_make_completion(&d, err)) &&
        request_fit_context(&d, err);
    json_decref(root);
    if (!ok) {
        tr_api_request_free(out);
        return false;
    }
    if (!d.has_seed &&
        getrandom(&out->sampling.seed, sizeof(out->sampling.seed), GRND_NONBLOCK) < 0)
        out->sampling.seed = 0; /* only before the kernel's pool is ready, early at boot */
    return true;
}

void tr_api_request_free(tr_api_request *r)
{
    free(r->tokens);
    json_decref(r->tools);
    r->tokens = NULL;
    r->tools = NULL;
}
