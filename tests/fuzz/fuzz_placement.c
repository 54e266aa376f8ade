/* fuzz_placement.c - the placement file, and the plan of what it says for a small model. */
#include "core/placement.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void fill_shape(tr_plan_shape *shape)
{
    *shape = (tr_plan_shape){.layers_count = 8, .vocab_size = 4096, .vocab_granule = 64};
    for (uint32_t layer = 0; layer < shape->layers_count; layer++) {
        shape->attention_terms[layer] = layer % 2 == 0 ? 2 : 4;
        shape->experts[layer] = layer == 0 ? 0 : 16;
        shape->slices[layer] = 2;
    }
}

/* What was accepted must print as something that is accepted. */
static void print_and_read_again(const tr_placement *placement)
{
    char *text = NULL;
    size_t size = 0;
    tr_placement again;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL)
        abort();
    tr_placement_print(placement, out);
    fclose(out);
    if (tr_placement_parse(&again, "again.yaml", text, size, NULL) != TR_OK ||
        again.nodes_count != placement->nodes_count)
        abort();
    tr_placement_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_placement placement;
    tr_plan_shape shape;
    tr_plan plan;
    tr_error err;

    if (tr_placement_parse(&placement, "fuzz.yaml", (const char *)data, size, &err) != TR_OK)
        return 0;
    print_and_read_again(&placement);
    fill_shape(&shape);
    if (tr_plan_make(&plan, &placement, &shape, &err) == TR_OK)
        tr_plan_free(&plan);
    tr_placement_free(&placement);
    return 0;
}
