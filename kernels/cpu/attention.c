/* attention.c - softmax attention over pages, and writing them.
 *
 * A row (one query head at one position) goes through its pages in order. For each page: scores,
 * the page's maximum, m' = max(m, page's), then everything so far times exp(m - m') and the page's
 * part added, keys in order. So the order depends on the row's position alone; rows that share the
 * KV head are done ROWS_MAX at a time, so that a page is read once for all of them. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/softmax.h"

#define ROWS_MAX 16

static_assert(TR_KV_PAGE_TOKENS % BLOCK_N == 0, "keys are taken in blocks");

void TR_CPU(kv_write)(tr_team *team, const tr_kv_view *kv, uint32_t head_dim, const float *k,
                      const float *v, size_t ld, uint32_t first, uint32_t T)
{
    (void)team; /* a copy: bound by memory */

    for (uint32_t t = 0; t < T; t++) {
        uint32_t position = first + t;
        uint32_t page = position / TR_KV_PAGE_TOKENS;
        size_t at = (size_t)(position % TR_KV_PAGE_TOKENS) * head_dim * sizeof(float);
        assert(page < kv->pages_count);
        memcpy(kv->pages[page] + kv->k_offset + at, k + t * ld, head_dim * sizeof(float));
        if (v != NULL)
            memcpy(kv->pages[page] + kv->v_offset + at, v + t * ld, head_dim * sizeof(float));
    }
}

/* Scratch of one thread, in floats: scores, sums, maxima and denominators of ROWS_MAX rows. */
static size_t attention_scratch_floats(uint32_t head_dim)
{
    return tr_round_up((size_t)ROWS_MAX * (TR_KV_PAGE_TOKENS + head_dim + 2), 16);
}

size_t TR_CPU(attention_scratch)(uint32_t head_dim, uint32_t group, uint32_t T, uint32_t threads)
{
    (void)group;
    (void)T;
    return attention_scratch_floats(head_dim) * sizeof(float) * threads;
}

typedef struct {
    float *out;
    size_t ld_out;
    const float *q;
    size_t ld_q;
    const tr_kv_view *kv;
    uint32_t group, head_dim;
    float scale;
    uint32_t first, T, parts;
    float *scratch;
} attention_job;

/* Up to ROWS_MAX rows: row i is head (r + i) % group at position first + (r + i) / group. */
typedef struct {
    const float *q[ROWS_MAX];
    uint32_t position[ROWS_MAX];
    float *p;         /* [ROWS_MAX, TR_KV_PAGE_TOKENS]: scores, then their exponentials */
    float *o;         /* [ROWS_MAX, head_dim] */
    float *max, *sum; /* [ROWS_MAX] */
} attention_rows;

/* p[i, j] = scale * q_i.k_j for rows i in [begin, end) and the first keys of a page. */
static void attention_scores(const attention_job *job, attention_rows *rows, uint32_t begin,
                             uint32_t end, const float *k, uint32_t keys)
{
    _Alignas(64) float carry[ROWS_MAX][BLOCK_N][16];

    for (uint32_t j = 0; j < keys; j += BLOCK_N) {
        block_dot(end - begin, carry[0][0], BLOCK_N * 16, rows->q + begin,
                  k + (size_t)j * job->head_dim, job->head_dim, job->head_dim, true);
        for (uint32_t i = begin; i < end; i++) {
            float *p = rows->p + i * TR_KV_PAGE_TOKENS + j;
            vf_sum4(p, carry[i - begin][0]);
            for (int n = 0; n < BLOCK_N; n++)
                p[n] = job->scale * p[n];
        }
    }
}

static void attention_page(const attention_job *job, attention_rows *rows, uint32_t count,
                           uint32_t page)
{
    uint32_t start = page * TR_KV_PAGE_TOKENS;
    const uint8_t *base = job->kv->pages[page];
    const float *k = (const float *)(const void *)(base + job->kv->k_offset);
    const float *v = (const float *)(const void *)(base + job->kv->v_offset);
    uint32_t D = job->head_dim;
    uint32_t keys[ROWS_MAX] = {0};
    uint32_t begin = 0;

    while (rows->position[begin] < start) /* positions ascend: the last row reaches this page */
        begin++;
    for (uint32_t i = begin; i < count; i++) {
        uint32_t seen = rows->position[i] - start + 1;
        keys[i] = seen < TR_KV_PAGE_TOKENS ? seen : TR_KV_PAGE_TOKENS;
    }
    attention_scores(job, rows, begin, count, k, keys[count - 1]);
    for (uint32_t i = begin; i < count; i++)
        softmax_block(rows->p + i * TR_KV_PAGE_TOKENS, keys[i], rows->o + (size_t)i * D, D,
                      &rows->max[i], &rows->sum[i]);

    /* the keys that all rows see together, then the rest row by row: the same order for each */
    uint32_t common = keys[begin];
    const float *p = rows->p + begin * TR_KV_PAGE_TOKENS;
    float *o = rows->o + (size_t)begin * D;
    block_outer(count - begin, D, o, D, p, TR_KV_PAGE_TOKENS, 1, v, D, common, false);
    for (uint32_t i = begin; i < count; i++) {
        p = rows->p + i * TR_KV_PAGE_TOKENS + common;
        o = rows->o + (size_t)i * D;
        if (keys[i] > common)
            block_outer(1, D, o, D, p, TR_KV_PAGE_TOKENS, 1, v + (size_t)common * D, D,
                        keys[i] - common, false);
    }
}

static void attention_block(const attention_job *job, uint32_t r, uint32_t count, float *scratch)
{
    attention_rows rows = {.p = scratch};
    uint32_t D = job->head_dim;

    rows.o = rows.p + ROWS_MAX * TR_KV_PAGE_TOKENS;
    rows.max = rows.o + (size_t)ROWS_MAX * D;
    rows.sum = rows.max + ROWS_MAX;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t t = (r + i) / job->group;
        uint32_t head = (r + i) % job->group;
        rows.q[i] = job->q + t * job->ld_q + (size_t)head * D;
        rows.position[i] = job->first + t;
        rows.max[i] = -INFINITY;
        rows.sum[i] = 0.0f;
        memset(rows.o + (size_t)i * D, 0, D * sizeof(float));
    }

    uint32_t pages = rows.position[count - 1] / TR_KV_PAGE_TOKENS + 1;
    assert(pages <= job->kv->pages_count);
    for (uint32_t page = 0; page < pages; page++)
        attention_page(job, &rows, count, page);

    for (uint32_t i = 0; i < count; i++) {
        uint32_t t = (r + i) / job->group;
        uint32_t head = (r + i) % job->group;
        float *out = job->out + t * job->ld_out + (size_t)head * D;
        vf sum = vf_set1(rows.sum[i]);
        for (uint32_t d = 0; d < D; d += 16) {
            uint32_t n = D - d < 16 ? D - d : 16;
            vf_store_n(out + d, vf_div(vf_load_n(rows.o + (size_t)i * D + d, n), sum), n);
        }
    }
}

static void attention_part(void *ctx, uint32_t part, uint32_t thread)
{
    const attention_job *job = ctx;
    tr_range r = tr_range_of(job->T * job->group, 1, job->parts, part);
    float *scratch = job->scratch + thread * attention_scratch_floats(job->head_dim);

    while (r.begin < r.end) {
        uint32_t count = r.end - r.begin < ROWS_MAX ? r.end - r.begin : ROWS_MAX;
        attention_block(job, r.begin, count, scratch);
        r.begin += count;
    }
}

void TR_CPU(attention)(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                       const tr_kv_view *kv, uint32_t group, uint32_t head_dim, float scale,
                       uint32_t first, uint32_t T, void *scratch)
{
    assert(T == 0 || ld_q >= (size_t)group * head_dim);
    assert(T == 0 || ld_out >= (size_t)group * head_dim);
    if (T == 0 || group == 0)
        return;
    attention_job job = {.out = out,
                         .ld_out = ld_out,
                         .q = q,
                         .ld_q = ld_q,
                         .kv = kv,
                         .group = group,
                         .head_dim = head_dim,
                         .scale = scale,
                         .first = first,
                         .T = T,
                         .scratch = scratch};
    uint32_t rows = T * group;
    uint32_t threads = tr_team_size(team);
    uint64_t keys = (uint64_t)first + T / 2 + 1;

    job.parts = tr_parts_for(team, rows, rows * keys * head_dim * 2);
    /* rows that share a page should stay together unless threads would be idle */
    uint32_t blocks = (rows + ROWS_MAX - 1) / ROWS_MAX;
    uint32_t parts_max = blocks > threads ? blocks : threads;
    if (job.parts > parts_max)
        job.parts = parts_max;
    tr_team_run(team, job.parts, attention_part, &job);
}
