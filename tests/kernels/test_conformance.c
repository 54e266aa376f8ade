/* test_conformance.c - every cpu variant against ref, operation by operation; products are in
 * test_products.c.
 *
 * Goal: each computes what kernels.h says. Method: random shapes with tails (nothing is a multiple
 * of sixteen), T from 0 to 129, inputs with zeros, denormals and large numbers. Each tolerance is a
 * bound with its reason beside it, in units of u = 2^-24 (half an ulp) of what was added up. */
#include "tests/kernels/compare.h"

/* -- rows -- */

static void check_norms(const tr_kernels *k, const tr_kernels *ref)
{
    enum { HEADS = 3, DIM = 37, D = HEADS * DIM, LD = D + 5 };

    for (size_t i = 0; i < ROWS_COUNT; i++) {
        uint32_t T = ROWS[i];
        float *x = samples_floats((T + 1) * LD), *y = samples_floats((T + 1) * LD);
        float *weight = samples_floats(LD), *gate = samples_floats((T + 1) * LD);
        samples_fill(weight, LD, 2.0f);
        samples_fill(gate, T * LD, 20.0f);

        /* the sum of squares is off by D / 16 + 5 roundings, halved by the root; five more */
        double units = (double)D / 32 + 9;
        samples_fill_hard(x, T * LD, 3.0f);
        k->rms_norm(NULL, y, x, weight, 1e-5f, T, D);
        ref->rms_norm(NULL, x, x, weight, 1e-5f, T, D);
        check_relative("rms_norm", y, x, T * D, units);

        samples_fill_hard(x, T * LD, 3.0f);
        memcpy(y, x, T * LD * sizeof(float));
        k->l2_norm(NULL, y, LD, HEADS, DIM, 1e-6f, 0.25f, T);
        ref->l2_norm(NULL, x, LD, HEADS, DIM, 1e-6f, 0.25f, T);
        check_relative("l2_norm", y, x, T * LD, units);

        for (int gated = 0; gated < 2; gated++) {
            samples_fill_hard(x, T * LD, 3.0f);
            memcpy(y, x, T * LD * sizeof(float));
            k->head_norm(NULL, y, LD, weight, 1e-5f, gated ? gate : NULL, LD, HEADS, DIM, T);
            ref->head_norm(NULL, x, LD, weight, 1e-5f, gated ? gate : NULL, LD, HEADS, DIM, T);
            check_relative("head_norm", y, x, T * LD, units + 8);
        }
        samples_free(x);
        samples_free(y);
        samples_free(weight);
        samples_free(gate);
    }
}

static void norms_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_norms);
}

static void check_row_exponent(const tr_kernels *k, const tr_kernels *ref)
{
    enum { D = 35 };
    static const float largest[] = {1.0f, 0.99999994f,     0x1p-60f, 0x1p-61f,  0x1p-149f,
                                    0.0f, 0x1.fffffep127f, INFINITY, -INFINITY, NAN,
                                    -3.0f};
    static const int32_t expected[] = {1, 0, -59, -60, -60, -60, 128, 127, 127, 127, 2};
    enum { COUNT = sizeof(largest) / sizeof(largest[0]) };
    (void)ref;

    for (uint32_t place = 0; place < D; place += 17) {
        float x[COUNT * D] = {0};
        int32_t exponent[COUNT];
        for (int t = 0; t < COUNT; t++) {
            x[t * D + place] = largest[t];
            x[t * D + (place + 16) % D] = -0.0f;
        }
        k->row_exponent(NULL, exponent, x, COUNT, D);
        for (int t = 0; t < COUNT; t++)
            assert_int_equal(exponent[t], expected[t]);
    }
}

static void row_exponent_is_that_of_frexp(void **state)
{
    (void)state;
    for_each_variant(check_row_exponent);
    check_row_exponent(samples_ref(), samples_ref());
}

static void check_elementwise(const tr_kernels *k, const tr_kernels *ref)
{
    enum { N = 53, LD = N + 4 };

    for (size_t i = 0; i < ROWS_COUNT; i++) {
        uint32_t T = ROWS[i];
        float *x = samples_floats((T + 1) * LD), *y = samples_floats((T + 1) * LD);
        float *a = samples_floats((T + 1) * LD), *b = samples_floats((T + 1) * LD);
        samples_fill_hard(x, T * LD, 100.0f);
        samples_fill(y, T * LD, 3.0f);

        /* sigmoid 2.5 ulp = 5 u, then two products */
        for (int limited = 0; limited < 2; limited++) {
            float limit = limited ? 1.25f : INFINITY;
            memcpy(a, x, T * LD * sizeof(float));
            memcpy(b, x, T * LD * sizeof(float));
            k->silu_mul(NULL, a, a, y, LD, limit, T, N);
            ref->silu_mul(NULL, b, b, y, LD, limit, T, N);
            check_relative("silu_mul", a, b, T * LD, 8);
        }
        k->sigmoid_mul(NULL, a, y, LD, x, LD, T, N);
        ref->sigmoid_mul(NULL, b, y, LD, x, LD, T, N);
        check_relative("sigmoid_mul", a, b, T * LD, 7);
        memcpy(a, x, T * LD * sizeof(float));
        memcpy(b, x, T * LD * sizeof(float));
        k->sigmoid_scale(NULL, a, LD, 2.0f, T, N);
        ref->sigmoid_scale(NULL, b, LD, 2.0f, T, N);
        check_relative("sigmoid_scale", a, b, T * LD, 6);
        samples_free(x);
        samples_free(y);
        samples_free(a);
        samples_free(b);
    }
}

/* gate 3 and up -3 under the limit 2: 2 sigmoid(2) * -2; a gate below -2 is not clamped. */
static void check_limit(const tr_kernels *k, const tr_kernels *ref)
{
    float gate[4] = {3.0f, -3.0f, NAN, 1.0f}, up[4] = {-3.0f, 3.0f, 1.0f, NAN}, out[4];
    float expected[4] = {-3.5231883f, -0.28455524f, NAN, NAN};
    (void)ref;

    k->silu_mul(NULL, out, gate, up, 4, 2.0f, 1, 4);
    for (size_t i = 0; i < 4; i++)
        check_near("silu_mul", i, out[i], expected[i], 1e-6);
}

static void the_limit_binds_the_gate_from_above_and_up_on_both_sides(void **state)
{
    (void)state;
    for_each_variant(check_limit);
    check_limit(samples_ref(), samples_ref());
}

static void elementwise_operations_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_elementwise);
}

/* -- sums -- */

static void check_sums(const tr_kernels *k, const tr_kernels *ref)
{
    enum { T = 9, D = 21 };
    int64_t acc[T * D], back[T * D] = {0};
    uint8_t wire[T * D * 8], ref_wire[T * D * 8];
    uint8_t flags[T] = {1, 2, 3}, ref_flags[T] = {1, 2, 3};
    float x[T * D], expected[T * D];
    int32_t exponent[T];

    for (int i = 0; i < T * D; i++)
        acc[i] = (int64_t)(samples_u64() >> 32) - 0x80000000LL; /* just fits */
    acc[3 * D + 20] = 0x80000000LL;                             /* just does not */
    acc[4 * D] = -0x80000001LL;
    acc[5 * D + 7] = (1LL << 50) - 1;
    size_t size = k->sums_pack(NULL, wire, flags, acc, T, D);
    assert_int_equal(size, ref->sums_pack(NULL, ref_wire, ref_flags, acc, T, D));
    assert_int_equal(size, 6 * D * 4 + 3 * D * 8);
    assert_memory_equal(wire, ref_wire, size);
    assert_memory_equal(flags, ref_flags, T);
    assert_int_equal(flags[0], 1); /* sticky errors pass through */
    assert_int_equal(flags[1], 0);
    assert_int_equal(flags[4], 2);

    assert_true(k->sums_add(NULL, back, wire, size, flags, T, D));
    assert_memory_equal(back, acc, sizeof(acc));
    assert_false(k->sums_add(NULL, back, wire, size - 4, flags, T, D));
    assert_false(k->sums_add(NULL, back, wire, size + 4, flags, T, D));
    assert_int_equal(k->sums_pack(NULL, wire, flags, acc, 0, D), 0);
    assert_true(k->sums_add(NULL, back, wire, 0, flags, 0, D));

    samples_fill(x, T * D, 1.0f);
    memcpy(expected, x, sizeof(x));
    for (int t = 0; t < T; t++)
        exponent[t] = t == 0 ? 127 : t == 1 ? -60 : t;
    k->residual_add(NULL, x, acc, exponent, T, D);
    ref->residual_add(NULL, expected, acc, exponent, T, D);
    assert_memory_equal(x, expected, sizeof(x)); /* exact */
}

static void sums_travel_without_loss(void **state)
{
    (void)state;
    for_each_variant(check_sums);
}

/* -- attention -- */

static void check_rope(const tr_kernels *k, const tr_kernels *ref)
{
    enum { DIMS = 26, HEADS = 3, DIM = 31, T = 40, LD = HEADS * DIM + 2 };
    uint32_t positions[T];
    float table[T * DIMS], ref_table[T * DIMS];
    float *x = samples_floats(T * LD), *y = samples_floats(T * LD);
    float divisors[DIMS / 2];
    const tr_rope_scaling scaling = {.gain = 1.25f, .count = DIMS / 2, .divisors = divisors};

    for (uint32_t t = 0; t < T; t++)
        positions[t] = t < 20 ? t : (uint32_t)(samples_u64() >> 44); /* to a million */
    for (uint32_t i = 0; i < DIMS / 2; i++)
        divisors[i] = 1 + (float)i / 3;
    for (int i = 0; i < 3; i++) {
        double theta = i == 0 ? 10000.0 : 1e6;
        k->rope_table(NULL, table, positions, theta, DIMS, i == 2 ? &scaling : NULL, T);
        ref->rope_table(NULL, ref_table, positions, theta, DIMS, i == 2 ? &scaling : NULL, T);
        check_relative("rope_table", table, ref_table, T * DIMS, 2); /* 1 ulp */
    }
    static const tr_rope_kind kinds[] = {TR_ROPE_NONE, TR_ROPE_HALF, TR_ROPE_INTERLEAVED};
    for (int i = 0; i < 3; i++) {
        samples_fill(x, T * LD, 1.0f);
        memcpy(y, x, T * LD * sizeof(float));
        k->rope(NULL, x, LD, HEADS, DIM, ref_table, DIMS, kinds[i], T);
        ref->rope(NULL, y, LD, HEADS, DIM, ref_table, DIMS, kinds[i], T);
        check_absolute("rope", x, y, T * LD, 3, 1.5); /* three roundings */
    }
    samples_free(x);
    samples_free(y);
}

static void rotary_positions_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_rope);
}

static void check_attention_of(const tr_kernels *k, const tr_kernels *ref, uint32_t dim,
                               uint32_t group, uint32_t first, uint32_t T)
{
    enum { PAGES = 4 };
    size_t page_floats = 2 * TR_KV_PAGE_TOKENS * (size_t)dim;
    float *memory = samples_floats(PAGES * page_floats + 1);
    uint8_t *pages[PAGES];
    uint32_t ld = group * dim + 7, total = first + T;
    float *kv_rows = samples_floats((total + 1) * 2 * dim);
    float *q = samples_floats((T + 1) * ld);
    float *out = samples_floats((T + 1) * ld), *expected = samples_floats((T + 1) * ld);
    void *scratch = aligned_alloc(64, (k->attention_scratch(dim, group, T, 1) + 63) / 64 * 64);
    void *ref_scratch = malloc(ref->attention_scratch(dim, group, T, 1));

    assert_true(scratch != NULL && ref_scratch != NULL);
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = (uint8_t *)(memory + 1 + i * page_floats); /* aligned to 4 only */
    for (size_t i = 0; i < PAGES * page_floats; i++)
        memory[1 + i] = NAN; /* what was not written must not be looked at */
    tr_kv_view kv = {.pages = pages, .pages_count = PAGES, .v_offset = page_floats * 2};
    samples_fill(kv_rows, total * 2 * dim, 1.0f);
    samples_fill(q, T * ld, 4.0f);
    k->kv_write(NULL, &kv, dim, kv_rows, kv_rows + dim, 2 * dim, 0, total);
    k->attention(NULL, out, ld, q, ld, &kv, group, dim, 0.7f, first, T, scratch);
    ref->attention(NULL, expected, ld, q, ld, &kv, group, dim, 0.7f, first, T, ref_scratch);
    /* scores reach 0.7 * 4 * dim with (dim / 16 + 7) u of error, which exp makes relative; the sum
     * over keys adds one rounding per key at most. Values are below 1. */
    double score = 0.7 * 4 * dim;
    check_absolute("attention", out, expected, T * ld, score * (dim / 16 + 7) + total + 20, 1.0);
    free(scratch);
    free(ref_scratch);
    samples_free(memory);
    samples_free(kv_rows);
    samples_free(q);
    samples_free(out);
    samples_free(expected);
}

static void check_attention(const tr_kernels *k, const tr_kernels *ref)
{
    static const uint32_t firsts[] = {0, 1, 62, 64, 100};

    for (size_t i = 0; i < 5; i++) {
        for (size_t t = 0; t < ROWS_COUNT; t++)
            check_attention_of(k, ref, 16, 2, firsts[i], ROWS[t]);
        check_attention_of(k, ref, 21, 1, firsts[i], 70);
        check_attention_of(k, ref, 128, 8, firsts[i], 3);
        check_attention_of(k, ref, 5, 3, firsts[i], 9);
    }
}

static void attention_agrees_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_attention);
}

/* -- Kimi delta attention -- */

static void check_conv(const tr_kernels *k, const tr_kernels *ref)
{
    enum { C = 45, LD = C + 2 };

    for (uint32_t taps = 1; taps <= 5; taps += 1) {
        for (size_t i = 0; i < ROWS_COUNT; i++) {
            uint32_t T = ROWS[i];
            float *x = samples_floats((T + 1) * LD), *a = samples_floats((T + 1) * LD);
            float *b = samples_floats((T + 1) * LD), *weight = samples_floats(C * taps);
            float *sa = samples_floats(taps * C), *sb = samples_floats(taps * C);
            samples_fill(x, T * LD, 2.0f);
            samples_fill(weight, C * taps, 1.0f);
            samples_fill(sa, (taps - 1) * C, 2.0f);
            memcpy(sb, sa, (taps - 1) * C * sizeof(float));
            k->conv_silu(NULL, a, x, LD, weight, sa, taps, T, C);
            ref->conv_silu(NULL, b, x, LD, weight, sb, taps, T, C);
            /* the sum: taps roundings of at most 2 taps; silu grows an error by at most 1.1 */
            check_absolute("conv_silu", a, b, T * LD, 1.1 * taps + 10, 2.0 * taps);
            check_relative("conv state", sa, sb, (taps - 1) * C, 0);
            if (T == 1) { /* in place */
                memcpy(sa, sb, (taps - 1) * C * sizeof(float));
                k->conv_silu(NULL, a, x, LD, weight, sa, taps, T, C);
                k->conv_silu(NULL, x, x, LD, weight, sb, taps, T, C);
                assert_memory_equal(a, x, C * sizeof(float));
                assert_memory_equal(sa, sb, (taps - 1) * C * sizeof(float));
            }
            samples_free(x);
            samples_free(a);
            samples_free(b);
            samples_free(weight);
            samples_free(sa);
            samples_free(sb);
        }
    }
}

static void convolution_agrees_with_ref_and_keeps_the_last_rows(void **state)
{
    (void)state;
    for_each_variant(check_conv);
}

static void check_gate(const tr_kernels *k, const tr_kernels *ref)
{
    enum { HEADS = 2, DIM = 23, T = 7, LD = HEADS * DIM + 1 };
    float *r = samples_floats(T * LD), *s = samples_floats(T * LD);
    float bias[HEADS * DIM];
    static const float a[HEADS] = {-0.3f, -5.0f};

    samples_fill(r, T * LD, 60.0f);
    samples_fill(bias, HEADS * DIM, 40.0f);
    memcpy(s, r, T * LD * sizeof(float));
    k->kda_gate(NULL, r, LD, bias, a, HEADS, DIM, T);
    ref->kda_gate(NULL, s, LD, bias, a, HEADS, DIM, T);
    /* u up to 100 is off by half an ulp (100 u); e^u, for u < 0, makes that relative */
    check_relative("kda_gate", r, s, T * LD, 110);
    samples_free(r);
    samples_free(s);
}

static void decay_gate_agrees_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_gate);
}

typedef struct {
    uint32_t heads, D, T, ld;
    float *q, *k, *v, *g, *beta, *state;
} kda_sample;

static kda_sample kda_sample_make(uint32_t heads, uint32_t D, uint32_t T, float decay)
{
    kda_sample s = {.heads = heads, .D = D, .T = T, .ld = heads * D + 3};
    size_t count = (size_t)(T + 1) * s.ld;
    s.q = samples_floats(count);
    s.k = samples_floats(count);
    s.v = samples_floats(count);
    s.g = samples_floats(count);
    s.beta = samples_floats((size_t)(T + 1) * heads);
    s.state = samples_floats((size_t)heads * D * D);
    samples_fill(s.q, T * s.ld, 1.0f);
    samples_fill(s.k, T * s.ld, 1.0f);
    samples_fill(s.v, T * s.ld, 1.0f);
    samples_fill(s.state, (size_t)heads * D * D, 0.5f);
    for (size_t i = 0; i < T * s.ld; i++)
        s.g[i] = -fabsf(samples_float(decay));
    for (size_t i = 0; i < T * heads; i++)
        s.beta[i] = 1.0f + samples_float(1.0f);
    samples_ref()->l2_norm(NULL, s.q, s.ld, heads, D, 1e-6f, 1.0f / sqrtf((float)D), T);
    samples_ref()->l2_norm(NULL, s.k, s.ld, heads, D, 1e-6f, 1.0f, T);
    return s;
}

static void kda_sample_free(kda_sample *s)
{
    samples_free(s->q);
    samples_free(s->k);
    samples_free(s->v);
    samples_free(s->g);
    samples_free(s->beta);
    samples_free(s->state);
}

static void check_kda_of(const tr_kernels *k, const tr_kernels *ref, uint32_t heads, uint32_t D,
                         uint32_t T, float decay)
{
    kda_sample s = kda_sample_make(heads, D, T, decay);
    size_t states = (size_t)heads * D * D;
    float *out = samples_floats((T + 1) * s.ld), *expected = samples_floats((T + 1) * s.ld);
    float *state = samples_floats(states), *ref_state = samples_floats(states);
    void *scratch = aligned_alloc(64, (k->kda_chunk_scratch(D, 1) + 63) / 64 * 64);

    assert_non_null(scratch);
    memcpy(ref_state, s.state, states * sizeof(float));
    ref->kda_recurrent(NULL, expected, s.q, s.k, s.v, s.g, s.ld, s.beta, heads, ref_state, heads, D,
                       T);
    for (int chunked = 0; chunked < 2; chunked++) {
        memcpy(state, s.state, states * sizeof(float));
        if (!chunked)
            k->kda_recurrent(NULL, out, s.q, s.k, s.v, s.g, s.ld, s.beta, heads, state, heads, D,
                             T);
        for (uint32_t t = 0; chunked && t < T; t += TR_CHUNK_ROWS) {
            uint32_t n = T - t < TR_CHUNK_ROWS ? T - t : TR_CHUNK_ROWS;
            size_t at = (size_t)t * s.ld;
            k->kda_chunk(NULL, out + at, s.q + at, s.k + at, s.v + at, s.g + at, s.ld,
                         s.beta + (size_t)t * heads, heads, state, heads, D, n, scratch);
        }
        /* about a hundred roundings of terms below 1, damped by decay: 1e-5 as promised */
        for (uint32_t t = 0; t < T; t++)
            check_absolute(chunked ? "kda_chunk" : "kda_recurrent", out + t * s.ld,
                           expected + t * s.ld, heads * D, 167, 1.0);
        check_absolute(chunked ? "chunk state" : "recurrent state", state, ref_state, states, 167,
                       1.0);
    }
    free(scratch);
    samples_free(out);
    samples_free(expected);
    samples_free(state);
    samples_free(ref_state);
    kda_sample_free(&s);
}

static void check_kda(const tr_kernels *k, const tr_kernels *ref)
{
    static const uint32_t rows[] = {0, 1, 4, 15, 16, 17, 33, 63, 64, 65, 130};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_kda_of(k, ref, 2, 32, rows[i], 0.3f);
        check_kda_of(k, ref, 1, 37, rows[i], 5.0f);
        check_kda_of(k, ref, 1, 16, rows[i], 0.0f); /* nothing decays */
    }
    check_kda_of(k, ref, 1, 128, 64, 0.2f);
    check_kda_of(k, ref, 1, 20, 64, 60.0f); /* the sums of g reach -2,000 */
}

static void recurrence_and_chunks_agree_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_kda);
}

/* Three rows of one head of two dimensions, against given numbers. */
static void check_micro(const tr_kernels *k, const tr_kernels *ref)
{
    const float r = 0.70710678f;
    const float q[] = {0.6f * r, 0.8f * r, r, 0, 0, r};
    const float key[] = {0, 1, 0.6f, 0.8f, 1, 0};
    const float v[] = {1, -2, 0.5f, 0.25f, -1, 3};
    const float g[] = {logf(0.5f), logf(0.25f), logf(0.5f), 0, logf(0.25f), logf(0.5f)};
    const float beta[] = {1, 1.5f, 0.5f};
    static const float out_expected[] = {0.565685425f, -1.13137085f, -0.190918831f,
                                         1.17733279f,  0.22627417f,  0.077781746f};
    static const float state_expected[] = {-0.53375f, 1.708125f, 0.32f, 0.11f};
    void *scratch = aligned_alloc(64, (k->kda_chunk_scratch(2, 1) + 63) / 64 * 64 + 64);
    (void)ref;

    assert_non_null(scratch);
    for (int mode = 0; mode < 3; mode++) {
        float out[6], state[4] = {0};
        if (mode == 0) {
            k->kda_recurrent(NULL, out, q, key, v, g, 2, beta, 1, state, 1, 2, 3);
        } else if (mode == 1) {
            k->kda_chunk(NULL, out, q, key, v, g, 2, beta, 1, state, 1, 2, 3, scratch);
        } else {
            k->kda_chunk(NULL, out, q, key, v, g, 2, beta, 1, state, 1, 2, 2, scratch);
            k->kda_chunk(NULL, out + 4, q + 4, key + 4, v + 4, g + 4, 2, beta + 2, 1, state, 1, 2,
                         1, scratch);
        }
        check_absolute("micro out", out, out_expected, 6, 8, 2.0);
        check_absolute("micro state", state, state_expected, 4, 8, 2.0);
    }
    free(scratch);
}

static void the_micro_test_of_the_recurrence_holds(void **state)
{
    (void)state;
    for_each_variant(check_micro);
    check_micro(samples_ref(), samples_ref());
}

/* -- routing -- */

static void check_route_of(const tr_kernels *k, const tr_kernels *ref, const tr_route_params *p,
                           uint32_t T, bool biased)
{
    float *logits = samples_floats((T + 1) * p->experts), *bias = samples_floats(p->experts);
    uint32_t *expert = calloc((T + 1) * p->top_k, sizeof(*expert));
    uint32_t *ref_expert = calloc((T + 1) * p->top_k, sizeof(*expert));
    float *weight = samples_floats((T + 1) * p->top_k);
    float *ref_weight = samples_floats((T + 1) * p->top_k);

    assert_true(expert != NULL && ref_expert != NULL);
    samples_fill(logits, T * p->experts, 3.0f);
    samples_fill(bias, p->experts, 0.2f);
    k->route(NULL, expert, weight, logits, biased ? bias : NULL, p, T);
    ref->route(NULL, ref_expert, ref_weight, logits, biased ? bias : NULL, p, T);
    for (uint32_t i = 0; i < T * p->top_k; i++)
        assert_int_equal(expert[i], ref_expert[i]);
    /* a score has 6 u and a softmax's total experts / 16 + 8 more; the same again in the sum */
    check_relative("route", weight, ref_weight, T * p->top_k, p->experts / 8.0 + 30);
    samples_free(logits);
    samples_free(bias);
    samples_free(weight);
    samples_free(ref_weight);
    free(expert);
    free(ref_expert);
}

static void check_route(const tr_kernels *k, const tr_kernels *ref)
{
    tr_route_params p = {.experts = 40, .top_k = 6, .groups = 1, .top_groups = 1, .scaling = 1.0f};

    for (int i = 0; i < 16; i++) {
        p.score = i & 1 ? TR_SCORE_SOFTMAX : TR_SCORE_SIGMOID;
        p.norm_top_k = (i & 2) != 0;
        p.scaling = i & 2 ? 2.5f : 1.0f;
        p.groups = i & 4 ? 5 : 1;
        p.top_groups = i & 4 ? 2 : 1;
        for (size_t t = 0; t < ROWS_COUNT; t++)
            check_route_of(k, ref, &p, ROWS[t], (i & 8) != 0);
    }
    p = (tr_route_params){.experts = 320, .top_k = 8, .groups = 1, .top_groups = 1, .scaling = 1};
    check_route_of(k, ref, &p, 64, true);
    p = (tr_route_params){.experts = 3, .top_k = 3, .groups = 3, .top_groups = 3, .scaling = 1};
    check_route_of(k, ref, &p, 5, true);
}

static void routing_agrees_with_ref(void **state)
{
    (void)state;
    for_each_variant(check_route);
}

static void check_route_edges(const tr_kernels *k, const tr_kernels *ref)
{
    enum { E = 20 };
    float logits[3 * E] = {0};
    uint32_t expert[3 * 4];
    float weight[3 * 4];
    tr_route_params p = {.experts = E,
                         .top_k = 4,
                         .groups = 1,
                         .top_groups = 1,
                         .norm_top_k = true,
                         .scaling = 1.0f};
    (void)ref;

    logits[E + 17] = NAN;      /* row 1 */
    logits[2 * E + 19] = 1.0f; /* row 2: 19, then ties */
    for (int i = 0; i < 2; i++) {
        k->route(NULL, expert, weight, logits, NULL, &p, 3);
        for (uint32_t j = 0; j < 4; j++) {
            assert_int_equal(expert[j], j);
            check_near("tie", j, weight[j], 0.25, 1e-7);
            assert_int_equal(expert[4 + j], j);
            assert_true(isnan(weight[4 + j]));
            assert_int_equal(expert[8 + j], j == 0 ? 19 : j - 1);
        }
        p.score = TR_SCORE_SOFTMAX;
    }
}

static void ties_go_to_the_lowest_expert_and_nan_is_passed_on(void **state)
{
    (void)state;
    for_each_variant(check_route_edges);
    check_route_edges(samples_ref(), samples_ref());
}

/* -- registry -- */

static void backends_are_found_by_name_and_others_are_refused(void **state)
{
    const tr_kernels *k = NULL;
    tr_error err = {0};
    (void)state;

    CHECK_STATUS(tr_kernels_find(&k, "cpu", &err), TR_OK);
    assert_ptr_equal(k, tr_kernels_best());
    CHECK_STATUS(tr_kernels_find(&k, "cpu-portable", &err), TR_OK);
    assert_string_equal(k->name, "cpu-portable");
    CHECK_STATUS(tr_kernels_find(&k, "abacus", &err), TR_E_NOTSUP);
    CHECK_ERR_NAMES(err, "abacus");
    assert_string_equal(tr_kernel_name(TR_KERNEL_MATMUL), "MATMUL");
    assert_string_equal(tr_kernel_name(9999), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backends_are_found_by_name_and_others_are_refused),
        cmocka_unit_test(norms_agree_with_ref),
        cmocka_unit_test(row_exponent_is_that_of_frexp),
        cmocka_unit_test(elementwise_operations_agree_with_ref),
        cmocka_unit_test(the_limit_binds_the_gate_from_above_and_up_on_both_sides),
        cmocka_unit_test(sums_travel_without_loss),
        cmocka_unit_test(rotary_positions_agree_with_ref),
        cmocka_unit_test(attention_agrees_with_ref),
        cmocka_unit_test(convolution_agrees_with_ref_and_keeps_the_last_rows),
        cmocka_unit_test(decay_gate_agrees_with_ref),
        cmocka_unit_test(recurrence_and_chunks_agree_with_ref),
        cmocka_unit_test(the_micro_test_of_the_recurrence_holds),
        cmocka_unit_test(routing_agrees_with_ref),
        cmocka_unit_test(ties_go_to_the_lowest_expert_and_nan_is_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
