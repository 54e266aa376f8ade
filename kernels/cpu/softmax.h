/* softmax.h - one block of a running softmax, shared by the attention kernels. */
#ifndef TR_KERNELS_CPU_SOFTMAX_H
#define TR_KERNELS_CPU_SOFTMAX_H

#include "kernels/cpu/vmath.h"

/* Turns the scores p[keys] of a block into exponentials, under the largest score so far; corrects
 * the denominator *sum, the largest score *max and the output o[dim] of what came before. */
static inline void softmax_block(float *p, uint32_t keys, float *o, uint32_t dim, float *max_so_far,
                                 float *sum_so_far)
{
    vf largest = vf_set1(*max_so_far);

    for (uint32_t j = 0; j < keys; j += 16) {
        uint32_t n = keys - j < 16 ? keys - j : 16;
        vf s = vf_load_n(p + j, n);
        if (n < 16) { /* lanes without a key must not count as zeros here */
            _Alignas(64) float padded[16];
            vf_store(padded, largest);
            vf_store_n(padded, s, n);
            s = vf_load(padded);
        }
        largest = vf_max(s, largest);
    }
    float max = vf_max_lane(largest);
    float first_lane[16];
    vf_store(first_lane, vf_exp(vf_set1(*max_so_far - max)));
    float correction = first_lane[0];

    vf sum = vf_zero();
    for (uint32_t j = 0; j < keys; j += 16) {
        uint32_t n = keys - j < 16 ? keys - j : 16;
        vf_store_n(p + j, vf_exp(vf_sub(vf_load_n(p + j, n), vf_set1(max))), n);
        sum = vf_add(sum, vf_load_n(p + j, n));
    }
    *max_so_far = max;
    *sum_so_far = *sum_so_far * correction + vf_sum(sum);
    for (uint32_t d = 0; d < dim; d += 16) {
        uint32_t n = dim - d < 16 ? dim - d : 16;
        vf_store_n(o + d, vf_mul(vf_load_n(o + d, n), vf_set1(correction)), n);
    }
}

#endif
