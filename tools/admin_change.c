#include "tools/admin_change.h"

#include "core/budget.h"
#include "core/trace.h"
#include "tools/admin_snapshot.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define POLL_NS        20000000
#define SILENCE_MAX_NS 10000000000u /* of the node that coordinates */

void tr_admin_change_print(const msgpack_object *map)
{
    char what[256], bytes[32];
    uint64_t moved = tr_admin_u64(map, "moved");

    printf("%s: %llu %s in %.2f s (%s loaded or fetched)\n",
           tr_admin_text(map, "what", what, sizeof(what)), (unsigned long long)moved,
           moved == 1 ? "part" : "parts", (double)tr_admin_u64(map, "total_ns") / 1e9,
           tr_bytes_text(bytes, sizeof(bytes), tr_admin_u64(map, "bytes")));
    printf("  prepare       %10.1f ms, while everything was served\n",
           (double)tr_admin_u64(map, "prepare_ns") / 1e6);
    printf("  pause         %10.1f ms, %s fetched meanwhile\n",
           (double)tr_admin_u64(map, "pause_ns") / 1e6,
           tr_bytes_text(bytes, sizeof(bytes), tr_admin_u64(map, "pause_bytes")));
    if (tr_admin_u64(map, "gap_ns") > 0)
        printf("  longest gap   %10.1f ms between two tokens of a stream\n",
               (double)tr_admin_u64(map, "gap_ns") / 1e6);
    printf("  epoch         %10llu\n", (unsigned long long)tr_admin_u64(map, "epoch"));
}

/* What people write behind a change's name, by the keys of its request. */
static const struct {
    const char *name;
    const char *keys[2];
    void (*print)(const msgpack_object *map);
} changes[] = {
    {"move", {"part", "to"}, tr_admin_change_print},
    {"replicate", {"part", "to"}, tr_admin_change_print},
    {"drain", {"from"}, tr_admin_change_print},
    {"undrain", {"to"}, tr_admin_change_print},
    {"snapshot", {"file"}, tr_admin_snapshot_print},
    {"restore", {"file"}, tr_admin_snapshot_print},
};

static size_t change_find(const char *name)
{
    size_t i = 0;
    while (i < sizeof(changes) / sizeof(changes[0]) && strcmp(changes[i].name, name) != 0)
        i++;
    return i;
}

uint32_t tr_admin_change_words(const char *name)
{
    size_t i = change_find(name);
    if (i == sizeof(changes) / sizeof(changes[0]))
        return 0;
    return changes[i].keys[1] != NULL ? 2 : 1;
}

/* The nodes know which of them coordinates: the first that does not send us on. */
int tr_admin_change_begin(const tr_admin_targets *targets, const char *method,
                          const tr_admin_argument *arguments, uint32_t arguments_count,
                          const tr_admin_target **target, uint64_t *number)
{
    tr_status status = TR_E_INVALID;
    tr_error err = {0};

    for (uint32_t i = 0; i < targets->count; i++) {
        tr_control_reply reply;
        *target = &targets->rows[i];
        status = tr_admin_request(*target, method, arguments, arguments_count, &reply, &err);
        if (status == TR_OK)
            *number = tr_admin_u64(reply.map, "change");
        tr_control_reply_free(&reply);
        if (status == TR_OK || strstr(err.text, "changes of placement are made on") == NULL)
            break;
    }
    return status == TR_OK ? 0 : tr_cli_fail(&err);
}

/* How the change stands. A node that does not answer is asked again for a while, because asking is
 * harmless: it is busy, or the wire was cut for a moment, and the change goes on meanwhile. */
static tr_status change_ask(const tr_admin_target *target, uint64_t number, tr_control_reply *reply,
                            tr_error *err)
{
    const tr_admin_argument ask = {.key = "change", .number = number};
    uint64_t deadline_ns = tr_clock_ns() + SILENCE_MAX_NS;

    for (;;) {
        tr_status status = tr_admin_request(target, "change", &ask, 1, reply, err);
        if ((status != TR_E_TIMEOUT && status != TR_E_PEER) || tr_clock_ns() >= deadline_ns)
            return status;
        tr_control_reply_free(reply);
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

/* Waits for the end of a change, and tells its phases meanwhile. *done: else it has failed. */
static tr_status change_await(const tr_admin_target *target, uint64_t number,
                              tr_control_reply *reply, bool *done, tr_error *err)
{
    char phase[32] = "", last[32] = "";

    for (;;) {
        tr_status status = change_ask(target, number, reply, err);
        if (status != TR_OK)
            return status;
        (void)tr_admin_text(reply->map, "phase", phase, sizeof(phase));
        *done = strcmp(phase, "done") == 0;
        if (*done || strcmp(phase, "failed") == 0)
            return TR_OK;
        if (strcmp(phase, last) != 0)
            fprintf(stderr, "%s ...\n", phase);
        memcpy(last, phase, sizeof(last));
        tr_control_reply_free(reply);
        struct timespec t = {.tv_nsec = POLL_NS};
        nanosleep(&t, NULL);
    }
}

int tr_admin_change_follow(const tr_admin_target *target, uint64_t number, tr_control_reply *reply)
{
    char why[512];
    bool done = false;
    tr_error err = {0};

    if (change_await(target, number, reply, &done, &err) != TR_OK)
        return tr_cli_fail(&err);
    if (!done)
        fprintf(stderr, "troupe: the change failed: %s\n",
                tr_admin_text(reply->map, "why", why, sizeof(why)));
    return done ? 0 : 1;
}

int tr_admin_change_abort(const tr_cli_args *args, const tr_admin_targets *targets)
{
    const tr_admin_target *target = NULL;
    tr_control_reply reply;
    uint64_t number = 0;
    char what[256];
    bool done = false;
    tr_error err = {0};

    int code = tr_admin_change_begin(targets, "abort", NULL, 0, &target, &number);
    if (code != 0)
        return code;
    if (change_await(target, number, &reply, &done, &err) != TR_OK) {
        code = tr_cli_fail(&err);
    } else if (tr_cli_has(args, "json")) {
        code = tr_admin_print_json(tr_admin_json(reply.map));
    } else if (!done) {
        printf("%s: aborted, nothing has changed\n",
               tr_admin_text(reply.map, "what", what, sizeof(what)));
    }
    if (code == 0 && done) {
        fprintf(stderr, "troupe: %s was done before it could be aborted\n",
                tr_admin_text(reply.map, "what", what, sizeof(what)));
        code = 1;
    }
    tr_control_reply_free(&reply);
    return code;
}

int tr_admin_change(const tr_cli_args *args, const tr_admin_targets *targets)
{
    const char *method = tr_cli_positional(args, 0);
    uint32_t words = tr_admin_change_words(method);
    tr_admin_argument arguments[2] = {0};
    for (uint32_t i = 0; i < words; i++)
        arguments[i] = (tr_admin_argument){.key = changes[change_find(method)].keys[i],
                                           .text = tr_cli_positional(args, i + 1)};
    char path[TR_PATH_SIZE];
    const tr_admin_target *target = NULL;
    tr_control_reply reply;
    uint64_t number = 0;

    if (words == 1 && strcmp(arguments[0].key, "file") == 0)
        arguments[0].text = tr_admin_snapshot_path(path, sizeof(path), arguments[0].text);
    int code = tr_admin_change_begin(targets, method, arguments, words, &target, &number);
    if (code != 0)
        return code;
    code = tr_admin_change_follow(target, number, &reply);
    if (reply.map != NULL && tr_cli_has(args, "json")) {
        code |= tr_admin_print_json(tr_admin_json(reply.map));
    } else if (code == 0) {
        changes[change_find(method)].print(reply.map);
    }
    tr_control_reply_free(&reply);
    return code;
}
