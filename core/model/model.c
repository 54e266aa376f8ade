/* model.c - opens a checkpoint as a model: settings to spec, names to weights, and the rule that no
 * tensor may be left over that nobody knows. */
#include "core/model/model.h"

#include "core/log.h"
#include "core/model/checkpoint.h"
#include "core/model/family.h"
#include "core/model/generation.h"
#include "core/model/json.h"
#include "core/model/map.h"
#include "core/model/names.h"
#include "core/model/ngram.h"
#include "core/model/quantization.h"
#include "core/model/role.h"
#include "core/model/rope.h"
#include "core/model/skipped.h"
#include "core/model/weights.h"
#include "core/model/weights_ngram.h"

#include <assert.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define MODEL_EXPERT_ROLES 3

struct tr_model {
    tr_checkpoint *checkpoint; /* owns */
    const tr_family *family;
    const tr_family_form *form;
    const char *root;    /* what "{r}" stands for in names */
    tr_draft draft;      /* owns layers; draft.spec is the spec */
    uint8_t *used;       /* owns, [tensors]: 1 read, 2 recognised and skipped */
    tr_weight *fixed;    /* owns, [layers + 1][TR_WEIGHTS_COUNT]; the last row: global roles */
    tr_weight **experts; /* owns, [layers], each NULL or [MODEL_EXPERT_ROLES][experts] */
    tr_weight **tables;  /* owns, [layers], each NULL or [parts] of an n-gram table */
    uint64_t identity;
};

enum { MODEL_UNUSED = 0, MODEL_SKIPPED = 2 };

/* -- where weights are kept -- */

static uint32_t model_row(const tr_model *m, uint32_t layer, tr_weight_role role)
{
    assert(tr_role_is_global(role) || layer < m->draft.spec.layers_count);
    return tr_role_is_global(role) ? m->draft.spec.layers_count : layer;
}

static const tr_layer_spec *model_layer(const tr_model *m, uint32_t layer, tr_weight_role role)
{
    return tr_role_is_global(role) ? NULL : &m->draft.layers[layer];
}

static tr_weight *model_slot(const tr_model *m, uint32_t layer, tr_weight_role role,
                             uint32_t expert)
{
    uint32_t row = model_row(m, layer, role);

    if (role == TR_W_NGRAM_TABLE && m->tables[layer] != NULL) {
        assert(expert < m->draft.layers[layer].ngram.parts);
        return &m->tables[layer][expert];
    }
    if (!tr_role_is_expert(role))
        return &m->fixed[(size_t)row * TR_WEIGHTS_COUNT + role];
    uint32_t experts = m->draft.layers[layer].channel.experts;
    assert(expert < experts);
    return &m->experts[layer][(size_t)(role - TR_W_EXPERT_GATE) * experts + expert];
}

static_assert(TR_W_EXPERT_DOWN - TR_W_EXPERT_GATE == MODEL_EXPERT_ROLES - 1,
              "expert roles stand together");

static tr_status model_take_slots(tr_model *m, tr_error *err)
{
    uint32_t layers = m->draft.spec.layers_count;
    tr_status no_memory = TR_E_NOMEM;

    m->fixed = calloc((size_t)(layers + 1) * TR_WEIGHTS_COUNT, sizeof(*m->fixed));
    m->experts = calloc(layers, sizeof(*m->experts));
    m->tables = calloc(layers, sizeof(*m->tables));
    if (m->fixed == NULL || m->experts == NULL || m->tables == NULL)
        return tr_fail(err, no_memory, "%s: no memory for its weights",
                       tr_checkpoint_name(m->checkpoint));
    for (uint32_t i = 0; i < layers; i++) {
        size_t experts = m->draft.layers[i].channel.experts;
        const tr_ngram_spec *ngram = &m->draft.layers[i].ngram;

        if (experts > 0)
            m->experts[i] = calloc(MODEL_EXPERT_ROLES * experts, sizeof(**m->experts));
        if (ngram->size > 0)
            m->tables[i] = calloc(ngram->parts, sizeof(**m->tables));
        if ((experts > 0 && m->experts[i] == NULL) || (ngram->size > 0 && m->tables[i] == NULL))
            return tr_fail(err, no_memory, "%s: no memory for its experts",
                           tr_checkpoint_name(m->checkpoint));
    }
    return TR_OK;
}

/* -- names -- */

static bool model_in_scope(tr_name_scope scope, const tr_layer_spec *l)
{
    switch (scope) {
    case TR_IN_ANY_LAYER:
        return true;
    case TR_IN_DENSE_LAYER:
        return l != NULL && l->channel.experts == 0;
    case TR_IN_SPARSE_LAYER:
        return l != NULL && l->channel.experts > 0;
    case TR_IN_GDN_LAYER:
        return l != NULL && l->mixer == TR_MIXER_GDN;
    }
    return false;
}

/* The family's first row for a role in this layer, or NULL. */
static const tr_weight_name *model_name_row(const tr_model *m, uint32_t layer, tr_weight_role role)
{
    const tr_layer_spec *l = model_layer(m, layer, role);

    for (uint32_t i = 0; i < m->form->names_count; i++) {
        const tr_weight_name *row = &m->form->names[i];

        if (row->role == role && model_in_scope(row->scope, l))
            return row;
    }
    return NULL;
}

/* pattern with "{r}", "{l}" (also "{n}") and "{e}" replaced. */
static void model_expand(char *out, size_t size, const char *root, const char *pattern,
                         uint32_t layer, uint32_t expert)
{
    size_t used = 0;

    while (*pattern != '\0' && used + 1 < size) {
        if (strncmp(pattern, "{r}", 3) == 0) {
            used += (size_t)snprintf(out + used, size - used, "%s", root);
            pattern += 3;
        } else if (strncmp(pattern, "{l}", 3) == 0 || strncmp(pattern, "{n}", 3) == 0 ||
                   strncmp(pattern, "{e}", 3) == 0) {
            int written =
                snprintf(out + used, size - used, "%u", pattern[1] == 'e' ? expert : layer);
            used += (size_t)written;
            pattern += 3;
        } else {
            out[used++] = *pattern++;
        }
    }
    assert(used < size); /* patterns are ours and short */
    out[used] = '\0';
}

/* A weight's place: the row that names it, in which of its two forms, and the name. */
typedef struct {
    const tr_weight_name *row;
    bool stacked;
    char name[TR_TENSOR_NAME_SIZE];
} model_place;

/* Of all rows and forms the first whose tensor is there; if none is, the last form of the first
 * row. False when the family has no row. */
static bool model_find_place(const tr_model *m, uint32_t layer, tr_weight_role role,
                             uint32_t expert, model_place *out)
{
    const tr_layer_spec *l = model_layer(m, layer, role);
    const tr_weight_reader reader = {.checkpoint = m->checkpoint};
    model_place first = {.row = NULL};

    for (uint32_t i = 0; i < m->form->names_count; i++) {
        const tr_weight_name *row = &m->form->names[i];

        if (row->role != role || !model_in_scope(row->scope, l))
            continue;
        for (int stacked = 1; stacked >= 0; stacked--) {
            const char *pattern = stacked ? row->stacked : row->name;

            if (pattern == NULL)
                continue;
            *out = (model_place){.row = row, .stacked = stacked};
            model_expand(out->name, sizeof(out->name), m->root, pattern, layer, expert);
            if (tr_weight_exists(&reader, out->name))
                return true;
            if (first.row == NULL || first.row == row)
                first = *out;
        }
    }
    *out = first;
    return first.row != NULL;
}

/* -- binding -- */

static tr_status model_bind_one(tr_model *m, tr_weight_reader *r, uint32_t layer,
                                tr_weight_role role, uint32_t expert, uint32_t rows, uint32_t cols,
                                tr_error *err)
{
    tr_weight *slot = model_slot(m, layer, role, expert);
    model_place place;

    if (!model_find_place(m, layer, role, expert, &place))
        return tr_fail(err, TR_E_INVALID, "%s: the family %s has no tensor for %s of layer %u",
                       tr_checkpoint_name(m->checkpoint), m->family->name, tr_role_name(role),
                       layer);
    if (role == TR_W_NGRAM_TABLE) {
        model_place scale;
        bool scaled = model_find_place(m, layer, TR_W_NGRAM_SCALE, 0, &scale);

        return tr_weight_read_ngram_part(r, place.name, scaled ? scale.name : NULL, rows, cols,
                                         slot, err);
    }
    if (place.stacked)
        return tr_weight_read_stacked(r, place.name, m->draft.layers[layer].channel.experts, expert,
                                      place.row->parts, place.row->part, rows, cols, slot, err);
    if (place.row->stacked == NULL && place.row->parts > 1) {
        uint32_t first = 0,
                 all = tr_role_fused_rows(&m->draft.spec, &m->draft.layers[layer], role, &first);

        return tr_weight_read_rows(r, place.name, all, first, rows, cols, slot, err);
    }
    return tr_weight_read(r, place.name, rows, cols, slot, err);
}

/* The integers of the hash stand in the file, too: if ours differ, every row would be another. */
static tr_status model_check_ngram(const tr_model *m, tr_weight_reader *r, uint32_t layer,
                                   tr_error *err)
{
    const tr_ngram_spec *n = &m->draft.layers[layer].ngram;
    uint32_t heads = tr_ngram_heads(n);
    uint64_t moduli[TR_NGRAM_HEADS_MAX];
    model_place place;

    for (uint32_t h = 0; h < heads; h++)
        moduli[h] = n->moduli[h];
    const struct {
        tr_weight_role role;
        const uint64_t *expected;
        uint32_t count;
    } integers[] = {{TR_W_NGRAM_MULTIPLIERS, n->multipliers, n->size},
                    {TR_W_NGRAM_MODULI, moduli, heads},
                    {TR_W_NGRAM_OFFSETS, n->offsets, heads}};
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
        if (!model_find_place(m, layer, integers[i].role, 0, &place))
            continue;
        tr_status status =
            tr_weight_check_integers(r, place.name, integers[i].expected, integers[i].count, err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

static tr_status model_bind_role(tr_model *m, tr_weight_reader *r, uint32_t layer,
                                 tr_weight_role role, tr_error *err)
{
    const tr_layer_spec *l = model_layer(m, layer, role);
    uint32_t rows, cols;
    tr_status status = TR_OK;

    if (!tr_role_shape(&m->draft.spec, l, role, &rows, &cols))
        return TR_OK;
    uint32_t count = l != NULL ? tr_role_count(l, role) : 1;
    for (uint32_t e = 0; e < count && status == TR_OK; e++)
        status = model_bind_one(m, r, layer, role, e, rows, cols, err);
    if (role == TR_W_NGRAM_TABLE && status == TR_OK)
        status = model_check_ngram(m, r, layer, err);
    return status;
}

/* The root under which the embedding stands; the last one when there is no embedding at all. */
static const char *model_find_root(const tr_model *m, const tr_weight_reader *r)
{
    const tr_weight_name *embed = model_name_row(m, 0, TR_W_EMBED);
    const char *root = "";
    char name[TR_TENSOR_NAME_SIZE];

    for (const char *const *p = m->form->roots; p != NULL && *p != NULL; p++) {
        root = *p;
        model_expand(name, sizeof(name), root, embed->name, 0, 0);
        if (tr_weight_exists(r, name))
            break;
    }
    return root;
}

/* A GGUF file without an output matrix means that the embedding serves as one. */
static bool model_head_is_tied(const tr_model *m, const tr_weight_reader *r)
{
    const tr_weight_name *row = model_name_row(m, 0, TR_W_HEAD);

    return m->draft.tied || (tr_checkpoint_gguf(m->checkpoint) != NULL && row != NULL &&
                             !tr_weight_exists(r, row->name));
}

static tr_status model_bind(tr_model *m, tr_weight_reader *r, tr_error *err)
{
    tr_status status = TR_OK;

    m->root = model_find_root(m, r);
    m->draft.tied = model_head_is_tied(m, r);
    for (int role = 0; role < TR_WEIGHTS_COUNT; role++) {
        bool global = tr_role_is_global((tr_weight_role)role);
        uint32_t layers = global ? 1 : m->draft.spec.layers_count;

        if (role == TR_W_HEAD && m->draft.tied)
            continue;
        for (uint32_t i = 0; i < layers && status == TR_OK; i++)
            status = model_bind_role(m, r, i, (tr_weight_role)role, err);
        if (status != TR_OK)
            return status;
    }
    if (m->draft.tied)
        *model_slot(m, 0, TR_W_HEAD, 0) = *model_slot(m, 0, TR_W_EMBED, 0);
    return TR_OK;
}

/* The divisors of rotary frequencies where a file has them as a tensor. */
static tr_status model_read_rope_divisors(tr_model *m, tr_weight_reader *r, tr_error *err)
{
    tr_draft *draft = &m->draft;
    tr_weight w;

    if (m->form->rope_divisors == NULL || !tr_weight_exists(r, m->form->rope_divisors))
        return TR_OK;
    if (draft->rope_scaling != NULL)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tensor %s: stands beside rope.scaling.factor, expected one of the two",
                       tr_checkpoint_name(m->checkpoint), m->form->rope_divisors);
    uint32_t count = draft->layers[0].gqa.rope_dims / 2;
    for (uint32_t i = 1; i < draft->spec.layers_count; i++)
        if (draft->layers[i].gqa.rope_dims != 2 * count)
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %s: layer %u rotates %u dimensions, expected %u as in layer "
                           "0: all share the divisors",
                           tr_checkpoint_name(m->checkpoint), m->form->rope_divisors, i,
                           draft->layers[i].gqa.rope_dims, 2 * count);
    tr_status status = tr_weight_read(r, m->form->rope_divisors, 1, count, &w, err);
    if (status != TR_OK || !r->values)
        return status;
    tr_rope_scaling *scaling = tr_rope_scaling_new(draft, 2 * count);
    if (scaling == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %u divisors",
                       tr_checkpoint_name(m->checkpoint), count);
    tr_weight_to_f32(scaling->divisors, &w);
    for (uint32_t i = 0; i < count; i++)
        if (!(scaling->divisors[i] > 0) || !isfinite(scaling->divisors[i]))
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %s: found %g at %u, expected a number above 0",
                           tr_checkpoint_name(m->checkpoint), m->form->rope_divisors,
                           (double)scaling->divisors[i], i);
    for (uint32_t i = 0; i < draft->spec.layers_count; i++)
        draft->layers[i].gqa.rope_scaling = scaling;
    return TR_OK;
}

/* -- what is left over -- */

static bool model_may_skip(const tr_model *m, const char *name)
{
    const tr_weight_name *head = model_name_row(m, 0, TR_W_HEAD);
    uint32_t layers = m->draft.spec.layers_count;
    char expanded[TR_TENSOR_NAME_SIZE];

    for (const char *const *pattern = m->form->skipped; *pattern != NULL; pattern++) {
        bool layered = strstr(*pattern, "{n}") != NULL;
        for (uint32_t i = 0; i < (layered ? m->draft.extra_layers : 1); i++) {
            model_expand(expanded, sizeof(expanded), m->root, *pattern, layers + i, 0);
            if (fnmatch(expanded, name, 0) == 0)
                return true;
        }
    }
    return m->draft.tied && head != NULL && strcmp(head->name, name) == 0;
}

/* A bias, a scale or a layer that nobody reads would change the answers: better no model. */
static tr_status model_check_leftover(tr_model *m, tr_error *err)
{
    for (uint32_t i = 0; i < tr_checkpoint_count(m->checkpoint); i++) {
        const tr_tensor *t = tr_checkpoint_at(m->checkpoint, i);

        if (m->used[i] != MODEL_UNUSED)
            continue;
        if (!model_may_skip(m, t->name))
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %.120s: has no place in a %s model with these settings, "
                           "expected none that is left over",
                           t->file, t->name, m->family->name);
        m->used[i] = MODEL_SKIPPED;
    }
    return TR_OK;
}

/* Sums must not depend on placement, so each term owns whole blocks of its columns. */
static tr_status model_check_cuts(const tr_model *m, tr_error *err)
{
    for (uint32_t i = 0; i < m->draft.spec.layers_count; i++) {
        const tr_layer_spec *l = &m->draft.layers[i];
        const tr_weight *o = model_slot(m, i, TR_W_O, 0);
        const tr_weight *down = model_slot(m, i, TR_W_ALWAYS_DOWN, 0);
        uint32_t terms = tr_layer_attention_terms(l);
        char name[TR_TENSOR_NAME_SIZE];

        if (o->cols / terms % tr_weight_cut_unit(o) != 0)
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %.100s: %s with %u columns for each of %u head groups, "
                           "expected whole blocks",
                           tr_checkpoint_name(m->checkpoint),
                           tr_model_weight_name(m, i, TR_W_O, 0, name, sizeof(name)),
                           tr_format_name(o->format), o->cols / terms, terms);
        if (l->channel.always_size > 0 &&
            down->cols / l->channel.slices % tr_weight_cut_unit(down) != 0)
            return tr_fail(err, TR_E_INVALID,
                           "%s: tensor %.100s: %s with %u columns for each of %u slices, expected "
                           "whole blocks",
                           tr_checkpoint_name(m->checkpoint),
                           tr_model_weight_name(m, i, TR_W_ALWAYS_DOWN, 0, name, sizeof(name)),
                           tr_format_name(down->format), down->cols / l->channel.slices,
                           l->channel.slices);
    }
    return TR_OK;
}

/* Norms, biases and the like: small, and one NaN in them ruins every answer. */
static tr_status model_check_vectors(const tr_model *m, tr_error *err)
{
    tr_status status = TR_OK;

    for (uint32_t i = 0; i < m->draft.spec.layers_count && status == TR_OK; i++)
        for (int role = 0; role < TR_W_EMBED && status == TR_OK; role++)
            if (!tr_role_is_expert((tr_weight_role)role) && role != TR_W_NGRAM_TABLE &&
                model_slot(m, i, (tr_weight_role)role, 0)->rows == 1)
                status = tr_model_check_weight(m, i, (tr_weight_role)role, 0, err);
    if (status == TR_OK && tr_model_has(m, 0, TR_W_FINAL_NORM))
        status = tr_model_check_weight(m, 0, TR_W_FINAL_NORM, 0, err);
    if (status == TR_OK && tr_model_has(m, 0, TR_W_HC_FINAL_NORM))
        status = tr_model_check_weight(m, 0, TR_W_HC_FINAL_NORM, 0, err);
    return status;
}

/* -- settings -- */

static tr_status model_choose_family(tr_model *m, const char *file, const char *key,
                                     const char *alias, bool gguf, tr_error *err)
{
    char known[96] = "";

    m->family = tr_family_find(alias, gguf);
    if (m->family != NULL) {
        m->form = gguf ? &m->family->gguf : &m->family->hf;
        snprintf(m->draft.spec.architecture, sizeof(m->draft.spec.architecture), "%s",
                 m->family->name);
        return TR_OK;
    }
    for (const tr_family *const *f = tr_families; *f != NULL; f++) {
        size_t used = strlen(known);
        bool reads = (gguf ? (*f)->gguf.read : (*f)->hf.read) != NULL;

        if (reads)
            snprintf(known + used, sizeof(known) - used, "%s%s", used > 0 ? ", " : "", (*f)->name);
    }
    return tr_fail(err, TR_E_INVALID, "%s: %s: found \"%.40s\", expected one of %s", file, key,
                   alias, known);
}

static tr_status model_read_directory(tr_model *m, tr_error *err)
{
    static const char file[] = "config.json";
    char path[TR_PATH_SIZE + 16];
    json_t *root = NULL;
    tr_config config;

    snprintf(path, sizeof(path), "%s/%s", tr_checkpoint_path(m->checkpoint), file);
    tr_status status = tr_json_read(&root, path, err);
    if (status != TR_OK)
        return status;
    const json_t *type = json_object_get(root, "model_type");
    if (!json_is_string(type)) {
        status = tr_fail(err, TR_E_INVALID, "%s: model_type: %s, expected a string", file,
                         tr_json_kind(type));
        goto free_json;
    }
    status = model_choose_family(m, file, "model_type", json_string_value(type), false, err);
    if (status == TR_OK)
        status = tr_quantization_check(root, tr_checkpoint_path(m->checkpoint), err);
    if (status != TR_OK)
        goto free_json;
    tr_config_init(&config, file, root);
    status = m->form->read(&m->draft, &config, err);
    tr_config_teardown(&config);
    /* a model that also sees keeps the settings of its text part in an object of its own */
    const json_t *text_config = json_object_get(root, "text_config");
    if (status == TR_OK)
        status = tr_generation_read(&m->draft.spec, tr_checkpoint_path(m->checkpoint),
                                    json_is_object(text_config) ? text_config : root, err);

    char *text = json_dumps(root, JSON_SORT_KEYS | JSON_COMPACT);
    if (text != NULL)
        m->identity = XXH3_64bits(text, strlen(text));
    free(text);

free_json:
    json_decref(root);
    return status;
}

static tr_status model_read_gguf(tr_model *m, const tr_gguf *g, tr_error *err)
{
    static const char key[] = "general.architecture", type_key[] = "general.type";
    const char *text;
    size_t size;
    char architecture[64];
    tr_config config;

    tr_status status = tr_gguf_text(g, key, &text, &size, err);
    if (status != TR_OK)
        return status;
    snprintf(architecture, sizeof(architecture), "%.*s", (int)(size < 63 ? size : 63), text);
    if (tr_gguf_has(g, type_key)) { /* an adapter or a projector has the tensors of no model */
        status = tr_gguf_text(g, type_key, &text, &size, err);
        if (status == TR_OK && (size != 5 || memcmp(text, "model", 5) != 0))
            status = tr_fail(err, TR_E_INVALID, "%s: %s: found \"%.*s\", expected \"model\"",
                             tr_gguf_name(g), type_key, (int)(size < 40 ? size : 40), text);
        if (status != TR_OK)
            return status;
    }
    status = model_choose_family(m, tr_gguf_name(g), key, architecture, true, err);
    if (status != TR_OK)
        return status;
    tr_config_init_gguf(&config, g, m->checkpoint, architecture);
    status = m->form->read(&m->draft, &config, err);
    tr_config_teardown(&config);
    if (status == TR_OK)
        status = tr_generation_read_gguf(&m->draft.spec, g, err);

    const uint8_t *head;
    tr_gguf_head(g, &head, &size);
    m->identity = XXH3_64bits(head, size);
    return status;
}

/* Adds names, types, shapes and sizes of all tensors to the hash of the settings. */
static void model_hash_tensors(tr_model *m)
{
    for (uint32_t i = 0; i < tr_checkpoint_count(m->checkpoint); i++) {
        const tr_tensor *t = tr_checkpoint_at(m->checkpoint, i);

        m->identity = XXH3_64bits_withSeed(t->name, strlen(t->name), m->identity);
        m->identity = XXH3_64bits_withSeed(t->type, strlen(t->type), m->identity);
        m->identity = XXH3_64bits_withSeed(t->dims, t->dims_count * sizeof(*t->dims), m->identity);
        m->identity = XXH3_64bits_withSeed(&t->size, sizeof(t->size), m->identity);
    }
    /* Computed here, with this machine's logarithm: nodes must have the same. */
    const tr_rope_scaling *scaling = m->draft.rope_scaling;
    if (scaling != NULL)
        m->identity = XXH3_64bits_withSeed(
            scaling->divisors, scaling->count * sizeof(scaling->divisors[0]), m->identity);
}

/* -- life -- */

static tr_status model_fill(tr_model *m, const char *path, bool values, tr_error *err)
{
    tr_status status = tr_checkpoint_open(&m->checkpoint, path, err);
    if (status != TR_OK)
        return status;
    const tr_gguf *gguf = tr_checkpoint_gguf(m->checkpoint);
    status = gguf != NULL ? model_read_gguf(m, gguf, err) : model_read_directory(m, err);
    if (status != TR_OK)
        return status;
    m->draft.spec.layers = m->draft.layers;
    const char *settings = gguf != NULL ? tr_gguf_name(gguf) : "config.json";
    status = tr_draft_derive(&m->draft, settings, err);
    if (status == TR_OK)
        status = tr_spec_check(&m->draft.spec, settings, err);
    if (status == TR_OK)
        status = model_take_slots(m, err);
    if (status != TR_OK)
        return status;

    uint32_t tensors = tr_checkpoint_count(m->checkpoint);
    m->used = calloc(tensors > 0 ? tensors : 1, 1);
    if (m->used == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %u tensors",
                       tr_checkpoint_name(m->checkpoint), tensors);
    tr_weight_reader reader = {.checkpoint = m->checkpoint, .used = m->used, .values = values};
    if (values)
        status = tr_checkpoint_need_small(m->checkpoint, err);
    if (status == TR_OK)
        status = model_bind(m, &reader, err);
    if (status == TR_OK)
        status = model_read_rope_divisors(m, &reader, err);
    if (status == TR_OK)
        status = model_check_leftover(m, err);
    if (status == TR_OK)
        status = model_check_cuts(m, err);
    if (status == TR_OK && values)
        status = model_check_vectors(m, err);
    if (status == TR_OK)
        model_hash_tensors(m);
    if (status == TR_OK && values)
        tr_skip_log(m);
    return status;
}

/* Looking at scales has touched pages all over the files: they need not stay in memory. */
static void model_release(const tr_model *m)
{
    for (uint32_t i = 0; i < tr_checkpoint_count(m->checkpoint); i++) {
        const tr_tensor *t = tr_checkpoint_at(m->checkpoint, i);
        tr_map_release(t->data, (size_t)t->size);
    }
}

static tr_status model_open(tr_model **out, const char *path, bool values, tr_error *err)
{
    tr_model *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a model", path);
    tr_status status = model_fill(m, path, values, err);
    if (m->checkpoint != NULL && values) { /* whatever else was found, this would explain it */
        tr_status changed = tr_checkpoint_check(m->checkpoint, err);
        status = changed != TR_OK ? changed : status;
        model_release(m);
    }
    if (status != TR_OK) {
        tr_model_close(m);
        return status;
    }
    *out = m;
    return TR_OK;
}

tr_status tr_model_open(tr_model **out, const char *path, tr_error *err)
{
    return model_open(out, path, true, err);
}

tr_status tr_model_open_headers(tr_model **out, const char *path, tr_error *err)
{
    return model_open(out, path, false, err);
}

/* Whether bytes are those of a table of n-grams, whose hot rows live in the cache. */
static bool model_is_in_table(const tr_model *m, const uint8_t *data)
{
    for (uint32_t i = 0; i < m->draft.spec.layers_count; i++)
        for (uint32_t part = 0; m->tables[i] != NULL && part < m->draft.layers[i].ngram.parts;
             part++)
            if (m->tables[i][part].data == data)
                return true;
    return false;
}

void tr_model_forget(const tr_model *m)
{
    for (uint32_t i = 0; i < tr_checkpoint_count(m->checkpoint); i++) {
        const tr_tensor *t = tr_checkpoint_at(m->checkpoint, i);
        if (!model_is_in_table(m, t->data))
            tr_map_forget(t->data, (size_t)t->size);
    }
}

void tr_model_close(tr_model *m)
{
    if (m == NULL)
        return;
    for (uint32_t i = 0; m->experts != NULL && i < m->draft.spec.layers_count; i++)
        free(m->experts[i]);
    for (uint32_t i = 0; m->tables != NULL && i < m->draft.spec.layers_count; i++)
        free(m->tables[i]);
    free(m->experts);
    free(m->tables);
    free(m->fixed);
    free(m->used);
    tr_draft_teardown(&m->draft);
    tr_checkpoint_close(m->checkpoint);
    free(m);
}

/* -- questions -- */

const tr_model_spec *tr_model_get_spec(const tr_model *m)
{
    return &m->draft.spec;
}

tr_weight tr_model_weight(const tr_model *m, uint32_t layer, tr_weight_role role, uint32_t expert)
{
    const tr_weight *w = model_slot(m, layer, role, expert);

    assert(w->data != NULL); /* otherwise the spec has no such role */
    return *w;
}

bool tr_model_has(const tr_model *m, uint32_t layer, tr_weight_role role)
{
    uint32_t rows, cols;

    return tr_role_shape(&m->draft.spec, model_layer(m, layer, role), role, &rows, &cols);
}

const char *tr_model_weight_name(const tr_model *m, uint32_t layer, tr_weight_role role,
                                 uint32_t expert, char *text, size_t size)
{
    if (role == TR_W_HEAD && m->draft.tied)
        role = TR_W_EMBED;
    model_place place;
    bool named = model_find_place(m, layer, role, expert, &place);
    assert(named);
    (void)named;
    snprintf(text, size, "%s", place.name);
    return text;
}

tr_status tr_model_check_files(const tr_model *m, tr_error *err)
{
    return tr_checkpoint_check(m->checkpoint, err);
}

bool tr_model_has_input_scales(const tr_model *m)
{
    for (uint32_t i = 0; i < m->draft.spec.layers_count; i++) {
        uint32_t experts = m->draft.layers[i].channel.experts;

        for (uint32_t j = 0; j < MODEL_EXPERT_ROLES * experts; j++)
            if (m->experts[i][j].input_scale > 0)
                return true;
        for (int role = 0; role < TR_W_EMBED; role++)
            if (!tr_role_is_expert((tr_weight_role)role) &&
                model_slot(m, i, (tr_weight_role)role, 0)->input_scale > 0)
                return true;
    }
    return false;
}

void tr_model_plan_shape(const tr_model *m, tr_plan_shape *out)
{
    const tr_model_spec *spec = &m->draft.spec;

    *out = (tr_plan_shape){.layers_count = spec->layers_count,
                           .vocab_size = spec->vocab_size,
                           .vocab_granule = spec->vocab_size % 64 == 0 ? 64 : 1};
    for (uint32_t i = 0; i < spec->layers_count; i++) {
        const tr_layer_spec *l = &spec->layers[i];

        out->attention_terms[i] = (uint16_t)tr_layer_attention_terms(l);
        out->experts[i] = (uint16_t)l->channel.experts;
        out->slices[i] = l->channel.always_size > 0 ? (uint16_t)l->channel.slices : 0;
        out->ngram_tables += l->ngram.size > 0;
    }
}

const tr_checkpoint *tr_model_checkpoint(const tr_model *m)
{
    return m->checkpoint;
}

const char *tr_model_path(const tr_model *m)
{
    return tr_checkpoint_path(m->checkpoint);
}

uint64_t tr_model_identity(const tr_model *m)
{
    return m->identity;
}

bool tr_model_is_tied(const tr_model *m)
{
    return m->draft.tied;
}

uint32_t tr_model_files_count(const tr_model *m)
{
    return tr_checkpoint_files_count(m->checkpoint);
}

uint32_t tr_model_tensors_count(const tr_model *m)
{
    return tr_checkpoint_count(m->checkpoint);
}

const tr_tensor *tr_model_tensor(const tr_model *m, uint32_t index)
{
    return tr_checkpoint_at(m->checkpoint, index);
}

void tr_model_skipped(const tr_model *m, void (*each)(void *ctx, const tr_tensor *tensor),
                      void *ctx)
{
    for (uint32_t i = 0; i < tr_checkpoint_count(m->checkpoint); i++)
        if (m->used[i] == MODEL_SKIPPED)
            each(ctx, tr_checkpoint_at(m->checkpoint, i));
}
