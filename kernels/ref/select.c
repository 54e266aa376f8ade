#include "kernels/ref/ref.h"

#include <string.h>

static float *ref_key(const tr_paged_rows *keys, uint32_t p)
{
    assert(p / keys->per_page < keys->pages_count);
    uint8_t *base = keys->pages[p / keys->per_page] + keys->offset;
    return (float *)(void *)base + (size_t)(p % keys->per_page) * keys->dim;
}

/* Channel c of the pool in the tail. */
static double ref_pooled(const float *tail, const float *ape, uint32_t block, uint32_t dim,
                         uint32_t c)
{
    const float *gate = tail + (size_t)block * dim;
    double total = 0, sum = 0, max = -INFINITY;

    for (uint32_t r = 0; ape != NULL && r < block; r++)
        max = fmax(max, (double)gate[r * dim + c] + ape[r * dim + c]);
    for (uint32_t r = 0; r < block; r++) {
        double a = ape != NULL ? exp((double)gate[r * dim + c] + ape[r * dim + c] - max) : 1;
        total += a;
        sum += a * tail[r * dim + c];
    }
    return sum / total;
}

void tr_ref_pool_keys(tr_team *team, const tr_paged_rows *keys, const float *k, const float *gate,
                      size_t ld, const float *ape, float *tail, uint32_t block, uint32_t first,
                      uint32_t T)
{
    uint32_t dim = keys->dim;
    (void)team;

    for (uint32_t t = 0; t < T; t++) {
        uint32_t slot = (first + t) % block;
        memcpy(tail + (size_t)slot * dim, k + t * ld, dim * sizeof(float));
        if (gate != NULL)
            memcpy(tail + (size_t)(block + slot) * dim, gate + t * ld, dim * sizeof(float));
        for (uint32_t c = 0; slot + 1 == block && c < dim; c++)
            ref_key(keys, (first + t) / block)[c] = (float)ref_pooled(tail, ape, block, dim, c);
    }
}

void tr_ref_index_scores(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                         const float *weight, size_t ld_weight, const tr_paged_rows *keys,
                         uint32_t heads, float scale, const uint32_t *counts, uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t p = 0; p < counts[t]; p++) {
            const float *key = ref_key(keys, p);
            double score = 0;
            for (uint32_t h = 0; h < heads; h++) {
                const float *row = q + t * ld_q + (size_t)h * keys->dim;
                double dot = 0;
                for (uint32_t d = 0; d < keys->dim; d++)
                    dot += (double)row[d] * key[d];
                double w = weight != NULL ? weight[t * ld_weight + h] : 1.0;
                score += w * fmax(0.0, dot * scale);
            }
            out[t * ld_out + p] = (float)score;
        }
    }
}

/* Whether score i is above score j: higher, or as high and before it; NaN is below all. */
static bool ref_above(const float *scores, uint32_t i, uint32_t j)
{
    float a = isnan(scores[i]) ? -INFINITY : scores[i],
          b = isnan(scores[j]) ? -INFINITY : scores[j];

    if (a != b)
        return a > b;
    if (isnan(scores[i]) != isnan(scores[j]))
        return isnan(scores[j]);
    return i < j;
}

void tr_ref_select_top(tr_team *team, uint32_t *out, size_t ld_out, const float *scores, size_t ld,
                       const uint32_t *counts, uint32_t top, uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        const float *row = scores + t * ld;
        uint32_t n = 0;
        for (uint32_t i = 0; i < counts[t]; i++) {
            uint32_t above = 0;
            for (uint32_t j = 0; j < counts[t]; j++)
                above += j != i && ref_above(row, j, i);
            if (above < top)
                out[t * ld_out + n++] = i;
        }
    }
}
