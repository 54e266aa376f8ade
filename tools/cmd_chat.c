/* cmd_chat.c - a terminal chat against a running server, over its HTTP API. */
#include "tools/chat_stream.h"
#include "tools/cli.h"

#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define URL_DEFAULT       "http://127.0.0.1:8888"
#define URL_SIZE          512
#define CONNECT_TIMEOUT_S 10L
#define SILENCE_TIMEOUT_S 600L /* as long as the server waits for a token */
#define POLL_MS           100  /* how soon an interrupt is noticed */
#define TOKENS_MAX        (1 << 24)

#define STYLE_DIM  "\x1b[2m"
#define STYLE_NONE "\x1b[0m"

/* Interrupts since the user last wrote something. Written by the signal handler. */
static volatile sig_atomic_t chat_interrupts;

typedef struct {
    char url[URL_SIZE]; /* of the chat endpoint */
    json_t *options;    /* owns; the members of every request but messages */
    json_t *messages;   /* owns */
    bool styled;        /* standard output is a terminal that knows dim */
    bool terminal;      /* standard output is a terminal */

    /* of the current answer */
    chat_part part;
    bool part_begun;
    char *content; /* owns; [content_size] goes into the history */
    size_t content_size;
    chat_stream stream;
    tr_error error; /* of stream */
} chat_session;

static void chat_on_interrupt(int number)
{
    (void)number;
    chat_interrupts++;
}

/* An answer must not move the cursor or change colours: control characters become '?'. */
static void chat_print(const chat_session *s, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
        putchar(control && s->terminal ? '?' : c);
    }
}

static void chat_keep(chat_session *s, const char *text, size_t size)
{
    char *content = realloc(s->content, s->content_size + size);
    if (content == NULL)
        return; /* the history misses a piece; the user has seen it */
    memcpy(content + s->content_size, text, size);
    s->content = content;
    s->content_size += size;
}

/* chat_stream.emit. In a script only the content is wanted; on a terminal everything is shown. */
static void chat_on_part(void *ctx, chat_part part, const char *text, size_t size)
{
    chat_session *s = ctx;
    if (part == CHAT_CONTENT)
        chat_keep(s, text, size);
    else if (!s->terminal)
        return;
    if (!s->part_begun || s->part != part) {
        if (s->part_begun && s->terminal)
            fputs("\n\n", stdout);
        if (s->styled)
            fputs(part == CHAT_CONTENT ? STYLE_NONE : STYLE_DIM, stdout);
        s->part = part;
        s->part_begun = true;
    }
    chat_print(s, text, size);
    fflush(stdout);
}

static size_t chat_on_bytes(char *bytes, size_t one, size_t count, void *ctx)
{
    chat_session *s = ctx;
    size_t size = one * count;
    return chat_stream_push(&s->stream, bytes, size, &s->error) == TR_OK ? size : 0;
}

/* Runs the transfer until it is complete or interrupted. */
static CURLcode chat_transfer(CURLM *multi, CURL *easy, bool *interrupted)
{
    CURLcode result = CURLE_OK;
    int running = 1;
    int seen = chat_interrupts;

    curl_multi_add_handle(multi, easy);
    while (running > 0 && !*interrupted) {
        if (curl_multi_perform(multi, &running) != CURLM_OK)
            result = CURLE_FAILED_INIT;
        if (running > 0 && result == CURLE_OK)
            (void)curl_multi_poll(multi, NULL, 0, POLL_MS, NULL); /* a signal ends it early */
        *interrupted = chat_interrupts != seen;
        if (result != CURLE_OK)
            break;
    }
    int left;
    const CURLMsg *message = curl_multi_info_read(multi, &left);
    if (message != NULL && message->msg == CURLMSG_DONE)
        result = message->data.result;
    curl_multi_remove_handle(multi, easy);
    return result;
}

static void chat_set_options(const chat_session *s, CURL *easy, const char *body,
                             struct curl_slist *headers, char *why)
{
    curl_easy_setopt(easy, CURLOPT_URL, s->url);
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, chat_on_bytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENCE_TIMEOUT_S);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
}

/* What the transfer came to, as a status. */
static tr_status chat_check(chat_session *s, CURL *easy, CURLcode result, const char *why,
                            tr_error *err)
{
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (result == CURLE_WRITE_ERROR && s->error.code != TR_OK) {
        *err = s->error;
        return err->code;
    }
    if (result == CURLE_COULDNT_CONNECT)
        return tr_fail(err, TR_E_PEER,
                       "no server answers at %.120s; start one with troupe launch FILE.yaml",
                       s->url);
    if (result != CURLE_OK)
        return tr_fail(err, TR_E_PEER, "%.120s: %.100s", s->url,
                       why[0] != '\0' ? why : curl_easy_strerror(result));
    if (s->stream.has_error)
        return tr_fail(err, TR_E_INVALID, "%s", s->stream.error);
    if (status != 200)
        return tr_fail(err, TR_E_INVALID, "%.120s answers with HTTP status %ld", s->url, status);
    if (!s->stream.done)
        return tr_fail(err, TR_E_PEER, "the answer of %.120s ended before it was complete", s->url);
    return TR_OK;
}

static char *chat_body(const chat_session *s)
{
    json_t *request = json_copy(s->options);
    json_object_set(request, "messages", s->messages);
    char *body = json_dumps(request, JSON_COMPACT);
    json_decref(request);
    return body;
}

/* False when the text is not UTF-8. */
static bool chat_add_message(chat_session *s, const char *role, const char *text, size_t size)
{
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, size);
    return message != NULL && json_array_append_new(s->messages, message) == 0;
}

static double chat_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void chat_end_answer(const chat_session *s, bool interrupted, double seconds)
{
    if (s->styled)
        fputs(STYLE_NONE, stdout);
    if (s->part_begun || !s->terminal)
        putchar('\n');
    if (s->styled && !interrupted && s->stream.completion_tokens > 0 && seconds > 0)
        printf(STYLE_DIM "[%lld tokens in %.1f s%s]\n" STYLE_NONE, s->stream.completion_tokens,
               seconds,
               strcmp(s->stream.finish_reason, "length") == 0 ? ", cut at the token limit" : "");
    fflush(stdout);
}

/* Asks for one answer and prints it as it comes. An interrupted one is kept as far as it came. */
static tr_status chat_ask(chat_session *s, const char *text, size_t size, tr_error *err)
{
    char why[CURL_ERROR_SIZE] = "";
    bool interrupted = false;
    tr_status status = TR_E_NOMEM;
    double begin = chat_seconds();

    if (!chat_add_message(s, "user", text, size))
        return tr_fail(err, TR_E_INVALID, "the question is not UTF-8 text");
    chat_stream_init(&s->stream, chat_on_part, s);
    s->part_begun = false;
    s->content_size = 0;
    s->error = (tr_error){0};

    char *body = chat_body(s);
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    CURL *easy = curl_easy_init();
    CURLM *multi = curl_multi_init();
    if (body == NULL || headers == NULL || easy == NULL || multi == NULL) {
        tr_fail(err, TR_E_NOMEM, "no memory for a request");
    } else {
        chat_set_options(s, easy, body, headers, why);
        CURLcode result = chat_transfer(multi, easy, &interrupted);
        chat_stream_end(&s->stream);
        status = interrupted ? TR_OK : chat_check(s, easy, result, why, err);
        if (status == TR_OK || s->part_begun)
            chat_end_answer(s, interrupted, chat_seconds() - begin);
    }
    if (status == TR_OK)
        (void)chat_add_message(s, "assistant", s->content_size > 0 ? s->content : "",
                               s->content_size); /* it came as JSON, so it is UTF-8 */
    else
        json_array_remove(s->messages, json_array_size(s->messages) - 1);
    curl_multi_cleanup(multi);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    free(body);
    chat_stream_teardown(&s->stream);
    return status;
}

/* Reads lines until the end of input or two interrupts in a row. */
static int chat_talk(chat_session *s)
{
    bool prompt = isatty(STDIN_FILENO) != 0;
    char *line = NULL;
    size_t capacity = 0;
    int exit_code = 0;

    if (prompt)
        fputs("Ctrl-C stops an answer, twice leaves; so does Ctrl-D.\n", stderr);
    while (chat_interrupts < 2) {
        if (prompt)
            fputs("> ", stderr);
        errno = 0;
        ssize_t size = getline(&line, &capacity, stdin);
        if (size < 0 && errno == EINTR) {
            clearerr(stdin);
            fputs("\n", stderr);
            continue;
        }
        if (size < 0)
            break;
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
            size--;
        if (size == 0)
            continue;
        tr_error err = {0};
        chat_interrupts = 0;
        if (chat_ask(s, line, (size_t)size, &err) != TR_OK) {
            exit_code = tr_cli_fail(&err);
            if (!prompt)
                break;
        }
    }
    free(line);
    return exit_code;
}

static bool chat_set_url(chat_session *s, const char *url)
{
    size_t size = strlen(url);
    while (size > 0 && url[size - 1] == '/')
        size--;
    if (size >= 3 && memcmp(url + size - 3, "/v1", 3) == 0)
        size -= 3;
    int written = snprintf(s->url, sizeof(s->url), "%.*s/v1/chat/completions", (int)size, url);
    return written > 0 && (size_t)written < sizeof(s->url);
}

/* The options of the command line as members of every request. */
static bool chat_read_options(chat_session *s, const tr_cli_args *args)
{
    bool usage_error = false;
    long long tokens_max = tr_cli_integer(args, "max-tokens", 0, 1, TOKENS_MAX, &usage_error);
    double temperature = tr_cli_number(args, "temperature", -1, 0, 2, &usage_error);
    const char *effort = tr_cli_get(args, "reasoning");

    s->options = json_pack("{s:b, s:{s:b}}", "stream", 1, "stream_options", "include_usage", 1);
    if (tokens_max > 0)
        json_object_set_new(s->options, "max_tokens", json_integer(tokens_max));
    if (temperature >= 0)
        json_object_set_new(s->options, "temperature", json_real(temperature));
    if (effort != NULL)
        json_object_set_new(s->options, "reasoning_effort", json_string(effort));
    s->messages = json_array();
    return !usage_error;
}

static int chat_run(const tr_cli_args *args)
{
    chat_session s = {0};
    const char *term = getenv("TERM");
    const char *url = tr_cli_get(args, "url");
    const char *system = tr_cli_get(args, "system");
    const char *once = tr_cli_get(args, "once");
    int exit_code = 2;

    s.terminal = isatty(STDOUT_FILENO) != 0;
    s.styled =
        s.terminal && getenv("NO_COLOR") == NULL && term != NULL && strcmp(term, "dumb") != 0;
    if (!chat_read_options(&s, args))
        goto free_options;
    if (!chat_set_url(&s, url != NULL ? url : URL_DEFAULT)) {
        exit_code = tr_cli_usage(args, "--url has more than %d bytes", URL_SIZE - 32);
        goto free_options;
    }
    if (system != NULL && !chat_add_message(&s, "system", system, strlen(system))) {
        exit_code = tr_cli_usage(args, "--system is not UTF-8 text");
        goto free_options;
    }

    /* Without SA_RESTART, so that an interrupt also ends the wait for a line. */
    struct sigaction action = {.sa_handler = chat_on_interrupt};
    struct sigaction before;
    sigaction(SIGINT, &action, &before);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (once != NULL) {
        tr_error err = {0};
        tr_status status = chat_ask(&s, once, strlen(once), &err);
        exit_code = status == TR_OK ? (chat_interrupts > 0) : tr_cli_fail(&err);
    } else {
        exit_code = chat_talk(&s);
    }
    curl_global_cleanup();
    sigaction(SIGINT, &before, NULL);

free_options:
    json_decref(s.options);
    json_decref(s.messages);
    free(s.content);
    return exit_code;
}

static const tr_cli_option chat_options[] = {
    {"url", 0, "URL", "where the server is (default " URL_DEFAULT ")"},
    {"once", 0, "TEXT", "ask this, print the answer and exit"},
    {"max-tokens", 'n', "N", "longest answer in tokens (default: what the context holds)"},
    {"temperature", 't', "T", "0 to 2; 0 is greedy (default: the model's)"},
    {"system", 0, "TEXT", "system prompt"},
    {"reasoning", 0, "EFFORT",
     "none, low, medium, high or what the model knows (default: the "
     "model's)"},
    {NULL, 0, NULL, NULL},
};

const tr_command tr_cmd_chat = {
    .name = "chat",
    .summary = "a terminal chat against a running server",
    .usage = "[--url URL] [--once TEXT]",
    .text = "Reads a line, prints the answer as it comes, and keeps both for the next question.\n"
            "Reasoning is dimmed on a terminal and left out elsewhere. Ctrl-C stops an answer,\n"
            "Ctrl-C twice or Ctrl-D leaves.",
    .example = "troupe chat --url http://127.0.0.1:8888 --once \"What is the capital of France?\"",
    .options = chat_options,
    .positionals_min = 0,
    .positionals_max = 0,
    .run = chat_run,
};
