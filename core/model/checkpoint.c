#include "core/model/checkpoint.h"

#include "core/log.h"
#include "core/model/map.h"
#include "core/model/names.h"
#include "core/model/safetensors.h"
#include "core/model/shard_index.h"

#include <assert.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKPOINT_SMALL 32768 /* bytes of a tensor; scales and vectors have fewer */
#define CHECKPOINT_SPANS 1024

struct tr_checkpoint {
    char path[TR_PATH_SIZE];
    tr_safetensors *files[TR_SHARDS_MAX]; /* owns, [files_count] for a directory */
    tr_gguf *ggufs[TR_SHARDS_MAX];        /* owns, [files_count] for GGUF */
    uint32_t files_count;
    bool is_gguf;
    tr_tensor *tensors; /* owns, [tensors_count], sorted by name */
    uint32_t tensors_count;
    tr_names names; /* owns; index into tensors */
};

static tr_status checkpoint_join(char *out, size_t size, const tr_checkpoint *c, const char *file,
                                 tr_error *err)
{
    if ((size_t)snprintf(out, size, "%s/%s", c->path, file) >= size)
        return tr_fail(err, TR_E_INVALID, "%s/%s: a path of more than %zu bytes", c->path, file,
                       size - 1);
    return TR_OK;
}

static tr_status checkpoint_add_file(tr_checkpoint *c, const char *file, tr_error *err)
{
    char path[TR_PATH_SIZE + 256];

    if (c->files_count == TR_SHARDS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: more than %d files of weights",
                       tr_checkpoint_name(c), TR_SHARDS_MAX);
    tr_status status = checkpoint_join(path, sizeof(path), c, file, err);
    if (status != TR_OK)
        return status;
    status = tr_safetensors_open(&c->files[c->files_count], path, err);
    if (status == TR_OK)
        c->files_count++;
    return status;
}

static int checkpoint_compare_tensors(const void *a, const void *b)
{
    const tr_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* Sorts the collected tensors and makes them findable; a name that stands there twice is refused.
 */
static tr_status checkpoint_seal(tr_checkpoint *c, tr_error *err)
{
    if (c->tensors_count > 1) /* without tensors there is no array */
        qsort(c->tensors, c->tensors_count, sizeof(*c->tensors), checkpoint_compare_tensors);
    tr_status status = tr_names_init(&c->names, c->tensors_count, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < c->tensors_count; i++)
        tr_names_add(&c->names, c->tensors[i].name, (uint32_t)strlen(c->tensors[i].name), i);
    const tr_name *twice = tr_names_seal(&c->names);
    if (twice != NULL)
        return tr_fail(err, TR_E_INVALID, "%s: tensor %.120s stands in two files, expected one",
                       tr_checkpoint_name(c), twice->name);
    return TR_OK;
}

static tr_status checkpoint_take_tensors(tr_checkpoint *c, uint64_t count, tr_error *err)
{
    c->tensors = calloc(count > 0 ? (size_t)count : 1, sizeof(*c->tensors));
    if (c->tensors == NULL || count > UINT32_MAX - 1)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %" PRIu64 " tensors",
                       tr_checkpoint_name(c), count);
    return TR_OK;
}

/* -- a directory without index: model.safetensors, or else all its safetensors files -- */

static bool checkpoint_has_suffix(const char *name, const char *suffix)
{
    size_t size = strlen(name), suffix_size = strlen(suffix);

    return size > suffix_size && strcmp(name + size - suffix_size, suffix) == 0;
}

/* consolidated*.safetensors is a second copy of the weights under other names. */
static int checkpoint_wants_file(const struct dirent *entry)
{
    return checkpoint_has_suffix(entry->d_name, ".safetensors") &&
           strncmp(entry->d_name, "consolidated", 12) != 0 && entry->d_name[0] != '.';
}

static tr_status checkpoint_open_all(tr_checkpoint *c, tr_error *err)
{
    struct dirent **entries = NULL;
    tr_status status = TR_OK;

    int count = scandir(c->path, &entries, checkpoint_wants_file, alphasort);
    if (count < 0)
        return tr_fail(err, TR_E_INVALID, "%s: the folder cannot be read", c->path);
    for (int i = 0; i < count; i++) {
        if (status == TR_OK)
            status = checkpoint_add_file(c, entries[i]->d_name, err);
        free(entries[i]);
    }
    free(entries);
    if (status == TR_OK && count == 0)
        status = tr_fail(err, TR_E_INVALID,
                         "%s: no *.safetensors file and no model.safetensors.index.json", c->path);
    return status;
}

/* Takes the tensors of all files. */
static tr_status checkpoint_take_all(tr_checkpoint *c, tr_error *err)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < c->files_count; i++)
        total += tr_safetensors_count(c->files[i]);
    tr_status status = checkpoint_take_tensors(c, total, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < c->files_count; i++)
        for (uint32_t j = 0; j < tr_safetensors_count(c->files[i]); j++)
            c->tensors[c->tensors_count++] = *tr_safetensors_at(c->files[i], j);
    return checkpoint_seal(c, err);
}

/* -- a directory with an index: the files and tensors that it names -- */

/* Keeps the tensors of file number `file` that the index assigns to it; taken[entry] is set. */
static void checkpoint_take_file(tr_checkpoint *c, const char *name, const tr_shard_index *index,
                                 uint32_t file, uint8_t *taken)
{
    const tr_safetensors *tensors = c->files[file];
    uint32_t unmapped = 0;

    for (uint32_t i = 0; i < tr_safetensors_count(tensors); i++) {
        const tr_tensor *t = tr_safetensors_at(tensors, i);
        uint32_t entry = tr_names_find(&index->tensors, t->name, strlen(t->name));

        if (entry == TR_NAME_NONE) {
            unmapped++;
        } else if (index->file_of[entry] == file) {
            c->tensors[c->tensors_count++] = *t;
            taken[entry] = 1;
        }
    }
    if (unmapped > 0)
        tr_log(TR_LOG_WARN, NULL, "tensors_unmapped", "file=%s tensors=%u index=%s",
               index->files[file], unmapped, name);
}

static tr_status checkpoint_take_mapped(tr_checkpoint *c, const char *name,
                                        const tr_shard_index *index, tr_error *err)
{
    uint32_t count = index->tensors.count;
    uint8_t *taken = calloc((size_t)count + 1, 1);

    tr_status status = checkpoint_take_tensors(c, count, err);
    if (status == TR_OK && taken == NULL)
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory for its tensors", name);
    for (uint32_t i = 0; i < index->files_count && status == TR_OK; i++)
        checkpoint_take_file(c, name, index, i, taken);
    for (uint32_t i = 0; i < count && status == TR_OK; i++) {
        const tr_name *row = &index->tensors.rows[i];

        if (taken[row->index] == 0)
            status = tr_fail(err, TR_E_INVALID,
                             "%s: tensor %.100s: absent from %.60s, where the index puts it", name,
                             row->name, index->files[index->file_of[row->index]]);
    }
    free(taken);
    return status == TR_OK ? checkpoint_seal(c, err) : status;
}

static tr_status checkpoint_open_index(tr_checkpoint *c, const char *path, tr_error *err)
{
    tr_shard_index index;

    tr_status status = tr_shard_index_read(&index, path, TR_SHARDS_MAX, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < index.files_count && status == TR_OK; i++)
        status = checkpoint_add_file(c, index.files[i], err);
    if (status == TR_OK)
        status = checkpoint_take_mapped(c, tr_path_base(path), &index, err);
    tr_shard_index_free(&index);
    return status;
}

/* -- GGUF -- */

bool tr_checkpoint_gguf_format(uint32_t type, tr_format *format)
{
    switch (type) {
#define X(id, name)                                                                                \
    case TR_GGUF_TYPE_##id:                                                                        \
        *format = TR_FORMAT_##name;                                                                \
        return true;
        X(F32, F32)
        X(F16, F16)
        X(BF16, BF16)
        X(Q8_0, Q8_0)
        X(Q4_0, Q4_0)
        X(Q4_1, Q4_1)
        X(Q5_0, Q5_0)
        X(Q5_1, Q5_1)
        X(Q2_K, Q2_K)
        X(Q3_K, Q3_K)
        X(Q4_K, Q4_K)
        X(Q5_K, Q5_K)
        X(Q6_K, Q6_K)
        X(IQ2_XXS, IQ2_XXS)
        X(IQ2_XS, IQ2_XS)
        X(IQ3_XXS, IQ3_XXS)
        X(IQ4_NL, IQ4_NL)
        X(IQ4_XS, IQ4_XS)
        X(MXFP4, GGUF_MXFP4)
        X(NVFP4, GGUF_NVFP4)
#undef X
    default:
        return false;
    }
}

static void checkpoint_take_gguf(tr_checkpoint *c, const tr_gguf *g)
{
    for (uint32_t i = 0; i < tr_gguf_tensors_count(g); i++) {
        const tr_gguf_tensor *from = tr_gguf_tensor_at(g, i);
        tr_tensor *t = &c->tensors[c->tensors_count++];

        *t = (tr_tensor){.name = from->name,
                         .file = tr_gguf_name(g),
                         .type = tr_gguf_type_name(from->type),
                         .dtype = TR_DTYPE_GGUF,
                         .dims_count = from->dims_count,
                         .data = from->data,
                         .size = from->size};
        t->has_format = tr_checkpoint_gguf_format(from->type, &t->format);
        for (uint32_t d = 0; d < from->dims_count; d++)
            t->dims[d] = from->dims[from->dims_count - 1 - d];
    }
}

/* "prefix-00001-of-00003.gguf": the prefix's length and the count, or false. */
static bool checkpoint_split_name(const char *path, size_t *prefix_size, uint32_t *count)
{
    size_t size = strlen(path);
    uint32_t first = 0;
    int end = 0;

    if (size < 20)
        return false;
    if (sscanf(path + size - 20, "-%5" SCNu32 "-of-%5" SCNu32 ".gguf%n", &first, count, &end) != 2)
        return false;
    *prefix_size = size - 20;
    return end == 20 && first == 1;
}

static tr_status checkpoint_check_split(const tr_gguf *g, uint32_t number, uint32_t count,
                                        tr_error *err)
{
    uint64_t found = 0;

    tr_status status = tr_gguf_u64(g, "split.no", &found, err);
    if (status != TR_OK)
        return status;
    if (found != number)
        return tr_fail(err, TR_E_INVALID, "%s: key split.no: found %" PRIu64 ", expected %u",
                       tr_gguf_name(g), found, number);
    status = tr_gguf_u64(g, "split.count", &found, err);
    if (status != TR_OK)
        return status;
    if (found != count)
        return tr_fail(err, TR_E_INVALID, "%s: key split.count: found %" PRIu64 ", expected %u",
                       tr_gguf_name(g), found, count);
    return TR_OK;
}

/* Opens the other shards of a split set. c->ggufs[0] is open. */
static tr_status checkpoint_open_split(tr_checkpoint *c, tr_error *err)
{
    const tr_gguf *first = c->ggufs[0];
    char path[TR_PATH_SIZE + 256];
    size_t prefix_size;
    uint64_t stated = 0, total;
    uint32_t count;

    tr_status status = tr_gguf_u64(first, "split.count", &stated, err);
    if (status != TR_OK)
        return status;
    if (stated < 2 && !tr_gguf_has(first, "split.no"))
        return TR_OK;
    if (!checkpoint_split_name(c->path, &prefix_size, &count))
        return tr_fail(err, TR_E_INVALID,
                       "%s: one of %" PRIu64 " files, expected the first: NAME-00001-of-%05" PRIu64
                       ".gguf",
                       tr_gguf_name(first), stated, stated);
    if (count < 1 || count > TR_SHARDS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %u files, expected 1..%d", tr_gguf_name(first),
                       count, TR_SHARDS_MAX);
    status = checkpoint_check_split(first, 0, count, err);
    total = tr_gguf_tensors_count(first);
    for (uint32_t i = 1; i < count && status == TR_OK; i++) {
        snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", (int)prefix_size, c->path, i + 1,
                 count);
        status = tr_gguf_open(&c->ggufs[i], path, err);
        if (status != TR_OK)
            break;
        c->files_count++;
        total += tr_gguf_tensors_count(c->ggufs[i]);
        status = checkpoint_check_split(c->ggufs[i], i, count, err);
    }
    if (status != TR_OK)
        return status;
    status = tr_gguf_u64(first, "split.tensors.count", &stated, err);
    if (status == TR_OK && stated != total)
        status = tr_fail(err, TR_E_INVALID,
                         "%s: key split.tensors.count: found %" PRIu64 ", expected %" PRIu64
                         " (what the files hold)",
                         tr_gguf_name(first), stated, total);
    return status;
}

static tr_status checkpoint_open_gguf(tr_checkpoint *c, tr_error *err)
{
    uint64_t total = 0;

    c->is_gguf = true;
    tr_status status = tr_gguf_open(&c->ggufs[0], c->path, err);
    if (status != TR_OK)
        return status;
    c->files_count = 1;
    if (tr_gguf_has(c->ggufs[0], "split.count"))
        status = checkpoint_open_split(c, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < c->files_count; i++)
        total += tr_gguf_tensors_count(c->ggufs[i]);
    status = checkpoint_take_tensors(c, total, err);
    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < c->files_count; i++)
        checkpoint_take_gguf(c, c->ggufs[i]);
    return checkpoint_seal(c, err);
}

/* -- life -- */

static tr_status checkpoint_open_directory(tr_checkpoint *c, tr_error *err)
{
    char path[TR_PATH_SIZE + 256];

    tr_status status = checkpoint_join(path, sizeof(path), c, "model.safetensors.index.json", err);
    if (status != TR_OK)
        return status;
    if (access(path, F_OK) == 0)
        return checkpoint_open_index(c, path, err);
    status = checkpoint_join(path, sizeof(path), c, "model.safetensors", err);
    if (status == TR_OK)
        status = access(path, F_OK) == 0 ? checkpoint_add_file(c, "model.safetensors", err)
                                         : checkpoint_open_all(c, err);
    return status == TR_OK ? checkpoint_take_all(c, err) : status;
}

tr_status tr_checkpoint_open(tr_checkpoint **out, const char *path, tr_error *err)
{
    struct stat st;

    tr_checkpoint *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a checkpoint", path);
    tr_status status = TR_OK;
    if ((size_t)snprintf(c->path, sizeof(c->path), "%s", path) >= sizeof(c->path)) {
        status = tr_fail(err, TR_E_INVALID, "%.100s...: a path of more than %zu bytes", path,
                         sizeof(c->path) - 1);
        goto close;
    }
    for (size_t size = strlen(c->path); size > 1 && c->path[size - 1] == '/'; size--)
        c->path[size - 1] = '\0';
    if (stat(c->path, &st) == 0 && S_ISDIR(st.st_mode))
        status = checkpoint_open_directory(c, err);
    else
        status = checkpoint_open_gguf(c, err);
    if (status != TR_OK)
        goto close;
    *out = c;
    return TR_OK;

close:
    tr_checkpoint_close(c);
    return status;
}

void tr_checkpoint_close(tr_checkpoint *c)
{
    if (c == NULL)
        return;
    tr_names_teardown(&c->names);
    free(c->tensors);
    for (uint32_t i = 0; i < c->files_count; i++) {
        tr_safetensors_close(c->files[i]);
        tr_gguf_close(c->ggufs[i]);
    }
    free(c);
}

const char *tr_checkpoint_path(const tr_checkpoint *c)
{
    return c->path;
}

const char *tr_checkpoint_name(const tr_checkpoint *c)
{
    return tr_path_base(c->path);
}

const tr_gguf *tr_checkpoint_gguf(const tr_checkpoint *c)
{
    return c->is_gguf ? c->ggufs[0] : NULL;
}

tr_status tr_checkpoint_check(const tr_checkpoint *c, tr_error *err)
{
    tr_status status = TR_OK;

    for (uint32_t i = 0; i < c->files_count && status == TR_OK; i++)
        status =
            c->is_gguf ? tr_gguf_check(c->ggufs[i], err) : tr_safetensors_check(c->files[i], err);
    return status;
}

uint32_t tr_checkpoint_files_count(const tr_checkpoint *c)
{
    return c->files_count;
}

const tr_map *tr_checkpoint_file(const tr_checkpoint *c, uint32_t index, char *name, uint64_t *head)
{
    assert(index < c->files_count);
    if (!c->is_gguf)
        return tr_safetensors_file(c->files[index], name, head);
    return tr_gguf_file(c->ggufs[index], name, head);
}

tr_status tr_checkpoint_need_small(const tr_checkpoint *c, tr_error *err)
{
    tr_map_span spans[CHECKPOINT_SPANS];
    uint32_t count = 0;
    tr_status status = TR_OK;

    for (uint32_t i = 0; i <= c->tensors_count && status == TR_OK; i++) {
        if (count == CHECKPOINT_SPANS || i == c->tensors_count) {
            status = tr_map_need(spans, count, err);
            count = 0;
        }
        if (i < c->tensors_count && c->tensors[i].size <= CHECKPOINT_SMALL)
            spans[count++] = (tr_map_span){c->tensors[i].data, (size_t)c->tensors[i].size};
    }
    return status;
}

uint32_t tr_checkpoint_count(const tr_checkpoint *c)
{
    return c->tensors_count;
}

const tr_tensor *tr_checkpoint_at(const tr_checkpoint *c, uint32_t index)
{
    assert(index < c->tensors_count);
    return &c->tensors[index];
}

uint32_t tr_checkpoint_find(const tr_checkpoint *c, const char *name)
{
    return tr_names_find(&c->names, name, strlen(name));
}
