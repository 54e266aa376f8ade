/* address.c - see address.h. */
#include "transport/address.h"

#include "core/trace.h"

#include <xxhash.h>

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

typedef struct {
    char tag[8];         /* "trA" and the transport's name, cut */
    uint32_t node_index; /* whose address it is */
    uint32_t body_size;  /* bytes that follow */
    uint64_t checksum;   /* of all the other bytes */
} address_header;

static void address_set_tag(address_header *header, const char *transport)
{
    char tag[sizeof(header->tag) + 1] = {0};

    snprintf(tag, sizeof(tag), "trA%s", transport);
    memcpy(header->tag, tag, sizeof(header->tag));
}

static uint64_t address_checksum(address_header header, const void *body)
{
    header.checksum = 0;
    XXH64_hash_t seed = XXH3_64bits(&header, sizeof(header));
    return XXH3_64bits_withSeed(body, header.body_size, seed);
}

tr_status tr_address_write(void *address, size_t size_max, size_t *size, const char *transport,
                           uint32_t node_index, const void *body, size_t body_size, tr_error *err)
{
    address_header header = {.node_index = node_index, .body_size = (uint32_t)body_size};

    if (size_max < sizeof(header) + body_size)
        return tr_fail(err, TR_E_INVALID, "%s: the address has %zu bytes, the caller has %zu",
                       transport, sizeof(header) + body_size, size_max);
    address_set_tag(&header, transport);
    header.checksum = address_checksum(header, body);
    memcpy(address, &header, sizeof(header));
    memcpy((char *)address + sizeof(header), body, body_size);
    *size = sizeof(header) + body_size;
    return TR_OK;
}

tr_status tr_address_read(const void **body, size_t *body_size, const char *transport,
                          uint32_t node_index, const void *address, size_t size, tr_error *err)
{
    const char *bytes = (const char *)address + sizeof(address_header);
    address_header header, expected = {.node_index = node_index};

    if (size < sizeof(header))
        return tr_fail(err, TR_E_INVALID,
                       "%s: the address of node %u has %zu bytes, expected at least %zu", transport,
                       node_index, size, sizeof(header));
    memcpy(&header, address, sizeof(header));
    address_set_tag(&expected, transport);
    if (memcmp(header.tag, expected.tag, sizeof(header.tag)) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: the address of node %u is of another transport",
                       transport, node_index);
    if (header.body_size != size - sizeof(header) ||
        header.checksum != address_checksum(header, bytes))
        return tr_fail(err, TR_E_INVALID, "%s: the address of node %u is damaged", transport,
                       node_index);
    if (header.node_index != node_index)
        return tr_fail(err, TR_E_INVALID, "%s: the address given for node %u is that of node %u",
                       transport, node_index, header.node_index);
    *body = bytes;
    *body_size = header.body_size;
    return TR_OK;
}

uint32_t tr_transport_life(void)
{
    uint32_t life = 0;

    /* The clock is as good where there is no randomness yet: no two lives begin at once. */
    if (getrandom(&life, sizeof(life), GRND_NONBLOCK) != sizeof(life))
        life = (uint32_t)tr_clock_ns();
    return life != 0 ? life : 1;
}
