/* test_vmath.c - how far our elementary functions are from the true values.
 *
 * Goal: the errors that kernels/cpu/vmath.h promises. Method: the portable form (test_bits proves
 * that the others are equal) against the C library's long double functions, over arguments that
 * cover every exponent and the places where branches and tables change. */
#include "tests/check.h"

#include "kernels/cpu/vmath.h"
#include "tests/kernels/samples.h"

#include <math.h>

/* Error in ulp of the true value; half a step of 2^-149 below the normal range. */
static double ulp_error(float got, long double expected)
{
    int e;

    if (isnan(expected))
        return isnan(got) ? 0 : 1e9;
    if (fabsl(expected) >= 0x1.ffffffp127L) /* rounds to infinity, or nearly */
        return isinf(got) || fabsf(got) >= 0x1.fffffep127f ? 0 : 1e9;
    frexpl(expected, &e);
    return (double)(fabsl(got - expected) / ldexpl(1, (e < -125 ? -125 : e) - 24));
}

static float apply(vf (*f)(vf), float x)
{
    float out[16];
    vf_store(out, f(vf_set1(x)));
    return out[3];
}

static vf apply_exp(vf x)
{
    return vf_exp(x);
}

static vf apply_sigmoid(vf x)
{
    return vf_sigmoid(x);
}

static vf apply_softplus(vf x)
{
    return vf_softplus(x);
}

static long double true_sigmoid(long double x)
{
    return 1 / (1 + expl(-x));
}

static long double true_softplus(long double x)
{
    return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x));
}

/* The largest error over small, medium and all arguments. */
static void check_function(const char *name, vf (*f)(vf), long double (*truth)(long double),
                           double ulps_max)
{
    static const float ranges[] = {0x1p-20f, 0.01f, 1.0f, 20.0f, 120.0f, 3e38f};
    double worst = 0;

    samples_seed(3);
    for (size_t r = 0; r < sizeof(ranges) / sizeof(ranges[0]); r++) {
        for (int i = 0; i < 20000; i++) {
            float x = samples_float(ranges[r]);
            double error = ulp_error(apply(f, x), truth(x));
            if (error > worst)
                worst = error;
            if (error > ulps_max)
                print_error("%s(%a): %a, off by %.2f ulp\n", name, (double)x, (double)apply(f, x),
                            error);
            assert_true(error <= ulps_max);
        }
    }
    print_message("# %s: at most %.2f ulp\n", name, worst);
}

static void functions_are_as_good_as_promised(void **state)
{
    (void)state;
    check_function("exp", apply_exp, expl, 1.0);
    check_function("sigmoid", apply_sigmoid, true_sigmoid, 2.5);
    check_function("softplus", apply_softplus, true_softplus, 3.0);
}

static void special_arguments_are_passed_on(void **state)
{
    (void)state;
    assert_true(isnan(apply(apply_exp, NAN)));
    assert_true(isnan(apply(apply_sigmoid, NAN)));
    assert_true(isnan(apply(apply_softplus, NAN)));
    assert_true(apply(apply_exp, INFINITY) == INFINITY);
    assert_true(apply(apply_exp, -INFINITY) == 0);
    assert_true(apply(apply_exp, 0.0f) == 1 && apply(apply_exp, -0.0f) == 1);
    assert_true(apply(apply_sigmoid, INFINITY) == 1);
    assert_true(apply(apply_sigmoid, -INFINITY) == 0);
    assert_true(apply(apply_sigmoid, 0.0f) == 0.5f);
    assert_true(apply(apply_softplus, INFINITY) == INFINITY);
    assert_true(apply(apply_softplus, -INFINITY) == 0);
    assert_true(apply(apply_softplus, 30.0f) == 30.0f);
}

static void angles_are_reduced_without_loss(void **state)
{
    double worst = 0;
    (void)state;

    samples_seed(5);
    for (int i = 0; i < 100000; i++) {
        /* positions up to a million times frequencies down to 1e-6, and multiples of pi / 2 */
        float x = fabsf(samples_float(i % 2 == 0 ? 1.0f : 1048576.0f));
        if (i % 16 == 0)
            x = (float)((i / 16) * 1.5707963267948966);
        float s, c;
        tr_sin_cos(x, &s, &c);
        worst = fmax(worst, fmax(ulp_error(s, sinl(x)), ulp_error(c, cosl(x))));
    }
    print_message("# sin, cos: at most %.2f ulp\n", worst);
    assert_true(worst <= 0.51);
}

static void logarithm_and_power_make_exact_frequencies(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        double theta = 1.0 + i * i * 7.3;
        double x = -2.0 * (i % 64) / 64 * tr_log(theta);
        assert_true(fabs(tr_log(theta) - log(theta)) <= 4e-16 * fabs(log(theta)) + 1e-17);
        assert_true(fabs(tr_exp(x) - exp(x)) <= 6e-16 * exp(x));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_as_good_as_promised),
        cmocka_unit_test(special_arguments_are_passed_on),
        cmocka_unit_test(angles_are_reduced_without_loss),
        cmocka_unit_test(logarithm_and_power_make_exact_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
