/* requests.h - a fixed stock of requests and their right answers: those of one undisturbed node. */
#ifndef TR_TESTS_SIM_REQUESTS_H
#define TR_TESTS_SIM_REQUESTS_H

#include "actors/client.h"
#include "tests/sim/tiny_model.h"

#define SIM_STOCK      64
#define SIM_TOKENS_MAX 48 /* most that a request of the stock generates */

/* What a client has heard of a request. */
typedef struct {
    int32_t tokens[SIM_TOKENS_MAX];
    uint32_t tokens_count;
    uint32_t rows_count; /* of logits; in any order, as the sampler may move */
    uint64_t rows_hash;
    bool row_came[TINY_CONTEXT];
    tr_event last; /* FINISHED or FAILED */
} sim_answer;

/* Request number i of the stock; prompt is its memory. */
void sim_request_make(uint32_t i, tr_request *out, int32_t prompt[TINY_CONTEXT]);

/* Adds an event to an answer. Returns what is wrong with it, or NULL. */
const char *sim_answer_add(sim_answer *answer, const tr_event *event);

/* The right answer of request i, computed when it is asked for first. NULL: *err says why. */
const sim_answer *sim_right_answer(const char *model, uint32_t i, tr_error *err);

/* Compares an answer with the right one: all of it when it finished by itself, the beginning when
 * it was cancelled or failed. Returns what is wrong, or NULL. */
const char *sim_answer_check(const sim_answer *answer, const sim_answer *right);

/* Ends the cluster that computes the right answers. */
void sim_requests_close(void);

#endif
