/* vmath.h - our own exp, sigmoid, softplus, sine and the like.
 *
 * The C library's functions differ between machines in the last bit. These are fixed sequences of
 * IEEE operations, so every instruction set gives the same bits. The vector forms are written over
 * kernels/cpu/v16.h; the scalar double ones over fma, which is exact everywhere.
 *
 * The coefficients are minimax fits of the stated functions (iteratively reweighted least squares,
 * rounded to f32); the errors were measured against long double over all of the range by
 * tests/kernels/test_vmath.c: exp 1 ulp, sigmoid 2.5 ulp, softplus 3 ulp. */
#ifndef TR_KERNELS_CPU_VMATH_H
#define TR_KERNELS_CPU_VMATH_H

#include "kernels/cpu/v16.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x. Overflows to infinity above 88.72, denormal results are rounded once, NaN stays NaN.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r); then 2^n in two steps, since n
 * reaches beyond the exponents of f32 on both sides. */
V16 vf vf_exp(vf x)
{
    const vf magic = vf_set1(0x1.8p23f); /* puts the rounded integer into the low bits */

    x = vf_max(vf_set1(-104.0f), vf_min(vf_set1(89.0f), x));
    vf z = vf_fma(x, vf_set1(0x1.715476p+0f), magic);
    vf n = vf_sub(z, magic);
    vf r = vf_fma(n, vf_set1(-0x1.62e43p-1f), x);
    r = vf_fma(n, vf_set1(0x1.05c61p-29f), r); /* -(ln 2 - 0x1.62e43p-1) */

    vf p = vf_set1(0x1.6a2436p-10f);
    p = vf_fma(p, r, vf_set1(0x1.1239ep-7f));
    p = vf_fma(p, r, vf_set1(0x1.5558f2p-5f));
    p = vf_fma(p, r, vf_set1(0x1.555492p-3f));
    p = vf_fma(p, r, vf_set1(0x1.fffffcp-2f));
    vf y = vf_add(vf_set1(1.0f), vf_fma(vf_mul(r, r), p, r));

    vi n_int = vi_sub(vf_bits(z), vi_set1(0x4b400000));
    vi n_low = vi_sar1(n_int);
    vi n_high = vi_sub(n_int, n_low);
    vf s_low = vi_float(vi_shl(vi_add(n_low, vi_set1(127)), 23));
    vf s_high = vi_float(vi_shl(vi_add(n_high, vi_set1(127)), 23));
    return vf_mul(vf_mul(y, s_low), s_high);
}

V16 vf vf_abs(vf x)
{
    return vi_float(vi_and(vf_bits(x), vi_set1(0x7fffffff)));
}

V16 vf vf_neg_abs(vf x)
{
    return vi_float(vi_or(vf_bits(x), vi_set1(0x80000000)));
}

/* 1 / (1 + e^-x), accurate in both tails: the exponent is never positive. */
V16 vf vf_sigmoid(vf x)
{
    vf one = vf_set1(1.0f);
    vf e = vf_exp(vf_neg_abs(x));
    return vf_div(vf_select_gt(vf_zero(), x, e, one), vf_add(one, e));
}

V16 vf vf_silu(vf x)
{
    return vf_mul(x, vf_sigmoid(x));
}

/* log(1 + y) for 0 <= y <= 1: 2 artanh(s) with s = y / (2 + y). */
V16 vf vf_log1p_unit(vf y)
{
    vf s = vf_div(y, vf_add(vf_set1(2.0f), y));
    vf z = vf_mul(s, s);
    vf q = vf_set1(0.242895618f);
    q = vf_fma(q, z, vf_set1(0.214307398f));
    q = vf_fma(q, z, vf_set1(0.286165982f));
    q = vf_fma(q, z, vf_set1(0.39998889f));
    q = vf_fma(q, z, vf_set1(0.666666746f));
    return vf_fma(vf_mul(s, z), q, vf_add(s, s));
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|). Above 20 the second part is below half an ulp, so
 * the branch of the published form (x itself) needs no branch here. */
V16 vf vf_softplus(vf x)
{
    vf tail = vf_log1p_unit(vf_exp(vf_neg_abs(x)));
    return vf_add(vf_max(vf_zero(), x), tail);
}

/* -- double, scalar: for tables that are made once per step -- */

static inline double tr_bits_double(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof(d));
    return d;
}

static inline uint64_t tr_double_bits(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof(bits));
    return bits;
}

/* log x for finite normal x > 0, to about 1e-16 relative or absolute: x = 2^n m with
 * sqrt(1/2) <= m < sqrt(2), log m = 2 artanh((m - 1) / (m + 1)). */
static inline double tr_log(double x)
{
    uint64_t bits = tr_double_bits(x);
    uint64_t shifted = bits - 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    int64_t n = (int64_t)shifted >> 52;
    double m = tr_bits_double(bits - ((uint64_t)n << 52));
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double q = 0.0;

    for (int k = 21; k >= 3; k -= 2)
        q = fma(q, z, 2.0 / k);
    double small = fma(s * z, q, 2.0 * s);
    double n_double = (double)n;
    return fma(n_double, 0x1.62e42fefa39efp-1, fma(n_double, 0x1.abc9e3b39803fp-56, small));
}

/* e^x for |x| < 700. */
static inline double tr_exp(double x)
{
    double z = fma(x, 0x1.71547652b82fep0, 0x1.8p52);
    double n = z - 0x1.8p52;
    double r = fma(n, -0x1.62e42fefa39efp-1, x);
    r = fma(n, -0x1.abc9e3b39803fp-56, r);

    double y = 1.0;
    for (int k = 14; k >= 1; k--)
        y = fma(y * r, 1.0 / k, 1.0);
    return y * tr_bits_double((tr_double_bits(z) + 1023) << 52);
}

/* Sine and cosine of x, 0 <= x < 2^32, each within 1 ulp of f32. x = n pi / 2 + r, where pi / 2 is
 * taken in two parts (107 bits), so that r is good to 1e-16 of itself; then the two power series in
 * nested form, 1 - w / (k (k + 1)) (1 - ...). */
static inline void tr_sin_cos(double x, float *sine, float *cosine)
{
    double z = fma(x, 0x1.45f306dc9c883p-1, 0x1.8p52);
    double n = z - 0x1.8p52;
    double r = fma(n, -0x1.921fb54442d18p0, x);
    r = fma(n, -0x1.1a62633145c07p-54, r);
    double w = r * r;
    double s = 1.0, c = 1.0;

    for (int k = 16; k >= 2; k -= 2)
        s = fma(s, -w / (double)(k * (k + 1)), 1.0);
    for (int k = 15; k >= 1; k -= 2)
        c = fma(c, -w / (double)(k * (k + 1)), 1.0);
    s = s * r;

    uint64_t quadrant = tr_double_bits(z) & 3;
    double sin_x = quadrant & 1 ? c : s;
    double cos_x = quadrant & 1 ? s : c;
    *sine = (float)(quadrant & 2 ? -sin_x : sin_x);
    *cosine = (float)((quadrant + 1) & 2 ? -cos_x : cos_x);
}

#endif
