#include "actors/partial.h"

#include <string.h>

tr_status tr_routers_send(const tr_env *env, const tr_node_context *node, uint32_t layer,
                          tr_msg_kind kind, uint64_t step, uint32_t argument, tr_buf *buf)
{
    uint32_t routers = tr_plan_span_of(node->plan, layer)->nodes;
    tr_status status = TR_OK;

    for (uint32_t i = 0; i < TR_NODES_MAX; i++) {
        /* Our own router first, so that a peer can never be more than one sub-layer ahead of it. */
        uint32_t n = i == 0 ? node->node_index : i <= node->node_index ? i - 1 : i;
        if (!(routers >> n & 1))
            continue;
        tr_status sent = env->send(env->ctx, tr_node_actor(TR_ACTOR_ROUTER, n), kind, step,
                                   argument, tr_buf_ref(buf));
        if (sent != TR_OK)
            status = sent;
    }
    tr_buf_unref(buf);
    return status;
}

tr_status tr_partial_send(const tr_env *env, const tr_node_context *node, tr_team *team,
                          const tr_step_view *v, tr_sub_layer sub, uint64_t step,
                          const int64_t *sums, const uint8_t *flags)
{
    tr_step_head head = {
        .rows_count = v->head.rows_count, .layer = v->head.layer, .width = v->head.width};
    tr_buf *buf = env->take(env->ctx, tr_step_layout(&head, TR_MSG_PARTIAL));
    if (buf == NULL)
        return TR_E_NOMEM;

    memset(buf->data, 0, head.rows_offset); /* padding leaves the process */
    memcpy(buf->data, &head, sizeof(head));
    uint8_t *out_flags = tr_step_at(buf, head.flags_offset);
    memcpy(out_flags, flags, head.rows_count);
    size_t size = node->kernels->sums_pack(team, tr_step_at(buf, head.rows_offset), out_flags, sums,
                                           head.rows_count, head.width);
    buf->size = (uint32_t)(head.rows_offset + size);

    return tr_routers_send(env, node, v->head.layer, TR_MSG_PARTIAL, step, sub, buf);
}

void tr_step_failed_send(const tr_env *env, uint64_t step, tr_status why)
{
    /* A dead batcher needs no news. */
    (void)env->send(env->ctx, tr_node_actor(TR_ACTOR_BATCHER, 0), TR_MSG_STEP_FAILED, step,
                    (uint32_t)-why, NULL);
}
