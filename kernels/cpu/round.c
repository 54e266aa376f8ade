/* round.c - activations in four bits: rows rounded to NVFP4.
 *
 * The scale of a group is made in integers and scalars, the sixteen elements side by side.
 * Divisions and products are single IEEE operations, so every variant rounds alike. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

typedef struct {
    float *out;
    const float *x;
    size_t ld_out, ld_x;
    const uint32_t *rows;
    float scale;
    uint32_t T, N, parts;
} round_job;

/* p >= 0 to the nearest E4M3, ties to even, at most 448; its value. */
static float round_e4m3(float p)
{
    uint32_t bits;

    if (p < 0x1p-6f) { /* multiples of 2^-9: adding 2^14 leaves them in the last bits */
        float shifted = p + 0x1p14f;
        return shifted - 0x1p14f;
    }
    if (p > 448)
        return 448;
    memcpy(&bits, &p, sizeof(bits));
    bits += 0x7ffff + (bits >> 20 & 1); /* three mantissa bits stay */
    bits &= 0xfff00000;
    memcpy(&p, &bits, sizeof(bits));
    return p;
}

/* The largest magnitude; above FLT_MAX's bits when one of them is infinite or NaN. */
static uint32_t round_largest(const float *x)
{
    uint32_t bits[16], max = 0;

    memcpy(bits, x, sizeof(bits));
    for (int i = 0; i < 16; i++) {
        uint32_t magnitude = bits[i] & 0x7fffffff;
        max = magnitude > max ? magnitude : max;
    }
    return max;
}

static void round_group(float *out, const float *x, float scale)
{
    uint32_t bits = round_largest(x);
    float max, step;

    memcpy(&max, &bits, sizeof(max));
    float p = max / (6 * scale);
    step = p > 0 ? round_e4m3(p) * scale : scale;
    if (bits >= 0x7f800000)
        step = NAN;
    float divisor = step == 0 ? INFINITY : step; /* then all quotients are 0 */
    for (int i = 0; i < 16; i++) {
        float q = fabsf(x[i] / divisor);
        /* the codes 0 .5 1 1.5 2 3 4 6; a tie goes to the even one */
        float code = 0.5f * (float)((q > 0.25f) + (q >= 0.75f) + (q > 1.25f) + (q >= 1.75f)) +
                     (float)((q > 2.5f) + (q >= 3.5f) + 2 * (q > 5));
        out[i] = copysignf(code, x[i]) * step;
    }
}

static void round_part(void *ctx, uint32_t part, uint32_t thread)
{
    const round_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    (void)thread;

    for (uint32_t t = r.begin; t < r.end; t++) {
        const float *x = job->x + (job->rows != NULL ? job->rows[t] : t) * job->ld_x;
        float *out = job->out + t * job->ld_out;
        for (uint32_t n = 0; n < job->N; n += 16)
            round_group(out + n, x + n, job->scale);
    }
}

void TR_CPU(round_nvfp4)(tr_team *team, float *out, size_t ld_out, const float *x, size_t ld_x,
                         const uint32_t *rows, float scale, uint32_t T, uint32_t N)
{
    assert(N % 16 == 0);
    assert(scale > 0);
    assert(T == 0 || ld_out >= N);
    assert(out != x || rows == NULL);
    round_job job = {.out = out,
                     .x = x,
                     .ld_out = ld_out,
                     .ld_x = ld_x,
                     .rows = rows,
                     .scale = scale,
                     .T = T,
                     .N = N};

    job.parts = tr_parts_for(team, T, (uint64_t)T * N * 4);
    if (T > 0)
        tr_team_run(team, job.parts, round_part, &job);
}
