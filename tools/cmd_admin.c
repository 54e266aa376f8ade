#include "core/budget.h"
#include "tools/admin_change.h"
#include "tools/admin_load.h"
#include "tools/admin_rebalance.h"
#include "tools/json_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEXT_SIZE 256

/* "183.0 us", "1.5 s" */
static const char *duration_text(char *text, size_t size, double ns)
{
    static const struct {
        double ns;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}};

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (ns >= units[i].ns || ns <= -units[i].ns) {
            snprintf(text, size, "%.1f %s", ns / units[i].ns, units[i].name);
            return text;
        }
    }
    snprintf(text, size, "%.0f ns", ns);
    return text;
}

/* -- status -- */

static void print_memory(const msgpack_object *memory)
{
    const msgpack_object_array *parts = tr_map_list(memory, "parts");
    uint64_t limit = tr_admin_u64(memory, "limit_bytes");
    char name[TEXT_SIZE], bytes[32];

    printf("  memory      %s",
           tr_bytes_text(bytes, sizeof(bytes), tr_admin_u64(memory, "used_bytes")));
    if (limit > 0)
        printf(" of %s", tr_bytes_text(bytes, sizeof(bytes), limit));
    printf("\n");
    for (uint32_t i = 0; parts != NULL && i < parts->size; i++)
        printf("    %-30s %12s\n", tr_admin_text(&parts->ptr[i], "part", name, sizeof(name)),
               tr_bytes_text(bytes, sizeof(bytes), tr_admin_u64(&parts->ptr[i], "bytes")));
}

static void print_peers(const msgpack_object *map)
{
    const msgpack_object_array *peers = tr_map_list(map, "peers");
    char name[TEXT_SIZE], path[TEXT_SIZE], offset[32], round_trip[32];

    printf("  peers         %-20s %-6s %-12s %14s %14s\n", "name", "state", "path", "clock offset",
           "round trip");
    for (uint32_t i = 0; peers != NULL && i < peers->size; i++) {
        const msgpack_object *peer = &peers->ptr[i];
        bool self = false, alive = false;
        int64_t offset_ns = 0;
        (void)tr_map_bool(peer, "self", &self);
        (void)tr_map_bool(peer, "alive", &alive);
        (void)tr_map_i64(peer, "clock_offset_ns", &offset_ns);
        if (self)
            continue;
        printf("                %-20s %-6s %-12s %14s %14s\n",
               tr_admin_text(peer, "name", name, sizeof(name)), alive ? "alive" : "gone",
               tr_admin_text(peer, "path", path, sizeof(path)),
               duration_text(offset, sizeof(offset), (double)offset_ns),
               duration_text(round_trip, sizeof(round_trip),
                             (double)tr_admin_u64(peer, "round_trip_ns")));
    }
}

static void print_requests(const msgpack_object *stats)
{
    printf("  requests    %" PRIu64 " running of %" PRIu64 ", %" PRIu64 " waiting, %" PRIu64
           " finished, %" PRIu64 " failed\n",
           tr_admin_u64(stats, "sequences_active"), tr_admin_u64(stats, "sequences_max"),
           tr_admin_u64(stats, "requests_waiting"), tr_admin_u64(stats, "requests_finished"),
           tr_admin_u64(stats, "requests_failed"));
    printf("  tokens      %" PRIu64 " read, %" PRIu64 " generated, in %" PRIu64 " steps\n",
           tr_admin_u64(stats, "prompt_tokens"), tr_admin_u64(stats, "generated_tokens"),
           tr_admin_u64(stats, "steps"));
    printf("  prefixes    %" PRIu64 " kept, %" PRIu64 " tokens taken from them\n",
           tr_admin_u64(stats, "prefixes_kept"), tr_admin_u64(stats, "cached_tokens"));
}

static void print_status(const msgpack_object *map)
{
    const msgpack_object *model = tr_map_get(map, "model");
    const msgpack_object *stats = tr_map_get(map, "stats");
    char a[TEXT_SIZE], b[1024];
    bool batcher = false;

    printf("%s: %s\n", tr_admin_text(map, "node", a, sizeof(a)),
           tr_admin_text(map, "health_text", b, sizeof(b)));
    printf("  model       %s", tr_admin_text(model, "path", b, sizeof(b)));
    printf(" (%s), %" PRIu64 " layers, context %" PRIu64 " tokens\n",
           tr_admin_text(model, "architecture", a, sizeof(a)), tr_admin_u64(model, "layers"),
           tr_admin_u64(model, "context_tokens"));
    (void)tr_map_bool(map, "batcher", &batcher);
    if (batcher) {
        if (tr_admin_u64(map, "api_port") != 0)
            printf("  API         http://%s:%" PRIu64 "\n",
                   tr_admin_text(map, "api_host", a, sizeof(a)), tr_admin_u64(map, "api_port"));
        print_requests(stats);
    }
    printf("  KV pages    %" PRIu64 " used of %" PRIu64 "\n", tr_admin_u64(stats, "kv_pages_used"),
           tr_admin_u64(stats, "kv_pages_max"));
    print_memory(tr_map_get(map, "memory"));
    print_peers(map);
}

/* -- actors -- */

static void print_actor(const msgpack_object *actor)
{
    char name[TEXT_SIZE], kind[TEXT_SIZE], mailbox[48], busy[32], state[32] = "ok";
    bool failed = false;

    (void)tr_map_bool(actor, "failed", &failed);
    if (failed)
        snprintf(state, sizeof(state), "failed");
    else if (tr_admin_u64(actor, "restarts") > 0)
        snprintf(state, sizeof(state), "restarted %" PRIu64, tr_admin_u64(actor, "restarts"));
    snprintf(mailbox, sizeof(mailbox), "%" PRIu64 "/%" PRIu64, tr_admin_u64(actor, "mailbox_depth"),
             tr_admin_u64(actor, "mailbox_slots"));
    printf("  %-36s %-16s %6" PRIu64 " %10s %12" PRIu64 " %10s  %s\n",
           tr_admin_text(actor, "name", name, sizeof(name)),
           tr_admin_text(actor, "kind", kind, sizeof(kind)), tr_admin_u64(actor, "worker"), mailbox,
           tr_admin_u64(actor, "received"),
           duration_text(busy, sizeof(busy), (double)tr_admin_u64(actor, "busy_ns")), state);
}

static void print_actors(const msgpack_object *map)
{
    const msgpack_object_array *actors = tr_map_list(map, "actors");
    char name[TEXT_SIZE];

    printf("%s\n  %-36s %-16s %6s %10s %12s %10s  %s\n",
           tr_admin_text(map, "node", name, sizeof(name)), "actor", "kind", "worker", "mailbox",
           "received", "busy", "state");
    for (uint32_t i = 0; actors != NULL && i < actors->size; i++)
        print_actor(&actors->ptr[i]);
}

static void print_shutdown(const msgpack_object *map)
{
    char name[TEXT_SIZE];

    printf("%s shuts down\n", tr_admin_text(map, "node", name, sizeof(name)));
}

/* -- the command -- */

typedef struct {
    const char *name; /* of the sub-command and of the method */
    void (*print)(const msgpack_object *map);
    bool ends_nodes; /* the whole cluster, unless single nodes were named */
} admin_action;

static const admin_action actions[] = {
    {"status", print_status, false},
    {"actors", print_actors, false},
    {"shutdown", print_shutdown, true},
};

static const admin_action *find_action(const char *name)
{
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(actions[i].name, name) == 0)
            return &actions[i];
    return NULL;
}

/* What one node said, as a member of the JSON document. */
static json_t *json_of_answer(const tr_admin_target *target, const tr_control_reply *reply,
                              const tr_error *err)
{
    json_t *answer = reply->map != NULL ? tr_admin_json(reply->map)
                                        : json_pack("{s:b, s:o}", "ok", 0, "error",
                                                    tr_json_out_text(err->text, strlen(err->text)));

    if (answer != NULL)
        (void)json_object_set_new(answer, "url",
                                  tr_json_out_text(target->url, strlen(target->url)));
    return answer;
}

/* Asks one node; prints, or appends to document when there is one. Returns whether it answered. */
static bool ask_node(const admin_action *action, const char *method, const tr_admin_target *target,
                     json_t *document)
{
    tr_control_reply reply;
    tr_error err = {0};
    bool answered = tr_admin_ask(target, method, &reply, &err) == TR_OK;

    if (document != NULL)
        (void)json_array_append_new(document, json_of_answer(target, &reply, &err));
    else if (answered)
        action->print(reply.map);
    if (!answered)
        fprintf(stderr, "troupe: %s%s%s\n", target->name, target->name[0] != '\0' ? ": " : "",
                err.text);
    tr_control_reply_free(&reply);
    return answered;
}

static int admin_run(const tr_cli_args *args)
{
    const char *name = tr_cli_positional(args, 0);
    const admin_action *action = find_action(name);
    uint32_t words = tr_admin_change_words(name), answered = 0;
    bool load = strcmp(name, "load") == 0, rebalance = strcmp(name, "rebalance") == 0;
    bool abort = strcmp(name, "abort") == 0;
    tr_admin_targets targets;

    if (action == NULL && words == 0 && !load && !rebalance && !abort)
        return tr_cli_usage(args, "'%s' is nothing to ask nodes for", name);
    if (!load && (tr_cli_has(args, "layer") || tr_cli_has(args, "top")))
        return tr_cli_usage(args, "--layer and --top belong to load");
    if (!rebalance && (tr_cli_has(args, "dry-run") || tr_cli_has(args, "threshold")))
        return tr_cli_usage(args, "--dry-run and --threshold belong to rebalance");
    if ((words > 0 && tr_cli_positional(args, words) == NULL) ||
        tr_cli_positional(args, words + 1) != NULL)
        return tr_cli_usage(args, "%s takes %s", name,
                            words == 2   ? "PART NODE"
                            : words == 1 ? "one more word"
                                         : "no more words");
    int code = tr_admin_targets_read(&targets, args);
    if (code != 0)
        return code;
    if (words > 0)
        return tr_admin_change(args, &targets);
    if (abort)
        return tr_admin_change_abort(args, &targets);
    if (load)
        return tr_admin_load(args, &targets);
    if (rebalance)
        return tr_admin_rebalance(args, &targets);
    bool ends_all = action->ends_nodes && !targets.by_url;
    const char *method = ends_all ? "shutdown_all" : action->name;
    json_t *document = tr_cli_has(args, "json") ? json_array() : NULL;
    for (uint32_t i = 0; i < targets.count; i++)
        answered += ask_node(action, method, &targets.rows[i], document);
    if (document != NULL && tr_admin_print_json(json_pack("{s:o}", "nodes", document)))
        return 1;
    /* Told by the first, the others may be gone before they are asked. */
    return answered == targets.count || (ends_all && answered > 0) ? 0 : 1;
}

static const tr_cli_option admin_options[] = {
    TR_ADMIN_OPTIONS,
    {"json", 0, NULL, "machine-readable output"},
    {"layer", 0, "N", "load: this layer only"},
    {"top", 0, "N", "load: the N hottest experts of a layer (default 8; with --json all)"},
    {"dry-run", 0, NULL, "rebalance: only say what would be done"},
    {"threshold", 0, "PERCENT", "rebalance: least gain of a step that is worth it (default 2)"},
    {NULL, 0, NULL, NULL},
};

const tr_command tr_cmd_admin = {
    .name = "admin",
    .summary = "asks running nodes for status and load, moves parts between them, ends them",
    .usage = "status|actors|load|shutdown [--node URL]... [--placement FILE] [--json]\n"
             "                    [--layer N] [--top N]\n"
             "       troupe admin move PART NODE|replicate PART NODE|drain NODE|undrain NODE ...\n"
             "       troupe admin abort ...\n"
             "       troupe admin snapshot FILE|restore FILE ...\n"
             "       troupe admin rebalance [--dry-run] [--threshold PERCENT] ...",
    .text =
        "status    health, model, memory, requests and peers of a node\n"
        "actors    each actor: mailbox, messages received, busy time, restarts\n"
        "load      the experts of each layer by heat: their share of the routed rows since the\n"
        "          nodes started, on which nodes they stand, how long a step's rows took\n"
        "move      lets a part of the model stand on another node while requests run:\n"
        "          expert/LAYERS.EXPERTS, slice/LAYERS.SLICES, attention/LAYERS.TERMS,\n"
        "          layers/LAYERS, router/LAYERS, vocabulary/ROWS, sampler or ngram; ranges are a,\n"
        "          a-b or all\n"
        "replicate lets experts (expert/LAYERS.EXPERTS) or routers (router/LAYERS) stand on a\n"
        "          node, too; a move leaves a part on that node alone\n"
        "drain     moves everything off a node\n"
        "undrain   gives a node back what the placement file gives it\n"
        "abort     ends what is under way of all these, of a rebalance, snapshot or restore, as\n"
        "          long as no node has gone over to it: nothing has changed then\n"
        "rebalance measures how rows were routed, how long experts take and how far the nodes "
        "are;\n"
        "          predicts a step's time if experts moved or had replicas; prints both and the\n"
        "          gain, and makes the change when that is worth it\n"
        "snapshot  writes the states of all running requests and of kept prompts\n"
        "          (limits.prefix_cache) into a file on the batcher's node\n"
        "restore   takes them back, after a restart and also under another placement: prompts "
        "that\n"
        "          begin alike are not computed again, and a request that had not ended goes on\n"
        "          when it is asked again\n"
        "shutdown  ends the whole cluster; with --node: that node only, and its peers will say\n"
        "          that it is gone",
    .example = "troupe admin move expert/0-3.0-7 spark2 --placement tools/examples/two-nodes.yaml",
    .options = admin_options,
    .positionals_min = 1,
    .positionals_max = 3,
    .run = admin_run,
};
