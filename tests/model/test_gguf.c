/* test_gguf.c - the GGUF reader against good and hostile files.
 *
 * Goal: a good file gives its metadata and tensors, a bad one gives a sentence. Method: the whole
 * small files of data/gguf_cases.txt, each also cut at every byte, and a file with one value of
 * each kind. */
#include "tests/check.h"

#include "core/model/gguf.h"
#include "tests/model/case_file.h"

#include <stdlib.h>

/* A small file with keys, an array and two tensors: general.architecture "test",
 * a.u 7, a.arr [-1, 2], t0 F32 [2, 3] = 1..6, t1 Q8_0 [32]. */
static const char sample_hex[] =
    "474755460300000002000000000000000300000000000000140000000000000067656e6572616c2e617263686974"
    "656374757265080000000400000000000000746573740300000000000000612e7504000000070000000500000000"
    "000000612e61727209000000050000000200000000000000ffffffff020000000200000000000000743002000000"
    "02000000000000000300000000000000000000000000000000000000020000000000000074310100000020000000"
    "00000000080000002000000000000000000000000000000000000000000000000000803f00000040000040400000"
    "80400000a0400000c04000000000000000000038000102030405060708090a0b0c0d0e0f10111213141516171819"
    "1a1b1c1d1e1f000000000000000000000000000000000000000000000000000000000000";

static tr_gguf *sample_open(uint8_t **bytes)
{
    size_t size;
    tr_gguf *g = NULL;

    case_bytes(sample_hex, bytes, &size);
    CHECK_STATUS(tr_gguf_parse(&g, "sample.gguf", *bytes, size, NULL), TR_OK);
    return g;
}

static void each_case_has_its_verdict(void **state)
{
    (void)state;
    uint32_t cases = 0;
    case_file f;

    case_file_open(&f, "gguf_cases.txt");
    while (case_file_next(&f)) {
        uint8_t *bytes;
        size_t size;
        tr_gguf *g = NULL;
        tr_error err = {0};

        case_bytes(f.column[3], &bytes, &size);
        tr_status status = tr_gguf_parse(&g, "case.gguf", bytes, size, &err);
        int expected = strcmp(f.column[1], "reject") == 0 ? -1 : 1;
        if (strcmp(f.column[1], "policy") == 0)
            expected = 0;
        if ((expected > 0 && status != TR_OK) || (expected < 0 && status == TR_OK))
            print_error("%s: %s, expected %s\n", f.column[0], err.text, f.column[1]);
        assert_true(expected <= 0 || status == TR_OK);
        assert_true(expected >= 0 || status == TR_E_INVALID);
        if (status != TR_OK)
            CHECK_ERR_NAMES(err, "case.gguf: ");
        tr_gguf_close(g);
        free(bytes);
        cases++;
    }
    assert_true(cases > 40);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t size;

    case_bytes(sample_hex, &bytes, &size);
    for (size_t cut = 0; cut < size - 30; cut++) { /* the last 30 bytes are padding */
        tr_gguf *g = NULL;
        tr_error err = {0};
        uint8_t *copy = malloc(cut + 1); /* exact, so that a sanitizer sees any overrun */

        assert_non_null(copy);
        memcpy(copy, bytes, cut);
        CHECK_STATUS(tr_gguf_parse(&g, "cut.gguf", copy, cut, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "cut.gguf: ");
        free(copy);
    }
    free(bytes);
}

static void values_come_back_as_they_were_written(void **state)
{
    (void)state;
    uint8_t *bytes;
    const char *text;
    size_t size;
    uint64_t number = 0;
    tr_gguf_array array;
    tr_gguf *g = sample_open(&bytes);

    CHECK_STATUS(tr_gguf_text(g, "general.architecture", &text, &size, NULL), TR_OK);
    assert_int_equal(size, 4);
    assert_memory_equal(text, "test", 4);
    CHECK_STATUS(tr_gguf_u64(g, "a.u", &number, NULL), TR_OK);
    assert_int_equal(number, 7);
    CHECK_STATUS(tr_gguf_get_array(g, "a.arr", TR_GGUF_I32, &array, NULL), TR_OK);
    assert_int_equal(array.count, 2);
    assert_int_equal(tr_gguf_array_i64(&array, 0), -1);
    assert_int_equal(tr_gguf_array_i64(&array, 1), 2);
    assert_true(tr_gguf_has(g, "a.u"));
    assert_false(tr_gguf_has(g, "a"));
    assert_int_equal(tr_gguf_keys_count(g), 3);
    tr_gguf_close(g);
    free(bytes);
}

static void a_wrong_question_names_key_and_kind(void **state)
{
    (void)state;
    uint8_t *bytes;
    const char *text;
    size_t size;
    double number;
    tr_gguf_array array;
    tr_error err = {0};
    tr_gguf *g = sample_open(&bytes);

    CHECK_STATUS(tr_gguf_text(g, "a.u", &text, &size, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "sample.gguf: key a.u: u32, expected a string");
    CHECK_STATUS(tr_gguf_f64(g, "a.missing", &number, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "key a.missing: absent");
    CHECK_STATUS(tr_gguf_get_array(g, "a.arr", TR_GGUF_TEXT, &array, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "an array of i32, expected an array of string");
    tr_gguf_close(g);
    free(bytes);
}

static void tensors_lie_where_the_file_says(void **state)
{
    (void)state;
    uint8_t *bytes;
    tr_gguf *g = sample_open(&bytes);

    assert_int_equal(tr_gguf_tensors_count(g), 2);
    const tr_gguf_tensor *t0 = tr_gguf_tensor_at(g, 0);
    assert_string_equal(t0->name, "t0");
    assert_int_equal(t0->type, TR_GGUF_TYPE_F32);
    assert_int_equal(t0->dims_count, 2);
    assert_int_equal(t0->dims[0], 2);
    assert_int_equal(t0->dims[1], 3);
    assert_int_equal(t0->size, 24);
    assert_ptr_equal(t0->data, bytes + 224);
    const tr_gguf_tensor *t1 = tr_gguf_tensor_at(g, 1);
    assert_string_equal(t1->name, "t1");
    assert_int_equal(t1->size, 34);
    assert_ptr_equal(t1->data, bytes + 256);
    tr_gguf_close(g);
    free(bytes);
}

static void a_path_that_is_no_file_is_named(void **state)
{
    (void)state;
    tr_gguf *g = NULL;
    tr_error err = {0};

    CHECK_STATUS(tr_gguf_open(&g, "/nowhere/model.gguf", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "/nowhere/model.gguf: ");
    CHECK_STATUS(tr_gguf_open(&g, "/", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "not a regular file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_case_has_its_verdict),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(values_come_back_as_they_were_written),
        cmocka_unit_test(a_wrong_question_names_key_and_kind),
        cmocka_unit_test(tensors_lie_where_the_file_says),
        cmocka_unit_test(a_path_that_is_no_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
