/* format.c - what an element format is: its blocks, its name, its exact value in f32. */
#include "core/model/blocks.h"
#include "core/model/fp8_grid.h"
#include "core/model/numbers.h"

#include <assert.h>
#include <stddef.h>

typedef struct {
    const char *name;
    uint32_t block_elements;
    uint32_t block_bytes;
} format_row;

static const format_row format_rows[TR_FORMATS_COUNT] = {
#define X(id, text, elements, bytes) [TR_FORMAT_##id] = {text, elements, bytes},
    TR_FORMAT_MAP(X)
#undef X
};

const char *tr_format_name(tr_format format)
{
    return (unsigned)format < TR_FORMATS_COUNT ? format_rows[format].name : "unknown";
}

uint32_t tr_format_block_elements(tr_format format)
{
    assert((unsigned)format < TR_FORMATS_COUNT);
    return format_rows[format].block_elements;
}

uint32_t tr_format_block_bytes(tr_format format)
{
    assert((unsigned)format < TR_FORMATS_COUNT);
    return format_rows[format].block_bytes;
}

uint32_t tr_format_grain(tr_format format)
{
    return tr_format_is_blocked(format) ? TR_PIECE : tr_format_block_elements(format);
}

tr_weight tr_weight_slice(const tr_weight *w, uint32_t row, uint32_t rows, uint32_t col,
                          uint32_t cols)
{
    uint32_t elements = tr_format_block_elements(w->format);
    uint32_t bytes = tr_format_block_bytes(w->format);

    assert(row <= w->rows && rows <= w->rows - row);
    assert(col <= w->cols && cols <= w->cols - col);
    assert(col % tr_format_grain(w->format) == 0);
    assert(cols % tr_format_grain(w->format) == 0);

    tr_weight slice = *w;
    slice.rows = rows;
    slice.cols = cols;
    slice.data += row * w->row_size + (size_t)((w->lead + col) / elements) * bytes;
    slice.lead = (w->lead + col) % elements;
    if (w->format == TR_FORMAT_FP8_BLOCK) {
        row += w->grid_row;
        col += w->grid_col;
        slice.scales += row / w->grid_rows * w->scales_row_size +
                        col / w->grid_cols * (size_t)tr_format_block_bytes(w->scales_format);
        slice.grid_row = row % w->grid_rows;
        slice.grid_col = col % w->grid_cols;
    } else if (slice.scales != NULL) {
        slice.scales += row * w->scales_row_size + col / elements;
    }
    return slice;
}

/* GGUF's blocks, piece by piece. */
static void format_blocked_row(float *out, const tr_weight *w, const uint8_t *row)
{
    uint32_t elements = tr_format_block_elements(w->format);
    uint32_t bytes = tr_format_block_bytes(w->format);

    for (uint32_t k = w->lead; k < w->lead + w->cols; k += TR_PIECE, out += TR_PIECE) {
        tr_piece_to_f32(out, w->format, row + (size_t)(k / elements) * bytes,
                        k % elements / TR_PIECE);
        for (uint32_t j = 0; w->scale != 1 && j < TR_PIECE; j++)
            out[j] *= w->scale;
    }
}

/* The block scale meets the matrix scale first, as in the publishers' dequantisers. */
static void format_e2m1(float *out, const uint8_t *b, uint32_t bytes, float scale)
{
    for (uint32_t j = 0; j < bytes; j++) {
        out[2 * j] = tr_e2m1_to_f32(b[j] & 15) * scale;
        out[2 * j + 1] = tr_e2m1_to_f32(b[j] >> 4) * scale;
    }
}

void tr_weight_to_f32(float *out, const tr_weight *w)
{
    uint32_t elements = tr_format_block_elements(w->format);
    uint32_t bytes = tr_format_block_bytes(w->format);
    uint32_t blocks = w->cols / elements;

    assert(w->cols % tr_format_grain(w->format) == 0);
    for (uint32_t row = 0; row < w->rows; row++) {
        const uint8_t *b = w->data + row * w->row_size;

        if (tr_format_is_blocked(w->format)) {
            format_blocked_row(out, w, b);
            out += w->cols;
            continue;
        }
        for (uint32_t i = 0; i < blocks; i++, b += bytes, out += elements) {
            switch (w->format) {
            case TR_FORMAT_F32:
                *out = tr_load_f32(b);
                break;
            case TR_FORMAT_BF16:
                *out = tr_bf16_to_f32(tr_load_u16(b));
                break;
            case TR_FORMAT_F16:
                *out = tr_f16_to_f32(tr_load_u16(b));
                break;
            case TR_FORMAT_NVFP4:
                format_e2m1(out, b, bytes,
                            tr_e4m3_to_f32(w->scales[row * w->scales_row_size + i]) * w->scale);
                break;
            case TR_FORMAT_FP8:
                *out = tr_e4m3_to_f32(*b) * w->scale;
                break;
            case TR_FORMAT_FP8_BLOCK:
                *out = tr_e4m3_to_f32(*b) * tr_weight_grid_scale(w, row, i);
                break;
            case TR_FORMAT_MXFP4:
                format_e2m1(out, b, bytes, tr_e8m0_to_f32(w->scales[row * w->scales_row_size + i]));
                break;
            default:
                assert(!"a weight has a format");
                break;
            }
        }
    }
}
