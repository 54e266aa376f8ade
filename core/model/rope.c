#include "core/model/rope.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define ROPE_TURN 6.283185307179586 /* 2 pi */

tr_rope_scaling *tr_rope_scaling_new(tr_draft *draft, uint32_t dims)
{
    uint32_t count = dims / 2;
    tr_rope_scaling *s = malloc(sizeof(*s) + count * sizeof(s->divisors[0]));

    assert(draft->rope_scaling == NULL);
    if (s == NULL)
        return NULL;
    *s = (tr_rope_scaling){.gain = 1, .count = count, .divisors = (float *)(void *)(s + 1)};
    for (uint32_t i = 0; i < count; i++)
        s->divisors[i] = 1;
    draft->rope_scaling = s;
    return s;
}

/* Every position counts 1 / factor. */
static void rope_scale_linear(tr_rope_scaling *s, double factor)
{
    for (uint32_t i = 0; i < s->count; i++)
        s->divisors[i] = (float)factor;
}

static double rope_frequency(const tr_rope_scaling *s, uint32_t i, double theta)
{
    return pow(theta, -(double)i / s->count);
}

/* Long wavelengths are stretched by factor, short ones not, those between in between (llama 3). */
typedef struct {
    double factor, low, high; /* low_freq_factor, high_freq_factor */
    uint32_t original_context;
} rope_llama3;

static void rope_scale_llama3(tr_rope_scaling *s, const rope_llama3 *p, double theta)
{
    for (uint32_t i = 0; i < s->count; i++) {
        double wavelength = ROPE_TURN / rope_frequency(s, i, theta);
        double turns = p->original_context / wavelength;
        double share = (turns - p->low) / (p->high - p->low);

        if (turns < p->low)
            s->divisors[i] = (float)p->factor;
        else if (turns <= p->high)
            s->divisors[i] = (float)(1 / ((1 - share) / p->factor + share));
    }
}

/* Likewise between two numbers of turns over the original context, with a gain (YaRN). */
typedef struct {
    double factor, beta_fast, beta_slow;
    uint32_t original_context;
    bool truncate; /* the two borders are whole dimensions */
} rope_yarn;

/* The dimension pair that turns so often over the original context. */
static double yarn_border(const tr_rope_scaling *s, const rope_yarn *p, double turns, double theta)
{
    return s->count * log(p->original_context / (turns * ROPE_TURN)) / log(theta);
}

static void rope_scale_yarn(tr_rope_scaling *s, const rope_yarn *p, double theta)
{
    double low = yarn_border(s, p, p->beta_fast, theta);
    double high = yarn_border(s, p, p->beta_slow, theta);

    if (p->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, 2.0 * s->count - 1);
    if (high == low)
        high += 0.001;
    for (uint32_t i = 0; i < s->count; i++) {
        double stretched = fmin(fmax((i - low) / (high - low), 0), 1);

        s->divisors[i] = (float)(1 / (stretched / p->factor + 1 - stretched));
    }
}

/* -- config.json -- */

typedef enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } rope_kind;

typedef struct {
    rope_kind kind;
    rope_llama3 llama3;
    rope_yarn yarn;
    double factor, gain;
} rope_settings;

static double rope_mscale(double factor, double weight)
{
    return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1;
}

static void rope_read_yarn(tr_config *c, uint32_t context, rope_settings *s)
{
    s->yarn.original_context =
        tr_config_u32_or(c, "original_max_position_embeddings", context, 1, 1u << 30);
    double all = (double)context / s->yarn.original_context;
    s->yarn.factor = tr_config_number_or(c, "factor", all > 1 ? all : 1, 1, 1e6);
    s->yarn.beta_fast = tr_config_number_or(c, "beta_fast", 32, 1e-3, 1e6);
    s->yarn.beta_slow = tr_config_number_or(c, "beta_slow", 1, 1e-3, 1e6);
    s->yarn.truncate = tr_config_bool_or(c, "truncate", true);
    double weight = tr_config_number_or(c, "mscale", 0, 0, 1e3);
    double weight_all = tr_config_number_or(c, "mscale_all_dim", 0, 0, 1e3);
    double gain = rope_mscale(s->yarn.factor, 1);
    if (weight > 0 && weight_all > 0)
        gain = rope_mscale(s->yarn.factor, weight) / rope_mscale(s->yarn.factor, weight_all);
    s->gain = tr_config_number_or(c, "attention_factor", gain, 1e-3, 1e3);
}

/* One of the two objects that may hold the settings; theta and share stand only in the newer one.
 */
static void rope_read_object(tr_config *parent, const char *key, uint32_t context, bool scales,
                             rope_settings *s, double *theta, double *share)
{
    static const char *const types[] = {"default", "linear", "llama3", "yarn", NULL};
    static const char *const only_default[] = {"default", NULL};
    /* Which pairs turn with the row and the column of an image; with text all three are alike. */
    static const char *const harmless[] = {"mrope_section", "mrope_interleaved", NULL};
    tr_config c;

    tr_config_child(&c, parent, key);
    *theta = tr_config_number_or(&c, "rope_theta", *theta, 1, 1e12);
    *share = tr_config_number_or(&c, "partial_rotary_factor", *share, 0, 1);
    bool newer = tr_config_has(&c, "rope_type");
    rope_kind kind = (rope_kind)tr_config_choice(&c, newer ? "rope_type" : "type",
                                                 scales ? types : only_default, "default");
    const char *const same[] = {types[kind], NULL};
    if (newer) /* the older key, if it is there as well, must agree */
        (void)tr_config_choice(&c, "type", same, types[kind]);
    if (kind == ROPE_LINEAR) {
        s->factor = tr_config_number(&c, "factor", 1, 1e6);
    } else if (kind == ROPE_LLAMA3) {
        s->llama3.factor = tr_config_number(&c, "factor", 1, 1e6);
        s->llama3.low = tr_config_number(&c, "low_freq_factor", 1e-3, 1e6);
        s->llama3.high = tr_config_number(&c, "high_freq_factor", 1e-3, 1e6);
        s->llama3.original_context =
            tr_config_u32(&c, "original_max_position_embeddings", 1, 1u << 30);
        if (!(s->llama3.low < s->llama3.high))
            tr_config_fail(&c, "low_freq_factor", "found %g, expected less than high_freq_factor",
                           s->llama3.low);
    } else if (kind == ROPE_YARN) {
        rope_read_yarn(&c, context, s);
    }
    if (kind != ROPE_DEFAULT)
        s->kind = kind;
    tr_config_finish_child(&c, parent, harmless);
}

static uint32_t rope_read(tr_config *c, uint32_t head_dim, uint32_t context, bool scales,
                          rope_settings *s, double *theta, double share)
{
    share = tr_config_number_or(c, "partial_rotary_factor", share, 0, 1);
    *theta = tr_config_number_or(c, "rope_theta", 10000, 1, 1e12);
    rope_read_object(c, "rope_parameters", context, scales, s, theta, &share);
    rope_read_object(c, "rope_scaling", context, scales, s, theta, &share);

    uint32_t dims = (uint32_t)floor(share * head_dim);
    if (dims % 2 != 0 || dims == 0)
        tr_config_fail(c, "partial_rotary_factor",
                       "%u of %u dimensions rotate, expected an even number above 0", dims,
                       head_dim);
    return dims;
}

void tr_config_partial_rope(tr_config *c, uint32_t head_dim, double share, double *theta,
                            uint32_t *dims)
{
    rope_settings s = {.kind = ROPE_DEFAULT};

    *dims = rope_read(c, head_dim, 1, false, &s, theta, share);
}

void tr_config_rope(tr_config *c, tr_draft *draft, tr_gqa_spec *g)
{
    rope_settings s = {.kind = ROPE_DEFAULT, .gain = 1};

    g->rope_dims = rope_read(c, g->head_dim, draft->spec.context_max, true, &s, &g->rope_theta, 1);
    if (s.kind == ROPE_DEFAULT || c->status != TR_OK)
        return;
    if (!(g->rope_theta > 1)) {
        tr_config_fail(c, "rope_theta", "found %g, expected above 1 with scaled positions",
                       g->rope_theta);
        return;
    }
    tr_rope_scaling *scaling = tr_rope_scaling_new(draft, g->rope_dims);
    if (scaling == NULL) {
        tr_config_fail(c, "rope_scaling", "no memory for it");
        return;
    }
    scaling->gain = (float)s.gain;
    if (s.kind == ROPE_LINEAR)
        rope_scale_linear(scaling, s.factor);
    else if (s.kind == ROPE_LLAMA3)
        rope_scale_llama3(scaling, &s.llama3, g->rope_theta);
    else
        rope_scale_yarn(scaling, &s.yarn, g->rope_theta);
    g->rope_scaling = scaling;
}

/* -- GGUF -- */

void tr_gguf_rope(tr_config *c, tr_draft *draft, tr_gqa_spec *g, tr_rope_kind kind)
{
    static const char *const types[] = {"linear", "none", "yarn", NULL};

    g->rope = kind;
    g->rope_theta = tr_config_number_or(c, "rope.freq_base", 10000, 1, 1e12);
    g->rope_dims = tr_config_u32_or(c, "rope.dimension_count", g->head_dim, 2, 1024);
    uint32_t type = tr_config_choice(c, "rope.scaling.type", types, "linear");
    double old_name = tr_config_number_or(c, "rope.scale_linear", 1, 0, 1e6);
    double factor = tr_config_number_or(c, "rope.scaling.factor", old_name, 0, 1e6);
    rope_yarn yarn = {.factor = factor, .truncate = true};
    yarn.original_context = tr_config_u32_or(c, "rope.scaling.original_context_length",
                                             draft->spec.context_max, 1, 1u << 30);
    yarn.beta_fast = tr_config_number_or(c, "rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6);
    yarn.beta_slow = tr_config_number_or(c, "rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6);
    double gain = tr_config_number_or(c, "rope.scaling.attn_factor", 1, 1e-3, 1e3);
    if (factor == 0 || factor == 1 || type == 1 || c->status != TR_OK)
        return;                            /* 0 is how files say that there is none */
    g->rope_scaling = draft->rope_scaling; /* all layers turn alike */
    if (g->rope_scaling != NULL) {
        if (g->rope_scaling->count != g->rope_dims / 2)
            tr_config_fail(c, "rope.dimension_count",
                           "found %u, expected %u as in the layers before", g->rope_dims,
                           2 * g->rope_scaling->count);
        return;
    }
    if (factor < 1 || !(g->rope_theta > 1)) {
        tr_config_fail(c, "rope.scaling.factor",
                       "found %g with rope.freq_base %g, expected both "
                       "above 1",
                       factor, g->rope_theta);
        return;
    }
    tr_rope_scaling *scaling = tr_rope_scaling_new(draft, g->rope_dims);
    if (scaling == NULL) {
        tr_config_fail(c, "rope.scaling.factor", "no memory for it");
        return;
    }
    if (type == 0) {
        rope_scale_linear(scaling, factor);
    } else {
        rope_scale_yarn(scaling, &yarn, g->rope_theta);
        scaling->gain = (float)(gain * rope_mscale(factor, 1));
    }
    g->rope_scaling = scaling;
}
