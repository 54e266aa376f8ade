/* test_inspect_words.c - the schedule of a model, folded.
 *
 * Goal: what repeats is written once, and every layer is in exactly one span. Method: specs made by
 * hand from a text, one letter per layer. */
#include "tests/check.h"

#include "tools/inspect_words.h"

#include <stdlib.h>

static tr_layer_spec layers[TR_LAYERS_MAX];
static tr_inspect_span spans[TR_LAYERS_MAX];

/* A: full attention, experts; a: the same, dense; K, k: likewise with KDA; L: KDA of other rank. */
static uint32_t fold(const char *schedule)
{
    tr_model_spec spec = {.layers_count = (uint32_t)strlen(schedule), .layers = layers};

    for (size_t i = 0; schedule[i] != '\0'; i++) {
        bool full = strchr("Aa", schedule[i]) != NULL;
        layers[i] = (tr_layer_spec){.mixer = full ? TR_MIXER_GQA : TR_MIXER_KDA};
        layers[i].gqa = (tr_gqa_spec){.heads = 8, .kv_heads = 2, .head_dim = 64};
        layers[i].kda = (tr_kda_spec){
            .heads = 4, .head_dim = 64, .conv_taps = 4, .rank = schedule[i] == 'L' ? 32 : 64};
        layers[i].channel = (tr_channel_spec){.always_size = 512, .slices = 8};
        if (strchr("AKL", schedule[i]) != NULL) {
            layers[i].channel.experts = 16;
            layers[i].channel.top_k = 2;
        }
    }
    uint32_t count = tr_inspect_fold(spans, &spec);
    assert_true(count > 0);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(spans[i].first, i == 0 ? 0 : spans[i - 1].last + 1);
    assert_int_equal(spans[count - 1].last, spec.layers_count - 1);
    return count;
}

static void what_repeats_is_written_once(void **state)
{
    static const struct {
        const char *schedule;
        uint32_t count;
        const char *texts[4];
    } rows[] = {
        {"A", 1, {"[GQA 8/2 -> MoE 16/2+1]"}},
        {"AAAA", 1, {"4 x [GQA 8/2 -> MoE 16/2+1]"}},
        {"AKKKAKKK", 1, {"2 x ([GQA 8/2 -> MoE 16/2+1] 3 x [KDA 4 -> MoE 16/2+1])"}},
        {"kkkAKKKAKKKAK",
         4,
         {"3 x [KDA 4 -> dense 512]", "2 x ([GQA 8/2 -> MoE 16/2+1] 3 x [KDA 4 -> MoE 16/2+1])",
          "[GQA 8/2 -> MoE 16/2+1]", "[KDA 4 -> MoE 16/2+1]"}},
        {"akA", 3, {"[GQA 8/2 -> dense 512]", "[KDA 4 -> dense 512]", "[GQA 8/2 -> MoE 16/2+1]"}},
        {"KLKL", 1, {"2 x ([KDA 4 -> MoE 16/2+1] [KDA 4 (2) -> MoE 16/2+1])"}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(fold(rows[i].schedule), rows[i].count);
        for (uint32_t k = 0; k < rows[i].count; k++)
            assert_string_equal(spans[k].text, rows[i].texts[k]);
    }
}

static void a_schedule_without_order_is_cut_and_not_overrun(void **state)
{
    char schedule[TR_LAYERS_MAX + 1];

    (void)state;
    srand(7);
    for (int round = 0; round < 20; round++) {
        size_t length = 1 + (size_t)rand() % TR_LAYERS_MAX;
        for (size_t i = 0; i < length; i++)
            schedule[i] = "AaKkL"[rand() % 5];
        schedule[length] = '\0';
        fold(schedule);
    }
    for (size_t i = 0; i < TR_LAYERS_MAX;
         i++) /* two halves that are the same, with nothing in them */
        schedule[i] = "AKkLa"[(i % 128) * (i % 128) % 5];
    schedule[TR_LAYERS_MAX] = '\0';
    fold(schedule);
    for (size_t i = 0; i < TR_LAYERS_MAX; i++)
        assert_true(strlen(spans[i].text) < sizeof(spans[i].text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_repeats_is_written_once),
        cmocka_unit_test(a_schedule_without_order_is_cut_and_not_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
