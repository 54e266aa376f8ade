/* init.c - the beginning of NNG, which only one thread may see. */
#include "transport/nng/compat.h"

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int result;

static void init(void)
{
#if NNG_MAJOR_VERSION >= 2
    result = nng_init(NULL);
#else
    /* The first call of all begins the library, and looks without a lock whether another has. */
    nng_socket socket;
    result = nng_req0_open(&socket);
    if (result == 0)
        tr_nng_socket_close(socket);
#endif
}

int tr_nng_init(void)
{
    (void)pthread_once(&once, init); /* fails for a bad control alone */
    return result;
}
