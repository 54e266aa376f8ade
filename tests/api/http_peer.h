/* http_peer.h - the client's end of a connection, for tests: blocking, with deadlines. */
#ifndef TR_TESTS_API_HTTP_PEER_H
#define TR_TESTS_API_HTTP_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PEER_TEXT_MAX (1u << 20)

typedef struct {
    int fd;
    size_t size;              /* bytes in text */
    char text[PEER_TEXT_MAX]; /* what has come and was not taken, NUL-terminated */
} http_peer;

typedef struct {
    int status;
    bool closed_by_server;    /* "Connection: close" */
    char head[4096];          /* NUL-terminated */
    char body[PEER_TEXT_MAX]; /* without chunk framing, NUL-terminated */
    size_t body_size;
} http_answer;

/* Connects to 127.0.0.1; fails the test when it cannot. */
void peer_open(http_peer *p, uint16_t port);
void peer_close(http_peer *p);
void peer_send(http_peer *p, const char *bytes, size_t size);

/* Sends METHOD PATH with a body (may be NULL) and more header lines (may be ""). */
void peer_request(http_peer *p, const char *method, const char *path, const char *headers,
                  const char *body);

/* Reads one answer; fails the test when it is malformed or does not come. */
void peer_answer(http_peer *p, http_answer *out);

/* Reads until text contains what; fails the test when it does not come. */
void peer_wait(http_peer *p, const char *what);

/* The server closes (or resets) the connection; bytes before that are kept in text. */
void peer_wait_closed(http_peer *p);

#endif
