/* library.c - what NNG does once in a process: begin, for one thread alone; and close, with a
 * deadline.
 *
 * Note: in NNG 1.5 nng_close can wait for ever. A pipe that is closed between the length of a
 * message and its bytes asks for these with an operation that is closed already, is not told, and
 * the thread that tidies all pipes up waits for it from then on. An answer that comes late, just
 * when its client is closed, does that (a test makes it so). */
#include "core/log.h"
#include "transport/nng/compat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define CLOSE_S 2

/* One socket that is being closed; whoever is last frees it. */
typedef struct {
    nng_socket socket;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool has_ended;
    bool is_left;
} closing;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int result;
static _Atomic bool stuck; /* one did not end: no later one is waited for */

static void close_now(nng_socket socket)
{
#if NNG_MAJOR_VERSION >= 2
    (void)nng_socket_close(socket); /* fails only when it is closed already */
#else
    (void)nng_close(socket);
#endif
}

static void init(void)
{
#if NNG_MAJOR_VERSION >= 2
    result = nng_init(NULL);
#else
    /* The first call of all begins the library, and looks without a lock whether another has. */
    nng_socket socket;
    result = nng_req0_open(&socket);
    if (result == 0)
        close_now(socket);
#endif
}

int tr_nng_init(void)
{
    (void)pthread_once(&once, init); /* fails for a bad control alone */
    return result;
}

static void closing_free(closing *c)
{
    pthread_cond_destroy(&c->ended);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *closing_main(void *ctx)
{
    closing *c = ctx;

    close_now(c->socket);
    pthread_mutex_lock(&c->lock);
    c->has_ended = true;
    bool is_left = c->is_left;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    if (is_left)
        closing_free(c);
    return NULL;
}

/* Waits until it has ended, or is left to its thread. */
static bool closing_await(closing *c)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += atomic_load(&stuck) ? 0 : CLOSE_S;
    pthread_mutex_lock(&c->lock);
    while (!c->has_ended && pthread_cond_timedwait(&c->ended, &c->lock, &until) == 0)
        ;
    bool has_ended = c->has_ended;
    c->is_left = !has_ended;
    pthread_mutex_unlock(&c->lock);
    return has_ended;
}

bool tr_nng_socket_close(nng_socket socket)
{
    pthread_condattr_t monotonic;
    pthread_t thread;
    closing *c = malloc(sizeof(*c));

    if (c == NULL) {
        close_now(socket);
        return true;
    }
    *c = (closing){.socket = socket};
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&thread, NULL, closing_main, c) != 0) {
        close_now(socket);
        closing_free(c);
        return true;
    }
    pthread_detach(thread);
    bool has_ended = closing_await(c);
    if (has_ended)
        closing_free(c);
    else if (!atomic_exchange(&stuck, true))
        tr_log(TR_LOG_WARN, NULL, "nng_stuck", "what=\"a control socket does not close\"");
    return has_ended;
}
