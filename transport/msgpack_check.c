/* msgpack_check.c - walks msgpack from outside before msgpack-c may see it.
 *
 * msgpack-c believes an array header and reserves room for all the elements that it claims: five
 * bytes make it take gigabytes. So each container is counted against the bytes that are present,
 * with one byte as the least that an element can be, and all objects together against a limit. */
#include "transport/control.h"

#define CHECK_DEPTH_MAX   8
#define CHECK_SIZE_MAX    (64u << 20) /* bytes */
#define CHECK_OBJECTS_MAX (1u << 20)  /* msgpack-c takes 24 to 48 bytes for each */

/* What the first byte of an object says. */
typedef struct {
    uint32_t length_size; /* bytes of big-endian length that follow it: 0, 1, 2, 4 */
    uint32_t fixed;       /* length when length_size is 0 */
    enum { HEAD_BYTES, HEAD_ARRAY, HEAD_MAP, HEAD_UNKNOWN } what;
} object_head;

static object_head head_of(uint8_t tag)
{
    if (tag <= 0x7f || tag >= 0xe0) /* small integers */
        return (object_head){0, 0, HEAD_BYTES};
    if (tag <= 0x8f)
        return (object_head){0, tag & 0x0fu, HEAD_MAP};
    if (tag <= 0x9f)
        return (object_head){0, tag & 0x0fu, HEAD_ARRAY};
    if (tag <= 0xbf)
        return (object_head){0, tag & 0x1fu, HEAD_BYTES};
    switch (tag) {
    case 0xc0: /* nil */
    case 0xc2: /* false */
    case 0xc3: /* true */
        return (object_head){0, 0, HEAD_BYTES};
    case 0xc4: /* bin 8 */
    case 0xd9: /* str 8 */
        return (object_head){1, 0, HEAD_BYTES};
    case 0xc5: /* bin 16 */
    case 0xda: /* str 16 */
        return (object_head){2, 0, HEAD_BYTES};
    case 0xc6: /* bin 32 */
    case 0xdb: /* str 32 */
        return (object_head){4, 0, HEAD_BYTES};
    case 0xcc: /* 8 bits */
    case 0xd0:
        return (object_head){0, 1, HEAD_BYTES};
    case 0xcd: /* 16 bits */
    case 0xd1:
        return (object_head){0, 2, HEAD_BYTES};
    case 0xca: /* 32 bits */
    case 0xce:
    case 0xd2:
        return (object_head){0, 4, HEAD_BYTES};
    case 0xcb: /* 64 bits */
    case 0xcf:
    case 0xd3:
        return (object_head){0, 8, HEAD_BYTES};
    case 0xdc:
        return (object_head){2, 0, HEAD_ARRAY};
    case 0xdd:
        return (object_head){4, 0, HEAD_ARRAY};
    case 0xde:
        return (object_head){2, 0, HEAD_MAP};
    case 0xdf:
        return (object_head){4, 0, HEAD_MAP};
    }
    return (object_head){0, 0, HEAD_UNKNOWN}; /* extensions and the unused 0xc1 */
}

typedef struct {
    const uint8_t *bytes;
    size_t size;
    size_t at;      /* next byte, <= size */
    size_t objects; /* seen so far */
    tr_error *err;  /* borrowed */
} walker;

static tr_status walk_fail(walker *w, size_t at, const char *what)
{
    return tr_fail(w->err, TR_E_INVALID, "msgpack: byte %zu of %zu: %s", at, w->size, what);
}

/* Steps over one object's head and bytes; *children is set to the objects that it contains. */
static tr_status walk_object(walker *w, uint64_t *children)
{
    size_t start = w->at;

    if (w->at == w->size)
        return walk_fail(w, start, "the end, expected an object");
    if (++w->objects > CHECK_OBJECTS_MAX)
        return walk_fail(w, start, "more than 1048576 objects");
    object_head head = head_of(w->bytes[w->at++]);
    if (head.what == HEAD_UNKNOWN)
        return walk_fail(w, start, "an unknown type");
    if (head.length_size > w->size - w->at)
        return walk_fail(w, start, "the end within a length");
    uint64_t length = head.fixed;
    for (uint32_t i = 0; i < head.length_size; i++)
        length = length << 8 | w->bytes[w->at++];

    *children = 0;
    if (head.what == HEAD_BYTES) {
        if (length > w->size - w->at)
            return walk_fail(w, start, "claims more bytes than are present");
        w->at += length;
        return TR_OK;
    }
    *children = head.what == HEAD_MAP ? 2 * length : length;
    if (*children > w->size - w->at)
        return walk_fail(w, start, "claims more elements than are present");
    return TR_OK;
}

tr_status tr_msgpack_check(const void *bytes, size_t size, tr_error *err)
{
    walker w = {.bytes = bytes, .size = size, .err = err};
    uint64_t left[CHECK_DEPTH_MAX + 1] = {1}; /* objects still to come, by depth */
    uint32_t depth = 0;

    if (size > CHECK_SIZE_MAX)
        return tr_fail(err, TR_E_INVALID, "msgpack: %zu bytes, expected at most %u", size,
                       CHECK_SIZE_MAX);
    for (;;) {
        uint64_t children = 0;

        while (left[depth] == 0) {
            if (depth == 0)
                return w.at == size ? TR_OK : walk_fail(&w, w.at, "more than one object");
            depth--;
        }
        left[depth]--;
        size_t start = w.at;
        tr_status status = walk_object(&w, &children);
        if (status != TR_OK)
            return status;
        if (children == 0)
            continue;
        if (depth == CHECK_DEPTH_MAX)
            return walk_fail(&w, start, "deeper than 8 containers");
        left[++depth] = children;
    }
}
