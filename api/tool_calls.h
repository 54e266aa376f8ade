/* tool_calls.h - reads the tool calls that a model writes between its special tokens, and turns
 * their arguments into a JSON object, piece by piece as they come.
 *
 *   <|tool_call:start|>NAME \n { <|tool_arg:start|>KEY<|tool_arg:value|>VALUE<|tool_arg:end|> }*
 * <|tool_call:end|>
 *
 * The sentinels come as token ids, so the same characters written by the model as ordinary text
 * are text, and no hold-back is needed for them. */
#ifndef TR_API_TOOL_CALLS_H
#define TR_API_TOOL_CALLS_H

#include "api/text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    TR_SENTINEL_CALL_START,
    TR_SENTINEL_CALL_END,
    TR_SENTINEL_ARG_START,
    TR_SENTINEL_ARG_VALUE,
    TR_SENTINEL_ARG_END
} tr_tool_sentinel;

typedef enum {
    TR_CALL_BEGIN,     /* text: the name, never empty */
    TR_CALL_ARGUMENTS, /* text: a piece of the JSON object; whole UTF-8 characters */
    TR_CALL_END        /* the call is complete, its pieces are one JSON object */
} tr_call_event;

#define TR_TOOL_NAME_MAX 256 /* bytes of a name; a longer one is no call */

typedef struct {
    const json_t *tools; /* borrows; the request's array, for the types of parameters */
    void (*emit)(void *ctx, tr_call_event event, const char *text, size_t size);
    void *ctx;                /* of emit */
    uint32_t begun_count;     /* calls whose name was emitted */
    uint32_t completed_count; /* calls that reached their end */

    /* private */
    int state;
    size_t name_size;
    char name[TR_TOOL_NAME_MAX];
    const json_t *properties; /* schema of the current call's parameters, or NULL */
    uint32_t arguments_count; /* of the current call */
    uint32_t types;           /* that the schema allows for the current argument */
    bool streams;             /* the current value is emitted as it comes */
    tr_text key;
    tr_text keys;  /* the keys of the current call, each ended by NUL */
    tr_text value; /* a value that is emitted when it is complete */
} tr_tool_calls;

void tr_tool_calls_init(tr_tool_calls *c, const json_t *tools,
                        void (*emit)(void *ctx, tr_call_event event, const char *text, size_t size),
                        void *ctx);
void tr_tool_calls_teardown(tr_tool_calls *c);

/* Text between sentinels, whole UTF-8 characters. */
void tr_tool_calls_text(tr_tool_calls *c, const char *text, size_t size);

void tr_tool_calls_sentinel(tr_tool_calls *c, tr_tool_sentinel sentinel);

/* A call has begun and is not complete. */
bool tr_tool_calls_is_open(const tr_tool_calls *c);

#endif
