/* test_tokenizer_families.c - the pre-tokenizers of all families, from tokenizer.json and from
 * GGUF, and SentencePiece's BPE, against recordings of `tokenizers` and llama.cpp.
 *
 * data/tokenizer_families.json (tools/golden/tokenizer_families.py) has the ids of more than 2,000
 * strings for each family. data/pretokenize.jsonl has pieces that a full regex engine cut. */
#include "core/model/tokenizer_impl.h"
#include "tests/check.h"
#include "tests/model/tokenizer_file.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS_MAX 8192
#define IDS_MAX    4096

static json_t *families;

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
    (void)state;
    families = load(DATA_DIR "/tokenizer_families.json");
    return families == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(families);
    return 0;
}

/* ---- the shared vocabulary ---- */

/* Texts of tokens: the byte alphabet, then what each merge makes, then "<s>". */
typedef struct {
    char letters[256][3];
    char *joined[TOKENS_MAX]; /* of merges */
    const char *tokens[TOKENS_MAX];
    const char *merges[TOKENS_MAX];
    uint32_t types[TOKENS_MAX];
    size_t tokens_count, merges_count;
} vocabulary;

/* The letters in the order of bytes. */
static void vocabulary_init(vocabulary *v)
{
    const json_t *merges = json_object_get(families, "merges");
    json_t *merge;
    size_t i;

    *v = (vocabulary){0};
    for (size_t byte = 0; byte < 256; byte++) {
        char value = (char)byte;
        v->letters[byte][tr_bytes_to_alphabet(&value, 1, v->letters[byte])] = '\0';
        v->tokens[v->tokens_count++] = v->letters[byte];
    }
    json_array_foreach(merges, i, merge)
    {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        size_t left = (size_t)(space - text);
        char *joined = malloc(strlen(text));
        assert_non_null(joined);
        memcpy(joined, text, left);
        strcpy(joined + left, space + 1);
        v->joined[v->merges_count] = joined;
        v->merges[v->merges_count++] = text;
        v->tokens[v->tokens_count++] = joined;
    }
    v->tokens[v->tokens_count++] = "<s>";
    for (i = 0; i < v->tokens_count; i++)
        v->types[i] = i + 1 < v->tokens_count ? 1 : 3;
}

static void vocabulary_free(vocabulary *v)
{
    for (size_t i = 0; i < v->merges_count; i++)
        free(v->joined[i]);
}

/* ---- opening a row ---- */

static tr_tokenizer *open_json(const vocabulary *v, const json_t *parts)
{
    json_t *tokens = json_object();
    tr_tokenizer *t = NULL;
    tr_error err = {0};

    for (size_t i = 0; i + 1 < v->tokens_count; i++)
        json_object_set_new(tokens, v->tokens[i], json_integer((json_int_t)i));
    json_t *model = json_pack("{s:s, s:o, s:O}", "type", "BPE", "vocab", tokens, "merges",
                              json_object_get(families, "merges"));
    json_t *root = json_pack("{s:o, s:[{s:i, s:s, s:b}]}", "model", model, "added_tokens", "id",
                             (int)v->tokens_count - 1, "content", "<s>", "special", 1);
    const char *key;
    json_t *part;
    if (parts == NULL) /* only the tokens matter */
        json_object_set_new(root, "pre_tokenizer",
                            json_pack("{s:s, s:b}", "type", "ByteLevel", "add_prefix_space", 0));
    json_object_foreach((json_t *)parts, key, part)
    {
        if (strcmp(key, "ignore_merges") == 0)
            json_object_set(model, key, part);
        else
            json_object_set(root, key, part);
    }
    char *text = json_dumps(root, 0);
    if (tr_tokenizer_from_json(&t, "tokenizer.json", text, strlen(text), &err) != TR_OK)
        fail_msg("%s", err.text);
    free(text);
    json_decref(root);
    return t;
}

static tr_tokenizer *open_file(const tokenizer_file *file)
{
    char path[] = "/tmp/troupe-families-XXXXXX";
    tr_tokenizer *t = NULL;
    tr_error err = {0};

    close(mkstemp(path));
    tokenizer_file_write(file, path);
    tr_status status = tr_tokenizer_open(&t, path, &err);
    unlink(path);
    if (status != TR_OK)
        fail_msg("%s", err.text);
    return t;
}

static tr_tokenizer *open_scores(const json_t *settings)
{
    static const char *tokens[TOKENS_MAX];
    static uint32_t types[TOKENS_MAX];
    static float scores[TOKENS_MAX];
    const json_t *spm = json_object_get(json_object_get(families, "spm"),
                                        json_string_value(json_object_get(settings, "vocabulary")));
    const json_t *prefix = json_object_get(settings, "add_space_prefix");
    size_t count = json_array_size(json_object_get(spm, "tokens"));

    assert_in_range(count, 300, TOKENS_MAX);
    for (size_t i = 0; i < count; i++) {
        tokens[i] = json_string_value(json_array_get(json_object_get(spm, "tokens"), i));
        types[i] = (uint32_t)json_integer_value(json_array_get(json_object_get(spm, "types"), i));
        scores[i] = (float)json_number_value(json_array_get(json_object_get(spm, "scores"), i));
    }
    return open_file(
        &(tokenizer_file){.model = "llama",
                          .tokens = tokens,
                          .types = types,
                          .scores = scores,
                          .tokens_count = count,
                          .bos = -1,
                          .add_bos = -1,
                          .add_space_prefix = prefix == NULL ? -1 : json_is_true(prefix)});
}

static void put_base64(FILE *file, const unsigned char *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t at = 0; at < size; at += 3) {
        size_t rest = size - at;
        uint32_t bits = (uint32_t)bytes[at] << 16 | (rest > 1 ? (uint32_t)bytes[at + 1] << 8 : 0) |
                        (rest > 2 ? bytes[at + 2] : 0);
        for (size_t i = 0; i < 4; i++)
            fputc(i > rest ? '=' : digits[bits >> (18 - 6 * i) & 63], file);
    }
}

/* Writes a folder with tiktoken.model and tokenizer_config.json, opens it, and removes it. */
static tr_status open_folder(const char *model, const char *config, tr_tokenizer **t, tr_error *err)
{
    char folder[] = "/tmp/troupe-tiktoken-XXXXXX", model_path[64], config_path[64];

    assert_non_null(mkdtemp(folder));
    snprintf(model_path, sizeof(model_path), "%s/tiktoken.model", folder);
    snprintf(config_path, sizeof(config_path), "%s/tokenizer_config.json", folder);
    const char *const paths[] = {model_path, config_path}, *const texts[] = {model, config};
    for (size_t i = 0; i < 2; i++) {
        FILE *file = fopen(paths[i], "w");
        assert_non_null(file);
        fputs(texts[i], file);
        assert_int_equal(fclose(file), 0);
    }
    tr_status status = tr_tokenizer_open(t, folder, err);
    unlink(model_path);
    unlink(config_path);
    rmdir(folder);
    return status;
}

/* The vocabulary as a tiktoken.model; of tokens with the same text the first counts. */
static tr_tokenizer *open_tiktoken(const vocabulary *v)
{
    char *model = NULL, config[256];
    size_t model_size = 0;
    tr_tokenizer *t = NULL, *alphabet = open_json(v, NULL);
    tr_error err = {0};

    FILE *file = open_memstream(&model, &model_size);
    assert_non_null(file);
    for (size_t i = 0; i + 1 < v->tokens_count; i++) {
        const char *bytes;
        size_t size;
        tr_tokenizer_token_bytes(alphabet, (int32_t)i, &bytes, &size);
        if (size == 0)
            continue;
        put_base64(file, (const unsigned char *)bytes, size);
        fprintf(file, " %zu\n", i);
    }
    fclose(file);
    snprintf(config, sizeof(config),
             "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {\"%zu\": "
             "{\"content\": \"<s>\", \"special\": true}}}",
             v->tokens_count - 1);
    if (open_folder(model, config, &t, &err) != TR_OK)
        fail_msg("%s", err.text);
    free(model);
    tr_tokenizer_close(alphabet);
    return t;
}

static tr_tokenizer *open_row(const vocabulary *v, const json_t *row)
{
    const json_t *settings = json_object_get(row, "gguf"), *json = json_object_get(row, "json");

    if (json != NULL)
        return open_json(v, json);
    if (settings == NULL)
        return open_tiktoken(v);
    if (strcmp(json_string_value(json_object_get(settings, "model")), "llama") == 0)
        return open_scores(settings);
    return open_file(&(tokenizer_file){.model = "gpt2",
                                       .pre = json_string_value(json_object_get(settings, "pre")),
                                       .tokens = v->tokens,
                                       .types = v->types,
                                       .tokens_count = v->tokens_count,
                                       .merges = v->merges,
                                       .merges_count = v->merges_count,
                                       .bos = json_integer_value(json_object_get(settings, "bos")),
                                       .add_bos = -1,
                                       .add_space_prefix = -1});
}

/* ---- comparing ---- */

/* Whether text, standing alone, gives these ids; prints both when not. */
static bool encodes(const tr_tokenizer *t, const char *row, const json_t *text,
                    const json_t *expected)
{
    int32_t ids[IDS_MAX];
    size_t count = 0, size = json_string_length(text);
    tr_error err = {0};

    tr_status status = tr_tokenizer_encode_prompt(t, json_string_value(text), size, true, ids,
                                                  IDS_MAX, &count, &err);
    bool same = status == TR_OK && count == json_array_size(expected) &&
                count <= tr_tokenizer_ids_max(t, size);
    for (size_t i = 0; i < count && same; i++)
        same = ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same) {
        char *dumped = json_dumps(expected, JSON_COMPACT);
        print_error("%s: \"%s\": %s\n  expected %s\n  got     ", row, json_string_value(text),
                    err.text, dumped);
        free(dumped);
        for (size_t i = 0; i < count && i < 64; i++)
            print_error(" %d", (int)ids[i]);
        print_error("\n");
    }
    return same;
}

static void each_family_gives_the_ids_of_its_reference(void **state)
{
    const json_t *cases = json_object_get(families, "cases");
    static vocabulary v;
    json_t *row, *c;
    size_t r, i, wrong = 0;

    (void)state;
    assert_true(json_array_size(cases) >= 2000);
    vocabulary_init(&v);
    json_array_foreach(json_object_get(families, "rows"), r, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        tr_tokenizer *t = open_row(&v, row);
        json_array_foreach((json_t *)cases, i, c)
        {
            const char *which = json_string_value(json_array_get(c, 1));
            wrong += !encodes(t, name, json_array_get(c, 0),
                              json_array_get(c, 2 + (size_t)(which[r] - 'a')));
        }
        tr_tokenizer_close(t);
    }
    vocabulary_free(&v);
    assert_int_equal(wrong, 0);
}

/* ---- pieces ---- */

/* A tokenizer of single bytes with the pre-tokenizer of this name in GGUF. */
static tr_tokenizer *open_pre(const char *pre)
{
    static char letters[256][3];
    static const char *tokens[256];

    for (size_t byte = 0; byte < 256; byte++) {
        char value = (char)byte;
        letters[byte][tr_bytes_to_alphabet(&value, 1, letters[byte])] = '\0';
        tokens[byte] = letters[byte];
    }
    return open_file(&(tokenizer_file){.model = "gpt2",
                                       .pre = pre,
                                       .tokens = tokens,
                                       .tokens_count = 256,
                                       .merges = (const char *const[]){NULL},
                                       .bos = 0,
                                       .add_bos = 0,
                                       .add_space_prefix = -1});
}

/* Whether the only pass of t cuts text into these pieces. */
static bool cuts(const tr_tokenizer *t, const json_t *text, const json_t *pieces)
{
    const char *at = json_string_value(text);
    size_t size = json_string_length(text), done = 0, i;
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    bool same = true;
    json_t *piece;

    json_array_foreach((json_t *)pieces, i, piece)
    {
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match);
        int found = pcre2_match(t->splits[0].code, (PCRE2_SPTR)at, size, done, 0, match, NULL);
        same = same && found > 0 && ends[0] == done && ends[1] - done == json_string_length(piece);
        done += json_string_length(piece);
    }
    pcre2_match_data_free(match);
    return same && done == size;
}

static void patterns_cut_as_a_full_engine_does(void **state)
{
    FILE *file = fopen(DATA_DIR "/pretokenize.jsonl", "r");
    tr_tokenizer *t = NULL;
    char name[32] = "", line[4096];
    size_t lines = 0, wrong = 0;

    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *item = json_loads(line, 0, NULL);
        const char *pattern = json_string_value(json_object_get(item, "pattern"));
        assert_non_null(pattern);
        if (strcmp(pattern, name) != 0) {
            tr_tokenizer_close(t);
            snprintf(name, sizeof(name), "%s", pattern);
            t = open_pre(strcmp(name, "gpt2") == 0 ? "gpt-2" : name);
        }
        lines++;
        if (!cuts(t, json_object_get(item, "text"), json_object_get(item, "pieces"))) {
            print_error("otherwise: %s", line);
            wrong++;
        }
        json_decref(item);
    }
    fclose(file);
    tr_tokenizer_close(t);
    assert_int_equal(lines, 129);
    assert_int_equal(wrong, 0);
}

/* ---- tiktoken ---- */

static void wrong_tiktoken_files_are_refused_by_name(void **state)
{
    static const char right[] = "{\"tokenizer_class\": \"TikTokenTokenizer\"}";
    static const struct {
        const char *model, *config, *names;
    } rows[] = {
        {"IQ== 0\n", "{}", "tokenizer_class: absent, expected TikTokenTokenizer"},
        {"IQ== 0\n", "{\"tokenizer_class\": \"GPT2\"}", "tokenizer_class: GPT2"},
        {"IQ== 0\nIg\n", right, "tiktoken.model: line 2: \"Ig\""},
        {"IQ== 0\nIg== x\n", right, "line 2"},
        {"IQ== 0\nIg== 99999999999999999999\n", right, "line 2"},
        {"IQ=x 0\n", right, "line 1"},
        {"I=== 0\n", right, "line 1"},
        {" 0\n", right, "line 1"},
        {"IQ== \n", right, "line 1"},
        {"IQ== 0\nIg== 0\n", right, "id 0 is given twice"},
        {"IQ== 0\nIQ== 1\n", right, "token 1 is there already"},
        {"", right, "0 tokens"},
        {"IQ== 0\n", right, "no token for byte 0x22"},
        {"IQ== 0\n",
         "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {\"x\": {}}}",
         "added_tokens_decoder: \"x\", expected an id"},
        {"IQ== 0\n",
         "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {\"1\": {}}}",
         "added_tokens_decoder.1.content: absent"},
        {"IQ== 0\n",
         "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {\"0\": "
         "{\"content\": \"<s>\"}}}",
         "id 0 is given twice"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_error err = {0};
        tr_tokenizer *t;
        CHECK_STATUS(open_folder(rows[i].model, rows[i].config, &t, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].names);
    }
}

/* ---- SentencePiece ---- */

static void wrong_score_files_are_refused_by_name(void **state)
{
    static const char *const tokens[] = {"<unk>", "<s>", "<0x41>", "\u2581", "a"};
    static const uint32_t types[] = {2, 3, 6, 1, 1}, byte_types[] = {2, 3, 6, 1, 6};
    static const float scores[] = {0, 0, 0, -1, -2}, wild[] = {0, 0, 0, -1, NAN};
    const tokenizer_file right = {.model = "llama",
                                  .tokens = tokens,
                                  .types = types,
                                  .scores = scores,
                                  .tokens_count = 5,
                                  .bos = -1,
                                  .add_bos = -1,
                                  .add_space_prefix = -1};
    struct {
        tokenizer_file file;
        const char *names;
    } rows[] = {{right, "tokenizer.ggml.scores"},
                {right, "tokenizer.ggml.scores of token 4: nan"},
                {right, "byte token 4 is \"a\", expected \"<0x00>\""},
                {right, "no token for U+2581"},
                {right, "tokenizer.ggml.bos_token_id: 5, expected below 5"}};

    (void)state;
    rows[0].file.scores = NULL;
    rows[1].file.scores = wild;
    rows[2].file.types = byte_types;
    rows[3].file.tokens = (const char *const[]){"<unk>", "<s>", "<0x41>", "b", "a"};
    rows[4].file.bos = 5;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char path[] = "/tmp/troupe-scores-XXXXXX";
        tr_error err = {0};
        tr_tokenizer *t;
        close(mkstemp(path));
        tokenizer_file_write(&rows[i].file, path);
        tr_status status = tr_tokenizer_open(&t, path, &err);
        unlink(path);
        CHECK_STATUS(status, TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].names);
        CHECK_ERR_NAMES(err, "troupe-scores-");
    }
}

static void bos_stands_before_a_prompt_once(void **state)
{
    static const struct {
        const char *text;
        bool specials;
        size_t count;
    } rows[] = {{"a", true, 3}, {"<s>a", true, 3}, {"<s>a", false, 6}, {"", true, 1}};
    static const char *const tokens[] = {"<unk>", "<s>", "\u2581", "a", "<", "s", ">"};
    static const uint32_t types[] = {2, 3, 1, 1, 1, 1, 1};
    static const float scores[7];
    int32_t ids[32];
    tr_error err = {0};

    (void)state;
    tr_tokenizer *t = open_file(&(tokenizer_file){.model = "llama",
                                                  .tokens = tokens,
                                                  .types = types,
                                                  .scores = scores,
                                                  .tokens_count = 7,
                                                  .bos = -1,
                                                  .add_bos = -1,
                                                  .add_space_prefix = -1});
    for (size_t i = 0; i < 4; i++) {
        size_t count = 0, size = strlen(rows[i].text);
        CHECK_STATUS(tr_tokenizer_encode_prompt(t, rows[i].text, size, rows[i].specials, ids, 32,
                                                &count, &err),
                     TR_OK);
        assert_int_equal(ids[0], 1);
        assert_int_equal(count, rows[i].count);
        count = 0;
        CHECK_STATUS(tr_tokenizer_encode_prompt(t, rows[i].text, size, rows[i].specials, ids, 0,
                                                &count, &err),
                     TR_E_NOMEM);
        assert_true(count >= 1);
    }
    tr_tokenizer_close(t);
}

static void score_tokens_decode_to_the_text_behind_a_space(void **state)
{
    static const char *const texts[] = {
        "the user", "  two", "a\n\tb", "caf\xC3\xA9 \xF0\x9F\x91\x8D", "\xFF\xFE x", "\xC3", ""};
    int32_t ids[128];
    char text[256];
    tr_error err = {0};

    (void)state;
    json_t *settings = json_pack("{s:s}", "vocabulary", "words");
    tr_tokenizer *t = open_scores(settings);
    json_decref(settings);
    assert_int_equal(tr_tokenizer_bos(t), 1);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t count = 0, used = 0, size = strlen(texts[i]);
        CHECK_STATUS(tr_tokenizer_encode(t, texts[i], size, true, ids, 128, &count, &err), TR_OK);
        for (size_t k = 0; k < count; k++) {
            const char *bytes;
            size_t bytes_size;
            tr_tokenizer_token_bytes(t, ids[k], &bytes, &bytes_size);
            memcpy(text + used, bytes, bytes_size);
            used += bytes_size;
        }
        assert_int_equal(used, size == 0 ? 0 : size + 1);
        if (size > 0) {
            assert_int_equal(text[0], ' ');
            assert_memory_equal(text + 1, texts[i], size);
        }
    }
    tr_tokenizer_close(t);
}

/* A piece that costs the square of its length would not end within the time limit of the test. */
static void a_megabyte_without_a_space_is_no_trouble_for_scores(void **state)
{
    size_t size = (size_t)1 << 20, count = 0;
    char *text = malloc(size);
    int32_t *ids = malloc((2 * size + 2) * sizeof(*ids));
    tr_error err = {0};

    (void)state;
    assert_non_null(text);
    assert_non_null(ids);
    memset(text, 'a', size);
    json_t *settings = json_pack("{s:s}", "vocabulary", "words");
    tr_tokenizer *t = open_scores(settings);
    json_decref(settings);
    CHECK_STATUS(tr_tokenizer_encode(t, text, size, true, ids, 2 * size + 2, &count, &err), TR_OK);
    assert_true(count > 0);
    tr_tokenizer_close(t);
    free(text);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_family_gives_the_ids_of_its_reference),
        cmocka_unit_test(patterns_cut_as_a_full_engine_does),
        cmocka_unit_test(wrong_tiktoken_files_are_refused_by_name),
        cmocka_unit_test(wrong_score_files_are_refused_by_name),
        cmocka_unit_test(bos_stands_before_a_prompt_once),
        cmocka_unit_test(score_tokens_decode_to_the_text_behind_a_space),
        cmocka_unit_test(a_megabyte_without_a_space_is_no_trouble_for_scores),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
