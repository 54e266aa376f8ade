/* internal.h - what the files of transport/ucx share.
 *
 *   ucx.c      life: open, address, connect, close; the table
 *   context.c  UCX's own objects and every setting; a worker for each peer
 *   send.c     request slots, data and control messages out
 *   receive.c  active message handlers, the receive ring, delivery
 *   path.c     which transports an endpoint uses
 *   log.c      UCX's messages into our log
 *
 * On the wire a data message is an active message: header = tr_msg_header and ucx_trailer, data =
 * payload. Its id says which node sent it. Control messages have another id per node and no data.
 */
#ifndef TR_TRANSPORT_UCX_INTERNAL_H
#define TR_TRANSPORT_UCX_INTERNAL_H

#include "core/runtime.h"
#include "core/trace.h"
#include "transport/transport.h"

#include <ucp/api/ucp.h>

#include <stdbool.h>

#define UCX_AM_DATA    0u           /* + index of the sending node */
#define UCX_AM_CONTROL TR_NODES_MAX /* + index of the sending node */
#define UCX_AM_LAST    65535u       /* ids have 16 bits */

/* How many messages a sender may be ahead of the receiver's deliveries. It bounds what waits at the
 * receiver while its pool is empty (64 KiB each at most, larger ones stay at the sender) and must
 * be more than what one step sends to one node. */
#define UCX_WINDOW 128u
#define UCX_SLOTS  256u /* sends in flight to all peers together */

/* Rows go at once; larger payloads ask first and are then fetched into a buffer of the pool. UCX's
 * own threshold on a loop-back device is far lower and costs three more crossings. */
#define UCX_EAGER_MAX 65536u

#define UCX_FLUSH_NS  1000000000ull /* of what was taken, in close */
#define UCX_ENDING_NS 500000000ull  /* for the last messages of a peer that is gone */

static_assert((UCX_WINDOW & (UCX_WINDOW - 1)) == 0, "ring indices wrap by masking");

/* Behind the tr_msg_header of every data message. */
typedef struct {
    uint32_t sequence; /* of this message, counted per (sender, receiver) from 0; wraps */
    uint32_t acked;    /* how many of the receiver's own messages the sender has delivered */
    uint32_t life;     /* of the sender's transport */
    uint32_t reserved; /* zero */
} ucx_trailer;

typedef struct {
    tr_msg_header header;
    ucx_trailer trailer;
} ucx_wire_header;

static_assert(sizeof(ucx_wire_header) == 80, "wire format");

typedef enum {
    UCX_CONTROL_ACK = 1, /* value: messages delivered */
    UCX_CONTROL_BYE = 2  /* value: messages sent in all; no more will come */
} ucx_control_kind;

typedef struct {
    uint32_t kind;
    uint32_t value;
    uint32_t life; /* of the sender's transport */
} ucx_control;

/* What UCX gives back to our callbacks: which peer it is about. */
typedef struct {
    tr_transport *t;
    uint32_t node_index;
} ucx_link;

/* A send in flight. UCX reads the header until the send completes, so it lives here. */
typedef struct {
    ucx_wire_header wire;
    tr_buf *payload; /* counts; NULL for none */
    ucx_link *to;    /* NULL: the slot is free */
    uint32_t life;   /* of the peer for which it was meant */
    uint32_t next_free;
} ucx_slot;

/* One message of the receive ring. */
typedef enum {
    UCX_ENTRY_EMPTY,     /* not come yet */
    UCX_ENTRY_KEPT,      /* data: bytes that UCX keeps for us */
    UCX_ENTRY_ANNOUNCED, /* data: descriptor of a rendezvous that has not begun */
    UCX_ENTRY_ARRIVING,  /* UCX writes into msg.payload */
    UCX_ENTRY_READY,     /* msg is complete */
    UCX_ENTRY_LOST       /* the rendezvous failed */
} ucx_entry_state;

typedef struct {
    ucx_entry_state state;
    ucx_link *from;
    void *data;
    tr_msg msg; /* counts msg.payload once it has one */
} ucx_entry;

/* A peer goes down in one direction only:
 *
 *   UNCONNECTED --connect--> CONNECTED --error, violation or BYE--> ENDING --> DOWN
 *   any --forget--> UNCONNECTED
 *
 * ENDING: nothing is sent any more; what has arrived is still delivered, for a bounded time, then
 * peer_down is called. DOWN: everything from this peer is dropped. */
typedef enum { UCX_UNCONNECTED, UCX_CONNECTED, UCX_ENDING, UCX_DOWN } ucx_phase;

typedef struct {
    ucx_entry entries[UCX_WINDOW]; /* of sequence s at s % UCX_WINDOW */
} ucx_ring;

/* What UCX receives with, one for each peer and each of its lives. Over shared memory a sender
 * takes a place in the receiver's queue, and then writes there. Whoever is killed in between leaves
 * a place that is never filled, and UCX waits at it for ever; so nobody else may write behind it.
 */
typedef struct {
    ucp_worker_h handle;    /* NULL: there is none */
    ucp_address_t *address; /* where that peer connects to */
    size_t address_size;
    uint32_t parting_count; /* endpoints that UCX is closing */
} ucx_worker;

typedef struct {
    ucx_phase phase;
    uint32_t life;  /* number of the peer's transport, from its address or its first message */
    ucp_ep_h ep;    /* owned; NULL when there is none */
    bool ep_failed; /* UCX has said so */
    char path[64];
    char reason[240];
    uint64_t ending_deadline_ns; /* ENDING */

    uint32_t sent;  /* messages given to UCX; sent - acked <= UCX_WINDOW */
    uint32_t acked; /* of these, delivered by the peer as far as we know */

    uint32_t delivered; /* messages from the peer that were delivered: next sequence */
    uint32_t prepared;  /* of the following, up to here each has its buffer */
    uint32_t reported;  /* value of delivered that the peer last was told */
    bool bye;           /* the peer said that it ends after bye_at messages */
    uint32_t bye_at;
    ucx_ring *ring; /* owns; NULL for this node itself */
} ucx_peer;

/* The control message in flight to a node; survives the peer, because UCX reads it. */
typedef struct {
    ucx_control message;
    bool busy;
} ucx_control_slot;

struct tr_transport {
    tr_transport_config config;
    uint32_t payload_max; /* bytes; largest buffer of the pool */
    ucp_context_h context;
    ucp_mem_h pool_memory; /* registration of the pool's memory */
    ucx_worker workers[TR_NODES_MAX];

    uint32_t life;           /* random, not 0: tells this transport from a former one of the node */
    bool closing;            /* what arrives is dropped */
    uint32_t turn;           /* peer that the next poll looks at first */
    uint32_t events;         /* handled since the last poll */
    uint32_t controls_count; /* control messages in flight */

    ucx_slot slots[UCX_SLOTS];
    uint32_t slot_free; /* head of the free list, UCX_SLOTS when empty */
    uint32_t slots_used;

    ucx_peer peers[TR_NODES_MAX];
    ucx_control_slot controls[TR_NODES_MAX];
    ucx_link links[TR_NODES_MAX];
};

/* context.c */

/* Creates the context from the options. On failure nothing is owed. */
tr_status ucx_context_open(tr_transport *t, const char *tls, const char *devices, tr_error *err);
void ucx_context_close(tr_transport *t);

/* The worker for a peer, with its handlers. On failure there is none. */
tr_status ucx_worker_open(tr_transport *t, uint32_t node_index, tr_error *err);
/* Afterwards UCX neither reads nor writes anything for that peer. */
void ucx_worker_close(tr_transport *t, uint32_t node_index);

/* The most that UCX takes for itself; an estimate from above, for memory budgets. */
uint64_t ucx_context_bytes(uint32_t nodes_count);

/* receive.c */

/* The ring of a peer, which owns it. errors TR_E_NOMEM */
tr_status ucx_receive_open(tr_transport *t, uint32_t node_index, tr_error *err);

/* Sets the handlers of the worker for a peer. */
tr_status ucx_receive_register(tr_transport *t, uint32_t node_index, tr_error *err);

/* Prepares and delivers what has come from this peer, as far as buffers are free and in order. */
void ucx_receive_advance(tr_transport *t, uint32_t node_index);

/* Drops what has not been delivered, but for the buffers that UCX writes into. They follow when it
 * has finished. False: there are some. */
bool ucx_receive_drop(tr_transport *t, uint32_t node_index);

/* Drops these, too: the worker is gone. */
void ucx_receive_abandon(tr_transport *t, uint32_t node_index);

/* send.c */

void ucx_send_init(tr_transport *t);
tr_status ucx_send(tr_transport *t, uint32_t node_index, const tr_msg *msg);

/* Sends a control message unless one is in flight; false then. */
bool ucx_send_control(tr_transport *t, uint32_t node_index, ucx_control_kind kind, uint32_t value);

/* Ends the sends to a peer that UCX never finished. After the worker is gone. */
void ucx_send_abandon(tr_transport *t, uint32_t node_index);

/* ucx.c */

/* Notes that the peer is lost; poll does the rest. The first reason counts. Safe in callbacks. */
void ucx_peer_end(tr_transport *t, uint32_t node_index, const char *reason);

/* log.c */

/* From now on UCX's warnings and errors go to our log. May be called again. Thread: any. */
void ucx_log_open(void);

/* path.c */

/* Writes what carries the bytes of an endpoint: "posix", "tcp", "rc_mlx5+tcp"; "unknown" if UCX
 * does not say. */
void ucx_path_describe(char *out, size_t size, ucp_ep_h ep);

#endif
