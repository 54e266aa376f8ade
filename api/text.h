/* text.h - text that grows, and where UTF-8 may be cut. */
#ifndef TR_API_TEXT_H
#define TR_API_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that have been added, in memory that doubles when it is full: the number of allocations
 * grows with the logarithm of the size. */
typedef struct {
    char *bytes; /* owns; NULL when capacity is 0 */
    size_t size;
    size_t capacity;
    bool failed; /* there was no memory; the text is incomplete */
} tr_text;

void tr_text_append(tr_text *t, const char *bytes, size_t size);
void tr_text_free(tr_text *t);

/* The largest piece of at most size_max bytes (size_max >= 4) from the beginning of text [size]
 * that ends between two UTF-8 characters. */
size_t tr_text_cut(const char *text, size_t size, size_t size_max);

#endif
