/* test_ngram.c - the constants and rows of an n-gram table.
 *
 * The expected numbers were read from published files of Qwen3.8-Flash-Next, or follow from the
 * same formulas with the sizes of a small model. */
#include "tests/check.h"

#include "core/model/ngram.h"
#include "core/model/weights_ngram.h"
#include "tests/model/fake_model.h"

static tr_ngram_spec flash_next(void)
{
    return (tr_ngram_spec){.size = 3,
                           .heads = 8,
                           .embed_dim = 2560,
                           .conv_taps = 4,
                           .parts = 128,
                           .base = 20000000,
                           .divisor = 128,
                           .seed = 1234,
                           .separator = 248044};
}

static tr_ngram_spec small(void)
{
    return (tr_ngram_spec){.size = 3,
                           .heads = 4,
                           .embed_dim = 64,
                           .conv_taps = 4,
                           .parts = 4,
                           .base = 101,
                           .divisor = 8,
                           .seed = 1234,
                           .separator = 300};
}

static void constants_are_those_of_the_published_model(void **state)
{
    static const uint64_t multipliers[] = {23703573157769, 20109073645365, 8052911324071};
    static const uint32_t moduli[] = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                                      20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                                      20000153, 20000159, 20000161, 20000171};
    tr_ngram_spec n = flash_next();
    tr_error err = {0};
    (void)state;

    CHECK_STATUS(tr_ngram_derive(&n, 248320, "config.json", 1, &err), TR_OK);
    assert_memory_equal(n.multipliers, multipliers, sizeof(multipliers));
    assert_memory_equal(n.moduli, moduli, sizeof(moduli));
    assert_int_equal(n.offsets[0], 0);
    assert_int_equal(n.offsets[15], 300001275);
    assert_int_equal(n.rows, 320001536);
    assert_int_equal(tr_ngram_heads(&n), 16);
    assert_int_equal(tr_ngram_row_size(&n), 160);
    assert_int_equal(tr_ngram_history(&n), 9);
}

static void rows_are_those_of_the_published_vectors(void **state)
{
    static const struct {
        int32_t history[2], token; /* the token before, the one before that */
        uint32_t first, last, head8;
    } rows[] = {
        {{248044, 248044}, 9707, 16410909, 300984276, 169641436},
        {{9707, 248044}, 11, 18158303, 307699687, 175132467},
        {{11, 9707}, 1879, 6380558, 312121804, 164226950},
        {{8678, 248045}, 198, 6940383, 310947174, 163246354},
        {{248056, 248056}, 248056, 16982399, 309972988, 168080783},
        {{248044, 1879}, 9707, 16410909, 300984276, 169641436}, /* the separator hides 1879 */
    };
    tr_ngram_spec n = flash_next();
    uint32_t found[TR_NGRAM_HEADS_MAX];
    (void)state;

    CHECK_STATUS(tr_ngram_derive(&n, 248320, "config.json", 1, NULL), TR_OK);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_ngram_rows(&n, rows[i].history, rows[i].token, found);
        assert_int_equal(found[0], rows[i].first);
        assert_int_equal(found[8], rows[i].head8);
        assert_int_equal(found[15], rows[i].last);
    }
}

static void rows_of_a_small_table_follow_the_tokens(void **state)
{
    static const uint32_t first[] = {6, 176, 293, 374, 522, 533, 693, 898};
    static const uint32_t second[] = {38, 137, 279, 372, 457, 635, 694, 810};
    tr_ngram_spec n = small();
    uint32_t found[TR_NGRAM_HEADS_MAX];
    (void)state;

    CHECK_STATUS(tr_ngram_derive(&n, 320, "config.json", 1, NULL), TR_OK);
    assert_int_equal(n.rows, 928);
    tr_ngram_rows(&n, (const int32_t[]){300, 300}, 17, found);
    assert_memory_equal(found, first, sizeof(first));
    tr_ngram_rows(&n, (const int32_t[]){17, 300}, 4, found);
    assert_memory_equal(found, second, sizeof(second));
}

static void settings_that_make_no_table_are_refused_by_name(void **state)
{
    enum { COUNT = 10 };
    tr_ngram_spec bad[COUNT];
    static const char *const fields[COUNT] = {"longest n-gram", "heads",    "width", "width",
                                              "convolution",    "prime",    "parts", "parts",
                                              "separator",      "separator"};
    (void)state;

    for (int i = 0; i < COUNT; i++)
        bad[i] = small();
    bad[0].size = 5;
    bad[1].heads = 33;
    bad[2].embed_dim = 0;
    bad[3].embed_dim = 63;
    bad[4].conv_taps = 17;
    bad[5].base = UINT32_MAX;
    bad[6].parts = 0;
    bad[7].parts = 3;
    bad[8].separator = -1;
    bad[9].separator = 320;
    for (int i = 0; i < COUNT; i++) {
        tr_error err = {0};
        CHECK_STATUS(tr_ngram_derive(&bad[i], 320, "config.json", 1, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, fields[i]);
        CHECK_ERR_NAMES(err, "config.json: layer 1");
    }
}

/* -- in a checkpoint -- */

typedef struct {
    fake_model f;
    tr_checkpoint *checkpoint;
    uint8_t used[8];
    tr_weight_reader reader;
} fixture;

/* Two parts of FP8, their scale 0.75 in BF16, three integers. */
static void fixture_make(fixture *x)
{
    static const uint8_t codes[4] = {0x38, 0x3c, 0xb8, 0x01}; /* 1, 1.5, -1, 2^-9 */
    static const uint8_t scale[4] = {0x40, 0x3f, 0x40, 0x3f};

    memset(x, 0, sizeof(*x));
    fake_llama(&x->f);
    x->f.count = 0;
    memcpy(fake_add(&x->f, "t.shard_0.weight", "F8_E4M3", 2, 4, 8, 0)->fill, codes, 4);
    memcpy(fake_add(&x->f, "t.shard_1.weight", "F8_E4M3", 2, 4, 8, 0)->fill, codes, 4);
    memcpy(fake_add(&x->f, "t.weight_scale", "BF16", 1, 1, 0, 0)->fill, scale, 4);
    memcpy(fake_add(&x->f, "t.numbers", "I64", 1, 3, 0, 0)->fill, (uint8_t[4]){7, 0, 0, 0}, 4);
}

static void fixture_open(fixture *x)
{
    tr_error err = {0};

    fake_write(&x->f);
    CHECK_STATUS(tr_checkpoint_open(&x->checkpoint, x->f.folder, &err), TR_OK);
    x->reader = (tr_weight_reader){.checkpoint = x->checkpoint, .used = x->used, .values = true};
}

static void fixture_close(fixture *x)
{
    tr_checkpoint_close(x->checkpoint);
    fake_close(&x->f);
}

static void all_parts_of_a_table_have_one_scale(void **state)
{
    fixture x;
    tr_weight w;
    float values[32];
    tr_error err = {0};
    (void)state;

    fixture_make(&x);
    fixture_open(&x);
    CHECK_STATUS(
        tr_weight_read_ngram_part(&x.reader, "t.shard_1.weight", "t.weight_scale", 4, 8, &w, &err),
        TR_OK);
    assert_int_equal(w.format, TR_FORMAT_FP8);
    assert_int_equal(w.scales_format, TR_FORMAT_BF16);
    tr_weight_to_f32(values, &w);
    assert_true(values[0] == 0.75f);
    assert_true(values[1] == 1.125f);
    assert_true(values[2] == -0.75f);
    assert_true(values[31] == 0.75f / 512);
    fixture_close(&x);
}

static void wrong_tables_are_refused_by_name(void **state)
{
    static const struct {
        int which; /* 0: scale of two numbers, 1: negative scale, 2: another shape, 3: no scale */
        const char *named;
    } cases[] = {{0, "t.weight_scale"}, {1, "scale -"}, {2, "[4, 8]"}, {3, "t.shard_0.weight"}};
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture x;
        tr_weight w;
        tr_error err = {0};

        fixture_make(&x);
        if (cases[i].which == 0)
            fake_find(&x.f, "t.weight_scale")->dims[0] = 2;
        if (cases[i].which == 1)
            fake_find(&x.f, "t.weight_scale")->fill[1] = 0xbf;
        if (cases[i].which == 2)
            fake_find(&x.f, "t.shard_0.weight")->dims[0] = 8;
        if (cases[i].which == 3)
            fake_remove(&x.f, "t.weight_scale");
        fixture_open(&x);
        CHECK_STATUS(tr_weight_read_ngram_part(&x.reader, "t.shard_0.weight", "t.weight_scale", 4,
                                               8, &w, &err),
                     TR_E_INVALID);
        CHECK_ERR_NAMES(err, cases[i].named);
        fixture_close(&x);
    }
}

static void integers_of_the_hash_are_compared(void **state)
{
    /* the four bytes of the fill, twice in each number */
    const uint64_t same[3] = {0x700000007, 0x700000007, 0x700000007};
    const uint64_t other[3] = {0x700000007, 0x700000007, 8};
    fixture x;
    tr_error err = {0};
    (void)state;

    fixture_make(&x);
    fixture_open(&x);
    CHECK_STATUS(tr_weight_check_integers(&x.reader, "t.numbers", same, 3, &err), TR_OK);
    CHECK_STATUS(tr_weight_check_integers(&x.reader, "absent", same, 3, &err), TR_OK);
    CHECK_STATUS(tr_weight_check_integers(&x.reader, "t.numbers", other, 3, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "found 30064771079 at 2, expected 8");
    CHECK_STATUS(tr_weight_check_integers(&x.reader, "t.numbers", same, 2, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "t.numbers");
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_are_those_of_the_published_model),
        cmocka_unit_test(rows_are_those_of_the_published_vectors),
        cmocka_unit_test(rows_of_a_small_table_follow_the_tokens),
        cmocka_unit_test(settings_that_make_no_table_are_refused_by_name),
        cmocka_unit_test(all_parts_of_a_table_have_one_scale),
        cmocka_unit_test(wrong_tables_are_refused_by_name),
        cmocka_unit_test(integers_of_the_hash_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
