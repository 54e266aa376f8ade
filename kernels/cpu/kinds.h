/* kinds.h - what is compiled once for each kind of packed weights (kinds.c). */
#ifndef TR_KERNELS_CPU_KINDS_H
#define TR_KERNELS_CPU_KINDS_H

#include "kernels/cpu/scales.h"

#define TILE_N 16 /* rows of W that products are taken with before they are handed on */
#define FEW_T  4  /* rows of x that are taken together when W is decoded in registers */

/* sums[t][i] = dot(x[t], row n + i) for T rows of x and V16_FEW_ROWS(T) rows of W. */
typedef void w_few_fn(float sums[][TILE_N], const float *const *x, const w_rows *rows, uint32_t n);

/* out = elements [k, k + count) of row n as f32, and what fills the last unit. k is a multiple of
 * TR_UNIT. */
typedef void w_decode_fn(float *out, const w_rows *rows, uint32_t n, uint32_t k, uint32_t count);

typedef struct {
    w_few_fn *few_1, *few_2, *few_4; /* T = 1, 2, FEW_T */
    w_decode_fn *decode;
} w_kind_ops;

extern const w_kind_ops TR_CPU(kinds)[W_KINDS_COUNT];

#endif
