/* test_utf8_stream.c - bytes in, whole characters out, however the bytes are cut.
 *
 * Expected texts are those of Python's bytes.decode(errors="replace"), which replaces the maximal
 * bad prefix by one U+FFFD, as Unicode recommends. */
#include "tests/check.h"

#include "core/model/tokenizer.h"

#define R "\xEF\xBF\xBD"

static const struct {
    const char *bytes, *text;
} rows[] = {
    {"", ""},
    {"plain", "plain"},
    {"h\xC3\xA9 \xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x91\x8D!",
     "h\xC3\xA9 \xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x91\x8D!"},
    {"\xC3", R},
    {"\xC3(", R "("},
    {"\xE6\xBC", R},
    {"\xE6\xBC(", R "("},
    {"\xE6(", R "("},
    {"\xF0\x9F\x91", R},
    {"\xF0\x9F\x91(", R "("},
    {"\xF0\x9F\x91\xC3\xA9", R "\xC3\xA9"},
    {"\x80\xBF", R R},
    {"\xC0\xAF", R R},
    {"\xC1\x81", R R},
    {"\xE0\x80\x80", R R R},
    {"\xE0\xA0\x80", "\xE0\xA0\x80"},
    {"\xED\xA0\x80", R R R},
    {"\xED\x9F\xBF", "\xED\x9F\xBF"},
    {"\xF0\x8F\xBF\xBF", R R R R},
    {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
    {"\xF4\x90\x80\x80", R R R R},
    {"\xF5\x80\xFE\xFF", R R R R},
    {"\xE6\xE6\xBC\xA2", R "\xE6\xBC\xA2"},
    {"\xF0\x9F\xF0\x9F\x91\x8D", R "\xF0\x9F\x91\x8D"},
    {"a\xE2\x82z\xE2\x82\xAC", "a" R "z\xE2\x82\xAC"},
    {"\xEF\xBF\xBD", R},
};

/* Pushes bytes in pieces that end at the bits of cuts; returns the size of out. */
static size_t push_cut(const char *bytes, size_t size, uint32_t cuts, char *out)
{
    tr_utf8_stream s = {0};
    char piece[64];
    size_t used = 0, start = 0;

    for (size_t i = 1; i <= size; i++) {
        if (i < size && (cuts >> (i - 1) & 1) == 0)
            continue;
        size_t got = tr_utf8_stream_push(&s, bytes + start, i - start, false, piece, sizeof(piece));
        assert_true(s.held_size <= 3);
        memcpy(out + used, piece, got);
        used += got;
        start = i;
    }
    size_t got = tr_utf8_stream_push(&s, "", 0, true, piece, sizeof(piece));
    assert_int_equal(s.held_size, 0);
    memcpy(out + used, piece, got);
    return used + got;
}

static void every_way_to_cut_gives_the_same_text(void **state)
{
    char out[256];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t size = strlen(rows[i].bytes);
        assert_true(size <= 17);
        uint32_t ways = size < 2 ? 1 : 1u << (size - 1);
        for (uint32_t cuts = 0; cuts < ways; cuts++) {
            size_t got = push_cut(rows[i].bytes, size, cuts, out);
            assert_int_equal(got, strlen(rows[i].text));
            assert_memory_equal(out, rows[i].text, got);
        }
    }
}

static void whole_characters_are_never_held_back(void **state)
{
    static const char text[] = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x91\x8D";
    static const size_t ends[] = {1, 3, 6, 10};
    char out[64];

    (void)state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        tr_utf8_stream s = {0};
        assert_int_equal(tr_utf8_stream_push(&s, text, ends[i], false, out, sizeof(out)), ends[i]);
        assert_int_equal(s.held_size, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_cut_gives_the_same_text),
        cmocka_unit_test(whole_characters_are_never_held_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
