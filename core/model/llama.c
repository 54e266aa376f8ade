/* llama.c - the llama architecture (also of SmolLM and others): grouped-query attention with rotary
 * positions, a dense gated feed-forward.
 *
 * Note: the rows of q and k stand in another order in a GGUF file than in a Hugging Face one, each
 * made for its own pairing of rotating dimensions: neighbours in GGUF, halves in Hugging Face. */
#include "core/model/llama.h"

static const char *const llama_aliases[] = {"llama", NULL};

/* What both forms share, once sizes are read. Every layer gets gqa and a feed-forward of width. */
static void llama_fill_layer(tr_layer_spec *l, const tr_gqa_spec *gqa, uint32_t width)
{
    l->mixer = TR_MIXER_GQA;
    l->gqa = *gqa;
    l->channel = tr_dense_channel(width);
}

/* -- Hugging Face -- */

static tr_status llama_read_config(tr_draft *draft, tr_config *c, tr_error *err)
{
    /* pretraining_tp only splits the same product; the rest is for other programs. */
    static const char *const harmless[] = {TR_HARMLESS_SETTINGS, "pretraining_tp",
                                           "is_llama_config", "transformers.js_config", NULL};
    tr_model_spec *spec = &draft->spec;

    tr_config_sizes(c, draft);
    tr_gqa_spec gqa = tr_config_gqa(c, draft);
    uint32_t width = tr_config_u32(c, "intermediate_size", 1, 1u << 20);
    tr_config_only_bool(c, "mlp_bias", false, "projections with a bias are not supported");
    tr_config_only_bool(c, "rope_interleaved", false, "this order of rows is not supported");

    tr_status status =
        tr_draft_layers(draft, tr_config_u32(c, "num_hidden_layers", 1, TR_LAYERS_MAX), err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < spec->layers_count; i++)
        llama_fill_layer(&draft->layers[i], &gqa, width);
    return tr_config_finish(c, harmless, err);
}

#define L "model.layers.{l}."
static const tr_weight_name llama_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "model.embed_tokens.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "model.norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "lm_head.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, L "input_layernorm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, L "post_attention_layernorm.weight", NULL, 0, 1},
    {TR_W_Q, TR_IN_ANY_LAYER, L "self_attn.q_proj.weight", NULL, 0, 1},
    {TR_W_K, TR_IN_ANY_LAYER, L "self_attn.k_proj.weight", NULL, 0, 1},
    {TR_W_V, TR_IN_ANY_LAYER, L "self_attn.v_proj.weight", NULL, 0, 1},
    {TR_W_O, TR_IN_ANY_LAYER, L "self_attn.o_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_ANY_LAYER, L "mlp.gate_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_ANY_LAYER, L "mlp.up_proj.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_ANY_LAYER, L "mlp.down_proj.weight", NULL, 0, 1},
};
#undef L

static const char *const llama_skipped[] = {TR_SKIPPED_SCALES, "*.rotary_emb.inv_freq", NULL};

/* -- GGUF -- */

static tr_status llama_read_gguf(tr_draft *draft, tr_config *c, tr_error *err)
{
    static const char *const harmless[] = {"rope.scaling.finetuned", "attention.causal", NULL};
    tr_model_spec *spec = &draft->spec;

    if (tr_config_u32_or(c, "expert_count", 0, 0, UINT32_MAX) > 0)
        tr_config_fail(c, "expert_count", "above 0, expected 0: this family is dense");
    (void)tr_config_u32_or(c, "expert_used_count", 0, 0, UINT32_MAX);
    if (!tr_config_has(c, "feed_forward_length"))
        tr_config_fail(c, "feed_forward_length", "absent, expected an integer above 0");
    tr_status status = tr_gguf_sizes(c, draft, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        tr_gqa_spec gqa = tr_gguf_gqa(c, spec, i);

        tr_gguf_rope(c, draft, &gqa, TR_ROPE_INTERLEAVED);
        llama_fill_layer(&draft->layers[i], &gqa,
                         tr_config_element(c, "feed_forward_length", i, spec->layers_count, 1, 1,
                                           1u << 20));
    }
    return tr_config_finish(c, harmless, err);
}

#define B "blk.{l}."
static const tr_weight_name llama_gguf_names[] = {
    {TR_W_EMBED, TR_IN_ANY_LAYER, "token_embd.weight", NULL, 0, 1},
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "output_norm.weight", NULL, 0, 1},
    {TR_W_HEAD, TR_IN_ANY_LAYER, "output.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, B "attn_norm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, B "ffn_norm.weight", NULL, 0, 1},
    TR_GGUF_QKV_NAMES,
    {TR_W_O, TR_IN_ANY_LAYER, B "attn_output.weight", NULL, 0, 1},
    {TR_W_ALWAYS_GATE, TR_IN_ANY_LAYER, B "ffn_gate.weight", NULL, 0, 1},
    {TR_W_ALWAYS_UP, TR_IN_ANY_LAYER, B "ffn_up.weight", NULL, 0, 1},
    {TR_W_ALWAYS_DOWN, TR_IN_ANY_LAYER, B "ffn_down.weight", NULL, 0, 1},
};
#undef B

static const char *const llama_gguf_skipped[] = {NULL};

const tr_family tr_family_llama = {
    .name = "llama",
    .aliases = llama_aliases,
    .hf = {.read = llama_read_config,
           .names = llama_names,
           .names_count = sizeof(llama_names) / sizeof(llama_names[0]),
           .skipped = llama_skipped},
    .gguf = {.read = llama_read_gguf,
             .rope_divisors = "rope_freqs.weight",
             .names = llama_gguf_names,
             .names_count = sizeof(llama_gguf_names) / sizeof(llama_gguf_names[0]),
             .skipped = llama_gguf_skipped},
};
