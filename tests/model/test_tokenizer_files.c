/* test_tokenizer_files.c - tokenizer files that somebody could really meet, and wrong ones.
 *
 * A right file is changed in one place; the error must name the file, the key and what was found.
 */
#include "tests/check.h"

#include "core/model/tokenizer_impl.h"
#include "tests/model/tokenizer_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- tokenizer.json ---- */

static json_t *right_file;

static int load(void **state)
{
    json_error_t where;
    json_t *root = json_load_file(DATA_DIR "/tokenizer_features.json", JSON_ALLOW_NUL, &where);

    (void)state;
    right_file = json_deep_copy(
        json_object_get(json_array_get(json_object_get(root, "tokenizers"), 0), "json"));
    json_decref(root);
    return right_file == NULL;
}

static int unload(void **state)
{
    (void)state;
    json_decref(right_file);
    return 0;
}

/* Opens the right file with the value at path ("model/dropout") replaced; value "" removes it. */
static tr_status open_changed(const char *path, const char *value, tr_error *err)
{
    json_t *root = json_deep_copy(right_file), *at = root;
    char key[64];
    const char *slash;
    tr_tokenizer *t = NULL;

    for (; (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        snprintf(key, sizeof(key), "%.*s", (int)(slash - path), path);
        at = json_object_get(at, key);
    }
    if (value[0] == '\0')
        json_object_del(at, path);
    else
        json_object_set_new(at, path, json_loads(value, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(root, 0);
    tr_status status = tr_tokenizer_from_json(&t, "tokenizer.json", text, strlen(text), err);
    if (status == TR_OK)
        tr_tokenizer_close(t);
    free(text);
    json_decref(root);
    return status;
}

static void wrong_json_files_are_refused_by_name(void **state)
{
    static const struct {
        const char *path, *value, *names;
    } rows[] = {
        {"model", "", "model: absent"},
        {"model", "[]", "model: a list"},
        {"model/type", "\"Unigram\"", "model.type: \"Unigram\", expected BPE"},
        {"model/type", "\"WordPiece\"", "\"WordPiece\""},
        {"model/dropout", "0.1", "model.dropout"},
        {"model/byte_fallback", "true", "byte_fallback"},
        {"model/continuing_subword_prefix", "\"##\"", "continuing_subword_prefix: \"##\""},
        {"model/end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"model/unk_token", "\"<none>\"", "model.unk_token: \"<none>\""},
        {"model/ignore_merges", "1", "ignore_merges: an integer"},
        {"model/vocab", "{}", "1 to"},
        {"model/vocab", "{\"a\": -1}", "id of \"a\" is out of range"},
        {"model/vocab", "{\"a\": 4194304}", "id of \"a\" is out of range"},
        {"model/vocab", "{\"a\": 1.5}", "id of \"a\" is a number"},
        {"model/vocab", "{\"a\": 0, \"b\": 0}", "id 0 is given twice"},
        {"model/vocab", "{\"a\": 0}", "is not in the vocabulary"},
        {"model/merges", "{}", "model.merges: an object"},
        {"model/merges", "[\"ab\"]", "model.merges"},
        {"model/merges", "[[\"a\"]]", "model.merges"},
        {"model/merges", "[[\"a\", 1]]", "model.merges"},
        {"model/merges", "[[\"a\", \"q\"]]", "merge 0: \"a\" + \"q\": the whole"},
        {"model/merges", "[[\"\\u4e00\", \"q\"]]", "the left half"},
        {"model/merges", "[\"a b\", \"a b\"]", "merge 1: \"a\" + \"b\" is there already"},
        {"added_tokens", "{}", "added_tokens: an object"},
        {"added_tokens", "[{\"id\": 1}]", "added_tokens.content"},
        {"added_tokens", "[{\"content\": \"x\"}]", "id of \"x\" is absent"},
        {"added_tokens", "[{\"id\": 65, \"content\": \"x\"}]", "\"x\" has id 65 here and id 120"},
        {"added_tokens", "[{\"id\": 65, \"content\": \"<new>\"}]", "id 65 is \"<new>\", but \"A\""},
        {"added_tokens", "[{\"id\": 900, \"content\": \"<n>\", \"lstrip\": 3}]", "lstrip"},
        {"normalizer", "{\"type\": \"Lowercase\"}", "normalizer.type: \"Lowercase\""},
        {"normalizer", "{\"type\": \"Replace\", \"content\": \"\"}", "\"Replace\""},
        {"normalizer", "{\"type\": \"Sequence\"}", "normalizer.normalizers"},
        {"pre_tokenizer", "null", "pre_tokenizer.type: absent"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "\"Metaspace\""},
        {"pre_tokenizer", "{\"type\": \"Whitespace\"}", "\"Whitespace\""},
        {"pre_tokenizer", "{\"type\": \"Digits\", \"individual_digits\": true}", "a ByteLevel at"},
        {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}}", "behavior"},
        {"pre_tokenizer",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"MergedWithNext\"}",
         "\"MergedWithNext\""},
        {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {}, \"behavior\": \"Isolated\"}",
         "pre_tokenizer.pattern"},
        {"pre_tokenizer",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\w\"}, \"behavior\": \"Isolated\"}",
         "escape \\w"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\"}", "add_prefix_space"},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", "
         "\"add_prefix_space\": false}, {\"type\": \"Digits\"}]}",
         "nothing behind ByteLevel"},
        {"post_processor", "{\"type\": \"RobertaProcessing\"}", "\"RobertaProcessing\""},
        {"post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}, "
         "{\"SpecialToken\": {\"id\": \"<s>\"}}]}",
         "before the text"},
        {"decoder", "{\"type\": \"Metaspace\"}", "decoder.type: \"Metaspace\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_error err = {0};
        CHECK_STATUS(open_changed(rows[i].path, rows[i].value, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].names);
        CHECK_ERR_NAMES(err, "tokenizer.json");
    }
}

static void harmless_differences_are_taken(void **state)
{
    static const struct {
        const char *path, *value;
    } rows[] = {
        {"version", ""},           {"truncation", "{}"},
        {"model/type", ""},        {"decoder", "null"},
        {"added_tokens", ""},      {"model/dropout", "0.0"},
        {"model/unk_token", ""},   {"model/end_of_word_suffix", "\"\""},
        {"model/merges", "[]"},    {"post_processor", "{\"type\": \"ByteLevel\"}"},
        {"something_new", "true"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_error err = {0};
        tr_status status = open_changed(rows[i].path, rows[i].value, &err);
        if (status != TR_OK)
            fail_msg("%s: %s", rows[i].path, err.text);
    }
}

static void text_that_is_no_json_is_an_error_with_its_place(void **state)
{
    static const char *const texts[] = {"",     "{",
                                        "[]",   "{\"model\": {\"vocab\": {\"a\": 0,}}}",
                                        "\xFF", "{\"model\": 1, \"model\": 2}"};
    tr_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        tr_error err = {0};
        CHECK_STATUS(tr_tokenizer_from_json(&t, "t.json", texts[i], strlen(texts[i]), &err),
                     TR_E_INVALID);
        CHECK_ERR_NAMES(err, "t.json");
    }
}

/* ---- GGUF ---- */

/* A GGUF file that holds a tokenizer. Rows that are NULL are left out. */
typedef struct {
    const char *model, *pre;
    const char *const *tokens; /* after the 94 of printable ASCII; ends with NULL */
    const char *const *merges; /* ends with NULL */
    const uint32_t *types;     /* of the tokens above; those of ASCII are normal. NULL: no key */
    const float *scores;       /* of all; NULL: no key */
    int64_t bos;               /* -1: no key */
    int add_bos;               /* -1: no key */
} file_row;

static size_t count_texts(const char *const *texts)
{
    size_t count = 0;

    while (texts[count] != NULL)
        count++;
    return count;
}

/* Writes the file and opens its tokenizer. */
static tr_status open_row(const file_row *row, tr_tokenizer **t, tr_error *err)
{
    char path[] = "/tmp/troupe-tokenizer-XXXXXX";
    char ascii[94][2];
    const char *tokens[128];
    uint32_t types[128];
    size_t more = count_texts(row->tokens);

    assert_true(94 + more <= 128);
    for (size_t i = 0; i < 94 + more; i++) {
        if (i < 94)
            snprintf(ascii[i], sizeof(ascii[i]), "%c", (char)('!' + i));
        tokens[i] = i < 94 ? ascii[i] : row->tokens[i - 94];
        types[i] = i < 94 || row->types == NULL ? 1 : row->types[i - 94];
    }
    close(mkstemp(path));
    tokenizer_file_write(&(tokenizer_file){.model = row->model,
                                           .pre = row->pre,
                                           .tokens = tokens,
                                           .types = row->types == NULL ? NULL : types,
                                           .scores = row->scores,
                                           .tokens_count = 94 + more,
                                           .merges = row->merges,
                                           .merges_count = count_texts(row->merges),
                                           .bos = row->bos,
                                           .add_bos = row->add_bos,
                                           .add_space_prefix = -1},
                         path);
    tr_status status = tr_tokenizer_open(t, path, err);
    unlink(path);
    return status;
}

static const char *const some_tokens[] = {"ab", "<s>", "<user>", "\u0120", NULL};
static const char *const some_merges[] = {"a b", NULL};
static const uint32_t some_types[] = {1, 3, 4, 1};

static const file_row right_row = {.model = "gpt2",
                                   .pre = "gpt-2",
                                   .tokens = some_tokens,
                                   .merges = some_merges,
                                   .types = some_types,
                                   .bos = -1,
                                   .add_bos = -1};

static void gguf_token_types_say_what_is_special(void **state)
{
    static const int32_t with[] = {95, 94, 96}, without_tail[] = {94, 96};
    int32_t ids[32];
    size_t count = 0;
    tr_error err = {0};
    tr_tokenizer *t;

    (void)state;
    if (open_row(&right_row, &t, &err) != TR_OK)
        fail_msg("%s", err.text);
    CHECK_STATUS(tr_tokenizer_encode(t, "<s>ab<user>", 11, true, ids, 32, &count, &err), TR_OK);
    assert_int_equal(count, 3);
    assert_memory_equal(ids, with, sizeof(with));
    count = 0;
    CHECK_STATUS(tr_tokenizer_encode(t, "<s>ab<user>", 11, false, ids, 32, &count, &err), TR_OK);
    assert_int_equal(count,
                     5); /* < s > ab <user>: a user-defined token is text of the user's too */
    assert_memory_equal(ids + 3, without_tail, sizeof(without_tail));
    assert_true(tr_tokenizer_is_special(t, 95));
    assert_false(tr_tokenizer_is_special(t, 96));
    tr_tokenizer_close(t);
}

static void all_known_pre_tokenizers_open_and_bos_follows_them(void **state)
{
    static const struct {
        const char *pre;
        bool bos;
    } rows[] = {{"llama-bpe", true}, {"qwen2", false},       {"qwen35", false}, {"glm4", false},
                {"smollm", false},   {"gpt-2", false},       {"gpt-4o", false}, {"tekken", true},
                {"kimi-k2", false},  {"deepseek-v3", false}, {"default", false}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        file_row row = right_row;
        tr_error err = {0};
        tr_tokenizer *t;
        row.pre = rows[i].pre;
        row.bos = 95;
        if (open_row(&row, &t, &err) != TR_OK)
            fail_msg("%s", err.text);
        assert_int_equal(tr_tokenizer_bos(t), rows[i].bos ? 95 : -1);
        tr_tokenizer_close(t);
    }
    file_row row = right_row;
    tr_tokenizer *t;
    row.pre = NULL;
    row.bos = 95;
    row.add_bos = 1;
    CHECK_STATUS(open_row(&row, &t, NULL), TR_OK);
    assert_int_equal(tr_tokenizer_bos(t), 95);
    tr_tokenizer_close(t);
    row.pre = "glm4"; /* has no BOS, whatever the file says */
    CHECK_STATUS(open_row(&row, &t, NULL), TR_OK);
    assert_int_equal(tr_tokenizer_bos(t), -1);
    tr_tokenizer_close(t);
}

static void wrong_gguf_files_are_refused_by_name(void **state)
{
    static const char *const no_tokens[] = {NULL};
    static const char *const bad_merge[] = {"a b", "ab", NULL};
    static const char *const unknown_merge[] = {"a c", NULL};
    static const uint32_t bad_types[] = {1, 3, 9, 1};
    struct {
        file_row row;
        const char *names;
    } rows[] = {{right_row, "tokenizer.ggml.model: \"bert\", expected \"gpt2\" or \"llama\""},
                {right_row, "tokenizer.ggml.pre: \"no-such\""},
                {right_row, "tokenizer.ggml.token_type of token 96: 9"},
                {right_row, "tokenizer.ggml.merges: 1 has no space"},
                {right_row, "merge 0: \"a\" + \"c\": the whole"},
                {right_row, "tokenizer.ggml.bos_token_id: 500"},
                {right_row, "tokenizer.ggml.bos_token_id"},
                {right_row, "tokenizer.ggml.merges"}};

    (void)state;
    rows[0].row.model = "bert";
    rows[1].row.pre = "no-such";
    rows[2].row.types = bad_types;
    rows[3].row.merges = bad_merge;
    rows[4].row.merges = unknown_merge;
    rows[5].row.bos = 500;
    rows[5].row.add_bos = 1;
    rows[6].row.add_bos = 1;
    rows[7].row.tokens = no_tokens;
    rows[7].row.types = NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_error err = {0};
        tr_tokenizer *t;
        CHECK_STATUS(open_row(&rows[i].row, &t, &err), TR_E_INVALID);
        if (i < 7)
            CHECK_ERR_NAMES(err, rows[i].names);
        CHECK_ERR_NAMES(err, "troupe-tokenizer-");
    }
}

static void a_path_that_leads_nowhere_is_named(void **state)
{
    tr_error err = {0};
    tr_tokenizer *t;

    (void)state;
    CHECK_STATUS(tr_tokenizer_open(&t, "/no/such/model", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "/no/such/model");
    CHECK_STATUS(tr_tokenizer_open(&t, "/tmp", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "tokenizer.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_json_files_are_refused_by_name),
        cmocka_unit_test(harmless_differences_are_taken),
        cmocka_unit_test(text_that_is_no_json_is_an_error_with_its_place),
        cmocka_unit_test(gguf_token_types_say_what_is_special),
        cmocka_unit_test(all_known_pre_tokenizers_open_and_bos_follows_them),
        cmocka_unit_test(wrong_gguf_files_are_refused_by_name),
        cmocka_unit_test(a_path_that_leads_nowhere_is_named),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
