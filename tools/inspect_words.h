/* inspect_words.h - a model's layers in words: each kind, short and whole, and the schedule folded.
 */
#ifndef TR_TOOLS_INSPECT_WORDS_H
#define TR_TOOLS_INSPECT_WORDS_H

#include "core/model/model_spec.h"

#include <stddef.h>
#include <stdint.h>

#define TR_INSPECT_WORDS_SIZE 256 /* of a description */
#define TR_INSPECT_SHORT_SIZE 48  /* of a short name */

/* The two halves of a layer. */
typedef enum { TR_INSPECT_MIXER, TR_INSPECT_CHANNEL, TR_INSPECT_HALVES } tr_inspect_half;

/* "KDA: 64 heads of 128, ...". Writes at most size bytes. */
void tr_inspect_words(char *text, size_t size, const tr_layer_spec *l, tr_inspect_half half);

/* "KDA 64", "MoE 320/8+1": experts, chosen ones, shared ones. Halves that differ have different
 * names: the second "KDA 64" with other words is "KDA 64 (2)". */
void tr_inspect_short(char *text, size_t size, const tr_model_spec *spec, uint32_t layer,
                      tr_inspect_half half);

/* How the residual stream begins and ends: "embedding of 2560 -> 4 streams (...)", "norm". */
void tr_inspect_residual(char *first, size_t first_size, char *last, size_t last_size,
                         const tr_model_spec *spec);

/* What a layer with an n-gram table (ngram.size > 0) looks up before it begins. */
void tr_inspect_ngram(char *text, size_t size, const tr_ngram_spec *n);

/* The first layer whose half is described by the same words: what identifies a kind. */
uint32_t tr_inspect_kind(const tr_model_spec *spec, uint32_t layer, tr_inspect_half half);

/* A stretch of layers and how it repeats: "12 x ([GQA 64/8 -> MoE 320/8+1] 3 x [...])". */
typedef struct {
    uint32_t first, last; /* inclusive */
    char text[512];       /* cut with "..." when it is longer */
} tr_inspect_span;

/* Folds the schedule into spans [layers_count], in order; returns how many. */
uint32_t tr_inspect_fold(tr_inspect_span *spans, const tr_model_spec *spec);

#endif
