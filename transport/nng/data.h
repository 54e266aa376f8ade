/* data.h - what the files of the NNG data plane share.
 *
 *   data.c      life: open, address, connect, poll, close; the table
 *   data_op.c   one operation of NNG in flight
 *   data_out.c  a stream to each peer, messages out
 *   data_in.c   streams from peers, messages in
 *
 * Each node listens; a peer that connects dials and sends on that stream, in one direction:
 *
 *   hello, message, message, ... , bye
 *
 * A hello and a bye are an nngd_block, a message is its 64-byte header and its payload. The
 * receiver hangs up after the bye: that is how a node that closes learns that all has been read.
 *
 * NNG's streams are used and not its sockets: push sockets of 1.5 leak a message or hang when a
 * peer goes at the wrong moment, and streams write from and read into our own buffers.
 *
 * NNG's threads do one thing here: they clear nngd_op.busy. All else is the polling thread's. */
#ifndef TR_TRANSPORT_NNG_DATA_H
#define TR_TRANSPORT_NNG_DATA_H

#include "core/runtime.h"
#include "core/trace.h"
#include "transport/nng/compat.h"
#include "transport/transport.h"

#include <stdatomic.h>
#include <stdbool.h>

#if NNG_MAJOR_VERSION < 2
#define TR_NNG_BOUND_PORT NNG_OPT_TCP_BOUND_PORT
#else
#define TR_NNG_BOUND_PORT NNG_OPT_BOUND_PORT
#endif

#define NNGD_QUEUE        64u    /* messages to one peer that have been taken and not written */
#define NNGD_STAGING_SIZE 65536u /* bytes read ahead per stream: many small messages, one read */
#define NNGD_STRANGERS    2u     /* streams that have not said hello, besides one per peer */
#define NNGD_LIBRARY_SIZE (1u << 20) /* NNG 1.5's own, with stacks of its threads: 0.6 MiB seen */
#define NNGD_INS_MAX      (TR_NODES_MAX + NNGD_STRANGERS)
#define NNGD_URL_SIZE     160
#define NNGD_FLUSH_NS     1000000000ull /* of what was taken, in close */
#define NNGD_LOSS_NS      500000000ull  /* for the last messages of a peer that is gone */
#define NNGD_HELLO_NS     5000000000ull /* a stranger has this long to say hello */

typedef enum { NNGD_HELLO, NNGD_BYE, NNGD_NONE } nngd_block_kind;

/* In the place of a header; the tag can be none. */
typedef struct {
    char tag[8];
    uint32_t node_index; /* who sends on this stream */
    uint32_t nodes_count;
    uint8_t reserved[48]; /* zero */
} nngd_block;

static_assert(sizeof(nngd_block) == sizeof(tr_msg_header), "read alike");

/* data_op.c */

/* An operation of NNG, at most once in flight. */
typedef struct {
    nng_aio *aio;     /* owned */
    atomic_bool busy; /* set by the polling thread when it begins, cleared by NNG's at its end */
} nngd_op;

/* Returns an NNG error. */
int nngd_op_open(nngd_op *op);

/* Marks it in flight; the caller then hands op->aio to NNG. */
void nngd_op_begin(nngd_op *op);

/* Whether its result, count and output may be looked at, and it may begin again. */
bool nngd_op_is_idle(const nngd_op *op);

/* Ends it, waits for that, and frees. NULL aio: nothing. */
void nngd_op_close(nngd_op *op);

/* data_out.c */

typedef struct {
    tr_msg_header header; /* or an nngd_block */
    tr_buf *payload;      /* counts; NULL for none */
} nngd_frame;

typedef struct {
    nng_stream *stream; /* owned; NULL when there is none */
    nngd_op send;
    nngd_op watch; /* a read that ends when the peer hangs up */
    uint8_t watch_byte;
    bool sending;        /* send has begun and its result has not been looked at */
    bool lost;           /* the stream is broken or the peer has hung up */
    uint32_t head, tail; /* frames written, frames taken; wrap */
    size_t head_size;    /* bytes of the oldest frame that have been written */
    nngd_frame queue[NNGD_QUEUE];
} nngd_out;

/* Dials url, waits at most until deadline_ns. On failure nothing is owed.
 * errors  TR_E_TIMEOUT, TR_E_PEER refused. */
tr_status nngd_out_open(nngd_out *out, const char *url, uint64_t deadline_ns, tr_error *err);

/* Takes a frame; false: the queue is full. */
bool nngd_out_push(nngd_out *out, const nngd_frame *frame);

/* Looks at what has ended, begins what can. Returns the number of frames that have left. */
uint32_t nngd_out_advance(nngd_out *out);

/* Ends the stream without waiting; nngd_out_advance lets go of the rest. */
void nngd_out_abort(nngd_out *out);
void nngd_out_close(nngd_out *out);

/* data_in.c */

typedef struct {
    nng_stream *stream; /* owned; NULL: a free place */
    nngd_op receive;
    bool receiving; /* receive has begun and its result has not been looked at */
    bool ended;     /* closed; becomes free when receive has ended */
    bool known;     /* has said hello */
    uint32_t node_index;
    uint64_t hello_deadline_ns;

    uint8_t *staging; /* owned, NNGD_STAGING_SIZE: bytes begin..end are to be looked at */
    size_t begin, end;
    tr_msg msg; /* msg.payload != NULL: its first payload_have bytes are there */
    size_t payload_have;
    size_t skip; /* bytes of a payload that nobody wants */
} nngd_in;

/* Takes memory and begins to accept. On failure nothing is owed. */
tr_status nngd_in_open(tr_transport *t, tr_error *err);

/* Accepts, reads, delivers. Returns the number of events. */
uint32_t nngd_in_advance(tr_transport *t);

/* Hangs up on a peer. */
void nngd_in_abort(tr_transport *t, uint32_t node_index);

/* The same, and waits until its stream is gone. */
void nngd_in_forget(tr_transport *t, uint32_t node_index);
void nngd_in_close(tr_transport *t);

/* data.c */

extern const char nngd_tags[NNGD_NONE][8];

typedef enum { NNGD_UNCONNECTED, NNGD_CONNECTED, NNGD_ENDING, NNGD_DOWN } nngd_phase;

typedef struct {
    nngd_phase phase; /* as in transport/ucx/internal.h */
    char reason[240];
    char path[16];             /* scheme of the peer's URL */
    uint64_t loss_deadline_ns; /* set when our stream to it broke: what it sent is still read */
    bool has_in;               /* there is a stream on which it sends */
    nngd_out out;
} nngd_peer;

struct tr_transport {
    tr_transport_config config;
    uint32_t payload_max;          /* bytes; largest buffer of the pool */
    char url[NNGD_URL_SIZE];       /* where we listen, dialable */
    nng_stream_listener *listener; /* owned */
    nngd_op accept;
    bool accepting; /* accept has begun and its result has not been looked at */
    bool closing;   /* messages that come are dropped */
    uint32_t ins_count;
    nngd_in ins[NNGD_INS_MAX];
    nngd_peer peers[TR_NODES_MAX];
};

/* Notes that the peer is lost; poll does the rest. The first reason counts. */
void nngd_peer_end(nngd_peer *peer, const char *reason);

#endif
