/* admin_snapshot.h - what "troupe admin snapshot" and restore have of their own. */
#ifndef TR_TOOLS_ADMIN_SNAPSHOT_H
#define TR_TOOLS_ADMIN_SNAPSHOT_H

#include "tools/admin_client.h"

/* The file's path from / on, as a node started elsewhere would read it; path itself when it does
 * not fit into out. */
const char *tr_admin_snapshot_path(char *out, size_t size, const char *path);

/* Prints the report of a snapshot or a restore. */
void tr_admin_snapshot_print(const msgpack_object *map);

#endif
