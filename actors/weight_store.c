#include "actors/weight_store.h"

#include "actors/packing.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define STORE_BUCKETS_FIRST 256 /* power of two */

struct tr_weight_block {
    tr_weight_block *next; /* in its bucket */
    tr_weight key;         /* where the rectangle lies in the checkpoint */
    bool transposed;
    tr_matrix matrix;
    void *memory;
    size_t size;
    uint32_t references;
};

struct tr_weight_store {
    const tr_kernels *kernels;
    tr_weight_block **buckets; /* [buckets_count] */
    size_t buckets_count;
    size_t blocks_count;
    _Atomic uint64_t bytes;
};

/* The same bytes in the same order under the same scale: where they lie says it all. */
static bool same_rectangle(const tr_weight *a, const tr_weight *b)
{
    return a->data == b->data && a->format == b->format && a->rows == b->rows &&
           a->cols == b->cols && a->row_size == b->row_size && a->scales == b->scales &&
           a->lead == b->lead && a->grid_row == b->grid_row && a->grid_col == b->grid_col;
}

static size_t bucket_of(const tr_weight_store *store, const tr_weight *w)
{
    uint64_t mixed = (uint64_t)(uintptr_t)w->data * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 32) ^ w->rows) * 0x9e3779b97f4a7c15u + w->cols;
    return (size_t)(mixed >> 20) & (store->buckets_count - 1);
}

static void store_link(tr_weight_store *store, tr_weight_block *block)
{
    tr_weight_block **bucket = &store->buckets[bucket_of(store, &block->key)];
    block->next = *bucket;
    *bucket = block;
}

/* Twice the buckets; a store that cannot grow is slower, not wrong. */
static void store_grow(tr_weight_store *store)
{
    tr_weight_block **old = store->buckets;
    size_t old_count = store->buckets_count;
    tr_weight_block **buckets = calloc(2 * old_count, sizeof(*buckets));
    if (buckets == NULL)
        return;
    store->buckets = buckets;
    store->buckets_count = 2 * old_count;
    for (size_t i = 0; i < old_count; i++)
        for (tr_weight_block *block = old[i]; block != NULL;) {
            tr_weight_block *next = block->next;
            store_link(store, block);
            block = next;
        }
    free(old);
}

tr_status tr_weight_store_open(tr_weight_store **out, const tr_kernels *kernels, tr_error *err)
{
    tr_weight_store *store = calloc(1, sizeof(*store));
    if (store != NULL)
        store->buckets = calloc(STORE_BUCKETS_FIRST, sizeof(tr_weight_block *));
    if (store == NULL || store->buckets == NULL) {
        free(store);
        return tr_fail(err, TR_E_NOMEM, "no memory for the table of weights");
    }
    store->kernels = kernels;
    store->buckets_count = STORE_BUCKETS_FIRST;
    *out = store;
    return TR_OK;
}

void tr_weight_store_close(tr_weight_store *store)
{
    if (store == NULL)
        return;
    assert(store->blocks_count == 0);
    free(store->buckets);
    free(store);
}

tr_weight_block *tr_weight_store_find(tr_weight_store *store, const tr_weight *key, bool transposed,
                                      tr_matrix *out)
{
    tr_weight_block *block = store->buckets[bucket_of(store, key)];
    while (block != NULL && !(block->transposed == transposed && same_rectangle(&block->key, key)))
        block = block->next;
    if (block != NULL && out != NULL) {
        block->references++;
        *out = block->matrix;
    }
    return block;
}

tr_status tr_weight_store_add(tr_weight_store *store, const tr_weight *key, bool transposed,
                              const tr_weight *elements, tr_matrix *out, tr_weight_block **block,
                              tr_error *err)
{
    const tr_kernels *k = store->kernels;
    tr_weight_block *fresh = calloc(1, sizeof(*fresh));
    size_t size = k->pack_size(elements->format, elements->rows, elements->cols);
    if (fresh != NULL)
        fresh->memory = aligned_alloc(64, size > 0 ? size : 64); /* size is a multiple of 64 */
    if (fresh == NULL || fresh->memory == NULL) {
        free(fresh);
        return tr_fail(err, TR_E_NOMEM, "no memory for %zu bytes", size);
    }
    tr_status status = tr_pack_streamed(k, &fresh->matrix, fresh->memory, elements, err);
    if (status != TR_OK) {
        free(fresh->memory);
        free(fresh);
        return status;
    }
    fresh->key = *key;
    fresh->transposed = transposed;
    fresh->size = size;
    fresh->references = 1;
    if (store->blocks_count >= store->buckets_count)
        store_grow(store);
    store_link(store, fresh);
    store->blocks_count++;
    atomic_fetch_add(&store->bytes, size);
    *out = fresh->matrix;
    *block = fresh;
    return TR_OK;
}

void tr_weight_store_give(tr_weight_store *store, tr_weight_block *block)
{
    assert(block->references > 0);
    if (--block->references > 0)
        return;
    tr_weight_block **link = &store->buckets[bucket_of(store, &block->key)];
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    store->blocks_count--;
    atomic_fetch_sub(&store->bytes, block->size);
    free(block->memory);
    free(block);
}

uint64_t tr_weight_store_bytes(const tr_weight_store *store)
{
    return atomic_load(&store->bytes);
}
