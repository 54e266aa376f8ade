/* model_check.c - looks at the values of an opened model's weights, and lets go of their pages. */
#include "core/model/map.h"
#include "core/model/model.h"
#include "core/model/role.h"
#include "core/model/weights.h"

/* The file whose tensor holds this byte. */
static const char *check_file(const tr_model *m, const uint8_t *at)
{
    for (uint32_t i = 0; i < tr_model_tensors_count(m); i++) {
        const tr_tensor *t = tr_model_tensor(m, i);
        if (at >= t->data && (uint64_t)(at - t->data) < t->size)
            return t->file;
    }
    return tr_path_base(tr_model_path(m));
}

tr_status tr_model_check_weight(const tr_model *m, uint32_t layer, tr_weight_role role,
                                uint32_t expert, tr_error *err)
{
    tr_weight w = tr_model_weight(m, layer, role, expert);
    char name[TR_TENSOR_NAME_SIZE];
    tr_error why;

    /* the name is looked up only when there is something to say about it */
    tr_status status = tr_weight_check(&w, "", "", &why);
    if (status == TR_OK)
        return TR_OK;
    return tr_weight_check(&w, check_file(m, w.data),
                           tr_model_weight_name(m, layer, role, expert, name, sizeof(name)), err);
}

static bool check_holds(const tr_weight *w, const uint8_t *at)
{
    return at >= w->data && (size_t)(at - w->data) < (size_t)w->rows * w->row_size;
}

tr_status tr_model_check_part(const tr_model *m, const tr_weight *part, tr_error *err)
{
    const tr_model_spec *spec = tr_model_get_spec(m);

    for (int role = 0; role < TR_WEIGHTS_COUNT; role++) {
        bool global = tr_role_is_global((tr_weight_role)role);

        for (uint32_t l = 0; l < (global ? 1 : spec->layers_count); l++) {
            if (!tr_model_has(m, l, (tr_weight_role)role))
                continue;
            uint32_t count = global ? 1 : tr_role_count(&spec->layers[l], (tr_weight_role)role);
            for (uint32_t e = 0; e < count; e++) {
                tr_weight w = tr_model_weight(m, l, (tr_weight_role)role, e);
                if (check_holds(&w, part->data))
                    return tr_model_check_weight(m, l, (tr_weight_role)role, e, err);
            }
        }
    }
    return TR_OK;
}

/* The bytes of a weight: its elements, and its scales. Returns the number of spans. */
static uint32_t check_spans(const tr_weight *w, tr_map_span spans[2])
{
    uint32_t scale_rows = w->rows;

    if (w->format == TR_FORMAT_FP8_BLOCK)
        scale_rows = (w->grid_row + w->rows + w->grid_rows - 1) / w->grid_rows;
    spans[0] = (tr_map_span){w->data, (size_t)w->rows * w->row_size};
    spans[1] = (tr_map_span){w->scales, scale_rows * w->scales_row_size};
    return w->scales != NULL ? 2 : 1;
}

tr_status tr_weight_need(const tr_weight *w, tr_error *err)
{
    tr_map_span spans[2];
    uint32_t count = check_spans(w, spans);

    return tr_map_need(spans, count, err);
}

/* Whether nothing lies between one row and the next: no column slice of a wider matrix. */
static bool check_is_dense(const tr_weight *w)
{
    uint32_t block = tr_format_block_elements(w->format);

    return w->lead == 0 && w->cols % block == 0 &&
           w->row_size == (size_t)(w->cols / block) * tr_format_block_bytes(w->format);
}

void tr_weight_release(const tr_weight *w)
{
    tr_map_span spans[2];
    uint32_t count = check_spans(w, spans);
    bool dense = check_is_dense(w);

    for (uint32_t i = 0; i < count; i++)
        if (dense)
            tr_map_forget(spans[i].at, spans[i].size);
        else /* the columns beside it are on the same pages and will be wanted next */
            tr_map_release(spans[i].at, spans[i].size);
}
