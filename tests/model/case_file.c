#include "tests/model/case_file.h"

#include "tests/check.h"

#include <ctype.h>
#include <stdlib.h>

void case_file_open(case_file *f, const char *name)
{
    char path[1024];

    *f = (case_file){0};
    snprintf(path, sizeof(path), "%s/%s", DATA_DIR, name);
    f->file = fopen(path, "r");
    if (f->file == NULL)
        print_error("%s cannot be opened\n", path);
    assert_non_null(f->file);
}

static char *case_trim(char *text)
{
    char *end = text + strlen(text);

    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

int case_file_next(case_file *f)
{
    do {
        if (getline(&f->line, &f->line_size, f->file) < 0) {
            free(f->line);
            fclose(f->file);
            *f = (case_file){0};
            return 0;
        }
    } while (f->line[0] == '#' || f->line[0] == '\n');

    char *at = f->line;
    for (size_t i = 0; i < CASE_COLUMNS_MAX; i++) {
        char *bar = at == NULL ? NULL : strchr(at, '|');

        if (bar != NULL)
            *bar = '\0';
        f->column[i] = at == NULL ? "" : case_trim(at);
        at = bar == NULL ? NULL : bar + 1;
    }
    return 1;
}

void case_bytes(const char *hex, uint8_t **bytes, size_t *size)
{
    size_t digits = strlen(hex);

    assert_true(digits % 2 == 0);
    *bytes = malloc(digits / 2 + 1);
    assert_non_null(*bytes);
    for (size_t i = 0; i < digits / 2; i++) {
        unsigned int byte;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        (*bytes)[i] = (uint8_t)byte;
    }
    *size = digits / 2;
}

uint32_t case_words(const char *text, uint32_t *words, uint32_t count_max)
{
    uint32_t count = 0;

    for (;;) {
        char *end;
        unsigned long word = strtoul(text, &end, 16);

        if (end == text)
            return count;
        assert_true(count < count_max);
        words[count++] = (uint32_t)word;
        text = end;
    }
}
