/* fuzz_plan.c - plans as bytes from another node, for a small model and three nodes; what was
 * accepted must encode to the same bytes and bear edits. */
#include "core/plan_edit.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void fill_shape(tr_plan_shape *shape)
{
    *shape = (tr_plan_shape){
        .layers_count = 4, .vocab_size = 1000, .vocab_granule = 64, .ngram_tables = 1};
    for (uint32_t layer = 0; layer < shape->layers_count; layer++) {
        shape->attention_terms[layer] = layer % 2 == 0 ? 2 : 4;
        shape->experts[layer] = layer == 0 ? 0 : 8;
        shape->slices[layer] = 2;
    }
}

/* What was accepted can be edited in every way. */
static void edit(tr_plan *plan)
{
    tr_error err;
    tr_plan home;
    uint32_t moved;

    if (tr_plan_copy(&home, plan, &err) != TR_OK ||
        tr_plan_move(plan, "vocabulary/64-127", 2, &moved, &err) != TR_OK ||
        tr_plan_move(plan, "layers/1-2", 1, &moved, &err) != TR_OK ||
        tr_plan_replicate(plan, "expert/all.2-5", 2, &moved, &err) != TR_OK ||
        tr_plan_drain(plan, 0, 6, NULL, &moved, &err) != TR_OK ||
        tr_plan_uses(plan, 0) != (plan->batcher_node == 0) ||
        tr_plan_return(plan, &home, 0, &moved, &err) != TR_OK ||
        tr_plan_uses(plan, 0) != tr_plan_uses(&home, 0))
        abort();
    tr_plan_free(&home);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_plan_shape shape;
    tr_plan plan;
    tr_error err;
    void *bytes;
    size_t bytes_size;

    fill_shape(&shape);
    if (tr_plan_decode(&plan, data, size, &shape, 3, &err) != TR_OK)
        return 0;
    if (tr_plan_encode(&plan, &bytes, &bytes_size, &err) != TR_OK)
        abort();
    if (bytes_size != size || memcmp(bytes, data, size) != 0)
        abort();
    free(bytes);
    edit(&plan);
    tr_plan_free(&plan);
    return 0;
}
