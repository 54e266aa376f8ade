/* shim.h - what the simulator puts around every actor: it notes each message in a hash, refuses
 * buffers by chance, and plants bugs.
 *
 * An actor under a shim is the actor that serves: its own table of operations is called with an
 * environment that passes through here. One simulation at a time, on one thread. */
#ifndef TR_TESTS_SIM_SHIM_H
#define TR_TESTS_SIM_SHIM_H

#include "core/actor.h"
#include "tests/sim/random.h"
#include "transport/sim/sim.h"

/* Bugs on purpose. The first ones are the network's (tr_sim_bug, same order), the others are actors
 * that do wrong. one_in: how often, of the occasions that there are. */
#define SIM_BUG_MAP(X)                                                                             \
    X(NONE, "none", 0)                                                                             \
    X(DROP, "drop", 500)                   /* a message between nodes is lost */                   \
    X(TWICE, "twice", 50)                  /* it comes twice */                                    \
    X(SWAP, "swap", 20)                    /* two of one pair change places */                     \
    X(FLIP, "flip", 50)                    /* one bit of a payload is wrong */                     \
    X(STALE, "stale", 1)                   /* the dead node's messages reach its successor */      \
    X(FORGET_RETURN, "forget-return", 4)   /* a lease is not given back to the KV pool */          \
    X(FORGET_LEASE, "forget-lease", 8)     /* the attention shard never hears of a lease */        \
    X(LEAK_BUFFER, "leak-buffer", 200)     /* a shard keeps a reference to what it sent */         \
    X(TOKEN_TWICE, "token-twice", 30)      /* a client hears a token twice */                      \
    X(TOKEN_LOST, "token-lost", 30)        /* a client never hears of a token */                   \
    X(TOKENS_MIXED, "tokens-mixed", 4)     /* two streams get each other's token */                \
    X(DEAF_TO_CANCEL, "deaf-to-cancel", 1) /* the batcher ignores CANCEL */                        \
    X(DEAF_TO_DEATH, "deaf-to-death", 1)   /* the batcher ignores PEER_DOWN */                     \
    X(DIRTY_STATE, "dirty-state", 4)       /* a sequence begins with another one's state */        \
    X(SHARED_PAGE, "shared-page", 8)       /* two sequences are leased the same page */            \
    X(DEAF_TO_RETURN, "deaf-to-return", 1) /* the batcher ignores that a node is back */           \
    X(NOT_OVER, "not-over", 8)             /* an actor says that it went over, and did not */      \
    X(DEAF_TO_PAUSE, "deaf-to-pause", 1)   /* the batcher goes on during a change */               \
    X(STATE_STAYS, "state-stays", 4)       /* a sequence's state does not come along */            \
    X(PAGE_TWICE, "page-twice", 4)         /* a page is sent twice, and another not at all */      \
    X(PAGE_MISSED, "page-missed", 1)       /* the last page of a sequence is not fetched */        \
    X(COMMIT_UNDONE, "commit-undone", 4)   /* a node says that it has committed, and has not */    \
    X(STALE_ABORT, "stale-abort", 4)       /* an abort of a former change ends the present one */  \
    X(TOKEN_AGAIN, "token-again", 2)       /* after a change a token is told once more */          \
    X(REPLAY_AS_PROMPT, "replay-as-prompt", 1)   /* drawn tokens are read again as a prompt */     \
    X(REPLICA_FORGOTTEN, "replica-forgotten", 1) /* a node does not know of a replica */

typedef enum {
#define X(name, text, one_in) SIM_BUG_##name,
    SIM_BUG_MAP(X)
#undef X
        SIM_BUGS_COUNT
} sim_bug;

static_assert((int)SIM_BUG_STALE == (int)TR_SIM_BUG_STALE, "the network's bugs come first");

const char *sim_bug_name(sim_bug bug);
uint32_t sim_bug_one_in(sim_bug bug);

/* SIM_BUGS_COUNT when there is none of this name. */
sim_bug sim_bug_find(const char *name);

/* Whether a bug is planted and happens now. */
bool sim_bug_strikes(sim_bug bug);

/* What all shims of the running simulation share. */
typedef struct {
    sim_random random;
    uint64_t hash;          /* of every message that an actor handled, in order */
    uint64_t messages;      /* how many */
    uint32_t refuse_one_in; /* buffers that are refused; 0: none */
    uint64_t refused;
    sim_bug bug;
} sim_shim_control;

extern sim_shim_control sim_shim;

/* For tr_cluster_hand.replace. */
const tr_actor_ops *sim_shim_replace(tr_actor_kind kind, const tr_actor_ops *ops);

/* Adds to the hash. */
void sim_shim_note(const void *bytes, size_t size);

#endif
