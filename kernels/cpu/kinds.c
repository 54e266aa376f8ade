/* kinds.c - dot products of few rows with each kind of packed weights, decoded in registers.
 *
 * The bytes of W are read once for up to FEW_T rows of x, and nothing is written. */
#include "kernels/cpu/decode.h"
#include "kernels/cpu/kinds.h"

#define FEW_OPEN 8 /* supers whose scales are open at a time */

static_assert(TR_ROW_BLOCK % V16_FEW_ROWS(1) == 0, "rows of W are padded to whole blocks");

V16 void few_group(w_kind kind, int T, vf *acc, const uint8_t *codes, const w_scales *scales,
                   uint32_t unit, uint32_t j, const float *const *x, uint32_t k)
{
    vf w = w_group(kind, codes, scales, unit, j);

    TR_UNROLL(4)
    for (int t = 0; t < T; t++)
        acc[t] = vf_fma(vf_load(x[t] + k + 16 * j), w, acc[t]);
}

/* acc[i][t] += a unit of row i times sixty-four columns from k of x[t], for R rows of W and T of x.
 * unit: which of its super's four. */
V16 void few_unit(w_kind kind, int R, int T, vf acc[][FEW_T], const uint8_t *codes,
                  size_t codes_stride, w_scales scales[][FEW_OPEN], uint32_t super, uint32_t unit,
                  const float *const *x, uint32_t k)
{
    TR_UNROLL(4)
    for (int i = 0; i < R; i++) {
        /* The same place R rows on. Rows are short, and the hardware, which follows a stream within
         * a page, begins too late: without this line 4-bit formats take 1.4 times as long (Zen 4,
         * [2048, 2048], T = 1). May point beyond the matrix. */
        for (uint32_t at = 0; at < tr_unit_bytes(kind); at += 64)
            __builtin_prefetch(codes + (i + R) * codes_stride + at, 0, 2);
    }
    if (T < 4) { /* a load of x costs nothing in the fma */
        TR_UNROLL(4)
        for (int i = 0; i < R; i++) {
            TR_UNROLL(4)
            for (uint32_t j = 0; j < 4; j++)
                few_group(kind, T, acc[i], codes + i * codes_stride, &scales[i][super], unit, j, x,
                          k);
        }
    } else {
        TR_UNROLL(4)
        for (uint32_t j = 0; j < 4; j++) {
            TR_UNROLL(4)
            for (int i = 0; i < R; i++)
                few_group(kind, T, acc[i], codes + i * codes_stride, &scales[i][super], unit, j, x,
                          k);
        }
    }
}

/* The columns from k on, fewer than a unit. Lanes beyond the last one count as zeros. */
V16 void few_tail(w_kind kind, int R, int T, vf acc[][FEW_T], const w_rows *rows, uint32_t n,
                  const float *const *x, uint32_t k)
{
    float w[TR_ROW_BLOCK][TR_UNIT];

    for (int i = 0; i < R; i++)
        w_row_to_f32(kind, w[i], rows, n + (uint32_t)i, k, rows->cols - k);
    for (uint32_t at = 0; k + at < rows->cols; at += 16) {
        uint32_t left = rows->cols - k - at;
        TR_UNROLL(4)
        for (int i = 0; i < R; i++) {
            vf wi = vf_load(w[i] + at);
            TR_UNROLL(4)
            for (int t = 0; t < T; t++)
                acc[i][t] = vf_fma(vf_load_n(x[t] + k + at, left < 16 ? left : 16), wi, acc[i][t]);
        }
    }
}

V16 void few_dots(w_kind kind, int R, int T, float sums[][TILE_N], const float *const *x,
                  const w_rows *rows, uint32_t n)
{
    const uint8_t *codes = rows->codes + n * rows->layout.codes_stride;
    uint32_t units = rows->cols / TR_UNIT, u = 0;
    w_scales scales[TR_ROW_BLOCK][FEW_OPEN];
    vf acc[TR_ROW_BLOCK][FEW_T];

    TR_UNROLL(4)
    for (int i = 0; i < R; i++) {
        TR_UNROLL(4)
        for (int t = 0; t < T; t++)
            acc[i][t] = vf_zero();
    }
    while (u < units) {
        uint32_t count = units - u < 4 * FEW_OPEN ? units - u : 4 * FEW_OPEN;
        for (int i = 0; rows->open != NULL && i < R; i++)
            rows->open(scales[i], rows, n + (uint32_t)i, u / 4, (count + 3) / 4);
        for (uint32_t in = 0; in < count; in++, u++, codes += tr_unit_bytes(kind))
            few_unit(kind, R, T, acc, codes, rows->layout.codes_stride, scales, in / 4, in % 4, x,
                     u * TR_UNIT);
    }
    if (rows->cols % TR_UNIT != 0)
        few_tail(kind, R, T, acc, rows, n, x, u * TR_UNIT);
    TR_UNROLL(4)
    for (int t = 0; t < T; t++) {
        TR_UNROLL(4)
        for (int i = 0; i < R; i++)
            sums[t][i] = vf_sum(acc[i][t]);
    }
}

/* kind: a constant, or rows->kind where copies of the code would gain nothing. */
#define FEW_KIND(name, kind)                                                                       \
    static void few_1_##name(float sums[][TILE_N], const float *const *x, const w_rows *rows,      \
                             uint32_t n)                                                           \
    {                                                                                              \
        few_dots(kind, V16_FEW_ROWS(1), 1, sums, x, rows, n);                                      \
    }                                                                                              \
    static void few_2_##name(float sums[][TILE_N], const float *const *x, const w_rows *rows,      \
                             uint32_t n)                                                           \
    {                                                                                              \
        few_dots(kind, V16_FEW_ROWS(2), 2, sums, x, rows, n);                                      \
    }                                                                                              \
    static void few_4_##name(float sums[][TILE_N], const float *const *x, const w_rows *rows,      \
                             uint32_t n)                                                           \
    {                                                                                              \
        few_dots(kind, V16_FEW_ROWS(FEW_T), FEW_T, sums, x, rows, n);                              \
    }                                                                                              \
    static void decode_##name(float *out, const w_rows *rows, uint32_t n, uint32_t k,              \
                              uint32_t count)                                                      \
    {                                                                                              \
        w_row_to_f32(kind, out, rows, n, k, count);                                                \
    }
#define FEW_OPS(name)                                                                              \
    {                                                                                              \
        few_1_##name, few_2_##name, few_4_##name, decode_##name                                    \
    }

#if V16_REGISTERS
#define X(name, bytes) FEW_KIND(name, W_##name)
TR_KIND_MAP(X)
#undef X
#define X(name, bytes) [W_##name] = FEW_OPS(name),
#else
FEW_KIND(any, rows->kind)
#define X(name, bytes) [W_##name] = FEW_OPS(any),
#endif
const w_kind_ops TR_CPU(kinds)[W_KINDS_COUNT] = {TR_KIND_MAP(X)};
#undef X
