/* glm5_next.c - GLM-5.3 Flash: Kimi delta attention with bounded decay, latent attention without
 * positions that looks at pools an index chose, residual streams that are mixed by doubly
 * stochastic matrices, sigmoid-routed experts with a shared one, clamped feed-forwards.
 *
 * Its vision tower and the layer that drafts tokens are recognised and skipped. */
#include "core/model/glm5_next.h"

#include "core/model/latent_hybrid.h"

#include <string.h>

static tr_index_spec glm_read_index(tr_config *c, uint32_t layers)
{
    tr_index_spec x = {.kind = TR_INDEX_POOL};
    const json_t *types = tr_config_list(c, "indexer_types");

    x.heads = tr_config_u32(c, "index_n_heads", 1, 1024);
    x.head_dim = tr_config_u32(c, "index_head_dim", 1, 1024);
    x.block = tr_config_u32(c, "index_kpool", 1, 16);
    uint32_t positions = tr_config_u32(c, "index_topk", 1, 1u << 20);
    x.top = positions / x.block;
    if (positions % x.block != 0)
        tr_config_fail(c, "index_topk", "found %u, expected a multiple of %u (index_kpool)",
                       positions, x.block);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type == NULL || strcmp(type, "full") != 0 || i >= layers)
            tr_config_fail(c, "indexer_types",
                           "found %.40s at %zu, expected full for each of %u layers: an index that "
                           "layers share is not supported",
                           type == NULL ? "no string" : type, i, layers);
    }
    if (tr_config_u32_or(c, "index_topk_freq", 1, 1, TR_LAYERS_MAX) != 1)
        tr_config_fail(c, "index_topk_freq",
                       "above 1, expected 1: an index that layers share is not supported");
    tr_config_only_bool(c, "index_kpool_compress", true, "pools without weights are not supported");
    tr_config_only_bool(c, "index_kpool_always_select_tail", true,
                        "leaving out the newest positions is not supported");
    return x;
}

static tr_channel_spec glm_read_experts(tr_config *c)
{
    static const char *const methods[] = {"noaux_tc", NULL};
    tr_channel_spec m = tr_config_sigmoid_experts(c);

    m.clamp = (float)tr_config_number_or(c, "swiglu_limit", 0, 0, 1e30);
    (void)tr_config_choice(c, "topk_method", methods, "noaux_tc");
    return m;
}

static tr_residual_spec glm_read_residual(tr_config *c)
{
    tr_residual_spec r = {.kind = TR_RESIDUAL_MHC};

    tr_config_only_bool(c, "mhc", true, "the family has residual streams");
    r.streams = tr_config_u32(c, "hc_mult", 2, TR_STREAMS_MAX);
    r.iterations = tr_config_u32(c, "hc_sinkhorn_iters", 1, 1000);
    r.eps = (float)tr_config_number(c, "hc_eps", 0, 1);
    return r;
}

static tr_status glm_read_text(tr_draft *draft, tr_config *c, tr_error *err)
{
    static const char *const attention_types[] = {"deepseek_sparse_attention", "indexed_attention",
                                                  "full_attention", NULL};
    static const tr_latent_traits traits = {.attention_types = attention_types, .has_bound = true};
    tr_model_spec *spec = &draft->spec;

    tr_config_sizes(c, draft);
    tr_status status =
        tr_draft_layers(draft, tr_config_u32(c, "num_hidden_layers", 1, TR_LAYERS_MAX), err);
    if (status != TR_OK)
        return status;
    spec->residual = glm_read_residual(c);
    tr_latent_read_kda(draft, c, &traits);
    tr_mla_spec mla = tr_latent_read_mla(c);
    mla.norm_eps = spec->rms_norm_eps;
    mla.index = glm_read_index(c, spec->layers_count);
    if (mla.q_rank == 0)
        tr_config_fail(c, "q_lora_rank", "absent or 0, expected a rank: the index reads from it");
    if (mla.rope_dim != 0)
        tr_config_fail(c, "qk_rope_head_dim", "found %u, expected 0: the family has no positions",
                       mla.rope_dim);
    for (uint32_t i = 0; i < spec->layers_count; i++)
        if (draft->layers[i].mixer == TR_MIXER_MLA)
            draft->layers[i].mla = mla;
    tr_channel_spec experts = glm_read_experts(c);
    tr_latent_read_channels(draft, c, &experts);
    tr_latent_read_extra(draft, c);
    return TR_OK;
}

static tr_status glm_read_config(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* Nothing rotates, so neither widths nor pairings of rotations mean anything; routing is always
     * in float32; the index of the layer that drafts is skipped with it. */
    static const char *const harmless[] = {TR_HARMLESS_SETTINGS,
                                           "head_dim",
                                           "rope_theta",
                                           "rope_scaling",
                                           "rope_parameters",
                                           "rope_interleave",
                                           "indexer_rope_interleave",
                                           "moe_router_dtype",
                                           "index_share_for_mtp_iteration",
                                           "pretraining_tp",
                                           "ep_size",
                                           NULL};
    /* Of images and videos, which are not supported: their tokens are tokens like others. */
    static const char *const around[] = {
        TR_HARMLESS_SETTINGS,   "vision_config",      "image_token_id",
        "image_start_token_id", "image_end_token_id", "video_token_id",
        "video_start_token_id", "video_end_token_id", NULL};

    if (!tr_config_has(c, "text_config")) {
        tr_status status = glm_read_text(draft, c, err);
        return status == TR_OK ? tr_config_finish(c, harmless, err) : status;
    }
    tr_config text;
    tr_config_child(&text, c, "text_config");
    tr_status status = glm_read_text(draft, &text, err);
    tr_config_finish_child(&text, c, harmless);
    if (tr_config_bool_or(c, "tie_word_embeddings", draft->tied) != draft->tied)
        tr_config_fail(c, "tie_word_embeddings", "found %s, expected %s as in text_config",
                       draft->tied ? "false" : "true", draft->tied ? "true" : "false");
    return status == TR_OK ? tr_config_finish(c, around, err) : status;
}

#define L "{r}layers.{l}."
#define A L "self_attn."
#define X A "indexer."
#define M L "mlp."
static const tr_weight_name glm_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "{r}embed_tokens.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "{r}norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "lm_head.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, L "input_layernorm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, L "post_attention_layernorm.weight", NULL, 0, 1},
    {TR_W_HC_ATTENTION_FN, TR_IN_ANY_LAYER, L "hc_attn_fn", NULL, 0, 1},
    {TR_W_HC_ATTENTION_BASE, TR_IN_ANY_LAYER, L "hc_attn_base", NULL, 0, 1},
    {TR_W_HC_ATTENTION_SCALE, TR_IN_ANY_LAYER, L "hc_attn_scale", NULL, 0, 1},
    {TR_W_HC_CHANNEL_FN, TR_IN_ANY_LAYER, L "hc_ffn_fn", NULL, 0, 1},
    {TR_W_HC_CHANNEL_BASE, TR_IN_ANY_LAYER, L "hc_ffn_base", NULL, 0, 1},
    {TR_W_HC_CHANNEL_SCALE, TR_IN_ANY_LAYER, L "hc_ffn_scale", NULL, 0, 1},
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
    {TR_W_INDEX_Q, TR_IN_ANY_LAYER, X "wq_b.weight", NULL, 0, 1},
    {TR_W_INDEX_K, TR_IN_ANY_LAYER, X "wk.weight", NULL, 0, 1},
    {TR_W_INDEX_K_NORM, TR_IN_ANY_LAYER, X "k_norm.weight", NULL, 0, 1},
    {TR_W_INDEX_K_BIAS, TR_IN_ANY_LAYER, X "k_norm.bias", NULL, 0, 1},
    {TR_W_INDEX_WEIGHTS, TR_IN_ANY_LAYER, X "weights_proj.weight", NULL, 0, 1},
    {TR_W_INDEX_GATE, TR_IN_ANY_LAYER, X "index_kpool_compress_gate", NULL, 0, 1},
    {TR_W_INDEX_APE, TR_IN_ANY_LAYER, X "index_kpool_compress_ape", NULL, 0, 1},
    {TR_W_ROUTER, TR_IN_SPARSE_LAYER, M "gate.weight", NULL, 0, 1},
    {TR_W_ROUTER_BIAS, TR_IN_SPARSE_LAYER, M "gate.e_score_correction_bias", NULL, 0, 1},
    {TR_W_EXPERT_GATE, TR_IN_SPARSE_LAYER, M "experts.{e}.gate_proj.weight", NULL, 0, 1},
    {TR_W_EXPERT_UP, TR_IN_SPARSE_LAYER, M "experts.{e}.up_proj.weight", NULL, 0, 1},
    {TR_W_EXPERT_DOWN, TR_IN_SPARSE_LAYER, M "experts.{e}.down_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_SPARSE_LAYER, M "shared_experts.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_SPARSE_LAYER, M "shared_experts.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_SPARSE_LAYER, M "shared_experts.down_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_DENSE_LAYER, M "gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_DENSE_LAYER, M "up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_DENSE_LAYER, M "down_proj.weight", NULL, 0, 1},
};
#undef M
#undef X
#undef A
#undef L

static const char *const glm_aliases[] = {"glm5_next", "glm5_next_text", NULL};
static const char *const glm_roots[] = {"model.language_model.", "model.", NULL};
/* hc_head: some files have one; nothing published reads it. */
static const char *const glm_skipped[] = {TR_SKIPPED_SCALES, "*.rotary_emb.inv_freq",
                                          "model.visual.*",  "{r}layers.{n}.*",
                                          "{r}hc_head*",     NULL};

const tr_family tr_family_glm5_next = {
    .name = "glm5_next",
    .aliases = glm_aliases,
    .hf = {.read = glm_read_config,
           .names = glm_names,
           .names_count = sizeof(glm_names) / sizeof(glm_names[0]),
           .roots = glm_roots,
           .skipped = glm_skipped},
};
