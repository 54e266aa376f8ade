/* test_allocation_guard.c - builds with the guard abort when receive allocates, and say who did.
 *
 * Method: a child process runs the actor; its end and its standard error are looked at. Built only
 * where there is a guard. */
#include "tests/core/runtime_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT   test_id(1)
#define ACTOR  test_id(2)
#define REMOTE test_id(3)

static void allocate(void)
{
    void *volatile memory = malloc(24);
    free(memory);
}

static tr_status receive_and_allocate(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    (void)msg;
    allocate();
    return env->send(env->ctx, PORT, TR_MSG_PONG, 0, 0, NULL);
}

static tr_status receive_and_send_far(void *ctx, const tr_env *env, const tr_msg *msg)
{
    (void)ctx;
    (void)msg;
    tr_status status = env->send(env->ctx, REMOTE, TR_MSG_PING, 0, 0, NULL);
    return status != TR_OK ? status : env->send(env->ctx, PORT, TR_MSG_PONG, 0, 0, NULL);
}

/* A transport is not ours: it may allocate, also when an actor's send calls it. */
static tr_status remote_allocates(void *ctx, uint32_t node_index, const tr_msg *msg)
{
    (void)ctx;
    (void)node_index;
    (void)msg;
    allocate();
    return TR_OK;
}

/* Runs one message through the actor in a child; returns its wait status. */
static int run_in_child(test_actor *actor, bool may_allocate, char *text, size_t size)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(fds[1], STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL);
        const tr_actor_ops ops = {TEST_ACTOR_OPS, .mailbox_slots = 2, .outbox_slots = 2,
                                  .may_allocate = may_allocate};
        tr_runtime *rt = open_runtime(0, 1, NULL);
        tr_runtime_spawn(rt, ACTOR, "greedy@spark1", &ops, actor, 0, NULL);
        tr_runtime_add_port(rt, PORT, "port", 2, NULL, NULL, NULL);
        tr_runtime_add_remote(rt, REMOTE, "far", 1, NULL);
        tr_runtime_set_remote(rt, (tr_remote){.send = remote_allocates});
        if (tr_runtime_start(rt, NULL) != TR_OK)
            _exit(2);
        tr_runtime_post(rt, 0, ACTOR, TR_MSG_SUBMIT, 0, 0, NULL);
        tr_msg msg;
        uint64_t deadline_ns = tr_clock_ns() + DEADLINE_NS;
        while (!tr_runtime_port_next(rt, PORT, &msg)) {
            if (tr_clock_ns() > deadline_ns)
                _exit(3);
        }
        _exit(0);
    }
    close(fds[1]);
    size_t used = 0;
    ssize_t got;
    while (used + 1 < size && (got = read(fds[0], text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(fds[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void an_allocation_in_receive_aborts_with_actor_and_kind(void **state)
{
    (void)state;
    char text[1024];
    test_actor actor = {.receive = receive_and_allocate};
    int status = run_in_child(&actor, false, text, sizeof(text));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "greedy@spark1"));
    assert_non_null(strstr(text, "SUBMIT"));
    assert_non_null(strstr(text, "malloc of 24 bytes"));
}

static void actors_that_may_allocate_and_transports_are_left_alone(void **state)
{
    (void)state;
    char text[1024];
    test_actor control_plane = {.receive = receive_and_allocate};
    assert_int_equal(run_in_child(&control_plane, true, text, sizeof(text)), 0);
    test_actor sender = {.receive = receive_and_send_far};
    assert_int_equal(run_in_child(&sender, false, text, sizeof(text)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_in_receive_aborts_with_actor_and_kind),
        cmocka_unit_test(actors_that_may_allocate_and_transports_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
