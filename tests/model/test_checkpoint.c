/* test_checkpoint.c - which files of a folder belong to a checkpoint, and which tensors.
 *
 * Goal: an index is believed only as far as the files agree with it; nothing outside the folder is
 * opened. Method: one small model cut into two shards, with right and wrong indexes. */
#include "tests/check.h"

#include "core/model/checkpoint.h"
#include "core/model/names.h"
#include "tests/model/fake_model.h"

#include <stdlib.h>

#define FIRST  "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"

/* Two shards; an index that maps every tensor, in *map, which the caller changes and gives back to
 * write_index. */
static json_t *write_shards(fake_model *f)
{
    json_t *map = json_object();

    fake_llama(f);
    for (uint32_t i = 0; i < f->count; i++)
        json_object_set_new(map, f->tensors[i].name, json_string(i < 10 ? FIRST : SECOND));
    fake_write_tensors(f, FIRST, 0, 10);
    fake_write_tensors(f, SECOND, 10, f->count - 10);
    return map;
}

/* Takes map. */
static void write_index(fake_model *f, json_t *map)
{
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
    char *text = json_dumps(index, 0);

    fake_write_text(f, "model.safetensors.index.json", text);
    free(text);
    json_decref(index);
}

static void check_refused(fake_model *f, json_t *map, const char *named)
{
    tr_checkpoint *c = NULL;
    tr_error err = {0};

    write_index(f, map);
    CHECK_STATUS(tr_checkpoint_open(&c, f->folder, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, named);
    fake_close(f);
}

static void shards_are_one_checkpoint(void **state)
{
    (void)state;
    fake_model f;
    tr_checkpoint *c = NULL;
    tr_error err = {0};

    json_t *map = write_shards(&f);
    write_index(&f, map);
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_OK);
    assert_int_equal(tr_checkpoint_files_count(c), 2);
    assert_int_equal(tr_checkpoint_count(c), f.count);
    for (uint32_t i = 0; i < f.count; i++) {
        uint32_t index = tr_checkpoint_find(c, f.tensors[i].name);

        assert_int_not_equal(index, TR_NAME_NONE);
        assert_string_equal(tr_checkpoint_at(c, index)->name, f.tensors[i].name);
        assert_string_equal(tr_checkpoint_at(c, index)->file, i < 10 ? FIRST : SECOND);
    }
    assert_int_equal(tr_checkpoint_find(c, "model.layers.0"), TR_NAME_NONE);
    assert_null(tr_checkpoint_gguf(c));
    tr_checkpoint_close(c);
    fake_close(&f);
}

static void a_tensor_that_the_index_does_not_map_is_left_out(void **state)
{
    (void)state;
    fake_model f;
    tr_checkpoint *c = NULL;

    json_t *map = write_shards(&f);
    json_object_del(map, "lm_head.weight");
    write_index(&f, map);
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, NULL), TR_OK);
    assert_int_equal(tr_checkpoint_count(c), f.count - 1);
    assert_int_equal(tr_checkpoint_find(c, "lm_head.weight"), TR_NAME_NONE);
    tr_checkpoint_close(c);
    fake_close(&f);
}

static void an_index_that_the_files_contradict_is_refused(void **state)
{
    (void)state;
    fake_model f;
    json_t *map;

    map = write_shards(&f);
    json_object_set_new(map, "lm_head.weight", json_string(SECOND));
    check_refused(&f, map, "tensor lm_head.weight: absent from " SECOND);
    map = write_shards(&f);
    json_object_set_new(map, "model.extra.weight", json_string(FIRST));
    check_refused(&f, map, "tensor model.extra.weight: absent from " FIRST);
    map = write_shards(&f);
    json_object_set_new(map, "model.extra.weight", json_string("model-00003.safetensors"));
    check_refused(&f, map, "model-00003.safetensors: No such file");
}

static void a_name_that_leaves_the_folder_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"../model.safetensors",
                                        "/etc/passwd",
                                        "a/b.safetensors",
                                        "..",
                                        "",
                                        ".hidden",
                                        "a\\b",
                                        "a\nb"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        fake_model f;
        json_t *map = write_shards(&f);

        json_object_set_new(map, "lm_head.weight", json_string(names[i]));
        check_refused(&f, map, "weight_map: lm_head.weight: found");
    }
}

static void an_index_of_the_wrong_kind_is_refused(void **state)
{
    (void)state;
    fake_model f;
    tr_checkpoint *c = NULL;
    tr_error err = {0};

    json_t *map = write_shards(&f);
    json_object_set_new(map, "lm_head.weight", json_integer(1));
    check_refused(&f, map, "weight_map: lm_head.weight: found an integer");
    json_decref(write_shards(&f));
    fake_write_text(&f, "model.safetensors.index.json", "{\"weight_map\": []}");
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "weight_map: a list, expected an object");
    fake_write_text(&f, "model.safetensors.index.json", "{\"weight_map\": {}, \"weight_map\": {}}");
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "model.safetensors.index.json: duplicate weight_map");
    fake_write_text(&f, "model.safetensors.index.json",
                    "{\"weight_map\": {\"a\": \"" FIRST "\",}}");
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "model.safetensors.index.json: line 1, column");
    fake_write_text(&f, "model.safetensors.index.json",
                    "{\"weight_map\": {\"a\": \"" FIRST "\", \"\\u0061\": \"" FIRST "\"}}");
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "duplicate tensor a");
    fake_write_text(&f, "model.safetensors.index.json", "{}");
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "weight_map: absent");
    fake_close(&f);
}

static void without_an_index_all_shards_count_but_not_twice(void **state)
{
    (void)state;
    fake_model f;
    tr_checkpoint *c = NULL;
    tr_error err = {0};

    json_decref(write_shards(&f));
    fake_write_tensors(&f, "consolidated.00.safetensors", 0, 3); /* a second copy, not wanted */
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_OK);
    assert_int_equal(tr_checkpoint_count(c), f.count);
    tr_checkpoint_close(c);
    fake_write_tensors(&f, "more.safetensors", 0, 1);
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "model.embed_tokens.weight stands in two files");
    fake_write(&f); /* model.safetensors alone is the checkpoint when it is there */
    CHECK_STATUS(tr_checkpoint_open(&c, f.folder, &err), TR_OK);
    assert_int_equal(tr_checkpoint_files_count(c), 1);
    tr_checkpoint_close(c);
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_one_checkpoint),
        cmocka_unit_test(a_tensor_that_the_index_does_not_map_is_left_out),
        cmocka_unit_test(an_index_that_the_files_contradict_is_refused),
        cmocka_unit_test(a_name_that_leaves_the_folder_is_refused),
        cmocka_unit_test(an_index_of_the_wrong_kind_is_refused),
        cmocka_unit_test(without_an_index_all_shards_count_but_not_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
