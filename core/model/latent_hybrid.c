#include "core/model/latent_hybrid.h"

#include <math.h>
#include <string.h>

static bool latent_is_one_of(const char *text, const char *const *texts)
{
    while (*texts != NULL && strcmp(text, *texts) != 0)
        texts++;
    return *texts != NULL;
}

/* A list of count names, one for each layer: out[i] says whether name i is one of `texts`, which
 * may not also be `other`. False when there is no list. */
static bool latent_read_names(tr_config *c, const char *key, uint32_t count,
                              const char *const *texts, const char *other, bool *out)
{
    const json_t *list = tr_config_list(c, key);

    if (list == NULL)
        return false;
    if (json_array_size(list) != count) {
        tr_config_fail(c, key, "%zu entries, expected %u", json_array_size(list), count);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_array_get(list, i));

        out[i] = text != NULL && latent_is_one_of(text, texts);
        if (!out[i] && (text == NULL || strcmp(text, other) != 0))
            tr_config_fail(c, key, "found %.40s at %u, expected %s or %s",
                           text == NULL ? "no string" : text, i, texts[0], other);
    }
    return true;
}

/* -- mixers -- */

enum { LAYER_UNSAID, LAYER_KDA, LAYER_FULL };

/* Marks the layers of a list of numbers that begins at first. */
static void latent_mark_layers(tr_config *c, const char *key, uint32_t first, uint32_t count,
                               uint8_t mark, uint8_t *marks)
{
    const json_t *list = tr_config_list(c, key);

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        json_int_t number = json_integer_value(entry);

        if (!json_is_integer(entry) || number < first || number >= (json_int_t)first + count) {
            tr_config_fail(c, key, "entry %zu is no layer, expected %u..%u", i, first,
                           first + count - 1);
            return;
        }
        if (marks[number - first] != LAYER_UNSAID)
            tr_config_fail(c, key, "layer %u is listed twice, expected once", (uint32_t)number);
        marks[number - first] = mark;
    }
}

static void latent_read_schedule(tr_draft *draft, tr_config *c, tr_config *linear,
                                 const tr_latent_traits *traits)
{
    bool full[TR_LAYERS_MAX] = {false};
    uint8_t marks[TR_LAYERS_MAX] = {LAYER_UNSAID};
    uint32_t count = draft->spec.layers_count;
    bool typed = latent_read_names(c, "layer_types", count, traits->attention_types,
                                   "linear_attention", full);
    bool listed = tr_config_has(linear, "kda_layers") || tr_config_has(linear, "full_attn_layers");

    latent_mark_layers(linear, "kda_layers", traits->first_layer, count, LAYER_KDA, marks);
    latent_mark_layers(linear, "full_attn_layers", traits->first_layer, count, LAYER_FULL, marks);
    if (!typed && !listed)
        tr_config_fail(c, "layer_types",
                       "absent like linear_attn_config.kda_layers, expected one of the two");
    for (uint32_t i = 0; i < count; i++) {
        if (listed && marks[i] == LAYER_UNSAID)
            tr_config_fail(linear, "kda_layers",
                           "without layer %u like full_attn_layers, expected "
                           "each in one of the two",
                           i + traits->first_layer);
        if (typed && listed && full[i] != (marks[i] == LAYER_FULL))
            tr_config_fail(c, "layer_types",
                           "entry %u is not what linear_attn_config says, expected the same", i);
        full[i] = typed ? full[i] : marks[i] == LAYER_FULL;
        draft->layers[i].mixer = full[i] ? TR_MIXER_MLA : TR_MIXER_KDA;
    }
}

/* A setting that stands as key in the config or as old_key in its linear_attn_config. */
static uint32_t latent_u32(tr_config *c, const char *key, tr_config *linear, const char *old_key,
                           uint32_t min, uint32_t max)
{
    if (!tr_config_has(linear, old_key))
        return tr_config_u32(c, key, min, max);
    uint32_t value = tr_config_u32(linear, old_key, min, max);
    uint32_t other = tr_config_u32_or(c, key, value, min, max);
    if (other != value)
        tr_config_fail(c, key, "found %u, expected %u as in linear_attn_config.%s", other, value,
                       old_key);
    return value;
}

static float latent_read_bound(tr_config *c, tr_config *linear)
{
    static const double fallback = -5; /* of a safe gate whose bound is not said */
    double bound = tr_config_number_or(c, "linear_lower_bound", 0, -1e6, 0);
    double old = tr_config_number_or(linear, "gate_lower_bound", bound, -1e6, 0);

    if (tr_config_has(c, "linear_lower_bound") && old != bound)
        tr_config_fail(c, "linear_lower_bound", "found %g, expected %g as in linear_attn_config",
                       bound, old);
    if (old == 0 && linear->object != NULL && tr_config_bool_or(linear, "safe_gate", true))
        old = fallback;
    else
        (void)tr_config_bool_or(linear, "safe_gate", true);
    return (float)old;
}

void tr_latent_read_kda(tr_draft *draft, tr_config *c, const tr_latent_traits *traits)
{
    tr_kda_spec k = {.a_is_log = true, .beta_scale = 1};
    tr_config linear;

    tr_config_child(&linear, c, "linear_attn_config");
    latent_read_schedule(draft, c, &linear, traits);
    k.heads = latent_u32(c, "linear_num_heads", &linear, "num_heads", 1, 1024);
    k.head_dim = latent_u32(c, "linear_head_dim", &linear, "head_dim", 1, 1024);
    k.conv_taps = latent_u32(c, "linear_conv_kernel_dim", &linear, "short_conv_kernel_size", 2, 16);
    if (traits->has_bound)
        k.lower_bound = latent_read_bound(c, &linear);
    k.rank = k.head_dim;
    k.terms = tr_head_terms_of(k.heads);
    tr_config_finish_child(&linear, c, NULL);
    for (uint32_t i = 0; i < draft->spec.layers_count; i++)
        if (draft->layers[i].mixer == TR_MIXER_KDA)
            draft->layers[i].kda = k;
}

tr_mla_spec tr_latent_read_mla(tr_config *c)
{
    tr_mla_spec m = {.rope = TR_ROPE_NONE};

    m.heads = tr_config_u32(c, "num_attention_heads", 1, 1024);
    m.terms = tr_head_terms_of(m.heads);
    m.q_rank = tr_config_u32_or(c, "q_lora_rank", 0, 0, 65536);
    m.kv_rank = tr_config_u32(c, "kv_lora_rank", 1, 65536);
    m.nope_dim = tr_config_u32(c, "qk_nope_head_dim", 1, 1024);
    m.rope_dim = tr_config_u32(c, "qk_rope_head_dim", 0, 1024);
    m.v_dim = tr_config_u32(c, "v_head_dim", 1, 1024);
    m.scale = (float)(1 / sqrt(m.nope_dim + m.rope_dim));

    uint32_t q_dim = tr_config_u32_or(c, "qk_head_dim", m.nope_dim + m.rope_dim, 1, 2048);
    if (q_dim != m.nope_dim + m.rope_dim)
        tr_config_fail(c, "qk_head_dim",
                       "found %u, expected %u (qk_nope_head_dim + "
                       "qk_rope_head_dim)",
                       q_dim, m.nope_dim + m.rope_dim);
    uint32_t kv_heads = tr_config_u32_or(c, "num_key_value_heads", m.heads, 1, 1024);
    if (kv_heads != m.heads)
        tr_config_fail(c, "num_key_value_heads", "found %u, expected %u (num_attention_heads)",
                       kv_heads, m.heads);
    tr_config_only_bool(c, "attention_bias", false, "projections with a bias are not supported");
    tr_config_only_bool(c, "mla_use_nope", true, "the family's latent attention has no positions");
    return m;
}

/* -- feed-forwards -- */

void tr_latent_read_channels(tr_draft *draft, tr_config *c, const tr_channel_spec *experts)
{
    static const char *const sparse_types[] = {"sparse", NULL};
    bool sparse[TR_LAYERS_MAX] = {false};
    uint32_t count = draft->spec.layers_count;
    bool typed = latent_read_names(c, "mlp_layer_types", count, sparse_types, "dense", sparse);
    bool counted = tr_config_has(c, "first_k_dense_replace");
    uint32_t dense_count = tr_config_u32_or(c, "first_k_dense_replace", 0, 0, count);

    if (!typed && !counted)
        tr_config_fail(c, "mlp_layer_types",
                       "absent like first_k_dense_replace, expected one of the two");
    tr_channel_spec dense = tr_dense_channel(tr_config_u32(c, "intermediate_size", 1, 1u << 20));
    dense.clamp = experts->clamp;
    for (uint32_t i = 0; i < count; i++) {
        if (typed && counted && sparse[i] != (i >= dense_count))
            tr_config_fail(c, "mlp_layer_types",
                           "entry %u is not what first_k_dense_replace says, expected the same", i);
        sparse[i] = typed ? sparse[i] : i >= dense_count;
        draft->layers[i].channel = sparse[i] ? *experts : dense;
    }
}

void tr_latent_read_extra(tr_draft *draft, tr_config *c)
{
    draft->extra_layers = tr_config_u32_or(c, "num_nextn_predict_layers", 0, 0, 16);
}
