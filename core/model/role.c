#include "core/model/role.h"

#include "core/model/ngram.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

/* Limits on sizes from outside, so that every product of two of them fits 64 bits and every shape
 * fits uint32_t. Several times the largest published model. */
#define SPEC_HIDDEN_MAX    65536u
#define SPEC_HEADS_MAX     1024u
#define SPEC_HEAD_DIM_MAX  1024u
#define SPEC_WIDTH_MAX     (1u << 20)
#define SPEC_VOCAB_MAX     (1u << 24)
#define SPEC_TAPS_MAX      16u
#define SPEC_DELTA_DIM_MAX 256u /* key size of a recurrence: TR_KDA_DIM_MAX of kernels.h */
#define SPEC_ROUNDS_MAX    1000u

/* A page has 64 positions and at least four blocks; lists of chosen positions are kept for every
 * row of a step. */
#define SPEC_INDEX_BLOCK_MAX 16u
#define SPEC_INDEX_TOP_MAX   16384u

const char *tr_role_name(tr_weight_role role)
{
    static const char *const names[TR_WEIGHTS_COUNT] = {
#define X(name) [TR_W_##name] = #name,
        TR_WEIGHT_MAP(X)
#undef X
    };

    return (unsigned)role < TR_WEIGHTS_COUNT ? names[role] : "unknown";
}

bool tr_role_is_global(tr_weight_role role)
{
    return role >= TR_W_EMBED;
}

bool tr_role_is_expert(tr_weight_role role)
{
    return role == TR_W_EXPERT_GATE || role == TR_W_EXPERT_UP || role == TR_W_EXPERT_DOWN;
}

uint32_t tr_role_count(const tr_layer_spec *layer, tr_weight_role role)
{
    if (tr_role_is_expert(role))
        return layer->channel.experts;
    return role == TR_W_NGRAM_TABLE ? layer->ngram.parts : 1;
}

static bool role_shape(bool exists, uint32_t rows, uint32_t cols, uint32_t *out_rows,
                       uint32_t *out_cols)
{
    *out_rows = rows;
    *out_cols = cols;
    return exists;
}

static bool role_is_mhc(const tr_model_spec *spec)
{
    return spec->residual.kind == TR_RESIDUAL_MHC;
}

static bool role_is_gated(const tr_model_spec *spec)
{
    return spec->residual.kind == TR_RESIDUAL_GATED;
}

static bool role_shape_global(const tr_model_spec *spec, tr_weight_role role, uint32_t *rows,
                              uint32_t *cols)
{
    uint32_t bank = tr_model_streams(spec) * spec->hidden_size, rank = spec->residual.rank;
    bool gated = role_is_gated(spec);

    if (role == TR_W_FINAL_NORM)
        return role_shape(!gated, 1, spec->hidden_size, rows, cols);
    if (role == TR_W_HC_FINAL_NORM)
        return role_shape(gated, 1, bank, rows, cols);
    if (role == TR_W_HC_FINAL_DOWN)
        return role_shape(gated, rank, bank, rows, cols);
    if (role == TR_W_HC_FINAL_UP)
        return role_shape(gated, bank, rank, rows, cols);
    return role_shape(true, spec->vocab_size, spec->hidden_size, rows, cols);
}

static bool role_shape_mla(const tr_mla_spec *m, uint32_t hidden, tr_weight_role role,
                           uint32_t *rows, uint32_t *cols)
{
    const tr_index_spec *x = &m->index;
    uint32_t q_width = m->heads * (m->nope_dim + m->rope_dim), v_width = m->heads * m->v_dim;
    uint32_t index_width = x->heads * x->head_dim;
    bool low = m->q_rank > 0, pool = x->kind == TR_INDEX_POOL;

    switch ((int)role) {
    case TR_W_Q:
        return role_shape(!low, q_width, hidden, rows, cols);
    case TR_W_Q_A:
        return role_shape(low, m->q_rank, hidden, rows, cols);
    case TR_W_Q_A_NORM:
        return role_shape(low, 1, m->q_rank, rows, cols);
    case TR_W_Q_B:
        return role_shape(low, q_width, m->q_rank, rows, cols);
    case TR_W_KV_A:
        return role_shape(true, m->kv_rank + m->rope_dim, hidden, rows, cols);
    case TR_W_KV_A_NORM:
        return role_shape(true, 1, m->kv_rank, rows, cols);
    case TR_W_KV_B:
        return role_shape(!m->kv_split, m->heads * m->nope_dim + v_width, m->kv_rank, rows, cols);
    case TR_W_K_B:
        return role_shape(m->kv_split, m->heads * m->kv_rank, m->nope_dim, rows, cols);
    case TR_W_V_B:
        return role_shape(m->kv_split, v_width, m->kv_rank, rows, cols);
    case TR_W_O:
        return role_shape(true, hidden, v_width, rows, cols);
    case TR_W_INDEX_Q:
        return role_shape(pool, index_width, m->q_rank, rows, cols);
    case TR_W_INDEX_K:
    case TR_W_INDEX_GATE:
        return role_shape(pool, x->head_dim, hidden, rows, cols);
    case TR_W_INDEX_K_NORM:
    case TR_W_INDEX_K_BIAS:
        return role_shape(pool, 1, x->head_dim, rows, cols);
    case TR_W_INDEX_WEIGHTS:
        return role_shape(pool, x->heads, hidden, rows, cols);
    case TR_W_INDEX_APE:
        return role_shape(pool, x->block, x->head_dim, rows, cols);
    default:
        return false;
    }
}

bool tr_role_shape(const tr_model_spec *spec, const tr_layer_spec *l, tr_weight_role role,
                   uint32_t *rows, uint32_t *cols)
{
    uint32_t hidden = spec->hidden_size;
    uint32_t streams = tr_model_streams(spec), mixes = (2 + streams) * streams;
    uint32_t bank = streams * hidden;

    if (tr_role_is_global(role) != (l == NULL))
        return false;
    if (l == NULL)
        return role_shape_global(spec, role, rows, cols);
    if (l->mixer == TR_MIXER_MLA && role_shape_mla(&l->mla, hidden, role, rows, cols))
        return true;

    const tr_channel_spec *c = &l->channel;
    const tr_ngram_spec *n = &l->ngram;
    bool gqa = l->mixer == TR_MIXER_GQA, kda = l->mixer == TR_MIXER_KDA,
         gdn = l->mixer == TR_MIXER_GDN;
    uint32_t dim = gqa ? l->gqa.head_dim : kda ? l->kda.head_dim : l->gdn.value_dim;
    uint32_t heads = gqa ? l->gqa.heads : kda ? l->kda.heads : l->gdn.value_heads;
    uint32_t width = heads * dim; /* of the mixer's output, and of q */
    uint32_t q_width = gqa && l->gqa.gate_in_q ? 2 * width : width;
    uint32_t kv_width = gqa ? l->gqa.kv_heads * dim : width; /* of k and v */
    uint32_t qkv_width = 2 * l->gdn.key_heads * l->gdn.key_dim + width;
    uint32_t rank = l->kda.rank;
    const tr_index_spec *index = &l->gqa.index;
    bool blocks = gqa && index->kind == TR_INDEX_BLOCK;

    switch (role) {
    case TR_W_INPUT_NORM:
    case TR_W_POST_NORM:
        return role_shape(!role_is_gated(spec), 1, hidden, rows, cols);
    case TR_W_Q:
        return role_shape(gqa || kda, q_width, hidden, rows, cols);
    case TR_W_K:
    case TR_W_V:
        return role_shape(gqa || kda, kv_width, hidden, rows, cols);
    case TR_W_INDEX_QK:
        return role_shape(blocks, (index->heads + 1) * index->head_dim, hidden, rows, cols);
    case TR_W_INDEX_Q_NORM:
    case TR_W_INDEX_K_NORM:
        return role_shape(blocks, 1, index->head_dim, rows, cols);
    case TR_W_QKV:
        return role_shape(gdn, qkv_width, hidden, rows, cols);
    case TR_W_QKV_CONV:
        return role_shape(gdn, qkv_width, l->gdn.conv_taps, rows, cols);
    case TR_W_O:
        return role_shape(gqa || kda || gdn, hidden, width, rows, cols);
    case TR_W_ATTENTION_GATE:
        return role_shape(gqa && l->gqa.gate && !l->gqa.gate_in_q, width, hidden, rows, cols);
    case TR_W_Q_NORM:
    case TR_W_K_NORM:
        return role_shape(gqa && l->gqa.qk_norm, 1, dim, rows, cols);
    case TR_W_Q_CONV:
    case TR_W_K_CONV:
    case TR_W_V_CONV:
        return role_shape(kda, width, l->kda.conv_taps, rows, cols);
    case TR_W_F_A:
    case TR_W_G_A:
        return role_shape(kda && rank > 0, rank, hidden, rows, cols);
    case TR_W_F_B:
    case TR_W_G_B:
        return role_shape(kda && rank > 0, width, rank, rows, cols);
    case TR_W_F:
        return role_shape((kda && rank == 0) || gdn, gdn ? heads : width, hidden, rows, cols);
    case TR_W_G:
        return role_shape((kda && rank == 0) || gdn, width, hidden, rows, cols);
    case TR_W_DT_BIAS:
        return role_shape(kda || gdn, 1, gdn ? heads : width, rows, cols);
    case TR_W_A:
        return role_shape(kda || gdn, 1, heads, rows, cols);
    case TR_W_BETA:
        return role_shape(kda || gdn, heads, hidden, rows, cols);
    case TR_W_O_NORM:
        return role_shape(kda || gdn, 1, dim, rows, cols);
    case TR_W_ROUTER:
        return role_shape(c->experts > 0, c->experts, hidden, rows, cols);
    case TR_W_ROUTER_BIAS:
        return role_shape(c->experts > 0 && c->bias, 1, c->experts, rows, cols);
    case TR_W_EXPERT_GATE:
    case TR_W_EXPERT_UP:
        return role_shape(c->experts > 0, c->expert_size, hidden, rows, cols);
    case TR_W_EXPERT_DOWN:
        return role_shape(c->experts > 0, hidden, c->expert_size, rows, cols);
    case TR_W_ALWAYS_GATE:
    case TR_W_ALWAYS_UP:
        return role_shape(c->always_size > 0, c->always_size, hidden, rows, cols);
    case TR_W_ALWAYS_DOWN:
        return role_shape(c->always_size > 0, hidden, c->always_size, rows, cols);
    case TR_W_ALWAYS_SCALE:
        return role_shape(c->always_scale, 1, hidden, rows, cols);
    case TR_W_HC_ATTENTION_FN:
    case TR_W_HC_CHANNEL_FN:
        return role_shape(role_is_mhc(spec), mixes, bank, rows, cols);
    case TR_W_HC_ATTENTION_BASE:
    case TR_W_HC_CHANNEL_BASE:
        return role_shape(role_is_mhc(spec), 1, mixes, rows, cols);
    case TR_W_HC_ATTENTION_SCALE:
    case TR_W_HC_CHANNEL_SCALE:
        return role_shape(role_is_mhc(spec), 1, 3, rows, cols);
    case TR_W_HC_ATTENTION_NORM:
    case TR_W_HC_CHANNEL_NORM:
        return role_shape(role_is_gated(spec), 1, bank, rows, cols);
    case TR_W_HC_ATTENTION_DOWN:
    case TR_W_HC_CHANNEL_DOWN:
        return role_shape(role_is_gated(spec), spec->residual.rank, bank, rows, cols);
    case TR_W_HC_ATTENTION_UP:
    case TR_W_HC_CHANNEL_UP:
        return role_shape(role_is_gated(spec), bank, spec->residual.rank, rows, cols);
    case TR_W_HC_ATTENTION_INJECT:
    case TR_W_HC_CHANNEL_INJECT:
        return role_shape(role_is_gated(spec), streams, bank, rows, cols);
    case TR_W_NGRAM_KEY:
        return role_shape(n->size > 0, bank, n->embed_dim, rows, cols);
    case TR_W_NGRAM_VALUE:
        return role_shape(n->size > 0, hidden, n->embed_dim, rows, cols);
    case TR_W_NGRAM_KEY_NORM:
    case TR_W_NGRAM_QUERY_NORM:
    case TR_W_NGRAM_CONV_NORM:
        return role_shape(n->size > 0, 1, bank, rows, cols);
    case TR_W_NGRAM_CONV:
        return role_shape(n->size > 0, bank, n->conv_taps, rows, cols);
    case TR_W_NGRAM_TABLE:
        return n->size > 0 &&
               role_shape(true, (uint32_t)(n->rows / n->parts), tr_ngram_row_size(n), rows, cols);
    case TR_W_NGRAM_SCALE:
    case TR_W_NGRAM_MULTIPLIERS:
    case TR_W_NGRAM_MODULI:
    case TR_W_NGRAM_OFFSETS:
        return false; /* names only */
    case TR_W_Q_A: /* of MLA alone, see above */
    case TR_W_Q_A_NORM:
    case TR_W_Q_B:
    case TR_W_KV_A:
    case TR_W_KV_A_NORM:
    case TR_W_KV_B:
    case TR_W_K_B:
    case TR_W_V_B:
    case TR_W_INDEX_Q:
    case TR_W_INDEX_K:
    case TR_W_INDEX_K_BIAS:
    case TR_W_INDEX_WEIGHTS:
    case TR_W_INDEX_GATE:
    case TR_W_INDEX_APE:
    case TR_W_EMBED:
    case TR_W_FINAL_NORM:
    case TR_W_HEAD:
    case TR_W_HC_FINAL_NORM:
    case TR_W_HC_FINAL_DOWN:
    case TR_W_HC_FINAL_UP:
    case TR_WEIGHTS_COUNT:
        break;
    }
    return false;
}

uint32_t tr_role_fused_rows(const tr_model_spec *spec, const tr_layer_spec *l, tr_weight_role role,
                            uint32_t *first)
{
    static const tr_weight_role order[] = {TR_W_Q, TR_W_K, TR_W_V};
    uint32_t all = 0, rows, cols;

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        if (order[i] == role)
            *first = all;
        if (tr_role_shape(spec, l, order[i], &rows, &cols))
            all += rows;
    }
    return all;
}

/* One limit: value in [min, max]. */
static tr_status spec_range(const char *file, const char *what, uint32_t layer, uint64_t value,
                            uint64_t min, uint64_t max, tr_error *err)
{
    if (value >= min && value <= max)
        return TR_OK;
    return tr_fail(err, TR_E_INVALID,
                   "%s: layer %u: %s is %" PRIu64 ", expected %" PRIu64 "..%" PRIu64, file, layer,
                   what, value, min, max);
}

static tr_status spec_divides(const char *file, const char *what, uint32_t layer, uint32_t part,
                              uint32_t whole, tr_error *err)
{
    if (part > 0 && whole % part == 0)
        return TR_OK;
    return tr_fail(err, TR_E_INVALID, "%s: layer %u: %s: %u does not divide %u", file, layer, what,
                   part, whole);
}

/* Pages hold whole blocks, at least four (kernels.h, index_scores). */
static tr_status spec_check_blocks(const tr_index_spec *x, uint32_t rope_dims, const char *file,
                                   uint32_t layer, tr_error *err)
{
    tr_status status;

    if ((status = spec_range(file, "index heads", layer, x->heads, 1, SPEC_HEADS_MAX, err)) ||
        (status = spec_range(file, "index head size", layer, x->head_dim, rope_dims,
                             SPEC_HEAD_DIM_MAX, err)) ||
        (status = spec_range(file, "positions of an index block", layer, x->block, 1,
                             SPEC_INDEX_BLOCK_MAX, err)) ||
        (status = spec_divides(file, "positions of an index block", layer, x->block,
                               SPEC_INDEX_BLOCK_MAX, err)))
        return status;
    return spec_range(file, "chosen index blocks", layer, x->top, 1, SPEC_INDEX_TOP_MAX, err);
}

static tr_status spec_check_gdn(const tr_gdn_spec *g, const char *file, uint32_t layer,
                                tr_error *err)
{
    tr_status status;

    if ((status = spec_range(file, "delta-rule key heads", layer, g->key_heads, 1, SPEC_HEADS_MAX,
                             err)) ||
        (status = spec_range(file, "delta-rule value heads", layer, g->value_heads, 1,
                             SPEC_HEADS_MAX, err)) ||
        (status = spec_range(file, "delta-rule key size", layer, g->key_dim, 1, SPEC_DELTA_DIM_MAX,
                             err)) ||
        (status = spec_range(file, "delta-rule value size", layer, g->value_dim, 1,
                             SPEC_HEAD_DIM_MAX, err)) ||
        (status =
             spec_range(file, "convolution taps", layer, g->conv_taps, 2, SPEC_TAPS_MAX, err)) ||
        (status = spec_divides(file, "key heads of the value heads", layer, g->key_heads,
                               g->value_heads, err)))
        return status;
    return spec_divides(file, "terms of the key heads", layer, g->terms, g->key_heads, err);
}

static tr_status spec_check_mla(const tr_mla_spec *m, const char *file, uint32_t layer,
                                tr_error *err)
{
    tr_status status;

    if ((status = spec_range(file, "MLA heads", layer, m->heads, 1, SPEC_HEADS_MAX, err)) ||
        (status = spec_range(file, "rank of the queries", layer, m->q_rank,
                             m->index.kind == TR_INDEX_POOL, SPEC_HIDDEN_MAX, err)) ||
        (status =
             spec_range(file, "rank of the latents", layer, m->kv_rank, 1, SPEC_HIDDEN_MAX, err)) ||
        (status = spec_range(file, "query size that meets latents", layer, m->nope_dim, 1,
                             SPEC_HEAD_DIM_MAX, err)) ||
        (status = spec_range(file, "size of the shared key", layer, m->rope_dim,
                             m->rope != TR_ROPE_NONE, SPEC_HEAD_DIM_MAX, err)) ||
        (status = spec_range(file, "value size", layer, m->v_dim, 1, SPEC_HEAD_DIM_MAX, err)) ||
        (status = spec_divides(file, "terms of the heads", layer, m->terms, m->heads, err)))
        return status;
    if (m->rope != TR_ROPE_NONE &&
        (status = spec_divides(file, "pairs of rotating dimensions", layer, 2, m->rope_dim, err)))
        return status;
    if (m->index.kind == TR_INDEX_NONE)
        return TR_OK;
    return spec_check_blocks(&m->index, 1, file, layer, err);
}

static tr_status spec_check_mixer(const tr_layer_spec *l, const char *file, uint32_t layer,
                                  tr_error *err)
{
    const tr_gqa_spec *g = &l->gqa;
    const tr_kda_spec *k = &l->kda;
    tr_status status;

    if (l->mixer == TR_MIXER_GDN)
        return spec_check_gdn(&l->gdn, file, layer, err);
    if (l->mixer == TR_MIXER_MLA)
        return spec_check_mla(&l->mla, file, layer, err);
    if (l->mixer == TR_MIXER_KDA) {
        if ((status = spec_range(file, "KDA heads", layer, k->heads, 1, SPEC_HEADS_MAX, err)) ||
            (status = spec_range(file, "KDA head size", layer, k->head_dim, 1, SPEC_DELTA_DIM_MAX,
                                 err)) ||
            (status = spec_range(file, "convolution taps", layer, k->conv_taps, 2, SPEC_TAPS_MAX,
                                 err)) ||
            (status =
                 spec_range(file, "rank of the gates", layer, k->rank, 0, SPEC_WIDTH_MAX, err)))
            return status;
        return spec_divides(file, "terms of the heads", layer, k->terms, k->heads, err);
    }
    if ((status = spec_range(file, "query heads", layer, g->heads, 1, SPEC_HEADS_MAX, err)) ||
        (status = spec_range(file, "key heads", layer, g->kv_heads, 1, SPEC_HEADS_MAX, err)) ||
        (status = spec_range(file, "head size", layer, g->head_dim, 1, SPEC_HEAD_DIM_MAX, err)))
        return status;
    if (g->rope != TR_ROPE_NONE && ((status = spec_range(file, "rotating dimensions", layer,
                                                         g->rope_dims, 2, g->head_dim, err)) ||
                                    (status = spec_divides(file, "pairs of rotating dimensions",
                                                           layer, 2, g->rope_dims, err))))
        return status;
    if (g->index.kind == TR_INDEX_BLOCK &&
        (status = spec_check_blocks(&g->index, g->rope_dims, file, layer, err)))
        return status;
    return spec_divides(file, "key heads of the query heads", layer, g->kv_heads, g->heads, err);
}

static tr_status spec_check_channel(const tr_channel_spec *c, const char *file, uint32_t layer,
                                    tr_error *err)
{
    tr_status status;

    if ((status = spec_range(file, "width of the shared or dense part", layer, c->always_size,
                             c->experts > 0 ? 0 : 1, SPEC_WIDTH_MAX, err)) ||
        (status = spec_range(file, "experts and slices", layer, (uint64_t)c->experts + c->slices, 1,
                             TR_TERMS_MAX, err)))
        return status;
    if (c->always_size > 0 &&
        (status = spec_divides(file, "slices of the width", layer, c->slices, c->always_size, err)))
        return status;
    if (!(c->clamp >= 0) || isinf(c->clamp))
        return tr_fail(err, TR_E_INVALID,
                       "%s: layer %u: limit of the feed-forward is %g, expected a number above 0 "
                       "or none",
                       file, layer, (double)c->clamp);
    assert(!c->always_scale || (c->experts > 0 && c->always_size > 0)); /* the family's rule */
    if (c->experts == 0)
        return TR_OK;
    if ((status = spec_range(file, "width of an expert", layer, c->expert_size, 1, SPEC_WIDTH_MAX,
                             err)) ||
        (status = spec_divides(file, "groups of the experts", layer, c->groups, c->experts, err)) ||
        (status = spec_range(file, "chosen groups", layer, c->top_groups, 1, c->groups, err)))
        return status;
    return spec_range(file, "chosen experts", layer, c->top_k, 1,
                      (uint64_t)c->experts / c->groups * c->top_groups, err);
}

static tr_status spec_check_residual(const tr_model_spec *spec, const char *file, tr_error *err)
{
    const tr_residual_spec *r = &spec->residual;
    tr_status status;

    if (r->kind == TR_RESIDUAL_PLAIN)
        return TR_OK;
    status = spec_range(file, "residual streams", 0, r->streams, 2, TR_STREAMS_MAX, err);
    if (status != TR_OK)
        return status;
    if (r->kind == TR_RESIDUAL_GATED)
        return spec_range(file, "rank of the residual gate", 0, r->rank, 1, SPEC_WIDTH_MAX, err);
    if (!(r->eps > 0) || isinf(r->eps))
        return tr_fail(err, TR_E_INVALID, "%s: eps of the residual mix is %g, expected above 0",
                       file, (double)r->eps);
    return spec_range(file, "rounds of the residual mix", 0, r->iterations, 1, SPEC_ROUNDS_MAX,
                      err);
}

tr_status tr_spec_check(const tr_model_spec *spec, const char *file, tr_error *err)
{
    tr_status status;

    if (spec->layers_count < 1 || spec->layers_count > TR_LAYERS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %u layers, expected 1..%d", file, spec->layers_count,
                       TR_LAYERS_MAX);
    if (spec->hidden_size < 1 || spec->hidden_size > SPEC_HIDDEN_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: hidden size %u, expected 1..%u", file,
                       spec->hidden_size, SPEC_HIDDEN_MAX);
    if (spec->vocab_size < 1 || spec->vocab_size > SPEC_VOCAB_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: vocabulary of %u, expected 1..%u", file,
                       spec->vocab_size, SPEC_VOCAB_MAX);
    if ((status = spec_check_residual(spec, file, err)) != TR_OK)
        return status;
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        status = spec_check_mixer(&spec->layers[i], file, i, err);
        if (status == TR_OK)
            status = spec_check_channel(&spec->layers[i].channel, file, i, err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}
