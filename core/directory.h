/* directory.h - which actor stands where: id -> node, name and, on this node, the actor itself.
 *
 * Filled before the workers start and constant afterwards, so that looking up needs no care. */
#ifndef TR_CORE_DIRECTORY_H
#define TR_CORE_DIRECTORY_H

#include "core/runtime.h"

#define TR_ACTOR_NAME_SIZE 96

struct tr_local;

typedef struct {
    tr_actor_id id;
    uint32_t node_index;
    struct tr_local *local; /* borrows from the runtime; NULL when it stands on another node */
    char name[TR_ACTOR_NAME_SIZE];
} tr_directory_entry;

/* Twice as many slots as entries: a search ends after a step or two. */
#define TR_DIRECTORY_SLOTS (2 * TR_ACTORS_MAX)

/* Zeroed memory is an empty directory.
 * Invariant: each entry i stands in exactly one slot, as i + 1; slots of 0 are empty. */
typedef struct {
    tr_directory_entry entries[TR_ACTORS_MAX]; /* in the order in which they were added */
    uint32_t entries_count;
    uint16_t slots[TR_DIRECTORY_SLOTS];
} tr_directory;

/* Adds an entry, name copied; *out is valid as long as the directory.
 * errors  TR_E_INVALID id 0 or known already, name too long; TR_E_NOMEM TR_ACTORS_MAX reached */
tr_status tr_directory_add(tr_directory *directory, tr_actor_id id, const char *name,
                           uint32_t node_index, tr_directory_entry **out, tr_error *err);

/* NULL when nobody has this id. */
const tr_directory_entry *tr_directory_find(const tr_directory *directory, tr_actor_id id);

#endif
