/* matmul.c - products with packed matrices, and rows of them.
 *
 * Both paths do the same operations on the same lanes (kernels.h, lane sum); which one is taken
 * depends on the number of rows of x only for speed:
 *
 *   few rows    weights are decoded in registers (kinds.c)
 *   many rows   a tile of sixteen rows x TILE_K columns is decoded into the cache and multiplied
 *               with blocks of ROWS_MAX rows of x */
#include "kernels/cpu/block.h"
#include "kernels/cpu/kinds.h"

#define TILE_K   512
#define ROWS_MAX 64

static_assert(TILE_K % TR_UNIT == 0, "a tile consists of units");
static_assert(TILE_N % TR_ROW_BLOCK == 0, "tiles consist of row blocks");
static_assert(TILE_N % BLOCK_N == 0, "tiles consist of blocks");

typedef struct matmul_job matmul_job;
struct matmul_job {
    const float *x;
    size_t ld_x;
    const uint32_t *rows; /* r(t) or d(t); NULL: t */
    const tr_matrix *W;
    uint32_t T, parts;
    /* takes the sums of row t, W rows n..n+count-1, count <= TILE_N, before scale */
    void (*emit)(const matmul_job *job, uint32_t t, uint32_t n, uint32_t count, const float *sums);

    float *out; /* matmul */
    size_t ld_out;

    int64_t *acc; /* matmul_term */
    uint8_t *flags;
    const int32_t *exponent;
    const float *weight;
};

static const float *matmul_row(const matmul_job *job, uint32_t t)
{
    /* in a term, rows names the target and x is dense */
    return job->x + (job->rows != NULL && job->acc == NULL ? job->rows[t] : t) * job->ld_x;
}

/* Rows t0.. of x: one, two or FEW_T (the last one is repeated and not emitted beyond count). */
static void matmul_few(const matmul_job *job, const w_rows *rows, uint32_t t0, uint32_t count,
                       uint32_t n, uint32_t n_count)
{
    const w_kind_ops *ops = &TR_CPU(kinds)[rows->kind];
    w_few_fn *few = count == 1 ? ops->few_1 : count == 2 ? ops->few_2 : ops->few_4;
    uint32_t step = count == 1   ? V16_FEW_ROWS(1)
                    : count == 2 ? V16_FEW_ROWS(2)
                                 : V16_FEW_ROWS(FEW_T);
    const float *x[FEW_T];
    float sums[FEW_T][TILE_N];

    for (uint32_t t = 0; t < FEW_T; t++)
        x[t] = matmul_row(job, t0 + (t < count ? t : count - 1));
    for (uint32_t i = 0; i < n_count; i += step)
        few((float(*)[TILE_N])(&sums[0][i]), x, rows, n + i);
    for (uint32_t t = 0; t < count; t++)
        job->emit(job, t0 + t, n, n_count, sums[t]);
}

/* All columns of one tile of W rows for rows t0..t0+m-1 of x. */
static void matmul_tile(const matmul_job *job, const w_rows *rows, uint32_t t0, uint32_t m,
                        uint32_t n, uint32_t count)
{
    _Alignas(64) float tile[TILE_N][TILE_K];
    _Alignas(64) float carry[ROWS_MAX][TILE_N][16];
    const float *x[ROWS_MAX];

    for (uint32_t t = 0; t < m; t++)
        x[t] = matmul_row(job, t0 + t);
    for (uint32_t k = 0; k < rows->cols; k += TILE_K) {
        uint32_t k_count = rows->cols - k < TILE_K ? rows->cols - k : TILE_K;
        const float *w = tile[0];
        size_t ldw = TILE_K;
        if (rows->kind == W_F32) { /* needs no decoding */
            w = (const float *)(const void *)(rows->codes + n * rows->layout.codes_stride) + k;
            ldw = rows->layout.codes_stride / sizeof(float);
        } else {
            for (uint32_t i = 0; i < tr_round_up(count, TR_ROW_BLOCK); i++)
                TR_CPU(kinds)[rows->kind].decode(tile[i], rows, n + i, k, k_count);
        }
        for (uint32_t i = 0; i < count; i += BLOCK_N)
            block_dot(m, &carry[0][i][0], TILE_N * 16, x, w + i * ldw, ldw, k_count, k == 0);
        for (uint32_t t = 0; t < m; t++)
            x[t] += TILE_K;
    }
    for (uint32_t t = 0; t < m; t++) {
        float sums[TILE_N];
        for (uint32_t i = 0; i < count; i += BLOCK_N)
            vf_sum4(sums + i, carry[t][i]);
        job->emit(job, t0 + t, n, count, sums);
    }
}

static void matmul_part(void *ctx, uint32_t part, uint32_t thread)
{
    const matmul_job *job = ctx;
    tr_range n = tr_range_of(job->W->rows, TILE_N, job->parts, part);
    w_rows rows = w_rows_of(job->W);
    /* more than one pass over F32, which needs no decoding, would only read it again */
    bool few = job->T <= (rows.kind == W_F32 ? FEW_T : V16_FEW_MAX);
    uint32_t step = few ? FEW_T : ROWS_MAX;
    (void)thread;

    for (; n.begin < n.end; n.begin += TILE_N) {
        uint32_t n_count = n.end - n.begin < TILE_N ? n.end - n.begin : TILE_N;
        for (uint32_t t = 0; t < job->T; t += step) {
            uint32_t count = job->T - t < step ? job->T - t : step;
            if (few)
                matmul_few(job, &rows, t, count, n.begin, n_count);
            else
                matmul_tile(job, &rows, t, count, n.begin, n_count);
        }
    }
}

static void matmul_run(tr_team *team, matmul_job *job)
{
    const tr_matrix *W = job->W;
    uint64_t units = (W->rows + TILE_N - 1) / TILE_N;

    if (job->T == 0 || W->rows == 0)
        return;
    assert(job->ld_x >= W->cols);
    job->parts = tr_parts_for(team, units, (uint64_t)W->rows * W->cols * job->T);
    tr_team_run(team, job->parts, matmul_part, job);
}

static void matmul_emit(const matmul_job *job, uint32_t t, uint32_t n, uint32_t count,
                        const float *sums)
{
    float *out = job->out + t * job->ld_out + n;
    float scale = job->W->scale;

    for (uint32_t i = 0; i < count; i++)
        out[i] = scale * sums[i];
}

void TR_CPU(matmul)(tr_team *team, float *out, size_t ld_out, const float *x, size_t ld_x,
                    const uint32_t *rows, const tr_matrix *W, uint32_t T)
{
    assert(T == 0 || ld_out >= W->rows);
    matmul_job job = {.x = x,
                      .ld_x = ld_x,
                      .rows = rows,
                      .W = W,
                      .T = T,
                      .emit = matmul_emit,
                      .out = out,
                      .ld_out = ld_out};
    matmul_run(team, &job);
}

/* 2^n as a double, -1022 <= n <= 1023. */
static double matmul_power(int32_t n)
{
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double p;
    memcpy(&p, &bits, sizeof(p));
    return p;
}

static void matmul_term_emit(const matmul_job *job, uint32_t t, uint32_t n, uint32_t count,
                             const float *sums)
{
    size_t d = job->rows != NULL ? job->rows[t] : t;
    int64_t *acc = job->acc + d * job->W->rows + n;
    double power = matmul_power(TR_FIXED_BITS - job->exponent[d]);
    float scale = job->W->scale;
    bool bad = false;

    for (uint32_t i = 0; i < count; i++) {
        float y = scale * sums[i];
        if (job->weight != NULL)
            y = job->weight[t] * y;
        double v = (double)y * power;          /* exact */
        bool fits = v < 0x1p50 && v > -0x1p50; /* NaN does not */
        bad |= !fits;
        /* adding 1.5 * 2^52 rounds to an integer (nearest even), which is then in the low bits */
        double shifted = (fits ? v : 0.0) + 0x1.8p52;
        uint64_t bits;
        memcpy(&bits, &shifted, sizeof(bits));
        acc[i] = (int64_t)((uint64_t)acc[i] + (bits - 0x4338000000000000u));
    }
    if (bad) /* several threads may set the flag of one row */
        __atomic_store_n(&job->flags[d], 1, __ATOMIC_RELAXED);
}

void TR_CPU(matmul_term)(tr_team *team, int64_t *acc, uint8_t *flags, const int32_t *exponent,
                         const float *x, size_t ld_x, const uint32_t *rows, const float *weight,
                         const tr_matrix *W, uint32_t T)
{
    assert(acc != NULL || T == 0);
    matmul_job job = {.x = x,
                      .ld_x = ld_x,
                      .rows = rows,
                      .W = W,
                      .T = T,
                      .emit = matmul_term_emit,
                      .acc = acc,
                      .flags = flags,
                      .exponent = exponent,
                      .weight = weight};
    matmul_run(team, &job);
}

/* -- rows of a table -- */

typedef struct {
    float *out;
    const tr_matrix *table;
    const int32_t *ids;
    uint32_t T, parts;
} embed_job;

static void embed_row(float *out, const tr_matrix *table, const w_rows *rows, uint32_t id)
{
    _Alignas(64) float block[TR_SUPER];
    vf scale = vf_set1(table->scale);

    for (uint32_t k = 0; k < table->cols; k += TR_SUPER) {
        uint32_t count = table->cols - k < TR_SUPER ? table->cols - k : TR_SUPER;
        TR_CPU(kinds)[rows->kind].decode(block, rows, id, k, count);
        for (uint32_t i = 0; i < count; i += 16)
            vf_store_n(out + k + i, vf_mul(vf_load(block + i), scale),
                       count - i < 16 ? count - i : 16);
    }
}

static void embed_part(void *ctx, uint32_t part, uint32_t thread)
{
    const embed_job *job = ctx;
    tr_range t = tr_range_of(job->T, 1, job->parts, part);
    w_rows rows = w_rows_of(job->table);
    (void)thread;

    for (; t.begin < t.end; t.begin++) {
        uint32_t id = (uint32_t)job->ids[t.begin];
        assert(id < job->table->rows);
        embed_row(job->out + (size_t)t.begin * job->table->cols, job->table, &rows, id);
    }
}

void TR_CPU(embed)(tr_team *team, float *out, const tr_matrix *table, const int32_t *ids,
                   uint32_t T)
{
    embed_job job = {.out = out, .table = table, .ids = ids, .T = T};

    job.parts = tr_parts_for(team, T, (uint64_t)T * table->cols);
    if (T > 0)
        tr_team_run(team, job.parts, embed_part, &job);
}
