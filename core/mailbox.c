/* mailbox.c - a ring of cells, each one cache line with one message in it.
 *
 * Position p lives in cell p % slots. Three numbers move forward:
 *
 *   head         next position for the consumer; what is below has been read
 *   tail         next position for a producer
 *   free_until   what producers last saw of head, plus slots: positions below are free to write
 *
 * Invariant: head <= tail <= free_until <= head + slots.
 *
 * A producer gets a position by advancing tail, writes the cell and sets its turn to position + 1.
 * The consumer waits for that turn. It never writes a cell, and producers look at head only when
 * free_until is used up, once a round, so a message costs one line that wanders from producer to
 * consumer and nothing else. */
#include "core/mailbox.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAILBOX_LINE 64

/* A tr_msg without what only transports look at (version, checksum, reserved), so that it fits one
 * line together with its turn. */
typedef struct {
    alignas(MAILBOX_LINE) _Atomic uint32_t turn; /* low half of position + 1 when full */
    uint16_t kind;
    uint16_t flags;
    uint32_t argument;
    uint32_t payload_size;
    tr_actor_id source;
    tr_actor_id target;
    uint64_t epoch;
    uint64_t step;
    uint64_t trace_id;
    tr_buf *payload; /* owns one reference while full */
} mailbox_cell;

static_assert(sizeof(mailbox_cell) == MAILBOX_LINE, "one line per message");
static_assert(TR_MAILBOX_SLOTS_MAX < UINT32_MAX / 2, "half a position tells the rounds apart");

struct tr_mailbox {
    alignas(MAILBOX_LINE) uint64_t mask; /* slots - 1; constant, on a line that is only read */
    alignas(MAILBOX_LINE) _Atomic uint64_t tail; /* the producers' line */
    _Atomic uint64_t free_until;
    alignas(MAILBOX_LINE) _Atomic uint64_t head; /* the consumer's line, nobody else writes it */
    mailbox_cell cells[];                        /* [slots] */
};

size_t tr_mailbox_bytes(uint32_t slots)
{
    return sizeof(tr_mailbox) + (size_t)slots * sizeof(mailbox_cell);
}

tr_status tr_mailbox_open(tr_mailbox **out, uint32_t slots, tr_error *err)
{
    if (slots < 2 || slots > TR_MAILBOX_SLOTS_MAX || (slots & (slots - 1)) != 0)
        return tr_fail(err, TR_E_INVALID, "mailbox: %u slots, expected a power of two from 2 to %u",
                       slots, TR_MAILBOX_SLOTS_MAX);
    size_t size = tr_mailbox_bytes(slots);
    tr_mailbox *mailbox = aligned_alloc(MAILBOX_LINE, size);
    if (mailbox == NULL)
        return tr_fail(err, TR_E_NOMEM, "mailbox: no memory for %u slots", slots);
    memset(mailbox, 0, size); /* touched now, so that no push faults later */
    mailbox->mask = slots - 1;
    atomic_init(&mailbox->free_until, slots);
    *out = mailbox;
    return TR_OK;
}

void tr_mailbox_close(tr_mailbox *mailbox)
{
    tr_msg msg;
    if (mailbox == NULL)
        return;
    while (tr_mailbox_pop(mailbox, &msg))
        tr_buf_unref(msg.payload);
    free(mailbox);
}

/* Whether position may be written, after a look at the consumer if need be. */
static bool mailbox_is_free(tr_mailbox *mailbox, uint64_t position)
{
    /* acquire: pairs with the release below, by which another producer hands on what it acquired
     * from the consumer. */
    if (position < atomic_load_explicit(&mailbox->free_until, memory_order_acquire))
        return true;
    /* acquire: pairs with the release in pop; the consumer has finished reading below head. */
    uint64_t free_until =
        atomic_load_explicit(&mailbox->head, memory_order_acquire) + mailbox->mask + 1;
    if (position >= free_until)
        return false;
    /* release: see above. Two producers may store in the wrong order; then the next one looks at
     * the consumer once more. */
    atomic_store_explicit(&mailbox->free_until, free_until, memory_order_release);
    return true;
}

tr_status tr_mailbox_push(tr_mailbox *mailbox, const tr_msg *msg)
{
    assert(msg->header.flags <= UINT16_MAX);
    /* relaxed: tail only deals out positions, the cell's turn publishes the message. A position
     * that is out of date is too small, and the exchange refuses it. */
    uint64_t position = atomic_load_explicit(&mailbox->tail, memory_order_relaxed);
    do {
        if (!mailbox_is_free(mailbox, position))
            return TR_E_AGAIN;
    } while (!atomic_compare_exchange_weak_explicit(&mailbox->tail, &position, position + 1,
                                                    memory_order_relaxed, memory_order_relaxed));

    mailbox_cell *cell = &mailbox->cells[position & mailbox->mask];
    cell->kind = msg->header.kind;
    cell->flags = (uint16_t)msg->header.flags;
    cell->argument = msg->header.argument;
    cell->payload_size = msg->header.payload_size;
    cell->source = msg->header.source;
    cell->target = msg->header.target;
    cell->epoch = msg->header.epoch;
    cell->step = msg->header.step;
    cell->trace_id = msg->header.trace_id;
    cell->payload = msg->payload;
    /* release: publishes the message, and what its payload points to, to the consumer. */
    atomic_store_explicit(&cell->turn, (uint32_t)(position + 1), memory_order_release);
    return TR_OK;
}

bool tr_mailbox_pop(tr_mailbox *mailbox, tr_msg *out)
{
    /* relaxed: nobody else writes head. */
    uint64_t position = atomic_load_explicit(&mailbox->head, memory_order_relaxed);
    mailbox_cell *cell = &mailbox->cells[position & mailbox->mask];
    /* acquire: pairs with the producer's release; the message is whole. */
    if (atomic_load_explicit(&cell->turn, memory_order_acquire) != (uint32_t)(position + 1))
        return false;
    *out = (tr_msg){.header = {.kind = cell->kind,
                               .version = TR_MSG_VERSION,
                               .flags = cell->flags,
                               .source = cell->source,
                               .target = cell->target,
                               .epoch = cell->epoch,
                               .step = cell->step,
                               .trace_id = cell->trace_id,
                               .payload_size = cell->payload_size,
                               .argument = cell->argument},
                    .payload = cell->payload};
    /* release: our reading is over before a producer of the next round writes. */
    atomic_store_explicit(&mailbox->head, position + 1, memory_order_release);
    return true;
}

uint32_t tr_mailbox_depth(const tr_mailbox *mailbox)
{
    /* relaxed: a statistic. head first, so that the difference is not negative. */
    uint64_t head = atomic_load_explicit(&mailbox->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&mailbox->tail, memory_order_relaxed);
    uint64_t depth = tail > head ? tail - head : 0;
    return (uint32_t)(depth <= mailbox->mask ? depth : mailbox->mask + 1);
}

uint32_t tr_mailbox_slots(const tr_mailbox *mailbox)
{
    return (uint32_t)mailbox->mask + 1;
}
