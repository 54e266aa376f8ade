#include "tools/admin_rebalance.h"

#include "core/budget.h"
#include "tools/admin_change.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define THRESHOLD_DEFAULT 2.0 /* percent of a step */
#define NAMES_SIZE        256

static double milliseconds(const msgpack_object *map, const char *key)
{
    return (double)tr_admin_u64(map, key) / 1e6;
}

/* "node0,node1" */
static const char *names_text(const msgpack_object *map, const char *key, char *text, size_t size)
{
    const msgpack_object_array *names = tr_map_list(map, key);
    size_t used = 0;

    text[0] = '\0';
    for (uint32_t i = 0; names != NULL && i < names->size && used < size; i++) {
        const msgpack_object *name = &names->ptr[i];
        if (name->type == MSGPACK_OBJECT_STR)
            used += (size_t)snprintf(text + used, size - used, "%s%.*s", i > 0 ? "," : "",
                                     (int)name->via.str.size, name->via.str.ptr);
    }
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return text;
}

static void print_cost(const msgpack_object *cost)
{
    uint64_t measured = tr_admin_u64(cost, "measured");
    char name[NAMES_SIZE];

    tr_admin_text(cost, "node", name, sizeof(name));
    if (measured == 0)
        printf("  an expert's rows       not measured on %s: it has computed none\n", name);
    else
        printf("  an expert's rows       %10.1f us + %.2f us a row on %s (%" PRIu64
               " times, mean of the layers)\n",
               (double)tr_admin_u64(cost, "expert_ns") / 1e3,
               (double)tr_admin_u64(cost, "row_ns") / 1e3, name, measured);
}

static void print_measured(const msgpack_object *map)
{
    const msgpack_object_array *hops = tr_map_list(map, "hops"), *costs = tr_map_list(map, "costs");
    char names[NAMES_SIZE];
    bool assumed = false;

    printf("measured\n  a step                 %10.3f ms, from forming to tokens (about the last "
           "64)\n",
           milliseconds(map, "step_ns"));
    printf("  experts of a step      %10.3f ms, from their rows to the last sum, with all waits\n",
           milliseconds(map, "experts_ns"));
    for (uint32_t i = 0; costs != NULL && i < costs->size; i++)
        print_cost(&costs->ptr[i]);
    for (uint32_t i = 0; hops != NULL && i < hops->size; i++)
        printf("  one way of a message   %10.1f us between %s (data plane, the shortest)\n",
               (double)tr_admin_u64(&hops->ptr[i], "one_way_ns") / 1e3,
               names_text(&hops->ptr[i], "between", names, sizeof(names)));
    (void)tr_map_bool(map, "costs_assumed", &assumed);
    if (assumed)
        printf("  some node has not computed experts of some layer: the mean of the others is "
               "taken\n");
}

static void print_predicted(const msgpack_object *map)
{
    double step = milliseconds(map, "step_ns"), before = milliseconds(map, "experts_before_ns");
    double after = milliseconds(map, "experts_after_ns");
    int64_t gain_ppm = 0;
    char bytes[32];

    (void)tr_map_i64(map, "gain_ppm", &gain_ppm);
    step = step > before ? step : before; /* as the gain is counted */
    printf("predicted, for %" PRIu64 " recorded steps that were not used to choose\n",
           tr_admin_u64(map, "recorded_steps"));
    printf("  %-22s %10s    %10s\n", "", "now", "after");
    printf("  %-22s %10.3f ms %10.3f ms\n", "experts of a step", before, after);
    printf("  %-22s %10.3f ms %10.3f ms\n", "a step", step, step - (before - after));
    printf("  %-22s %10.1f %%\n", "gain", (double)gain_ppm / 1e4);
    printf("proposed: %" PRIu64 " moves, %" PRIu64 " replicas, %s\n", tr_admin_u64(map, "moves"),
           tr_admin_u64(map, "replicas"),
           tr_bytes_text(bytes, sizeof(bytes), tr_admin_u64(map, "bytes")));
}

/* Neighbours of a layer that go the same way share a line. */
static void print_edits(const msgpack_object_array *edits)
{
    char way[2 * NAMES_SIZE + 32] = "", last[sizeof(way)] = "";
    char before[NAMES_SIZE], after[NAMES_SIZE];

    for (uint32_t i = 0; edits != NULL && i < edits->size; i++) {
        const msgpack_object *edit = &edits->ptr[i];
        snprintf(way, sizeof(way), "%s to %s: expert/%" PRIu64 ".",
                 names_text(edit, "before", before, sizeof(before)),
                 names_text(edit, "after", after, sizeof(after)), tr_admin_u64(edit, "layer"));
        bool same = strcmp(way, last) == 0;
        if (same)
            printf(",%" PRIu64, tr_admin_u64(edit, "expert"));
        else
            printf("%s  %s%" PRIu64, i > 0 ? "\n" : "", way, tr_admin_u64(edit, "expert"));
        memcpy(last, way, sizeof(last));
    }
    if (edits != NULL && edits->size > 0)
        printf("\n");
}

static void print_outcome(const msgpack_object *map, const msgpack_object *change)
{
    bool dry_run = false, changes = false;

    (void)tr_map_bool(map, "dry_run", &dry_run);
    (void)tr_map_bool(map, "changes", &changes);
    if (changes)
        tr_admin_change_print(change);
    else if (dry_run)
        printf("nothing was changed: this was a dry run\n");
    else
        printf("nothing was changed: the gain is below %.1f %%\n",
               (double)tr_admin_u64(map, "threshold_permille") / 10);
}

int tr_admin_rebalance(const tr_cli_args *args, const tr_admin_targets *targets)
{
    bool wrong = false;
    double percent = tr_cli_number(args, "threshold", THRESHOLD_DEFAULT, 0, 100, &wrong);
    const tr_admin_argument arguments[] = {
        {.key = "threshold_permille", .number = (uint64_t)(10 * percent + 0.5)},
        {.key = "dry_run", .number = tr_cli_has(args, "dry-run")},
    };
    const tr_admin_target *target = NULL;
    tr_admin_argument ask = {.key = "change"};
    tr_control_reply change, result = {0};
    tr_error err = {0};
    uint64_t number = 0;

    if (wrong)
        return 2;
    int code = tr_admin_change_begin(targets, "rebalance", arguments, 2, &target, &number);
    if (code != 0)
        return code;
    code = tr_admin_change_follow(target, number, &change);
    ask.number = number;
    if (code == 0 && tr_admin_request(target, "rebalance_result", &ask, 1, &result, &err) != TR_OK)
        code = tr_cli_fail(&err);
    if (change.map != NULL && tr_cli_has(args, "json")) {
        json_t *found = result.map != NULL ? tr_admin_json(result.map) : NULL;
        code |= tr_admin_print_json(
            json_pack("{s:o*, s:o}", "rebalance", found, "change", tr_admin_json(change.map)));
    } else if (code == 0) {
        print_measured(result.map);
        print_predicted(result.map);
        print_edits(tr_map_list(result.map, "edits"));
        print_outcome(result.map, change.map);
    }
    tr_control_reply_free(&result);
    tr_control_reply_free(&change);
    return code;
}
