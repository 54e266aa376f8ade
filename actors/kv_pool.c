/* kv_pool.c - owns the memory of all sequence state on a node: pages of keys and values, and state
 * slots for recurrences. Leases it to the attention shard beside it.
 *
 *   state of a sequence
 *     FREE   --KV_RESERVE, room--> LEASED      (KV_LEASE to the shard, KV_RESERVED admitted)
 *     FREE   --KV_RESERVE, none--> FREE        (KV_RESERVED refused)
 *     LEASED --KV_RELEASE-->       RETURNING   (KV_REVOKE to the shard)
 *     FREE   --KV_RELEASE-->       FREE        (KV_RELEASED: it was refused here, not elsewhere)
 *     RETURNING --KV_RETURNED-->   FREE        (KV_RELEASED to the batcher)
 *
 * A sequence gets all pages that it can ever need when it is admitted: no page is asked for while
 * tokens flow, and an admitted sequence cannot run out. The first ones may be those of another
 * sequence that begins with the same tokens (page_book.h).
 *
 * owns     free pages + pages that some sequence holds == pages_max
 * sends    one message per message */
#include "actors/page_book.h"
#include "actors/switch.h"

#include <string.h>

typedef enum { SEQUENCE_FREE, SEQUENCE_LEASED, SEQUENCE_RETURNING } sequence_phase;

typedef struct {
    const tr_env *env;
    const tr_node_context *node;
    tr_page_book book;
    sequence_phase *phases; /* [sequences_max] */
} pool_state;

static uint32_t pages_for(const tr_node_context *node, uint64_t tokens)
{
    if (node->kv.page_size == 0)
        return 0;
    return (uint32_t)((tokens + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS);
}

static void pool_load(pool_state *s, const tr_node_context *node, tr_arena *arena)
{
    uint32_t sequences = node->limits.sequences_max;

    tr_page_book_load(&s->book, node->pages_max, sequences,
                      pages_for(node, node->limits.context_max), arena);
    s->phases = tr_arena_take(arena, sequences * sizeof(*s->phases));
}

void tr_kv_pool_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    pool_state s = {0};
    uint64_t before = tr_arena_counted(counting);
    pool_load(&s, node, counting);
    tr_budget_add(budget, "sequence states",
                  node->prefixes_max > 0 ? "limits.sequences, prefix_cache" : "limits.sequences",
                  node->limits.sequences_max * node->kv.state_present);
    tr_budget_add(budget, "kv pages", "limits.cache_tokens",
                  tr_arena_counted(counting) - before + node->pages_max * node->kv.page_present);
}

static tr_status pool_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    pool_state *s = state;
    const tr_actor_config *c = config;

    s->env = env;
    s->node = c->node;
    c->arena->err = err;
    pool_load(s, c->node, c->arena);
    return c->arena->status;
}

static tr_status pool_answer(pool_state *s, const tr_msg *msg, bool admitted)
{
    tr_buf *buf = s->env->take(s->env->ctx, sizeof(tr_kv_reserved));
    /* Without a buffer the answer is empty, which is a refusal: the lease comes back by KV_RELEASE.
     */
    if (buf != NULL)
        *(tr_kv_reserved *)(void *)buf->data =
            (tr_kv_reserved){.admitted = admitted, .node = s->node->node_index};
    (void)s->env->send(s->env->ctx, msg->header.source, TR_MSG_KV_RESERVED, 0, msg->header.argument,
                       buf); /* a dead batcher needs no answer */
    return TR_OK;
}

typedef struct {
    const tr_node_context *node;
    uint8_t *state;
} state_slot;

static void zero_state_part(void *ctx, const tr_kv_part *part)
{
    state_slot *slot = ctx;
    if (part->state_size > 0 && tr_kv_part_stands(part, slot->node->plan, slot->node->node_index))
        memset(slot->state + part->state_offset, 0, part->state_size);
}

/* Memory of a sequence, as a message to the shard. False when no buffer was free. */
static bool pool_lease(pool_state *s, uint32_t sequence, uint32_t generation)
{
    const tr_page_list *list = &s->book.slots[sequence];
    size_t size = sizeof(tr_kv_lease) + list->count * sizeof(uint8_t *);
    tr_buf *buf = s->env->take(s->env->ctx, (uint32_t)size);
    if (buf == NULL)
        return false;
    tr_kv_lease *lease = (void *)buf->data;
    const tr_kv_memory *memory = s->node->kv_memory;
    state_slot slot = {.node = s->node,
                       .state = memory->states + sequence * s->node->kv.state_size};
    lease->state = slot.state;
    lease->pages_count = list->count;
    lease->generation = generation;
    for (uint32_t i = 0; i < list->count; i++)
        lease->pages[i] = memory->pages + list->pages[i] * s->node->kv.page_size;
    tr_kv_each_part(s->node->spec, zero_state_part, &slot);
    return s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_ATTENTION_SHARD, s->node->node_index),
                        TR_MSG_KV_LEASE, 0, sequence, buf) == TR_OK;
}

/* Whether a sequence can share what the reservation says that it shares. */
static bool pool_may_share(const pool_state *s, const tr_kv_reserve *request, uint32_t sequence)
{
    if (request->shared_pages == 0)
        return true;
    return request->shared_with < s->node->limits.sequences_max &&
           request->shared_with != sequence && s->phases[request->shared_with] == SEQUENCE_LEASED &&
           request->shared_pages <= s->book.slots[request->shared_with].count &&
           request->shared_pages <= pages_for(s->node, request->tokens);
}

static tr_status pool_on_reserve(pool_state *s, const tr_msg *msg)
{
    uint32_t sequence = msg->header.argument;
    tr_kv_reserve request;
    if (msg->payload == NULL || msg->header.payload_size != sizeof(request))
        return pool_answer(s, msg, false);
    memcpy(&request, msg->payload->data, sizeof(request));
    if (s->phases[sequence] != SEQUENCE_FREE || request.tokens > s->node->limits.context_max ||
        !pool_may_share(s, &request, sequence) ||
        !tr_page_book_take(&s->book, sequence, pages_for(s->node, request.tokens),
                           request.shared_with, request.shared_pages))
        return pool_answer(s, msg, false);
    if (!pool_lease(s, sequence, request.generation)) {
        tr_page_book_give(&s->book, sequence);
        return pool_answer(s, msg, false);
    }
    s->phases[sequence] = SEQUENCE_LEASED;
    return pool_answer(s, msg, true);
}

static void pool_tell_released(pool_state *s, uint32_t sequence)
{
    (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_BATCHER, 0), TR_MSG_KV_RELEASED, 0,
                       sequence, NULL); /* a dead batcher needs no answer */
}

static tr_status pool_on_release(pool_state *s, const tr_msg *msg)
{
    sequence_phase *phase = &s->phases[msg->header.argument];
    if (*phase == SEQUENCE_FREE)
        pool_tell_released(s, msg->header.argument);
    if (*phase != SEQUENCE_LEASED)
        return TR_OK; /* told twice */
    *phase = SEQUENCE_RETURNING;
    return s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_ATTENTION_SHARD, s->node->node_index),
                        TR_MSG_KV_REVOKE, 0, msg->header.argument, NULL);
}

static tr_status pool_on_returned(pool_state *s, const tr_msg *msg)
{
    if (s->phases[msg->header.argument] != SEQUENCE_RETURNING)
        return TR_OK;
    tr_page_book_give(&s->book, msg->header.argument);
    s->phases[msg->header.argument] = SEQUENCE_FREE;
    pool_tell_released(s, msg->header.argument);
    return TR_OK;
}

/* What is lent and what is free lives on. */
static void pool_adopt(void *fresh, void *state)
{
    pool_state *f = fresh, *s = state;
    f->env = s->env;
    tr_page_book_adopt(&f->book, &s->book);
    memcpy(f->phases, s->phases, s->node->limits.sequences_max * sizeof(*f->phases));
}

static tr_status pool_receive(void *state, const tr_msg *msg)
{
    pool_state *s = state;
    tr_switch_apply(msg, s, sizeof(*s), pool_adopt);
    bool about_sequence = msg->header.kind == TR_MSG_KV_RESERVE ||
                          msg->header.kind == TR_MSG_KV_RELEASE ||
                          msg->header.kind == TR_MSG_KV_RETURNED;
    if (!about_sequence || msg->header.argument >= s->node->limits.sequences_max)
        return TR_OK;
    if (msg->header.kind == TR_MSG_KV_RESERVE)
        return pool_on_reserve(s, msg);
    if (msg->header.kind == TR_MSG_KV_RELEASE)
        return pool_on_release(s, msg);
    return pool_on_returned(s, msg);
}

static void pool_teardown(void *state)
{
    (void)state; /* everything lies in the arena, which the cluster owns */
}

const tr_actor_ops tr_kv_pool_ops = {
    .kind = "kv_pool",
    .state_size = sizeof(pool_state),
    .mailbox_slots = 1024,
    .outbox_slots = 8,
    .init = pool_init,
    .receive = pool_receive,
    .teardown = pool_teardown,
};
