#include "core/model/remote.h"

#include "core/log.h"
#include "core/model/map.h"
#include "core/placement.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REMOTE_PREFIX    "troupe-stream-"
#define REMOTE_PATH_SIZE (TR_PATH_SIZE + 2 * TR_FILE_NAME_SIZE)

typedef struct {
    uint8_t *base;  /* borrows the mapping; NULL: not mapped. Under registry_lock */
    uint8_t *pages; /* owns; a bit for each page that is there */
} remote_file;

/* Pages that came together. */
typedef struct {
    uint32_t file;
    uint32_t size; /* bytes */
    uint64_t offset;
} remote_run;

struct tr_remote_model {
    tr_remote_model *next;                      /* in the registry */
    char top[TR_PATH_SIZE + TR_FILE_NAME_SIZE]; /* the folder that was made */
    char folder[REMOTE_PATH_SIZE];              /* with the files */
    char path[REMOTE_PATH_SIZE];                /* of the model */
    int lock_fd;        /* locked while we live: what others may not sweep away */
    tr_file_list list;  /* owns */
    remote_file *files; /* owns, [list.count] */
    tr_remote_read read;
    void *ctx;
    size_t page;
    uint64_t keep;        /* bytes */
    pthread_mutex_t lock; /* guards what follows, and the pages of files */
    bool holding;
    remote_run *runs; /* owns; [runs_first, runs_end) are there, in order of age */
    size_t runs_first, runs_end, runs_capacity;
    uint64_t kept, received;
    tr_file_range ranges[TR_FILE_RANGES_MAX]; /* of the reading that is being put together */
    uint8_t *to[TR_FILE_RANGES_MAX];
    uint32_t ranges_count;
    uint64_t ranges_size;
};

/* All that are open: files are mapped by path and values needed by address. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static tr_remote_model *registry;
static _Atomic uint32_t registry_count; /* so that a process without any pays nothing */

/* -- the registry -- */

/* The file of a path; false when none of ours. With registry_lock held. */
static bool registry_find_path(const char *path, tr_remote_model **remote, uint32_t *file)
{
    for (tr_remote_model *r = registry; r != NULL; r = r->next) {
        size_t size = strlen(r->folder);
        if (strncmp(path, r->folder, size) != 0 || path[size] != '/')
            continue;
        for (uint32_t i = 0; i < r->list.count; i++)
            if (strcmp(path + size + 1, r->list.files[i].name) == 0) {
                *remote = r;
                *file = i;
                return true;
            }
    }
    return false;
}

static bool registry_find_byte(const uint8_t *at, tr_remote_model **remote, uint32_t *file)
{
    bool found = false;

    pthread_mutex_lock(&registry_lock);
    for (tr_remote_model *r = registry; r != NULL && !found; r = r->next)
        for (uint32_t i = 0; i < r->list.count && !found; i++) {
            const uint8_t *base = r->files[i].base;
            found = base != NULL && at >= base && (uint64_t)(at - base) < r->list.files[i].size;
            *remote = r;
            *file = i;
        }
    pthread_mutex_unlock(&registry_lock);
    return found;
}

bool tr_remote_has(const char *path)
{
    tr_remote_model *remote;
    uint32_t file;

    if (atomic_load(&registry_count) == 0)
        return false;
    pthread_mutex_lock(&registry_lock);
    bool found = registry_find_path(path, &remote, &file) && remote->files[file].base == NULL;
    pthread_mutex_unlock(&registry_lock);
    return found;
}

tr_status tr_remote_mapped(const char *path, uint8_t *base, tr_error *err)
{
    tr_remote_model *remote = NULL;
    uint32_t file = 0;
    tr_status status = TR_OK;

    pthread_mutex_lock(&registry_lock);
    bool found = registry_find_path(path, &remote, &file);
    if (!found || remote->files[file].base != NULL) {
        status = tr_fail(err, TR_E_INVALID, "%s: is mapped already", path);
    } else {
        uint64_t pages = (remote->list.files[file].size + remote->page - 1) / remote->page;
        remote->files[file].pages = calloc((size_t)(pages + 7) / 8, 1);
        if (remote->files[file].pages == NULL)
            status = tr_fail(err, TR_E_NOMEM, "%s: no memory for its pages", path);
        else
            remote->files[file].base = base;
    }
    pthread_mutex_unlock(&registry_lock);
    return status;
}

void tr_remote_unmapped(const uint8_t *base)
{
    pthread_mutex_lock(&registry_lock);
    for (tr_remote_model *r = registry; r != NULL; r = r->next)
        for (uint32_t i = 0; i < r->list.count; i++)
            if (r->files[i].base == base) {
                r->files[i].base = NULL;
                free(r->files[i].pages);
                r->files[i].pages = NULL;
            }
    pthread_mutex_unlock(&registry_lock);
}

/* -- what is there. With remote->lock held -- */

static bool page_is_there(const remote_file *file, uint64_t page)
{
    return (file->pages[page / 8] >> (page % 8) & 1) != 0;
}

static void pages_set(const tr_remote_model *r, const remote_run *run, bool there)
{
    uint8_t *pages = r->files[run->file].pages;

    for (uint64_t p = run->offset / r->page; p * r->page < run->offset + run->size; p++)
        if (there)
            pages[p / 8] |= (uint8_t)(1u << (p % 8));
        else
            pages[p / 8] &= (uint8_t) ~(1u << (p % 8));
}

static void remote_forget(tr_remote_model *r, const remote_run *run)
{
    const remote_file *file = &r->files[run->file];

    r->kept -= run->size;
    if (file->base == NULL) /* unmapped with all its pages */
        return;
    pages_set(r, run, false);
    (void)madvise(file->base + run->offset, run->size, MADV_DONTNEED); /* the hole is back */
}

static void remote_forget_oldest(tr_remote_model *r, uint64_t kept_max)
{
    while (r->kept > kept_max && r->runs_first < r->runs_end)
        remote_forget(r, &r->runs[r->runs_first++]);
    if (r->runs_first == r->runs_end)
        r->runs_first = r->runs_end = 0;
}

/* Room for count more runs. */
static tr_status runs_reserve(tr_remote_model *r, size_t count, tr_error *err)
{
    if (r->runs_end + count <= r->runs_capacity)
        return TR_OK;
    if (r->runs_first > 0) /* an empty list has no memory yet */
        memmove(r->runs, r->runs + r->runs_first, (r->runs_end - r->runs_first) * sizeof(*r->runs));
    r->runs_end -= r->runs_first;
    r->runs_first = 0;
    if (r->runs_end + count <= r->runs_capacity / 2)
        return TR_OK;
    size_t capacity = 2 * (r->runs_end + count);
    remote_run *grown = realloc(r->runs, capacity * sizeof(*grown));
    if (grown == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a list of pages");
    r->runs = grown;
    r->runs_capacity = capacity;
    return TR_OK;
}

/* -- bringing -- */

/* Reads what has been put together. */
static tr_status batch_read(tr_remote_model *r, tr_error *err)
{
    uint32_t count = r->ranges_count;

    r->ranges_count = 0;
    if (count == 0)
        return TR_OK;
    tr_status status = runs_reserve(r, count, err);
    if (status == TR_OK)
        status = r->read(r->ctx, r->ranges, r->to, count, err);
    for (uint32_t i = 0; i < count; i++) {
        const remote_run run = {r->ranges[i].file, r->ranges[i].size, r->ranges[i].offset};
        if (status == TR_OK)
            r->runs[r->runs_end++] = run;
        else
            pages_set(r, &run, false);
    }
    if (status == TR_OK) {
        r->kept += r->ranges_size;
        r->received += r->ranges_size;
    }
    r->ranges_size = 0;
    return status;
}

/* Adds pages first..end-1 of a file, none of which is there; they count as there from now on. */
static tr_status batch_add(tr_remote_model *r, uint32_t file, uint64_t first, uint64_t end,
                           tr_error *err)
{
    uint64_t begin = first * r->page, last = end * r->page, size = r->list.files[file].size;
    tr_status status = TR_OK;

    last = last < size ? last : size;
    while (begin < last && status == TR_OK) {
        uint64_t room = TR_FILE_BYTES_MAX - r->ranges_size;
        uint64_t count = last - begin < room ? last - begin : room / r->page * r->page;
        if (count > 0) {
            remote_run run = {file, (uint32_t)count, begin};
            r->ranges[r->ranges_count] = (tr_file_range){file, (uint32_t)count, begin};
            r->to[r->ranges_count++] = r->files[file].base + begin;
            r->ranges_size += count;
            pages_set(r, &run, true);
            begin += count;
        }
        if (begin < last || r->ranges_count == TR_FILE_RANGES_MAX)
            status = batch_read(r, err);
    }
    return status;
}

static tr_status need_pages(tr_remote_model *r, uint32_t file, uint64_t first, uint64_t end,
                            uint64_t *missing, tr_error *err)
{
    tr_status status = TR_OK;

    while (first < end && status == TR_OK) {
        uint64_t run = first;
        while (run < end && !page_is_there(&r->files[file], run))
            run++;
        if (missing != NULL)
            *missing += (run - first) * r->page;
        else if (run > first)
            status = batch_add(r, file, first, run, err);
        first = run + 1;
    }
    return status;
}

/* Counts the bytes of pages that are missing (missing not NULL), or puts them together to be read.
 * Spans of other files are left alone. */
static tr_status need_spans(tr_remote_model *r, const tr_map_span *spans, uint32_t count,
                            uint64_t *missing, tr_error *err)
{
    tr_status status = TR_OK;

    for (uint32_t i = 0; i < count && status == TR_OK; i++) {
        tr_remote_model *other = NULL;
        uint32_t file = 0;
        if (spans[i].size == 0 || !registry_find_byte(spans[i].at, &other, &file) || other != r)
            continue;
        uint64_t begin = (uint64_t)((const uint8_t *)spans[i].at - r->files[file].base);
        uint64_t size = r->list.files[file].size, end = size - begin;
        end = begin + (spans[i].size < end ? spans[i].size : end);
        status = need_pages(r, file, begin / r->page, (end + r->page - 1) / r->page, missing, err);
    }
    return status;
}

tr_status tr_map_need(const tr_map_span *spans, uint32_t count, tr_error *err)
{
    tr_remote_model *r = NULL;
    uint32_t file, first = 0;
    uint64_t missing = 0;

    if (atomic_load(&registry_count) == 0)
        return TR_OK;
    while (first < count && !registry_find_byte(spans[first].at, &r, &file))
        first++;
    if (first == count)
        return TR_OK;
    pthread_mutex_lock(&r->lock);
    (void)need_spans(r, spans, count, &missing, NULL); /* only counts */
    if (!r->holding && missing > 0)
        remote_forget_oldest(r, missing < r->keep ? r->keep - missing : 0);
    tr_status status = need_spans(r, spans, count, NULL, err);
    if (status == TR_OK)
        status = batch_read(r, err);
    pthread_mutex_unlock(&r->lock);
    return status;
}

void tr_remote_hold(tr_remote_model *r)
{
    pthread_mutex_lock(&r->lock);
    r->holding = true;
    pthread_mutex_unlock(&r->lock);
}

void tr_remote_drop(tr_remote_model *r)
{
    pthread_mutex_lock(&r->lock);
    r->holding = false;
    remote_forget_oldest(r, 0);
    pthread_mutex_unlock(&r->lock);
}

uint64_t tr_remote_kept(tr_remote_model *r)
{
    pthread_mutex_lock(&r->lock);
    uint64_t kept = r->kept;
    pthread_mutex_unlock(&r->lock);
    return kept;
}

uint64_t tr_remote_received(tr_remote_model *r)
{
    pthread_mutex_lock(&r->lock);
    uint64_t received = r->received;
    pthread_mutex_unlock(&r->lock);
    return received;
}

uint64_t tr_remote_keep_max(const tr_remote_model *r)
{
    uint64_t size = 0;

    for (uint32_t i = 0; i < r->list.count && size < r->keep; i++)
        size += r->list.files[i].size;
    return size < r->keep ? size : r->keep;
}

const char *tr_remote_path(const tr_remote_model *r)
{
    return r->path;
}

/* -- the folder -- */

static int folder_remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void folder_remove(const char *path)
{
    (void)nftw(path, folder_remove_entry, 8, FTW_DEPTH | FTW_PHYS); /* what stays, stays */
}

static int folder_is_ours(const struct dirent *entry)
{
    return strncmp(entry->d_name, REMOTE_PREFIX, sizeof(REMOTE_PREFIX) - 1) == 0;
}

/* Folders of processes that were killed: nobody holds their lock. */
static void folder_sweep(const char *parent)
{
    struct dirent **entries = NULL;
    char path[REMOTE_PATH_SIZE], lock[REMOTE_PATH_SIZE + 8];
    int count = scandir(parent, &entries, folder_is_ours, alphasort);

    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", parent, entries[i]->d_name);
        snprintf(lock, sizeof(lock), "%s/lock", path);
        free(entries[i]);
        int fd = open(lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue; /* it is just being made, or not ours to look at */
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            folder_remove(path);
        close(fd);
    }
    if (count >= 0)
        free(entries);
}

/* The lock gets its name when it is held, so that nobody sweeps between the two. */
static tr_status folder_lock(tr_remote_model *r, tr_error *err)
{
    char fresh[REMOTE_PATH_SIZE], name[REMOTE_PATH_SIZE];

    snprintf(fresh, sizeof(fresh), "%s/lock.new", r->top);
    snprintf(name, sizeof(name), "%s/lock", r->top);
    r->lock_fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (r->lock_fd < 0 || flock(r->lock_fd, LOCK_EX | LOCK_NB) != 0 || rename(fresh, name) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: %s", name, strerror(errno));
    return TR_OK;
}

static tr_status folder_make(tr_remote_model *r, tr_error *err)
{
    const char *parent = getenv("TMPDIR");

    if (parent == NULL || parent[0] != '/')
        parent = "/tmp";
    folder_sweep(parent);
    int size = snprintf(r->top, sizeof(r->top), "%s/" REMOTE_PREFIX "XXXXXX", parent);
    if (size < 0 || (size_t)size >= TR_PATH_SIZE || mkdtemp(r->top) == NULL) {
        r->top[0] = '\0';
        return tr_fail(err, TR_E_INVALID, "%s: no folder for a model can be made: %s", parent,
                       strerror(errno));
    }
    tr_status status = folder_lock(r, err);
    if (status != TR_OK)
        return status;
    snprintf(r->path, sizeof(r->path), "%s/%s", r->top, r->list.name);
    snprintf(r->folder, sizeof(r->folder), "%s", r->list.folder ? r->path : r->top);
    if (r->list.folder && mkdir(r->folder, 0700) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: %s", r->folder, strerror(errno));
    return TR_OK;
}

/* -- heads -- */

static tr_status head_fetch(tr_remote_model *r, uint32_t index, int fd, uint8_t *piece,
                            tr_error *err)
{
    const tr_file_entry *file = &r->list.files[index];

    for (uint64_t at = 0; at < file->head;) {
        uint64_t left = file->head - at;
        tr_file_range range = {index,
                               (uint32_t)(left < TR_FILE_BYTES_MAX ? left : TR_FILE_BYTES_MAX), at};
        tr_status status = r->read(r->ctx, &range, &piece, 1, err);
        if (status != TR_OK)
            return status;
        for (uint32_t done = 0; done < range.size;) {
            ssize_t put = pwrite(fd, piece + done, range.size - done, (off_t)(at + done));
            if (put < 0 && errno != EINTR)
                return tr_fail(err, TR_E_INVALID, "%s/%s: %s", r->folder, file->name,
                               strerror(errno));
            done += put > 0 ? (uint32_t)put : 0;
        }
        at += range.size;
        r->received += range.size;
    }
    return TR_OK;
}

static tr_status heads_fetch(tr_remote_model *r, tr_error *err)
{
    char path[REMOTE_PATH_SIZE + TR_FILE_NAME_SIZE];
    tr_status status = TR_OK;
    uint8_t *piece = malloc(TR_FILE_BYTES_MAX);

    if (piece == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for heads of files");
    for (uint32_t i = 0; i < r->list.count && status == TR_OK; i++) {
        snprintf(path, sizeof(path), "%s/%s", r->folder, r->list.files[i].name);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, (off_t)r->list.files[i].size) != 0)
            status = tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
        else
            status = head_fetch(r, i, fd, piece, err);
        if (fd >= 0)
            close(fd);
    }
    free(piece);
    return status;
}

/* -- life -- */

static void remote_free(tr_remote_model *r)
{
    if (r->top[0] != '\0')
        folder_remove(r->top);
    if (r->lock_fd >= 0)
        close(r->lock_fd);
    tr_file_list_free(&r->list);
    pthread_mutex_destroy(&r->lock);
    free(r->runs);
    free(r->files);
    free(r);
}

tr_status tr_remote_open(tr_remote_model **out, tr_file_list *list, tr_remote_read read, void *ctx,
                         uint64_t keep, tr_error *err)
{
    tr_status status = tr_file_list_check(list, err);
    if (status != TR_OK)
        return status;
    tr_remote_model *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a model of another node");
    r->list = *list;
    r->read = read;
    r->keep = keep;
    r->ctx = ctx;
    r->lock_fd = -1;
    r->page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_init(&r->lock, NULL);
    r->files = calloc(list->count, sizeof(*r->files));
    status = r->files != NULL ? folder_make(r, err)
                              : tr_fail(err, TR_E_NOMEM, "no memory for a model of another node");
    if (status == TR_OK)
        status = heads_fetch(r, err);
    if (status != TR_OK) {
        r->list = (tr_file_list){0}; /* stays the caller's */
        remote_free(r);
        return status;
    }
    pthread_mutex_lock(&registry_lock);
    r->next = registry;
    registry = r;
    atomic_fetch_add(&registry_count, 1);
    pthread_mutex_unlock(&registry_lock);
    *list = (tr_file_list){0};
    *out = r;
    return TR_OK;
}

void tr_remote_close(tr_remote_model *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&registry_lock);
    tr_remote_model **link = &registry;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    atomic_fetch_sub(&registry_count, 1);
    pthread_mutex_unlock(&registry_lock);
    for (uint32_t i = 0; i < r->list.count; i++)
        assert(r->files[i].base == NULL);
    remote_free(r);
}
