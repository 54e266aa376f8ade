/* test_msgpack.c - bytes from outside before they are decoded, and members of maps after.
 *
 * The walker is judged by a table and by msgpack-c itself: whatever passes must decode. */
#include "tests/check.h"

#include "transport/control.h"

#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define BYTES(text) text, sizeof(text) - 1

static const struct {
    const char *bytes;
    size_t size;
    const char *named; /* NULL: good */
} inputs[] = {
    {BYTES("\x80"), NULL},
    {BYTES("\xc0"), NULL},
    {BYTES("\x81\xa1k\x01"), NULL},
    {BYTES("\x93\x01\xff\xc3"), NULL},
    {BYTES("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), NULL},
    {BYTES("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), NULL},
    {BYTES("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"), NULL},
    {BYTES("\xd9\x02hi"), NULL},
    {BYTES("\xc4\x00"), NULL},
    {BYTES("\xdc\x00\x01\xc0"), NULL},
    {BYTES("\xde\x00\x01\xa1k\xc0"), NULL},
    {BYTES("\x91\x91\x91\x91\x91\x91\x91\x91\x01"), NULL}, /* eight containers */
    {BYTES(""), "byte 0 of 0: the end"},
    {BYTES("\x01\x02"), "byte 1 of 2: more than one object"},
    {BYTES("\x80\x80"), "byte 1 of 2: more than one object"},
    {BYTES("\xc1"), "byte 0 of 1: an unknown type"},
    {BYTES("\xd4\x01\x00"), "byte 0 of 3: an unknown type"},     /* fixext 1 */
    {BYTES("\xc7\x01\x01\x00"), "byte 0 of 4: an unknown type"}, /* ext 8 */
    {BYTES("\x92\x01\xc9\x00"), "byte 2 of 4: an unknown type"}, /* ext 32 */
    {BYTES("\x81\xa1k"), "byte 3 of 3: the end"},                /* a key without a value */
    {BYTES("\x92\x01"), "claims more elements than are present"},
    {BYTES("\x92\x92\x01\x01"), "byte 4 of 4: the end, expected an object"},
    {BYTES("\xdd\x03\x00\x00\x00"), "byte 0 of 5: claims more elements"}, /* 50 million */
    {BYTES("\xdd\xff\xff\xff\xff\xc0"), "claims more elements"},
    {BYTES("\xdf\xff\xff\xff\xff\xc0\xc0"), "claims more elements"},
    {BYTES("\xde\x00"), "byte 0 of 2: the end within a length"},
    {BYTES("\xdb\x00\x00"), "the end within a length"},
    {BYTES("\xd9"), "the end within a length"},
    {BYTES("\xa3hi"), "byte 0 of 3: claims more bytes than are present"},
    {BYTES("\xd9\x03hi"), "claims more bytes"},
    {BYTES("\xc6\xff\xff\xff\xff"), "claims more bytes"},
    {BYTES("\xcf\xff\xff"), "claims more bytes"},
    {BYTES("\xcc"), "claims more bytes"},
    {BYTES("\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01"), "byte 8 of 10: deeper than 8"},
    {BYTES("\x91\x91\x91\x91\x91\x91\x91\x91\x90"), NULL}, /* an empty ninth holds nothing */
};

static void what_passes_decodes_and_what_does_not_is_named(void **state)
{
    (void)state;

    for (size_t i = 0; i < COUNT(inputs); i++) {
        tr_error err = {0};
        tr_status status = tr_msgpack_check(inputs[i].bytes, inputs[i].size, &err);
        if (inputs[i].named != NULL) {
            if (status != TR_E_INVALID || strstr(err.text, inputs[i].named) == NULL)
                print_error("row %zu: \"%s\" does not name \"%s\"\n", i, err.text, inputs[i].named);
            assert_int_equal(status, TR_E_INVALID);
            assert_non_null(strstr(err.text, inputs[i].named));
            continue;
        }
        if (status != TR_OK)
            print_error("row %zu: %s\n", i, err.text);
        assert_int_equal(status, TR_OK);
        msgpack_unpacked unpacked;
        msgpack_unpacked_init(&unpacked);
        assert_int_equal(msgpack_unpack_next(&unpacked, inputs[i].bytes, inputs[i].size, NULL),
                         MSGPACK_UNPACK_SUCCESS);
        msgpack_unpacked_destroy(&unpacked);
    }
}

static void a_million_tiny_objects_are_too_many(void **state)
{
    (void)state;
    size_t count = (1u << 20) + 1;
    uint8_t *bytes = malloc(count + 5);
    tr_error err = {0};

    assert_non_null(bytes);
    memset(bytes, 0xc0, count + 5);
    memcpy(bytes, "\xdd\x00\x10\x00\x01", 5);
    CHECK_STATUS(tr_msgpack_check(bytes, count + 5, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "more than 1048576 objects");
    free(bytes);
}

static void more_than_64_mib_are_refused_unread(void **state)
{
    (void)state;
    tr_error err = {0};

    CHECK_STATUS(tr_msgpack_check("", (64u << 20) + 1, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "67108865 bytes, expected at most 67108864");
}

static void members_are_found_by_key_and_type(void **state)
{
    (void)state;
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    msgpack_unpacked unpacked;
    char text[6];
    uint64_t u64 = 0;
    int64_t i64 = 0;
    bool flag = false;
    const void *bytes = NULL;
    size_t size = 0;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 8);
    tr_pack_text(&pk, "text", "hello");
    tr_pack_text(&pk, "long", "hello!");
    tr_pack_u64(&pk, "large", UINT64_MAX);
    tr_pack_i64(&pk, "negative", INT64_MIN);
    tr_pack_i64(&pk, "positive", 7);
    tr_pack_bool(&pk, "flag", true);
    tr_pack_bytes(&pk, "bytes", "a\0b", 3);
    tr_pack_list(&pk, "list", 1);
    msgpack_pack_map(&pk, 1);
    tr_pack_u64(&pk, "inner", 3);

    CHECK_STATUS(tr_msgpack_check(buffer.data, buffer.size, NULL), TR_OK);
    msgpack_unpacked_init(&unpacked);
    assert_int_equal(msgpack_unpack_next(&unpacked, buffer.data, buffer.size, NULL),
                     MSGPACK_UNPACK_SUCCESS);
    const msgpack_object *map = &unpacked.data;

    assert_true(tr_map_text(map, "text", text, sizeof(text)));
    assert_string_equal(text, "hello");
    assert_false(tr_map_text(map, "long", text, sizeof(text))); /* would not fit */
    assert_false(tr_map_text(map, "flag", text, sizeof(text)));
    assert_false(tr_map_text(map, "absent", text, sizeof(text)));
    assert_true(tr_map_u64(map, "large", &u64));
    assert_true(u64 == UINT64_MAX);
    assert_false(tr_map_u64(map, "negative", &u64));
    assert_false(tr_map_i64(map, "large", &i64));
    assert_true(tr_map_i64(map, "negative", &i64));
    assert_true(i64 == INT64_MIN);
    assert_true(tr_map_i64(map, "positive", &i64));
    assert_true(i64 == 7);
    assert_true(tr_map_bool(map, "flag", &flag));
    assert_true(flag);
    assert_false(tr_map_bool(map, "text", &flag));
    assert_true(tr_map_bytes(map, "bytes", &bytes, &size));
    assert_int_equal(size, 3);
    assert_memory_equal(bytes, "a\0b", 3);
    assert_false(tr_map_bytes(map, "text", &bytes, &size));
    const msgpack_object_array *list = tr_map_list(map, "list");
    assert_non_null(list);
    assert_int_equal(list->size, 1);
    assert_true(tr_map_u64(&list->ptr[0], "inner", &u64));
    assert_int_equal(u64, 3);
    assert_null(tr_map_list(map, "text"));
    assert_null(tr_map_get(&list->ptr[0].via.map.ptr[0].val, "inner")); /* not a map */
    assert_null(tr_map_get(NULL, "inner"));

    msgpack_unpacked_destroy(&unpacked);
    msgpack_sbuffer_destroy(&buffer);
}

static void a_text_with_a_nul_inside_is_not_a_text(void **state)
{
    (void)state;
    static const char bytes[] = "\x81\xa1k\xa3"
                                "a\0b";
    msgpack_unpacked unpacked;
    char text[16];

    msgpack_unpacked_init(&unpacked);
    assert_int_equal(msgpack_unpack_next(&unpacked, bytes, sizeof(bytes) - 1, NULL),
                     MSGPACK_UNPACK_SUCCESS);
    assert_false(tr_map_text(&unpacked.data, "k", text, sizeof(text)));
    msgpack_unpacked_destroy(&unpacked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_passes_decodes_and_what_does_not_is_named),
        cmocka_unit_test(a_million_tiny_objects_are_too_many),
        cmocka_unit_test(more_than_64_mib_are_refused_unread),
        cmocka_unit_test(members_are_found_by_key_and_type),
        cmocka_unit_test(a_text_with_a_nul_inside_is_not_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
