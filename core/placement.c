#include "core/placement.h"

#include "core/placement_defaults.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void tr_placement_default_node(tr_placement_node *node)
{
    *node = (tr_placement_node){.host = "127.0.0.1", .threads = 1, .workers = 1};
}

void tr_placement_default(tr_placement *placement)
{
    *placement = (tr_placement){
        .transport = "ucx",
        .api_host = "127.0.0.1",
        .api_port = 8888,
        .limits = {.sequences = 16,
                   .step_rows = 256,
                   .steps_in_flight = 2,
                   .peer_timeout_ms = 1500,
                   .start_timeout_s = 120,
                   .exit_on_peer_loss = false},
    };
}

void tr_placement_local(tr_placement *out, const char *model, uint32_t threads)
{
    assert(strlen(model) < TR_PATH_SIZE);
    assert(threads >= 1);

    tr_placement_default(out);
    snprintf(out->source, sizeof(out->source), "local");
    snprintf(out->model, sizeof(out->model), "%s", model);
    snprintf(out->transport, sizeof(out->transport), "loop");
    tr_placement_default_node(&out->nodes[0]);
    snprintf(out->nodes[0].name, sizeof(out->nodes[0].name), "local");
    out->nodes[0].threads = threads;
    out->nodes_count = 1;
    out->api_port = 0;
}

void tr_placement_free(tr_placement *placement)
{
    tr_placement_rules *const lists[] = {&placement->routers, &placement->attention,
                                         &placement->experts, &placement->replicas,
                                         &placement->slices,  &placement->vocabulary};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        free(lists[i]->rules);
        *lists[i] = (tr_placement_rules){0};
    }
}

uint32_t tr_placement_find_node(const tr_placement *placement, const char *name)
{
    for (uint32_t i = 0; i < placement->nodes_count; i++)
        if (strcmp(placement->nodes[i].name, name) == 0)
            return i;
    return TR_NODES_MAX;
}

bool tr_placement_is_here(const char *host)
{
    return host[0] == '\0' || strcmp(host, "127.0.0.1") == 0 || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0;
}

static bool share_machine(const tr_placement *p, uint32_t a, uint32_t b)
{
    const char *x = p->nodes[a].host, *y = p->nodes[b].host;

    return strcmp(p->transport, "loop") == 0 || strcmp(x, y) == 0 ||
           (tr_placement_is_here(x) && tr_placement_is_here(y));
}

uint64_t tr_placement_memory(const tr_placement *placement, uint32_t node, uint64_t free_bytes,
                             uint32_t *sharers)
{
    uint64_t left = free_bytes - free_bytes / 10; /* of 90 % */
    uint32_t count = 0;

    if (sharers != NULL)
        *sharers = 0;
    if (placement->nodes[node].memory_bytes != 0)
        return placement->nodes[node].memory_bytes;
    for (uint32_t n = 0; n < placement->nodes_count; n++) {
        uint64_t said = placement->nodes[n].memory_bytes;
        if (!share_machine(placement, node, n))
            continue;
        count += said == 0;
        left -= said < left ? said : left;
    }
    if (sharers != NULL)
        *sharers = count;
    uint64_t share = left / count;
    return share > 0 ? share : 1;
}

/* -- printing -- */

/* In double quotes; control characters were refused when the file was read. */
static void print_text(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void print_pair(const char *indent, const char *key, const char *value, FILE *out)
{
    fprintf(out, "%s%s: ", indent, key);
    print_text(value, out);
    fputc('\n', out);
}

/* The largest unit that divides it, so that it reads back exactly. */
static void print_bytes(uint64_t bytes, FILE *out)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    uint32_t unit = 0;

    while (unit < 4 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    fprintf(out, "%" PRIu64 " %s", bytes, units[unit]);
}

/* Bytes of the first pair of "key=value,key=value". A part without '=' belongs to the value. */
static size_t option_size(const char *pairs)
{
    size_t size = strcspn(pairs, ",");

    while (pairs[size] == ',') {
        const char *part = pairs + size + 1;
        size_t part_size = strcspn(part, ",");
        if (memchr(part, '=', part_size) != NULL)
            break;
        size += 1 + part_size;
    }
    return size;
}

/* "key=value,key=value" as a mapping */
static void print_options(const char *options, FILE *out)
{
    fprintf(out, "    transport: {");
    for (const char *pair = options; *pair != '\0';) {
        size_t size = option_size(pair);
        size_t key_size = strcspn(pair, "=");
        char value[TR_URL_SIZE];

        assert(key_size < size && size < sizeof(value));
        memcpy(value, pair + key_size + 1, size - key_size - 1);
        value[size - key_size - 1] = '\0';
        fprintf(out, "%s%.*s: ", pair != options ? ", " : "", (int)key_size, pair);
        print_text(value, out);
        pair += size + (pair[size] == ',');
    }
    fprintf(out, "}\n");
}

static void print_range(const char *key, uint32_t first, uint32_t last, FILE *out)
{
    if (first == 0 && last == UINT32_MAX)
        fprintf(out, ", %s: all", key);
    else if (last == UINT32_MAX)
        fprintf(out, ", %s: %u-last", key, first);
    else
        fprintf(out, ", %s: %u-%u", key, first, last);
}

/* items_key NULL: the list has no items; with_layers false: it has no layers. */
static void print_rules(const tr_placement *p, const char *name, const tr_placement_rules *rules,
                        bool with_layers, const char *items_key, FILE *out)
{
    if (rules->count == 0)
        return;
    fprintf(out, "%s:\n", name);
    for (uint32_t i = 0; i < rules->count; i++) {
        const tr_placement_rule *rule = &rules->rules[i];
        fprintf(out, "  - {node: ");
        print_text(p->nodes[rule->node].name, out);
        if (with_layers)
            print_range("layers", rule->first_layer, rule->last_layer, out);
        if (items_key != NULL)
            print_range(items_key, rule->first, rule->last, out);
        fprintf(out, "}\n");
    }
}

static void print_node(const tr_placement_node *node, FILE *out)
{
    fprintf(out, "  - name: ");
    print_text(node->name, out);
    fputc('\n', out);
    print_pair("    ", "host", node->host, out);
    if (node->control[0] != '\0')
        print_pair("    ", "control", node->control, out);
    if (node->memory_bytes != 0) {
        fprintf(out, "    memory: ");
        print_bytes(node->memory_bytes, out);
        fputc('\n', out);
    }
    fprintf(out, "    threads: %u\n    workers: %u\n", node->threads, node->workers);
    if (node->streams)
        fprintf(out, "    checkpoint: stream\n");
    if (node->transport_options[0] != '\0')
        print_options(node->transport_options, out);
}

static void print_limits(const tr_placement *p, FILE *out)
{
    fprintf(out, "limits:\n  sequences: %u\n", p->limits.sequences);
    if (p->limits.context != 0) /* 0: the model decides */
        fprintf(out, "  context: %u\n", p->limits.context);
    if (p->limits.cache_tokens != 0)
        fprintf(out, "  cache_tokens: %u\n", p->limits.cache_tokens);
    fprintf(out,
            "  step_rows: %u\n  steps_in_flight: %u\n  prefix_cache: %u\n  peer_timeout: %u ms\n"
            "  start_timeout: %u s\n  exit_on_peer_loss: %s\n",
            p->limits.step_rows, p->limits.steps_in_flight, p->limits.prefix_cache,
            p->limits.peer_timeout_ms, p->limits.start_timeout_s,
            p->limits.exit_on_peer_loss ? "true" : "false");
}

void tr_placement_print(const tr_placement *placement, FILE *out)
{
    const tr_placement *p = placement;

    print_pair("", "model", p->model, out);
    fprintf(out, "transport: %s\nactivations: %s\nnodes:\n", p->transport,
            p->activations_nvfp4 ? "nvfp4" : "f32");
    for (uint32_t i = 0; i < p->nodes_count; i++)
        print_node(&p->nodes[i], out);
    fprintf(out, "api: {host: ");
    print_text(p->api_host, out);
    fprintf(out, ", port: %u}\n", p->api_port);
    print_pair("", "batcher", p->nodes[p->batcher_node].name, out);
    print_pair("", "sampler", p->nodes[p->sampler_node].name, out);
    if (p->ngram_named)
        print_pair("", "ngram", p->nodes[p->ngram_node].name, out);
    print_rules(p, "routers", &p->routers, true, NULL, out);
    print_rules(p, "attention", &p->attention, true, "terms", out);
    print_rules(p, "experts", &p->experts, true, "experts", out);
    print_rules(p, "replicas", &p->replicas, true, "experts", out);
    print_rules(p, "slices", &p->slices, true, "slices", out);
    print_rules(p, "vocabulary", &p->vocabulary, false, "rows", out);
    print_limits(p, out);
}
