/* admin_client.h - whom the admin commands ask, and how. */
#ifndef TR_TOOLS_ADMIN_CLIENT_H
#define TR_TOOLS_ADMIN_CLIENT_H

#include "core/placement.h"
#include "tools/cli.h"
#include "transport/control.h"

#include <jansson.h>

/* The three options that name nodes; for the tables of commands. */
#define TR_ADMIN_OPTIONS                                                                           \
    {"node", 0, "URL",                                                                             \
     "a node's control socket; may be given several times "                                        \
     "(default tcp://127.0.0.1:7701)"},                                                            \
    {                                                                                              \
        "placement", 0, "FILE", "every node that this placement file names"                        \
    }

typedef struct {
    char name[TR_NAME_SIZE]; /* "" until it is known */
    char url[TR_URL_SIZE];
} tr_admin_target;

typedef struct {
    tr_admin_target rows[TR_NODES_MAX];
    uint32_t count;
    bool by_url; /* named one by one with --node; false: a whole placement, or the default */
} tr_admin_targets;

/* Reads --node and --placement. Returns 0, or the command's exit code after a sentence on standard
 * error. */
int tr_admin_targets_read(tr_admin_targets *out, const tr_cli_args *args);

/* Replaces targets by all nodes that the first of them knows and believes alive.
 * errors  those of the call; targets is then unchanged */
tr_status tr_admin_targets_expand(tr_admin_targets *targets, tr_error *err);

/* One request without arguments but ring (-1: none) on a connection; waits at most three seconds.
 * The reply is freed with tr_control_reply_free whatever is returned. */
tr_status tr_admin_call(tr_control_client *client, const char *method, int64_t ring,
                        tr_control_reply *reply, tr_error *err);

/* An argument of a request: text, or with text NULL a number. */
typedef struct {
    const char *key;
    const char *text;
    uint64_t number;
} tr_admin_argument;

/* A request with arguments on a connection of its own; as tr_admin_call otherwise. */
tr_status tr_admin_request(const tr_admin_target *target, const char *method,
                           const tr_admin_argument *arguments, uint32_t arguments_count,
                           tr_control_reply *reply, tr_error *err);

/* The same on a connection of its own. */
tr_status tr_admin_ask(const tr_admin_target *target, const char *method, tr_control_reply *reply,
                       tr_error *err);

/* A decoded reply as JSON; the caller owns it. Bytes become null. NULL: no memory. */
json_t *tr_admin_json(const msgpack_object *object);

/* Prints a document and frees it; NULL when there was no memory for it. Returns the command's exit
 * code. */
int tr_admin_print_json(json_t *document);

/* Text member for a terminal: control characters become '?', "-" when absent. Returns text. */
const char *tr_admin_text(const msgpack_object *map, const char *key, char *text, size_t size);

/* Number member; 0 when absent. */
uint64_t tr_admin_u64(const msgpack_object *map, const char *key);

#endif
