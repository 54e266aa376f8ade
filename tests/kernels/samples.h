/* samples.h - made-up inputs for the tests of kernels: reproducible numbers, weights of every
 * format, arrays that notice a write beyond their end. */
#ifndef TR_TESTS_KERNELS_SAMPLES_H
#define TR_TESTS_KERNELS_SAMPLES_H

#include "kernels/kernels.h"

#include <stdlib.h>

/* The kernels under test: every cpu variant that this machine can run. *count <= 4. */
const tr_kernels *const *samples_variants(size_t *count);
const tr_kernels *samples_ref(void);

void samples_seed(uint64_t seed);
uint64_t samples_u64(void);
/* in [-range, range), 21 bits */
float samples_float(float range);
/* The same, and about one in sixteen is 0, -0, a denormal or a large number (up to 1e15). */
void samples_fill(float *x, size_t count, float range);
void samples_fill_hard(float *x, size_t count, float range);

/* count floats, 64-byte aligned, zeroed, followed by a guard that samples_free checks. */
float *samples_floats(size_t count);
void samples_free(float *x);

/* A weight of any format with random codes and moderate scales. Free with samples_weight_free. */
typedef struct {
    tr_weight w;
    uint8_t *data, *scales;
} samples_weight;
samples_weight samples_weight_make(tr_format format, uint32_t rows, uint32_t cols);
void samples_weight_free(samples_weight *weight);

/* The weight packed for a backend; free(packed.memory). */
typedef struct {
    tr_matrix m;
    void *memory;
} samples_packed;
samples_packed samples_pack(const tr_kernels *kernels, const tr_weight *w);

#endif
