#include "core/model/weights_scaled.h"

#include "core/log.h"
#include "core/model/map.h"
#include "core/model/names.h"
#include "core/model/numbers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NVFP4_GROUP 16u
#define MXFP4_GROUP 32u
#define FP8_BLOCK   128u

/* -- names -- */

#define WEIGHT ".weight"

static bool scaled_ends_in_weight(const char *name)
{
    size_t length = strlen(name);

    return length >= strlen(WEIGHT) && strcmp(name + length - strlen(WEIGHT), WEIGHT) == 0;
}

/* The name of a companion: "X.weight" and "_scale" give "X.weight_scale"; for stacked experts "X"
 * gives "X_scale", or "X_weight_scale" when spelling is 1. false when there is none (another name,
 * or longer than size). */
static bool scaled_companion(char *out, size_t size, const tr_weight_place *p, const char *suffix,
                             uint32_t spelling)
{
    if (scaled_ends_in_weight(p->name) ? spelling > 0 : p->experts == 0 || spelling > 1)
        return false;
    return (size_t)snprintf(out, size, "%s%s%s", p->name, spelling == 1 ? "_weight" : "", suffix) <
           size;
}

/* The companion, marked as used, or NULL. */
static const tr_tensor *scaled_use(tr_weight_reader *r, const tr_weight_place *p,
                                   const char *suffix)
{
    char name[TR_TENSOR_NAME_SIZE];

    for (uint32_t spelling = 0; spelling < 2; spelling++) {
        if (!scaled_companion(name, sizeof(name), p, suffix, spelling))
            continue;
        uint32_t index = tr_checkpoint_find(r->checkpoint, name);
        if (index == TR_NAME_NONE)
            continue;
        r->used[index] = 1;
        return tr_checkpoint_at(r->checkpoint, index);
    }
    return NULL;
}

bool tr_weight_has_codes(const tr_weight_reader *r, const tr_weight_place *p)
{
    static const char *const suffixes[] = {"_packed", "_blocks"};
    char name[TR_TENSOR_NAME_SIZE];

    for (int i = 0; i < 2; i++)
        for (uint32_t spelling = 0; spelling < 2; spelling++)
            if (scaled_companion(name, sizeof(name), p, suffixes[i], spelling) &&
                tr_checkpoint_find(r->checkpoint, name) != TR_NAME_NONE)
                return true;
    return false;
}

/* The activation scale of a matrix: "X.input_scale", not "X.weight_input_scale". */
static const tr_tensor *scaled_use_input(tr_weight_reader *r, const tr_weight_place *p,
                                         const char *suffix)
{
    char name[TR_TENSOR_NAME_SIZE];

    if (p->experts > 0)
        return scaled_use(r, p, suffix);
    if (!scaled_ends_in_weight(p->name))
        return NULL;
    int stem = (int)(strlen(p->name) - strlen(WEIGHT));
    if ((size_t)snprintf(name, sizeof(name), "%.*s.%s", stem, p->name, suffix + 1) >= sizeof(name))
        return NULL;
    uint32_t index = tr_checkpoint_find(r->checkpoint, name);
    if (index == TR_NAME_NONE)
        return NULL;
    r->used[index] = 1;
    return tr_checkpoint_at(r->checkpoint, index);
}

/* -- shapes -- */

/* The dimensions of one expert: those of the tensor without the leading one. Not stacked: all.
 * false when the leading dimension is not the number of experts. */
static bool scaled_dims(const tr_tensor *t, const tr_weight_place *p, const uint64_t **dims,
                        uint32_t *count)
{
    uint32_t skip = p->experts > 0 ? 1 : 0;

    *dims = t->dims + skip;
    *count = t->dims_count - skip;
    return t->dims_count >= skip && (skip == 0 || t->dims[0] == p->experts);
}

static bool scaled_is_one(const uint64_t *dims, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (dims[i] != 1)
            return false;
    return true;
}

/* Whether dims without ones are [rows, cols] without ones; a flat [rows * cols] is not. */
static bool scaled_is_matrix(const uint64_t *dims, uint32_t count, uint64_t rows, uint64_t cols)
{
    uint64_t want[2] = {rows, cols}, left[TR_TENSOR_DIMS_MAX];
    uint32_t wanted = 0, kept = 0;

    for (uint32_t i = 0; i < count; i++)
        if (dims[i] != 1)
            left[kept++] = dims[i];
    for (uint32_t i = 0; i < 2; i++)
        if (want[i] != 1 && (wanted >= kept || left[wanted++] != want[i]))
            return false;
    return wanted == kept;
}

static tr_status scaled_bad_shape(const tr_tensor *t, const char *expected, tr_error *err)
{
    char found[80];

    return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: shape %s, expected %s", t->file, t->name,
                   tr_tensor_shape_text(found, sizeof(found), t->dims, t->dims_count), expected);
}

static tr_status scaled_shape(const tr_tensor *t, const tr_weight_place *p, uint32_t rows,
                              uint32_t cols, tr_error *err)
{
    char expected[80];
    const uint64_t *dims;
    uint32_t count;

    if (scaled_dims(t, p, &dims, &count) && scaled_is_matrix(dims, count, rows, cols))
        return TR_OK;
    uint64_t want[3] = {p->experts, rows, cols};
    uint32_t first = p->experts > 0 ? 0 : 1;
    return scaled_bad_shape(
        t, tr_tensor_shape_text(expected, sizeof(expected), want + first, 3 - first), err);
}

/* what: the codes that lack this companion, of which [rows, cols] numbers were expected. */
static tr_status scaled_absent(const tr_weight_reader *r, const tr_weight_place *p,
                               const char *suffix, const char *what, uint32_t rows, uint32_t cols,
                               tr_error *err)
{
    char name[TR_TENSOR_NAME_SIZE];

    if (!scaled_companion(name, sizeof(name), p, suffix, 0))
        snprintf(name, sizeof(name), "%.400s", p->name);
    return tr_fail(err, TR_E_INVALID, "%s: tensor %.120s: absent, expected [%u, %u] (%s)",
                   tr_checkpoint_name(r->checkpoint), name, rows, cols, what);
}

static tr_status scaled_type(const tr_tensor *t, const char *expected, tr_error *err)
{
    return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: type %s, expected %s", t->file, t->name,
                   t->type, expected);
}

/* -- scale values -- */

static bool scaled_format_of(tr_dtype dtype, tr_format *format)
{
    *format = dtype == TR_DTYPE_F32    ? TR_FORMAT_F32
              : dtype == TR_DTYPE_BF16 ? TR_FORMAT_BF16
                                       : TR_FORMAT_F16;
    return dtype == TR_DTYPE_F32 || dtype == TR_DTYPE_BF16 || dtype == TR_DTYPE_F16;
}

static float scaled_value(const tr_tensor *t, size_t index)
{
    if (t->dtype == TR_DTYPE_F32)
        return tr_load_f32(t->data + 4 * index);
    uint16_t bits = tr_load_u16(t->data + 2 * index);
    return t->dtype == TR_DTYPE_BF16 ? tr_bf16_to_f32(bits) : tr_f16_to_f32(bits);
}

/* A scale that multiplies weights is the largest of them divided by 448 or 2688, and no model has
 * weights above that. One of which the reciprocal was stored is: that way the two conventions are
 * told apart when a file has mixed them up. */
static tr_status scaled_check_value(const tr_tensor *t, size_t index, float stored, float scale,
                                    bool may_be_zero, tr_error *err)
{
    static tr_log_limit limit;
    char at[32] = "";

    if (index > 0)
        snprintf(at, sizeof(at), " at %zu", index);
    if (!isfinite(stored) || !isfinite(scale) || scale < 0 || (!may_be_zero && !(scale > 0)))
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.120s: scale %g%s, expected a finite number %s 0", t->file,
                       t->name, (double)stored, at, may_be_zero ? "of at least" : "above");
    if (scale > 1)
        return tr_fail(
            err, TR_E_INVALID,
            "%s: tensor %.120s: scale %g%s multiplies weights by %g, expected at most 1: "
            "it looks like the reciprocal of the scale",
            t->file, t->name, (double)stored, at, (double)scale);
    if (scale > 0 && scale < 1e-9f)
        tr_log_limited(&limit, TR_LOG_WARN, NULL, "matrix_scale_unusual",
                       "file=%s tensor=%s stored=%g multiplies=%g", t->file, t->name,
                       (double)stored, (double)scale);
    return TR_OK;
}

/* Which of the numbers of a tensor of matrix scales is this place's: one for all, one for each
 * expert, or one for each part of each expert. */
static tr_status scaled_matrix_index(const tr_tensor *t, const tr_weight_place *p, size_t *index,
                                     tr_error *err)
{
    const uint64_t *dims;
    uint32_t count;

    *index = 0;
    if (t->dtype != TR_DTYPE_F32 && t->dtype != TR_DTYPE_BF16 && t->dtype != TR_DTYPE_F16)
        return scaled_type(t, "F32, BF16 or F16", err);
    if (scaled_is_one(t->dims, t->dims_count))
        return TR_OK;
    if (p->experts > 0 && scaled_dims(t, p, &dims, &count)) {
        *index = p->index;
        if (scaled_is_one(dims, count))
            return TR_OK;
        *index = (size_t)p->index * p->parts + p->part;
        if (p->parts > 1 && scaled_is_matrix(dims, count, p->parts, 1))
            return TR_OK;
    }
    return scaled_bad_shape(t, p->experts > 0 ? "one number for each expert" : "one number", err);
}

/* How a scale is stored: as the factor, or as its reciprocal (compressed-tensors' NVFP4). */
typedef enum { SCALE_FACTOR, SCALE_PAIRED_FACTOR, SCALE_RECIPROCAL } scaled_kind;

/* The multiplying form. Of the two NVFP4 layouts one stores the rounded reciprocal of what the
 * other stores, and the reciprocal of that may be one bit off. 1/(1/(1/x)) is 1/x for every f32 x,
 * so taking a factor twice through its reciprocal gives the same bits whichever layout was first.
 */
static float scaled_factor(float stored, scaled_kind kind)
{
    float reciprocal = 1.0f / stored;

    return kind == SCALE_FACTOR       ? stored
           : kind == SCALE_RECIPROCAL ? reciprocal
                                      : 1.0f / reciprocal;
}

static tr_status scaled_matrix_scale(const tr_weight_reader *r, const tr_weight_place *p,
                                     const tr_tensor *t, scaled_kind kind, float *scale,
                                     tr_error *err)
{
    size_t index;

    tr_status status = scaled_matrix_index(t, p, &index, err);
    *scale = 1;
    if (status != TR_OK || !r->values)
        return status;
    float stored = scaled_value(t, index);
    *scale = scaled_factor(stored, kind);
    return scaled_check_value(t, index, stored, *scale, false, err);
}

/* An activation scale is the largest activation divided by 6 * 448, and activations stay below the
 * largest number of F16. Those that a norm has just made, as each layer has some, stay so far below
 * that the reciprocal of their scale is beyond that bound: so a file shows that it has mixed up the
 * two conventions. */
#define SCALED_ACTIVATION_MAX 65504.0f
#define SCALED_NVFP4_MAX      (6 * 448.0f)

static tr_status scaled_check_input(const tr_tensor *t, float stored, float scale, tr_error *err)
{
    if (!(scale > 0) || !isfinite(scale) || !isfinite(stored))
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.120s: activation scale %g, expected a finite number above 0",
                       t->file, t->name, (double)stored);
    if (scale * SCALED_NVFP4_MAX > SCALED_ACTIVATION_MAX)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.120s: activation scale %g stands for activations of %g, "
                       "expected at most %g: it looks like the reciprocal of the scale",
                       t->file, t->name, (double)stored, (double)(scale * SCALED_NVFP4_MAX),
                       (double)SCALED_ACTIVATION_MAX);
    return TR_OK;
}

/* The scale for 4-bit activations, when the checkpoint has one. */
static tr_status scaled_input_scale(tr_weight_reader *r, const tr_weight_place *p, bool divides,
                                    float *scale, tr_error *err)
{
    const tr_tensor *t = scaled_use_input(r, p, divides ? "_input_global_scale" : "_input_scale");
    size_t index;

    *scale = 0;
    if (t == NULL)
        return TR_OK;
    tr_status status = scaled_matrix_index(t, p, &index, err);
    if (status != TR_OK || !r->values)
        return status;
    float stored = scaled_value(t, index);
    *scale = scaled_factor(stored, divides ? SCALE_RECIPROCAL : SCALE_PAIRED_FACTOR);
    return scaled_check_input(t, stored, *scale, err);
}

/* -- formats -- */

/* Where the codes begin: bytes for each row of the place. */
static const uint8_t *scaled_start(const tr_tensor *t, const tr_weight_place *p, size_t row_size)
{
    return t->data + (size_t)p->index * p->rows * row_size;
}

static tr_status scaled_nvfp4(tr_weight_reader *r, const tr_weight_place *p, const tr_tensor *codes,
                              const tr_tensor *scales, bool divides, tr_weight *out, tr_error *err)
{
    const char *suffix = divides ? "_global_scale" : "_scale_2";
    const tr_tensor *matrix = scaled_use(r, p, suffix);
    float scale = 1, input_scale = 0;

    if (matrix == NULL)
        return scaled_absent(r, p, suffix, "the scale of NVFP4 codes", 1, 1, err);
    if (scales == NULL)
        return scaled_absent(r, p, "_scale", "block scales of NVFP4 codes", p->rows,
                             p->cols / NVFP4_GROUP, err);
    if (p->cols % NVFP4_GROUP != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: NVFP4 with rows of %u, expected a multiple of %u",
                       codes->file, codes->name, p->cols, NVFP4_GROUP);
    if (codes->dtype != TR_DTYPE_U8)
        return scaled_type(codes, "U8 (NVFP4 codes)", err);
    if (scales->dtype != TR_DTYPE_F8_E4M3)
        return scaled_type(scales, "F8_E4M3", err);
    tr_status status = scaled_shape(codes, p, p->rows, p->cols / 2, err);
    if (status == TR_OK)
        status = scaled_shape(scales, p, p->rows, p->cols / NVFP4_GROUP, err);
    if (status == TR_OK)
        status = scaled_matrix_scale(r, p, matrix, divides ? SCALE_RECIPROCAL : SCALE_PAIRED_FACTOR,
                                     &scale, err);
    if (status == TR_OK)
        status = scaled_input_scale(r, p, divides, &input_scale, err);
    if (status != TR_OK)
        return status;
    *out = (tr_weight){.format = TR_FORMAT_NVFP4,
                       .rows = p->rows,
                       .cols = p->cols,
                       .data = scaled_start(codes, p, p->cols / 2),
                       .row_size = p->cols / 2,
                       .scales = scaled_start(scales, p, p->cols / NVFP4_GROUP),
                       .scales_row_size = p->cols / NVFP4_GROUP,
                       .scale = scale,
                       .input_scale = input_scale};
    return TR_OK;
}

/* codes [rows, cols / 2] or, with blocks, [rows, cols / 32, 16]: the same bytes. */
static tr_status scaled_mxfp4(const tr_weight_place *p, const tr_tensor *codes,
                              const tr_tensor *scales, bool blocks, tr_weight *out, tr_error *err)
{
    tr_status status;

    if (p->cols % MXFP4_GROUP != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: MXFP4 with rows of %u, expected a multiple of %u",
                       codes->file, codes->name, p->cols, MXFP4_GROUP);
    if (codes->dtype != TR_DTYPE_U8)
        return scaled_type(codes, "U8 (MXFP4 codes)", err);
    if (scales->dtype != TR_DTYPE_U8 && scales->dtype != TR_DTYPE_F8_E8M0)
        return scaled_type(scales, "U8 or F8_E8M0 (powers of two)", err);
    if (blocks) { /* [experts, rows, cols / 32, 16]: rows and groups are one dimension here */
        tr_tensor joined = *codes;
        if (codes->dims_count >= 3) {
            uint32_t last = codes->dims_count - 1;
            joined.dims[last - 1] = codes->dims[last - 1] * codes->dims[last];
            joined.dims_count--;
        }
        status = codes->dims_count >= 3 && codes->dims[codes->dims_count - 1] == MXFP4_GROUP / 2
                     ? scaled_shape(&joined, p, p->rows, p->cols / 2, err)
                     : scaled_bad_shape(codes, "blocks of 16 bytes as last dimension", err);
    } else {
        status = scaled_shape(codes, p, p->rows, p->cols / 2, err);
    }
    if (status == TR_OK)
        status = scaled_shape(scales, p, p->rows, p->cols / MXFP4_GROUP, err);
    if (status != TR_OK)
        return status;
    *out = (tr_weight){.format = TR_FORMAT_MXFP4,
                       .rows = p->rows,
                       .cols = p->cols,
                       .data = scaled_start(codes, p, p->cols / 2),
                       .row_size = p->cols / 2,
                       .scales = scaled_start(scales, p, p->cols / MXFP4_GROUP),
                       .scales_row_size = p->cols / MXFP4_GROUP,
                       .scale = 1};
    return TR_OK;
}

static tr_status scaled_check_grid(const tr_tensor *t, size_t first, size_t count, tr_error *err)
{
    const tr_map_span all = {t->data, (size_t)t->size};
    tr_status status = tr_map_need(&all, 1, err);

    for (size_t i = first; i < first + count && status == TR_OK; i++) {
        float scale = scaled_value(t, i);
        status = scaled_check_value(t, i, scale, scale, true, err);
    }
    return status;
}

static tr_status scaled_fp8_grid(const tr_weight_reader *r, const tr_weight_place *p,
                                 const tr_tensor *codes, const tr_tensor *scales, bool channel,
                                 tr_weight *out, tr_error *err)
{
    uint32_t across = channel ? 1 : (p->cols + FP8_BLOCK - 1) / FP8_BLOCK;
    uint32_t down = channel ? p->rows : (p->rows + FP8_BLOCK - 1) / FP8_BLOCK;
    size_t first = (size_t)p->index * across * down;
    tr_format format;

    if (!scaled_format_of(scales->dtype, &format))
        return scaled_type(scales, "F32, BF16 or F16", err);
    size_t bytes = tr_format_block_bytes(format);
    *out = (tr_weight){.format = TR_FORMAT_FP8_BLOCK,
                       .rows = p->rows,
                       .cols = p->cols,
                       .data = scaled_start(codes, p, p->cols),
                       .row_size = p->cols,
                       .scales = scales->data + first * bytes,
                       .scales_row_size = across * bytes,
                       .scale = 1,
                       .scales_format = format,
                       .grid_rows = channel ? 1 : FP8_BLOCK,
                       .grid_cols = channel ? p->cols : FP8_BLOCK};
    return r->values ? scaled_check_grid(scales, first, (size_t)across * down, err) : TR_OK;
}

static tr_status scaled_fp8(tr_weight_reader *r, const tr_weight_place *p, const tr_tensor *codes,
                            tr_weight *out, tr_error *err)
{
    const tr_tensor *inverse = scaled_use(r, p, "_scale_inv"), *scales = scaled_use(r, p, "_scale");
    const uint64_t *dims;
    uint32_t count;
    float scale;

    if (inverse != NULL && scales != NULL)
        return tr_fail(err, TR_E_INVALID, "%s: tensor %.100s: stands beside %.100s, expected one",
                       inverse->file, inverse->name, scales->name);
    scales = inverse != NULL ? inverse : scales; /* both multiply, whatever the name says */
    if (scales == NULL)
        return scaled_absent(r, p, "_scale",
                             "the scale of FP8 codes, or weight_scale_inv, or one for each row", 1,
                             1, err);
    if (scales->dtype == TR_DTYPE_U8 || scales->dtype == TR_DTYPE_F8_E8M0)
        return scaled_type(scales, "F32, BF16 or F16 (MXFP8 is not supported)", err);
    tr_status status = scaled_shape(codes, p, p->rows, p->cols, err);
    if (status != TR_OK)
        return status;
    (void)scaled_use_input(r, p, "_input_scale"); /* of 8-bit activations, which we do not use */

    bool stacked = scaled_dims(scales, p, &dims, &count);
    if (scaled_is_one(scales->dims, scales->dims_count) ||
        (stacked && scaled_is_one(dims, count))) {
        status = scaled_matrix_scale(r, p, scales, SCALE_FACTOR, &scale, err);
        *out = (tr_weight){.format = TR_FORMAT_FP8,
                           .rows = p->rows,
                           .cols = p->cols,
                           .data = scaled_start(codes, p, p->cols),
                           .row_size = p->cols,
                           .scale = scale};
        return status;
    }
    uint64_t down = (p->rows + FP8_BLOCK - 1) / FP8_BLOCK;
    uint64_t across = (p->cols + FP8_BLOCK - 1) / FP8_BLOCK;
    bool channel = stacked && (count == 1 || (count == 2 && dims[1] == 1)) && dims[0] == p->rows;
    bool block =
        stacked &&
        ((count == 2 && dims[0] == down && dims[1] == across) ||
         (count == 4 && dims[0] == down && dims[1] == 1 && dims[2] == across && dims[3] == 1));
    if (!channel && !block)
        return scaled_bad_shape(
            scales, "one scale, one for each row, or one for each 128 x 128 of the matrix", err);
    return scaled_fp8_grid(r, p, codes, scales, !block, out, err);
}

/* codes stand under another name: compressed-tensors' X_packed, or X_blocks. */
static tr_status scaled_packed(tr_weight_reader *r, const tr_weight_place *p,
                               const tr_tensor *codes, tr_weight *out, tr_error *err)
{
    const tr_tensor *scales = scaled_use(r, p, "_scale");

    if (codes->dtype != TR_DTYPE_U8)
        return scaled_type(codes, "U8 (NVFP4 or MXFP4 codes; packed integers are not supported)",
                           err);
    if (scales != NULL && (scales->dtype == TR_DTYPE_U8 || scales->dtype == TR_DTYPE_F8_E8M0))
        return scaled_mxfp4(p, codes, scales, false, out, err);
    return scaled_nvfp4(r, p, codes, scales, true, out, err);
}

/* Codes under the plain name: FP8, ModelOpt's NVFP4 or MXFP4. */
static tr_status scaled_plain(tr_weight_reader *r, const tr_weight_place *p, const tr_tensor *codes,
                              tr_weight *out, tr_error *err)
{
    if (codes->dtype == TR_DTYPE_F8_E4M3)
        return scaled_fp8(r, p, codes, out, err);
    if (codes->dtype != TR_DTYPE_U8)
        return scaled_type(
            codes, "F32, BF16, F16, F8_E4M3 or U8 with scales or, from GGUF, a block type", err);
    const tr_tensor *scales = scaled_use(r, p, "_scale");
    if (scales != NULL && (scales->dtype == TR_DTYPE_U8 || scales->dtype == TR_DTYPE_F8_E8M0))
        return scaled_mxfp4(p, codes, scales, false, out, err);
    return scaled_nvfp4(r, p, codes, scales, false, out, err);
}

tr_status tr_weight_read_scaled(tr_weight_reader *r, const tr_weight_place *p,
                                const tr_tensor *plain, tr_weight *out, tr_error *err)
{
    const tr_tensor *packed = scaled_use(r, p, "_packed"), *blocks = scaled_use(r, p, "_blocks");
    const tr_tensor *other = packed != NULL ? packed : blocks;
    uint32_t rows = p->rows / p->parts;
    tr_status status;

    if ((plain != NULL) + (packed != NULL) + (blocks != NULL) > 1)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %.100s: stands there in two layouts, expected one of them",
                       other->file, other->name);
    if (blocks != NULL) {
        const tr_tensor *scales = scaled_use(r, p, "_scales");
        if (scales == NULL)
            return scaled_absent(r, p, "_scales", "block scales of MXFP4 codes", p->rows,
                                 p->cols / MXFP4_GROUP, err);
        status = scaled_mxfp4(p, blocks, scales, true, out, err);
        if (status != TR_OK)
            return status;
        /* this layout's rows of gate and up alternate */
        out->data += p->part * out->row_size;
        out->scales += p->part * out->scales_row_size;
        out->row_size *= p->parts;
        out->scales_row_size *= p->parts;
        out->rows = rows;
        return TR_OK;
    }
    status = packed != NULL ? scaled_packed(r, p, packed, out, err)
                            : scaled_plain(r, p, plain, out, err);
    if (status == TR_OK && p->parts > 1)
        *out = tr_weight_slice(out, p->part * rows, rows, 0, p->cols);
    return status;
}

tr_status tr_weight_read_gguf_scale(tr_weight_reader *r, const tr_weight_place *p, float *scale,
                                    tr_error *err)
{
    static const char *const suffixes[] = {"scale", "input_scale"};
    const tr_tensor *found[2] = {NULL, NULL};
    size_t stem = strlen(p->name);

    stem = stem >= 7 && strcmp(p->name + stem - 7, ".weight") == 0 ? stem - 7 : stem;
    for (int i = 0; i < 2; i++) {
        char name[TR_TENSOR_NAME_SIZE];
        int size = snprintf(name, sizeof(name), "%.*s.%s", (int)stem, p->name, suffixes[i]);
        uint32_t index =
            (size_t)size < sizeof(name) ? tr_checkpoint_find(r->checkpoint, name) : TR_NAME_NONE;
        if (index == TR_NAME_NONE)
            continue;
        r->used[index] = 1;
        found[i] = tr_checkpoint_at(r->checkpoint, index);
    }
    *scale = 1;
    if (found[0] == NULL)
        return TR_OK;
    tr_tensor t = *found[0];
    if (t.has_format && t.format == TR_FORMAT_F32)
        t.dtype = TR_DTYPE_F32;
    return scaled_matrix_scale(r, p, &t, SCALE_PAIRED_FACTOR, scale, err);
}
