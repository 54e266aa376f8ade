/* test_budget.c - memory tables: sums, limits, the printed form, and cutting one block into parts.
 */
#include "tests/check.h"

#include "core/budget.h"

#include <stdlib.h>

#define GIB (1ull << 30)

static void parts_of_one_name_add_up_in_one_row(void **state)
{
    (void)state;
    tr_budget budget;

    tr_budget_init(&budget, "spark1", 0);
    tr_budget_add(&budget, "expert weights", "", 100);
    tr_budget_add(&budget, "kv pages", "limits.context", 7);
    tr_budget_add(&budget, "expert weights", "", 11);
    assert_int_equal(budget.rows_count, 2);
    assert_int_equal(budget.rows[0].bytes, 111);
    assert_int_equal(tr_budget_total(&budget), 118);
}

static void a_sum_beyond_64_bits_saturates_and_is_refused(void **state)
{
    (void)state;
    tr_budget budget;
    tr_error err = {0};

    tr_budget_init(&budget, "spark1", UINT64_MAX - 1);
    tr_budget_add(&budget, "a", "", UINT64_MAX - 5);
    tr_budget_add(&budget, "a", "", 10);
    tr_budget_add(&budget, "b", "", 10);
    assert_true(tr_budget_total(&budget) == UINT64_MAX);
    CHECK_STATUS(tr_budget_check(&budget, &err), TR_E_NOMEM);
}

static void a_sum_at_the_limit_fits_and_one_byte_more_does_not(void **state)
{
    (void)state;
    tr_budget budget;
    tr_error err = {0};

    tr_budget_init(&budget, "spark2", 2 * GIB);
    tr_budget_add(&budget, "kv pages", "limits.cache_tokens", GIB / 2);
    tr_budget_add(&budget, "expert weights", "", 3 * GIB / 2);
    CHECK_STATUS(tr_budget_check(&budget, &err), TR_OK);
    tr_budget_add(&budget, "states", "limits.sequences", 1);
    CHECK_STATUS(tr_budget_check(&budget, &err), TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "spark2");
    CHECK_ERR_NAMES(err, "limit is 2 GiB");
    CHECK_ERR_NAMES(err, "(1 B too much)");
    CHECK_ERR_NAMES(err, "expert weights, 1.5 GiB");
}

static void no_limit_admits_everything(void **state)
{
    (void)state;
    tr_budget budget;

    tr_budget_init(&budget, "spark1", 0);
    tr_budget_add(&budget, "expert weights", "", 900 * GIB);
    CHECK_STATUS(tr_budget_check(&budget, NULL), TR_OK);
}

static void the_table_starts_with_the_largest_part_and_says_what_to_change(void **state)
{
    (void)state;
    tr_budget budget;
    char *text = NULL;
    size_t size = 0;

    tr_budget_init(&budget, "spark1", GIB);
    tr_budget_add(&budget, "kv pages", "limits.context", GIB / 4);
    tr_budget_add(&budget, "expert weights", "", GIB);
    FILE *out = open_memstream(&text, &size);
    tr_budget_print(&budget, out);
    fclose(out);

    const char *weights = strstr(text, "expert weights");
    const char *pages = strstr(text, "kv pages");
    assert_non_null(weights);
    assert_non_null(pages);
    assert_true(weights < pages);
    assert_non_null(strstr(text, "smaller with limits.context"));
    assert_non_null(strstr(text, "1.2 GiB")); /* the sum */
    assert_non_null(strstr(text, "too much by"));
    assert_null(strstr(text, "1 GiB   "));
    free(text);
}

static void the_table_says_where_a_limit_comes_from(void **state)
{
    (void)state;
    tr_budget budget;
    char *text = NULL;
    size_t size = 0;

    tr_budget_init(&budget, "spark1", GIB);
    snprintf(budget.limit_why, sizeof(budget.limit_why), "90 %% of what was free");
    FILE *out = open_memstream(&text, &size);
    tr_budget_print(&budget, out);
    fclose(out);
    assert_non_null(strstr(text, "1 GiB   90 % of what was free\n"));
    free(text);
}

static void sizes_are_written_with_the_unit_that_people_use(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } rows[] = {
        {0, "0 B"},
        {1, "1 B"},
        {1023, "1023 B"},
        {1024, "1 KiB"},
        {1536, "1.5 KiB"},
        {512 * 1024, "512 KiB"},
        {(1ull << 20) - 1, "1.0 MiB"}, /* never "1024.0 KiB" */
        {15247278080, "14.2 GiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    char text[32];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_string_equal(tr_bytes_text(text, sizeof(text), rows[i].bytes), rows[i].text);
}

static void text_that_does_not_fit_is_cut(void **state)
{
    (void)state;
    char text[4];

    assert_string_equal(tr_bytes_text(text, sizeof(text), 512 * 1024), "512");
}

static void counting_and_cutting_agree(void **state)
{
    (void)state;
    tr_layout count = {0};
    _Alignas(64) static char block[512];
    tr_layout cut = {.base = block};

    assert_null(tr_layout_take(&count, 10, 1));
    assert_null(tr_layout_take(&count, 100, 64));
    assert_null(tr_layout_take(&count, 0, 8));
    assert_int_equal(count.used, 168);

    assert_ptr_equal(tr_layout_take(&cut, 10, 1), block);
    assert_ptr_equal(tr_layout_take(&cut, 100, 64), block + 64);
    assert_ptr_equal(tr_layout_take(&cut, 0, 8), block + 168);
    assert_int_equal(cut.used, count.used);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_one_name_add_up_in_one_row),
        cmocka_unit_test(a_sum_beyond_64_bits_saturates_and_is_refused),
        cmocka_unit_test(a_sum_at_the_limit_fits_and_one_byte_more_does_not),
        cmocka_unit_test(no_limit_admits_everything),
        cmocka_unit_test(the_table_starts_with_the_largest_part_and_says_what_to_change),
        cmocka_unit_test(the_table_says_where_a_limit_comes_from),
        cmocka_unit_test(sizes_are_written_with_the_unit_that_people_use),
        cmocka_unit_test(text_that_does_not_fit_is_cut),
        cmocka_unit_test(counting_and_cutting_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
