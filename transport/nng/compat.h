/* compat.h - what differs between NNG 1.5 and 2.0, in one place. Only for files of transport/nng/.
 */
#ifndef TR_TRANSPORT_NNG_COMPAT_H
#define TR_TRANSPORT_NNG_COMPAT_H

#include <nng/nng.h>
#if NNG_MAJOR_VERSION < 2
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#endif

/* Before the first socket; may be called again, from any thread. Returns an NNG error. */
int tr_nng_init(void);

static inline void tr_nng_socket_close(nng_socket socket)
{
#if NNG_MAJOR_VERSION >= 2
    (void)nng_socket_close(socket); /* fails only when it is closed already */
#else
    (void)nng_close(socket);
#endif
}

#endif
