/* node_context.h - what the actors of one node are configured with. Read-only once they run. */
#ifndef TR_ACTORS_NODE_CONTEXT_H
#define TR_ACTORS_NODE_CONTEXT_H

#include "actors/arena.h"
#include "actors/expert_heat.h"
#include "actors/kv_layout.h"
#include "actors/messages.h"
#include "core/actor.h"
#include "core/placement.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

/* Figures that actors count and status pages read. Relaxed: nothing is published with them, unless
 * it says so. */
typedef struct {
    _Atomic uint32_t sequences_active;
    _Atomic uint32_t requests_waiting;
    _Atomic uint32_t pages_used;
    _Atomic uint32_t prefixes_kept;
    _Atomic uint64_t cached_tokens; /* of prompts, taken from prefixes */
    _Atomic uint64_t steps;
    _Atomic uint64_t step_ns_mean; /* from forming to tokens, of about the last 64; 0: none yet */
    _Atomic uint64_t prompt_tokens;
    _Atomic uint64_t generated_tokens;
    _Atomic uint64_t requests_finished;
    _Atomic uint64_t requests_failed;
    _Atomic uint32_t gaps_open;  /* streams that have told no token since the last pause began;
                                    counted down with release, for gap_ns_max */
    _Atomic uint64_t gap_ns_max; /* of the others: the longest time between two, pause included */
    /* Not relaxed: counted up with release when states were written by another thread than the
     * shard's. The word that they are there comes by way of other nodes, and who reads them reads
     * this first, with acquire. */
    _Atomic uint32_t states_written;
    _Atomic bool broken;      /* a step did not end in time: nothing is served any more */
    _Atomic uint32_t accused; /* bit per node that has lost another one which this node sees: their
                                 steps cannot end, so it has to go */
} tr_node_counters;

typedef struct {
    const tr_model_spec *spec; /* borrows from the model */
    const tr_model *model;
    const tr_plan *plan;
    const tr_kernels *kernels;
    uint32_t node_index;
    tr_step_limits limits;
    uint32_t steps_in_flight;
    uint32_t
        prefixes_max;   /* slots of limits.sequences_max that only prefixes of prompts may take */
    uint32_t queue_max; /* requests that may wait in the batcher */
    uint32_t pages_max; /* KV pages of every node; 0: the model needs none */
    uint32_t buffer_size_max; /* bytes of the largest message buffer */
    uint64_t step_timeout_ns;
    bool recovers;   /* the loss of a node changes the placement instead of ending the requests */
    tr_kv_layout kv; /* of this node */
    tr_kv_memory *kv_memory;       /* borrows from the cluster */
    const tr_placement *placement; /* for names in messages to people */
    tr_node_counters *counters;
    tr_expert_heat *heat; /* borrows from the cluster; NULL: nobody asks for it */
} tr_node_context;

/* Actor numbers: one actor of each kind per node, numbered by the node; a single batcher. */
static inline tr_actor_id tr_node_actor(tr_actor_kind kind, uint32_t node)
{
    return tr_actor_id_make(kind, node);
}

/* Clients are numbered through all nodes. */
#define TR_NODE_CLIENTS_MAX 8

static inline tr_actor_id tr_node_client(uint32_t node, uint32_t number)
{
    return tr_node_actor(TR_ACTOR_CLIENT, node * TR_NODE_CLIENTS_MAX + number);
}

static inline uint32_t tr_client_node(tr_actor_id client)
{
    return tr_actor_id_number(client) / TR_NODE_CLIENTS_MAX;
}

/* What tr_actor_ops.init gets as config. Actors that own weights also get their arena, allocated
 * to the size that the same load function counted. */
typedef struct {
    const tr_node_context *node;
    tr_arena *arena;
    tr_team *team; /* of the worker that runs the actor */
} tr_actor_config;

/* Each weighted actor kind has a load function that is run twice: with a counting arena for the
 * budget, and by init. */
void tr_router_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget);
void tr_attention_shard_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget,
                              uint32_t threads);
void tr_expert_shard_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget);
void tr_kv_pool_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget);
void tr_sampler_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget);
void tr_ngram_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget);
void tr_batcher_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget);

/* Bytes of a term of a feed-forward, packed: an expert, or a slice. */
uint64_t tr_expert_term_bytes(const tr_node_context *node, uint32_t layer, uint32_t term);

/* Span that holds a layer. */
const tr_plan_span *tr_plan_span_of(const tr_plan *plan, uint32_t layer);

/* Whether this node's router is the one that feeds what stands on node target: the one beside it if
 * there is one, else the span's first. */
bool tr_span_feeds(const tr_plan_span *span, uint32_t self, uint32_t target);

/* The operation tables of all kinds; config is a tr_actor_config. */
extern const tr_actor_ops tr_router_ops;
extern const tr_actor_ops tr_attention_shard_ops;
extern const tr_actor_ops tr_expert_shard_ops;
extern const tr_actor_ops tr_kv_pool_ops;
extern const tr_actor_ops tr_sampler_ops;
extern const tr_actor_ops tr_ngram_ops;
extern const tr_actor_ops tr_batcher_ops;

#endif
