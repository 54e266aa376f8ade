/* sums.c - the fixed-point sums: back to floats, and onto and off the wire. Integers and
 * element-wise conversions only, so plain loops (the compiler vectorises them) give equal bits. */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct {
    float *x;
    const int64_t *acc;
    const int32_t *exponent;
    uint32_t T, D, parts;
} residual_job;

static void residual_part(void *ctx, uint32_t part, uint32_t thread)
{
    const residual_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    (void)thread;

    for (uint32_t t = r.begin; t < r.end; t++) {
        const int64_t *acc = job->acc + (size_t)t * job->D;
        float *x = job->x + (size_t)t * job->D;
        uint64_t bits = (uint64_t)(job->exponent[t] - TR_FIXED_BITS + 1023) << 52;
        double power;
        memcpy(&power, &bits, sizeof(power));
        for (uint32_t d = 0; d < job->D; d++)
            x[d] = x[d] + (float)((double)acc[d] * power);
    }
}

void TR_CPU(residual_add)(tr_team *team, float *x, const int64_t *acc, const int32_t *exponent,
                          uint32_t T, uint32_t D)
{
    residual_job job = {.x = x, .acc = acc, .exponent = exponent, .T = T, .D = D};

    job.parts = tr_parts_for(team, T, (uint64_t)T * D * 2);
    if (T > 0)
        tr_team_run(team, job.parts, residual_part, &job);
}

/* Each row's place depends on the widths of those before it: one pass on the caller. It moves 12
 * bytes per element, so a team would only wait for memory. */
size_t TR_CPU(sums_pack)(tr_team *team, uint8_t *out, uint8_t *flags, const int64_t *acc,
                         uint32_t T, uint32_t D)
{
    uint8_t *at = out;
    (void)team;

    for (uint32_t t = 0; t < T; t++, acc += D) {
        uint64_t wide = 0;
        for (uint32_t d = 0; d < D; d++)
            wide |= ((uint64_t)acc[d] + 0x80000000u) >> 32;
        if (wide != 0) {
            flags[t] = (uint8_t)(flags[t] | 2);
            memcpy(at, acc, (size_t)D * 8);
            at += (size_t)D * 8;
        } else {
            flags[t] = (uint8_t)(flags[t] & ~2);
            for (uint32_t d = 0; d < D; d++) {
                int32_t narrow = (int32_t)acc[d];
                memcpy(at + (size_t)d * 4, &narrow, 4);
            }
            at += (size_t)D * 4;
        }
    }
    return (size_t)(at - out);
}

bool TR_CPU(sums_add)(tr_team *team, int64_t *acc, const uint8_t *in, size_t size,
                      const uint8_t *flags, uint32_t T, uint32_t D)
{
    size_t expected = 0;
    (void)team;

    for (uint32_t t = 0; t < T; t++)
        expected += (size_t)D * (flags[t] & 2 ? 8 : 4);
    if (size != expected)
        return false;
    for (uint32_t t = 0; t < T; t++, acc += D) {
        /* unsigned: what a peer sends may not overflow into undefined behaviour */
        if (flags[t] & 2) {
            for (uint32_t d = 0; d < D; d++, in += 8) {
                uint64_t v;
                memcpy(&v, in, 8);
                acc[d] = (int64_t)((uint64_t)acc[d] + v);
            }
        } else {
            for (uint32_t d = 0; d < D; d++, in += 4) {
                int32_t v;
                memcpy(&v, in, 4);
                acc[d] = (int64_t)((uint64_t)acc[d] + (uint64_t)(int64_t)v);
            }
        }
    }
    return true;
}
