#include "tests/sim/sim.h"

#include "tests/sim/sim_inside.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SETTLE_NS   (3ull * WORLD_SECOND) /* after the last request ended */
#define WATCH_TURNS 8                     /* reports of changes are read once in so many turns */

/* Runs that failed. Their worlds cannot be closed, and stay reachable: a leak checker is to speak
 * of others only. */
static simulation *sim_failed;

/* -- telling -- */

void sim_fail(simulation *s, const char *fmt, ...)
{
    va_list args;
    if (s->out->failed)
        return;
    s->out->failed = true;
    va_start(args, fmt);
    vsnprintf(s->out->text, sizeof(s->out->text), fmt, args);
    va_end(args);
}

void sim_say(simulation *s, const char *fmt, ...)
{
    va_list args;
    if (s->options->log == NULL)
        return;
    fprintf(s->options->log, "  %9.3f ms  ", (double)(world_now_ns(&s->world) - s->begin_ns) / 1e6);
    va_start(args, fmt);
    vfprintf(s->options->log, fmt, args);
    va_end(args);
    fputc('\n', s->options->log);
}

tr_cluster *sim_batcher(const simulation *s)
{
    return s->world.nodes[s->world.placement.batcher_node].cluster;
}

bool sim_sees(tr_cluster *c, uint32_t n)
{
    tr_peer_stat rows[WORLD_NODES_MAX];
    tr_cluster_peers(c, rows, WORLD_NODES_MAX);
    return rows[n].alive;
}

bool sim_is_in(const simulation *s, uint32_t n)
{
    tr_cluster *c = s->world.nodes[n].cluster, *batcher = sim_batcher(s);
    return c != NULL && batcher != NULL && sim_sees(batcher, n) &&
           sim_sees(c, s->world.placement.batcher_node);
}

void sim_expect_trouble(simulation *s, uint64_t until_ns)
{
    s->trouble_ns = until_ns > s->trouble_ns ? until_ns : s->trouble_ns;
}

/* -- the story's events -- */

static void sim_tell(simulation *s, const story_event *e)
{
    world_node *node = &s->world.nodes[e->a % WORLD_NODES_MAX];
    uint64_t now_ns = world_now_ns(&s->world);
    char text[128];

    story_event_print(e, text, sizeof(text));
    if (s->options->log != NULL)
        fprintf(s->options->log, "  %s\n", text);
    switch (e->kind) {
    case STORY_SUBMIT:
        sim_submit(s, e);
        return;
    case STORY_CANCEL:
        sim_cancel(s, e->a);
        return;
    case STORY_SLOW:
        tr_sim_set_slow(s->world.net, e->a, (uint32_t)e->value);
        node->slow = (uint32_t)e->value;
        return;
    case STORY_STOP:
        node->awake_ns = now_ns + e->value;
        sim_expect_trouble(s, now_ns + e->value + NOTICE_NS);
        return;
    case STORY_CUT:
        tr_sim_cut(s->world.net, e->a, e->b, now_ns + e->value);
        sim_expect_trouble(s, now_ns + e->value + NOTICE_NS);
        return;
    case STORY_START:
        world_restart(&s->world, e->a, now_ns);
        sim_expect_trouble(s, now_ns + NOTICE_NS);
        return;
    case STORY_AMBUSH:
        s->ambush = e;
        return;
    case STORY_CRASH:
    case STORY_LEAVE:
        sim_lose_node(s, e);
        return;
    case STORY_MOVE:
    case STORY_REPLICATE:
    case STORY_DRAIN:
    case STORY_UNDRAIN:
        sim_begin_change(s, e);
        return;
    }
}

/* -- an act: from the first event until everything has ended and settled -- */

static uint64_t sim_deadline_ns(const simulation *s)
{
    uint64_t deadline_ns = UINT64_MAX;
    for (uint32_t i = 0; i < s->requests_count; i++) {
        const sim_request *q = &s->requests[i];
        if (q->phase == REQUEST_OPEN && q->submitted_ns + PATIENCE_NS < deadline_ns)
            deadline_ns = q->submitted_ns + PATIENCE_NS;
    }
    for (uint32_t i = 0; i < s->changes_count; i++)
        if (!s->changes[i].ended && s->changes[i].begun_ns + PATIENCE_NS < deadline_ns)
            deadline_ns = s->changes[i].begun_ns + PATIENCE_NS;
    return deadline_ns;
}

/* Nodes that end by themselves, as a program that has nothing left to serve; a supervisor may start
 * them again. */
static void sim_end_nodes(simulation *s)
{
    s->beats = s->world.beats;
    for (uint32_t n = 0; n < s->world.nodes_count; n++) {
        const story_event end = {.kind = STORY_LEAVE, .a = n};
        if (!world_would_end(&s->world, n))
            continue;
        sim_say(s, "n%u ends by itself", n);
        sim_lose_node(s, &end);
        if (s->story.restarts)
            world_restart(&s->world, n,
                          world_now_ns(&s->world) + sim_below(&s->random, WORLD_SECOND));
    }
}

/* One thing happens, at limit_ns at the latest. False: nothing before limit_ns. */
static bool sim_turn(simulation *s, uint64_t limit_ns)
{
    uint64_t next_ns = world_next_ns(&s->world);
    if (next_ns > limit_ns)
        return false;
    uint32_t node = world_step(&s->world, next_ns);
    for (uint32_t n = 0; n < s->world.nodes_count; n++)
        if (n == node || node == WORLD_NODES_MAX)
            sim_hear(s, n);
    if (s->world.beats != s->beats)
        sim_end_nodes(s);
    return true;
}

static void sim_play(simulation *s)
{
    uint32_t steps = 0;
    s->begin_ns = world_now_ns(&s->world);
    s->next_event = 0;
    s->requests_count = s->open_count = 0;
    s->changes_count = s->changing_count = 0;
    s->ambush = NULL;
    while (!s->out->failed &&
           (s->next_event < s->story.events_count || s->open_count > 0 || s->changing_count > 0)) {
        const story_event *e = &s->story.events[s->next_event];
        bool more = s->next_event < s->story.events_count;
        uint64_t event_ns = more ? s->begin_ns + e->at_ns : UINT64_MAX;
        uint64_t deadline_ns = sim_deadline_ns(s);
        uint64_t limit_ns = event_ns < deadline_ns ? event_ns : deadline_ns;
        if (steps++ > STEPS_MAX)
            sim_fail(s, "%u steps, and no end", STEPS_MAX);
        if (s->ambush != NULL || steps % WATCH_TURNS == 0)
            sim_watch_changes(s);
        if (sim_turn(s, limit_ns))
            continue;
        if (more && event_ns <= deadline_ns) {
            tr_sim_set_now_ns(s->world.net, event_ns);
            sim_tell(s, e);
            s->next_event++;
        } else {
            sim_fail(s, "%u requests and %u changes have not ended after %llu s", s->open_count,
                     s->changing_count, PATIENCE_NS / WORLD_SECOND);
        }
    }
}

void sim_settle(simulation *s)
{
    uint64_t now_ns = world_now_ns(&s->world);
    uint64_t end_ns = (now_ns > s->trouble_ns ? now_ns : s->trouble_ns) + SETTLE_NS;
    uint32_t steps = 0;
    while (!s->out->failed && (!world_is_quiet(&s->world) || now_ns <= s->trouble_ns) &&
           sim_turn(s, end_ns)) {
        now_ns = world_now_ns(&s->world);
        if (steps++ > STEPS_MAX)
            sim_fail(s, "%u steps, and no rest", STEPS_MAX);
    }
    if (!s->out->failed && !world_is_quiet(&s->world) && !s->world.lost)
        sim_fail(s, "the cluster has not come to rest after %llu s", SETTLE_NS / WORLD_SECOND);
}

static void sim_finale(simulation *s)
{
    tr_error err = {0};

    sim_shim.refuse_one_in = 0; /* from here on there is no reason to fail */
    s->world.breaks_one_in = 0;
    sim_settle(s);
    s->out->lost = s->world.lost;
    s->out->joins = s->world.joins;
    if (!s->world.lost || (sim_batcher(s) != NULL && !s->story.scarce))
        sim_check_service(s);
    if (s->world.lost && !s->out->failed) {
        sim_say(s, "the whole is started again");
        world_stop_all(&s->world);
        sim_shim.refused = 0;
        if (world_boot(&s->world, &err) != TR_OK)
            sim_fail(s, "the cluster does not start again: %s", err.text);
        story_write_quiet(&s->story, &s->random);
        if (!s->out->failed)
            sim_play(s);
        sim_settle(s);
        if (!s->out->failed && s->world.lost)
            sim_fail(s, "a node is lost although nothing happened to it");
        sim_check_service(s);
    }
}

static void sim_keep(const simulation *s)
{
    simulation *kept = malloc(sizeof(*kept));
    if (kept == NULL)
        return;
    *kept = *s;
    kept->next = sim_failed;
    sim_failed = kept;
}

void sim_run(const sim_options *options, uint64_t seed, sim_result *out)
{
    static simulation s;
    tr_error err = {0};

    *out = (sim_result){.failed = false};
    memset(&s, 0, sizeof(s));
    s.options = options;
    s.out = out;
    s.random = sim_seeded(seed, 2);
    s.aborts = sim_seeded(seed, 7);
    story_write(&s.story, options->model, seed);
    if (options->bug != SIM_BUG_NONE && (int)options->bug < (int)TR_SIM_BUGS_COUNT) {
        s.story.net.bug = (tr_sim_bug)options->bug;
        s.story.net.bug_one_in = sim_bug_one_in(options->bug);
    }
    sim_shim = (sim_shim_control){.random = sim_seeded(seed, 3), .bug = options->bug};
    if (options->log != NULL)
        fprintf(options->log, "%s", s.story.yaml);
    if (world_open(&s.world, s.story.yaml, &s.story.net, sim_next(&s.random), &err) != TR_OK ||
        world_boot(&s.world, &err) != TR_OK) {
        sim_fail(&s, "the cluster does not start: %s", err.text);
        sim_keep(&s);
        return;
    }
    sim_check_memory(&s);
    if (s.story.tight && !out->failed)
        sim_check_refusal(&s);
    if (s.story.scarce && !out->failed)
        sim_make_scarce(&s);
    sim_shim.refuse_one_in = s.story.refuse_one_in;
    s.world.breaks_one_in = s.story.breaks_one_in;
    s.world.load_max_ns = s.story.load_max_ns;
    if (!out->failed)
        sim_play(&s);
    if (!out->failed)
        sim_finale(&s);
    out->hash = sim_shim.hash ^ tr_sim_hash(s.world.net);
    out->messages = sim_shim.messages;
    out->virtual_ns = world_now_ns(&s.world);
    if (!out->failed)
        world_close(&s.world);
    else
        sim_keep(&s);
}
