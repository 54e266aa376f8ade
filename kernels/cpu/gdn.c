/* gdn.c - the gated delta rule, row after row. Like the recurrence of kda.c, but a head has one
 * decay, so that it is taken out of the first sum, and value heads share keys. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#define STRIPE 64 /* value columns of a state that are carried through all rows together */

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
} gdn_job;

/* One row of N x 16 columns of a head's state (`last` lanes of the last sixteen). */
V16 void gdn_row(int N, uint32_t last, float *out, const float *q, const float *k, const float *v,
                 vf decay, float beta, float *state, const tr_gdn_shape *shape)
{
    vf m[STRIPE / 16], o[STRIPE / 16];

    TR_UNROLL(4)
    for (int n = 0; n < N; n++)
        m[n] = o[n] = vf_zero();
    for (uint32_t d = 0; d < shape->key_dim; d++) {
        const float *s = state + (size_t)d * shape->value_dim;
        vf kd = vf_set1(k[d]);
        TR_UNROLL(4)
        for (int n = 0; n < N; n++)
            m[n] = vf_fma(kd, n == N - 1 ? vf_load_n(s + n * 16, last) : vf_load(s + n * 16), m[n]);
    }
    TR_UNROLL(4)
    for (int n = 0; n < N; n++) {
        vf vn_row = n == N - 1 ? vf_load_n(v + n * 16, last) : vf_load(v + n * 16);
        m[n] = vf_mul(vf_set1(beta), vf_sub(vn_row, vf_mul(decay, m[n]))); /* delta */
    }
    for (uint32_t d = 0; d < shape->key_dim; d++) {
        float *s = state + (size_t)d * shape->value_dim;
        vf kd = vf_set1(k[d]), qd = vf_set1(q[d]);
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
static void gdn_stripe(const gdn_job *job, uint32_t head, uint32_t column)
{
    const tr_gdn_shape *shape = &job->shape;
    uint32_t K = shape->key_dim, V = shape->value_dim;
    uint32_t width = V - column < STRIPE ? V - column : STRIPE;
    uint32_t last = (width - 1) % 16 + 1;
    float *state = job->state + (size_t)head * K * V + column;

    for (uint32_t t = 0; t < job->T; t++) {
        size_t key = t * job->ld_k + (size_t)(head / shape->group) * K;
        size_t value = t * job->ld_v + (size_t)head * V + column;
        const float *q = job->q + key, *k = job->k + key, *v = job->v + value;
        float *out = job->out + value;
        float beta = job->beta[t * job->ld_g + head];
        vf decay = vf_exp(vf_set1(job->g[t * job->ld_g + head]));
        switch ((width + 15) / 16) {
        case 4:
            gdn_row(4, last, out, q, k, v, decay, beta, state, shape);
            break;
        case 3:
            gdn_row(3, last, out, q, k, v, decay, beta, state, shape);
            break;
        case 2:
            gdn_row(2, last, out, q, k, v, decay, beta, state, shape);
            break;
        default:
            gdn_row(1, last, out, q, k, v, decay, beta, state, shape);
        }
    }
}

static void gdn_part(void *ctx, uint32_t part, uint32_t thread)
{
    const gdn_job *job = ctx;
    uint32_t stripes = (job->shape.value_dim + STRIPE - 1) / STRIPE;
    tr_range r = tr_range_of(job->shape.heads * stripes, 1, job->parts, part);
    (void)thread;

    for (uint32_t i = r.begin; i < r.end; i++)
        gdn_stripe(job, i / stripes, i % stripes * STRIPE);
}

void TR_CPU(gdn_recurrent)(tr_team *team, float *out, const float *q, const float *k, size_t ld_k,
                           const float *v, size_t ld_v, const float *g, const float *beta,
                           size_t ld_g, float *state, const tr_gdn_shape *shape, uint32_t T)
{
    assert(shape->heads % shape->group == 0);
    assert(T == 0 || ld_k >= (size_t)(shape->heads / shape->group) * shape->key_dim);
    assert(T == 0 || ld_v >= (size_t)shape->heads * shape->value_dim);
    gdn_job job = {.out = out,
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
                   .T = T};
    uint64_t units = (uint64_t)shape->heads * ((shape->value_dim + STRIPE - 1) / STRIPE);
    uint64_t work = (uint64_t)T * shape->heads * shape->key_dim * shape->value_dim * 4;

    if (work == 0)
        return;
    job.parts = tr_parts_for(team, units, work);
    tr_team_run(team, job.parts, gdn_part, &job);
}
