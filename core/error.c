#include "core/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

/* What a file calls itself may hold line breaks and escape sequences of terminals. */
static void error_keep_one_line(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

tr_status tr_fail(tr_error *err, tr_status code, const char *fmt, ...)
{
    assert(code != TR_OK);
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        err->code = code;
        vsnprintf(err->text, sizeof(err->text), fmt, args);
        va_end(args);
        error_keep_one_line(err->text);
    }
    return code;
}

const char *tr_status_text(tr_status status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case TR_##name:                                                                                \
        return text;
        TR_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}
