#include "core/model/weights_ngram.h"

#include "core/model/names.h"
#include "core/model/numbers.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const tr_tensor *ngram_use(tr_weight_reader *r, const char *name)
{
    uint32_t index = name != NULL ? tr_checkpoint_find(r->checkpoint, name) : TR_NAME_NONE;

    if (index == TR_NAME_NONE)
        return NULL;
    r->used[index] = 1;
    return tr_checkpoint_at(r->checkpoint, index);
}

static tr_status ngram_scale(const tr_weight_reader *r, const tr_tensor *t, tr_weight *out,
                             tr_error *err)
{
    uint64_t elements = 1;

    for (uint32_t i = 0; i < t->dims_count; i++)
        elements *= t->dims[i];
    if (elements != 1 || (t->dtype != TR_DTYPE_F32 && t->dtype != TR_DTYPE_BF16))
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.120s: %s of %llu bytes, expected one F32 or BF16", t->file,
                       t->name, t->type, (unsigned long long)t->size);
    out->scales_format = t->dtype == TR_DTYPE_F32 ? TR_FORMAT_F32 : TR_FORMAT_BF16;
    out->scale = 1;
    if (!r->values)
        return TR_OK;
    out->scale =
        t->dtype == TR_DTYPE_F32 ? tr_load_f32(t->data) : tr_bf16_to_f32(tr_load_u16(t->data));
    if (!(out->scale > 0) || !isfinite(out->scale))
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.120s: scale %g, expected a finite number above 0", t->file,
                       t->name, (double)out->scale);
    if (out->scale > 1) /* rows above 448, which no table has */
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.120s: scale %g, expected at most 1: it looks like the "
                       "reciprocal of the scale",
                       t->file, t->name, (double)out->scale);
    return TR_OK;
}

tr_status tr_weight_read_ngram_part(tr_weight_reader *r, const char *name, const char *scale_name,
                                    uint32_t rows, uint32_t cols, tr_weight *out, tr_error *err)
{
    uint32_t index = tr_checkpoint_find(r->checkpoint, name);
    const tr_tensor *t = index != TR_NAME_NONE ? tr_checkpoint_at(r->checkpoint, index) : NULL;

    if (t == NULL || t->dtype != TR_DTYPE_F8_E4M3)
        return tr_weight_read(r, name, rows, cols, out, err);
    const tr_tensor *scale = ngram_use(r, scale_name);
    if (scale == NULL)
        return tr_weight_read(r, name, rows, cols, out, err);
    (void)ngram_use(r, name);
    if (t->dims_count != 2 || t->dims[0] != rows || t->dims[1] != cols) {
        char shape[80];
        return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: shape %s, expected [%u, %u]", t->file,
                       t->name, tr_tensor_shape_text(shape, sizeof(shape), t->dims, t->dims_count),
                       rows, cols);
    }
    *out = (tr_weight){
        .format = TR_FORMAT_FP8, .rows = rows, .cols = cols, .data = t->data, .row_size = cols};
    return ngram_scale(r, scale, out, err);
}

tr_status tr_weight_check_integers(tr_weight_reader *r, const char *name, const uint64_t *expected,
                                   uint32_t count, tr_error *err)
{
    const tr_tensor *t = ngram_use(r, name);

    if (t == NULL)
        return TR_OK;
    if (t->dtype != TR_DTYPE_I64 || t->size != (uint64_t)count * sizeof(uint64_t))
        return tr_fail(err, TR_E_INVALID, "%s: tensor %.120s: %s of %llu bytes, expected %u I64",
                       t->file, t->name, t->type, (unsigned long long)t->size, count);
    for (uint32_t i = 0; r->values && i < count; i++) {
        uint64_t found;
        memcpy(&found, t->data + i * sizeof(found), sizeof(found));
        if (found != expected[i])
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %.100s: found %" PRIu64 " at %u, expected %" PRIu64
                           " by the settings",
                           t->file, t->name, found, i, expected[i]);
    }
    return TR_OK;
}
