/* ring.h - bounded queue of messages from one node to one other node of the same process.
 *
 *        head (receiver)            tail (sender)
 *          |                          |
 *   [ free | message message message  | free ... ]      tail - head <= TR_LOOP_RING_SLOTS
 *
 * One thread pushes and one thread at a time peeks and pops: whoever reads holds the reading turn.
 * In normal life the receiver takes it uncontended, once per poll; only when a node closes does the
 * other side take it as well, to give back the buffers that nobody will read any more. */
#ifndef TR_TRANSPORT_LOOP_RING_H
#define TR_TRANSPORT_LOOP_RING_H

#include "core/message.h"

#include <stdbool.h>

#define TR_LOOP_RING_SLOTS                                                                         \
    256 /* a step of one layer sends a few messages; this is never the limit */

typedef struct tr_loop_ring tr_loop_ring;

/* A message and between which lives of its two nodes it passes. */
typedef struct {
    tr_msg msg;
    uint32_t source_life, target_life;
} tr_loop_item;

/* What one takes. Thread: any. */
size_t tr_loop_ring_bytes(void);

/* NULL: no memory. */
tr_loop_ring *tr_loop_ring_open(void);

/* Drops what is left (its payloads go back to the sender's pool) and frees. Nobody else uses it. */
void tr_loop_ring_close(tr_loop_ring *ring);

/* Sender's thread. false: full, nothing was taken. On true the ring owns the payload reference. */
bool tr_loop_ring_push(tr_loop_ring *ring, const tr_loop_item *item);

/* Takes the reading turn; false when somebody else has it. */
bool tr_loop_ring_begin_read(tr_loop_ring *ring);
void tr_loop_ring_end_read(tr_loop_ring *ring);

/* Oldest message, NULL when empty. Borrowed until pop. Only within a reading turn. */
const tr_loop_item *tr_loop_ring_peek(tr_loop_ring *ring);

/* Drops the oldest message and its payload reference. Only within a reading turn. */
void tr_loop_ring_pop(tr_loop_ring *ring);

/* Pops everything; takes the reading turn itself, waiting for the one who has it (a poll is short).
 */
void tr_loop_ring_drain(tr_loop_ring *ring);

/* A snapshot. Thread: any. */
bool tr_loop_ring_is_empty(const tr_loop_ring *ring);

#endif
