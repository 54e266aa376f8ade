/* v16_avx512.h - v16.h in one register: AVX-512 F, BW, DQ and VL, with FMA and F16C. */
#ifndef TR_KERNELS_CPU_V16_AVX512_H
#define TR_KERNELS_CPU_V16_AVX512_H

#include <immintrin.h>

typedef __m512 vf;
typedef __m512i vi;

V16 vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

V16 vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

V16 vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

V16 __mmask16 v16_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}

V16 vf vf_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}

V16 void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

V16 void vf_store_n(float *p, vf a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v16_mask(n), a);
}

V16 vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

V16 vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

V16 vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

V16 vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

V16 vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

V16 vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b); /* b when either is NaN: the instruction's own rule */
}

V16 vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

V16 vf vf_select_gt(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}

V16 float vf_sum(vf a)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* out[i] = vf_sum of the sixteen floats at rows + 16 i, i < 4: the four trees side by side. */
V16 void vf_sum4(float *out, const float *rows)
{
    __m512 r0 = _mm512_loadu_ps(rows), r1 = _mm512_loadu_ps(rows + 16);
    __m512 r2 = _mm512_loadu_ps(rows + 32), r3 = _mm512_loadu_ps(rows + 48);
    /* l + (l+8): quarters 0, 1 of one row beside those of the next */
    __m512 a =
        _mm512_add_ps(_mm512_shuffle_f32x4(r0, r1, 0x44), _mm512_shuffle_f32x4(r0, r1, 0xee));
    __m512 b =
        _mm512_add_ps(_mm512_shuffle_f32x4(r2, r3, 0x44), _mm512_shuffle_f32x4(r2, r3, 0xee));
    /* l + (l+4): one quarter for each row */
    __m512 c = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    c = _mm512_add_ps(c, _mm512_permute_ps(c, 0x4e)); /* l + (l+2) */
    c = _mm512_add_ps(c, _mm512_permute_ps(c, 0xb1)); /* l + (l+1) */
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, c)));
}

V16 float vf_max_lane(vf a)
{
    __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

V16 vi vi_set1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

V16 vi vi_load_u32(const void *p)
{
    return _mm512_loadu_si512(p);
}

V16 vi vi_load_u16(const void *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
}

V16 vi vi_load_u8(const void *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}

V16 vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

V16 vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

V16 vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

V16 vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

/* Shift counts are constants at each call. */
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)

V16 vi vi_sar1(vi a)
{
    return _mm512_srai_epi32(a, 1);
}

V16 vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}

V16 vf vi_float(vi a)
{
    return _mm512_castsi512_ps(a);
}

V16 vf vf_from_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

V16 vf vf_from_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

/* Sixteen E4M3 codes as f16 with the same fields: the value / 256, exact. NaN codes give numbers.
 */
V16 vf vf_from_e4m3_256th(const void *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8);
    __m256i rest = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7);
    return _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
}

V16 float vf_half(uint16_t h)
{
    return _cvtsh_ss(h);
}

V16 vf vf_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

V16 vi vi_flags(uint16_t flags, uint32_t value)
{
    return _mm512_maskz_set1_epi32(flags, (int)value);
}

V16 vf vf_flags(uint16_t flags, float x, float y)
{
    return _mm512_mask_blend_ps(flags, vf_set1(y), vf_set1(x));
}

#define vf_linear vf_fma

V16 vi vi_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return _mm512_cvtepu8_epi32(_mm_setr_epi32((int)a, (int)b, (int)c, (int)d));
}

V16 vi vi_load_u8_2(const void *a, const void *b)
{
    return _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(_mm_loadl_epi64(a), _mm_loadl_epi64(b)));
}

/* A code book is a register; looking up is one permutation, which takes four bits of each index. */
typedef vf vq;

V16 vq vq_linear4(float d, float m)
{
    vf q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return vf_linear(q, vf_set1(d), vf_set1(m));
}

V16 vq vq_iq4(float d)
{
    static const float values[16] = {V16_IQ4};
    return vf_mul(vf_load(values), vf_set1(d));
}

V16 vq vq_e2m1(float d)
{
    static const float values[16] = {V16_E2M1(), V16_E2M1(-)};
    return vf_mul(vf_load(values), vf_set1(d));
}

V16 vf vq_get(vq book, vi codes)
{
    return _mm512_permutexvar_ps(codes, book);
}
#define vq_get_linear4 vq_get
#define vq_get_iq4     vq_get
#define vq_get_e2m1    vq_get

#define V16_FEW_ROWS(T) 4
#define V16_FEW_MAX     8
#define V16_OUTER_N     4

#define VN_LANES 16
#define VN_ROWS  4
typedef vf vn;
#define vn_zero  vf_zero
#define vn_load  vf_load
#define vn_store vf_store
#define vn_fma   vf_fma

#endif
