/* scales.h - opens the scales of packed rows (packed.h): what decode.h needs as floats.
 *
 * The sixteen or eight parts of a super get a factor each, and in linear kinds a constant that is
 * added: code * factor + constant is exactly what the format's formula gives, because
 *
 *   (code - zero) * d  =  code * d - zero * d      no rounding in either: few bits
 *   code * d - m       =  code * d + -m            the product is exact: at most 11 + 6 + 5 bits
 *
 * Rows are opened many supers at a time and outside the products, so this is compiled once. */
#ifndef TR_KERNELS_CPU_SCALES_H
#define TR_KERNELS_CPU_SCALES_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/v16.h"

/* Of one super. Kinds with parts of 16 elements: v[0..15] factors, v[16..31] constants. Parts of
 * 32: v[0..7] factors, v[8..15] constants. IQ2_XS, with parts of 16: v[0..7] those of the first
 * halves of each 32, v[8..15] of the second halves. The rest is undefined. */
typedef struct {
    _Alignas(64) float v[32];
} w_scales;

typedef struct w_rows w_rows;
typedef void w_open_fn(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                       uint32_t count);

/* Rows of a packed matrix. */
struct w_rows {
    const uint8_t *codes, *scales;
    tr_pack_layout layout;
    w_kind kind;
    w_open_fn *open; /* supers super..super + count - 1 of row n; NULL: the kind has no scales */
    uint32_t cols, lead;
};

V16 const uint8_t *w_scales_of(const w_rows *rows, uint32_t n)
{
    return rows->scales + n * rows->layout.scales_stride;
}

static const float w_lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Lanes below cut: a, the others b. */
V16 vf w_pick(uint32_t cut, vf a, vf b)
{
    return vf_select_gt(vf_set1((float)cut), vf_load(w_lane), a, b);
}

V16 vf w_half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    return vf_set1(vf_half(h));
}

V16 uint32_t w_word(const uint8_t *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

/* -- formats of 32 elements, f16 -- */

/* d */
static inline void w_open_d(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                            uint32_t count)
{
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * 16;

    for (; count > 0; count--, out++, p += 16)
        vf_store(out->v, vf_from_f16(p));
}

/* d and -zero * d */
V16 void w_open_d_zero(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                       uint32_t count, float zero)
{
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * 16;

    for (; count > 0; count--, out++, p += 16) {
        vf d = vf_from_f16(p);
        vf_store(out->v, d);
        vf_store(out->v + 8, vf_mul(d, vf_set1(-zero)));
    }
}

static inline void w_open_q4_0(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                               uint32_t count)
{
    w_open_d_zero(out, rows, n, super, count, 8);
}

static inline void w_open_q5_0(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                               uint32_t count)
{
    w_open_d_zero(out, rows, n, super, count, 16);
}

/* Q4_1, Q5_1: d and m; as many of each as the super has blocks. */
static inline void w_open_d_m(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                              uint32_t count)
{
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * 32;

    for (; count > 0; count--, super++, out++, p += 32) {
        uint32_t left = rows->cols - super * TR_SUPER;
        uint32_t blocks = left < TR_SUPER ? left / 32 : 8;
        vf_store(out->v, vf_from_f16(p));
        vf_store(out->v + 8, vf_from_f16(p + 2 * blocks));
    }
}

/* -- FP4 and FP8 -- */

static inline void w_open_nvfp4(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                                uint32_t count)
{
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * 16;

    for (; count > 0; count--, out++, p += 16)
        vf_store(out->v, vf_mul(vf_from_e4m3_256th(p), vf_set1(256)));
}

/* The lower two bytes, each of them twice. */
V16 uint32_t w_twice(uint32_t word)
{
    word &= 0xffff;
    return ((word | word << 8) & 0x00ff00ff) * 0x101;
}

/* 2^(b - 127); pack refuses 255. */
static inline void w_open_mxfp4(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                                uint32_t count)
{
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * 8;

    for (; count > 0; count--, out++, p += 8) {
        uint32_t a = w_word(p), b = w_word(p + 4);
        vi bits = vi_shl(vi_bytes(w_twice(a), w_twice(a >> 16), w_twice(b), w_twice(b >> 16)), 23);
        vf_store(out->v, vf_max(vi_float(bits), vf_set1(0x1p-127f))); /* b = 0 is below normal */
    }
}

/* Blocks of 128: a super lies in up to three. */
static inline void w_open_fp8_block(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                                    uint32_t count)
{
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * 2 * sizeof(float);
    uint32_t cut = 8 - rows->lead / 16;

    for (; count > 0; count--, out++, p += 2 * sizeof(float)) {
        float s[3];
        memcpy(s, p, sizeof(s));
        vf rest = w_pick(cut + 8, vf_set1(s[1]), vf_set1(s[2]));
        vf_store(out->v, w_pick(cut, vf_set1(s[0]), rest));
    }
}

/* -- blocks of 256: a super may lie in two -- */

/* d or m, `at` bytes into the record, of parts of 16 in all lanes, or of eight parts of 32 in lanes
 * first..first + 7. */
V16 vf w_head(const w_rows *rows, const uint8_t *p, uint32_t record, uint32_t at, uint32_t part,
              uint32_t first)
{
    vf head = w_half(p + at);

    if (rows->lead == 0)
        return head;
    return w_pick((TR_SUPER - rows->lead) / part + first, head, w_half(p + record + at));
}

static inline void w_open_q2_k(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                               uint32_t count)
{
    enum { RECORD = 20 };
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * RECORD;

    for (; count > 0; count--, out++, p += RECORD) {
        vi both = vi_load_u8(p + 4);
        vf scale = vf_from_int(vi_and(both, vi_set1(15))), min = vf_from_int(vi_shr(both, 4));
        vf_store(out->v, vf_mul(scale, w_head(rows, p, RECORD, 0, 16, 0)));
        vf m = vf_mul(min, w_head(rows, p, RECORD, 2, 16, 0));
        vf_store(out->v + 16, vf_sub(vf_zero(), m));
    }
}

static inline void w_open_q3_k(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                               uint32_t count)
{
    enum { RECORD = 14 };
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * RECORD;

    for (; count > 0; count--, out++, p += RECORD) {
        uint32_t a = w_word(p + 2), b = w_word(p + 6), high = w_word(p + 10);
        vi bits = vi_bytes((a & 0x0f0f0f0f) | (high & 0x03030303) << 4,
                           (b & 0x0f0f0f0f) | (high >> 2 & 0x03030303) << 4,
                           (a >> 4 & 0x0f0f0f0f) | (high >> 4 & 0x03030303) << 4,
                           (b >> 4 & 0x0f0f0f0f) | (high >> 6 & 0x03030303) << 4);
        vf d = vf_mul(vf_from_int(vi_sub(bits, vi_set1(32))), w_head(rows, p, RECORD, 0, 16, 0));
        vf_store(out->v, d);
        vf_store(out->v + 16, vf_mul(d, vf_set1(-4)));
    }
}

/* Q4_K, Q5_K: scales in lanes 0..7, minima in lanes 8..15. */
static inline void w_open_q4_k(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                               uint32_t count)
{
    enum { RECORD = 16 };
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * RECORD;

    for (; count > 0; count--, out++, p += RECORD) {
        uint32_t a = w_word(p + 4), b = w_word(p + 8), c = w_word(p + 12);
        vi bits = vi_bytes(a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4,
                           b & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4);
        vf d = w_head(rows, p, RECORD, 0, 32, 0), m = w_head(rows, p, RECORD, 2, 32, 8);
        vf_store(out->v, vf_mul(vf_from_int(bits), w_pick(8, d, vf_sub(vf_zero(), m))));
    }
}

static inline void w_open_q6_k(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                               uint32_t count)
{
    enum { RECORD = 18 };
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * RECORD;

    for (; count > 0; count--, out++, p += RECORD) {
        vf d = vf_mul(vf_from_i8(p + 2), w_head(rows, p, RECORD, 0, 16, 0));
        vf_store(out->v, d);
        vf_store(out->v + 16, vf_mul(d, vf_set1(-32)));
    }
}

/* IQ2_XXS, IQ3_XXS: d; the rest of the scale lies among the codes. */
static inline void w_open_iq_d(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                               uint32_t count)
{
    enum { RECORD = 2 };
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * RECORD;

    for (; count > 0; count--, out++, p += RECORD)
        vf_store(out->v, w_head(rows, p, RECORD, 0, 32, 0));
}

static inline void w_open_iq2_xs(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                                 uint32_t count)
{
    enum { RECORD = 10 };
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * RECORD;

    for (; count > 0; count--, out++, p += RECORD) {
        uint32_t a = w_word(p + 2), b = w_word(p + 6);
        vi bits =
            vi_bytes(a & 0x0f0f0f0f, b & 0x0f0f0f0f, a >> 4 & 0x0f0f0f0f, b >> 4 & 0x0f0f0f0f);
        vf d = w_pick(8, w_head(rows, p, RECORD, 0, 32, 0), w_head(rows, p, RECORD, 0, 32, 8));
        vf scale = vf_mul(d, vf_add(vf_from_int(bits), vf_set1(0.5f)));
        vf_store(out->v, vf_mul(scale, vf_set1(0.25f)));
    }
}

/* Four fields of two bits, one a byte. */
V16 uint32_t w_spread(uint32_t bits)
{
    return (bits | bits << 6 | bits << 12 | bits << 18) & 0x03030303;
}

static inline void w_open_iq4_xs(w_scales *out, const w_rows *rows, uint32_t n, uint32_t super,
                                 uint32_t count)
{
    enum { RECORD = 8 };
    const uint8_t *p = w_scales_of(rows, n) + (size_t)super * RECORD;

    for (; count > 0; count--, out++, p += RECORD) {
        uint32_t low = w_word(p + 4);
        vi bits = vi_bytes((low & 0x0f0f0f0f) | w_spread(p[2]) << 4,
                           (low >> 4 & 0x0f0f0f0f) | w_spread(p[3]) << 4, 0, 0);
        vf_store(out->v,
                 vf_mul(vf_from_int(vi_sub(bits, vi_set1(32))), w_head(rows, p, RECORD, 0, 32, 0)));
    }
}

static inline w_open_fn *w_open_of(tr_format format)
{
    static w_open_fn *const functions[TR_FORMATS_COUNT] = {
        [TR_FORMAT_NVFP4] = w_open_nvfp4,
        [TR_FORMAT_GGUF_NVFP4] = w_open_nvfp4,
        [TR_FORMAT_MXFP4] = w_open_mxfp4,
        [TR_FORMAT_GGUF_MXFP4] = w_open_mxfp4,
        [TR_FORMAT_FP8_BLOCK] = w_open_fp8_block,
        [TR_FORMAT_Q8_0] = w_open_d,
        [TR_FORMAT_IQ4_NL] = w_open_d,
        [TR_FORMAT_Q4_0] = w_open_q4_0,
        [TR_FORMAT_Q5_0] = w_open_q5_0,
        [TR_FORMAT_Q4_1] = w_open_d_m,
        [TR_FORMAT_Q5_1] = w_open_d_m,
        [TR_FORMAT_Q2_K] = w_open_q2_k,
        [TR_FORMAT_Q3_K] = w_open_q3_k,
        [TR_FORMAT_Q4_K] = w_open_q4_k,
        [TR_FORMAT_Q5_K] = w_open_q4_k,
        [TR_FORMAT_Q6_K] = w_open_q6_k,
        [TR_FORMAT_IQ2_XXS] = w_open_iq_d,
        [TR_FORMAT_IQ3_XXS] = w_open_iq_d,
        [TR_FORMAT_IQ2_XS] = w_open_iq2_xs,
        [TR_FORMAT_IQ4_XS] = w_open_iq4_xs,
    };
    return functions[format];
}

static inline w_rows w_rows_of(const tr_matrix *W)
{
    tr_pack_layout l = tr_cpu_pack_layout(W->format, W->rows, W->cols);
    const uint8_t *data = W->data;

    return (w_rows){.codes = data,
                    .scales = data + l.scales_offset,
                    .layout = l,
                    .kind = tr_cpu_packed_format(W->format)->kind,
                    .open = w_open_of(W->format),
                    .cols = W->cols,
                    .lead = W->lead};
}

#endif
