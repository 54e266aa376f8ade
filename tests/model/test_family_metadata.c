/* test_family_metadata.c - metadata of GGUF files that a family cannot compute is refused by name.
 *
 * Method: a golden model (argument: the folder of them) in its GGUF form, with one value of its
 * metadata overwritten, or a key renamed. To add a family: rows. */
#include "core/model/model.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *models_folder;

typedef struct {
    const char *model, *key;
    const char *rename; /* of the same length; NULL: value is written */
    uint32_t value;     /* of u32, i32 or, as bits, f32 */
    const char *named;  /* in the sentence; NULL: opens */
} patch;

static const patch patches[] = {
    {"llama-b-gguf", "llama.rope.freq_base", NULL, 0x461c4000u, NULL}, /* 10000 */
    {"llama-b-gguf", "llama.rope.freq_base", NULL, 0, "llama.rope.freq_base: found 0"},
    {"llama-b-gguf", "llama.rope.dimension_count", NULL, 16, "rope_freqs.weight: shape [16]"},
    {"llama-b-gguf", "llama.vocab_size", "llama.vocab_sizE", 0, "llama.vocab_sizE: a setting"},
    {"qwen3_moe-a-gguf", "qwen3moe.expert_used_count", NULL, 9, "chosen experts is 9"},
    {"qwen3_moe-a-gguf", "qwen3moe.expert_count", NULL, 7, "expected [7, 64]"},
    {"qwen3_moe-a-gguf", "qwen3moe.attention.value_length", NULL, 8, "found 8, expected 16"},
    {"qwen3_moe-a-gguf", "qwen3moe.rope.freq_base", "qwen3moe.nextn_layers__", 0,
     "qwen3moe.nextn_layers__: a setting"},
    {"solar_open2-a-gguf", "solar-open2.feed_forward_length", NULL, 0, NULL},
    {"solar_open2-a-gguf", "solar-open2.rope.dimension_count", NULL, 16,
     "rope.dimension_count: above 0"},
    {"solar_open2-a-gguf", "solar-open2.expert_gating_func", NULL, 1,
     "expert_gating_func: found 1, expected 2"},
    {"solar_open2-a-gguf", "solar-open2.leading_dense_block_count", NULL, 1,
     "blk.0.ffn_gate.weight: absent"},
    {"solar_open2-a-gguf", "solar-open2.expert_shared_count", NULL, 0,
     "ffn_down_shexp.weight: has no place"},
    {"solar_open2-a-gguf", "solar-open2.kda.head_dim", NULL, 8, "expected [32, 64]"},
    {"solar_open2-a-gguf", "solar-open2.ssm.conv_kernel", NULL, 3, "expected [64, 3]"},
    {"kimi_linear-a-gguf", "kimi-linear.expert_gating_func", NULL, 3, "found 3, expected 1..2"},
    {"kimi_linear-a-gguf", "kimi-linear.attention.key_length", NULL, 41, "found 41, expected 40"},
    {"kimi_linear-a-gguf", "kimi-linear.attention.key_length_mla",
     "kimi-linear.attention.key_length_old", 0, "attention.key_length_mla: absent"},
    {"kimi_linear-a-gguf", "kimi-linear.attention.value_length_mla", NULL, 8, "expected [64, 32]"},
    {"kimi_linear-a-gguf", "kimi-linear.attention.kv_lora_rank", NULL, 31, "found 40, expected 39"},
    {"kimi_linear-a-gguf", "kimi-linear.leading_dense_block_count", NULL, 0,
     "blk.0.ffn_gate_inp.weight: absent"},
};

static uint8_t *file_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");

    if (file == NULL)
        fail_msg("%s cannot be read", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

/* Where the key stands: after its length, before type and value. */
static uint8_t *find_key(uint8_t *data, size_t size, const char *key)
{
    size_t length = strlen(key);
    uint8_t *at = data;

    while ((at = memmem(at, (size_t)(data + size - at), key, length)) != NULL) {
        uint64_t before;
        memcpy(&before, at - sizeof(before), sizeof(before));
        if (before == length)
            return at;
        at++;
    }
    fail_msg("no key %s", key);
    return NULL;
}

static tr_status open_patched(const patch *p, tr_error *err)
{
    char from[512], path[] = "/tmp/troupe-metadata-XXXXXX";
    tr_model *m = NULL;
    size_t size;

    snprintf(from, sizeof(from), "%s/%s/model.gguf", models_folder, p->model);
    uint8_t *data = file_read(from, &size);
    uint8_t *key = find_key(data, size, p->key);
    if (p->rename != NULL) {
        assert_int_equal(strlen(p->rename), strlen(p->key));
        memcpy(key, p->rename, strlen(p->key));
    } else {
        memcpy(key + strlen(p->key) + sizeof(uint32_t), &p->value, sizeof(p->value));
    }
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    close(fd);
    free(data);

    char named[sizeof(path) + 8];
    snprintf(named, sizeof(named), "%s.gguf", path);
    assert_int_equal(rename(path, named), 0);
    tr_status status = tr_model_open(&m, named, err);
    tr_model_close(m);
    unlink(named);
    return status;
}

static void metadata_is_followed_or_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(patches) / sizeof(patches[0]); i++) {
        const patch *p = &patches[i];
        tr_error err = {0};

        tr_status status = open_patched(p, &err);
        bool right = p->named == NULL
                         ? status == TR_OK
                         : status == TR_E_INVALID && strstr(err.text, p->named) != NULL;
        if (!right)
            fail_msg("%s with %s %s %u: \"%s\"", p->model, p->key,
                     p->rename != NULL ? p->rename : "=", p->value, err.text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_is_followed_or_refused_by_name),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_family_metadata MODELS\n");
        return 2;
    }
    models_folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
