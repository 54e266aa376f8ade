#include "tools/inspect_words.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* -- whole descriptions -- */

static void words_gqa(char *text, size_t size, const tr_gqa_spec *g)
{
    char positions[64] = "no positions", index[96] = "";

    if (g->index.kind == TR_INDEX_BLOCK)
        snprintf(index, sizeof(index),
                 ", at most %u blocks of %u positions by an index of %u heads of %u", g->index.top,
                 g->index.block, g->index.heads, g->index.head_dim);
    if (g->rope != TR_ROPE_NONE)
        snprintf(positions, sizeof(positions), "rotary %u of %u in %s, theta %g%s", g->rope_dims,
                 g->head_dim, g->rope == TR_ROPE_HALF ? "halves" : "pairs", g->rope_theta,
                 g->rope_scaling != NULL ? ", stretched" : "");
    snprintf(text, size, "softmax attention: %u heads of %u, %u key heads, %s%s%s%s (%u terms)",
             g->heads, g->head_dim, g->kv_heads, positions, g->gate ? ", gated" : "",
             g->qk_norm ? ", norms on q and k" : "", index, g->kv_heads);
}

static void words_kda(char *text, size_t size, const tr_kda_spec *k)
{
    char gates[32] = "full gates", bound[32] = "";

    if (k->rank > 0)
        snprintf(gates, sizeof(gates), "gates of rank %u", k->rank);
    if (k->lower_bound < 0)
        snprintf(bound, sizeof(bound), ", log decay above %g", (double)k->lower_bound);
    snprintf(text, size, "KDA: %u heads of %u, convolution %u, %s, beta up to %g%s (%u terms)",
             k->heads, k->head_dim, k->conv_taps, gates, (double)k->beta_scale, bound, k->terms);
}

static void words_gdn(char *text, size_t size, const tr_gdn_spec *d)
{
    snprintf(text, size,
             "gated delta rule: %u heads of %u, %u key heads of %u, convolution %u, %s gate "
             "(%u terms)",
             d->value_heads, d->value_dim, d->key_heads, d->key_dim, d->conv_taps,
             d->gate == TR_GATE_SILU ? "SiLU" : "sigmoid", d->terms);
}

static void words_mla(char *text, size_t size, const tr_mla_spec *m)
{
    char queries[32] = "", shared[48] = "", index[96] = "";

    if (m->q_rank > 0)
        snprintf(queries, sizeof(queries), ", queries of rank %u", m->q_rank);
    if (m->rope_dim > 0)
        snprintf(shared, sizeof(shared), ", shared key of %u%s", m->rope_dim,
                 m->rope == TR_ROPE_NONE ? "" : " (rotary)");
    if (m->index.kind == TR_INDEX_POOL)
        snprintf(index, sizeof(index),
                 ", at most %u pools of %u positions by an index of %u heads of %u", m->index.top,
                 m->index.block, m->index.heads, m->index.head_dim);
    snprintf(text, size, "latent attention: %u heads, latent of %u%s%s%s (%u terms)", m->heads,
             m->kv_rank, shared, queries, index, m->terms);
}

static void words_channel(char *text, size_t size, const tr_channel_spec *c)
{
    char groups[48] = "", shared[80] = "", clamp[32] = "";

    if (c->clamp > 0)
        snprintf(clamp, sizeof(clamp), ", clamped at %g", (double)c->clamp);
    if (c->experts == 0) {
        snprintf(text, size, "feed-forward of %u%s (%u slices)", c->always_size, clamp, c->slices);
        return;
    }
    if (c->groups > 1)
        snprintf(groups, sizeof(groups), " in %u of %u groups", c->top_groups, c->groups);
    if (c->always_size > 0)
        snprintf(shared, sizeof(shared), ", %sshared expert of %u (%u slices)",
                 c->always_scale ? "gated " : "", c->always_size, c->slices);
    snprintf(text, size, "%u of %u experts of %u%s%s, %s scores%s%s", c->top_k, c->experts,
             c->expert_size, groups, clamp, c->score == TR_SCORE_SIGMOID ? "sigmoid" : "softmax",
             c->bias ? " with bias" : "", shared);
}

void tr_inspect_words(char *text, size_t size, const tr_layer_spec *l, tr_inspect_half half)
{
    if (half == TR_INSPECT_CHANNEL) {
        words_channel(text, size, &l->channel);
        return;
    }
    switch (l->mixer) {
    case TR_MIXER_GQA:
        words_gqa(text, size, &l->gqa);
        return;
    case TR_MIXER_KDA:
        words_kda(text, size, &l->kda);
        return;
    case TR_MIXER_GDN:
        words_gdn(text, size, &l->gdn);
        return;
    case TR_MIXER_MLA:
        words_mla(text, size, &l->mla);
        return;
    }
}

void tr_inspect_residual(char *first, size_t first_size, char *last, size_t last_size,
                         const tr_model_spec *spec)
{
    const tr_residual_spec *r = &spec->residual;
    int used = snprintf(first, first_size, "embedding of %u", spec->hidden_size);
    char *rest = first + used;
    size_t rest_size = first_size - (size_t)used;

    assert(used > 0);
    assert((size_t)used < first_size);
    switch (r->kind) {
    case TR_RESIDUAL_PLAIN:
        snprintf(last, last_size, "norm");
        return;
    case TR_RESIDUAL_MHC:
        snprintf(rest, rest_size, " -> %u streams (hyper-connections, doubly stochastic)",
                 r->streams);
        snprintf(last, last_size, "mean of the streams -> norm");
        return;
    case TR_RESIDUAL_GATED:
        snprintf(rest, rest_size, " -> %u streams (hyper-connections, gates of rank %u)",
                 r->streams, r->rank);
        snprintf(last, last_size, "gated mean of the streams");
        return;
    }
}

void tr_inspect_ngram(char *text, size_t size, const tr_ngram_spec *n)
{
    uint32_t rows = n->heads * (n->size - 1);

    assert(rows > 0);
    snprintf(text, size,
             "adds %u rows of %u for runs of 2 to %u tokens, from a table of %llu rows in its "
             "file; convolution %u",
             rows, n->embed_dim / rows, n->size, (unsigned long long)n->rows, n->conv_taps);
}

/* -- short names -- */

static void short_mixer(char *text, size_t size, const tr_layer_spec *l)
{
    switch (l->mixer) {
    case TR_MIXER_GQA:
        snprintf(text, size, "%s %u/%u", l->gqa.index.kind == TR_INDEX_NONE ? "GQA" : "QSA",
                 l->gqa.heads, l->gqa.kv_heads);
        return;
    case TR_MIXER_KDA:
        snprintf(text, size, "KDA %u", l->kda.heads);
        return;
    case TR_MIXER_GDN:
        snprintf(text, size, "GDN %u/%u", l->gdn.value_heads, l->gdn.key_heads);
        return;
    case TR_MIXER_MLA:
        snprintf(text, size, "MLA %u%s", l->mla.heads,
                 l->mla.index.kind == TR_INDEX_NONE ? "" : " sparse");
        return;
    }
}

static void short_half(char *text, size_t size, const tr_layer_spec *l, tr_inspect_half half)
{
    const tr_channel_spec *c = &l->channel;

    if (half == TR_INSPECT_MIXER)
        short_mixer(text, size, l);
    else if (c->experts == 0)
        snprintf(text, size, "dense %u", c->always_size);
    else
        snprintf(text, size, "MoE %u/%u%s", c->experts, c->top_k, c->always_size > 0 ? "+1" : "");
}

uint32_t tr_inspect_kind(const tr_model_spec *spec, uint32_t layer, tr_inspect_half half)
{
    char text[TR_INSPECT_WORDS_SIZE], other[TR_INSPECT_WORDS_SIZE];

    tr_inspect_words(text, sizeof(text), &spec->layers[layer], half);
    for (uint32_t i = 0; i < layer; i++) {
        tr_inspect_words(other, sizeof(other), &spec->layers[i], half);
        if (strcmp(text, other) == 0)
            return i;
    }
    return layer;
}

void tr_inspect_short(char *text, size_t size, const tr_model_spec *spec, uint32_t layer,
                      tr_inspect_half half)
{
    char other[TR_INSPECT_SHORT_SIZE];
    uint32_t kind = tr_inspect_kind(spec, layer, half), number = 1;

    short_half(text, size, &spec->layers[kind], half);
    for (uint32_t i = 0; i < kind; i++) {
        short_half(other, sizeof(other), &spec->layers[i], half);
        number += strcmp(text, other) == 0 && tr_inspect_kind(spec, i, half) == i;
    }
    if (number > 1)
        snprintf(text + strlen(text), size - strlen(text), " (%u)", number);
}

/* -- folding -- */

/* Text that ends in "..." when it does not fit. */
typedef struct {
    char *text;
    size_t size, used;
} fold_writer;

static void fold_write(fold_writer *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fold_write(fold_writer *w, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int length = vsnprintf(w->text + w->used, w->size - w->used, fmt, args);
    va_end(args);
    assert(length >= 0);
    w->used += (size_t)length;
    if (w->used >= w->size) {
        memcpy(w->text + w->size - 4, "...", 4);
        w->used = w->size - 1;
    }
}

typedef struct {
    const tr_model_spec *spec;
    uint32_t kinds[TR_LAYERS_MAX]; /* layers are the same where these are */
} fold_schedule;

/* How many layers from first on, below end, repeat the period layers before them, whole periods. */
static uint32_t fold_repeats(const fold_schedule *s, uint32_t first, uint32_t end, uint32_t period)
{
    uint32_t at = first + period;

    while (at < end && s->kinds[at] == s->kinds[at - period])
        at++;
    return (at - first) / period;
}

/* The period at first whose repetitions cover most; the shortest of equals. */
static uint32_t fold_period(const fold_schedule *s, uint32_t first, uint32_t end, uint32_t *repeats)
{
    uint32_t best = 1;

    *repeats = fold_repeats(s, first, end, 1);
    for (uint32_t period = 2; first + 2 * period <= end; period++) {
        uint32_t count = fold_repeats(s, first, end, period);

        if (count > 1 && count * period > *repeats * best) {
            *repeats = count;
            best = period;
        }
    }
    return best;
}

static void fold_layer(const fold_schedule *s, fold_writer *w, uint32_t layer)
{
    char mixer[TR_INSPECT_SHORT_SIZE], channel[TR_INSPECT_SHORT_SIZE];

    tr_inspect_short(mixer, sizeof(mixer), s->spec, layer, TR_INSPECT_MIXER);
    tr_inspect_short(channel, sizeof(channel), s->spec, layer, TR_INSPECT_CHANNEL);
    fold_write(w, "[%s -> %s]", mixer, channel);
}

/* One period that begins at first, with what repeats inside it folded once more. */
static void fold_inside(const fold_schedule *s, fold_writer *w, uint32_t first, uint32_t end)
{
    for (uint32_t at = first; at < end;) {
        uint32_t count = fold_repeats(s, at, end, 1);

        if (at > first)
            fold_write(w, " ");
        if (count > 1)
            fold_write(w, "%u x ", count);
        fold_layer(s, w, at);
        at += count;
    }
}

uint32_t tr_inspect_fold(tr_inspect_span *spans, const tr_model_spec *spec)
{
    fold_schedule s = {.spec = spec};
    uint32_t count = 0;

    assert(spec->layers_count <= TR_LAYERS_MAX);
    for (uint32_t i = 0; i < spec->layers_count; i++) /* both below TR_LAYERS_MAX */
        s.kinds[i] = tr_inspect_kind(spec, i, TR_INSPECT_MIXER) * TR_LAYERS_MAX +
                     tr_inspect_kind(spec, i, TR_INSPECT_CHANNEL);
    for (uint32_t first = 0; first < spec->layers_count; count++) {
        tr_inspect_span *span = &spans[count];
        fold_writer w = {.text = span->text, .size = sizeof(span->text)};
        uint32_t repeats;
        uint32_t period = fold_period(&s, first, spec->layers_count, &repeats);

        if (repeats > 1)
            fold_write(&w, "%u x ", repeats);
        if (period > 1)
            fold_write(&w, "(");
        fold_inside(&s, &w, first, first + period);
        if (period > 1)
            fold_write(&w, ")");
        span->first = first;
        span->last = first + period * repeats - 1;
        first = span->last + 1;
    }
    return count;
}
