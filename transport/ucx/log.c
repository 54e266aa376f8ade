/* log.c - sends UCX's messages to our log.
 *
 * UCX would print them on standard output, where a command's result or an answer belongs. */
#include "transport/ucx/internal.h"

#include "core/log.h"

#ifdef TR_HAVE_UCX_LOG_HANDLER

/* Newer versions of this header use two GNU keywords that -std=c17 hides. */
#define asm __asm__
#define typeof __typeof__
#include <ucs/debug/log_def.h>
#undef asm
#undef typeof

#include <pthread.h>
#include <stdio.h>

static ucs_log_func_rc_t log_on_message(const char *file, unsigned line, const char *function,
                                        ucs_log_level_t level,
                                        const ucs_log_component_config_t *component,
                                        const char *message, va_list args)
{
    static tr_log_limit limit;
    char text[256];

    (void)file;
    (void)line;
    (void)function;
    (void)component;
    if (level > UCS_LOG_LEVEL_WARN)
        return UCS_LOG_FUNC_RC_CONTINUE; /* only somebody who has asked UCX for them sees these */
    vsnprintf(text, sizeof(text), message, args);
    tr_log_limited(&limit, TR_LOG_WARN, NULL, "ucx_says", "text=\"%s\"", text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void log_push(void)
{
    ucs_log_push_handler(log_on_message);
}

void ucx_log_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, log_push);
}

#else

/* This UCX was installed without the header that it takes. */
void ucx_log_open(void)
{
}

#endif
