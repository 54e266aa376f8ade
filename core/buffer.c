/* buffer.c - pools of counted buffers.
 *
 * One block of memory holds everything: the pool, one line of bookkeeping per buffer, and the
 * bytes of the buffers at the end, page-aligned, so that a transport registers one range.
 *
 * Each class has a free list through tr_buf.next. Its head is one 64-bit word:
 *
 *   63 ......... 32 31 ......... 0
 *        tag            index        index POOL_NONE: the list is empty
 *
 * The tag grows with each change. A take that was interrupted between reading head and next can
 * then not mistake a list that was taken apart and put together again for the one that it saw. */
#include "core/buffer.h"

#include "core/budget.h"

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define POOL_NONE      UINT32_MAX
#define POOL_COUNT_MAX (1u << 24) /* buffers of a class; keeps all sums far below 2^64 */
#define POOL_LINE      64
#define POOL_PAGE      4096

/* Neighbours are counted by different threads: one line each. */
typedef struct {
    alignas(POOL_LINE) tr_buf buf;
} pool_entry;

typedef struct {
    alignas(POOL_LINE) _Atomic uint64_t head;
    /* Counted up before a buffer enters the list and down after it has left, so that it never
     * wraps; for a moment it may be larger than what is free. */
    _Atomic uint32_t free_count;
    uint32_t capacity;
    uint32_t count;
    pool_entry *entries; /* [count], in the pool's block */
    uint8_t *data;       /* [count * capacity], in the pool's block */
} pool_class;

struct tr_pool {
    pool_class classes[TR_POOL_CLASSES_MAX];
    uint32_t classes_count;
    uint8_t *data; /* of all classes */
    size_t data_size;
};

static uint32_t pool_rounded(uint32_t capacity)
{
    return (capacity + (POOL_LINE - 1)) & ~(uint32_t)(POOL_LINE - 1);
}

static tr_status pool_check(const tr_pool_class *classes, uint32_t classes_count, tr_error *err)
{
    if (classes_count < 1 || classes_count > TR_POOL_CLASSES_MAX)
        return tr_fail(err, TR_E_INVALID, "pool: %u classes, expected 1 to %d", classes_count,
                       TR_POOL_CLASSES_MAX);
    for (uint32_t i = 0; i < classes_count; i++) {
        if (classes[i].capacity < 1 || classes[i].capacity > UINT32_MAX - POOL_LINE)
            return tr_fail(err, TR_E_INVALID, "pool: class %u: capacity %u, expected 1 to %u", i,
                           classes[i].capacity, UINT32_MAX - POOL_LINE);
        if (classes[i].count < 1 || classes[i].count > POOL_COUNT_MAX)
            return tr_fail(err, TR_E_INVALID, "pool: class %u: count %u, expected 1 to %u", i,
                           classes[i].count, POOL_COUNT_MAX);
        if (i > 0 && pool_rounded(classes[i].capacity) <= pool_rounded(classes[i - 1].capacity))
            return tr_fail(err, TR_E_INVALID,
                           "pool: class %u: capacity %u, expected more than the %u of class %u", i,
                           classes[i].capacity, classes[i - 1].capacity, i - 1);
    }
    return TR_OK;
}

/* Lays the block out. With base == NULL it only counts; otherwise it fills the pool at base. */
static size_t pool_layout(char *base, const tr_pool_class *classes, uint32_t classes_count)
{
    tr_layout layout = {.base = base};
    tr_pool *pool = tr_layout_take(&layout, sizeof(*pool), POOL_LINE);
    for (uint32_t i = 0; i < classes_count; i++) {
        pool_entry *entries =
            tr_layout_take(&layout, (size_t)classes[i].count * sizeof(*entries), POOL_LINE);
        if (pool != NULL)
            pool->classes[i].entries = entries;
    }
    uint8_t *data = tr_layout_take(&layout, 0, POOL_PAGE);
    size_t data_at = layout.used;
    for (uint32_t i = 0; i < classes_count; i++) {
        size_t size = (size_t)classes[i].count * pool_rounded(classes[i].capacity);
        uint8_t *class_data = tr_layout_take(&layout, size, POOL_LINE);
        if (pool != NULL)
            pool->classes[i].data = class_data;
    }
    (void)tr_layout_take(&layout, 0, POOL_PAGE); /* whole pages, as aligned_alloc wants */
    if (pool != NULL) {
        pool->data = data;
        pool->data_size = layout.used - data_at;
    }
    return layout.used;
}

size_t tr_pool_bytes(const tr_pool_class *classes, uint32_t classes_count)
{
    if (pool_check(classes, classes_count, NULL) != TR_OK)
        return SIZE_MAX;
    return pool_layout(NULL, classes, classes_count);
}

static void pool_class_init(tr_pool *pool, pool_class *c, const tr_pool_class *from)
{
    c->capacity = pool_rounded(from->capacity);
    c->count = from->count;
    for (uint32_t i = 0; i < c->count; i++) {
        tr_buf *buf = &c->entries[i].buf;
        buf->data = c->data + (size_t)i * c->capacity;
        buf->size = 0;
        buf->capacity = c->capacity;
        buf->pool = pool;
        atomic_init(&buf->refs, 0);
        atomic_init(&buf->next, i + 1 < c->count ? i + 1 : POOL_NONE);
    }
    atomic_init(&c->head, 0);
    atomic_init(&c->free_count, c->count);
}

tr_status tr_pool_open(tr_pool **out, const tr_pool_class *classes, uint32_t classes_count,
                       tr_error *err)
{
    tr_status status = pool_check(classes, classes_count, err);
    if (status != TR_OK)
        return status;

    size_t size = tr_pool_bytes(classes, classes_count);
    char *base = aligned_alloc(POOL_PAGE, size);
    if (base == NULL)
        return tr_fail(err, TR_E_NOMEM, "pool: %zu bytes are not to be had", size);
    memset(base, 0, size);

    tr_pool *pool = (tr_pool *)base;
    pool->classes_count = classes_count;
    size_t used = pool_layout(base, classes, classes_count);
    assert(used == size);
    (void)used;
    for (uint32_t i = 0; i < classes_count; i++)
        pool_class_init(pool, &pool->classes[i], &classes[i]);
    *out = pool;
    return TR_OK;
}

void tr_pool_close(tr_pool *pool)
{
    if (pool == NULL)
        return;
    for (uint32_t i = 0; i < pool->classes_count; i++) {
        /* acquire: pairs with the release in pool_give, so that the last writes of the threads
         * that gave buffers back are over before the memory goes. */
        uint64_t head = atomic_load_explicit(&pool->classes[i].head, memory_order_acquire);
        (void)head;
        assert(atomic_load_explicit(&pool->classes[i].free_count, memory_order_relaxed) ==
               pool->classes[i].count);
    }
    free(pool);
}

static tr_buf *pool_class_take(pool_class *c)
{
    /* acquire: what the giver wrote into the buffer's bookkeeping, next above all, is visible. */
    uint64_t head = atomic_load_explicit(&c->head, memory_order_acquire);
    for (;;) {
        uint32_t index = (uint32_t)head;
        if (index == POOL_NONE)
            return NULL;
        assert(index < c->count);
        tr_buf *buf = &c->entries[index].buf;
        /* relaxed: may be stale when another thread takes this buffer now; then the tag has
         * changed and the exchange below fails. */
        uint32_t next = atomic_load_explicit(&buf->next, memory_order_relaxed);
        uint64_t changed = ((head >> 32) + 1) << 32 | next;
        /* acquire on both outcomes, as for the load above. release is not needed: nothing was
         * written that others read. */
        if (atomic_compare_exchange_weak_explicit(&c->head, &head, changed, memory_order_acquire,
                                                  memory_order_acquire)) {
            atomic_fetch_sub_explicit(&c->free_count, 1, memory_order_relaxed); /* a statistic */
            return buf;
        }
    }
}

static void pool_give(tr_buf *buf)
{
    tr_pool *pool = buf->pool;
    uint32_t class_index = 0;
    while (pool->classes[class_index].capacity != buf->capacity) {
        class_index++;
        assert(class_index < pool->classes_count);
    }
    pool_class *c = &pool->classes[class_index];
    uint32_t index = (uint32_t)((pool_entry *)(void *)buf - c->entries);
    assert(index < c->count);

    atomic_fetch_add_explicit(&c->free_count, 1, memory_order_relaxed);   /* a statistic */
    uint64_t head = atomic_load_explicit(&c->head, memory_order_relaxed); /* only compared */
    uint64_t changed;
    do {
        atomic_store_explicit(&buf->next, (uint32_t)head, memory_order_relaxed);
        changed = ((head >> 32) + 1) << 32 | index;
        /* release: publishes next and the end of the last holder's use to the next taker. */
    } while (!atomic_compare_exchange_weak_explicit(&c->head, &head, changed, memory_order_release,
                                                    memory_order_relaxed));
}

/* From class number i; NULL when it is empty. */
static tr_buf *pool_take_from(tr_pool *pool, uint32_t i, uint32_t size)
{
    tr_buf *buf = pool_class_take(&pool->classes[i]);
    if (buf != NULL) {
        /* relaxed: the buffer is ours alone until we hand it to somebody, who synchronises. */
        assert(atomic_load_explicit(&buf->refs, memory_order_relaxed) == 0);
        atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
        buf->size = size;
    }
    return buf;
}

static uint32_t pool_smallest_fitting(const tr_pool *pool, uint32_t size)
{
    uint32_t i = 0;
    while (i < pool->classes_count && pool->classes[i].capacity < size)
        i++;
    return i;
}

tr_buf *tr_pool_take(tr_pool *pool, uint32_t size)
{
    tr_buf *buf = NULL;
    for (uint32_t i = pool_smallest_fitting(pool, size); buf == NULL && i < pool->classes_count;
         i++)
        buf = pool_take_from(pool, i, size);
    return buf;
}

tr_buf *tr_pool_take_fitting(tr_pool *pool, uint32_t size)
{
    uint32_t i = pool_smallest_fitting(pool, size);
    return i < pool->classes_count ? pool_take_from(pool, i, size) : NULL;
}

void tr_pool_memory(const tr_pool *pool, void **base, size_t *size)
{
    *base = pool->data;
    *size = pool->data_size;
}

uint32_t tr_pool_free_count(const tr_pool *pool)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < pool->classes_count; i++) {
        const pool_class *c = &pool->classes[i];
        uint32_t free_count = atomic_load_explicit(&c->free_count, memory_order_relaxed);
        sum += free_count < c->count ? free_count : c->count;
    }
    return sum;
}

uint32_t tr_pool_capacity_max(const tr_pool *pool)
{
    return pool->classes[pool->classes_count - 1].capacity;
}

tr_buf *tr_buf_ref(tr_buf *buf)
{
    /* relaxed: the caller holds a reference, so the count cannot reach zero meanwhile. */
    uint32_t before = atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
    assert(before > 0);
    assert(before < UINT32_MAX);
    (void)before;
    return buf;
}

void tr_buf_unref(tr_buf *buf)
{
    if (buf == NULL)
        return;
    /* release: our use of the bytes is over before the count shows it. acquire: whoever brings it
     * to zero sees that of all others, before the buffer is used again. */
    uint32_t before = atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1)
        pool_give(buf);
}
