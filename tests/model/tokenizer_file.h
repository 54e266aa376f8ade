/* tokenizer_file.h - writes GGUF files that hold a tokenizer and nothing else. */
#ifndef TR_TESTS_MODEL_TOKENIZER_FILE_H
#define TR_TESTS_MODEL_TOKENIZER_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Keys whose pointer is NULL or whose number is -1 are left out. Borrows everything. */
typedef struct {
    const char *model, *pre;
    const char *const *tokens;
    const uint32_t *types;
    const float *scores;
    size_t tokens_count;
    const char *const *merges;
    size_t merges_count;
    int64_t bos;
    int add_bos, add_space_prefix; /* 0 or 1 */
} tokenizer_file;

void tokenizer_file_write(const tokenizer_file *f, const char *path);

#endif
