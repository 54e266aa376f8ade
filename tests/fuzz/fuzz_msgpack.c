/* fuzz_msgpack.c - bytes on the control socket: what the walker lets through must decode, and
 * looking for members in it must stay inside it. */
#include "transport/control.h"

#include <stdint.h>
#include <stdlib.h>

static void look_for_members(const msgpack_object *map)
{
    char text[32];
    uint64_t u64;
    int64_t i64;
    bool flag;
    const void *bytes;
    size_t size;

    (void)tr_map_text(map, "method", text, sizeof(text));
    (void)tr_map_u64(map, "u", &u64);
    (void)tr_map_i64(map, "i", &i64);
    (void)tr_map_bool(map, "ok", &flag);
    if (tr_map_bytes(map, "b", &bytes, &size)) {
        const volatile uint8_t *p = bytes;
        for (size_t i = 0; i < size; i++)
            (void)p[i];
    }
    const msgpack_object_array *list = tr_map_list(map, "l");
    for (uint32_t i = 0; list != NULL && i < list->size; i++)
        (void)tr_map_u64(&list->ptr[i], "u", &u64);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_error err;
    msgpack_unpacked unpacked;
    size_t used = 0;

    if (tr_msgpack_check(data, size, &err) != TR_OK)
        return 0;
    msgpack_unpacked_init(&unpacked);
    if (msgpack_unpack_next(&unpacked, (const char *)data, size, &used) != MSGPACK_UNPACK_SUCCESS ||
        used != size)
        abort();
    look_for_members(&unpacked.data);
    msgpack_unpacked_destroy(&unpacked);
    return 0;
}
