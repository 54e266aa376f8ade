/* log.h - one line per event, key=value, on standard error:
 *
 *   12:03:07.114203 warn spark1 expert/spark1 peer_slow peer=spark2 wait_ms=41 epoch=7
 *
 * error: somebody has to act; warn: handled but unusual; info: a change of state (about ten lines
 * per start, none per request); debug: per request. The hot path does not log. */
#ifndef TR_CORE_LOG_H
#define TR_CORE_LOG_H

typedef enum { TR_LOG_ERROR, TR_LOG_WARN, TR_LOG_INFO, TR_LOG_DEBUG } tr_log_level;

/* A level for tr_log_set_level only: nothing is logged, for tests whose subject is trouble. */
#define TR_LOG_NONE ((tr_log_level)-1)

/* Lines above this level are dropped. Default TR_LOG_INFO. Thread: any. */
void tr_log_set_level(tr_log_level level);

/* Name of this node in every line; copied. Before threads start. */
void tr_log_set_node(const char *name);

/* One line with one write(2). actor may be NULL ("-"); event is a constant snake_case name; fmt
 * gives key=value pairs, numbers with their unit in the key. Thread: any. */
void tr_log(tr_log_level level, const char *actor, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* For warnings that can repeat: at most one line a second for this place; the next line that is
 * let through carries repeated=N. Use a static tr_log_limit per place. Thread: any. */
typedef struct {
    _Atomic unsigned long long last_ns;
    _Atomic unsigned int dropped;
} tr_log_limit;
void tr_log_limited(tr_log_limit *limit, tr_log_level level, const char *actor, const char *event,
                    const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
