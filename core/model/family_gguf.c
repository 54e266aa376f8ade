/* family_gguf.c - what the metadata of GGUF files of several families have in common. */
#include "core/model/family.h"

#include <math.h>

tr_status tr_gguf_sizes(tr_config *c, tr_draft *draft, tr_error *err)
{
    tr_model_spec *spec = &draft->spec;
    tr_gguf_array tokens = {.count = 0};

    tr_status status =
        tr_gguf_get_array(c->gguf, "tokenizer.ggml.tokens", TR_GGUF_TEXT, &tokens, err);
    if (status != TR_OK)
        return status;
    uint32_t listed = tokens.count < 1u << 24 ? (uint32_t)tokens.count : 1u << 24;
    spec->vocab_size = tr_config_u32_or(c, "vocab_size", listed, 1, 1u << 24);
    spec->hidden_size = tr_config_u32(c, "embedding_length", 1, 65536);
    spec->context_max = tr_config_u32(c, "context_length", 1, 1u << 30);
    spec->rms_norm_eps = (float)tr_config_number(c, "attention.layer_norm_rms_epsilon", 1e-12, 1);
    if (tr_config_u32_or(c, "nextn_predict_layers", 0, 0, UINT32_MAX) > 0)
        tr_config_fail(c, "nextn_predict_layers",
                       "above 0, expected 0: prediction layers are not supported");
    return tr_draft_layers(draft, tr_config_u32(c, "block_count", 1, TR_LAYERS_MAX), err);
}

uint32_t tr_gguf_kv_heads(tr_config *c, const tr_model_spec *spec, uint32_t layer, uint32_t heads)
{
    return tr_config_element(c, "attention.head_count_kv", layer, spec->layers_count, heads, 0,
                             1024);
}

tr_gqa_spec tr_gguf_gqa(tr_config *c, const tr_model_spec *spec, uint32_t layer)
{
    tr_gqa_spec g = {.rope = TR_ROPE_NONE};

    if (!tr_config_has(c, "attention.head_count"))
        tr_config_fail(c, "attention.head_count", "absent, expected an integer in 1..1024");
    g.heads = tr_config_element(c, "attention.head_count", layer, spec->layers_count, 1, 1, 1024);
    g.kv_heads = tr_gguf_kv_heads(c, spec, layer, g.heads);
    g.head_dim = tr_config_u32_or(c, "attention.key_length", spec->hidden_size / g.heads, 1, 1024);
    g.scale = (float)(1 / sqrt(g.head_dim));
    uint32_t value_dim = tr_config_u32_or(c, "attention.value_length", g.head_dim, 1, 1024);
    if (value_dim != g.head_dim)
        tr_config_fail(c, "attention.value_length", "found %u, expected %u (key_length)", value_dim,
                       g.head_dim);
    return g;
}

tr_channel_spec tr_gguf_experts(tr_config *c, uint32_t gating)
{
    tr_channel_spec m = {.groups = 1, .top_groups = 1};

    m.experts = tr_config_u32(c, "expert_count", 1, TR_TERMS_MAX);
    m.top_k = tr_config_u32(c, "expert_used_count", 1, TR_TERMS_MAX);
    m.expert_size = tr_config_u32(c, "expert_feed_forward_length", 1, 1u << 20);
    m.groups = tr_config_u32_or(c, "expert_group_count", 1, 0, TR_TERMS_MAX);
    m.top_groups = tr_config_u32_or(c, "expert_group_used_count", 1, 0, TR_TERMS_MAX);
    if (m.groups == 0 || m.top_groups == 0) /* how files say that there are none */
        m.groups = m.top_groups = 1;
    m.norm_top_k = tr_config_bool_or(c, "expert_weights_norm", true);
    m.scaling = (float)tr_config_number_or(c, "expert_weights_scale", 1, 0, 1e6);
    if (m.scaling == 0) /* likewise */
        m.scaling = 1;
    if (gating == TR_GGUF_GATING_REQUIRED)
        gating = tr_config_u32(c, "expert_gating_func", 1, 2);
    else
        gating = tr_config_u32_or(c, "expert_gating_func", gating, 1, 2);
    m.score = gating == TR_GGUF_GATING_SIGMOID ? TR_SCORE_SIGMOID : TR_SCORE_SOFTMAX;
    m.bias = m.score == TR_SCORE_SIGMOID;
    return m;
}

void tr_gguf_shared_experts(tr_config *c, tr_channel_spec *experts)
{
    experts->always_size =
        experts->expert_size * tr_config_u32_or(c, "expert_shared_count", 1, 0, 64);
    experts->slices = experts->always_size > 0 ? tr_slices_of(experts->always_size) : 0;
    if (experts->score != TR_SCORE_SIGMOID)
        tr_config_fail(c, "expert_gating_func", "found 1, expected 2 (sigmoid)");
}

void tr_gguf_channels(tr_config *c, tr_draft *draft, const tr_channel_spec *experts)
{
    uint32_t count = draft->spec.layers_count;
    uint32_t dense = tr_config_u32_or(c, "leading_dense_block_count", 0, 0, count);
    /* The width stands in every file, used or not. */
    uint32_t width = dense > 0 ? tr_config_u32(c, "feed_forward_length", 1, 1u << 20)
                               : tr_config_u32_or(c, "feed_forward_length", 1, 0, 1u << 20);

    for (uint32_t i = 0; i < count; i++)
        draft->layers[i].channel = i < dense ? tr_dense_channel(width) : *experts;
}

tr_kda_spec tr_gguf_kda(tr_config *c, const tr_model_spec *spec, uint32_t layer)
{
    tr_kda_spec k = {.beta_scale = 1};

    if (!tr_config_has(c, "attention.head_count"))
        tr_config_fail(c, "attention.head_count", "absent, expected an integer in 1..1024");
    k.heads = tr_config_element(c, "attention.head_count", layer, spec->layers_count, 1, 1, 1024);
    k.head_dim = tr_config_u32(c, "kda.head_dim", 1, 1024);
    k.conv_taps = tr_config_u32(c, "ssm.conv_kernel", 2, 16);
    k.rank = tr_config_has_tensor(c, TR_GGUF_KDA_WIDE, layer) ? 0 : k.head_dim;
    k.terms = tr_head_terms_of(k.heads);
    return k;
}
