#include "actors/cluster_host.h"

#include "actors/cluster_hand.h"
#include "actors/cluster_node.h"
#include "core/by_hand.h"

#define LOCK_RETRY_NS 10000 /* by hand */

uint64_t cluster_now(const tr_cluster *c)
{
    const tr_cluster_hand *hand = c->options.hand;
    return hand != NULL ? hand->now_ns(hand->ctx) : tr_clock_ns();
}

uint64_t cluster_after(const tr_cluster *c, uint64_t ns)
{
    return cluster_now(c) + ns;
}

void cluster_sleep(const tr_cluster *c, uint64_t ns)
{
    const tr_cluster_hand *hand = c->options.hand;
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    if (hand != NULL)
        hand->sleep(hand->ctx, ns);
    else
        nanosleep(&t, NULL);
}

void cluster_lock(const tr_cluster *c, pthread_mutex_t *lock)
{
    if (c->options.hand == NULL) {
        pthread_mutex_lock(lock);
        return;
    }
    while (pthread_mutex_trylock(lock) != 0)
        cluster_sleep(c, LOCK_RETRY_NS);
}

bool cluster_thread_start(const tr_cluster *c, cluster_thread *thread, void *(*run)(void *),
                          void *arg)
{
    const tr_cluster_hand *hand = c->options.hand;
    if (hand != NULL)
        thread->running = (thread->task = hand->spawn(hand->ctx, run, arg)) != NULL;
    else
        thread->running = pthread_create(&thread->thread, NULL, run, arg) == 0;
    return thread->running;
}

void cluster_thread_join(const tr_cluster *c, cluster_thread *thread)
{
    const tr_cluster_hand *hand = c->options.hand;
    if (!thread->running)
        return;
    if (hand != NULL)
        hand->join(hand->ctx, thread->task);
    else
        pthread_join(thread->thread, NULL);
    thread->running = false;
}

tr_status cluster_call_node(const tr_cluster *c, cluster_lines *lines, uint32_t node,
                            const msgpack_sbuffer *request, uint64_t deadline_ns,
                            tr_control_reply *reply, tr_error *err)
{
    const tr_cluster_hand *hand = c->options.hand;
    const _Atomic bool *there = node != c->node_index ? &c->peers[node].alive : NULL;
    char url[TR_URL_SIZE + 64];

    if (hand != NULL)
        return hand->call(hand->ctx, node, there, request, deadline_ns, reply, err);
    if (lines->clients[node] == NULL) {
        cluster_control_url(c, node, url, sizeof(url));
        tr_status status = tr_control_client_open(&lines->clients[node], url, err);
        if (status != TR_OK) {
            tr_control_reply_init(reply);
            return status;
        }
        if (there != NULL)
            tr_control_client_while(lines->clients[node], there);
    }
    return tr_control_call(lines->clients[node], request, deadline_ns, reply, err);
}

tr_status cluster_call_over(const tr_cluster *c, tr_control_client *client, uint32_t node,
                            const msgpack_sbuffer *request, uint64_t deadline_ns,
                            tr_control_reply *reply, tr_error *err)
{
    const tr_cluster_hand *hand = c->options.hand;
    if (hand != NULL)
        return hand->call(hand->ctx, node, NULL, request, deadline_ns, reply, err);
    return tr_control_call(client, request, deadline_ns, reply, err);
}

tr_status cluster_start_workers(const tr_cluster *c, tr_error *err)
{
    return c->options.hand != NULL ? tr_runtime_start_by_hand(c->runtime, err)
                                   : tr_runtime_start(c->runtime, err);
}

void cluster_close_lines(cluster_lines *lines)
{
    for (uint32_t n = 0; n < TR_NODES_MAX; n++) {
        if (lines->clients[n] != NULL)
            tr_control_client_close(lines->clients[n]);
        lines->clients[n] = NULL;
    }
}
