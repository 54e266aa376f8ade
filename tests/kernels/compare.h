/* compare.h - comparing a backend with ref, for the conformance tests. */
#ifndef TR_TESTS_KERNELS_COMPARE_H
#define TR_TESTS_KERNELS_COMPARE_H

#include "tests/check.h"
#include "tests/kernels/samples.h"

#include <math.h>

#define U    0x1p-24
#define TINY 0x1p-149

static const uint32_t ROWS[] = {0, 1, 2, 3, 4, 5, 7, 64, 129};
#define ROWS_COUNT (sizeof(ROWS) / sizeof(ROWS[0]))

/* got is within tolerance of expected; NaN only where NaN is expected. */
static inline void check_near(const char *what, size_t index, double got, double expected,
                              double tolerance)
{
    bool ok = isnan(expected)   ? isnan(got)
              : isinf(expected) ? got == expected
                                : fabs(got - expected) <= tolerance;
    if (!ok)
        print_error("%s[%zu]: got %.9g, expected %.9g, off by %.3g, allowed %.3g\n", what, index,
                    got, expected, fabs(got - expected), tolerance);
    assert_true(ok);
}

/* count values within units * u of their own size; what was denormal on the way is off by whole
 * steps of 2^-149, times a factor of at most 300 (silu_mul: gate 100, up 3). */
static inline void check_relative(const char *what, const float *got, const float *expected,
                                  size_t count, double units)
{
    for (size_t i = 0; i < count; i++)
        check_near(what, i, got[i], expected[i],
                   units * U * fabs(expected[i]) + (units > 0 ? 300 * TINY : 0));
}

/* Within units * u of `size`. */
static inline void check_absolute(const char *what, const float *got, const float *expected,
                                  size_t count, double units, double size)
{
    for (size_t i = 0; i < count; i++)
        check_near(what, i, got[i], expected[i], units * U * size);
}

static inline void for_each_variant(void (*check)(const tr_kernels *k, const tr_kernels *ref))
{
    size_t count;
    const tr_kernels *const *variants = samples_variants(&count);

    assert_true(count >= 1);
    for (size_t i = 0; i < count; i++) {
        samples_seed(42);
        check(variants[i], samples_ref());
    }
}

#endif
