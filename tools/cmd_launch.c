/* cmd_launch.c - troupe launch: starts every node of a placement file and serves until interrupted.
 */
#include "core/free_memory.h"
#include "core/model/model_spec.h"
#include "core/trace.h"
#include "tools/admin_client.h"
#include "tools/children.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

static volatile sig_atomic_t launch_stop;

static void launch_on_signal(int number)
{
    (void)number;
    launch_stop = 1;
}

/* A node that ends is started again after a second, then after twice as long each time, up to half
 * a minute; one that has run for a minute begins with a second again. */
#define RESTART_MIN_NS  1000000000u
#define RESTART_MAX_NS  30000000000u
#define RESTART_GOOD_NS 60000000000u

static const tr_cli_option options[] = {
    {"kernels", 0, "NAME", "kernels of all nodes (default cpu: the best of each machine)"},
    {"no-restart", 0, NULL, "leave a node that ends as it is; the others go on without it"},
    {NULL, 0, NULL, NULL},
};

/* Whether the model's files are expected on this machine: not when some nodes stream them, and all
 * that have them are elsewhere. */
static bool launch_has_model(const tr_placement *placement)
{
    bool streams = false;
    for (uint32_t n = 0; n < placement->nodes_count; n++) {
        if (!placement->nodes[n].streams && tr_placement_is_here(placement->nodes[n].host))
            return true;
        streams |= placement->nodes[n].streams;
    }
    return !streams;
}

/* What would be wrong on every node is said once, before anything is started, where it can be seen.
 */
static tr_status launch_check(const tr_placement *placement, tr_error *err)
{
    tr_model *model;
    tr_plan_shape shape;
    tr_plan plan;

    if (!launch_has_model(placement))
        return TR_OK;
    tr_status status = tr_model_open(&model, placement->model, err);
    if (status != TR_OK)
        return status;
    tr_model_plan_shape(model, &shape);
    tr_model_close(model);
    status = tr_plan_make(&plan, placement, &shape, err);
    if (status == TR_OK)
        tr_plan_free(&plan);
    return status;
}

/* Lets the nodes that are left notice by themselves that a peer is gone, so that running answers
 * end with that reason; at most 3 s. */
static void launch_let_end(tr_children *children)
{
    uint64_t deadline = tr_clock_ns() + 3000000000u;
    uint32_t node;
    int code;
    while (children->count > 0 && !launch_stop && tr_clock_ns() < deadline)
        if (!tr_children_ended(children, &node, &code))
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* Whether a node says that it runs; waits a moment for its answer. */
static bool launch_node_ready(const tr_placement_node *node)
{
    tr_control_client *client = NULL;
    tr_control_reply reply = {0};
    msgpack_sbuffer request;
    msgpack_packer pk;
    bool ready = false;

    if (tr_control_client_open(&client, node->control, NULL) != TR_OK)
        return false;
    msgpack_sbuffer_init(&request);
    msgpack_packer_init(&pk, &request, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&pk, 1);
    tr_pack_text(&pk, "method", "ready");
    if (tr_control_call(client, &request, tr_clock_ns() + 200000000, &reply, NULL) == TR_OK)
        (void)tr_map_bool(reply.map, "ready", &ready); /* absent: not ready */
    tr_control_reply_free(&reply);
    msgpack_sbuffer_destroy(&request);
    tr_control_client_close(client);
    return ready;
}

/* When a node was started last, and when it is to be started again. */
typedef struct {
    uint64_t begin_ns;
    uint64_t wait_ns; /* before the next start */
    uint64_t due_ns;  /* 0: it runs, or is left as it is */
} launch_node;

typedef struct {
    tr_children children;
    const tr_placement *placement;
    const char *kernels; /* NULL: the default */
    uint64_t free_bytes; /* before the first node: those that start again get the same budget */
    bool restarts;
    uint32_t ready; /* nodes that run, in order, while they start */
    launch_node nodes[TR_NODES_MAX];
} launch;

static tr_status launch_start(launch *l, uint32_t node, tr_error *err)
{
    l->nodes[node].begin_ns = tr_clock_ns();
    l->nodes[node].due_ns = 0;
    return tr_children_start(&l->children, l->placement, node, l->kernels, l->free_bytes, true,
                             err);
}

/* A node has failed, and the others go on: when it is started again. */
static void launch_plan_restart(launch *l, uint32_t node)
{
    launch_node *n = &l->nodes[node];
    uint64_t now = tr_clock_ns();

    n->wait_ns = n->wait_ns == 0 || now - n->begin_ns > RESTART_GOOD_NS ? RESTART_MIN_NS
                 : 2 * n->wait_ns < RESTART_MAX_NS                      ? 2 * n->wait_ns
                                                                        : RESTART_MAX_NS;
    n->due_ns = now + n->wait_ns;
    fprintf(stderr, "troupe: node %s is started again in %.0f s\n", l->placement->nodes[node].name,
            (double)n->wait_ns / 1e9);
}

static void launch_restart_due(launch *l)
{
    tr_error err;
    for (uint32_t n = 0; n < l->placement->nodes_count; n++)
        if (l->nodes[n].due_ns != 0 && tr_clock_ns() >= l->nodes[n].due_ns &&
            launch_start(l, n, &err) != TR_OK) {
            fprintf(stderr, "troupe: %s\n", err.text);
            launch_plan_restart(l, n);
        }
}

/* What becomes of a node's end. False: it is the end of all. */
static bool launch_on_end(launch *l, uint32_t node, int code)
{
    const tr_placement *p = l->placement;

    if (code == 0) /* somebody has told it to */
        return true;
    fprintf(stderr, "troupe: node %s ended with code %d%s\n", p->nodes[node].name, code,
            code > 128 ? " (killed)" : "");
    if (p->limits.exit_on_peer_loss || node == p->batcher_node || l->ready < p->nodes_count) {
        launch_let_end(&l->children);
        return false;
    }
    if (l->restarts)
        launch_plan_restart(l, node);
    return true;
}

/* Waits for a signal, or for a node that fails; returns the exit code. While the nodes start, any
 * failure ends them all; later only that of the batcher's node does, unless the file says that none
 * may be lost. */
static int launch_wait(launch *l)
{
    const tr_placement *p = l->placement;
    bool failed = false;
    while (!launch_stop && l->children.count > 0) {
        uint32_t node;
        int code;
        if (tr_children_ended(&l->children, &node, &code)) {
            bool ends = !launch_on_end(l, node, code);
            failed |= code != 0 && (ends || !l->restarts);
            if (ends)
                break;
            continue;
        }
        launch_restart_due(l);
        if (l->ready < p->nodes_count && launch_node_ready(&p->nodes[l->ready]))
            l->ready++;
        else
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* a signal cuts it short */
    }
    return failed;
}

static int launch_main(const tr_cli_args *args)
{
    tr_placement placement;
    launch l = {.placement = &placement,
                .kernels = tr_cli_get(args, "kernels"),
                .restarts = !tr_cli_has(args, "no-restart")};
    tr_error err;

    tr_status status = tr_placement_read(&placement, tr_cli_positional(args, 0), &err);
    if (status != TR_OK)
        return tr_cli_fail(&err);
    (void)tr_free_memory(&l.free_bytes, NULL); /* else a node that needs it looks, and says why */
    struct sigaction action = {.sa_handler = launch_on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    status = launch_check(&placement, &err);
    for (uint32_t n = 0; status == TR_OK && n < placement.nodes_count; n++)
        status = launch_start(&l, n, &err);
    int code = status == TR_OK ? launch_wait(&l) : tr_cli_fail(&err);
    tr_children_stop(&l.children, 5000);
    tr_placement_free(&placement);
    return code;
}

const tr_command tr_cmd_launch = {
    .name = "launch",
    .summary = "start every node of a placement file, serve until interrupted",
    .usage = "FILE.yaml",
    .text =
        "Nodes whose host is this machine become child processes; others are started with\n"
        "`ssh HOST troupe node`, where the same file must exist at the same path. The node with\n"
        "the batcher prints where the API is. When another node fails, the others go on without it "
        "if\n"
        "they can hold the model, and it is started again and gets its share back; with\n"
        "exit_on_peer_loss: true all are stopped.",
    .example = "troupe launch tools/examples/two-nodes.yaml",
    .options = options,
    .positionals_min = 1,
    .positionals_max = 1,
    .run = launch_main,
};
