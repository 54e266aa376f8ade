#include "core/model/files.h"

#include "core/model/checkpoint.h"
#include "core/model/map.h"
#include "core/model/model.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#define FILE_SIZE_MAX (UINT64_C(1) << 46) /* bytes; what file systems can hold */

tr_status tr_file_list_take(tr_file_list *out, uint32_t count, tr_error *err)
{
    out->files = calloc(count > 0 ? count : 1, sizeof(*out->files));
    return out->files != NULL ? TR_OK
                              : tr_fail(err, TR_E_NOMEM, "no memory for a list of %u files", count);
}

void tr_file_list_free(tr_file_list *list)
{
    free(list->files);
    *list = (tr_file_list){0};
}

/* -- making one -- */

static bool list_has(const tr_file_list *list, const char *name)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->files[i].name, name) == 0)
            return true;
    return false;
}

/* Settings, vocabularies and templates. */
static int list_is_small(const struct dirent *entry)
{
    static const char *const endings[] = {".json", ".jinja", ".model"};
    const char *dot = strrchr(entry->d_name, '.');

    for (size_t i = 0; dot != NULL && i < sizeof(endings) / sizeof(endings[0]); i++)
        if (strcmp(dot, endings[i]) == 0 && entry->d_name[0] != '.')
            return 1;
    return 0;
}

static void list_add_small(tr_file_list *list, const char *folder, const char *name)
{
    char path[TR_PATH_SIZE + TR_FILE_NAME_SIZE];
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (list->count == TR_FILES_MAX || strlen(name) >= TR_FILE_NAME_SIZE || list_has(list, name) ||
        stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > (off_t)TR_FILE_READ_MAX)
        return; /* opening the model has not needed it */
    tr_file_entry *file = &list->files[list->count++];
    *file = (tr_file_entry){.size = (uint64_t)st.st_size, .head = (uint64_t)st.st_size, .fd = -1};
    snprintf(file->name, sizeof(file->name), "%s", name);
}

static tr_status list_add_folder(tr_file_list *list, const char *folder, tr_error *err)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, list_is_small, alphasort);

    if (count < 0)
        return tr_fail(err, TR_E_INVALID, "%s: the folder cannot be read", folder);
    for (int i = 0; i < count; i++) {
        list_add_small(list, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return TR_OK;
}

/* Models with the same tensors may have them in other places. */
static void list_hash(tr_file_list *list, const tr_checkpoint *c)
{
    uint32_t file = 0;

    for (uint32_t i = 0; i < tr_checkpoint_count(c); i++) {
        const tr_tensor *t = tr_checkpoint_at(c, i);
        char name[TR_FILE_NAME_SIZE];
        uint64_t head;
        for (uint32_t k = 0; strcmp(list->files[file].name, t->file) != 0; k++) {
            assert(k < tr_checkpoint_files_count(c));
            file = (file + 1) % tr_checkpoint_files_count(c);
        }
        const uint64_t place[2] = {
            file, (uint64_t)(t->data - tr_checkpoint_file(c, file, name, &head)->data)};
        list->layout = XXH3_64bits_withSeed(t->name, strlen(t->name), list->layout);
        list->layout = XXH3_64bits_withSeed(place, sizeof(place), list->layout);
    }
}

tr_status tr_file_list_make(tr_file_list *out, const tr_model *model, tr_error *err)
{
    const tr_checkpoint *c = tr_model_checkpoint(model);
    tr_file_list list = {.folder = tr_checkpoint_gguf(c) == NULL};

    tr_status status = tr_file_list_take(&list, TR_FILES_MAX, err);
    if (status != TR_OK)
        return status;
    snprintf(list.name, sizeof(list.name), "%s", tr_checkpoint_name(c));
    for (uint32_t i = 0; i < tr_checkpoint_files_count(c); i++) {
        tr_file_entry *file = &list.files[list.count++];
        const tr_map *map = tr_checkpoint_file(c, i, file->name, &file->head);
        file->size = map->size;
        file->fd = map->fd;
    }
    list_hash(&list, c);
    if (list.folder)
        status = list_add_folder(&list, tr_checkpoint_path(c), err);
    if (status != TR_OK) {
        tr_file_list_free(&list);
        return status;
    }
    *out = list;
    return TR_OK;
}

/* -- one that came from elsewhere -- */

static bool list_name_is_plain(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL;
}

tr_status tr_file_list_check(const tr_file_list *list, tr_error *err)
{
    if (!list_name_is_plain(list->name))
        return tr_fail(err, TR_E_INVALID, "list of files: model: found \"%.60s\", expected a name",
                       list->name);
    if (list->count == 0 || list->count > TR_FILES_MAX)
        return tr_fail(err, TR_E_INVALID, "list of files: %u files, expected 1..%d", list->count,
                       TR_FILES_MAX);
    if (!list->folder && strcmp(list->files[0].name, list->name) != 0)
        return tr_fail(err, TR_E_INVALID, "list of files: begins with %.60s, expected %.60s",
                       list->files[0].name, list->name);
    uint64_t heads = 0; /* they are written to the disk */
    for (uint32_t i = 0; i < list->count; i++) {
        const tr_file_entry *file = &list->files[i];
        const tr_file_list before = {.files = list->files, .count = i};
        if (!list_name_is_plain(file->name) || list_has(&before, file->name))
            return tr_fail(err, TR_E_INVALID,
                           "list of files: found \"%.60s\", expected names, each once", file->name);
        if (file->size > FILE_SIZE_MAX || file->head > file->size ||
            file->head > TR_FILE_HEADS_MAX - heads)
            return tr_fail(err, TR_E_INVALID,
                           "%.60s: %llu bytes with a head of %llu, expected less", file->name,
                           (unsigned long long)file->size, (unsigned long long)file->head);
        heads += file->head;
    }
    return TR_OK;
}

/* -- reading -- */

uint64_t tr_file_ranges_size(const tr_file_range *ranges, uint32_t count)
{
    uint64_t size = 0;

    for (uint32_t i = 0; i < count && size <= TR_FILE_BYTES_MAX; i++)
        size += ranges[i].size;
    return size <= TR_FILE_BYTES_MAX ? size : UINT64_MAX;
}

static tr_status list_read_fd(const tr_file_entry *file, int fd, const tr_file_range *range,
                              uint8_t *out, tr_error *err)
{
    for (size_t at = 0; at < range->size;) {
        ssize_t got = pread(fd, out + at, range->size - at, (off_t)(range->offset + at));
        if (got > 0)
            at += (size_t)got;
        else if (got == 0 || errno != EINTR)
            return tr_fail(err, TR_E_INVALID, "%s: %s", file->name,
                           got == 0 ? "it is shorter than it was" : strerror(errno));
    }
    return TR_OK;
}

static tr_status list_read_one(const tr_file_list *list, const char *folder,
                               const tr_file_range *range, uint8_t *out, tr_error *err)
{
    char path[TR_PATH_SIZE + TR_FILE_NAME_SIZE];

    if (range->file >= list->count)
        return tr_fail(err, TR_E_INVALID, "file %u: the model has %u", range->file, list->count);
    const tr_file_entry *file = &list->files[range->file];
    if (range->size > file->size || range->offset > file->size - range->size)
        return tr_fail(err, TR_E_INVALID, "%s: %u bytes at %llu, it has %llu", file->name,
                       range->size, (unsigned long long)range->offset,
                       (unsigned long long)file->size);
    if (file->fd >= 0)
        return list_read_fd(file, file->fd, range, out, err);
    snprintf(path, sizeof(path), "%s/%s", folder, file->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe in its place does not wait */
    if (fd < 0)
        return tr_fail(err, TR_E_INVALID, "%s: %s", file->name, strerror(errno));
    tr_status status = list_read_fd(file, fd, range, out, err);
    close(fd);
    return status;
}

tr_status tr_file_list_read(const tr_file_list *list, const tr_model *model,
                            const tr_file_range *ranges, uint32_t count, uint8_t *out,
                            tr_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        tr_status status = list_read_one(list, tr_model_path(model), &ranges[i], out, err);
        if (status != TR_OK)
            return status;
        out += ranges[i].size;
    }
    return tr_model_check_files(model, err);
}
