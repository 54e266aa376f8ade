/* placement_read.c - the placement file: YAML into tr_placement.
 *
 * One table of fields per mapping says what a key means and which values it takes. Nodes are named
 * by text and may be named before they are declared, so names are kept with their place in the
 * file and looked up when the whole file has been read. */
#include "core/placement.h"

#include "core/placement_defaults.h"
#include "core/placement_values.h"
#include "core/yaml_reader.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

#define CONTROL_PORT_FIRST 7701
#define RULES_LISTS        6

/* A node's name that was read somewhere, and where. name "" is: not given. */
typedef struct {
    char name[TR_NAME_SIZE];
    tr_yaml_mark mark;
} node_name;

/* An item of one of the five lists of rules. */
typedef struct {
    node_name node;
    tr_placement_rule rule; /* its node is filled in at the end */
} raw_rule;

typedef struct {
    const tr_yaml_field *fields; /* of one rule; static storage */
    uint32_t fields_count;
    raw_rule *rules; /* owns */
    uint32_t count;
    uint32_t capacity;
} raw_rules;

/* Everything read so far. */
typedef struct {
    tr_placement placement; /* its six lists are empty until the end */
    char model[TR_PATH_SIZE];
    tr_yaml_mark model_mark;
    node_name batcher;
    node_name sampler;
    node_name ngram;
    tr_yaml_mark node_marks[TR_NODES_MAX];
    raw_rules routers, attention, experts, replicas, slices, vocabulary;
} reading;

/* -- nodes -- */

static tr_status read_node_name(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    node_name *node = target;

    node->mark = tr_yaml_here(y);
    return tr_value_name(y, node->name, field);
}

/* One pair of a node's transport options, appended as ",key=value". The text is split again at
 * each comma that a part with '=' follows, so the value must not look like that. */
static tr_status read_option(tr_yaml *y, void *target, const char *key)
{
    char *options = target;
    size_t used = strlen(options);

    if (key[0] == '\0' || key[strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_")] != '\0')
        return tr_yaml_wrong(y, "a key of small letters, digits and '_'");
    const char *value = tr_yaml_scalar(y, "the option's value");
    if (value == NULL)
        return TR_E_INVALID;
    if (value[0] == '\0') /* {tls: posix,cma} is two keys: the usual slip */
        return tr_yaml_wrong(y, "the option's value, in quotes if it contains a comma");
    const char *comma = strchr(value, ',');
    if (comma != NULL && strchr(comma, '=') != NULL)
        return tr_yaml_wrong(y, "a value without '=' behind a comma");
    int wanted =
        snprintf(options + used, TR_URL_SIZE - used, "%s%s=%s", used > 0 ? "," : "", key, value);
    if (wanted < 0 || (size_t)wanted >= TR_URL_SIZE - used)
        return tr_yaml_wrong(y, "options of at most %d bytes together", TR_URL_SIZE - 1);
    return TR_OK;
}

static tr_status read_options(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    return tr_yaml_pairs(y, target, read_option);
}

static tr_status read_checkpoint(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    char name[TR_NAME_SIZE];
    bool *streams = target;

    tr_status status = tr_yaml_text(y, name, field);
    if (status != TR_OK)
        return status;
    *streams = strcmp(name, "stream") == 0;
    return *streams || strcmp(name, "local") == 0 ? TR_OK : tr_yaml_wrong(y, "local or stream");
}

static const tr_yaml_field node_fields[] = {
    {"name", tr_value_name, offsetof(tr_placement_node, name), 1, TR_NAME_SIZE, true},
    {"host", tr_value_host, offsetof(tr_placement_node, host), 1, TR_URL_SIZE, false},
    {"control", tr_value_url, offsetof(tr_placement_node, control), 1, TR_URL_SIZE, false},
    {"memory", tr_value_bytes, offsetof(tr_placement_node, memory_bytes), 1, 0, false},
    {"threads", tr_yaml_u32, offsetof(tr_placement_node, threads), 1, 256, false},
    {"workers", tr_yaml_u32, offsetof(tr_placement_node, workers), 1, TR_WORKERS_MAX, false},
    {"transport", read_options, offsetof(tr_placement_node, transport_options), 1, 0, false},
    {"checkpoint", read_checkpoint, offsetof(tr_placement_node, streams), 1, TR_NAME_SIZE, false},
};

static tr_status read_node(tr_yaml *y, void *target, uint32_t index)
{
    reading *r = target;
    tr_placement *p = &r->placement;

    assert(index == p->nodes_count);
    tr_placement_node *node = &p->nodes[index];
    tr_placement_default_node(node);
    r->node_marks[index] = tr_yaml_here(y);
    tr_status status = tr_yaml_map(y, node, node_fields, COUNT(node_fields));
    if (status != TR_OK)
        return status;
    if (tr_placement_find_node(p, node->name) != TR_NODES_MAX)
        return tr_yaml_wrong_at(y, r->node_marks[index], tr_yaml_path(y),
                                "found the name '%s' a second time, expected each once",
                                node->name);
    p->nodes_count++;
    return TR_OK;
}

static tr_status read_nodes(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    tr_yaml_mark start = tr_yaml_here(y);
    reading *r = target;
    tr_status status = tr_yaml_list(y, target, TR_NODES_MAX, read_node);

    if (status == TR_OK && r->placement.nodes_count == 0)
        return tr_yaml_wrong_at(y, start, tr_yaml_path(y),
                                "found an empty list, expected at least one node");
    bool local = status != TR_OK;
    for (uint32_t i = 0; i < r->placement.nodes_count; i++)
        local |= !r->placement.nodes[i].streams;
    if (!local)
        return tr_yaml_wrong_at(y, start, tr_yaml_path(y),
                                "found checkpoint: stream for every node, expected one that has "
                                "the model");
    return status;
}

/* -- rules -- */

/* What a mapping of one rule fills. */
typedef struct {
    node_name node;
    tr_interval layers;
    tr_interval items;
} rule_item;

#define RULE_NODE                                                                                  \
    {                                                                                              \
        "node", read_node_name, offsetof(rule_item, node), 1, TR_NAME_SIZE, true                   \
    }
#define RULE_LAYERS                                                                                \
    {                                                                                              \
        "layers", tr_value_range, offsetof(rule_item, layers), 0, 0, false                         \
    }
#define RULE_ITEMS(key)                                                                            \
    {                                                                                              \
        key, tr_value_range, offsetof(rule_item, items), 0, 0, false                               \
    }

/* The keys of a rule, list by list. */
static const tr_yaml_field router_fields[] = {RULE_NODE, RULE_LAYERS};
static const tr_yaml_field attention_fields[] = {RULE_NODE, RULE_LAYERS, RULE_ITEMS("terms")};
static const tr_yaml_field expert_fields[] = {RULE_NODE, RULE_LAYERS, RULE_ITEMS("experts")};
static const tr_yaml_field slice_fields[] = {RULE_NODE, RULE_LAYERS, RULE_ITEMS("slices")};
static const tr_yaml_field vocabulary_fields[] = {RULE_NODE, RULE_ITEMS("rows")};

/* An empty list of rules that have these keys. */
#define RULES_OF(keys) ((raw_rules){.fields = (keys), .fields_count = COUNT(keys)})

static tr_status rules_append(tr_yaml *y, raw_rules *list, const rule_item *item)
{
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        raw_rule *rules = realloc(list->rules, capacity * sizeof(*rules));
        if (rules == NULL)
            return tr_yaml_wrong_at(y, tr_yaml_here(y), tr_yaml_path(y), "no memory for rules");
        list->rules = rules;
        list->capacity = capacity;
    }
    list->rules[list->count++] = (raw_rule){
        .node = item->node,
        .rule = {.first_layer = item->layers.first,
                 .last_layer = item->layers.last,
                 .first = item->items.first,
                 .last = item->items.last},
    };
    return TR_OK;
}

static tr_status read_rule(tr_yaml *y, void *target, uint32_t index)
{
    raw_rules *list = target;
    rule_item item = {.layers = {0, UINT32_MAX}, .items = {0, UINT32_MAX}};

    (void)index;
    tr_status status = tr_yaml_map(y, &item, list->fields, list->fields_count);
    return status != TR_OK ? status : rules_append(y, list, &item);
}

static tr_status read_rules(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    return tr_yaml_list(y, target, TR_RULES_MAX, read_rule);
}

/* -- the rest of the file -- */

static const tr_yaml_field api_fields[] = {
    {"host", tr_value_host, offsetof(tr_placement, api_host), 1, TR_URL_SIZE, false},
    {"port", tr_yaml_u16, offsetof(tr_placement, api_port), 0, 65535, false},
};

static tr_status read_api(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    return tr_yaml_map(y, target, api_fields, COUNT(api_fields));
}

static tr_status read_step_rows(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    tr_status status = tr_yaml_u32(y, target, field);

    if (status == TR_OK && *(const uint32_t *)target % 64 != 0)
        return tr_yaml_wrong(y, "a multiple of 64");
    return status;
}

#define LIMIT(name) offsetof(tr_placement, limits.name)

/* The upper ends keep sums of products of them far inside 64 bits. */
static const tr_yaml_field limit_fields[] = {
    {"sequences", tr_yaml_u32, LIMIT(sequences), 1, 1024, false},
    {"context", tr_yaml_u32, LIMIT(context), 1, 1u << 24, false},
    {"cache_tokens", tr_yaml_u32, LIMIT(cache_tokens), 1, 1u << 30, false},
    {"step_rows", read_step_rows, LIMIT(step_rows), 64, 4096, false},
    {"steps_in_flight", tr_yaml_u32, LIMIT(steps_in_flight), 1, 4, false},
    {"prefix_cache", tr_yaml_u32, LIMIT(prefix_cache), 0, 255, false},
    {"peer_timeout", tr_value_ms, LIMIT(peer_timeout_ms), 100, 600000, false},
    {"start_timeout", tr_value_seconds, LIMIT(start_timeout_s), 1, 86400, false},
    {"exit_on_peer_loss", tr_yaml_boolean, LIMIT(exit_on_peer_loss), 0, 0, false},
};

static tr_status read_limits(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    tr_placement *p = target;
    tr_yaml_mark start = tr_yaml_here(y);
    tr_status status = tr_yaml_map(y, p, limit_fields, COUNT(limit_fields));

    if (status == TR_OK && p->limits.cache_tokens != 0 &&
        p->limits.cache_tokens < p->limits.context)
        return tr_yaml_wrong_at(y, start, tr_yaml_path(y),
                                "found cache_tokens %u, expected at least the context, %u",
                                p->limits.cache_tokens, p->limits.context);
    return status;
}

static tr_status read_transport(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    tr_status status = tr_yaml_text(y, target, field);
    const char *name = target;

    if (status == TR_OK && strcmp(name, "ucx") != 0 && strcmp(name, "nng") != 0 &&
        strcmp(name, "loop") != 0)
        return tr_yaml_wrong(y, "ucx, nng or loop");
    return status;
}

static tr_status read_activations(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    char name[TR_NAME_SIZE];
    bool *nvfp4 = target;

    tr_status status = tr_yaml_text(y, name, field);
    if (status != TR_OK)
        return status;
    *nvfp4 = strcmp(name, "nvfp4") == 0;
    return *nvfp4 || strcmp(name, "f32") == 0 ? TR_OK : tr_yaml_wrong(y, "f32 or nvfp4");
}

static tr_status read_model(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    reading *r = target;

    r->model_mark = tr_yaml_here(y);
    return tr_yaml_text(y, r->model, field);
}

/* target of the whole file: a reading */
static const tr_yaml_field file_fields[] = {
    {"model", read_model, 0, 1, TR_PATH_SIZE, true},
    {"transport", read_transport, offsetof(reading, placement.transport), 1, TR_NAME_SIZE, false},
    {"activations", read_activations, offsetof(reading, placement.activations_nvfp4), 1,
     TR_NAME_SIZE, false},
    {"nodes", read_nodes, 0, 0, 0, true},
    {"api", read_api, offsetof(reading, placement), 0, 0, false},
    {"batcher", read_node_name, offsetof(reading, batcher), 1, TR_NAME_SIZE, false},
    {"sampler", read_node_name, offsetof(reading, sampler), 1, TR_NAME_SIZE, false},
    {"ngram", read_node_name, offsetof(reading, ngram), 1, TR_NAME_SIZE, false},
    {"routers", read_rules, offsetof(reading, routers), 0, 0, false},
    {"attention", read_rules, offsetof(reading, attention), 0, 0, false},
    {"experts", read_rules, offsetof(reading, experts), 0, 0, false},
    {"replicas", read_rules, offsetof(reading, replicas), 0, 0, false},
    {"slices", read_rules, offsetof(reading, slices), 0, 0, false},
    {"vocabulary", read_rules, offsetof(reading, vocabulary), 0, 0, false},
    {"limits", read_limits, offsetof(reading, placement), 0, 0, false},
};

/* -- what needs the whole file -- */

/* The model's path as seen from here: relative paths start at the file's folder. */
static tr_status resolve_model(tr_yaml *y, reading *r, const char *name)
{
    const char *slash = strrchr(name, '/');
    size_t folder_size = r->model[0] == '/' || slash == NULL ? 0 : (size_t)(slash - name) + 1;

    if (folder_size + strlen(r->model) >= TR_PATH_SIZE)
        return tr_yaml_wrong_at(y, r->model_mark, "model",
                                "found a path of %zu bytes, expected at most %d",
                                folder_size + strlen(r->model), TR_PATH_SIZE - 1);
    memcpy(r->placement.model, name, folder_size);
    memcpy(r->placement.model + folder_size, r->model, strlen(r->model) + 1);
    return TR_OK;
}

static tr_status resolve_node(tr_yaml *y, const tr_placement *p, const node_name *node,
                              const char *path, uint32_t *out)
{
    if (node->name[0] == '\0') /* not given: the default stands */
        return TR_OK;
    uint32_t index = tr_placement_find_node(p, node->name);
    if (index == TR_NODES_MAX)
        return tr_yaml_wrong_at(y, node->mark, path,
                                "found '%s', expected the name of one of the nodes", node->name);
    *out = index;
    return TR_OK;
}

static tr_status resolve_rules(tr_yaml *y, const tr_placement *p, const char *list_name,
                               const raw_rules *raw, tr_placement_rules *out)
{
    char path[TR_NAME_SIZE];

    if (raw->count == 0)
        return TR_OK;
    out->rules = calloc(raw->count, sizeof(*out->rules));
    if (out->rules == NULL)
        return tr_yaml_wrong_at(y, tr_yaml_here(y), list_name, "no memory for rules");
    for (uint32_t i = 0; i < raw->count; i++) {
        out->rules[i] = raw->rules[i].rule;
        snprintf(path, sizeof(path), "%s[%u].node", list_name, i);
        tr_status status = resolve_node(y, p, &raw->rules[i].node, path, &out->rules[i].node);
        if (status != TR_OK)
            return status;
    }
    out->count = raw->count;
    return TR_OK;
}

/* Fills in the control URLs that the file leaves out, and finds two nodes on one. In one process
 * nobody needs them. */
static tr_status resolve_controls(tr_yaml *y, reading *r)
{
    tr_placement *p = &r->placement;
    char path[TR_NAME_SIZE];

    for (uint32_t i = 0; i < p->nodes_count; i++) {
        tr_placement_node *node = &p->nodes[i];
        snprintf(path, sizeof(path), "nodes[%u].control", i);
        if (node->control[0] == '\0' && strcmp(p->transport, "loop") != 0) {
            bool brackets = strchr(node->host, ':') != NULL; /* IPv6 */
            /* Note: through a buffer of its own; without optimization gcc 12 takes the two members
             * of one struct for overlapping and warns (-Wrestrict). */
            char url[sizeof(node->control)];
            int wanted =
                snprintf(url, sizeof(url), "tcp://%s%.*s%s:%u", brackets ? "[" : "",
                         TR_URL_SIZE - 1, node->host, brackets ? "]" : "", CONTROL_PORT_FIRST + i);
            if (wanted < 0 || (size_t)wanted >= sizeof(url))
                return tr_yaml_wrong_at(y, r->node_marks[i], path,
                                        "the host is too long for a URL");
            memcpy(node->control, url, (size_t)wanted + 1);
        }
        for (uint32_t k = 0; k < i; k++)
            if (node->control[0] != '\0' && strcmp(p->nodes[k].control, node->control) == 0)
                return tr_yaml_wrong_at(y, r->node_marks[i], path,
                                        "found '%.60s' of %s again, expected one for each node",
                                        node->control, p->nodes[k].name);
    }
    return TR_OK;
}

static tr_status resolve_all(tr_yaml *y, reading *r, const char *name)
{
    tr_placement *p = &r->placement;
    const struct {
        const char *name;
        const raw_rules *raw;
        tr_placement_rules *out;
    } lists[RULES_LISTS] = {
        {"routers", &r->routers, &p->routers}, {"attention", &r->attention, &p->attention},
        {"experts", &r->experts, &p->experts}, {"replicas", &r->replicas, &p->replicas},
        {"slices", &r->slices, &p->slices},    {"vocabulary", &r->vocabulary, &p->vocabulary},
    };

    tr_status status = resolve_model(y, r, name);
    if (status == TR_OK)
        status = resolve_controls(y, r);
    if (status == TR_OK)
        status = resolve_node(y, p, &r->batcher, "batcher", &p->batcher_node);
    if (status == TR_OK)
        status = resolve_node(y, p, &r->sampler, "sampler", &p->sampler_node);
    if (status == TR_OK)
        status = resolve_node(y, p, &r->ngram, "ngram", &p->ngram_node);
    p->ngram_named = r->ngram.name[0] != '\0';
    for (uint32_t i = 0; i < RULES_LISTS && status == TR_OK; i++)
        status = resolve_rules(y, p, lists[i].name, lists[i].raw, lists[i].out);
    return status;
}

static void free_reading(reading *r)
{
    free(r->routers.rules);
    free(r->attention.rules);
    free(r->experts.rules);
    free(r->replicas.rules);
    free(r->slices.rules);
    free(r->vocabulary.rules);
    free(r);
}

tr_status tr_placement_parse(tr_placement *out, const char *name, const char *text, size_t size,
                             tr_error *err)
{
    tr_yaml *y = NULL;

    if (strlen(name) >= TR_PATH_SIZE)
        return tr_fail(err, TR_E_INVALID, "%.100s...: the path has %zu bytes, expected at most %d",
                       name, strlen(name), TR_PATH_SIZE - 1);
    reading *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory to read it", name);
    tr_placement_default(&r->placement);
    r->routers = RULES_OF(router_fields);
    r->attention = RULES_OF(attention_fields);
    r->experts = RULES_OF(expert_fields);
    r->replicas = RULES_OF(expert_fields);
    r->slices = RULES_OF(slice_fields);
    r->vocabulary = RULES_OF(vocabulary_fields);
    snprintf(r->placement.source, sizeof(r->placement.source), "%s", name);

    tr_status status = tr_yaml_open(&y, name, text, size, err);
    if (status == TR_OK)
        status = tr_yaml_document(y, r, file_fields, COUNT(file_fields));
    if (status == TR_OK)
        status = resolve_all(y, r, name);
    if (status == TR_OK)
        *out = r->placement;
    else
        tr_placement_free(&r->placement);
    tr_yaml_close(y);
    free_reading(r);
    return status;
}

tr_status tr_placement_read(tr_placement *out, const char *path, tr_error *err)
{
    tr_status status;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
    char *text = malloc(TR_YAML_SIZE_MAX + 1); /* one more, so that a longer file is noticed */
    if (text == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory to read it", path);
        goto close_file;
    }
    size_t size = fread(text, 1, TR_YAML_SIZE_MAX + 1, file);
    if (ferror(file)) {
        status = tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
        goto free_text;
    }
    status = tr_placement_parse(out, path, text, size, err);
free_text:
    free(text);
close_file:
    fclose(file);
    return status;
}
