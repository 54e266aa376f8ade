/* fp8_grid.h - the scale of an element of an FP8_BLOCK weight, where it lies in the checkpoint. */
#ifndef TR_CORE_MODEL_FP8_GRID_H
#define TR_CORE_MODEL_FP8_GRID_H

#include "core/model/model_spec.h"
#include "core/model/numbers.h"

/* The scale of element (row, col). */
static inline float tr_weight_grid_scale(const tr_weight *w, uint32_t row, uint32_t col)
{
    const uint8_t *p = w->scales + (w->grid_row + row) / w->grid_rows * w->scales_row_size;
    size_t index = (w->grid_col + col) / w->grid_cols;

    if (w->scales_format == TR_FORMAT_F32)
        return tr_load_f32(p + 4 * index);
    uint16_t bits = tr_load_u16(p + 2 * index);
    return w->scales_format == TR_FORMAT_BF16 ? tr_bf16_to_f32(bits) : tr_f16_to_f32(bits);
}

#endif
