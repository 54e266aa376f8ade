/* test_sim.c - the simulator itself: a seed is one history, a short set of seeds holds, and each
 * planted bug is found by some seed.
 *
 * TR_SEEDS: how many seeds the short set has (60); tests/sim/sim runs longer ones. */
#include "tests/check.h"

#include "core/log.h"
#include "tests/sim/requests.h"
#include "tests/sim/sim.h"
#include "tests/sim/tasks.h"
#include "tests/sim/tiny_model.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUG_SEEDS  1000
#define PORT_FIRST 7701 /* of the control sockets, when a placement file does not say */

static char model[64];
static uint64_t seeds_count = 60;

/* Takes a port of this machine, unless somebody has it. */
static int take_port(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        assert_int_equal(listen(fd, 1), 0);
    return fd;
}

/* Whatever happens on the machine, too: nobody listens on the ports of its placement file. */
static void a_seed_is_one_history(void **state)
{
    sim_options options = {.model = model};
    sim_result first, second, other;
    int ports[TR_NODES_MAX];
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        sim_run(&options, seed, &first);
        sim_run(&options, seed + 100, &other);
        for (uint16_t i = 0; i < TR_NODES_MAX; i++)
            ports[i] = take_port((uint16_t)(PORT_FIRST + i));
        sim_run(&options, seed, &second);
        for (uint16_t i = 0; i < TR_NODES_MAX; i++)
            close(ports[i]);
        assert_true(first.hash == second.hash);
        assert_int_equal(first.messages, second.messages);
        assert_int_equal(first.virtual_ns, second.virtual_ns);
        assert_true(first.hash != other.hash);
    }
}

static void a_failing_seed_fails_again_in_the_same_way(void **state)
{
    sim_options options = {.model = model, .bug = SIM_BUG_TOKEN_LOST};
    sim_result first = {.failed = false}, second;
    (void)state;
    uint64_t seed = 0;
    while (!first.failed && seed < BUG_SEEDS)
        sim_run(&options, ++seed, &first);
    assert_true(first.failed);
    sim_run(&options, seed, &second);
    assert_true(second.failed);
    assert_string_equal(first.text, second.text);
    assert_true(first.hash == second.hash);
}

static void every_seed_holds(void **state)
{
    sim_options options = {.model = model};
    uint32_t aborted = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= seeds_count; seed++) {
        sim_result r;
        sim_run(&options, seed, &r);
        if (r.failed)
            fail_msg("seed %llu: %s", (unsigned long long)seed, r.text);
        aborted += r.changes_aborted;
    }
    assert_true(aborted > 0 || seeds_count < 20); /* three of sixteen that come to the phase */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_is_one_history),
        cmocka_unit_test(a_failing_seed_fails_again_in_the_same_way),
        cmocka_unit_test(every_seed_holds),
    };
    const char *count = getenv("TR_SEEDS");
    tr_error err;
    if (count != NULL)
        seeds_count = strtoull(count, NULL, 10);
    tr_log_set_level(TR_LOG_NONE);
    if (tiny_model_write(model, sizeof(model), &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sim_requests_close();
    sim_tasks_close();
    tiny_model_remove(model);
    return failures;
}
