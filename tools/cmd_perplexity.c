/* cmd_perplexity.c - troupe perplexity: how well the model predicts a text. */
#include "tools/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const tr_cli_option options[] = {
    {"text", 0, "FILE", "text to predict (required)"},
    {"window", 0, "N", "tokens of a window (default 1024)"},
    {"windows", 0, "N", "use only the first N windows (default all)"},
    {"json", 0, NULL, "print one JSON object"},
    TR_SESSION_OPTIONS,
    {NULL, 0, NULL, NULL},
};

typedef struct {
    uint32_t window;  /* tokens run from an empty state */
    uint32_t windows; /* whole windows, each with its targets one token later */
    uint32_t tokens_count;
} text_shape;

/* -log p(target) in nats. */
static double negative_log_likelihood(const float *logits, uint32_t vocab, int32_t target)
{
    double most = logits[0], sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - most);
    return most + log(sum) - logits[target];
}

/* Sum over one window whose tokens begin at ids; ids[window] is the last target. */
static tr_status perplexity_window(tr_session *s, const int32_t *ids, uint32_t window,
                                   uint32_t vocab, double *sum, tr_error *err)
{
    tr_request request = {
        .tokens = ids, .tokens_count = window, .sampling = {.top_p = 1}, .want_logits = true};
    uint64_t number;
    uint32_t rows = 0;

    tr_status status = tr_client_submit(s->client, &request, &number, err);
    while (status == TR_OK) {
        tr_event event;
        status = tr_session_event(s, &event, err);
        if (status != TR_OK)
            break;
        if (event.kind == TR_EVENT_LOGITS && event.position < window) {
            *sum += negative_log_likelihood(event.logits, vocab, ids[event.position + 1]);
            rows++;
        } else if (event.kind == TR_EVENT_FAILED) {
            *err = event.error;
            status = event.error.code;
        } else if (event.kind == TR_EVENT_FINISHED) {
            return rows == window ? TR_OK
                                  : tr_fail(err, TR_E_INVALID, "%u of %u rows came", rows, window);
        }
    }
    return status;
}

static void perplexity_print(const tr_cli_args *args, const text_shape *shape, double sum)
{
    uint64_t targets = (uint64_t)shape->windows * shape->window;
    double nll = sum / (double)targets;
    if (tr_cli_has(args, "json"))
        printf("{\"perplexity\": %.6f, \"nll\": %.8f, \"tokens\": %u, \"window\": %u, "
               "\"windows\": %u, \"targets\": %llu}\n",
               exp(nll), nll, shape->tokens_count, shape->window, shape->windows,
               (unsigned long long)targets);
    else
        printf("perplexity %.4f (%.6f nats a token; %llu targets in %u windows of %u tokens; the "
               "text has %u tokens)\n",
               exp(nll), nll, (unsigned long long)targets, shape->windows, shape->window,
               shape->tokens_count);
}

static tr_status perplexity_run(const tr_cli_args *args, text_shape *shape, uint32_t windows_max,
                                tr_error *err)
{
    const char *model = tr_cli_positional(args, 0), *path = tr_cli_get(args, "text");
    tr_tokenizer *tokenizer = NULL;
    tr_session session = {0};
    char *text = NULL;
    size_t size;
    int32_t *ids = NULL;
    double sum = 0;

    tr_status status = tr_read_file(path, &text, &size, err);
    if (status == TR_OK)
        status = tr_tokenizer_open(&tokenizer, model, err);
    if (status == TR_OK)
        status = tr_encode_text(tokenizer, text, size, &ids, &shape->tokens_count, err);
    if (status == TR_OK && shape->tokens_count <= shape->window)
        status = tr_fail(err, TR_E_INVALID, "%s: %u tokens, a window of %u needs one more", path,
                         shape->tokens_count, shape->window);
    if (status == TR_OK)
        status = tr_session_open(&session, model, args, err);
    if (status == TR_OK) {
        uint32_t vocab = tr_model_get_spec(tr_cluster_model(session.clusters[0]))->vocab_size;
        shape->windows = (shape->tokens_count - 1) / shape->window;
        if (windows_max > 0 && shape->windows > windows_max)
            shape->windows = windows_max;
        for (uint32_t w = 0; status == TR_OK && w < shape->windows; w++) {
            status = perplexity_window(&session, ids + (size_t)w * shape->window, shape->window,
                                       vocab, &sum, err);
            tr_cli_progress("perplexity", w + 1, shape->windows, "windows");
        }
    }
    tr_session_close(&session);
    if (tokenizer != NULL)
        tr_tokenizer_close(tokenizer);
    free(ids);
    free(text);
    if (status == TR_OK)
        perplexity_print(args, shape, sum);
    return status;
}

static int perplexity_main(const tr_cli_args *args)
{
    bool wrong = false;
    tr_error err;
    text_shape shape = {.window =
                            (uint32_t)tr_cli_integer(args, "window", 1024, 1, 1 << 20, &wrong)};
    long long windows = tr_cli_integer(args, "windows", 0, 0, 1 << 30, &wrong);

    if (!wrong && !tr_cli_has(args, "text")) {
        fprintf(stderr, "troupe perplexity: --text is required\n");
        wrong = true;
    }
    if (wrong)
        return 2;
    return perplexity_run(args, &shape, (uint32_t)windows, &err) == TR_OK ? 0 : tr_cli_fail(&err);
}

const tr_command tr_cmd_perplexity = {
    .name = "perplexity",
    .summary = "measure how well the model predicts a text",
    .usage = "MODEL --text FILE [--window N]",
    .text =
        "The text is tokenized as a whole, behind BOS where the model's tokenizer asks for one;\n"
        "special tokens in it are text. Window k is tokens k*N to k*N+N-1, run from an empty\n"
        "state; its targets are one token later. An incomplete last window is dropped. The figure\n"
        "is exp of the mean over all targets.",
    .example =
        "troupe perplexity models/tiny-solar-nvfp4 --text models/tiny-solar-nvfp4/heldout.txt",
    .options = options,
    .positionals_min = 1,
    .positionals_max = 1,
    .run = perplexity_main,
};
