/* qwen3_moe.c - Qwen3 with experts: grouped-query attention with norms of queries and keys and
 * rotary positions, softmax-routed experts; some layers may be dense. */
#include "core/model/qwen3_moe.h"

static tr_channel_spec qwen3_moe_read_experts(tr_config *c)
{
    tr_channel_spec m = {.score = TR_SCORE_SOFTMAX, .groups = 1, .top_groups = 1, .scaling = 1};
    bool new_name = tr_config_has(c, "num_local_experts");

    m.experts = tr_config_u32(c, new_name ? "num_local_experts" : "num_experts", 1, TR_TERMS_MAX);
    m.top_k = tr_config_u32(c, "num_experts_per_tok", 1, TR_TERMS_MAX);
    m.expert_size = tr_config_u32(c, "moe_intermediate_size", 1, 1u << 20);
    m.norm_top_k = tr_config_bool_or(c, "norm_topk_prob", false);
    return m;
}

/* Layers without experts: those of mlp_only_layers, and all but every decoder_sparse_step-th. */
static void qwen3_moe_read_schedule(tr_config *c, tr_draft *draft, const tr_channel_spec *experts)
{
    const json_t *list = tr_config_list(c, "mlp_only_layers");
    uint32_t step = tr_config_u32_or(c, "decoder_sparse_step", 1, 1, TR_LAYERS_MAX);
    uint32_t width = tr_config_u32(c, "intermediate_size", 1, 1u << 20);
    uint32_t count = draft->spec.layers_count;

    for (uint32_t i = 0; i < count; i++)
        draft->layers[i].channel = (i + 1) % step == 0 ? *experts : tr_dense_channel(width);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t layer = json_integer_value(json_array_get(list, i));

        if (!json_is_integer(json_array_get(list, i)) || layer < 0 || layer >= count) {
            tr_config_fail(c, "mlp_only_layers", "entry %zu is no layer, expected 0..%u", i,
                           count - 1);
            return;
        }
        draft->layers[layer].channel = tr_dense_channel(width);
    }
}

static tr_status qwen3_moe_read_config(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* Both serve sliding windows, which are refused. */
    static const char *const harmless[] = {TR_HARMLESS_SETTINGS, "sliding_window",
                                           "max_window_layers", NULL};
    tr_model_spec *spec = &draft->spec;

    tr_config_sizes(c, draft);
    tr_gqa_spec gqa = tr_config_gqa(c, draft);
    gqa.qk_norm = true;
    tr_channel_spec experts = qwen3_moe_read_experts(c);
    tr_config_only_bool(c, "use_sliding_window", false, "windows are not supported");

    tr_status status =
        tr_draft_layers(draft, tr_config_u32(c, "num_hidden_layers", 1, TR_LAYERS_MAX), err);
    if (status != TR_OK)
        return status;
    qwen3_moe_read_schedule(c, draft, &experts);
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        draft->layers[i].mixer = TR_MIXER_GQA;
        draft->layers[i].gqa = gqa;
    }
    return tr_config_finish(c, harmless, err);
}

#define L "model.layers.{l}."
#define E L "mlp.experts."
static const tr_weight_name qwen3_moe_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "model.embed_tokens.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "model.norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "lm_head.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, L "input_layernorm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, L "post_attention_layernorm.weight", NULL, 0, 1},
    {TR_W_Q, TR_IN_ANY_LAYER, L "self_attn.q_proj.weight", NULL, 0, 1},
    {TR_W_K, TR_IN_ANY_LAYER, L "self_attn.k_proj.weight", NULL, 0, 1},
    {TR_W_V, TR_IN_ANY_LAYER, L "self_attn.v_proj.weight", NULL, 0, 1},
    {TR_W_O, TR_IN_ANY_LAYER, L "self_attn.o_proj.weight", NULL, 0, 1},
    {TR_W_Q_NORM, TR_IN_ANY_LAYER, L "self_attn.q_norm.weight", NULL, 0, 1},
    {TR_W_K_NORM, TR_IN_ANY_LAYER, L "self_attn.k_norm.weight", NULL, 0, 1},
    {TR_W_ROUTER, TR_IN_SPARSE_LAYER, L "mlp.gate.weight", NULL, 0, 1},
    {TR_W_EXPERT_GATE, TR_IN_SPARSE_LAYER, E "{e}.gate_proj.weight", E "gate_up_proj", 0, 2},
    {TR_W_EXPERT_UP, TR_IN_SPARSE_LAYER, E "{e}.up_proj.weight", E "gate_up_proj", 1, 2},
    {TR_W_EXPERT_DOWN, TR_IN_SPARSE_LAYER, E "{e}.down_proj.weight", E "down_proj", 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_DENSE_LAYER, L "mlp.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_DENSE_LAYER, L "mlp.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_DENSE_LAYER, L "mlp.down_proj.weight", NULL, 0, 1},
};
#undef E
#undef L

/* -- GGUF -- */

static tr_status qwen3_moe_read_gguf(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* Of the width of dense layers, which converted models do not have. */
    static const char *const harmless[] = {"feed_forward_length", "attention.causal", NULL};
    tr_model_spec *spec = &draft->spec;

    tr_channel_spec experts = tr_gguf_experts(c, TR_GGUF_GATING_SOFTMAX);
    experts.bias = false;
    if (tr_config_u32_or(c, "leading_dense_block_count", 0, 0, TR_LAYERS_MAX) > 0)
        tr_config_fail(c, "leading_dense_block_count",
                       "above 0, expected 0: dense layers are not part of these files");
    tr_status status = tr_gguf_sizes(c, draft, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        tr_layer_spec *l = &draft->layers[i];

        l->mixer = TR_MIXER_GQA;
        l->gqa = tr_gguf_gqa(c, spec, i);
        l->gqa.qk_norm = true;
        tr_gguf_rope(c, draft, &l->gqa, TR_ROPE_HALF);
        l->channel = experts;
    }
    return tr_config_finish(c, harmless, err);
}

#define B "blk.{l}."
static const tr_weight_name qwen3_moe_gguf_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "token_embd.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "output_norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "output.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, B "attn_norm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, B "ffn_norm.weight", NULL, 0, 1},
    TR_GGUF_QKV_NAMES,
    {TR_W_O, TR_IN_ANY_LAYER, B "attn_output.weight", NULL, 0, 1},
    {TR_W_Q_NORM, TR_IN_ANY_LAYER, B "attn_q_norm.weight", NULL, 0, 1},
    {TR_W_K_NORM, TR_IN_ANY_LAYER, B "attn_k_norm.weight", NULL, 0, 1},
    {TR_W_ROUTER, TR_IN_ANY_LAYER, B "ffn_gate_inp.weight", NULL, 0, 1},
    TR_GGUF_EXPERT_NAMES,
};
#undef B

static const char *const qwen3_moe_aliases[] = {"qwen3_moe", "qwen3moe", NULL};
static const char *const qwen3_moe_skipped[] = {TR_SKIPPED_SCALES, "*.rotary_emb.inv_freq", NULL};
static const char *const qwen3_moe_gguf_skipped[] = {TR_SKIPPED_SCALES, NULL};

const tr_family tr_family_qwen3_moe = {
    .name = "qwen3_moe",
    .aliases = qwen3_moe_aliases,
    .hf = {.read = qwen3_moe_read_config,
           .names = qwen3_moe_names,
           .names_count = sizeof(qwen3_moe_names) / sizeof(qwen3_moe_names[0]),
           .skipped = qwen3_moe_skipped},
    .gguf = {.read = qwen3_moe_read_gguf,
             .names = qwen3_moe_gguf_names,
             .names_count = sizeof(qwen3_moe_gguf_names) / sizeof(qwen3_moe_gguf_names[0]),
             .skipped = qwen3_moe_gguf_skipped},
};
