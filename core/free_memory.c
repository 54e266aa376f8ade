#include "core/free_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_SIZE 16384 /* the longest of them, memory.stat, has 5 KiB */
#define PATH_SIZE 4096

typedef struct {
    tr_text_reader read;
    void *ctx;
    char text[TEXT_SIZE];
} reading;

/* What the two versions of control groups call the same. */
typedef struct {
    const char *mount;
    const char *limit, *use;
    const char *cache[2]; /* in memory.stat, of the group and all below it */
} group_files;

static const group_files group_v1 = {"/sys/fs/cgroup/memory",
                                     "memory.limit_in_bytes",
                                     "memory.usage_in_bytes",
                                     {"total_active_file", "total_inactive_file"}};
static const group_files group_v2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"active_file", "inactive_file"}};

/* A number at the beginning of a text. False for anything else, such as "max". */
static bool read_number(const char *text, uint64_t *out)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && (*end == '\0' || *end == '\n' || *end == ' ');
}

/* The number behind a name that begins a line, and blanks. */
static bool find_number(const char *text, const char *name, uint64_t *out)
{
    size_t size = strlen(name);

    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, size) == 0 && line[size] == ' ')
            return read_number(line + size + strspn(line + size, " "), out);
    }
    return false;
}

static bool read_group_file(reading *r, const char *folder, const char *name)
{
    char path[PATH_SIZE];

    int size = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return size > 0 && (size_t)size < sizeof(path) &&
           r->read(r->ctx, path, r->text, sizeof(r->text));
}

/* Lowers *bytes to what one group has left. One without a limit, or that is not there, has more. */
static void bound_by_group(reading *r, const group_files *files, const char *folder,
                           uint64_t *bytes)
{
    uint64_t limit, use, cache = 0;

    if (!read_group_file(r, folder, files->limit) || !read_number(r->text, &limit) ||
        !read_group_file(r, folder, files->use) || !read_number(r->text, &use))
        return;
    if (read_group_file(r, folder, "memory.stat")) {
        for (size_t i = 0; i < sizeof(files->cache) / sizeof(files->cache[0]); i++) {
            uint64_t part = 0;
            (void)find_number(r->text, files->cache[i], &part); /* absent: there is none */
            cache += part;
        }
    }
    use -= cache < use ? cache : use;
    uint64_t left = use < limit ? limit - use : 0;
    if (left < *bytes)
        *bytes = left;
}

/* The group of a path below the mount, and all above it. Note: inside a container the path may be
 * that of the machine outside, and only the mount itself is there; it is the container's group. */
static void bound_by_groups(reading *r, const group_files *files, const char *path,
                            size_t path_size, uint64_t *bytes)
{
    char folder[PATH_SIZE];
    size_t mount_size = strlen(files->mount);

    if (mount_size + path_size >= sizeof(folder))
        return;
    memcpy(folder, files->mount, mount_size);
    memcpy(folder + mount_size, path, path_size);
    folder[mount_size + path_size] = '\0';
    for (;;) {
        bound_by_group(r, files, folder, bytes);
        if (strlen(folder) <= mount_size)
            return;
        *strrchr(folder, '/') = '\0';
    }
}

/* Whether a list of controllers, "cpu,memory", has the memory's. */
static bool lists_memory(const char *list, size_t size)
{
    static const char memory[] = "memory";
    const size_t name_size = sizeof(memory) - 1;

    for (const char *at = list, *end = list + size; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t part = (size_t)((comma != NULL ? comma : end) - at);
        if (part == name_size && memcmp(at, memory, name_size) == 0)
            return true;
        at += part + 1;
    }
    return false;
}

/* One line of /proc/self/cgroup: "number:controllers:path"; the second version has no controllers.
 */
static void bound_by_line(reading *r, const char *line, size_t size, uint64_t *bytes)
{
    const char *list = memchr(line, ':', size);
    if (list == NULL)
        return;
    list++;
    const char *path = memchr(list, ':', size - (size_t)(list - line));
    if (path == NULL || path[1] != '/')
        return;
    size_t list_size = (size_t)(path - list);
    path++;
    size_t path_size = size - (size_t)(path - line);
    if (path_size == 1)
        path_size = 0; /* "/" is the mount itself */
    if (list_size == 0)
        bound_by_groups(r, &group_v2, path, path_size, bytes);
    else if (lists_memory(list, list_size))
        bound_by_groups(r, &group_v1, path, path_size, bytes);
}

static tr_status read_available(reading *r, uint64_t *bytes, tr_error *err)
{
    static const char path[] = "/proc/meminfo";
    uint64_t kibibytes;

    if (!r->read(r->ctx, path, r->text, sizeof(r->text)))
        return tr_fail(err, TR_E_NOTSUP, "%s cannot be read", path);
    if (!find_number(r->text, "MemAvailable:", &kibibytes) || kibibytes > UINT64_MAX / 1024)
        return tr_fail(err, TR_E_NOTSUP, "%s: MemAvailable: not there, or not a number", path);
    *bytes = kibibytes * 1024;
    return TR_OK;
}

tr_status tr_free_memory_of(tr_text_reader read, void *ctx, uint64_t *bytes, tr_error *err)
{
    char groups[PATH_SIZE];
    uint64_t available = 0;
    reading *r = malloc(sizeof(*r));

    if (r == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory to read how much is free");
    r->read = read;
    r->ctx = ctx;
    tr_status status = read_available(r, &available, err);
    /* A kernel without control groups has no such file, and no limits. */
    if (status == TR_OK && read(ctx, "/proc/self/cgroup", groups, sizeof(groups))) {
        for (const char *line = groups; *line != '\0';) {
            size_t size = strcspn(line, "\n");
            bound_by_line(r, line, size, &available);
            line += size + (line[size] == '\n');
        }
    }
    free(r);
    if (status == TR_OK)
        *bytes = available;
    return status;
}

/* -- the files of this machine -- */

static bool read_file(void *ctx, const char *path, char *text, size_t size)
{
    size_t used = 0;
    ssize_t got = 0;

    (void)ctx;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    while (used < size - 1 && (got = read(fd, text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    text[used] = '\0';
    return got >= 0;
}

tr_status tr_free_memory(uint64_t *bytes, tr_error *err)
{
    return tr_free_memory_of(read_file, NULL, bytes, err);
}
