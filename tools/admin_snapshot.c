#include "tools/admin_snapshot.h"

#include "core/budget.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *tr_admin_snapshot_path(char *out, size_t size, const char *path)
{
    if (path[0] == '/' || getcwd(out, size) == NULL)
        return path;
    size_t used = strlen(out), more = strlen(path) + 2;
    if (more > size - used)
        return path;
    snprintf(out + used, size - used, "%s%s", used > 1 ? "/" : "", path);
    return out;
}

void tr_admin_snapshot_print(const msgpack_object *map)
{
    char what[256], bytes[32];
    uint64_t left = tr_admin_u64(map, "left"), pause = tr_admin_u64(map, "pause_ns");
    uint64_t gap = tr_admin_u64(map, "gap_ns");

    printf("%s: %llu prefixes and %llu sequences, %s in %.2f s\n",
           tr_admin_text(map, "what", what, sizeof(what)),
           (unsigned long long)tr_admin_u64(map, "prefixes"),
           (unsigned long long)tr_admin_u64(map, "sequences"),
           tr_bytes_text(bytes, sizeof(bytes), tr_admin_u64(map, "bytes")),
           (double)tr_admin_u64(map, "total_ns") / 1e9);
    if (pause > 0)
        printf("  pause         %10.1f ms\n", (double)pause / 1e6);
    if (gap > 0)
        printf("  longest gap   %10.1f ms between two tokens of a stream\n", (double)gap / 1e6);
    if (left > 0)
        printf("  no room for   %10llu\n", (unsigned long long)left);
}
