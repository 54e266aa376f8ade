/* world_tasks.c - what runs beside the actors of simulated nodes: tasks, and the calls that they
 * make to the control servers of others.
 *
 *   call   ASKS --arrives--> ANSWERS (a task of the node that was asked) --> RETURNS --> told
 *          ASKS, ANSWERS --the node dies--> RETURNS, broken
 *
 * A caller that gives up leaves its call behind: it may be carried out late. A node has as many
 * tasks that answer as its control server has threads. */
#include "actors/cluster_node.h"
#include "tests/sim/shim.h"
#include "tests/sim/tasks.h"
#include "tests/sim/world.h"

#include <stdlib.h>
#include <string.h>

#define ANSWERS_MAX 4               /* threads of a control server */
#define JOIN_NS     10000           /* a task looks again whether another has ended */
#define ENDING_NS   WORLD_SECOND    /* a sleep of a node that ends: nobody sees its clock */
#define LOOK_NS     (20 * WORLD_MS) /* a call looks whether the other node is lost */
#define LOAD_NS     (200 * 1000)

typedef enum { CALL_ASKS, CALL_ANSWERS, CALL_RETURNS } call_phase;
typedef enum { FATE_GOOD, FATE_NOT_HEARD, FATE_ANSWER_LOST } call_fate;

struct world_call {
    world_call *next;
    world *world;
    uint32_t from, to;
    call_phase phase;
    call_fate fate;
    bool broken;           /* its connection is lost */
    bool done;             /* for the caller to take */
    uint64_t due_ns;       /* ASKS, RETURNS: UINT64_MAX is never */
    world_task *caller;    /* NULL: nobody waits any more */
    msgpack_sbuffer bytes; /* of the request, then of the answer */
};

/* -- tasks -- */

static world_task *task_self(world *w)
{
    sim_task *self = sim_task_self();
    uint32_t i = 0;
    while (i < WORLD_TASKS_MAX && (self == NULL || w->tasks[i].task != self))
        i++;
    assert(i < WORLD_TASKS_MAX);
    return &w->tasks[i];
}

static world_task *task_start(world *w, uint32_t node, uint64_t delay_ns, void *(*run)(void *),
                              void *arg)
{
    uint32_t i = 0;
    while (i < WORLD_TASKS_MAX && w->tasks[i].task != NULL)
        i++;
    assert(i < WORLD_TASKS_MAX);
    w->tasks[i] = (world_task){.task = sim_task_new(run, arg),
                               .node = node,
                               .wake_ns = world_now_ns(w) + delay_ns * w->nodes[node].slow};
    return &w->tasks[i];
}

static void task_free(world_task *t)
{
    sim_task_free(t->task);
    *t = (world_task){.task = NULL};
}

static bool task_is_ready(const world_task *t)
{
    return t->task != NULL && !sim_task_has_ended(t->task);
}

static void task_run(world_task *t)
{
    sim_task_resume(t->task);
    if (t->detached && sim_task_has_ended(t->task))
        task_free(t);
}

void *world_spawn(void *ctx, void *(*run)(void *), void *arg)
{
    world_node *node = ctx;
    world *w = node->world;
    uint64_t most_ns = sim_one_in(&w->random, 4) ? w->load_max_ns : LOAD_NS;
    return task_start(w, node->index, sim_below(&w->random, most_ns), run, arg);
}

/* Every task of a node that ends has a turn. */
static void node_end_turn(world *w, const world_node *node)
{
    assert(node->ends);
    for (uint32_t i = 0; i < WORLD_TASKS_MAX; i++)
        if (w->tasks[i].node == node->index && task_is_ready(&w->tasks[i]))
            task_run(&w->tasks[i]);
}

void world_sleep(void *ctx, uint64_t ns)
{
    world_node *node = ctx;
    world_task *t = task_self(node->world);
    t->wake_ns = world_now_ns(node->world) + ns;
    if (node->ends)
        node->clock.offset_ns += ENDING_NS;
    sim_task_give_way();
}

void world_join(void *ctx, void *task)
{
    world_node *node = ctx;
    world_task *t = task;
    while (!sim_task_has_ended(t->task)) {
        if (sim_task_self() != NULL)
            world_sleep(node, JOIN_NS);
        else
            node_end_turn(node->world, node);
    }
    task_free(t);
}

static uint32_t node_answers(const world *w, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < WORLD_TASKS_MAX; i++)
        count += w->tasks[i].node == node && w->tasks[i].answers && task_is_ready(&w->tasks[i]);
    return count;
}

void world_spawn_detached(world_node *node, void *(*run)(void *))
{
    task_start(node->world, node->index, 0, run, node)->detached = true;
}

void world_end_tasks(world_node *node)
{
    world *w = node->world;
    bool any = true;
    while (any) {
        any = false;
        for (uint32_t i = 0; i < WORLD_TASKS_MAX; i++)
            any |= w->tasks[i].node == node->index && w->tasks[i].detached &&
                   task_is_ready(&w->tasks[i]);
        if (any)
            node_end_turn(w, node);
    }
}

void world_end_answers(void *ctx)
{
    world_node *node = ctx;
    while (node_answers(node->world, node->index) > 0)
        node_end_turn(node->world, node);
}

/* -- calls -- */

static void call_note(const world_call *call)
{
    /* Not the bytes: nodes say who their model is, which follows from its folder. */
    const uint64_t words[] = {world_now_ns(call->world), call->from, call->to, call->phase,
                              call->bytes.size};
    sim_shim_note(words, sizeof(words));
}

static void call_free(world_call *call)
{
    world_call **link = &call->world->calls;
    while (*link != NULL && *link != call)
        link = &(*link)->next;
    if (*link != NULL)
        *link = call->next;
    msgpack_sbuffer_destroy(&call->bytes);
    free(call);
}

/* The node that was asked is gone, or the connection to it. Whether the caller hears of that before
 * its deadline is a matter of the network. */
static void call_break(world_call *call, uint64_t notice_ns)
{
    world *w = call->world;
    call->phase = CALL_RETURNS;
    call->broken = true;
    call->due_ns = notice_ns == UINT64_MAX ? UINT64_MAX
                                           : world_now_ns(w) + sim_below(&w->random, notice_ns + 1);
    if (call->due_ns == UINT64_MAX && call->caller == NULL)
        call_free(call);
}

/* A node hears that a sequence is shorter than it is, and leaves its last page where it was. */
static void call_shorten(const msgpack_object *request)
{
    const void *bytes;
    size_t size;
    uint32_t position;
    if (!tr_map_bytes(request, "positions", &bytes, &size))
        return;
    for (size_t at = 0; at + sizeof(position) <= size; at += sizeof(position)) {
        uint8_t *in_request = (uint8_t *)(uintptr_t)bytes + at; /* the call's own bytes */
        memcpy(&position, in_request, sizeof(position));
        position = position > TR_KV_PAGE_TOKENS ? position - TR_KV_PAGE_TOKENS : position;
        memcpy(in_request, &position, sizeof(position));
    }
}

/* What planted bugs do to a call. Returns whether the node is to hear of it at all. */
static bool call_meddle(tr_cluster *c, const msgpack_object *request)
{
    char method[32] = "";
    uint64_t epoch = 0;
    (void)tr_map_text(request, "method", method, sizeof(method)); /* absent: none of ours */
    (void)tr_map_u64(request, "epoch", &epoch);
    bool commit = strcmp(method, "plan_commit") == 0;
    if (commit && sim_bug_strikes(SIM_BUG_STALE_ABORT))
        (void)cluster_change_abort(c, epoch, NULL);
    if (strcmp(method, "plan_fetch") == 0 && sim_bug_strikes(SIM_BUG_PAGE_MISSED))
        call_shorten(request);
    return !commit || !sim_bug_strikes(SIM_BUG_COMMIT_UNDONE);
}

/* Answers a call, unless a planted bug does. */
static void call_carry_out(const world_call *call, tr_cluster *c, msgpack_sbuffer *reply)
{
    msgpack_unpacked request;
    msgpack_packer pk;
    bool heard = true;

    msgpack_unpacked_init(&request);
    if (sim_shim.bug != SIM_BUG_NONE &&
        msgpack_unpack_next(&request, call->bytes.data, call->bytes.size, NULL) ==
            MSGPACK_UNPACK_SUCCESS)
        heard = call_meddle(c, &request.data);
    msgpack_unpacked_destroy(&request);
    if (heard) {
        tr_cluster_hand_answer(c, call->bytes.data, call->bytes.size, reply);
        return;
    }
    msgpack_packer_init(&pk, reply, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&pk, 1);
    tr_pack_bool(&pk, "ok", true);
}

/* By a task of the node that is asked. */
static void *call_answer(void *ctx)
{
    world_call *call = ctx;
    world *w = call->world;
    world_node *node = &w->nodes[call->to];
    msgpack_sbuffer reply;

    msgpack_sbuffer_init(&reply);
    call_carry_out(call, node->cluster, &reply);
    msgpack_sbuffer_destroy(&call->bytes);
    call->bytes = reply;
    if (node->ends) {
        call_break(call, w->notice_ns);
    } else if (call->fate == FATE_ANSWER_LOST) {
        call_break(call, tr_sim_delay_ns(w->net, call->to));
    } else {
        call->phase = CALL_RETURNS;
        call->due_ns = world_now_ns(w) + tr_sim_delay_ns(w->net, call->to);
    }
    return NULL;
}

static void call_arrive(world_call *call)
{
    world *w = call->world;
    call_note(call);
    if (w->nodes[call->to].cluster == NULL) { /* nobody listens there */
        call_break(call, UINT64_MAX);
    } else if (call->fate == FATE_NOT_HEARD) {
        call_break(call, 0);
    } else {
        call->phase = CALL_ANSWERS;
        world_task *t = task_start(w, call->to, sim_below(&w->random, JOIN_NS), call_answer, call);
        t->detached = t->answers = true;
    }
}

static void call_return(world_call *call)
{
    call_note(call);
    call->done = true;
    if (call->caller != NULL)
        call->caller->wake_ns = world_now_ns(call->world);
    else
        call_free(call);
}

/* When it goes on; UINT64_MAX: not by itself. */
static uint64_t call_next_ns(const world_call *call)
{
    const world *w = call->world;
    uint64_t at_ns = call->due_ns, open_ns = tr_sim_open_ns(w->net, call->from, call->to);
    if (call->phase == CALL_ANSWERS || call->done || at_ns == UINT64_MAX)
        return UINT64_MAX;
    if (!call->broken && open_ns > at_ns)
        at_ns = open_ns;
    if (call->phase == CALL_ASKS && w->nodes[call->to].awake_ns > at_ns)
        at_ns = w->nodes[call->to].awake_ns;
    if (call->phase == CALL_ASKS && node_answers(w, call->to) >= ANSWERS_MAX)
        return UINT64_MAX;
    return at_ns;
}

static world_call *call_new(world *w, uint32_t from, uint32_t to, const msgpack_sbuffer *request)
{
    world_call *call = calloc(1, sizeof(*call));
    assert(call != NULL);
    *call = (world_call){.next = w->calls,
                         .world = w,
                         .from = from,
                         .to = to,
                         .due_ns = world_now_ns(w) + tr_sim_delay_ns(w->net, from),
                         .caller = task_self(w)};
    if (w->breaks_one_in > 0 && from != to && sim_one_in(&w->random, w->breaks_one_in))
        call->fate = sim_one_in(&w->random, 2) ? FATE_NOT_HEARD : FATE_ANSWER_LOST;
    msgpack_sbuffer_init(&call->bytes);
    int failed = msgpack_sbuffer_write(&call->bytes, request->data, request->size);
    assert(failed == 0);
    w->calls = call;
    return call;
}

tr_status world_call_node(void *ctx, uint32_t to, const _Atomic bool *there,
                          const msgpack_sbuffer *request, uint64_t deadline_ns,
                          tr_control_reply *reply, tr_error *err)
{
    world_node *node = ctx;
    world *w = node->world;
    const char *name = w->placement.nodes[to].name;

    tr_control_reply_init(reply);
    if (node->ends)
        return tr_fail(err, TR_E_PEER, "%s: this node ends", name);
    world_call *call = call_new(w, node->index, to, request);
    bool gone = false;
    while (!call->done && !gone && !node->ends && world_clock_ns(&node->clock) < deadline_ns) {
        uint64_t end_ns = deadline_ns - node->clock.offset_ns, look_ns = world_now_ns(w) + LOOK_NS;
        call->caller->wake_ns = end_ns < look_ns ? end_ns : look_ns;
        sim_task_give_way();
        gone = there != NULL && !atomic_load(there);
    }
    if (!call->done) {
        call->caller = NULL;
        if (call->due_ns == UINT64_MAX && call->phase == CALL_RETURNS)
            call_free(call);
        return gone ? tr_fail(err, TR_E_PEER, "%s: the node is gone", name)
                    : tr_fail(err, TR_E_TIMEOUT, "%s: no answer within the deadline", name);
    }
    bool broken = call->broken;
    size_t size = call->bytes.size;
    char *bytes = msgpack_sbuffer_release(&call->bytes);
    call_free(call);
    if (!broken)
        return tr_control_reply_read(reply, name, bytes, size, free, bytes, err);
    free(bytes);
    return tr_fail(err, TR_E_PEER, "%s: the connection is lost", name);
}

void world_break_calls(world *w, uint32_t node)
{
    for (world_call *call = w->calls, *next; call != NULL; call = next) {
        next = call->next;
        if (call->to == node && call->phase == CALL_ASKS)
            call_break(call, w->notice_ns);
    }
}

/* -- turns -- */

uint64_t world_task_next_ns(const world *w, const world_task *t)
{
    uint64_t at_ns = world_now_ns(w), awake_ns = w->nodes[t->node].awake_ns;
    if (!task_is_ready(t))
        return UINT64_MAX;
    at_ns = t->wake_ns > at_ns ? t->wake_ns : at_ns;
    return awake_ns > at_ns ? awake_ns : at_ns;
}

uint64_t world_tasks_next_ns(const world *w)
{
    uint64_t next_ns = UINT64_MAX, now_ns = world_now_ns(w);
    for (uint32_t i = 0; i < WORLD_TASKS_MAX; i++) {
        uint64_t at_ns = world_task_next_ns(w, &w->tasks[i]);
        next_ns = at_ns < next_ns ? at_ns : next_ns;
    }
    for (const world_call *call = w->calls; call != NULL; call = call->next) {
        uint64_t at_ns = call_next_ns(call);
        at_ns = at_ns < now_ns ? now_ns : at_ns;
        next_ns = at_ns < next_ns ? at_ns : next_ns;
    }
    return next_ns;
}

bool world_call_step(world *w, uint64_t at_ns)
{
    for (world_call *call = w->calls; call != NULL; call = call->next) {
        if (call_next_ns(call) > at_ns)
            continue;
        if (call->phase == CALL_ASKS)
            call_arrive(call);
        else
            call_return(call);
        return true;
    }
    return false;
}

void world_task_step(world *w, uint32_t i)
{
    task_run(&w->tasks[i]);
}

bool world_tasks_are_idle(const world *w)
{
    bool idle = w->calls == NULL;
    for (uint32_t i = 0; i < WORLD_TASKS_MAX; i++)
        idle &= !task_is_ready(&w->tasks[i]);
    return idle;
}
