#include "api/request_chat.h"

#include "api/body.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_SIZE 96

/* "messages[2].tool_calls[0]" and so on, for errors. */
static void path_print(char out[PATH_SIZE], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void path_print(char out[PATH_SIZE], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out, PATH_SIZE, fmt, args);
    va_end(args);
}

static bool chat_wrong_type(tr_api_error *err, const char *path, const char *expected,
                            const json_t *found)
{
    return tr_api_fail(err, 400, path, "invalid_type", "%s is %s, expected %s.", path,
                       tr_json_type_text(found), expected);
}

/* Joins [{"type": "text", "text": ...}, ...] to one string; new reference or NULL. */
static json_t *chat_join_parts(const json_t *parts, const char *path, tr_api_error *err)
{
    size_t i;
    const json_t *part;
    size_t size = 0;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        char part_path[PATH_SIZE];
        path_print(part_path, "%s[%zu]", path, i);
        if (type == NULL || strcmp(type, "text") != 0) {
            tr_api_fail(err, 400, part_path, "unsupported_value",
                        "%s has type \"%.40s\", this server reads parts of type \"text\" only.",
                        part_path, type == NULL ? "" : type);
            return NULL;
        }
        if (!json_is_string(text)) {
            path_print(part_path, "%s[%zu].text", path, i);
            chat_wrong_type(err, part_path, "a string", text);
            return NULL;
        }
        size += json_string_length(text);
    }
    char *joined = malloc(size + 1);
    if (joined == NULL) {
        tr_api_fail(err, 503, path, NULL, "There is no memory for %s.", path);
        return NULL;
    }
    size = 0;
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        memcpy(joined + size, json_string_value(text), json_string_length(text));
        size += json_string_length(text);
    }
    json_t *content = json_stringn_nocheck(joined, size); /* parts were UTF-8, so is their sum */
    free(joined);
    return content;
}

static bool chat_fix_content(json_t *message, const char *role, const char *path, tr_api_error *err)
{
    char content_path[PATH_SIZE];
    path_print(content_path, "%s.content", path);
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content))
        return true;
    if (json_is_array(content)) {
        json_t *joined = chat_join_parts(content, content_path, err);
        return joined != NULL && json_object_set_new(message, "content", joined) == 0;
    }
    if ((content == NULL || json_is_null(content)) && strcmp(role, "assistant") == 0)
        return json_object_set_new(message, "content", json_null()) == 0;
    return chat_wrong_type(err, content_path, "a string or an array of text parts", content);
}

/* Templates iterate over the arguments; clients send them as a string of JSON. */
static bool chat_fix_call(json_t *call, const char *path, tr_api_error *err)
{
    json_t *function = json_object_get(call, "function");
    if (!json_is_string(json_object_get(function, "name")))
        return tr_api_fail(err, 400, path, "invalid_value", "%s has no function.name.", path);
    char arguments_path[PATH_SIZE];
    path_print(arguments_path, "%s.function.arguments", path);
    const json_t *arguments = json_object_get(function, "arguments");
    if (json_is_object(arguments))
        return true;
    if (!json_is_string(arguments))
        return chat_wrong_type(err, arguments_path, "a string of JSON", arguments);
    size_t size = json_string_length(arguments);
    if (size == 0)
        return json_object_set_new(function, "arguments", json_object()) == 0;
    tr_api_error inner;
    json_t *object = tr_body_read(json_string_value(arguments), size, size, &inner);
    if (object == NULL)
        return tr_api_fail(err, 400, arguments_path, "invalid_value",
                           "%s is not a JSON object in a string.", arguments_path);
    return json_object_set_new(function, "arguments", object) == 0;
}

static bool chat_fix_calls(json_t *message, const char *role, const char *path, tr_api_error *err)
{
    char calls_path[PATH_SIZE];
    path_print(calls_path, "%s.tool_calls", path);
    json_t *calls = json_object_get(message, "tool_calls");
    if (calls == NULL)
        return true;
    if (!json_is_array(calls))
        return chat_wrong_type(err, calls_path, "an array", calls);
    if (strcmp(role, "assistant") != 0)
        return tr_api_fail(err, 400, calls_path, "invalid_value",
                           "%s stands in a message of role \"%s\", expected \"assistant\".",
                           calls_path, role);
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call)
    {
        char call_path[PATH_SIZE];
        path_print(call_path, "%s[%zu]", calls_path, i);
        if (!chat_fix_call(call, call_path, err))
            return false;
    }
    return true;
}

/* Known members are strings or what the functions above look at. Members that clients send back
 * from an answer without meaning anything (null, empty) are dropped. */
static bool chat_fix_members(json_t *message, const char *path, tr_api_error *err)
{
    static const char *const strings[] = {"role", "name", "tool_call_id", "reasoning_content",
                                          "reasoning"};
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value)
    {
        if (strcmp(key, "content") == 0)
            continue;
        bool empty = json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
        if (empty) {
            json_object_del(message, key);
            continue;
        }
        if (strcmp(key, "tool_calls") == 0)
            continue;
        bool known = false;
        for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
            known = known || strcmp(key, strings[i]) == 0;
        char member_path[PATH_SIZE];
        path_print(member_path, "%s.%.40s", path, key);
        if (!known)
            return tr_api_fail(err, 400, member_path, "unsupported_parameter",
                               "%s is not supported by this server.", member_path);
        if (!json_is_string(value))
            return chat_wrong_type(err, member_path, "a string", value);
    }
    return true;
}

static bool chat_fix_message(json_t *message, const char *path, tr_api_error *err)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    if (!json_is_object(message))
        return chat_wrong_type(err, path, "an object", message);
    if (!chat_fix_members(message, path, err))
        return false;
    char role_path[PATH_SIZE];
    path_print(role_path, "%s.role", path);
    const char *role = json_string_value(json_object_get(message, "role"));
    bool known = false;
    for (size_t i = 0; role != NULL && i < sizeof(roles) / sizeof(roles[0]); i++)
        known = known || strcmp(role, roles[i]) == 0;
    if (!known)
        return tr_api_fail(err, 400, role_path, "invalid_value",
                           "%s is \"%.40s\", expected system, developer, user, assistant or tool.",
                           role_path, role == NULL ? "" : role);
    return chat_fix_content(message, role, path, err) && chat_fix_calls(message, role, path, err);
}

json_t *tr_chat_messages(const json_t *messages, tr_api_error *err)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        tr_api_fail(err, 400, "messages", "invalid_type",
                    "messages is %s, expected an array of at least one message.",
                    json_is_array(messages) ? "an empty array" : tr_json_type_text(messages));
        return NULL;
    }
    json_t *fixed = json_deep_copy(messages);
    if (fixed == NULL) {
        tr_api_fail(err, 503, "messages", NULL, "There is no memory for the messages.");
        return NULL;
    }
    size_t i;
    json_t *message;
    json_array_foreach(fixed, i, message)
    {
        char path[PATH_SIZE];
        path_print(path, "messages[%zu]", i);
        *err = (tr_api_error){.status = 503, .message = "There is no memory for the messages."};
        if (!chat_fix_message(message, path, err)) {
            json_decref(fixed);
            return NULL;
        }
    }
    return fixed;
}

bool tr_chat_check_tools(const json_t *tools, tr_api_error *err)
{
    if (!json_is_array(tools))
        return chat_wrong_type(err, "tools", "an array", tools);
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        char path[PATH_SIZE];
        const char *type = json_string_value(json_object_get(tool, "type"));
        path_print(path, "tools[%zu].type", i);
        if (type == NULL || strcmp(type, "function") != 0)
            return tr_api_fail(err, 400, path, "invalid_value",
                               "%s is \"%.40s\", expected \"function\".", path,
                               type == NULL ? "" : type);
        const json_t *function = json_object_get(tool, "function");
        const json_t *name = json_object_get(function, "name");
        path_print(path, "tools[%zu].function.name", i);
        if (!json_is_string(name) || json_string_length(name) == 0 ||
            json_string_length(name) > TR_TOOL_NAME_MAX)
            return tr_api_fail(err, 400, path, "invalid_value",
                               "%s is %s, expected a name of 1 to %d bytes.", path,
                               tr_json_type_text(name), TR_TOOL_NAME_MAX);
        const json_t *parameters = json_object_get(function, "parameters");
        path_print(path, "tools[%zu].function.parameters", i);
        if (parameters != NULL && !json_is_object(parameters) && !json_is_null(parameters))
            return chat_wrong_type(err, path, "a JSON schema object", parameters);
        if (json_is_true(json_object_get(function, "strict")))
            return tr_api_fail(err, 400, path, "unsupported_value",
                               "tools[%zu].function.strict is true; this server does not constrain "
                               "arguments to the schema.",
                               i);
    }
    return true;
}

bool tr_prompt_too_long(const tr_api_model *model, const char *param, size_t tokens_count,
                        tr_api_error *err)
{
    return tr_api_fail(err, 400, param, "context_length_exceeded",
                       "The prompt has %zu tokens or more; the context of this server is %u tokens "
                       "and must hold at least one token of the answer as well.",
                       tokens_count, model->context_max);
}

bool tr_chat_prompt(const tr_api_model *model, const json_t *variables, int32_t **tokens,
                    size_t *tokens_count, tr_api_error *err)
{
    tr_error error = {0};
    tr_rendered rendered;
    if (model->chat_template == NULL)
        return tr_api_fail(err, 400, "messages", "no_chat_template",
                           "The model has no chat template; use /v1/completions.");
    if (tr_chat_template_render(model->chat_template, variables, &rendered, &error) != TR_OK)
        return tr_api_fail(err, 400, "messages", "chat_template",
                           "The chat template refuses the messages: %s", error.text);

    size_t tokens_max = tr_tokenizer_ids_max(model->tokenizer, rendered.size);
    if (tokens_max > model->context_max)
        tokens_max = model->context_max;
    bool ok = false;
    int32_t *ids = malloc((tokens_max + 1) * sizeof(*ids));
    size_t count = 0;
    tr_status status = ids == NULL ? TR_E_NOMEM
                                   : tr_rendered_encode(&rendered, model->tokenizer, ids,
                                                        tokens_max, &count, &error);
    if (ids == NULL)
        tr_api_fail(err, 503, "messages", NULL, "There is no memory for %zu tokens.", tokens_max);
    else if (status == TR_E_NOMEM || (status == TR_OK && count >= model->context_max))
        tr_prompt_too_long(model, "messages", count, err);
    else if (status != TR_OK)
        tr_api_fail(err, 400, "messages", NULL, "The messages cannot be tokenized: %s", error.text);
    else if (count == 0)
        tr_api_fail(err, 400, "messages", NULL, "The chat template makes an empty prompt.");
    else
        ok = true;
    tr_rendered_free(&rendered);
    if (!ok) {
        free(ids);
        return false;
    }
    *tokens = ids;
    *tokens_count = count;
    return true;
}
