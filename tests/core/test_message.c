/* test_message.c - the header as it comes from another process: one row for each lie. */
#include "tests/check.h"

#include "core/message.h"

#include <stdbool.h>

static tr_msg_header good_header(void)
{
    return (tr_msg_header){.kind = TR_MSG_PARTIAL,
                           .source = tr_actor_id_make(TR_ACTOR_EXPERT_SHARD, 1),
                           .target = tr_actor_id_make(TR_ACTOR_ROUTER, 0),
                           .epoch = 3,
                           .step = 17,
                           .trace_id = 1ull << 56 | 5,
                           .payload_size = 4096,
                           .argument = 9};
}

static void a_sealed_header_is_read_back_from_any_alignment(void **state)
{
    (void)state;
    tr_msg_header sent = good_header();
    tr_msg_header_seal(&sent);
    uint8_t bytes[sizeof(sent) + 1];
    memcpy(bytes + 1, &sent, sizeof(sent));

    tr_msg_header got;
    CHECK_STATUS(tr_msg_header_read(&got, bytes + 1, sizeof(sent), 4096, NULL), TR_OK);
    assert_memory_equal(&got, &sent, sizeof(sent));
}

static void the_wire_format_is_what_it_was(void **state)
{
    (void)state;
    /* The bytes that version 3 sends, so that nobody changes them without seeing it here. */
    tr_msg_header h = good_header();
    tr_msg_header_seal(&h);
    const uint8_t *bytes = (const uint8_t *)&h;
    static const uint8_t expected[56] = {14, 0, 3, 0, 0, 0, 0, 0, 1, 0, 0, 0,  0, 0,  3, 0, 0, 0, 0,
                                         0,  0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0,  0, 17, 0, 0, 0, 0, 0,
                                         0,  0, 5, 0, 0, 0, 0, 0, 0, 1, 0, 16, 0, 0,  9, 0, 0, 0};
    assert_memory_equal(bytes, expected, sizeof(expected));
}

static void each_wrong_field_is_named(void **state)
{
    (void)state;
    static const struct {
        size_t at;     /* byte that is changed ... */
        uint8_t value; /* ... to this */
        const char *names;
        bool sealing_sets_it;
    } cases[] = {
        {offsetof(tr_msg_header, version), 1, "version 1", true},
        {offsetof(tr_msg_header, version) + 1, 1, "version 259", true},
        {offsetof(tr_msg_header, kind), 0, "kind 0", false},
        {offsetof(tr_msg_header, kind), 99, "kind 99", false},
        {offsetof(tr_msg_header, kind) + 1, 1, "kind 270", false},
        {offsetof(tr_msg_header, kind), TR_MSG_TIMER, "kind TIMER", false},
        {offsetof(tr_msg_header, kind), TR_MSG_PEER_DOWN, "kind PEER_DOWN", false},
        {offsetof(tr_msg_header, kind), TR_MSG_PEER_UP, "kind PEER_UP", false},
        /* their payloads hold addresses */
        {offsetof(tr_msg_header, kind), TR_MSG_KV_LEASE, "kind KV_LEASE", false},
        {offsetof(tr_msg_header, kind), TR_MSG_KV_REVOKE, "kind KV_REVOKE", false},
        {offsetof(tr_msg_header, kind), TR_MSG_KV_RETURNED, "kind KV_RETURNED", false},
        {offsetof(tr_msg_header, kind), TR_MSG_SWITCH, "kind SWITCH", false},
        {offsetof(tr_msg_header, flags), 1, "flags 00000001", false},
        {offsetof(tr_msg_header, flags) + 3, 0x80, "flags 80000000", false},
        {offsetof(tr_msg_header, source) + 6, 0, "source 0000000000000001", false},
        {offsetof(tr_msg_header, source) + 6, 200, "source 00c8", false},
        {offsetof(tr_msg_header, source) + 4, 1, "source 0003000100000001", false},
        {offsetof(tr_msg_header, target) + 6, 0, "target 0000000000000000", false},
        {offsetof(tr_msg_header, target) + 7, 1, "target 0101", false},
        {offsetof(tr_msg_header, target) + 5, 1, "target 0001010000000000", false},
        {offsetof(tr_msg_header, payload_size), 1, "payload_size 4097", false},
        {offsetof(tr_msg_header, payload_size) + 3, 255, "payload_size 42781", false},
        {offsetof(tr_msg_header, reserved), 1, "reserved 00000001", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_msg_header h = good_header();
        tr_msg_header_seal(&h);
        ((uint8_t *)&h)[cases[i].at] = cases[i].value;
        uint8_t bytes[sizeof(h)];
        memcpy(bytes, &h, sizeof(h));
        /* A peer that seals its lie, so that the field itself must be caught. Version and reserved
         * are what sealing sets, and are looked at whatever the checksum says. */
        if (!cases[i].sealing_sets_it) {
            tr_msg_header_seal(&h);
            memcpy(bytes, &h, sizeof(h));
        }
        tr_msg_header out = {.step = 77};
        tr_error err = {0};
        CHECK_STATUS(tr_msg_header_read(&out, bytes, sizeof(bytes), 4096, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, cases[i].names);
        assert_int_equal(out.step, 77); /* set only on success */
    }
}

static void every_damaged_bit_is_noticed(void **state)
{
    (void)state;
    tr_msg_header h = good_header();
    tr_msg_header_seal(&h);
    for (size_t bit = 0; bit < 8 * sizeof(h); bit++) {
        uint8_t bytes[sizeof(h)];
        memcpy(bytes, &h, sizeof(h));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        tr_msg_header out;
        CHECK_STATUS(tr_msg_header_read(&out, bytes, sizeof(bytes), 4096, NULL), TR_E_INVALID);
    }
}

static void another_size_is_refused_without_looking(void **state)
{
    (void)state;
    tr_msg_header h = good_header();
    tr_msg_header_seal(&h);
    static const size_t sizes[] = {0, 1, 63, 65};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tr_error err = {0};
        tr_msg_header out;
        CHECK_STATUS(tr_msg_header_read(&out, i == 0 ? NULL : &h, sizes[i], 4096, &err),
                     TR_E_INVALID);
        CHECK_ERR_NAMES(err, "expected 64");
    }
}

static void a_message_from_nobody_is_allowed(void **state)
{
    (void)state;
    tr_msg_header h = good_header();
    h.source = 0;
    tr_msg_header_seal(&h);
    tr_msg_header out;
    CHECK_STATUS(tr_msg_header_read(&out, &h, sizeof(h), 4096, NULL), TR_OK);
}

static void names_are_those_of_the_lists(void **state)
{
    (void)state;
    assert_string_equal(tr_msg_kind_name(TR_MSG_PARTIAL), "PARTIAL");
    assert_string_equal(tr_msg_kind_name(0), "unknown");
    assert_string_equal(tr_msg_kind_name(UINT32_MAX), "unknown");
    assert_string_equal(tr_actor_kind_name(TR_ACTOR_KV_POOL), "kv");
    assert_string_equal(tr_actor_kind_name((tr_actor_kind)0), "unknown");
    tr_actor_id id = tr_actor_id_make(TR_ACTOR_SAMPLER, UINT32_MAX);
    assert_int_equal(tr_actor_id_kind(id), TR_ACTOR_SAMPLER);
    assert_int_equal(tr_actor_id_number(id), UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sealed_header_is_read_back_from_any_alignment),
        cmocka_unit_test(the_wire_format_is_what_it_was),
        cmocka_unit_test(each_wrong_field_is_named),
        cmocka_unit_test(every_damaged_bit_is_noticed),
        cmocka_unit_test(another_size_is_refused_without_looking),
        cmocka_unit_test(a_message_from_nobody_is_allowed),
        cmocka_unit_test(names_are_those_of_the_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
