/* test_connections.c - clients that leave, are slow, send too much or nonsense; limits; the end of
 * the server. */
#include "tests/api/scripted_server.h"

#include <semaphore.h>
#include <uv.h>

static void a_client_that_leaves_cancels_its_request(void **state)
{
    (void)state;
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    for (int streamed = 0; streamed < 2; streamed++) {
        set_script("Hello", (fake_script){.hold = true});
        peer_request(&peer, "POST", COMPLETIONS, "",
                     streamed ? "{\"prompt\":\"a\",\"stream\":true}" : "{\"prompt\":\"a\"}");
        if (streamed)
            peer_wait(&peer, "data: ");
        wait_for_active(1);
        peer_close(&peer);
        assert_int_equal(wait_for_active(0).canceled, 1);
        peer_open(&peer, tr_server_port(server));
    }
    stop(server);
}

static void a_reader_that_is_too_slow_is_dropped(void **state)
{
    (void)state;
    set_script("word", (fake_script){.repeats = 1000000});
    tr_server_config config = base_config();
    config.context_max = 2000000;
    tr_server *server = start(&config);
    peer_request(&peer, "POST", COMPLETIONS, "",
                 "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":1000000}");
    fake_state seen = wait_for_active(0); /* nothing is read */
    assert_int_equal(seen.canceled, 1);
    assert_true(seen.events < 900000);
    stop(server);
}

static void other_streams_go_on_while_one_client_reads_slowly(void **state)
{
    (void)state;
    static http_peer slow;
    set_script("word", (fake_script){.repeats = 2000});
    tr_server_config config = base_config();
    config.context_max = 4000;
    tr_server *server = start(&config);
    peer_open(&slow, tr_server_port(server));
    static const char body[] = "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":2000}";
    peer_request(&slow, "POST", COMPLETIONS, "", body);
    peer_request(&peer, "POST", COMPLETIONS, "", body);
    peer_answer(&peer, &answer);
    assert_non_null(strstr(answer.body, "[DONE]"));
    peer_close(&slow);
    stop(server);
}

static void requests_may_be_sent_ahead(void **state)
{
    (void)state;
    set_script("Hi", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    for (int i = 0; i < 40; i++) {
        if (i % 2 == 0)
            peer_request(&peer, "GET", "/v1/models", "", NULL);
        else
            peer_request(&peer, "POST", COMPLETIONS, "", "{\"prompt\":\"a\",\"stream\":true}");
    }
    for (int i = 0; i < 40; i++) {
        peer_answer(&peer, &answer);
        assert_int_equal(answer.status, 200);
        assert_int_equal(strstr(answer.body, "[DONE]") != NULL, i % 2 == 1);
    }
    stop(server);
}

static void malformed_requests_are_answered_and_the_connection_closed(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        int status;
    } rows[] = {
        {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
        {"\x16\x03\x01\x02\n", 400}, /* a TLS client */
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413},
        {"GET / HTTP/3.0\r\n\r\n", 505},
    };
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        peer_send(&peer, rows[i].bytes, strlen(rows[i].bytes));
        peer_answer(&peer, &answer);
        assert_int_equal(answer.status, rows[i].status);
        assert_true(answer.closed_by_server);
        peer_wait_closed(&peer);
        peer_close(&peer);
        peer_open(&peer, tr_server_port(server));
    }
    stop(server);
}

static void a_body_that_is_too_large_is_refused_while_it_comes(void **state)
{
    (void)state;
    static char chunk[4096];
    tr_server_config config = base_config();
    config.body_size_max = 100000;
    tr_server *server = start(&config);
    static const char head[] = "POST " COMPLETIONS " HTTP/1.1\r\nHost: a\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    peer_send(&peer, head, strlen(head));
    for (int i = 0; i < 200; i++) {
        peer_send(&peer, "1000\r\n", 6);
        peer_send(&peer, chunk, sizeof(chunk));
        peer_send(&peer, "\r\n", 2);
    }
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 413);
    stop(server);
}

static void more_bodies_than_the_server_holds_are_refused(void **state)
{
    (void)state;
    static char bytes[60000];
    tr_server_config config = base_config();
    config.bodies_size_max = 50000;
    tr_server *server = start(&config);
    static const char head[] = "POST " COMPLETIONS " HTTP/1.1\r\nHost: a\r\n"
                               "Content-Length: 100000\r\n\r\n";
    for (int i = 0; i < 3; i++) { /* what a refused one held is free again */
        peer_send(&peer, head, strlen(head));
        peer_send(&peer, bytes, 40000);
        peer_send(&peer, bytes, 20000);
        peer_answer(&peer, &answer);
        assert_int_equal(answer.status, 503);
        peer_close(&peer);
        peer_open(&peer, tr_server_port(server));
    }
    set_script("Hi", (fake_script){.finish = TR_FINISH_STOP});
    for (int i = 0; i < 20; i++) { /* and so is what an answered one held */
        peer_request(&peer, "POST", COMPLETIONS, "", "{\"prompt\":\"a\"}");
        peer_answer(&peer, &answer);
        assert_int_equal(answer.status, 200);
    }
    stop(server);
}

static void await_metric(http_peer *p, const char *line)
{
    do {
        peer_request(p, "GET", "/metrics", "", NULL);
        peer_answer(p, &answer);
    } while (strstr(answer.body, line) == NULL);
}

static void wait_until_posted(uv_work_t *work)
{
    sem_wait(work->data);
}

static void bodies_of_clients_that_left_count_until_they_are_read(void **state)
{
    (void)state;
    static char body[30000];
    static http_peer other;
    uv_loop_t loop;
    uv_work_t works[4]; /* as many threads read bodies */
    sem_t let_go;
    tr_server_config config = base_config();
    config.bodies_size_max = 50000; /* one of 30,000 bytes */
    tr_server *server = start(&config);
    memset(body, ' ', sizeof(body) - 1);
    memcpy(body, "{\"prompt\":\"a\"}", 14);
    assert_int_equal(uv_loop_init(&loop), 0);
    sem_init(&let_go, 0, 0);
    for (int i = 0; i < 4; i++) {
        works[i].data = &let_go;
        assert_int_equal(uv_queue_work(&loop, &works[i], wait_until_posted, NULL), 0);
    }
    set_script("Hi", (fake_script){.finish = TR_FINISH_STOP});
    peer_request(&peer, "POST", COMPLETIONS, "", body);
    peer_open(&other, tr_server_port(server));
    await_metric(&other, "\ntroupe_http_requests_in_flight 1\n");
    peer_close(&peer);
    await_metric(&other, "\ntroupe_http_canceled_total 1\n");
    peer_request(&other, "POST", COMPLETIONS, "", body);
    peer_answer(&other, &answer);
    assert_int_equal(answer.status, 503);
    peer_close(&other);
    for (int i = 0; i < 4; i++)
        sem_post(&let_go);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    do { /* until the one of the client that left is read */
        peer_open(&peer, tr_server_port(server));
        peer_request(&peer, "POST", COMPLETIONS, "", body);
        peer_answer(&peer, &answer);
        if (answer.status == 503)
            peer_close(&peer);
    } while (answer.status == 503);
    assert_int_equal(answer.status, 200);
    stop(server);
    sem_destroy(&let_go);
}

static void a_client_that_waits_for_continue_gets_it(void **state)
{
    (void)state;
    set_script("Hi", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    static const char head[] = "POST " COMPLETIONS " HTTP/1.1\r\nHost: a\r\n"
                               "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n";
    peer_send(&peer, head, strlen(head));
    peer_wait(&peer, "\r\n\r\n");
    assert_string_equal(peer.text, "HTTP/1.1 100 Continue\r\n\r\n");
    peer.size = 0;
    peer.text[0] = '\0';
    peer_send(&peer, "{\"prompt\":\"a\"}", 14);
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 200);
    stop(server);
}

static void a_deadline_ends_an_idle_connection(void **state)
{
    (void)state;
    tr_server_config config = base_config();
    config.idle_timeout_ms = 150;
    tr_server *server = start(&config);
    peer_wait_closed(&peer); /* without a word */
    assert_int_equal(peer.size, 0);
    stop(server);
}

static void a_deadline_ends_an_unfinished_request(void **state)
{
    (void)state;
    tr_server_config config = base_config();
    config.read_timeout_ms = 150;
    tr_server *server = start(&config);
    peer_send(&peer, "POST /", 6);
    peer_answer(&peer, &answer); /* half a request: 408 */
    assert_int_equal(answer.status, 408);
    peer_wait_closed(&peer);
    stop(server);
}

static void a_request_without_a_token_is_given_up(void **state)
{
    (void)state;
    set_script("", (fake_script){.hold = true});
    tr_server_config config = base_config();
    config.stall_timeout_ms = 150;
    tr_server *server = start(&config);
    peer_request(&peer, "POST", COMPLETIONS, "", "{\"prompt\":\"a\"}");
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 504);
    assert_int_equal(wait_for_active(0).canceled, 1);
    stop(server);
}

static void connections_beyond_the_limit_are_refused(void **state)
{
    (void)state;
    static http_peer second;
    tr_server_config config = base_config();
    config.connections_max = 1;
    tr_server *server = start(&config);
    peer_request(&peer, "GET", "/health", "", NULL);
    peer_answer(&peer, &answer); /* the first one is known to be there */
    peer_open(&second, tr_server_port(server));
    peer_wait_closed(&second);
    assert_non_null(strstr(second.text, "HTTP/1.1 503 "));
    peer_close(&second);
    stop(server);
}

static void http_1_0_gets_the_stream_without_chunks(void **state)
{
    (void)state;
    set_script("Hi", (fake_script){.finish = TR_FINISH_STOP});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    static const char request[] = "POST " COMPLETIONS " HTTP/1.0\r\nContent-Length: 28\r\n\r\n"
                                  "{\"prompt\":\"a\",\"stream\":true}";
    peer_send(&peer, request, strlen(request));
    peer_wait_closed(&peer);
    assert_null(strstr(peer.text, "chunked"));
    const char *body = strstr(peer.text, "\r\n\r\n") + 4;
    assert_memory_equal(body, "data: {", 7);
    assert_string_equal(strstr(body, "data: [DONE]"), "data: [DONE]\n\n");
    stop(server);
}

static void stopping_ends_running_answers_with_a_word(void **state)
{
    (void)state;
    static http_peer streamed;
    set_script("Hello", (fake_script){.hold = true});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    peer_open(&streamed, tr_server_port(server));
    peer_request(&streamed, "POST", COMPLETIONS, "", "{\"prompt\":\"a\",\"stream\":true}");
    peer_wait(&streamed, "data: ");
    peer_request(&peer, "POST", COMPLETIONS, "", "{\"prompt\":\"a\"}");
    wait_for_active(2);
    tr_server_stop(server);
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 503);
    assert_non_null(strstr(answer.body, "stopping"));
    peer_wait_closed(&streamed);
    assert_non_null(strstr(streamed.text, "stopping"));
    peer_close(&streamed);
    stop(server);
}

static void a_cluster_that_has_ended_is_the_reason_of_the_stop(void **state)
{
    (void)state;
    set_script("Hello", (fake_script){.hold = true});
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    peer_request(&peer, "POST", COMPLETIONS, "", "{\"prompt\":\"a\"}");
    wait_for_active(1);
    health_state = TR_HEALTH_NOT_SERVING;
    tr_server_stop(server);
    health_state = TR_HEALTH_SERVING;
    peer_answer(&peer, &answer);
    assert_int_equal(answer.status, 503);
    assert_non_null(strstr(answer.body, "node b is gone"));
    stop(server);
}

static void a_port_in_use_is_said_in_a_sentence(void **state)
{
    (void)state;
    tr_server_config config = base_config();
    tr_server *server = start(&config);
    tr_server *second;
    tr_error err = {0};
    config.port = tr_server_port(server);
    CHECK_STATUS(tr_server_open(&second, &config, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "in use");
    char port[8];
    snprintf(port, sizeof(port), "%u", config.port);
    CHECK_ERR_NAMES(err, port);
    config.host = "no host has this name";
    CHECK_STATUS(tr_server_open(&second, &config, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "no host has this name");
    stop(server);
}

static void a_server_may_be_closed_without_running(void **state)
{
    (void)state;
    tr_server_config config = base_config();
    tr_server *server;
    tr_error err = {0};
    CHECK_STATUS(tr_server_open(&server, &config, &err), TR_OK);
    tr_server_close(server);
    tr_server_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_leaves_cancels_its_request),
        cmocka_unit_test(a_reader_that_is_too_slow_is_dropped),
        cmocka_unit_test(other_streams_go_on_while_one_client_reads_slowly),
        cmocka_unit_test(requests_may_be_sent_ahead),
        cmocka_unit_test(malformed_requests_are_answered_and_the_connection_closed),
        cmocka_unit_test(a_body_that_is_too_large_is_refused_while_it_comes),
        cmocka_unit_test(more_bodies_than_the_server_holds_are_refused),
        cmocka_unit_test(bodies_of_clients_that_left_count_until_they_are_read),
        cmocka_unit_test(a_client_that_waits_for_continue_gets_it),
        cmocka_unit_test(a_deadline_ends_an_idle_connection),
        cmocka_unit_test(a_deadline_ends_an_unfinished_request),
        cmocka_unit_test(a_request_without_a_token_is_given_up),
        cmocka_unit_test(connections_beyond_the_limit_are_refused),
        cmocka_unit_test(http_1_0_gets_the_stream_without_chunks),
        cmocka_unit_test(stopping_ends_running_answers_with_a_word),
        cmocka_unit_test(a_cluster_that_has_ended_is_the_reason_of_the_stop),
        cmocka_unit_test(a_port_in_use_is_said_in_a_sentence),
        cmocka_unit_test(a_server_may_be_closed_without_running),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
