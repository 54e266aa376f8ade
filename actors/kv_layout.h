/* kv_layout.h - where sequence state lies: what the KV pool cuts and the attention shard reads.
 *
 * A page holds TR_KV_PAGE_TOKENS positions, a state slot what does not grow with the positions. In
 * both, layer after layer: what the layer keeps once on every node that holds a term of it, then
 * what each of its terms keeps. The parts' sizes are the mixers' (mixer.h).
 *
 * Every part of the model has its place on every node, whether the node holds it or not, so that a
 * term that moves finds its state at the same offset. The places of absent parts are address space
 * without memory behind it. */
#ifndef TR_ACTORS_KV_LAYOUT_H
#define TR_ACTORS_KV_LAYOUT_H

#include "core/model/model_spec.h"
#include "core/placement.h"

#include <stddef.h>

typedef struct {
    size_t page_size;     /* bytes from one page to the next; 0: nothing grows with the positions */
    size_t state_size;    /* bytes from one state slot to the next; 0: no recurrent state */
    size_t page_present;  /* bytes of a page that the node holds */
    size_t state_present; /* bytes of a state slot that the node holds */
} tr_kv_layout;

/* Sizes for one node. */
void tr_kv_layout_make(tr_kv_layout *out, const tr_model_spec *spec, const tr_plan *plan,
                       uint32_t node);

/* A part of a page or of a state slot. */
typedef struct {
    uint32_t layer;
    uint32_t term;                   /* TR_KV_LAYER: what the layer keeps once */
    size_t page_offset, page_size;   /* bytes; size 0: nothing in pages */
    size_t state_offset, state_size; /* likewise in state slots */
} tr_kv_part;

#define TR_KV_LAYER UINT32_MAX

/* Whether a node holds a part under a plan. */
bool tr_kv_part_stands(const tr_kv_part *part, const tr_plan *plan, uint32_t node);

/* Calls each for every part of the model, in order of offsets. */
void tr_kv_each_part(const tr_model_spec *spec, void (*each)(void *ctx, const tr_kv_part *part),
                     void *ctx);

/* The part of a layer and a term; false: the model has none there that keeps something. */
bool tr_kv_find_part(const tr_model_spec *spec, uint32_t layer, uint32_t term, tr_kv_part *out);

/* Bytes that one term, and that a layer once, takes in a page and in a state slot. */
size_t tr_kv_term_page_size(const tr_layer_spec *layer);
size_t tr_kv_term_state_size(const tr_layer_spec *layer);
size_t tr_kv_layer_page_size(const tr_layer_spec *layer);
size_t tr_kv_layer_state_size(const tr_layer_spec *layer);

/* -- the memory of all pages and state slots of a node -- */

typedef struct {
    uint8_t *pages;  /* [pages_count] of layout.page_size */
    uint8_t *states; /* [states_count] of layout.state_size */
    uint32_t pages_count, states_count;
    size_t page_size, state_size; /* of the layout */
} tr_kv_memory;

/* Reserves address space. errors TR_E_NOMEM */
tr_status tr_kv_memory_open(tr_kv_memory *out, const tr_kv_layout *layout, uint32_t pages_count,
                            uint32_t states_count, tr_error *err);
void tr_kv_memory_close(tr_kv_memory *memory);

/* Puts memory, zeroed, behind the parts that the node holds under plan and did not hold under
 * before (NULL: nothing), so that no page fault waits on the token path. */
void tr_kv_memory_populate(tr_kv_memory *memory, const tr_model_spec *spec, const tr_plan *before,
                           const tr_plan *plan, uint32_t node);

/* Gives back the memory of the parts that the node held under before and does not hold under plan.
 */
void tr_kv_memory_release(tr_kv_memory *memory, const tr_model_spec *spec, const tr_plan *before,
                          const tr_plan *plan, uint32_t node);

#endif
