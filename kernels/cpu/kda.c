/* kda.c - Kimi delta attention, row after row: convolution, gate, recurrence. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#define TAPS_MAX 16
#define STRIPE   64 /* value columns of a state that are carried through all rows together */

/* -- convolution -- */

typedef struct {
    float *out;
    const float *x;
    size_t ld;
    const float *weight;
    float *state;
    uint32_t taps, T, C, parts;
} conv_job;

/* Row t of the input, where rows before 0 come from the state. */
static const float *conv_row(const conv_job *job, int64_t t)
{
    if (t < 0)
        return job->state + (size_t)(t + job->taps - 1) * job->C;
    return job->x + (size_t)t * job->ld;
}

/* Sixteen channels from c (the first `lanes` of them), all rows. */
static void conv_channels(const conv_job *job, uint32_t c, uint32_t lanes)
{
    uint32_t history = job->taps - 1;
    vf weight[TAPS_MAX], next[TAPS_MAX];

    for (uint32_t j = 0; j < job->taps; j++) {
        float column[16] = {0};
        for (uint32_t l = 0; l < lanes; l++)
            column[l] = job->weight[(size_t)(c + l) * job->taps + j];
        weight[j] = vf_load(column);
    }
    /* the new state is read before out is written, which may be x when T is 1 */
    for (uint32_t j = 0; j < history; j++)
        next[j] = vf_load_n(conv_row(job, (int64_t)job->T - history + j) + c, lanes);
    for (uint32_t t = 0; t < job->T; t++) {
        vf acc = vf_zero();
        for (uint32_t j = 0; j < job->taps; j++)
            acc = vf_fma(weight[j], vf_load_n(conv_row(job, (int64_t)t - history + j) + c, lanes),
                         acc);
        vf_store_n(job->out + t * job->ld + c, vf_silu(acc), lanes);
    }
    for (uint32_t j = 0; j < history; j++)
        vf_store_n(job->state + (size_t)j * job->C + c, next[j], lanes);
}

static void conv_part(void *ctx, uint32_t part, uint32_t thread)
{
    const conv_job *job = ctx;
    tr_range c = tr_range_of(job->C, 16, job->parts, part);
    (void)thread;

    for (; c.begin < c.end; c.begin += 16)
        conv_channels(job, c.begin, c.end - c.begin < 16 ? c.end - c.begin : 16);
}

void TR_CPU(conv_silu)(tr_team *team, float *out, const float *x, size_t ld, const float *weight,
                       float *state, uint32_t taps, uint32_t T, uint32_t C)
{
    assert(taps >= 1 && taps <= TAPS_MAX);
    assert(T == 0 || ld >= C);
    assert(T <= 1 || out != x);
    conv_job job = {.out = out,
                    .x = x,
                    .ld = ld,
                    .weight = weight,
                    .state = state,
                    .taps = taps,
                    .T = T,
                    .C = C};

    if (T == 0 || C == 0)
        return;
    job.parts = tr_parts_for(team, (C + 15) / 16, (uint64_t)T * C * (8 + taps));
    tr_team_run(team, job.parts, conv_part, &job);
}

/* -- gate -- */

typedef struct {
    float *r;
    size_t ld;
    const float *dt_bias, *a;
    float bound; /* 0: none */
    uint32_t heads, head_dim, T, parts;
} gate_job;

static void gate_part(void *ctx, uint32_t part, uint32_t thread)
{
    const gate_job *job = ctx;
    tr_range range = tr_range_of(job->T, 1, job->parts, part);
    (void)thread;

    for (uint32_t t = range.begin; t < range.end; t++) {
        for (uint32_t h = 0; h < job->heads; h++) {
            float *r = job->r + t * job->ld + (size_t)h * job->head_dim;
            const float *bias = job->dt_bias + (size_t)h * job->head_dim;
            vf a = vf_set1(job->a[h]), bound = vf_set1(job->bound);
            for (uint32_t d = 0; d < job->head_dim; d += 16) {
                uint32_t n = job->head_dim - d < 16 ? job->head_dim - d : 16;
                vf u = vf_add(vf_load_n(r + d, n), vf_load_n(bias + d, n));
                vf g = job->bound != 0 ? vf_mul(bound, vf_sigmoid(vf_mul(a, u)))
                                       : vf_mul(a, vf_softplus(u));
                vf_store_n(r + d, g, n);
            }
        }
    }
}

static void gate_run(tr_team *team, gate_job *job)
{
    assert(job->T == 0 || job->ld >= (size_t)job->heads * job->head_dim);
    if (job->T == 0)
        return;
    job->parts = tr_parts_for(team, job->T, (uint64_t)job->T * job->heads * job->head_dim * 12);
    tr_team_run(team, job->parts, gate_part, job);
}

void TR_CPU(kda_gate)(tr_team *team, float *r, size_t ld, const float *dt_bias, const float *a,
                      uint32_t heads, uint32_t head_dim, uint32_t T)
{
    gate_job job = {
        .r = r, .ld = ld, .dt_bias = dt_bias, .a = a, .heads = heads, .head_dim = head_dim, .T = T};
    gate_run(team, &job);
}

void TR_CPU(kda_gate_bounded)(tr_team *team, float *r, size_t ld, const float *dt_bias,
                              const float *a, float bound, uint32_t heads, uint32_t head_dim,
                              uint32_t T)
{
    assert(bound < 0);
    gate_job job = {.r = r,
                    .ld = ld,
                    .dt_bias = dt_bias,
                    .a = a,
                    .bound = bound,
                    .heads = heads,
                    .head_dim = head_dim,
                    .T = T};
    gate_run(team, &job);
}

/* -- recurrence -- */

typedef struct {
    float *out;
    const float *q, *k, *v, *g;
    size_t ld;
    const float *beta;
    size_t ld_beta;
    float *state;
    uint32_t heads, D, T, parts;
} recurrent_job;

/* One row of N x 16 columns of a head's state (`last` lanes of the last sixteen). alpha = exp(g).
 * The decayed state is computed twice, with the same bits, rather than written twice. */
V16 void recurrent_row(int N, uint32_t last, float *out, const float *q, const float *k,
                       const float *v, const float *alpha, float beta, float *state, uint32_t D)
{
    vf m[STRIPE / 16], o[STRIPE / 16];

    TR_UNROLL(4)
    for (int n = 0; n < N; n++)
        m[n] = o[n] = vf_zero();
    for (uint32_t d = 0; d < D; d++) {
        const float *s = state + (size_t)d * D;
        vf decay = vf_set1(alpha[d]), kd = vf_set1(k[d]);
        TR_UNROLL(4)
        for (int n = 0; n < N; n++) {
            vf sn = n == N - 1 ? vf_load_n(s + n * 16, last) : vf_load(s + n * 16);
            m[n] = vf_fma(kd, vf_mul(decay, sn), m[n]);
        }
    }
    TR_UNROLL(4)
    for (int n = 0; n < N; n++) {
        vf vn_row = n == N - 1 ? vf_load_n(v + n * 16, last) : vf_load(v + n * 16);
        m[n] = vf_mul(vf_set1(beta), vf_sub(vn_row, m[n])); /* delta */
    }
    for (uint32_t d = 0; d < D; d++) {
        float *s = state + (size_t)d * D;
        vf decay = vf_set1(alpha[d]), kd = vf_set1(k[d]), qd = vf_set1(q[d]);
        TR_UNROLL(4)
        for (int n = 0; n < N; n++) {
            vf sn = n == N - 1 ? vf_load_n(s + n * 16, last) : vf_load(s + n * 16);
            sn = vf_fma(kd, m[n], vf_mul(decay, sn));
            o[n] = vf_fma(qd, sn, o[n]);
            if (n == N - 1)
                vf_store_n(s + n * 16, sn, last);
            else
                vf_store(s + n * 16, sn);
        }
    }
    TR_UNROLL(4)
    for (int n = 0; n < N; n++)
        vf_store_n(out + n * 16, o[n], n == N - 1 ? last : 16);
}

/* Columns of a state do not depend on each other: a stripe goes through all rows while it stays in
 * the first-level cache. */
static void recurrent_stripe(const recurrent_job *job, uint32_t head, uint32_t column)
{
    _Alignas(64) float alpha[TR_KDA_DIM_MAX];
    uint32_t D = job->D;
    uint32_t width = D - column < STRIPE ? D - column : STRIPE;
    uint32_t last = (width - 1) % 16 + 1;
    float *state = job->state + (size_t)head * D * D + column;

    for (uint32_t t = 0; t < job->T; t++) {
        size_t at = t * job->ld + (size_t)head * D;
        const float *q = job->q + at, *k = job->k + at, *v = job->v + at + column;
        float *out = job->out + at + column;
        float beta = job->beta[t * job->ld_beta + head];
        for (uint32_t d = 0; d < D; d += 16)
            vf_store(alpha + d, vf_exp(vf_load_n(job->g + at + d, D - d < 16 ? D - d : 16)));
        switch ((width + 15) / 16) {
        case 4:
            recurrent_row(4, last, out, q, k, v, alpha, beta, state, D);
            break;
        case 3:
            recurrent_row(3, last, out, q, k, v, alpha, beta, state, D);
            break;
        case 2:
            recurrent_row(2, last, out, q, k, v, alpha, beta, state, D);
            break;
        default:
            recurrent_row(1, last, out, q, k, v, alpha, beta, state, D);
        }
    }
}

static void recurrent_part(void *ctx, uint32_t part, uint32_t thread)
{
    const recurrent_job *job = ctx;
    uint32_t stripes = (job->D + STRIPE - 1) / STRIPE;
    tr_range r = tr_range_of(job->heads * stripes, 1, job->parts, part);
    (void)thread;

    for (uint32_t i = r.begin; i < r.end; i++)
        recurrent_stripe(job, i / stripes, i % stripes * STRIPE);
}

void TR_CPU(kda_recurrent)(tr_team *team, float *out, const float *q, const float *k,
                           const float *v, const float *g, size_t ld, const float *beta,
                           size_t ld_beta, float *state, uint32_t heads, uint32_t D, uint32_t T)
{
    assert(D <= TR_KDA_DIM_MAX);
    assert(T == 0 || ld >= (size_t)heads * D);
    recurrent_job job = {.out = out,
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
                         .T = T};

    if (T == 0 || heads == 0 || D == 0)
        return;
    uint64_t units = (uint64_t)heads * ((D + STRIPE - 1) / STRIPE);
    job.parts = tr_parts_for(team, units, (uint64_t)T * heads * D * D * 4);
    tr_team_run(team, job.parts, recurrent_part, &job);
}
