#include "api/api_error.h"

#include <stdarg.h>
#include <stdio.h>

bool tr_api_fail(tr_api_error *err, unsigned status, const char *param, const char *code,
                 const char *fmt, ...)
{
    va_list args;
    *err = (tr_api_error){.status = status, .code = code};
    if (param != NULL)
        snprintf(err->param, sizeof(err->param), "%s", param);
    va_start(args, fmt);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
    return false;
}

static const char *api_error_type(unsigned status)
{
    if (status == 503)
        return "service_unavailable_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

void tr_api_error_write(tr_json *w, const tr_api_error *err)
{
    tr_json_object_begin(w);
    tr_json_key(w, "error");
    tr_json_object_begin(w);
    tr_json_pair_string(w, "message", err->message);
    tr_json_pair_string(w, "type", api_error_type(err->status));
    tr_json_key(w, "param");
    if (err->param[0] != '\0')
        tr_json_string(w, err->param);
    else
        tr_json_null(w);
    tr_json_key(w, "code");
    if (err->code != NULL)
        tr_json_string(w, err->code);
    else
        tr_json_null(w);
    tr_json_object_end(w);
    tr_json_object_end(w);
}
