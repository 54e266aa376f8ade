/* test_model_gguf.c - GGUF files as models: single, split, right and wrong.
 *
 * Goal: the llama architecture opens from GGUF with the right order of rotating dimensions, and
 * whatever we cannot compute is refused by name. Method: small files made here. With
 * an argument: the real SmolLM2-135M-Instruct instead, which TROUPE_SMOLLM2 names. */
#include "tests/check.h"

#include "core/model/model.h"
#include "tests/model/fake_gguf.h"

#include <stdlib.h>
#include <unistd.h>

typedef struct {
    char folder[64];
    char path[128];
} gguf_folder;

static int folder_open(void **state)
{
    gguf_folder *d = calloc(1, sizeof(*d));

    if (d == NULL)
        return -1;
    strcpy(d->folder, "/tmp/troupe-gguf-XXXXXX");
    if (mkdtemp(d->folder) == NULL)
        return -1;
    snprintf(d->path, sizeof(d->path), "%s/model.gguf", d->folder);
    *state = d;
    return 0;
}

static const char *shard_path(gguf_folder *d, unsigned number, unsigned count)
{
    snprintf(d->path, sizeof(d->path), "%s/model-%05u-of-%05u.gguf", d->folder, number, count);
    return d->path;
}

static int folder_close(void **state)
{
    gguf_folder *d = *state;

    for (unsigned i = 1; i <= 3; i++)
        (void)unlink(shard_path(d, i, 3)); /* not every test makes shards */
    snprintf(d->path, sizeof(d->path), "%s/model.gguf", d->folder);
    (void)unlink(d->path);
    (void)rmdir(d->folder);
    free(d);
    return 0;
}

static void a_llama_file_rotates_pairs_and_ties_its_output(void **state)
{
    gguf_folder *d = *state;
    static fake_gguf g;
    tr_model *m = NULL;
    tr_error err = {0};

    fake_gguf_llama(&g, TR_GGUF_TYPE_Q4_1);
    fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
    fake_gguf_f32(&g, "llama.rope.freq_base", 50000);
    fake_gguf_write(&g, d->path);
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_OK);
    const tr_model_spec *s = tr_model_get_spec(m);
    assert_true(tr_model_is_tied(m));
    assert_int_equal(s->vocab_size, 128);
    assert_int_equal(s->bos_token, -1);
    assert_int_equal(s->eos_tokens[0], 2);
    assert_int_equal(s->layers[1].gqa.rope, TR_ROPE_INTERLEAVED);
    assert_int_equal(s->layers[1].gqa.rope_dims, 16);
    assert_true(s->layers[1].gqa.rope_theta == 50000.0);
    tr_weight k = tr_model_weight(m, 1, TR_W_K, 0),
              down = tr_model_weight(m, 0, TR_W_ALWAYS_DOWN, 0);
    assert_int_equal(k.rows, 32);
    assert_int_equal(k.cols, 64);
    assert_int_equal(k.row_size, 40);
    assert_int_equal(down.rows, 64);
    assert_int_equal(down.cols, 128);
    tr_model_close(m);
}

static void what_cannot_be_computed_is_named(void **state)
{
    gguf_folder *d = *state;
    static const struct {
        const char *what;
        const char *key;
        const char *text; /* NULL: number */
        uint32_t number;
        const char *named;
    } rows[] = {
        {"experts", "llama.expert_count", NULL, 8, "llama.expert_count: above 0"},
        {"longrope", "llama.rope.scaling.type", "longrope", 0,
         "llama.rope.scaling.type: found \"longrope\""},
        {"unknown", "llama.attention.clamp_kqv", NULL, 8, "llama.attention.clamp_kqv: a setting"},
        {"value size", "llama.attention.value_length", NULL, 8,
         "value_length: found 8, expected 16"},
        {"odd rotation", "llama.rope.dimension_count", NULL, 7, "2 does not divide 7"},
        {"key heads", "llama.attention.head_count_kv", NULL, 3, "3 does not divide 4"},
        {"end", "tokenizer.ggml.eot_token_id", NULL, 128, "eot_token_id: found 128"},
        {"vocabulary", "llama.vocab_size", NULL, 64,
         "token_embd.weight: shape [128, 64], expected"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static fake_gguf g;
        tr_model *m = NULL;
        tr_error err = {0};

        fake_gguf_llama(&g, TR_GGUF_TYPE_Q8_0);
        if (strcmp(rows[i].what, "key heads") != 0)
            fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
        if (rows[i].text != NULL)
            fake_gguf_text(&g, rows[i].key, rows[i].text);
        else
            fake_gguf_u32(&g, rows[i].key, rows[i].number);
        fake_gguf_write(&g, d->path);
        CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].named);
    }
}

static void every_block_type_that_divides_the_rows_opens(void **state)
{
    gguf_folder *d = *state;
    static const struct {
        tr_gguf_type type;
        tr_format format;
    } rows[] = {
        {TR_GGUF_TYPE_F32, TR_FORMAT_F32},         {TR_GGUF_TYPE_F16, TR_FORMAT_F16},
        {TR_GGUF_TYPE_BF16, TR_FORMAT_BF16},       {TR_GGUF_TYPE_Q4_0, TR_FORMAT_Q4_0},
        {TR_GGUF_TYPE_Q4_1, TR_FORMAT_Q4_1},       {TR_GGUF_TYPE_Q5_0, TR_FORMAT_Q5_0},
        {TR_GGUF_TYPE_Q5_1, TR_FORMAT_Q5_1},       {TR_GGUF_TYPE_Q8_0, TR_FORMAT_Q8_0},
        {TR_GGUF_TYPE_IQ4_NL, TR_FORMAT_IQ4_NL},   {TR_GGUF_TYPE_MXFP4, TR_FORMAT_GGUF_MXFP4},
        {TR_GGUF_TYPE_NVFP4, TR_FORMAT_GGUF_NVFP4}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static fake_gguf g;
        tr_model *m = NULL;
        tr_error err = {0};

        fake_gguf_llama(&g, rows[i].type);
        fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
        fake_gguf_write(&g, d->path);
        CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_OK);
        tr_weight w = tr_model_weight(m, 1, TR_W_ALWAYS_DOWN, 0);
        assert_int_equal(w.format, rows[i].format);
        assert_int_equal(w.cols, 128);
        assert_true(w.scale == 1.0f);
        tr_model_close(m);
    }
}

static void a_matrix_scale_of_zero_is_named(void **state)
{
    gguf_folder *d = *state;
    static fake_gguf g;
    tr_model *m = NULL;
    tr_error err = {0};

    fake_gguf_llama(&g, TR_GGUF_TYPE_NVFP4);
    fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
    fake_gguf_tensor(&g, "blk.1.ffn_up.scale", TR_GGUF_TYPE_F32, 1, 0);
    fake_gguf_write(&g, d->path);
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "blk.1.ffn_up.scale: scale 0, expected a finite number above 0");
}

static void a_block_format_without_kernels_is_named(void **state)
{
    gguf_folder *d = *state;
    static fake_gguf g;
    tr_model *m = NULL;
    tr_error err = {0};

    fake_gguf_llama(&g, TR_GGUF_TYPE_Q8_1);
    fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
    fake_gguf_write(&g, d->path);
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "type Q8_1, expected F32");
}

static void a_leftover_tensor_is_named(void **state)
{
    gguf_folder *d = *state;
    static fake_gguf g;
    tr_model *m = NULL;
    tr_error err = {0};

    fake_gguf_llama(&g, TR_GGUF_TYPE_Q8_0);
    fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
    fake_gguf_tensor(&g, "rope_factors_long.weight", TR_GGUF_TYPE_F32, 8, 0);
    fake_gguf_write(&g, d->path);
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "model.gguf: tensor rope_factors_long.weight: has no place");
}

static void a_divisor_of_zero_is_named(void **state)
{
    gguf_folder *d = *state;
    static fake_gguf g;
    tr_model *m = NULL;
    tr_error err = {0};

    fake_gguf_llama(&g, TR_GGUF_TYPE_Q8_0);
    fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
    fake_gguf_tensor(&g, "rope_freqs.weight", TR_GGUF_TYPE_F32, 8, 0); /* its bytes are zero */
    fake_gguf_write(&g, d->path);
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "tensor rope_freqs.weight: found 0 at 0, expected a number above 0");
}

static void stretched_positions_divide_the_frequencies(void **state)
{
    gguf_folder *d = *state;
    static const char *const types[] = {"linear", "yarn"};

    for (int i = 0; i < 2; i++) {
        static fake_gguf g;
        tr_model *m = NULL;
        tr_error err = {0};

        fake_gguf_llama(&g, TR_GGUF_TYPE_Q8_0);
        fake_gguf_u32(&g, "llama.attention.head_count_kv", 2);
        fake_gguf_text(&g, "llama.rope.scaling.type", types[i]);
        fake_gguf_f32(&g, "llama.rope.scaling.factor", 4);
        fake_gguf_u32(&g, "llama.rope.scaling.original_context_length", 64);
        fake_gguf_write(&g, d->path);
        CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_OK);
        const tr_rope_scaling *s = tr_model_get_spec(m)->layers[1].gqa.rope_scaling;
        assert_non_null(s);
        assert_int_equal(s->count, 8);
        assert_true(s->divisors[7] == 4.0f); /* turns less than once in the context */
        assert_true(s->divisors[0] == (i == 0 ? 4.0f : 1.0f));
        assert_true(i == 0 ? s->gain == 1.0f : s->gain > 1.13f && s->gain < 1.14f);
        tr_model_close(m);
    }
}

static void heads_may_be_given_for_each_layer(void **state)
{
    gguf_folder *d = *state;
    static const uint32_t right[] = {2, 2}, wrong[] = {2, 2, 2};
    static fake_gguf g;
    tr_model *m = NULL;
    tr_error err = {0};

    fake_gguf_llama(&g, TR_GGUF_TYPE_Q8_0);
    fake_gguf_u32s(&g, "llama.attention.head_count_kv", right, 2);
    fake_gguf_write(&g, d->path);
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_OK);
    tr_model_close(m);
    fake_gguf_llama(&g, TR_GGUF_TYPE_Q8_0);
    fake_gguf_u32s(&g, "llama.attention.head_count_kv", wrong, 3);
    fake_gguf_write(&g, d->path);
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "head_count_kv: 3 elements, expected 2");
}

/* -- split -- */

/* Three files: all metadata and no tensor, the model, one tensor more. */
static void write_split(gguf_folder *d, unsigned second_no, uint32_t total, const char *extra)
{
    static fake_gguf whole, shard;

    fake_gguf_llama(&whole, TR_GGUF_TYPE_Q8_0);
    for (unsigned i = 0; i < 3; i++) {
        shard = (fake_gguf){0};
        if (i == 0) {
            memcpy(shard.keys, whole.keys, whole.keys_size);
            shard.keys_size = whole.keys_size;
            shard.keys_count = whole.keys_count;
            fake_gguf_u32(&shard, "llama.attention.head_count_kv", 2);
            fake_gguf_u32(&shard, "split.tensors.count", total);
        } else if (i == 1) {
            memcpy(shard.infos, whole.infos, whole.infos_size);
            shard.infos_size = whole.infos_size;
            shard.tensors_count = whole.tensors_count;
            shard.data_size = whole.data_size;
        } else {
            fake_gguf_tensor(&shard, extra, TR_GGUF_TYPE_Q8_0, 64, 128);
        }
        fake_gguf_u16(&shard, "split.no", (uint16_t)(i == 1 ? second_no : i));
        fake_gguf_u16(&shard, "split.count", 3);
        fake_gguf_write(&shard, shard_path(d, i + 1, 3));
    }
    shard_path(d, 1, 3);
}

static void a_split_model_opens_from_its_first_file(void **state)
{
    gguf_folder *d = *state;
    tr_model *m = NULL;
    tr_error err = {0};

    write_split(d, 1, 21, "output.weight");
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_OK);
    assert_int_equal(tr_model_files_count(m), 3);
    assert_int_equal(tr_model_tensors_count(m), 21);
    assert_false(tr_model_is_tied(m));
    tr_model_close(m);
}

static void a_broken_split_is_named(void **state)
{
    gguf_folder *d = *state;
    tr_model *m = NULL;
    tr_error err = {0};

    write_split(d, 1, 21, "output.weight");
    CHECK_STATUS(tr_model_open(&m, shard_path(d, 2, 3), &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "expected the first: NAME-00001-of-00003.gguf");
    write_split(d, 2, 21, "output.weight");
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "model-00002-of-00003.gguf: key split.no: found 2, expected 1");
    write_split(d, 1, 20, "output.weight");
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "split.tensors.count: found 20, expected 21");
    write_split(d, 1, 21, "token_embd.weight");
    CHECK_STATUS(tr_model_open(&m, d->path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "token_embd.weight stands in two files");
    write_split(d, 1, 21, "output.weight");
    unlink(shard_path(d, 3, 3));
    CHECK_STATUS(tr_model_open(&m, shard_path(d, 1, 3), &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "model-00003-of-00003.gguf: ");
}

/* -- the real one -- */

static void smollm2_opens(void **state)
{
    (void)state;
    tr_model *m = NULL;
    tr_error err = {0};
    float norm[576];

    if (tr_model_open(&m, getenv("TROUPE_SMOLLM2"), &err) != TR_OK)
        print_error("%s\n", err.text);
    assert_non_null(m);
    const tr_model_spec *s = tr_model_get_spec(m);
    assert_int_equal(s->layers_count, 30);
    assert_int_equal(s->vocab_size, 49152);
    assert_int_equal(s->layers[7].gqa.kv_heads, 3);
    assert_int_equal(s->layers[7].channel.slices, 8);
    assert_int_equal(tr_model_weight(m, 0, TR_W_EMBED, 0).format, TR_FORMAT_Q8_0);
    assert_int_equal(tr_model_weight(m, 29, TR_W_O, 0).format, TR_FORMAT_Q4_1);
    tr_weight w = tr_model_weight(m, 0, TR_W_FINAL_NORM, 0);
    tr_weight_to_f32(norm, &w);
    assert_true(norm[0] > 0);
    tr_model_close(m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)

int main(int argc, char **argv)
{
    const struct CMUnitTest smollm2[] = {cmocka_unit_test(smollm2_opens)};
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_llama_file_rotates_pairs_and_ties_its_output),
        IN_FOLDER(what_cannot_be_computed_is_named),
        IN_FOLDER(every_block_type_that_divides_the_rows_opens),
        IN_FOLDER(a_matrix_scale_of_zero_is_named),
        IN_FOLDER(a_block_format_without_kernels_is_named),
        IN_FOLDER(a_leftover_tensor_is_named),
        IN_FOLDER(a_divisor_of_zero_is_named),
        IN_FOLDER(stretched_positions_divide_the_frequencies),
        IN_FOLDER(heads_may_be_given_for_each_layer),
        IN_FOLDER(a_split_model_opens_from_its_first_file),
        IN_FOLDER(a_broken_split_is_named),
    };
    (void)argv;
    if (argc > 1 && getenv("TROUPE_SMOLLM2") == NULL)
        return check_lacks("TROUPE_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    if (argc > 1)
        return cmocka_run_group_tests(smollm2, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
