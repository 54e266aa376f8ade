/* ucx.h - messages between processes over UCX: shared memory on one machine, TCP or RDMA between
 * machines. UCX chooses per peer among what both have; nothing here assumes one of them.
 *
 * Options: tls=LIST (UCX transports, default "^self,sysv": all but these), devices=LIST (network
 * devices, default all). The user's UCX_ variables for these and for what ucx/context.c sets have
 * no effect. */
#ifndef TR_TRANSPORT_UCX_UCX_H
#define TR_TRANSPORT_UCX_UCX_H

#include "transport/transport.h"

extern const tr_transport_ops tr_ucx_ops;

#endif
