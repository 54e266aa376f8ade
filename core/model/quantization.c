#include "core/model/quantization.h"

#include "core/model/json.h"

#include <stdio.h>
#include <string.h>

static const char quantization_file[] = "hf_quant_config.json"; /* of ModelOpt */

static const char *const quantization_methods[] = {
    "modelopt", "modelopt_fp4", "modelopt_mixed", "fp8", "compressed-tensors", "mxfp4", NULL};

/* Of ModelOpt. NVFP4_AWQ is not here: it scales activations column by column. */
static const char *const quantization_algos[] = {
    "NVFP4", "W4A16_NVFP4",    "W4A8_NVFP4_FP8",  "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO",
    "MXFP4", "W4A8_MXFP4_FP8", "MIXED_PRECISION", NULL};

/* Of compressed-tensors. */
static const char *const quantization_formats[] = {"dense",
                                                   "float-quantized",
                                                   "naive-quantized",
                                                   "nvfp4-pack-quantized",
                                                   "mxfp4-pack-quantized",
                                                   "mixed-precision",
                                                   NULL};

static const char *const quantization_types[] = {"float", NULL};
static const char *const quantization_codes[] = {"e4m3", "float8_e4m3fn", NULL};

/* One setting must be absent, null or one of the list. place names it in errors. */
static tr_status quantization_known(const json_t *object, const char *key, const char *place,
                                    const char *file, const char *const *list, tr_error *err)
{
    const json_t *value = json_object_get(object, key);
    char known[160] = "";

    if (value == NULL || json_is_null(value))
        return TR_OK;
    for (const char *const *one = list; *one != NULL; one++) {
        size_t used = strlen(known);

        if (json_is_string(value) && strcmp(json_string_value(value), *one) == 0)
            return TR_OK;
        snprintf(known + used, sizeof(known) - used, "%s%s", used > 0 ? ", " : "", *one);
    }
    return tr_fail(err, TR_E_INVALID, "%s: %s.%s: found %.60s, expected one of %s", file, place,
                   key, json_is_string(value) ? json_string_value(value) : tr_json_kind(value),
                   known);
}

/* One group of compressed-tensors: how its weights are stored. */
static tr_status quantization_check_group(const json_t *group, const char *place, const char *file,
                                          tr_error *err)
{
    const json_t *weights = json_object_get(group, "weights");
    char inner[160];

    tr_status status = quantization_known(group, "format", place, file, quantization_formats, err);
    if (status != TR_OK || !json_is_object(weights))
        return status;
    snprintf(inner, sizeof(inner), "%.140s.weights", place);
    return quantization_known(weights, "type", inner, file, quantization_types, err);
}

static tr_status quantization_check_object(const json_t *q, const char *place, const char *file,
                                           tr_error *err)
{
    const json_t *groups = json_object_get(q, "config_groups");
    const json_t *layers = json_object_get(q, "quantized_layers");
    const json_t *block = json_object_get(q, "weight_block_size");
    const char *name;
    json_t *value;
    char inner[160];

    tr_status status =
        quantization_known(q, "quant_method", place, file, quantization_methods, err);
    if (status == TR_OK)
        status = quantization_known(q, "quant_algo", place, file, quantization_algos, err);
    if (status == TR_OK)
        status = quantization_known(q, "format", place, file, quantization_formats, err);
    if (status == TR_OK)
        status = quantization_known(q, "fmt", place, file, quantization_codes, err);
    if (status == TR_OK && json_object_size(json_object_get(q, "transform_config")) > 0)
        status = tr_fail(err, TR_E_INVALID,
                         "%s: %s.transform_config: found rotations of activations, expected none",
                         file, place);
    if (status == TR_OK && json_is_array(block) &&
        (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 128 ||
         json_integer_value(json_array_get(block, 1)) != 128))
        status = tr_fail(err, TR_E_INVALID,
                         "%s: %s.weight_block_size: found other blocks, expected 128 x 128", file,
                         place);
    json_object_foreach((json_t *)groups, name, value)
    {
        snprintf(inner, sizeof(inner), "%s.config_groups.%.60s", place, name);
        if (status == TR_OK)
            status = quantization_check_group(value, inner, file, err);
    }
    json_object_foreach((json_t *)layers, name, value)
    {
        snprintf(inner, sizeof(inner), "%s.quantized_layers.%.80s", place, name);
        if (status == TR_OK)
            status = quantization_known(value, "quant_algo", inner, file, quantization_algos, err);
    }
    return status;
}

tr_status tr_quantization_check_json(const json_t *config, const json_t *beside, tr_error *err)
{
    const json_t *q = json_object_get(config, "quantization_config");

    tr_status status = quantization_check_object(q, "quantization_config", "config.json", err);
    if (status == TR_OK)
        status = quantization_check_object(json_object_get(beside, "quantization"), "quantization",
                                           quantization_file, err);
    return status;
}

tr_status tr_quantization_check(const json_t *config, const char *folder, tr_error *err)
{
    json_t *beside;

    tr_status status = tr_json_read_beside(&beside, folder, quantization_file, err);
    if (status != TR_OK)
        return status;
    status = tr_quantization_check_json(config, beside, err);
    json_decref(beside);
    return status;
}
