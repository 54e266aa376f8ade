#include "tests/api/http_peer.h"

#include "tests/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_MS 20000

void peer_open(http_peer *p, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->size = 0;
    p->text[0] = '\0';
    p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(p->fd >= 0);
    assert_int_equal(connect(p->fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

void peer_close(http_peer *p)
{
    close(p->fd);
    p->fd = -1;
}

void peer_send(http_peer *p, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(p->fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return; /* the server has answered already */
        assert_true(sent > 0);
        bytes += sent;
        size -= (size_t)sent;
    }
}

void peer_request(http_peer *p, const char *method, const char *path, const char *headers,
                  const char *body)
{
    char head[1024];
    size_t body_size = body == NULL ? 0 : strlen(body);
    int size =
        snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: test\r\n%s", method, path, headers);
    if (body != NULL)
        size += snprintf(head + size, sizeof(head) - (size_t)size, "Content-Length: %zu\r\n",
                         body_size);
    size += snprintf(head + size, sizeof(head) - (size_t)size, "\r\n");
    peer_send(p, head, (size_t)size);
    peer_send(p, body, body_size);
}

/* Reads what is there; false at the end of the connection. Fails the test at the deadline. */
static bool peer_read(http_peer *p)
{
    struct pollfd wait = {.fd = p->fd, .events = POLLIN};
    assert_true(p->size + 1 < sizeof(p->text));
    assert_int_equal(poll(&wait, 1, WAIT_MS), 1);
    ssize_t got = recv(p->fd, p->text + p->size, sizeof(p->text) - 1 - p->size, 0);
    if (got <= 0)
        return false;
    p->size += (size_t)got;
    p->text[p->size] = '\0';
    return true;
}

void peer_wait(http_peer *p, const char *what)
{
    while (strstr(p->text, what) == NULL) {
        if (!peer_read(p)) {
            print_error("closed before \"%s\": %s\n", what, p->text);
            fail();
        }
    }
}

void peer_wait_closed(http_peer *p)
{
    while (peer_read(p)) {
    }
}

static void peer_drop(http_peer *p, size_t size)
{
    assert_true(size <= p->size);
    memmove(p->text, p->text + size, p->size - size + 1);
    p->size -= size;
}

static void peer_take(http_peer *p, http_answer *out, size_t size)
{
    while (p->size < size)
        assert_true(peer_read(p));
    assert_true(out->body_size + size < sizeof(out->body));
    memcpy(out->body + out->body_size, p->text, size);
    out->body_size += size;
    out->body[out->body_size] = '\0';
    peer_drop(p, size);
}

static void peer_take_chunks(http_peer *p, http_answer *out)
{
    for (;;) {
        peer_wait(p, "\r\n");
        char *end;
        size_t size = strtoul(p->text, &end, 16);
        assert_memory_equal(end, "\r\n", 2);
        peer_drop(p, (size_t)(end - p->text) + 2);
        peer_take(p, out, size);
        while (p->size < 2)
            assert_true(peer_read(p));
        assert_memory_equal(p->text, "\r\n", 2);
        peer_drop(p, 2);
        if (size == 0)
            return;
    }
}

void peer_answer(http_peer *p, http_answer *out)
{
    out->body_size = 0;
    out->body[0] = '\0';
    peer_wait(p, "\r\n\r\n");
    size_t head_size = (size_t)(strstr(p->text, "\r\n\r\n") - p->text) + 4;
    assert_true(head_size < sizeof(out->head));
    memcpy(out->head, p->text, head_size);
    out->head[head_size] = '\0';
    peer_drop(p, head_size);
    assert_int_equal(sscanf(out->head, "HTTP/1.1 %d ", &out->status), 1);
    out->closed_by_server = strstr(out->head, "\r\nConnection: close\r\n") != NULL;

    const char *length = strstr(out->head, "\r\nContent-Length: ");
    if (length != NULL)
        peer_take(p, out, strtoul(length + 18, NULL, 10));
    else if (strstr(out->head, "\r\nTransfer-Encoding: chunked\r\n") != NULL)
        peer_take_chunks(p, out);
    else
        peer_wait_closed(p);
}
