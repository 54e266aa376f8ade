/* batcher_welcome.c - a node that was lost is there again, with empty KV pools.
 *
 * Before any part can come to stand on it, it must hold memory for every sequence and prefix that
 * the others hold memory for, with the same pages shared; so it is asked for that first, slot by
 * slot, and only then with the others. A pause is not answered before it has given all of it
 * (batcher_answer_pause). Nothing is in that memory yet: states come when parts do. */
#include "actors/batcher.h"

/* Whether the pools hold memory for a slot, or have been asked for it. */
static bool is_held(const batcher_sequence *q)
{
    return q->phase != SEQUENCE_FREE && q->phase != SEQUENCE_RELEASING;
}

/* The slot that a node has been asked for whose first pages are most of those of q. */
static uint32_t find_shared(const batcher_state *s, const batcher_sequence *q, uint32_t node,
                            uint32_t *shared_pages)
{
    const tr_page_list *own = &s->pages.slots[q - s->sequences];
    uint32_t best = 0;
    *shared_pages = 0;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        const batcher_sequence *other = &s->sequences[i];
        const tr_page_list *list = &s->pages.slots[i];
        uint32_t count = 0;
        if (other == q || !is_held(other) || !((other->leased & ~other->returning) >> node & 1))
            continue;
        while (count < own->count && count < list->count && own->pages[count] == list->pages[count])
            count++;
        if (count > *shared_pages) {
            best = i;
            *shared_pages = count;
        }
    }
    return best;
}

/* False: no buffer was free. */
static bool ask_for_slot(batcher_state *s, batcher_sequence *q, uint32_t node)
{
    uint32_t shared_pages = 0, shared_with = find_shared(s, q, node, &shared_pages);
    tr_buf *buf = s->env->take(s->env->ctx, sizeof(tr_kv_reserve));
    if (buf == NULL) {
        s->starved = true;
        return false;
    }
    *(tr_kv_reserve *)(void *)buf->data = (tr_kv_reserve){.tokens = q->positions_max,
                                                          .generation = q->generation,
                                                          .shared_with = (uint16_t)shared_with,
                                                          .shared_pages = (uint16_t)shared_pages};
    q->leased |= 1u << node;
    q->late |= 1u << node;
    /* Should it die again, PEER_DOWN says so. */
    (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_KV_POOL, node), TR_MSG_KV_RESERVE, 0,
                       (uint32_t)(q - s->sequences), buf);
    return true;
}

void batcher_on_peer_up(batcher_state *s, uint32_t node)
{
    s->dead_nodes &= ~(1u << node);
    s->welcome |= 1u << node;
}

void batcher_ask_welcome(batcher_state *s)
{
    for (uint32_t n = 0; s->welcome >> n != 0; n++) {
        bool all = true;
        if (!(s->welcome >> n & 1))
            continue;
        for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
            batcher_sequence *q = &s->sequences[i];
            if (is_held(q) && !(q->leased >> n & 1) && !ask_for_slot(s, q, n))
                return; /* tried again soon */
            all &= !is_held(q) || !(q->returning >> n & 1);
        }
        if (!all)
            continue;
        s->welcome &= ~(1u << n);
        s->pools |= 1u << n;
    }
}

bool batcher_welcome_answered(batcher_state *s, uint32_t slot, uint32_t node, bool admitted)
{
    if (slot >= s->node->limits.sequences_max || node >= TR_NODES_MAX)
        return false;
    batcher_sequence *q = &s->sequences[slot];
    uint32_t bit = 1u << node;
    if (!(q->late & bit))
        return false;
    q->late &= ~bit;
    if (admitted || !is_held(q))
        return true;
    /* It had no buffer: it has room for all that the others have. Whatever it holds comes back
     * before it is asked again, and until then nobody can share with it there. */
    q->returning |= bit;
    s->pools &= ~bit;
    s->welcome |= bit;
    (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_KV_POOL, node), TR_MSG_KV_RELEASE, 0,
                       slot, NULL);
    return true;
}

bool batcher_welcome_released(batcher_state *s, uint32_t slot, uint32_t node)
{
    if (slot >= s->node->limits.sequences_max || node >= TR_NODES_MAX)
        return false;
    batcher_sequence *q = &s->sequences[slot];
    uint32_t bit = 1u << node;
    if (!(q->returning & bit))
        return false;
    q->returning &= ~bit;
    if (!is_held(q))
        return false; /* it has ended meanwhile, and waits for this */
    q->leased &= ~bit;
    return true;
}

bool batcher_welcome_done(const batcher_state *s)
{
    uint32_t open = s->welcome;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++)
        open |= is_held(&s->sequences[i]) ? s->sequences[i].late : 0;
    return open == 0;
}

void batcher_forget_welcome(batcher_state *s, uint32_t node)
{
    s->welcome &= ~(1u << node);
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        s->sequences[i].leased &= ~(1u << node);
        s->sequences[i].late &= ~(1u << node);
        s->sequences[i].returning &= ~(1u << node);
    }
}
