/* remote.h - a model of which somebody else has the bytes.
 *
 * A folder of our own gets files of the right names and sizes, of which only the heads are there;
 * the rest are holes. So the model opens like any other, and whoever is about to read values says
 * so first: tr_map_need brings the bytes that are missing into the memory of the mapping, never
 * into the file. At most so many of them stay, the oldest go first: column slices of one
 * matrix are packed one after the other and need the same rows.
 *
 * Thread: one at a time brings and drops; need locks. */
#ifndef TR_CORE_MODEL_REMOTE_H
#define TR_CORE_MODEL_REMOTE_H

#include "core/error.h"
#include "core/model/files.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_remote_model tr_remote_model;

/* Reads ranges, at most TR_FILE_RANGES_MAX of TR_FILE_BYTES_MAX together; to[i] gets the bytes of
 * ranges[i]. */
typedef tr_status (*tr_remote_read)(void *ctx, const tr_file_range *ranges, uint8_t *const *to,
                                    uint32_t count, tr_error *err);

/* Makes the folder and fetches the heads.
 *   list  taken over when it succeeds
 *   keep  bytes that may stay in memory, unless one weight needs more at once
 * errors  TR_E_INVALID the list, or the folder cannot be made (it stands in TMPDIR); those of read
 */
tr_status tr_remote_open(tr_remote_model **out, tr_file_list *list, tr_remote_read read, void *ctx,
                         uint64_t keep, tr_error *err);

/* Removes the folder. The model is closed before. NULL is allowed. */
void tr_remote_close(tr_remote_model *remote);

/* What tr_model_open is to be given. */
const char *tr_remote_path(const tr_remote_model *remote);

/* Until the next drop nothing goes; for opening a model, which looks at small values all over. */
void tr_remote_hold(tr_remote_model *remote);

/* Lets go of all that has come. */
void tr_remote_drop(tr_remote_model *remote);

/* Bytes that are there, and that have come since it was opened. */
uint64_t tr_remote_kept(tr_remote_model *remote);
uint64_t tr_remote_received(tr_remote_model *remote);

/* The most that tr_remote_kept becomes while weights are packed. */
uint64_t tr_remote_keep_max(const tr_remote_model *remote);

/* -- for map.c -- */

/* Whether a path is of a file in a folder made here that is not mapped yet. A second mapping shows
 * its head alone. */
bool tr_remote_has(const char *path);

/* It has been mapped, writable and private; until unmapped. errors TR_E_NOMEM, TR_E_INVALID twice
 */
tr_status tr_remote_mapped(const char *path, uint8_t *base, tr_error *err);
void tr_remote_unmapped(const uint8_t *base);

#endif
