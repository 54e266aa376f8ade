/* test_ngram.c - what is done with n-gram embeddings: every cpu variant against ref, and the same
 * bits in all variants, with any number of threads, and in calls of any length. */
#include "tests/kernels/compare.h"

#include <string.h>

enum { STREAMS = 3, D = 37, C = STREAMS * D, TAPS = 4, DILATION = 3, HELD = (TAPS - 1) * DILATION };
enum { T_MAX = 129 };

typedef struct {
    float *key, *query, *value, *weight;
} inputs;

static inputs inputs_make(void)
{
    inputs in = {.key = samples_floats(T_MAX * C),
                 .query = samples_floats(T_MAX * C),
                 .value = samples_floats(T_MAX * D),
                 .weight = samples_floats(C * TAPS)};
    samples_fill(in.key, T_MAX * C, 2.0f);
    samples_fill(in.query, T_MAX * C, 2.0f);
    samples_fill(in.value, T_MAX * D, 3.0f);
    samples_fill(in.weight, C * TAPS, 1.0f);
    return in;
}

static void inputs_free(inputs *in)
{
    samples_free(in->key);
    samples_free(in->query);
    samples_free(in->value);
    samples_free(in->weight);
}

static void check_gate(const tr_kernels *k, const tr_kernels *ref)
{
    for (size_t i = 0; i < ROWS_COUNT; i++) {
        uint32_t T = ROWS[i];
        inputs in = inputs_make();
        float *a = samples_floats(T * C + 1), *b = samples_floats(T * C + 1);

        k->ngram_gate(NULL, a, in.key, in.query, in.value, STREAMS, T, D);
        ref->ngram_gate(NULL, b, in.key, in.query, in.value, STREAMS, T, D);
        /* the sum is off by 8 u of 37 * 4 / 6; near 0 its root, at least 0.001, is off by 500 times
         * that, and the sigmoid by a quarter */
        check_absolute("ngram_gate", a, b, T * C, 8.0 * 25 * 125, 3);
        samples_free(a);
        samples_free(b);
        inputs_free(&in);
    }
}

static void gates_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_gate);
}

/* s = 8, -8, 0 and 1e-9 with D = 1: roots 2.83, -2.83, 0 and 0.001. */
static void check_root(const tr_kernels *k, const tr_kernels *ref)
{
    float key[4] = {4, -4, 0, 1e-9f}, query[4] = {2, 2, 2, 1}, value[1] = {1}, out[4];
    float expected[4] = {0.94419277f, 0.05580723f, 0.5f, 0.50025f};
    (void)ref;

    k->ngram_gate(NULL, out, key, query, value, 4, 1, 1);
    for (size_t i = 0; i < 4; i++)
        check_near("ngram_gate", i, out[i], expected[i], 1e-6);
}

static void the_root_keeps_the_sign_and_zero(void **state)
{
    (void)state;
    for_each_variant(check_root);
    check_root(samples_ref(), samples_ref());
}

static void check_conv(const tr_kernels *k, const tr_kernels *ref)
{
    for (size_t i = 0; i < ROWS_COUNT; i++) {
        uint32_t T = ROWS[i];
        inputs in = inputs_make();
        float *a = samples_floats(T * C + 1), *b = samples_floats(T * C + 1);
        float *sa = samples_floats(HELD * C), *sb = samples_floats(HELD * C);

        samples_fill(a, T * C, 1.0f);
        memcpy(b, a, T * C * sizeof(float));
        samples_fill(sa, HELD * C, 2.0f);
        memcpy(sb, sa, HELD * C * sizeof(float));
        k->ngram_conv(NULL, a, in.key, in.weight, sa, TAPS, DILATION, T, C);
        ref->ngram_conv(NULL, b, in.key, in.weight, sb, TAPS, DILATION, T, C);
        /* four products up to 2, SiLU with 6 u, one sum */
        check_absolute("ngram_conv", a, b, T * C, 16, 9);
        assert_memory_equal(sa, sb, HELD * C * sizeof(float));
        samples_free(a);
        samples_free(b);
        samples_free(sa);
        samples_free(sb);
        inputs_free(&in);
    }
}

static void convolutions_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_conv);
}

/* step: rows of each call. */
static float *run_all(const inputs *in, const tr_kernels *k, uint32_t threads, uint32_t step)
{
    float *out = samples_floats((size_t)(T_MAX + HELD) * C), *state = out + T_MAX * C;
    tr_team *team = NULL;

    CHECK_STATUS(tr_team_open(&team, threads, NULL), TR_OK);
    for (uint32_t t = 0; t < T_MAX; t += step) {
        uint32_t T = T_MAX - t < step ? T_MAX - t : step;
        k->ngram_gate(team, out + t * C, in->key + t * C, in->query + t * C, in->value + t * D,
                      STREAMS, T, D);
        k->ngram_conv(team, out + t * C, in->key + t * C, in->weight, state, TAPS, DILATION, T, C);
    }
    tr_team_close(team);
    return out;
}

static void variants_threads_and_chunks_change_no_bit(void **state)
{
    static const uint32_t ways[][2] = {{1, 1}, {2, T_MAX}, {3, 7}, {1, 64}};
    size_t count;
    const tr_kernels *const *variants = samples_variants(&count);
    (void)state;

    samples_seed(6);
    inputs in = inputs_make();
    float *first = run_all(&in, variants[0], 1, T_MAX);
    for (size_t v = 0; v < count; v++) {
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            float *other = run_all(&in, variants[v], ways[i][0], ways[i][1]);
            assert_memory_equal(other, first, (size_t)(T_MAX + HELD) * C * sizeof(float));
            samples_free(other);
        }
    }
    samples_free(first);
    inputs_free(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_agree_with_ref),
        cmocka_unit_test(the_root_keeps_the_sign_and_zero),
        cmocka_unit_test(convolutions_agree_with_ref),
        cmocka_unit_test(variants_threads_and_chunks_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
