/* loop.h - several nodes in one process, for tests and for one-process clusters.
 *
 * Options: cluster=NAME (default "default"). Nodes that give the same name meet. */
#ifndef TR_TRANSPORT_LOOP_LOOP_H
#define TR_TRANSPORT_LOOP_LOOP_H

#include "transport/transport.h"

extern const tr_transport_ops tr_loop_ops;

#endif
