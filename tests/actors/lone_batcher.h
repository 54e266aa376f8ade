/* lone_batcher.h - the batcher alone in a cluster of one node: the test plays client, KV pool,
 * sampler and the cluster's thread. */
#ifndef TR_TESTS_ACTORS_LONE_BATCHER_H
#define TR_TESTS_ACTORS_LONE_BATCHER_H

#include "actors/switch.h"
#include "tests/actors/fake_env.h"

static const tr_actor_id client = ((tr_actor_id)TR_ACTOR_CLIENT << 48) + 3;

typedef struct {
    fake f;
    fake_cluster c;
    void *batcher;
    uint64_t step; /* the last one that was answered */
    _Atomic uint32_t done;
    uint32_t positions[3];
    int32_t tokens[400];
    tr_slot_view view;
} fixture;

static inline void batcher_open(fixture *x, uint32_t prefixes_max, size_t state_size)
{
    memset(x, 0, sizeof(*x));
    fake_cluster_make(&x->c, 1);
    x->c.node.prefixes_max = prefixes_max;
    x->c.node.kv.state_size = state_size;
    fake_open(&x->f, tr_node_actor(TR_ACTOR_BATCHER, 0));
    x->batcher = fake_actor_open(&x->f, &x->c, &tr_batcher_ops, tr_batcher_count);
    x->view.tokens = x->tokens;
}

static inline void batcher_close(fixture *x)
{
    fake_actor_close(&x->c, &tr_batcher_ops, x->batcher);
    fake_close(&x->f);
}

static inline void give(fixture *x, tr_actor_id source, tr_msg_kind kind, uint64_t step,
                        uint32_t argument, const void *payload, size_t size)
{
    fake_give(&x->f, &tr_batcher_ops, x->batcher, source, kind, step, argument, payload, size);
}

static inline void reserved(fixture *x, uint32_t slot, bool admitted)
{
    tr_kv_reserved answer = {.admitted = admitted};
    give(x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RESERVED, 0, slot, &answer,
         sizeof(answer));
}

static inline void released(fixture *x, uint32_t slot)
{
    give(x, tr_node_actor(TR_ACTOR_KV_POOL, 0), TR_MSG_KV_RELEASED, 0, slot, NULL, 0);
}

/* The step under way ends; with request 0 nobody gets a token. */
static inline void end_step(fixture *x, uint64_t request, uint32_t slot, int32_t token)
{
    struct {
        tr_token_head head;
        tr_token token;
    } payload = {.head = {.count = request != 0},
                 .token = {.request = request, .sequence = slot, .token = token}};
    fake_clear(&x->f);
    give(x, tr_node_actor(TR_ACTOR_SAMPLER, 0), TR_MSG_TOKENS, ++x->step, 0, &payload,
         sizeof(tr_token_head) + payload.head.count * sizeof(tr_token));
}

static inline void tell(fixture *x, tr_switch_what what)
{
    tr_switch s = {.what = what,
                   .node = &x->c.node,
                   .positions = x->positions,
                   .slot = &x->view,
                   .done = &x->done};
    give(x, tr_actor_id_make(TR_ACTOR_SUPERVISOR, 0), TR_MSG_SWITCH, 0, 0, &s, sizeof(s));
}

/* The only segment of the step that was sent last. */
static inline tr_segment read_segment(const fixture *x)
{
    tr_step_view v;
    tr_error err = {0};
    const tr_msg *msg = fake_find(&x->f, TR_MSG_STEP);
    assert_non_null(msg);
    CHECK_STATUS(tr_step_read(&v, msg, &x->c.node.limits, &err), TR_OK);
    assert_int_equal(v.head.segments_count, 1);
    return v.segments[0];
}

#endif
