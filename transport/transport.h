/* transport.h - carries messages between nodes. It knows no message's meaning.
 *
 * One tr_transport per node. All calls come from one thread, the node's polling thread (worker 0),
 * except open, the first address and connects, and close, which happen before it starts and after
 * it ended.
 *
 * Life: open -> address (give it to the peers over the control plane) -> connect each peer ->
 * send / poll ... -> close.
 *
 * Delivery is reliable and in order per (sender, receiver) while both live; what a dead peer had
 * not received is lost. A peer that was started again is another one with the same index: forget,
 * then connect with its new address. What its former life sent is never delivered after that. */
#ifndef TR_TRANSPORT_TRANSPORT_H
#define TR_TRANSPORT_TRANSPORT_H

#include "core/buffer.h"
#include "core/message.h"

#define TR_ADDRESS_SIZE_MAX 16384

typedef struct tr_transport tr_transport;

typedef struct {
    uint32_t node_index;  /* of this node */
    uint32_t nodes_count; /* in the cluster, <= TR_NODES_MAX */
    tr_pool *pool;        /* borrowed; incoming payloads are placed in its buffers */
    /* Transport-specific "key=value,key=value" from the placement file, or NULL.
     * ucx: tls=..., devices=...; nng: listen=tcp://host:port; loop: cluster=NAME */
    const char *options;

    /* Called inside poll for each message that arrived; consumes the payload reference. It must not
     * send (it only pushes to a mailbox). The header has been validated (tr_msg_header_read). */
    void (*deliver)(void *ctx, uint32_t source_node, const tr_msg *msg);

    /* Called inside poll or send, once per peer and connect: it is gone or broke the protocol. */
    void (*peer_down)(void *ctx, uint32_t node_index, const char *reason);
    void *ctx;
} tr_transport_config;

typedef struct {
    const char *name; /* "loop", "ucx", "nng" */

    /* What a memory budget counts of a transport in a cluster of so many nodes: the most that it
     * keeps beside the pool, its library's memory with it. */
    uint64_t (*bytes)(uint32_t nodes_count);

    tr_status (*open)(tr_transport **out, const tr_transport_config *config, tr_error *err);

    /* This node's address as opaque bytes: address [size_max] is filled, *size set. After a peer
     * was forgotten it is another: what that one connects to next. */
    tr_status (*address)(tr_transport *t, void *address, size_t size_max, size_t *size,
                         tr_error *err);

    /* Prepares sending to a peer. May block, at most until deadline_ns (tr_clock_ns). The peer may
     * not have connected back yet: what is sent before it has is kept and delivered.
     * errors  TR_E_INVALID malformed address, TR_E_TIMEOUT, TR_E_PEER refused. */
    tr_status (*connect)(tr_transport *t, uint32_t node_index, const void *address, size_t size,
                         uint64_t deadline_ns, tr_error *err);

    /* Forgets a peer, whether it is gone, connected or was never met: what it sent and what waits
     * for it is dropped, and peer_down is not called for it any more. Until it is connected again
     * nothing may be sent to it. From the polling thread, outside of poll and send; may block for
     * moments. Then read the address again. */
    void (*forget)(tr_transport *t, uint32_t node_index);

    /* Hands a message to the transport. Never blocks.
     * TR_OK: taken, the payload reference is the transport's, given back when the bytes have left.
     * TR_E_AGAIN: no room now, nothing was taken; call again after poll.
     * TR_E_PEER: the peer is down; the payload reference was consumed.
     * The header is sealed by the transport. */
    tr_status (*send)(tr_transport *t, uint32_t node_index, const tr_msg *msg);

    /* Makes progress; returns the number of events (messages delivered, sends completed). When the
     * pool is empty, incoming messages wait inside the transport. Never blocks. */
    uint32_t (*poll)(tr_transport *t);

    /* What carries the bytes to this peer, for status and doctor: "posix", "tcp", "inproc"...
     * Static or transport-owned text. */
    const char *(*path)(tr_transport *t, uint32_t node_index);

    /* Flushes what was taken for at most 1 s, then frees everything. */
    void (*close)(tr_transport *t);
} tr_transport_ops;

/* By name; NULL when this build has none of that name. */
const tr_transport_ops *tr_transport_find(const char *name);

/* All transports of this build, NULL-terminated. */
extern const tr_transport_ops *const tr_transports[];

#endif
