#include "tools/session.h"

#include "core/free_memory.h"
#include "core/trace.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVENT_TIMEOUT_NS 120000000000u
#define EVENT_TURN_NS    200000000u /* between looks at the children */
#define FILE_SIZE_MAX    (1ll << 30)

/* Starting a node waits for its peers, so several of one process start side by side. */
typedef struct {
    tr_cluster *cluster;
    pthread_t thread;
    tr_status status;
    tr_error err;
} session_start;

static void *session_start_main(void *ctx)
{
    session_start *start = ctx;
    start->status = tr_cluster_start(start->cluster, &start->err);
    return NULL;
}

static tr_status session_start_all(tr_session *s, tr_error *err)
{
    session_start starts[TR_NODES_MAX];
    tr_status status = TR_OK;
    uint32_t count = 0;

    for (; count < s->placement.nodes_count && s->clusters[count] != NULL; count++) {
        starts[count] = (session_start){.cluster = s->clusters[count]};
        if (pthread_create(&starts[count].thread, NULL, session_start_main, &starts[count]) != 0) {
            status = tr_fail(err, TR_E_NOMEM, "cannot start a thread");
            break;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(starts[i].thread, NULL);
        if (starts[i].status != TR_OK && status == TR_OK) {
            status = starts[i].status;
            *err = starts[i].err;
        }
    }
    return status;
}

static tr_status session_place(tr_session *s, const char *model_path, const tr_cli_args *args,
                               tr_error *err)
{
    bool wrong = false;
    const char *file = tr_cli_get(args, "placement");
    const char *activations = tr_cli_get(args, "activations");
    long long threads = tr_cli_integer(args, "threads", 1, 1, 1024, &wrong);

    if (wrong)
        return tr_fail(err, TR_E_INVALID, "--threads: see above");
    if (activations != NULL && strcmp(activations, "f32") != 0 && strcmp(activations, "nvfp4") != 0)
        return tr_fail(err, TR_E_INVALID, "--activations: found %.40s, expected f32 or nvfp4",
                       activations);
    if (file == NULL) {
        tr_placement_local(&s->placement, model_path, (uint32_t)threads);
        s->placement.activations_nvfp4 = activations != NULL && strcmp(activations, "nvfp4") == 0;
        return TR_OK;
    }
    if (activations != NULL) /* all nodes must know, and the others read the file */
        return tr_fail(
            err, TR_E_INVALID,
            "--activations: found it beside --placement, expected it as a key of the file");
    tr_status status = tr_placement_read(&s->placement, file, err);
    if (status != TR_OK)
        return status;
    for (uint32_t n = 0; tr_cli_has(args, "threads") && n < s->placement.nodes_count; n++)
        s->placement.nodes[n].threads = (uint32_t)threads;
    return TR_OK;
}

tr_status tr_session_open(tr_session *s, const char *model_path, const tr_cli_args *args,
                          tr_error *err)
{
    *s = (tr_session){0};
    tr_cluster_options options = {.kernels = tr_cli_get(args, "kernels")};
    tr_status status = session_place(s, model_path, args, err);
    bool all_here = strcmp(s->placement.transport, "loop") == 0;

    /* Once, before the first node takes something. Unknown: a node that needs it says so. */
    (void)tr_free_memory(&options.free_bytes, NULL);

    for (uint32_t n = 0; status == TR_OK && n < s->placement.nodes_count; n++) {
        if (n == 0 || all_here)
            status = tr_cluster_open(&s->clusters[n], &s->placement, n, &options, err);
        else
            status = tr_children_start(&s->children, &s->placement, n, options.kernels,
                                       options.free_bytes, false, err);
    }
    if (status == TR_OK)
        status = tr_client_open(&s->client, s->clusters[0], NULL, NULL, err);
    if (status == TR_OK)
        status = session_start_all(s, err);
    if (status == TR_OK)
        s->context_max = tr_cluster_context_max(s->clusters[0]);
    return status;
}

void tr_session_close(tr_session *s)
{
    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        if (s->clusters[n] != NULL) /* all before any stops: none should mourn another */
            tr_cluster_request_shutdown(s->clusters[n]);
    tr_children_stop(&s->children, 3000);
    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        if (s->clusters[n] != NULL)
            tr_cluster_stop(s->clusters[n]);
    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        if (s->clusters[n] != NULL)
            tr_cluster_close(s->clusters[n]);
    tr_placement_free(&s->placement);
}

tr_status tr_session_event(tr_session *s, tr_event *out, tr_error *err)
{
    uint64_t deadline = tr_clock_ns() + EVENT_TIMEOUT_NS;
    while (!tr_client_wait(s->client, out, tr_clock_ns() + EVENT_TURN_NS)) {
        uint32_t node;
        int code;
        if (tr_children_ended(&s->children, &node, &code))
            return tr_fail(err, TR_E_PEER, "node %s ended with code %d",
                           s->placement.nodes[node].name, code);
        if (tr_clock_ns() >= deadline)
            return tr_fail(err, TR_E_TIMEOUT, "nothing has come for 120 s");
    }
    return TR_OK;
}

tr_status tr_read_file(const char *path, char **text, size_t *size, tr_error *err)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
    char *data = NULL;
    tr_status status = TR_E_INVALID;
    long long length = fseeko(f, 0, SEEK_END) == 0 ? (long long)ftello(f) : -1;
    if (length < 0 || length > FILE_SIZE_MAX || fseeko(f, 0, SEEK_SET) != 0)
        tr_fail(err, status, "%s: not a file of at most 1 GiB", path);
    else if ((data = malloc((size_t)length + 1)) == NULL)
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory for %lld bytes", path, length);
    else if (fread(data, 1, (size_t)length, f) != (size_t)length)
        tr_fail(err, status, "%s: cannot read %lld bytes", path, length);
    else
        status = TR_OK;
    fclose(f);
    if (status != TR_OK) {
        free(data);
        return status;
    }
    data[length] = '\0';
    *text = data;
    *size = (size_t)length;
    return TR_OK;
}

tr_status tr_read_ids(const char *path, int32_t **ids, uint32_t *count, tr_error *err)
{
    char *text;
    size_t size;
    tr_status status = tr_read_file(path, &text, &size, err);
    if (status != TR_OK)
        return status;
    /* Two bytes are the least that an id with its space takes. */
    int32_t *out = malloc((size / 2 + 1) * sizeof(*out));
    uint32_t n = 0;
    for (const char *at = text; out != NULL;) {
        while (isspace((unsigned char)*at))
            at++;
        if (at == text + size)
            break;
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX ||
            !(isspace((unsigned char)*end) || end == text + size)) {
            status = tr_fail(err, TR_E_INVALID, "%s: \"%.12s\" at byte %td, expected a token id",
                             path, at, at - text);
            break;
        }
        out[n++] = (int32_t)id;
        at = end;
    }
    free(text);
    if (out == NULL)
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory for its ids", path);
    if (status == TR_OK && n == 0)
        status = tr_fail(err, TR_E_INVALID, "%s: no token id in it", path);
    if (status != TR_OK) {
        free(out);
        return status;
    }
    *ids = out;
    *count = n;
    return TR_OK;
}

tr_status tr_encode_text(const tr_tokenizer *tokenizer, const char *text, size_t size,
                         int32_t **ids, uint32_t *count, tr_error *err)
{
    size_t n = 0, ids_max = tr_tokenizer_ids_max(tokenizer, size);
    int32_t *out = malloc(ids_max * sizeof(*out));
    if (out == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %zu token ids", size);
    tr_status status =
        tr_tokenizer_encode_prompt(tokenizer, text, size, false, out, ids_max, &n, err);
    if (status != TR_OK) {
        free(out);
        return status;
    }
    *ids = out;
    *count = (uint32_t)n;
    return TR_OK;
}
