/* sampling.h - draws a token from a row of logits. Pure functions: no state, no clock.
 *
 * Order: divide by temperature, min_p, top_k, top_p, draw (specs: formats 6.2, vLLM's order). The
 * random number is a function of (seed, position) alone, so the draw depends neither on the batch
 * nor on who draws. Sums run in double in a fixed order. */
#ifndef TR_ACTORS_SAMPLING_H
#define TR_ACTORS_SAMPLING_H

#include "actors/client.h"

#include <stdint.h>

typedef struct {
    uint32_t *index; /* [vocab_size] */
    float *weight;   /* [vocab_size] */
} tr_sampling_scratch;

/* The drawn token, or -1 when a logit is NaN or none is finite.
 *
 *   logits    [vocab_size] f32
 *   position  of the new token in its sequence
 *
 * Greedy at temperature 0 (ties: lowest id). Thread: any. */
int32_t tr_sample(const float *logits, uint32_t vocab_size, const tr_sampling *sampling,
                  uint32_t position, const tr_sampling_scratch *scratch);

/* Natural log-probability of a token under softmax(logits), and the most likely tokens.
 *
 *   top  [top_count] filled in descending order; top_count <= TR_TOP_LOGPROBS_MAX */
float tr_sample_logprobs(const float *logits, uint32_t vocab_size, int32_t token, tr_logprob *top,
                         uint32_t top_count);

/* Uniform in [0, 1), a function of its arguments alone (splitmix64, Steele et al. 2014). */
double tr_sample_uniform(uint64_t seed, uint64_t position);

#endif
