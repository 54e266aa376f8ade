/* kda_chunk.c - the chunked form of the recurrence (Kimi Linear), one head at a time.
 *
 * With G_i the sum of g up to row i, e(i, j) = exp(G_i - G_j), and per row
 *
 *   A_ij = beta_i sum_d k_i k_j e(i, j)   j < i        M_ij = sum_d q_i k_j e(i, j)   j <= i
 *   (I + A) V' = R,   R_i = beta_i (v_i - (k_i e^G_i) S)
 *   O = (q e^G) S + M V'                                S' = e^G_n S + (k_i e(n, i))^T V'
 *
 * (Published as V' = U - W S with the inverse of I + A. Forward substitution gives the same
 * solution with fewer operations.)
 *
 * No exponent is ever positive. Rows go in sub-blocks of 16. Between sub-blocks, with r the first
 * row of the later one, e(i, j) = exp(g_r + ... + g_i) exp(g_j+1 + ... + g_r-1): two factors that
 * are at most one, each of which belongs to one row, so that the sum over d is a product of
 * matrices. Within a sub-block e(i, j) is formed element by element. The sums of g are formed
 * from the row where they begin, not as differences of two long sums, which would lose digits. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/vmath.h"

#define ROWS TR_CHUNK_ROWS
#define SUB  16

static_assert(ROWS % SUB == 0, "sub-blocks");
static_assert(SUB % BLOCK_N == 0, "columns of A and M are computed in blocks");

/* Scratch of one thread; every matrix is row-major. D is padded to 16 in `stride`. */
typedef struct {
    size_t stride;
    float *k_in, *q_in; /* [ROWS, stride] k_i e^G_i, q_i e^G_i */
    float *k_out;       /* [ROWS, stride] k_j e(r - 1, j), then k_i e(n, i) */
    float *rows;        /* [2 SUB, stride] k_i, then q_i of a sub-block, times e(i, r - 1) */
    float *delta;       /* [ROWS, stride] R, then V' */
    float *run;         /* [stride] running sum of g */
    float *A, *M;       /* [ROWS, ROWS], A negated */
} chunk_scratch;

static size_t chunk_scratch_layout(chunk_scratch *s, float *base, uint32_t D)
{
    size_t stride = tr_round_up(D, 16);
    size_t matrix = ROWS * stride;
    size_t used = 0;

    s->stride = stride;
#define TAKE(field, count) s->field = base == NULL ? NULL : base + used, used += (count)
    TAKE(k_in, matrix);
    TAKE(q_in, matrix);
    TAKE(k_out, matrix);
    TAKE(rows, 2 * SUB * stride);
    TAKE(delta, matrix);
    TAKE(run, stride);
    TAKE(A, ROWS * ROWS);
    TAKE(M, ROWS * ROWS);
#undef TAKE
    return used;
}

size_t TR_CPU(kda_chunk_scratch)(uint32_t D, uint32_t threads)
{
    chunk_scratch s;
    return chunk_scratch_layout(&s, NULL, D) * sizeof(float) * threads;
}

typedef struct {
    float *out;
    const float *q, *k, *v, *g;
    size_t ld;
    const float *beta;
    size_t ld_beta;
    float *state;
    uint32_t heads, D, T, parts;
    float *scratch;
} chunk_job;

/* One head: pointers to its first row. */
typedef struct {
    float *out;
    const float *q, *k, *v, *g;
    size_t ld;
    const float *beta;
    size_t ld_beta;
    float *state;
    uint32_t D, n; /* n rows */
} chunk_head;

static uint32_t chunk_lanes(uint32_t D, uint32_t d)
{
    return D - d < 16 ? D - d : 16;
}

static void chunk_clear(float *run, uint32_t D)
{
    for (uint32_t d = 0; d < D; d += 16)
        vf_store(run + d, vf_zero());
}

/* run += g of row i; then x_out = x e^run for one or two rows x. */
static void chunk_advance(const chunk_head *h, float *run, uint32_t i)
{
    for (uint32_t d = 0; d < h->D; d += 16)
        vf_store(run + d,
                 vf_add(vf_load(run + d), vf_load_n(h->g + i * h->ld + d, chunk_lanes(h->D, d))));
}

static void chunk_decay(const chunk_head *h, float *out, const float *x, const float *run)
{
    for (uint32_t d = 0; d < h->D; d += 16) {
        uint32_t lanes = chunk_lanes(h->D, d);
        vf_store_n(out + d, vf_mul(vf_load_n(x + d, lanes), vf_exp(vf_load(run + d))), lanes);
    }
}

/* A and M between the rows of the sub-block [r, end) and all rows before it. */
static void chunk_off_diagonal(const chunk_head *h, chunk_scratch *s, uint32_t r, uint32_t end)
{
    _Alignas(64) float carry[2 * SUB][BLOCK_N][16];
    const float *x[2 * SUB];
    uint32_t count = end - r;

    chunk_clear(s->run, h->D);
    for (uint32_t i = 0; i < count; i++) {
        x[i] = s->rows + i * s->stride;
        x[count + i] = s->rows + (SUB + i) * s->stride;
        chunk_advance(h, s->run, r + i);
        chunk_decay(h, s->rows + i * s->stride, h->k + (r + i) * h->ld, s->run);
        chunk_decay(h, s->rows + (SUB + i) * s->stride, h->q + (r + i) * h->ld, s->run);
    }
    chunk_clear(s->run, h->D);
    for (uint32_t j = r; j-- > 0;) {
        chunk_decay(h, s->k_out + j * s->stride, h->k + j * h->ld, s->run);
        chunk_advance(h, s->run, j);
    }
    for (uint32_t j = 0; j < r; j += BLOCK_N) {
        block_dot(2 * count, carry[0][0], BLOCK_N * 16, x, s->k_out + j * s->stride, s->stride,
                  h->D, true);
        for (uint32_t i = 0; i < count; i++) {
            float *a = s->A + (r + i) * ROWS + j;
            vf_sum4(a, carry[i][0]);
            vf_sum4(s->M + (r + i) * ROWS + j, carry[count + i][0]);
            for (int n = 0; n < BLOCK_N; n++)
                a[n] = -h->beta[(r + i) * h->ld_beta] * a[n];
        }
    }
}

/* A and M within the sub-block [r, end). */
static void chunk_diagonal(const chunk_head *h, chunk_scratch *s, uint32_t r, uint32_t end)
{
    for (uint32_t j = r; j < end; j++) {
        const float *kj = h->k + j * h->ld;
        chunk_clear(s->run, h->D);
        for (uint32_t i = j; i < end; i++) {
            const float *ki = h->k + i * h->ld, *qi = h->q + i * h->ld;
            vf a = vf_zero(), m = vf_zero();
            if (i > j)
                chunk_advance(h, s->run, i);
            for (uint32_t d = 0; d < h->D; d += 16) {
                uint32_t lanes = chunk_lanes(h->D, d);
                vf decayed = vf_mul(vf_load_n(kj + d, lanes), vf_exp(vf_load(s->run + d)));
                a = vf_fma(vf_load_n(ki + d, lanes), decayed, a);
                m = vf_fma(vf_load_n(qi + d, lanes), decayed, m);
            }
            s->A[i * ROWS + j] = -h->beta[i * h->ld_beta] * vf_sum(a);
            s->M[i * ROWS + j] = vf_sum(m);
        }
    }
}

/* delta = R, then the solution of (I + A) delta = R. */
static void chunk_solve(const chunk_head *h, chunk_scratch *s)
{
    uint32_t D = h->D;

    block_outer(h->n, D, s->delta, s->stride, s->k_in, s->stride, 1, h->state, D, D, true);
    for (uint32_t i = 0; i < h->n; i++) {
        vf beta = vf_set1(h->beta[i * h->ld_beta]);
        float *row = s->delta + i * s->stride;
        for (uint32_t d = 0; d < D; d += 16) {
            uint32_t lanes = chunk_lanes(D, d);
            vf v = vf_load_n(h->v + i * h->ld + d, lanes);
            vf_store_n(row + d, vf_mul(beta, vf_sub(v, vf_load_n(row + d, lanes))), lanes);
        }
    }
    for (uint32_t r = 0; r < h->n; r += SUB) {
        uint32_t end = r + SUB < h->n ? r + SUB : h->n;
        block_outer(end - r, D, s->delta + r * s->stride, s->stride, s->A + r * ROWS, ROWS, 1,
                    s->delta, s->stride, r, false);
        for (uint32_t i = r + 1; i < end; i++)
            block_outer(1, D, s->delta + i * s->stride, s->stride, s->A + i * ROWS + r, ROWS, 1,
                        s->delta + r * s->stride, s->stride, i - r, false);
    }
}

static void chunk_output(const chunk_head *h, chunk_scratch *s)
{
    uint32_t D = h->D;

    block_outer(h->n, D, h->out, h->ld, s->q_in, s->stride, 1, h->state, D, D, true);
    for (uint32_t r = 0; r < h->n; r += SUB) {
        uint32_t end = r + SUB < h->n ? r + SUB : h->n;
        block_outer(end - r, D, h->out + r * h->ld, h->ld, s->M + r * ROWS, ROWS, 1, s->delta,
                    s->stride, r, false);
        for (uint32_t i = r; i < end; i++)
            block_outer(1, D, h->out + i * h->ld, h->ld, s->M + i * ROWS + r, ROWS, 1,
                        s->delta + r * s->stride, s->stride, i - r + 1, false);
    }
}

/* run holds the sum of g over all rows. */
static void chunk_update_state(const chunk_head *h, chunk_scratch *s)
{
    uint32_t D = h->D;
    float *decay = s->rows;

    for (uint32_t d = 0; d < D; d += 16)
        vf_store(decay + d, vf_exp(vf_load(s->run + d)));
    for (uint32_t d = 0; d < D; d++) {
        float *row = h->state + (size_t)d * D;
        for (uint32_t c = 0; c < D; c += 16) {
            uint32_t lanes = chunk_lanes(D, c);
            vf_store_n(row + c, vf_mul(vf_set1(decay[d]), vf_load_n(row + c, lanes)), lanes);
        }
    }
    chunk_clear(s->run, D);
    for (uint32_t i = h->n; i-- > 0;) {
        chunk_decay(h, s->k_out + i * s->stride, h->k + i * h->ld, s->run);
        chunk_advance(h, s->run, i);
    }
    block_outer(D, D, h->state, D, s->k_out, 1, s->stride, s->delta, s->stride, h->n, false);
}

static void chunk_run(const chunk_head *h, chunk_scratch *s)
{
    for (uint32_t r = 0; r < h->n; r += SUB) {
        uint32_t end = r + SUB < h->n ? r + SUB : h->n;
        if (r > 0)
            chunk_off_diagonal(h, s, r, end);
        chunk_diagonal(h, s, r, end);
    }
    chunk_clear(s->run, h->D);
    for (uint32_t i = 0; i < h->n; i++) {
        chunk_advance(h, s->run, i);
        chunk_decay(h, s->k_in + i * s->stride, h->k + i * h->ld, s->run);
        chunk_decay(h, s->q_in + i * s->stride, h->q + i * h->ld, s->run);
    }
    chunk_solve(h, s);
    chunk_output(h, s);
    chunk_update_state(h, s);
}

static void chunk_part(void *ctx, uint32_t part, uint32_t thread)
{
    const chunk_job *job = ctx;
    tr_range r = tr_range_of(job->heads, 1, job->parts, part);
    chunk_scratch s;
    size_t floats = chunk_scratch_layout(&s, NULL, job->D);

    chunk_scratch_layout(&s, job->scratch + thread * floats, job->D);
    for (uint32_t i = r.begin; i < r.end; i++) {
        size_t at = (size_t)i * job->D;
        chunk_head h = {.out = job->out + at,
                        .q = job->q + at,
                        .k = job->k + at,
                        .v = job->v + at,
                        .g = job->g + at,
                        .ld = job->ld,
                        .beta = job->beta + i,
                        .ld_beta = job->ld_beta,
                        .state = job->state + at * job->D,
                        .D = job->D,
                        .n = job->T};
        chunk_run(&h, &s);
    }
}

void TR_CPU(kda_chunk)(tr_team *team, float *out, const float *q, const float *k, const float *v,
                       const float *g, size_t ld, const float *beta, size_t ld_beta, float *state,
                       uint32_t heads, uint32_t D, uint32_t T, void *scratch)
{
    assert(T <= TR_CHUNK_ROWS);
    assert(D <= TR_KDA_DIM_MAX);
    assert(T == 0 || ld >= (size_t)heads * D);
    chunk_job job = {.out = out,
                     .q = q,
                     .k = k,
                     .v = v,
                     .g = g,
                     .ld = ld,
                     .beta = beta,
                     .ld_beta = ld_beta,
                     .state = state,
                     .heads = heads,
                     .D = D,
                     .T = T,
                     .scratch = scratch};

    if (T == 0 || heads == 0 || D == 0)
        return;
    job.parts = tr_parts_for(team, heads, (uint64_t)heads * D * (3 * D + 3 * T) * T);
    tr_team_run(team, job.parts, chunk_part, &job);
}
