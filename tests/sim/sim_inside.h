/* sim_inside.h - a simulation while it runs, shared by sim*.c and by nothing else. */
#ifndef TR_TESTS_SIM_SIM_INSIDE_H
#define TR_TESTS_SIM_SIM_INSIDE_H

#include "tests/sim/requests.h"
#include "tests/sim/sim.h"
#include "tests/sim/world.h"

#define PATIENCE_NS  (10ull * WORLD_SECOND) /* of a request or a change, from its begin */
#define NOTICE_NS    (2ull * WORLD_SECOND)  /* within it the others know of a loss */
#define STEPS_MAX    4000000u               /* of one act: it runs in circles */
#define REQUESTS_MAX 64
#define CHANGES_MAX  32

typedef enum { REQUEST_OPEN, REQUEST_ENDED, REQUEST_ORPHANED } request_phase;

typedef struct {
    request_phase phase;
    uint32_t stock;
    uint32_t node;   /* where its client is */
    uint32_t life;   /* of that node */
    uint64_t number; /* the client's */
    uint64_t submitted_ns;
    bool canceled;
    uint32_t tokens_after_cancel;
    sim_answer answer;
} sim_request;

/* A change of placement that somebody asked for. */
typedef struct {
    uint64_t number;
    uint32_t life; /* of the batcher's node, which forgets what was asked of it before */
    uint64_t begun_ns;
    uint32_t abort_phase; /* of story_phases, in which it is to be aborted; others: never */
    bool abort_asked;
    bool ended;
} sim_change;

typedef struct simulation {
    const sim_options *options;
    story story;
    world world;
    sim_random random, aborts; /* aborts: on its own, so that a seed stays the story that it was */
    uint64_t begin_ns;         /* of the act */
    uint64_t trouble_ns;       /* when the last trouble of the story is over */
    uint32_t next_event;
    uint64_t beats;                     /* of the world, that have been looked at */
    sim_request requests[REQUESTS_MAX]; /* of this act */
    uint32_t requests_count;
    uint32_t open_count;
    sim_change changes[CHANGES_MAX]; /* of this act */
    uint32_t changes_count;
    uint32_t changing_count;   /* of them under way */
    const story_event *ambush; /* waits for its phase; NULL: none */
    sim_result *out;
    struct simulation *next; /* of those that failed */
} simulation;

/* sim.c */

/* What did not hold; the first one counts. */
void sim_fail(simulation *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_say(simulation *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The node of the batcher, or NULL when it is down. */
tr_cluster *sim_batcher(const simulation *s);

/* Whether a node counts another as there. */
bool sim_sees(tr_cluster *cluster, uint32_t other);

/* Whether a node is part of the cluster: it and the batcher's see each other. */
bool sim_is_in(const simulation *s, uint32_t node);

void sim_expect_trouble(simulation *s, uint64_t until_ns);

/* Lets everything that is under way come to rest, after the last trouble of the story. */
void sim_settle(simulation *s);

/* sim_clients.c: requests */
void sim_submit(simulation *s, const story_event *e);
void sim_cancel(simulation *s, uint32_t submission);
void sim_hear(simulation *s, uint32_t node);

/* A node goes, and its clients with it. */
void sim_lose_node(simulation *s, const story_event *e);

/* sim_changes.c: changes of placement */
void sim_begin_change(simulation *s, const story_event *e);

/* Which changes have ended, and whether somebody waits for the phase that they are in. */
void sim_watch_changes(simulation *s);

/* One more change at rest: one that was left behind, on any node, is in its way. */
void sim_probe_change(simulation *s);

/* sim_checks.c: what must hold */
void sim_check_memory(simulation *s);  /* at start */
void sim_check_refusal(simulation *s); /* a node with a byte too little is refused */
void sim_check_service(simulation *s); /* at rest, as far as the cluster serves */

/* Leaves every node little more memory than it needs. */
void sim_make_scarce(simulation *s);

#endif
