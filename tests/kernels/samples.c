#include "tests/kernels/samples.h"

#include "core/model/blocks.h"
#include "tests/check.h"

#include <math.h>

const tr_kernels *samples_ref(void)
{
    const tr_kernels *ref = NULL;
    CHECK_STATUS(tr_kernels_find(&ref, "ref", NULL), TR_OK);
    return ref;
}

const tr_kernels *const *samples_variants(size_t *count)
{
    static const char *const names[] = {"cpu-portable", "cpu-avx2", "cpu-avx512", "cpu-neon"};
    static const tr_kernels *found[4];

    *count = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (tr_kernels_find(&found[*count], names[i], NULL) == TR_OK)
            ++*count;
    return found;
}

static uint64_t samples_state = 1;

void samples_seed(uint64_t seed)
{
    samples_state = seed;
}

uint64_t samples_u64(void)
{
    uint64_t z = samples_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float samples_float(float range)
{
    return (float)((int32_t)(samples_u64() >> 43) - (1 << 20)) * 0x1p-20f * range;
}

void samples_fill(float *x, size_t count, float range)
{
    for (size_t i = 0; i < count; i++)
        x[i] = samples_float(range);
}

void samples_fill_hard(float *x, size_t count, float range)
{
    static const float hard[] = {0.0f,      -0.0f, 0x1p-149f, -0x1.8p-140f,
                                 0x1p-126f, 1e15f, -1e12f,    1.0f};

    for (size_t i = 0; i < count; i++) {
        uint64_t r = samples_u64();
        x[i] = r % 16 == 0 ? hard[r / 16 % 8] : samples_float(range);
    }
}

#define GUARD 0x7fc0dead

float *samples_floats(size_t count)
{
    size_t size = (16 + count + 1) * sizeof(float);
    uint32_t *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    uint32_t guard = GUARD;
    assert_non_null(memory);
    memset(memory, 0, size);
    memory[0] = (uint32_t)count;
    memcpy(memory + 16 + count, &guard, sizeof(guard));
    return (float *)(void *)(memory + 16);
}

void samples_free(float *x)
{
    uint32_t *memory = (uint32_t *)(void *)x - 16;
    assert_int_equal(memory[16 + memory[0]], GUARD);
    free(memory);
}

static void samples_put_half(uint8_t *p)
{
    uint16_t bits = (uint16_t)(0x2000 + (samples_u64() >> 52) + (samples_u64() & 0x8000));
    memcpy(p, &bits, 2);
}

/* Scales for blocks of 128 x 128, the first of which began before the matrix does. */
static void samples_grid(samples_weight *s, uint32_t rows, uint32_t cols)
{
    tr_weight *w = &s->w;
    uint32_t row = (uint32_t)samples_u64() % 128, col = (uint32_t)samples_u64() % 8 * 16;
    size_t across = (col + cols + 127) / 128, down = (row + rows + 127) / 128;
    float *grid = malloc(across * down * sizeof(*grid));

    assert_non_null(grid);
    for (size_t i = 0; i < across * down; i++)
        grid[i] = samples_float(0.01f) + 0.0101f;
    free(s->scales);
    s->scales = (uint8_t *)grid;
    w->scales = s->scales;
    w->scales_row_size = across * sizeof(*grid);
    w->scales_format = TR_FORMAT_F32;
    w->grid_rows = w->grid_cols = 128;
    w->grid_row = row;
    w->grid_col = col;
}

/* Scales that are numbers in a block with any bytes. */
static void samples_block_scales(tr_format format, uint8_t *block)
{
    int d_at = tr_block_scale_at(format), m_at = tr_block_min_at(format);

    if (format == TR_FORMAT_GGUF_MXFP4)
        block[0] = (uint8_t)(116 + block[0] % 16); /* around 1 */
    for (int i = 0; format == TR_FORMAT_GGUF_NVFP4 && i < 4; i++)
        block[i] &= 0x3f; /* denormals too */
    if (d_at >= 0)
        samples_put_half(block + d_at);
    if (m_at >= 0)
        samples_put_half(block + m_at);
}

/* GGUF's blocks: a slice that begins and ends anywhere in its blocks. */
static samples_weight samples_blocked(tr_format format, uint32_t rows, uint32_t cols)
{
    uint32_t elements = tr_format_block_elements(format), bytes = tr_format_block_bytes(format);
    uint32_t lead = (uint32_t)samples_u64() % (elements / TR_PIECE) * TR_PIECE;
    uint32_t blocks = (lead + cols + elements - 1) / elements;
    size_t size = (size_t)rows * blocks * bytes;
    samples_weight s = {.data = malloc(size + 1)};

    assert_non_null(s.data);
    assert_int_equal(cols % TR_PIECE, 0);
    for (size_t i = 0; i < size; i++)
        s.data[i] = (uint8_t)(samples_u64() >> 56);
    for (size_t i = 0; i < size; i += bytes)
        samples_block_scales(format, s.data + i);
    tr_weight whole = {.format = format,
                       .rows = rows,
                       .cols = blocks * elements,
                       .data = s.data,
                       .row_size = (size_t)blocks * bytes,
                       .scale = format == TR_FORMAT_GGUF_NVFP4 ? 0.0123f : 1.0f};
    s.w = tr_weight_slice(&whole, 0, rows, lead, cols);
    return s;
}

samples_weight samples_weight_make(tr_format format, uint32_t rows, uint32_t cols)
{
    if (tr_format_is_blocked(format))
        return samples_blocked(format, rows, cols);

    uint32_t elements = tr_format_block_elements(format), bytes = tr_format_block_bytes(format);
    uint32_t blocks = cols / elements;
    size_t row_size = (size_t)blocks * bytes;
    samples_weight s = {.data = malloc(rows * row_size + 1),
                        .scales = malloc(rows * blocks + sizeof(float))};
    bool scaled = format == TR_FORMAT_NVFP4 || format == TR_FORMAT_FP8;
    bool block_scales = format == TR_FORMAT_NVFP4 || format == TR_FORMAT_MXFP4;

    assert_non_null(s.data);
    assert_non_null(s.scales);
    assert_int_equal(cols % elements, 0);
    for (size_t i = 0; i < rows * row_size; i++)
        s.data[i] = (uint8_t)(samples_u64() >> 56);
    for (size_t i = 0; i < (size_t)rows * blocks; i++) {
        uint8_t *b = s.data + i * bytes;
        float f = samples_float(1.0f);
        s.scales[i] = (uint8_t)(samples_u64() >> 57 & 0x3f); /* denormals too */
        if (format == TR_FORMAT_F32)
            memcpy(b, &f, 4);
        if (format == TR_FORMAT_BF16) {
            b[0] &= 0xfe; /* about 1, some denormal */
            b[1] = (uint8_t)(samples_u64() % 32 == 0 ? 0 : (b[1] & 0x80) | 0x3e | (b[1] & 1));
        }
        if (format == TR_FORMAT_MXFP4)
            s.scales[i] = (uint8_t)(116 + s.scales[i] % 16); /* around 1 */
        if ((format == TR_FORMAT_FP8 || format == TR_FORMAT_FP8_BLOCK) && (*b & 0x7f) == 0x7f)
            *b = 0x80; /* NaN is refused; -0 is not */
        if (format == TR_FORMAT_F16)
            b[1] = (uint8_t)(samples_u64() % 32 == 0 ? b[1] & 0x83 : (b[1] & 0x83) | 0x34);
    }
    s.w = (tr_weight){.format = format,
                      .rows = rows,
                      .cols = cols,
                      .data = s.data,
                      .row_size = row_size,
                      .scales = block_scales ? s.scales : NULL,
                      .scales_row_size = blocks,
                      .scale = scaled ? 0.0123f : 1.0f};
    if (format == TR_FORMAT_FP8_BLOCK)
        samples_grid(&s, rows, cols);
    return s;
}

void samples_weight_free(samples_weight *weight)
{
    free(weight->data);
    free(weight->scales);
}

samples_packed samples_pack(const tr_kernels *kernels, const tr_weight *w)
{
    samples_packed p;
    size_t size = kernels->pack_size(w->format, w->rows, w->cols);

    assert_int_equal(size % 64, 0);
    p.memory = aligned_alloc(64, size);
    assert_non_null(p.memory);
    CHECK_STATUS(kernels->pack(&p.m, p.memory, w, NULL), TR_OK);
    return p;
}
