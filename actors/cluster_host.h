/* cluster_host.h - what a node takes from the machine that it runs on: time, threads, calls to
 * other nodes. A node that is run by hand (cluster_hand.h) takes all of it from whoever runs it, so
 * that the code of a change of placement is the same under a simulated clock. */
#ifndef TR_ACTORS_CLUSTER_HOST_H
#define TR_ACTORS_CLUSTER_HOST_H

#include "actors/cluster.h"

#include <pthread.h>

/* A thread beside the workers: one that loads, or that coordinates. */
typedef struct {
    bool running; /* started and not joined */
    pthread_t thread;
    void *task; /* by hand; instead of thread */
} cluster_thread;

/* Connections to the control servers of other nodes, opened as needed. Of one thread. */
typedef struct {
    tr_control_client *clients[TR_NODES_MAX]; /* own */
} cluster_lines;

uint64_t cluster_now(const tr_cluster *c);

/* A moment in so many nanoseconds. */
uint64_t cluster_after(const tr_cluster *c, uint64_t ns);

void cluster_sleep(const tr_cluster *c, uint64_t ns);

/* For locks that are held while somebody waits for actors or other nodes: by hand, the holder goes
 * on meanwhile. */
void cluster_lock(const tr_cluster *c, pthread_mutex_t *lock);

/* False: there is none, nothing has happened. */
bool cluster_thread_start(const tr_cluster *c, cluster_thread *thread, void *(*run)(void *),
                          void *arg);

/* Nothing to do for one that does not run. */
void cluster_thread_join(const tr_cluster *c, cluster_thread *thread);

/* A control call to a node, this one or another; it ends when that node is lost, so that nobody
 * waits for the deadline. Errors and reply as tr_control_call. */
tr_status cluster_call_node(const tr_cluster *c, cluster_lines *lines, uint32_t node,
                            const msgpack_sbuffer *request, uint64_t deadline_ns,
                            tr_control_reply *reply, tr_error *err);

/* The same over a connection that is there already; by hand there is none. */
tr_status cluster_call_over(const tr_cluster *c, tr_control_client *client, uint32_t node,
                            const msgpack_sbuffer *request, uint64_t deadline_ns,
                            tr_control_reply *reply, tr_error *err);

/* Starts the workers, or lets them be stepped by hand. */
tr_status cluster_start_workers(const tr_cluster *c, tr_error *err);

void cluster_close_lines(cluster_lines *lines);

#endif
