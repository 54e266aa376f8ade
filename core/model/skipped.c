#include "core/model/skipped.h"

#include "core/log.h"
#include "core/model/map.h"
#include "core/model/model.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char reason_draft[] = "prediction layers (MTP): tokens are not drafted";
static const char reason_vision[] = "vision tower: images are not served";

/* The first pattern (fnmatch) that fits. */
static const struct {
    const char *pattern, *reason;
} skip_rows[] = {
    {"*visual.*", reason_vision},
    {"*vision*", reason_vision},
    {"mtp.*", reason_draft},
    {"*.mtp.*", reason_draft},
    {"*.nextn.*", reason_draft},
    {"*.input_scale", "scales of activations: products take f32 activations"},
    {"*.input_global_scale", "scales of activations: products take f32 activations"},
    {"*.output_scale", "scales of activations: products take f32 activations"},
    {"*.prob_output_scale", "scales of activations: products take f32 activations"},
    {"*.k_scale", "scales of a quantised cache: ours is not"},
    {"*.v_scale", "scales of a quantised cache: ours is not"},
    {"*.q_scale", "scales of a quantised cache: ours is not"},
    {"*inv_freq", "rotary frequencies: computed from the settings"},
    {"rope_freqs.weight", "rotary frequencies: computed from the settings"},
    {"*lm_head.weight", "output matrix: the embedding is used, as the settings say"},
    {"output.weight", "output matrix: the embedding is used, as the settings say"},
};

/* Whether the name has a layer number that the model does not have: "layers.45.", "blk.45.". */
static bool skip_is_beyond(const char *name, uint32_t layers_count)
{
    static const char *const marks[] = {"layers.", "blk."};

    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        const char *at = strstr(name, marks[i]);
        if (at == NULL)
            continue;
        at += strlen(marks[i]);
        if (*at >= '0' && *at <= '9' && strtoul(at, NULL, 10) >= layers_count)
            return true;
    }
    return false;
}

const char *tr_skip_reason(const char *name, uint32_t layers_count)
{
    const char *reason = "not needed by this family";

    for (size_t i = sizeof(skip_rows) / sizeof(skip_rows[0]); i > 0; i--) /* the first row wins */
        if (fnmatch(skip_rows[i - 1].pattern, name, 0) == 0)
            reason = skip_rows[i - 1].reason;
    /* Scales of a layer that is skipped go with it; a vision tower counts its own layers. */
    return reason != reason_vision && skip_is_beyond(name, layers_count) ? reason_draft : reason;
}

#define SKIP_REASONS_MAX 16

typedef struct {
    uint32_t layers_count, used;
    struct {
        const char *text, *example;
        uint32_t count;
    } rows[SKIP_REASONS_MAX];
} skip_reasons;

static void skip_count(void *ctx, const tr_tensor *tensor)
{
    skip_reasons *reasons = ctx;
    const char *text = tr_skip_reason(tensor->name, reasons->layers_count);
    uint32_t r = 0;

    while (r < reasons->used && reasons->rows[r].text != text)
        r++;
    if (r == reasons->used && r < SKIP_REASONS_MAX) {
        reasons->rows[r].text = text;
        reasons->rows[r].example = tensor->name;
        reasons->used++;
    }
    if (r < reasons->used)
        reasons->rows[r].count++;
}

void tr_skip_log(const tr_model *model)
{
    skip_reasons reasons = {.layers_count = tr_model_get_spec(model)->layers_count};

    tr_model_skipped(model, skip_count, &reasons);
    for (uint32_t r = 0; r < reasons.used; r++)
        tr_log(TR_LOG_INFO, NULL, "tensors_skipped",
               "model=%s tensors=%u reason=\"%s\" example=%.120s",
               tr_path_base(tr_model_path(model)), reasons.rows[r].count, reasons.rows[r].text,
               reasons.rows[r].example);
}
