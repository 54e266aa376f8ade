/* test_http.c - the request reader, alone.
 *
 * Goal: every request that a client may send is read, every malformed one is refused with the
 * right status, and the outcome never depends on where the bytes were cut. Method: each row of the
 * tables is fed whole, byte by byte, and in two pieces for every cut position. */
#include "tests/check.h"

#include "api/http.h"

#include <stdbool.h>
#include <stdlib.h>

#define BODY_MAX 64
#define LOCAL    "Host: a\r\n"

typedef struct {
    const char *bytes;
    const char *method;
    const char *path;
    const char *body;
    bool keep_alive;
    size_t used; /* 0: all */
} good_row;

static const good_row good_rows[] = {
    {"GET / HTTP/1.1\r\n" LOCAL "\r\n", "GET", "/", "", true, 0},
    {"GET /health?x=1 HTTP/1.1\r\n" LOCAL "\r\n", "GET", "/health", "", true, 0},
    {"GET http://a:1/v1/models?q HTTP/1.1\r\n" LOCAL "\r\n", "GET", "/v1/models", "", true, 0},
    {"GET https://a HTTP/1.1\r\n" LOCAL "\r\n", "GET", "/", "", true, 0},
    {"\r\n\r\nGET / HTTP/1.1\r\n" LOCAL "\r\n", "GET", "/", "", true, 0},
    {"GET / HTTP/1.0\r\n\r\n", "GET", "/", "", false, 0},
    {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET", "/", "", true, 0},
    {"GET / HTTP/1.1\r\n" LOCAL "Connection: foo, close\r\n\r\n", "GET", "/", "", false, 0},
    {"GET / HTTP/1.1\r\nhost:a\r\nX:\r\nY: \t v \t\r\n\r\n", "GET", "/", "", true, 0},
    {"POST /a HTTP/1.1\r\n" LOCAL "Content-Length: 5\r\n\r\nhello", "POST", "/a", "hello", true, 0},
    {"POST /a HTTP/1.1\r\n" LOCAL "content-length:0\r\n\r\n", "POST", "/a", "", true, 0},
    {"POST /a HTTP/1.1\r\n" LOCAL "Content-Length: 5\r\n\r\nhelloGET", "POST", "/a", "hello", true,
     53},
    {"POST /a HTTP/1.1\r\n" LOCAL "Transfer-Encoding: chunked\r\n\r\n"
     "2\r\nhe\r\n03;x=\"y\"\r\nllo\r\n0\r\n\r\n",
     "POST", "/a", "hello", true, 0},
    {"POST /a HTTP/1.1\r\n" LOCAL "Transfer-Encoding: Chunked\r\n\r\n"
     "A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
     "POST", "/a", "0123456789", true, 0},
    {"POST /a HTTP/1.1\r\n" LOCAL "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST", "/a", "",
     true, 0},
};

typedef struct {
    const char *bytes;
    unsigned status;
    const char *names; /* what the sentence contains */
} bad_row;

#define POST_HEAD "POST / HTTP/1.1\r\n" LOCAL

static const bad_row bad_rows[] = {
    {"GET / HTTP/1.1\r\n\r\n", 400, "0 Host"},
    {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "2 Host"},
    {"GET / HTTP/2.0\r\n\r\n", 505, "HTTP/2.0"},
    {"GET / HTTP/1.2\r\n\r\n", 505, "HTTP/1.2"},
    {"GET / http/1.1\r\n\r\n", 400, "HTTP/1.1"},
    {"GET /\r\n\r\n", 400, "request line"},
    {"GET  / HTTP/1.1\r\n\r\n", 400, "request line"},
    {" GET / HTTP/1.1\r\n\r\n", 400, "request line"},
    {"G(T / HTTP/1.1\r\n\r\n", 400, "method"},
    {"ABCDEFGHIJKLMNOP / HTTP/1.1\r\n\r\n", 501, "method"},
    {"GET a HTTP/1.1\r\n\r\n", 400, "target"},
    {"GET * HTTP/1.1\r\n\r\n", 400, "target"},
    {"GET /\x80 HTTP/1.1\r\n\r\n", 400, "0x80"},
    {"GET /\t HTTP/1.1\r\n\r\n", 400, "0x09"},
    {"\r\n\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400, "empty lines"},
    {"GET / HTTP/1.1\n", 400, "LF alone"},
    {"GET / HTTP/1.1\rX", 400, "CR"},
    {"GET / HTTP/1.1\r\r\n", 400, "CR"},
    {"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400, "CR"},
    {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "Name: value"},
    {"GET / HTTP/1.1\r\n: a\r\n\r\n", 400, "Name: value"},
    {"GET / HTTP/1.1\r\nHost\r\n\r\n", 400, "Name: value"},
    {"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400, "folded"},
    {"GET / HTTP/1.1\r\nHost: a\r\n\tb\r\n\r\n", 400, "folded"},
    {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400, "folded"},
    {"GET / HTTP/1.1\r\nHost: a\x01\r\n\r\n", 400, "0x01"},
    {"GET / HTTP/1.1\r\nHost: a\x7f\r\n\r\n", 400, "0x7f"},
    {POST_HEAD "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400, "two Content-Length"},
    {POST_HEAD "Content-Length: 1, 1\r\n\r\n", 400, "decimal"},
    {POST_HEAD "Content-Length: +1\r\n\r\n", 400, "decimal"},
    {POST_HEAD "Content-Length: -1\r\n\r\n", 400, "decimal"},
    {POST_HEAD "Content-Length: 0x1\r\n\r\n", 400, "decimal"},
    {POST_HEAD "Content-Length:\r\n\r\n", 400, "decimal"},
    {POST_HEAD "Content-Length: 65\r\n", 413, "65"},
    {POST_HEAD "Content-Length: 18446744073709551617\r\n", 413, "10^18"},
    {POST_HEAD "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "both"},
    {POST_HEAD "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400, "both"},
    {POST_HEAD "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "gzip"},
    {POST_HEAD "Transfer-Encoding: xchunked\r\n\r\n", 501, "xchunked"},
    {POST_HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "two"},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0"},
    {POST_HEAD "Content-Encoding: gzip\r\n\r\n", 415, "gzip"},
    {POST_HEAD "Expect: x\r\n\r\n", 417, "\"x\""},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n\r\n", 400, "hexadecimal"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n 1\r\n", 400, "hexadecimal"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n1 ;x\r\n", 400, "hexadecimal"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n0x1\r\n", 400, "hexadecimal"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n1\n", 400, "LF alone"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400, "longer"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n41\r\n", 413, "64"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n3f\r\n"
               "0123456789012345678901234567890123456789012345678901234567890123\r\n",
     400, "longer"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", 413, "64"},
    {POST_HEAD "Transfer-Encoding: chunked\r\n\r\n0\r\nbad trailer\r\n\r\n", 400, "Name: value"},
};

/* Feeds bytes in pieces: the first of first_size bytes, the others of step bytes. */
static size_t feed(tr_http_request *r, const char *bytes, size_t size, size_t first_size,
                   size_t step)
{
    size_t used = 0;
    size_t piece = first_size;
    while (used < size && r->phase != TR_HTTP_DONE && r->phase != TR_HTTP_FAILED) {
        if (piece > size - used)
            piece = size - used;
        used += tr_http_feed(r, bytes + used, piece);
        piece = step;
    }
    return used;
}

static void check_good(const good_row *row, size_t first_size, size_t step)
{
    tr_http_request r;
    tr_http_init(&r, BODY_MAX);
    size_t size = strlen(row->bytes);
    size_t used = feed(&r, row->bytes, size, first_size, step);
    if (r.phase != TR_HTTP_DONE)
        print_error("%s: cut at %zu: %s\n", row->bytes, first_size, r.error.text);
    assert_int_equal(r.phase, TR_HTTP_DONE);
    assert_int_equal(used, row->used == 0 ? size : row->used);
    assert_string_equal(r.method, row->method);
    assert_string_equal(r.path, row->path);
    assert_int_equal(r.keep_alive, row->keep_alive);
    assert_int_equal(r.body_size, strlen(row->body));
    if (r.body_size > 0)
        assert_memory_equal(r.body, row->body, r.body_size);
    tr_http_teardown(&r);
}

static void check_bad(const bad_row *row, size_t first_size, size_t step)
{
    tr_http_request r;
    tr_http_init(&r, BODY_MAX);
    feed(&r, row->bytes, strlen(row->bytes), first_size, step);
    if (r.phase != TR_HTTP_FAILED || r.status != row->status)
        print_error("%s: cut at %zu: phase %d status %u %s\n", row->bytes, first_size, r.phase,
                    r.status, r.error.text);
    assert_int_equal(r.phase, TR_HTTP_FAILED);
    assert_int_equal(r.status, row->status);
    CHECK_ERR_NAMES(r.error, row->names);
    assert_string_not_equal(tr_http_reason(r.status), "Unknown");
    tr_http_teardown(&r);
}

static void good_requests_are_read_wherever_they_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(good_rows) / sizeof(good_rows[0]); i++) {
        size_t size = strlen(good_rows[i].bytes);
        check_good(&good_rows[i], 1, 1);
        for (size_t cut = 1; cut <= size; cut++)
            check_good(&good_rows[i], cut, size);
    }
}

static void bad_requests_are_refused_wherever_they_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_rows) / sizeof(bad_rows[0]); i++) {
        size_t size = strlen(bad_rows[i].bytes);
        check_bad(&bad_rows[i], 1, 1);
        for (size_t cut = 1; cut <= size; cut++)
            check_bad(&bad_rows[i], cut, size);
    }
}

static void an_unfinished_request_asks_for_more(void **state)
{
    (void)state;
    const char *bytes = good_rows[12].bytes;
    for (size_t size = 0; size < strlen(bytes); size++) {
        tr_http_request r;
        tr_http_init(&r, BODY_MAX);
        assert_int_equal(feed(&r, bytes, size, 1, 1), size);
        assert_true(r.phase == TR_HTTP_HEAD || r.phase == TR_HTTP_BODY);
        assert_int_equal(r.started, size > 0);
        tr_http_teardown(&r);
    }
}

static void requests_follow_each_other_on_one_reader(void **state)
{
    (void)state;
    const char *bytes = "POST /1 HTTP/1.1\r\n" LOCAL "Content-Length: 2\r\n\r\nab"
                        "GET /2 HTTP/1.1\r\n" LOCAL "\r\n";
    size_t size = strlen(bytes);
    tr_http_request r;
    tr_http_init(&r, BODY_MAX);
    size_t used = tr_http_feed(&r, bytes, size);
    assert_int_equal(r.phase, TR_HTTP_DONE);
    assert_string_equal(r.path, "/1");
    tr_http_reset(&r);
    assert_false(r.started);
    used += tr_http_feed(&r, bytes + used, size - used);
    assert_int_equal(r.phase, TR_HTTP_DONE);
    assert_string_equal(r.path, "/2");
    assert_int_equal(r.body_size, 0);
    assert_int_equal(used, size);
    tr_http_teardown(&r);
}

static void continue_is_expected_only_when_a_body_follows(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        bool expected;
    } rows[] = {
        {POST_HEAD "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", true},
        {POST_HEAD "Transfer-Encoding: chunked\r\nExpect: 100-Continue\r\n\r\n", true},
        {POST_HEAD "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", false},
        {POST_HEAD "Expect: 100-continue\r\n\r\n", false},
        {"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_http_request r;
        tr_http_init(&r, BODY_MAX);
        tr_http_feed(&r, rows[i].bytes, strlen(rows[i].bytes));
        assert_int_not_equal(r.phase, TR_HTTP_FAILED);
        assert_int_equal(r.expects_continue, rows[i].expected);
        tr_http_teardown(&r);
    }
}

/* prefix, then unit until the reader refuses or count are sent. Returns the status. */
static unsigned status_of_flood(const char *prefix, const char *unit, size_t count)
{
    static tr_http_request r;
    tr_http_init(&r, BODY_MAX);
    tr_http_feed(&r, prefix, strlen(prefix));
    for (size_t i = 0; i < count && r.phase == TR_HTTP_HEAD; i++)
        tr_http_feed(&r, unit, strlen(unit));
    unsigned status = r.phase == TR_HTTP_FAILED ? r.status : 0;
    tr_http_teardown(&r);
    return status;
}

static void every_length_has_a_limit(void **state)
{
    (void)state;
    assert_int_equal(status_of_flood("GET /", "a", TR_HTTP_LINE_MAX), 414);
    assert_int_equal(status_of_flood("GET / HTTP/1.1\r\nX: ", "a", TR_HTTP_LINE_MAX), 431);
    assert_int_equal(status_of_flood("GET / HTTP/1.1\r\n", "X: y\r\n", TR_HTTP_HEADERS_MAX), 0);
    assert_int_equal(status_of_flood("GET / HTTP/1.1\r\n", "X: y\r\n", TR_HTTP_HEADERS_MAX + 1),
                     431);

    char header[4097];
    memset(header, 'a', sizeof(header));
    memcpy(header, "X: ", 3);
    memcpy(header + sizeof(header) - 3, "\r\n", 3);
    assert_int_equal(status_of_flood("GET / HTTP/1.1\r\n", header, 15), 0);
    assert_int_equal(status_of_flood("GET / HTTP/1.1\r\n", header, 17), 431);

    char path[TR_HTTP_PATH_MAX + 64];
    size_t size = (size_t)snprintf(path, sizeof(path), "GET /%0*d", TR_HTTP_PATH_MAX, 0);
    snprintf(path + size, sizeof(path) - size, " HTTP/1.1\r\n");
    assert_int_equal(status_of_flood(path, "", 0), 414);
}

static void a_nul_byte_in_the_head_is_refused(void **state)
{
    (void)state;
    static const char bytes[] = "GET / HTTP/1.1\r\nX: a\0b\r\n\r\n";
    tr_http_request r;
    tr_http_init(&r, BODY_MAX);
    tr_http_feed(&r, bytes, sizeof(bytes) - 1);
    assert_int_equal(r.phase, TR_HTTP_FAILED);
    CHECK_ERR_NAMES(r.error, "NUL");
    tr_http_teardown(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_requests_are_read_wherever_they_are_cut),
        cmocka_unit_test(bad_requests_are_refused_wherever_they_are_cut),
        cmocka_unit_test(an_unfinished_request_asks_for_more),
        cmocka_unit_test(requests_follow_each_other_on_one_reader),
        cmocka_unit_test(continue_is_expected_only_when_a_body_follows),
        cmocka_unit_test(every_length_has_a_limit),
        cmocka_unit_test(a_nul_byte_in_the_head_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
