#include "tools/trace_fetch.h"
#include "tools/trace_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Asks every target; those that do not answer are named on standard error and left out. Returns
 * how many answered. */
static uint32_t fetch_all(tr_trace_node *nodes, const tr_admin_targets *targets)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < targets->count; i++) {
        const tr_admin_target *target = &targets->rows[i];
        tr_error err = {0};
        if (tr_trace_fetch(&nodes[count], target, &err) == TR_OK)
            count++;
        else
            fprintf(stderr, "troupe: %s is missing in the trace: %s\n",
                    target->name[0] != '\0' ? target->name : target->url, err.text);
        tr_cli_progress("asked", i + 1, targets->count, "nodes");
    }
    /* The offsets were measured against our clock; the trace wants them against the first node's.
     */
    for (uint32_t i = count; i-- > 0;)
        nodes[i].clock_offset_ns -= nodes[0].clock_offset_ns;
    return count;
}

static tr_status write_file(const tr_trace_join *join, const tr_trace_node *nodes,
                            uint32_t nodes_count, const char *path, tr_error *err)
{
    FILE *out = fopen(path, "we");

    if (out == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
    tr_trace_json_write(join, nodes, nodes_count, out);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        return tr_fail(err, TR_E_INVALID, "%s: writing failed: %s", path, strerror(errno));
    return TR_OK;
}

static tr_status write_trace(const tr_trace_node *nodes, uint32_t nodes_count, const char *path,
                             tr_error *err)
{
    tr_trace_join join;
    tr_status status = tr_trace_join_make(&join, nodes, nodes_count, err);

    if (status != TR_OK)
        return status;
    status = write_file(&join, nodes, nodes_count, path, err);
    if (status == TR_OK)
        printf("%s: %u nodes, %zu events, %zu arrows; open it in https://ui.perfetto.dev\n", path,
               nodes_count, join.slices_count, join.arrows_count);
    tr_trace_join_free(&join);
    return status;
}

static int trace_run(const tr_cli_args *args)
{
    const char *path = tr_cli_get(args, "output");
    tr_trace_node nodes[TR_NODES_MAX];
    tr_admin_targets targets;
    tr_error err = {0};

    if (strcmp(tr_cli_positional(args, 0), "dump") != 0)
        return tr_cli_usage(args, "'%s' is not dump", tr_cli_positional(args, 0));
    if (path == NULL)
        return tr_cli_usage(args, "-o FILE is missing");
    int code = tr_admin_targets_read(&targets, args);
    if (code != 0)
        return code;
    if (targets.count == 1 && tr_admin_targets_expand(&targets, &err) != TR_OK)
        return tr_cli_fail(&err);

    uint32_t count = fetch_all(nodes, &targets);
    if (count == 0)
        return 1; /* each has been named */
    tr_status status = write_trace(nodes, count, path, &err);
    for (uint32_t i = 0; i < count; i++)
        tr_trace_node_free(&nodes[i]);
    if (status != TR_OK)
        return tr_cli_fail(&err);
    return count == targets.count ? 0 : 1;
}

static const tr_cli_option trace_options[] = {
    {"output", 'o', "FILE", "where the trace goes (Chrome trace JSON)"},
    TR_ADMIN_OPTIONS,
    {NULL, 0, NULL, NULL},
};

const tr_command tr_cmd_trace = {
    .name = "trace",
    .summary = "writes one trace of all nodes, for Perfetto or chrome://tracing",
    .usage = "dump -o FILE.json [--node URL]... [--placement FILE]",
    .text =
        "Every node keeps its newest events: requests, steps, messages, kernels. dump asks all\n"
        "nodes (if one is named: those that it knows), puts them on one time axis and draws an\n"
        "arrow from each send to its receive.",
    .example = "troupe trace dump -o trace.json",
    .options = trace_options,
    .positionals_min = 1,
    .positionals_max = 1,
    .run = trace_run,
};
