#include "core/directory.h"

#include <stdio.h>
#include <string.h>

static_assert((TR_DIRECTORY_SLOTS & (TR_DIRECTORY_SLOTS - 1)) == 0, "slots are masked");
static_assert(TR_ACTORS_MAX < UINT16_MAX, "an entry's number plus one fits a slot");

/* The slot that holds id, or the empty one where it would stand. Ids are few and mostly
 * consecutive within a kind, so the multiplication by a large odd number spreads them well; ids
 * from outside are only looked up, never added, so nobody can fill a bucket on purpose. */
static uint32_t directory_slot(const tr_directory *directory, tr_actor_id id)
{
    uint32_t slot = (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 40) & (TR_DIRECTORY_SLOTS - 1);
    while (directory->slots[slot] != 0 && directory->entries[directory->slots[slot] - 1].id != id)
        slot = (slot + 1) & (TR_DIRECTORY_SLOTS - 1);
    return slot;
}

tr_status tr_directory_add(tr_directory *directory, tr_actor_id id, const char *name,
                           uint32_t node_index, tr_directory_entry **out, tr_error *err)
{
    if (id == 0)
        return tr_fail(err, TR_E_INVALID, "directory: actor \"%s\" has id 0, which is nobody's",
                       name);
    if (strlen(name) >= TR_ACTOR_NAME_SIZE)
        return tr_fail(err, TR_E_INVALID,
                       "directory: actor name \"%.100s\" has %zu bytes, at most "
                       "%d are allowed",
                       name, strlen(name), TR_ACTOR_NAME_SIZE - 1);
    if (directory->entries_count == TR_ACTORS_MAX)
        return tr_fail(err, TR_E_NOMEM, "directory: %d actors, \"%s\" is one too many",
                       TR_ACTORS_MAX, name);
    uint32_t slot = directory_slot(directory, id);
    if (directory->slots[slot] != 0)
        return tr_fail(err, TR_E_INVALID, "directory: actors \"%s\" and \"%s\" have the same id",
                       directory->entries[directory->slots[slot] - 1].name, name);

    tr_directory_entry *entry = &directory->entries[directory->entries_count];
    entry->id = id;
    entry->node_index = node_index;
    entry->local = NULL;
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    directory->entries_count++;
    directory->slots[slot] = (uint16_t)directory->entries_count;
    *out = entry;
    return TR_OK;
}

const tr_directory_entry *tr_directory_find(const tr_directory *directory, tr_actor_id id)
{
    uint32_t slot = directory_slot(directory, id);
    return directory->slots[slot] == 0 ? NULL : &directory->entries[directory->slots[slot] - 1];
}
