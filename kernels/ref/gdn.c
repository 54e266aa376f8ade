/* gdn.c - the gated delta rule. As in kda.c the chunked form is judged by the recurrence, with the
 * state in float64 within a call. */
#include "kernels/ref/ref.h"

/* One row of one value column of a head: returns its output. */
static double ref_gdn_row(double *column, const float *q, const float *k, double v, double g,
                          double beta, uint32_t key_dim)
{
    double m = 0, o = 0;

    for (uint32_t d = 0; d < key_dim; d++) {
        column[d] *= exp(g);
        m += k[d] * column[d];
    }
    for (uint32_t d = 0; d < key_dim; d++) {
        column[d] += k[d] * beta * (v - m);
        o += q[d] * column[d];
    }
    return o;
}

void tr_ref_gdn_recurrent(tr_team *team, float *out, const float *q, const float *k, size_t ld_k,
                          const float *v, size_t ld_v, const float *g, const float *beta,
                          size_t ld_g, float *state, const tr_gdn_shape *shape, uint32_t T)
{
    double column[TR_KDA_DIM_MAX];
    uint32_t K = shape->key_dim, V = shape->value_dim;
    (void)team;

    assert(K <= TR_KDA_DIM_MAX);
    for (uint32_t h = 0; h < shape->heads; h++, state += (size_t)K * V) {
        size_t key = (size_t)(h / shape->group) * K;
        for (uint32_t c = 0; c < V; c++) {
            size_t value = (size_t)h * V + c;
            for (uint32_t d = 0; d < K; d++)
                column[d] = state[(size_t)d * V + c];
            for (uint32_t t = 0; t < T; t++)
                out[t * ld_v + value] =
                    (float)ref_gdn_row(column, q + t * ld_k + key, k + t * ld_k + key,
                                       v[t * ld_v + value], g[t * ld_g + h], beta[t * ld_g + h], K);
            for (uint32_t d = 0; d < K; d++)
                state[(size_t)d * V + c] = (float)column[d];
        }
    }
}

size_t tr_ref_gdn_chunk_scratch(const tr_gdn_shape *shape, uint32_t threads)
{
    (void)shape;
    (void)threads;
    return 0;
}

void tr_ref_gdn_chunk(tr_team *team, float *out, const float *q, const float *k, size_t ld_k,
                      const float *v, size_t ld_v, const float *g, const float *beta, size_t ld_g,
                      float *state, const tr_gdn_shape *shape, uint32_t T, void *scratch)
{
    (void)scratch;
    assert(T <= TR_CHUNK_ROWS);
    tr_ref_gdn_recurrent(team, out, q, k, ld_k, v, ld_v, g, beta, ld_g, state, shape, T);
}
