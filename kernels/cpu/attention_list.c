/* attention_list.c - softmax attention over chosen positions, or over all, of keys and values that
 * have shapes of their own.
 *
 * Up to ROWS_MAX heads of one position go through its list together, a block of positions at a
 * time; the rows of a block are gathered first, so that the products read neighbours. Without a
 * list a block is a page, and is read where it lies. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/softmax.h"

#define ROWS_MAX 16
#define BLOCK    TR_KV_PAGE_TOKENS

static_assert(BLOCK % BLOCK_N == 0, "keys are taken in blocks");

/* Scratch of one thread: scores, sums, maxima and denominators of ROWS_MAX heads, gathered rows. */
typedef struct {
    float *p;         /* [ROWS_MAX, BLOCK] */
    float *o;         /* [ROWS_MAX, v_dim] */
    float *max, *sum; /* [ROWS_MAX] */
    float *k, *v;     /* [BLOCK, k_dim], [BLOCK, v_dim] */
} list_scratch;

static size_t list_scratch_layout(list_scratch *s, float *base, uint32_t k_dim, uint32_t v_dim)
{
    size_t used = 0;
#define TAKE(field, count)                                                                         \
    s->field = base == NULL ? NULL : base + used, used += tr_round_up((count), 16)
    TAKE(p, (size_t)ROWS_MAX * BLOCK);
    TAKE(o, (size_t)ROWS_MAX * v_dim);
    TAKE(max, ROWS_MAX);
    TAKE(sum, ROWS_MAX);
    TAKE(k, (size_t)BLOCK * k_dim);
    TAKE(v, (size_t)BLOCK * v_dim);
#undef TAKE
    return used;
}

size_t TR_CPU(attention_list_scratch)(uint32_t k_dim, uint32_t v_dim, uint32_t threads)
{
    list_scratch s;
    return list_scratch_layout(&s, NULL, k_dim, v_dim) * sizeof(float) * threads;
}

typedef struct {
    float *out;
    size_t ld_out;
    const float *q;
    size_t ld_q;
    const tr_kv_rows *kv;
    const tr_position_list *list;
    uint32_t group;
    float scale;
    uint32_t first, T, parts;
    float *scratch;
} list_job;

static const float *list_row(const tr_kv_rows *kv, uint32_t position, size_t offset, uint32_t ld)
{
    uint32_t page = position / TR_KV_PAGE_TOKENS;
    assert(page < kv->pages_count);
    return (const float *)(const void *)(kv->pages[page] + offset) +
           (size_t)(position % TR_KV_PAGE_TOKENS) * ld;
}

/* The keys and values of a block, as rows of *ldk and *ldv floats. */
static void list_gather(const list_job *job, const list_scratch *s, const uint32_t *positions,
                        uint32_t keys, const float **k, const float **v)
{
    const tr_kv_rows *kv = job->kv;
    bool same = kv->k_offset == kv->v_offset && kv->k_ld == kv->v_ld && kv->v_dim <= kv->k_dim;
    uint32_t padded = (uint32_t)tr_round_up(keys, BLOCK_N);

    for (uint32_t j = 0; j < keys; j++) {
        memcpy(s->k + (size_t)j * kv->k_dim, list_row(kv, positions[j], kv->k_offset, kv->k_ld),
               kv->k_dim * sizeof(float));
        if (!same)
            memcpy(s->v + (size_t)j * kv->v_dim, list_row(kv, positions[j], kv->v_offset, kv->v_ld),
                   kv->v_dim * sizeof(float));
    }
    memset(s->k + (size_t)keys * kv->k_dim, 0, (size_t)(padded - keys) * kv->k_dim * sizeof(float));
    *k = s->k;
    *v = same ? s->k : s->v;
}

/* `count` heads from `head` on, of row t. */
static void list_heads(const list_job *job, const list_scratch *s, uint32_t t, uint32_t head,
                       uint32_t count)
{
    _Alignas(64) float carry[ROWS_MAX][BLOCK_N][16];
    const tr_kv_rows *kv = job->kv;
    const uint32_t *positions = job->list->positions;
    uint32_t n = positions != NULL ? job->list->counts[t] : job->first + t + 1;
    const float *q[ROWS_MAX];

    for (uint32_t i = 0; i < count; i++) {
        q[i] = job->q + t * job->ld_q + (size_t)(head + i) * kv->k_dim;
        s->max[i] = -INFINITY;
        s->sum[i] = 0.0f;
        memset(s->o + (size_t)i * kv->v_dim, 0, kv->v_dim * sizeof(float));
    }
    for (uint32_t start = 0; start < n; start += BLOCK) {
        uint32_t keys = n - start < BLOCK ? n - start : BLOCK;
        const float *k, *v;
        size_t ldk = kv->k_ld, ldv = kv->v_ld;
        if (positions == NULL) {
            k = list_row(kv, start, kv->k_offset, kv->k_ld);
            v = list_row(kv, start, kv->v_offset, kv->v_ld);
        } else {
            list_gather(job, s, positions + t * job->list->ld + start, keys, &k, &v);
            ldk = kv->k_dim;
            ldv = v == k ? kv->k_dim : kv->v_dim;
        }
        for (uint32_t j = 0; j < keys; j += BLOCK_N) {
            block_dot(count, carry[0][0], BLOCK_N * 16, q, k + j * ldk, ldk, kv->k_dim, true);
            for (uint32_t i = 0; i < count; i++) {
                float *p = s->p + i * BLOCK + j;
                vf_sum4(p, carry[i][0]);
                for (int m = 0; m < BLOCK_N; m++)
                    p[m] = job->scale * p[m];
            }
        }
        for (uint32_t i = 0; i < count; i++)
            softmax_block(s->p + i * BLOCK, keys, s->o + (size_t)i * kv->v_dim, kv->v_dim,
                          &s->max[i], &s->sum[i]);
        block_outer(count, kv->v_dim, s->o, kv->v_dim, s->p, BLOCK, 1, v, ldv, keys, false);
    }
    for (uint32_t i = 0; i < count; i++) {
        float *out = job->out + t * job->ld_out + (size_t)(head + i) * kv->v_dim;
        vf sum = vf_set1(s->sum[i]);
        for (uint32_t d = 0; d < kv->v_dim; d += 16) {
            uint32_t lanes = kv->v_dim - d < 16 ? kv->v_dim - d : 16;
            vf_store_n(out + d, vf_div(vf_load_n(s->o + (size_t)i * kv->v_dim + d, lanes), sum),
                       lanes);
        }
    }
}

static void list_part(void *ctx, uint32_t part, uint32_t thread)
{
    const list_job *job = ctx;
    tr_range r = tr_range_of(job->T * job->group, 1, job->parts, part);
    list_scratch s;
    size_t size = list_scratch_layout(&s, NULL, job->kv->k_dim, job->kv->v_dim);
    list_scratch_layout(&s, job->scratch + thread * size, job->kv->k_dim, job->kv->v_dim);

    while (r.begin < r.end) {
        uint32_t t = r.begin / job->group, head = r.begin % job->group;
        uint32_t count = job->group - head < ROWS_MAX ? job->group - head : ROWS_MAX;
        count = r.end - r.begin < count ? r.end - r.begin : count;
        list_heads(job, &s, t, head, count);
        r.begin += count;
    }
}

void TR_CPU(attention_list)(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                            const tr_kv_rows *kv, const tr_position_list *list, uint32_t group,
                            float scale, uint32_t first, uint32_t T, void *scratch)
{
    assert(T == 0 || ld_q >= (size_t)group * kv->k_dim);
    assert(T == 0 || ld_out >= (size_t)group * kv->v_dim);
    assert(kv->k_ld >= kv->k_dim && kv->v_ld >= kv->v_dim);
    if (T == 0 || group == 0)
        return;
    list_job job = {.out = out,
                    .ld_out = ld_out,
                    .q = q,
                    .ld_q = ld_q,
                    .kv = kv,
                    .list = list,
                    .group = group,
                    .scale = scale,
                    .first = first,
                    .T = T,
                    .scratch = scratch};
    uint32_t rows = T * group, threads = tr_team_size(team);
    uint64_t keys = 0;
    for (uint32_t t = 0; t < T; t++)
        keys += list->positions != NULL ? list->counts[t] : (uint64_t)first + t + 1;

    job.parts = tr_parts_for(team, rows, keys * group * (kv->k_dim + kv->v_dim));
    /* heads of a position should stay together unless threads would be idle */
    uint32_t blocks = T * ((group + ROWS_MAX - 1) / ROWS_MAX);
    uint32_t parts_max = blocks > threads ? blocks : threads;
    if (job.parts > parts_max)
        job.parts = parts_max;
    tr_team_run(team, job.parts, list_part, &job);
}
