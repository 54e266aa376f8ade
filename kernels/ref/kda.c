/* kda.c - Kimi delta attention. The chunked form is judged by the recurrence itself, with the state
 * in float64 within a call: the two are the same function. */
#include "kernels/ref/ref.h"

void tr_ref_conv_silu(tr_team *team, float *out, const float *x, size_t ld, const float *weight,
                      float *state, uint32_t taps, uint32_t T, uint32_t C)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t c = 0; c < C; c++) {
            float current = x[t * ld + c];
            double sum = (double)weight[(size_t)c * taps + taps - 1] * current;
            for (uint32_t j = 0; j + 1 < taps; j++)
                sum += (double)weight[(size_t)c * taps + j] * state[(size_t)j * C + c];
            for (uint32_t j = 0; j + 2 < taps; j++)
                state[(size_t)j * C + c] = state[(size_t)(j + 1) * C + c];
            if (taps > 1)
                state[(size_t)(taps - 2) * C + c] = current;
            out[t * ld + c] = (float)(sum * ref_sigmoid(sum));
        }
    }
}

void tr_ref_kda_gate(tr_team *team, float *r, size_t ld, const float *dt_bias, const float *a,
                     uint32_t heads, uint32_t head_dim, uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t i = 0; i < heads * head_dim; i++) {
            double u = (double)r[t * ld + i] + dt_bias[i];
            double softplus = u > 20 ? u : log1p(exp(u));
            r[t * ld + i] = (float)(a[i / head_dim] * softplus);
        }
    }
}

void tr_ref_kda_gate_bounded(tr_team *team, float *r, size_t ld, const float *dt_bias,
                             const float *a, float bound, uint32_t heads, uint32_t head_dim,
                             uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t i = 0; i < heads * head_dim; i++) {
            double u = (double)r[t * ld + i] + dt_bias[i];
            r[t * ld + i] = (float)(bound * ref_sigmoid(a[i / head_dim] * u));
        }
    }
}

/* One head. */
static void ref_recurrence(float *out, const float *q, const float *k, const float *v,
                           const float *g, size_t ld, const float *beta, size_t ld_beta,
                           float *state, uint32_t D, uint32_t T)
{
    double column[TR_KDA_DIM_MAX]; /* of the state: value columns do not depend on each other */

    for (uint32_t c = 0; c < D; c++) {
        for (uint32_t d = 0; d < D; d++)
            column[d] = state[(size_t)d * D + c];
        for (uint32_t t = 0; t < T; t++) {
            double m = 0, o = 0;
            for (uint32_t d = 0; d < D; d++) {
                column[d] *= exp(g[t * ld + d]);
                m += k[t * ld + d] * column[d];
            }
            double delta = beta[t * ld_beta] * (v[t * ld + c] - m);
            for (uint32_t d = 0; d < D; d++) {
                column[d] += k[t * ld + d] * delta;
                o += q[t * ld + d] * column[d];
            }
            out[t * ld + c] = (float)o;
        }
        for (uint32_t d = 0; d < D; d++)
            state[(size_t)d * D + c] = (float)column[d];
    }
}

void tr_ref_kda_recurrent(tr_team *team, float *out, const float *q, const float *k, const float *v,
                          const float *g, size_t ld, const float *beta, size_t ld_beta,
                          float *state, uint32_t heads, uint32_t D, uint32_t T)
{
    (void)team;
    assert(D <= TR_KDA_DIM_MAX);
    for (uint32_t h = 0; h < heads; h++) {
        size_t at = (size_t)h * D;
        ref_recurrence(out + at, q + at, k + at, v + at, g + at, ld, beta + h, ld_beta,
                       state + at * D, D, T);
    }
}

size_t tr_ref_kda_chunk_scratch(uint32_t D, uint32_t threads)
{
    (void)D;
    (void)threads;
    return 0;
}

void tr_ref_kda_chunk(tr_team *team, float *out, const float *q, const float *k, const float *v,
                      const float *g, size_t ld, const float *beta, size_t ld_beta, float *state,
                      uint32_t heads, uint32_t D, uint32_t T, void *scratch)
{
    (void)scratch;
    assert(T <= TR_CHUNK_ROWS);
    tr_ref_kda_recurrent(team, out, q, k, v, g, ld, beta, ld_beta, state, heads, D, T);
}
