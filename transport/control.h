/* control.h - the control plane: requests and replies as msgpack maps over NNG (req/rep).
 *
 * Used between nodes (hello, ping, shutdown) and by the admin commands. Not for rows.
 * Every request map has "method" (string); every reply map has "ok" (boolean) and, when false,
 * "error" (string) and "full" (boolean: for want of memory). Incoming bytes are walked and bounded
 * before msgpack-c sees them (an array header that claims more than is present, depth over 8, over
 * 64 MiB or 2^20 objects: refused). */
#ifndef TR_TRANSPORT_CONTROL_H
#define TR_TRANSPORT_CONTROL_H

#include "core/error.h"

#include <msgpack.h>
#include <stdbool.h>
#include <stdint.h>

/* Requests that a server handles at the same time. Handlers wait for disks and for other nodes;
 * every node of a cluster and a person may ask at once, and a heartbeat must not wait behind them.
 */
#define TR_CONTROL_AT_ONCE 20

typedef struct tr_control_server tr_control_server;

/* Answers one request: writes the reply's map members beside "ok" with the packer.
 *
 *   request  the decoded map, borrowed for the call
 *   reply    the handler packs pairs (key, value) and counts them in *pairs
 *
 * Runs on the server's own threads, up to TR_CONTROL_AT_ONCE at once. What it waits for needs a
 * deadline: close waits for it. An error status becomes "ok": false with err->text, and what it
 * packed is dropped. */
typedef tr_status (*tr_control_handler)(void *ctx, const msgpack_object *request,
                                        msgpack_packer *reply, uint32_t *pairs, tr_error *err);

/* Creates a server: a table of methods. It has no socket before it listens. */
tr_status tr_control_server_open(tr_control_server **out, tr_error *err);

/* Adds a method, before listen; name is static storage. */
void tr_control_server_handle(tr_control_server *server, const char *method,
                              tr_control_handler handler, void *ctx);

/* Listens on an NNG URL (tcp://host:port, ipc:///path).
 * errors  TR_E_INVALID naming the URL and the reason (address in use, not a URL) */
tr_status tr_control_server_listen(tr_control_server *server, const char *url, tr_error *err);

/* Answers the bytes of a request that came on another way than the socket's: fills reply with the
 * whole map. Thread: any. */
void tr_control_server_answer(tr_control_server *server, const void *bytes, size_t size,
                              msgpack_sbuffer *reply);

/* Stops answering (bounded, 1 s) and frees. */
void tr_control_server_close(tr_control_server *server);

typedef struct tr_control_client tr_control_client;

/* A lasting connection to one server; connects in the background and again after a loss. */
tr_status tr_control_client_open(tr_control_client **out, const char *url, tr_error *err);
void tr_control_client_close(tr_control_client *client);

/* From now on a call ends with TR_E_PEER, some 20 ms after *there has become false: somebody else
 * knows that the node is gone, so the deadline need not be waited for.
 *
 *   there  borrowed until close
 *
 * Before the first call. */
void tr_control_client_while(tr_control_client *client, const _Atomic bool *there);

/* A decoded reply. Owns its memory until tr_control_reply_free. */
typedef struct {
    msgpack_unpacked unpacked;
    const msgpack_object *map; /* NULL before a reply arrived */
} tr_control_reply;

/* Sends one request and waits for its reply until deadline_ns (tr_clock_ns).
 *
 *   request   packed map [size], built with the helpers below
 *
 * errors  TR_E_TIMEOUT (connected, but no answer), TR_E_PEER (no connection until the deadline, or
 *         it was lost: the request may or may not have been carried out), TR_E_INVALID (malformed
 * reply, or "ok" is false: the error text is the peer's), TR_E_NOMEM (the same, and it is "full").
 * Thread: one call at a time per client. */
tr_status tr_control_call(tr_control_client *client, const msgpack_sbuffer *request,
                          uint64_t deadline_ns, tr_control_reply *out, tr_error *err);
void tr_control_reply_free(tr_control_reply *reply);

/* A reply that has not arrived; for tr_control_reply_free. */
void tr_control_reply_init(tr_control_reply *reply);

/* Decodes the bytes of a reply from a peer into *out, for those who carry them otherwise.
 *
 *   from     who answers, for err
 *   release  frees owner, which the bytes belong to: when *out is freed, or at once on an error
 *
 * errors  TR_E_INVALID and TR_E_NOMEM as tr_control_call */
tr_status tr_control_reply_read(tr_control_reply *out, const char *from, const void *bytes,
                                size_t size, void (*release)(void *owner), void *owner,
                                tr_error *err);

/* -- helpers for maps -- */

void tr_pack_text(msgpack_packer *pk, const char *key, const char *value);
void tr_pack_u64(msgpack_packer *pk, const char *key, uint64_t value);
void tr_pack_i64(msgpack_packer *pk, const char *key, int64_t value);
void tr_pack_bool(msgpack_packer *pk, const char *key, bool value);
void tr_pack_bytes(msgpack_packer *pk, const char *key, const void *bytes, size_t size);
/* Begins a list of items objects, which the caller packs next (msgpack_pack_map, ...). */
void tr_pack_list(msgpack_packer *pk, const char *key, uint32_t items);

/* Member of a map by key, or NULL. */
const msgpack_object *tr_map_get(const msgpack_object *map, const char *key);
/* Typed members; false when absent or of another type. Text is copied and NUL-terminated; too
 * long counts as wrong. Bytes are borrowed from the reply. */
bool tr_map_text(const msgpack_object *map, const char *key, char *out, size_t size);
bool tr_map_u64(const msgpack_object *map, const char *key, uint64_t *out);
bool tr_map_i64(const msgpack_object *map, const char *key, int64_t *out);
bool tr_map_bool(const msgpack_object *map, const char *key, bool *out);
bool tr_map_bytes(const msgpack_object *map, const char *key, const void **bytes, size_t *size);
/* NULL when absent or not a list. */
const msgpack_object_array *tr_map_list(const msgpack_object *map, const char *key);

/* Checks untrusted msgpack before it is decoded; on failure the text gives the byte offset. */
tr_status tr_msgpack_check(const void *bytes, size_t size, tr_error *err);

#endif
