/* scripted_server.h - the server over real sockets, with a cluster that answers from a script.
 *
 * The server runs on its own thread as in the program; the test is a client and looks. Every wait
 * has a deadline (http_peer.c). */
#ifndef TR_TESTS_API_SCRIPTED_SERVER_H
#define TR_TESTS_API_SCRIPTED_SERVER_H

#include "tests/check.h"

#include "api/server.h"
#include "tests/api/fake_client.h"
#include "tests/api/http_peer.h"

#include <jansson.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

static tr_tokenizer *tokenizer;
static tr_chat_template *chat_template;
static _Atomic tr_health_state health_state = TR_HEALTH_SERVING;
static http_peer peer; /* large, so not on the stack */
static http_answer answer;
static int32_t tokens[256];

static inline void fake_health(void *ctx, tr_health *out)
{
    (void)ctx;
    out->state = health_state;
    snprintf(out->text, sizeof(out->text), "%s",
             health_state == TR_HEALTH_SERVING ? "serving" : "node b is gone");
}

static inline tr_server_config base_config(void)
{
    static const int32_t stop_tokens[] = {2, 4};
    return (tr_server_config){.host = "127.0.0.1",
                              .health = fake_health,
                              .tokenizer = tokenizer,
                              .chat_template = chat_template,
                              .model_name = "tiny",
                              .context_max = 300,
                              .default_temperature = 0.5f,
                              .default_top_p = 0.75f,
                              .stop_tokens = stop_tokens,
                              .stop_tokens_count = 2};
}

static inline tr_server *start(const tr_server_config *config)
{
    tr_server *server;
    tr_error err = {0};
    CHECK_STATUS(tr_server_open(&server, config, &err), TR_OK);
    CHECK_STATUS(tr_server_start(server, &err), TR_OK);
    peer_open(&peer, tr_server_port(server));
    return server;
}

static inline void stop(tr_server *server)
{
    peer_close(&peer);
    tr_server_stop(server);
    tr_server_close(server);
}

/* Sets a script whose tokens are those of text. */
static inline void set_script(const char *text, fake_script script)
{
    tr_error err = {0};
    size_t count = 0;
    CHECK_STATUS(
        tr_tokenizer_encode(tokenizer, text, strlen(text), true, tokens, 256, &count, &err), TR_OK);
    script.tokens = tokens;
    script.tokens_count = (uint32_t)count;
    if (script.end == TR_EVENT_TOKEN)
        script.end = TR_EVENT_FINISHED;
    fake_client_set(&script);
}

static inline fake_state wait_for_active(uint32_t active)
{
    static fake_state state;
    for (int i = 0; i < 2000; i++) {
        fake_client_get(&state);
        if (state.submitted > 0 && state.active == active)
            return state;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("%u requests are active, expected %u", state.active, active);
    return state;
}

static inline json_t *body_json(void)
{
    json_error_t error;
    json_t *json = json_loadb(answer.body, answer.body_size, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL)
        print_error("%s: %s\n", error.text, answer.body);
    assert_non_null(json);
    return json;
}

/* A member by a path of keys; array elements by "0". */
static inline const json_t *member(const json_t *json, const char *path)
{
    char key[64];
    while (*path != '\0') {
        size_t size = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)size, path);
        json = json_is_array(json) ? json_array_get(json, (size_t)atoi(key))
                                   : json_object_get(json, key);
        path += size + (path[size] == '.');
    }
    return json;
}

static inline void check_string(const json_t *json, const char *path, const char *expected)
{
    const char *found = json_string_value(member(json, path));
    if (found == NULL)
        print_error("%s is not there: %s\n", path, answer.body);
    assert_non_null(found);
    assert_string_equal(found, expected);
}

static inline void check_int(const json_t *json, const char *path, long long expected)
{
    assert_true(json_is_integer(member(json, path)));
    assert_int_equal(json_integer_value(member(json, path)), expected);
}

static inline int open_model(void **state)
{
    (void)state;
    tr_error err = {0};
    if (tr_tokenizer_open(&tokenizer, MODELS_DIR "/tiny-solar-nvfp4", &err) != TR_OK ||
        tr_chat_template_open(&chat_template, MODELS_DIR "/tiny-solar-nvfp4", &err) != TR_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static inline int close_model(void **state)
{
    (void)state;
    tr_chat_template_close(chat_template);
    tr_tokenizer_close(tokenizer);
    return 0;
}

#endif
