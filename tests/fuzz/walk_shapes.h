/* walk_shapes.h - what holds for every spec that was accepted. */
#ifndef TR_TESTS_FUZZ_WALK_SHAPES_H
#define TR_TESTS_FUZZ_WALK_SHAPES_H

#include "core/model/role.h"

#include <stdlib.h>

/* Every shape that such a spec asks for can be computed and is not empty. */
static inline void walk_shapes(const tr_model_spec *spec)
{
    uint32_t rows, cols;

    for (uint32_t i = 0; i < spec->layers_count; i++) {
        const tr_layer_spec *l = &spec->layers[i];

        if (tr_layer_attention_terms(l) == 0 ||
            (l->channel.always_size > 0 && l->channel.always_size % l->channel.slices != 0))
            abort();
        for (int role = 0; role < TR_WEIGHTS_COUNT; role++)
            if (tr_role_shape(spec, l, (tr_weight_role)role, &rows, &cols) &&
                (rows == 0 || cols == 0))
                abort();
    }
}

#endif
