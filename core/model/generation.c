#include "core/model/generation.h"

#include "core/model/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char generation_file[] = "generation_config.json";

#define GENERATION_EOS_MAX (sizeof(((tr_model_spec *)0)->eos_tokens) / sizeof(int32_t))

static void generation_defaults(tr_model_spec *spec)
{
    spec->bos_token = -1;
    spec->eos_tokens_count = 0;
    spec->default_temperature = 1;
    spec->default_top_p = 1;
}

static tr_status generation_add_eos(tr_model_spec *spec, const char *file, const char *key,
                                    int64_t token, tr_error *err)
{
    if (token < 0 || token >= spec->vocab_size)
        return tr_fail(err, TR_E_INVALID, "%s: %s: found %" PRId64 ", expected a token in 0..%u",
                       file, key, token, spec->vocab_size - 1);
    for (uint32_t i = 0; i < spec->eos_tokens_count; i++)
        if (spec->eos_tokens[i] == token)
            return TR_OK;
    if (spec->eos_tokens_count == GENERATION_EOS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %s: more than %zu tokens", file, key,
                       GENERATION_EOS_MAX);
    spec->eos_tokens[spec->eos_tokens_count++] = (int32_t)token;
    return TR_OK;
}

/* eos_token_id: a token or a list of them. Replaces what was known before. */
static tr_status generation_read_eos(tr_model_spec *spec, const char *file, const json_t *value,
                                     tr_error *err)
{
    static const char key[] = "eos_token_id";
    size_t count = json_is_array(value) ? json_array_size(value) : 1;

    spec->eos_tokens_count = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *token = json_is_array(value) ? json_array_get(value, i) : value;

        if (!json_is_integer(token))
            return tr_fail(err, TR_E_INVALID, "%s: %s: %s, expected token ids", file, key,
                           tr_json_kind(token));
        tr_status status = generation_add_eos(spec, file, key, json_integer_value(token), err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

static tr_status generation_read_number(float *out, const char *file, const json_t *object,
                                        const char *key, double max, tr_error *err)
{
    const json_t *value = json_object_get(object, key);
    double number = json_number_value(value);

    if (value == NULL || json_is_null(value))
        return TR_OK;
    if (!json_is_number(value) || !(number >= 0 && number <= max))
        return tr_fail(err, TR_E_INVALID, "%s: %s: found %s %g, expected a number in 0..%g", file,
                       key, tr_json_kind(value), number, max);
    *out = (float)number;
    return TR_OK;
}

static tr_status generation_read_object(tr_model_spec *spec, const char *file, const json_t *object,
                                        tr_error *err)
{
    const json_t *bos = json_object_get(object, "bos_token_id");
    const json_t *eos = json_object_get(object, "eos_token_id");
    tr_status status = TR_OK;

    if (bos != NULL && !json_is_null(bos)) {
        json_int_t token = json_integer_value(bos);

        if (!json_is_integer(bos) || token < 0 || token >= spec->vocab_size)
            return tr_fail(err, TR_E_INVALID,
                           "%s: bos_token_id: found %s %" JSON_INTEGER_FORMAT
                           ", expected a token in 0..%u",
                           file, tr_json_kind(bos), token, spec->vocab_size - 1);
        spec->bos_token = (int32_t)token;
    }
    if (eos != NULL && !json_is_null(eos))
        status = generation_read_eos(spec, file, eos, err);
    if (status == TR_OK)
        status = generation_read_number(&spec->default_temperature, file, object, "temperature",
                                        100, err);
    if (status == TR_OK)
        status = generation_read_number(&spec->default_top_p, file, object, "top_p", 1, err);
    return status;
}

tr_status tr_generation_read_json(tr_model_spec *spec, const json_t *beside, const json_t *config,
                                  tr_error *err)
{
    generation_defaults(spec);
    tr_status status = generation_read_object(spec, "config.json", config, err);
    if (status == TR_OK)
        status = generation_read_object(spec, generation_file, beside, err);
    return status;
}

tr_status tr_generation_read(tr_model_spec *spec, const char *folder, const json_t *config,
                             tr_error *err)
{
    json_t *beside;

    tr_status status = tr_json_read_beside(&beside, folder, generation_file, err);
    if (status != TR_OK)
        return status;
    status = tr_generation_read_json(spec, beside, config, err);
    json_decref(beside);
    return status;
}

tr_status tr_generation_read_gguf(tr_model_spec *spec, const tr_gguf *g, tr_error *err)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char bos_key[] = "tokenizer.ggml.bos_token_id";
    static const char temperature_key[] = "general.sampling.temp";
    static const char top_p_key[] = "general.sampling.top_p";
    uint64_t token = 0;
    double number = 0;

    generation_defaults(spec);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (!tr_gguf_has(g, ends[i]))
            continue;
        tr_status status = tr_gguf_u64(g, ends[i], &token, err);
        if (status == TR_OK)
            status = generation_add_eos(spec, tr_gguf_name(g), ends[i], (int64_t)token, err);
        if (status != TR_OK)
            return status;
    }
    if (tr_gguf_has(g, bos_key)) {
        tr_status status = tr_gguf_u64(g, bos_key, &token, err);
        if (status != TR_OK)
            return status;
        if (token >= spec->vocab_size)
            return tr_fail(err, TR_E_INVALID, "%s: key %s: found %" PRIu64 ", expected 0..%u",
                           tr_gguf_name(g), bos_key, token, spec->vocab_size - 1);
        spec->bos_token = (int32_t)token;
    }
    for (int i = 0; i < 2; i++) {
        const char *key = i == 0 ? temperature_key : top_p_key;
        double max = i == 0 ? 100 : 1;

        if (!tr_gguf_has(g, key))
            continue;
        tr_status status = tr_gguf_f64(g, key, &number, err);
        if (status != TR_OK)
            return status;
        if (!(number >= 0 && number <= max))
            return tr_fail(err, TR_E_INVALID, "%s: key %s: found %g, expected 0..%g",
                           tr_gguf_name(g), key, number, max);
        *(i == 0 ? &spec->default_temperature : &spec->default_top_p) = (float)number;
    }
    return TR_OK;
}
