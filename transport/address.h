/* address.h - the wrapping of transport addresses between nodes.
 *
 * An address travels over the control plane and ends in a library that trusts it blindly. So it
 * says which transport and node it belongs to, and has a checksum. */
#ifndef TR_TRANSPORT_ADDRESS_H
#define TR_TRANSPORT_ADDRESS_H

#include "transport/transport.h"

/* Wraps body [body_size] as the address of node_index.
 *
 *   address  [size_max], *size is set
 *
 * errors  TR_E_INVALID: size_max is too small. Thread: any. */
tr_status tr_address_write(void *address, size_t size_max, size_t *size, const char *transport,
                           uint32_t node_index, const void *body, size_t body_size, tr_error *err);

/* Checks an address that should be of node_index and points into its body.
 *
 *   body  borrowed from address
 *
 * errors  TR_E_INVALID: another transport's, another node's, cut or damaged. Thread: any. */
tr_status tr_address_read(const void **body, size_t *body_size, const char *transport,
                          uint32_t node_index, const void *address, size_t size, tr_error *err);

/* A number for one life of a transport, not 0: by it peers tell messages of a former one. */
uint32_t tr_transport_life(void);

#endif
