/* rows.c - norms and elementwise operations, row by row. */
#include "kernels/cpu/rows.h"

#include "kernels/cpu/vmath.h"

/* What the operations of this file need; each uses some of it. */
typedef struct {
    float *out;
    const float *x, *y; /* y: second operand (up, gate), may be NULL */
    size_t ld_x, ld_y;  /* out has ld_x */
    const float *weight, *bias;
    int32_t *exponent;
    float eps, scale, limit;
    uint32_t T, N, heads; /* rows, columns of a row or of a head */
    uint32_t parts;
    /* one row of one head: out, x, y moved there */
    void (*row)(const void *job, float *out, const float *x, const float *y);
} rows_job;

static void rows_part(void *ctx, uint32_t part, uint32_t thread)
{
    const rows_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    (void)thread;

    for (uint32_t t = r.begin; t < r.end; t++) {
        for (uint32_t h = 0; h < job->heads; h++) {
            size_t in_row = (size_t)h * job->N, at = t * job->ld_x + in_row;
            job->row(job, job->out + at, job->x + at,
                     job->y != NULL ? job->y + t * job->ld_y + in_row : NULL);
        }
    }
}

/* cost: multiply-adds that an element is worth */
static void rows_run(tr_team *team, rows_job *job, uint32_t cost)
{
    if (job->T == 0 || job->N == 0 || job->heads == 0)
        return;
    job->parts = tr_parts_for(team, job->T, (uint64_t)job->T * job->heads * job->N * cost);
    tr_team_run(team, job->parts, rows_part, job);
}

static void rows_rms_norm(const void *ctx, float *out, const float *x, const float *gate)
{
    const rows_job *job = ctx;
    float mean = rows_sum_of_squares(x, job->N) / (float)job->N;
    vf inverse = vf_set1(1.0f / sqrtf(mean + job->eps));

    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        vf y = vf_mul(vf_mul(vf_load_n(x + d, n), inverse), vf_load_n(job->weight + d, n));
        if (gate != NULL)
            y = vf_mul(y, vf_sigmoid(vf_load_n(gate + d, n)));
        vf_store_n(out + d, y, n);
    }
}

void TR_CPU(rms_norm)(tr_team *team, float *out, const float *x, const float *weight, float eps,
                      uint32_t T, uint32_t D)
{
    rows_job job = {.out = out,
                    .x = x,
                    .ld_x = D,
                    .weight = weight,
                    .eps = eps,
                    .T = T,
                    .N = D,
                    .heads = 1,
                    .row = rows_rms_norm};
    rows_run(team, &job, 2);
}

void TR_CPU(head_norm)(tr_team *team, float *x, size_t ld, const float *weight, float eps,
                       const float *gate, size_t ld_gate, uint32_t heads, uint32_t head_dim,
                       uint32_t T)
{
    assert(T == 0 || ld >= (size_t)heads * head_dim);
    rows_job job = {.out = x,
                    .x = x,
                    .ld_x = ld,
                    .y = gate,
                    .ld_y = ld_gate,
                    .weight = weight,
                    .eps = eps,
                    .T = T,
                    .N = head_dim,
                    .heads = heads,
                    .row = rows_rms_norm};
    rows_run(team, &job, gate != NULL ? 8 : 2);
}

/* Groups are heads with weights of their own: x of the second operand is the weights. */
static void rows_group_norm(const void *ctx, float *out, const float *x, const float *weight)
{
    const rows_job *job = ctx;
    float mean = rows_sum_of_squares(x, job->N) / (float)job->N;
    vf inverse = vf_set1(1.0f / sqrtf(mean + job->eps));

    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        vf y = vf_mul(vf_mul(vf_load_n(x + d, n), inverse), vf_load_n(weight + d, n));
        vf_store_n(out + d, y, n);
    }
}

void TR_CPU(group_norm)(tr_team *team, float *out, const float *x, const float *weight, float eps,
                        uint32_t groups, uint32_t T, uint32_t D)
{
    rows_job job = {.out = out,
                    .x = x,
                    .ld_x = (size_t)groups * D,
                    .y = weight, /* the same row for every t */
                    .ld_y = 0,
                    .eps = eps,
                    .T = T,
                    .N = D,
                    .heads = groups,
                    .row = rows_group_norm};
    rows_run(team, &job, 2);
}

static void rows_layer_norm(const void *ctx, float *out, const float *x, const float *unused)
{
    const rows_job *job = ctx;
    vf sum = vf_zero(), squares = vf_zero();
    (void)unused;

    for (uint32_t d = 0; d < job->N; d += 16)
        sum = vf_add(sum, vf_load_n(x + d, rows_lanes(job->N, d)));
    vf mean = vf_set1(vf_sum(sum) / (float)job->N);
    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        float centred[16] = {0}; /* lanes beyond the row must not count as -mean */
        vf_store_n(centred, vf_sub(vf_load_n(x + d, n), mean), n);
        vf v = vf_load(centred);
        squares = vf_fma(v, v, squares);
    }
    vf inverse = vf_set1(1.0f / sqrtf(vf_sum(squares) / (float)job->N + job->eps));
    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        vf y = vf_mul(vf_sub(vf_load_n(x + d, n), mean), inverse);
        y = vf_add(vf_mul(y, vf_load_n(job->weight + d, n)), vf_load_n(job->bias + d, n));
        vf_store_n(out + d, y, n);
    }
}

void TR_CPU(layer_norm)(tr_team *team, float *x, size_t ld, const float *weight, const float *bias,
                        float eps, uint32_t T, uint32_t D)
{
    assert(T == 0 || ld >= D);
    rows_job job = {.out = x,
                    .x = x,
                    .ld_x = ld,
                    .weight = weight,
                    .bias = bias,
                    .eps = eps,
                    .T = T,
                    .N = D,
                    .heads = 1,
                    .row = rows_layer_norm};
    rows_run(team, &job, 4);
}

static void rows_l2_norm(const void *ctx, float *out, const float *x, const float *unused)
{
    const rows_job *job = ctx;
    vf factor = vf_set1(job->scale / sqrtf(rows_sum_of_squares(x, job->N) + job->eps));
    (void)unused;

    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        vf_store_n(out + d, vf_mul(vf_load_n(x + d, n), factor), n);
    }
}

void TR_CPU(l2_norm)(tr_team *team, float *x, size_t ld, uint32_t heads, uint32_t head_dim,
                     float eps, float scale, uint32_t T)
{
    assert(T == 0 || ld >= (size_t)heads * head_dim);
    rows_job job = {.out = x,
                    .x = x,
                    .ld_x = ld,
                    .eps = eps,
                    .scale = scale,
                    .T = T,
                    .N = head_dim,
                    .heads = heads,
                    .row = rows_l2_norm};
    rows_run(team, &job, 2);
}

static void rows_exponent(const void *ctx, float *unused, const float *x, const float *unused2)
{
    const rows_job *job = ctx;
    vf largest = vf_zero();
    vf poison = vf_zero(); /* x * 0 is NaN for NaN and infinity, which a maximum would lose */
    (void)unused;
    (void)unused2;

    for (uint32_t d = 0; d < job->N; d += 16) {
        vf v = vf_load_n(x + d, rows_lanes(job->N, d));
        largest = vf_max(largest, vf_abs(v));
        poison = vf_add(poison, vf_mul(v, vf_zero()));
    }
    float max = vf_max_lane(largest);
    float zero = vf_sum(poison);
    uint32_t bits;
    memcpy(&bits, &max, sizeof(bits));
    int32_t e = (int32_t)(bits >> 23) - 126;
    if (e < -60)
        e = -60;
    job->exponent[(size_t)(x - job->x) / job->N] = zero != zero ? 127 : e;
}

void TR_CPU(row_exponent)(tr_team *team, int32_t *exponent, const float *x, uint32_t T, uint32_t D)
{
    assert(T == 0 || D > 0);
    rows_job job = {.out = NULL,
                    .x = x,
                    .ld_x = D,
                    .exponent = exponent,
                    .T = T,
                    .N = D,
                    .heads = 1,
                    .row = rows_exponent};
    rows_run(team, &job, 1);
}

static void rows_silu_mul(const void *ctx, float *out, const float *gate, const float *up)
{
    const rows_job *job = ctx;
    vf limit = vf_set1(job->limit), least = vf_set1(-job->limit);

    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        /* the limit comes first: of a NaN and a number, vf_min and vf_max take the second */
        vf g = vf_min(limit, vf_load_n(gate + d, n));
        vf u = vf_max(least, vf_min(limit, vf_load_n(up + d, n)));
        vf_store_n(out + d, vf_mul(vf_silu(g), u), n);
    }
}

void TR_CPU(silu_mul)(tr_team *team, float *out, const float *gate, const float *up, size_t ld,
                      float limit, uint32_t T, uint32_t N)
{
    assert(T == 0 || ld >= N);
    assert(limit > 0);
    rows_job job = {.out = out,
                    .x = gate,
                    .ld_x = ld,
                    .y = up,
                    .ld_y = ld,
                    .limit = limit,
                    .T = T,
                    .N = N,
                    .heads = 1,
                    .row = rows_silu_mul};
    rows_run(team, &job, 8);
}

static void rows_sigmoid_mul(const void *ctx, float *out, const float *x, const float *gate)
{
    const rows_job *job = ctx;

    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        vf_store_n(out + d, vf_mul(vf_load_n(x + d, n), vf_sigmoid(vf_load_n(gate + d, n))), n);
    }
}

void TR_CPU(sigmoid_mul)(tr_team *team, float *out, const float *x, size_t ld_x, const float *gate,
                         size_t ld_gate, uint32_t T, uint32_t N)
{
    assert(T == 0 || (ld_x >= N && ld_gate >= N));
    rows_job job = {.out = out,
                    .x = x,
                    .ld_x = ld_x,
                    .y = gate,
                    .ld_y = ld_gate,
                    .T = T,
                    .N = N,
                    .heads = 1,
                    .row = rows_sigmoid_mul};
    rows_run(team, &job, 8);
}

static void rows_sigmoid_scale(const void *ctx, float *out, const float *x, const float *unused)
{
    const rows_job *job = ctx;
    vf scale = vf_set1(job->scale);
    (void)unused;

    for (uint32_t d = 0; d < job->N; d += 16) {
        uint32_t n = rows_lanes(job->N, d);
        vf_store_n(out + d, vf_mul(scale, vf_sigmoid(vf_load_n(x + d, n))), n);
    }
}

void TR_CPU(sigmoid_scale)(tr_team *team, float *x, size_t ld, float scale, uint32_t T, uint32_t N)
{
    assert(T == 0 || ld >= N);
    rows_job job = {.out = x,
                    .x = x,
                    .ld_x = ld,
                    .scale = scale,
                    .T = T,
                    .N = N,
                    .heads = 1,
                    .row = rows_sigmoid_scale};
    rows_run(team, &job, 8);
}
