/* node.c - see node.h. */
#include "tests/transport/node.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* Byte i of message number. Differs between neighbours in both. */
static uint8_t node_byte(uint64_t number, uint32_t i)
{
    return (uint8_t)(number * 31 + i * 7 + (i >> 8));
}

static bool node_bytes_are_right(const tr_msg *msg)
{
    if (msg->header.payload_size == 0)
        return msg->payload == NULL;
    if (msg->payload == NULL || msg->payload->size != msg->header.payload_size)
        return false;
    for (uint32_t i = 0; i < msg->payload->size; i++)
        if (msg->payload->data[i] != node_byte(msg->header.step, i))
            return false;
    return true;
}

static void node_deliver(void *ctx, uint32_t source_node, const tr_msg *msg)
{
    node *n = ctx;

    if (msg->header.step != n->delivered_from[source_node] || !node_bytes_are_right(msg))
        n->broken = true;
    n->last = msg->header;
    n->delivered_from[source_node]++;
    n->delivered_count++;
    if (n->hold && n->held_count < NODE_HELD_MAX && msg->payload != NULL)
        n->held[n->held_count++] = msg->payload;
    else
        tr_buf_unref(msg->payload);
}

static void node_peer_down(void *ctx, uint32_t node_index, const char *reason)
{
    node *n = ctx;

    n->downs_count++;
    n->down_node = node_index;
    snprintf(n->down_reason, sizeof(n->down_reason), "%s", reason);
}

tr_status node_open(node *n, const tr_transport_ops *ops, const char *options, uint32_t index,
                    uint32_t nodes_count, uint32_t small_count, uint32_t large_count, tr_error *err)
{
    tr_pool_class classes[] = {{4096, small_count}, {1u << 20, large_count}};

    *n = (node){.ops = ops, .index = index, .peer = 1 - index};
    tr_status status = tr_pool_open(&n->pool, classes, large_count > 0 ? 2 : 1, err);
    if (status != TR_OK)
        return status;
    n->pool_count = tr_pool_free_count(n->pool);
    tr_transport_config config = {
        .node_index = index,
        .nodes_count = nodes_count,
        .pool = n->pool,
        .options = options,
        .deliver = node_deliver,
        .peer_down = node_peer_down,
        .ctx = n,
    };
    status = ops->open(&n->transport, &config, err);
    if (status != TR_OK) {
        tr_pool_close(n->pool);
        n->pool = NULL;
    }
    return status;
}

void node_close(node *n)
{
    if (n->transport != NULL)
        n->ops->close(n->transport);
    n->transport = NULL;
}

void node_release_held(node *n)
{
    for (uint32_t i = 0; i < n->held_count; i++)
        tr_buf_unref(n->held[i]);
    n->held_count = 0;
}

bool node_finish(node *n)
{
    if (n->pool == NULL)
        return true;
    node_release_held(n);
    node_close(n);
    bool complete = tr_pool_free_count(n->pool) == n->pool_count;
    if (!complete)
        fprintf(stderr, "node %u: %u of %u buffers came back\n", n->index,
                tr_pool_free_count(n->pool), n->pool_count);
    else
        tr_pool_close(n->pool);
    n->pool = NULL;
    return complete;
}

tr_status node_connect(node *from, node *to, tr_error *err)
{
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    size_t size = 0;

    tr_status status = to->ops->address(to->transport, address, sizeof(address), &size, err);
    if (status != TR_OK)
        return status;
    return from->ops->connect(from->transport, to->index, address, size,
                              tr_clock_ns() + NODE_PATIENCE_NS, err);
}

tr_status node_send(node *n, uint32_t size)
{
    tr_msg msg = {.header = {.kind = TR_MSG_PING,
                             .source = tr_actor_id_make(TR_ACTOR_TEST, n->index + 1),
                             .target = tr_actor_id_make(TR_ACTOR_TEST, n->peer + 1),
                             .epoch = 5,
                             .step = n->sent_count,
                             .trace_id = 77,
                             .payload_size = size,
                             .argument = 9}};

    if (size > 0) {
        msg.payload = tr_pool_take(n->pool, size);
        if (msg.payload == NULL)
            return TR_E_AGAIN;
        for (uint32_t i = 0; i < size; i++)
            msg.payload->data[i] = node_byte(n->sent_count, i);
    }
    tr_status status = n->ops->send(n->transport, n->peer, &msg);
    if (status == TR_OK)
        n->sent_count++;
    if (status == TR_E_AGAIN)
        tr_buf_unref(msg.payload);
    return status;
}

static void node_turn(node *a, node *b)
{
    uint32_t events = a->ops->poll(a->transport);

    if (b != NULL && b->transport != NULL)
        events += b->ops->poll(b->transport);
    if (events == 0)
        sched_yield();
}

bool node_wait(node *a, node *b, const uint64_t *value, uint64_t at_least)
{
    uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;

    while (*value < at_least && tr_clock_ns() < deadline_ns)
        node_turn(a, b);
    return *value >= at_least;
}

bool node_wait_down(node *n)
{
    uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;

    while (n->downs_count == 0 && tr_clock_ns() < deadline_ns)
        node_turn(n, NULL);
    return n->downs_count > 0;
}

tr_status node_send_patiently(node *n, node *other, uint32_t size)
{
    uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;
    tr_status status = node_send(n, size);

    while (status == TR_E_AGAIN && tr_clock_ns() < deadline_ns) {
        node_turn(n, other);
        status = node_send(n, size);
    }
    return status;
}
