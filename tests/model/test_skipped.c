/* test_skipped.c - the reasons for leaving tensors out. */
#include "tests/check.h"

#include "core/model/skipped.h"

static void each_reason_is_found_by_the_name(void **state)
{
    static const struct {
        const char *name, *reason;
    } rows[] = {
        {"model.visual.blocks.47.norm1.weight", "vision tower"},
        {"model.vision_tower.layers.99.weight", "vision tower"}, /* whose layers these are */
        {"mtp.layers.0.mlp.gate.weight", "prediction layers"},
        {"model.layers.45.eh_proj.weight", "prediction layers"},
        {"model.layers.45.mlp.experts.0.up_proj.input_scale", "prediction layers"},
        {"blk.45.attn_q.weight", "prediction layers"},
        {"model.layers.44.mlp.experts.0.up_proj.input_scale", "scales of activations"},
        {"model.layers.4.self_attn.k_proj.k_scale", "quantised cache"},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", "rotary frequencies"},
        {"rope_freqs.weight", "rotary frequencies"},
        {"lm_head.weight", "output matrix"},
        {"output.weight", "output matrix"},
        {"model.layers.x.weight", "not needed"},
        {"", "not needed"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *reason = tr_skip_reason(rows[i].name, 45);
        if (strstr(reason, rows[i].reason) == NULL)
            fail_msg("%s: \"%s\", expected \"%s\"", rows[i].name, reason, rows[i].reason);
        assert_ptr_equal(reason, tr_skip_reason(rows[i].name, 45));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_reason_is_found_by_the_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
