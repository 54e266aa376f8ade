/* test_inspect.c - troupe inspect, as a person or a script runs it.
 *
 * Goal: what is printed adds up, and trouble is one sentence and the right exit code. Method: the
 * program itself on the bundled model. */
#include "tests/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/wait.h>

/* Runs troupe with these arguments; returns the exit code, *out its standard output and error. */
static int run(const char *arguments, char *out, size_t size)
{
    char command[1024];

    snprintf(command, sizeof(command), "'%s' %s 2>&1", getenv("TROUPE"), arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t used = fread(out, 1, size - 1, pipe);
    out[used] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static json_int_t bytes_of(const json_t *rows, const char *name)
{
    size_t i;
    json_t *row;

    json_array_foreach(rows, i,
                       row) if (strcmp(json_string_value(json_object_get(row, "name")), name) ==
                                0) return json_integer_value(json_object_get(row, "bytes"));
    return -1;
}

static void the_numbers_of_json_add_up(void **state)
{
    (void)state;
    static char text[65536];
    json_int_t sum = 0, node_sums[2] = {0, 0};
    size_t i;
    json_t *part, *format;

    assert_int_equal(run("inspect --json '" MODELS_DIR "/tiny-solar-nvfp4'", text, sizeof(text)),
                     0);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    const json_t *parts = json_object_get(root, "parts");
    json_array_foreach(parts, i, part)
    {
        const json_t *nodes = json_object_get(part, "node_bytes");

        sum += json_integer_value(json_object_get(part, "bytes"));
        for (size_t n = 0; n < 2; n++)
            node_sums[n] += json_integer_value(json_array_get(nodes, n));
    }
    const json_t *total = json_object_get(root, "total");
    assert_true(json_integer_value(json_object_get(total, "bytes")) == sum);
    /* The index states 26,608,992 bytes of tensors, and none is skipped. */
    assert_true(sum == 26608992);
    for (size_t n = 0; n < 2; n++)
        assert_true(json_integer_value(json_array_get(json_object_get(total, "node_bytes"), n)) ==
                    node_sums[n]);
    json_array_foreach(json_object_get(root, "formats"), i, format) sum -=
        json_integer_value(json_object_get(format, "bytes"));
    assert_true(sum == 0);
    /* 384 matrices of 256 x 256 in NVFP4: half a byte, a scale per 16, and one f32 each. */
    assert_true(bytes_of(parts, "experts") == 384 * (256 * 128 + 256 * 16 + 4));
    json_decref(root);
}

static void the_text_names_both_kinds_of_layer(void **state)
{
    (void)state;
    static char text[65536];

    assert_int_equal(run("inspect --verify '" MODELS_DIR "/tiny-solar-nvfp4'", text, sizeof(text)),
                     0);
    assert_non_null(strstr(text, "layers 0-7       2 x ([GQA 4/2 -> MoE 16/2+1] 3 x "
                                 "[KDA 4 -> MoE 16/2+1])\n"));
    assert_non_null(strstr(text, "softmax attention: 4 heads of 64, 2 key heads"));
    assert_non_null(strstr(text, "KDA: 4 heads of 64"));
    assert_non_null(strstr(text, "2 of 16 experts of 256"));
    assert_non_null(strstr(text, "skipped: nothing"));
    assert_non_null(strstr(text, "tokenizer: 4096 tokens\n"));
    assert_non_null(strstr(text, "chat template: opens\n"));
    assert_non_null(strstr(text, "verified: "));
}

static void every_tensor_is_listed_with_what_it_is_for(void **state)
{
    (void)state;
    static char text[1u << 20];
    size_t i;
    json_t *part, *tensor;
    json_int_t experts = 0, all = 0;

    assert_int_equal(
        run("inspect --tensors --json '" MODELS_DIR "/tiny-solar-nvfp4'", text, sizeof(text)), 0);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    const json_t *list = json_object_get(root, "tensor_list");
    assert_int_equal(json_array_size(list), 1311);
    assert_int_equal(json_integer_value(json_object_get(root, "tensors")), 1311);
    json_array_foreach(json_object_get(root, "parts"), i, part)
    {
        const char *name = json_string_value(json_object_get(part, "name"));
        json_int_t sum = 0;
        size_t j;

        json_array_foreach(list, j, tensor)
        {
            if (strcmp(json_string_value(json_object_get(tensor, "part")), name) == 0)
                sum += json_integer_value(json_object_get(tensor, "bytes"));
        }
        assert_true(sum == json_integer_value(json_object_get(part, "bytes")));
        all += sum;
        experts += strcmp(name, "experts") == 0 ? sum : 0;
    }
    assert_true(experts > 0);
    assert_true(all == 26608992);
    json_decref(root);

    assert_int_equal(run("inspect --tensors '" MODELS_DIR "/tiny-solar-nvfp4'", text, sizeof(text)),
                     0);
    assert_non_null(strstr(text,
                           " 32 KiB  U8       [256, 128]           NVFP4            experts   "
                           "           model.layers.0.mlp.experts.0.down_proj.weight_packed\n"));
    assert_non_null(strstr(text,
                           "  4 KiB  F8_E4M3  [256, 16]            for NVFP4        experts   "
                           "           model.layers.0.mlp.experts.0.down_proj.weight_scale\n"));
    assert_non_null(
        strstr(text, "    4 B  F32      [1]                  for NVFP4        experts"));
    assert_int_equal(run("inspect '" MODELS_DIR "/tiny-solar-nvfp4'", text, sizeof(text)), 0);
    assert_null(strstr(text, "down_proj"));
}

static void trouble_is_one_sentence_and_an_exit_code(void **state)
{
    (void)state;
    static char text[65536];

    assert_int_equal(run("inspect /nowhere/model", text, sizeof(text)), 1);
    assert_string_equal(text, "troupe: /nowhere/model: No such file or directory\n");
    assert_int_equal(run("inspect", text, sizeof(text)), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_of_json_add_up),
        cmocka_unit_test(the_text_names_both_kinds_of_layer),
        cmocka_unit_test(every_tensor_is_listed_with_what_it_is_for),
        cmocka_unit_test(trouble_is_one_sentence_and_an_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
