#include "tools/trace_join.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 16 /* slices within slices, on one lane */

void tr_trace_node_free(tr_trace_node *node)
{
    for (uint32_t i = 0; i < node->rings_count; i++)
        free(node->rings[i].events);
    free(node->rings);
    free(node->actors);
    free(node->kernels);
    *node = (tr_trace_node){0};
}

void tr_trace_join_free(tr_trace_join *join)
{
    free(join->slices);
    free(join->tracks);
    *join = (tr_trace_join){0};
}

/* -- one list of all events -- */

/* Which track an event belongs to; false for kinds that are not known here. */
static bool track_of(const tr_trace_event *event, uint32_t ring, tr_track_kind *kind, uint64_t *key)
{
    *key = event->actor;
    switch ((tr_trace_kind)event->kind) {
    case TR_TRACE_RECEIVE:
    case TR_TRACE_SEND:
        *kind = TR_TRACK_ACTOR;
        return true;
    case TR_TRACE_STEP:
        *kind = TR_TRACK_STEPS;
        return true;
    case TR_TRACE_REQUEST:
        *kind = TR_TRACK_REQUESTS;
        return true;
    case TR_TRACE_KERNEL:
    case TR_TRACE_WAIT:
        *kind = TR_TRACK_THREAD;
        *key = ring;
        return true;
    }
    return false;
}

/* A clock beyond this (146 years) is garbage, and sums of it might overflow. */
#define CLOCK_MAX_NS (UINT64_MAX / 4)

static bool is_usable(const tr_trace_event *event)
{
    tr_track_kind kind;
    uint64_t key;

    return event->begin_ns <= CLOCK_MAX_NS && track_of(event, 0, &kind, &key);
}

static size_t count_events(const tr_trace_node *nodes, uint32_t nodes_count)
{
    size_t count = 0;

    for (uint32_t n = 0; n < nodes_count; n++)
        for (uint32_t r = 0; r < nodes[n].rings_count; r++)
            count += nodes[n].rings[r].events_count;
    return count;
}

static void collect_slices(tr_trace_join *join, const tr_trace_node *nodes, uint32_t nodes_count)
{
    for (uint32_t n = 0; n < nodes_count; n++) {
        for (uint32_t r = 0; r < nodes[n].rings_count; r++) {
            const tr_trace_ring *ring = &nodes[n].rings[r];
            for (size_t i = 0; i < ring->events_count; i++) {
                const tr_trace_event *event = &ring->events[i];
                if (!is_usable(event))
                    continue;
                join->slices[join->slices_count++] = (tr_trace_slice){
                    .begin_ns = (int64_t)event->begin_ns,
                    .duration_ns = event->duration_ns > 0 ? event->duration_ns : 1,
                    .event = event,
                    .node = n,
                    .ring = r,
                };
            }
        }
    }
}

/* -- arrows and clocks -- */

typedef struct {
    uint64_t id;
    size_t slice;
} send_of;

static int compare_sends(const void *a, const void *b)
{
    const send_of *x = a, *y = b;

    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->slice < y->slice ? -1 : x->slice > y->slice;
}

static bool is_message(const tr_trace_slice *slice, tr_trace_kind kind)
{
    return slice->event->kind == kind && slice->event->id != 0;
}

/* For each pair of a send and its receive: from and to are indices of slices. */
typedef struct {
    size_t from, to;
} arrow;

/* Finds the pairs and marks both ends. arrows has room for all slices. */
static tr_status find_arrows(tr_trace_join *join, arrow *arrows, tr_error *err)
{
    size_t sends_count = 0;
    send_of *sends = calloc(join->slices_count + 1, sizeof(*sends));

    if (sends == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory to join %zu events", join->slices_count);
    for (size_t i = 0; i < join->slices_count; i++)
        if (is_message(&join->slices[i], TR_TRACE_SEND))
            sends[sends_count++] = (send_of){join->slices[i].event->id, i};
    qsort(sends, sends_count, sizeof(*sends), compare_sends);
    for (size_t i = 0; i < join->slices_count; i++) {
        tr_trace_slice *receive = &join->slices[i];
        if (!is_message(receive, TR_TRACE_RECEIVE))
            continue;
        size_t low = 0, high = sends_count;
        while (low < high) { /* the first send with this id or a larger one */
            size_t middle = low + (high - low) / 2;
            if (sends[middle].id < receive->event->id)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == sends_count || sends[low].id != receive->event->id)
            continue; /* its ring has forgotten the send */
        tr_trace_slice *send = &join->slices[sends[low].slice];
        if (send->has_arrow)
            continue; /* an id that came twice is a fault of a node: one arrow */
        send->has_arrow = receive->has_arrow = true;
        arrows[join->arrows_count++] = (arrow){sends[low].slice, i};
    }
    free(sends);
    return TR_OK;
}

/* Fastest message from the first node to each, and back, in the clocks as they are now. */
typedef struct {
    int64_t there_ns, back_ns; /* INT64_MAX: there was none */
} fastest;

static void find_fastest(const tr_trace_join *join, const arrow *arrows, fastest *out)
{
    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        out[n] = (fastest){INT64_MAX, INT64_MAX};
    for (size_t i = 0; i < join->arrows_count; i++) {
        const tr_trace_slice *from = &join->slices[arrows[i].from];
        const tr_trace_slice *to = &join->slices[arrows[i].to];
        int64_t took_ns = to->begin_ns - from->begin_ns;
        if (from->node == 0 && to->node != 0 && took_ns < out[to->node].there_ns)
            out[to->node].there_ns = took_ns;
        if (from->node != 0 && to->node == 0 && took_ns < out[from->node].back_ns)
            out[from->node].back_ns = took_ns;
    }
}

static void shift_node(tr_trace_join *join, uint32_t node, int64_t offset_ns)
{
    for (size_t i = 0; i < join->slices_count; i++)
        if (join->slices[i].node == node)
            join->slices[i].begin_ns -= offset_ns;
    join->clock_offset_ns[node] += offset_ns;
}

/* Moves all nodes to the first one's clock, and the first event to 0. */
static void align_clocks(tr_trace_join *join, const tr_trace_node *nodes, uint32_t nodes_count,
                         const arrow *arrows)
{
    fastest ways[TR_NODES_MAX];
    int64_t first_ns = INT64_MAX;

    for (uint32_t n = 1; n < nodes_count; n++)
        shift_node(join, n, nodes[n].clock_offset_ns);
    find_fastest(join, arrows, ways);
    for (uint32_t n = 1; n < nodes_count; n++)
        if (ways[n].there_ns != INT64_MAX && ways[n].back_ns != INT64_MAX)
            shift_node(join, n, (ways[n].there_ns - ways[n].back_ns) / 2);
    for (size_t i = 0; i < join->slices_count; i++)
        if (join->slices[i].begin_ns < first_ns)
            first_ns = join->slices[i].begin_ns;
    for (size_t i = 0; i < join->slices_count; i++)
        join->slices[i].begin_ns -= first_ns;
}

/* -- tracks and lanes -- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* By node, track, time; of two that begin together the longer one first, as it contains the other.
 */
static int compare_slices(const void *a, const void *b)
{
    const tr_trace_slice *x = a, *y = b;
    tr_track_kind x_kind = TR_TRACK_ACTOR, y_kind = TR_TRACK_ACTOR;
    uint64_t x_key = 0, y_key = 0;

    (void)track_of(x->event, x->ring, &x_kind, &x_key);
    (void)track_of(y->event, y->ring, &y_kind, &y_key);
    int order = compare_u64(x->node, y->node);
    if (order == 0)
        order = compare_u64(x_kind, y_kind);
    if (order == 0)
        order = compare_u64(x_key, y_key);
    if (order == 0)
        order = x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
    if (order == 0)
        order = x->duration_ns > y->duration_ns ? -1 : x->duration_ns < y->duration_ns;
    return order != 0 ? order : compare_u64(x->event->id, y->event->id);
}

/* The slices of a lane that are open at the moment: their ends, the innermost last. */
typedef struct {
    int64_t ends_ns[STACK_DEPTH];
    uint32_t depth;
    uint32_t track; /* index in join->tracks */
} lane;

typedef struct {
    lane *lanes; /* owns */
    uint32_t count;
    uint32_t capacity;
} lane_list;

static void lane_close_until(lane *l, int64_t now_ns)
{
    while (l->depth > 0 && l->ends_ns[l->depth - 1] <= now_ns)
        l->depth--;
}

/* Puts the slice on the lane when it nests there. */
static bool lane_take(lane *l, int64_t begin_ns, int64_t end_ns)
{
    lane_close_until(l, begin_ns);
    if (l->depth == STACK_DEPTH || (l->depth > 0 && l->ends_ns[l->depth - 1] < end_ns))
        return false;
    l->ends_ns[l->depth++] = end_ns;
    return true;
}

/* One more lane of the track that the slice belongs to. */
static lane *lane_add(tr_trace_join *join, lane_list *list, const tr_trace_slice *slice)
{
    tr_track track = {.node = slice->node, .lane = list->count};

    (void)track_of(slice->event, slice->ring, &track.kind, &track.key);
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity == 0 ? 8 : 2 * list->capacity;
        lane *lanes = realloc(list->lanes, capacity * sizeof(*lanes));
        if (lanes == NULL)
            return NULL;
        list->lanes = lanes;
        list->capacity = capacity;
    }
    /* tracks has room for one more than there are slices */
    join->tracks[join->tracks_count] = track;
    lane *l = &list->lanes[list->count++];
    *l = (lane){.track = join->tracks_count++};
    return l;
}

/* A send inside a slice of its actor needs none of its own. */
static bool is_inside(const lane_list *list, const tr_trace_slice *slice)
{
    const lane *first = &list->lanes[0];
    int64_t now_ns = slice->begin_ns;

    for (uint32_t i = 0; list->count > 0 && i < first->depth; i++)
        if (first->ends_ns[i] >= now_ns)
            return true;
    return false;
}

static bool place_slice(tr_trace_join *join, lane_list *list, tr_trace_slice *slice)
{
    int64_t end_ns = slice->begin_ns + slice->duration_ns;

    slice->slice = slice->event->kind != TR_TRACE_SEND || !is_inside(list, slice);
    if (!slice->slice) {
        slice->track = list->lanes[0].track;
        return true;
    }
    for (uint32_t i = 0; i < list->count; i++) {
        if (lane_take(&list->lanes[i], slice->begin_ns, end_ns)) {
            slice->track = list->lanes[i].track;
            return true;
        }
    }
    lane *l = lane_add(join, list, slice);
    if (l == NULL)
        return false;
    slice->track = l->track;
    return lane_take(l, slice->begin_ns, end_ns);
}

static bool same_track(const tr_trace_slice *a, const tr_trace_slice *b)
{
    tr_track_kind a_kind = TR_TRACK_ACTOR, b_kind = TR_TRACK_ACTOR;
    uint64_t a_key = 0, b_key = 0;

    (void)track_of(a->event, a->ring, &a_kind, &a_key);
    (void)track_of(b->event, b->ring, &b_kind, &b_key);
    return a->node == b->node && a_kind == b_kind && a_key == b_key;
}

/* slices are sorted; afterwards each has its track. */
static tr_status place_slices(tr_trace_join *join, tr_error *err)
{
    lane_list list = {0};
    bool placed = true;

    for (size_t i = 0; i < join->slices_count && placed; i++) {
        if (i > 0 && !same_track(&join->slices[i - 1], &join->slices[i]))
            list.count = 0;
        placed = place_slice(join, &list, &join->slices[i]);
    }
    free(list.lanes);
    return placed ? TR_OK
                  : tr_fail(err, TR_E_NOMEM, "no memory to lay out %zu events", join->slices_count);
}

static int compare_placed(const void *a, const void *b)
{
    const tr_trace_slice *x = a, *y = b;
    int order = compare_u64(x->track, y->track);

    return order != 0 ? order : compare_slices(a, b);
}

tr_status tr_trace_join_make(tr_trace_join *out, const tr_trace_node *nodes, uint32_t nodes_count,
                             tr_error *err)
{
    assert(nodes_count >= 1 && nodes_count <= TR_NODES_MAX);
    tr_trace_join join = {0};
    size_t count = count_events(nodes, nodes_count);
    arrow *arrows = calloc(count + 1, sizeof(*arrows));

    join.slices = calloc(count + 1, sizeof(*join.slices));
    join.tracks = calloc(count + 1, sizeof(*join.tracks));
    if (arrows == NULL || join.slices == NULL || join.tracks == NULL) {
        free(arrows);
        tr_trace_join_free(&join);
        return tr_fail(err, TR_E_NOMEM, "no memory to join %zu events", count);
    }
    collect_slices(&join, nodes, nodes_count);
    tr_status status = find_arrows(&join, arrows, err);
    if (status == TR_OK) {
        align_clocks(&join, nodes, nodes_count, arrows);
        qsort(join.slices, join.slices_count, sizeof(*join.slices), compare_slices);
        status = place_slices(&join, err);
    }
    free(arrows);
    if (status != TR_OK) {
        tr_trace_join_free(&join);
        return status;
    }
    qsort(join.slices, join.slices_count, sizeof(*join.slices), compare_placed);
    *out = join;
    return TR_OK;
}
