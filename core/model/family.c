#include "core/model/family.h"

#include "core/model/ngram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const tr_family *tr_family_find(const char *alias, bool gguf)
{
    for (const tr_family *const *f = tr_families; *f != NULL; f++) {
        const tr_family_form *form = gguf ? &(*f)->gguf : &(*f)->hf;

        for (const char *const *a = (*f)->aliases; form->read != NULL && *a != NULL; a++)
            if (strcmp(*a, alias) == 0)
                return *f;
    }
    return NULL;
}

tr_status tr_draft_layers(tr_draft *draft, uint32_t layers_count, tr_error *err)
{
    draft->layers = calloc(layers_count > 0 ? layers_count : 1, sizeof(*draft->layers));
    if (draft->layers == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %u layers", layers_count);
    draft->spec.layers_count = layers_count;
    return TR_OK;
}

tr_status tr_draft_derive(tr_draft *draft, const char *file, tr_error *err)
{
    tr_status status = TR_OK;

    for (uint32_t i = 0; i < draft->spec.layers_count && status == TR_OK; i++)
        if (draft->layers[i].ngram.size > 0)
            status = tr_ngram_derive(&draft->layers[i].ngram, draft->spec.vocab_size, file, i, err);
    return status;
}

void tr_draft_teardown(tr_draft *draft)
{
    free(draft->layers);
    free(draft->rope_scaling);
    *draft = (tr_draft){.layers = NULL};
}

uint32_t tr_slices_of(uint32_t width)
{
    static const uint32_t multiples[] = {64, 32};

    for (uint32_t m = 0; m < sizeof(multiples) / sizeof(multiples[0]); m++)
        for (uint32_t slices = 8; slices >= 1; slices--)
            if (width % slices == 0 && width / slices % multiples[m] == 0)
                return slices;
    return 1;
}

uint32_t tr_head_terms_of(uint32_t heads)
{
    uint32_t terms = 8;

    while (terms > 1 && heads % terms != 0)
        terms--;
    return terms;
}

tr_channel_spec tr_dense_channel(uint32_t width)
{
    return (tr_channel_spec){
        .groups = 1, .top_groups = 1, .always_size = width, .slices = tr_slices_of(width)};
}

void tr_config_sizes(tr_config *c, tr_draft *draft)
{
    static const char *const acts[] = {"silu", NULL};
    tr_model_spec *spec = &draft->spec;

    spec->vocab_size = tr_config_u32(c, "vocab_size", 1, 1u << 24);
    spec->hidden_size = tr_config_u32(c, "hidden_size", 1, 65536);
    spec->context_max = tr_config_u32(c, "max_position_embeddings", 1, 1u << 30);
    spec->rms_norm_eps = (float)tr_config_number(c, "rms_norm_eps", 1e-12, 1);
    draft->tied = tr_config_bool_or(c, "tie_word_embeddings", false);
    (void)tr_config_choice(c, "hidden_act", acts, "silu");
}

tr_channel_spec tr_config_sigmoid_experts(tr_config *c)
{
    static const char *const scores[] = {"sigmoid", NULL};
    tr_channel_spec m = {.score = TR_SCORE_SIGMOID, .bias = true};

    m.experts = tr_config_u32(c, "n_routed_experts", 1, TR_TERMS_MAX);
    m.top_k = tr_config_u32(c, "num_experts_per_tok", 1, TR_TERMS_MAX);
    m.expert_size = tr_config_u32(c, "moe_intermediate_size", 1, 1u << 20);
    m.groups = tr_config_u32_or(c, "n_group", 1, 1, TR_TERMS_MAX);
    m.top_groups = tr_config_u32_or(c, "topk_group", 1, 1, TR_TERMS_MAX);
    m.norm_top_k = tr_config_bool_or(c, "norm_topk_prob", true);
    m.scaling = (float)tr_config_number_or(c, "routed_scaling_factor", 1, 0, 1e6);
    m.always_size = m.expert_size * tr_config_u32_or(c, "n_shared_experts", 1, 0, 64);
    m.slices = m.always_size > 0 ? tr_slices_of(m.always_size) : 0;
    (void)tr_config_choice(c, "scoring_func", scores, "sigmoid");
    return m;
}

tr_gqa_spec tr_config_gqa(tr_config *c, tr_draft *draft)
{
    tr_gqa_spec g = {.rope = TR_ROPE_HALF};

    g.heads = tr_config_u32(c, "num_attention_heads", 1, 1024);
    g.kv_heads = tr_config_u32_or(c, "num_key_value_heads", g.heads, 1, 1024);
    g.head_dim = tr_config_u32_or(c, "head_dim", draft->spec.hidden_size / g.heads, 1, 1024);
    g.scale = (float)(1 / sqrt(g.head_dim));
    tr_config_rope(c, draft, &g);
    tr_config_only_bool(c, "attention_bias", false, "projections with a bias are not supported");
    return g;
}
