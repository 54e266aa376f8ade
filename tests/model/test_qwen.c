/* test_qwen.c - the hybrid families of Qwen.
 *
 * Goal: the same text model alone and within a model that also sees is the same model; what is not
 * text is skipped; settings that we cannot compute are named. Method: small fakes that differ from
 * a right one in a single place. The arithmetic is tested in tests/golden. */
#include "tests/check.h"

#include "core/model/model.h"
#include "tests/model/fake_model.h"

static tr_model *open_right(const char *path)
{
    tr_model *m = NULL;
    tr_error err = {0};

    if (tr_model_open(&m, path, &err) != TR_OK)
        print_error("%s\n", err.text);
    assert_non_null(m);
    return m;
}

static void count_skipped(void *ctx, const tr_tensor *tensor)
{
    (void)tensor;
    ++*(int *)ctx;
}

static void check_spec(const tr_model *m)
{
    const tr_model_spec *s = tr_model_get_spec(m);
    const tr_gdn_spec *d = &s->layers[0].gdn;
    const tr_gqa_spec *g = &s->layers[1].gqa;

    assert_string_equal(s->architecture, "qwen3_5_moe");
    assert_true(s->norm_offset == 1);
    assert_int_equal(s->eos_tokens[0], 2);
    assert_int_equal(s->layers[0].mixer, TR_MIXER_GDN);
    assert_int_equal(tr_layer_attention_terms(&s->layers[0]), 2);
    assert_int_equal(d->value_heads, 4);
    assert_int_equal(d->gate, TR_GATE_SILU);
    assert_int_equal(s->layers[1].mixer, TR_MIXER_GQA);
    assert_true(g->gate && g->gate_in_q && g->qk_norm);
    assert_int_equal(g->rope_dims, 4); /* a quarter when the settings do not say */
    assert_int_equal(s->layers[1].channel.score, TR_SCORE_SOFTMAX);
    assert_true(s->layers[1].channel.always_scale);
    assert_int_equal(tr_model_weight(m, 0, TR_W_QKV, 0).rows, 128);
    assert_int_equal(tr_model_weight(m, 1, TR_W_Q, 0).rows, 128);
    assert_int_equal(tr_model_weight(m, 0, TR_W_O, 0).cols, 64);
}

static void a_text_model_alone_or_within_another_is_the_same(void **state)
{
    (void)state;
    for (int within = 0; within < 2; within++) {
        fake_model f;
        int skipped = 0;

        fake_qwen(&f);
        if (within)
            fake_wrap(&f);
        fake_write(&f);
        tr_model *m = open_right(f.folder);
        check_spec(m);
        tr_model_skipped(m, count_skipped, &skipped);
        assert_int_equal(skipped, within ? 2 : 0);
        tr_model_close(m);
        fake_close(&f);
    }
}

typedef struct {
    const char *what, *key, *json, *named;
} bad_setting;

static void check_refused(fake_model *f, const bad_setting *row)
{
    tr_model *m = NULL;
    tr_error err = {0};

    fake_write(f);
    tr_status status = tr_model_open(&m, f->folder, &err);
    if (status == TR_OK || strstr(err.text, row->named) == NULL)
        print_error("%s: \"%s\"\n", row->what, err.text);
    CHECK_STATUS(status, TR_E_INVALID);
    CHECK_ERR_NAMES(err, row->named);
    fake_close(f);
}

static void a_bad_setting_is_named(void **state)
{
    (void)state;
    static const bad_setting rows[] = {
        {"heads", "linear_num_value_heads", "3",
         "key heads of the value heads: 2 does not divide 3"},
        {"keys", "linear_key_head_dim", "512", "delta-rule key size is 512, expected 1..256"},
        {"gate", "output_gate_type", "\"tanh\"", "output_gate_type: found \"tanh\""},
        {"activation", "hidden_act", "\"gelu\"", "hidden_act: found \"gelu\""},
        {"dense layers", "mlp_only_layers", "[0]", "mlp_only_layers: 1 entries, expected none"},
        {"some layers", "decoder_sparse_step", "2", "decoder_sparse_step: found 2, expected 1..1"},
        {"types", "layer_types", "[\"linear_attention\"]", "layer_types: 1 entries, expected 2"},
        {"type", "layer_types", "[\"linear_attention\", \"mamba\"]",
         "layer_types: found mamba at 1, expected full_attention or linear_attention"},
        {"sum", "norm_topk_prob", "false", "norm_topk_prob: found false"},
        {"plain attention", "attn_output_gate", "false", "attn_output_gate: found false"},
        {"long context", "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}",
         "rope_scaling.rope_type: found \"yarn\""},
        {"unknown", "use_magic", "true", "config.json: use_magic: a setting"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_model f;

        fake_qwen(&f);
        fake_set(&f, rows[i].key, rows[i].json);
        check_refused(&f, &rows[i]);
    }
}

static void a_bad_setting_around_the_text_model_is_named(void **state)
{
    (void)state;
    static const bad_setting rows[] = {
        {"unknown", "use_magic", "true", "config.json: use_magic: a setting"},
        {"tied or not", "tie_word_embeddings", "true", "tie_word_embeddings: found true"},
        {"no object", "text_config", "[]", "text_config: "},
        {"inside", "text_config", "{\"vocab_size\": 0}", "text_config.vocab_size: found 0"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_model f;

        fake_qwen(&f);
        fake_wrap(&f);
        fake_set(&f, rows[i].key, rows[i].json);
        check_refused(&f, &rows[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_model_alone_or_within_another_is_the_same),
        cmocka_unit_test(a_bad_setting_is_named),
        cmocka_unit_test(a_bad_setting_around_the_text_model_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
