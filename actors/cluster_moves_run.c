/* cluster_moves_run.c - one change of placement, as the coordinator sees it.
 *
 *   prepare  every node loads what the new plan adds, then copies full pages, while all serve
 *   pause    the batcher lets the steps in flight end and forms no other
 *   fetch    states of sequences go where their terms will stand
 *   switch   the actors of every node go over
 *   retire   steps run again; memory that nothing refers to is freed
 *
 * Up to the switch any failure aborts the change, and nothing has happened. Every call has a
 * deadline. */
#include "actors/cluster_moves.h"
#include "core/log.h"
#include "core/plan_edit.h"

#include <stdlib.h>
#include <string.h>

#define MOVES_CALL_NS     15000000000u /* a control call that only begins something, or switches */
#define MOVES_PREPARE_NS  3600000000000u /* loading a node's share from a slow disk */
#define MOVES_PAUSE_NS    30000000000u   /* the longest step */
#define MOVES_FETCH_NS    60000000000u   /* streams wait meanwhile */
#define MOVES_GAP_NS      1000000000u    /* for the next token of each stream */
#define MOVES_AGAIN_NS    1000000000u    /* then a call may have been lost */
#define MOVES_RETRY_NS    200000000u     /* before a recovery is tried again, so often: */
#define MOVES_ATTEMPTS    20
#define MOVES_WARM_ROUNDS 4
#define MOVES_WARM_BYTES  (1u << 20) /* less than this is left for the pause */
#define MOVES_POLL_NS     500000
#define MOVES_POLL_MAX_NS 20000000

tr_status moves_call(cluster_moves *m, uint32_t node, const moves_request *r,
                     tr_control_reply *reply, tr_error *err)
{
    tr_cluster *c = m->cluster;
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    if (!cluster_is_alive(c, node))
        return tr_fail(err, TR_E_PEER, "node %s is gone", c->placement->nodes[node].name);
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, r->key != NULL ? 3 : 2);
    tr_pack_text(&pk, "method", r->method);
    tr_pack_u64(&pk, "epoch", r->epoch);
    if (r->key != NULL)
        tr_pack_bytes(&pk, r->key, r->bytes, r->size);
    tr_error why = {0};
    tr_status status = cluster_call_node(c, &m->lines, node, &buffer,
                                         cluster_after(c, MOVES_CALL_NS), reply, &why);
    msgpack_sbuffer_destroy(&buffer);
    if (status == TR_OK)
        return TR_OK;
    tr_control_reply_free(reply); /* a refusal is a reply, too */
    return tr_fail(err, status, "node %s: %.200s", c->placement->nodes[node].name, why.text);
}

/* The call did not get through, or its answer did not. */
static bool is_trouble(tr_status status)
{
    return status == TR_E_PEER || status == TR_E_TIMEOUT;
}

/* The same until the node answers, for what does no harm a second time. */
static tr_status moves_call_until(cluster_moves *m, uint32_t node, const moves_request *r,
                                  tr_error *err)
{
    tr_cluster *c = m->cluster;
    uint64_t deadline_ns = cluster_after(c, MOVES_CALL_NS);

    for (;;) {
        tr_control_reply reply;
        tr_status status = moves_call(m, node, r, &reply, err);
        if (status == TR_OK)
            tr_control_reply_free(&reply);
        if (!is_trouble(status) || !cluster_is_alive(c, node) || cluster_now(c) >= deadline_ns ||
            atomic_load(&c->stopping))
            return status;
        cluster_sleep(c, MOVES_POLL_NS);
    }
}

/* The same of every node that is there, in order; stops at the first failure. */
static tr_status moves_call_all(cluster_moves *m, const moves_request *r, tr_error *err)
{
    tr_cluster *c = m->cluster;
    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        tr_control_reply reply;
        if (!cluster_is_alive(c, n))
            continue;
        tr_status status = moves_call(m, n, r, &reply, err);
        if (status != TR_OK)
            return status;
        tr_control_reply_free(&reply);
    }
    return TR_OK;
}

/* The same, but goes on after failures; returns the first. */
static tr_status moves_call_each(cluster_moves *m, const moves_request *r, tr_error *err)
{
    tr_cluster *c = m->cluster;
    tr_status first = TR_OK;
    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        tr_control_reply reply;
        if (!cluster_is_alive(c, n))
            continue;
        tr_status status = moves_call(m, n, r, &reply, first == TR_OK ? err : NULL);
        if (status == TR_OK)
            tr_control_reply_free(&reply);
        else if (first == TR_OK)
            first = status;
    }
    return first;
}

tr_status moves_check_abort(const cluster_moves *m, tr_error *err)
{
    return atomic_load(&m->abort_asked) ? tr_fail(err, TR_E_CANCELED, "it was aborted by command")
                                        : TR_OK;
}

/* Before the switch: the change ends when somebody asks for that, or when a node is lost that
 * either placement uses. The requests wait for its share, and not until somebody else has loaded.
 * One that is missed since before the change began, or that neither uses, is not in its way. */
static tr_status moves_may_go_on(cluster_moves *m, tr_error *err)
{
    tr_cluster *c = m->cluster;

    if (moves_check_abort(m, err) != TR_OK)
        return TR_E_CANCELED;
    pthread_mutex_lock(&m->lock);
    uint32_t lost = m->lost;
    pthread_mutex_unlock(&m->lock);
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        if (!cluster_is_alive(c, n) && tr_plan_uses(&m->plan, n) &&
            !tr_plan_uses(&c->view->plan, n))
            lost |= 1u << n; /* nothing stood on it: nobody has missed it */
    return lost == 0 ? TR_OK
                     : tr_fail(err, TR_E_PEER, "node %s is gone",
                               c->placement->nodes[__builtin_ctz(lost)].name);
}

/* Waits until every node that is there has reached a phase; *bytes is the sum of theirs.
 *   to_the_end  else moves_may_go_on can end it */
static tr_status moves_await(cluster_moves *m, cluster_change_phase wanted, bool to_the_end,
                             uint64_t deadline_ns, uint64_t *bytes, tr_error *err)
{
    tr_cluster *c = m->cluster;
    const moves_request ask = {.method = "plan_status"};

    uint64_t wait_ns = MOVES_POLL_NS;

    for (;;) {
        bool all = true;
        uint64_t sum = 0;
        tr_status status = to_the_end ? TR_OK : moves_may_go_on(m, err);
        if (status != TR_OK)
            return status;
        for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
            tr_control_reply reply;
            uint64_t phase = 0, part = 0;
            char why[sizeof(err->text)] = "";
            if (!cluster_is_alive(c, n))
                continue;
            status = moves_call(m, n, &ask, &reply, err);
            if (is_trouble(status)) { /* it is asked again, unless it is soon known to be gone */
                all = false;
                continue;
            }
            if (status != TR_OK)
                return status;
            (void)tr_map_u64(reply.map, "phase", &phase); /* absent: NONE, and waited for */
            (void)tr_map_u64(reply.map, "bytes", &part);
            (void)tr_map_text(reply.map, "error", why, sizeof(why));
            tr_control_reply_free(&reply);
            if (phase == CLUSTER_CHANGE_FAILED)
                return tr_fail(err, TR_E_INVALID, "node %s: %.200s", c->placement->nodes[n].name,
                               why);
            all &= phase == wanted;
            sum += part;
        }
        *bytes = sum;
        if (all)
            return TR_OK;
        if (cluster_now(c) >= deadline_ns || atomic_load(&c->stopping))
            return tr_fail(err, TR_E_TIMEOUT, "the nodes are not ready in time");
        cluster_sleep(c, wait_ns);
        wait_ns =
            wait_ns < MOVES_POLL_MAX_NS ? 2 * wait_ns : wait_ns; /* loading can take minutes */
    }
}

/* -- one change -- */

void moves_phase(cluster_moves *m, tr_change_report *report, const char *phase)
{
    pthread_mutex_lock(&m->lock);
    snprintf(report->phase, sizeof(report->phase), "%s", phase);
    m->reports[report->number % MOVES_REPORTS] = *report;
    pthread_mutex_unlock(&m->lock);
}

tr_status moves_ask_batcher(cluster_moves *m, tr_switch_what what, uint64_t ns, tr_error *err)
{
    tr_cluster *c = m->cluster;
    tr_switch question = {.what = what,
                          .positions = m->positions,
                          .places = m->places,
                          .slot = &m->slot,
                          .error = &m->given_up};
    cluster_lock(c, &c->batcher_questions.lock);
    tr_status status = cluster_ask(c, &c->batcher_questions, TR_ACTOR_BATCHER, &question,
                                   cluster_after(c, ns), err);
    pthread_mutex_unlock(&c->batcher_questions.lock);
    return status;
}

/* Tells every node that is there to end the change, with plan_abort or plan_retire, until all have:
 * a call that is lost must not leave one in the middle of it, and no harm comes of a second. */
static tr_status moves_end_all(cluster_moves *m, const char *method, tr_error *err)
{
    tr_cluster *c = m->cluster;
    const moves_request end = {.method = method, .epoch = m->plan.epoch};
    uint64_t bytes, deadline_ns = cluster_after(c, MOVES_FETCH_NS);

    for (;;) {
        tr_error why = {0};
        tr_status status = moves_call_each(m, &end, &why);
        bool refused = status == TR_E_INVALID;
        if (!refused)
            status = moves_await(m, CLUSTER_CHANGE_NONE, true, cluster_after(c, MOVES_AGAIN_NS),
                                 &bytes, &why);
        if (status == TR_OK)
            return TR_OK;
        if (refused || cluster_now(c) >= deadline_ns || atomic_load(&c->stopping))
            return tr_fail(err, status, "%.220s", why.text);
        cluster_sleep(c, MOVES_POLL_NS); /* a node that does not answer is soon known to be gone */
    }
}

/* Whether a node that refuses a plan has not come to the end of a former one: it never heard that
 * it has ended. */
static bool is_behind(cluster_moves *m, uint32_t node)
{
    const moves_request ask = {.method = "plan_status"};
    tr_control_reply reply;
    uint64_t phase = CLUSTER_CHANGE_NONE;

    if (moves_call(m, node, &ask, &reply, NULL) != TR_OK)
        return false;
    (void)tr_map_u64(reply.map, "phase", &phase); /* absent: NONE */
    tr_control_reply_free(&reply);
    return phase == CLUSTER_CHANGE_PREPARING || phase == CLUSTER_CHANGE_FETCHING ||
           phase == CLUSTER_CHANGE_ABORTING || phase == CLUSTER_CHANGE_RETIRING;
}

/* Gives a plan to a node, which may have to undo a former one first: it is asked until it has, and
 * once more. A refusal that has another reason is the same when it is asked for again. */
static tr_status prepare_node(cluster_moves *m, uint32_t node, const moves_request *r,
                              tr_error *err)
{
    tr_cluster *c = m->cluster;
    uint64_t deadline_ns = cluster_after(c, MOVES_CALL_NS);
    bool was_behind = true; /* it may have come to the end of it before it is looked at */

    for (;;) {
        tr_status status = moves_call_until(m, node, r, err);
        if (status != TR_E_INVALID || cluster_now(c) >= deadline_ns || atomic_load(&c->stopping))
            return status;
        bool behind = is_behind(m, node);
        if (!behind && !was_behind)
            return status;
        was_behind = behind;
        cluster_sleep(c, MOVES_POLL_NS);
    }
}

/* Once over. *refused: the node whose answer was the error. */
static tr_status prepare_once(cluster_moves *m, tr_change_report *report, uint32_t *refused,
                              tr_error *err)
{
    moves_request r = {.method = "plan_prepare", .epoch = m->plan.epoch, .key = "plan"};
    void *bytes;

    tr_status status =
        cluster_check_mirrors(m->cluster, &m->plan, cluster_members(m->cluster), err);
    if (status == TR_OK)
        status = tr_plan_encode(&m->plan, &bytes, &r.size, err);
    if (status != TR_OK)
        return status;
    r.bytes = bytes;
    status = TR_OK;
    for (uint32_t n = 0; status == TR_OK && n < m->cluster->placement->nodes_count; n++)
        if (cluster_is_alive(m->cluster, n)) {
            status = prepare_node(m, n, &r, err);
            *refused = n;
        }
    free(bytes);
    if (status == TR_OK)
        status = moves_await(m, CLUSTER_CHANGE_READY, false,
                             cluster_after(m->cluster, MOVES_PREPARE_NS), &report->bytes, err);
    return status;
}

/* Asks every node that is there for its room. */
static tr_status ask_rooms(cluster_moves *m, uint64_t room[TR_NODES_MAX])
{
    tr_cluster *c = m->cluster;
    const moves_request ask = {.method = "room_read"};
    tr_status status = TR_OK;

    for (uint32_t n = 0; status == TR_OK && n < c->placement->nodes_count; n++) {
        tr_control_reply reply;
        room[n] = 0;
        if (!cluster_is_alive(c, n))
            continue;
        status = moves_call(m, n, &ask, &reply, NULL);
        if (status != TR_OK)
            continue;
        (void)tr_map_u64(reply.map, "room", &room[n]); /* absent: none */
        tr_control_reply_free(&reply);
    }
    return status;
}

/* m->plan becomes another that empties the same nodes, and gives to each other what it has room
 * for. False: there is none. */
static bool deal_again(cluster_moves *m, tr_change_report *report, const uint64_t *room)
{
    tr_plan plan = {0};
    uint32_t moved = 0;

    tr_status status = tr_cluster_plan(m->cluster, &plan, NULL);
    if (status == TR_OK)
        status = moves_drain(m->cluster, &plan, m->drained, room, &moved, NULL);
    if (status != TR_OK) {
        tr_plan_free(&plan);
        return false;
    }
    pthread_mutex_lock(&m->lock);
    moves_number(m, &plan);
    tr_plan_free(&m->plan);
    m->plan = plan;
    report->epoch = plan.epoch;
    report->moved = moved;
    m->reports[report->number % MOVES_REPORTS] = *report;
    pthread_mutex_unlock(&m->lock);
    return true;
}

/* A share that is taken off a node is dealt to all others alike, so that they have equal work. When
 * that is too much for one of them, it is dealt by their room, as they count it themselves; and who
 * refuses its part even then gets none. */
static tr_status moves_prepare(cluster_moves *m, tr_change_report *report, tr_error *err)
{
    uint64_t room[TR_NODES_MAX];
    bool by_room = false;

    for (;;) {
        uint32_t refused = 0;
        tr_error why = {0};
        tr_status status = prepare_once(m, report, &refused, &why);
        bool again = status == TR_E_NOMEM && m->drained != 0 && (!by_room || room[refused] != 0) &&
                     moves_end_all(m, "plan_abort", NULL) == TR_OK;
        if (again && by_room)
            room[refused] = 0;
        else if (again)
            again = ask_rooms(m, room) == TR_OK;
        if (!again || !deal_again(m, report, room)) {
            *err = why;
            return status;
        }
        by_room = true;
        tr_log(TR_LOG_INFO, NULL, "share_refused", "what=\"%s\" reason=\"%.200s\"", report->what,
               why.text);
    }
}

/* Whether the state of sequences changes its node. What was lost with a node cannot be fetched: it
 * is computed again. */
static bool moves_states(const cluster_moves *m, const tr_change_report *report)
{
    const tr_plan *now =
        &m->cluster->view->plan; /* replaced only by a commit that this thread asks for */
    size_t terms = (size_t)now->shape.layers_count * TR_TERMS_MAX;
    return report->lost == 0 && (memcmp(now->attention, m->plan.attention, terms) != 0 ||
                                 now->ngram_node != m->plan.ngram_node);
}

/* Bytes that came since the nodes had counted `before`. One that died has taken its count along. */
static uint64_t bytes_since(const tr_change_report *report, uint64_t before)
{
    return report->bytes > before ? report->bytes - before : 0;
}

/* Copies full pages while steps run, until little is left that could be. */
static tr_status moves_warm(cluster_moves *m, tr_change_report *report, tr_error *err)
{
    tr_cluster *c = m->cluster;
    const moves_request r = {.method = "plan_warm",
                             .epoch = m->plan.epoch,
                             .key = "places",
                             .bytes = m->places,
                             .size = c->node.limits.sequences_max * sizeof(*m->places)};
    tr_status status = TR_OK;

    for (uint32_t round = 0; status == TR_OK && round < MOVES_WARM_ROUNDS; round++) {
        uint64_t before = report->bytes;
        status = moves_ask_batcher(m, TR_SWITCH_PLACES, MOVES_CALL_NS, err);
        if (status == TR_OK)
            status = moves_call_all(m, &r, err);
        if (status == TR_OK)
            status = moves_await(m, CLUSTER_CHANGE_READY, false, cluster_after(c, MOVES_PREPARE_NS),
                                 &report->bytes, err);
        if (bytes_since(report, before) < MOVES_WARM_BYTES)
            break;
    }
    return status;
}

/* Every node goes over. One that does not counts as gone: the others must not wait for it. */
static tr_status moves_commit(cluster_moves *m, tr_error *err)
{
    tr_cluster *c = m->cluster;
    const moves_request r = {.method = "plan_commit", .epoch = m->plan.epoch};

    for (uint32_t n = 0; n < c->placement->nodes_count; n++) {
        if (!cluster_is_alive(c, n))
            continue;
        tr_status status = moves_call_until(m, n, &r, err);
        if (status != TR_OK && n == c->node_index)
            return status;
        if (status != TR_OK)
            cluster_peer_lost(c, n, "it did not go over to the new placement");
    }
    return TR_OK;
}

/* From the pause to the switch. *switched: some node may have gone over. */
static tr_status moves_switch(cluster_moves *m, tr_change_report *report, bool *switched,
                              tr_error *err)
{
    tr_cluster *c = m->cluster;
    moves_request r = {.method = "plan_fetch",
                       .epoch = m->plan.epoch,
                       .key = "positions",
                       .bytes = m->positions,
                       .size = c->node.limits.sequences_max * sizeof(*m->positions)};

    if (moves_states(m, report)) {
        uint64_t before = report->bytes;
        moves_phase(m, report, "fetch");
        tr_status status = moves_call_all(m, &r, err);
        if (status == TR_OK)
            status = moves_await(m, CLUSTER_CHANGE_READY, false, cluster_after(c, MOVES_FETCH_NS),
                                 &report->bytes, err);
        if (status != TR_OK)
            return status;
        report->pause_bytes = bytes_since(report, before);
    }
    tr_status status = moves_may_go_on(m, err);
    if (status != TR_OK)
        return status;
    moves_phase(m, report, "switch");
    *switched = true;
    return moves_commit(m, err);
}

void moves_give_up(cluster_moves *m, const tr_error *why)
{
    tr_cluster *c = m->cluster;
    pthread_mutex_lock(&c->lock);
    tr_error lost = c->lost;
    tr_fail(&c->lost, TR_E_PEER, "%.110s; the others cannot take its share: %.90s", lost.text,
            why->text);
    c->recovering = false;
    m->given_up = c->lost; /* outlives the batcher */
    pthread_mutex_unlock(&c->lock);
    (void)moves_ask_batcher(m, TR_SWITCH_GIVE_UP, MOVES_CALL_NS,
                            NULL); /* or its deadlines end them */
    m->gave_up = true;
    m->attempts = 0; /* the next loss has its own */
}

uint32_t moves_serve_again(cluster_moves *m)
{
    tr_cluster *c = m->cluster;
    uint32_t missed = 0;

    if (!m->gave_up)
        return 0;
    pthread_mutex_lock(&c->lock);
    for (uint32_t n = 0; n < c->placement->nodes_count; n++)
        missed |= tr_plan_uses(&c->view->plan, n) && !cluster_is_alive(c, n) ? 1u << n : 0;
    if (missed != 0) { /* what was said when the others gave up may be about one that is back */
        c->lost = (tr_error){0};
        cluster_note_lost(c, (uint32_t)__builtin_ctz(missed), "it has not come back");
        c->recovering = false;
    }
    pthread_mutex_unlock(&c->lock);
    if (missed == 0 && moves_ask_batcher(m, TR_SWITCH_SERVE, MOVES_CALL_NS, NULL) == TR_OK)
        m->gave_up = false;
    return missed;
}

/* A recovery that another loss or a bad connection has ended is begun again: with the nodes that
 * are there by then, the plan is another. */
static bool moves_try_again(cluster_moves *m, uint32_t lost, tr_status why)
{
    if (!is_trouble(why) || m->attempts == MOVES_ATTEMPTS || atomic_load(&m->cluster->stopping))
        return false;
    m->attempts++;
    cluster_sleep(m->cluster, MOVES_RETRY_NS);
    pthread_mutex_lock(&m->lock);
    m->lost |= lost;
    pthread_mutex_unlock(&m->lock);
    return true;
}

void moves_note_gap(cluster_moves *m, tr_change_report *report)
{
    tr_cluster *c = m->cluster;
    uint64_t begin = cluster_now(c);
    uint32_t open;

    while ((open = atomic_load(&c->counters.gaps_open)) > 0) {
        pthread_mutex_lock(&m->lock);
        bool ends = m->lost != 0 || m->stopped || atomic_load(&c->stopping);
        pthread_mutex_unlock(&m->lock);
        if (ends || cluster_now(c) - begin > MOVES_GAP_NS)
            break;
        cluster_sleep(c, MOVES_POLL_NS);
    }
    report->gap_ns = atomic_load(&c->counters.gap_ns_max);
    uint64_t least_ns =
        report->pause_ns + (cluster_now(c) - begin); /* of those that go on waiting */
    if (open > 0 && report->gap_ns < least_ns)
        report->gap_ns = least_ns;
}

tr_status moves_run(cluster_moves *m, tr_change_report *report, tr_error *err)
{
    tr_cluster *c = m->cluster;
    uint64_t begin = cluster_now(c);
    bool switched = false;

    tr_status status = moves_prepare(m, report, err);
    if (status == TR_OK && moves_states(m, report))
        status = moves_warm(m, report, err);
    report->prepare_ns = cluster_now(c) - begin;
    uint64_t paused = cluster_now(c);
    if (status == TR_OK) {
        moves_phase(m, report, "pause");
        status = moves_ask_batcher(m, TR_SWITCH_PAUSE, MOVES_PAUSE_NS, err);
        if (status == TR_OK)
            status = moves_switch(m, report, &switched, err);
        tr_error why = {0};
        tr_status resumed = moves_ask_batcher(m, TR_SWITCH_RESUME, MOVES_CALL_NS, &why);
        report->pause_ns = cluster_now(c) - paused;
        if (resumed != TR_OK || (status != TR_OK && switched)) {
            /* Some nodes have gone over and some not: no step can be right any more. */
            atomic_store(&c->counters.broken, true);
            tr_cluster_request_shutdown_all(c);
            return status != TR_OK ? status : tr_fail(err, resumed, "batcher: %.200s", why.text);
        }
    }
    if (status != TR_OK) {
        (void)moves_end_all(m, "plan_abort", NULL);
        if (report->lost != 0 && !moves_try_again(m, report->lost, status))
            moves_give_up(m, err);
        return status;
    }
    m->attempts = 0;
    (void)moves_serve_again(m); /* it may have emptied those that were missed */
    moves_phase(m, report, "retire");
    status = moves_end_all(m, "plan_retire", err);
    moves_note_gap(m, report);
    return status;
}
