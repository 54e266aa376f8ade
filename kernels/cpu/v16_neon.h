/* v16_neon.h - v16.h in four registers of aarch64. */
#ifndef TR_KERNELS_CPU_V16_NEON_H
#define TR_KERNELS_CPU_V16_NEON_H

#include <arm_neon.h>

typedef struct {
    float32x4_t q[4];
} vf;
typedef struct {
    uint32x4_t q[4];
} vi;

#define V16_EACH for (int i = 0; i < 4; i++)

V16 vf vf_set1(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (vf){{v, v, v, v}};
}

V16 vf vf_zero(void)
{
    return vf_set1(0.0f);
}

V16 vf vf_load(const float *p)
{
    return (vf){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

V16 vf vf_load_n(const float *p, uint32_t n)
{
    if (n == 16)
        return vf_load(p);
    float padded[16] = {0};
    memcpy(padded, p, n * sizeof(float));
    return vf_load(padded);
}

V16 void vf_store(float *p, vf a)
{
    V16_EACH vst1q_f32(p + 4 * i, a.q[i]);
}

V16 void vf_store_n(float *p, vf a, uint32_t n)
{
    if (n == 16) {
        vf_store(p, a);
        return;
    }
    float padded[16];
    vf_store(padded, a);
    memcpy(p, padded, n * sizeof(float));
}

#define V16_FOUR(type, name, op)                                                                   \
    V16 type name(type a, type b)                                                                  \
    {                                                                                              \
        return (type){                                                                             \
            {op(a.q[0], b.q[0]), op(a.q[1], b.q[1]), op(a.q[2], b.q[2]), op(a.q[3], b.q[3])}};     \
    }
V16_FOUR(vf, vf_add, vaddq_f32)
V16_FOUR(vf, vf_sub, vsubq_f32)
V16_FOUR(vf, vf_mul, vmulq_f32)
V16_FOUR(vf, vf_div, vdivq_f32)
V16_FOUR(vi, vi_add, vaddq_u32)
V16_FOUR(vi, vi_sub, vsubq_u32)
V16_FOUR(vi, vi_and, vandq_u32)
V16_FOUR(vi, vi_or, vorrq_u32)
#undef V16_FOUR

V16 vf vf_fma(vf a, vf b, vf c)
{
    V16_EACH c.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
    return c;
}

V16 vf vf_select_gt(vf a, vf b, vf x, vf y)
{
    V16_EACH y.q[i] = vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), x.q[i], y.q[i]);
    return y;
}

/* Not the instruction, whose NaN rule is another one than that of v16.h. */
V16 vf vf_max(vf a, vf b)
{
    return vf_select_gt(a, b, a, b);
}

V16 vf vf_min(vf a, vf b)
{
    return vf_select_gt(b, a, a, b);
}

V16 float vf_sum(vf a)
{
    float32x4_t s4 = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

/* out[i] = vf_sum of the sixteen floats at rows + 16 i, i < 4: the four trees side by side. */
V16 void vf_sum4(float *out, const float *rows)
{
    float32x4_t s[4];
    V16_EACH
    {
        const float *r = rows + 16 * i;
        s[i] = vaddq_f32(vaddq_f32(vld1q_f32(r), vld1q_f32(r + 8)),
                         vaddq_f32(vld1q_f32(r + 4), vld1q_f32(r + 12)));
    }
    /* l + (l+2), two rows in a register */
    float32x4_t a = vaddq_f32(vcombine_f32(vget_low_f32(s[0]), vget_low_f32(s[1])),
                              vcombine_f32(vget_high_f32(s[0]), vget_high_f32(s[1])));
    float32x4_t b = vaddq_f32(vcombine_f32(vget_low_f32(s[2]), vget_low_f32(s[3])),
                              vcombine_f32(vget_high_f32(s[2]), vget_high_f32(s[3])));
    vst1q_f32(out, vpaddq_f32(a, b)); /* l + (l+1) */
}

V16 float vf_max_lane(vf a)
{
    float f[16];
    vf_store(f, a);
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++)
            f[l] = f[l] > f[l + half] ? f[l] : f[l + half];
    }
    return f[0];
}

V16 vi vi_set1(uint32_t x)
{
    uint32x4_t v = vdupq_n_u32(x);
    return (vi){{v, v, v, v}};
}

V16 vi vi_load_u32(const void *p)
{
    const uint8_t *b = p;
    vi r;
    V16_EACH r.q[i] = vreinterpretq_u32_u8(vld1q_u8(b + 16 * i));
    return r;
}

V16 vi v16_widen(uint16x8_t lo, uint16x8_t hi)
{
    return (vi){{vmovl_u16(vget_low_u16(lo)), vmovl_high_u16(lo), vmovl_u16(vget_low_u16(hi)),
                 vmovl_high_u16(hi)}};
}

V16 vi vi_load_u16(const void *p)
{
    const uint8_t *b = p;
    return v16_widen(vreinterpretq_u16_u8(vld1q_u8(b)), vreinterpretq_u16_u8(vld1q_u8(b + 16)));
}

V16 vi vi_load_u8(const void *p)
{
    uint8x16_t b = vld1q_u8(p);
    return v16_widen(vmovl_u8(vget_low_u8(b)), vmovl_high_u8(b));
}

/* Shift counts are constants at each call. */
V16 vi vi_shl(vi a, const int n)
{
    V16_EACH a.q[i] = vshlq_u32(a.q[i], vdupq_n_s32(n));
    return a;
}

V16 vi vi_shr(vi a, const int n)
{
    V16_EACH a.q[i] = vshlq_u32(a.q[i], vdupq_n_s32(-n));
    return a;
}

V16 vi vi_sar1(vi a)
{
    V16_EACH a.q[i] = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(a.q[i]), 1));
    return a;
}

V16 vi vf_bits(vf a)
{
    vi r;
    V16_EACH r.q[i] = vreinterpretq_u32_f32(a.q[i]);
    return r;
}

V16 vf vi_float(vi a)
{
    vf r;
    V16_EACH r.q[i] = vreinterpretq_f32_u32(a.q[i]);
    return r;
}

V16 vf vf_from_f16(const void *p)
{
    const uint8_t *b = p;
    float16x8_t lo = vreinterpretq_f16_u8(vld1q_u8(b)), hi = vreinterpretq_f16_u8(vld1q_u8(b + 16));
    return (vf){{vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo),
                 vcvt_f32_f16(vget_low_f16(hi)), vcvt_high_f32_f16(hi)}};
}

V16 vf vf_from_i8(const void *p)
{
    int8x16_t b = vld1q_s8(p);
    int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_high_s8(b);
    return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))}};
}

/* Sixteen E4M3 codes as f16 with the same fields: the value / 256, exact. NaN codes give numbers.
 */
V16 vf vf_from_e4m3_256th(const void *p)
{
    uint8x16_t b = vld1q_u8(p);
    uint16_t h[16];

    for (int i = 0; i < 2; i++) {
        uint16x8_t w = vmovl_u8(i == 0 ? vget_low_u8(b) : vget_high_u8(b));
        vst1q_u16(h + 8 * i, vorrq_u16(vshlq_n_u16(vandq_u16(w, vdupq_n_u16(0x80)), 8),
                                       vshlq_n_u16(vandq_u16(w, vdupq_n_u16(0x7f)), 7)));
    }
    return vf_from_f16(h);
}

V16 float vf_half(uint16_t h)
{
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}

V16 vf vf_from_int(vi a)
{
    vf r;
    V16_EACH r.q[i] = vcvtq_f32_s32(vreinterpretq_s32_u32(a.q[i]));
    return r;
}

V16 vi vi_flags(uint16_t flags, uint32_t value)
{
    static const uint32_t bits[4] = {1, 2, 4, 8};
    uint32x4_t all = vdupq_n_u32(flags), v = vdupq_n_u32(value), bit = vld1q_u32(bits);
    vi r;
    V16_EACH
    {
        r.q[i] = vandq_u32(vtstq_u32(all, bit), v);
        bit = vshlq_n_u32(bit, 4);
    }
    return r;
}

V16 vi vi_load_u8_2(const void *a, const void *b)
{
    return v16_widen(vmovl_u8(vld1_u8(a)), vmovl_u8(vld1_u8(b)));
}

V16 vf vf_flags(uint16_t flags, float x, float y)
{
    float32x4_t vx = vdupq_n_f32(x), vy = vdupq_n_f32(y);
    vi set = vi_flags(flags, 0xffffffff);
    vf r;
    V16_EACH r.q[i] = vbslq_f32(set.q[i], vx, vy);
    return r;
}

#define vf_linear vf_fma

V16 vi vi_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint8x8_t ab = vcreate_u8((uint64_t)b << 32 | a), cd = vcreate_u8((uint64_t)d << 32 | c);
    return v16_widen(vmovl_u8(ab), vmovl_u8(cd));
}

/* Linear codes are converted and multiplied each time. Of others, a table of bytes gives the
 * value (E2M1: twice) on top of a lane, from where the conversion takes it down exactly. */
typedef struct {
    float32x4_t d, m;
} vq;

V16 vq vq_linear4(float d, float m)
{
    return (vq){vdupq_n_f32(d), vdupq_n_f32(m)};
}

V16 vq vq_iq4(float d)
{
    return vq_linear4(d, 0);
}

V16 vq vq_e2m1(float d)
{
    return vq_linear4(d, 0);
}

V16 vf vq_get_linear4(vq book, vi codes)
{
    vf r;
    V16_EACH
    {
        float32x4_t q = vcvtq_f32_u32(vandq_u32(codes.q[i], vdupq_n_u32(15)));
        r.q[i] = vfmaq_f32(book.m, q, book.d);
    }
    return r;
}

V16 int32x4_t v16_byte_on_top(int8x16_t table, uint32x4_t codes)
{
    uint8x16_t index = vreinterpretq_u8_u32(vandq_u32(codes, vdupq_n_u32(15)));
    return vshlq_n_s32(vreinterpretq_s32_s8(vqtbl1q_s8(table, index)), 24);
}

V16 vf vq_get_iq4(vq book, vi codes)
{
    static const int8_t values[16] = {V16_IQ4};
    int8x16_t table = vld1q_s8(values);
    vf r;
    V16_EACH r.q[i] = vmulq_f32(vcvtq_n_f32_s32(v16_byte_on_top(table, codes.q[i]), 24), book.d);
    return r;
}

V16 vf vq_get_e2m1(vq book, vi codes)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int8x16_t table = vld1q_s8(doubled);
    vf r;
    V16_EACH r.q[i] = vmulq_f32(vcvtq_n_f32_s32(v16_byte_on_top(table, codes.q[i]), 25), book.d);
    return r;
}

#define V16_FEW_ROWS(T) ((T) <= 2 ? 2 : 1)
#define V16_FEW_MAX     4
#define V16_OUTER_N     1

#define VN_LANES 4
#define VN_ROWS  4
typedef float32x4_t vn;
#define vn_zero()       vdupq_n_f32(0)
#define vn_load         vld1q_f32
#define vn_store        vst1q_f32
#define vn_fma(a, b, c) vfmaq_f32(c, a, b)

#undef V16_EACH

#endif
