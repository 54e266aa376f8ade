/* runtime_fixture.h - actors whose receive is a function of the test, and waiting with a deadline.
 */
#ifndef TR_TESTS_CORE_RUNTIME_FIXTURE_H
#define TR_TESTS_CORE_RUNTIME_FIXTURE_H

#include "tests/check.h"

#include "core/runtime.h"
#include "core/trace.h"

#include <sched.h>
#include <stdatomic.h>

#define DEADLINE_NS 30000000000ull

/* Config of a test actor; borrowed as long as the runtime lives. */
typedef struct {
    tr_status (*receive)(void *ctx, const tr_env *env, const tr_msg *msg);
    tr_status (*init)(void *ctx, const tr_env *env); /* NULL: nothing */
    void *ctx;
    _Atomic uint32_t inits;
    _Atomic uint32_t teardowns;
} test_actor;

typedef struct {
    const tr_env *env;
    test_actor *actor;
} test_state;

static tr_status test_actor_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    (void)err;
    test_state *s = state;
    /* The runtime hands the config out as const; the counters in it are ours. */
    *s = (test_state){.env = env, .actor = (test_actor *)(uintptr_t)config};
    atomic_fetch_add(&s->actor->inits, 1);
    return s->actor->init != NULL ? s->actor->init(s->actor->ctx, env) : TR_OK;
}

static tr_status test_actor_receive(void *state, const tr_msg *msg)
{
    test_state *s = state;
    return s->actor->receive(s->actor->ctx, s->env, msg);
}

static void test_actor_teardown(void *state)
{
    atomic_fetch_add(&((test_state *)state)->actor->teardowns, 1);
}

#define TEST_ACTOR_OPS                                                                             \
    .kind = "test", .state_size = sizeof(test_state), .init = test_actor_init,                     \
    .receive = test_actor_receive, .teardown = test_actor_teardown

static inline tr_actor_id test_id(uint32_t number)
{
    return tr_actor_id_make(TR_ACTOR_TEST, number);
}

static inline tr_runtime *open_runtime(uint32_t node_index, uint32_t workers_count, tr_pool *pool)
{
    tr_runtime *rt = NULL;
    tr_error err = {0};
    tr_runtime_config config = {.node_name = node_index == 0 ? "spark1" : "spark2",
                                .node_index = node_index,
                                .workers_count = workers_count,
                                .pool = pool};
    CHECK_STATUS(tr_runtime_open(&rt, &config, &err), TR_OK);
    return rt;
}

static inline tr_pool *open_pool(uint32_t count)
{
    tr_pool *pool = NULL;
    CHECK_STATUS(tr_pool_open(&pool, &(tr_pool_class){64, count}, 1, NULL), TR_OK);
    return pool;
}

/* The next message of a port, waited for. */
static inline tr_msg next_message(tr_runtime *rt, tr_actor_id port)
{
    tr_msg msg;
    uint64_t deadline_ns = tr_clock_ns() + DEADLINE_NS;
    while (!tr_runtime_port_next(rt, port, &msg)) {
        assert_true(tr_clock_ns() < deadline_ns);
        sched_yield();
    }
    return msg;
}

/* Posts, and waits while the target is full. */
static inline void post_patiently(tr_runtime *rt, tr_actor_id source, tr_actor_id target,
                                  tr_msg_kind kind, uint64_t step, uint32_t argument)
{
    uint64_t deadline_ns = tr_clock_ns() + DEADLINE_NS;
    tr_status status;
    while ((status = tr_runtime_post(rt, source, target, kind, step, argument, NULL)) ==
           TR_E_AGAIN) {
        assert_true(tr_clock_ns() < deadline_ns);
        sched_yield();
    }
    CHECK_STATUS(status, TR_OK);
}

/* Waits until *value is expected. */
static inline void wait_for(_Atomic uint32_t *value, uint32_t expected)
{
    uint64_t deadline_ns = tr_clock_ns() + DEADLINE_NS;
    while (atomic_load(value) != expected) {
        assert_true(tr_clock_ns() < deadline_ns);
        sched_yield();
    }
}

#endif
