/* case_file.h - reads the tables in tests/model/data: one case per line, columns between bars,
 * lines that start with '#' are comments. */
#ifndef TR_TESTS_MODEL_CASE_FILE_H
#define TR_TESTS_MODEL_CASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CASE_COLUMNS_MAX 6

typedef struct {
    FILE *file;
    char *line; /* owns; cut into columns */
    size_t line_size;
    const char *column[CASE_COLUMNS_MAX]; /* without blanks at the ends; "" where there is none */
} case_file;

/* Opens DATA_DIR/name (DATA_DIR from the build); fails the test when that is not possible. */
void case_file_open(case_file *f, const char *name);

/* The next case; 0 at the end, which also closes the file. */
int case_file_next(case_file *f);

/* Bytes of a hexadecimal text without blanks. *bytes is malloc'ed, never NULL. */
void case_bytes(const char *hex, uint8_t **bytes, size_t *size);

/* Up to count_max 32-bit words of eight hexadecimal digits between blanks; returns how many. */
uint32_t case_words(const char *text, uint32_t *words, uint32_t count_max);

#endif
