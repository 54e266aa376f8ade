/* block.h - the two blocked products that matmul, attention and the chunked recurrence are made of.
 *
 * block_dot    sums along the lanes: dot(x_t, w_n), sixteen partial sums each, carried in memory
 *              between blocks of k so that a row of any length needs a fixed buffer
 * block_outer  lanes along the columns of the result: C[r, c] += sum_k A[r, k] B[k, c], k in order
 *
 * Both keep several rows in registers. How many changes no result: each element's operations and
 * their order are the same. */
#ifndef TR_KERNELS_CPU_BLOCK_H
#define TR_KERNELS_CPU_BLOCK_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/v16.h"

#define BLOCK_N TR_ROW_BLOCK
#define OUTER_M 4 /* rows of the result that block_outer keeps in registers */

/* carry[t][n] += the lane products of x[t] and w + n ldw over `groups` groups of sixteen, for rows
 * t < M and n < BLOCK_N. carry has carry_stride floats from t to t + 1, 16 from n to n + 1. */
V16 void block_dot_rows(int M, float *carry, size_t carry_stride, const float *const *x,
                        const float *w, size_t ldw, uint32_t groups, bool first)
{
    for (uint32_t lane = 0; lane < 16; lane += VN_LANES) {
        vn acc[VN_ROWS][BLOCK_N];
        TR_UNROLL(8)
        for (int t = 0; t < M; t++) {
            TR_UNROLL(8)
            for (int n = 0; n < BLOCK_N; n++)
                acc[t][n] = first ? vn_zero() : vn_load(carry + t * carry_stride + n * 16 + lane);
        }
        for (uint32_t g = 0; g < groups; g++) {
            size_t k = g * (size_t)16 + lane;
            vn b[BLOCK_N];
            TR_UNROLL(8)
            for (int n = 0; n < BLOCK_N; n++)
                b[n] = vn_load(w + n * ldw + k);
            TR_UNROLL(8)
            for (int t = 0; t < M; t++) {
                vn a = vn_load(x[t] + k);
                TR_UNROLL(8)
                for (int n = 0; n < BLOCK_N; n++)
                    acc[t][n] = vn_fma(a, b[n], acc[t][n]);
            }
        }
        TR_UNROLL(8)
        for (int t = 0; t < M; t++) {
            TR_UNROLL(8)
            for (int n = 0; n < BLOCK_N; n++)
                vn_store(carry + t * carry_stride + n * 16 + lane, acc[t][n]);
        }
    }
}

/* The same for any number of rows; the last k % 16 elements (tail) go through zero-padded copies.
 */
V16 void block_dot(uint32_t rows, float *carry, size_t carry_stride, const float *const *x,
                   const float *w, size_t ldw, uint32_t k, bool first)
{
    uint32_t tail = k % 16;

    for (uint32_t t = 0; t < rows; t += VN_ROWS) {
        float *c = carry + t * carry_stride;
        uint32_t m = rows - t < VN_ROWS ? rows - t : VN_ROWS;
        if (k >= 16 || first) {
            switch (m) {
#if VN_ROWS >= 4
            case 4:
                block_dot_rows(4, c, carry_stride, x + t, w, ldw, k / 16, first);
                break;
#endif
#if VN_ROWS >= 3
            case 3:
                block_dot_rows(3, c, carry_stride, x + t, w, ldw, k / 16, first);
                break;
#endif
            case 2:
                block_dot_rows(2, c, carry_stride, x + t, w, ldw, k / 16, first);
                break;
            default:
                block_dot_rows(1, c, carry_stride, x + t, w, ldw, k / 16, first);
            }
        }
        if (tail != 0) {
            float x_tail[VN_ROWS][16], w_tail[BLOCK_N][16];
            for (uint32_t i = 0; i < m; i++)
                vf_store(x_tail[i], vf_load_n(x[t + i] + k - tail, tail));
            for (uint32_t n = 0; n < BLOCK_N; n++)
                vf_store(w_tail[n], vf_load_n(w + n * ldw + k - tail, tail));
            for (uint32_t i = 0; i < m; i++)
                block_dot_rows(1, c + i * carry_stride, carry_stride, &(const float *){x_tail[i]},
                               w_tail[0], 16, 1, false);
        }
    }
}

/* C[r, c] = (first ? 0 : C[r, c]) + sum_k A[r, k] B[k, c], fma in the order of k, for r < M and
 * the columns of N vectors, of which the last has last_n lanes. A[r, k] is at a[r * a_row + k *
 * a_k]. */
V16 void block_outer_tile(int M, int N, float *c, size_t ldc, const float *a, size_t a_row,
                          size_t a_k, const float *b, size_t ldb, uint32_t k_count, bool first,
                          uint32_t last_n)
{
    vf acc[OUTER_M][V16_OUTER_N];

    TR_UNROLL(4)
    for (int r = 0; r < M; r++) {
        TR_UNROLL(4)
        for (int n = 0; n < N; n++)
            acc[r][n] =
                first ? vf_zero() : vf_load_n(c + r * ldc + n * 16, n == N - 1 ? last_n : 16);
    }
    for (uint32_t k = 0; k < k_count; k++) {
        vf bk[V16_OUTER_N];
        TR_UNROLL(4)
        for (int n = 0; n < N; n++)
            bk[n] = n == N - 1 ? vf_load_n(b + k * ldb + n * 16, last_n)
                               : vf_load(b + k * ldb + n * 16);
        TR_UNROLL(4)
        for (int r = 0; r < M; r++) {
            vf ark = vf_set1(a[r * a_row + k * a_k]);
            TR_UNROLL(4)
            for (int n = 0; n < N; n++)
                acc[r][n] = vf_fma(ark, bk[n], acc[r][n]);
        }
    }
    TR_UNROLL(4)
    for (int r = 0; r < M; r++) {
        TR_UNROLL(4)
        for (int n = 0; n < N; n++)
            vf_store_n(c + r * ldc + n * 16, acc[r][n], n == N - 1 ? last_n : 16);
    }
}

/* All rows of N vectors of columns. */
V16 void block_outer_columns(int N, uint32_t rows, float *c, size_t ldc, const float *a,
                             size_t a_row, size_t a_k, const float *b, size_t ldb, uint32_t k_count,
                             bool first, uint32_t last_n)
{
    uint32_t r = 0;

    for (; r + OUTER_M <= rows; r += OUTER_M)
        block_outer_tile(OUTER_M, N, c + r * ldc, ldc, a + r * a_row, a_row, a_k, b, ldb, k_count,
                         first, last_n);
    for (; r < rows; r++)
        block_outer_tile(1, N, c + r * ldc, ldc, a + r * a_row, a_row, a_k, b, ldb, k_count, first,
                         last_n);
}

/* The same for any shape. */
static inline void block_outer(uint32_t rows, uint32_t cols, float *c, size_t ldc, const float *a,
                               size_t a_row, size_t a_k, const float *b, size_t ldb,
                               uint32_t k_count, bool first)
{
    for (uint32_t col = 0; col < cols; col += 16 * V16_OUTER_N) {
        uint32_t left = cols - col;
        uint32_t vectors = left < 16 * V16_OUTER_N ? (left + 15) / 16 : V16_OUTER_N;
        uint32_t last_n = left < 16 * vectors ? left - 16 * (vectors - 1) : 16;
        switch (vectors) {
#if V16_OUTER_N >= 4
        case 4:
            block_outer_columns(4, rows, c + col, ldc, a, a_row, a_k, b + col, ldb, k_count, first,
                                last_n);
            break;
        case 3:
            block_outer_columns(3, rows, c + col, ldc, a, a_row, a_k, b + col, ldb, k_count, first,
                                last_n);
            break;
        case 2:
            block_outer_columns(2, rows, c + col, ldc, a, a_row, a_k, b + col, ldb, k_count, first,
                                last_n);
            break;
#endif
        default:
            block_outer_columns(1, rows, c + col, ldc, a, a_row, a_k, b + col, ldb, k_count, first,
                                last_n);
        }
    }
}

#endif
