/* qwen4_exp.c - Qwen3.8-Flash-Next under both of its names: the hybrid of qwen_hybrid.h with gated
 * residual streams, softmax attention over chosen blocks and a table of n-grams. */
#include "core/model/qwen4_exp.h"

#include "core/model/json.h"
#include "core/model/qwen_hybrid.h"

/* The index of the softmax layers; without indexer_n_heads they see everything. */
static tr_index_spec qwen4_read_index(tr_config *c)
{
    tr_index_spec x = {.kind = TR_INDEX_BLOCK};

    if (!tr_config_has(c, "indexer_n_heads"))
        return (tr_index_spec){0};
    x.heads = tr_config_u32(c, "indexer_n_heads", 1, 1024);
    x.head_dim = tr_config_u32(c, "indexer_head_dim", 1, 1024);
    x.block = tr_config_u32(c, "indexer_compress_ratio", 1, 64);
    (void)tr_config_u32(c, "indexer_kv_heads", 1, 1);
    uint32_t budget = tr_config_u32(c, "indexer_budget", 1, 1u << 20);
    x.top = budget / x.block;
    if (budget % x.block != 0)
        tr_config_fail(c, "indexer_budget",
                       "found %u, expected a multiple of %u "
                       "(indexer_compress_ratio)",
                       budget, x.block);
    return x;
}

/* The token that ends what n-grams look back to: the first of the text model's end tokens. */
static int32_t qwen4_separator(tr_config *c)
{
    const json_t *eos = json_object_get(c->object, "eos_token_id");
    const json_t *first = json_is_array(eos) ? json_array_get(eos, 0) : eos;
    json_int_t token = json_integer_value(first);

    if (!json_is_integer(first) || token < 0 || token > INT32_MAX) {
        tr_config_fail(c, "eos_token_id", "%s, expected a token: n-grams end at it",
                       tr_json_kind(first));
        return 0;
    }
    return (int32_t)token;
}

/* The settings of all tables. */
static tr_ngram_spec qwen4_read_ngram(tr_config *c, uint32_t hidden)
{
    tr_ngram_spec n = {0};

    n.size = tr_config_u32_or(c, "ngram_size", 3, 2, TR_NGRAM_SIZE_MAX);
    n.heads = tr_config_u32_or(c, "heads_per_ngram", 8, 1, TR_NGRAM_HEADS_MAX);
    n.embed_dim = tr_config_u32_or(c, "ple_embed_dim", hidden, 1, 1u << 20);
    n.conv_taps = tr_config_u32_or(c, "ple_conv_kernel_size", 4, 1, 16);
    n.parts = tr_config_u32_or(c, "split_ngram_parts", 512, 1, TR_NGRAM_PARTS_MAX);
    n.base = tr_config_u32_or(c, "ngram_vocab_size_base", 20000000, 2, 1u << 28);
    n.divisor = tr_config_u32_or(c, "make_ngram_vocab_size_divisible_by", 128, 1, 1u << 28);
    n.seed = tr_config_u32_or(c, "seed", 1234, 0, UINT32_MAX);
    return n;
}

/* ple_layer_ids counts layers from one; the tables are numbered in the order of their layers. */
static void qwen4_read_tables(tr_draft *draft, tr_config *c)
{
    tr_ngram_spec n = qwen4_read_ngram(c, draft->spec.hidden_size);
    const json_t *ids = tr_config_list(c, "ple_layer_ids");
    uint32_t layers = draft->spec.layers_count;

    if (json_array_size(ids) == 0)
        return;
    n.separator = qwen4_separator(c);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);

        if (!json_is_integer(id) || json_integer_value(id) < 1 ||
            json_integer_value(id) > (json_int_t)layers) {
            tr_config_fail(c, "ple_layer_ids", "entry %zu is no layer, expected 1..%u", i, layers);
            return;
        }
        draft->layers[json_integer_value(id) - 1].ngram = n;
    }
    for (uint32_t i = 0; i < layers; i++)
        if (draft->layers[i].ngram.size > 0)
            draft->layers[i].ngram.number = n.number++;
}

static void qwen4_read_more(tr_draft *draft, tr_config *c)
{
    bool norm_top_k = tr_config_bool_or(c, "norm_topk_prob", true);
    tr_index_spec index = qwen4_read_index(c);

    draft->spec.residual =
        (tr_residual_spec){.kind = TR_RESIDUAL_GATED,
                           .streams = tr_config_u32_or(c, "hc_count", 4, 2, TR_STREAMS_MAX),
                           .rank = tr_config_u32_or(c, "hc_lowrank", 320, 1, 65536)};
    for (uint32_t i = 0; i < draft->spec.layers_count; i++) {
        draft->layers[i].channel.norm_top_k = norm_top_k;
        draft->layers[i].gqa.index = index;
    }
    qwen4_read_tables(draft, c);
}

static tr_status qwen4_read(tr_draft *draft, tr_config *config, tr_error *err)
{
    static const char *const attention_types[] = {"full_attention", "indexed_attention",
                                                  "qwen_sparse_attention", NULL};
    static const tr_qwen_traits traits = {.attention_types = attention_types,
                                          .more = qwen4_read_more};

    return tr_qwen_read(draft, config, &traits, err);
}

#define L TR_QWEN_LAYER
#define A L "attn_hyper_connection."
#define C L "mlp_hyper_connection."
#define M "{r}hyper_connection_mixer."
#define P L "ple."
#define T P "ple_embedding."
static const tr_weight_name qwen4_names[] = {
    TR_QWEN_NAMES,
    {TR_W_INDEX_QK, TR_IN_ANY_LAYER, L "self_attn.indexer.index_qk_proj.weight", NULL, 0, 1},
    {TR_W_INDEX_Q_NORM, TR_IN_ANY_LAYER, L "self_attn.indexer.q_layernorm.weight", NULL, 0, 1},
    {TR_W_INDEX_K_NORM, TR_IN_ANY_LAYER, L "self_attn.indexer.k_layernorm.weight", NULL, 0, 1},
    {TR_W_HC_ATTENTION_NORM, TR_IN_ANY_LAYER, A "hc_norm.weight", NULL, 0, 1},
    {TR_W_HC_ATTENTION_DOWN, TR_IN_ANY_LAYER, A "input_mix_weight_down.weight", NULL, 0, 1},
    {TR_W_HC_ATTENTION_UP, TR_IN_ANY_LAYER, A "input_mix_weight_up.weight", NULL, 0, 1},
    {TR_W_HC_ATTENTION_INJECT, TR_IN_ANY_LAYER, A "block_inject_weight.weight", NULL, 0, 1},
    {TR_W_HC_CHANNEL_NORM, TR_IN_ANY_LAYER, C "hc_norm.weight", NULL, 0, 1},
    {TR_W_HC_CHANNEL_DOWN, TR_IN_ANY_LAYER, C "input_mix_weight_down.weight", NULL, 0, 1},
    {TR_W_HC_CHANNEL_UP, TR_IN_ANY_LAYER, C "input_mix_weight_up.weight", NULL, 0, 1},
    {TR_W_HC_CHANNEL_INJECT, TR_IN_ANY_LAYER, C "block_inject_weight.weight", NULL, 0, 1},
    {TR_W_HC_FINAL_NORM, TR_IN_ANY_LAYER, M "hc_norm.weight", NULL, 0, 1},
    {TR_W_HC_FINAL_DOWN, TR_IN_ANY_LAYER, M "input_mix_weight_down.weight", NULL, 0, 1},
    {TR_W_HC_FINAL_UP, TR_IN_ANY_LAYER, M "input_mix_weight_up.weight", NULL, 0, 1},
    {TR_W_NGRAM_KEY, TR_IN_ANY_LAYER, P "key_proj.weight", NULL, 0, 1},
    {TR_W_NGRAM_VALUE, TR_IN_ANY_LAYER, P "value_proj.weight", NULL, 0, 1},
    {TR_W_NGRAM_KEY_NORM, TR_IN_ANY_LAYER, P "norm_key.weight", NULL, 0, 1},
    {TR_W_NGRAM_QUERY_NORM, TR_IN_ANY_LAYER, P "norm_query.weight", NULL, 0, 1},
    {TR_W_NGRAM_CONV_NORM, TR_IN_ANY_LAYER, P "norm_conv.weight", NULL, 0, 1},
    {TR_W_NGRAM_CONV, TR_IN_ANY_LAYER, P "conv1d.weight", NULL, 0, 1},
    {TR_W_NGRAM_TABLE, TR_IN_ANY_LAYER, T "ngram_embedding.shard_{e}.weight", NULL, 0, 1},
    {TR_W_NGRAM_SCALE, TR_IN_ANY_LAYER, T "ngram_embedding.weight_scale", NULL, 0, 1},
    {TR_W_NGRAM_MULTIPLIERS, TR_IN_ANY_LAYER, T "layer_multipliers", NULL, 0, 1},
    {TR_W_NGRAM_MODULI, TR_IN_ANY_LAYER, T "ngram_heads_vocab_sizes", NULL, 0, 1},
    {TR_W_NGRAM_OFFSETS, TR_IN_ANY_LAYER, T "ngram_heads_offsets", NULL, 0, 1},
};
#undef T
#undef P
#undef M
#undef C
#undef A
#undef L

/* Buffers of other programs beside the tables: statistics, a copy of the hash. */
static const char *const qwen4_skipped[] = {TR_QWEN_SKIPPED, "*.ple_embedding.hashstats_*",
                                            "*.ple_embedding.token_lookup", NULL};

static const char *const qwen4_aliases[] = {"qwen4_exp", "qwen4_exp_text", "qwen3_8_flash_next",
                                            "qwen3_8_flash_next_text", NULL};

const tr_family tr_family_qwen4_exp = {
    .name = "qwen4_exp",
    .aliases = qwen4_aliases,
    .hf = {.read = qwen4_read,
           .names = qwen4_names,
           .names_count = sizeof(qwen4_names) / sizeof(qwen4_names[0]),
           .roots = tr_qwen_roots,
           .skipped = qwen4_skipped},
};
