/* sim_changes.c - changes of placement in a simulation. */
#include "tests/sim/sim_inside.h"

#include <string.h>

#define ABORT_PHASES 3 /* prepare, pause, fetch */

/* What a change may be refused for, or fail of. */
static bool sim_change_has_reason(const simulation *s, tr_status why)
{
    return s->world.lost || s->story.breaks_one_in > 0 ||
           (s->story.scarce && (why == TR_E_NOMEM || why == TR_E_INVALID));
}

void sim_begin_change(simulation *s, const story_event *e)
{
    tr_cluster *c = sim_batcher(s);
    const char *node = s->world.placement.nodes[e->a].name;
    char part[64];
    tr_error err = {0};
    uint64_t number;

    if (c == NULL || s->changes_count == CHANGES_MAX)
        return;
    story_part_print(e, part, sizeof(part));
    tr_status status = e->kind == STORY_DRAIN     ? tr_cluster_drain(c, node, &number, &err)
                       : e->kind == STORY_UNDRAIN ? tr_cluster_undrain(c, node, &number, &err)
                       : e->kind == STORY_REPLICATE
                           ? tr_cluster_replicate(c, part, node, &number, &err)
                           : tr_cluster_move(c, part, node, &number, &err);
    if (status == TR_OK) {
        s->changes[s->changes_count++] =
            (sim_change){.number = number,
                         .abort_phase = (uint32_t)sim_below(&s->aborts, 16),
                         .life = s->world.nodes[s->world.placement.batcher_node].life,
                         .begun_ns = world_now_ns(&s->world)};
        s->changing_count++;
        s->out->changes++;
        return;
    }
    sim_say(s, "refused: %s", err.text);
    /* Another is under way, or the part stands there already. */
    if (status != TR_E_AGAIN && status != TR_E_INVALID && !sim_change_has_reason(s, status))
        sim_fail(s, "a change is refused without a reason: %s", err.text);
}

/* Some changes are aborted in one of the phases in which they can be. */
static void sim_abort(simulation *s, sim_change *change, const tr_change_report *report)
{
    uint64_t number = 0;
    if (change->abort_asked || change->abort_phase >= ABORT_PHASES ||
        strcmp(report->phase, story_phases[change->abort_phase]) != 0)
        return;
    change->abort_asked = tr_cluster_abort(sim_batcher(s), &number, NULL) == TR_OK;
    if (change->abort_asked && number != change->number)
        sim_fail(s, "change %llu is aborted instead of %llu", (unsigned long long)number,
                 (unsigned long long)change->number);
}

static void sim_end_change(simulation *s, sim_change *change, const tr_change_report *report)
{
    bool done = strcmp(report->phase, "done") == 0;
    change->ended = true;
    s->changing_count--;
    s->out->changes_done += done;
    sim_say(s, "%s: %s, paused %.3f ms %s", report->what, report->phase,
            (double)report->pause_ns / 1e6, report->error.text);
    if (report->pause_bytes > report->bytes)
        sim_fail(s, "\"%s\" moved %llu bytes, and %llu of them in its pause", report->what,
                 (unsigned long long)report->bytes, (unsigned long long)report->pause_bytes);
    bool aborted = change->abort_asked && report->error.code == TR_E_CANCELED;
    s->out->changes_aborted += aborted;
    if (!done && !aborted && !sim_change_has_reason(s, report->error.code))
        sim_fail(s, "\"%s\" failed without a reason: %s", report->what, report->error.text);
}

/* The change is in a phase: somebody may have waited for it. */
static void sim_spring(simulation *s, const tr_change_report *report)
{
    const story_event *e = s->ambush;
    if (e == NULL || strcmp(report->phase, story_phases[e->b]) != 0)
        return;
    s->ambush = NULL;
    s->out->ambushes[e->b]++;
    sim_say(s, "n%u crashes in phase %s of \"%s\"", e->a, report->phase, report->what);
    sim_lose_node(s, e);
}

/* Without the batcher's node none goes on. */
void sim_watch_changes(simulation *s)
{
    tr_cluster *c = sim_batcher(s);
    tr_change_report report;
    for (uint32_t i = 0; s->changing_count > 0 && i < s->changes_count; i++) {
        sim_change *change = &s->changes[i];
        if (change->ended)
            continue;
        if (c == NULL || s->world.nodes[s->world.placement.batcher_node].life != change->life) {
            change->ended = true;
            s->changing_count--;
        } else if (!tr_cluster_change_report(c, change->number, &report)) {
            sim_fail(s, "change %llu has no report", (unsigned long long)change->number);
        } else if (strcmp(report.phase, "done") == 0 || strcmp(report.phase, "failed") == 0) {
            sim_end_change(s, change, &report);
        } else {
            sim_abort(s, change, &report);
            sim_spring(s, &report);
            c = sim_batcher(s);
        }
    }
}

void sim_probe_change(simulation *s)
{
    tr_cluster *c = sim_batcher(s);
    tr_change_report report = {.phase = "none"};
    uint64_t number = 0, deadline_ns = world_now_ns(&s->world) + PATIENCE_NS;
    tr_error err = {0};

    for (uint32_t n = 0; number == 0 && n < s->world.nodes_count; n++)
        if (sim_is_in(s, n))
            (void)tr_cluster_move(c, "vocabulary/all", s->world.placement.nodes[n].name, &number,
                                  &err); /* refused where it stands already */
    if (number == 0 && err.code != TR_E_INVALID)
        sim_fail(s, "a change at rest is refused: %s", err.text);
    while (!s->out->failed && number != 0 && strcmp(report.phase, "done") != 0) {
        (void)world_step(&s->world, world_next_ns(&s->world));
        (void)tr_cluster_change_report(c, number, &report); /* there: it was just begun */
        if (strcmp(report.phase, "failed") == 0 || world_now_ns(&s->world) > deadline_ns)
            sim_fail(s, "a change at rest is in phase %s: %s", report.phase, report.error.text);
    }
}
