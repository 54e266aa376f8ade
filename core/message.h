/* message.h - the only thing that two actors share.
 *
 * A message is a fixed 64-byte header and a payload in a tr_buf. The header is the wire format.
 * All kinds stand in one list; what a payload holds is declared beside its kind in
 * actors/messages.h. core/ and transport/ look at the header alone. */
#ifndef TR_CORE_MESSAGE_H
#define TR_CORE_MESSAGE_H

#include "core/buffer.h"
#include "core/error.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* Kinds. A value is never reused and never renumbered: it is on the wire.
 * Payload layouts, senders and answers: actors/messages.h. */
#define TR_MSG_MAP(X)                                                                              \
    X(PING, 1)                                                                                     \
    X(PONG, 2)                                                                                     \
    X(STEP, 10)                                                                                    \
    X(RESIDUAL, 11)                                                                                \
    X(ATTENTION_ROWS, 12)                                                                          \
    X(EXPERT_ROWS, 13)                                                                             \
    X(PARTIAL, 14)                                                                                 \
    X(FINAL_ROWS, 15)                                                                              \
    X(LOGITS, 16)                                                                                  \
    X(TOKENS, 17)                                                                                  \
    X(STEP_FAILED, 18)                                                                             \
    X(NGRAM_ROWS, 19)                                                                              \
    X(NGRAM_ADD, 20)                                                                               \
    X(KV_RESERVE, 30)                                                                              \
    X(KV_RESERVED, 31)                                                                             \
    X(KV_RELEASE, 32)                                                                              \
    X(KV_RELEASED, 33)                                                                             \
    X(KV_LEASE, 34)                                                                                \
    X(KV_REVOKE, 35)                                                                               \
    X(KV_RETURNED, 36)                                                                             \
    X(SUBMIT, 50)                                                                                  \
    X(CANCEL, 51)                                                                                  \
    X(EVENT, 52)                                                                                   \
    X(LOGITS_ROW, 53)                                                                              \
    X(HIDDEN_ROWS, 54)                                                                             \
    X(TIMER, 70)                                                                                   \
    X(PEER_DOWN, 71)                                                                               \
    X(ACTOR_FAILED, 72)                                                                            \
    X(SWITCH, 73)                                                                                  \
    X(PEER_UP, 74)

typedef enum {
#define X(name, value) TR_MSG_##name = (value),
    TR_MSG_MAP(X)
#undef X
} tr_msg_kind;

/* An actor's address, independent of where it stands: kind in the top 16 bits (tr_actor_kind),
 * a number within the kind below. The directory says which node holds it. 0 is nobody. */
typedef uint64_t tr_actor_id;

#define TR_ACTOR_KIND_MAP(X)                                                                       \
    X(ROUTER, 1, "router")                                                                         \
    X(ATTENTION_SHARD, 2, "attention")                                                             \
    X(EXPERT_SHARD, 3, "expert")                                                                   \
    X(KV_POOL, 4, "kv")                                                                            \
    X(SAMPLER, 5, "sampler")                                                                       \
    X(BATCHER, 6, "batcher")                                                                       \
    X(CLIENT, 7, "client")                                                                         \
    X(SUPERVISOR, 8, "supervisor")                                                                 \
    X(TEST, 9, "test")                                                                             \
    X(NGRAM, 10, "ngram")                                                                          \
    X(PROBE, 11, "probe")

typedef enum {
#define X(name, value, text) TR_ACTOR_##name = (value),
    TR_ACTOR_KIND_MAP(X)
#undef X
} tr_actor_kind;

static inline tr_actor_id tr_actor_id_make(tr_actor_kind kind, uint32_t number)
{
    return ((uint64_t)kind << 48) | number;
}
static inline tr_actor_kind tr_actor_id_kind(tr_actor_id id)
{
    return (tr_actor_kind)(id >> 48);
}
static inline uint32_t tr_actor_id_number(tr_actor_id id)
{
    return (uint32_t)id;
}

#define TR_MSG_VERSION 3

/* The header, exactly as it is in memory and on the wire. Little-endian. */
typedef struct {
    uint16_t kind;    /* tr_msg_kind */
    uint16_t version; /* TR_MSG_VERSION of the sender */
    uint32_t flags;   /* no bit is defined: zero */
    tr_actor_id source;
    tr_actor_id target;
    uint64_t epoch;    /* placement under which the sender chose target */
    uint64_t step;     /* 0 if the message belongs to no step */
    uint64_t trace_id; /* unique per message and run, set by the runtime; joins send and receive */
    uint32_t payload_size; /* bytes that follow */
    uint32_t argument;     /* small value whose meaning belongs to the kind; 0 if unused */
    uint32_t checksum;     /* of bytes 0..55 (XXH3 low 32 bits); set and verified by transports */
    uint32_t reserved;     /* zero */
} tr_msg_header;

static_assert(sizeof(tr_msg_header) == 64, "one cache line, and the wire format");
static_assert(offsetof(tr_msg_header, checksum) == 56, "wire format");

/* A message in flight inside one process. payload is NULL when payload_size is 0.
 * Whoever holds a tr_msg owns one reference to payload unless a comment says borrowed. */
typedef struct {
    tr_msg_header header;
    tr_buf *payload;
} tr_msg;

/* "STEP", "PARTIAL", ...; "unknown" for values that are not in the list. Thread: any. */
const char *tr_msg_kind_name(uint32_t kind);

/* "router", "attention", ...; "unknown" otherwise. Thread: any. */
const char *tr_actor_kind_name(tr_actor_kind kind);

/* Stamps version and checksum before the header leaves the process. Thread: any. */
void tr_msg_header_seal(tr_msg_header *header);

/* Copies and validates a header that came from another process.
 *
 *   out       set only on TR_OK
 *   bytes     [size], any alignment; size must be 64
 *   payload_size_max  largest payload that the receiver can hold, bytes
 *
 * errors  TR_E_INVALID with the field, the value and what is allowed. Thread: any. */
tr_status tr_msg_header_read(tr_msg_header *out, const void *bytes, size_t size,
                             uint32_t payload_size_max, tr_error *err);

#endif
