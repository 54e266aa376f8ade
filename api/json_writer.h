/* json_writer.h - writes JSON text into a buffer of the caller's. No tree, no allocation.
 *
 * Commas are put where they belong. What does not fit is not written and remembered in overflow,
 * so that a writer is checked once, at its end. Text that is not UTF-8 is mended with U+FFFD. */
#ifndef TR_API_JSON_WRITER_H
#define TR_API_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *out;       /* borrows; [capacity], not NUL-terminated */
    size_t capacity; /* bytes */
    size_t size;     /* bytes written, <= capacity */
    bool overflow;   /* something did not fit; the text is then not JSON */
    bool comma;      /* private: a value stands before the next one */
} tr_json;

void tr_json_init(tr_json *w, char *out, size_t capacity);

void tr_json_object_begin(tr_json *w);
void tr_json_object_end(tr_json *w);
void tr_json_array_begin(tr_json *w);
void tr_json_array_end(tr_json *w);

/* The name of the next value; NUL-terminated. */
void tr_json_key(tr_json *w, const char *key);

/* A string value of size bytes, quoted and escaped. */
void tr_json_text(tr_json *w, const char *text, size_t size);
void tr_json_string(tr_json *w, const char *text); /* NUL-terminated */
void tr_json_int(tr_json *w, int64_t value);
void tr_json_number(tr_json *w, double value); /* null when not finite */
void tr_json_bool(tr_json *w, bool value);
void tr_json_null(tr_json *w);

/* Pairs, for the frequent case. */
void tr_json_pair_string(tr_json *w, const char *key, const char *value);
void tr_json_pair_int(tr_json *w, const char *key, int64_t value);

/* Bytes as they are: framing around the JSON, or JSON made elsewhere. */
void tr_json_raw(tr_json *w, const char *bytes, size_t size);

/* The inside of a string without its quotes: for strings that are sent in pieces. */
void tr_json_escaped(tr_json *w, const char *text, size_t size);

/* Most bytes that size bytes of text can take when they are escaped. */
#define TR_JSON_ESCAPED_MAX(size) (6 * (size_t)(size))

#endif
