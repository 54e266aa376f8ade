/* v16_avx2.h - v16.h in two registers: AVX2, FMA and F16C. */
#ifndef TR_KERNELS_CPU_V16_AVX2_H
#define TR_KERNELS_CPU_V16_AVX2_H

#include <immintrin.h>

typedef struct {
    __m256 lo, hi;
} vf;
typedef struct {
    __m256i lo, hi;
} vi;

V16 vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

V16 vf vf_zero(void)
{
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

V16 vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

/* All ones in the lanes below n - first. */
V16 __m256i v16_mask(uint32_t n, int first)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - first), lane);
}

V16 vf vf_load_n(const float *p, uint32_t n)
{
    if (n == 16)
        return vf_load(p);
    return (vf){_mm256_maskload_ps(p, v16_mask(n, 0)), _mm256_maskload_ps(p + 8, v16_mask(n, 8))};
}

V16 void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

V16 void vf_store_n(float *p, vf a, uint32_t n)
{
    if (n == 16) {
        vf_store(p, a);
        return;
    }
    _mm256_maskstore_ps(p, v16_mask(n, 0), a.lo);
    _mm256_maskstore_ps(p + 8, v16_mask(n, 8), a.hi);
}

#define V16_BOTH(type, name, op)                                                                   \
    V16 type name(type a, type b)                                                                  \
    {                                                                                              \
        return (type){op(a.lo, b.lo), op(a.hi, b.hi)};                                             \
    }
V16_BOTH(vf, vf_add, _mm256_add_ps)
V16_BOTH(vf, vf_sub, _mm256_sub_ps)
V16_BOTH(vf, vf_mul, _mm256_mul_ps)
V16_BOTH(vf, vf_div, _mm256_div_ps)
V16_BOTH(vf, vf_max, _mm256_max_ps) /* b when either is NaN: the instruction's own rule */
V16_BOTH(vf, vf_min, _mm256_min_ps)
V16_BOTH(vi, vi_add, _mm256_add_epi32)
V16_BOTH(vi, vi_sub, _mm256_sub_epi32)
V16_BOTH(vi, vi_and, _mm256_and_si256)
V16_BOTH(vi, vi_or, _mm256_or_si256)
#undef V16_BOTH

V16 vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

V16 vf vf_select_gt(vf a, vf b, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
                _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}

V16 float vf_sum(vf a)
{
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* out[i] = vf_sum of the sixteen floats at rows + 16 i, i < 4: the four trees side by side. */
V16 void vf_sum4(float *out, const float *rows)
{
    __m256 r[4];
    for (int i = 0; i < 4; i++) /* l + (l+8) */
        r[i] = _mm256_add_ps(_mm256_loadu_ps(rows + 16 * i), _mm256_loadu_ps(rows + 16 * i + 8));
    /* l + (l+4): one half for each row */
    __m256 a = _mm256_add_ps(_mm256_permute2f128_ps(r[0], r[1], 0x20),
                             _mm256_permute2f128_ps(r[0], r[1], 0x31));
    __m256 b = _mm256_add_ps(_mm256_permute2f128_ps(r[2], r[3], 0x20),
                             _mm256_permute2f128_ps(r[2], r[3], 0x31));
    /* l + (l+2): halves of rows 0, 2 and of rows 1, 3 */
    __m256 c = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    c = _mm256_add_ps(c, _mm256_permute_ps(c, 0xb1)); /* l + (l+1): rows 0 0 2 2, 1 1 3 3 */
    _mm_storeu_ps(out, _mm_blend_ps(_mm_permute_ps(_mm256_castps256_ps128(c), 0xa0),
                                    _mm_permute_ps(_mm256_extractf128_ps(c, 1), 0xa0), 0xa));
}

V16 float vf_max_lane(vf a)
{
    __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

V16 vi vi_set1(uint32_t x)
{
    return (vi){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}

V16 vi vi_load_u32(const void *p)
{
    return (vi){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}

V16 vi vi_load_u16(const void *p)
{
    return (vi){_mm256_cvtepu16_epi32(_mm_loadu_si128(p)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1))};
}

V16 vi vi_load_u8(const void *p)
{
    __m128i b = _mm_loadu_si128(p);
    return (vi){_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(b, b))};
}

/* Shift counts are constants at each call. */
V16 vi vi_shl(vi a, const int n)
{
    return (vi){_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}

V16 vi vi_shr(vi a, const int n)
{
    return (vi){_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}

V16 vi vi_sar1(vi a)
{
    return (vi){_mm256_srai_epi32(a.lo, 1), _mm256_srai_epi32(a.hi, 1)};
}

V16 vi vf_bits(vf a)
{
    return (vi){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}

V16 vf vi_float(vi a)
{
    return (vf){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}

V16 vf vf_from_int(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

V16 vf vf_from_f16(const void *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}

V16 vf vf_from_i8(const void *p)
{
    __m128i b = _mm_loadu_si128(p);
    return vf_from_int(
        (vi){_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(b, b))});
}

/* Sixteen E4M3 codes as f16 with the same fields: the value / 256, exact. NaN codes give numbers.
 */
V16 vf vf_from_e4m3_256th(const void *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8);
    __m256i rest = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7);
    __m256i h = _mm256_or_si256(sign, rest);
    return (vf){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

V16 float vf_half(uint16_t h)
{
    return _cvtsh_ss(h);
}

V16 vi vi_flags(uint16_t flags, uint32_t value)
{
    __m256i all = _mm256_set1_epi32(flags), v = _mm256_set1_epi32((int)value);
    __m256i lo = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), hi = _mm256_slli_epi32(lo, 8);
    return (vi){_mm256_and_si256(v, _mm256_cmpeq_epi32(_mm256_and_si256(all, lo), lo)),
                _mm256_and_si256(v, _mm256_cmpeq_epi32(_mm256_and_si256(all, hi), hi))};
}

V16 vf vf_flags(uint16_t flags, float x, float y)
{
    vf high = vi_float(vi_flags(flags, 0x80000000)); /* the sign chooses */
    __m256 vx = _mm256_set1_ps(x), vy = _mm256_set1_ps(y);
    return (vf){_mm256_blendv_ps(vy, vx, high.lo), _mm256_blendv_ps(vy, vx, high.hi)};
}

#define vf_linear vf_fma

V16 vi vi_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_setr_epi32((int)a, (int)b, 0, 0)),
                _mm256_cvtepu8_epi32(_mm_setr_epi32((int)c, (int)d, 0, 0))};
}

V16 vi vi_load_u8_2(const void *a, const void *b)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_loadl_epi64(a)), _mm256_cvtepu8_epi32(_mm_loadl_epi64(b))};
}

/* There is no permutation of sixteen floats: linear codes are converted and multiplied each time,
 * E2M1 magnitudes are a permutation of eight and the sign is moved over, and of two permutations of
 * IQ4 values the code's highest bit chooses one. */
typedef struct {
    __m256 a, b;
} vq;

V16 vq vq_linear4(float d, float m)
{
    return (vq){_mm256_set1_ps(d), _mm256_set1_ps(m)};
}

V16 vq vq_iq4(float d)
{
    static const float values[16] = {V16_IQ4};
    __m256 scale = _mm256_set1_ps(d);
    return (vq){_mm256_mul_ps(_mm256_loadu_ps(values), scale),
                _mm256_mul_ps(_mm256_loadu_ps(values + 8), scale)};
}

V16 vq vq_e2m1(float d)
{
    return (vq){_mm256_mul_ps(_mm256_setr_ps(V16_E2M1()), _mm256_set1_ps(d)), _mm256_setzero_ps()};
}

V16 vf vq_get_linear4(vq book, vi codes)
{
    vf q = vf_from_int(vi_and(codes, vi_set1(15)));
    return vf_linear(q, (vf){book.a, book.a}, (vf){book.b, book.b});
}

V16 vf vq_get_iq4(vq book, vi codes)
{
    vf high = vi_float(vi_shl(codes, 28)); /* the sign chooses */
    return (vf){_mm256_blendv_ps(_mm256_permutevar8x32_ps(book.a, codes.lo),
                                 _mm256_permutevar8x32_ps(book.b, codes.lo), high.lo),
                _mm256_blendv_ps(_mm256_permutevar8x32_ps(book.a, codes.hi),
                                 _mm256_permutevar8x32_ps(book.b, codes.hi), high.hi)};
}

V16 vf vq_get_e2m1(vq book, vi codes)
{
    vi sign = vi_and(vi_shl(codes, 28), vi_set1(0x80000000));
    vf magnitude = {_mm256_permutevar8x32_ps(book.a, codes.lo),
                    _mm256_permutevar8x32_ps(book.a, codes.hi)};
    return vi_float(vi_or(vf_bits(magnitude), sign));
}

#define V16_FEW_ROWS(T) (4 / (T))
#define V16_FEW_MAX     8
#define V16_OUTER_N     1

#define VN_LANES 8
#define VN_ROWS  3
typedef __m256 vn;
#define vn_zero  _mm256_setzero_ps
#define vn_load  _mm256_loadu_ps
#define vn_store _mm256_storeu_ps
#define vn_fma   _mm256_fmadd_ps

#endif
