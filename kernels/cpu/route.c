/* route.c - which experts a row goes to. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#define EXPERTS_MAX 4096

typedef struct {
    uint32_t *expert;
    float *weight;
    const float *logits, *bias;
    const tr_route_params *p;
    uint32_t T, parts;
} route_job;

/* Softmax over all experts, in place. */
static void route_softmax(float *score, uint32_t experts)
{
    vf largest = vf_set1(-INFINITY);
    vf sum = vf_zero();

    for (uint32_t e = 0; e < experts; e++)
        largest = vf_max(vf_set1(score[e]), largest);
    float max = vf_max_lane(largest);
    for (uint32_t e = 0; e < experts; e += 16) {
        uint32_t n = experts - e < 16 ? experts - e : 16;
        vf_store_n(score + e, vf_exp(vf_sub(vf_load_n(score + e, n), vf_set1(max))), n);
        sum = vf_add(sum, vf_load_n(score + e, n));
    }
    vf total = vf_set1(vf_sum(sum));
    for (uint32_t e = 0; e < experts; e += 16) {
        uint32_t n = experts - e < 16 ? experts - e : 16;
        vf_store_n(score + e, vf_div(vf_load_n(score + e, n), total), n);
    }
}

static void route_sigmoid(float *score, uint32_t experts)
{
    for (uint32_t e = 0; e < experts; e += 16) {
        uint32_t n = experts - e < 16 ? experts - e : 16;
        vf_store_n(score + e, vf_sigmoid(vf_load_n(score + e, n)), n);
    }
}

/* The index of the largest of count values, the lowest of equals. */
static uint32_t route_largest(const float *values, uint32_t count)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < count; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

/* Takes the experts of all but the best top_groups groups out of the choice. A group is as good as
 * its two best experts together. */
static void route_filter_groups(float *choice, const tr_route_params *p)
{
    float group_score[EXPERTS_MAX];
    bool kept[EXPERTS_MAX] = {false};
    uint32_t size = p->experts / p->groups;

    for (uint32_t g = 0; g < p->groups; g++) {
        const float *c = choice + (size_t)g * size;
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = 0; i < size; i++) {
            if (c[i] > first) {
                second = first;
                first = c[i];
            } else if (c[i] > second) {
                second = c[i];
            }
        }
        group_score[g] = size > 1 ? first + second : first;
    }
    for (uint32_t i = 0; i < p->top_groups; i++) {
        uint32_t best = route_largest(group_score, p->groups);
        kept[best] = true;
        group_score[best] = -INFINITY;
    }
    for (uint32_t e = 0; e < p->experts; e++)
        if (!kept[e / size])
            choice[e] = -INFINITY;
}

/* The top_k largest choices in descending order; an equal one never passes one with a lower index.
 */
static void route_top(uint32_t *expert, const float *choice, const tr_route_params *p)
{
    uint32_t count = 0;

    for (uint32_t e = 0; e < p->experts; e++) {
        if (count == p->top_k && !(choice[e] > choice[expert[count - 1]]))
            continue;
        uint32_t at = count < p->top_k ? count++ : count - 1;
        for (; at > 0 && choice[e] > choice[expert[at - 1]]; at--)
            expert[at] = expert[at - 1];
        expert[at] = e;
    }
}

static void route_row(const route_job *job, uint32_t t)
{
    const tr_route_params *p = job->p;
    float score[EXPERTS_MAX], choice[EXPERTS_MAX];
    uint32_t *expert = job->expert + (size_t)t * p->top_k;
    float *weight = job->weight + (size_t)t * p->top_k;
    bool nan = false;

    memcpy(score, job->logits + (size_t)t * p->experts, p->experts * sizeof(float));
    if (p->score == TR_SCORE_SOFTMAX)
        route_softmax(score, p->experts);
    else
        route_sigmoid(score, p->experts);
    for (uint32_t e = 0; e < p->experts; e++) {
        choice[e] = job->bias != NULL ? score[e] + job->bias[e] : score[e];
        nan |= choice[e] != choice[e];
    }
    if (nan) {
        for (uint32_t i = 0; i < p->top_k; i++) {
            expert[i] = i;
            weight[i] = NAN;
        }
        return;
    }
    if (p->groups > 1)
        route_filter_groups(choice, p);

    route_top(expert, choice, p);
    float sum = 0.0f;
    for (uint32_t i = 0; i < p->top_k; i++) {
        weight[i] = score[expert[i]];
        sum = sum + weight[i];
    }
    for (uint32_t i = 0; i < p->top_k; i++) {
        if (p->norm_top_k)
            weight[i] = weight[i] / (sum + 1e-20f);
        weight[i] = weight[i] * p->scaling;
    }
}

static void route_part(void *ctx, uint32_t part, uint32_t thread)
{
    const route_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    (void)thread;

    for (uint32_t t = r.begin; t < r.end; t++)
        route_row(job, t);
}

void TR_CPU(route)(tr_team *team, uint32_t *expert, float *weight, const float *logits,
                   const float *bias, const tr_route_params *p, uint32_t T)
{
    assert(p->experts >= 1 && p->experts <= EXPERTS_MAX);
    assert(p->top_k <= p->experts);
    assert(p->groups >= 1 && p->experts % p->groups == 0);
    assert(p->top_groups <= p->groups);
    route_job job = {
        .expert = expert, .weight = weight, .logits = logits, .bias = bias, .p = p, .T = T};

    if (T == 0)
        return;
    job.parts = tr_parts_for(team, T, (uint64_t)T * p->experts * (p->top_k + 8));
    tr_team_run(team, job.parts, route_part, &job);
}
