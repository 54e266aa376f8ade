/* placement.h - what stands where: the placement file (YAML), and the plan that fills its gaps.
 *
 * The file names the model, the nodes and, as far as somebody cares, which node holds which part.
 * tr_placement is the file; tr_plan is the complete answer for a model of a given shape. Neither
 * knows what the parts compute.
 *
 *   model: ../../models/tiny-solar-nvfp4   required; relative to the file's folder
 *   transport: ucx                         data plane: ucx (default), nng or loop (one process)
 *   nodes:                                 required; 1 to 16
 *     - name: spark1                       required; letters, digits, '.', '_', '-'
 *       host: 127.0.0.1                    default 127.0.0.1
 *       control: tcp://127.0.0.1:7701      default tcp://HOST:(7701 + index of the node)
 *       memory: 2 GiB                      B, KiB, MiB, GiB, TiB; default: tr_placement_memory
 *       threads: 1                         kernel threads
 *       workers: 1                         actor workers
 *       checkpoint: local                  or stream: it has no copy of the model, and gets what it
 *                                          needs from a node that has one
 *       transport: {tls: "posix,cma"}      options of the transport, at most 16
 *   api: {host: 127.0.0.1, port: 8888}     port 0: no API
 *   batcher: spark1                        name of a node; default the first
 *   sampler: spark1
 *   ngram: spark1                          n-gram tables, of models with some; default the first
 *   routers:    [{node: spark1, layers: 0-7}]
 *   attention:  [{node: spark1, layers: 0-7, terms: 0-1}]
 *   experts:    [{node: spark1, layers: 0-7, experts: 0-7}]
 *   replicas:   [{node: spark2, layers: 0-7, experts: 0}]
 *   slices:     [{node: spark1, layers: 0-7, slices: 0-1}]
 *   vocabulary: [{node: spark1, rows: 0-2047}]
 *   activations: f32                       or nvfp4, see the struct
 *   limits:                                all optional; the defaults are in the struct
 *     {sequences: 16, context: 4096, cache_tokens: 65536, step_rows: 256, steps_in_flight: 2,
 *      prefix_cache: 0, peer_timeout: 1500 ms, start_timeout: 120 s, exit_on_peer_loss: false}
 *
 * A range is "a-b" (inclusive), one number, "a-last" or "all"; a range that is left out is all.
 * Durations are in ms, s or min. Later rules win over earlier ones; what no rule names gets its
 * default share. Two lists add up instead: replicas let experts stand on a node besides those that
 * hold them already; routers of several nodes for a layer are mirrors, and either all layers have
 * rules or none. A mirror that has not attention or slices in every layer of its span is left out
 * of the plan, as nobody would wait for it; another router feeds its node. */
#ifndef TR_CORE_PLACEMENT_H
#define TR_CORE_PLACEMENT_H

#include "core/error.h"
#include "core/runtime.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TR_NAME_SIZE  64
#define TR_PATH_SIZE  1024
#define TR_URL_SIZE   256
#define TR_RULES_MAX  4096
#define TR_LAYERS_MAX 256
#define TR_TERMS_MAX  1024 /* terms of one sub-layer of one layer */

static_assert(TR_NODES_MAX <= 16, "nodes are bits of the 16-bit masks of a plan");

typedef struct {
    char name[TR_NAME_SIZE];
    char host[TR_URL_SIZE];    /* where launch starts it: "127.0.0.1"/"localhost" = child process,
                                  otherwise over ssh */
    char control[TR_URL_SIZE]; /* NNG URL of its control socket, "tcp://127.0.0.1:7701" */
    char transport_options[TR_URL_SIZE]; /* "" or "key=value,key=value", where a part without '='
                                            belongs to the value before it, so that a value may
                                            hold commas; tr_transport_config.options */
    uint64_t memory_bytes; /* budget; 0: the file does not say, see tr_placement_memory */
    uint32_t threads;      /* kernel threads; default 1 */
    uint32_t workers;      /* actor workers; default 1 */
    bool streams;          /* default false; true: the model's files are on other nodes, at least
                              one of which has them */
} tr_placement_node;

/* "items first..last of layers first_layer..last_layer stand on node". Later rules win. */
typedef struct {
    uint32_t node;
    uint32_t first_layer, last_layer; /* inclusive; last_layer UINT32_MAX = to the end */
    uint32_t first, last;             /* inclusive; last UINT32_MAX = to the end */
} tr_placement_rule;

typedef struct {
    tr_placement_rule *rules; /* owns */
    uint32_t count;
} tr_placement_rules;

/* The file, validated as far as that is possible without the model. */
typedef struct {
    char source[TR_PATH_SIZE];    /* path of the file, for messages */
    char model[TR_PATH_SIZE];     /* resolved against the file's folder when relative */
    char transport[TR_NAME_SIZE]; /* data plane: "ucx" (default), "nng", "loop" */
    bool activations_nvfp4;       /* false (default): f32 activations; true: rounded to NVFP4 before
                                     products with weights that have a scale for them */
    tr_placement_node nodes[TR_NODES_MAX];
    uint32_t nodes_count;
    uint32_t batcher_node;        /* default 0 */
    uint32_t sampler_node;        /* lead sampler; default 0 */
    uint32_t ngram_node;          /* n-gram tables; default 0 */
    bool ngram_named;             /* the file has the key, so the model must have a table */
    char api_host[TR_URL_SIZE];   /* default 127.0.0.1 */
    uint16_t api_port;            /* default 8888; 0 = no API */
    tr_placement_rules routers;   /* first..last unused: layers on node; several nodes = mirrored */
    tr_placement_rules attention; /* first..last: attention terms (head groups) */
    tr_placement_rules experts;   /* routed experts */
    tr_placement_rules replicas;  /* routed experts that stand on node, too */
    tr_placement_rules slices;    /* slices of shared experts and dense layers */
    tr_placement_rules vocabulary; /* rows of the output matrix; layers unused */
    struct {
        uint32_t sequences;       /* at once; default 16 */
        uint32_t context;         /* tokens of one sequence; default min(model, 8192) -> 0 here */
        uint32_t cache_tokens;    /* KV tokens over all sequences; default sequences * context / 4,
                                     at least one context -> 0 here */
        uint32_t step_rows;       /* most rows of a step; default 256; multiple of 64 */
        uint32_t steps_in_flight; /* default 2, 1..4 */
        uint32_t prefix_cache; /* prompts whose state is kept for later requests that begin alike;
                                  default 0: each takes the state of a sequence, which the
                                  budget must have, and a step of its own */
        uint32_t peer_timeout_ms; /* silence after which a peer is dead; default 1500 */
        uint32_t start_timeout_s; /* peers must all be ready by then; default 120 */
        bool exit_on_peer_loss; /* default false: go on without it, if the others can hold the model
                                 */
    } limits;
} tr_placement;

/* Reads and checks a placement file. Events, not documents: anchors, aliases, tags, duplicate keys
 * and unknown keys are refused; each error has file, line, column, path of keys, found, expected.
 * tr_placement_free frees what *out owns. Thread: any. */
tr_status tr_placement_read(tr_placement *out, const char *path, tr_error *err);

/* The same from memory; name stands for the path in errors and for resolving the model ("."). */
tr_status tr_placement_parse(tr_placement *out, const char *name, const char *text, size_t size,
                             tr_error *err);

/* One node named "local" with everything on it, for run, logits and perplexity. */
void tr_placement_local(tr_placement *out, const char *model, uint32_t threads);

void tr_placement_free(tr_placement *placement);

/* The file as YAML again, with defaults written out; tr_placement_parse reads it back. */
void tr_placement_print(const tr_placement *placement, FILE *out);

/* Node index by name, or TR_NODES_MAX. */
uint32_t tr_placement_find_node(const tr_placement *placement, const char *name);

/* Whether a host of a placement file is the machine that reads it. */
bool tr_placement_is_here(const char *host);

/* The budget of a node: what the file says, or else its share of 90 % of what its machine had free.
 * What the file says of other nodes of that machine comes off first; those of which it says nothing
 * get equal shares. Nodes stand on one machine when they have the same host, or the same process.
 *
 *   free_bytes  tr_free_memory of that machine, before any of its nodes has taken something: the
 *               shares of nodes that look one after another are smaller, never larger
 *   sharers     nodes that the 90 % were divided among; 0: the file says it. May be NULL
 *
 * Never 0: without a byte to give it is 1, which no node fits. */
uint64_t tr_placement_memory(const tr_placement *placement, uint32_t node, uint64_t free_bytes,
                             uint32_t *sharers);

/* What the plan must know of a model: counts only. */
typedef struct {
    uint32_t layers_count;
    uint16_t attention_terms[TR_LAYERS_MAX];
    uint16_t experts[TR_LAYERS_MAX]; /* routed experts; 0 in a dense layer */
    uint16_t slices[TR_LAYERS_MAX];  /* always-chosen slices */
    uint32_t ngram_tables;           /* of all layers; they stand together on one node */
    uint32_t vocab_size;
    uint32_t vocab_granule; /* ranges are cut at multiples of this */
} tr_plan_shape;

/* A span of layers whose residual stream a set of nodes holds. Spans are in order and cover all
 * layers; nodes is a bit mask (bit i = node i), at least one bit. */
typedef struct {
    uint32_t first_layer, last_layer; /* inclusive */
    uint32_t nodes;
} tr_plan_span;

typedef struct {
    uint32_t first, last; /* vocabulary rows, inclusive */
    uint32_t node;
} tr_plan_range;

/* The complete placement. */
typedef struct {
    uint64_t epoch; /* 1 at start */
    tr_plan_shape shape;
    uint32_t nodes_count;
    uint32_t batcher_node;
    uint32_t sampler_node;
    uint32_t ngram_node; /* if shape.ngram_tables > 0 */
    tr_plan_span spans[TR_LAYERS_MAX];
    uint32_t spans_count;
    uint8_t *attention; /* owns; [layers][TR_TERMS_MAX] node of each term */
    uint16_t *channel;  /* owns; [layers][TR_TERMS_MAX] bit per node that holds an expert, then of
                           each slice; several bits only for experts: replicas */
    tr_plan_range *ranges; /* owns; in order, cover 0..vocab_size-1 */
    uint32_t ranges_count;
} tr_plan;

/* Fills every gap by the default (sliced): routers mirrored on all nodes over one span, attention
 * terms, experts, slices and vocabulary divided over the nodes in contiguous, nearly equal shares.
 * Routers stay on the nodes that have work in each layer of their span.
 * errors  TR_E_INVALID naming file, rule and value (layer or term beyond the model, vocabulary gap
 *         not on the granule, a layer without router). */
tr_status tr_plan_make(tr_plan *out, const tr_placement *placement, const tr_plan_shape *shape,
                       tr_error *err);

/* Takes away the mirrors that have no work in some layer of their span, as above, and joins spans
 * that have become alike. Whoever lets terms stand elsewhere calls it. */
void tr_plan_settle_routers(tr_plan *plan);

/* A deep copy; tr_plan_free frees it. errors TR_E_NOMEM */
tr_status tr_plan_copy(tr_plan *out, const tr_plan *plan, tr_error *err);

void tr_plan_free(tr_plan *plan);

/* Whether anything of the model stands on a node. */
bool tr_plan_uses(const tr_plan *plan, uint32_t node);

static inline uint32_t tr_plan_attention_node(const tr_plan *plan, uint32_t layer, uint32_t term)
{
    return plan->attention[(size_t)layer * TR_TERMS_MAX + term];
}

/* Bit per node that holds a term, at least one.
 *   term  0..experts-1 routed experts, experts..experts+slices-1 slices */
static inline uint32_t tr_plan_channel_nodes(const tr_plan *plan, uint32_t layer, uint32_t term)
{
    return plan->channel[(size_t)layer * TR_TERMS_MAX + term];
}

/* The first of them: the only one of a slice, and of an expert without replicas. */
static inline uint32_t tr_plan_channel_node(const tr_plan *plan, uint32_t layer, uint32_t term)
{
    return (uint32_t)__builtin_ctz(tr_plan_channel_nodes(plan, layer, term));
}

#endif
