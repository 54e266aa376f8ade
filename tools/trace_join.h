/* trace_join.h - the events of several nodes on one time axis, as slices on tracks and arrows.
 *
 * Each node's events carry its own monotonic clock. They are moved to the first node's: by the
 * offset that was measured over the control plane, and then, where messages went both ways, by
 * half the difference of the fastest ones. (The control plane's round trip is 100 times that of
 * the data plane, so its offset alone lets some messages arrive before they were sent.)
 *
 * Viewers want the slices of one track to nest. An actor has a track, a thread has one for
 * kernels and waits, and so have steps and requests; what does not nest goes to a further lane. */
#ifndef TR_TOOLS_TRACE_JOIN_H
#define TR_TOOLS_TRACE_JOIN_H

#include "core/error.h"
#include "core/placement.h"
#include "core/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_TRACE_NAME_SIZE 96

/* Name of an actor id or of a kernel number. */
typedef struct {
    uint64_t id;
    char name[TR_TRACE_NAME_SIZE];
} tr_trace_name;

typedef struct {
    char thread[TR_TRACE_NAME_SIZE];
    tr_trace_event *events; /* owns; [events_count] */
    size_t events_count;
} tr_trace_ring;

/* What one node gave. */
typedef struct {
    char name[TR_NAME_SIZE];
    int64_t clock_offset_ns; /* its clock minus the first node's, as measured */
    tr_trace_ring *rings;    /* owns */
    uint32_t rings_count;
    tr_trace_name *actors; /* owns */
    uint32_t actors_count;
    tr_trace_name *kernels; /* owns */
    uint32_t kernels_count;
} tr_trace_node;

void tr_trace_node_free(tr_trace_node *node);

/* In the order in which a viewer should show them. */
typedef enum {
    TR_TRACK_REQUESTS,
    TR_TRACK_STEPS,
    TR_TRACK_ACTOR, /* key: actor id */
    TR_TRACK_THREAD /* key: ring index */
} tr_track_kind;

typedef struct {
    uint32_t node;
    tr_track_kind kind;
    uint64_t key;
    uint32_t lane; /* 0, or higher for what would not nest in the lanes below */
} tr_track;

typedef struct {
    int64_t begin_ns; /* after the first event of all */
    int64_t duration_ns;
    const tr_trace_event *event; /* borrowed from the node */
    uint32_t node;
    uint32_t track; /* index */
    bool slice;     /* false: a SEND inside a slice, drawn as the start of its arrow only */
    bool has_arrow; /* SEND and RECEIVE of a message that are both here */
    uint32_t ring;
} tr_trace_slice;

/* Invariants: slices are ordered by track, then by time; the slices of a track nest; every arrow
 * has exactly one SEND and one RECEIVE. */
typedef struct {
    tr_trace_slice *slices; /* owns */
    size_t slices_count;
    tr_track *tracks; /* owns */
    uint32_t tracks_count;
    size_t arrows_count;
    int64_t clock_offset_ns[TR_NODES_MAX]; /* those that were used in the end */
} tr_trace_join;

/* Joins what the nodes gave. Events of kinds that this program does not know are left out: the
 * bytes come from other processes.
 *
 *   nodes  [nodes_count], 1..TR_NODES_MAX; borrowed as long as *out lives
 *
 * errors  TR_E_NOMEM. Thread: any. */
tr_status tr_trace_join_make(tr_trace_join *out, const tr_trace_node *nodes, uint32_t nodes_count,
                             tr_error *err);
void tr_trace_join_free(tr_trace_join *join);

#endif
