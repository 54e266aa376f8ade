#include "tools/admin_load.h"

#include "core/budget.h"
#include "tools/json_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOP_DEFAULT 8

typedef struct {
    long long only; /* layer; -1: all */
    uint32_t top;   /* experts of each layer that are shown */
    bool json;
} load_options;

/* What all nodes say of one expert. */
typedef struct {
    uint32_t number;
    uint32_t nodes; /* bit per node, in the order of the targets */
    uint64_t rows, steps, busy_ns;
} load_expert;

typedef struct {
    load_expert *experts; /* owns, [experts_count] */
    uint32_t experts_count;
    uint64_t expert_bytes;
    uint64_t rows;                    /* of all experts */
    uint64_t node_rows[TR_NODES_MAX]; /* that each node computed */
} load_layer;

typedef struct {
    load_layer layers[TR_LAYERS_MAX]; /* experts_count 0: none there, or nobody has told of it */
    char names[TR_NODES_MAX][TR_NAME_SIZE];
    uint32_t nodes_count;
} load_table;

/* false: wrong usage, which has been told. */
static bool options_read(load_options *o, const tr_cli_args *args)
{
    bool wrong = false;

    o->json = tr_cli_has(args, "json");
    o->only = tr_cli_integer(args, "layer", -1, 0, TR_LAYERS_MAX - 1, &wrong);
    o->top = (uint32_t)tr_cli_integer(args, "top", o->json ? TR_TERMS_MAX : TOP_DEFAULT, 1,
                                      TR_TERMS_MAX, &wrong);
    return !wrong;
}

/* -- what the nodes say -- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* No figure is larger than what JSON's integers hold. */
static uint64_t list_u64(const msgpack_object_array *list, uint32_t i)
{
    bool number = list->ptr[i].type == MSGPACK_OBJECT_POSITIVE_INTEGER;
    return number ? least(list->ptr[i].via.u64, INT64_MAX) : 0;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return least(a + b, INT64_MAX); /* both are */
}

/* The experts of a layer, all cold, when the first node tells of it. */
static bool layer_begin(load_layer *layer, uint32_t experts_count)
{
    if (layer->experts_count != 0)
        return layer->experts_count == experts_count;
    layer->experts = calloc(experts_count, sizeof(*layer->experts));
    if (layer->experts == NULL)
        return false;
    layer->experts_count = experts_count;
    for (uint32_t e = 0; e < experts_count; e++)
        layer->experts[e].number = e;
    return true;
}

/* A layer of one node's answer. false: it is not what a node of this model would say. */
static bool layer_add(load_table *table, const msgpack_object *map, uint32_t node)
{
    const msgpack_object_array *rows = tr_map_list(map, "rows"), *steps = tr_map_list(map, "steps"),
                               *busy = tr_map_list(map, "busy_ns"),
                               *held = tr_map_list(map, "held");
    uint64_t number = UINT64_MAX;

    if (!tr_map_u64(map, "layer", &number) || number >= TR_LAYERS_MAX || rows == NULL ||
        steps == NULL || busy == NULL || held == NULL || rows->size == 0 ||
        rows->size > TR_TERMS_MAX || steps->size != rows->size || busy->size != rows->size)
        return false;
    load_layer *layer = &table->layers[number];
    if (!layer_begin(layer, rows->size))
        return false;
    layer->expert_bytes = least(tr_admin_u64(map, "expert_bytes"), INT64_MAX);
    for (uint32_t e = 0; e < rows->size; e++) {
        load_expert *expert = &layer->experts[e];
        uint64_t n = list_u64(rows, e);
        expert->rows = sum(expert->rows, n);
        expert->steps = sum(expert->steps, list_u64(steps, e));
        expert->busy_ns = sum(expert->busy_ns, list_u64(busy, e));
        layer->rows = sum(layer->rows, n);
        layer->node_rows[node] = sum(layer->node_rows[node], n);
    }
    for (uint32_t i = 0; i < held->size; i++) {
        uint64_t e = list_u64(held, i);
        if (e >= layer->experts_count)
            return false;
        layer->experts[e].nodes |= 1u << node;
    }
    return true;
}

/* A node that was named twice, maybe by two URLs, has told already. */
static bool node_add(load_table *table, const msgpack_object *map)
{
    const msgpack_object_array *layers = tr_map_list(map, "layers");
    uint32_t node = table->nodes_count;

    (void)tr_admin_text(map, "node", table->names[node], sizeof(table->names[node]));
    if (layers == NULL)
        return false;
    for (uint32_t n = 0; n < node; n++)
        if (strcmp(table->names[n], table->names[node]) == 0)
            return true;
    table->nodes_count++;
    for (uint32_t i = 0; i < layers->size; i++)
        if (!layer_add(table, &layers->ptr[i], node))
            return false;
    return true;
}

/* -- what people read -- */

static int hotter_first(const void *a, const void *b)
{
    const load_expert *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows < y->rows ? 1 : -1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* "node0,node1" */
static void names_of(const load_table *table, uint32_t nodes, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (uint32_t n = 0; n < table->nodes_count && used < size; n++)
        if (nodes >> n & 1)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "",
                                     table->names[n]);
}

static void print_layer(const load_table *table, uint32_t number, uint32_t top)
{
    const load_layer *layer = &table->layers[number];
    char names[256], bytes[32];

    printf("layer %" PRIu32 ": %" PRIu32 " experts of %s, %" PRIu64 " rows", number,
           layer->experts_count, tr_bytes_text(bytes, sizeof(bytes), layer->expert_bytes),
           layer->rows);
    for (uint32_t n = 0; layer->rows > 0 && n < table->nodes_count; n++)
        printf("%s %s %.1f %%", n == 0 ? ":" : ",", table->names[n],
               percent(layer->node_rows[n], layer->rows));
    printf("\n  %6s %8s %12s %12s %10s  %s\n", "expert", "share", "rows", "steps", "us/step",
           "nodes");
    for (uint32_t i = 0; i < layer->experts_count && i < top; i++) {
        const load_expert *e = &layer->experts[i];
        names_of(table, e->nodes, names, sizeof(names));
        printf("  %6" PRIu32 " %6.2f %% %12" PRIu64 " %12" PRIu64 " %10.1f  %s\n", e->number,
               percent(e->rows, layer->rows), e->rows, e->steps,
               e->steps > 0 ? (double)e->busy_ns / 1e3 / (double)e->steps : 0, names);
    }
    if (layer->experts_count > top)
        printf("  %6s %" PRIu32 " colder experts\n", "and", layer->experts_count - top);
}

static json_t *json_of_layer(const load_table *table, uint32_t number, uint32_t top)
{
    const load_layer *layer = &table->layers[number];
    json_t *experts = json_array(), *node_rows = json_object();

    for (uint32_t n = 0; n < table->nodes_count; n++)
        (void)json_object_set_new(node_rows, table->names[n],
                                  json_integer((json_int_t)layer->node_rows[n]));
    for (uint32_t i = 0; i < layer->experts_count && i < top; i++) {
        const load_expert *e = &layer->experts[i];
        json_t *nodes = json_array();
        for (uint32_t n = 0; n < table->nodes_count; n++)
            if (e->nodes >> n & 1)
                (void)json_array_append_new(
                    nodes, tr_json_out_text(table->names[n], strlen(table->names[n])));
        (void)json_array_append_new(
            experts,
            json_pack("{s:I, s:f, s:I, s:I, s:I, s:o}", "expert", (json_int_t)e->number, "share",
                      percent(e->rows, layer->rows) / 100, "rows", (json_int_t)e->rows, "steps",
                      (json_int_t)e->steps, "busy_ns", (json_int_t)e->busy_ns, "nodes", nodes));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "layer", (json_int_t)number, "experts_count",
                     (json_int_t)layer->experts_count, "expert_bytes",
                     (json_int_t)layer->expert_bytes, "rows", (json_int_t)layer->rows, "node_rows",
                     node_rows, "experts", experts);
}

static int print_json(const load_table *table, const load_options *o)
{
    json_t *layers = json_array();

    for (uint32_t l = 0; l < TR_LAYERS_MAX; l++)
        if (table->layers[l].experts_count > 0 && (o->only < 0 || o->only == l))
            (void)json_array_append_new(layers, json_of_layer(table, l, o->top));
    return tr_admin_print_json(json_pack("{s:o}", "layers", layers));
}

/* -- the command -- */

static tr_status load_ask(load_table *table, const tr_admin_targets *targets, tr_error *err)
{
    for (uint32_t i = 0; i < targets->count; i++) {
        tr_control_reply reply;
        tr_status status = tr_admin_ask(&targets->rows[i], "load", &reply, err);
        if (status == TR_OK && !node_add(table, reply.map))
            status = tr_fail(err, TR_E_INVALID,
                             "%s: load: lists that do not fit each other or another node's",
                             targets->rows[i].url);
        tr_control_reply_free(&reply);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

/* The first node that answers knows the others. */
static tr_status load_find_nodes(tr_admin_targets *targets, tr_error *err)
{
    tr_status status = TR_E_PEER;
    for (uint32_t i = 0; status != TR_OK && i < targets->count; i++) {
        tr_admin_targets all = {.rows = {targets->rows[i]}, .count = 1};
        status = tr_admin_targets_expand(&all, err);
        if (status == TR_OK)
            *targets = all;
    }
    return status;
}

static int load_show(load_table *table, const load_options *o)
{
    bool any = false;

    for (uint32_t l = 0; l < TR_LAYERS_MAX; l++) {
        load_layer *layer = &table->layers[l];
        any |= layer->experts_count > 0 && (o->only < 0 || o->only == l);
        if (layer->experts_count > 0)
            qsort(layer->experts, layer->experts_count, sizeof(*layer->experts), hotter_first);
    }
    if (!any) {
        fprintf(stderr, "troupe: %s has no routed experts\n",
                o->only < 0 ? "the model" : "this layer of the model");
        return 1;
    }
    if (o->json)
        return print_json(table, o);
    for (uint32_t l = 0; l < TR_LAYERS_MAX; l++)
        if (table->layers[l].experts_count > 0 && (o->only < 0 || o->only == l))
            print_layer(table, l, o->top);
    return 0;
}

int tr_admin_load(const tr_cli_args *args, tr_admin_targets *targets)
{
    load_options o;
    tr_error err = {0};

    if (!options_read(&o, args))
        return 2;
    load_table *table = calloc(1, sizeof(*table));
    if (table == NULL) {
        tr_fail(&err, TR_E_NOMEM, "no memory for the table of experts");
        return tr_cli_fail(&err);
    }
    tr_status status = targets->by_url ? TR_OK : load_find_nodes(targets, &err);
    if (status == TR_OK)
        status = load_ask(table, targets, &err);
    int code = status == TR_OK ? load_show(table, &o) : tr_cli_fail(&err);
    for (uint32_t l = 0; l < TR_LAYERS_MAX; l++)
        free(table->layers[l].experts);
    free(table);
    return code;
}
