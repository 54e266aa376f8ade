/* node.h - one end of a transport under test: a node with a pool, and what it has seen. */
#ifndef TR_TESTS_TRANSPORT_NODE_H
#define TR_TESTS_TRANSPORT_NODE_H

#include "core/trace.h"
#include "transport/transport.h"

#include <stdbool.h>

#define NODE_SECOND_NS   1000000000ull
#define NODE_PATIENCE_NS (20 * NODE_SECOND_NS) /* of every wait; generous, machines are shared */
#define NODE_HELD_MAX    64

typedef struct {
    const tr_transport_ops *ops;
    tr_transport *transport; /* NULL once closed */
    tr_pool *pool;
    uint32_t pool_count;
    uint32_t index;
    uint32_t peer; /* the node it talks to in tests of two */

    uint64_t sent_count;
    uint64_t delivered_count;
    uint64_t delivered_from[4]; /* by source node */
    bool broken;                /* a message came out of order or with wrong bytes */
    tr_msg_header last;         /* header of the latest message */

    bool hold; /* keep the references of what comes, up to NODE_HELD_MAX */
    tr_buf *held[NODE_HELD_MAX];
    uint32_t held_count;

    uint32_t downs_count;
    uint32_t down_node;
    char down_reason[256];
} node;

/* Opens pool and transport. Small and large buffers: classes of 4 KiB and 1 MiB. */
tr_status node_open(node *n, const tr_transport_ops *ops, const char *options, uint32_t index,
                    uint32_t nodes_count, uint32_t small_count, uint32_t large_count,
                    tr_error *err);

/* Closes the transport; may be called before node_finish. */
void node_close(node *n);

/* Drops what is held, closes, and says whether every buffer came back to the pool. */
bool node_finish(node *n);

tr_status node_connect(node *from, node *to, tr_error *err);

/* Sends the node's next numbered message of this size to n->peer; its bytes follow from the number.
 * TR_E_AGAIN also when the pool is empty. */
tr_status node_send(node *n, uint32_t size);

void node_release_held(node *n);

/* Polls both (b may be NULL) until *value reaches at_least or patience ends. */
bool node_wait(node *a, node *b, const uint64_t *value, uint64_t at_least);

/* Polls until peer_down has been called or patience ends. */
bool node_wait_down(node *n);

/* Sends, with polls of both, until it is taken or patience ends. */
tr_status node_send_patiently(node *n, node *other, uint32_t size);

#endif
