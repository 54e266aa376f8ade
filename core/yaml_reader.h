/* yaml_reader.h - reads one YAML document from outside, event by event, into plain structs.
 *
 * It refuses what a configuration does not need and an attacker likes: anchors, aliases, tags,
 * unknown keys, keys given twice, a second document. Nothing is skipped, so depth and work are
 * bounded by the tables of fields that the caller gives. Every error reads
 * "file:line:column: path.of.keys: found X, expected Y". */
#ifndef TR_CORE_YAML_READER_H
#define TR_CORE_YAML_READER_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_YAML_SIZE_MAX  (1u << 20) /* bytes of a document */
#define TR_YAML_PAIRS_MAX 16         /* pairs of a mapping with free keys */

typedef struct tr_yaml tr_yaml;

/* A place in the file, both from 1. */
typedef struct {
    uint32_t line, column;
} tr_yaml_mark;

/* One key of a mapping. read finds the reader at the value's first event and leaves it at the
 * value's last; target already points at the member (offset added). */
typedef struct tr_yaml_field {
    const char *key;
    tr_status (*read)(tr_yaml *y, void *target, const struct tr_yaml_field *field);
    size_t offset;     /* of the member in the mapping's target */
    uint64_t min, max; /* range of a number; max is the buffer's size for a text */
    bool required;
} tr_yaml_field;

/* text [size] and name are borrowed until close, err as well: all functions below write it.
 * errors  TR_E_NOMEM, TR_E_INVALID too large. Thread: any, one at a time. */
tr_status tr_yaml_open(tr_yaml **out, const char *name, const char *text, size_t size,
                       tr_error *err);
void tr_yaml_close(tr_yaml *y);

/* The whole file: one document, a mapping of these fields (at most 32). */
tr_status tr_yaml_document(tr_yaml *y, void *target, const tr_yaml_field *fields,
                           uint32_t fields_count);

/* -- values; each expects to stand at the value's first event -- */

tr_status tr_yaml_map(tr_yaml *y, void *target, const tr_yaml_field *fields, uint32_t fields_count);

/* A mapping with free keys, at most TR_YAML_PAIRS_MAX, each once; key is borrowed for the call. */
tr_status tr_yaml_pairs(tr_yaml *y, void *target,
                        tr_status (*read)(tr_yaml *y, void *target, const char *key));

/* A list of at most items_max values. */
tr_status tr_yaml_list(tr_yaml *y, void *target, uint32_t items_max,
                       tr_status (*read)(tr_yaml *y, void *target, uint32_t index));

/* The text of a scalar, valid until the reader moves on; NULL, with the error set, for anything
 * else. Control characters are refused. expected is for the error. */
const char *tr_yaml_scalar(tr_yaml *y, const char *expected);

/* Ready-made readers for the tables. text: not empty, not a plain null or boolean, fits max bytes
 * with its NUL. u32 and u16: decimal digits without quotes. boolean: true or false. */
tr_status tr_yaml_text(tr_yaml *y, void *target, const tr_yaml_field *field);
tr_status tr_yaml_u32(tr_yaml *y, void *target, const tr_yaml_field *field);
tr_status tr_yaml_u16(tr_yaml *y, void *target, const tr_yaml_field *field);
tr_status tr_yaml_boolean(tr_yaml *y, void *target, const tr_yaml_field *field);

/* -- errors -- */

tr_yaml_mark tr_yaml_here(const tr_yaml *y);

/* The current value is wrong: "found 'what stands there', expected <fmt>". Returns TR_E_INVALID. */
tr_status tr_yaml_wrong(tr_yaml *y, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The same for a place that was read before: "<path>: <fmt>". */
tr_status tr_yaml_wrong_at(tr_yaml *y, tr_yaml_mark mark, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Keys that lead to the current value: "nodes[1].memory". */
const char *tr_yaml_path(const tr_yaml *y);

#endif
