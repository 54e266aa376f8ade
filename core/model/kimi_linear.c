/* kimi_linear.c - Kimi Linear: three layers of Kimi delta attention to one of latent attention
 * without positions, sigmoid-routed experts with shared ones.
 *
 * Note: the norms inside latent attention have an epsilon of their own, whatever rms_norm_eps is.
 */
#include "core/model/kimi_linear.h"

#include "core/model/latent_hybrid.h"

#include <math.h>

#define KIMI_LATENT_EPS 1e-6f

/* The value of the first key of two that is there. */
static uint32_t kimi_u32(tr_config *c, const char *key, const char *other, uint32_t fallback,
                         uint32_t min, uint32_t max)
{
    const char *name = tr_config_has(c, key) ? key : other;

    return tr_config_u32_or(c, name, fallback, min, max);
}

static tr_channel_spec kimi_read_experts(tr_config *c)
{
    static const char *const scores[] = {"sigmoid", NULL};
    tr_channel_spec m = {.score = TR_SCORE_SIGMOID, .bias = true};

    m.experts = tr_config_u32(c, "num_experts", 1, TR_TERMS_MAX);
    m.top_k = tr_config_u32(c, "num_experts_per_token", 1, TR_TERMS_MAX);
    m.expert_size = tr_config_u32(c, "moe_intermediate_size", 1, 1u << 20);
    m.groups = tr_config_u32_or(c, "num_expert_group", 1, 1, TR_TERMS_MAX);
    m.top_groups = tr_config_u32_or(c, "topk_group", 1, 1, TR_TERMS_MAX);
    m.norm_top_k = tr_config_bool_or(c, "moe_renormalize", true);
    m.scaling = (float)tr_config_number_or(c, "routed_scaling_factor", 1, 0, 1e6);
    m.always_size = m.expert_size * tr_config_u32_or(c, "num_shared_experts", 1, 0, 64);
    m.slices = m.always_size > 0 ? tr_slices_of(m.always_size) : 0;
    (void)tr_config_choice(c, "moe_router_activation_func", scores, "sigmoid");
    if (!tr_config_bool_or(c, "use_grouped_topk", true))
        m.groups = m.top_groups = 1;
    if (tr_config_u32_or(c, "moe_layer_freq", 1, 1, TR_LAYERS_MAX) != 1)
        tr_config_fail(c, "moe_layer_freq",
                       "above 1, expected 1: dense layers between those with "
                       "experts are not supported");
    return m;
}

static tr_status kimi_read_config(tr_draft *draft, tr_config *c, tr_error *err)
{
    static const char *const acts[] = {"silu", NULL};
    static const char *const attention_types[] = {"full_attention", NULL};
    static const tr_latent_traits traits = {.attention_types = attention_types, .first_layer = 1};
    /* Nothing rotates; head_dim is the size of heads elsewhere. */
    static const char *const harmless[] = {
        TR_HARMLESS_SETTINGS, "pretraining_tp",  "head_dim", "rope_theta",
        "rope_scaling",       "rope_parameters", NULL};
    tr_model_spec *spec = &draft->spec;

    spec->vocab_size = tr_config_u32(c, "vocab_size", 1, 1u << 24);
    spec->hidden_size = tr_config_u32(c, "hidden_size", 1, 65536);
    spec->context_max =
        kimi_u32(c, "model_max_length", "max_position_embeddings", 1u << 20, 1, 1u << 30);
    spec->rms_norm_eps = (float)tr_config_number(c, "rms_norm_eps", 1e-12, 1);
    draft->tied = tr_config_bool_or(c, "tie_word_embeddings", false);
    (void)tr_config_choice(c, "hidden_act", acts, "silu");

    tr_status status =
        tr_draft_layers(draft, tr_config_u32(c, "num_hidden_layers", 1, TR_LAYERS_MAX), err);
    if (status != TR_OK)
        return status;
    tr_latent_read_kda(draft, c, &traits);
    tr_mla_spec mla = tr_latent_read_mla(c);
    mla.norm_eps = KIMI_LATENT_EPS;
    for (uint32_t i = 0; i < spec->layers_count; i++)
        if (draft->layers[i].mixer == TR_MIXER_MLA)
            draft->layers[i].mla = mla;
    tr_channel_spec experts = kimi_read_experts(c);
    tr_latent_read_channels(draft, c, &experts);
    tr_latent_read_extra(draft, c);
    return tr_config_finish(c, harmless, err);
}

#define L "model.layers.{l}."
#define A L "self_attn."
#define M L "block_sparse_moe."
static const tr_weight_name kimi_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "model.embed_tokens.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "model.norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "lm_head.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, L "input_layernorm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, L "post_attention_layernorm.weight", NULL, 0, 1},
    {TR_W_Q, TR_IN_ANY_LAYER, A "q_proj.weight", NULL, 0, 1},
    {TR_W_K, TR_IN_ANY_LAYER, A "k_proj.weight", NULL, 0, 1},
    {TR_W_V, TR_IN_ANY_LAYER, A "v_proj.weight", NULL, 0, 1},
    {TR_W_O, TR_IN_ANY_LAYER, A "o_proj.weight", NULL, 0, 1},
    {TR_W_Q_CONV, TR_IN_ANY_LAYER, A "q_conv1d.weight", NULL, 0, 1},
    {TR_W_K_CONV, TR_IN_ANY_LAYER, A "k_conv1d.weight", NULL, 0, 1},
    {TR_W_V_CONV, TR_IN_ANY_LAYER, A "v_conv1d.weight", NULL, 0, 1},
    {TR_W_F_A, TR_IN_ANY_LAYER, A "f_a_proj.weight", NULL, 0, 1},
    {TR_W_F_B, TR_IN_ANY_LAYER, A "f_b_proj.weight", NULL, 0, 1},
    {TR_W_G_A, TR_IN_ANY_LAYER, A "g_a_proj.weight", NULL, 0, 1},
    {TR_W_G_B, TR_IN_ANY_LAYER, A "g_b_proj.weight", NULL, 0, 1},
    {TR_W_DT_BIAS, TR_IN_ANY_LAYER, A "dt_bias", NULL, 0, 1},
    {TR_W_A, TR_IN_ANY_LAYER, A "A_log", NULL, 0, 1},
    {TR_W_BETA, TR_IN_ANY_LAYER, A "b_proj.weight", NULL, 0, 1},
    {TR_W_O_NORM, TR_IN_ANY_LAYER, A "o_norm.weight", NULL, 0, 1},
    {TR_W_Q_A, TR_IN_ANY_LAYER, A "q_a_proj.weight", NULL, 0, 1},
    {TR_W_Q_A_NORM, TR_IN_ANY_LAYER, A "q_a_layernorm.weight", NULL, 0, 1},
    {TR_W_Q_B, TR_IN_ANY_LAYER, A "q_b_proj.weight", NULL, 0, 1},
    {TR_W_KV_A, TR_IN_ANY_LAYER, A "kv_a_proj_with_mqa.weight", NULL, 0, 1},
    {TR_W_KV_A_NORM, TR_IN_ANY_LAYER, A "kv_a_layernorm.weight", NULL, 0, 1},
    {TR_W_KV_B, TR_IN_ANY_LAYER, A "kv_b_proj.weight", NULL, 0, 1},
    {TR_W_ROUTER, TR_IN_SPARSE_LAYER, M "gate.weight", NULL, 0, 1},
    {TR_W_ROUTER_BIAS, TR_IN_SPARSE_LAYER, M "gate.e_score_correction_bias", NULL, 0, 1},
    {TR_W_EXPERT_GATE, TR_IN_SPARSE_LAYER, M "experts.{e}.w1.weight", NULL, 0, 1},
    {TR_W_EXPERT_UP, TR_IN_SPARSE_LAYER, M "experts.{e}.w3.weight", NULL, 0, 1},
    {TR_W_EXPERT_DOWN, TR_IN_SPARSE_LAYER, M "experts.{e}.w2.weight", NULL, 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_SPARSE_LAYER, M "shared_experts.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_SPARSE_LAYER, M "shared_experts.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_SPARSE_LAYER, M "shared_experts.down_proj.weight", NULL, 0, 1},
    /* the authors' files, then those that newer libraries wrote */
    {TR_W_ALWAYS_GATE, TR_IN_DENSE_LAYER, L "mlp.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_DENSE_LAYER, L "mlp.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_DENSE_LAYER, L "mlp.down_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_DENSE_LAYER, M "gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_DENSE_LAYER, M "up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_DENSE_LAYER, M "down_proj.weight", NULL, 0, 1},
};
#undef M
#undef A
#undef L

/* -- GGUF -- */

#define KIMI_GGUF_KV_B "blk.{l}.attn_kv_b.weight"

/* Key and value sizes of heads are those after expansion of the latent; key_length is that of what
 * the cache holds. The expansion is cut in two, in old files not. */
static tr_mla_spec kimi_read_gguf_mla(tr_config *c, const tr_model_spec *spec, uint32_t layer)
{
    tr_mla_spec m = {.rope = TR_ROPE_NONE, .norm_eps = KIMI_LATENT_EPS};

    m.kv_split = !tr_config_has_tensor(c, KIMI_GGUF_KV_B, layer);
    m.heads = tr_config_element(c, "attention.head_count", layer, spec->layers_count, 1, 1, 1024);
    m.terms = tr_head_terms_of(m.heads);
    m.q_rank = tr_config_u32_or(c, "attention.q_lora_rank", 0, 0, 65536);
    m.kv_rank = tr_config_u32(c, "attention.kv_lora_rank", 1, 65536);
    m.rope_dim = tr_config_u32(c, "rope.dimension_count", 0, 1024);
    uint32_t key_dim = tr_config_u32(c, "attention.key_length_mla", m.rope_dim + 1, 2048);
    m.nope_dim = key_dim > m.rope_dim ? key_dim - m.rope_dim : 1;
    m.v_dim = tr_config_u32(c, "attention.value_length_mla", 1, 1024);
    m.scale = (float)(1 / sqrt(key_dim));
    uint32_t cached = tr_config_u32_or(c, "attention.key_length", m.kv_rank + m.rope_dim, 1, 66560);
    if (cached != m.kv_rank + m.rope_dim)
        tr_config_fail(c, "attention.key_length",
                       "found %u, expected %u (kv_lora_rank + rope.dimension_count)", cached,
                       m.kv_rank + m.rope_dim);
    return m;
}

static tr_status kimi_read_gguf(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* The latent is the value, whatever the file says of its size; nothing rotates. */
    static const char *const harmless[] = {"attention.value_length", "rope.freq_base",
                                           "attention.causal", NULL};
    tr_model_spec *spec = &draft->spec;

    tr_channel_spec experts = tr_gguf_experts(c, TR_GGUF_GATING_REQUIRED);
    tr_gguf_shared_experts(c, &experts);
    tr_status status = tr_gguf_sizes(c, draft, err);
    if (status != TR_OK)
        return status;
    tr_gguf_channels(c, draft, &experts);
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        tr_layer_spec *l = &draft->layers[i];
        bool latent = tr_gguf_kv_heads(c, spec, i, 0) > 0;

        l->mixer = latent ? TR_MIXER_MLA : TR_MIXER_KDA;
        if (latent)
            l->mla = kimi_read_gguf_mla(c, spec, i);
        else
            l->kda = tr_gguf_kda(c, spec, i);
    }
    return tr_config_finish(c, harmless, err);
}

#define B "blk.{l}."
static const tr_weight_name kimi_gguf_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "token_embd.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "output_norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "output.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, B "attn_norm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, B "ffn_norm.weight", NULL, 0, 1},
    TR_GGUF_QKV_NAMES,
    {TR_W_O, TR_IN_ANY_LAYER, B "attn_output.weight", NULL, 0, 1},
    TR_GGUF_KDA_NAMES,
    TR_GGUF_KDA_WIDE_NAMES,
    {TR_W_Q_A, TR_IN_ANY_LAYER, B "attn_q_a.weight", NULL, 0, 1},
    {TR_W_Q_A_NORM, TR_IN_ANY_LAYER, B "attn_q_a_norm.weight", NULL, 0, 1},
    {TR_W_Q_B, TR_IN_ANY_LAYER, B "attn_q_b.weight", NULL, 0, 1},
    {TR_W_KV_A, TR_IN_ANY_LAYER, B "attn_kv_a_mqa.weight", NULL, 0, 1},
    {TR_W_KV_A_NORM, TR_IN_ANY_LAYER, B "attn_kv_a_norm.weight", NULL, 0, 1},
    {TR_W_KV_B, TR_IN_ANY_LAYER, KIMI_GGUF_KV_B, NULL, 0, 1},
    {TR_W_K_B, TR_IN_ANY_LAYER, B "attn_k_b.weight", NULL, 0, 1},
    {TR_W_V_B, TR_IN_ANY_LAYER, B "attn_v_b.weight", NULL, 0, 1},
    {TR_W_ROUTER, TR_IN_SPARSE_LAYER, B "ffn_gate_inp.weight", NULL, 0, 1},
    {TR_W_ROUTER_BIAS, TR_IN_SPARSE_LAYER, B "exp_probs_b.bias", NULL, 0, 1},
    TR_GGUF_EXPERT_NAMES,
    TR_GGUF_ALWAYS_NAMES,
};
#undef B

static const char *const kimi_aliases[] = {"kimi_linear", "kimi-linear", NULL};
static const char *const kimi_skipped[] = {TR_SKIPPED_SCALES, "*.rotary_emb.inv_freq",
                                           "model.layers.{n}.*", NULL};
static const char *const kimi_gguf_skipped[] = {TR_SKIPPED_SCALES, NULL};

const tr_family tr_family_kimi_linear = {
    .name = "kimi_linear",
    .aliases = kimi_aliases,
    .hf = {.read = kimi_read_config,
           .names = kimi_names,
           .names_count = sizeof(kimi_names) / sizeof(kimi_names[0]),
           .skipped = kimi_skipped},
    .gguf = {.read = kimi_read_gguf,
             .names = kimi_gguf_names,
             .names_count = sizeof(kimi_gguf_names) / sizeof(kimi_gguf_names[0]),
             .skipped = kimi_gguf_skipped},
};
