/* map.h - files of a checkpoint in memory, read-only.
 *
 * Settings, vocabularies and headers are read into memory of our own: what was checked once stays
 * what it is. Weights stay in the file and are mapped. A mapped file may change under us, by hand
 * or because a disk fails: what is gone reads as zeros instead of ending the process, and
 * tr_map_check says afterwards that what was read cannot be trusted. */
#ifndef TR_CORE_MODEL_MAP_H
#define TR_CORE_MODEL_MAP_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_FILE_READ_MAX (128u << 20) /* bytes; the largest tokenizers have about 30 MB */

typedef struct {
    const uint8_t *data; /* owns; NULL when size is 0 */
    size_t size;
    int fd;             /* owns; of a mapped file, to see whether it changes */
    int64_t written_ns; /* when it was last changed before it was mapped */
} tr_map;

/* Maps a regular file as a whole. Nothing is read yet, so that the size of a file costs nothing.
 * thread  any; errors TR_E_INVALID naming the path (absent, not a regular file, not readable) */
tr_status tr_map_open(tr_map *out, const char *path, tr_error *err);
void tr_map_close(tr_map *map);

/* Whether the file is still what it was when it was mapped and all that was read of it was there.
 * name stands for the file in errors.   thread  any */
tr_status tr_map_check(const tr_map *map, const char *name, tr_error *err);

/* False once a byte of the mapping that holds `at` could not be read. True for other memory.
 * thread  any; no system call */
bool tr_map_is_whole(const void *at);

typedef struct {
    const void *at;
    size_t size;
} tr_map_span;

/* To be asked before bytes of mapped files are read: of a model that lies on another node
 * (remote.h) it brings what is missing. Bytes that reach beyond a mapping's end, and other memory,
 * are left alone. At once and free of charge in a process that has no such model. thread  any;
 * errors  those of the reader of the model */
tr_status tr_map_need(const tr_map_span *spans, uint32_t count, tr_error *err);

/* Takes the pages of these bytes, and those around them, out of this process; the system's cache of
 * the file keeps them as long as it likes. Does nothing outside mappings made here, nor for what
 * tr_map_need brought, which has its own order of going. */
void tr_map_release(const void *begin, size_t size);

/* The same for bytes that nobody here will read soon again: they leave the system's cache, too,
 * unless another process has them mapped. Where a processor shares its memory with a GPU, what is
 * cached of 150 GB is missing there. Pieces below 64 KiB, of which a checkpoint may have 300,000,
 * are only released. */
void tr_map_forget(const void *begin, size_t size);

/* A regular file of at most TR_FILE_READ_MAX bytes, in memory of its own; the caller frees *out.
 * One zero byte follows it. errors as above */
tr_status tr_file_read(uint8_t **out, size_t *size, const char *path, tr_error *err);

/* What follows the last '/' of a path: how errors name a file. Borrowed from path. */
const char *tr_path_base(const char *path);

#endif
