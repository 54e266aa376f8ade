#include "actors/sampling.h"

#include "kernels/scalar_math.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

double tr_sample_uniform(uint64_t seed, uint64_t position)
{
    uint64_t z = seed * UINT64_C(0x9E3779B97F4A7C15) + position;
    for (int round = 0; round < 2; round++) {
        z += UINT64_C(0x9E3779B97F4A7C15);
        z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
        z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
        z ^= z >> 31;
    }
    return (double)(z >> 11) * 0x1p-53;
}

/* Index of the largest logit, the lowest among equals; -1 when one is NaN or none is finite. */
static int32_t sample_argmax(const float *logits, uint32_t n)
{
    int32_t best = -1;
    float most = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return -1;
        if (logits[i] > most) {
            most = logits[i];
            best = (int32_t)i;
        }
    }
    return isfinite(most) ? best : -1;
}

/* Whether candidate a comes before b: heavier first, lower id among equals. */
static bool sample_before(const tr_sampling_scratch *s, uint32_t a, uint32_t b)
{
    return s->weight[a] > s->weight[b] || (s->weight[a] == s->weight[b] && a < b);
}

static void sample_sift(const tr_sampling_scratch *s, uint32_t count, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && sample_before(s, s->index[child + 1], s->index[child]))
            child++;
        if (!sample_before(s, s->index[child], s->index[at]))
            return;
        uint32_t swap = s->index[at];
        s->index[at] = s->index[child];
        s->index[child] = swap;
        at = child;
    }
}

/* Takes the heaviest candidate off the heap; it ends behind the heap's new end, so that popped
 * candidates stand from the array's end backwards in descending order. */
static uint32_t sample_pop(const tr_sampling_scratch *s, uint32_t *count)
{
    uint32_t top = s->index[0];
    s->index[0] = s->index[--*count];
    s->index[*count] = top;
    sample_sift(s, *count, 0);
    return top;
}

int32_t tr_sample(const float *logits, uint32_t vocab_size, const tr_sampling *sampling,
                  uint32_t position, const tr_sampling_scratch *scratch)
{
    int32_t best = sample_argmax(logits, vocab_size);
    if (best < 0 || sampling->temperature <= 0)
        return best;

    /* Candidates: everything, or what min_p leaves. */
    float most = logits[best], inverse = 1.0f / sampling->temperature;
    uint32_t count = 0;
    double total = 0;
    for (uint32_t i = 0; i < vocab_size; i++) {
        float w = tr_expf((logits[i] - most) * inverse);
        scratch->weight[i] = w;
        if (w > 0 && w >= sampling->min_p) {
            scratch->index[count++] = i;
            total += w;
        }
    }
    double u = tr_sample_uniform(sampling->seed, position);
    bool cut_k = sampling->top_k > 0 && sampling->top_k < count;
    bool cut_p = sampling->top_p < 1;
    if (!cut_k && !cut_p) {
        double sum = 0;
        for (uint32_t i = 0; i < count; i++)
            if ((sum += scratch->weight[scratch->index[i]]) > u * total)
                return (int32_t)scratch->index[i];
        return (int32_t)scratch->index[count - 1];
    }

    uint32_t heap = count;
    for (uint32_t i = count / 2; i > 0; i--)
        sample_sift(scratch, heap, i - 1);
    if (cut_k) {
        total = 0;
        for (uint32_t i = 0; i < sampling->top_k; i++)
            total += scratch->weight[sample_pop(scratch, &heap)];
        count -= heap;
    }
    /* Kept: the shortest prefix, heaviest first, that reaches top_p. */
    double kept = 0, limit = cut_p ? sampling->top_p * total : total;
    uint32_t kept_count = 0, end = heap + count;
    if (!cut_k)
        end = count;
    while (kept_count < count && (kept_count == 0 || kept < limit)) {
        uint32_t i = cut_k ? scratch->index[end - 1 - kept_count] : sample_pop(scratch, &heap);
        kept += scratch->weight[i];
        kept_count++;
    }
    double sum = 0;
    for (uint32_t i = 0; i < kept_count; i++) {
        uint32_t candidate = scratch->index[end - 1 - i];
        if ((sum += scratch->weight[candidate]) > u * kept)
            return (int32_t)candidate;
    }
    return (int32_t)scratch->index[end - kept_count];
}

float tr_sample_logprobs(const float *logits, uint32_t vocab_size, int32_t token, tr_logprob *top,
                         uint32_t top_count)
{
    assert(top_count <= TR_TOP_LOGPROBS_MAX);
    float most = -INFINITY;
    uint32_t filled = 0;

    for (uint32_t i = 0; i < vocab_size; i++) {
        if (logits[i] > most)
            most = logits[i];
        if (top_count == 0 || (filled == top_count && !(logits[i] > top[filled - 1].logprob)))
            continue;
        uint32_t at = filled < top_count ? filled++ : filled - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (tr_logprob){.token = (int32_t)i, .logprob = logits[i]};
    }
    double sum = 0;
    for (uint32_t i = 0; i < vocab_size; i++)
        sum += tr_expf(logits[i] - most);
    double normaliser = most + log(sum);
    for (uint32_t i = 0; i < filled; i++)
        top[i].logprob = (float)(top[i].logprob - normaliser);
    return (float)(logits[token] - normaliser);
}
