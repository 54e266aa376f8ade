/* cmd_logits.c - troupe logits: the model's raw output for given token ids. */
#include "tools/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const tr_cli_option options[] = {
    {"ids", 0, "FILE", "token ids in decimal, white space between (required)"},
    {"out", 0, "FILE", "float32 logits [T, vocab], row-major, little-endian (required)"},
    {"hidden", 0, "FILE",
     "float32 rows before the output matrix [T, hidden] and before each layer [T, width]"},
    {"chunk", 0, "ROWS", "prefill at most so many rows at a time, a multiple of 64"},
    TR_SESSION_OPTIONS,
    {NULL, 0, NULL, NULL},
};

/* Where the answer goes. */
typedef struct {
    const char *logits_path, *hidden_path; /* hidden_path NULL: not wanted */
    FILE *logits, *hidden;
    uint32_t rows_count, layers_count, hidden_size, vocab_size;
    uint32_t rows_come; /* of the logits */
    uint32_t next_row;  /* that the file stands at: they come in order, unless the sampler moves */
} logits_files;

static tr_status logits_io_fail(const char *path, tr_error *err)
{
    return tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
}

static tr_status logits_on_row(logits_files *f, const tr_event *event, tr_error *err)
{
    uint64_t at = (uint64_t)event->position * f->vocab_size;
    if (event->position >= f->rows_count)
        return tr_fail(err, TR_E_INVALID, "row %u came, which does not exist", event->position);
    bool in_order = event->position == f->next_row; /* then a pipe is a file, too */
    f->next_row = event->position + 1;
    if ((!in_order && fseeko(f->logits, (off_t)(at * sizeof(float)), SEEK_SET) != 0) ||
        fwrite(event->logits, sizeof(float), f->vocab_size, f->logits) != f->vocab_size)
        return logits_io_fail(f->logits_path, err);
    tr_cli_progress("logits", ++f->rows_come, f->rows_count, "rows");
    return TR_OK;
}

/* Rows come in any order. Those that enter the output matrix stand first in the file, because only
 * their width is known from the start. */
static tr_status logits_on_hidden(logits_files *f, const tr_event *event, tr_error *err)
{
    if (event->layer > f->layers_count || event->position > f->rows_count ||
        event->rows_count > f->rows_count - event->position)
        return tr_fail(err, TR_E_INVALID, "rows of layer %u came that do not exist", event->layer);
    uint64_t width = event->width, at = event->position * width;
    size_t count = (size_t)event->rows_count * event->width;
    if (event->layer < f->layers_count)
        at += f->rows_count * (f->hidden_size + event->layer * width);
    if (fseeko(f->hidden, (off_t)(at * sizeof(float)), SEEK_SET) != 0 ||
        fwrite(event->hidden, sizeof(float), count, f->hidden) != count)
        return logits_io_fail(f->hidden_path, err);
    return TR_OK;
}

static tr_status logits_receive(tr_session *s, logits_files *f, tr_error *err)
{
    for (;;) {
        tr_event event;
        tr_status status = tr_session_event(s, &event, err);
        if (status == TR_OK && event.kind == TR_EVENT_LOGITS)
            status = logits_on_row(f, &event, err);
        if (status == TR_OK && event.kind == TR_EVENT_HIDDEN)
            status = logits_on_hidden(f, &event, err);
        if (status != TR_OK)
            return status;
        if (event.kind == TR_EVENT_FAILED) {
            *err = event.error;
            return event.error.code;
        }
        if (event.kind == TR_EVENT_FINISHED)
            return f->rows_come == f->rows_count ? TR_OK
                                                 : tr_fail(err, TR_E_INVALID, "%u of %u rows came",
                                                           f->rows_come, f->rows_count);
    }
}

static tr_status logits_open(logits_files *f, tr_error *err)
{
    f->logits = fopen(f->logits_path, "wb");
    if (f->logits == NULL)
        return logits_io_fail(f->logits_path, err);
    if (f->hidden_path == NULL)
        return TR_OK;
    f->hidden = fopen(f->hidden_path, "wb");
    return f->hidden != NULL ? TR_OK : logits_io_fail(f->hidden_path, err);
}

/* Closes what is open. Half a file would be taken for a whole one: it goes after a failure. */
static tr_status logits_close(logits_files *f, tr_status status, tr_error *err)
{
    if (f->logits != NULL && fclose(f->logits) != 0 && status == TR_OK)
        status = logits_io_fail(f->logits_path, err);
    if (f->hidden != NULL && fclose(f->hidden) != 0 && status == TR_OK)
        status = logits_io_fail(f->hidden_path, err);
    if (status != TR_OK && f->logits != NULL)
        unlink(f->logits_path);
    if (status != TR_OK && f->hidden != NULL)
        unlink(f->hidden_path);
    return status;
}

static tr_status logits_run(tr_session *s, const tr_cli_args *args, const int32_t *ids,
                            uint32_t count, uint32_t chunk, tr_error *err)
{
    const tr_model_spec *spec = tr_model_get_spec(tr_cluster_model(s->clusters[0]));
    logits_files files = {.logits_path = tr_cli_get(args, "out"),
                          .hidden_path = tr_cli_get(args, "hidden"),
                          .rows_count = count,
                          .layers_count = spec->layers_count,
                          .hidden_size = spec->hidden_size,
                          .vocab_size = spec->vocab_size};
    tr_request request = {.tokens = ids,
                          .tokens_count = count,
                          .sampling = {.top_p = 1},
                          .want_logits = true,
                          .want_hidden = files.hidden_path != NULL,
                          .prefill_rows = chunk};
    uint64_t number;

    tr_status status = logits_open(&files, err);
    if (status == TR_OK)
        status = tr_client_submit(s->client, &request, &number, err);
    if (status == TR_OK)
        status = logits_receive(s, &files, err);
    return logits_close(&files, status, err);
}

static int logits_main(const tr_cli_args *args)
{
    tr_session session;
    tr_error err;
    int32_t *ids = NULL;
    uint32_t count;
    bool wrong = false;
    long long chunk = tr_cli_integer(args, "chunk", 0, 0, 4096, &wrong);

    if (wrong)
        return 2;
    if (!tr_cli_has(args, "ids") || !tr_cli_has(args, "out")) {
        fprintf(stderr, "troupe logits: --ids and --out are required\n");
        return 2;
    }
    if (tr_read_ids(tr_cli_get(args, "ids"), &ids, &count, &err) != TR_OK)
        return tr_cli_fail(&err);
    tr_status status = tr_session_open(&session, tr_cli_positional(args, 0), args, &err);
    if (status == TR_OK)
        status = logits_run(&session, args, ids, count, (uint32_t)chunk, &err);
    tr_session_close(&session);
    free(ids);
    return status == TR_OK ? 0 : tr_cli_fail(&err);
}

const tr_command tr_cmd_logits = {
    .name = "logits",
    .summary = "write the logits of given token ids to a file",
    .usage = "MODEL --ids FILE --out FILE [--placement FILE.yaml]",
    .text =
        "Row t of the output holds the logits after token t. The same bits come out whatever the\n"
        "placement, the transport, the chunking and the number of threads.\n"
        "--hidden also writes the rows that enter the output matrix, then those that enter each\n"
        "layer; these have the width of the residual, which some models keep in several streams.",
    .example = "echo 1 2 3 > ids.txt\n"
               "  troupe logits models/tiny-solar-nvfp4 --ids ids.txt --out logits.f32",
    .options = options,
    .positionals_min = 1,
    .positionals_max = 1,
    .run = logits_main,
};
