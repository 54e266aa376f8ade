#include "actors/hidden.h"

#include <string.h>

/* How many outputs from the first on are neighbouring positions of one request. */
static uint32_t hidden_stretch(const tr_output *outputs, uint32_t count)
{
    uint32_t n = 1;
    while (n < count && (outputs[n].flags & TR_OUTPUT_HIDDEN) &&
           outputs[n].request == outputs[0].request && outputs[n].client == outputs[0].client &&
           outputs[n].position == outputs[0].position + n)
        n++;
    return n;
}

tr_status tr_hidden_send(const tr_env *env, uint64_t step, const tr_output *outputs,
                         uint32_t outputs_count, uint32_t layer, const float *rows, uint32_t width,
                         bool packed, uint32_t size_max)
{
    uint32_t n, most = (size_max - (uint32_t)sizeof(tr_hidden_rows)) / (width * 4);
    assert(most > 0);

    for (uint32_t i = 0; i < outputs_count; i += n) {
        const tr_output *o = &outputs[i];
        n = 1;
        if (!(o->flags & TR_OUTPUT_HIDDEN))
            continue;
        n = hidden_stretch(o, outputs_count - i < most ? outputs_count - i : most);
        size_t size = sizeof(tr_hidden_rows) + (size_t)n * width * sizeof(float);
        tr_buf *buf = env->take(env->ctx, (uint32_t)size);
        if (buf == NULL)
            return TR_E_NOMEM;
        tr_hidden_rows *head = (void *)buf->data;
        *head = (tr_hidden_rows){.request = o->request,
                                 .position = o->position,
                                 .rows_count = n,
                                 .layer = layer,
                                 .width = width};
        float *out = (void *)(head + 1);
        for (uint32_t j = 0; j < n; j++) {
            size_t row = packed ? i + j : outputs[i + j].row;
            memcpy(out + (size_t)j * width, rows + row * width, width * sizeof(float));
        }
        /* A client that is gone does not miss the rows. */
        (void)env->send(env->ctx, o->client, TR_MSG_HIDDEN_ROWS, step, 0, buf);
    }
    return TR_OK;
}
