/* qwen_hybrid.h - what the hybrid families of Qwen share (qwen3_5_moe, qwen4_exp): gated delta rule
 * in most layers, gated softmax attention with partial rotary positions in every fourth, softmax-
 * routed experts with a gated shared one, norms stored around zero; alone or within a model that
 * also sees, whose settings then stand in text_config. */
#ifndef TR_CORE_MODEL_QWEN_HYBRID_H
#define TR_CORE_MODEL_QWEN_HYBRID_H

#include "core/model/family.h"

typedef struct {
    /* Names in layer_types of the layers with softmax attention; ends with NULL. */
    const char *const *attention_types;
    /* The family's own settings, after all layers are filled. */
    void (*more)(tr_draft *draft, tr_config *config);
} tr_qwen_traits;

/* tr_family_form.read of both families. */
tr_status tr_qwen_read(tr_draft *draft, tr_config *config, const tr_qwen_traits *traits,
                       tr_error *err);

/* tr_family_form.roots. */
extern const char *const tr_qwen_roots[];

/* Of tr_family_form.skipped: the vision tower and the layers that draft tokens. */
/* clang-format off */
#define TR_QWEN_SKIPPED TR_SKIPPED_SCALES, "*.rotary_emb.inv_freq", "model.visual.*", "mtp.*"
/* clang-format on */

#define TR_QWEN_LAYER  "{r}layers.{l}."
#define TR_QWEN_EXPERT TR_QWEN_LAYER "mlp.experts."

/* Rows of tr_weight_name for what both families have. */
/* clang-format off */
#define TR_QWEN_NAMES                                                                              \
    {TR_W_EMBED, TR_IN_ANY_LAYER, "{r}embed_tokens.weight", NULL, 0, 1},                           \
    {TR_W_HEAD, TR_IN_ANY_LAYER, "lm_head.weight", NULL, 0, 1},                                    \
    {TR_W_Q, TR_IN_ANY_LAYER, TR_QWEN_LAYER "self_attn.q_proj.weight", NULL, 0, 1},                \
    {TR_W_K, TR_IN_ANY_LAYER, TR_QWEN_LAYER "self_attn.k_proj.weight", NULL, 0, 1},                \
    {TR_W_V, TR_IN_ANY_LAYER, TR_QWEN_LAYER "self_attn.v_proj.weight", NULL, 0, 1},                \
    {TR_W_Q_NORM, TR_IN_ANY_LAYER, TR_QWEN_LAYER "self_attn.q_norm.weight", NULL, 0, 1},           \
    {TR_W_K_NORM, TR_IN_ANY_LAYER, TR_QWEN_LAYER "self_attn.k_norm.weight", NULL, 0, 1},           \
    {TR_W_O, TR_IN_GDN_LAYER, TR_QWEN_LAYER "linear_attn.out_proj.weight", NULL, 0, 1},            \
    {TR_W_O, TR_IN_ANY_LAYER, TR_QWEN_LAYER "self_attn.o_proj.weight", NULL, 0, 1},                \
    {TR_W_QKV, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.in_proj_qkv.weight", NULL, 0, 1},       \
    {TR_W_QKV_CONV, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.conv1d.weight", NULL, 0, 1},       \
    {TR_W_F, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.in_proj_a.weight", NULL, 0, 1},           \
    {TR_W_G, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.in_proj_z.weight", NULL, 0, 1},           \
    {TR_W_BETA, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.in_proj_b.weight", NULL, 0, 1},        \
    {TR_W_DT_BIAS, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.dt_bias", NULL, 0, 1},              \
    {TR_W_A, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.A_log", NULL, 0, 1},                      \
    {TR_W_O_NORM, TR_IN_ANY_LAYER, TR_QWEN_LAYER "linear_attn.norm.weight", NULL, 0, 1},           \
    {TR_W_ROUTER, TR_IN_ANY_LAYER, TR_QWEN_LAYER "mlp.gate.weight", NULL, 0, 1},                   \
    {TR_W_EXPERT_GATE, TR_IN_ANY_LAYER, TR_QWEN_EXPERT "{e}.gate_proj.weight",                     \
     TR_QWEN_EXPERT "gate_up_proj", 0, 2},                                                         \
    {TR_W_EXPERT_UP, TR_IN_ANY_LAYER, TR_QWEN_EXPERT "{e}.up_proj.weight",                         \
     TR_QWEN_EXPERT "gate_up_proj", 1, 2},                                                         \
    {TR_W_EXPERT_DOWN, TR_IN_ANY_LAYER, TR_QWEN_EXPERT "{e}.down_proj.weight",                     \
     TR_QWEN_EXPERT "down_proj", 0, 1},                                                            \
    {TR_W_ALWAYS_GATE, TR_IN_ANY_LAYER, TR_QWEN_LAYER "mlp.shared_expert.gate_proj.weight", NULL,  \
     0, 1},                                                                                        \
    {TR_W_ALWAYS_UP, TR_IN_ANY_LAYER, TR_QWEN_LAYER "mlp.shared_expert.up_proj.weight", NULL, 0,   \
     1},                                                                                           \
    {TR_W_ALWAYS_DOWN, TR_IN_ANY_LAYER, TR_QWEN_LAYER "mlp.shared_expert.down_proj.weight", NULL,  \
     0, 1},                                                                                        \
    {TR_W_ALWAYS_SCALE, TR_IN_ANY_LAYER, TR_QWEN_LAYER "mlp.shared_expert_gate.weight", NULL, 0, 1}
/* clang-format on */

#endif
