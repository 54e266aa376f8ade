/* cmd_run.c - troupe run: generate in one process, no server. */
#include "core/model/chat_template.h"
#include "core/trace.h"
#include "tools/json_out.h"
#include "tools/session.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tr_cli_option options[] = {
    {"prompt", 'p', "TEXT", "text to continue"},
    {"ids", 0, "FILE", "token ids to continue, instead of a text"},
    {"chat", 0, NULL, "the text is a user's message: render the model's chat template"},
    {"max-tokens", 'n', "N", "tokens to generate (default 128)"},
    {"temperature", 0, "X", "0: greedy (default 0)"},
    {"top-p", 0, "X", "keep the most likely tokens up to this probability (default 1: off)"},
    {"top-k", 0, "N", "keep the N most likely tokens (default 0: off)"},
    {"seed", 0, "N", "of the random draws (default 0)"},
    {"no-stop", 0, NULL, "go on after the model's end tokens"},
    {"json", 0, NULL, "print one JSON object: tokens, text, finish, times in ms"},
    {"no-text", 0, NULL, "print token ids only; with --ids a model needs no tokenizer"},
    TR_SESSION_OPTIONS,
    {NULL, 0, NULL, NULL},
};

typedef struct {
    tr_tokenizer *tokenizer; /* NULL: tokens are printed as ids */
    int32_t *prompt;
    uint32_t prompt_count;
    tr_request request;
    bool json;
    int32_t *tokens; /* [tokens_max] generated */
    uint32_t tokens_count;
    const char *finish;
    uint64_t begin_ns, first_ns, last_ns; /* submitted; first and last token */
} run_state;

static tr_status run_render(run_state *r, const char *model, const char *text, tr_error *err)
{
    tr_chat_template *t = NULL;
    tr_rendered rendered = {0};
    json_t *variables = json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user", "content",
                                  text, "add_generation_prompt", 1);
    if (variables == NULL)
        return tr_fail(err, TR_E_INVALID, "--prompt: not valid UTF-8");

    tr_status status = tr_chat_template_open(&t, model, err);
    if (status == TR_OK)
        status = tr_chat_template_render(t, variables, &rendered, err);
    if (status == TR_OK) {
        size_t n = 0, most = tr_tokenizer_ids_max(r->tokenizer, rendered.size);
        r->prompt = malloc(most * sizeof(*r->prompt));
        status = r->prompt == NULL
                     ? tr_fail(err, TR_E_NOMEM, "no memory for the prompt")
                     : tr_rendered_encode(&rendered, r->tokenizer, r->prompt, most, &n, err);
        r->prompt_count = (uint32_t)n;
    }
    tr_rendered_free(&rendered);
    if (t != NULL)
        tr_chat_template_close(t);
    json_decref(variables);
    return status;
}

static tr_status run_read_prompt(run_state *r, const tr_cli_args *args, tr_error *err)
{
    const char *model = tr_cli_positional(args, 0), *text = tr_cli_get(args, "prompt");
    tr_status status = TR_OK;
    if (!tr_cli_has(args, "no-text"))
        status = tr_tokenizer_open(&r->tokenizer, model, err);
    if (status != TR_OK)
        return status;
    if (tr_cli_has(args, "ids"))
        return tr_read_ids(tr_cli_get(args, "ids"), &r->prompt, &r->prompt_count, err);
    if (tr_cli_has(args, "chat"))
        return run_render(r, model, text, err);
    return tr_encode_text(r->tokenizer, text, strlen(text), &r->prompt, &r->prompt_count, err);
}

/* Text of the generated tokens, special tokens left out; malloc'ed. */
static char *run_text(const run_state *r)
{
    size_t size = 0, used = 0;
    const char *bytes;
    size_t n;
    for (uint32_t i = 0; i < r->tokens_count; i++) {
        tr_tokenizer_token_bytes(r->tokenizer, r->tokens[i], &bytes, &n);
        size += 3 * n + 12;
    }
    char *text = malloc(size + 16);
    tr_utf8_stream stream = {0};
    for (uint32_t i = 0; text != NULL && i < r->tokens_count; i++) {
        if (tr_tokenizer_is_special(r->tokenizer, r->tokens[i]))
            continue;
        tr_tokenizer_token_bytes(r->tokenizer, r->tokens[i], &bytes, &n);
        used += tr_utf8_stream_push(&stream, bytes, n, false, text + used, size + 16 - used);
    }
    if (text != NULL) {
        used += tr_utf8_stream_push(&stream, "", 0, true, text + used, size + 16 - used);
        text[used] = '\0';
    }
    return text;
}

static tr_status run_print_json(const run_state *r, tr_error *err)
{
    json_t *tokens = json_array();
    char *text = r->tokenizer != NULL ? run_text(r) : NULL;
    for (uint32_t i = 0; i < r->tokens_count; i++)
        json_array_append_new(tokens, json_integer(r->tokens[i]));
    uint32_t steps = r->tokens_count > 1 ? r->tokens_count - 1 : 1;
    double decode_ms = (double)(r->last_ns - r->first_ns) / 1e6 / steps;
    json_t *out = json_pack("{s:o,s:s*,s:s,s:i,s:f,s:f}", "tokens", tokens, "text", text, "finish",
                            r->finish, "prompt_tokens", (int)r->prompt_count, "first_token_ms",
                            (double)(r->first_ns - r->begin_ns) / 1e6, "ms_per_token", decode_ms);
    free(text);
    return tr_json_out_print(out, JSON_COMPACT, err);
}

/* Prints whole characters as they come. */
static void run_print_token(run_state *r, tr_utf8_stream *stream, int32_t token)
{
    char text[1024];
    const char *bytes;
    size_t size;
    if (r->json)
        return;
    if (r->tokenizer == NULL) {
        printf("%s%d", r->tokens_count > 1 ? " " : "", token);
        fflush(stdout);
        return;
    }
    if (tr_tokenizer_is_special(r->tokenizer, token))
        return;
    tr_tokenizer_token_bytes(r->tokenizer, token, &bytes, &size);
    while (size > 0) { /* longest tokens are runs of spaces of some hundred bytes */
        size_t part = size < 256 ? size : 256;
        size_t n = tr_utf8_stream_push(stream, bytes, part, false, text, sizeof(text));
        fwrite(text, 1, n, stdout);
        bytes += part;
        size -= part;
    }
    fflush(stdout);
}

static tr_status run_generate(run_state *r, tr_session *s, tr_error *err)
{
    tr_utf8_stream stream = {0};
    uint64_t number;

    r->begin_ns = r->first_ns = r->last_ns = tr_clock_ns();
    tr_status status = tr_client_submit(s->client, &r->request, &number, err);
    while (status == TR_OK) {
        tr_event event;
        status = tr_session_event(s, &event, err);
        if (status != TR_OK)
            break;
        if (event.kind == TR_EVENT_FAILED) {
            *err = event.error;
            return event.error.code;
        }
        if (event.kind == TR_EVENT_FINISHED) {
            r->finish = event.finish == TR_FINISH_STOP ? "stop" : "length";
            break;
        }
        if (event.kind == TR_EVENT_TOKEN) {
            r->last_ns = tr_clock_ns();
            if (r->tokens_count == 0)
                r->first_ns = r->last_ns;
            r->tokens[r->tokens_count++] = event.token;
            run_print_token(r, &stream, event.token);
        }
    }
    if (status == TR_OK && r->json)
        return run_print_json(r, err);
    if (status == TR_OK)
        putchar('\n');
    return status;
}

static tr_status run_session(run_state *r, const tr_cli_args *args, tr_error *err)
{
    tr_session session = {0};
    tr_status status = tr_session_open(&session, tr_cli_positional(args, 0), args, err);
    if (status == TR_OK) {
        const tr_model_spec *spec = tr_model_get_spec(tr_cluster_model(session.clusters[0]));
        r->request.tokens = r->prompt;
        r->request.tokens_count = r->prompt_count;
        if (!tr_cli_has(args, "no-stop")) {
            r->request.stop_tokens_count = spec->eos_tokens_count;
            memcpy(r->request.stop_tokens, spec->eos_tokens,
                   spec->eos_tokens_count * sizeof(int32_t));
        }
        r->tokens = calloc(r->request.tokens_max, sizeof(*r->tokens));
        status = r->tokens != NULL ? run_generate(r, &session, err)
                                   : tr_fail(err, TR_E_NOMEM, "no memory for the tokens");
    }
    tr_session_close(&session);
    return status;
}

static int run_main(const tr_cli_args *args)
{
    tr_error err;
    bool wrong = false;
    run_state r = {.json = tr_cli_has(args, "json")};

    r.request.tokens_max = (uint32_t)tr_cli_integer(args, "max-tokens", 128, 1, 1 << 20, &wrong);
    r.request.sampling =
        (tr_sampling){.temperature = (float)tr_cli_number(args, "temperature", 0, 0, 100, &wrong),
                      .top_p = (float)tr_cli_number(args, "top-p", 1, 1e-6, 1, &wrong),
                      .top_k = (uint32_t)tr_cli_integer(args, "top-k", 0, 0, 1 << 30, &wrong),
                      .seed = (uint64_t)tr_cli_integer(args, "seed", 0, 0, INT64_MAX, &wrong)};
    if (tr_cli_has(args, "prompt") == tr_cli_has(args, "ids")) {
        fprintf(stderr, "troupe run: give either --prompt or --ids\n");
        wrong = true;
    } else if (tr_cli_has(args, "no-text") && !tr_cli_has(args, "ids")) {
        fprintf(stderr, "troupe run: --no-text does not read text either: give --ids\n");
        wrong = true;
    }
    if (wrong)
        return 2;
    tr_status status = run_read_prompt(&r, args, &err);
    if (status == TR_OK)
        status = run_session(&r, args, &err);
    free(r.prompt);
    free(r.tokens);
    if (r.tokenizer != NULL)
        tr_tokenizer_close(r.tokenizer);
    return status == TR_OK ? 0 : tr_cli_fail(&err);
}

const tr_command tr_cmd_run = {
    .name = "run",
    .summary = "generate text in one process, without a server",
    .usage = "MODEL (-p TEXT | --ids FILE) [-n N]",
    .text = "",
    .example = "troupe run models/tiny-solar-nvfp4 -p \"It was a bright\" -n 40",
    .options = options,
    .positionals_min = 1,
    .positionals_max = 1,
    .run = run_main,
};
