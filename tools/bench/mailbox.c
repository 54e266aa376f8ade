/* mailbox.c - what a message costs inside one process.
 *
 * Prints the round trip between two threads that spin and the messages per second one way: for the
 * mailbox alone, and for two actors on two workers of a runtime, where scheduling, trace stamps and
 * statistics are part of the figure. Every figure is taken several times; the table has the median
 * of the runs and the smallest and largest of them. There is no threshold.
 *
 * The figures mean something when both threads have a core to themselves. Where other programs run,
 * the load is printed with them, and `chrt -f 10` in front of the command keeps the others away. */
#include "core/mailbox.h"
#include "core/runtime.h"
#include "core/trace.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUNS          7
#define ROUND_TRIPS   50000u
#define ONE_WAY       2000000u
#define SLOTS         4096u
#define BURST         32u
#define PRODUCERS_MAX 2u
#define YIELD_AFTER   20000u /* idle looks before a spinning thread lets others run */

/* -- figures -- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *what, const char *unit, double *runs)
{
    qsort(runs, RUNS, sizeof(*runs), compare_doubles);
    printf("  %-42s %9.2f %-12s (%.2f .. %.2f)\n", what, runs[RUNS / 2], unit, runs[0],
           runs[RUNS - 1]);
}

typedef struct {
    double min[RUNS], p50[RUNS], p99[RUNS]; /* us */
} trip_figures;

static void take_trip_figures(trip_figures *f, uint32_t run, double *samples_us)
{
    qsort(samples_us, ROUND_TRIPS, sizeof(*samples_us), compare_doubles);
    f->min[run] = samples_us[0];
    f->p50[run] = samples_us[ROUND_TRIPS / 2];
    f->p99[run] = samples_us[ROUND_TRIPS / 100 * 99];
}

static void print_trip_figures(const char *what, trip_figures *f)
{
    char text[64];
    snprintf(text, sizeof(text), "%s, round trip p50", what);
    print_row(text, "us", f->p50);
    snprintf(text, sizeof(text), "%s, round trip p99", what);
    print_row(text, "us", f->p99);
    snprintf(text, sizeof(text), "%s, round trip min", what);
    print_row(text, "us", f->min);
}

static void check(tr_status status, const char *what, const tr_error *err)
{
    if (status == TR_OK)
        return;
    fprintf(stderr, "bench mailbox: %s: %s\n", what, err->text);
    exit(1);
}

static pthread_t start_thread(void *(*run)(void *), void *arg)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, arg) != 0) {
        fprintf(stderr, "bench mailbox: cannot start a thread\n");
        exit(1);
    }
    return thread;
}

/* -- the mailbox alone -- */

typedef struct {
    tr_mailbox *boxes[2];
    uint32_t count;
} lane;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void push_spinning(tr_mailbox *box, const tr_msg *msg)
{
    uint32_t looks = 0;
    while (tr_mailbox_push(box, msg) != TR_OK) {
        relax();
        if (++looks % YIELD_AFTER == 0)
            sched_yield();
    }
}

static void pop_spinning(tr_mailbox *box, tr_msg *msg)
{
    uint32_t looks = 0;
    while (!tr_mailbox_pop(box, msg)) {
        relax();
        if (++looks % YIELD_AFTER == 0)
            sched_yield();
    }
}

static void *return_messages(void *arg)
{
    lane *l = arg;
    tr_msg msg;
    for (uint32_t i = 0; i < l->count; i++) {
        pop_spinning(l->boxes[1], &msg);
        push_spinning(l->boxes[0], &msg);
    }
    return NULL;
}

static void *push_messages(void *arg)
{
    lane *l = arg;
    tr_msg msg = {.header = {.kind = TR_MSG_PING}};
    for (uint32_t i = 0; i < l->count; i++)
        push_spinning(l->boxes[0], &msg);
    return NULL;
}

static void open_lane(lane *l, uint32_t count)
{
    tr_error err;
    for (int i = 0; i < 2; i++)
        check(tr_mailbox_open(&l->boxes[i], SLOTS, &err), "mailbox", &err);
    l->count = count;
}

static void close_lane(lane *l)
{
    for (int i = 0; i < 2; i++)
        tr_mailbox_close(l->boxes[i]);
}

static void mailbox_round_trip(double *samples_us)
{
    lane l;
    open_lane(&l, ROUND_TRIPS);
    pthread_t thread = start_thread(return_messages, &l);
    tr_msg msg = {.header = {.kind = TR_MSG_PING}};
    for (uint32_t i = 0; i < ROUND_TRIPS; i++) {
        uint64_t begin_ns = tr_clock_ns();
        push_spinning(l.boxes[1], &msg);
        pop_spinning(l.boxes[0], &msg);
        samples_us[i] = (double)(tr_clock_ns() - begin_ns) / 1e3;
    }
    pthread_join(thread, NULL);
    close_lane(&l);
}

/* Millions of messages per second from producers to one consumer. */
static double mailbox_one_way(uint32_t producers)
{
    lane l;
    open_lane(&l, ONE_WAY / producers);
    uint64_t begin_ns = tr_clock_ns();
    pthread_t threads[PRODUCERS_MAX];
    for (uint32_t i = 0; i < producers; i++)
        threads[i] = start_thread(push_messages, &l);
    tr_msg msg;
    for (uint32_t i = 0; i < ONE_WAY; i++)
        pop_spinning(l.boxes[0], &msg);
    double seconds = (double)(tr_clock_ns() - begin_ns) / 1e9;
    for (uint32_t i = 0; i < producers; i++)
        pthread_join(threads[i], NULL);
    close_lane(&l);
    return ONE_WAY / seconds / 1e6;
}

/* -- actors -- */

#define BENCH_PORT   tr_actor_id_make(TR_ACTOR_TEST, 1)
#define BENCH_SINK   tr_actor_id_make(TR_ACTOR_TEST, 2)
#define BENCH_SOURCE tr_actor_id_make(TR_ACTOR_TEST, 3) /* and the next */

/* Config and state of all actors here; borrowed from main while the runtime lives. */
typedef struct {
    double *samples_us;
    uint32_t count;
    uint32_t done;
    uint64_t begin_ns;
} bench_work;

typedef struct {
    const tr_env *env;
    bench_work *work;
} bench_state;

static tr_status bench_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    (void)err;
    bench_state *s = state;
    *s = (bench_state){.env = env, .work = *(bench_work *const *)config};
    return TR_OK;
}

static void bench_teardown(void *state)
{
    (void)state;
}

static tr_status bench_send(bench_state *s, tr_actor_id target, tr_msg_kind kind)
{
    return s->env->send(s->env->ctx, target, kind, 0, 0, NULL);
}

/* Answers. */
static tr_status returner_receive(void *state, const tr_msg *msg)
{
    return bench_send(state, msg->header.source, TR_MSG_PONG);
}

/* Begins a round trip as soon as one ends. */
static tr_status tripper_receive(void *state, const tr_msg *msg)
{
    bench_state *s = state;
    bench_work *w = s->work;
    uint64_t now_ns = s->env->now_ns(s->env->ctx);
    if (msg->header.kind == TR_MSG_PONG)
        w->samples_us[w->done++] = (double)(now_ns - w->begin_ns) / 1e3;
    if (w->done == w->count)
        return bench_send(s, BENCH_PORT, TR_MSG_PONG);
    w->begin_ns = now_ns;
    return bench_send(s, BENCH_SINK, TR_MSG_PING);
}

/* Sends a burst, then asks itself for the next one. */
static tr_status source_receive(void *state, const tr_msg *msg)
{
    (void)msg;
    bench_state *s = state;
    bench_work *w = s->work;
    for (uint32_t i = 0; i < BURST && w->done < w->count; i++, w->done++) {
        tr_status status = bench_send(s, BENCH_SINK, TR_MSG_PING);
        if (status != TR_OK)
            return status;
    }
    return w->done < w->count ? bench_send(s, s->env->self, TR_MSG_PING) : TR_OK;
}

static tr_status sink_receive(void *state, const tr_msg *msg)
{
    (void)msg;
    bench_state *s = state;
    return ++s->work->done == s->work->count ? bench_send(s, BENCH_PORT, TR_MSG_PONG) : TR_OK;
}

#define BENCH_OPS(name)                                                                            \
    {                                                                                              \
        .kind = #name, .state_size = sizeof(bench_state), .mailbox_slots = SLOTS,                  \
        .outbox_slots = BURST + 1, .init = bench_init, .receive = name##_receive,                  \
        .teardown = bench_teardown                                                                 \
    }

static const tr_actor_ops returner_ops = BENCH_OPS(returner);
static const tr_actor_ops tripper_ops = BENCH_OPS(tripper);
static const tr_actor_ops source_ops = BENCH_OPS(source);
static const tr_actor_ops sink_ops = BENCH_OPS(sink);

static void spawn(tr_runtime *rt, tr_actor_id id, const tr_actor_ops *ops, bench_work *work,
                  uint32_t worker)
{
    tr_error err;
    check(tr_runtime_spawn(rt, id, ops->kind, ops, &work, worker, &err), ops->kind, &err);
}

/* Seconds from the first message until the port hears that all is done. */
static double run_actors(tr_runtime *rt, uint32_t sources)
{
    tr_error err;
    check(tr_runtime_add_port(rt, BENCH_PORT, "port", 2, NULL, NULL, &err), "port", &err);
    check(tr_runtime_start(rt, &err), "start", &err);
    uint64_t begin_ns = tr_clock_ns();
    for (uint32_t i = 0; i < sources; i++)
        (void)tr_runtime_post(rt, BENCH_PORT, BENCH_SOURCE + i, TR_MSG_PING, 0, 0, NULL);
    tr_msg msg;
    while (!tr_runtime_port_next(rt, BENCH_PORT, &msg))
        usleep(200); /* the workers need the cores */
    double seconds = (double)(tr_clock_ns() - begin_ns) / 1e9;
    tr_runtime_close(rt);
    return seconds;
}

static tr_runtime *open_runtime(void)
{
    tr_runtime *rt;
    tr_error err;
    tr_runtime_config config = {.node_name = "bench", .workers_count = 2};
    check(tr_runtime_open(&rt, &config, &err), "runtime", &err);
    return rt;
}

static void actors_round_trip(double *samples_us)
{
    bench_work work = {.samples_us = samples_us, .count = ROUND_TRIPS};
    tr_runtime *rt = open_runtime();
    spawn(rt, BENCH_SOURCE, &tripper_ops, &work, 0);
    spawn(rt, BENCH_SINK, &returner_ops, &work, 1);
    (void)run_actors(rt, 1);
}

static double actors_one_way(uint32_t sources)
{
    bench_work sent[PRODUCERS_MAX];
    bench_work received = {.count = ONE_WAY};
    tr_runtime *rt = open_runtime();
    for (uint32_t i = 0; i < sources; i++) {
        sent[i] = (bench_work){.count = ONE_WAY / sources};
        spawn(rt, BENCH_SOURCE + i, &source_ops, &sent[i], i);
    }
    spawn(rt, BENCH_SINK, &sink_ops, &received, 1);
    return ONE_WAY / run_actors(rt, sources) / 1e6;
}

int main(void)
{
    double *samples_us = malloc(ROUND_TRIPS * sizeof(*samples_us));
    trip_figures *trips = calloc(2, sizeof(*trips));
    if (samples_us == NULL || trips == NULL) {
        fprintf(stderr, "bench mailbox: no memory\n");
        return 1;
    }
    double one_way[4][RUNS];

    double load = 0;
    (void)getloadavg(&load, 1); /* 0 where it is not known */
    printf("bench mailbox: %ld cores, load %.1f, compiler %s\n", sysconf(_SC_NPROCESSORS_ONLN),
           load, __VERSION__);
    printf("message %zu bytes in memory, mailboxes of %u slots, %u round trips and %u messages one "
           "way per run, %d runs\n",
           sizeof(tr_msg), SLOTS, ROUND_TRIPS, ONE_WAY, RUNS);
    for (uint32_t run = 0; run < RUNS; run++) {
        mailbox_round_trip(samples_us);
        take_trip_figures(&trips[0], run, samples_us);
        actors_round_trip(samples_us);
        take_trip_figures(&trips[1], run, samples_us);
        for (uint32_t producers = 1; producers <= PRODUCERS_MAX; producers++) {
            one_way[producers - 1][run] = mailbox_one_way(producers);
            one_way[producers + 1][run] = actors_one_way(producers);
        }
    }
    printf("  %-42s %9s %-12s (smallest .. largest run)\n", "", "median", "");
    print_trip_figures("mailbox, 2 threads", &trips[0]);
    print_trip_figures("actors on 2 workers", &trips[1]);
    print_row("mailbox, one way, 1 producer", "M messages/s", one_way[0]);
    print_row("mailbox, one way, 2 producers, 3 threads", "M messages/s", one_way[1]);
    print_row("actors, one way, 2 workers", "M messages/s", one_way[2]);
    print_row("actors, one way, 2 sources, 1 beside sink", "M messages/s", one_way[3]);
    free(samples_us);
    free(trips);
    return 0;
}
