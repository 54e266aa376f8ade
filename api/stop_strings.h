/* stop_strings.h - cuts a stream of text before the first stop string that it completes.
 *
 * Text that may still turn out to be the beginning of a stop string is held back. What passes
 * depends on the text alone and never on how it was cut into pieces: the stop string that is
 * complete first wins, and of several that are complete at the same byte the longest. */
#ifndef TR_API_STOP_STRINGS_H
#define TR_API_STOP_STRINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_STOP_STRINGS_MAX     16
#define TR_STOP_STRING_SIZE_MAX 256

typedef struct {
    uint32_t count;
    struct {
        size_t size; /* 1..TR_STOP_STRING_SIZE_MAX */
        char text[TR_STOP_STRING_SIZE_MAX];
    } strings[TR_STOP_STRINGS_MAX];
} tr_stop_strings;

typedef struct {
    const tr_stop_strings *stops; /* borrows, outlives the filter */
    size_t held_size;
    char held[TR_STOP_STRING_SIZE_MAX]; /* the longest end of the text that may begin a stop */
    bool matched;                       /* a stop string has come; everything later is dropped */
} tr_stop_filter;

void tr_stop_filter_init(tr_stop_filter *f, const tr_stop_strings *stops);

/* Passes text on through emit (called zero or more times) as far as it is safe. Returns
 * f->matched. */
bool tr_stop_filter_push(tr_stop_filter *f, const char *text, size_t size,
                         void (*emit)(void *ctx, const char *text, size_t size), void *ctx);

/* The text is over: what was held back is passed on. */
void tr_stop_filter_end(tr_stop_filter *f, void (*emit)(void *ctx, const char *text, size_t size),
                        void *ctx);

#endif
