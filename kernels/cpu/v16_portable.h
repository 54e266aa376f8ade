/* v16_portable.h - v16.h in plain C. fmaf is the C library's, which is exact on every machine. */
#ifndef TR_KERNELS_CPU_V16_PORTABLE_H
#define TR_KERNELS_CPU_V16_PORTABLE_H

#include "kernels/cpu/half.h"

#include <math.h>

typedef struct {
    float f[16];
} vf;
typedef struct {
    uint32_t u[16];
} vi;

#define TR_LANES for (int l = 0; l < 16; l++)

V16 vf vf_set1(float x)
{
    vf r;
    TR_LANES r.f[l] = x;
    return r;
}

V16 vf vf_zero(void)
{
    return vf_set1(0.0f);
}

V16 vf vf_load(const float *p)
{
    vf r;
    memcpy(r.f, p, sizeof(r.f));
    return r;
}

V16 vf vf_load_n(const float *p, uint32_t n)
{
    vf r = vf_zero();
    memcpy(r.f, p, n * sizeof(float));
    return r;
}

V16 void vf_store(float *p, vf a)
{
    memcpy(p, a.f, sizeof(a.f));
}

V16 void vf_store_n(float *p, vf a, uint32_t n)
{
    memcpy(p, a.f, n * sizeof(float));
}

V16 vf vf_add(vf a, vf b)
{
    TR_LANES a.f[l] = a.f[l] + b.f[l];
    return a;
}

V16 vf vf_sub(vf a, vf b)
{
    TR_LANES a.f[l] = a.f[l] - b.f[l];
    return a;
}

V16 vf vf_mul(vf a, vf b)
{
    TR_LANES a.f[l] = a.f[l] * b.f[l];
    return a;
}

V16 vf vf_div(vf a, vf b)
{
    TR_LANES a.f[l] = a.f[l] / b.f[l];
    return a;
}

V16 vf vf_fma(vf a, vf b, vf c)
{
    TR_LANES c.f[l] = fmaf(a.f[l], b.f[l], c.f[l]);
    return c;
}

V16 vf vf_max(vf a, vf b)
{
    TR_LANES b.f[l] = a.f[l] > b.f[l] ? a.f[l] : b.f[l];
    return b;
}

V16 vf vf_min(vf a, vf b)
{
    TR_LANES b.f[l] = a.f[l] < b.f[l] ? a.f[l] : b.f[l];
    return b;
}

V16 vf vf_select_gt(vf a, vf b, vf x, vf y)
{
    TR_LANES y.f[l] = a.f[l] > b.f[l] ? x.f[l] : y.f[l];
    return y;
}

V16 float vf_sum(vf a)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++)
            a.f[l] = a.f[l] + a.f[l + half];
    }
    return a.f[0];
}

/* out[i] = vf_sum of the sixteen floats at rows + 16 i, i < 4. */
V16 void vf_sum4(float *out, const float *rows)
{
    for (int i = 0; i < 4; i++)
        out[i] = vf_sum(vf_load(rows + 16 * i));
}

V16 float vf_max_lane(vf a)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++)
            a.f[l] = a.f[l] > a.f[l + half] ? a.f[l] : a.f[l + half];
    }
    return a.f[0];
}

V16 vi vi_set1(uint32_t x)
{
    vi r;
    TR_LANES r.u[l] = x;
    return r;
}

V16 vi vi_load_u32(const void *p)
{
    vi r;
    memcpy(r.u, p, sizeof(r.u));
    return r;
}

V16 vi vi_load_u16(const void *p)
{
    uint16_t h[16];
    vi r;
    memcpy(h, p, sizeof(h));
    TR_LANES r.u[l] = h[l];
    return r;
}

V16 vi vi_load_u8(const void *p)
{
    uint8_t b[16];
    vi r;
    memcpy(b, p, sizeof(b));
    TR_LANES r.u[l] = b[l];
    return r;
}

V16 vi vi_add(vi a, vi b)
{
    TR_LANES a.u[l] = a.u[l] + b.u[l];
    return a;
}

V16 vi vi_sub(vi a, vi b)
{
    TR_LANES a.u[l] = a.u[l] - b.u[l];
    return a;
}

V16 vi vi_and(vi a, vi b)
{
    TR_LANES a.u[l] = a.u[l] & b.u[l];
    return a;
}

V16 vi vi_or(vi a, vi b)
{
    TR_LANES a.u[l] = a.u[l] | b.u[l];
    return a;
}

V16 vi vi_shl(vi a, int n)
{
    TR_LANES a.u[l] = a.u[l] << n;
    return a;
}

V16 vi vi_shr(vi a, int n)
{
    TR_LANES a.u[l] = a.u[l] >> n;
    return a;
}

V16 vi vi_sar1(vi a) /* halves, rounding down, as signed */
{
    TR_LANES a.u[l] = a.u[l] >> 1 | (a.u[l] & 0x80000000u);
    return a;
}

V16 vi vf_bits(vf a)
{
    vi r;
    memcpy(&r, &a, sizeof(r));
    return r;
}

V16 vf vi_float(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof(r));
    return r;
}

V16 vf vf_from_f16(const void *p)
{
    uint16_t h[16];
    vf r;
    memcpy(h, p, sizeof(h));
    TR_LANES r.f[l] = tr_half_to_f32(h[l]);
    return r;
}

V16 vf vf_from_i8(const void *p)
{
    int8_t b[16];
    vf r;
    memcpy(b, p, sizeof(b));
    TR_LANES r.f[l] = (float)b[l];
    return r;
}

/* Sixteen E4M3 codes as f16 with the same fields: the value / 256, exact. NaN codes give numbers.
 */
V16 vf vf_from_e4m3_256th(const void *p)
{
    uint8_t b[16];
    vf r;
    memcpy(b, p, sizeof(b));
    TR_LANES r.f[l] = tr_half_to_f32((uint16_t)((b[l] & 0x80) << 8 | (b[l] & 0x7f) << 7));
    return r;
}

V16 float vf_half(uint16_t h)
{
    return tr_half_to_f32(h);
}

V16 vf vf_from_int(vi a)
{
    vf r;
    TR_LANES r.f[l] = (float)(int32_t)a.u[l];
    return r;
}

V16 vi vi_flags(uint16_t flags, uint32_t value)
{
    vi r;
    TR_LANES r.u[l] = flags >> l & 1 ? value : 0;
    return r;
}

V16 vi vi_load_u8_2(const void *a, const void *b)
{
    uint8_t bytes[16];
    memcpy(bytes, a, 8);
    memcpy(bytes + 8, b, 8);
    return vi_load_u8(bytes);
}

V16 vf vf_flags(uint16_t flags, float x, float y)
{
    vf r;
    TR_LANES r.f[l] = flags >> l & 1 ? x : y;
    return r;
}

V16 vf vf_linear(vf a, vf b, vf c) /* fmaf is slow */
{
    TR_LANES c.f[l] = a.f[l] * b.f[l] + c.f[l];
    return c;
}

V16 vi vi_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint32_t words[4] = {a, b, c, d};
    return vi_load_u8(words);
}

typedef vf vq;

V16 vq vq_linear4(float d, float m)
{
    vf r;
    TR_LANES r.f[l] = (float)l * d + m;
    return r;
}

V16 vq vq_iq4(float d)
{
    static const float values[16] = {V16_IQ4};
    vf r;
    TR_LANES r.f[l] = values[l] * d;
    return r;
}

V16 vq vq_e2m1(float d)
{
    static const float values[16] = {V16_E2M1(), V16_E2M1(-)};
    vf r;
    TR_LANES r.f[l] = values[l] * d;
    return r;
}

V16 vf vq_get(vq book, vi codes)
{
    vf r;
    TR_LANES r.f[l] = book.f[codes.u[l] & 15];
    return r;
}
#define vq_get_linear4 vq_get
#define vq_get_iq4     vq_get
#define vq_get_e2m1    vq_get

#define V16_FEW_ROWS(T) 1
#define V16_FEW_MAX     4
#define V16_OUTER_N     1

#define VN_LANES 16
#define VN_ROWS  2 /* rows of x that the blocked product keeps in registers */
typedef vf vn;
#define vn_zero  vf_zero
#define vn_load  vf_load
#define vn_store vf_store
#define vn_fma   vf_fma

#undef TR_LANES

#endif
