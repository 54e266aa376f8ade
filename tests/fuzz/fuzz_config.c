/* fuzz_config.c - config.json through every family, and the settings that stand beside it: what is
 * accepted must be a spec that the rest of the program can rely on.
 *
 * Input: config.json, hf_quant_config.json, generation_config.json and tokenizer_config.json, with
 * a byte 0xFF (which JSON does not contain) between them. All but the first may be missing or
 * empty, which means that the folder has no such file. */
#include "core/model/chat_template.h"
#include "core/model/family.h"
#include "core/model/generation.h"
#include "core/model/json.h"
#include "core/model/quantization.h"
#include "core/model/role.h"
#include "core/model/tokenizer_impl.h"
#include "tests/fuzz/walk_shapes.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define VOCABULARY 1000

/* The next of the files, or NULL where it is absent or refused. Moves *data behind it. */
static json_t *take_file(const uint8_t **data, size_t *size, const char *name)
{
    const uint8_t *end = *size == 0 ? NULL : memchr(*data, 0xFF, *size);
    size_t taken = end == NULL ? *size : (size_t)(end - *data);
    json_t *root = NULL;
    tr_error err;

    if (taken > 0 && tr_json_parse(&root, name, (const char *)*data, taken, &err) != TR_OK)
        root = NULL;
    taken += end != NULL;
    *data += taken;
    *size -= taken;
    return root;
}

static void read_families(json_t *root)
{
    tr_error err;

    for (const tr_family *const *f = tr_families; *f != NULL; f++) {
        tr_draft draft = {0};
        tr_config config;

        if ((*f)->hf.read == NULL)
            continue;
        tr_config_init(&config, "config.json", root);
        tr_status status = (*f)->hf.read(&draft, &config, &err);
        tr_config_teardown(&config);
        draft.spec.layers = draft.layers;
        if (status == TR_OK)
            status = tr_draft_derive(&draft, "config.json", &err);
        if (status == TR_OK && tr_spec_check(&draft.spec, "config.json", &err) == TR_OK)
            walk_shapes(&draft.spec);
        tr_draft_teardown(&draft);
    }
}

/* How to sample: accepted tokens must be tokens, and numbers must be numbers. */
static void read_generation(const json_t *beside, const json_t *config)
{
    tr_model_spec spec = {.vocab_size = VOCABULARY};
    tr_error err;

    if (tr_generation_read_json(&spec, beside, config, &err) != TR_OK)
        return;
    if (spec.bos_token < -1 || spec.bos_token >= VOCABULARY ||
        spec.eos_tokens_count > sizeof(spec.eos_tokens) / sizeof(spec.eos_tokens[0]))
        abort();
    for (uint32_t i = 0; i < spec.eos_tokens_count; i++)
        if (spec.eos_tokens[i] < 0 || spec.eos_tokens[i] >= VOCABULARY)
            abort();
    if (!(spec.default_temperature >= 0) || !(spec.default_top_p >= 0 && spec.default_top_p <= 1))
        abort();
}

/* A tiktoken.model that has a token for each byte and no other. */
static size_t write_byte_tokens(char *out, size_t out_size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t used = 0;

    for (unsigned byte = 0; byte < 256; byte++)
        used += (size_t)snprintf(out + used, out_size - used, "%c%c== %u\n", digits[byte >> 2],
                                 digits[(byte & 3) << 4], byte);
    return used;
}

/* The two that read tokenizer_config.json: the chat template, and a tokenizer of which it has the
 * special tokens. */
static void read_tokenizer_config(json_t *config)
{
    static char bytes[256 * 16];
    static size_t bytes_size;
    tr_chat_template *chat;
    tr_tokenizer *tokenizer;
    tr_error err;

    if (bytes_size == 0)
        bytes_size = write_byte_tokens(bytes, sizeof(bytes));
    if (tr_chat_template_from_files(&chat, "folder", NULL, 0, config, &err) == TR_OK)
        tr_chat_template_close(chat);
    if (tr_tokenizer_from_tiktoken(&tokenizer, bytes, bytes_size, config, &err) == TR_OK)
        tr_tokenizer_close(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *config = take_file(&data, &size, "config.json");
    json_t *quantization = take_file(&data, &size, "hf_quant_config.json");
    json_t *generation = take_file(&data, &size, "generation_config.json");
    json_t *tokenizer = take_file(&data, &size, "tokenizer_config.json");
    tr_error err;

    if (config != NULL) {
        read_families(config);
        (void)tr_quantization_check_json(config, quantization, &err);
        read_generation(generation, config);
    }
    if (tokenizer != NULL)
        read_tokenizer_config(tokenizer);
    json_decref(config);
    json_decref(quantization);
    json_decref(generation);
    json_decref(tokenizer);
    return 0;
}
