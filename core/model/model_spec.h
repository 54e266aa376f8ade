/* model_spec.h - a model as data: what each layer is, and where each weight is found.
 *
 * A family (core/model/solar_open2.c, llama.c, ...) turns a config and a checkpoint's tensor names
 * into a tr_model_spec. It contains no arithmetic; actors and kernels know no family.
 *
 * The smallest thing that can be placed is a term: a group of heads, an expert, a slice of a dense
 * or shared feed-forward. The spec fixes them; no placement changes what a term computes. */
#ifndef TR_CORE_MODEL_MODEL_SPEC_H
#define TR_CORE_MODEL_MODEL_SPEC_H

#include "core/error.h"
#include "core/placement.h"

#include <stdbool.h>
#include <stdint.h>

/* Element formats of weights, as they stand in checkpoints. */
#define TR_FORMAT_MAP(X)                                                                  \
    /*  name      text      elements per block, bytes per block */                        \
    X(F32, "F32", 1, 4)                                                                   \
    X(BF16, "BF16", 1, 2)                                                                 \
    X(F16, "F16", 1, 2)                                                                   \
    X(NVFP4, "NVFP4", 16, 8) /* + one E4M3 per block in scales, + one f32 per matrix */   \
    X(Q8_0, "Q8_0", 32, 34)                                                               \
    X(Q4_0, "Q4_0", 32, 18)                                                               \
    X(Q4_1, "Q4_1", 32, 20)                                                               \
    X(FP8, "FP8", 1, 1)             /* E4M3, + one f32 per matrix */                      \
    X(FP8_BLOCK, "FP8-BLOCK", 1, 1) /* E4M3, + one scale per rectangle (128 x 128, a row) */ \
    X(MXFP4, "MXFP4", 32, 16)       /* + one E8M0 per block in scales */                  \
    /* GGUF's block types: all that there is stands in the block (core/model/blocks.h) */ \
    X(Q5_0, "Q5_0", 32, 22)                                                               \
    X(Q5_1, "Q5_1", 32, 24)                                                               \
    X(Q2_K, "Q2_K", 256, 84)                                                              \
    X(Q3_K, "Q3_K", 256, 110)                                                             \
    X(Q4_K, "Q4_K", 256, 144)                                                             \
    X(Q5_K, "Q5_K", 256, 176)                                                             \
    X(Q6_K, "Q6_K", 256, 210)                                                             \
    X(IQ2_XXS, "IQ2_XXS", 256, 66)                                                        \
    X(IQ2_XS, "IQ2_XS", 256, 74)                                                          \
    X(IQ3_XXS, "IQ3_XXS", 256, 98)                                                        \
    X(IQ4_NL, "IQ4_NL", 32, 18)                                                           \
    X(IQ4_XS, "IQ4_XS", 256, 136)                                                         \
    X(GGUF_MXFP4, "GGUF-MXFP4", 32, 17)                                                   \
    X(GGUF_NVFP4, "GGUF-NVFP4", 64, 36) /* + one f32 per matrix */

typedef enum {
#define X(name, text, elements, bytes) TR_FORMAT_##name,
    TR_FORMAT_MAP(X)
#undef X
        TR_FORMATS_COUNT
} tr_format;

const char *tr_format_name(tr_format format);
uint32_t tr_format_block_elements(tr_format format);
uint32_t tr_format_block_bytes(tr_format format);

/* Column slices begin and end at multiples of this: at most the block. */
uint32_t tr_format_grain(tr_format format);

/* A weight matrix [rows, cols] where it lies in a mapped checkpoint, row-major, in its own format;
 * or a rectangle of one. A vector is [1, cols]. Borrows from the tr_model. */
typedef struct {
    tr_format format;
    uint32_t rows, cols;     /* elements; cols a multiple of the format's grain */
    const uint8_t *data;     /* first block of row 0; any alignment */
    size_t row_size;         /* bytes from one row to the next in data */
    const uint8_t *scales;   /* NVFP4: E4M3, MXFP4: E8M0 of row 0, block 0; FP8_BLOCK: of the
                                rectangle that holds element (0, 0); otherwise NULL */
    size_t scales_row_size;  /* bytes from one row (of rectangles) to the next in scales */
    float scale;             /* NVFP4, FP8: multiplies every element (already the multiplying form,
                                whichever layout the checkpoint has); otherwise 1 */
    float input_scale;       /* NVFP4: multiplies 4-bit activations; 0: the checkpoint has none */
    uint32_t lead;           /* columns of the first block that lie before column 0 (a slice that
                                begins inside a block): a multiple of the grain */
    tr_format scales_format; /* FP8_BLOCK: F32, BF16 or F16; FP8 parts of an n-gram table: F32 or
                                BF16 */
    uint32_t grid_rows, grid_cols; /* FP8_BLOCK: rows and columns of a rectangle */
    uint32_t grid_row, grid_col;   /* FP8_BLOCK: where in its rectangle element (0, 0) lies */
} tr_weight;

/* The rectangle rows [row, row + rows) x cols [col, col + cols) of w. Asserts that col and cols are
 * multiples of the format's grain and that it lies inside. */
tr_weight tr_weight_slice(const tr_weight *w, uint32_t row, uint32_t rows, uint32_t col,
                          uint32_t cols);

typedef enum { TR_RESIDUAL_PLAIN, TR_RESIDUAL_MHC, TR_RESIDUAL_GATED } tr_residual_kind;
typedef enum { TR_MIXER_GQA, TR_MIXER_KDA, TR_MIXER_GDN, TR_MIXER_MLA } tr_mixer_kind;
typedef enum { TR_ROPE_NONE, TR_ROPE_HALF, TR_ROPE_INTERLEAVED } tr_rope_kind;
typedef enum { TR_SCORE_SIGMOID, TR_SCORE_SOFTMAX } tr_score_kind;
typedef enum { TR_GATE_SIGMOID, TR_GATE_SILU } tr_gate_kind;

/* Which positions a row attends to when there are more than it may look at: those of the `top`
 * blocks of `block` neighbours with the highest scores, the lower block first among equals, and
 * those of the unfinished block.
 *
 *   BLOCK  a block's key is the mean of its positions' keys, then normed and turned like a query at
 *          its first position; score: sum over heads of relu(q.key) (Qwen3.8-Flash-Next)
 *   POOL   a block's key is a softmax-weighted mean of its positions' layer-normed keys; score: sum
 *          over heads of weight * relu(q.key) (GLM-5.3 Flash) */
typedef enum { TR_INDEX_NONE, TR_INDEX_BLOCK, TR_INDEX_POOL } tr_index_kind;
typedef struct {
    tr_index_kind kind;
    uint32_t heads, head_dim;
    uint32_t block; /* divides 16 */
    uint32_t top;
} tr_index_spec;

/* Positions that are stretched beyond those of the training: the frequency of rotating pair i is
 * divided by divisors[i], cosines and sines are multiplied by gain. */
typedef struct {
    float gain;
    uint32_t count;  /* rope_dims / 2 */
    float *divisors; /* [count] */
} tr_rope_scaling;

typedef struct {
    uint32_t heads;    /* query heads */
    uint32_t kv_heads; /* one term each: its heads / kv_heads query heads, their o_proj columns */
    uint32_t head_dim;
    float scale;       /* of q.k */
    bool gate;         /* y *= sigmoid(h Wg), full width */
    bool gate_in_q;    /* with gate: Wg stands in TR_W_Q, whose rows are, head after head, the
                          head's query and then its gate; otherwise it is TR_W_ATTENTION_GATE */
    bool qk_norm;      /* RMSNorm over head_dim on q and k, before RoPE */
    tr_rope_kind rope;
    uint32_t rope_dims;  /* leading dims of a head that rotate */
    double rope_theta;
    const tr_rope_scaling *rope_scaling; /* NULL: none; owned by the tr_model */
    tr_index_spec index; /* NONE or BLOCK; its heads turn as the others do */
} tr_gqa_spec;

typedef struct {
    uint32_t heads;
    uint32_t head_dim;   /* key dim = value dim */
    uint32_t conv_taps;
    float beta_scale;    /* 2 with negative eigenvalues, else 1 */
    uint32_t rank;       /* of f_a/f_b and g_a/g_b; 0: full projections TR_W_F and TR_W_G */
    uint32_t terms;      /* groups of heads / terms heads each */
    bool a_is_log;       /* TR_W_A holds A_log (decay factor -exp(A_log)); false: -exp(A_log) */
    float lower_bound;   /* of the log decay, below 0: bound * sigmoid(exp(A_log) * (r + dt_bias));
                            0: -exp(A_log) * softplus(r + dt_bias) */
} tr_kda_spec;

/* Latent attention in absorbed form: the cache holds one normed latent for each position, and the
 * part of the key that all heads share. */
typedef struct {
    uint32_t heads;
    uint32_t terms;    /* groups of heads / terms heads each */
    uint32_t q_rank;   /* queries go through TR_W_Q_A, a norm and TR_W_Q_B; 0: through TR_W_Q */
    uint32_t kv_rank;  /* of the latent */
    uint32_t nope_dim; /* leading columns of a head's query: meet what TR_W_KV_B makes of it */
    uint32_t rope_dim; /* columns after those: meet the shared key, rows after the latent's in
                          TR_W_KV_A; may be 0 */
    uint32_t v_dim;    /* of a head's value */
    float scale;       /* of q.k */
    float norm_eps;    /* of the norms of the low-rank query and of the latent */
    tr_rope_kind rope; /* of the shared key and its queries; NONE: they are used as they are */
    double rope_theta;
    bool kv_split;     /* TR_W_K_B and TR_W_V_B instead of TR_W_KV_B */
    tr_index_spec index; /* NONE or POOL, which needs q_rank */
} tr_mla_spec;

/* Gated delta rule: like KDA with one decay for a head, and value heads that share keys. */
typedef struct {
    uint32_t key_heads, value_heads; /* value head h reads key head h / (value_heads / key_heads) */
    uint32_t key_dim, value_dim;
    uint32_t conv_taps; /* one convolution over the rows of TR_W_QKV: queries, keys, values */
    tr_gate_kind gate;  /* of the normalised output */
    uint32_t terms;     /* groups of key_heads / terms key heads each, and their value heads */
    bool a_is_log;      /* as in tr_kda_spec */
} tr_gdn_spec;

typedef struct {
    uint32_t experts;       /* routed; 0 = dense */
    uint32_t top_k;
    uint32_t expert_size;   /* inner width of a routed expert */
    tr_score_kind score;
    bool bias;              /* selection-only correction bias */
    uint32_t groups, top_groups; /* 1, 1 = none */
    bool norm_top_k;        /* weights / (sum + 1e-20) */
    float scaling;          /* routed part only */
    uint32_t always_size;   /* inner width of the shared expert or dense feed-forward; 0: none */
    uint32_t slices;        /* always_size is cut into this many equal slices, one term each;
                               the width of a slice is a multiple of 32 */
    float clamp;            /* L: silu(min(gate, L)) * clamp(up, -L, L) in every part; 0: none */
    bool always_scale;      /* the shared expert is multiplied by sigmoid(TR_W_ALWAYS_SCALE x) */
} tr_channel_spec;

/* How sub-layers read from the residual and write to it. A bank of `streams` rows of hidden_size
 * stands for one token; all streams begin as the embedding.
 *
 *   PLAIN  x + y
 *   MHC    each sub-layer reads a weighted sum of the streams and mixes them by a doubly stochastic
 *          matrix, both made from the bank (GLM-5.3 Flash); the mean of the streams leaves
 *   GATED  each sub-layer reads a gated mean of the normed streams and writes to each with a weight
 *          of its own (Qwen3.8-Flash-Next); a last gated mean leaves and no norm follows */
typedef struct {
    tr_residual_kind kind;
    uint32_t streams;    /* MHC, GATED; 2..TR_STREAMS_MAX */
    uint32_t iterations; /* MHC: of rows and columns, the first (softmax and columns) included */
    float eps;           /* MHC: added to read weights and in every division */
    uint32_t rank;       /* GATED: of the gate of a read */
} tr_residual_spec;

#define TR_STREAMS_MAX 8

#define TR_NGRAM_SIZE_MAX  4u
#define TR_NGRAM_HEADS_MAX 64u /* of all lengths together */
#define TR_NGRAM_PARTS_MAX 4096u

/* A table of embeddings of hashed n-grams that a layer adds to the residual before it begins
 * (core/model/ngram.h). size 0: the layer has none. */
typedef struct {
    uint32_t size;      /* tokens of the longest n-gram; also the dilation of the convolution */
    uint32_t heads;     /* rows looked up for each length from 2 on */
    uint32_t embed_dim; /* of all rows of a token together */
    uint32_t conv_taps;
    uint32_t parts;   /* stored tensors of the table, equal, in numeric order */
    uint32_t number;  /* of the table among those of the model */
    uint32_t base;    /* the moduli are the primes from here on */
    uint32_t divisor; /* rows are padded to a multiple of this */
    uint64_t seed;
    int32_t separator; /* token id that ends what n-grams look back to */
    /* derived by tr_ngram_derive */
    uint64_t multipliers[TR_NGRAM_SIZE_MAX];
    uint32_t moduli[TR_NGRAM_HEADS_MAX];
    uint64_t offsets[TR_NGRAM_HEADS_MAX];
    uint64_t rows;
} tr_ngram_spec;

typedef struct {
    tr_mixer_kind mixer;
    tr_gqa_spec gqa; /* if mixer is TR_MIXER_GQA */
    tr_kda_spec kda; /* if mixer is TR_MIXER_KDA */
    tr_gdn_spec gdn; /* if mixer is TR_MIXER_GDN */
    tr_mla_spec mla; /* if mixer is TR_MIXER_MLA */
    tr_channel_spec channel;
    tr_ngram_spec ngram;
} tr_layer_spec;

/* Roles of weights. Layer roles first, then the model's. [rows, cols] in elements. */
/* clang-format off */
#define TR_WEIGHT_MAP(X)                                                             \
    X(INPUT_NORM) X(POST_NORM)              /* [1, hidden] */                        \
    X(Q) X(K) X(V) X(O)                     /* [heads*dim, hidden], O transposed */  \
    X(INDEX_QK)                             /* [(heads + 1) * dim, hidden]: q, k */  \
    X(INDEX_Q_NORM) X(INDEX_K_NORM)         /* [1, dim] of the index */              \
    X(QKV) X(QKV_CONV)                      /* GDN, as one: [q|k|v, hidden], taps */ \
    X(ATTENTION_GATE)                       /* GQA gate [heads*dim, hidden] */       \
    X(Q_NORM) X(K_NORM)                     /* [1, head_dim] */                      \
    X(Q_CONV) X(K_CONV) X(V_CONV)           /* [heads*dim, taps] */                  \
    X(F_A) X(F_B) X(G_A) X(G_B)             /* [rank, hidden], [heads*dim, rank] */  \
    X(F) X(G)                               /* full [heads*dim, hidden]; GDN: F [heads, hidden] */ \
    X(DT_BIAS) X(A)                         /* [1, heads*dim] (GDN: [1, heads]), [1, heads] */ \
    X(BETA)                                 /* [heads, hidden] */                    \
    X(O_NORM)                               /* [1, head_dim] */                      \
    /* MLA: [q_rank, hidden], [1, q_rank], [heads*(nope+rope), q_rank]; Q is the direct form */ \
    X(Q_A) X(Q_A_NORM) X(Q_B)                                                        \
    X(KV_A) X(KV_A_NORM)                    /* [kv_rank+rope, hidden], [1, kv_rank] */ \
    X(KV_B)                                 /* per head nope rows, then v_dim rows; kv_rank */ \
    X(K_B) X(V_B)                           /* [heads*kv_rank, nope], [heads*v_dim, kv_rank] */ \
    /* POOL: [heads*dim, q_rank], [dim, hidden], [1, dim], [heads, hidden], [dim, hidden], \
     * [block, dim] */                                                               \
    X(INDEX_Q) X(INDEX_K) X(INDEX_K_BIAS) X(INDEX_WEIGHTS)                           \
    X(INDEX_GATE) X(INDEX_APE)                                                       \
    X(ROUTER) X(ROUTER_BIAS)                /* [experts, hidden], [1, experts] */    \
    X(EXPERT_GATE) X(EXPERT_UP)             /* [expert_size, hidden], per expert */  \
    X(EXPERT_DOWN)                          /* [hidden, expert_size], per expert */  \
    X(ALWAYS_GATE) X(ALWAYS_UP) X(ALWAYS_DOWN) /* shared expert or dense */          \
    X(ALWAYS_SCALE)                         /* [1, hidden] */                        \
    /* MHC, n streams: [(2 + n) n, n*hidden], [1, (2 + n) n], [1, 3] */              \
    X(HC_ATTENTION_FN) X(HC_ATTENTION_BASE) X(HC_ATTENTION_SCALE)                    \
    X(HC_CHANNEL_FN) X(HC_CHANNEL_BASE) X(HC_CHANNEL_SCALE)                          \
    /* GATED: [1, n*hidden], [rank, n*hidden], [n*hidden, rank], [n, n*hidden] */    \
    X(HC_ATTENTION_NORM) X(HC_ATTENTION_DOWN) X(HC_ATTENTION_UP)                     \
    X(HC_ATTENTION_INJECT)                                                           \
    X(HC_CHANNEL_NORM) X(HC_CHANNEL_DOWN) X(HC_CHANNEL_UP) X(HC_CHANNEL_INJECT)      \
    X(NGRAM_KEY) X(NGRAM_VALUE)             /* [n*hidden, embed_dim], [hidden, embed_dim] */ \
    X(NGRAM_KEY_NORM) X(NGRAM_QUERY_NORM) X(NGRAM_CONV_NORM) /* [1, n*hidden] */     \
    X(NGRAM_CONV)                           /* [n*hidden, taps] */                   \
    X(NGRAM_TABLE)                          /* [rows/parts, row size], per part */   \
    /* only names: the table's scale; what the hash is made of, to be compared */    \
    X(NGRAM_SCALE) X(NGRAM_MULTIPLIERS) X(NGRAM_MODULI) X(NGRAM_OFFSETS)             \
    X(EMBED) X(FINAL_NORM) X(HEAD)          /* [vocab, hidden], [1, hidden], [vocab, hidden] */ \
    X(HC_FINAL_NORM) X(HC_FINAL_DOWN) X(HC_FINAL_UP) /* GATED: the last read */
/* clang-format on */

typedef enum {
#define X(name) TR_W_##name,
    TR_WEIGHT_MAP(X)
#undef X
        TR_WEIGHTS_COUNT
} tr_weight_role;

typedef struct {
    char architecture[64]; /* "solar_open2", "llama" */
    uint32_t vocab_size;
    uint32_t hidden_size;
    uint32_t layers_count;
    uint32_t context_max;  /* positions the model was made for */
    float rms_norm_eps;
    float norm_offset; /* added to the weights of all norms but O_NORM: 1 where they are stored
                          around zero, otherwise 0 */
    tr_residual_spec residual;
    const tr_layer_spec *layers; /* [layers_count], owned by the tr_model */
    int32_t bos_token;           /* -1: none */
    int32_t eos_tokens[16];      /* generation stops at any of them */
    uint32_t eos_tokens_count;
    float default_temperature;   /* from generation_config.json, 1 if absent */
    float default_top_p;         /* likewise, 1 if absent */
} tr_model_spec;

/* Rows of hidden_size that stand for one token between sub-layers. */
static inline uint32_t tr_model_streams(const tr_model_spec *spec)
{
    return spec->residual.kind == TR_RESIDUAL_PLAIN ? 1 : spec->residual.streams;
}

typedef struct tr_model tr_model;

/* Opens a Hugging Face directory or a GGUF file, maps its weights and fills the spec. Checks every
 * tensor that the spec names (present, shape, format) before it returns.
 *
 * thread  any; the model is read-only afterwards and may be shared by threads
 * errors  TR_E_INVALID with file, tensor or key, found, expected */
tr_status tr_model_open(tr_model **out, const char *path, tr_error *err);
void tr_model_close(tr_model *model);

const tr_model_spec *tr_model_get_spec(const tr_model *model);

/* The weight of a role. layer is ignored for global roles (EMBED and after); expert is ignored but
 * for EXPERT_* and, as the part, NGRAM_TABLE. Tied embeddings: HEAD is EMBED. Asserts that the spec
 * has this role. */
tr_weight tr_model_weight(const tr_model *model, uint32_t layer, tr_weight_role role,
                          uint32_t expert);

/* Whether a matrix of a layer comes with a scale for 4-bit activations. */
bool tr_model_has_input_scales(const tr_model *model);

/* To be asked before the bytes of a weight or of some of its rows, scales included, are read: of a
 * model that lies on another node it brings them (map.h). errors  those of the model's reader */
tr_status tr_weight_need(const tr_weight *w, tr_error *err);

/* Gives the pages of a weight or of some of its rows, scales included, back to the system, and
 * unless it is a slice of columns, those of the system's cache (tr_map_forget); they are read from
 * the file again when they are looked at. Does nothing for a weight in other memory. */
void tr_weight_release(const tr_weight *w);

/* Copies a weight as float32 [rows * cols], dequantised. For norms, biases and tests. */
void tr_weight_to_f32(float *out, const tr_weight *w);

/* Attention terms and channel terms of each layer, vocabulary: what placement must know. */
void tr_model_plan_shape(const tr_model *model, tr_plan_shape *out);
static inline uint32_t tr_layer_attention_terms(const tr_layer_spec *l)
{
    switch (l->mixer) {
    case TR_MIXER_GQA:
        return l->gqa.kv_heads;
    case TR_MIXER_KDA:
        return l->kda.terms;
    case TR_MIXER_GDN:
        return l->gdn.terms;
    case TR_MIXER_MLA:
        return l->mla.terms;
    }
    return 0;
}

/* Raw tokenizer sources for core/model/tokenizer.h and chat_template.h. */

/* Hugging Face: path of the folder. GGUF: path of the file. */
const char *tr_model_path(const tr_model *model);

/* A hash of the config and of all tensor names, shapes, formats and sizes: nodes compare it when
 * they meet, so that two different checkpoints are never mixed. */
uint64_t tr_model_identity(const tr_model *model);

#endif
