/* attention.c - rotary positions, pages, softmax attention. */
#include "kernels/ref/ref.h"

#include <string.h>

void tr_ref_rope_table(tr_team *team, float *cos_sin, const uint32_t *positions, double theta,
                       uint32_t dims, const tr_rope_scaling *scaling, uint32_t T)
{
    uint32_t half = dims / 2;
    float gain = scaling != NULL ? scaling->gain : 1;
    (void)team;

    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t i = 0; i < half; i++) {
            double divisor = scaling != NULL ? scaling->divisors[i] : 1;
            float frequency = (float)(pow(theta, -2.0 * i / dims) / divisor);
            float angle = (float)positions[t] * frequency;
            cos_sin[(size_t)t * dims + i] = (float)cos(angle) * gain;
            cos_sin[(size_t)t * dims + half + i] = (float)sin(angle) * gain;
        }
    }
}

void tr_ref_rope(tr_team *team, float *x, size_t ld, uint32_t heads, uint32_t head_dim,
                 const float *cos_sin, uint32_t dims, tr_rope_kind kind, uint32_t T)
{
    uint32_t half = dims / 2;
    (void)team;

    if (kind == TR_ROPE_NONE)
        return;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            float *row = x + t * ld + (size_t)h * head_dim;
            for (uint32_t i = 0; i < half; i++) {
                uint32_t ia = kind == TR_ROPE_HALF ? i : 2 * i;
                uint32_t ib = kind == TR_ROPE_HALF ? i + half : 2 * i + 1;
                double c = cos_sin[(size_t)t * dims + i], s = cos_sin[(size_t)t * dims + half + i];
                double a = row[ia], b = row[ib];
                row[ia] = (float)(a * c - b * s);
                row[ib] = (float)(b * c + a * s);
            }
        }
    }
}

static float *ref_page_row(const tr_kv_view *kv, uint32_t position, size_t offset,
                           uint32_t head_dim)
{
    assert(position / TR_KV_PAGE_TOKENS < kv->pages_count);
    uint8_t *base = kv->pages[position / TR_KV_PAGE_TOKENS] + offset;
    return (float *)(void *)base + (size_t)(position % TR_KV_PAGE_TOKENS) * head_dim;
}

void tr_ref_kv_write(tr_team *team, const tr_kv_view *kv, uint32_t head_dim, const float *k,
                     const float *v, size_t ld, uint32_t first, uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        memcpy(ref_page_row(kv, first + t, kv->k_offset, head_dim), k + t * ld,
               head_dim * sizeof(float));
        if (v != NULL)
            memcpy(ref_page_row(kv, first + t, kv->v_offset, head_dim), v + t * ld,
                   head_dim * sizeof(float));
    }
}

size_t tr_ref_attention_scratch(uint32_t head_dim, uint32_t group, uint32_t T, uint32_t threads)
{
    (void)group;
    (void)T;
    (void)threads;
    return head_dim * sizeof(double);
}

static double ref_score(const float *q, const tr_kv_view *kv, uint32_t j, uint32_t head_dim,
                        float scale)
{
    const float *k = ref_page_row(kv, j, kv->k_offset, head_dim);
    double dot = 0;

    for (uint32_t d = 0; d < head_dim; d++)
        dot += (double)q[d] * k[d];
    return dot * scale;
}

void tr_ref_attention(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                      const tr_kv_view *kv, uint32_t group, uint32_t head_dim, float scale,
                      uint32_t first, uint32_t T, void *scratch)
{
    double *sum = scratch;
    (void)team;

    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t h = 0; h < group; h++) {
            const float *row = q + t * ld_q + (size_t)h * head_dim;
            uint32_t last = first + t;
            double max = -INFINITY, total = 0;
            for (uint32_t j = 0; j <= last; j++)
                max = fmax(max, ref_score(row, kv, j, head_dim, scale));
            for (uint32_t d = 0; d < head_dim; d++)
                sum[d] = 0;
            for (uint32_t j = 0; j <= last; j++) {
                const float *v = ref_page_row(kv, j, kv->v_offset, head_dim);
                double a = exp(ref_score(row, kv, j, head_dim, scale) - max);
                total += a;
                for (uint32_t d = 0; d < head_dim; d++)
                    sum[d] += a * v[d];
            }
            for (uint32_t d = 0; d < head_dim; d++)
                out[t * ld_out + (size_t)h * head_dim + d] = (float)(sum[d] / total);
        }
    }
}
