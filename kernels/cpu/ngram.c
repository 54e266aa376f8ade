/* ngram.c - what a layer does with the embeddings of an n-gram table: gate and convolution. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vmath.h"

#define TAPS_MAX 16

/* -- gate -- */

typedef struct {
    float *out;
    const float *key, *query, *value;
    uint32_t streams, T, D, parts;
} gate_job;

V16 float gate_dot(const float *a, const float *b, uint32_t N)
{
    vf acc = vf_zero();

    for (uint32_t d = 0; d < N; d += 16) {
        uint32_t lanes = rows_lanes(N, d);
        acc = vf_fma(vf_load_n(a + d, lanes), vf_load_n(b + d, lanes), acc);
    }
    return vf_sum(acc);
}

static void gate_part(void *ctx, uint32_t part, uint32_t thread)
{
    const gate_job *job = ctx;
    tr_range range = tr_range_of(job->T, 1, job->parts, part);
    uint32_t n = job->streams, D = job->D;
    (void)thread;

    for (uint32_t t = range.begin; t < range.end; t++) {
        const float *value = job->value + (size_t)t * D;
        for (uint32_t i = 0; i < n; i++) {
            size_t at = ((size_t)t * n + i) * D;
            float s = gate_dot(job->key + at, job->query + at, D) / sqrtf((float)D);
            float size = s < 0 ? -s : s;
            float root = sqrtf(size < 1e-6f ? 1e-6f : size);
            vf gate = vf_sigmoid(vf_set1(s < 0 ? -root : s == 0 ? 0 : root));
            for (uint32_t d = 0; d < D; d += 16) {
                uint32_t lanes = rows_lanes(D, d);
                vf_store_n(job->out + at + d, vf_mul(gate, vf_load_n(value + d, lanes)), lanes);
            }
        }
    }
}

void TR_CPU(ngram_gate)(tr_team *team, float *out, const float *key, const float *query,
                        const float *value, uint32_t streams, uint32_t T, uint32_t D)
{
    gate_job job = {
        .out = out, .key = key, .query = query, .value = value, .streams = streams, .T = T, .D = D};

    if (T == 0)
        return;
    job.parts = tr_parts_for(team, T, (uint64_t)T * streams * D * 2);
    tr_team_run(team, job.parts, gate_part, &job);
}

/* -- convolution -- */

typedef struct {
    float *out;
    const float *x;
    const float *weight;
    float *state;
    uint32_t taps, dilation, T, C, parts;
} dilated_job;

/* Row t of the input, where rows before 0 come from the state. */
static const float *dilated_row(const dilated_job *job, int64_t t)
{
    if (t < 0)
        return job->state + (size_t)(t + (job->taps - 1) * job->dilation) * job->C;
    return job->x + (size_t)t * job->C;
}

/* Sixteen channels from c (the first `lanes` of them), all rows. */
static void dilated_channels(const dilated_job *job, uint32_t c, uint32_t lanes)
{
    uint32_t history = (job->taps - 1) * job->dilation;
    vf weight[TAPS_MAX];

    for (uint32_t j = 0; j < job->taps; j++) {
        float column[16] = {0};
        for (uint32_t l = 0; l < lanes; l++)
            column[l] = job->weight[(size_t)(c + l) * job->taps + j];
        weight[j] = vf_load(column);
    }
    for (uint32_t t = 0; t < job->T; t++) {
        float *out = job->out + (size_t)t * job->C + c;
        vf acc = vf_zero();
        for (uint32_t j = 0; j < job->taps; j++) {
            const float *row = dilated_row(job, (int64_t)t - history + j * job->dilation);
            acc = vf_fma(weight[j], vf_load_n(row + c, lanes), acc);
        }
        vf_store_n(out, vf_add(vf_load_n(out, lanes), vf_silu(acc)), lanes);
    }
    /* upwards: what is read lies above what is written */
    for (uint32_t j = 0; j < history; j++) {
        const float *row = dilated_row(job, (int64_t)job->T - history + j);
        vf_store_n(job->state + (size_t)j * job->C + c, vf_load_n(row + c, lanes), lanes);
    }
}

static void dilated_part(void *ctx, uint32_t part, uint32_t thread)
{
    const dilated_job *job = ctx;
    tr_range c = tr_range_of(job->C, 16, job->parts, part);
    (void)thread;

    for (; c.begin < c.end; c.begin += 16)
        dilated_channels(job, c.begin, c.end - c.begin < 16 ? c.end - c.begin : 16);
}

void TR_CPU(ngram_conv)(tr_team *team, float *out, const float *x, const float *weight,
                        float *state, uint32_t taps, uint32_t dilation, uint32_t T, uint32_t C)
{
    assert(taps >= 1 && taps <= TAPS_MAX);
    assert(T == 0 || out != x);
    dilated_job job = {.out = out,
                       .x = x,
                       .weight = weight,
                       .state = state,
                       .taps = taps,
                       .dilation = dilation,
                       .T = T,
                       .C = C};

    if (T == 0 || C == 0)
        return;
    job.parts = tr_parts_for(team, (C + 15) / 16, (uint64_t)T * C * (8 + taps));
    tr_team_run(team, job.parts, dilated_part, &job);
}
