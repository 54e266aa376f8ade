/* switch.h - how the cluster's own thread speaks to the actors of its node while a placement
 * changes.
 *
 * The state of an actor for the new placement is made beside the running one, by the same init;
 * then the actor is told to go over: it replaces its state by the fresh one and keeps what lives
 * on, leases and the numbers of steps. Nothing is allocated in receive. No step is in flight then:
 * the batcher has been told to pause.
 *
 *   kind     from -> to                                   answer
 *   SWITCH   the cluster's thread -> actors of this node  *done grows by one
 *
 * The payload holds addresses, so the kind never leaves a process. */
#ifndef TR_ACTORS_SWITCH_H
#define TR_ACTORS_SWITCH_H

#include "actors/node_context.h"
#include "actors/snapshot.h"

#include <stdatomic.h>

typedef enum {
    TR_SWITCH_GO_OVER, /* to fresh; the batcher: to node */
    TR_SWITCH_PAUSE,   /* batcher: answers when no step is in flight, and forms none until RESUME */
    TR_SWITCH_RESUME,  /* batcher */
    TR_SWITCH_GIVE_UP, /* batcher: nothing can be served any more */
    TR_SWITCH_SERVE,   /* batcher: the node is back for which it was given up */
    TR_SWITCH_PLACES,  /* batcher: tells how far the sequences are, while steps run */
    TR_SWITCH_LEASES,  /* attention shard: tells what memory the sequences have */
    TR_SWITCH_PAGES,   /* attention shard: copies full pages of a sequence, while steps run */
    TR_SWITCH_NGRAM,   /* n-gram tables: writes down where a sequence stands */
    TR_SWITCH_NGRAM_SET, /* n-gram tables: a sequence stands where somebody wrote down */
    TR_SWITCH_DESCRIBE,  /* batcher, paused: what a slot holds */
    TR_SWITCH_ADOPT,     /* batcher: memory for a state from a snapshot; answers when the KV pools
                            have */
    TR_SWITCH_SETTLE,    /* batcher: the state that was adopted last is there */
    TR_SWITCH_DROP       /* batcher: it will not come; also while it is being adopted */
} tr_switch_what;

/* Memory of a sequence, as the KV pool lent it. */
typedef struct {
    bool held;
    uint16_t generation;
    uint32_t pages_count;
    uint8_t *state;
    uint8_t **pages; /* [pages per sequence] of the caller */
} tr_lease_view;

/* A slot of the batcher, between it and a snapshot. */
typedef struct {
    uint32_t number;       /* DESCRIBE: which; ADOPT: out */
    uint16_t generation;   /* out: of its lease */
    tr_snapshot_slot slot; /* kind TR_SNAPSHOT_END: nothing that can be kept */
    int32_t *tokens;       /* [context_max] of the caller */
    bool taken;            /* ADOPT: out, maybe late: there was room */
} tr_slot_view;

/* How far a sequence is, by the steps that have ended. */
typedef struct {
    uint32_t position;   /* computed positions; 0 for slots that hold no state */
    uint32_t generation; /* of its lease */
} tr_sequence_place;

/* A part of full pages of a sequence. */
typedef struct {
    uint32_t sequence, generation;
    uint32_t page_first, pages_count;
    size_t offset, size; /* of the part in a page */
    bool held;           /* answer: the sequence has these pages, and they have been copied */
    uint8_t bytes[];     /* answer: [pages_count * size] */
} tr_page_copy;

typedef struct {
    tr_switch_what what;
    void *fresh;                 /* GO_OVER: state of the actor */
    const tr_node_context *node; /* GO_OVER: of the new placement */
    uint32_t *positions;         /* PAUSE: [sequences_max] computed positions, 0 for slots that hold
                                    no state; of the caller */
    tr_sequence_place *places;   /* PLACES: [sequences_max] of the caller */
    tr_lease_view *leases;       /* LEASES: [sequences_max] of the caller */
    tr_page_copy *copy;          /* PAGES: of the caller */
    tr_slot_view *slot;          /* DESCRIBE, ADOPT; of the caller */
    uint32_t sequence;           /* NGRAM, NGRAM_SET */
    uint16_t generation;         /* NGRAM_SET: of the sequence's lease */
    uint8_t *bytes;              /* NGRAM, NGRAM_SET: [tr_ngram_sequence_size] of the caller */
    const tr_error *error;       /* GIVE_UP: why; of the caller */
    _Atomic uint32_t *done;      /* counted up with release when it is done */
} tr_switch;

/* Bytes in which the n-gram tables write down where a sequence stands; 0: the model has none. */
size_t tr_ngram_sequence_size(const tr_node_context *node);

/* Whether bytes from outside say that a sequence stands at a position. */
bool tr_ngram_stands_at(const tr_node_context *node, const uint8_t *bytes, uint32_t position);

/* Reads them into a fresh state of the n-gram tables that no actor runs yet. */
void tr_ngram_import(void *fresh, uint32_t sequence, const uint8_t *bytes);

/* The payload of a SWITCH, or NULL when the message is none. */
const tr_switch *tr_switch_read(const tr_msg *msg);

/* Says that it is done. */
void tr_switch_done(const tr_switch *s);

/* Carries out GO_OVER for an actor whose state is replaced as a whole; other messages are left
 * alone.
 *
 *   state, size  the actor's state
 *   adopt        moves into fresh what lives on, the environment among it; the rest of state is
 *                forgotten */
void tr_switch_apply(const tr_msg *msg, void *state, size_t size,
                     void (*adopt)(void *fresh, void *state));

#endif
