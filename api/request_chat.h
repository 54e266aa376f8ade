/* request_chat.h - messages and tools of a chat request to prompt tokens. Used by request.c. */
#ifndef TR_API_REQUEST_CHAT_H
#define TR_API_REQUEST_CHAT_H

#include "api/request.h"

/* Checks messages and brings them into the form that templates expect: content is a string or
 * null, arguments of tool calls are objects. Returns a new array, or NULL and *err. */
json_t *tr_chat_messages(const json_t *messages, tr_api_error *err);

/* Checks the array of tools: each {"type": "function", "function": {"name": ...}}. */
bool tr_chat_check_tools(const json_t *tools, tr_api_error *err);

/* Renders the template with the variables and tokenizes the result into *tokens (caller frees).
 * errors  400: the template refuses the messages, the prompt does not fit */
bool tr_chat_prompt(const tr_api_model *model, const json_t *variables, int32_t **tokens,
                    size_t *tokens_count, tr_api_error *err);

/* The error for a prompt that leaves no room for an answer. Returns false. */
bool tr_prompt_too_long(const tr_api_model *model, const char *param, size_t tokens_count,
                        tr_api_error *err);

#endif
