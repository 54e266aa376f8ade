/* ngram.c - n-gram embeddings (Qwen3.8-Flash-Next). */
#include "kernels/ref/ref.h"

#include <string.h>

void tr_ref_ngram_gate(tr_team *team, float *out, const float *key, const float *query,
                       const float *value, uint32_t streams, uint32_t T, uint32_t D)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t i = 0; i < streams; i++) {
            size_t at = ((size_t)t * streams + i) * D;
            double s = 0;
            for (uint32_t d = 0; d < D; d++)
                s += (double)key[at + d] * query[at + d];
            s /= sqrt(D);
            double root = sqrt(fabs(s) < 1e-6 ? 1e-6 : fabs(s));
            double gate = ref_sigmoid(s < 0 ? -root : s == 0 ? 0 : root);
            for (uint32_t d = 0; d < D; d++)
                out[at + d] = (float)(gate * value[(size_t)t * D + d]);
        }
    }
}

void tr_ref_ngram_conv(tr_team *team, float *out, const float *x, const float *weight, float *state,
                       uint32_t taps, uint32_t dilation, uint32_t T, uint32_t C)
{
    uint32_t history = (taps - 1) * dilation;
    (void)team;

    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t c = 0; c < C; c++) {
            double sum = 0;
            for (uint32_t j = 0; j < taps; j++) {
                uint32_t at = t + j * dilation; /* in the state, and after it x */
                const float *row =
                    at < history ? state + (size_t)at * C : x + (size_t)(at - history) * C;
                sum += (double)weight[(size_t)c * taps + j] * row[c];
            }
            out[(size_t)t * C + c] = (float)(out[(size_t)t * C + c] + sum * ref_sigmoid(sum));
        }
    }
    for (uint32_t j = 0; j < history; j++) {
        uint32_t at = T + j;
        const float *row = at < history ? state + (size_t)at * C : x + (size_t)(at - history) * C;
        memmove(state + (size_t)j * C, row, C * sizeof(*state));
    }
}
