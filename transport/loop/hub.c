/* hub.c - see hub.h. */
#include "transport/loop/hub.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct tr_loop_hub {
    char name[TR_LOOP_NAME_SIZE];
    uint64_t number;
    uint32_t nodes_count;
    uint32_t members_count;                /* nodes that have joined and not left */
    bool joined[TR_NODES_MAX];             /* and not left */
    _Atomic uint32_t lives[TR_NODES_MAX];  /* how often it has joined */
    _Atomic uint32_t states[TR_NODES_MAX]; /* tr_loop_state */
    _Atomic(tr_loop_ring *) rings[TR_NODES_MAX][TR_NODES_MAX]; /* [from][to], owned; set once */
    tr_loop_hub *next;
};

/* Guards the list of hubs, the members and the creation of rings. Taken alone. */
static pthread_mutex_t hub_lock = PTHREAD_MUTEX_INITIALIZER;
static tr_loop_hub *hub_list;
static uint64_t hub_count;

static tr_loop_hub *hub_find(const char *name)
{
    for (tr_loop_hub *hub = hub_list; hub != NULL; hub = hub->next)
        if (strcmp(hub->name, name) == 0)
            return hub;
    return NULL;
}

static tr_loop_hub *hub_create(const char *name, uint32_t nodes_count)
{
    tr_loop_hub *hub = calloc(1, sizeof(*hub));

    if (hub == NULL)
        return NULL;
    memcpy(hub->name, name, strlen(name) + 1);
    hub->number = ++hub_count;
    hub->nodes_count = nodes_count;
    hub->next = hub_list;
    hub_list = hub;
    return hub;
}

static void hub_destroy(tr_loop_hub *hub)
{
    tr_loop_hub **link = &hub_list;

    while (*link != hub)
        link = &(*link)->next;
    *link = hub->next;
    for (uint32_t from = 0; from < TR_NODES_MAX; from++)
        for (uint32_t to = 0; to < TR_NODES_MAX; to++)
            tr_loop_ring_close(tr_loop_hub_ring(hub, from, to));
    free(hub);
}

static tr_status hub_admit(tr_loop_hub *hub, uint32_t node_index, uint32_t nodes_count,
                           tr_error *err)
{
    if (hub->nodes_count != nodes_count)
        return tr_fail(err, TR_E_INVALID, "loop: cluster %s has %u nodes, node %u expected %u",
                       hub->name, hub->nodes_count, node_index, nodes_count);
    if (hub->joined[node_index])
        return tr_fail(err, TR_E_INVALID, "loop: node %u has already joined cluster %s", node_index,
                       hub->name);
    hub->members_count++;
    hub->joined[node_index] = true;
    atomic_fetch_add_explicit(&hub->lives[node_index], 1, memory_order_release);
    atomic_store_explicit(&hub->states[node_index], TR_LOOP_OPEN, memory_order_release);
    return TR_OK;
}

tr_status tr_loop_hub_join(tr_loop_hub **out, uint32_t *life, const char *name, uint32_t node_index,
                           uint32_t nodes_count, tr_error *err)
{
    assert(strlen(name) < TR_LOOP_NAME_SIZE);
    assert(node_index < nodes_count);
    assert(nodes_count <= TR_NODES_MAX);

    pthread_mutex_lock(&hub_lock);
    tr_loop_hub *hub = hub_find(name);
    if (hub == NULL)
        hub = hub_create(name, nodes_count);
    tr_status status = hub != NULL
                           ? hub_admit(hub, node_index, nodes_count, err)
                           : tr_fail(err, TR_E_NOMEM, "loop: no memory for cluster %s", name);
    if (status == TR_OK) {
        *out = hub;
        *life = tr_loop_hub_life(hub, node_index);
    }
    pthread_mutex_unlock(&hub_lock);
    return status;
}

void tr_loop_hub_mark_closed(tr_loop_hub *hub, uint32_t node_index)
{
    /* release: whoever sees the node closed sees its last push too. */
    atomic_store_explicit(&hub->states[node_index], TR_LOOP_CLOSED, memory_order_release);
}

void tr_loop_hub_leave(tr_loop_hub *hub, uint32_t node_index)
{
    pthread_mutex_lock(&hub_lock);
    tr_loop_hub_mark_closed(hub, node_index);
    assert(hub->members_count > 0);
    hub->members_count--;
    hub->joined[node_index] = false;
    if (hub->members_count == 0)
        hub_destroy(hub);
    pthread_mutex_unlock(&hub_lock);
}

tr_status tr_loop_hub_connect(tr_loop_hub *hub, uint32_t from, uint32_t to, tr_error *err)
{
    tr_status status = TR_OK;

    pthread_mutex_lock(&hub_lock);
    if (tr_loop_hub_ring(hub, from, to) == NULL) {
        tr_loop_ring *ring = tr_loop_ring_open();
        if (ring == NULL)
            status = tr_fail(err, TR_E_NOMEM, "loop: no memory for the ring of nodes %u and %u",
                             from, to);
        /* release: the receiver's poll finds a ring that is complete. */
        atomic_store_explicit(&hub->rings[from][to], ring, memory_order_release);
    }
    pthread_mutex_unlock(&hub_lock);
    return status;
}

uint64_t tr_loop_hub_number(const tr_loop_hub *hub)
{
    return hub->number;
}

tr_loop_ring *tr_loop_hub_ring(tr_loop_hub *hub, uint32_t from, uint32_t to)
{
    return atomic_load_explicit(&hub->rings[from][to], memory_order_acquire);
}

tr_loop_state tr_loop_hub_state(tr_loop_hub *hub, uint32_t node_index)
{
    return (tr_loop_state)atomic_load_explicit(&hub->states[node_index], memory_order_acquire);
}

uint32_t tr_loop_hub_life(tr_loop_hub *hub, uint32_t node_index)
{
    return atomic_load_explicit(&hub->lives[node_index], memory_order_acquire);
}
