/* route.c - which experts a row goes to. */
#include "kernels/ref/ref.h"

#define EXPERTS_MAX 4096

static void ref_scores(double *s, const float *logits, const tr_route_params *p)
{
    double max = -INFINITY, total = 0;

    for (uint32_t e = 0; e < p->experts; e++)
        if (logits[e] > max) /* fmax crashes gcc 12 for aarch64 at -O3 */
            max = logits[e];
    for (uint32_t e = 0; e < p->experts; e++)
        total += exp(logits[e] - max);
    for (uint32_t e = 0; e < p->experts; e++)
        s[e] = p->score == TR_SCORE_SOFTMAX ? exp(logits[e] - max) / total : ref_sigmoid(logits[e]);
}

/* Rank of value i among values: how many are larger, or equal and before it. */
static uint32_t ref_rank(const double *values, uint32_t count, uint32_t i)
{
    uint32_t rank = 0;

    for (uint32_t j = 0; j < count; j++)
        if (values[j] > values[i] || (values[j] == values[i] && j < i))
            rank++;
    return rank;
}

/* The sum of the two largest choices of group g. */
static double ref_group_score(const double *choice, uint32_t size, uint32_t g)
{
    double sum = 0;

    for (uint32_t i = 0; i < size; i++)
        if (ref_rank(choice + (size_t)g * size, size, i) < 2)
            sum += choice[(size_t)g * size + i];
    return sum;
}

void tr_ref_route(tr_team *team, uint32_t *expert, float *weight, const float *logits,
                  const float *bias, const tr_route_params *p, uint32_t T)
{
    double s[EXPERTS_MAX], choice[EXPERTS_MAX], group[EXPERTS_MAX];
    uint32_t size = p->experts / p->groups;
    (void)team;

    assert(p->experts <= EXPERTS_MAX);
    for (uint32_t t = 0; t < T; t++, logits += p->experts, expert += p->top_k, weight += p->top_k) {
        bool nan = false;
        ref_scores(s, logits, p);
        for (uint32_t e = 0; e < p->experts; e++) {
            choice[e] = s[e] + (bias != NULL ? bias[e] : 0);
            nan = nan || isnan(choice[e]);
        }
        for (uint32_t i = 0; nan && i < p->top_k; i++) {
            expert[i] = i;
            weight[i] = NAN;
        }
        if (nan)
            continue;
        for (uint32_t g = 0; g < p->groups; g++)
            group[g] = ref_group_score(choice, size, g);
        for (uint32_t e = 0; e < p->experts; e++)
            if (ref_rank(group, p->groups, e / size) >= p->top_groups)
                choice[e] = -INFINITY;
        double sum = 0;
        for (uint32_t e = 0; e < p->experts; e++) {
            uint32_t rank = ref_rank(choice, p->experts, e);
            if (rank < p->top_k) {
                expert[rank] = e;
                sum += s[e];
            }
        }
        for (uint32_t i = 0; i < p->top_k; i++)
            weight[i] = (float)(s[expert[i]] / (p->norm_top_k ? sum + 1e-20 : 1) * p->scaling);
    }
}
