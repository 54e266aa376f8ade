/* test_server.c - the endpoints: what is answered, whole and streamed, and what is refused. */
#include "tests/api/scripted_server.h"

#include "api/connection.h"

/* -- small endpoints -- */

typedef struct {
    const char *method, *path, *body;
    int status;
    const char *contains;
} endpoint_row;

static void endpoints_answer_and_everything_else_is_refused(void **state)
{
    (void)state;
    static const endpoint_row rows[] = {
        {"GET", "/health", NULL, 200, "\"status\":\"serving\""},
        {"GET", "/health?verbose", NULL, 200, "serving"},
        {"GET", "/v1/models", NULL, 200, "\"id\":\"tiny\""},
        {"GET", "/metrics", NULL, 200, "\ntroupe_generated_tokens_total 12345\n"},
        {"GET", "/metrics", NULL, 200, "\n# TYPE troupe_http_connections gauge\n"},
        {"GET", "/metrics", NULL, 200,
         "\ntroupe_actor_mailbox_depth{actor=\"client/\\\"0\\\"@fake\"} 0\n"},
        {"GET", "/", NULL, 404, "nothing at /"},
        {"GET", "/v1/model", NULL, 404, "/v1/model"},
        {"POST", "/health", "{}", 405, "takes GET"},
        {"GET", COMPLETIONS, NULL, 405, "takes POST"},
        {"DELETE", CHAT, NULL, 405, "takes POST"},
        {"POST", COMPLETIONS, "", 400, "empty"},
        {"POST", COMPLETIONS, "{", 400, "line 1"},
        {"POST", COMPLETIONS, "{\"prompt\":\"a\",\"x\":1}", 400, "\"param\":\"x\""},
        {"POST", CHAT, "{\"messages\":5}", 400, "\"param\":\"messages\""},
    };
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        peer_request(&peer, rows[i].method, rows[i].path, "", rows[i].body);
        peer_answer(&peer, &answer); /* all on one connection: it stays usable */
        assert_int_equal(answer.status, rows[i].status);
        if (strstr(answer.body, rows[i].contains) == NULL)
            print_error("%s\n", answer.body);
        assert_non_null(strstr(answer.body, rows[i].contains));
        if (answer.status == 405)
            assert_non_null(strstr(answer.head, "\r\nAllow: "));
        if (strstr(answer.head, "application/json") != NULL)
            json_decref(body_json());
    }
    stop(server);
}

static void head_is_get_without_a_body(void **state)
{
    (void)state;
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    static const char request[] = "HEAD /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    peer_send(&peer, request, strlen(request));
    peer_wait_closed(&peer);
    assert_non_null(strstr(peer.text, "HTTP/1.1 200 OK\r\n"));
    assert_string_equal(strstr(peer.text, "\r\n\r\n"), "\r\n\r\n");
    stop(server);
}

static void a_degraded_cluster_answers_and_says_what_is_missing(void **state)
{
    (void)state;
    health_state = TR_HEALTH_DEGRADED;
    set_script("Once", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    peer_request(&peer, "GET", "/health", "", NULL);
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 200);
    json_t *json = body_json();
    check_string(json, "status", "degraded");
    check_string(json, "reason", "node b is gone");
    json_decref(json);
    peer_request(&peer, "POST", COMPLETIONS, "", "{\"prompt\":\"a\"}");
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 200);
    stop(server);
    health_state = TR_HEALTH_SERVING;
}

static void a_cluster_that_does_not_serve_is_503_with_a_reason(void **state)
{
    (void)state;
    static const endpoint_row rows[] = {
        {"GET", "/health", NULL, 503, "node b is gone"},
        {"POST", COMPLETIONS, "{\"prompt\":\"a\"}", 503, "node b is gone"},
    };
    health_state = TR_HEALTH_NOT_SERVING;
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        peer_request(&peer, rows[i].method, rows[i].path, "", rows[i].body);
        peer_answer(&peer, &answer);
        assert_int_equal(answer.status, rows[i].status);
        assert_non_null(strstr(answer.head, "\r\nRetry-After: "));
        assert_non_null(strstr(answer.body, rows[i].contains));
    }
    stop(server);
    health_state = TR_HEALTH_SERVING;
}

/* -- completions -- */

static void a_completion_is_answered_whole(void **state)
{
    (void)state;
    set_script("Once upon a time", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    peer_request(&peer, "POST", COMPLETIONS, "",
                 "{\"model\":\"tiny\",\"prompt\":[5,6,7],\"max_tokens\":50,\"seed\":9,"
                 "\"temperature\":0.25,\"top_k\":3,\"min_p\":0.125}");
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.head, "\r\nContent-Type: application/json\r\n"));
    json_t *json = body_json();
    check_string(json, "object", "text_completion");
    check_string(json, "model", "tiny");
    check_string(json, "choices.0.text", "Once upon a time");
    check_string(json, "choices.0.finish_reason", "stop");
    check_int(json, "usage.prompt_tokens", 3);
    fake_state seen;
    fake_client_get(&seen);
    check_int(json, "usage.completion_tokens", (long long)seen.events - 1);
    check_int(json, "usage.total_tokens", (long long)seen.events + 2);
    json_decref(json);
    peer_request(&peer, "GET", "/metrics", "", NULL);
    peer_answer(&peer, &answer);
    assert_non_null(strstr(answer.body, "\ntroupe_first_token_seconds_count 1\n"));
    assert_non_null(strstr(answer.body, "\ntroupe_http_requests_total 1\n"));
    assert_non_null(strstr(answer.body, "\ntroupe_http_requests_in_flight 0\n"));

    assert_int_equal(seen.last.tokens_count, 3);
    assert_int_equal(seen.last.tokens[2], 7);
    assert_int_equal(seen.last.tokens_max, 50);
    assert_int_equal(seen.last.sampling.seed, 9);
    assert_int_equal(seen.last.sampling.top_k, 3);
    assert_true(seen.last.sampling.temperature == 0.25f);
    assert_true(seen.last.sampling.top_p == 0.75f); /* the model's default */
    assert_true(seen.last.sampling.min_p == 0.125f);
    assert_int_equal(seen.last.stop_tokens_count, 2);
    assert_int_equal(seen.last.stop_tokens[1], 4);
    stop(server);
}

/* Splits the stream into its events; returns how many there are. */
static size_t stream_events(json_t **events, size_t max)
{
    size_t count = 0;
    for (const char *line = answer.body; *line != '\0';) {
        const char *end = strstr(line, "\n\n");
        assert_non_null(end);
        assert_memory_equal(line, "data: ", 6);
        line += 6;
        if (strncmp(line, "[DONE]", 6) == 0) {
            assert_string_equal(end, "\n\n"); /* nothing behind it */
            return count;
        }
        assert_true(count < max);
        events[count] = json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(events[count]);
        count++;
        line = end + 2;
    }
    fail_msg("the stream does not end with [DONE]");
    return 0;
}

static void join_deltas(json_t *const *events, size_t count, const char *path, char *out,
                        size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(member(events[i], path));
        if (text != NULL)
            used += (size_t)snprintf(out + used, size - used, "%s", text);
    }
    assert_true(used < size);
}

static void free_events(json_t **events, size_t count)
{
    for (size_t i = 0; i < count; i++)
        json_decref(events[i]);
}

static void a_completion_is_streamed(void **state)
{
    (void)state;
    set_script("Once upon a time", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    peer_request(&peer, "POST", COMPLETIONS, "",
                 "{\"prompt\":\"a b\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                 "\"max_tokens\":2}");
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.head, "\r\nContent-Type: text/event-stream"));
    json_t *events[16];
    size_t count = stream_events(events, 16);
    assert_int_equal(count, 4); /* two tokens, the end, the usage */
    char text[256];
    join_deltas(events, count, "choices.0.text", text, sizeof(text));
    assert_true(strlen(text) > 0);
    assert_memory_equal("Once upon a time", text, strlen(text));
    check_string(events[2], "choices.0.finish_reason", "length");
    assert_true(json_is_null(member(events[2], "usage")));
    assert_int_equal(json_array_size(member(events[3], "choices")), 0);
    check_int(events[3], "usage.completion_tokens", 2);
    free_events(events, count);
    stop(server);
}

static void logprobs_come_with_each_token(void **state)
{
    (void)state;
    set_script("one two", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    fake_state seen;
    for (int streamed = 0; streamed < 2; streamed++) {
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"logprobs\":2,\"stream\":%s}",
                 streamed ? "true" : "false");
        peer_request(&peer, "POST", COMPLETIONS, "", body);
        peer_answer(&peer, &answer);
        fake_client_get(&seen);
        assert_int_equal(seen.last.top_logprobs, 2);
        json_t *events[16];
        size_t count = 1;
        if (streamed)
            count = stream_events(events, 16);
        else
            events[0] = body_json();
        size_t logprobs = 0;
        for (size_t i = 0; i < count; i++) {
            const json_t *values = member(events[i], "choices.0.logprobs.token_logprobs");
            logprobs += json_array_size(values);
            assert_int_equal(json_array_size(member(events[i], "choices.0.logprobs.text_offset")),
                             json_array_size(values));
            if (json_array_size(values) > 0)
                assert_true(json_real_value(json_array_get(values, 0)) == -0.5);
        }
        size_t count_expected = 0;
        CHECK_STATUS(tr_tokenizer_encode(tokenizer, "one two", 7, true, tokens + 128, 128,
                                         &count_expected, NULL),
                     TR_OK);
        assert_int_equal(logprobs, count_expected);
        free_events(events, count);
    }
    stop(server);
}

static void a_stop_string_cuts_the_text_and_cancels_the_request(void **state)
{
    (void)state;
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    for (int streamed = 0; streamed < 2; streamed++) {
        set_script("one, two, three", (fake_script){.hold = true});
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"stop\":[\"zz\",\" two\"],\"stream\":%s}",
                 streamed ? "true" : "false");
        peer_request(&peer, "POST", COMPLETIONS, "", body);
        peer_answer(&peer, &answer);
        json_t *events[32];
        size_t count = 1;
        if (streamed)
            count = stream_events(events, 32);
        else
            events[0] = body_json();
        char text[64];
        join_deltas(events, count, "choices.0.text", text, sizeof(text));
        assert_string_equal(text, "one,");
        check_string(events[count - 1], "choices.0.finish_reason", "stop");
        free_events(events, count);
        assert_int_equal(wait_for_active(0).canceled, 1);
    }
    stop(server);
}

/* -- chat -- */

static const char chat_body[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stream\":%s,\"tools\":[{"
    "\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"i\":{\"type\":\"integer\"}}}}}]}";

static void ask_chat(bool streamed)
{
    char body[512];
    snprintf(body, sizeof(body), chat_body, streamed ? "true" : "false");
    peer_request(&peer, "POST", CHAT, "", body);
    peer_answer(&peer, &answer);
    if (answer.status != 200)
        print_error("%s\n", answer.body);
    assert_int_equal(answer.status, 200);
}

static void a_chat_answer_has_reasoning_and_content(void **state)
{
    (void)state;
    set_script("Let me see.<|think:end|>Hello!", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);

    ask_chat(false);
    json_t *json = body_json();
    check_string(json, "object", "chat.completion");
    check_string(json, "choices.0.message.role", "assistant");
    check_string(json, "choices.0.message.content", "Hello!");
    check_string(json, "choices.0.message.reasoning_content", "Let me see.");
    check_string(json, "choices.0.finish_reason", "stop");
    assert_null(member(json, "choices.0.message.tool_calls"));
    assert_true(
        json_integer_value(member(json, "usage.completion_tokens_details.reasoning_tokens")) > 1);
    json_decref(json);

    ask_chat(true);
    json_t *events[32];
    size_t count = stream_events(events, 32);
    char text[256];
    check_string(events[0], "object", "chat.completion.chunk");
    check_string(events[0], "choices.0.delta.role", "assistant");
    join_deltas(events, count, "choices.0.delta.reasoning_content", text, sizeof(text));
    assert_string_equal(text, "Let me see.");
    join_deltas(events, count, "choices.0.delta.content", text, sizeof(text));
    assert_string_equal(text, "Hello!");
    check_string(events[count - 1], "choices.0.finish_reason", "stop");
    free_events(events, count);
    stop(server);
}

static void a_chat_answer_has_tool_calls(void **state)
{
    (void)state;
    set_script("Hm.<|think:end|><|tool_call:start|>f\n<|tool_arg:start|>i<|tool_arg:value|>42"
               "<|tool_arg:end|>\n<|tool_call:end|>\n<|tool_call:start|>g\n<|tool_call:end|>",
               (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);

    ask_chat(false);
    json_t *json = body_json();
    assert_true(json_is_null(member(json, "choices.0.message.content")));
    check_string(json, "choices.0.finish_reason", "tool_calls");
    check_string(json, "choices.0.message.tool_calls.0.type", "function");
    check_string(json, "choices.0.message.tool_calls.0.function.name", "f");
    check_string(json, "choices.0.message.tool_calls.0.function.arguments", "{\"i\": 42}");
    check_string(json, "choices.0.message.tool_calls.1.function.name", "g");
    check_string(json, "choices.0.message.tool_calls.1.function.arguments", "{}");
    assert_string_not_equal(json_string_value(member(json, "choices.0.message.tool_calls.0.id")),
                            json_string_value(member(json, "choices.0.message.tool_calls.1.id")));
    json_decref(json);

    ask_chat(true);
    json_t *events[64];
    size_t count = stream_events(events, 64);
    char arguments[2][64] = {"", ""};
    size_t begun = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *call = member(events[i], "choices.0.delta.tool_calls.0");
        if (call == NULL)
            continue;
        size_t index = (size_t)json_integer_value(member(call, "index"));
        assert_true(index < 2);
        if (member(call, "id") != NULL) {
            assert_int_equal(index, begun++);
            check_string(call, "function.name", index == 0 ? "f" : "g");
        }
        strcat(arguments[index], json_string_value(member(call, "function.arguments")));
    }
    assert_string_equal(arguments[0], "{\"i\": 42}");
    assert_string_equal(arguments[1], "{}");
    check_string(events[count - 1], "choices.0.finish_reason", "tool_calls");
    free_events(events, count);
    stop(server);
}

/* -- trouble -- */

static void refusals_of_the_cluster_have_their_status(void **state)
{
    (void)state;
    static const struct {
        fake_script script;
        int status;
        bool retry;
    } rows[] = {
        {{.submit = TR_E_AGAIN}, 503, true},
        {{.submit = TR_E_PEER}, 503, true},
        {{.submit = TR_E_INVALID}, 400, false},
        {{.end = TR_EVENT_FAILED, .failure = TR_E_PEER}, 503, true},
        {{.end = TR_EVENT_FAILED, .failure = TR_E_NOMEM, .refused = true}, 400, false},
        {{.end = TR_EVENT_FAILED, .failure = TR_E_INVALID, .refused = true}, 400, false},
        {{.end = TR_EVENT_FAILED, .failure = TR_E_NOMEM}, 503, true},
        {{.end = TR_EVENT_FAILED, .failure = TR_E_INVALID}, 500, false},
        {{.end = TR_EVENT_FAILED, .failure = TR_E_TIMEOUT}, 504, false},
        {{.end = TR_EVENT_FAILED, .failure = TR_E_NOTSUP}, 500, false},
        {{.end = TR_EVENT_FINISHED, .finish = TR_FINISH_CANCELED}, 503, true},
    };
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int streamed = 0; streamed < 2; streamed++) {
            set_script("", rows[i].script);
            peer_request(&peer, "POST", COMPLETIONS, "",
                         streamed ? "{\"prompt\":\"a\",\"stream\":true}" : "{\"prompt\":\"a\"}");
            peer_answer(&peer, &answer); /* no token yet: also a stream has a real status */
            assert_int_equal(answer.status, rows[i].status);
            assert_int_equal(strstr(answer.head, "\r\nRetry-After: ") != NULL, rows[i].retry);
            json_t *json = body_json();
            assert_true(json_is_string(member(json, "error.message")));
            json_decref(json);
        }
    }
    stop(server);
}

static void a_failure_in_a_stream_is_an_event(void **state)
{
    (void)state;
    set_script("Hello", (fake_script){.end = TR_EVENT_FAILED, .failure = TR_E_PEER});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    peer_request(&peer, "POST", COMPLETIONS, "", "{\"prompt\":\"a\",\"stream\":true}");
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.body, "data: {\"error\":{\"message\":\"the fake fails"));
    assert_null(strstr(answer.body, "[DONE]"));
    stop(server);
}

/* 128 connections, and 64 MiB of bodies of which one may grow by its 8 before it is noticed. */
static void what_is_counted_holds_all_connections_and_bodies(void **state)
{
    (void)state;
    assert_true(tr_server_bytes() >= (64u << 20) + (8u << 20) + 128 * tr_connection_bytes());
    assert_true(tr_connection_bytes() >= 2 * TR_CONNECTION_OUTPUT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endpoints_answer_and_everything_else_is_refused),
        cmocka_unit_test(head_is_get_without_a_body),
        cmocka_unit_test(what_is_counted_holds_all_connections_and_bodies),
        cmocka_unit_test(a_degraded_cluster_answers_and_says_what_is_missing),
        cmocka_unit_test(a_cluster_that_does_not_serve_is_503_with_a_reason),
        cmocka_unit_test(a_completion_is_answered_whole),
        cmocka_unit_test(a_completion_is_streamed),
        cmocka_unit_test(logprobs_come_with_each_token),
        cmocka_unit_test(a_stop_string_cuts_the_text_and_cancels_the_request),
        cmocka_unit_test(a_chat_answer_has_reasoning_and_content),
        cmocka_unit_test(a_chat_answer_has_tool_calls),
        cmocka_unit_test(refusals_of_the_cluster_have_their_status),
        cmocka_unit_test(a_failure_in_a_stream_is_an_event),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
