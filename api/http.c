/* http.c - the request reader.
 *
 *   REQUEST_LINE -> HEADER* -> (empty line) -+-> BODY -------------------------------+-> DONE
 *                                            +-> CHUNK_SIZE -> CHUNK_DATA -> CHUNK_END |
 *                                            |        ^---------------------------'   |
 *                                            |        +-- size 0 -> TRAILER* ----------+
 *                                            +----------------------------------------+
 *
 * Lines are collected in r->line and looked at when their CRLF has come, so that only one function
 * (http_line) knows about line ends. */
#include "api/http.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { REQUEST_LINE, HEADER, BODY, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

/* Empty lines in front of a request line: some old clients send one after a body. */
#define BLANK_LINES_MAX 2

static void http_fail(tr_http_request *r, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void http_fail(tr_http_request *r, unsigned status, const char *fmt, ...)
{
    char text[sizeof(r->error.text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    r->phase = TR_HTTP_FAILED;
    r->status = status;
    tr_fail(&r->error, TR_E_INVALID, "%s", text);
}

static bool http_is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Adds one byte to the line. True when the line is complete, without its CRLF. */
static bool http_line(tr_http_request *r, char c)
{
    if (r->line_ended_cr) {
        r->line_ended_cr = false;
        if (c == '\n') {
            r->line[r->line_size] = '\0';
            return true;
        }
        http_fail(r, 400, "a CR in the head of the request is not followed by LF");
        return false;
    }
    if (c == '\r') {
        r->line_ended_cr = true;
        return false;
    }
    if (c == '\n') {
        http_fail(r, 400, "a line of the request ends with LF alone, expected CR LF");
        return false;
    }
    if (c == '\0') {
        http_fail(r, 400, "a NUL byte in the head of the request");
        return false;
    }
    if (r->line_size == TR_HTTP_LINE_MAX) {
        http_fail(r, r->state == REQUEST_LINE ? 414 : 431,
                  "a line of the request is longer than %d bytes", TR_HTTP_LINE_MAX);
        return false;
    }
    r->line[r->line_size++] = c;
    return false;
}

/* Bytes of head and trailers are counted together: a peer must not keep us reading for ever. */
static bool http_count_head(tr_http_request *r)
{
    r->head_size++;
    if (r->head_size <= TR_HTTP_HEAD_MAX)
        return true;
    http_fail(r, 431, "the head of the request is longer than %d bytes", TR_HTTP_HEAD_MAX);
    return false;
}

/* "/path?query" or "http://host/path?query" to r->path. */
static void http_target(tr_http_request *r, const char *target)
{
    const char *path = target;
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        path = strchr(strchr(target, ':') + 3, '/');
        if (path == NULL)
            path = "/";
    }
    if (path[0] != '/') {
        http_fail(r, 400, "the request target does not begin with '/'");
        return;
    }
    for (const char *c = path; *c != '\0'; c++) {
        if (*c < 0x21 || *c > 0x7e) {
            http_fail(r, 400, "byte 0x%02x in the request target, expected percent encoding",
                      (unsigned char)*c);
            return;
        }
    }
    size_t size = strcspn(path, "?#");
    if (size > TR_HTTP_PATH_MAX) {
        http_fail(r, 414, "the path is longer than %d bytes", TR_HTTP_PATH_MAX);
        return;
    }
    memcpy(r->path, path, size);
    r->path[size] = '\0';
}

static void http_on_request_line(tr_http_request *r)
{
    char *target = strchr(r->line, ' ');
    char *version = target == NULL ? NULL : strchr(target + 1, ' ');
    if (version == NULL || strchr(version + 1, ' ') != NULL) {
        http_fail(r, 400, "the request line is not \"METHOD TARGET HTTP/1.1\"");
        return;
    }
    *target++ = '\0';
    *version++ = '\0';

    size_t method_size = strlen(r->line);
    for (size_t i = 0; i < method_size; i++) {
        if (!http_is_token_char(r->line[i])) {
            http_fail(r, 400, "byte 0x%02x in the method", (unsigned char)r->line[i]);
            return;
        }
    }
    if (method_size == 0 || method_size >= sizeof(r->method)) {
        http_fail(r, method_size == 0 ? 400 : 501, "the method has %zu letters, expected 1 to %zu",
                  method_size, sizeof(r->method) - 1);
        return;
    }
    memcpy(r->method, r->line, method_size + 1);

    if (strcmp(version, "HTTP/1.1") == 0) {
        r->version_1_0 = false;
    } else if (strcmp(version, "HTTP/1.0") == 0) {
        r->version_1_0 = true;
    } else if (strncmp(version, "HTTP/", 5) == 0) {
        http_fail(r, 505, "HTTP version \"%.20s\", expected HTTP/1.1", version);
        return;
    } else {
        http_fail(r, 400, "the request line does not end with HTTP/1.1");
        return;
    }
    r->keep_alive = !r->version_1_0;
    http_target(r, target);
    r->state = HEADER;
}

static void http_on_content_length(tr_http_request *r, const char *value)
{
    if (r->has_length) {
        http_fail(r, 400, "two Content-Length headers");
        return;
    }
    r->has_length = true;
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || value[digits] != '\0') {
        http_fail(r, 400, "Content-Length is not a decimal number");
        return;
    }
    /* 18 digits fit size_t; a longer number is too large whatever its leading digits are. */
    unsigned long long size = digits > 18 ? SIZE_MAX : strtoull(value, NULL, 10);
    if (size > r->body_size_max) {
        http_fail(r, 413, "a body of %s bytes, at most %zu are accepted",
                  digits > 18 ? "more than 10^18" : value, r->body_size_max);
        return;
    }
    r->body_left = (size_t)size;
}

static void http_on_transfer_encoding(tr_http_request *r, const char *value)
{
    if (r->chunked) {
        http_fail(r, 400, "two Transfer-Encoding headers");
        return;
    }
    if (strcasecmp(value, "chunked") != 0) {
        http_fail(r, 501, "Transfer-Encoding \"%.40s\", only chunked is known", value);
        return;
    }
    if (r->version_1_0) {
        http_fail(r, 400, "Transfer-Encoding in an HTTP/1.0 request");
        return;
    }
    r->chunked = true;
}

/* A comma-separated list; "close" wins whatever else it says. */
static void http_on_connection(tr_http_request *r, const char *value)
{
    while (*value != '\0') {
        value += strspn(value, " \t,");
        size_t size = strcspn(value, " \t,");
        if (size == 5 && strncasecmp(value, "close", 5) == 0) {
            r->keep_alive = false;
            return;
        }
        if (size == 10 && strncasecmp(value, "keep-alive", 10) == 0)
            r->keep_alive = true;
        value += size;
    }
}

/* Splits r->line into name and value; false when it is not a header. */
static bool http_split_header(tr_http_request *r, char **value_out)
{
    if (r->line[0] == ' ' || r->line[0] == '\t') {
        http_fail(r, 400, "a folded header line");
        return false;
    }
    size_t name_size = 0;
    while (http_is_token_char(r->line[name_size]))
        name_size++;
    if (name_size == 0 || r->line[name_size] != ':') {
        http_fail(r, 400, "header line %u is not \"Name: value\"", r->headers_count);
        return false;
    }
    r->line[name_size] = '\0';

    char *value = r->line + name_size + 1;
    value += strspn(value, " \t");
    size_t size = strlen(value);
    while (size > 0 && (value[size - 1] == ' ' || value[size - 1] == '\t'))
        value[--size] = '\0';
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)value[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            http_fail(r, 400, "control byte 0x%02x in header %.40s", c, r->line);
            return false;
        }
    }
    *value_out = value;
    return true;
}

static bool http_count_header(tr_http_request *r)
{
    r->headers_count++;
    if (r->headers_count <= TR_HTTP_HEADERS_MAX)
        return true;
    http_fail(r, 431, "more than %d headers", TR_HTTP_HEADERS_MAX);
    return false;
}

static void http_on_header(tr_http_request *r)
{
    char *value;
    if (!http_count_header(r) || !http_split_header(r, &value))
        return;
    const char *name = r->line;
    if (strcasecmp(name, "Content-Length") == 0) {
        http_on_content_length(r, value);
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        http_on_transfer_encoding(r, value);
    } else if (strcasecmp(name, "Connection") == 0) {
        http_on_connection(r, value);
    } else if (strcasecmp(name, "Host") == 0) {
        r->hosts_count++;
    } else if (strcasecmp(name, "Expect") == 0) {
        if (strcasecmp(value, "100-continue") == 0)
            r->expects_continue = true;
        else
            http_fail(r, 417, "Expect \"%.40s\", only 100-continue is known", value);
    } else if (strcasecmp(name, "Content-Encoding") == 0 && strcasecmp(value, "identity") != 0) {
        http_fail(r, 415, "Content-Encoding \"%.40s\", bodies must not be compressed", value);
    }
}

static void http_on_head_end(tr_http_request *r)
{
    if (r->has_length && r->chunked) {
        http_fail(r, 400, "both Content-Length and Transfer-Encoding");
        return;
    }
    if (r->hosts_count > 1 || (r->hosts_count == 0 && !r->version_1_0)) {
        http_fail(r, 400, "%u Host headers, expected 1", r->hosts_count);
        return;
    }
    bool has_body = r->chunked || r->body_left > 0;
    if (r->version_1_0 || !has_body)
        r->expects_continue = false; /* nobody waits for the answer */
    r->phase = has_body ? TR_HTTP_BODY : TR_HTTP_DONE;
    r->state = r->chunked ? CHUNK_SIZE : BODY;
}

static void http_on_chunk_size(tr_http_request *r)
{
    size_t digits = strspn(r->line, "0123456789abcdefABCDEF");
    if (digits == 0 || (r->line[digits] != '\0' && r->line[digits] != ';')) {
        http_fail(r, 400, "a chunk size is not a hexadecimal number");
        return;
    }
    unsigned long long size = digits > 15 ? SIZE_MAX : strtoull(r->line, NULL, 16);
    if (size > r->body_size_max - r->body_size) {
        http_fail(r, 413, "a body of more than %zu bytes", r->body_size_max);
        return;
    }
    r->body_left = (size_t)size;
    r->state = size == 0 ? TRAILER : CHUNK_DATA;
}

/* A line of the head, of the chunk framing or of the trailer is complete. */
static void http_on_line(tr_http_request *r)
{
    switch (r->state) {
    case REQUEST_LINE:
        if (r->line_size > 0)
            http_on_request_line(r);
        else if (++r->blank_lines > BLANK_LINES_MAX)
            http_fail(r, 400, "more than %d empty lines before a request", BLANK_LINES_MAX);
        break;
    case HEADER:
        if (r->line_size > 0)
            http_on_header(r);
        else
            http_on_head_end(r);
        break;
    case CHUNK_SIZE:
        http_on_chunk_size(r);
        break;
    case CHUNK_END:
        if (r->line_size > 0)
            http_fail(r, 400, "a chunk is longer than its size says");
        else
            r->state = CHUNK_SIZE;
        break;
    case TRAILER: {
        char *value;
        if (r->line_size == 0)
            r->phase = TR_HTTP_DONE;
        else if (http_count_header(r))
            (void)http_split_header(r, &value); /* checked for form; none is of use to us */
        break;
    }
    default:
        assert(false);
    }
    r->line_size = 0;
}

/* Takes body bytes; returns how many. Memory grows with what has come, not with what is claimed. */
static size_t http_on_body(tr_http_request *r, const char *bytes, size_t size)
{
    if (size > r->body_left)
        size = r->body_left;
    assert(r->body_size + size <= r->body_size_max);
    if (r->body_size + size > r->body_capacity) {
        size_t capacity = r->body_capacity == 0 ? 4096 : r->body_capacity;
        while (capacity < r->body_size + size)
            capacity *= 2;
        char *body = realloc(r->body, capacity);
        if (body == NULL) {
            http_fail(r, 503, "no memory for a body of %zu bytes", r->body_size + size);
            return 0;
        }
        r->body = body;
        r->body_capacity = capacity;
    }
    memcpy(r->body + r->body_size, bytes, size);
    r->body_size += size;
    r->body_left -= size;
    if (r->body_left > 0)
        return size;
    if (r->state == CHUNK_DATA)
        r->state = CHUNK_END;
    else
        r->phase = TR_HTTP_DONE;
    return size;
}

void tr_http_init(tr_http_request *r, size_t body_size_max)
{
    memset(r, 0, sizeof(*r));
    r->body_size_max = body_size_max;
}

void tr_http_reset(tr_http_request *r)
{
    size_t body_size_max = r->body_size_max;
    free(r->body);
    tr_http_init(r, body_size_max);
}

void tr_http_teardown(tr_http_request *r)
{
    free(r->body);
    r->body = NULL;
}

size_t tr_http_feed(tr_http_request *r, const char *bytes, size_t size)
{
    assert(r->phase == TR_HTTP_HEAD || r->phase == TR_HTTP_BODY);
    size_t used = 0;
    if (size > 0)
        r->started = true;
    while (used < size && (r->phase == TR_HTTP_HEAD || r->phase == TR_HTTP_BODY)) {
        if (r->state == BODY || r->state == CHUNK_DATA) {
            used += http_on_body(r, bytes + used, size - used);
            continue;
        }
        /* Chunk size lines are not counted: each of them is bounded and brings body bytes. */
        bool counted = r->state != CHUNK_SIZE && r->state != CHUNK_END;
        if (counted && !http_count_head(r))
            break;
        if (http_line(r, bytes[used++]))
            http_on_line(r);
    }
    return used;
}

const char *tr_http_reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (reasons[i].status == status)
            return reasons[i].reason;
    }
    return "Unknown";
}
