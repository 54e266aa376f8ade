#include "core/model/weights.h"

#include "core/model/blocks.h"
#include "core/model/fp8_grid.h"
#include "core/model/names.h"
#include "core/model/numbers.h"
#include "core/model/weights_scaled.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const tr_tensor *weights_find(const tr_weight_reader *r, const char *name, uint32_t *index)
{
    *index = tr_checkpoint_find(r->checkpoint, name);
    return *index == TR_NAME_NONE ? NULL : tr_checkpoint_at(r->checkpoint, *index);
}

/* The tensor, marked as used, or NULL. */
static const tr_tensor *weights_use(tr_weight_reader *r, const char *name)
{
    uint32_t index;
    const tr_tensor *t = weights_find(r, name, &index);

    if (t != NULL)
        r->used[index] = 1;
    return t;
}

/* The place of a matrix of its own. */
static tr_weight_place weights_single(const char *name, uint32_t rows, uint32_t cols)
{
    return (tr_weight_place){.name = name, .parts = 1, .rows = rows, .cols = cols};
}

bool tr_weight_exists(const tr_weight_reader *r, const char *name)
{
    tr_weight_place single = weights_single(name, 1, 1), stacked = single;
    uint32_t index;

    stacked.experts = 1;
    return weights_find(r, name, &index) != NULL || tr_weight_has_codes(r, &single) ||
           tr_weight_has_codes(r, &stacked);
}

/* "X.weight" may be missing because X.qweight holds integers of GPTQ or AWQ. */
static tr_status weights_absent(const tr_weight_reader *r, const char *name, uint32_t rows,
                                uint32_t cols, tr_error *err)
{
    size_t stem = strlen(name) > 6 ? strlen(name) - 6 : 0;
    char packed[TR_TENSOR_NAME_SIZE];
    uint32_t index;

    snprintf(packed, sizeof(packed), "%.*sqweight", (int)stem, name);
    if (weights_find(r, packed, &index) != NULL)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.120s: integers of GPTQ or AWQ, expected %.120s in a supported "
                       "format",
                       tr_checkpoint_name(r->checkpoint), packed, name);
    return tr_fail(err, TR_E_INVALID, "%s: tensor %.120s: absent, expected [%u, %u]",
                   tr_checkpoint_name(r->checkpoint), name, rows, cols);
}

/* The dimensions that are not 1. */
static uint32_t weights_squeeze(uint64_t *out, const uint64_t *dims, uint32_t count)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < count; i++)
        if (dims[i] != 1)
            out[kept++] = dims[i];
    return kept;
}

static tr_status weights_shape(const tr_tensor *t, const uint64_t *expected, uint32_t count,
                               tr_error *err)
{
    uint64_t have[TR_TENSOR_DIMS_MAX], want[TR_TENSOR_DIMS_MAX];
    char found_text[80], expected_text[80];
    uint32_t have_count = weights_squeeze(have, t->dims, t->dims_count);
    uint32_t want_count = weights_squeeze(want, expected, count);

    if (have_count == want_count && memcmp(have, want, have_count * sizeof(*have)) == 0)
        return TR_OK;
    return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: shape %s, expected %s", t->file, t->name,
                   tr_tensor_shape_text(found_text, sizeof(found_text), t->dims, t->dims_count),
                   tr_tensor_shape_text(expected_text, sizeof(expected_text), expected, count));
}

/* Whether the tensor is [heads, rows of a head, cols], where heads have a dimension of their own.
 */
static bool weights_by_head(const tr_tensor *t, uint32_t rows, uint32_t cols)
{
    return t->dtype == TR_DTYPE_GGUF && t->dims_count == 3 && t->dims[2] == cols &&
           t->dims[1] <= rows && t->dims[0] * t->dims[1] == rows;
}

/* [rows, cols] of t, which has as many. */
static tr_status weights_plain(tr_weight_reader *r, const tr_weight_place *p, const tr_tensor *t,
                               uint32_t rows, uint32_t cols, tr_weight *out, tr_error *err)
{
    uint64_t shape[2] = {rows, cols};

    assert(t->has_format);
    tr_status status = weights_by_head(t, rows, cols) ? TR_OK : weights_shape(t, shape, 2, err);
    if (status != TR_OK)
        return status;
    uint32_t elements = tr_format_block_elements(t->format);
    if (cols % elements != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: rows of %u, expected a multiple of %u for %s", t->file,
                       t->name, cols, elements, tr_format_name(t->format));
    *out = (tr_weight){.format = t->format,
                       .rows = rows,
                       .cols = cols,
                       .data = t->data,
                       .row_size = (size_t)(cols / elements) * tr_format_block_bytes(t->format),
                       .scale = 1};
    return t->format == TR_FORMAT_GGUF_NVFP4 ? tr_weight_read_gguf_scale(r, p, &out->scale, err)
                                             : TR_OK;
}

tr_status tr_weight_read(tr_weight_reader *r, const char *name, uint32_t rows, uint32_t cols,
                         tr_weight *out, tr_error *err)
{
    tr_weight_place place = weights_single(name, rows, cols);
    const tr_tensor *plain = weights_use(r, name);

    if ((plain != NULL && !plain->has_format) || tr_weight_has_codes(r, &place))
        return tr_weight_read_scaled(r, &place, plain, out, err);
    return plain != NULL ? weights_plain(r, &place, plain, rows, cols, out, err)
                         : weights_absent(r, name, rows, cols, err);
}

tr_status tr_weight_read_rows(tr_weight_reader *r, const char *name, uint32_t all, uint32_t first,
                              uint32_t rows, uint32_t cols, tr_weight *out, tr_error *err)
{
    tr_weight whole;

    tr_status status = tr_weight_read(r, name, all, cols, &whole, err);
    if (status == TR_OK)
        *out = tr_weight_slice(&whole, first, rows, 0, cols);
    return status;
}

tr_status tr_weight_read_stacked(tr_weight_reader *r, const char *name, uint32_t experts,
                                 uint32_t index, uint32_t parts, uint32_t part, uint32_t rows,
                                 uint32_t cols, tr_weight *out, tr_error *err)
{
    uint64_t shape[3] = {experts, (uint64_t)parts * rows, cols};
    tr_weight_place place = {.name = name,
                             .experts = experts,
                             .index = index,
                             .parts = parts,
                             .part = part,
                             .rows = parts * rows,
                             .cols = cols};
    const tr_tensor *t = weights_use(r, name);

    assert(index < experts);
    assert(part < parts);
    if ((t != NULL && !t->has_format) || tr_weight_has_codes(r, &place))
        return tr_weight_read_scaled(r, &place, t, out, err);
    if (t == NULL)
        return weights_absent(r, name, rows, cols, err);
    tr_status status = weights_shape(t, shape, 3, err);
    if (status != TR_OK)
        return status;
    tr_tensor one = *t;
    one.dims_count = 2;
    one.dims[0] = rows;
    one.dims[1] = cols;
    status = weights_plain(r, &place, &one, rows, cols, out, err);
    if (status == TR_OK)
        out->data += ((size_t)index * parts + part) * rows * out->row_size;
    return status;
}

uint32_t tr_weight_cut_unit(const tr_weight *w)
{
    if (w->format == TR_FORMAT_FP8_BLOCK)
        return w->cols <= w->grid_cols ? 1 : 16;
    return tr_format_grain(w->format);
}

uint64_t tr_weight_bytes(const tr_weight *w)
{
    uint64_t blocks = (uint64_t)w->rows * (w->cols / tr_format_block_elements(w->format));
    uint64_t bytes = blocks * tr_format_block_bytes(w->format);

    switch (w->format) {
    case TR_FORMAT_NVFP4:
        return bytes + blocks + sizeof(float);
    case TR_FORMAT_MXFP4:
        return bytes + blocks;
    case TR_FORMAT_FP8:
        return bytes + sizeof(float);
    case TR_FORMAT_FP8_BLOCK:
        return bytes + (uint64_t)((w->grid_row + w->rows - 1) / w->grid_rows + 1) *
                           ((w->grid_col + w->cols - 1) / w->grid_cols + 1) *
                           tr_format_block_bytes(w->scales_format);
    default:
        return bytes;
    }
}

static tr_status weights_bad_value(const char *file, const char *name, uint32_t row, uint32_t col,
                                   double value, const char *expected, tr_error *err)
{
    return tr_fail(err, TR_E_INVALID,
                   "%s: tensor %.100s: found %g at row %u, column %u, expected %s", file, name,
                   value, row, col, expected);
}

tr_status tr_weight_check(const tr_weight *w, const char *file, const char *name, tr_error *err)
{
    uint32_t elements = tr_format_block_elements(w->format);
    uint32_t bytes = tr_format_block_bytes(w->format);
    uint32_t blocks = w->cols / elements;

    tr_status status = tr_weight_need(w, err);
    if (status != TR_OK)
        return status;
    for (uint32_t row = 0; row < w->rows; row++) {
        const uint8_t *b = w->data + row * w->row_size;

        for (uint32_t i = 0; i < blocks; i++, b += bytes) {
            float value = 0, second = 0;

            switch (w->format) {
            case TR_FORMAT_F32:
                value = tr_load_f32(b);
                break;
            case TR_FORMAT_BF16:
                value = tr_bf16_to_f32(tr_load_u16(b));
                break;
            case TR_FORMAT_NVFP4:
                value = tr_e4m3_to_f32(w->scales[row * w->scales_row_size + i]);
                if (signbit(value))
                    return weights_bad_value(file, name, row, i * elements, (double)value,
                                             "a block scale that is not negative", err);
                break;
            case TR_FORMAT_MXFP4:
                value = tr_e8m0_to_f32(w->scales[row * w->scales_row_size + i]);
                break;
            case TR_FORMAT_FP8_BLOCK:
                second = tr_weight_grid_scale(w, row, i);
                if (signbit(second))
                    return weights_bad_value(file, name, row, i, (double)second,
                                             "a block scale that is not negative", err);
                value = tr_e4m3_to_f32(*b);
                break;
            case TR_FORMAT_FP8:
                value = tr_e4m3_to_f32(*b);
                break;
            case TR_FORMAT_F16:
                value = tr_f16_to_f32(tr_load_u16(b));
                break;
            default: /* GGUF's blocks */
                value = tr_block_is_valid(w->format, b) ? 0 : (float)NAN;
                break;
            }
            if (!isfinite(value) || !isfinite(second))
                return weights_bad_value(
                    file, name, row, i * elements, (double)(isfinite(value) ? second : value),
                    elements > 1 ? "a finite block scale" : "a finite number", err);
        }
    }
    return TR_OK;
}
