/* http.h - reads one HTTP/1.1 request after another from bytes. No input, no output, no clock.
 *
 * The reader is a state machine that may be fed any pieces: the outcome depends on the bytes and
 * never on where they were cut. It is strict where leniency lets two readers of one stream
 * disagree (request smuggling): both length headers, two lengths, a bare CR or LF, a space before
 * the colon and folded headers are refused. */
#ifndef TR_API_HTTP_H
#define TR_API_HTTP_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_HTTP_LINE_MAX    8192  /* bytes of the request line, of a header, of a chunk size line */
#define TR_HTTP_HEAD_MAX    65536 /* bytes of the whole head, and of all trailers */
#define TR_HTTP_HEADERS_MAX 100   /* header lines, trailers included */
#define TR_HTTP_PATH_MAX    1023

typedef enum {
    TR_HTTP_HEAD,  /* the request line or headers are still coming */
    TR_HTTP_BODY,  /* the head is complete and good, the body is coming */
    TR_HTTP_DONE,  /* the request is complete; tr_http_reset before more is fed */
    TR_HTTP_FAILED /* see status and error; the connection cannot be used any further */
} tr_http_phase;

/* Fields down to "private" are for reading. Valid as said at each phase. */
typedef struct {
    tr_http_phase phase;
    bool started;                    /* a byte of this request has come */
    char method[16];                 /* from BODY on; upper and lower case are different */
    char path[TR_HTTP_PATH_MAX + 1]; /* from BODY on; begins with '/', without the query */
    bool version_1_0;                /* from BODY on; HTTP/1.0, otherwise 1.1 */
    bool keep_alive;                 /* from BODY on; the client allows another request */
    bool expects_continue;           /* from BODY on; wants "100 Continue" before it sends the body;
                                        whoever sends that clears the flag */
    char *body;                      /* DONE: [body_size], owned by the reader; NULL when empty */
    size_t body_size;
    size_t body_capacity; /* bytes allocated for the body */
    unsigned status;      /* FAILED: the HTTP status to answer with */
    tr_error error;       /* FAILED: one sentence */

    /* private */
    int state;
    bool line_ended_cr;
    uint32_t blank_lines;
    size_t line_size;
    size_t head_size;
    uint32_t headers_count;
    uint32_t hosts_count;
    bool has_length;
    bool chunked;
    size_t body_left; /* of the body, or of the chunk */
    size_t body_size_max;
    char line[TR_HTTP_LINE_MAX + 1];
} tr_http_request;

/* Prepares a reader in memory that the caller placed. A body larger than body_size_max bytes is
 * refused with 413. Nothing is allocated before a body arrives, and then only as it arrives. */
void tr_http_init(tr_http_request *r, size_t body_size_max);

/* Forgets the request so that the next one of the connection can be fed. Frees the body. */
void tr_http_reset(tr_http_request *r);

void tr_http_teardown(tr_http_request *r);

/* Reads from bytes [size] and returns how many were used. It stops at the end of a request (DONE)
 * or at the first wrong byte (FAILED); otherwise all bytes are used. Bytes behind a complete
 * request belong to the next one. */
size_t tr_http_feed(tr_http_request *r, const char *bytes, size_t size);

/* "OK", "Not Found", ...; "Unknown" for a status that this server does not send. */
const char *tr_http_reason(unsigned status);

#endif
