/* rope.c - rotary positions: the table and the rotation. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

typedef struct {
    float *cos_sin;
    const uint32_t *positions;
    double log_theta;
    const tr_rope_scaling *scaling;
    uint32_t dims, T, parts;
} rope_table_job;

static void rope_table_part(void *ctx, uint32_t part, uint32_t thread)
{
    const rope_table_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    uint32_t half = job->dims / 2;
    float gain = job->scaling != NULL ? job->scaling->gain : 1;
    (void)thread;

    for (uint32_t i = 0; i < half; i++) {
        double divisor = job->scaling != NULL ? job->scaling->divisors[i] : 1;
        float frequency = (float)(tr_exp(-2.0 * i / job->dims * job->log_theta) / divisor);
        for (uint32_t t = r.begin; t < r.end; t++) {
            float angle = (float)job->positions[t] * frequency;
            float *row = job->cos_sin + (size_t)t * job->dims;
            tr_sin_cos(angle, &row[half + i], &row[i]);
            row[half + i] *= gain;
            row[i] *= gain;
        }
    }
}

void TR_CPU(rope_table)(tr_team *team, float *cos_sin, const uint32_t *positions, double theta,
                        uint32_t dims, const tr_rope_scaling *scaling, uint32_t T)
{
    assert(dims % 2 == 0);
    assert(theta >= 1.0 && theta < 0x1p900);
    assert(scaling == NULL || scaling->count == dims / 2);
    rope_table_job job = {.cos_sin = cos_sin,
                          .positions = positions,
                          .log_theta = tr_log(theta),
                          .scaling = scaling,
                          .dims = dims,
                          .T = T};

    job.parts = tr_parts_for(team, T, (uint64_t)T * dims * 32);
    if (T > 0)
        tr_team_run(team, job.parts, rope_table_part, &job);
}

typedef struct {
    float *x;
    size_t ld;
    const float *cos_sin;
    uint32_t heads, head_dim, dims;
    /* pair i is (x[i * step], x[i * step + distance]) */
    uint32_t step, distance;
    uint32_t T, parts;
} rope_job;

static void rope_part(void *ctx, uint32_t part, uint32_t thread)
{
    const rope_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    uint32_t half = job->dims / 2;
    (void)thread;

    for (uint32_t t = r.begin; t < r.end; t++) {
        const float *c = job->cos_sin + (size_t)t * job->dims;
        const float *s = c + half;
        for (uint32_t h = 0; h < job->heads; h++) {
            float *x = job->x + t * job->ld + (size_t)h * job->head_dim;
            for (uint32_t i = 0; i < half; i++) {
                float *pa = x + i * job->step;
                float *pb = pa + job->distance;
                float a = *pa, b = *pb;
                *pa = a * c[i] - b * s[i];
                *pb = b * c[i] + a * s[i];
            }
        }
    }
}

void TR_CPU(rope)(tr_team *team, float *x, size_t ld, uint32_t heads, uint32_t head_dim,
                  const float *cos_sin, uint32_t dims, tr_rope_kind kind, uint32_t T)
{
    assert(dims % 2 == 0);
    assert(dims <= head_dim);
    assert(T == 0 || ld >= (size_t)heads * head_dim);
    if (kind == TR_ROPE_NONE || T == 0)
        return;
    rope_job job = {.x = x,
                    .ld = ld,
                    .cos_sin = cos_sin,
                    .heads = heads,
                    .head_dim = head_dim,
                    .dims = dims,
                    .step = kind == TR_ROPE_HALF ? 1 : 2,
                    .distance = kind == TR_ROPE_HALF ? dims / 2 : 1,
                    .T = T};

    job.parts = tr_parts_for(team, T, (uint64_t)T * heads * dims * 4);
    tr_team_run(team, job.parts, rope_part, &job);
}
