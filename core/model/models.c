/* models.c - the families that Troupe can open. To add one: core/model/README.md. */
#include "core/model/glm5_next.h"
#include "core/model/kimi_linear.h"
#include "core/model/llama.h"
#include "core/model/qwen3_5_moe.h"
#include "core/model/qwen3_moe.h"
#include "core/model/qwen4_exp.h"
#include "core/model/solar_open.h"
#include "core/model/solar_open2.h"

#include <stddef.h>

const tr_family *const tr_families[] = {
    &tr_family_glm5_next,
    &tr_family_kimi_linear,
    &tr_family_llama,
    &tr_family_qwen3_5_moe,
    &tr_family_qwen3_moe,
    &tr_family_qwen4_exp,
    &tr_family_solar_open,
    &tr_family_solar_open2,
    NULL,
};
