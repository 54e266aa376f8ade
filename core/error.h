/* error.h - how every part of Troupe reports trouble.
 *
 * Three sorts of trouble, three ways. Bugs: assert. Expected trouble (bad file, full queue,
 * dead peer): a tr_status, with a sentence in tr_error. Out of budget: refused before anything
 * is started. */
#ifndef TR_CORE_ERROR_H
#define TR_CORE_ERROR_H

#define TR_STATUS_MAP(X)                                          \
    X(OK, 0, "no error")                                          \
    X(E_AGAIN, -1, "no room now; the caller will be woken")       \
    X(E_NOMEM, -2, "the memory budget does not admit this")       \
    X(E_INVALID, -3, "input from outside is wrong; see tr_error") \
    X(E_TIMEOUT, -4, "a deadline passed")                         \
    X(E_PEER, -5, "the other node is gone")                       \
    X(E_CANCELED, -6, "the request was cancelled")                \
    X(E_NOTSUP, -7, "this build or this device cannot do it")

typedef enum {
#define X(name, value, text) TR_##name = (value),
    TR_STATUS_MAP(X)
#undef X
} tr_status;

typedef struct {
    tr_status code;
    char text[240]; /* one sentence: where, what was found, what was expected */
} tr_error;

/* Fills *err (NULL is allowed) and returns code, so that a check is one line. Control bytes, which
 * come from outside, become "?".
 *
 *   code    any status but TR_OK
 *   fmt     printf format of one sentence; cut to what fits tr_error.text
 *
 * thread  any
 * blocks  no */
tr_status tr_fail(tr_error *err, tr_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The text of a status, for messages. Never NULL, static storage. Thread: any. */
const char *tr_status_text(tr_status status);

#endif
