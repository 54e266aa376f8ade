#include "kernels/ref/ref.h"

size_t tr_ref_attention_list_scratch(uint32_t k_dim, uint32_t v_dim, uint32_t threads)
{
    (void)k_dim;
    (void)threads;
    return v_dim * sizeof(double);
}

static const float *ref_list_row(const tr_kv_rows *kv, uint32_t position, size_t offset,
                                 uint32_t ld)
{
    assert(position / TR_KV_PAGE_TOKENS < kv->pages_count);
    const uint8_t *base = kv->pages[position / TR_KV_PAGE_TOKENS] + offset;
    return (const float *)(const void *)base + (size_t)(position % TR_KV_PAGE_TOKENS) * ld;
}

static double ref_list_score(const float *q, const tr_kv_rows *kv, uint32_t position, float scale)
{
    const float *k = ref_list_row(kv, position, kv->k_offset, kv->k_ld);
    double dot = 0;

    for (uint32_t d = 0; d < kv->k_dim; d++)
        dot += (double)q[d] * k[d];
    return dot * scale;
}

void tr_ref_attention_list(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                           const tr_kv_rows *kv, const tr_position_list *list, uint32_t group,
                           float scale, uint32_t first, uint32_t T, void *scratch)
{
    double *sum = scratch;
    (void)team;

    for (uint32_t t = 0; t < T; t++) {
        const uint32_t *chosen = list->positions == NULL ? NULL : list->positions + t * list->ld;
        uint32_t count = chosen == NULL ? first + t + 1 : list->counts[t];
        for (uint32_t h = 0; h < group; h++) {
            const float *row = q + t * ld_q + (size_t)h * kv->k_dim;
            double max = -INFINITY, total = 0;
            for (uint32_t i = 0; i < count; i++)
                max = fmax(max, ref_list_score(row, kv, chosen == NULL ? i : chosen[i], scale));
            for (uint32_t d = 0; d < kv->v_dim; d++)
                sum[d] = 0;
            for (uint32_t i = 0; i < count; i++) {
                uint32_t position = chosen == NULL ? i : chosen[i];
                const float *v = ref_list_row(kv, position, kv->v_offset, kv->v_ld);
                double a = exp(ref_list_score(row, kv, position, scale) - max);
                total += a;
                for (uint32_t d = 0; d < kv->v_dim; d++)
                    sum[d] += a * v[d];
            }
            for (uint32_t d = 0; d < kv->v_dim; d++)
                out[t * ld_out + (size_t)h * kv->v_dim + d] = (float)(sum[d] / total);
        }
    }
}
