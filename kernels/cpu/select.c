/* select.c - which positions to attend to: pooled keys, scores, the highest of them. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/vmath.h"

static float *select_key(const tr_paged_rows *keys, uint32_t p)
{
    assert(p / keys->per_page < keys->pages_count);
    return (float *)(void *)(keys->pages[p / keys->per_page] + keys->offset) +
           (size_t)(p % keys->per_page) * keys->dim;
}

/* -- pooling -- */

/* The mean of sixteen channels from c (the first `lanes` of them) of the pool in the tail. */
static void mean_channels(float *out, const float *tail, uint32_t block, uint32_t dim, uint32_t c,
                          uint32_t lanes)
{
    vf sum = vf_zero();

    for (uint32_t r = 0; r < block; r++)
        sum = vf_add(sum, vf_load_n(tail + (size_t)r * dim + c, lanes));
    vf_store_n(out + c, vf_div(sum, vf_set1((float)block)), lanes);
}

/* The same with weights. */
static void pool_channels(float *out, const float *tail, const float *ape, uint32_t block,
                          uint32_t dim, uint32_t c, uint32_t lanes)
{
    const float *gate = tail + (size_t)block * dim;
    vf largest = vf_set1(-INFINITY), sum = vf_zero(), acc = vf_zero();

    for (uint32_t r = 0; r < block; r++) {
        size_t at = (size_t)r * dim + c;
        largest = vf_max(vf_add(vf_load_n(gate + at, lanes), vf_load_n(ape + at, lanes)), largest);
    }
    for (uint32_t r = 0; r < block; r++) {
        size_t at = (size_t)r * dim + c;
        vf g = vf_add(vf_load_n(gate + at, lanes), vf_load_n(ape + at, lanes));
        vf a = vf_exp(vf_sub(g, largest));
        sum = vf_add(sum, a);
        acc = vf_fma(a, vf_load_n(tail + at, lanes), acc);
    }
    vf_store_n(out + c, vf_div(acc, sum), lanes);
}

void TR_CPU(pool_keys)(tr_team *team, const tr_paged_rows *keys, const float *k, const float *gate,
                       size_t ld, const float *ape, float *tail, uint32_t block, uint32_t first,
                       uint32_t T)
{
    uint32_t dim = keys->dim;
    (void)team; /* a few operations for each key, behind products of thousands */

    assert(block >= 1);
    assert((gate == NULL) == (ape == NULL));
    assert(T == 0 || ld >= dim);
    for (uint32_t t = 0; t < T; t++) {
        uint32_t slot = (first + t) % block;
        memcpy(tail + (size_t)slot * dim, k + t * ld, dim * sizeof(float));
        if (gate != NULL)
            memcpy(tail + (size_t)(block + slot) * dim, gate + t * ld, dim * sizeof(float));
        if (slot + 1 < block)
            continue;
        float *out = select_key(keys, (first + t) / block);
        for (uint32_t c = 0; c < dim; c += 16) {
            uint32_t lanes = dim - c < 16 ? dim - c : 16;
            if (gate != NULL)
                pool_channels(out, tail, ape, block, dim, c, lanes);
            else
                mean_channels(out, tail, block, dim, c, lanes);
        }
    }
}

/* -- scores -- */

#define HEADS_BATCH 16
#define KEYS_BATCH  16

typedef struct {
    float *out;
    size_t ld_out;
    const float *q;
    size_t ld_q;
    const float *weight;
    size_t ld_weight;
    const tr_paged_rows *keys;
    uint32_t heads;
    float scale;
    const uint32_t *counts;
    uint32_t T, parts;
} scores_job;

/* Keys p .. p + n - 1 of one page for row t. */
static void scores_keys(const scores_job *job, uint32_t t, uint32_t p, uint32_t n)
{
    _Alignas(64) float carry[HEADS_BATCH][BLOCK_N][16], dots[HEADS_BATCH][KEYS_BATCH];
    uint32_t dim = job->keys->dim;
    const float *key = select_key(job->keys, p);
    const float *x[HEADS_BATCH];
    vf score = vf_zero();

    memset(dots, 0, sizeof(dots));
    for (uint32_t h = 0; h < job->heads; h += HEADS_BATCH) {
        uint32_t count = job->heads - h < HEADS_BATCH ? job->heads - h : HEADS_BATCH;
        for (uint32_t i = 0; i < count; i++)
            x[i] = job->q + t * job->ld_q + (size_t)(h + i) * dim;
        for (uint32_t j = 0; j < n; j += BLOCK_N) {
            block_dot(count, carry[0][0], BLOCK_N * 16, x, key + (size_t)j * dim, dim, dim, true);
            for (uint32_t i = 0; i < count; i++)
                vf_sum4(&dots[i][j], carry[i][0]);
        }
        for (uint32_t i = 0; i < count; i++) {
            float w = job->weight != NULL ? job->weight[t * job->ld_weight + h + i] : 1.0f;
            vf s = vf_mul(vf_set1(job->scale), vf_load(dots[i]));
            score = vf_fma(vf_set1(w), vf_max(s, vf_zero()), score);
        }
    }
    vf_store_n(job->out + t * job->ld_out + p, score, n);
}

/* Units are rows, each cut into as many pieces of its keys as there are parts for a row. */
static void scores_part(void *ctx, uint32_t part, uint32_t thread)
{
    const scores_job *job = ctx;
    (void)thread;

    for (uint32_t t = 0; t < job->T; t++) {
        tr_range r = tr_range_of(job->counts[t], KEYS_BATCH, job->parts, part);
        while (r.begin < r.end) {
            uint32_t left = job->keys->per_page - r.begin % job->keys->per_page;
            uint32_t n = r.end - r.begin < KEYS_BATCH ? r.end - r.begin : KEYS_BATCH;
            n = left < n ? left : n;
            scores_keys(job, t, r.begin, n);
            r.begin += n;
        }
    }
}

void TR_CPU(index_scores)(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                          const float *weight, size_t ld_weight, const tr_paged_rows *keys,
                          uint32_t heads, float scale, const uint32_t *counts, uint32_t T)
{
    assert(keys->per_page >= BLOCK_N && keys->per_page % BLOCK_N == 0);
    assert(T == 0 || ld_q >= (size_t)heads * keys->dim);
    scores_job job = {.out = out,
                      .ld_out = ld_out,
                      .q = q,
                      .ld_q = ld_q,
                      .weight = weight,
                      .ld_weight = ld_weight,
                      .keys = keys,
                      .heads = heads,
                      .scale = scale,
                      .counts = counts,
                      .T = T};
    uint32_t most = 0;
    uint64_t total = 0;

    for (uint32_t t = 0; t < T; t++) {
        most = counts[t] > most ? counts[t] : most;
        total += counts[t];
    }
    if (total == 0)
        return;
    job.parts = tr_parts_for(team, (most + KEYS_BATCH - 1) / KEYS_BATCH, total * heads * keys->dim);
    tr_team_run(team, job.parts, scores_part, &job);
}

/* -- the highest -- */

#define DIGIT_BITS 11
#define DIGITS     (1u << DIGIT_BITS)

typedef struct {
    uint32_t *out;
    size_t ld_out;
    const float *scores;
    size_t ld;
    const uint32_t *counts;
    uint32_t top, T, parts;
} top_job;

/* A number that orders as the score does: equal for both zeros, 0 for NaN. */
static uint32_t top_order(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0;
    if ((bits & 0x7fffffffu) == 0)
        bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The order of the top-th highest of count scores, digit by digit from the highest; *equal is how
 * many scores of just this order belong to the top. */
static uint32_t top_threshold(const float *scores, uint32_t count, uint32_t top, uint32_t *equal)
{
    static const int shifts[3] = {21, 10, 0};
    uint32_t prefix = 0, mask = 0, wanted = top;

    for (int i = 0; i < 3; i++) {
        uint32_t histogram[DIGITS] = {0};
        uint32_t digits = i == 2 ? 1u << 10 : DIGITS, digit = digits - 1;
        for (uint32_t p = 0; p < count; p++) {
            uint32_t order = top_order(scores[p]);
            if ((order & mask) == prefix)
                histogram[order >> shifts[i] & (digits - 1)]++;
        }
        for (; histogram[digit] < wanted; digit--)
            wanted -= histogram[digit];
        prefix |= digit << shifts[i];
        mask |= (digits - 1) << shifts[i];
    }
    *equal = wanted;
    return prefix;
}

static void top_row(const top_job *job, uint32_t t)
{
    const float *scores = job->scores + t * job->ld;
    uint32_t *out = job->out + t * job->ld_out;
    uint32_t count = job->counts[t], equal = 0, n = 0;
    uint32_t threshold = 0;
    bool all = count <= job->top;

    if (!all)
        threshold = top_threshold(scores, count, job->top, &equal);
    for (uint32_t p = 0; p < count; p++) {
        uint32_t order = all ? 0 : top_order(scores[p]);
        if (all || order > threshold)
            out[n++] = p;
        else if (order == threshold && equal > 0) {
            out[n++] = p;
            equal--;
        }
    }
    assert(n == (all ? count : job->top));
}

static void top_part(void *ctx, uint32_t part, uint32_t thread)
{
    const top_job *job = ctx;
    tr_range r = tr_range_of(job->T, 1, job->parts, part);
    (void)thread;

    for (uint32_t t = r.begin; t < r.end; t++)
        top_row(job, t);
}

void TR_CPU(select_top)(tr_team *team, uint32_t *out, size_t ld_out, const float *scores, size_t ld,
                        const uint32_t *counts, uint32_t top, uint32_t T)
{
    assert(top >= 1);
    top_job job = {.out = out,
                   .ld_out = ld_out,
                   .scores = scores,
                   .ld = ld,
                   .counts = counts,
                   .top = top,
                   .T = T};
    uint64_t total = 0;

    if (T == 0)
        return;
    for (uint32_t t = 0; t < T; t++)
        total += counts[t];
    job.parts = tr_parts_for(team, T, total * 8);
    tr_team_run(team, job.parts, top_part, &job);
}
