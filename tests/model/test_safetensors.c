/* test_safetensors.c - the safetensors reader against good and hostile files.
 *
 * Goal: exactly the files that the format allows are accepted, whatever their bytes. Method: the
 * whole small files of data/safetensors_cases.txt, one cut at every byte, headers that ask for too
 * much. */
#include "tests/check.h"

#include "core/model/safetensors.h"
#include "tests/model/case_file.h"

#include <stdlib.h>

/* a F32 [2] = {1, -2.5}, b U8 [3] = {1, 2, 255}. */
static const char sample_hex[] =
    "70000000000000007b2261223a7b226474797065223a22463332222c227368617065223a5b325d2c22646174615f"
    "6f666673657473223a5b302c385d7d2c2262223a7b226474797065223a225538222c227368617065223a5b335d2c"
    "22646174615f6f666673657473223a5b382c31315d7d7d20202020200000803f000020c00102ff";

static void each_case_has_its_verdict(void **state)
{
    (void)state;
    uint32_t cases = 0;
    case_file f;

    case_file_open(&f, "safetensors_cases.txt");
    while (case_file_next(&f)) {
        uint8_t *bytes;
        size_t size;
        tr_safetensors *s = NULL;
        tr_error err = {0};

        case_bytes(f.column[3], &bytes, &size);
        tr_status status = tr_safetensors_parse(&s, "case.safetensors", bytes, size, &err);
        int accept = strcmp(f.column[1], "accept") == 0;
        int reject = strcmp(f.column[1], "reject") == 0;
        if ((accept && status != TR_OK) || (reject && status == TR_OK))
            print_error("%s: \"%s\", expected %s\n", f.column[0], err.text, f.column[1]);
        assert_true(!accept || status == TR_OK);
        assert_true(!reject || status == TR_E_INVALID);
        if (status != TR_OK)
            CHECK_ERR_NAMES(err, "case.safetensors: ");
        tr_safetensors_close(s);
        free(bytes);
        cases++;
    }
    assert_true(cases > 40);
}

static void tensors_lie_where_the_header_says(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t size;
    tr_safetensors *s = NULL;

    case_bytes(sample_hex, &bytes, &size);
    CHECK_STATUS(tr_safetensors_parse(&s, "sample", bytes, size, NULL), TR_OK);
    assert_int_equal(tr_safetensors_count(s), 2);
    const tr_tensor *a = tr_safetensors_at(s, 0), *b = tr_safetensors_at(s, 1);
    assert_string_equal(a->name, "a");
    assert_string_equal(a->type, "F32");
    assert_true(a->has_format);
    assert_int_equal(a->dims_count, 1);
    assert_int_equal(a->dims[0], 2);
    assert_ptr_equal(a->data, bytes + 120);
    assert_int_equal(b->size, 3);
    assert_false(b->has_format);
    assert_ptr_equal(b->data, bytes + 128);
    tr_safetensors_close(s);
    free(bytes);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t size;

    case_bytes(sample_hex, &bytes, &size);
    for (size_t cut = 0; cut < size; cut++) {
        tr_safetensors *s = NULL;
        tr_error err = {0};
        uint8_t *copy = malloc(cut + 1);

        assert_non_null(copy);
        memcpy(copy, bytes, cut);
        CHECK_STATUS(tr_safetensors_parse(&s, "cut", copy, cut, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "cut: ");
        free(copy);
    }
    free(bytes);
}

/* A file whose header is text and which has no data. */
static tr_status parse_header(const char *text, size_t size, tr_error *err)
{
    uint64_t length = size;
    tr_safetensors *s = NULL;
    uint8_t *bytes = malloc(size + 8);

    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, text, size);
    tr_status status = tr_safetensors_parse(&s, "header", bytes, size + 8, err);
    tr_safetensors_close(s);
    free(bytes);
    return status;
}

static void a_header_that_asks_for_too_much_is_refused(void **state)
{
    (void)state;
    tr_error err = {0};
    size_t size = 8u << 20;
    char *text = malloc(size);

    assert_non_null(text);
    static const char entry[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":";
    memset(text, '[', size);
    memcpy(text, entry, strlen(entry));
    CHECK_STATUS(parse_header(text, 2000, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "nested deeper than");
    text[strlen(entry)] = '[';
    for (size_t i = strlen(entry) + 1; i + 3 <= size; i += 3)
        memcpy(text + i, "[],", 3);
    CHECK_STATUS(parse_header(text, size, &err), TR_E_INVALID); /* 2.8 M lists, and no end */
    memset(text, ',', size);
    text[0] = '{';
    CHECK_STATUS(parse_header(text, size, &err), TR_E_INVALID);
    free(text);
}

static void bad_names_and_shapes_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header, *named;
    } rows[] = {
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "name of 0 bytes"},
        {"{\"a\\u0007\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "control byte"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0,0],\"data_offsets\":[0,0]}}",
         "shape: more than 8"},
        {"{\"a\":[]}", "tensor a: a list"},
        {"{\"a\":{\"dtype\":1,\"shape\":[0],\"data_offsets\":[0,0]}}", "dtype an integer"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}, \"a\":1}",
         "tensor a: an integer, expected an object"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}, "
         "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         "duplicate tensor a"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"shape\":[0],\"data_offsets\":[0,0]}}",
         "tensor a: duplicate shape"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", "duplicate __metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", "__metadata__: a: an integer, expected a string"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", "tensor a: no data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,0]}}", "a negative integer"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,0]}}",
         "shape holds a number with a fraction"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}",
         "too big"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0,0]}}", "more than 2"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0]}}", "1 integers, expected 2"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1099511627776,1099511627776],"
         "\"data_offsets\":[0,0]}}",
         "overflows"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_error err = {0};

        CHECK_STATUS(parse_header(rows[i].header, strlen(rows[i].header), &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, rows[i].named);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_case_has_its_verdict),
        cmocka_unit_test(tensors_lie_where_the_header_says),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_header_that_asks_for_too_much_is_refused),
        cmocka_unit_test(bad_names_and_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
