/* test_selection.c - which rows of sparse attention need a list.
 *
 * Goal: exactly those with more complete blocks than may be chosen, wherever a segment begins.
 * Method: every first position and length in a small range. What is chosen is tested with the
 * kernels (tests/kernels/test_select.c) and against a reference (tests/golden). */
#include "actors/gqa_index.h"
#include "tests/check.h"

static void a_row_sees_everything_while_all_its_blocks_may_be_chosen(void **state)
{
    (void)state;
    for (uint32_t block = 1; block <= 16; block *= 2)
        for (uint32_t top = 1; top <= 3; top++) {
            tr_index_spec spec = {.kind = TR_INDEX_BLOCK, .block = block, .top = top};
            for (uint32_t first = 0; first < 80; first++)
                for (uint32_t rows = 0; rows < 40; rows++) {
                    uint32_t dense = 0;
                    while (dense < rows && (first + dense + 1) / block <= top)
                        dense++;
                    assert_int_equal(tr_selection_dense_rows(&spec, first, rows), dense);
                }
        }
}

static void the_layer_keeps_keys_of_blocks_and_raw_keys_of_one(void **state)
{
    (void)state;
    tr_index_spec spec = {.kind = TR_INDEX_BLOCK, .head_dim = 24, .block = 4, .top = 2};

    assert_int_equal(tr_selection_keys_size(&spec), TR_KV_PAGE_TOKENS / 4 * 24 * sizeof(float));
    assert_int_equal(tr_gqa_index_state_size(&spec), 4 * 24 * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_sees_everything_while_all_its_blocks_may_be_chosen),
        cmocka_unit_test(the_layer_keeps_keys_of_blocks_and_raw_keys_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
