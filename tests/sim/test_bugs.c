/* test_bugs.c - the simulator can fail: each planted bug is found by some seed among 1000. */
#include "tests/check.h"

#include "core/log.h"
#include "tests/sim/sim.h"
#include "tests/sim/tiny_model.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUG_SEEDS 1000

static char model[64];

static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
#define CRASHES_COUNT (sizeof(crashes) / sizeof(crashes[0]))

/* Runs seeds with a bug until one fails, in a process of its own: a bug may end in an assertion.
 * *seed: the one that runs, in memory that the parent sees, too. */
static void look_for(sim_bug bug, uint64_t *seed)
{
    sim_options options = {.model = model, .bug = bug};
    sim_result r = {.failed = false};
    for (size_t i = 0; i < CRASHES_COUNT; i++)
        signal(crashes[i], SIG_DFL); /* cmocka's handlers would go on with the tests here */
    for (*seed = 1; *seed <= BUG_SEEDS; (*seed)++) {
        sim_run(&options, *seed, &r);
        if (!r.failed)
            continue;
        fprintf(stderr, "# %s is found by seed %llu: %s\n", sim_bug_name(bug),
                (unsigned long long)*seed, r.text);
        _exit(1);
    }
    _exit(0);
}

static bool is_a_crash(int status)
{
    for (size_t i = 0; i < CRASHES_COUNT; i++)
        if (WIFSIGNALED(status) && WTERMSIG(status) == crashes[i])
            return true;
    return false;
}

/* It was the bug that was found: the same seed without it goes well. */
static void run_without_bug(uint64_t seed)
{
    const sim_options options = {.model = model};
    sim_result r = {.failed = false};
    sim_run(&options, seed, &r);
    if (r.failed)
        fprintf(stderr, "# seed %llu fails without a bug: %s\n", (unsigned long long)seed, r.text);
    _exit(r.failed);
}

/* bug NONE: *seed alone. A simulation leaves threads to the next one, and a fork has none of them:
 * no simulation runs in this process. Returns the child's wait status. */
static int run_in_child(sim_bug bug, uint64_t *seed)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0 && bug == SIM_BUG_NONE)
        run_without_bug(*seed);
    if (child == 0)
        look_for(bug, seed);
    assert_true(waitpid(child, &status, 0) == child);
    return status;
}

static void every_planted_bug_is_found(void **state)
{
    uint64_t *seed =
        mmap(NULL, sizeof(*seed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(seed != MAP_FAILED);
    for (int bug = SIM_BUG_NONE + 1; bug < SIM_BUGS_COUNT; bug++) {
        int status = run_in_child((sim_bug)bug, seed);
        if (is_a_crash(status))
            fprintf(stderr, "# %s is found by seed %llu: a crash\n", sim_bug_name((sim_bug)bug),
                    (unsigned long long)*seed);
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
            fail_msg("%s is not found by any of %d seeds (status %d)", sim_bug_name((sim_bug)bug),
                     BUG_SEEDS, status);
        assert_int_equal(run_in_child(SIM_BUG_NONE, seed), 0);
    }
    (void)munmap(seed, sizeof(*seed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_planted_bug_is_found)};
    tr_error err;
    tr_log_set_level(TR_LOG_NONE);
    if (tiny_model_write(model, sizeof(model), &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    tiny_model_remove(model);
    return failures;
}
