/* bank.c - residual streams: coefficients of hyper-connections, reading from and writing to a bank.
 */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vmath.h"

typedef struct {
    float *bank;     /* bank_write */
    float *out;      /* bank_read: [T, D]; mhc_mix: coefficients [T, (2 + n) n] */
    const float *in; /* bank_read, mhc_mix: the bank; bank_write: y [T, D] */
    const float *weight, *mix;
    size_t ld; /* of weight and mix */
    const float *base, *scale;
    const tr_mhc_params *params;
    uint32_t streams, T, D, parts;
    void (*row)(const void *job, uint32_t t);
} bank_job;

static void bank_part(void *ctx, uint32_t part, uint32_t thread)
{
    const bank_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    (void)thread;

    for (uint32_t t = r.begin; t < r.end; t++)
        job->row(job, t);
}

/* cost: multiply-adds that an element of the bank is worth */
static void bank_run(tr_team *team, bank_job *job, uint32_t cost)
{
    assert(job->streams >= 1 && job->streams <= TR_STREAMS_MAX);
    if (job->T == 0)
        return;
    job->parts = tr_parts_for(team, job->T, (uint64_t)job->T * job->streams * job->D * cost);
    tr_team_run(team, job->parts, bank_part, job);
}

/* Divides the n rows of c by the sums of its columns. Lanes from n on are zero. */
V16 void bank_divide_columns(float c[][16], uint32_t n, vf eps)
{
    vf sum = vf_zero();

    for (uint32_t i = 0; i < n; i++)
        sum = vf_add(sum, vf_load(c[i]));
    sum = vf_add(sum, eps);
    for (uint32_t i = 0; i < n; i++)
        vf_store(c[i], vf_div(vf_load(c[i]), sum));
}

/* From logits a [n, n] to the doubly stochastic matrix, in place. */
static void bank_sinkhorn(float *a, const tr_mhc_params *p)
{
    uint32_t n = p->streams;
    float c[TR_STREAMS_MAX][16] = {{0}};
    vf eps = vf_set1(p->eps);

    for (uint32_t i = 0; i < n; i++) {
        float max = a[i * n];
        for (uint32_t j = 1; j < n; j++)
            max = a[i * n + j] > max ? a[i * n + j] : max;
        vf_store_n(c[i], vf_exp(vf_sub(vf_load_n(a + i * n, n), vf_set1(max))), n);
        vf row = vf_load(c[i]);
        vf_store_n(c[i], vf_add(vf_div(row, vf_set1(vf_sum(row))), eps), n);
    }
    bank_divide_columns(c, n, eps);
    for (uint32_t round = 1; round < p->iterations; round++) {
        for (uint32_t i = 0; i < n; i++) {
            vf row = vf_load(c[i]);
            vf_store(c[i], vf_div(row, vf_set1(vf_sum(row) + p->eps)));
        }
        bank_divide_columns(c, n, eps);
    }
    for (uint32_t i = 0; i < n; i++)
        vf_store_n(a + i * n, vf_load(c[i]), n);
}

static void bank_mix_row(const void *ctx, uint32_t t)
{
    const bank_job *job = ctx;
    const tr_mhc_params *p = job->params;
    uint32_t n = p->streams, count = (2 + n) * n, columns = n * job->D;
    float *a = job->out + (size_t)t * count;
    float scale[(2 + TR_STREAMS_MAX) * TR_STREAMS_MAX];
    float mean = rows_sum_of_squares(job->in + (size_t)t * columns, columns) / (float)columns;
    vf inverse = vf_set1(1.0f / sqrtf(mean + p->norm_eps));

    for (uint32_t k = 0; k < count; k++)
        scale[k] = job->scale[k < n ? 0 : k < 2 * n ? 1 : 2];
    for (uint32_t k = 0; k < count; k += 16) {
        uint32_t lanes = rows_lanes(count, k);
        vf z = vf_mul(vf_load_n(a + k, lanes), inverse);
        z = vf_fma(z, vf_load_n(scale + k, lanes), vf_load_n(job->base + k, lanes));
        vf_store_n(a + k, z, lanes);
    }
    vf read = vf_sigmoid(vf_load_n(a, n)), write = vf_sigmoid(vf_load_n(a + n, n));
    vf_store_n(a, vf_add(read, vf_set1(p->eps)), n);
    vf_store_n(a + n, vf_mul(write, vf_set1(2.0f)), n);
    bank_sinkhorn(a + 2 * (size_t)n, p);
}

void TR_CPU(mhc_mix)(tr_team *team, float *z, const float *bank, const float *base,
                     const float *scale, const tr_mhc_params *p, uint32_t T, uint32_t D)
{
    bank_job job = {.out = z,
                    .in = bank,
                    .base = base,
                    .scale = scale,
                    .params = p,
                    .streams = p->streams,
                    .T = T,
                    .D = D,
                    .row = bank_mix_row};
    bank_run(team, &job, 1);
}

static void bank_read_row(const void *ctx, uint32_t t)
{
    const bank_job *job = ctx;
    uint32_t n = job->streams, D = job->D;
    const float *bank = job->in + (size_t)t * n * D;
    const float *weight = job->weight != NULL ? job->weight + t * job->ld : NULL;
    vf share = vf_set1(1.0f / (float)n);

    for (uint32_t d = 0; d < D; d += 16) {
        uint32_t lanes = rows_lanes(D, d);
        vf sum = vf_zero();
        for (uint32_t i = 0; i < n; i++) {
            vf x = vf_load_n(bank + (size_t)i * D + d, lanes);
            sum = weight != NULL ? vf_fma(vf_set1(weight[i]), x, sum) : vf_add(sum, x);
        }
        vf_store_n(job->out + (size_t)t * D + d, weight != NULL ? sum : vf_mul(sum, share), lanes);
    }
}

void TR_CPU(bank_read)(tr_team *team, float *out, const float *bank, const float *weight, size_t ld,
                       uint32_t streams, uint32_t T, uint32_t D)
{
    bank_job job = {.out = out,
                    .in = bank,
                    .weight = weight,
                    .ld = ld,
                    .streams = streams,
                    .T = T,
                    .D = D,
                    .row = bank_read_row};
    bank_run(team, &job, 1);
}

static void bank_write_row(const void *ctx, uint32_t t)
{
    const bank_job *job = ctx;
    uint32_t n = job->streams, D = job->D;
    float *bank = job->bank + (size_t)t * n * D;
    const float *y = job->in + (size_t)t * D, *weight = job->weight + t * job->ld;
    const float *mix = job->mix != NULL ? job->mix + t * job->ld : NULL;

    for (uint32_t d = 0; d < D; d += 16) {
        uint32_t lanes = rows_lanes(D, d);
        vf value = vf_load_n(y + d, lanes), x[TR_STREAMS_MAX];
        for (uint32_t i = 0; i < n; i++)
            x[i] = vf_load_n(bank + (size_t)i * D + d, lanes);
        for (uint32_t i = 0; i < n; i++) {
            vf w = vf_set1(weight[i]);
            vf sum = mix != NULL ? vf_mul(w, value) : vf_fma(w, value, x[i]);
            for (uint32_t j = 0; mix != NULL && j < n; j++)
                sum = vf_fma(vf_set1(mix[j * n + i]), x[j], sum);
            vf_store_n(bank + (size_t)i * D + d, sum, lanes);
        }
    }
}

void TR_CPU(bank_write)(tr_team *team, float *bank, const float *y, const float *weight,
                        const float *mix, size_t ld, uint32_t streams, uint32_t T, uint32_t D)
{
    bank_job job = {.bank = bank,
                    .in = y,
                    .weight = weight,
                    .mix = mix,
                    .ld = ld,
                    .streams = streams,
                    .T = T,
                    .D = D,
                    .row = bank_write_row};
    bank_run(team, &job, mix != NULL ? streams : 1);
}
