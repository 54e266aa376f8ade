/* free_memory.h - how much memory of this machine is free for programs, as far as they may use it.
 *
 * Free is what the kernel calls available (MemAvailable): pages that nobody uses, and those that it
 * gives up when somebody needs them, as the pages of files are, a mapped checkpoint's among them. A
 * control group above the process may allow less: its limit without what its processes have taken,
 * where pages of files count as free, too. Both versions of control groups are asked, at the places
 * where systemd and containers mount them. */
#ifndef TR_CORE_FREE_MEMORY_H
#define TR_CORE_FREE_MEMORY_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that are free now.
 * errors  TR_E_NOTSUP naming the file: the system does not say; TR_E_NOMEM. Thread: any. */
tr_status tr_free_memory(uint64_t *bytes, tr_error *err);

/* Reads the beginning of a file as text with a zero byte behind it. False: it cannot be read. */
typedef bool (*tr_text_reader)(void *ctx, const char *path, char *text, size_t size);

/* The same, of a machine whose files read(ctx) knows. */
tr_status tr_free_memory_of(tr_text_reader read, void *ctx, uint64_t *bytes, tr_error *err);

#endif
