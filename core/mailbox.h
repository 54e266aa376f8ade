/* mailbox.h - a bounded queue of messages: many threads push, one pops, nobody waits for a lock.
 *
 * The order of one producer's messages is kept. A full mailbox is back-pressure: the message stays
 * with the producer. What only a transport looks at in a header (checksum, reserved) does not pass
 * through and comes out as zero. */
#ifndef TR_CORE_MAILBOX_H
#define TR_CORE_MAILBOX_H

#include "core/message.h"

#include <stdbool.h>

typedef struct tr_mailbox tr_mailbox;

#define TR_MAILBOX_SLOTS_MAX (1u << 20)

/* Bytes that tr_mailbox_open takes. Thread: any. */
size_t tr_mailbox_bytes(uint32_t slots);

/* slots: a power of two, 2..TR_MAILBOX_SLOTS_MAX. All memory is taken and touched here.
 * errors  TR_E_INVALID, TR_E_NOMEM. The caller owns *out. */
tr_status tr_mailbox_open(tr_mailbox **out, uint32_t slots, tr_error *err);

/* Drops the messages that are left, with their payloads, and frees. When all threads are done. */
void tr_mailbox_close(tr_mailbox *mailbox);

/* Copies *msg into the mailbox, which then owns the payload reference.
 * errors  TR_E_AGAIN when full; the reference is still the caller's. Thread: any. */
tr_status tr_mailbox_push(tr_mailbox *mailbox, const tr_msg *msg);

/* The oldest message, with its payload reference; false when there is none.
 * Thread: one consumer at a time. */
bool tr_mailbox_pop(tr_mailbox *mailbox, tr_msg *out);

/* Messages inside; exact for the consumer when nobody pushes. Thread: any. */
uint32_t tr_mailbox_depth(const tr_mailbox *mailbox);

uint32_t tr_mailbox_slots(const tr_mailbox *mailbox);

#endif
