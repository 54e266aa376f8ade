/* test_tokenizer.c - encoding against recordings of `tokenizers` and llama.cpp.
 *
 * data/tokenizer_cases.json: 2,095 strings of every sort with the ids of tiny-solar and SmolLM2
 * (tools/golden/tokenizer_golden.py). The SmolLM2 half, which runs alone when there is an argument,
 * needs the GGUF file, whose path is taken from TROUPE_SMOLLM2. data/tokenizer_features.json: a
 * small tokenizer.json for each feature, and pre-tokenizer patterns with the pieces they cut
 * (tools/golden/tokenizer_features.py). */
#include "tests/check.h"

#include "core/model/tokenizer_impl.h"

#include <jansson.h>
#include <stdlib.h>

#define IDS_MAX 4096

static const json_t *cases, *features;
static tr_tokenizer *solar;

static json_t *load(const char *path)
{
    json_error_t where;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);

    if (root == NULL)
        print_error("%s:%d: %s\n", path, where.line, where.text);
    return root;
}

static int set_up(void **state)
{
    tr_error err = {0};

    (void)state;
    cases = load(DATA_DIR "/tokenizer_cases.json");
    features = load(DATA_DIR "/tokenizer_features.json");
    if (tr_tokenizer_open(&solar, MODELS_DIR "/tiny-solar-nvfp4", &err) != TR_OK)
        print_error("%s\n", err.text);
    return cases == NULL || features == NULL || solar == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    tr_tokenizer_close(solar);
    json_decref((json_t *)cases);
    json_decref((json_t *)features);
    return 0;
}

/* Whether text gives these ids; prints both when not. */
static bool encodes(const tr_tokenizer *t, const json_t *text, bool specials,
                    const json_t *expected)
{
    int32_t ids[IDS_MAX];
    size_t count = 0;
    tr_error err = {0};

    tr_status status = tr_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                           specials, ids, IDS_MAX, &count, &err);
    bool same = status == TR_OK && count == json_array_size(expected);
    for (size_t i = 0; i < count && same; i++)
        same = ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same) {
        char *dumped = json_dumps(expected, JSON_COMPACT);
        print_error("\"%s\": %s\n  expected %s\n  got     ", json_string_value(text), err.text,
                    dumped);
        free(dumped);
        for (size_t i = 0; i < count && i < 64; i++)
            print_error(" %d", (int)ids[i]);
        print_error("\n");
    }
    return same;
}

/* All cases under key, and under key_plain with special tokens off. */
static void agree_with_recording(const tr_tokenizer *t, const char *key, const char *key_plain)
{
    size_t i, wrong = 0;
    json_t *c;

    assert_true(json_array_size(cases) >= 2000);
    json_array_foreach((json_t *)cases, i, c)
    {
        const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, key);
        const json_t *plain = json_object_get(c, key_plain);
        wrong += !encodes(t, text, true, ids);
        wrong += !encodes(t, text, false, plain == NULL ? ids : plain);
    }
    assert_int_equal(wrong, 0);
}

static void tiny_solar_gives_the_ids_of_tokenizers(void **state)
{
    (void)state;
    agree_with_recording(solar, "solar", "solar_plain");
}

static void smollm2_gives_the_ids_of_tokenizers_and_llama_cpp(void **state)
{
    tr_error err = {0};
    tr_tokenizer *t;
    size_t i;
    json_t *c;

    (void)state;
    if (tr_tokenizer_open(&t, getenv("TROUPE_SMOLLM2"), &err) != TR_OK)
        fail_msg("%s", err.text);
    agree_with_recording(t, "smollm2", "smollm2_plain");
    json_array_foreach((json_t *)cases, i, c)
    {
        const json_t *theirs = json_object_get(c, "llama_cpp");
        assert_true(theirs == NULL || encodes(t, json_object_get(c, "text"), true, theirs));
    }
    assert_int_equal(tr_tokenizer_bos(t), -1);
    assert_int_equal(tr_tokenizer_find(t, "<|im_end|>"), 2);
    assert_true(tr_tokenizer_is_special(t, 2));
    tr_tokenizer_close(t);
}

static void each_feature_gives_the_ids_of_tokenizers(void **state)
{
    const json_t *list = json_object_get(features, "tokenizers");
    size_t i, k, wrong = 0;
    json_t *item, *c;

    (void)state;
    json_array_foreach((json_t *)list, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        char *text = json_dumps(json_object_get(item, "json"), 0);
        tr_error err = {0};
        tr_tokenizer *t = NULL;

        if (tr_tokenizer_from_json(&t, name, text, strlen(text), &err) != TR_OK)
            fail_msg("%s", err.text);
        json_array_foreach(json_object_get(item, "cases"), k, c)
        {
            const json_t *ids = json_object_get(c, "ids"), *plain = json_object_get(c, "plain");
            bool same = encodes(t, json_object_get(c, "text"), true, ids) &&
                        encodes(t, json_object_get(c, "text"), false, plain == NULL ? ids : plain);
            if (!same)
                print_error("  (%s)\n", name);
            wrong += !same;
        }
        bool has_bos = strcmp(name, "a post-processor") == 0;
        assert_int_equal(tr_tokenizer_bos(t), has_bos ? tr_tokenizer_find(t, "<m>") : -1);
        tr_tokenizer_close(t);
        free(text);
    }
    assert_int_equal(wrong, 0);
}

/* Lengths of the pieces that a pattern cuts a text into, as the tokenizer does it. */
static size_t cut(const pcre2_code *code, const char *text, size_t size, size_t *lengths)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    size_t gap = 0, at = 0, count = 0;

    while (at < size && pcre2_match(code, (PCRE2_SPTR)text, size, at, 0, match, NULL) >= 0) {
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match);
        if (ends[0] > gap)
            lengths[count++] = ends[0] - gap;
        if (ends[1] > ends[0])
            lengths[count++] = ends[1] - ends[0];
        gap = at = ends[1];
        if (ends[1] == ends[0]) /* an empty match: go on behind the next character */
            do
                at++;
            while (at < size && ((unsigned char)text[at] & 0xC0) == 0x80);
    }
    if (size > gap)
        lengths[count++] = size - gap;
    pcre2_match_data_free(match);
    return count;
}

static void patterns_cut_as_in_oniguruma(void **state)
{
    size_t i, k, wrong = 0;
    json_t *item, *c;

    (void)state;
    json_array_foreach(json_object_get(features, "patterns"), i, item)
    {
        const json_t *pattern = json_object_get(item, "pattern");
        tr_error err = {0};
        pcre2_code *code = NULL;

        if (tr_pattern_compile(&code, json_string_value(pattern), json_string_length(pattern),
                               "pattern", &err) != TR_OK)
            fail_msg("%s: %s", json_string_value(pattern), err.text);
        json_array_foreach(json_object_get(item, "cases"), k, c)
        {
            const json_t *text = json_array_get(c, 0), *expected = json_array_get(c, 1);
            size_t lengths[256];
            size_t count = cut(code, json_string_value(text), json_string_length(text), lengths);
            bool same = count == json_array_size(expected);
            for (size_t n = 0; n < count && same; n++)
                same = (json_int_t)lengths[n] == json_integer_value(json_array_get(expected, n));
            if (!same)
                print_error("%s cuts \"%s\" otherwise\n", json_string_value(pattern),
                            json_string_value(text));
            wrong += !same;
        }
        pcre2_code_free(code);
    }
    assert_int_equal(wrong, 0);
}

static void patterns_that_engines_read_differently_are_refused_by_name(void **state)
{
    static const struct {
        const char *pattern, *names;
    } refused[] = {
        {"\\w+", "escape \\w"},
        {"\\bx", "escape \\b"},
        {"\\h", "escape \\h"},
        {"\\R", "escape \\R"},
        {"a\\1", "escape \\1"},
        {"a\\", "escape"},
        {"^a", "^"},
        {"(?s:.)", "group other than"},
        {"(?P<n>a)", "group other than"},
        {"(*UCP)a", "verb"},
        {"[a[bc]]", "class inside a class"},
        {"[[:alpha:]]", "class inside a class"},
        {"[^a&&b]", "negated class"},
        {"[a&&[b]c]", "beside a nested class"},
        {"[\\s-z]", "a range whose end is a set"},
        {"[a-\\d]", "a range whose end is a set"},
        {"[]", "empty class"},
        {"[a", "class without ]"},
        {"\\p{N}{1,3}+", "possessive"},
        {"a{2}?", "{n}?"},
        {"a{,3}", "{ that is not"},
        {"a{b}", "{ that is not"},
        {"\\pL", "without braces"},
        {"\\p{L", "without }"},
        {"\\p{Alphabetic}", "property \"Alphabetic\""},
        {"\\p{Xan}", "property \"Xan\""},
        {"\\x{110000}", "character number"},
        {"\\uD800", "character number"},
        {"\\xFF", "character number"},
        {"(?i:gr\u00FCn)", "beyond ASCII"},
        {"(?i:miss)", "fold into one"},
        {"a)", ") without ("},
        {"(a", "pattern"},
        {"", "pattern of 0 bytes"},
        {"\xFF", "UTF-8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        tr_error err = {0};
        pcre2_code *code;
        CHECK_STATUS(
            tr_pattern_compile(&code, refused[i].pattern, strlen(refused[i].pattern), "here", &err),
            TR_E_INVALID);
        CHECK_ERR_NAMES(err, refused[i].names);
        CHECK_ERR_NAMES(err, "here");
    }
}

/* Appends the bytes of ids to text; returns the size. */
static size_t decode(const tr_tokenizer *t, const int32_t *ids, size_t count, char *text)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t size;
        tr_tokenizer_token_bytes(t, ids[i], &bytes, &size);
        memcpy(text + used, bytes, size);
        used += size;
    }
    return used;
}

static void any_bytes_survive_the_round_trip(void **state)
{
    static const char *const texts[] = {"\xFF\xFE",
                                        "a\xC3",
                                        "\xC3(",
                                        "\xE2\x82",
                                        "\xED\xA0\x80 x",
                                        "\xF4\x90\x80\x80",
                                        "\xF0\x9F\x91",
                                        "\x80\x80 \x80\x62",
                                        "ab\xFF the \xC0\xAF user",
                                        "<|im:start|>\xFF",
                                        "caf\xC3\xA9\xC3",
                                        "\xEF\xBB\xBF\xEF\xBF\xBE"};
    int32_t ids[128];
    char text[256];
    tr_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t count = 0, size = strlen(texts[i]);
        CHECK_STATUS(tr_tokenizer_encode(solar, texts[i], size, true, ids, 128, &count, &err),
                     TR_OK);
        assert_int_equal(decode(solar, ids, count, text), size);
        assert_memory_equal(text, texts[i], size);
    }
    srand(11);
    for (size_t round = 0; round < 2000; round++) {
        char bytes[64];
        size_t count = 0, size = (size_t)rand() % sizeof(bytes);
        for (size_t i = 0; i < size; i++)
            bytes[i] = (char)(rand() % 3 == 0 ? rand() : " aeth\n<|.1\xC3\xA9"[rand() % 13]);
        CHECK_STATUS(tr_tokenizer_encode(solar, bytes, size, true, ids, 128, &count, &err), TR_OK);
        assert_int_equal(decode(solar, ids, count, text), size);
        assert_memory_equal(text, bytes, size);
    }
}

static void ids_are_appended_and_a_full_array_is_counted_on(void **state)
{
    int32_t ids[8] = {77, 78}, again[64];
    size_t count = 2, needed = 0;
    tr_error err = {0};

    (void)state;
    CHECK_STATUS(tr_tokenizer_encode(solar, "Hi", 2, true, ids, 8, &count, &err), TR_OK);
    assert_true(count > 2);
    assert_int_equal(ids[0], 77);
    assert_int_equal(ids[1], 78);

    const char *text = "The quick brown fox jumps over the lazy dog";
    CHECK_STATUS(tr_tokenizer_encode(solar, text, strlen(text), true, again, 64, &needed, &err),
                 TR_OK);
    count = 0;
    CHECK_STATUS(tr_tokenizer_encode(solar, text, strlen(text), true, ids, 3, &count, &err),
                 TR_E_NOMEM);
    assert_int_equal(count, needed);
    assert_memory_equal(ids, again, 3 * sizeof(ids[0]));
}

static void special_tokens_of_a_user_are_text(void **state)
{
    const char *text = "<|im:end|>";
    int32_t ids[32];
    size_t count = 0;
    tr_error err = {0};

    (void)state;
    int32_t id = tr_tokenizer_find(solar, text);
    assert_true(id >= 0);
    assert_true(tr_tokenizer_is_special(solar, id));
    CHECK_STATUS(tr_tokenizer_encode(solar, text, strlen(text), true, ids, 32, &count, &err),
                 TR_OK);
    assert_int_equal(count, 1);
    assert_int_equal(ids[0], id);
    count = 0;
    CHECK_STATUS(tr_tokenizer_encode(solar, text, strlen(text), false, ids, 32, &count, &err),
                 TR_OK);
    assert_true(count > 1);
    for (size_t i = 0; i < count; i++)
        assert_false(tr_tokenizer_is_special(solar, ids[i]));
}

static void questions_about_ids_that_do_not_exist_are_answered(void **state)
{
    const char *bytes;
    size_t size = 9;

    (void)state;
    assert_int_equal(tr_tokenizer_vocab_size(solar), 4096);
    assert_int_equal(tr_tokenizer_find(solar, "no such token, surely"), -1);
    for (int32_t id = -1; id <= 4096; id += 4097) {
        tr_tokenizer_token_bytes(solar, id, &bytes, &size);
        assert_int_equal(size, 0);
        assert_false(tr_tokenizer_is_special(solar, id));
    }
}

/* Patterns and merges that cost the square of the length would not end here within the time limit
 * of the test. */
static void megabytes_of_one_character_are_no_trouble(void **state)
{
    static const char characters[] = "a \nA1.'<\xC3";
    size_t size = (size_t)1 << 20;
    char *text = malloc(size);
    int32_t *ids = malloc(size * sizeof(*ids));
    tr_error err = {0};

    (void)state;
    assert_non_null(text);
    assert_non_null(ids);
    for (size_t i = 0; characters[i] != '\0'; i++) {
        size_t count = 0;
        memset(text, characters[i], size);
        CHECK_STATUS(tr_tokenizer_encode(solar, text, size, true, ids, size, &count, &err), TR_OK);
        assert_true(count > 0);
    }
    free(text);
    free(ids);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest smollm2[] = {
        cmocka_unit_test(smollm2_gives_the_ids_of_tokenizers_and_llama_cpp),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_solar_gives_the_ids_of_tokenizers),
        cmocka_unit_test(each_feature_gives_the_ids_of_tokenizers),
        cmocka_unit_test(patterns_cut_as_in_oniguruma),
        cmocka_unit_test(patterns_that_engines_read_differently_are_refused_by_name),
        cmocka_unit_test(any_bytes_survive_the_round_trip),
        cmocka_unit_test(ids_are_appended_and_a_full_array_is_counted_on),
        cmocka_unit_test(special_tokens_of_a_user_are_text),
        cmocka_unit_test(questions_about_ids_that_do_not_exist_are_answered),
        cmocka_unit_test(megabytes_of_one_character_are_no_trouble),
    };

    (void)argv;
    if (argc > 1 && getenv("TROUPE_SMOLLM2") == NULL)
        return check_lacks("TROUPE_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    if (argc > 1)
        return cmocka_run_group_tests(smollm2, set_up, tear_down);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
