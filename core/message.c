#include "core/message.h"

#define XXH_INLINE_ALL /* 56 bytes at every hop: the call would cost as much as the hash */
#include <xxhash.h>

#include <stdbool.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the header in memory is the wire format, which is little-endian");

const char *tr_msg_kind_name(uint32_t kind)
{
    switch (kind) {
#define X(name, value)                                                                             \
    case value:                                                                                    \
        return #name;
        TR_MSG_MAP(X)
#undef X
    default:
        return "unknown";
    }
}

static bool message_actor_kind_known(uint32_t kind)
{
    switch (kind) {
#define X(name, value, text) case value:
        TR_ACTOR_KIND_MAP(X)
#undef X
        return true;
    default:
        return false;
    }
}

const char *tr_actor_kind_name(tr_actor_kind kind)
{
    switch (kind) {
#define X(name, value, text)                                                                       \
    case TR_ACTOR_##name:                                                                          \
        return text;
        TR_ACTOR_KIND_MAP(X)
#undef X
    }
    return "unknown";
}

static uint32_t message_checksum(const tr_msg_header *header)
{
    return (uint32_t)XXH3_64bits(header, offsetof(tr_msg_header, checksum));
}

void tr_msg_header_seal(tr_msg_header *header)
{
    header->version = TR_MSG_VERSION;
    header->reserved = 0;
    header->checksum = message_checksum(header);
}

/* The kinds that a runtime says to its own actors, and those whose payload holds addresses; from
 * another node they would be a lie. */
static bool message_kind_is_local(uint32_t kind)
{
    return kind == TR_MSG_TIMER || kind == TR_MSG_PEER_DOWN || kind == TR_MSG_PEER_UP ||
           kind == TR_MSG_KV_LEASE || kind == TR_MSG_KV_REVOKE || kind == TR_MSG_KV_RETURNED ||
           kind == TR_MSG_SWITCH;
}

/* A known kind of actor above, a number of 32 bits below, nothing between. */
static bool message_id_is_well_formed(tr_actor_id id)
{
    return message_actor_kind_known((uint32_t)(id >> 48)) && ((id >> 32) & 0xffff) == 0;
}

tr_status tr_msg_header_read(tr_msg_header *out, const void *bytes, size_t size,
                             uint32_t payload_size_max, tr_error *err)
{
    tr_msg_header h;
    if (size != sizeof(h))
        return tr_fail(err, TR_E_INVALID, "message header: %zu bytes, expected %zu", size,
                       sizeof(h));
    memcpy(&h, bytes, sizeof(h));

    /* The version first: another version may keep its checksum elsewhere. Then the checksum:
     * a header that was damaged says nothing true about its other fields. */
    if (h.version != TR_MSG_VERSION)
        return tr_fail(err, TR_E_INVALID, "message header: version %u, expected %d", h.version,
                       TR_MSG_VERSION);
    uint32_t checksum = message_checksum(&h);
    if (h.checksum != checksum)
        return tr_fail(err, TR_E_INVALID, "message header: checksum %08x, expected %08x",
                       h.checksum, checksum);
    if (strcmp(tr_msg_kind_name(h.kind), "unknown") == 0)
        return tr_fail(err, TR_E_INVALID, "message header: kind %u, expected a value of TR_MSG_MAP",
                       h.kind);
    if (message_kind_is_local(h.kind))
        return tr_fail(err, TR_E_INVALID,
                       "message header: kind %s, expected one that nodes send to each other",
                       tr_msg_kind_name(h.kind));
    if (h.flags != 0)
        return tr_fail(err, TR_E_INVALID, "message header: flags %08x, expected 0", h.flags);
    if (h.source != 0 && !message_id_is_well_formed(h.source))
        return tr_fail(err, TR_E_INVALID,
                       "message header: source %016llx, expected 0 or an actor's id",
                       (unsigned long long)h.source);
    if (!message_id_is_well_formed(h.target))
        return tr_fail(err, TR_E_INVALID, "message header: target %016llx, expected an actor's id",
                       (unsigned long long)h.target);
    if (h.payload_size > payload_size_max)
        return tr_fail(err, TR_E_INVALID, "message header: payload_size %u, expected at most %u",
                       h.payload_size, payload_size_max);
    if (h.reserved != 0)
        return tr_fail(err, TR_E_INVALID, "message header: reserved %08x, expected 0", h.reserved);
    *out = h;
    return TR_OK;
}
