/* kernels.h - the operations of a model over plain row-major arrays. One table per backend.
 *
 * ref/ is the judge (float64 accumulation, used by tests only), cpu/ picks its instruction set at
 * run time. The comment on each operation is its specification.
 *
 * Bits. Every cpu variant (AVX-512, AVX2, NEON, portable) gives the same bits, whatever the number
 * of rows, threads, or other rows in the call. A sum over an index k = 0..K-1 ("lane sum") runs
 * over sixteen lanes: lane l takes k = l, l+16, l+32, ... in this order with fused multiply-add,
 * missing elements of the last group count as zero operands; the sixteen lanes are then added as a
 * fixed tree: l + (l+8), then l + (l+4), l + (l+2), l + (l+1). exp, log1p, sigmoid, softplus and
 * the like are our polynomials (kernels/cpu/vmath.h), the same operations in the same order
 * everywhere.
 *
 * Fixed point. The contribution of a term to an output element y is the integer
 * RNE(y * 2^(TR_FIXED_BITS - e)) where e is the exponent of the row (row_exponent). Sums of such
 * integers are exact, so they do not depend on who adds them. |y * 2^(TR_FIXED_BITS - e)| >= 2^50,
 * infinity and NaN set the row's flag instead (sticky).
 *
 * Errors. Shapes are checked by assert (they are our own mistakes: shapes from outside were checked
 * when the model was opened). Values are not looked at. T = 0 is a no-op everywhere.
 *
 * No operation allocates or synchronises beyond its own team. Scratch is passed in. */
#ifndef TR_KERNELS_KERNELS_H
#define TR_KERNELS_KERNELS_H

#include "core/error.h"
#include "core/model/model_spec.h"
#include "kernels/team.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bits of the grid below the row's exponent. With 23, as many as a float has, SmolLM2's logits were
 * 1.3e-4 from the reference, because its residual has elements a thousand times larger than the
 * rest; with 27 they are 1e-5 from it, and a sum up to 16 times the row's largest element still
 * travels in 32 bits. */
#define TR_FIXED_BITS 27
#define TR_KV_PAGE_TOKENS 64
#define TR_CHUNK_ROWS 64 /* prefill chunks of recurrences begin at multiples of this */
#define TR_FP8_BLOCK_COLS 128
#define TR_KDA_DIM_MAX 256 /* largest head_dim of kda_*, largest key_dim of gdn_* */

/* A weight matrix laid out for this backend. Made by pack, read-only afterwards. */
typedef struct {
    tr_format format;
    uint32_t rows, cols; /* logical */
    const void *data;    /* backend layout, in memory that the caller gave to pack */
    float scale;         /* applied to each dot product (NVFP4 and FP8: the scale of the matrix) */
    float input_scale;   /* not looked at by operations: with which callers round_nvfp4 what it
                            multiplies; 0: they do not. pack sets 0 */
    uint32_t lead;       /* FP8_BLOCK and GGUF's blocks: columns of its first block that lie before
                            column 0 */
} tr_matrix;

/* Where the keys and values of one (sequence, layer, KV head) lie. A page holds
 * TR_KV_PAGE_TOKENS positions; within it, this head's keys start at k_offset and its values at
 * v_offset, each [TR_KV_PAGE_TOKENS, head_dim] f32 row-major. */
typedef struct {
    uint8_t *const *pages; /* [pages_count] base addresses in position order, borrowed */
    uint32_t pages_count;
    size_t k_offset, v_offset; /* bytes from the page base */
} tr_kv_view;

/* Keys and values of one (sequence, layer) whose rows have widths and strides of their own; they
 * may share memory (a latent is key and value). Position j lies in page j / TR_KV_PAGE_TOKENS. */
typedef struct {
    uint8_t *const *pages; /* [pages_count], borrowed */
    uint32_t pages_count;
    size_t k_offset, v_offset; /* bytes from the page base to the key and value of its position 0 */
    uint32_t k_dim, v_dim;     /* columns */
    uint32_t k_ld, v_ld;       /* floats from one position to the next */
} tr_kv_rows;

/* Which positions each row attends to. */
typedef struct {
    const uint32_t *positions; /* [T, ld], ascending; NULL: all up to the row's own */
    const uint32_t *counts;    /* [T], at least 1 */
    size_t ld;
} tr_position_list;

/* Rows of dim floats that lie in pages, per_page to each: row p is at
 * pages[p / per_page] + offset + (p % per_page) * dim * 4. */
typedef struct {
    uint8_t *const *pages; /* [pages_count], borrowed */
    uint32_t pages_count;
    size_t offset;
    uint32_t per_page, dim;
} tr_paged_rows;

typedef struct {
    uint32_t experts, top_k, groups, top_groups;
    tr_score_kind score;
    bool norm_top_k;
    float scaling;
} tr_route_params;

/* Heads of the gated delta rule: value head h reads key head h / group. */
typedef struct {
    uint32_t heads; /* value heads, a multiple of group */
    uint32_t group; /* value heads that share a key head */
    uint32_t key_dim, value_dim;
} tr_gdn_shape;

typedef struct {
    uint32_t streams; /* 2..TR_STREAMS_MAX */
    uint32_t iterations;
    float eps, norm_eps;
} tr_mhc_params;

typedef struct tr_kernels {
    const char *name; /* "ref", "cpu-avx512", "cpu-avx2", "cpu-neon", "cpu-portable" */

    /* -- weights -- */

    /* Bytes that pack needs for a matrix of this format and shape; multiple of 64. FP8_BLOCK:
     * blocks have TR_FP8_BLOCK_COLS columns (or as many as the matrix) and begin at a multiple of
     * 16. */
    size_t (*pack_size)(tr_format format, uint32_t rows, uint32_t cols);

    /* Lays w out in memory [pack_size] (64-byte aligned, owned by the caller, must outlive *out).
     * errors TR_E_NOTSUP when this backend cannot use the format; TR_E_INVALID for scales that are
     * NaN (names nothing: the caller knows the tensor). */
    tr_status (*pack)(tr_matrix *out, void *memory, const tr_weight *w, tr_error *err);

    /* The same in bands, so that only some rows of w need to be in memory: calls follow each other
     * from row 0 to the last one without gaps; *out is complete after the last. */
    tr_status (*pack_rows)(tr_matrix *out, void *memory, const tr_weight *w, uint32_t first,
                           uint32_t count, tr_error *err);

    /* -- rows -- */

    /* out[t] = row ids[t] of table, as f32 (times table->scale).
     *   out [T, table->cols]   ids [T], each < table->rows (asserted) */
    void (*embed)(tr_team *team, float *out, const tr_matrix *table, const int32_t *ids,
                  uint32_t T);

    /* out = x / sqrt(mean_d(x_d^2) + eps) * weight, row by row. mean from a lane sum.
     *   x, out [T, D] f32, out may be x   weight [D] f32 */
    void (*rms_norm)(tr_team *team, float *out, const float *x, const float *weight, float eps,
                     uint32_t T, uint32_t D);

    /* x = (x - mean) / sqrt(mean_d((x_d - mean)^2) + eps) * weight + bias, row by row, in place;
     * both means from lane sums.   x [T, ld] D columns   weight, bias [D] f32 */
    void (*layer_norm)(tr_team *team, float *x, size_t ld, const float *weight, const float *bias,
                       float eps, uint32_t T, uint32_t D);

    /* exponent[t] = e with 2^(e-1) <= max_d |x_td| < 2^e (frexp); at least -60; rows with NaN or
     * infinity give 127.   x [T, D] */
    void (*row_exponent)(tr_team *team, int32_t *exponent, const float *x, uint32_t T, uint32_t D);

    /* As rms_norm for each group of D columns, with weights of its own.
     *   x, out [T, groups * D], out may be x   weight [groups * D] */
    void (*group_norm)(tr_team *team, float *out, const float *x, const float *weight, float eps,
                       uint32_t groups, uint32_t T, uint32_t D);

    /* -- residual streams (a bank row is n = streams rows of D columns) -- */

    /* Turns the products z = fn x of bank rows x into the coefficients of a sub-layer, in place
     * (GLM-5.3 Flash).
     *
     *   z [T, (2 + n) n] -> read n, write n, C n x n   bank [T, n * D]
     *   base [(2 + n) n]   scale [3]: of the first n, of the next n, of the rest
     *
     *   a = z / sqrt(mean(x^2) + norm_eps) * scale + base, the mean over all n D columns
     *   read = sigmoid(a) + eps   write = 2 sigmoid(a)
     *   C = softmax of rows + eps, then / (column sums + eps); then iterations - 1 times
     *       / (row sums + eps), / (column sums + eps) */
    void (*mhc_mix)(tr_team *team, float *z, const float *bank, const float *base,
                    const float *scale, const tr_mhc_params *p, uint32_t T, uint32_t D);

    /* out[t] = sum_i weight[t, i] bank[t, i] (fma from 0 in the order of i); with weight NULL
     * (sum_i bank[t, i]) * (1 / n).
     *   out [T, D]   bank [T, n * D]   weight [T, ld] */
    void (*bank_read)(tr_team *team, float *out, const float *bank, const float *weight, size_t ld,
                      uint32_t streams, uint32_t T, uint32_t D);

    /* bank'[t, i] = weight[t, i] y[t] + sum_j mix[t, j n + i] bank[t, j] (a product, then fma in
     * the order of j); with mix NULL fma(weight[t, i], y[t], bank[t, i]).
     *   bank [T, n * D] in place   y [T, D]   weight, mix [T, ld] */
    void (*bank_write)(tr_team *team, float *bank, const float *y, const float *weight,
                       const float *mix, size_t ld, uint32_t streams, uint32_t T, uint32_t D);

    /* -- products -- */

    /* out[t, n] = scale * sum_k x[r(t), k] * W[n, k], lane sum over k, one rounding for scale.
     * r(t) = rows[t], or t when rows is NULL.
     *   out [T, ld_out] f32, first W->rows columns written   x [*, ld_x] f32, W->cols read */
    void (*matmul)(tr_team *team, float *out, size_t ld_out, const float *x, size_t ld_x,
                   const uint32_t *rows, const tr_matrix *W, uint32_t T);

    /* Adds the term y[t, n] = f(scale * sum_k x[t, k] * W[n, k]) to the fixed-point sum:
     *   acc[d(t), n] += RNE(y * 2^(TR_FIXED_BITS - exponent[d(t)])), or flags[d(t)] = 1
     * where y = dot, or weight[t] * dot (one rounding) when weight is not NULL, and
     * d(t) = rows[t], or t when rows is NULL. The d(t) of one call are distinct.
     *   acc [*, W->rows] i64   flags [*] u8   exponent [*] i32   x [T, ld_x]
     *   weight [T] or NULL */
    void (*matmul_term)(tr_team *team, int64_t *acc, uint8_t *flags, const int32_t *exponent,
                        const float *x, size_t ld_x, const uint32_t *rows, const float *weight,
                        const tr_matrix *W, uint32_t T);

    /* -- sums -- */

    /* x[t, d] += (float)acc[t, d] * 2^(exponent[t] - TR_FIXED_BITS): acc to f64 exact to f32 (RNE),
     * scaled, added in f32.   x [T, D]  acc [T, D] */
    void (*residual_add)(tr_team *team, float *x, const int64_t *acc, const int32_t *exponent,
                         uint32_t T, uint32_t D);

    /* Packs rows of sums for the wire: a row whose elements all fit goes as D i32, else as D i64
     * (and then bit 1 of its flag is set). Rows follow each other without gaps.
     * Returns the bytes written to out (at most T * D * 8).
     *   flags [T] u8: bit 0 sticky error in, bit 1 wide out */
    size_t (*sums_pack)(tr_team *team, uint8_t *out, uint8_t *flags, const int64_t *acc,
                        uint32_t T, uint32_t D);

    /* acc[t] += the packed rows; returns false when size does not match the flags.
     *   in [size], any alignment of 4    flags [T] as packed (bit 1) */
    bool (*sums_add)(tr_team *team, int64_t *acc, const uint8_t *in, size_t size,
                     const uint8_t *flags, uint32_t T, uint32_t D);

    /* -- elementwise -- */

    /* out = silu(min(gate, limit)) * max(-limit, min(up, limit)), silu(x) = x * sigmoid(x);
     * NaN stays NaN.   [T, ld] each, N columns; out may be gate or up
     *   limit > 0, infinity: none */
    void (*silu_mul)(tr_team *team, float *out, const float *gate, const float *up, size_t ld,
                     float limit, uint32_t T, uint32_t N);

    /* out[t] = row r(t) of x rounded to NVFP4, r(t) = rows[t], or t when rows is NULL. For each
     * sixteen columns, in f32, each step rounded: p = max |x| / (6 * scale), s = E4M3(p) (nearest
     * even, at most 448; 1 when p is 0), y = E2M1(x / (s * scale)) * (s * scale) (nearest, ties to
     * the even code, at most 6), y = 0 when s is 0. A group with NaN or infinity becomes NaN.
     *   out [T, ld_out], x [*, ld_x], N columns, a multiple of 16; out may be x if rows is NULL
     *   scale > 0 */
    void (*round_nvfp4)(tr_team *team, float *out, size_t ld_out, const float *x, size_t ld_x,
                        const uint32_t *rows, float scale, uint32_t T, uint32_t N);

    /* out = x * sigmoid(gate). [T, N] with row strides ld_x (x and out) and ld_gate. out may be x
     * or gate, and gate x. */
    void (*sigmoid_mul)(tr_team *team, float *out, const float *x, size_t ld_x, const float *gate,
                        size_t ld_gate, uint32_t T, uint32_t N);

    /* -- softmax attention -- */

    /* cos_sin[t, i] = cos, then sin of position(t) * theta^(-2i/dims) / divisors[i], times gain,
     * i < dims/2, in f32: inverse frequency rounded to f32, angle = f32(position) * it rounded to
     * f32, then rounded within 1 ulp, product rounded.   scaling NULL: divisors and gain are 1
     *   positions [T]   cos_sin [T, dims] (cos first half, sin second half) */
    void (*rope_table)(tr_team *team, float *cos_sin, const uint32_t *positions, double theta,
                       uint32_t dims, const tr_rope_scaling *scaling, uint32_t T);

    /* Rotates the leading dims of each head in place. HALF: pairs (i, i + dims/2);
     * INTERLEAVED: pairs (2i, 2i+1). a' = a cos - b sin, b' = b cos + a sin, products rounded then
     * added.
     *   x [T, ld], heads * head_dim columns from x */
    void (*rope)(tr_team *team, float *x, size_t ld, uint32_t heads, uint32_t head_dim,
                 const float *cos_sin, uint32_t dims, tr_rope_kind kind, uint32_t T);

    /* Writes T rows of keys and values at positions first..first+T-1; v NULL: keys only.
     *   k, v [T, ld], head_dim columns */
    void (*kv_write)(tr_team *team, const tr_kv_view *kv, uint32_t head_dim, const float *k,
                     const float *v, size_t ld, uint32_t first, uint32_t T);

    /* Causal attention of `group` query heads that share one KV head; row t stands at position
     * first + t and sees positions 0..first+t (already written).
     *   a_j = softmax_j(scale * q.k_j), out = sum_j a_j v_j
     *   q, out [T, ld_q / ld_out], group * head_dim columns
     * The order of the sums depends on the row's position alone (blocks of TR_KV_PAGE_TOKENS keys,
     * running maximum per block).
     *   scratch [attention_scratch(head_dim, group, T, threads)] bytes */
    void (*attention)(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                      const tr_kv_view *kv, uint32_t group, uint32_t head_dim, float scale,
                      uint32_t first, uint32_t T, void *scratch);
    size_t (*attention_scratch)(uint32_t head_dim, uint32_t group, uint32_t T, uint32_t threads);

    /* The same with keys and values of any shape and over chosen positions: `group` query heads
     * share one head of the cache; row t stands at position first + t. The order of the sums
     * depends on the row's list alone (blocks of TR_KV_PAGE_TOKENS positions in its order, running
     * maximum per block), so a list of all positions gives the bits of no list.
     *   q [T, ld_q] group * k_dim columns   out [T, ld_out] group * v_dim columns
     *   scratch [attention_list_scratch(k_dim, v_dim, threads)] bytes */
    void (*attention_list)(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                           const tr_kv_rows *kv, const tr_position_list *list, uint32_t group,
                           float scale, uint32_t first, uint32_t T, void *scratch);
    size_t (*attention_list_scratch)(uint32_t k_dim, uint32_t v_dim, uint32_t threads);

    /* -- which positions to attend to (GLM-5.3 Flash, Qwen3.8-Flash-Next) -- */

    /* Pools the keys of each `block` neighbouring positions, channel by channel:
     *   a = softmax_r(gate_r + ape_r), pooled = sum_r a_r k_r
     * gate and ape NULL: all weights are equal, pooled is the mean.
     * Row t stands at position first + t; pool p is written when its last position is among the
     * rows.
     *   k, gate [T, ld], keys->dim columns   ape [block, dim]
     *   tail [2, block, dim] f32: k, then gate, of the positions of the unfinished pool, each at
     *   its position % block; brought up to date. Without gate [block, dim] */
    void (*pool_keys)(tr_team *team, const tr_paged_rows *keys, const float *k, const float *gate,
                      size_t ld, const float *ape, float *tail, uint32_t block, uint32_t first,
                      uint32_t T);

    /* out[t, p] = sum_h weight[t, h] * max(0, scale * q_th.key_p) for p < counts[t], heads in order
     * with fma from 0; weight NULL: 1. keys->per_page is a multiple of 4.
     *   q [T, ld_q] heads * keys->dim columns   weight [T, ld_weight] */
    void (*index_scores)(tr_team *team, float *out, size_t ld_out, const float *q, size_t ld_q,
                         const float *weight, size_t ld_weight, const tr_paged_rows *keys,
                         uint32_t heads, float scale, const uint32_t *counts, uint32_t T);

    /* The min(top, counts[t]) highest of the first counts[t] scores of each row, the lower index
     * first among equals, NaN below everything; in ascending order of index.
     *   out [T, ld_out]   scores [T, ld] */
    void (*select_top)(tr_team *team, uint32_t *out, size_t ld_out, const float *scores, size_t ld,
                       const uint32_t *counts, uint32_t top, uint32_t T);

    /* -- Kimi delta attention (Kimi Linear, Solar Open 2) -- */

    /* Depthwise causal convolution and SiLU. weight [C, taps]; the last tap is the current row.
     * The tap sum runs j = 0..taps-1 with fma from 0.
     *   out, x [T, ld] C columns, out may be x if T is 1, otherwise they must not overlap
     *   state [taps-1, C] f32: the rows before row 0, oldest first; replaced by the last taps-1 */
    void (*conv_silu)(tr_team *team, float *out, const float *x, size_t ld, const float *weight,
                      float *state, uint32_t taps, uint32_t T, uint32_t C);

    /* x = x / sqrt(sum_d x_d^2 + eps) * scale per head, lane sum. x [T, ld], in place. */
    void (*l2_norm)(tr_team *team, float *x, size_t ld, uint32_t heads, uint32_t head_dim,
                    float eps, float scale, uint32_t T);

    /* g = a[head] * softplus(r + dt_bias) (a = -exp(A_log)); in place over r.
     *   r [T, ld], heads * head_dim columns   dt_bias [heads * head_dim]   a [heads] */
    void (*kda_gate)(tr_team *team, float *r, size_t ld, const float *dt_bias, const float *a,
                     uint32_t heads, uint32_t head_dim, uint32_t T);

    /* The gate with a lower bound (GLM-5.3 Flash, a = exp(A_log)):
     * g = bound * sigmoid(a[head] * (r + dt_bias)), bound < 0. Otherwise like kda_gate. */
    void (*kda_gate_bounded)(tr_team *team, float *r, size_t ld, const float *dt_bias,
                             const float *a, float bound, uint32_t heads, uint32_t head_dim,
                             uint32_t T);

    /* x = scale * sigmoid(x), in place. x [T, ld], N columns. */
    void (*sigmoid_scale)(tr_team *team, float *x, size_t ld, float scale, uint32_t T, uint32_t N);

    /* The recurrence, row after row. head_dim D.
     *   S = diag(exp(g)) S;  d = beta (v - S^T k);  S = S + k d^T;  out = S^T q
     *   out, q, k, v, g [T, ld] heads * D columns each   beta [T, ld_beta] heads columns
     *   state [heads, D, D] f32 (key dim, value dim), in/out */
    void (*kda_recurrent)(tr_team *team, float *out, const float *q, const float *k,
                          const float *v, const float *g, size_t ld, const float *beta,
                          size_t ld_beta, float *state, uint32_t heads, uint32_t D, uint32_t T);

    /* The chunked form of one chunk, T <= TR_CHUNK_ROWS. Same arguments.
     *   scratch [kda_chunk_scratch(D, threads)] bytes */
    void (*kda_chunk)(tr_team *team, float *out, const float *q, const float *k, const float *v,
                      const float *g, size_t ld, const float *beta, size_t ld_beta, float *state,
                      uint32_t heads, uint32_t D, uint32_t T, void *scratch);
    size_t (*kda_chunk_scratch)(uint32_t D, uint32_t threads);

    /* -- gated delta rule (Qwen3.5, Qwen3.8-Flash-Next): one decay per value head -- */

    /* The recurrence, row after row:
     *   S = exp(g) S;  d = beta (v - S^T k);  S = S + k d^T;  out = S^T q
     *   q, k [T, ld_k] (heads / group) * key_dim columns
     *   out, v [T, ld_v] heads * value_dim columns
     *   g (<= 0), beta [T, ld_g] heads columns   state [heads, key_dim, value_dim] f32, in/out */
    void (*gdn_recurrent)(tr_team *team, float *out, const float *q, const float *k, size_t ld_k,
                          const float *v, size_t ld_v, const float *g, const float *beta,
                          size_t ld_g, float *state, const tr_gdn_shape *shape, uint32_t T);

    /* The chunked form of one chunk, T <= TR_CHUNK_ROWS. Same arguments; out may not be v.
     *   scratch [gdn_chunk_scratch(shape, threads)] bytes */
    void (*gdn_chunk)(tr_team *team, float *out, const float *q, const float *k, size_t ld_k,
                      const float *v, size_t ld_v, const float *g, const float *beta, size_t ld_g,
                      float *state, const tr_gdn_shape *shape, uint32_t T, void *scratch);
    size_t (*gdn_chunk_scratch)(const tr_gdn_shape *shape, uint32_t threads);

    /* x = rms_norm over each head (weight [head_dim]) * sigmoid(gate) when gate is not NULL.
     *   x [T, ld] in place, heads * head_dim columns   gate [T, ld_gate] */
    void (*head_norm)(tr_team *team, float *x, size_t ld, const float *weight, float eps,
                      const float *gate, size_t ld_gate, uint32_t heads, uint32_t head_dim,
                      uint32_t T);

    /* -- n-gram embeddings (Qwen3.8-Flash-Next) -- */

    /* out[t, i] = sigmoid(r) * value[t] for each of n streams, where s = key[t, i].query[t, i] /
     * sqrt(D) (lane sum) and r = sqrt(max(|s|, 1e-6)) with the sign of s; 0 if s is 0.
     *   out, key, query [T, n * D]   value [T, D] */
    void (*ngram_gate)(tr_team *team, float *out, const float *key, const float *query,
                       const float *value, uint32_t streams, uint32_t T, uint32_t D);

    /* out[t] += silu(sum_j weight[.., j] x[t - (taps - 1 - j) * dilation]), j = 0..taps-1 with fma
     * from 0.
     *   out, x [T, C], not overlapping   weight [C, taps]
     *   state [(taps - 1) * dilation, C] f32: the rows before row 0, oldest first; replaced */
    void (*ngram_conv)(tr_team *team, float *out, const float *x, const float *weight, float *state,
                       uint32_t taps, uint32_t dilation, uint32_t T, uint32_t C);

    /* -- routing -- */

    /* Chooses top_k experts for each row from router logits. Ties go to the lowest index.
     *   expert [T, top_k] u32, in descending order of (score + bias)   weight [T, top_k] f32
     *   logits [T, experts]   bias [experts] or NULL
     * A row with a NaN logit gives expert 0..top_k-1 and NaN weights. */
    void (*route)(tr_team *team, uint32_t *expert, float *weight, const float *logits,
                  const float *bias, const tr_route_params *p, uint32_t T);
} tr_kernels;

/* The best backend of this machine ("cpu-..."). Thread: any. */
const tr_kernels *tr_kernels_best(void);

/* By name: "ref", "cpu-portable", "cpu-avx2", "cpu-avx512", "cpu-neon", "cpu" (best).
 * errors  TR_E_NOTSUP with what is missing (the instruction set, or the backend in this build) */
tr_status tr_kernels_find(const tr_kernels **out, const char *name, tr_error *err);

/* A hash of a small self-test through every operation of the table: two backends with the same
 * fingerprint give the same bits. Nodes exchange it when they meet. */
uint64_t tr_kernels_fingerprint(const tr_kernels *kernels);

/* The groups of operations that a trace tells apart. The wrappers of actors stamp them. */
#define TR_KERNEL_MAP(X)                                                                       \
    X(EMBED) X(RMS_NORM) X(MATMUL) X(MATMUL_TERM) X(SUMS) X(ELEMENTWISE) X(ROPE) X(ATTENTION)  \
    X(CONV) X(KDA) X(SELECT) X(ROUTE) X(SAMPLE)
typedef enum {
#define X(name) TR_KERNEL_##name,
    TR_KERNEL_MAP(X)
#undef X
        TR_KERNELS_COUNT
} tr_kernel_number;
const char *tr_kernel_name(uint32_t number);

#endif
