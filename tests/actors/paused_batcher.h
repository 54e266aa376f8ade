/* paused_batcher.h - the batcher of a whole cluster is paused, so that sequences stay where they
 * are however slow the test's own thread is. */
#ifndef TR_TESTS_ACTORS_PAUSED_BATCHER_H
#define TR_TESTS_ACTORS_PAUSED_BATCHER_H

#include "actors/cluster_node.h"
#include "tests/actors/whole_cluster.h"

#include <stdlib.h>

static inline void ask_batcher(cluster *c, tr_switch question)
{
    tr_cluster *a = c->nodes[0];
    tr_error err = {0};

    pthread_mutex_lock(&a->batcher_questions.lock);
    CHECK_STATUS(cluster_ask(a, &a->batcher_questions, TR_ACTOR_BATCHER, &question,
                             tr_clock_ns() + UINT64_C(120000000000), &err),
                 TR_OK);
    pthread_mutex_unlock(&a->batcher_questions.lock);
}

/* places [sequences_max] of the caller: how far the sequences are, 0 for those that have ended. */
static inline void pause_batcher(cluster *c, tr_sequence_place *places)
{
    uint32_t *positions = calloc(c->nodes[0]->node.limits.sequences_max, sizeof(*positions));

    assert_non_null(positions);
    ask_batcher(c, (tr_switch){.what = TR_SWITCH_PAUSE, .positions = positions});
    ask_batcher(c, (tr_switch){.what = TR_SWITCH_PLACES, .places = places});
    free(positions);
}

static inline void resume_batcher(cluster *c)
{
    ask_batcher(c, (tr_switch){.what = TR_SWITCH_RESUME});
}

#endif
