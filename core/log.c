#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* One line, newline included. Longer lines are cut: a write of up to 4096 bytes to a pipe is
 * atomic. */
#define LOG_LINE_SIZE  1024
#define LOG_NODE_SIZE  64
#define LOG_SECOND_NS  1000000000ull
#define LOG_NEVER_SEEN 0ull

/* Read on every line by any thread, relaxed: a line more or less at the moment of a change is fine.
 */
static _Atomic int log_level = TR_LOG_INFO;

/* Written before threads start, see the header. */
static char log_node[LOG_NODE_SIZE] = "-";

static const char *log_level_name(tr_log_level level)
{
    switch (level) {
    case TR_LOG_ERROR:
        return "error";
    case TR_LOG_WARN:
        return "warn";
    case TR_LOG_INFO:
        return "info";
    case TR_LOG_DEBUG:
        return "debug";
    }
    return "unknown";
}

void tr_log_set_level(tr_log_level level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void tr_log_set_node(const char *name)
{
    snprintf(log_node, sizeof(log_node), "%s", name);
}

/* Parts of a line may come from a peer. A line break or an escape in them must not look like a
 * line of its own or reach a terminal. */
static void log_replace_controls(char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = '?';
}

/* What snprintf wrote of what it wanted to write. */
static size_t log_written(int wanted, size_t room)
{
    if (wanted < 0)
        return 0;
    return (size_t)wanted < room ? (size_t)wanted : room - 1;
}

static void log_write(tr_log_level level, const char *actor, const char *event,
                      unsigned int repeated, const char *fmt, va_list args)
{
    char line[LOG_LINE_SIZE];
    struct timespec now;
    struct tm local;

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t room = sizeof(line) - 1; /* the last byte is for the newline */
    size_t used =
        log_written(snprintf(line, room, "%02d:%02d:%02d.%06ld %s %s %s %s", local.tm_hour,
                             local.tm_min, local.tm_sec, now.tv_nsec / 1000, log_level_name(level),
                             log_node, actor != NULL ? actor : "-", event),
                    room);
    if (repeated > 0)
        used +=
            log_written(snprintf(line + used, room - used, " repeated=%u", repeated), room - used);
    size_t before_pairs = used;
    used += log_written(snprintf(line + used, room - used, " "), room - used);
    size_t pairs_size = log_written(vsnprintf(line + used, room - used, fmt, args), room - used);
    used = pairs_size > 0 ? used + pairs_size : before_pairs;
    log_replace_controls(line, used);
    line[used++] = '\n';
    /* There is nobody to tell when standard error is gone. */
    if (write(STDERR_FILENO, line, used) < 0)
        return;
}

static int log_wanted(tr_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void tr_log(tr_log_level level, const char *actor, const char *event, const char *fmt, ...)
{
    if (!log_wanted(level))
        return;
    va_list args;
    va_start(args, fmt);
    log_write(level, actor, event, 0, fmt, args);
    va_end(args);
}

void tr_log_limited(tr_log_limit *limit, tr_log_level level, const char *actor, const char *event,
                    const char *fmt, ...)
{
    if (!log_wanted(level))
        return;

    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    unsigned long long now =
        (unsigned long long)clock.tv_sec * LOG_SECOND_NS + (unsigned long long)clock.tv_nsec;

    /* Relaxed: the two counters publish nothing. Of several threads that find the second over, the
     * one whose exchange succeeds writes the line; the others count themselves as dropped. */
    unsigned long long last = atomic_load_explicit(&limit->last_ns, memory_order_relaxed);
    if ((last != LOG_NEVER_SEEN && now - last < LOG_SECOND_NS) ||
        !atomic_compare_exchange_strong_explicit(&limit->last_ns, &last, now, memory_order_relaxed,
                                                 memory_order_relaxed)) {
        atomic_fetch_add_explicit(&limit->dropped, 1, memory_order_relaxed);
        return;
    }
    unsigned int repeated = atomic_exchange_explicit(&limit->dropped, 0, memory_order_relaxed);

    va_list args;
    va_start(args, fmt);
    log_write(level, actor, event, repeated, fmt, args);
    va_end(args);
}
