/* sim.h - one seed: a cluster, what happens to it, and what must hold afterwards.
 *
 * After every run
 *   - each stream that finished is bit-equal to the undisturbed one; one that was cancelled or
 * failed is its beginning: no token is lost, doubled or changed;
 *   - each request has ended, once, within 10 s of virtual time, and failed only if it had reason
 * to; each change of placement likewise;
 *   - what is left of the cluster serves, under one plan; nothing is held any more (buffers, pages,
 * slots, waiting messages), another move is made, and requests that need every slot and page at
 * once are admitted; without the batcher's node the whole is started again, and answers;
 *   - memory taken is within the budget, and a node without enough of it is refused. */
#ifndef TR_TESTS_SIM_SIM_H
#define TR_TESTS_SIM_SIM_H

#include "tests/sim/shim.h"
#include "tests/sim/story.h"

#include <stdio.h>

typedef struct {
    const char *model; /* folder of tiny_model_write */
    sim_bug bug;       /* planted on purpose */
    FILE *log;         /* what happens, line by line; NULL: nothing */
} sim_options;

typedef struct {
    bool failed;
    char text[512];    /* what did not hold */
    uint64_t hash;     /* of the whole run: equal for equal seeds */
    uint64_t messages; /* that actors handled */
    uint64_t virtual_ns;
    uint32_t requests;
    uint32_t finished; /* of them, by themselves */
    uint32_t changes;  /* of placement that were begun, and those of them that were done */
    uint32_t changes_done, changes_aborted;
    uint32_t ambushes[STORY_PHASES]; /* crashes in each phase of a change */
    uint64_t cached; /* prompt tokens that a kept prefix had, where the cluster came to rest */
    uint32_t joins;  /* of nodes that were started again */
    bool lost;       /* a node was lost */
} sim_result;

/* Runs one seed. A run that failed leaves its memory behind: it may not be whole. */
void sim_run(const sim_options *options, uint64_t seed, sim_result *out);

#endif
