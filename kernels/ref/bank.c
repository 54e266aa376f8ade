/* bank.c - residual streams (GLM-5.3 Flash, Qwen3.8-Flash-Next). */
#include "kernels/ref/ref.h"

static void ref_divide_columns(double c[][TR_STREAMS_MAX], uint32_t n, double eps)
{
    for (uint32_t j = 0; j < n; j++) {
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += c[i][j];
        for (uint32_t i = 0; i < n; i++)
            c[i][j] /= sum + eps;
    }
}

static void ref_divide_rows(double c[][TR_STREAMS_MAX], uint32_t n, double eps)
{
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum += c[i][j];
        for (uint32_t j = 0; j < n; j++)
            c[i][j] /= sum + eps;
    }
}

void tr_ref_mhc_mix(tr_team *team, float *z, const float *bank, const float *base,
                    const float *scale, const tr_mhc_params *p, uint32_t T, uint32_t D)
{
    uint32_t n = p->streams;
    (void)team;

    for (uint32_t t = 0; t < T; t++, z += (2 + n) * n, bank += (size_t)n * D) {
        double c[TR_STREAMS_MAX][TR_STREAMS_MAX], squares = 0;
        for (size_t k = 0; k < (size_t)n * D; k++)
            squares += (double)bank[k] * bank[k];
        double factor = 1 / sqrt(squares / ((double)n * D) + p->norm_eps);
        for (uint32_t i = 0; i < n; i++) {
            z[i] = (float)(ref_sigmoid(z[i] * factor * scale[0] + base[i]) + p->eps);
            z[n + i] = (float)(2 * ref_sigmoid(z[n + i] * factor * scale[1] + base[n + i]));
        }
        for (uint32_t i = 0; i < n; i++) {
            double max = -INFINITY;
            for (uint32_t j = 0; j < n; j++) {
                uint32_t k = 2 * n + n * i + j;
                c[i][j] = z[k] * factor * scale[2] + base[k];
                max = c[i][j] > max ? c[i][j] : max;
            }
            for (uint32_t j = 0; j < n; j++)
                c[i][j] = exp(c[i][j] - max);
        }
        ref_divide_rows(c, n, 0);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < n; j++)
                c[i][j] += p->eps;
        ref_divide_columns(c, n, p->eps);
        for (uint32_t round = 1; round < p->iterations; round++) {
            ref_divide_rows(c, n, p->eps);
            ref_divide_columns(c, n, p->eps);
        }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < n; j++)
                z[2 * n + n * i + j] = (float)c[i][j];
    }
}

void tr_ref_bank_read(tr_team *team, float *out, const float *bank, const float *weight, size_t ld,
                      uint32_t streams, uint32_t T, uint32_t D)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t d = 0; d < D; d++) {
            double sum = 0;
            for (uint32_t i = 0; i < streams; i++)
                sum += (weight != NULL ? weight[t * ld + i] : 1.0 / streams) *
                       bank[((size_t)t * streams + i) * D + d];
            out[(size_t)t * D + d] = (float)sum;
        }
    }
}

void tr_ref_bank_write(tr_team *team, float *bank, const float *y, const float *weight,
                       const float *mix, size_t ld, uint32_t streams, uint32_t T, uint32_t D)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t d = 0; d < D; d++) {
            double x[TR_STREAMS_MAX];
            for (uint32_t i = 0; i < streams; i++)
                x[i] = bank[((size_t)t * streams + i) * D + d];
            for (uint32_t i = 0; i < streams; i++) {
                double sum = (double)weight[t * ld + i] * y[(size_t)t * D + d];
                for (uint32_t j = 0; j < streams; j++)
                    sum += (mix != NULL ? mix[t * ld + j * streams + i] : i == j) * x[j];
                bank[((size_t)t * streams + i) * D + d] = (float)sum;
            }
        }
    }
}
