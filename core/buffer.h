/* buffer.h - reference-counted payload buffers from pools that are allocated once.
 *
 * A tr_buf is a fixed-size block of 64-byte aligned host memory. It is handed over inside a
 * message; the last tr_buf_unref gives it back to its pool, from any thread, without a lock.
 * A pool never grows: an empty pool is back-pressure (tr_pool_take returns NULL).
 *
 * Invariant of a pool: free_count + (buffers that somebody holds) == buffers_max. */
#ifndef TR_CORE_BUFFER_H
#define TR_CORE_BUFFER_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tr_pool tr_pool;

typedef struct tr_buf {
    uint8_t *data;     /* capacity bytes, 64-byte aligned */
    uint32_t size;     /* bytes in use, <= capacity; the writer sets it */
    uint32_t capacity; /* bytes */
    tr_pool *pool;     /* borrows; where the last unref puts it */
    _Atomic uint32_t refs;
    _Atomic uint32_t next; /* the pool's free list; meaningless while held */
} tr_buf;

/* One size class of a pool. */
typedef struct {
    uint32_t capacity; /* bytes, rounded up to a multiple of 64 */
    uint32_t count;    /* buffers */
} tr_pool_class;

#define TR_POOL_CLASSES_MAX 4

/* Bytes that tr_pool_open would take for these classes, bookkeeping included; SIZE_MAX, which no
 * budget admits, for classes that it would refuse. Thread: any. */
size_t tr_pool_bytes(const tr_pool_class *classes, uint32_t classes_count);

/* Allocates and touches all memory of the pool, so that nothing faults later.
 *
 *   classes  [classes_count], ascending capacity, 1..TR_POOL_CLASSES_MAX; copied
 *
 * thread  any; errors TR_E_NOMEM, TR_E_INVALID. The caller owns *out. */
tr_status tr_pool_open(tr_pool **out, const tr_pool_class *classes, uint32_t classes_count,
                       tr_error *err);

/* Frees the pool. All buffers must be back (asserted). Thread: the owner's. */
void tr_pool_close(tr_pool *pool);

/* A buffer of at least size bytes with one reference and buf->size == size, or NULL when the
 * smallest fitting class and all larger ones are empty. Lock-free. Thread: any. */
tr_buf *tr_pool_take(tr_pool *pool, uint32_t size);

/* The same from the smallest fitting class alone: for messages that can be many while somebody is
 * slow, so that they leave the larger buffers to those that need them. */
tr_buf *tr_pool_take_fitting(tr_pool *pool, uint32_t size);

/* The memory of all buffers, for registration with a transport. Thread: any. */
void tr_pool_memory(const tr_pool *pool, void **base, size_t *size);

/* Buffers not held by anybody at the moment, over all classes. Thread: any. */
uint32_t tr_pool_free_count(const tr_pool *pool);

/* Largest capacity in bytes. Thread: any. */
uint32_t tr_pool_capacity_max(const tr_pool *pool);

/* Adds a reference. The caller must hold one. Thread: any. */
tr_buf *tr_buf_ref(tr_buf *buf);

/* Drops a reference; NULL is allowed. Thread: any. */
void tr_buf_unref(tr_buf *buf);

#endif
