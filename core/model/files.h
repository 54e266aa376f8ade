/* files.h - the files of a model as one who gives them to others lists them, and pieces of them.
 *
 * A file's head is what must be there before it can be opened: all of a small file, the header of a
 * file of weights. Names are those in the model's folder; a GGUF file stands in a list without a
 * folder, the first of a split set first. */
#ifndef TR_CORE_MODEL_FILES_H
#define TR_CORE_MODEL_FILES_H

#include "core/error.h"
#include "core/model/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

#define TR_FILE_NAME_SIZE  256
#define TR_FILES_MAX       1280          /* TR_SHARDS_MAX files of weights, and small ones */
#define TR_FILE_BYTES_MAX  (4u << 20)    /* of one reading */
#define TR_FILE_RANGES_MAX 4096          /* in one reading */
#define TR_FILE_HEADS_MAX  (1024u << 20) /* of all files together, that another node is believed */

typedef struct {
    char name[TR_FILE_NAME_SIZE];
    uint64_t size, head;
    int fd; /* borrowed from the model; -1: opened by its name */
} tr_file_entry;

typedef struct {
    char name[TR_FILE_NAME_SIZE]; /* of the model: its folder, or its first file */
    bool folder;
    uint64_t layout;      /* hash of where each tensor lies */
    tr_file_entry *files; /* owns; those with tensors first */
    uint32_t count;
} tr_file_list;

/* Bytes of a file of a list. What travels between nodes. */
typedef struct {
    uint32_t file, size;
    uint64_t offset;
} tr_file_range;

/* The files of a model that lies on this machine. errors  TR_E_NOMEM, TR_E_INVALID */
tr_status tr_file_list_make(tr_file_list *out, const tr_model *model, tr_error *err);

/* Makes room for count entries. errors  TR_E_NOMEM */
tr_status tr_file_list_take(tr_file_list *out, uint32_t count, tr_error *err);
void tr_file_list_free(tr_file_list *list);

/* Whether a list that came from elsewhere can be used: plain names, each once, sizes that are
 * possible. errors  TR_E_INVALID naming the file */
tr_status tr_file_list_check(const tr_file_list *list, tr_error *err);

/* Reads ranges of the model's files, one behind the other.
 *   out  [sum of the sizes]
 * errors  TR_E_INVALID: no such file, beyond its end, or it is not what it was. Thread: any */
tr_status tr_file_list_read(const tr_file_list *list, const tr_model *model,
                            const tr_file_range *ranges, uint32_t count, uint8_t *out,
                            tr_error *err);

/* The sum of the sizes, or UINT64_MAX when it is above TR_FILE_BYTES_MAX. */
uint64_t tr_file_ranges_size(const tr_file_range *ranges, uint32_t count);

#endif
