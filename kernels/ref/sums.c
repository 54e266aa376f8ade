/* sums.c - the fixed-point sums. */
#include "kernels/ref/ref.h"

#include <string.h>

void tr_ref_residual_add(tr_team *team, float *x, const int64_t *acc, const int32_t *exponent,
                         uint32_t T, uint32_t D)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++)
        for (size_t i = (size_t)t * D; i < (size_t)(t + 1) * D; i++)
            x[i] += (float)ldexp((double)acc[i], exponent[t] - TR_FIXED_BITS);
}

size_t tr_ref_sums_pack(tr_team *team, uint8_t *out, uint8_t *flags, const int64_t *acc, uint32_t T,
                        uint32_t D)
{
    size_t used = 0;
    (void)team;

    for (uint32_t t = 0; t < T; t++) {
        bool wide = false;
        for (uint32_t d = 0; d < D; d++) {
            int64_t v = acc[(size_t)t * D + d];
            wide = wide || v < INT32_MIN || v > INT32_MAX;
        }
        flags[t] = (uint8_t)((flags[t] & ~2) | (wide ? 2 : 0));
        for (uint32_t d = 0; d < D; d++) {
            int64_t v = acc[(size_t)t * D + d];
            int32_t narrow = (int32_t)v;
            memcpy(out + used, wide ? (const void *)&v : &narrow, wide ? 8 : 4);
            used += wide ? 8 : 4;
        }
    }
    return used;
}

bool tr_ref_sums_add(tr_team *team, int64_t *acc, const uint8_t *in, size_t size,
                     const uint8_t *flags, uint32_t T, uint32_t D)
{
    size_t expected = 0;
    (void)team;

    for (uint32_t t = 0; t < T; t++)
        expected += (size_t)D * (flags[t] & 2 ? 8 : 4);
    if (expected != size)
        return false;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t d = 0; d < D; d++) {
            int64_t v;
            int32_t narrow;
            if (flags[t] & 2) {
                memcpy(&v, in, 8);
                in += 8;
            } else {
                memcpy(&narrow, in, 4);
                v = narrow;
                in += 4;
            }
            size_t i = (size_t)t * D + d;
            acc[i] = (int64_t)((uint64_t)acc[i] + (uint64_t)v);
        }
    }
    return true;
}
