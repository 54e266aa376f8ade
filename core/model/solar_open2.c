/* solar_open2.c - Solar Open 2: gated softmax attention without positions in some layers, Kimi
 * delta attention in the others, sigmoid-routed experts with a shared one. */
#include "core/model/solar_open2.h"

#include <math.h>
#include <string.h>

/* Layers with softmax attention, by the first of layer_types, gqa_layers and gqa_interval that is
 * there. Older programs have another default for the interval: without any of the three the
 * schedule is a guess, and is refused. */
static void solar_read_schedule(tr_config *c, tr_layer_spec *layers, uint32_t count)
{
    const json_t *types = tr_config_list(c, "layer_types");
    const json_t *full = tr_config_list(c, "gqa_layers");
    uint32_t interval = tr_config_u32_or(c, "gqa_interval", 0, 0, TR_LAYERS_MAX);
    uint32_t full_count = 0;

    for (uint32_t i = 0; i < count; i++)
        layers[i].mixer = TR_MIXER_KDA;
    if (types != NULL) {
        if (json_array_size(types) != count)
            tr_config_fail(c, "layer_types", "%zu entries, expected %u", json_array_size(types),
                           count);
        for (uint32_t i = 0; i < count && i < json_array_size(types); i++) {
            const char *type = json_string_value(json_array_get(types, i));

            if (type != NULL && strcmp(type, "full_attention") == 0)
                layers[i].mixer = TR_MIXER_GQA;
            else if (type == NULL || strcmp(type, "linear_attention") != 0)
                tr_config_fail(c, "layer_types",
                               "found %.40s at %u, expected full_attention or linear_attention",
                               type == NULL ? "no string" : type, i);
        }
    } else if (full != NULL) {
        for (size_t i = 0; i < json_array_size(full); i++) {
            json_int_t layer = json_integer_value(json_array_get(full, i));

            if (!json_is_integer(json_array_get(full, i)) || layer < 0 || layer >= count) {
                tr_config_fail(c, "gqa_layers", "entry %zu is no layer, expected 0..%u", i,
                               count - 1);
                return;
            }
            layers[layer].mixer = TR_MIXER_GQA;
        }
    } else if (interval > 0) {
        for (uint32_t i = 0; i < count; i += interval + 1)
            layers[i].mixer = TR_MIXER_GQA;
    } else {
        tr_config_fail(c, "layer_types",
                       "absent like gqa_layers and gqa_interval, expected one of the three");
    }
    for (uint32_t i = 0; i < count; i++)
        full_count += layers[i].mixer == TR_MIXER_GQA;
    if (full_count == 0)
        tr_config_fail(c, "layer_types", "no layer has softmax attention, expected at least one");
}

static tr_gqa_spec solar_read_gqa(tr_config *c, tr_draft *draft)
{
    tr_gqa_spec g = tr_config_gqa(c, draft);

    g.gate = tr_config_bool_or(c, "use_gqa_gate", true);
    g.qk_norm = tr_config_bool_or(c, "use_qk_norm", false);
    if (!tr_config_bool_or(c, "use_rope", false))
        g.rope = TR_ROPE_NONE;
    tr_config_only_bool(c, "use_gqa_gate_bias", false, "a gate with a bias is not supported");
    return g;
}

static tr_kda_spec solar_read_kda(tr_config *c, uint32_t attention_heads)
{
    tr_kda_spec k = {.a_is_log = true};
    tr_config linear;

    tr_config_child(&linear, c, "linear_attn_config");
    k.heads = tr_config_u32_or(&linear, "num_heads", attention_heads, 1, 1024);
    k.head_dim = tr_config_u32(&linear, "head_dim", 1, 1024);
    k.conv_taps = tr_config_u32(&linear, "short_conv_kernel_size", 2, 16);
    uint32_t kv_heads = tr_config_u32_or(&linear, "num_kv_heads", k.heads, 1, 1024);
    if (kv_heads != k.heads)
        tr_config_fail(
            &linear, "num_kv_heads",
            "found %u, expected %u (num_heads): key heads that several query heads share "
            "are not supported in linear attention",
            kv_heads, k.heads);
    tr_config_finish_child(&linear, c, NULL);

    k.beta_scale = tr_config_bool_or(c, "kda_allow_neg_eigval", true) ? 2.0f : 1.0f;
    k.rank = tr_config_bool_or(c, "kda_use_full_proj", false) ? 0 : k.head_dim;
    k.terms = tr_head_terms_of(k.heads);
    return k;
}

static tr_status solar_read_config(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* kda_gate_lower_bound stands in old configs; no published program applies it to this family.
     */
    static const char *const harmless[] = {TR_HARMLESS_SETTINGS, "kda_gate_lower_bound", NULL};
    tr_model_spec *spec = &draft->spec;

    tr_config_sizes(c, draft);
    tr_status status =
        tr_draft_layers(draft, tr_config_u32(c, "num_hidden_layers", 1, TR_LAYERS_MAX), err);
    if (status != TR_OK)
        return status;
    solar_read_schedule(c, draft->layers, spec->layers_count);
    tr_gqa_spec gqa = solar_read_gqa(c, draft);
    tr_kda_spec kda = solar_read_kda(c, gqa.heads);
    tr_channel_spec experts = tr_config_sigmoid_experts(c);
    uint32_t dense_layers = tr_config_u32_or(c, "first_k_dense_replace", 0, 0, spec->layers_count);
    /* The width of dense layers stands in every config, used or not. */
    uint32_t width = dense_layers > 0 ? tr_config_u32(c, "intermediate_size", 1, 1u << 20)
                                      : tr_config_u32_or(c, "intermediate_size", 1, 1, 1u << 20);
    tr_channel_spec dense = tr_dense_channel(width);
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        tr_layer_spec *l = &draft->layers[i];

        if (l->mixer == TR_MIXER_GQA)
            l->gqa = gqa;
        else
            l->kda = kda;
        l->channel = i < dense_layers ? dense : experts;
    }
    if (tr_config_number_or(c, "hc_rate", 0, 0, 1e9) > 0)
        tr_config_fail(c, "hc_rate",
                       "above 0, expected 0: hyper-connections are not part of this "
                       "family as it is specified");
    if (tr_config_u32_or(c, "num_nextn_predict_layers", 0, 0, TR_LAYERS_MAX) > 0)
        tr_config_fail(c, "num_nextn_predict_layers",
                       "above 0, expected 0: prediction layers are "
                       "not supported");
    return tr_config_finish(c, harmless, err);
}

#define L "model.layers.{l}."
#define E L "mlp.experts."
static const tr_weight_name solar_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "model.embed_tokens.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "model.norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "lm_head.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, L "input_layernorm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, L "post_attention_layernorm.weight", NULL, 0, 1},
    {TR_W_Q, TR_IN_ANY_LAYER, L "self_attn.q_proj.weight", NULL, 0, 1},
    {TR_W_K, TR_IN_ANY_LAYER, L "self_attn.k_proj.weight", NULL, 0, 1},
    {TR_W_V, TR_IN_ANY_LAYER, L "self_attn.v_proj.weight", NULL, 0, 1},
    {TR_W_O, TR_IN_ANY_LAYER, L "self_attn.o_proj.weight", NULL, 0, 1},
    {TR_W_ATTENTION_GATE, TR_IN_ANY_LAYER, L "self_attn.g_proj.weight", NULL, 0, 1},
    {TR_W_Q_NORM, TR_IN_ANY_LAYER, L "self_attn.q_norm.weight", NULL, 0, 1},
    {TR_W_K_NORM, TR_IN_ANY_LAYER, L "self_attn.k_norm.weight", NULL, 0, 1},
    {TR_W_Q_CONV, TR_IN_ANY_LAYER, L "self_attn.q_conv1d.weight", NULL, 0, 1},
    {TR_W_K_CONV, TR_IN_ANY_LAYER, L "self_attn.k_conv1d.weight", NULL, 0, 1},
    {TR_W_V_CONV, TR_IN_ANY_LAYER, L "self_attn.v_conv1d.weight", NULL, 0, 1},
    {TR_W_F_A, TR_IN_ANY_LAYER, L "self_attn.f_a_proj.weight", NULL, 0, 1},
    {TR_W_F_B, TR_IN_ANY_LAYER, L "self_attn.f_b_proj.weight", NULL, 0, 1},
    {TR_W_G_A, TR_IN_ANY_LAYER, L "self_attn.g_a_proj.weight", NULL, 0, 1},
    {TR_W_G_B, TR_IN_ANY_LAYER, L "self_attn.g_b_proj.weight", NULL, 0, 1},
    {TR_W_F, TR_IN_ANY_LAYER, L "self_attn.f_proj.weight", NULL, 0, 1},
    {TR_W_G, TR_IN_ANY_LAYER, L "self_attn.g_proj.weight", NULL, 0, 1},
    {TR_W_DT_BIAS, TR_IN_ANY_LAYER, L "self_attn.dt_bias", NULL, 0, 1},
    {TR_W_A, TR_IN_ANY_LAYER, L "self_attn.A_log", NULL, 0, 1},
    {TR_W_BETA, TR_IN_ANY_LAYER, L "self_attn.b_proj.weight", NULL, 0, 1},
    {TR_W_O_NORM, TR_IN_ANY_LAYER, L "self_attn.o_norm.weight", NULL, 0, 1},
    {TR_W_ROUTER, TR_IN_SPARSE_LAYER, L "mlp.gate.weight", NULL, 0, 1},
    {TR_W_ROUTER_BIAS, TR_IN_SPARSE_LAYER, L "mlp.gate.e_score_correction_bias", NULL, 0, 1},
    {TR_W_EXPERT_GATE, TR_IN_SPARSE_LAYER, E "{e}.gate_proj.weight", E "gate_up_proj", 0, 2},
    {TR_W_EXPERT_UP, TR_IN_SPARSE_LAYER, E "{e}.up_proj.weight", E "gate_up_proj", 1, 2},
    {TR_W_EXPERT_DOWN, TR_IN_SPARSE_LAYER, E "{e}.down_proj.weight", E "down_proj", 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_SPARSE_LAYER, L "mlp.shared_experts.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_SPARSE_LAYER, L "mlp.shared_experts.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_SPARSE_LAYER, L "mlp.shared_experts.down_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_DENSE_LAYER, L "mlp.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_DENSE_LAYER, L "mlp.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_DENSE_LAYER, L "mlp.down_proj.weight", NULL, 0, 1},
};
#undef E
#undef L

/* -- GGUF: the form that community converters write. Neither the factor of beta nor the gate of
 * softmax attention is in the file; both belong to the architecture's name. -- */

static tr_status solar_read_gguf(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* Nothing rotates in this family. */
    static const char *const harmless[] = {"rope.freq_base", "attention.causal", NULL};
    tr_model_spec *spec = &draft->spec;

    tr_channel_spec experts = tr_gguf_experts(c, TR_GGUF_GATING_SIGMOID);
    tr_gguf_shared_experts(c, &experts);
    if (tr_config_u32_or(c, "rope.dimension_count", 0, 0, UINT32_MAX) > 0)
        tr_config_fail(c, "rope.dimension_count", "above 0, expected 0: nothing rotates");
    tr_status status = tr_gguf_sizes(c, draft, err);
    if (status != TR_OK)
        return status;
    tr_gguf_channels(c, draft, &experts);
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        tr_layer_spec *l = &draft->layers[i];

        if (tr_gguf_kv_heads(c, spec, i, 0) > 0) {
            l->mixer = TR_MIXER_GQA;
            l->gqa = tr_gguf_gqa(c, spec, i);
            l->gqa.gate = true;
        } else {
            l->mixer = TR_MIXER_KDA;
            l->kda = tr_gguf_kda(c, spec, i);
            l->kda.beta_scale = 2;
        }
    }
    return tr_config_finish(c, harmless, err);
}

#define B "blk.{l}."
static const tr_weight_name solar_gguf_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "token_embd.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "output_norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "output.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, B "attn_norm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, B "ffn_norm.weight", NULL, 0, 1},
    TR_GGUF_QKV_NAMES,
    {TR_W_O, TR_IN_ANY_LAYER, B "attn_output.weight", NULL, 0, 1},
    {TR_W_ATTENTION_GATE, TR_IN_ANY_LAYER, B "attn_gate.weight", NULL, 0, 1},
    TR_GGUF_KDA_NAMES,
    TR_GGUF_KDA_WIDE_NAMES,
    {TR_W_ROUTER, TR_IN_SPARSE_LAYER, B "ffn_gate_inp.weight", NULL, 0, 1},
    {TR_W_ROUTER_BIAS, TR_IN_SPARSE_LAYER, B "exp_probs_b.bias", NULL, 0, 1},
    TR_GGUF_EXPERT_NAMES,
    TR_GGUF_ALWAYS_NAMES,
};
#undef B

static const char *const solar_aliases[] = {"solar_open2", "solar-open2", NULL};
static const char *const solar_skipped[] = {TR_SKIPPED_SCALES, "*.rotary_emb.inv_freq", NULL};
static const char *const solar_gguf_skipped[] = {TR_SKIPPED_SCALES, NULL};

const tr_family tr_family_solar_open2 = {
    .name = "solar_open2",
    .aliases = solar_aliases,
    .hf = {.read = solar_read_config,
           .names = solar_names,
           .names_count = sizeof(solar_names) / sizeof(solar_names[0]),
           .skipped = solar_skipped},
    .gguf = {.read = solar_read_gguf,
             .names = solar_gguf_names,
             .names_count = sizeof(solar_gguf_names) / sizeof(solar_gguf_names[0]),
             .skipped = solar_gguf_skipped},
};
