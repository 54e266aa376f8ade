/* half.h - binary16 to binary32 in integers, exact for every input, NaN kept quiet. */
#ifndef TR_KERNELS_CPU_HALF_H
#define TR_KERNELS_CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float tr_half_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    uint32_t bits;

    if (exponent == 31) {
        bits = 0x7f800000 | mantissa << 13 | (mantissa != 0 ? 0x00400000 : 0);
    } else if (exponent != 0) {
        bits = (exponent + 112) << 23 | mantissa << 13;
    } else {
        float f = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &f, sizeof(bits));
    }
    bits |= sign;
    float out;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

#endif
