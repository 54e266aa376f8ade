/* tiny_model.h - a checkpoint of 100 kB with random weights, so that a simulated token is cheap and
 * still depends on every part that could be placed: softmax attention over a dense layer in slices,
 * Kimi delta attention over experts, softmax attention over experts with a shared one. */
#ifndef TR_TESTS_SIM_TINY_MODEL_H
#define TR_TESTS_SIM_TINY_MODEL_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>

#define TINY_LAYERS     3
#define TINY_VOCABULARY 96
#define TINY_HIDDEN     32
#define TINY_EXPERTS    4
#define TINY_CONTEXT    256

/* Terms of attention in each layer, and slices. */
extern const unsigned tiny_attention_terms[TINY_LAYERS];
extern const unsigned tiny_slices[TINY_LAYERS];

/* Writes the checkpoint into a new folder under /tmp; its path is put into folder [size]. */
tr_status tiny_model_write(char *folder, size_t size, tr_error *err);

void tiny_model_remove(const char *folder);

#endif
