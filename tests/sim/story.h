/* story.h - what a seed makes happen: the placement, and who asks, cancels, stumbles and dies when.
 */
#ifndef TR_TESTS_SIM_STORY_H
#define TR_TESTS_SIM_STORY_H

#include "tests/sim/random.h"
#include "transport/sim/sim.h"

#define STORY_EVENTS_MAX 96
#define STORY_YAML_SIZE  16384

typedef enum {
    STORY_SUBMIT, /* a: number in the stock, b: node of the client, value: prefill_rows */
    STORY_CANCEL, /* a: which submission */
    STORY_SLOW,  /* node a, value: by how much its messages and its work take longer; 1: it recovers
                  */
    STORY_STOP,  /* node a does nothing for value ns */
    STORY_CUT,   /* nothing passes between a and b for value ns */
    STORY_CRASH, /* node a */
    STORY_START, /* node a, which has gone, is started again */
    STORY_AMBUSH,    /* node a crashes as soon as a change is in a phase; b: of story_phases */
    STORY_LEAVE,     /* node a stops as it should */
    STORY_MOVE,      /* a part of the model to node a; b, value: which (story_part_print) */
    STORY_REPLICATE, /* experts on node a, too; likewise */
    STORY_DRAIN,     /* everything off node a */
    STORY_UNDRAIN    /* back to node a what it has by the placement file */
} story_kind;

typedef struct {
    uint64_t at_ns; /* after the start */
    story_kind kind;
    uint32_t a, b;
    uint64_t value;
} story_event;

typedef struct {
    char yaml[STORY_YAML_SIZE];
    tr_sim_config net;
    uint32_t nodes_count;
    uint32_t sequences, cache_tokens; /* limits */
    uint32_t prefixes;                /* likewise: kept for requests that begin alike */
    uint32_t refuse_one_in;           /* buffers refused to actors; 0: none */
    uint32_t breaks_one_in;           /* control calls whose connection is lost; 0: none */
    uint64_t load_max_ns;             /* until a node has its disk, or another thread its turn */
    bool tight;                       /* a node is first offered one byte too little */
    bool scarce;                      /* nodes have little more memory than they need at start: */
    uint64_t spare_bytes;             /* so much more */
    bool restarts;                    /* somebody starts nodes again that end by themselves */
    uint64_t span_ns;                 /* requests come and trouble begins within this time */
    story_event events[STORY_EVENTS_MAX]; /* in order of time */
    uint32_t events_count;
} story;

/* Those of a change under way, as tr_change_report names them. */
#define STORY_PHASES 5
extern const char *const story_phases[STORY_PHASES];

void story_write(story *s, const char *model, uint64_t seed);

/* A few requests without disturbance, for a cluster that was started again. */
void story_write_quiet(story *s, sim_random *random);

/* The part that a MOVE or REPLICATE is about, as people write it: "expert/1.0-2". */
void story_part_print(const story_event *e, char *text, size_t size);

/* "at 1.250 ms crash node 2" into text [size]. */
void story_event_print(const story_event *e, char *text, size_t size);

#endif
