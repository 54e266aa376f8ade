/* compat.h - what differs between NNG 1.5 and 2.0, in one place. Only for files of transport/nng/.
 */
#ifndef TR_TRANSPORT_NNG_COMPAT_H
#define TR_TRANSPORT_NNG_COMPAT_H

#include <nng/nng.h>
#if NNG_MAJOR_VERSION < 2
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#endif
#include <stdbool.h>

/* Before the first socket; may be called again, from any thread. Returns an NNG error. */
int tr_nng_init(void);

/* Closes a socket, and waits for that, but not for ever: in library.c. False: NNG has not come to
 * the end, and may still use what the socket's callbacks were given. */
bool tr_nng_socket_close(nng_socket socket);

#endif
