#include "actors/packing.h"

#include "core/model/map.h"
#include "core/model/model.h"

tr_status tr_pack_streamed(const tr_kernels *kernels, tr_matrix *out, void *memory,
                           const tr_weight *w, tr_error *err)
{
    uint32_t band = w->row_size < TR_LOAD_WINDOW ? (uint32_t)(TR_LOAD_WINDOW / w->row_size) : 1;
    tr_status status = TR_OK;

    for (uint32_t first = 0; first < w->rows && status == TR_OK; first += band) {
        uint32_t count = w->rows - first < band ? w->rows - first : band;
        tr_weight rows = tr_weight_slice(w, first, count, 0, w->cols);

        status = tr_weight_need(&rows, err);
        if (status == TR_OK)
            status = kernels->pack_rows(out, memory, w, first, count, err);
        tr_weight_release(&rows);
    }
    if (status == TR_OK && !tr_map_is_whole(w->data))
        status = tr_fail(err, TR_E_INVALID, "a part of its file could not be read");
    return status;
}

tr_status tr_pack_explain(const tr_model *model, const char *name, const tr_weight *w,
                          tr_status status, const char *why, tr_error *err)
{
    if (status == TR_E_PEER || status == TR_E_CANCELED) /* the bytes did not come */
        return tr_fail(err, status, "%s: %s", name, why);
    tr_status found = tr_model_check_files(model, err);

    if (found == TR_OK)
        found = tr_model_check_part(model, w, err);
    if (found == TR_OK)
        tr_fail(err, status, "%s: %s (%s %u x %u): %s", tr_path_base(tr_model_path(model)), name,
                tr_format_name(w->format), w->rows, w->cols, why);
    return status;
}
