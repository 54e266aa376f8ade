/* test_gdn.c - the gated delta rule.
 *
 * Goal: the recurrence and the chunked form compute what kernels.h says, and the same bits in every
 * variant, for any number of threads. Method: against ref, and by memcmp; shapes with tails, key
 * and value heads of different sizes and numbers, decays from none to so much that e^G underflows.
 */
#include "tests/kernels/compare.h"

typedef struct {
    tr_gdn_shape shape;
    uint32_t T;
    size_t ld_k, ld_v, ld_g, states;
    float *q, *k, *v, *g, *beta, *state;
} gdn_sample;

static gdn_sample gdn_sample_make(tr_gdn_shape shape, uint32_t T, float decay)
{
    uint32_t key_heads = shape.heads / shape.group;
    gdn_sample s = {.shape = shape,
                    .T = T,
                    .ld_k = (size_t)key_heads * shape.key_dim + 3,
                    .ld_v = (size_t)shape.heads * shape.value_dim + 1,
                    .ld_g = shape.heads + 2,
                    .states = (size_t)shape.heads * shape.key_dim * shape.value_dim};
    s.q = samples_floats((T + 1) * s.ld_k);
    s.k = samples_floats((T + 1) * s.ld_k);
    s.v = samples_floats((T + 1) * s.ld_v);
    s.g = samples_floats((T + 1) * s.ld_g);
    s.beta = samples_floats((T + 1) * s.ld_g);
    s.state = samples_floats(s.states);
    samples_fill(s.q, T * s.ld_k, 1.0f);
    samples_fill(s.k, T * s.ld_k, 1.0f);
    samples_fill(s.v, T * s.ld_v, 1.0f);
    samples_fill(s.state, s.states, 0.5f);
    for (size_t i = 0; i < T * s.ld_g; i++) {
        s.g[i] = -fabsf(samples_float(decay));
        s.beta[i] = 0.5f + samples_float(0.5f);
    }
    samples_ref()->l2_norm(NULL, s.q, s.ld_k, key_heads, shape.key_dim, 1e-6f,
                           1.0f / sqrtf((float)shape.key_dim), T);
    samples_ref()->l2_norm(NULL, s.k, s.ld_k, key_heads, shape.key_dim, 1e-6f, 1.0f, T);
    return s;
}

static void gdn_sample_free(gdn_sample *s)
{
    samples_free(s->q);
    samples_free(s->k);
    samples_free(s->v);
    samples_free(s->g);
    samples_free(s->beta);
    samples_free(s->state);
}

/* The sample in calls of `step` rows; state goes on from one to the next. */
static void run(const gdn_sample *s, const tr_kernels *k, tr_team *team, bool chunked,
                uint32_t step, float *out, float *state)
{
    size_t size = k->gdn_chunk_scratch(&s->shape, tr_team_size(team));
    void *scratch = aligned_alloc(64, size / 64 * 64 + 64);

    assert_non_null(scratch);
    memcpy(state, s->state, s->states * sizeof(float));
    for (uint32_t t = 0; t < s->T; t += step) {
        uint32_t n = s->T - t < step ? s->T - t : step;
        const float *q = s->q + t * s->ld_k, *key = s->k + t * s->ld_k, *v = s->v + t * s->ld_v;
        const float *g = s->g + t * s->ld_g, *beta = s->beta + t * s->ld_g;
        if (chunked)
            k->gdn_chunk(team, out + t * s->ld_v, q, key, s->ld_k, v, s->ld_v, g, beta, s->ld_g,
                         state, &s->shape, n, scratch);
        else
            k->gdn_recurrent(team, out + t * s->ld_v, q, key, s->ld_k, v, s->ld_v, g, beta, s->ld_g,
                             state, &s->shape, n);
    }
    free(scratch);
}

static void check_gdn_of(const tr_kernels *k, const tr_kernels *ref, tr_gdn_shape shape, uint32_t T,
                         float decay)
{
    gdn_sample s = gdn_sample_make(shape, T, decay);
    float *out = samples_floats((T + 1) * s.ld_v), *expected = samples_floats((T + 1) * s.ld_v);
    float *state = samples_floats(s.states), *ref_state = samples_floats(s.states);

    run(&s, ref, NULL, false, T + 1, expected, ref_state);
    for (int chunked = 0; chunked < 2; chunked++) {
        run(&s, k, NULL, chunked, TR_CHUNK_ROWS, out, state);
        /* about a hundred roundings of terms below 1, as in the test of KDA */
        check_absolute(chunked ? "gdn_chunk" : "gdn_recurrent", out, expected, T * s.ld_v, 167,
                       1.0);
        check_absolute(chunked ? "chunk state" : "recurrent state", state, ref_state, s.states, 167,
                       1.0);
    }
    samples_free(out);
    samples_free(expected);
    samples_free(state);
    samples_free(ref_state);
    gdn_sample_free(&s);
}

static void check_gdn(const tr_kernels *k, const tr_kernels *ref)
{
    static const uint32_t rows[] = {0, 1, 4, 15, 16, 17, 33, 63, 64, 65, 130};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_gdn_of(k, ref, (tr_gdn_shape){6, 3, 32, 32}, rows[i], 0.3f);
        check_gdn_of(k, ref, (tr_gdn_shape){2, 1, 37, 21}, rows[i], 5.0f);
        check_gdn_of(k, ref, (tr_gdn_shape){2, 2, 16, 70}, rows[i], 0.0f); /* nothing decays */
    }
    check_gdn_of(k, ref, (tr_gdn_shape){3, 3, 128, 128}, 64, 0.2f);
    check_gdn_of(k, ref, (tr_gdn_shape){1, 1, 20, 20}, 64, 60.0f); /* the sums of g reach -2,000 */
}

static void recurrence_and_chunks_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_gdn);
}

static void variants_and_threads_change_no_bit(void **state)
{
    enum { T = 100 };
    size_t count;
    const tr_kernels *const *variants = samples_variants(&count);
    gdn_sample s = gdn_sample_make((tr_gdn_shape){6, 3, 40, 24}, T, 0.5f);
    float *out = samples_floats(T * s.ld_v), *first = samples_floats(T * s.ld_v);
    float *states = samples_floats(s.states), *first_states = samples_floats(s.states);
    (void)state;

    for (int chunked = 0; chunked < 2; chunked++) {
        uint32_t steps[2] = {chunked ? TR_CHUNK_ROWS : T, chunked ? TR_CHUNK_ROWS : 1};
        run(&s, variants[0], NULL, chunked, steps[0], first, first_states);
        for (size_t v = 0; v < count; v++)
            for (uint32_t threads = 1; threads <= 3; threads++) {
                tr_team *team = NULL;
                CHECK_STATUS(tr_team_open(&team, threads, NULL), TR_OK);
                run(&s, variants[v], team, chunked, steps[threads % 2], out, states);
                assert_memory_equal(out, first, T * s.ld_v * sizeof(float));
                assert_memory_equal(states, first_states, s.states * sizeof(float));
                tr_team_close(team);
            }
    }
    samples_free(out);
    samples_free(first);
    samples_free(states);
    samples_free(first_states);
    gdn_sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrence_and_chunks_agree_with_ref),
        cmocka_unit_test(variants_and_threads_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
