#include "core/model/map.h"

#include "core/model/remote.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reading a mapped page that its file no longer has raises SIGBUS, wherever that happens: in a
 * kernel, in a hash, in the look-up of an n-gram row. So the signal's handler needs to know all
 * mappings of the process. A slot is written by open and close, which readers of that mapping do
 * not overlap, and read by the handler on any thread. */
#define MAPS_MAX 4096 /* four checkpoints of TR_SHARDS_MAX files */

typedef struct {
    _Atomic uintptr_t begin; /* 0: free; release after size, acquired by readers */
    _Atomic size_t size;
    atomic_bool damaged; /* relaxed: read by the thread that touched the page, or after it ended */
    bool remote;         /* remote.c says what of it is there; written before begin */
    int fd;              /* borrows; written before begin */
} map_slot;

static map_slot map_slots[MAPS_MAX];
static atomic_uint map_slots_used; /* slots at and above this were never taken */
static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER; /* guards taking and freeing slots */
static struct sigaction map_previous;

static size_t map_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The slot of the mapping that holds this byte, or NULL. Safe in a signal handler. */
static map_slot *map_find(uintptr_t at)
{
    unsigned used = atomic_load_explicit(&map_slots_used, memory_order_acquire);

    for (unsigned i = 0; i < used; i++) {
        uintptr_t begin = atomic_load_explicit(&map_slots[i].begin, memory_order_acquire);
        if (begin != 0 && at >= begin &&
            at - begin < atomic_load_explicit(&map_slots[i].size, memory_order_relaxed))
            return &map_slots[i];
    }
    return NULL;
}

/* Puts zeros where the file is gone and goes on. Faults elsewhere are left to whoever handled them
 * before, by returning to the instruction, which faults again.
 * Note: mmap itself is replaced by UCX with a function that takes locks; the system call is not. */
static void map_on_bus_error(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    map_slot *slot = map_find(at);
    int saved = errno;

    (void)number;
    (void)context;
    if (slot != NULL) {
        size_t page = map_page();
        uintptr_t from = at & ~(page - 1);
        uintptr_t end = atomic_load_explicit(&slot->begin, memory_order_relaxed) +
                        atomic_load_explicit(&slot->size, memory_order_relaxed);

        atomic_store_explicit(&slot->damaged, true, memory_order_relaxed);
        long zeros = syscall(SYS_mmap, from, (end - from + page - 1) & ~(page - 1), PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        errno = saved;
        if (zeros == (long)from)
            return;
    }
    (void)sigaction(SIGBUS, &map_previous, NULL);
}

/* Under map_lock, for each mapping: libraries that are loaded later catch signals, too. */
static void map_install(void)
{
    struct sigaction action = {.sa_sigaction = map_on_bus_error, .sa_flags = SA_SIGINFO};
    struct sigaction current;

    if (sigaction(SIGBUS, NULL, &current) == 0 && (current.sa_flags & SA_SIGINFO) != 0 &&
        current.sa_sigaction == map_on_bus_error)
        return;
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, &map_previous);
}

static bool map_register(const tr_map *map, bool remote)
{
    unsigned used, i = 0;

    pthread_mutex_lock(&map_lock);
    used = atomic_load_explicit(&map_slots_used, memory_order_relaxed);
    map_install();
    while (i < used && atomic_load_explicit(&map_slots[i].begin, memory_order_relaxed) != 0)
        i++;
    if (i < MAPS_MAX) {
        atomic_store_explicit(&map_slots[i].size, map->size, memory_order_relaxed);
        atomic_store_explicit(&map_slots[i].damaged, false, memory_order_relaxed);
        map_slots[i].remote = remote;
        map_slots[i].fd = map->fd;
        atomic_store_explicit(&map_slots[i].begin, (uintptr_t)map->data, memory_order_release);
        if (i == used)
            atomic_store_explicit(&map_slots_used, used + 1, memory_order_release);
    }
    pthread_mutex_unlock(&map_lock);
    return i < MAPS_MAX;
}

const char *tr_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL || slash[1] == '\0' ? path : slash + 1;
}

static int64_t map_written_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* A regular file, open for reading. */
static tr_status map_open_file(int *fd, struct stat *st, const char *path, tr_error *err)
{
    tr_status status = TR_OK;

    /* Note: without O_NONBLOCK, opening a named pipe waits for a writer for ever. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
    if (fstat(*fd, st) != 0)
        status = tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st->st_mode))
        status = tr_fail(err, TR_E_INVALID, "%s: found something that is not a regular file", path);
    if (status != TR_OK)
        close(*fd);
    return status;
}

tr_status tr_map_open(tr_map *out, const char *path, tr_error *err)
{
    struct stat st;
    tr_map map = {0};

    tr_status status = map_open_file(&map.fd, &st, path, err);
    if (status != TR_OK)
        return status;
    map.size = (size_t)st.st_size;
    map.written_ns = map_written_ns(&st);
    if (map.size > 0) {
        bool remote = tr_remote_has(path); /* what comes is written to memory, not to the file */
        void *data = mmap(NULL, map.size, remote ? PROT_READ | PROT_WRITE : PROT_READ,
                          remote ? MAP_PRIVATE | MAP_NORESERVE : MAP_PRIVATE, map.fd, 0);
        if (data == MAP_FAILED) {
            status = tr_fail(err, TR_E_NOMEM, "%s: mapping %zu bytes: %s", path, map.size,
                             strerror(errno));
            goto close_fd;
        }
        map.data = data;
        if (remote)
            status = tr_remote_mapped(path, data, err);
        if (status == TR_OK && !map_register(&map, remote)) {
            tr_remote_unmapped(data);
            status = tr_fail(err, TR_E_NOMEM, "%s: more than %d files are mapped", path, MAPS_MAX);
        }
        if (status != TR_OK) {
            munmap(data, map.size);
            goto close_fd;
        }
    }
    *out = map;
    return TR_OK;

close_fd:
    close(map.fd);
    return status;
}

void tr_map_close(tr_map *map)
{
    if (map->data != NULL) {
        pthread_mutex_lock(&map_lock);
        map_slot *slot = map_find((uintptr_t)map->data);
        assert(slot != NULL);
        if (slot->remote)
            tr_remote_unmapped(map->data);
        atomic_store_explicit(&slot->begin, 0, memory_order_relaxed);
        pthread_mutex_unlock(&map_lock);
        munmap((void *)(uintptr_t)map->data, map->size);
    }
    close(map->fd);
    *map = (tr_map){.fd = -1};
}

tr_status tr_map_check(const tr_map *map, const char *name, tr_error *err)
{
    struct stat st;

    if (fstat(map->fd, &st) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: %s", name, strerror(errno));
    if ((size_t)st.st_size != map->size)
        return tr_fail(err, TR_E_INVALID,
                       "%s: %lld bytes now, expected %zu: it changed while it was read", name,
                       (long long)st.st_size, map->size);
    if (map_written_ns(&st) != map->written_ns)
        return tr_fail(err, TR_E_INVALID,
                       "%s: written to while it was read, expected a file that stays as it is",
                       name);
    if (map->data != NULL && !tr_map_is_whole(map->data))
        return tr_fail(err, TR_E_INVALID,
                       "%s: a part could not be read, expected all of its %zu bytes", name,
                       map->size);
    return TR_OK;
}

bool tr_map_is_whole(const void *at)
{
    const map_slot *slot = map_find((uintptr_t)at);

    return slot == NULL || !atomic_load_explicit(&slot->damaged, memory_order_relaxed);
}

/* Note: a fault maps the 64 KiB around it, so that releasing exact pages would leave up to fifteen
 * on both sides of every small tensor, which add up to a large part of a file of such tensors. */
#define MAP_AROUND 0x10000u

/* Unmaps the pages of these bytes and, with `cached`, has the file's own go, too. */
static void map_let_go(const void *begin, size_t size, bool cached)
{
    map_slot *slot = map_find((uintptr_t)begin);

    if (slot == NULL || size == 0 || slot->remote)
        return;
    size_t page = map_page(), around = page > MAP_AROUND ? page : MAP_AROUND;
    uintptr_t first = atomic_load_explicit(&slot->begin, memory_order_relaxed);
    uintptr_t last = first + atomic_load_explicit(&slot->size, memory_order_relaxed);
    uintptr_t from = (uintptr_t)begin & ~(uintptr_t)(around - 1);
    uintptr_t to = ((uintptr_t)begin + size + around - 1) & ~(uintptr_t)(around - 1);

    from = from < first ? first : from;
    to = to > last ? last : to;
    /* advice, both: nothing depends on it; pages that are mapped still stay in the cache */
    (void)madvise((void *)from, to - from, MADV_DONTNEED);
    if (cached)
        (void)posix_fadvise(slot->fd, (off_t)(from - first), (off_t)(to - from),
                            POSIX_FADV_DONTNEED);
}

void tr_map_release(const void *begin, size_t size)
{
    map_let_go(begin, size, false);
}

void tr_map_forget(const void *begin, size_t size)
{
    map_let_go(begin, size, size >= MAP_AROUND);
}

tr_status tr_file_read(uint8_t **out, size_t *size, const char *path, tr_error *err)
{
    struct stat st;
    uint8_t *data = NULL;
    int fd;

    tr_status status = map_open_file(&fd, &st, path, err);
    if (status != TR_OK)
        return status;
    if (st.st_size > (off_t)TR_FILE_READ_MAX) {
        status = tr_fail(err, TR_E_INVALID, "%s: %lld bytes, expected at most %u", path,
                         (long long)st.st_size, TR_FILE_READ_MAX);
        goto close_fd;
    }
    *size = (size_t)st.st_size;
    data = malloc(*size + 1);
    if (data == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory for %zu bytes", path, *size);
        goto close_fd;
    }
    for (size_t at = 0; at < *size && status == TR_OK;) {
        ssize_t got = pread(fd, data + at, *size - at, (off_t)at);
        if (got > 0)
            at += (size_t)got;
        else if (got == 0)
            status = tr_fail(err, TR_E_INVALID, "%s: ends after %zu bytes, expected %zu", path, at,
                             *size);
        else if (errno != EINTR)
            status = tr_fail(err, TR_E_INVALID, "%s: %s", path, strerror(errno));
    }
    data[*size] = '\0';
    if (status == TR_OK)
        *out = data;
    else
        free(data);

close_fd:
    close(fd);
    return status;
}
