#include "core/model/qwen_hybrid.h"

#include <math.h>
#include <string.h>

const char *const tr_qwen_roots[] = {"model.", "model.language_model.", NULL};

static bool qwen_is_one_of(const char *text, const char *const *texts)
{
    while (*texts != NULL && strcmp(text, *texts) != 0)
        texts++;
    return *texts != NULL;
}

/* The mixer of each layer, from layer_types or full_attention_interval. */
static void qwen_read_schedule(tr_config *c, tr_layer_spec *layers, uint32_t count,
                               const char *const *attention_types)
{
    const json_t *types = tr_config_list(c, "layer_types");
    uint32_t interval = tr_config_u32_or(c, "full_attention_interval", 4, 1, TR_LAYERS_MAX);

    for (uint32_t i = 0; i < count; i++)
        layers[i].mixer = (i + 1) % interval == 0 ? TR_MIXER_GQA : TR_MIXER_GDN;
    if (types == NULL)
        return;
    if (json_array_size(types) != count) {
        tr_config_fail(c, "layer_types", "%zu entries, expected %u", json_array_size(types), count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *type = json_string_value(json_array_get(types, i));

        if (type != NULL && qwen_is_one_of(type, attention_types))
            layers[i].mixer = TR_MIXER_GQA;
        else if (type != NULL && strcmp(type, "linear_attention") == 0)
            layers[i].mixer = TR_MIXER_GDN;
        else
            tr_config_fail(c, "layer_types", "found %.40s at %u, expected %s or linear_attention",
                           type == NULL ? "no string" : type, i, attention_types[0]);
    }
}

static tr_gqa_spec qwen_read_attention(tr_config *c)
{
    tr_gqa_spec g = {.gate = true, .gate_in_q = true, .qk_norm = true, .rope = TR_ROPE_HALF};

    g.heads = tr_config_u32(c, "num_attention_heads", 1, 1024);
    g.kv_heads = tr_config_u32(c, "num_key_value_heads", 1, 1024);
    g.head_dim = tr_config_u32(c, "head_dim", 1, 1024);
    g.scale = (float)(1 / sqrt(g.head_dim));
    tr_config_partial_rope(c, g.head_dim, 0.25, &g.rope_theta, &g.rope_dims);
    tr_config_only_bool(c, "attention_bias", false, "projections with a bias are not supported");
    tr_config_only_bool(c, "attn_output_gate", true, "q_proj holds the rows of the gate");
    return g;
}

static tr_gdn_spec qwen_read_delta(tr_config *c)
{
    static const char *const gates[] = {"silu", "sigmoid", NULL};
    tr_gdn_spec d = {.a_is_log = true};

    d.key_heads = tr_config_u32(c, "linear_num_key_heads", 1, 1024);
    d.value_heads = tr_config_u32(c, "linear_num_value_heads", 1, 1024);
    d.key_dim = tr_config_u32(c, "linear_key_head_dim", 1, 1024);
    d.value_dim = tr_config_u32(c, "linear_value_head_dim", 1, 1024);
    d.conv_taps = tr_config_u32_or(c, "linear_conv_kernel_dim", 4, 2, 16);
    d.gate = tr_config_choice(c, "output_gate_type", gates, "silu") == 0 ? TR_GATE_SILU
                                                                         : TR_GATE_SIGMOID;
    d.terms = tr_head_terms_of(d.key_heads);
    return d;
}

static tr_channel_spec qwen_read_experts(tr_config *c)
{
    tr_channel_spec m = {.score = TR_SCORE_SOFTMAX,
                         .groups = 1,
                         .top_groups = 1,
                         .scaling = 1,
                         .norm_top_k = true,
                         .always_scale = true};
    const json_t *dense = tr_config_list(c, "mlp_only_layers");

    m.experts = tr_config_u32(c, "num_experts", 1, TR_TERMS_MAX);
    m.top_k = tr_config_u32(c, "num_experts_per_tok", 1, TR_TERMS_MAX);
    m.expert_size = tr_config_u32(c, "moe_intermediate_size", 1, 1u << 20);
    m.always_size = tr_config_u32(c, "shared_expert_intermediate_size", 1, 1u << 20);
    m.slices = tr_slices_of(m.always_size);
    (void)tr_config_u32_or(c, "decoder_sparse_step", 1, 1, 1); /* every layer has experts */
    if (json_array_size(dense) > 0)
        tr_config_fail(c, "mlp_only_layers",
                       "%zu entries, expected none: dense layers are not "
                       "part of this family",
                       json_array_size(dense));
    return m;
}

static tr_status qwen_read_text(tr_draft *draft, tr_config *c, const tr_qwen_traits *traits,
                                tr_error *err)
{
    tr_model_spec *spec = &draft->spec;

    tr_config_sizes(c, draft);
    spec->norm_offset = 1;
    tr_status status =
        tr_draft_layers(draft, tr_config_u32(c, "num_hidden_layers", 1, TR_LAYERS_MAX), err);
    if (status != TR_OK)
        return status;
    qwen_read_schedule(c, draft->layers, spec->layers_count, traits->attention_types);
    tr_gqa_spec gqa = qwen_read_attention(c);
    tr_gdn_spec gdn = qwen_read_delta(c);
    tr_channel_spec experts = qwen_read_experts(c);
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        tr_layer_spec *l = &draft->layers[i];

        if (l->mixer == TR_MIXER_GQA)
            l->gqa = gqa;
        else
            l->gdn = gdn;
        l->channel = experts;
    }
    traits->more(draft, c);
    return TR_OK;
}

tr_status tr_qwen_read(tr_draft *draft, tr_config *c, const tr_qwen_traits *traits, tr_error *err)
{
    /* mtp_*: layers that draft tokens, which are skipped. The recurrence is always in float32, the
     * type of a table is what the file says. intermediate_size: of dense layers, of which there are
     * none. */
    static const char *const harmless[] = {TR_HARMLESS_SETTINGS,
                                           "mamba_ssm_dtype",
                                           "mtp",
                                           "mtp_num_hidden_layers",
                                           "mtp_use_dedicated_embeddings",
                                           "number_of_conv_states",
                                           "ple_embedding_dtype",
                                           "intermediate_size",
                                           NULL};
    /* Of images and videos, which are not supported: their tokens are tokens like others. */
    static const char *const around[] = {
        TR_HARMLESS_SETTINGS,    "vision_config",       "image_token_id",      "video_token_id",
        "vision_start_token_id", "vision_end_token_id", "language_model_only", NULL};

    if (!tr_config_has(c, "text_config")) {
        tr_status status = qwen_read_text(draft, c, traits, err);
        return status == TR_OK ? tr_config_finish(c, harmless, err) : status;
    }
    tr_config text;
    tr_config_child(&text, c, "text_config");
    tr_status status = qwen_read_text(draft, &text, traits, err);
    tr_config_finish_child(&text, c, harmless);
    if (tr_config_bool_or(c, "tie_word_embeddings", draft->tied) != draft->tied)
        tr_config_fail(c, "tie_word_embeddings", "found %s, expected %s as in text_config",
                       draft->tied ? "false" : "true", draft->tied ? "true" : "false");
    return status == TR_OK ? tr_config_finish(c, around, err) : status;
}
