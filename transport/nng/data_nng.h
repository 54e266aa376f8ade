/* data_nng.h - messages between processes over NNG (TCP or IPC).
 *
 * For where UCX is not to be had, and for tests: NNG's threads stand between us and the socket, so
 * a hop costs tens of microseconds where UCX needs one.
 *
 * Options: listen=URL, tcp://host:port or ipc:///path (default tcp://127.0.0.1:0, a free port of
 * the loop-back device). Peers dial this URL, so the host must be one that they can reach. */
#ifndef TR_TRANSPORT_NNG_DATA_NNG_H
#define TR_TRANSPORT_NNG_DATA_NNG_H

#include "transport/transport.h"

extern const tr_transport_ops tr_nng_ops;

#endif
