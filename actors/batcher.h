/* batcher.h - the state of the batcher, shared by its files batcher*.c and by nothing else. */
#ifndef TR_ACTORS_BATCHER_H
#define TR_ACTORS_BATCHER_H

#include "actors/page_book.h"
#include "actors/switch.h"

#define BATCHER_QUEUE_MAX  256
#define BATCHER_EVENTS_MAX 2 /* a sequence has at most a token and its end to tell at once */

typedef enum {
    SEQUENCE_FREE,
    SEQUENCE_RESERVING, /* KV pools have been asked */
    SEQUENCE_READY,     /* may go into the next step */
    SEQUENCE_IN_STEP,
    SEQUENCE_KEPT,     /* no request's: tokens whose state later requests begin with */
    SEQUENCE_RELEASING /* the end has been told, or replay is set; KV pools give the memory back */
} sequence_phase;

typedef struct {
    sequence_phase phase;
    uint64_t request;
    tr_actor_id client;
    tr_submit submit;
    int32_t *tokens;       /* [context_max] prompt, then generated */
    uint32_t tokens_count; /* known tokens */
    uint32_t prompt_count;
    uint32_t computed_count; /* positions whose state has been computed */
    uint16_t generation;     /* of the slot's lease */
    uint64_t positions_max;  /* that the lease has memory for */
    uint32_t pools;          /* bit per node whose KV pool has not answered */
    uint32_t leased;         /* bit per node whose KV pool has been asked for its memory */
    uint32_t late;           /* of these, those that were asked later and have not answered */
    uint32_t returning;      /* of these, those that refused and have been told to give back what
                                they may hold: they are asked again when they have */
    bool refused;            /* a pool had no room */
    bool canceled;
    bool replay; /* its state is lost: it is read again from its tokens */

    /* what it shares with kept prefixes: batcher_prefix.c */
    bool is_prefix;         /* the slot is no request's, from RESERVING on */
    bool saved;             /* KEPT: all nodes have its state */
    uint32_t source;        /* 1 + slot of the prefix whose state its next segment takes; 0: none */
    uint32_t boundary;      /* position at which its state is to be kept; 0: nowhere */
    uint32_t boundary_next; /* the one after it; 0: none */
    uint32_t heir;          /* 1 + slot of the prefix that is to get it; 0: not reserved yet */
    bool exchanges;         /* IN_STEP: its segment takes or leaves state */
    uint32_t users_count;   /* KEPT: sequences that have yet to take its state, or to fill it */
    uint64_t used;          /* KEPT: grows with every use of any */
    uint32_t cached_count;  /* positions that were taken from a prefix when it was admitted */

    /* what a snapshot brings: batcher_snapshot.c */
    bool continues;        /* KEPT: of a request that had not ended, for the same request again */
    uint32_t untold_count; /* the last so many tokens were drawn before, and are yet to be told */

    uint64_t begin_ns;
    uint64_t told_ns;  /* when the last token was told; 0: none has been */
    bool paused;       /* and since when nothing is formed; the next one ends the gap */
    uint64_t asked_ns; /* when the pools were asked for its memory, or to give it back */
    tr_event events[BATCHER_EVENTS_MAX]; /* not yet sent: no buffer was free */
    uint32_t events_count;
} batcher_sequence;

typedef struct {
    uint64_t step; /* 0: free */
    uint64_t begin_ns;
    uint32_t sequences_count;
    uint32_t *sequences; /* [sequences_max] */
    uint32_t *rows;      /* [sequences_max] rows of each in the step */
} batcher_step;

typedef struct {
    tr_actor_id client;
    tr_buf *submit; /* counts */
} batcher_waiting;

typedef struct {
    const tr_env *env;
    const tr_node_context *node;
    batcher_sequence *sequences; /* [sequences_max] */
    batcher_step *steps;         /* [steps_in_flight] */
    uint32_t steps_count;        /* in flight */
    uint64_t next_step;
    uint32_t next_turn; /* sequence with which the next step begins: nobody starves */
    bool prompts_first; /* the last step had no room for a prompt */
    batcher_waiting queue[BATCHER_QUEUE_MAX]; /* ring */
    uint32_t queue_first, queue_count;
    uint32_t pools;     /* bit per node whose KV pool is asked when memory is reserved */
    uint32_t welcome;   /* bit per node that is there again, and is to be asked for what is held */
    tr_page_book pages; /* of every node with pages */
    uint32_t requests_count; /* slots of requests that are not free */
    uint32_t prefixes_count; /* slots of prefixes that are not free */
    uint64_t uses;           /* of prefixes, so far */
    tr_error lost;           /* code TR_OK while everything is served */
    bool paused;             /* no step is formed: the placement changes */
    uint64_t suspended_ns;   /* since when another node says that one is gone; 0: none does */
    uint32_t suspended_by;   /* node that says so */
    uint32_t dead_nodes;     /* bit per node that is gone, whether the placement uses it or not */
    tr_switch adopt;         /* to be answered when the KV pools have; done NULL: answered */
    uint32_t adopted;        /* 1 + slot of the state that was adopted last; 0: it is settled */
    tr_switch pause;         /* to be answered when the last step has ended; done NULL: answered */
    bool starved;            /* this receive found no buffer for a reservation or a step */
    bool retry_asked;        /* a timer for another try is set */
} batcher_state;

/* Pages of a sequence of so many tokens, on every node with pages. */
static inline uint64_t batcher_pages_of(const tr_node_context *node, uint64_t tokens)
{
    return node->pages_max == 0 ? 0 : (tokens + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS;
}

/* batcher.c: the client has been told, or will be by a replay; the pools give the memory back. */
void batcher_release(batcher_state *s, batcher_sequence *q);
/* They have: the slot is free, unless a replay goes on with it. */
void batcher_end_releasing(batcher_state *s, batcher_sequence *q);
void batcher_finish(batcher_state *s, batcher_sequence *q, tr_finish_reason reason, int32_t token);
void batcher_fail(batcher_state *s, batcher_sequence *q, const tr_error *err);
/* Ends a step that is given up: routers drop what they hold of it and what still comes. */
void batcher_drop_step(batcher_state *s, batcher_step *record);

/* batcher_recover.c */

/* Whether a node is gone that the placement uses. */
bool batcher_misses_node(const batcher_state *s);
/* A node is gone that the placement uses: gives the steps in flight up and forms no other until the
 * placement has changed. */
void batcher_suspend(batcher_state *s);
/* Before the new placement: which sequences have lost state with the nodes that are gone. */
void batcher_note_lost_state(batcher_state *s);
/* Under the new placement: reads those sequences again. */
void batcher_replay(batcher_state *s);
/* Goes on with replays whose memory has come back. False: some wait for more. */
bool batcher_retry_replays(batcher_state *s);
/* Asks all pools for the memory of a sequence, with its next generation. False: no buffer was free
 * (another try is asked for), or too few pages are; nothing has happened.
 *
 *   tokens  most positions that it will have
 *   other   whose first pages it shares; NULL: nobody's */
bool batcher_reserve(batcher_state *s, batcher_sequence *q, uint64_t tokens,
                     const batcher_sequence *other, uint32_t shared_pages);

/* batcher_welcome.c: a node is there again. */

void batcher_on_peer_up(batcher_state *s, uint32_t node);
/* Asks such nodes for the memory that the others hold, as far as buffers are free. */
void batcher_ask_welcome(batcher_state *s);
/* A pool has answered. False: it was not asked by batcher_ask_welcome. */
bool batcher_welcome_answered(batcher_state *s, uint32_t slot, uint32_t node, bool admitted);
/* A pool has given back. False: it was not told to by batcher_welcome_answered alone. */
bool batcher_welcome_released(batcher_state *s, uint32_t slot, uint32_t node);
/* Whether all have given all. */
bool batcher_welcome_done(const batcher_state *s);
/* It is gone again. */
void batcher_forget_welcome(batcher_state *s, uint32_t node);

/* batcher_prefix.c: states at the ends of prompts, kept for requests that begin alike. */

/* A slot that holds nothing, or NULL. */
batcher_sequence *batcher_free_slot(batcher_state *s);
/* Reserves memory for a request from the longest kept prefix of its prompt on, at position 0 if
 * there is none. False: not now; when a prefix that nobody uses can make room, it goes. */
bool batcher_begin(batcher_state *s, batcher_sequence *q);
/* Slots for prefixes that sequences are about to reach. */
void batcher_keep_prefixes(batcher_state *s);
/* Whether a sequence has to wait at its boundary until its prefix has a slot. */
bool batcher_awaits_heir(const batcher_state *s, const batcher_sequence *q);
/* The step that took or left state has ended. */
void batcher_end_exchange(batcher_state *s, batcher_sequence *q);
/* A sequence gives its memory back: what it was to take or to fill. */
void batcher_forget_prefixes(batcher_state *s, batcher_sequence *q);
/* Gives the state of a prefix up. */
void batcher_drop_prefix(batcher_state *s, batcher_sequence *prefix);
/* What there is too little of. */
typedef enum { ROOM_SLOT, ROOM_PAGES } batcher_room;
/* Lets the least used prefix go that nobody uses and that makes room, but not while states travel.
 * False: there is none to go or on its way. */
bool batcher_make_room(batcher_state *s, batcher_room room, const batcher_sequence *except);

/* batcher_snapshot.c: states that go to a file and come from one. */

/* Says what a slot holds. */
void batcher_describe(const batcher_state *s, const tr_switch *what);
/* Reserves a slot for a state from a file; batcher_answer_adopt answers. */
void batcher_adopt(batcher_state *s, const tr_switch *what);
void batcher_answer_adopt(batcher_state *s);
/* The adopted state may be used, or goes. */
void batcher_settle(batcher_state *s, bool is_there);
/* The state of a request that had not ended, if submit is that request; NULL: none. */
batcher_sequence *batcher_find_continued(batcher_state *s, const tr_submit *submit);
/* It becomes the state of the request that waits. */
void batcher_continue(batcher_state *s, batcher_sequence *q, const batcher_waiting *w);
/* Tells tokens that were drawn before the snapshot. */
void batcher_tell_untold(batcher_state *s);

/* batcher_step.c: forms and sends steps while some may be in flight and some sequence is ready. */
void batcher_form_steps(batcher_state *s);

/* batcher_events.c: what a client hears. The sequence's turn does not come before its events are
 * sent. */
void batcher_tell_token(batcher_state *s, batcher_sequence *q, const tr_token *token);
void batcher_tell_finished(batcher_state *s, batcher_sequence *q, tr_finish_reason reason,
                           int32_t token);
void batcher_tell_failed(batcher_state *s, batcher_sequence *q, const tr_error *err);
/* Of requests that wait or were not even queued. The buffer of the SUBMIT is overwritten and
 * carries the answer; the caller keeps its reference. */
void batcher_tell_refused(batcher_state *s, tr_actor_id client, uint64_t request, tr_buf *submit,
                          const tr_error *err);
void batcher_tell_withdrawn(batcher_state *s, const batcher_waiting *w);
/* A pause begins: the next token of each stream says how long its reader has waited. */
void batcher_begin_gaps(batcher_state *s);
/* Tries the events that found no buffer; false while some are left. */
bool batcher_flush_events(batcher_state *s, batcher_sequence *q);

#endif
