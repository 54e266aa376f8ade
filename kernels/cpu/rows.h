/* rows.h - lanes along one row, for what works row by row (rows.c, bank.c). */
#ifndef TR_KERNELS_CPU_ROWS_H
#define TR_KERNELS_CPU_ROWS_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/v16.h"

/* Lanes of the group of sixteen that begins at d. */
static inline uint32_t rows_lanes(uint32_t N, uint32_t d)
{
    return N - d < 16 ? N - d : 16;
}

V16 float rows_sum_of_squares(const float *x, uint32_t N)
{
    vf acc = vf_zero();
    uint32_t d = 0;

    for (; d + 16 <= N; d += 16) {
        vf v = vf_load(x + d);
        acc = vf_fma(v, v, acc);
    }
    if (d < N) {
        vf v = vf_load_n(x + d, N - d);
        acc = vf_fma(v, v, acc);
    }
    return vf_sum(acc);
}

#endif
