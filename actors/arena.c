#include "actors/arena.h"

#include "actors/packing.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *tr_arena_take(tr_arena *arena, size_t size)
{
    return tr_layout_take(&arena->layout, size, 64);
}

/* Remembers a reference, to be given back with the arena. */
static tr_status arena_keep(tr_arena *arena, tr_weight_block *block, tr_error *err)
{
    if (arena->blocks_count == arena->blocks_capacity) {
        uint32_t capacity = arena->blocks_capacity == 0 ? 64 : 2 * arena->blocks_capacity;
        tr_weight_block **grown = realloc(arena->blocks, capacity * sizeof(*grown));
        if (grown == NULL) {
            tr_weight_store_give(arena->store, block);
            return tr_fail(err, TR_E_NOMEM, "no memory for the list of matrices");
        }
        arena->blocks = grown;
        arena->blocks_capacity = capacity;
    }
    arena->blocks[arena->blocks_count++] = block;
    return TR_OK;
}

/* Room for a packed matrix of a shape. False when there is nothing to pack: while counting, after a
 * failure, or because the store has the matrix of source already (then *m is that one).
 *   memory  NULL when the store will take the memory */
static bool arena_begin(tr_arena *arena, const tr_weight *source, bool transposed,
                        const tr_weight *shape, tr_matrix *m, void **memory)
{
    size_t size = arena->kernels->pack_size(shape->format, shape->rows, shape->cols);
    bool counting = arena->layout.base == NULL;

    *m = (tr_matrix){.format = shape->format, .rows = shape->rows, .cols = shape->cols};
    *memory = arena->store == NULL ? tr_arena_take(arena, size) : NULL;
    if (counting) {
        if (arena->store != NULL &&
            tr_weight_store_find(arena->store, source, transposed, NULL) == NULL)
            arena->blocks_bytes += size;
        return false;
    }
    if (arena->status == TR_OK && arena->given_up != NULL && atomic_load(arena->given_up))
        arena->status = tr_fail(arena->err, TR_E_AGAIN, "nobody needs these weights any more");
    if (arena->status != TR_OK)
        return false;
    if (arena->store == NULL)
        return true;
    tr_weight_block *block = tr_weight_store_find(arena->store, source, transposed, m);
    if (block == NULL)
        return true;
    arena->status = arena_keep(arena, block, arena->err);
    return false;
}

/* Packs w, which source (in the model) was turned into. */
static tr_matrix arena_pack(tr_arena *arena, const char *name, const tr_weight *w, void *memory,
                            const tr_weight *source)
{
    tr_matrix m = {.format = w->format, .rows = w->rows, .cols = w->cols, .scale = w->scale};
    tr_error why = {0};

    if (arena->store != NULL) {
        tr_weight_block *block = NULL;
        arena->status = tr_weight_store_add(arena->store, source, w != source, w, &m, &block, &why);
        if (arena->status == TR_OK)
            arena->status = arena_keep(arena, block, &why);
    } else {
        arena->status = tr_pack_streamed(arena->kernels, &m, memory, w, &why);
    }
    if (arena->status != TR_OK)
        tr_pack_explain(arena->model, name, source, arena->status, why.text, arena->err);
    tr_weight_release(source);
    arena->packed_bytes += arena->kernels->pack_size(w->format, w->rows, w->cols);
    if (arena->progress != NULL)
        arena->progress(arena->progress_ctx, arena->packed_bytes);
    return m;
}

tr_matrix tr_arena_matrix(tr_arena *arena, const char *name, const tr_weight *w)
{
    tr_matrix m;
    void *memory;

    if (arena_begin(arena, w, false, w, &m, &memory))
        m = arena_pack(arena, name, w, memory, w);
    m.input_scale = arena->activations_nvfp4 ? w->input_scale : 0;
    return m;
}

/* Elements of `size` bytes: out [cols, rows] from rows of row_size bytes. */
static void transpose(uint8_t *out, const uint8_t *in, size_t row_size, uint32_t rows,
                      uint32_t cols, uint32_t size)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            memcpy(out + ((size_t)c * rows + r) * size, in + r * row_size + (size_t)c * size, size);
}

tr_matrix tr_arena_transposed(tr_arena *arena, const char *name, const tr_weight *w)
{
    bool plain =
        w->format == TR_FORMAT_F32 || w->format == TR_FORMAT_BF16 || w->format == TR_FORMAT_F16;
    tr_weight turned = {
        .format = plain ? w->format : TR_FORMAT_F32, .rows = w->cols, .cols = w->rows, .scale = 1};
    uint32_t size = tr_format_block_bytes(turned.format);
    tr_matrix m;
    void *memory;

    if (!arena_begin(arena, w, true, &turned, &m, &memory))
        return m;
    tr_error why = {0};
    arena->status = tr_weight_need(w, &why);
    if (arena->status != TR_OK) {
        tr_pack_explain(arena->model, name, w, arena->status, why.text, arena->err);
        return m;
    }
    size_t count = (size_t)w->rows * w->cols;
    uint8_t *elements = malloc(count * size);
    float *values = plain ? NULL : malloc(count * sizeof(*values));
    if (elements == NULL || (!plain && values == NULL)) {
        arena->status = tr_fail(arena->err, TR_E_NOMEM, "%s: no memory to transpose %u x %u", name,
                                w->rows, w->cols);
    } else {
        if (!plain)
            tr_weight_to_f32(values, w);
        transpose(elements, plain ? w->data : (const uint8_t *)values,
                  plain ? w->row_size : w->cols * sizeof(*values), w->rows, w->cols, size);
        turned.data = elements;
        turned.row_size = (size_t)turned.cols * size;
        m = arena_pack(arena, name, &turned, memory, w);
    }
    free(elements);
    free(values);
    return m;
}

const float *tr_arena_norm(tr_arena *arena, const tr_weight *w, float offset)
{
    size_t count = (size_t)w->rows * w->cols;
    float *v = tr_arena_take(arena, count * sizeof(float));
    tr_error why = {0};
    if (v == NULL || arena->status != TR_OK)
        return v;
    arena->status = tr_weight_need(w, &why);
    if (arena->status != TR_OK) {
        tr_pack_explain(arena->model, "a vector", w, arena->status, why.text, arena->err);
        return v;
    }
    tr_weight_to_f32(v, w);
    bool finite = true;
    for (size_t i = 0; i < count; i++)
        finite = finite && isfinite(v[i]);
    if (!finite && arena->status == TR_OK)
        arena->status = tr_pack_explain(arena->model, "a vector", w, TR_E_INVALID,
                                        "a number that is not finite", arena->err);
    tr_weight_release(w);
    for (size_t i = 0; offset != 0 && i < count; i++) /* -0 stays what it is */
        v[i] += offset;
    return v;
}

const float *tr_arena_vector(tr_arena *arena, const tr_weight *w)
{
    return tr_arena_norm(arena, w, 0);
}

tr_status tr_arena_allocate(tr_arena *arena, size_t size, tr_error *err)
{
    if (size == 0)
        size = 64;
    void *base =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED)
        return tr_fail(err, TR_E_NOMEM, "%zu bytes for weights and state: %s", size,
                       strerror(errno));
    arena->layout = (tr_layout){.base = base};
    return TR_OK;
}

void tr_arena_free(tr_arena *arena, size_t size)
{
    for (uint32_t i = 0; i < arena->blocks_count; i++)
        tr_weight_store_give(arena->store, arena->blocks[i]);
    free(arena->blocks);
    arena->blocks = NULL;
    arena->blocks_count = arena->blocks_capacity = 0;
    if (arena->layout.base != NULL)
        munmap(arena->layout.base, size == 0 ? 64 : size);
    arena->layout.base = NULL;
}
