/* ring.c - see ring.h. */
#include "transport/loop/ring.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

static_assert((TR_LOOP_RING_SLOTS & (TR_LOOP_RING_SLOTS - 1)) == 0, "indices wrap by masking");

struct tr_loop_ring {
    /* Sender's line. */
    _Alignas(64) _Atomic uint32_t tail; /* messages pushed; wraps */
    uint32_t head_seen;                 /* the sender's last look at head */

    /* Reader's line. */
    _Alignas(64) _Atomic uint32_t head; /* messages popped; wraps */
    uint32_t tail_seen;                 /* the reader's last look at tail */
    atomic_bool reading;                /* somebody has the reading turn */

    _Alignas(64) tr_loop_item slots[TR_LOOP_RING_SLOTS];
};

size_t tr_loop_ring_bytes(void)
{
    return sizeof(tr_loop_ring);
}

tr_loop_ring *tr_loop_ring_open(void)
{
    tr_loop_ring *ring = aligned_alloc(64, sizeof(*ring));

    if (ring == NULL)
        return NULL;
    atomic_init(&ring->tail, 0);
    atomic_init(&ring->head, 0);
    atomic_init(&ring->reading, false);
    ring->head_seen = 0;
    ring->tail_seen = 0;
    return ring;
}

void tr_loop_ring_close(tr_loop_ring *ring)
{
    if (ring == NULL)
        return;
    tr_loop_ring_drain(ring);
    free(ring);
}

bool tr_loop_ring_push(tr_loop_ring *ring, const tr_loop_item *item)
{
    /* Only the sender writes tail. */
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    if (tail - ring->head_seen == TR_LOOP_RING_SLOTS) {
        /* acquire: the reader has finished with the slots before head. */
        ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (tail - ring->head_seen == TR_LOOP_RING_SLOTS)
            return false;
    }
    ring->slots[tail % TR_LOOP_RING_SLOTS] = *item;
    /* release: publishes the slot and the payload's bytes to the reader. */
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

bool tr_loop_ring_begin_read(tr_loop_ring *ring)
{
    /* acquire: sees head_seen and head as the last reader left them. */
    return !atomic_exchange_explicit(&ring->reading, true, memory_order_acquire);
}

void tr_loop_ring_end_read(tr_loop_ring *ring)
{
    atomic_store_explicit(&ring->reading, false, memory_order_release);
}

const tr_loop_item *tr_loop_ring_peek(tr_loop_ring *ring)
{
    /* Only a reader writes head, and readers take turns. */
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    if (head == ring->tail_seen) {
        ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
        if (head == ring->tail_seen)
            return NULL;
    }
    return &ring->slots[head % TR_LOOP_RING_SLOTS];
}

void tr_loop_ring_pop(tr_loop_ring *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    assert(head != ring->tail_seen);
    tr_buf_unref(ring->slots[head % TR_LOOP_RING_SLOTS].msg.payload);
    /* release: the sender may write this slot again. */
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

void tr_loop_ring_drain(tr_loop_ring *ring)
{
    while (!tr_loop_ring_begin_read(ring))
        sched_yield();
    while (tr_loop_ring_peek(ring) != NULL)
        tr_loop_ring_pop(ring);
    tr_loop_ring_end_read(ring);
}

bool tr_loop_ring_is_empty(const tr_loop_ring *ring)
{
    return atomic_load_explicit(&ring->head, memory_order_acquire) ==
           atomic_load_explicit(&ring->tail, memory_order_acquire);
}
