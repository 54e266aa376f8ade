/* test_bugs.c - the simulator can fail: each planted bug is found by some seed among 1000. */
#include "tests/check.h"

#include "core/log.h"
#include "tests/sim/sim.h"
#include "tests/sim/tiny_model.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUG_SEEDS 1000

static char model[64];

/* Runs seeds with a bug until one fails, in a process of its own: a bug may end in an assertion. */
static void look_for(sim_bug bug)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    sim_options options = {.model = model, .bug = bug};
    sim_result r = {.failed = false};
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
        signal(crashes[i], SIG_DFL); /* cmocka's handlers would go on with the tests here */
    for (uint64_t seed = 1; seed <= BUG_SEEDS; seed++) {
        sim_run(&options, seed, &r);
        if (!r.failed)
            continue;
        fprintf(stderr, "# %s is found by seed %llu: %s\n", sim_bug_name(bug),
                (unsigned long long)seed, r.text);
        _exit(1);
    }
    _exit(0);
}

static void every_planted_bug_is_found(void **state)
{
    (void)state;
    for (int bug = SIM_BUG_NONE + 1; bug < SIM_BUGS_COUNT; bug++) {
        int status = 0;
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            look_for((sim_bug)bug);
        assert_true(waitpid(child, &status, 0) == child);
        if (WIFSIGNALED(status))
            fprintf(stderr, "# %s is found by a crash\n", sim_bug_name((sim_bug)bug));
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            fail_msg("%s is not found by any of %d seeds", sim_bug_name((sim_bug)bug), BUG_SEEDS);
    }
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
