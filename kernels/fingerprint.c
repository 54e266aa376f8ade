/* fingerprint.c - the self-test whose hash nodes compare.
 *
 * Each operation of the table runs once or twice on small made-up inputs, on the caller alone, and
 * everything it wrote is hashed. Shapes have tails (nothing is a multiple of sixteen) and more rows
 * than the paths for few rows take. Inputs are finite, so no NaN is hashed, whose sign and payload
 * differ between machines. The inputs, the order and the hash are part of what nodes compare: a
 * change here changes every fingerprint (tests/kernels/test_bits.c holds them). */
#include "kernels/kernels.h"

#include "core/model/blocks.h"

#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ROWS    9   /* rows of x */
#define COLS    352 /* of W: a super of 256, a unit of 64 and a tail */
#define ODD     37  /* of an element format */
#define GRID    4   /* blocks of 128 columns that COLS of them may lie in */
#define OUT     19  /* rows of W */
#define HEADS   2
#define DIM     20
#define GROUP   3
#define FIRST   61 /* attention starts before a page's end */
#define TAPS    4
#define EXPERTS 24
#define TOP_K   3
#define WIDE    (ROWS * 160)

typedef struct {
    const tr_kernels *k;
    XXH64_state_t hash;
    uint64_t random;
    /* memory for inputs and outputs; nothing is allocated */
    float x[ROWS * COLS], y[WIDE], z[WIDE], w[WIDE], out[WIDE], beta[ROWS * HEADS];
    float state[HEADS * DIM * DIM];
    int64_t acc[ROWS * OUT];
    int32_t exponent[ROWS];
    uint8_t flags[ROWS];
    uint8_t wire[ROWS * OUT * 8];
    _Alignas(64) uint8_t weights[OUT * COLS * 4];
    uint8_t scales[OUT * COLS / 16];
    float grid[2 * GRID];
    _Alignas(64) uint8_t packed[OUT * COLS * 8];
    _Alignas(64) uint8_t pages[2][2 * TR_KV_PAGE_TOKENS * DIM * sizeof(float)];
    _Alignas(64) uint8_t scratch[256 << 10];
} self_test;

/* splitmix64 */
static uint64_t self_test_random(self_test *s)
{
    uint64_t z = s->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Multiples of 2^-20 in [-range, range). */
static void self_test_fill(self_test *s, float *x, size_t count, float range)
{
    for (size_t i = 0; i < count; i++)
        x[i] = (float)((int32_t)(self_test_random(s) >> 43) - (1 << 20)) * 0x1p-20f * range;
}

static void self_test_hash(self_test *s, const void *data, size_t size)
{
    XXH64_update(&s->hash, data, size);
}

/* Any bytes, with scales that are numbers. */
static void self_test_blocks(self_test *s, tr_format format)
{
    uint32_t bytes = tr_format_block_bytes(format);
    int at[2] = {tr_block_scale_at(format), tr_block_min_at(format)};

    for (uint8_t *b = s->weights; b + bytes <= s->weights + sizeof(s->weights); b += bytes) {
        for (int i = 0; i < 2; i++) {
            uint16_t bits = (uint16_t)(0x2000 + (self_test_random(s) >> 52)); /* about 0.01 */
            if (at[i] >= 0)
                memcpy(b + at[i], &bits, 2);
        }
        for (int i = 0; format == TR_FORMAT_GGUF_NVFP4 && i < 4; i++)
            b[i] &= 0x3f;
        if (format == TR_FORMAT_GGUF_MXFP4)
            b[0] &= 0x7f;
    }
}

/* Values of about 1. FP8: below 2, so no NaN. */
static void self_test_elements(self_test *s, tr_format format)
{
    for (uint32_t i = 0; i < OUT * COLS; i++) {
        uint16_t bits = (uint16_t)(self_test_random(s) & 0xbfff); /* finite in F16 and in BF16 */
        float f = (float)((int32_t)(self_test_random(s) >> 43) - (1 << 20)) * 0x1p-20f;
        if (format == TR_FORMAT_F32)
            memcpy(s->weights + 4 * i, &f, 4);
        else if (format == TR_FORMAT_F16 || format == TR_FORMAT_BF16)
            memcpy(s->weights + 2 * i, &bits, 2);
        else
            s->weights[i] &= 0xbf;
    }
}

/* A weight of the format, packed into s->packed. Slices begin inside a block wherever they can. */
static tr_matrix self_test_matrix(self_test *s, tr_format format)
{
    bool blocked = tr_format_is_blocked(format);
    bool elements = format == TR_FORMAT_F32 || format == TR_FORMAT_BF16 || format == TR_FORMAT_F16;
    bool scaled =
        format == TR_FORMAT_NVFP4 || format == TR_FORMAT_FP8 || format == TR_FORMAT_GGUF_NVFP4;
    uint32_t block = tr_format_block_elements(format);
    tr_weight w = {.format = format,
                   .rows = OUT,
                   .cols = elements ? ODD : COLS,
                   .data = s->weights,
                   .scales = s->scales,
                   .scales_row_size = COLS / 16,
                   .lead = blocked ? block / 2 / TR_PIECE * TR_PIECE : 0,
                   .scale = scaled ? 0.01171875f : 1.0f};
    tr_matrix matrix;

    w.row_size = (size_t)(w.lead + w.cols + block - 1) / block * tr_format_block_bytes(format);
    assert(w.row_size * OUT <= sizeof(s->weights));
    for (size_t i = 0; i < sizeof(s->weights); i++)
        s->weights[i] = (uint8_t)(self_test_random(s) >> 56);
    for (size_t i = 0; i < sizeof(s->scales); i++)
        s->scales[i] = (uint8_t)(self_test_random(s) >> 57 & 0x3f);
    if (blocked)
        self_test_blocks(s, format);
    else if (block == 1)
        self_test_elements(s, format);
    if (format == TR_FORMAT_FP8_BLOCK) {
        self_test_fill(s, s->grid, 2 * GRID, 0.5f);
        for (uint32_t i = 0; i < 2 * GRID; i++)
            s->grid[i] += 1.0f;
        w.scales = (const uint8_t *)s->grid;
        w.scales_row_size = GRID * sizeof(float);
        w.grid_rows = w.grid_cols = 128;
        w.grid_row = 120;
        w.grid_col = 48;
    }
    assert(s->k->pack_size(format, w.rows, w.cols) <= sizeof(s->packed));
    tr_status status = s->k->pack(&matrix, s->packed, &w, NULL);
    assert(status == TR_OK);
    return matrix;
}

static void self_test_products(self_test *s, tr_format format)
{
    static const int32_t ids[3] = {OUT - 1, 0, 7};
    tr_matrix W = self_test_matrix(s, format);

    self_test_fill(s, s->x, ROWS * COLS, 2.0f);
    self_test_fill(s, s->y, ROWS, 1.0f);
    for (uint32_t T = 1; T <= ROWS; T += 4) {
        s->k->matmul(NULL, s->out, OUT, s->x, COLS, NULL, &W, T);
        self_test_hash(s, s->out, T * OUT * sizeof(float));
    }
    memset(s->acc, 0, sizeof(s->acc));
    memset(s->flags, 0, sizeof(s->flags));
    for (uint32_t t = 0; t < ROWS; t++)
        s->exponent[t] = (int32_t)t - 4;
    s->k->matmul_term(NULL, s->acc, s->flags, s->exponent, s->x, COLS, NULL, s->y, &W, ROWS);
    self_test_hash(s, s->acc, sizeof(s->acc));
    self_test_hash(s, s->flags, sizeof(s->flags));
    s->k->embed(NULL, s->out, &W, ids, 3);
    self_test_hash(s, s->out, 3 * W.cols * sizeof(float));
}

static void self_test_rows(self_test *s)
{
    self_test_fill(s, s->x, WIDE, 30.0f);
    self_test_fill(s, s->y, WIDE, 30.0f);
    self_test_fill(s, s->w, WIDE, 1.0f);
    s->k->rms_norm(NULL, s->out, s->x, s->w, 1e-5f, ROWS, ODD);
    self_test_hash(s, s->out, ROWS * ODD * sizeof(float));
    memcpy(s->out, s->x, ROWS * ODD * sizeof(float));
    s->k->layer_norm(NULL, s->out, ODD, s->w, s->y, 1e-6f, ROWS, ODD);
    self_test_hash(s, s->out, ROWS * ODD * sizeof(float));
    s->k->row_exponent(NULL, s->exponent, s->x, ROWS, ODD);
    self_test_hash(s, s->exponent, sizeof(s->exponent));
    s->k->silu_mul(NULL, s->out, s->x, s->y, ODD, 7.5f, ROWS, ODD);
    self_test_hash(s, s->out, ROWS * ODD * sizeof(float));
    s->k->round_nvfp4(NULL, s->out, COLS, s->x, COLS, NULL, 0.0078125f, ROWS, COLS);
    self_test_hash(s, s->out, ROWS * COLS * sizeof(float));
    s->k->sigmoid_mul(NULL, s->out, s->x, ODD, s->y, ODD, ROWS, ODD);
    self_test_hash(s, s->out, ROWS * ODD * sizeof(float));
    s->k->sigmoid_scale(NULL, s->y, ODD, 2.0f, ROWS, ODD);
    self_test_hash(s, s->y, ROWS * ODD * sizeof(float));
    s->k->head_norm(NULL, s->x, HEADS * DIM, s->w, 1e-5f, s->y, HEADS * DIM, HEADS, DIM, 3);
    s->k->l2_norm(NULL, s->x + 3 * HEADS * DIM, HEADS * DIM, HEADS, DIM, 1e-6f, 0.25f, 3);
    self_test_hash(s, s->x, 6 * HEADS * DIM * sizeof(float));

    size_t size = s->k->sums_pack(NULL, s->wire, s->flags, s->acc, ROWS, OUT);
    self_test_hash(s, s->wire, size);
    bool added = s->k->sums_add(NULL, s->acc, s->wire, size, s->flags, ROWS, OUT);
    assert(added);
    s->k->residual_add(NULL, s->x, s->acc, s->exponent, ROWS, OUT);
    self_test_hash(s, s->x, ROWS * OUT * sizeof(float));
}

/* Three streams of thirteen columns. */
static void self_test_bank(self_test *s)
{
    enum { STREAMS = 3, WIDTH = 13, MIXES = (2 + STREAMS) * STREAMS };
    tr_mhc_params p = {.streams = STREAMS, .iterations = 5, .eps = 1e-6f, .norm_eps = 1e-5f};
    size_t bank = (size_t)ROWS * STREAMS * WIDTH;

    self_test_fill(s, s->x, bank, 2.0f);
    self_test_fill(s, s->y, (size_t)ROWS * WIDTH, 2.0f);
    self_test_fill(s, s->z, (size_t)ROWS * MIXES, 4.0f);
    self_test_fill(s, s->w, STREAMS * WIDTH, 1.0f);
    s->k->group_norm(NULL, s->out, s->x, s->w, 1e-6f, STREAMS, ROWS, WIDTH);
    self_test_hash(s, s->out, bank * sizeof(float));
    s->k->mhc_mix(NULL, s->z, s->x, s->w, s->w + MIXES, &p, ROWS, WIDTH);
    self_test_hash(s, s->z, (size_t)ROWS * MIXES * sizeof(float));
    s->k->bank_read(NULL, s->out, s->x, s->z, MIXES, STREAMS, ROWS, WIDTH);
    self_test_hash(s, s->out, (size_t)ROWS * WIDTH * sizeof(float));
    s->k->bank_write(NULL, s->x, s->y, s->z + STREAMS, s->z + 2 * STREAMS, MIXES, STREAMS, ROWS,
                     WIDTH);
    s->k->bank_write(NULL, s->x, s->y, s->z, NULL, MIXES, STREAMS, ROWS, WIDTH);
    self_test_hash(s, s->x, bank * sizeof(float));
    s->k->bank_read(NULL, s->out, s->x, NULL, 0, STREAMS, ROWS, WIDTH);
    self_test_hash(s, s->out, (size_t)ROWS * WIDTH * sizeof(float));
}

/* Two streams; more and fewer rows than the convolution remembers. */
static void self_test_ngram(self_test *s)
{
    enum { STREAMS = 2, WIDTH = 21, CHANNELS = STREAMS * WIDTH, DILATION = 2, HELD = 6 };
    size_t size = (size_t)ROWS * CHANNELS;

    self_test_fill(s, s->x, size, 2.0f);
    self_test_fill(s, s->y, size, 2.0f);
    self_test_fill(s, s->z, (size_t)ROWS * WIDTH, 2.0f);
    self_test_fill(s, s->w, (size_t)CHANNELS * TAPS, 1.0f);
    self_test_fill(s, s->state, (size_t)HELD * CHANNELS, 1.0f);
    s->k->ngram_gate(NULL, s->out, s->x, s->y, s->z, STREAMS, ROWS, WIDTH);
    self_test_hash(s, s->out, size * sizeof(float));
    s->k->ngram_conv(NULL, s->out, s->x, s->w, s->state, TAPS, DILATION, ROWS, CHANNELS);
    s->k->ngram_conv(NULL, s->out, s->y, s->w, s->state, TAPS, DILATION, 2, CHANNELS);
    self_test_hash(s, s->out, size * sizeof(float));
    self_test_hash(s, s->state, (size_t)HELD * CHANNELS * sizeof(float));
}

static void self_test_attention(self_test *s)
{
    uint8_t *pages[2] = {s->pages[0], s->pages[1]};
    tr_kv_view kv = {.pages = pages, .pages_count = 2, .v_offset = sizeof(s->pages[0]) / 2};
    uint32_t positions[ROWS];
    float divisors[(DIM - 4) / 2];
    tr_rope_scaling scaling = {.gain = 1.25f, .count = (DIM - 4) / 2, .divisors = divisors};

    for (uint32_t i = 0; i < (DIM - 4) / 2; i++)
        divisors[i] = 1 + (float)i / 3;
    for (uint32_t t = 0; t < ROWS; t++)
        positions[t] = t * t * 1001;
    for (int page = 0; page < 2; page++)
        self_test_fill(s, (float *)(void *)s->pages[page], sizeof(s->pages[0]) / sizeof(float),
                       1.0f);
    self_test_fill(s, s->x, WIDE, 4.0f);
    self_test_fill(s, s->y, WIDE, 1.0f);
    s->k->rope_table(NULL, s->z, positions, 10000.0, DIM - 4, NULL, ROWS);
    self_test_hash(s, s->z, ROWS * (DIM - 4) * sizeof(float));
    s->k->rope_table(NULL, s->out, positions, 10000.0, DIM - 4, &scaling, ROWS);
    self_test_hash(s, s->out, ROWS * (DIM - 4) * sizeof(float));
    s->k->rope(NULL, s->x, GROUP * DIM, GROUP, DIM, s->z, DIM - 4, TR_ROPE_HALF, ROWS);
    s->k->rope(NULL, s->y, DIM, 1, DIM, s->z, DIM - 4, TR_ROPE_INTERLEAVED, ROWS);
    s->k->kv_write(NULL, &kv, DIM, s->y, s->x, DIM, FIRST, ROWS);
    assert(s->k->attention_scratch(DIM, GROUP, ROWS, 1) <= sizeof(s->scratch));
    s->k->attention(NULL, s->out, GROUP * DIM, s->x, GROUP * DIM, &kv, GROUP, DIM, 0.3f, FIRST,
                    ROWS, s->scratch);
    self_test_hash(s, s->out, ROWS * GROUP * DIM * sizeof(float));
}

/* Pooled keys of block 4, their scores, the highest, attention over those: keys of DIM columns
 * whose leading DIM - 4 are the values. */
static void self_test_selection(self_test *s)
{
    enum { BLOCK = 4, TOP = 9, PER_PAGE = TR_KV_PAGE_TOKENS / BLOCK };
    uint8_t *pages[2] = {s->pages[0], s->pages[1]};
    tr_paged_rows keys = {.pages = pages,
                          .pages_count = 2,
                          .offset = sizeof(s->pages[0]) / 2,
                          .per_page = PER_PAGE,
                          .dim = DIM};
    tr_kv_rows kv = {
        .pages = pages, .pages_count = 2, .k_dim = DIM, .v_dim = DIM - 4, .k_ld = DIM, .v_ld = DIM};
    float tail[2 * BLOCK * DIM];
    uint32_t counts[ROWS], top[ROWS * TOP];

    self_test_fill(s, tail, 2 * BLOCK * DIM, 1.0f);
    self_test_fill(s, s->x, WIDE, 2.0f);
    self_test_fill(s, s->y, WIDE, 2.0f);
    self_test_fill(s, s->w, WIDE, 1.0f);
    s->k->pool_keys(NULL, &keys, s->x, s->y, DIM, s->w, tail, BLOCK, FIRST, ROWS);
    self_test_hash(s, s->pages, sizeof(s->pages));
    self_test_hash(s, tail, sizeof(tail));
    s->k->pool_keys(NULL, &keys, s->x, NULL, DIM, NULL, tail, BLOCK, FIRST, 3);
    self_test_hash(s, s->pages, sizeof(s->pages));
    for (uint32_t t = 0; t < ROWS; t++)
        counts[t] = (FIRST + t + 1) / BLOCK;
    s->k->index_scores(NULL, s->out, PER_PAGE * 2, s->x, GROUP * DIM, s->w, GROUP, &keys, GROUP,
                       0.25f, counts, ROWS);
    for (uint32_t t = 0; t < ROWS; t++)
        self_test_hash(s, s->out + (size_t)t * PER_PAGE * 2, counts[t] * sizeof(float));
    s->k->select_top(NULL, top, TOP, s->out, PER_PAGE * 2, counts, TOP, ROWS);
    self_test_hash(s, top, sizeof(top));
    for (uint32_t t = 0; t < ROWS; t++)
        counts[t] = TOP - t % 3;
    tr_position_list list = {.positions = top, .counts = counts, .ld = TOP};
    assert(s->k->attention_list_scratch(kv.k_dim, kv.v_dim, 1) <= sizeof(s->scratch));
    for (int chosen = 0; chosen < 2; chosen++) {
        list.positions = chosen ? top : NULL;
        s->k->attention_list(NULL, s->out, GROUP * DIM, s->x, GROUP * DIM, &kv, &list, GROUP, 0.3f,
                             FIRST, ROWS, s->scratch);
        for (uint32_t t = 0; t < ROWS; t++)
            self_test_hash(s, s->out + (size_t)t * GROUP * DIM, GROUP * kv.v_dim * sizeof(float));
    }
}

static void self_test_kda(self_test *s)
{
    uint32_t ld = HEADS * DIM;
    float a[HEADS] = {-0.5f, -3.0f};
    float history[(TAPS - 1) * HEADS * DIM];

    self_test_fill(s, history, (TAPS - 1) * ld, 1.0f);
    self_test_fill(s, s->state, HEADS * DIM * DIM, 1.0f);
    self_test_fill(s, s->beta, ROWS * HEADS, 1.0f);
    self_test_fill(s, s->w, WIDE, 1.0f);
    self_test_fill(s, s->z, WIDE, 3.0f);
    s->k->conv_silu(NULL, s->x, s->z, ld, s->w, history, TAPS, ROWS, ld);
    self_test_hash(s, s->x, ROWS * ld * sizeof(float));
    self_test_hash(s, history, sizeof(history));
    memcpy(s->out, s->z, ROWS * ld * sizeof(float));
    s->k->kda_gate_bounded(NULL, s->out, ld, s->w, (const float[HEADS]){0.5f, 3.0f}, -5.0f, HEADS,
                           DIM, ROWS);
    self_test_hash(s, s->out, ROWS * ld * sizeof(float));
    s->k->kda_gate(NULL, s->z, ld, s->w, a, HEADS, DIM, ROWS);
    self_test_hash(s, s->z, ROWS * ld * sizeof(float));

    self_test_fill(s, s->y, WIDE, 0.25f);
    s->k->kda_recurrent(NULL, s->out, s->x, s->y, s->w, s->z, ld, s->beta, HEADS, s->state, HEADS,
                        DIM, ROWS);
    self_test_hash(s, s->out, ROWS * ld * sizeof(float));
    self_test_fill(s, s->w, WIDE, 1.0f);

    uint32_t rows = WIDE / ld; /* two sub-blocks and a tail */
    self_test_fill(s, s->x, WIDE, 0.25f);
    self_test_fill(s, s->z, WIDE, 1.0f);
    for (uint32_t i = 0; i < WIDE; i++)
        s->z[i] = -s->z[i] * s->z[i];
    float beta[WIDE / (HEADS * DIM) * HEADS];
    self_test_fill(s, beta, rows * HEADS, 1.0f);
    assert(s->k->kda_chunk_scratch(DIM, 1) <= sizeof(s->scratch));
    s->k->kda_chunk(NULL, s->out, s->x, s->y, s->w, s->z, ld, beta, HEADS, s->state, HEADS, DIM,
                    rows, s->scratch);
    self_test_hash(s, s->out, rows * ld * sizeof(float));
    self_test_hash(s, s->state, sizeof(s->state));
}

static void self_test_gdn(self_test *s)
{
    tr_gdn_shape shape = {.heads = HEADS, .group = HEADS, .key_dim = DIM, .value_dim = DIM - 3};
    uint32_t ld = HEADS * DIM, rows = WIDE / ld; /* two sub-blocks and a tail */
    float g[WIDE / (HEADS * DIM) * HEADS], beta[WIDE / (HEADS * DIM) * HEADS];

    self_test_fill(s, s->state, HEADS * DIM * DIM, 1.0f);
    self_test_fill(s, s->x, WIDE, 0.25f);
    self_test_fill(s, s->y, WIDE, 0.25f);
    self_test_fill(s, s->w, WIDE, 1.0f);
    self_test_fill(s, beta, rows * HEADS, 1.0f);
    self_test_fill(s, g, rows * HEADS, 1.0f);
    for (uint32_t i = 0; i < rows * HEADS; i++)
        g[i] = -g[i] * g[i];
    s->k->gdn_recurrent(NULL, s->out, s->x, s->y, ld, s->w, ld, g, beta, HEADS, s->state, &shape,
                        ROWS);
    assert(s->k->gdn_chunk_scratch(&shape, 1) <= sizeof(s->scratch));
    s->k->gdn_chunk(NULL, s->z, s->x, s->y, ld, s->w, ld, g, beta, HEADS, s->state, &shape, rows,
                    s->scratch);
    for (uint32_t t = 0; t < rows; t++) {
        if (t < ROWS)
            self_test_hash(s, s->out + t * ld, HEADS * (DIM - 3) * sizeof(float));
        self_test_hash(s, s->z + t * ld, HEADS * (DIM - 3) * sizeof(float));
    }
    self_test_hash(s, s->state, HEADS * DIM * (DIM - 3) * sizeof(float));
}

static void self_test_route(self_test *s)
{
    uint32_t expert[ROWS * TOP_K];
    float weight[ROWS * TOP_K];
    tr_route_params p = {.experts = EXPERTS,
                         .top_k = TOP_K,
                         .groups = 4,
                         .top_groups = 2,
                         .score = TR_SCORE_SIGMOID,
                         .norm_top_k = true,
                         .scaling = 2.5f};

    self_test_fill(s, s->x, ROWS * EXPERTS, 4.0f);
    self_test_fill(s, s->y, EXPERTS, 0.1f);
    for (int i = 0; i < 2; i++) {
        s->k->route(NULL, expert, weight, s->x, s->y, &p, ROWS);
        self_test_hash(s, expert, sizeof(expert));
        self_test_hash(s, weight, sizeof(weight));
        p.score = TR_SCORE_SOFTMAX;
    }
}

uint64_t tr_kernels_fingerprint(const tr_kernels *kernels)
{
    self_test s;

    memset(&s, 0, sizeof(s));
    s.k = kernels;
    XXH64_reset(&s.hash, 0);
    for (int format = 0; format < TR_FORMATS_COUNT; format++)
        self_test_products(&s, (tr_format)format);
    self_test_rows(&s);
    self_test_bank(&s);
    self_test_ngram(&s);
    self_test_attention(&s);
    self_test_selection(&s);
    self_test_kda(&s);
    self_test_gdn(&s);
    self_test_route(&s);
    return XXH64_digest(&s.hash);
}
