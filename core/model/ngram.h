/* ngram.h - which rows of an n-gram table belong to a token: constants from the settings, and the
 * hash (Qwen3.8-Flash-Next).
 *
 * The longest n-grams have `size` tokens. For each length from 2 to size there are `heads` heads;
 * each head has a stretch of the table whose length is a prime of its own, and looks up one row. */
#ifndef TR_CORE_MODEL_NGRAM_H
#define TR_CORE_MODEL_NGRAM_H

#include "core/error.h"
#include "core/model/model_spec.h"

/* Rows that one token reads. */
static inline uint32_t tr_ngram_heads(const tr_ngram_spec *n)
{
    return (n->size - 1) * n->heads;
}

/* Elements of a row. */
static inline uint32_t tr_ngram_row_size(const tr_ngram_spec *n)
{
    return n->embed_dim / tr_ngram_heads(n);
}

/* Columns that the convolution remembers. */
static inline uint32_t tr_ngram_history(const tr_ngram_spec *n)
{
    return (n->conv_taps - 1) * n->size;
}

/* Checks what the family filled in and derives the rest. file stands in errors.
 * errors  TR_E_INVALID naming file, layer, what was found, what was expected */
tr_status tr_ngram_derive(tr_ngram_spec *n, uint32_t vocab_size, const char *file, uint32_t layer,
                          tr_error *err);

/* rows[tr_ngram_heads]: of token after history [size - 1], the token just before it first. What
 * stands before a separator does not count, so a sequence begins with separators. */
void tr_ngram_rows(const tr_ngram_spec *n, const int32_t *history, int32_t token, uint32_t *rows);

#endif
