/* main.c - runs seeds:  sim --seeds 1..1000 [--bug NAME] [--verbose]
 *
 * A failing seed is printed; the same seed fails again in the same way. Returns 1 when one failed.
 */
#include "core/log.h"
#include "core/trace.h"
#include "tests/sim/requests.h"
#include "tests/sim/sim.h"
#include "tests/sim/tasks.h"
#include "tests/sim/tiny_model.h"

#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    uint64_t first, last;
    bool verbose, quiet;
    sim_bug bug;
} arguments;

static char crash_line[64];

/* An assertion that fails, or a crash, still names its seed. */
static void on_crash(int number)
{
    ssize_t written = write(STDERR_FILENO, crash_line, strlen(crash_line));
    (void)written;
    signal(number, SIG_DFL);
    raise(number);
}

static int usage(FILE *out)
{
    fprintf(out, "usage: sim --seeds FIRST..LAST [--bug NAME] [--verbose | --quiet]\n\n"
                 "example: sim --seeds 1..1000\n\nbugs that can be planted:");
    for (int b = 1; b < SIM_BUGS_COUNT; b++)
        fprintf(out, " %s", sim_bug_name((sim_bug)b));
    fputc('\n', out);
    return out == stdout ? 0 : 2;
}

static bool read_seeds(arguments *a, const char *text)
{
    char *end;
    a->first = strtoull(text, &end, 10);
    a->last = a->first;
    if (strncmp(end, "..", 2) == 0)
        a->last = strtoull(end + 2, &end, 10);
    return *end == '\0' && a->first <= a->last;
}

static bool read_arguments(arguments *a, int argc, char **argv)
{
    bool has_seeds = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) {
            a->verbose = true;
        } else if (strcmp(argv[i], "--quiet") == 0) {
            a->quiet = true;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            has_seeds = read_seeds(a, argv[++i]);
        } else if (strcmp(argv[i], "--bug") == 0 && i + 1 < argc) {
            a->bug = sim_bug_find(argv[++i]);
        } else {
            return false;
        }
    }
    return has_seeds && a->bug < SIM_BUGS_COUNT;
}

static void print_sum(const arguments *a, const sim_result *sum, uint64_t lost, uint64_t failures,
                      uint64_t began_ns)
{
    double seconds = (double)(tr_clock_ns() - began_ns) / 1e9;
    double seeds = (double)(a->last - a->first + 1);
    printf("%.0f seeds, %llu failed, in %.1f s (%.0f a minute)\n", seeds,
           (unsigned long long)failures, seconds, seeds / seconds * 60);
    printf("crashes in the midst of a change:");
    for (int p = 0; p < STORY_PHASES; p++)
        printf(" %u in %s%s", sum->ambushes[p], story_phases[p], p + 1 < STORY_PHASES ? "," : "\n");
    printf("%u changes of placement, %u done, %u aborted; %llu tokens of kept prefixes\n",
           sum->changes, sum->changes_done, sum->changes_aborted, (unsigned long long)sum->cached);
    printf(
        "%u requests, %u finished; %llu messages; %.0f s of virtual time; %llu seeds lost a node,"
        " %u came back\n",
        sum->requests, sum->finished, (unsigned long long)sum->messages,
        (double)sum->virtual_ns / 1e9, (unsigned long long)lost, sum->joins);
}

int main(int argc, char **argv)
{
    arguments a = {.bug = SIM_BUG_NONE};
    sim_result sum = {.failed = false};
    uint64_t failures = 0, lost = 0, began_ns = tr_clock_ns();
    char model[64];
    tr_error err;

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return usage(stdout);
    if (!read_arguments(&a, argc, argv))
        return usage(stderr);
    if (tiny_model_write(model, sizeof(model), &err) != TR_OK) {
        fprintf(stderr, "sim: %s\n", err.text);
        return 1;
    }
    tr_log_set_level(a.verbose ? TR_LOG_WARN : TR_LOG_NONE);
    /* Nodes come and go thousands of times: their memory is kept instead of given back. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    sim_options options = {.model = model, .bug = a.bug, .log = a.verbose ? stdout : NULL};
    for (uint64_t seed = a.first; seed <= a.last; seed++) {
        sim_result r;
        snprintf(crash_line, sizeof(crash_line), "seed %llu crashes\n", (unsigned long long)seed);
        sim_run(&options, seed, &r);
        failures += r.failed;
        lost += r.lost;
        sum.requests += r.requests;
        sum.finished += r.finished;
        sum.changes += r.changes;
        sum.changes_done += r.changes_done;
        sum.changes_aborted += r.changes_aborted;
        sum.cached += r.cached;
        sum.joins += r.joins;
        for (int p = 0; p < STORY_PHASES; p++)
            sum.ambushes[p] += r.ambushes[p];
        sum.messages += r.messages;
        sum.virtual_ns += r.virtual_ns;
        if (r.failed)
            printf("seed %llu FAILED: %s\n", (unsigned long long)seed, r.text);
        if (a.verbose)
            printf("seed %llu: hash %016llx\n", (unsigned long long)seed,
                   (unsigned long long)r.hash);
        fflush(stdout);
        if (r.failed && a.bug != SIM_BUG_NONE)
            break; /* found */
    }
    if (!a.quiet)
        print_sum(&a, &sum, lost, failures, began_ns);
    sim_requests_close();
    sim_tasks_close();
    tiny_model_remove(model);
    return failures > 0 ? 1 : 0;
}
