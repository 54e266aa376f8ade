/* solar_open.c - Solar Open (the first one): grouped-query attention with rotary positions,
 * sigmoid-routed experts with a shared one. */
#include "core/model/solar_open.h"

static tr_status solar_open_read_config(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* Of the width of dense layers, which the family does not have. */
    static const char *const harmless[] = {TR_HARMLESS_SETTINGS, "intermediate_size", NULL};
    tr_model_spec *spec = &draft->spec;

    tr_config_sizes(c, draft);
    tr_gqa_spec gqa = tr_config_gqa(c, draft);
    tr_channel_spec experts = tr_config_sigmoid_experts(c);
    tr_config_only_bool(c, "use_qk_norm", false, "the family has no norm of queries and keys");
    if (tr_config_u32_or(c, "first_k_dense_replace", 0, 0, TR_LAYERS_MAX) > 0)
        tr_config_fail(c, "first_k_dense_replace",
                       "above 0, expected 0: the family has no dense layers");

    tr_status status =
        tr_draft_layers(draft, tr_config_u32(c, "num_hidden_layers", 1, TR_LAYERS_MAX), err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < spec->layers_count; i++)
        draft->layers[i] = (tr_layer_spec){.mixer = TR_MIXER_GQA, .gqa = gqa, .channel = experts};
    return tr_config_finish(c, harmless, err);
}

#define L "model.layers.{l}."
#define E L "mlp.experts."
static const tr_weight_name solar_open_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "model.embed_tokens.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "model.norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "lm_head.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, L "input_layernorm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, L "post_attention_layernorm.weight", NULL, 0, 1},
    {TR_W_Q, TR_IN_ANY_LAYER, L "self_attn.q_proj.weight", NULL, 0, 1},
    {TR_W_K, TR_IN_ANY_LAYER, L "self_attn.k_proj.weight", NULL, 0, 1},
    {TR_W_V, TR_IN_ANY_LAYER, L "self_attn.v_proj.weight", NULL, 0, 1},
    {TR_W_O, TR_IN_ANY_LAYER, L "self_attn.o_proj.weight", NULL, 0, 1},
    {TR_W_ROUTER, TR_IN_ANY_LAYER, L "mlp.gate.weight", NULL, 0, 1},
    {TR_W_ROUTER_BIAS, TR_IN_ANY_LAYER, L "mlp.gate.e_score_correction_bias", NULL, 0, 1},
    {TR_W_EXPERT_GATE, TR_IN_ANY_LAYER, E "{e}.gate_proj.weight", E "gate_up_proj", 0, 2},
    {TR_W_EXPERT_UP, TR_IN_ANY_LAYER, E "{e}.up_proj.weight", E "gate_up_proj", 1, 2},
    {TR_W_EXPERT_DOWN, TR_IN_ANY_LAYER, E "{e}.down_proj.weight", E "down_proj", 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_ANY_LAYER, L "mlp.shared_experts.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_ANY_LAYER, L "mlp.shared_experts.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_ANY_LAYER, L "mlp.shared_experts.down_proj.weight", NULL, 0, 1},
};
#undef E
#undef L

static const char *const solar_open_aliases[] = {"solar_open", NULL};
static const char *const solar_open_skipped[] = {TR_SKIPPED_SCALES, "*.rotary_emb.inv_freq", NULL};

const tr_family tr_family_solar_open = {
    .name = "solar_open",
    .aliases = solar_open_aliases,
    .hf = {.read = solar_open_read_config,
           .names = solar_open_names,
           .names_count = sizeof(solar_open_names) / sizeof(solar_open_names[0]),
           .skipped = solar_open_skipped},
};
