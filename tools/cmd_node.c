/* cmd_node.c - troupe node: one node process; what launch starts, and what Slurm or systemd would.
 */
#include "actors/cluster.h"
#include "api/admin.h"
#include "api/admin_changes.h"
#include "api/admin_load.h"
#include "api/admin_rebalance.h"
#include "api/admin_snapshot.h"
#include "api/server.h"
#include "core/free_memory.h"
#include "core/log.h"
#include "tools/cli.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* When a peer was lost: time in which running answers are told so, before the server stops. */
#define GOODBYE_NS 300000000

/* How often a node that comes back is opened anew because the placement has changed meanwhile. */
#define JOINS_MAX 20

static const tr_cli_option options[] = {
    {"placement", 0, "FILE.yaml", "the cluster's placement file (required)"},
    {"name", 0, "NAME", "which of its nodes this is (required)"},
    {"kernels", 0, "NAME", "cpu, cpu-avx512, cpu-avx2, cpu-neon, cpu-portable (default cpu)"},
    {"free-memory", 0, "BYTES", "free here before the first node started (default: free now)"},
    {NULL, 0, NULL, NULL},
};

/* What a node owns, in the order in which it is opened. */
typedef struct {
    tr_placement placement;
    uint32_t index;
    uint64_t free_bytes; /* of this machine, when the process began */
    tr_cluster *cluster;
    tr_tokenizer *tokenizer;
    tr_chat_template *chat_template;
    tr_server *server; /* only where the batcher is, and unless api.port is 0 */
} node_state;

static tr_cluster *volatile node_signalled; /* NULL while there is none */
static volatile sig_atomic_t node_stop;

static void node_on_signal(int number)
{
    (void)number;
    node_stop = 1;
    if (node_signalled != NULL)
        tr_cluster_request_shutdown(node_signalled);
}

static void node_on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    tr_cli_progress(what, done, total, "bytes");
}

static void node_health(void *ctx, tr_health *out)
{
    tr_cluster_health(ctx, out);
}

static const char *node_model_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static tr_status node_open_server(node_state *n, tr_error *err)
{
    const tr_model_spec *spec = tr_model_get_spec(tr_cluster_model(n->cluster));
    const char *model = tr_model_path(tr_cluster_model(n->cluster));

    tr_status status = tr_tokenizer_open(&n->tokenizer, model, err);
    if (status != TR_OK)
        return status;
    status = tr_chat_template_open(&n->chat_template, model, err);
    if (status == TR_E_NOTSUP) /* the model has none: completions only */
        n->chat_template = NULL;
    else if (status != TR_OK)
        return status;
    tr_server_config config = {.host = n->placement.api_host,
                               .port = n->placement.api_port,
                               .cluster = n->cluster,
                               .health = node_health,
                               .health_ctx = n->cluster,
                               .tokenizer = n->tokenizer,
                               .chat_template = n->chat_template,
                               .model_name = node_model_name(model),
                               .context_max = tr_cluster_context_max(n->cluster),
                               .default_temperature = spec->default_temperature,
                               .default_top_p = spec->default_top_p,
                               .stop_tokens = spec->eos_tokens,
                               .stop_tokens_count = spec->eos_tokens_count};
    return tr_server_open(&n->server, &config, err);
}

static bool node_serves_api(const node_state *n)
{
    return n->placement.batcher_node == n->index && n->placement.api_port != 0;
}

static tr_status node_open(node_state *n, const tr_cli_args *args, tr_error *err)
{
    const char *name = tr_cli_get(args, "name");
    tr_cluster_options options_of_cluster = {.kernels = tr_cli_get(args, "kernels"),
                                             .progress = node_on_progress,
                                             .may_join = true,
                                             .free_bytes = n->free_bytes};

    tr_status status = tr_placement_read(&n->placement, tr_cli_get(args, "placement"), err);
    if (status != TR_OK)
        return status;
    n->index = tr_placement_find_node(&n->placement, name);
    if (n->index == TR_NODES_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: nodes: there is no node \"%s\"", n->placement.source,
                       name);
    if (strcmp(n->placement.transport, "loop") == 0 && n->placement.nodes_count > 1)
        return tr_fail(err, TR_E_INVALID,
                       "%s: transport: \"loop\" is inside one process, expected ucx or nng",
                       n->placement.source);
    tr_log_set_node(name);
    if (node_serves_api(n))
        options_of_cluster.front_end_bytes = tr_server_bytes();
    status = tr_cluster_open(&n->cluster, &n->placement, n->index, &options_of_cluster, err);
    if (status != TR_OK)
        return status;
    tr_admin_register(n->cluster);
    tr_admin_changes_register(n->cluster);
    tr_admin_load_register(n->cluster);
    tr_admin_rebalance_register(n->cluster);
    tr_admin_snapshot_register(n->cluster);
    if (node_serves_api(n))
        status = node_open_server(n, err);
    return status;
}

static tr_status node_serve(node_state *n, tr_error *err)
{
    tr_status status;
    node_signalled = n->cluster;
    if (node_stop)
        return TR_OK; /* a signal came before */
    struct sigaction action = {.sa_handler = node_on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);

    if (n->server != NULL && (status = tr_server_start(n->server, err)) != TR_OK)
        return status;
    status = tr_cluster_start(n->cluster, err);
    if (status == TR_E_CANCELED)
        return TR_OK; /* a signal came while the peers were not there yet */
    if (status != TR_OK)
        return status;
    if (n->server != NULL)
        printf("api http://%s:%u\n", n->placement.api_host, tr_server_port(n->server));
    printf("admin %s\n", n->placement.nodes[n->index].control);
    fflush(stdout);
    tr_log(TR_LOG_INFO, NULL, "serving", "nodes=%u memory_bytes=%llu", n->placement.nodes_count,
           (unsigned long long)tr_budget_total(tr_cluster_budget(n->cluster)));
    status = tr_cluster_wait_shutdown(n->cluster, UINT64_MAX, err);
    if (status == TR_E_PEER && n->server != NULL)
        nanosleep(&(struct timespec){.tv_nsec = GOODBYE_NS}, NULL);
    return status;
}

static void node_close(node_state *n)
{
    if (n->server != NULL)
        tr_server_stop(n->server);
    if (n->cluster != NULL)
        tr_cluster_stop(n->cluster);
    tr_server_close(n->server);
    if (n->chat_template != NULL)
        tr_chat_template_close(n->chat_template);
    if (n->tokenizer != NULL)
        tr_tokenizer_close(n->tokenizer);
    if (n->cluster != NULL)
        tr_cluster_close(n->cluster);
    tr_placement_free(&n->placement);
}

static int node_main(const tr_cli_args *args)
{
    node_state node = {0};
    tr_error err;
    tr_status status;
    int joins = 0;
    bool wrong = false;
    uint64_t free_bytes = (uint64_t)tr_cli_integer(args, "free-memory", 0, 1, LLONG_MAX, &wrong);

    if (wrong)
        return 2;

    if (!tr_cli_has(args, "placement") || !tr_cli_has(args, "name")) {
        fprintf(stderr, "troupe node: --placement and --name are required\n");
        return 2;
    }
    /* Once: a node that begins anew keeps its budget. Unknown: the cluster says so if it matters.
     */
    if (free_bytes == 0)
        (void)tr_free_memory(&free_bytes, NULL);
    for (;;) {
        node = (node_state){.free_bytes = free_bytes};
        status = node_open(&node, args, &err);
        if (status == TR_OK)
            status = node_serve(&node, &err);
        if (status != TR_E_AGAIN || node_stop || ++joins > JOINS_MAX)
            break;
        tr_log(TR_LOG_INFO, NULL, "begins_anew", "reason=\"%s\"", err.text);
        node_signalled = NULL;
        node_close(&node);
        node = (node_state){0};
        /* Opening is long and owes nobody a goodbye: until it is done a signal just ends it. */
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        if (node_stop) {
            status = TR_OK;
            break;
        }
    }
    int code = status == TR_OK ? 0 : tr_cli_fail(&err);
    node_close(&node);
    return code;
}

const tr_command tr_cmd_node = {
    .name = "node",
    .summary = "run one node of a placement file",
    .usage = "--placement FILE.yaml --name NAME",
    .text =
        "Starts one node and waits for the others. `troupe launch` starts all of them; use this\n"
        "where something else starts processes. The node with the batcher serves the API.",
    .example = "troupe node --placement tools/examples/two-nodes.yaml --name spark1",
    .options = options,
    .run = node_main,
};
