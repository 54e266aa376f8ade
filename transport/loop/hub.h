/* hub.h - where the nodes of one in-process cluster meet.
 *
 * A hub lives from the first node's join to the last node's leave. Joining, leaving and connecting
 * take a lock; the rings and states are then used without one. */
#ifndef TR_TRANSPORT_LOOP_HUB_H
#define TR_TRANSPORT_LOOP_HUB_H

#include "transport/loop/ring.h"

#include "core/runtime.h"

#define TR_LOOP_NAME_SIZE 64

typedef enum { TR_LOOP_ABSENT, TR_LOOP_OPEN, TR_LOOP_CLOSED } tr_loop_state;

typedef struct tr_loop_hub tr_loop_hub;

/* Joins node_index to the hub of this name; the first one creates it.
 * life: which life of the node this is, from 1. A node that has left may join again.
 * errors  TR_E_INVALID the node is in this hub, or nodes_count differs from the others';
 *         TR_E_NOMEM. Thread: any. */
tr_status tr_loop_hub_join(tr_loop_hub **out, uint32_t *life, const char *name, uint32_t node_index,
                           uint32_t nodes_count, tr_error *err);

/* Marks the node closed. The last one frees the hub and all rings, so this comes last. */
void tr_loop_hub_leave(tr_loop_hub *hub, uint32_t node_index);

/* Marks the node closed without leaving: senders stop sending to it, receivers finish its ring. */
void tr_loop_hub_mark_closed(tr_loop_hub *hub, uint32_t node_index);

/* Creates the ring from one node to another unless there is one. errors TR_E_NOMEM. Thread: any. */
tr_status tr_loop_hub_connect(tr_loop_hub *hub, uint32_t from, uint32_t to, tr_error *err);

/* Number that is unique to this hub in this process, so that a stale address is recognised. */
uint64_t tr_loop_hub_number(const tr_loop_hub *hub);

/* Ring from one node to another, NULL before connect. Thread: any. No lock. */
tr_loop_ring *tr_loop_hub_ring(tr_loop_hub *hub, uint32_t from, uint32_t to);

/* The node's newest life; 0: it was never there. Thread: any. No lock. */
uint32_t tr_loop_hub_life(tr_loop_hub *hub, uint32_t node_index);

/* Thread: any. No lock. */
tr_loop_state tr_loop_hub_state(tr_loop_hub *hub, uint32_t node_index);

#endif
