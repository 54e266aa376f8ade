/* test_weight_store.c - blocks are shared by who names the same rectangle, and end with the last
 * reference. Method: a matrix in this file's memory plays the checkpoint. */
#include "actors/weight_store.h"
#include "tests/check.h"

#include <stdlib.h>

#define ROWS 64
#define COLS 128

typedef struct {
    float values[ROWS * COLS];
    const tr_kernels *kernels;
    tr_weight_store *store;
} fixture;

static void open_store(fixture *x)
{
    tr_error err = {0};
    for (uint32_t i = 0; i < ROWS * COLS; i++)
        x->values[i] = (float)i;
    x->kernels = tr_kernels_best();
    CHECK_STATUS(tr_weight_store_open(&x->store, x->kernels, &err), TR_OK);
}

static tr_weight whole(const fixture *x)
{
    return (tr_weight){.format = TR_FORMAT_F32,
                       .rows = ROWS,
                       .cols = COLS,
                       .data = (const uint8_t *)x->values,
                       .row_size = COLS * sizeof(float),
                       .scale = 1};
}

static tr_weight_block *add(fixture *x, const tr_weight *key, tr_matrix *out)
{
    tr_weight_block *block = NULL;
    tr_error err = {0};
    CHECK_STATUS(tr_weight_store_add(x->store, key, false, key, out, &block, &err), TR_OK);
    return block;
}

static void a_rectangle_is_one_block_until_the_last_reference_is_given(void **state)
{
    static fixture x;
    tr_matrix first, second;
    (void)state;
    open_store(&x);
    tr_weight key = whole(&x);
    assert_null(tr_weight_store_find(x.store, &key, false, &first));
    tr_weight_block *block = add(&x, &key, &first);
    uint64_t bytes = tr_weight_store_bytes(x.store);
    assert_int_equal(bytes, x.kernels->pack_size(TR_FORMAT_F32, ROWS, COLS));
    assert_ptr_equal(tr_weight_store_find(x.store, &key, false, &second), block);
    assert_ptr_equal(second.data, first.data);
    assert_ptr_equal(tr_weight_store_find(x.store, &key, false, NULL), block); /* no reference */
    assert_int_equal(tr_weight_store_bytes(x.store), bytes);
    tr_weight_store_give(x.store, block);
    assert_ptr_equal(tr_weight_store_find(x.store, &key, false, NULL), block);
    tr_weight_store_give(x.store, block);
    assert_null(tr_weight_store_find(x.store, &key, false, NULL));
    assert_int_equal(tr_weight_store_bytes(x.store), 0);
    tr_weight_store_close(x.store);
}

static void a_matrix_and_its_transpose_are_two_blocks(void **state)
{
    static fixture x;
    static float turned[ROWS * COLS];
    tr_matrix m;
    tr_weight_block *block = NULL;
    tr_error err = {0};
    (void)state;
    open_store(&x);
    tr_weight key = whole(&x);
    tr_weight elements = key;
    elements.rows = COLS;
    elements.cols = ROWS;
    elements.data = (const uint8_t *)turned;
    elements.row_size = ROWS * sizeof(float);
    tr_weight_block *plain = add(&x, &key, &m);
    assert_null(tr_weight_store_find(x.store, &key, true, NULL));
    CHECK_STATUS(tr_weight_store_add(x.store, &key, true, &elements, &m, &block, &err), TR_OK);
    assert_int_equal(m.rows, COLS);
    assert_ptr_equal(tr_weight_store_find(x.store, &key, true, NULL), block);
    assert_ptr_equal(tr_weight_store_find(x.store, &key, false, NULL), plain);
    tr_weight_store_give(x.store, plain);
    tr_weight_store_give(x.store, block);
    assert_int_equal(tr_weight_store_bytes(x.store), 0);
    tr_weight_store_close(x.store);
}

/* Slices of a block format share their first byte: `lead` and the rectangle's place tell them
 * apart. */
static void rectangles_that_differ_in_one_thing_are_distinct(void **state)
{
    static fixture x;
    tr_matrix m;
    (void)state;
    open_store(&x);
    tr_weight key = whole(&x);
    tr_weight_block *block = add(&x, &key, &m);
    tr_weight others[9];
    for (size_t i = 0; i < 9; i++)
        others[i] = key;
    others[0].rows--;
    others[1].cols -= 16;
    others[2].data += others[2].row_size;
    others[3].row_size *= 2;
    others[4].lead = 16;
    others[5].grid_row = 1;
    others[6].grid_col = 1;
    others[7].scales = key.data;
    others[8].format = TR_FORMAT_BF16;
    for (size_t i = 0; i < 9; i++)
        assert_null(tr_weight_store_find(x.store, &others[i], false, NULL));
    tr_weight_store_give(x.store, block);
    tr_weight_store_close(x.store);
}

/* More than the first table has buckets, given back in another order than they came. */
static void many_blocks_are_all_found_and_all_freed(void **state)
{
    enum { COUNT = 1500 };
    static fixture x;
    static tr_weight keys[COUNT];
    static tr_weight_block *blocks[COUNT];
    tr_matrix m;
    (void)state;
    open_store(&x);
    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = whole(&x);
        keys[i].rows = 1;
        keys[i].cols = 16;
        keys[i].data += 4 * (size_t)i;
        blocks[i] = add(&x, &keys[i], &m);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        assert_ptr_equal(tr_weight_store_find(x.store, &keys[i], false, NULL), blocks[i]);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t which = (uint32_t)(i * 7u % COUNT); /* 7 and COUNT have no common divisor */
        tr_weight_store_give(x.store, blocks[which]);
        assert_null(tr_weight_store_find(x.store, &keys[which], false, NULL));
    }
    assert_int_equal(tr_weight_store_bytes(x.store), 0);
    tr_weight_store_close(x.store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rectangle_is_one_block_until_the_last_reference_is_given),
        cmocka_unit_test(a_matrix_and_its_transpose_are_two_blocks),
        cmocka_unit_test(rectangles_that_differ_in_one_thing_are_distinct),
        cmocka_unit_test(many_blocks_are_all_found_and_all_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
