/* json_pull.h - reads JSON from outside from front to back, without building it.
 *
 * For headers with hundreds of thousands of entries, where building values costs more than all the
 * rest of opening a checkpoint (measured: 185,259 tensors in 0.35 s instead of 1.2 s). As strict as
 * json.h, but duplicate keys are the caller's business: nothing is remembered.
 *
 *   tr_json_pull_open
 *   tr_json_pull_object, then while tr_json_pull_key says there is one: a value
 *   a value is read by tr_json_pull_text, _u64, _object, _array or _skip
 *   tr_json_pull_close
 *
 * After an error every further call fails too, and err keeps the first sentence. */
#ifndef TR_CORE_MODEL_JSON_PULL_H
#define TR_CORE_MODEL_JSON_PULL_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name; /* borrows; stands for the file in errors */
    const char *text; /* borrows, [size] */
    size_t size, at;
    uint32_t depth;
    uint64_t begun; /* bit d: the container at depth d has had an element */
    char *decoded;  /* owns; the last string that had escapes */
    size_t decoded_max;
    bool failed;
    tr_error *err;
} tr_json_pull;

void tr_json_pull_open(tr_json_pull *p, const char *name, const char *text, size_t size,
                       tr_error *err);
void tr_json_pull_close(tr_json_pull *p);

/* What the next value is: "a string", "an integer", ..., "nothing". For errors. */
const char *tr_json_pull_kind(tr_json_pull *p);
bool tr_json_pull_is(tr_json_pull *p, const char *kind);

/* Enters an object or a list. errors  TR_E_INVALID when the next value is none, or too deep */
tr_status tr_json_pull_object(tr_json_pull *p);
tr_status tr_json_pull_array(tr_json_pull *p);

/* The next key of the object, or *more false, and the object is left. *key [*size] is borrowed
 * until the next call; it is valid UTF-8 without NUL. */
tr_status tr_json_pull_key(tr_json_pull *p, const char **key, size_t *size, bool *more);

/* Whether there is a further element of the list; if not, the list is left. */
tr_status tr_json_pull_item(tr_json_pull *p, bool *more);

/* A string, likewise borrowed. */
tr_status tr_json_pull_text(tr_json_pull *p, const char **text, size_t *size);

/* An integer from 0 to INT64_MAX. A negative one or a fraction fails like another kind. */
tr_status tr_json_pull_u64(tr_json_pull *p, uint64_t *value);

/* Any value. */
tr_status tr_json_pull_skip(tr_json_pull *p);

/* Nothing but white space is left. */
tr_status tr_json_pull_end(tr_json_pull *p);

#endif
