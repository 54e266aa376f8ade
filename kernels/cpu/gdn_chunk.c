/* gdn_chunk.c - the chunked form of the gated delta rule, one value head at a time.
 *
 * With G_i the sum of g up to row i, e(i, j) = exp(G_i - G_j), and per row
 *
 *   A_ij = beta_i (k_i . k_j) e(i, j)   j < i         M_ij = (q_i . k_j) e(i, j)   j <= i
 *   (I + A) V' = R,   R_i = beta_i (v_i - e^G_i (k_i S))
 *   O = e^G (q S) + M V'                               S' = e^G_n S + k^T (e(n, i) V'_i)
 *
 * as in kda_chunk.c, but the decay is a number and not a vector, so it stands outside the products:
 * k_i . k_j and q_i . k_j are formed once for all value heads of a key head that a thread does in
 * turn. No exponent is positive; the sums of g are formed from the row where they begin, not as
 * differences of two long sums, which would lose digits. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/vmath.h"

#define ROWS TR_CHUNK_ROWS
#define SUB  16 /* rows whose products with keys are taken together */

static_assert(ROWS % SUB == 0, "sub-blocks");
static_assert(SUB % BLOCK_N == 0, "columns of A and M are computed in blocks");

/* Scratch of one thread; every matrix is row-major. */
typedef struct {
    size_t stride;         /* value_dim padded to 16 */
    float *keys;           /* [ROWS, key_dim padded to 16], zero rows up to a multiple of SUB */
    float *kk, *qk;        /* [ROWS, ROWS] products of a key head */
    float *A, *M;          /* [ROWS, ROWS] of a value head, A negated */
    float *delta;          /* [ROWS, stride] R, then V' */
    float *begin, *within; /* [ROWS] e^G_i, and e(i, j) for the row i at hand; last: e(n, j) */
    float *sums;           /* [ROWS] the sums of g behind `within` */
} gdn_scratch;

static size_t gdn_scratch_layout(gdn_scratch *s, float *base, const tr_gdn_shape *shape)
{
    size_t used = 0;

    s->stride = tr_round_up(shape->value_dim, 16);
#define TAKE(field, count) s->field = base == NULL ? NULL : base + used, used += (count)
    TAKE(keys, ROWS * tr_round_up(shape->key_dim, 16));
    TAKE(kk, ROWS * ROWS);
    TAKE(qk, ROWS * ROWS);
    TAKE(A, ROWS * ROWS);
    TAKE(M, ROWS * ROWS);
    TAKE(delta, ROWS * s->stride);
    TAKE(begin, ROWS);
    TAKE(within, ROWS);
    TAKE(sums, ROWS);
#undef TAKE
    return used;
}

size_t TR_CPU(gdn_chunk_scratch)(const tr_gdn_shape *shape, uint32_t threads)
{
    gdn_scratch s;
    return gdn_scratch_layout(&s, NULL, shape) * sizeof(float) * threads;
}

typedef struct {
    float *out;
    const float *q, *k;
    size_t ld_k;
    const float *v;
    size_t ld_v;
    const float *g, *beta;
    size_t ld_g;
    float *state;
    tr_gdn_shape shape;
    uint32_t T, parts;
    float *scratch;
} gdn_chunk_job;

/* One value head: pointers to its first row. */
typedef struct {
    float *out;
    const float *q, *k;
    size_t ld_k;
    const float *v;
    size_t ld_v;
    const float *g, *beta;
    size_t ld_g;
    float *state;
    uint32_t K, V, n; /* n rows */
} gdn_head;

/* kk and qk of a key head, for all columns of each row's sub-block and all before it. */
static void gdn_key_products(const gdn_head *h, gdn_scratch *s)
{
    _Alignas(64) float carry[2 * SUB][BLOCK_N][16];
    size_t stride = tr_round_up(h->K, 16);

    for (uint32_t i = 0; i < tr_round_up(h->n, SUB); i++) {
        if (i < h->n)
            memcpy(s->keys + i * stride, h->k + i * h->ld_k, h->K * sizeof(float));
        else
            memset(s->keys + i * stride, 0, h->K * sizeof(float));
    }
    for (uint32_t r = 0; r < h->n; r += SUB) {
        uint32_t count = h->n - r < SUB ? h->n - r : SUB;
        const float *x[2 * SUB];
        for (uint32_t i = 0; i < count; i++) {
            x[i] = s->keys + (r + i) * stride;
            x[count + i] = h->q + (r + i) * h->ld_k;
        }
        for (uint32_t j = 0; j < r + SUB; j += BLOCK_N) {
            block_dot(2 * count, carry[0][0], BLOCK_N * 16, x, s->keys + j * stride, stride, h->K,
                      true);
            for (uint32_t i = 0; i < count; i++) {
                vf_sum4(s->kk + (r + i) * ROWS + j, carry[i][0]);
                vf_sum4(s->qk + (r + i) * ROWS + j, carry[count + i][0]);
            }
        }
    }
}

/* A and M from the products, begin, and within of the last row. The columns of a sub-block past a
 * row's own are computed like the others and never used. */
static void gdn_decay(const gdn_head *h, gdn_scratch *s)
{
    float sum = 0;

    for (uint32_t i = 0; i < ROWS; i++)
        s->sums[i] = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        float g = h->g[i * h->ld_g];
        vf minus_beta = vf_set1(-h->beta[i * h->ld_g]);
        sum += g;
        s->begin[i] = sum;
        for (uint32_t j = 0; j < i; j++)
            s->sums[j] += g;
        for (uint32_t j = 0; j <= i; j += 16) {
            vf e = vf_exp(vf_load(s->sums + j));
            size_t at = (size_t)i * ROWS + j;
            vf_store(s->within + j, e);
            vf_store(s->A + at, vf_mul(minus_beta, vf_mul(vf_load(s->kk + at), e)));
            vf_store(s->M + at, vf_mul(vf_load(s->qk + at), e));
        }
    }
    for (uint32_t i = 0; i < h->n; i += 16) {
        uint32_t lanes = h->n - i < 16 ? h->n - i : 16;
        vf_store_n(s->begin + i, vf_exp(vf_load_n(s->begin + i, lanes)), lanes);
    }
}

/* row = factor * row, V columns. */
static void gdn_scale(float *row, float factor, uint32_t V)
{
    for (uint32_t d = 0; d < V; d += 16) {
        uint32_t lanes = V - d < 16 ? V - d : 16;
        vf_store_n(row + d, vf_mul(vf_set1(factor), vf_load_n(row + d, lanes)), lanes);
    }
}

/* delta = R, then the solution of (I + A) delta = R. */
static void gdn_solve(const gdn_head *h, gdn_scratch *s)
{
    uint32_t V = h->V;

    block_outer(h->n, V, s->delta, s->stride, h->k, h->ld_k, 1, h->state, V, h->K, true);
    for (uint32_t i = 0; i < h->n; i++) {
        vf beta = vf_set1(h->beta[i * h->ld_g]), begin = vf_set1(s->begin[i]);
        float *row = s->delta + i * s->stride;
        for (uint32_t d = 0; d < V; d += 16) {
            uint32_t lanes = V - d < 16 ? V - d : 16;
            vf seen = vf_mul(begin, vf_load_n(row + d, lanes));
            vf v = vf_load_n(h->v + i * h->ld_v + d, lanes);
            vf_store_n(row + d, vf_mul(beta, vf_sub(v, seen)), lanes);
        }
    }
    for (uint32_t r = 0; r < h->n; r += SUB) {
        uint32_t end = r + SUB < h->n ? r + SUB : h->n;
        block_outer(end - r, V, s->delta + r * s->stride, s->stride, s->A + r * ROWS, ROWS, 1,
                    s->delta, s->stride, r, false);
        for (uint32_t i = r + 1; i < end; i++)
            block_outer(1, V, s->delta + i * s->stride, s->stride, s->A + i * ROWS + r, ROWS, 1,
                        s->delta + r * s->stride, s->stride, i - r, false);
    }
}

static void gdn_output(const gdn_head *h, gdn_scratch *s)
{
    uint32_t V = h->V;

    block_outer(h->n, V, h->out, h->ld_v, h->q, h->ld_k, 1, h->state, V, h->K, true);
    for (uint32_t i = 0; i < h->n; i++)
        gdn_scale(h->out + i * h->ld_v, s->begin[i], V);
    for (uint32_t r = 0; r < h->n; r += SUB) {
        uint32_t end = r + SUB < h->n ? r + SUB : h->n;
        block_outer(end - r, V, h->out + r * h->ld_v, h->ld_v, s->M + r * ROWS, ROWS, 1, s->delta,
                    s->stride, r, false);
        for (uint32_t i = r; i < end; i++)
            block_outer(1, V, h->out + i * h->ld_v, h->ld_v, s->M + i * ROWS + r, ROWS, 1,
                        s->delta + r * s->stride, s->stride, i - r + 1, false);
    }
}

static void gdn_update_state(const gdn_head *h, gdn_scratch *s)
{
    for (uint32_t d = 0; d < h->K; d++)
        gdn_scale(h->state + (size_t)d * h->V, s->begin[h->n - 1], h->V);
    for (uint32_t i = 0; i < h->n; i++)
        gdn_scale(s->delta + i * s->stride, s->within[i], h->V);
    block_outer(h->K, h->V, h->state, h->V, h->k, 1, h->ld_k, s->delta, s->stride, h->n, false);
}

static void gdn_chunk_part(void *ctx, uint32_t part, uint32_t thread)
{
    const gdn_chunk_job *job = ctx;
    const tr_gdn_shape *shape = &job->shape;
    tr_range r = tr_range_of(shape->heads, 1, job->parts, part);
    gdn_scratch s;
    size_t floats = gdn_scratch_layout(&s, NULL, shape);

    gdn_scratch_layout(&s, job->scratch + thread * floats, shape);
    for (uint32_t i = r.begin; i < r.end; i++) {
        size_t key = (size_t)(i / shape->group) * shape->key_dim;
        size_t value = (size_t)i * shape->value_dim;
        gdn_head h = {.out = job->out + value,
                      .q = job->q + key,
                      .k = job->k + key,
                      .ld_k = job->ld_k,
                      .v = job->v + value,
                      .ld_v = job->ld_v,
                      .g = job->g + i,
                      .beta = job->beta + i,
                      .ld_g = job->ld_g,
                      .state = job->state + value * shape->key_dim,
                      .K = shape->key_dim,
                      .V = shape->value_dim,
                      .n = job->T};
        if (i == r.begin || i % shape->group == 0)
            gdn_key_products(&h, &s);
        gdn_decay(&h, &s);
        gdn_solve(&h, &s);
        gdn_output(&h, &s);
        gdn_update_state(&h, &s);
    }
}

void TR_CPU(gdn_chunk)(tr_team *team, float *out, const float *q, const float *k, size_t ld_k,
                       const float *v, size_t ld_v, const float *g, const float *beta, size_t ld_g,
                       float *state, const tr_gdn_shape *shape, uint32_t T, void *scratch)
{
    assert(T <= TR_CHUNK_ROWS);
    assert(out != v);
    assert(shape->heads % shape->group == 0);
    assert(T == 0 || ld_k >= (size_t)(shape->heads / shape->group) * shape->key_dim);
    assert(T == 0 || ld_v >= (size_t)shape->heads * shape->value_dim);
    gdn_chunk_job job = {.out = out,
                         .q = q,
                         .k = k,
                         .ld_k = ld_k,
                         .v = v,
                         .ld_v = ld_v,
                         .g = g,
                         .beta = beta,
                         .ld_g = ld_g,
                         .state = state,
                         .shape = *shape,
                         .T = T,
                         .scratch = scratch};
    uint64_t work =
        (uint64_t)T * shape->heads * (shape->key_dim * 3 + T) * ((uint64_t)shape->value_dim + T);

    if (work == 0)
        return;
    job.parts = tr_parts_for(team, shape->heads, work);
    tr_team_run(team, job.parts, gdn_chunk_part, &job);
}
