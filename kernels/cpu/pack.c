/* pack.c - lays a weight matrix out for the cpu kernels (packed.h). One layout for every
 * instruction set. GGUF's block formats are in pack_blocks.c. */
#include "core/model/blocks.h"
#include "core/model/fp8_grid.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/packed.h"

#include <math.h>
#include <string.h>

const tr_packed_format *tr_cpu_packed_format(tr_format format)
{
    /* clang-format off */
    static const tr_packed_format formats[TR_FORMATS_COUNT] = {
        /*                       kind           head rest  plain elements */
        [TR_FORMAT_F32]        = {W_F32,          0,  0,     0,   0},
        [TR_FORMAT_BF16]       = {W_BF16,         0,  0,     0,   0},
        [TR_FORMAT_F16]        = {W_F16,          0,  0,     0,   0},
        [TR_FORMAT_NVFP4]      = {W_E2M1,         0,  0,     1,  16}, /* E4M3 */
        [TR_FORMAT_GGUF_NVFP4] = {W_E2M1,         0,  0,     1,  16},
        [TR_FORMAT_MXFP4]      = {W_E2M1,         0,  0,     1,  32}, /* E8M0 */
        [TR_FORMAT_GGUF_MXFP4] = {W_E2M1,         0,  0,     1,  32},
        [TR_FORMAT_FP8]        = {W_E4M3,         0,  0,     0,   0}, /* matrix scale has 256 */
        [TR_FORMAT_FP8_BLOCK]  = {W_E4M3_SCALED,  0,  0,     4, 128}, /* f32, 256 times the scale */
        [TR_FORMAT_Q8_0]       = {W_I8,           0,  0,     2,  32}, /* f16 d */
        [TR_FORMAT_Q4_0]       = {W_LINEAR4,      0,  0,     2,  32},
        [TR_FORMAT_Q5_0]       = {W_LINEAR5,      0,  0,     2,  32},
        [TR_FORMAT_IQ4_NL]     = {W_IQ4,          0,  0,     2,  32},
        [TR_FORMAT_Q4_1]       = {W_LINEAR4,      0,  0,     4,  32}, /* f16 d of a super, f16 m */
        [TR_FORMAT_Q5_1]       = {W_LINEAR5,      0,  0,     4,  32},
        [TR_FORMAT_Q2_K]       = {W_LINEAR2,      4, 16,     0,   0},
        [TR_FORMAT_Q3_K]       = {W_LINEAR3,      2, 12,     0,   0},
        [TR_FORMAT_Q4_K]       = {W_LINEAR4,      4, 12,     0,   0},
        [TR_FORMAT_Q5_K]       = {W_LINEAR5,      4, 12,     0,   0},
        [TR_FORMAT_Q6_K]       = {W_LINEAR6,      2, 16,     0,   0},
        [TR_FORMAT_IQ2_XXS]    = {W_IQ2_XXS,      2,  0,     0,   0},
        [TR_FORMAT_IQ2_XS]     = {W_IQ2_XS,       2,  8,     0,   0},
        [TR_FORMAT_IQ3_XXS]    = {W_IQ3_XXS,      2,  0,     0,   0},
        [TR_FORMAT_IQ4_XS]     = {W_IQ4,          2,  6,     0,   0},
    };
    /* clang-format on */
    assert((unsigned)format < TR_FORMATS_COUNT);
    return &formats[format];
}

tr_pack_layout tr_cpu_pack_layout(tr_format format, uint32_t rows, uint32_t cols)
{
    const tr_packed_format *f = tr_cpu_packed_format(format);
    size_t rows_padded = tr_round_up(rows, TR_ROW_BLOCK);
    size_t supers = tr_round_up(cols, TR_SUPER) / TR_SUPER;
    tr_pack_layout l = {.codes_stride =
                            tr_round_up(cols, TR_UNIT) / TR_UNIT * tr_unit_bytes(f->kind)};

    if (f->head > 0)
        l.scales_stride = supers * (f->head + f->rest) + f->head;
    else if (f->plain > 0)
        l.scales_stride = tr_round_up(cols, f->elements) / f->elements * f->plain;
    if (format == TR_FORMAT_FP8_BLOCK) /* the matrix may begin inside a block */
        l.scales_stride += f->plain;
    l.size = l.scales_offset = tr_round_up(rows_padded * l.codes_stride, 64);
    if (l.scales_stride > 0)
        l.size = tr_round_up(l.scales_offset + rows_padded * l.scales_stride + 64, 64);
    return l;
}

size_t tr_cpu_pack_size(tr_format format, uint32_t rows, uint32_t cols)
{
    return tr_cpu_pack_layout(format, rows, cols).size;
}

/* How far into a block the matrix begins. FP8_BLOCK: a block as wide as the matrix (one scale for
 * each row) is as good as any number of blocks with the same scale. */
static uint32_t pack_lead(const tr_weight *w)
{
    if (w->format != TR_FORMAT_FP8_BLOCK)
        return w->lead;
    if (w->grid_col + w->cols <= w->grid_cols)
        return 0;
    assert(w->grid_cols == TR_FP8_BLOCK_COLS);
    assert(w->grid_col % 16 == 0);
    return w->grid_col;
}

/* NVFP4 and MXFP4: E2M1 codes, two a byte, and a byte of scale for each block. */
static tr_status pack_e2m1_row(uint8_t *codes, uint8_t *scales, const tr_weight *w, uint32_t row,
                               tr_error *err)
{
    const uint8_t *data = w->data + (size_t)row * w->row_size;
    const uint8_t *scale = w->scales + (size_t)row * w->scales_row_size;
    bool nvfp4 = w->format == TR_FORMAT_NVFP4;

    for (uint32_t b = 0; b < w->cols / (nvfp4 ? 16 : 32); b++) {
        if (nvfp4 ? scale[b] >= 0x7f : scale[b] == 0xff) /* NaN; E4M3: or negative, as none is */
            return tr_fail(err, TR_E_INVALID,
                           "%s scale of row %u, block %u: bits 0x%x are not a finite, valid scale",
                           tr_format_name(w->format), row, b, scale[b]);
        scales[b] = scale[b];
    }
    for (uint32_t k = 0; k < w->cols; k += 32) {
        uint8_t pairs[16] = {0}, code[32];
        if (w->cols - k >= 32)
            memcpy(pairs, data + k / 2, sizeof(pairs));
        else
            memcpy(pairs, data + k / 2, (w->cols - k) / 2);
        for (uint32_t i = 0; i < 16; i++) { /* -0 becomes 0: no sum can tell */
            uint8_t low = pairs[i] & 15, high = pairs[i] >> 4;
            code[2 * i] = low == 8 ? 0 : low;
            code[2 * i + 1] = high == 8 ? 0 : high;
        }
        tr_pack_nibbles(codes + k / TR_UNIT * tr_unit_bytes(W_E2M1), code, k % TR_UNIT / 32);
    }
    return TR_OK;
}

static tr_status pack_fp8_row(uint8_t *codes, uint8_t *scales, const tr_weight *w, uint32_t row,
                              tr_error *err)
{
    const uint8_t *data = w->data + (size_t)row * w->row_size;
    uint8_t nan = 0;

    for (uint32_t k = 0; k < w->cols; k++)
        nan |= (data[k] & 0x7f) == 0x7f;
    if (nan)
        return tr_fail(err, TR_E_INVALID, "%s: row %u holds a NaN", tr_format_name(w->format), row);
    memcpy(codes, data, w->cols);
    if (w->format != TR_FORMAT_FP8_BLOCK)
        return TR_OK;
    for (uint32_t k = 0, i = 0; k < w->cols; i++) {
        float scale = tr_weight_grid_scale(w, row, k), scaled = scale * 256;
        if (!(scale >= 0) || !isfinite(scaled))
            return tr_fail(err, TR_E_INVALID,
                           "%s scale of row %u, column %u: found %g, expected a finite number that "
                           "is not negative",
                           tr_format_name(w->format), row, k, (double)scale);
        memcpy(scales + i * sizeof(scaled), &scaled, sizeof(scaled));
        k += i == 0 ? TR_FP8_BLOCK_COLS - pack_lead(w) : TR_FP8_BLOCK_COLS;
    }
    return TR_OK;
}

static void pack_bf16_row(uint8_t *codes, const tr_weight *w, uint32_t row)
{
    const uint8_t *data = w->data + (size_t)row * w->row_size;

    for (uint32_t k = 0; k < w->cols; k += 32, codes += 64) {
        uint16_t in[32] = {0};
        uint32_t out[16];
        if (w->cols - k >= 32)
            memcpy(in, data + 2 * (size_t)k, sizeof(in));
        else
            memcpy(in, data + 2 * (size_t)k, 2 * (size_t)(w->cols - k));
        for (uint32_t l = 0; l < 16; l++)
            out[l] = in[l] | (uint32_t)in[l + 16] << 16;
        memcpy(codes, out, sizeof(out));
    }
}

tr_status tr_cpu_pack(tr_matrix *out, void *memory, const tr_weight *w, tr_error *err)
{
    return tr_cpu_pack_rows(out, memory, w, 0, w->rows, err);
}

tr_status tr_cpu_pack_rows(tr_matrix *out, void *memory, const tr_weight *w, uint32_t first,
                           uint32_t count, tr_error *err)
{
    tr_pack_layout l = tr_cpu_pack_layout(w->format, w->rows, w->cols);
    uint8_t *codes = (uint8_t *)memory + first * l.codes_stride;
    uint8_t *scales = (uint8_t *)memory + l.scales_offset + first * l.scales_stride;
    float scale = w->format == TR_FORMAT_FP8 ? w->scale * 256 : w->scale;
    tr_status status = TR_OK;

    if (!isfinite(scale))
        return tr_fail(err, TR_E_INVALID,
                       "%s scale of the matrix: found %g, expected a finite number",
                       tr_format_name(w->format), (double)w->scale);
    if (first == 0)
        memset(memory, 0, l.size);
    for (uint32_t row = first; row < first + count && status == TR_OK; row++) {
        switch (w->format) {
        case TR_FORMAT_F32:
        case TR_FORMAT_F16:
            memcpy(codes, w->data + (size_t)row * w->row_size,
                   (size_t)w->cols * (w->format == TR_FORMAT_F32 ? 4 : 2));
            break;
        case TR_FORMAT_BF16:
            pack_bf16_row(codes, w, row);
            break;
        case TR_FORMAT_NVFP4:
        case TR_FORMAT_MXFP4:
            status = pack_e2m1_row(codes, scales, w, row, err);
            break;
        case TR_FORMAT_FP8:
        case TR_FORMAT_FP8_BLOCK:
            status = pack_fp8_row(codes, scales, w, row, err);
            break;
        default:
            status = tr_cpu_pack_blocks_row(codes, scales, w, row, err);
            break;
        }
        codes += l.codes_stride;
        scales += l.scales_stride;
    }
    if (status != TR_OK)
        return status;
    *out = (tr_matrix){.format = w->format,
                       .rows = w->rows,
                       .cols = w->cols,
                       .data = memory,
                       .scale = scale,
                       .lead = pack_lead(w)};
    return TR_OK;
}
