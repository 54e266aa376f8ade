/* api_error.h - why a request was refused, as OpenAI's error object says it. */
#ifndef TR_API_API_ERROR_H
#define TR_API_API_ERROR_H

#include "api/json_writer.h"

#include <stdbool.h>

typedef struct {
    unsigned status;        /* HTTP status */
    const char *code;       /* static; for programs: "context_length_exceeded"; NULL: null */
    unsigned retry_after_s; /* 0: no Retry-After header */
    char param[128];        /* "messages[2].content"; "": null */
    char message[512];      /* one sentence */
} tr_api_error;

/* Most bytes that tr_api_error_write writes. */
#define TR_API_ERROR_JSON_MAX (TR_JSON_ESCAPED_MAX(128 + 512) + 256)

/* Fills *err and returns false, so that a check is one line. param may be NULL. */
bool tr_api_fail(tr_api_error *err, unsigned status, const char *param, const char *code,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* {"error": {"message": ..., "type": ..., "param": ..., "code": ...}} */
void tr_api_error_write(tr_json *w, const tr_api_error *err);

#endif
