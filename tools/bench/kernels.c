/* kernels.c - how fast the kernels are: one line per operation, shape and instruction set.
 *
 * GB/s counts each byte of weights, keys, values or states once; GFLOP/s counts a multiply-add as
 * two. Times are the best and the median of several runs. Weights rotate through more memory than
 * the caches hold, as they do in a model; "x BF16" says how much sooner a product is done than with
 * the same weights in BF16. Yardsticks of the same run: the speed at which this many
 * threads read memory, and OpenBLAS's sgemm where the build found it. */
#include "core/model/blocks.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

#define RUNS_MAX     200
#define ROTATE_BYTES (96u << 20)

static double bench_seconds = 0.15; /* for each line */
static tr_team *bench_team;

static double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *bench_alloc(size_t size)
{
    void *p = aligned_alloc(64, (size + 63) / 64 * 64);
    if (p == NULL) {
        fprintf(stderr, "kernels: no memory for %zu bytes\n", size);
        exit(1);
    }
    memset(p, 0, size);
    return p;
}

static float *bench_floats(size_t count, float range)
{
    float *x = bench_alloc(count * sizeof(float));
    uint32_t state = 12345;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ((float)(state >> 8) * 0x1p-23f - 1.0f) * range;
    }
    return x;
}

static int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct {
    double best, median; /* seconds */
} timing;

/* Runs fn(ctx, run) until bench_seconds are over. */
static timing bench_time(void (*fn)(void *ctx, uint32_t run), void *ctx)
{
    double times[RUNS_MAX], start = bench_now();
    uint32_t runs = 0;

    fn(ctx, 0);
    do {
        double begin = bench_now();
        fn(ctx, runs + 1);
        times[runs++] = bench_now() - begin;
    } while (runs < RUNS_MAX && bench_now() - start < bench_seconds);
    qsort(times, runs, sizeof(times[0]), bench_compare);
    return (timing){.best = times[0], .median = times[runs / 2]};
}

/* portable, bf16: best seconds of cpu-portable and of BF16 weights on the same line, 0 if unknown.
 */
static void bench_print(const char *backend, const char *what, timing t, double bytes, double flops,
                        double portable, double bf16)
{
    printf("%-13s %-34s %10.1f us  (median %10.1f)  %7.2f GB/s  %8.2f GFLOP/s", backend, what,
           t.best * 1e6, t.median * 1e6, bytes / t.best * 1e-9, flops / t.best * 1e-9);
    if (portable > 0)
        printf("  %6.1f x portable", portable / t.best);
    if (bf16 > 0)
        printf("  %5.2f x BF16", bf16 / t.best);
    printf("\n");
    fflush(stdout);
}

/* -- products -- */

typedef struct {
    const tr_kernels *k;
    tr_matrix *copies;
    uint32_t copies_count, T, rows, cols;
    float *x, *out;
} product;

static void product_run(void *ctx, uint32_t run)
{
    product *p = ctx;
    p->k->matmul(bench_team, p->out, p->rows, p->x, p->cols, NULL,
                 &p->copies[run % p->copies_count], p->T);
}

/* Any bytes that make numbers: only IQ formats, which look codes up, could notice. */
static void product_bytes(tr_format format, uint8_t *data, size_t size)
{
    uint32_t bytes = tr_format_block_bytes(format), state = 12345;
    bool blocked = tr_format_is_blocked(format);
    int at[2] = {blocked ? tr_block_scale_at(format) : -1, blocked ? tr_block_min_at(format) : -1};
    const uint16_t half = 0x2c00; /* 1/16 */

    for (size_t i = 0; i < size; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (uint8_t)(state >> 24 & (at[0] >= 0 ? 0xff : 0x3f));
    }
    for (size_t i = 0; i < size; i += bytes)
        for (int h = 0; h < 2; h++)
            if (at[h] >= 0)
                memcpy(data + i + at[h], &half, 2);
}

static tr_weight product_weight(tr_format format, uint32_t rows, uint32_t cols)
{
    size_t row_size =
        (size_t)cols / tr_format_block_elements(format) * tr_format_block_bytes(format);
    uint8_t *data = bench_alloc(row_size * rows), *scales = bench_alloc((size_t)rows * cols / 16);

    product_bytes(format, data, row_size * rows);
    memset(scales, 0x38, (size_t)rows * cols / 16);
    return (tr_weight){.format = format,
                       .rows = rows,
                       .cols = cols,
                       .data = data,
                       .row_size = row_size,
                       .scales = scales,
                       .scales_row_size = cols / 16,
                       .scale = 1.0f,
                       .grid_rows = 128,
                       .grid_cols = 128};
}

static void bench_products(const tr_kernels *const *backends, size_t count)
{
    static const uint32_t rows_of_x[] = {1, 4, 8, 64, 256};
    const uint32_t rows = 2048, cols = 2048;
    float *x = bench_floats((size_t)256 * cols, 1.0f), *out = bench_floats((size_t)256 * rows, 0);
    double bf16[16][5] = {{0}}; /* seconds of BF16 on the same backend and line */

    for (int f = 0; f < TR_FORMATS_COUNT; f++) {
        tr_weight w = product_weight((tr_format)f, rows, cols);
        size_t size = backends[0]->pack_size((tr_format)f, rows, cols);
        uint32_t copies = (uint32_t)(ROTATE_BYTES / size) + 1;
        tr_matrix *matrices = bench_alloc(copies * sizeof(*matrices));
        uint8_t *memory = bench_alloc(size * copies);
        for (uint32_t i = 0; i < copies; i++) /* all cpu variants share one layout */
            if (backends[0]->pack(&matrices[i], memory + i * size, &w, NULL) != TR_OK)
                exit(1);
        for (size_t t = 0; t < sizeof(rows_of_x) / sizeof(rows_of_x[0]); t++) {
            uint32_t T = rows_of_x[t];
            double portable = 0;
            char what[64];
            snprintf(what, sizeof(what), "matmul %-10s [%u, %u] T %u", tr_format_name((tr_format)f),
                     rows, cols, T);
            for (size_t i = 0; i < count; i++) {
                product p = {backends[i], matrices, copies, T, rows, cols, x, out};
                timing time = bench_time(product_run, &p);
                if (strcmp(backends[i]->name, "cpu-portable") == 0)
                    portable = time.best;
                if (f == TR_FORMAT_BF16)
                    bf16[i][t] = time.best;
                bench_print(backends[i]->name, what, time, (double)size, 2.0 * rows * cols * T,
                            i > 0 ? portable : 0, bf16[i][t]);
            }
        }
        free(memory);
        free(matrices);
        free((void *)(uintptr_t)w.data);
        free((void *)(uintptr_t)w.scales);
    }
    free(x);
    free(out);
}

/* -- sequence operations and rows -- */

typedef struct {
    const tr_kernels *k;
    float *x, *y, *out, *state;
    tr_kv_view kv;
    void *scratch;
    uint32_t first, T;
} sequence;

enum { HEADS = 8, DIM = 128, LD = HEADS * DIM, PAGES = 64, EXPERTS = 320 };

static void run_attention(void *ctx, uint32_t run)
{
    sequence *s = ctx;
    (void)run;
    s->k->attention(bench_team, s->out, LD, s->x, LD, &s->kv, HEADS, DIM, 0.088f, s->first, s->T,
                    s->scratch);
}

static void run_recurrent(void *ctx, uint32_t run)
{
    sequence *s = ctx;
    (void)run;
    s->k->kda_recurrent(bench_team, s->out, s->x, s->x, s->x, s->y, LD, s->x, HEADS, s->state,
                        HEADS, DIM, s->T);
}

static void run_chunk(void *ctx, uint32_t run)
{
    sequence *s = ctx;
    (void)run;
    s->k->kda_chunk(bench_team, s->out, s->x, s->x, s->x, s->y, LD, s->x, HEADS, s->state, HEADS,
                    DIM, s->T, s->scratch);
}

/* The same heads, in groups of four that share keys. */
static const tr_gdn_shape gdn_shape = {
    .heads = HEADS, .group = 4, .key_dim = DIM, .value_dim = DIM};

static void run_gdn_recurrent(void *ctx, uint32_t run)
{
    sequence *s = ctx;
    (void)run;
    s->k->gdn_recurrent(bench_team, s->out, s->x, s->x, LD, s->x, LD, s->y, s->x, LD, s->state,
                        &gdn_shape, s->T);
}

static void run_gdn_chunk(void *ctx, uint32_t run)
{
    sequence *s = ctx;
    (void)run;
    s->k->gdn_chunk(bench_team, s->out, s->x, s->x, LD, s->x, LD, s->y, s->x, LD, s->state,
                    &gdn_shape, s->T, s->scratch);
}

static void run_rms_norm(void *ctx, uint32_t run)
{
    sequence *s = ctx;
    (void)run;
    s->k->rms_norm(bench_team, s->out, s->x, s->y, 1e-5f, s->T, LD);
}

static void run_silu_mul(void *ctx, uint32_t run)
{
    sequence *s = ctx;
    (void)run;
    s->k->silu_mul(bench_team, s->out, s->x, s->y, LD, INFINITY, s->T, LD);
}

static void run_route(void *ctx, uint32_t run)
{
    static uint32_t expert[256 * 8];
    static const tr_route_params p = {.experts = EXPERTS,
                                      .top_k = 8,
                                      .groups = 1,
                                      .top_groups = 1,
                                      .norm_top_k = true,
                                      .scaling = 1.0f};
    sequence *s = ctx;
    (void)run;
    s->k->route(bench_team, expert, s->out, s->x, s->y, &p, s->T);
}

static void bench_sequences(const tr_kernels *const *backends, size_t count)
{
    static const double kv_bytes = 2.0 * PAGES * TR_KV_PAGE_TOKENS * DIM * 4;
    static const double state_bytes = 2.0 * HEADS * DIM * DIM * 4;
    static const struct {
        const char *what;
        void (*run)(void *, uint32_t);
        uint32_t first, T;
        double bytes, flops;
    } lines[] = {
        {"attention 8 heads, 4096 keys, T 1", run_attention, 4095, 1, kv_bytes,
         4.0 * HEADS * DIM * 4096},
        {"attention 8 heads, prefill T 256", run_attention, 0, 256, 2.0 * 256 * DIM * 4,
         4.0 * HEADS * DIM * 256 * 128},
        {"kda_recurrent 8 heads T 1", run_recurrent, 0, 1, state_bytes, 7.0 * HEADS * DIM * DIM},
        {"kda_recurrent 8 heads T 64", run_recurrent, 0, 64, state_bytes,
         7.0 * HEADS * DIM * DIM * 64},
        {"kda_chunk 8 heads T 64", run_chunk, 0, 64, state_bytes, 7.0 * HEADS * DIM * DIM * 64},
        {"gdn_recurrent 8 heads T 64", run_gdn_recurrent, 0, 64, state_bytes,
         7.0 * HEADS * DIM * DIM * 64},
        {"gdn_chunk 8 heads T 64", run_gdn_chunk, 0, 64, state_bytes, 7.0 * HEADS * DIM * DIM * 64},
        {"rms_norm 64 x 1024", run_rms_norm, 0, 64, 2.0 * 64 * LD * 4, 4.0 * 64 * LD},
        {"silu_mul 64 x 1024", run_silu_mul, 0, 64, 3.0 * 64 * LD * 4, 0},
        {"route 320 experts, top 8, T 64", run_route, 0, 64, 64.0 * EXPERTS * 4, 0},
    };
    size_t page_size = 2 * TR_KV_PAGE_TOKENS * DIM * sizeof(float);
    float *pages_memory = bench_floats(PAGES * page_size / sizeof(float), 1.0f);
    uint8_t *pages[PAGES];
    uint32_t threads = tr_team_size(bench_team);
    sequence s = {.x = bench_floats(256 * LD, 0.05f),
                  .y = bench_floats(256 * LD, 0.0f),
                  .out = bench_floats(256 * LD, 0.0f),
                  .state = bench_floats(HEADS * DIM * DIM, 0.1f),
                  .kv = {.pages = pages, .pages_count = PAGES, .v_offset = page_size / 2}};

    for (int i = 0; i < PAGES; i++)
        pages[i] = (uint8_t *)pages_memory + i * page_size;
    for (size_t i = 0; i < 256 * LD; i++)
        s.y[i] = -0.1f;
    for (size_t l = 0; l < sizeof(lines) / sizeof(lines[0]); l++) {
        double portable = 0;
        for (size_t i = 0; i < count; i++) {
            s.k = backends[i];
            s.first = lines[l].first;
            s.T = lines[l].T;
            size_t attention = s.k->attention_scratch(DIM, HEADS, s.T, threads);
            size_t chunk = s.k->kda_chunk_scratch(DIM, threads);
            size_t gdn = s.k->gdn_chunk_scratch(&gdn_shape, threads);
            chunk = gdn > chunk ? gdn : chunk;
            s.scratch = bench_alloc(attention > chunk ? attention : chunk);
            timing time = bench_time(lines[l].run, &s);
            if (strcmp(s.k->name, "cpu-portable") == 0)
                portable = time.best;
            bench_print(s.k->name, lines[l].what, time, lines[l].bytes, lines[l].flops,
                        i > 0 ? portable : 0, 0);
            free(s.scratch);
        }
    }
    free(pages_memory);
    free(s.x);
    free(s.y);
    free(s.out);
    free(s.state);
}

/* -- yardsticks -- */

typedef struct {
    const uint64_t *memory;
    size_t words; /* per part */
    uint64_t sums[64 * 8];
} reading;

static void reading_part(void *ctx, uint32_t part, uint32_t thread)
{
    reading *r = ctx;
    const uint64_t *p = r->memory + part * r->words;
    uint64_t sum[8] = {0};
    (void)thread;
    for (size_t i = 0; i < r->words; i += 8)
        for (int j = 0; j < 8; j++)
            sum[j] += p[i + j];
    r->sums[part % 64 * 8] = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static void reading_run(void *ctx, uint32_t run)
{
    (void)run;
    tr_team_run(bench_team, tr_team_size(bench_team), reading_part, ctx);
}

#ifdef HAVE_OPENBLAS
static void sgemm_run(void *ctx, uint32_t run)
{
    product *p = ctx;
    (void)run;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->T, (int)p->rows, (int)p->cols,
                1.0f, p->x, (int)p->cols, p->copies[0].data, (int)p->cols, 0.0f, p->out,
                (int)p->rows);
}
#endif

static void bench_yardsticks(void)
{
    size_t size = 128u << 20;
    reading r = {.memory = bench_alloc(size), .words = size / 8 / tr_team_size(bench_team) / 8 * 8};

    bench_print("yardstick", "reading 128 MiB", bench_time(reading_run, &r), (double)size, 0, 0, 0);
    free((void *)(uintptr_t)r.memory);
#ifdef HAVE_OPENBLAS
    tr_matrix W = {.data = bench_floats(2048 * 2048, 1.0f)};
    product p = {NULL,
                 &W,
                 1,
                 256,
                 2048,
                 2048,
                 bench_floats(256 * 2048, 1.0f),
                 bench_floats(256 * 2048, 0.0f)};
    openblas_set_num_threads((int)tr_team_size(bench_team));
    bench_print("OpenBLAS", "sgemm [2048, 2048] T 256", bench_time(sgemm_run, &p), 2048.0 * 8192,
                2.0 * 2048 * 2048 * 256, 0, 0);
    free(p.x);
    free(p.out);
    free((void *)(uintptr_t)W.data);
#else
    printf("%-13s not found when this was built\n", "OpenBLAS");
#endif
}

static int bench_usage(FILE *to, int code)
{
    fprintf(to, "usage: kernels [--products] [--threads N] [--seconds S] [BACKEND...]\n\n"
                "Times every kernel of the cpu backends (default: all that this machine has).\n"
                "  --products   only products with weights, of every format\n"
                "  --threads N  kernel threads (1)\n"
                "  --seconds S  time for each line (0.15)\n\n"
                "example: kernels --threads 2 cpu-avx2 cpu-avx512\n");
    return code;
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"cpu-portable", "cpu-avx2", "cpu-avx512", "cpu-neon"};
    const tr_kernels *backends[16];
    size_t count = 0;
    uint32_t threads = 1;
    bool products_only = false;
    tr_error err;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return bench_usage(stdout, 0);
        if (strcmp(argv[i], "--products") == 0) {
            products_only = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            bench_seconds = strtod(argv[++i], NULL);
        } else if (argv[i][0] == '-' || count == 16) {
            return bench_usage(stderr, 2);
        } else if (tr_kernels_find(&backends[count++], argv[i], &err) != TR_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
    }
    bool named = count > 0;
    for (size_t i = 0; !named && i < sizeof(all) / sizeof(all[0]); i++)
        if (tr_kernels_find(&backends[count], all[i], NULL) == TR_OK)
            count++;
    if (tr_team_open(&bench_team, threads, &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("threads %u; best and median of up to %d runs or %.2f s a line\n", threads, RUNS_MAX,
           bench_seconds);
    bench_yardsticks();
    bench_products(backends, count);
    if (!products_only)
        bench_sequences(backends, count);
    tr_team_close(bench_team);
    return 0;
}
