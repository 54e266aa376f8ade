/* family.h - what a model family is: a reader of its settings, and a table of its tensor names.
 *
 * Shapes are not here: role.c derives the shape of each role from the spec, so that a family says
 * each thing once. A family contains no arithmetic. */
#ifndef TR_CORE_MODEL_FAMILY_H
#define TR_CORE_MODEL_FAMILY_H

#include "core/error.h"
#include "core/model/config.h"
#include "core/model/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

/* A model that is being described. */
typedef struct {
    tr_model_spec spec;
    tr_layer_spec *layers; /* owns, [spec.layers_count]; becomes spec.layers */
    tr_rope_scaling *rope_scaling; /* owns; of all layers; NULL: positions are as they are */
    bool tied;             /* HEAD is EMBED */
    uint32_t extra_layers; /* after the last layer; they only draft tokens and are skipped */
} tr_draft;

typedef enum {
    TR_IN_ANY_LAYER,
    TR_IN_DENSE_LAYER,
    TR_IN_SPARSE_LAYER,
    TR_IN_GDN_LAYER, /* layers of that mixer; stands before a row for the others */
} tr_name_scope;

/* One row of a family's table of names. "{l}" stands for the layer, "{e}" for the expert, "{r}" for
 * the root of the form (tr_family_form.roots).
 *
 * name is the full name of a plain tensor. When it ends in ".weight", the quantised layouts are
 * looked for under the same stem. stacked, when not NULL, is one tensor [experts, parts * rows,
 * cols] for all experts; the role's rows are part number `part` of `parts` of each expert. It is
 * used when it exists. name may be NULL when there is only the stacked form. Without a
 * stacked form, a name with three parts is one tensor with the rows of q, then k, then v.
 *
 * Of several rows for a role the first whose tensor exists counts; if none does, the first. */
typedef struct {
    tr_weight_role role;
    tr_name_scope scope;
    const char *name;
    const char *stacked;
    uint32_t part, parts;
} tr_weight_name;

/* One container form of a family. */
typedef struct {
    /* Fills draft (layers with tr_draft_layers) and ends with tr_config_finish. */
    tr_status (*read)(tr_draft *draft, tr_config *config, tr_error *err);
    const tr_weight_name *names; /* [names_count] */
    uint32_t names_count;
    /* What "{r}" can stand for, ending with NULL: the first under which the embedding is found. May
     * be NULL when no name has it. A text model alone and within a model that also sees differ in
     * nothing else. */
    const char *const *roots;
    /* A tensor with a divisor for each rotating pair of dimensions, or NULL: used if there. */
    const char *rope_divisors;
    /* Patterns (fnmatch) of tensors that are recognised and not used; ends with NULL. "{r}" as in
     * names; "{n}" stands for each of the draft's extra_layers. */
    const char *const *skipped;
} tr_family_form;

typedef struct {
    const char *name;           /* what tr_model_spec.architecture says */
    const char *const *aliases; /* model_type or general.architecture; ends with NULL */
    tr_family_form hf;          /* read == NULL: not from this container */
    tr_family_form gguf;
} tr_family;

/* All families; the end has name == NULL. core/model/models.c */
extern const tr_family *const tr_families[];

/* The family with this alias and a reader for the container, or NULL. */
const tr_family *tr_family_find(const char *alias, bool gguf);

/* Allocates layers_count zeroed layers and sets spec.layers_count. */
tr_status tr_draft_layers(tr_draft *draft, uint32_t layers_count, tr_error *err);

/* Computes what families leave to be computed from what they read: the constants of n-gram tables.
 * file stands in errors. */
tr_status tr_draft_derive(tr_draft *draft, const char *file, tr_error *err);

/* Frees what a draft owns. */
void tr_draft_teardown(tr_draft *draft);

/* -- what families share -- */

/* Settings of config.json without influence on what is computed, or read elsewhere
 * (generation.c: the tokens; model.c: model_type, quantization_config). */
/* clang-format off */
#define TR_HARMLESS_SETTINGS                                                                    \
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version",              \
    "_name_or_path", "initializer_range", "use_cache", "bos_token_id", "eos_token_id",          \
    "pad_token_id", "attention_dropout", "quantization_config", "auto_map",                     \
    "output_router_logits", "router_aux_loss_coef"
/* clang-format on */

/* Companions of quantised tensors that nothing here needs: scales of caches, of outputs, of 8-bit
 * activations. The input scale of an NVFP4 matrix is read with the matrix (weights_scaled.c), and
 * what was read is not skipped. */
/* clang-format off */
#define TR_SKIPPED_SCALES                                                                       \
    "*.input_scale", "*.input_global_scale", "*.k_scale", "*.v_scale", "*.q_scale",             \
    "*.output_scale", "*.prob_output_scale"
/* clang-format on */

/* Into how many equal slices a feed-forward of this width is cut: the most, up to 8, whose width is
 * a multiple of 64; else of 32; else one. Depends on the width alone, because it decides how sums
 * are rounded. */
uint32_t tr_slices_of(uint32_t width);

/* Terms of an attention whose heads are cut evenly: the largest divisor of heads up to 8. */
uint32_t tr_head_terms_of(uint32_t heads);

/* What every config.json begins with: vocab_size, hidden_size, max_position_embeddings,
 * rms_norm_eps, tie_word_embeddings; and hidden_act, which must be silu. */
void tr_config_sizes(tr_config *config, tr_draft *draft);

/* The experts of families that score by a sigmoid with a bias of its own for the choice, and have
 * shared experts, by their names in config.json. scoring_func may be absent. */
tr_channel_spec tr_config_sigmoid_experts(tr_config *config);

/* num_attention_heads, num_key_value_heads, head_dim, the rotary settings in halves, and
 * attention_bias, which must be false. */
tr_gqa_spec tr_config_gqa(tr_config *config, tr_draft *draft);

/* A feed-forward of this width for all rows. */
tr_channel_spec tr_dense_channel(uint32_t width);

/* rope_theta, rope_parameters, rope_scaling, partial_rotary_factor of config.json: how much of
 * head_dim rotates, how fast, and whether positions are scaled (linear, llama3, yarn). rope.c */
void tr_config_rope(tr_config *config, tr_draft *draft, tr_gqa_spec *gqa);

/* The same where a share of the dimensions other than all rotates when partial_rotary_factor is
 * absent, and any scaling is refused. */
void tr_config_partial_rope(tr_config *config, uint32_t head_dim, double share, double *theta,
                            uint32_t *dims);

/* -- what GGUF files share: family_gguf.c -- */

/* expert_gating_func, with the numbers that files use. */
enum { TR_GGUF_GATING_REQUIRED = 0, TR_GGUF_GATING_SOFTMAX = 1, TR_GGUF_GATING_SIGMOID = 2 };

/* Routed experts: stacked; stacked with gate and up in one tensor; one by one in very old files. */
/* clang-format off */
#define TR_GGUF_EXPERT_NAMES                                                                    \
    {TR_W_EXPERT_GATE, TR_IN_SPARSE_LAYER, NULL, "blk.{l}.ffn_gate_exps.weight", 0, 1},         \
    {TR_W_EXPERT_GATE, TR_IN_SPARSE_LAYER, NULL, "blk.{l}.ffn_gate_up_exps.weight", 0, 2},      \
    {TR_W_EXPERT_GATE, TR_IN_SPARSE_LAYER, "blk.{l}.ffn_gate.{e}.weight", NULL, 0, 1},          \
    {TR_W_EXPERT_UP, TR_IN_SPARSE_LAYER, NULL, "blk.{l}.ffn_up_exps.weight", 0, 1},             \
    {TR_W_EXPERT_UP, TR_IN_SPARSE_LAYER, NULL, "blk.{l}.ffn_gate_up_exps.weight", 1, 2},        \
    {TR_W_EXPERT_UP, TR_IN_SPARSE_LAYER, "blk.{l}.ffn_up.{e}.weight", NULL, 0, 1},              \
    {TR_W_EXPERT_DOWN, TR_IN_SPARSE_LAYER, NULL, "blk.{l}.ffn_down_exps.weight", 0, 1},         \
    {TR_W_EXPERT_DOWN, TR_IN_SPARSE_LAYER, "blk.{l}.ffn_down.{e}.weight", NULL, 0, 1}

/* Kimi delta attention with narrow gates. TR_W_A holds -exp(A_log). */
#define TR_GGUF_KDA_NAMES                                                                       \
    {TR_W_Q_CONV, TR_IN_ANY_LAYER, "blk.{l}.ssm_conv1d_q.weight", NULL, 0, 1},                  \
    {TR_W_K_CONV, TR_IN_ANY_LAYER, "blk.{l}.ssm_conv1d_k.weight", NULL, 0, 1},                  \
    {TR_W_V_CONV, TR_IN_ANY_LAYER, "blk.{l}.ssm_conv1d_v.weight", NULL, 0, 1},                  \
    {TR_W_F_A, TR_IN_ANY_LAYER, "blk.{l}.ssm_f_a.weight", NULL, 0, 1},                          \
    {TR_W_F_B, TR_IN_ANY_LAYER, "blk.{l}.ssm_f_b.weight", NULL, 0, 1},                          \
    {TR_W_G_A, TR_IN_ANY_LAYER, "blk.{l}.ssm_g_a.weight", NULL, 0, 1},                          \
    {TR_W_G_B, TR_IN_ANY_LAYER, "blk.{l}.ssm_g_b.weight", NULL, 0, 1},                          \
    {TR_W_DT_BIAS, TR_IN_ANY_LAYER, "blk.{l}.ssm_dt.bias", NULL, 0, 1},                         \
    {TR_W_A, TR_IN_ANY_LAYER, "blk.{l}.ssm_a", NULL, 0, 1},                                     \
    {TR_W_BETA, TR_IN_ANY_LAYER, "blk.{l}.ssm_beta.weight", NULL, 0, 1},                        \
    {TR_W_O_NORM, TR_IN_ANY_LAYER, "blk.{l}.ssm_norm.weight", NULL, 0, 1}

/* Gates that are not narrow, named after ssm_g of llama.cpp. tr_gguf_kda looks for the first. */
#define TR_GGUF_KDA_WIDE "blk.{l}.ssm_f.weight"
#define TR_GGUF_KDA_WIDE_NAMES                                                                  \
    {TR_W_F, TR_IN_ANY_LAYER, TR_GGUF_KDA_WIDE, NULL, 0, 1},                                    \
    {TR_W_G, TR_IN_ANY_LAYER, "blk.{l}.ssm_g.weight", NULL, 0, 1}

/* q, k and v: alone, or in one tensor. */
#define TR_GGUF_QKV_NAMES                                                                       \
    {TR_W_Q, TR_IN_ANY_LAYER, "blk.{l}.attn_q.weight", NULL, 0, 1},                             \
    {TR_W_Q, TR_IN_ANY_LAYER, "blk.{l}.attn_qkv.weight", NULL, 0, 3},                           \
    {TR_W_K, TR_IN_ANY_LAYER, "blk.{l}.attn_k.weight", NULL, 0, 1},                             \
    {TR_W_K, TR_IN_ANY_LAYER, "blk.{l}.attn_qkv.weight", NULL, 1, 3},                           \
    {TR_W_V, TR_IN_ANY_LAYER, "blk.{l}.attn_v.weight", NULL, 0, 1},                             \
    {TR_W_V, TR_IN_ANY_LAYER, "blk.{l}.attn_qkv.weight", NULL, 2, 3}

/* The shared expert of a layer with experts, the feed-forward of one without. */
#define TR_GGUF_ALWAYS_NAMES                                                                    \
    {TR_W_ALWAYS_GATE, TR_IN_SPARSE_LAYER, "blk.{l}.ffn_gate_shexp.weight", NULL, 0, 1},        \
    {TR_W_ALWAYS_UP, TR_IN_SPARSE_LAYER, "blk.{l}.ffn_up_shexp.weight", NULL, 0, 1},            \
    {TR_W_ALWAYS_DOWN, TR_IN_SPARSE_LAYER, "blk.{l}.ffn_down_shexp.weight", NULL, 0, 1},        \
    {TR_W_ALWAYS_GATE, TR_IN_DENSE_LAYER, "blk.{l}.ffn_gate.weight", NULL, 0, 1},               \
    {TR_W_ALWAYS_UP, TR_IN_DENSE_LAYER, "blk.{l}.ffn_up.weight", NULL, 0, 1},                   \
    {TR_W_ALWAYS_DOWN, TR_IN_DENSE_LAYER, "blk.{l}.ffn_down.weight", NULL, 0, 1}
/* clang-format on */

/* Vocabulary, widths, context, eps, and the layers, which it allocates. */
tr_status tr_gguf_sizes(tr_config *config, tr_draft *draft, tr_error *err);

/* attention.head_count_kv of a layer; heads when it is absent. 0 is a layer of another kind. */
uint32_t tr_gguf_kv_heads(tr_config *config, const tr_model_spec *spec, uint32_t layer,
                          uint32_t heads);

/* attention.head_count, .head_count_kv, .key_length, .value_length of a layer. Nothing rotates. */
tr_gqa_spec tr_gguf_gqa(tr_config *config, const tr_model_spec *spec, uint32_t layer);

/* Lets a layer's heads rotate as the rope.* settings say. rope.c */
void tr_gguf_rope(tr_config *config, tr_draft *draft, tr_gqa_spec *gqa, tr_rope_kind kind);

/* Routed experts. gating is what an absent expert_gating_func means. */
tr_channel_spec tr_gguf_experts(tr_config *config, uint32_t gating);

/* Adds expert_shared_count shared experts to routed ones that sigmoids choose. */
void tr_gguf_shared_experts(tr_config *config, tr_channel_spec *experts);

/* Gives each layer experts, or the dense feed-forward of the leading_dense_block_count first. */
void tr_gguf_channels(tr_config *config, tr_draft *draft, const tr_channel_spec *experts);

/* Kimi delta attention of a layer; beta is not doubled. Gates are narrow unless the layer has
 * TR_GGUF_KDA_WIDE. */
tr_kda_spec tr_gguf_kda(tr_config *config, const tr_model_spec *spec, uint32_t layer);

#endif
