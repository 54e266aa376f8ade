/* qwen3_5_moe.c - Qwen3.5 with experts: the hybrid of qwen_hybrid.h with a plain residual. */
#include "core/model/qwen3_5_moe.h"

#include "core/model/qwen_hybrid.h"

static void qwen3_5_read_more(tr_draft *draft, tr_config *config)
{
    (void)draft;
    tr_config_only_bool(config, "norm_topk_prob", true, "this family always divides by the sum");
}

static tr_status qwen3_5_read(tr_draft *draft, tr_config *config, tr_error *err)
{
    static const char *const attention_types[] = {"full_attention", NULL};
    static const tr_qwen_traits traits = {.attention_types = attention_types,
                                          .more = qwen3_5_read_more};

    return tr_qwen_read(draft, config, &traits, err);
}

static const tr_weight_name qwen3_5_names[] = {
    TR_QWEN_NAMES,
    {TR_W_FINAL_NORM, TR_IN_ANY_LAYER, "{r}norm.weight", NULL, 0, 1},
    {TR_W_INPUT_NORM, TR_IN_ANY_LAYER, TR_QWEN_LAYER "input_layernorm.weight", NULL, 0, 1},
    {TR_W_POST_NORM, TR_IN_ANY_LAYER, TR_QWEN_LAYER "post_attention_layernorm.weight", NULL, 0, 1},
};

static const char *const qwen3_5_skipped[] = {TR_QWEN_SKIPPED, NULL};
static const char *const qwen3_5_aliases[] = {"qwen3_5_moe", "qwen3_5_moe_text", NULL};

const tr_family tr_family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .aliases = qwen3_5_aliases,
    .hf = {.read = qwen3_5_read,
           .names = qwen3_5_names,
           .names_count = sizeof(qwen3_5_names) / sizeof(qwen3_5_names[0]),
           .roots = tr_qwen_roots,
           .skipped = qwen3_5_skipped},
};
