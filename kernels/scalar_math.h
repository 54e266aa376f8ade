/* scalar_math.h - scalar functions whose bits are the same on every machine: fixed operations in a
 * fixed order, no C library. For code outside the kernels; those have vector forms of their own. */
#ifndef TR_KERNELS_SCALAR_MATH_H
#define TR_KERNELS_SCALAR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x, within 1 ulp of f32 (the double inside is good to 1e-9); 0 below -104, infinity above 88.8.
 * e^x = 2^n e^r with |r| <= ln(2) / 2, e^r by its power series to the ninth term in nested form. */
static inline float tr_expf(float x)
{
    if (x < -104.0f)
        return 0.0f;
    if (!(x <= 88.8f))
        return x > 0 ? INFINITY : x; /* NaN stays */
    double z = fma(x, 0x1.71547652b82fep0, 0x1.8p52);
    double n = z - 0x1.8p52;
    double r = fma(n, -0x1.62e42fefa39efp-1, (double)x);
    double y = 1.0;
    for (int k = 9; k >= 1; k--)
        y = fma(y * r, 1.0 / k, 1.0);
    uint64_t bits = ((uint64_t)((int64_t)n + 1023)) << 52;
    double power;
    memcpy(&power, &bits, sizeof(power));
    return (float)(y * power);
}

#endif
