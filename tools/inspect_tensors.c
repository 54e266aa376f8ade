/* inspect_tensors.c - every tensor of a model and what it is for.
 *
 * A weight says where its elements and scales lie, so a tensor's part follows from the bytes. What
 * no weight points to but opening has read (a scale for a whole matrix, constants of an n-gram
 * table) belongs to its relatives by name: a.b.c to those that begin with "a.b.", else with "a.".
 */
#include "tools/inspect_tensors.h"

#include "core/budget.h"
#include "core/model/role.h"
#include "core/model/skipped.h"
#include "tools/inspect_places.h"
#include "tools/inspect_report.h"
#include "tools/json_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    TENSOR_ALONE,     /* read at open for the model as a whole */
    TENSOR_WEIGHT,    /* elements of a weight */
    TENSOR_COMPANION, /* what the elements of a weight need */
    TENSOR_SKIPPED
} tensor_kind;

typedef struct {
    tensor_kind kind;
    tr_format format;     /* of the weight */
    tr_inspect_part part; /* likewise */
    const char *reason;   /* SKIPPED; static storage */
} tensor_row;

struct tr_inspect_tensors {
    const tr_model *model; /* borrows */
    tensor_row *rows;      /* owns, [count], in the order of the names */
    uint32_t count;
};

typedef struct {
    tr_inspect_tensors *list;
    tr_inspect_places places;
    uint32_t skipped; /* where the next skipped tensor is looked for */
} tensors_walk;

static void tensors_mark(tensors_walk *walk, const uint8_t *data, tensor_kind kind,
                         tr_format format, tr_inspect_part part)
{
    uint32_t index = data != NULL ? tr_inspect_place_of(&walk->places, data) : TR_INSPECT_NOWHERE;

    if (index != TR_INSPECT_NOWHERE && walk->list->rows[index].kind == TENSOR_ALONE)
        walk->list->rows[index] = (tensor_row){kind, format, part, NULL};
}

static void tensors_mark_role(tensors_walk *walk, tr_weight_role role)
{
    const tr_model *model = walk->list->model;
    const tr_model_spec *spec = tr_model_get_spec(model);
    uint32_t layers = tr_role_is_global(role) ? 1 : spec->layers_count;

    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t count = tr_role_is_global(role) ? 1 : tr_role_count(&spec->layers[layer], role);

        for (uint32_t e = 0; e < count && tr_model_has(model, layer, role); e++) {
            tr_weight w = tr_model_weight(model, layer, role, e);
            tr_inspect_part part = tr_inspect_part_of(model, layer, role);

            tensors_mark(walk, w.data, TENSOR_WEIGHT, w.format, part);
            tensors_mark(walk, w.scales, TENSOR_COMPANION, w.format, part);
        }
    }
}

static void tensors_mark_skipped(void *ctx, const tr_tensor *tensor)
{
    tensors_walk *walk = ctx;
    const tr_model *model = walk->list->model;

    while (tr_model_tensor(model, walk->skipped) != tensor) /* in the same order */
        walk->skipped++;
    walk->list->rows[walk->skipped] = (tensor_row){
        .kind = TENSOR_SKIPPED,
        .reason = tr_skip_reason(tensor->name, tr_model_get_spec(model)->layers_count)};
}

/* The length of a name up to and with the dot before its last `parts` parts; 0: there is none. */
static size_t tensors_stem(const char *name, uint32_t parts)
{
    size_t length = strlen(name);

    for (uint32_t i = 0; i < parts; i++) {
        while (length > 0 && name[length - 1] != '.')
            length--;
        if (i + 1 < parts && length > 0)
            length--;
    }
    return length;
}

/* A weight whose name begins with the first `stem` bytes of that of index; names are sorted, so
 * they stand side by side. */
static const tensor_row *tensors_relative(const tr_inspect_tensors *list, uint32_t index,
                                          size_t stem)
{
    const char *name = tr_model_tensor(list->model, index)->name;

    for (int step = -1; step <= 1; step += 2)
        for (uint32_t i = index + (uint32_t)step;
             i < list->count && strncmp(tr_model_tensor(list->model, i)->name, name, stem) == 0;
             i += (uint32_t)step)
            if (list->rows[i].kind == TENSOR_WEIGHT)
                return &list->rows[i];
    return NULL;
}

#define TENSORS_STEMS 2 /* parts of a name that a companion may have beside its weight's */

static void tensors_adopt(tr_inspect_tensors *list, uint32_t index)
{
    for (uint32_t parts = 1; parts <= TENSORS_STEMS; parts++) {
        size_t stem = tensors_stem(tr_model_tensor(list->model, index)->name, parts);
        const tensor_row *relative = stem > 0 ? tensors_relative(list, index, stem) : NULL;

        if (relative != NULL) {
            list->rows[index] =
                (tensor_row){TENSOR_COMPANION, relative->format, relative->part, NULL};
            return;
        }
    }
}

tr_status tr_inspect_tensors_make(tr_inspect_tensors **out, const tr_model *model, tr_error *err)
{
    tr_inspect_tensors *list = calloc(1, sizeof(*list));
    tensors_walk walk = {.list = list};
    uint32_t count = tr_model_tensors_count(model);

    if (list != NULL)
        list->rows = calloc(count + 1, sizeof(*list->rows));
    if (list == NULL || list->rows == NULL) {
        free(list);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a list of %u tensors",
                       tr_model_path(model), count);
    }
    list->model = model;
    list->count = count;
    tr_status status = tr_inspect_places_make(&walk.places, model, err);
    if (status == TR_OK) {
        for (int role = 0; role < TR_WEIGHTS_COUNT; role++)
            if (role != TR_W_HEAD || !tr_model_is_tied(model))
                tensors_mark_role(&walk, (tr_weight_role)role);
        tr_model_skipped(model, tensors_mark_skipped, &walk);
        for (uint32_t i = 0; i < count; i++)
            if (list->rows[i].kind == TENSOR_ALONE)
                tensors_adopt(list, i);
    }
    tr_inspect_places_free(&walk.places);
    if (status != TR_OK)
        tr_inspect_tensors_free(list);
    else
        *out = list;
    return status;
}

void tr_inspect_tensors_free(tr_inspect_tensors *list)
{
    if (list == NULL)
        return;
    free(list->rows);
    free(list);
}

static const char *tensors_part(const tensor_row *row)
{
    switch (row->kind) {
    case TENSOR_SKIPPED:
        return "skipped";
    case TENSOR_ALONE:
        return "settings";
    case TENSOR_WEIGHT:
    case TENSOR_COMPANION:
        break;
    }
    return tr_inspect_part_name(row->part);
}

/* "NVFP4"; "for NVFP4": scales and the like. */
static const char *tensors_format(char *text, size_t size, const tensor_row *row)
{
    bool of_weight = row->kind == TENSOR_WEIGHT || row->kind == TENSOR_COMPANION;

    snprintf(text, size, "%s%s", row->kind == TENSOR_COMPANION ? "for " : "",
             of_weight ? tr_format_name(row->format) : "-");
    return text;
}

void tr_inspect_tensors_print(const tr_inspect_tensors *list)
{
    char bytes[32], shape[128], format[48];

    printf("\n  %10s  %-8s %-20s %-16s %-20s %s\n", "bytes", "stored", "shape", "format", "part",
           "tensor");
    for (uint32_t i = 0; i < list->count; i++) {
        const tensor_row *row = &list->rows[i];
        const tr_tensor *t = tr_model_tensor(list->model, i);

        printf("  %10s  %-8s %-20s %-16s %-20s %s", tr_bytes_text(bytes, sizeof(bytes), t->size),
               t->type, tr_tensor_shape_text(shape, sizeof(shape), t->dims, t->dims_count),
               tensors_format(format, sizeof(format), row), tensors_part(row), t->name);
        if (row->kind == TENSOR_SKIPPED)
            printf(" (%s)", row->reason);
        putchar('\n');
    }
}

static json_t *tensors_row_json(const tr_tensor *t, const tensor_row *row)
{
    json_t *shape = json_array();
    char format[48];

    for (uint32_t i = 0; i < t->dims_count; i++)
        (void)json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    return json_pack("{s:o, s:s, s:o, s:I, s:s*, s:s, s:s*}", "name",
                     tr_json_out_text(t->name, strlen(t->name)), "stored", t->type, "shape", shape,
                     "bytes", (json_int_t)t->size, "format",
                     row->kind == TENSOR_WEIGHT || row->kind == TENSOR_COMPANION
                         ? tensors_format(format, sizeof(format), row)
                         : NULL,
                     "part", tensors_part(row), "reason", row->reason);
}

json_t *tr_inspect_tensors_json(const tr_inspect_tensors *list)
{
    json_t *array = json_array();

    for (uint32_t i = 0; array != NULL && i < list->count; i++)
        if (json_array_append_new(
                array, tensors_row_json(tr_model_tensor(list->model, i), &list->rows[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    return array;
}
