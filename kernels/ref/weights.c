/* weights.c - the formats, element by element, and the products. A packed matrix of ref is its f32
 * values. */
#include "kernels/ref/ref.h"

#include "core/model/blocks.h"

#include <string.h>

static double ref_half(const uint8_t *p)
{
    unsigned h = (unsigned)(p[0] | p[1] << 8);
    int e = (int)(h >> 10 & 31);
    double m = h & 0x3ff;
    double v = e == 0    ? ldexp(m, -24)
               : e == 31 ? (m == 0 ? INFINITY : NAN)
                         : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

static double ref_e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    double v = (b & 127) == 127 ? NAN : e != 0 ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return b & 128 ? -v : v;
}

static double ref_e2m1(unsigned code)
{
    static const double magnitude[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}

/* The scale of an element's rectangle. */
static double ref_grid_scale(const tr_weight *w, uint32_t n, uint32_t k)
{
    size_t bytes = w->scales_format == TR_FORMAT_F32 ? 4 : 2;
    const uint8_t *p = w->scales + (w->grid_row + n) / w->grid_rows * w->scales_row_size +
                       (w->grid_col + k) / w->grid_cols * bytes;
    uint32_t bits = 0;
    float f;

    if (w->scales_format == TR_FORMAT_F16)
        return ref_half(p);
    memcpy((uint8_t *)&bits + 4 - bytes, p, bytes); /* BF16: the high half of an f32 */
    memcpy(&f, &bits, 4);
    return f;
}

/* GGUF's blocks: core/model/blocks.c is checked against the publisher's program. */
static float ref_blocked(const tr_weight *w, const uint8_t *row, uint32_t k, bool *valid)
{
    uint32_t elements = tr_format_block_elements(w->format), at = w->lead + k;
    const uint8_t *block = row + (size_t)(at / elements) * tr_format_block_bytes(w->format);
    float piece[TR_PIECE];

    *valid &= tr_block_is_valid(w->format, block);
    tr_piece_to_f32(piece, w->format, block, at % elements / TR_PIECE);
    return piece[at % TR_PIECE];
}

/* Element (n, k). *valid becomes false when its scale is not one. */
static float ref_element(const tr_weight *w, uint32_t n, uint32_t k, bool *valid)
{
    const uint8_t *row = w->data + n * w->row_size;
    const uint8_t *block;
    unsigned nibble;
    float f;
    double d;

    switch (w->format) {
    case TR_FORMAT_F32:
        memcpy(&f, row + 4 * (size_t)k, 4);
        return f;
    case TR_FORMAT_BF16: {
        uint32_t bits = (uint32_t)(row[2 * (size_t)k] | row[2 * (size_t)k + 1] << 8) << 16;
        memcpy(&f, &bits, 4);
        return f;
    }
    case TR_FORMAT_F16:
        return (float)ref_half(row + 2 * (size_t)k);
    case TR_FORMAT_NVFP4: {
        uint8_t scale = w->scales[n * w->scales_row_size + k / 16];
        *valid &= scale < 0x7f;
        nibble = row[k / 2] >> (k % 2 * 4) & 15;
        return (float)(ref_e2m1(nibble) * ref_e4m3(scale));
    }
    case TR_FORMAT_FP8:
        *valid &= (row[k] & 127) != 127;
        return (float)ref_e4m3(row[k]);
    case TR_FORMAT_FP8_BLOCK:
        d = ref_grid_scale(w, n, k);
        *valid &= (row[k] & 127) != 127 && isfinite(d) && d >= 0;
        return (float)(ref_e4m3(row[k]) * d);
    case TR_FORMAT_MXFP4:
        block = w->scales + n * w->scales_row_size + k / 32;
        *valid &= *block != 255;
        nibble = row[k / 2] >> (k % 2 * 4) & 15;
        return (float)ldexp(ref_e2m1(nibble), *block - 127);
    default:
        return ref_blocked(w, row, k, valid);
    }
}

size_t tr_ref_pack_size(tr_format format, uint32_t rows, uint32_t cols)
{
    (void)format;
    return ((size_t)rows * cols * sizeof(float) + 63) / 64 * 64;
}

tr_status tr_ref_pack(tr_matrix *out, void *memory, const tr_weight *w, tr_error *err)
{
    return tr_ref_pack_rows(out, memory, w, 0, w->rows, err);
}

tr_status tr_ref_pack_rows(tr_matrix *out, void *memory, const tr_weight *w, uint32_t first,
                           uint32_t count, tr_error *err)
{
    float *values = memory;
    bool valid = isfinite(w->scale) != 0;

    for (uint32_t n = first; n < first + count; n++)
        for (uint32_t k = 0; k < w->cols; k++)
            values[(size_t)n * w->cols + k] = ref_element(w, n, k, &valid);
    if (!valid)
        return tr_fail(err, TR_E_INVALID, "a scale is not a finite, valid number");
    *out = (tr_matrix){
        .format = w->format, .rows = w->rows, .cols = w->cols, .data = memory, .scale = w->scale};
    return TR_OK;
}

void tr_ref_embed(tr_team *team, float *out, const tr_matrix *table, const int32_t *ids, uint32_t T)
{
    const float *values = table->data;
    (void)team;

    for (uint32_t t = 0; t < T; t++) {
        assert(ids[t] >= 0 && (uint32_t)ids[t] < table->rows);
        for (uint32_t k = 0; k < table->cols; k++)
            out[(size_t)t * table->cols + k] =
                values[(size_t)ids[t] * table->cols + k] * table->scale;
    }
}

static double ref_dot(const float *x, const tr_matrix *W, uint32_t n)
{
    const float *w = (const float *)W->data + (size_t)n * W->cols;
    double sum = 0;

    for (uint32_t k = 0; k < W->cols; k++)
        sum += (double)x[k] * w[k];
    return sum * W->scale;
}

void tr_ref_matmul(tr_team *team, float *out, size_t ld_out, const float *x, size_t ld_x,
                   const uint32_t *rows, const tr_matrix *W, uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t n = 0; n < W->rows; n++)
            out[t * ld_out + n] = (float)ref_dot(x + (rows != NULL ? rows[t] : t) * ld_x, W, n);
}

void tr_ref_matmul_term(tr_team *team, int64_t *acc, uint8_t *flags, const int32_t *exponent,
                        const float *x, size_t ld_x, const uint32_t *rows, const float *weight,
                        const tr_matrix *W, uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        size_t d = rows != NULL ? rows[t] : t;
        for (uint32_t n = 0; n < W->rows; n++) {
            float y = (float)ref_dot(x + t * ld_x, W, n);
            if (weight != NULL)
                y = weight[t] * y;
            double v = ldexp(y, TR_FIXED_BITS - exponent[d]);
            if (fabs(v) < 0x1p50)
                acc[d * W->rows + n] += (int64_t)nearbyint(v);
            else
                flags[d] = 1;
        }
    }
}
