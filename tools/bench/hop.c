/* hop.c - what one hop of a message costs over each transport.
 *
 * Two ends, pinned to two cores, throw one message back and forth; a hop is half of a round trip.
 * Over loop the ends are threads, otherwise processes. Where UCX carries the bytes, ucx_perftest
 * (package ucx-utils) then measures its own active messages with the same transports: the ratio
 * says what Troupe adds (header, check sum, copy into a pool buffer, flow control).
 *
 * No threshold: figures depend on the machine and on what else runs. */
#include "core/trace.h"
#include "transport/transport.h"

#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOP_ROUNDS_DEFAULT 20000
#define HOP_WARMUP         2000
#define HOP_SIZES_MAX      16
#define HOP_PATIENCE_NS    60000000000ull /* of the whole exchange of one size */

extern char **environ;

typedef struct {
    const char *name;
    const char *transport;
    const char *options;
    const char *ucx_tls; /* for ucx_perftest; NULL: nothing to compare with */
    const char *ucx_devices;
} hop_variant;

static const hop_variant hop_variants[] = {
    {"loop", "loop", "cluster=hop", NULL, NULL},
    {"ucx shared memory", "ucx", "tls=posix,cma", "posix,cma", "all"},
    {"ucx tcp", "ucx", "tls=tcp,devices=lo", "tcp", "lo"},
    {"nng tcp", "nng", NULL, NULL, NULL},
};

/* One end: the message that has come waits here until the loop takes it. */
typedef struct {
    const tr_transport_ops *ops;
    tr_transport *transport;
    tr_pool *pool;
    uint32_t index;
    int cpu;
    tr_msg message;
    bool arrived;
    bool lost; /* the other end is gone */
    char reason[128];
} hop_end;

static cpu_set_t hop_all_cpus;     /* that this process was given */
static int hop_cpus[2] = {-1, -1}; /* -1: not pinned */

static void hop_find_cpus(void)
{
    int found = 0;

    if (sched_getaffinity(0, sizeof(hop_all_cpus), &hop_all_cpus) != 0 ||
        CPU_COUNT(&hop_all_cpus) < 2)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &hop_all_cpus))
            hop_cpus[found++] = cpu;
}

/* Pins the calling thread. What it starts meanwhile inherits this: unpin first. */
static void hop_pin(int cpu)
{
    cpu_set_t set;

    if (cpu < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof(set), &set); /* unpinned figures are still figures */
}

static void hop_unpin(void)
{
    (void)sched_setaffinity(0, sizeof(hop_all_cpus), &hop_all_cpus);
}

static void hop_deliver(void *ctx, uint32_t source_node, const tr_msg *msg)
{
    hop_end *end = ctx;

    (void)source_node;
    tr_buf_unref(end->arrived ? end->message.payload : NULL);
    end->message = *msg;
    end->arrived = true;
}

static void hop_peer_down(void *ctx, uint32_t node_index, const char *reason)
{
    hop_end *end = ctx;

    (void)node_index;
    end->lost = true;
    snprintf(end->reason, sizeof(end->reason), "%s", reason);
}

static tr_status hop_open(hop_end *end, const hop_variant *variant, uint32_t index, tr_error *err)
{
    const tr_pool_class classes[] = {{1u << 20, 16}};

    *end = (hop_end){.ops = tr_transport_find(variant->transport), .index = index};
    end->cpu = hop_cpus[index];
    tr_status status = tr_pool_open(&end->pool, classes, 1, err);
    if (status != TR_OK)
        return status;
    tr_transport_config config = {.node_index = index,
                                  .nodes_count = 2,
                                  .pool = end->pool,
                                  .options = variant->options,
                                  .deliver = hop_deliver,
                                  .peer_down = hop_peer_down,
                                  .ctx = end};
    status = end->ops->open(&end->transport, &config, err);
    if (status != TR_OK)
        tr_pool_close(end->pool);
    return status;
}

static void hop_close(hop_end *end)
{
    if (end->arrived)
        tr_buf_unref(end->message.payload);
    end->ops->close(end->transport);
    tr_pool_close(end->pool);
}

/* Sends what has come, or the first message; false when the other end is gone. */
static bool hop_send(hop_end *end, const tr_msg *msg)
{
    tr_status status = end->ops->send(end->transport, 1 - end->index, msg);

    while (status == TR_E_AGAIN) {
        end->ops->poll(end->transport);
        status = end->ops->send(end->transport, 1 - end->index, msg);
    }
    return status == TR_OK;
}

static bool hop_await(hop_end *end, uint64_t deadline_ns)
{
    uint32_t turns = 0;

    while (!end->arrived && !end->lost) {
        end->ops->poll(end->transport);
        if (++turns % 65536 == 0 && tr_clock_ns() > deadline_ns)
            return false;
    }
    return end->arrived;
}

/* Throws everything back until a message without payload comes, which it throws back as well. */
static void hop_echo(hop_end *end)
{
    uint64_t deadline_ns = tr_clock_ns() + HOP_PATIENCE_NS * HOP_SIZES_MAX;
    bool last = false;

    hop_pin(end->cpu);
    while (!last && hop_await(end, deadline_ns)) {
        end->arrived = false;
        last = end->message.payload == NULL;
        if (!hop_send(end, &end->message))
            return;
    }
}

static void *hop_echo_thread(void *arg)
{
    hop_echo(arg);
    return NULL;
}

static tr_msg hop_message(hop_end *end, uint32_t size)
{
    tr_msg msg = {.header = {.kind = TR_MSG_PING,
                             .source = tr_actor_id_make(TR_ACTOR_TEST, 1),
                             .target = tr_actor_id_make(TR_ACTOR_TEST, 2),
                             .payload_size = size}};

    if (size > 0) {
        msg.payload = tr_pool_take(end->pool, size);
        memset(msg.payload->data, 1, size);
    }
    return msg;
}

static int hop_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Fills samples [rounds] with round trips in ns, sorted. */
static bool hop_measure(hop_end *end, uint32_t size, uint32_t *samples, uint32_t rounds)
{
    uint64_t deadline_ns = tr_clock_ns() + HOP_PATIENCE_NS;
    tr_msg msg = hop_message(end, size);

    for (uint32_t i = 0; i < HOP_WARMUP + rounds; i++) {
        uint64_t begin_ns = tr_clock_ns();
        if (!hop_send(end, &msg) || !hop_await(end, deadline_ns))
            return false;
        uint64_t took_ns = tr_clock_ns() - begin_ns;
        msg = end->message;
        end->arrived = false;
        if (i >= HOP_WARMUP)
            samples[i - HOP_WARMUP] = took_ns < UINT32_MAX ? (uint32_t)took_ns : UINT32_MAX;
    }
    tr_buf_unref(msg.payload);
    qsort(samples, rounds, sizeof(samples[0]), hop_compare);
    return true;
}

/* -- ucx_perftest -- */

/* A free port; somebody else could take it before we use it, then perftest says so. */
static int hop_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int port = -1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&address, size) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &size) == 0)
        port = ntohs(address.sin_port);
    close(fd);
    return port;
}

/* Starts ucx_perftest, as server or client; its output goes to fd. */
static pid_t hop_spawn_perftest(const char *test_name, bool client, uint32_t size, uint32_t rounds,
                                int port, int cpu, int fd)
{
    char text[5][16];
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;

    snprintf(text[0], sizeof(text[0]), "%u", size);
    snprintf(text[1], sizeof(text[1]), "%u", rounds);
    snprintf(text[2], sizeof(text[2]), "%d", port);
    snprintf(text[3], sizeof(text[3]), "%d", cpu);
    snprintf(text[4], sizeof(text[4]), "%s", test_name);
    char program[] = "ucx_perftest", host[] = "127.0.0.1", test[] = "-t", s[] = "-s", n[] = "-n",
         w[] = "-w", warmup[] = "2000", p[] = "-p", f[] = "-f", c[] = "-c";
    char *args[20] = {program, test, text[4], s, text[0], n, text[1], w, warmup, p, text[2], f};
    int count = 12;
    if (cpu >= 0) {
        args[count++] = c;
        args[count++] = text[3];
    }
    if (client)
        args[count++] = host;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fd, STDERR_FILENO);
    int failed = posix_spawnp(&pid, program, &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    return failed != 0 ? -1 : pid;
}

/* Runs one client against a running server; its median one-way latency in us, or 0. */
static double hop_run_client(const char *test_name, uint32_t size, uint32_t rounds, int port)
{
    char text[4096];
    size_t used = 0;
    int ends[2], status = 0;
    double median_us = 0;

    if (pipe(ends) != 0)
        return 0;
    pid_t pid = hop_spawn_perftest(test_name, true, size, rounds, port, hop_cpus[0], ends[1]);
    close(ends[1]);
    ssize_t got;
    while (used < sizeof(text) - 1 &&
           (got = read(ends[0], text + used, sizeof(text) - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return 0;

    /* The last line: iterations, median, average, overall, ... */
    unsigned iterations;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (sscanf(line, "%u %lf", &iterations, &median_us) != 2)
            median_us = 0;
    return median_us;
}

/* Median one-way latency of ucx_perftest in us; 0 when there is none. */
static double hop_perftest(const hop_variant *variant, const char *test_name, uint32_t size,
                           uint32_t rounds)
{
    int port = hop_free_port();
    double median_us = 0;

    setenv("UCX_TLS", variant->ucx_tls, 1);
    setenv("UCX_NET_DEVICES", variant->ucx_devices, 1);
    FILE *null = fopen("/dev/null", "w");
    if (null != NULL) {
        pid_t server =
            hop_spawn_perftest(test_name, false, size, rounds, port, hop_cpus[1], fileno(null));
        for (int i = 0; i < 50 && server > 0 && median_us == 0; i++) {
            usleep(100000); /* it must listen first */
            if (waitpid(server, NULL, WNOHANG) != 0)
                server = -1;
            else
                median_us = hop_run_client(test_name, size, rounds, port);
        }
        if (server > 0) {
            kill(server, SIGTERM);
            waitpid(server, NULL, 0);
        }
        fclose(null);
    }
    unsetenv("UCX_TLS");
    unsetenv("UCX_NET_DEVICES");
    return median_us;
}

/* -- the two ends -- */

static bool hop_write(int fd, const void *bytes, size_t size)
{
    return write(fd, bytes, size) == (ssize_t)size;
}

static bool hop_read(int fd, void *bytes, size_t size)
{
    for (char *at = bytes; size > 0;) {
        ssize_t got = read(fd, at, size);
        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

/* Gives our address to the other process and connects to the one that comes back. */
static tr_status hop_meet(hop_end *end, int in, int out, tr_error *err)
{
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    size_t size = 0;

    tr_status status = end->ops->address(end->transport, address, sizeof(address), &size, err);
    if (status != TR_OK)
        return status;
    if (!hop_write(out, &size, sizeof(size)) || !hop_write(out, address, size) ||
        !hop_read(in, &size, sizeof(size)) || size > sizeof(address) ||
        !hop_read(in, address, size))
        return tr_fail(err, TR_E_PEER, "the other process is gone");
    return end->ops->connect(end->transport, 1 - end->index, address, size,
                             tr_clock_ns() + HOP_PATIENCE_NS, err);
}

static int hop_be_the_other(const hop_variant *variant)
{
    hop_end end;
    tr_error err;

    if (hop_open(&end, variant, 1, &err) != TR_OK) {
        fprintf(stderr, "hop: %s\n", err.text);
        return 1;
    }
    int rc = 0;
    if (hop_meet(&end, STDIN_FILENO, STDOUT_FILENO, &err) == TR_OK) {
        hop_echo(&end);
    } else {
        fprintf(stderr, "hop: %s\n", err.text);
        rc = 1;
    }
    hop_close(&end);
    return rc;
}

static void hop_print(const hop_variant *variant, hop_end *end, uint32_t size,
                      const uint32_t *samples, uint32_t rounds)
{
    double p50_us = samples[rounds / 2] / 2e3, p99_us = samples[rounds * 99ull / 100] / 2e3;

    printf("%-18s %-7s %7u %9.2f %9.2f", variant->name, end->ops->path(end->transport, 1), size,
           p50_us, p99_us);
    for (int i = 0; i < 2 && variant->ucx_tls != NULL; i++) {
        static const char *const tests[] = {"ucp_am_lat", "tag_lat"};
        double perftest_us = hop_perftest(variant, tests[i], size, rounds);
        if (perftest_us > 0)
            printf(" %9.2f %6.2f", perftest_us, p50_us / perftest_us);
        else
            printf("   no %s: is ucx_perftest (package ucx-utils) there?", tests[i]);
    }
    printf("\n");
    fflush(stdout);
}

/* All sizes over one connected pair, then the word to stop. */
static bool hop_run_sizes(const hop_variant *variant, hop_end *end, const uint32_t *sizes,
                          uint32_t sizes_count, uint32_t rounds)
{
    uint32_t *samples = calloc(sizes_count * (size_t)rounds, sizeof(*samples));
    bool good = samples != NULL;

    hop_pin(end->cpu);
    for (uint32_t i = 0; i < sizes_count && good; i++)
        good = hop_measure(end, sizes[i], samples + (size_t)i * rounds, rounds);
    if (good) {
        tr_msg stop = hop_message(end, 0);
        good = hop_send(end, &stop) && hop_await(end, tr_clock_ns() + HOP_PATIENCE_NS);
    }
    hop_unpin();
    /* Printing runs perftest on the same two cores: only when the other end has stopped. */
    for (uint32_t i = 0; i < sizes_count && good; i++)
        hop_print(variant, end, sizes[i], samples + (size_t)i * rounds, rounds);
    free(samples);
    return good;
}

static bool hop_run_threads(const hop_variant *variant, hop_end *end, const uint32_t *sizes,
                            uint32_t sizes_count, uint32_t rounds, tr_error *err)
{
    hop_end other;
    pthread_t thread;
    uint8_t address[2][TR_ADDRESS_SIZE_MAX];
    size_t size[2];
    hop_end *ends[2] = {end, &other};

    tr_status status = hop_open(&other, variant, 1, err);
    if (status != TR_OK)
        return false;
    for (int i = 0; i < 2 && status == TR_OK; i++)
        status = ends[i]->ops->address(ends[i]->transport, address[i], sizeof(address[i]), &size[i],
                                       err);
    for (uint32_t i = 0; i < 2 && status == TR_OK; i++)
        status = ends[i]->ops->connect(ends[i]->transport, 1 - i, address[1 - i], size[1 - i],
                                       tr_clock_ns() + HOP_PATIENCE_NS, err);
    bool good = status == TR_OK && pthread_create(&thread, NULL, hop_echo_thread, &other) == 0;
    if (good) {
        good = hop_run_sizes(variant, end, sizes, sizes_count, rounds);
        pthread_join(thread, NULL);
    }
    hop_close(&other);
    return good;
}

static bool hop_run_processes(const hop_variant *variant, hop_end *end, const uint32_t *sizes,
                              uint32_t sizes_count, uint32_t rounds, tr_error *err)
{
    char self[] = "hop", mode[] = "--other", number[16];
    char *args[] = {self, mode, number, NULL};
    posix_spawn_file_actions_t actions;
    int in[2], out[2];
    pid_t pid = -1;

    snprintf(number, sizeof(number), "%d", (int)(variant - hop_variants));
    if (pipe(in) != 0 || pipe(out) != 0) {
        (void)tr_fail(err, TR_E_NOMEM, "pipe: %s", strerror(errno));
        return false;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&actions, in[i]);
        posix_spawn_file_actions_addclose(&actions, out[i]);
    }
    int failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    bool good = false;
    if (failed == 0 && hop_meet(end, out[0], in[1], err) == TR_OK) {
        good = hop_run_sizes(variant, end, sizes, sizes_count, rounds);
        if (!good)
            (void)tr_fail(err, TR_E_PEER, "no answer from the other end (%s)",
                          end->lost ? end->reason : "time is up");
    }
    close(in[1]);
    close(out[0]);
    if (failed == 0) {
        if (!good)
            kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
    }
    return good;
}

static bool hop_run(const hop_variant *variant, const uint32_t *sizes, uint32_t sizes_count,
                    uint32_t rounds)
{
    tr_error err = {.text = "no answer"};
    hop_end end;

    if (tr_transport_find(variant->transport) == NULL) {
        printf("%-18s not in this build\n", variant->name);
        return true;
    }
    bool good = hop_open(&end, variant, 0, &err) == TR_OK;
    if (good) {
        good = strcmp(variant->transport, "loop") == 0
                   ? hop_run_threads(variant, &end, sizes, sizes_count, rounds, &err)
                   : hop_run_processes(variant, &end, sizes, sizes_count, rounds, &err);
        hop_close(&end);
    }
    if (!good)
        fprintf(stderr, "hop: %s: %s\n", variant->name, err.text);
    return good;
}

static int hop_usage(FILE *out, int rc)
{
    fprintf(out,
            "usage: hop [--size BYTES]... [--rounds N] [--transport NAME]\n\n"
            "Prints the one-way time of a message over each transport beside ucx_perftest's.\n\n"
            "  --size BYTES  payload, 1..1048576; may be repeated (64, 8192, 65536)\n"
            "  --rounds N    round trips per size after %d for warm-up (%d)\n"
            "  --transport NAME  only this one: loop, ucx or nng\n",
            HOP_WARMUP, HOP_ROUNDS_DEFAULT);
    return rc;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"size", required_argument, NULL, 's'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"transport", required_argument, NULL, 't'},
                                            {"other", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const uint32_t variants_count = sizeof(hop_variants) / sizeof(hop_variants[0]);
    uint32_t sizes[HOP_SIZES_MAX] = {64, 8192, 65536};
    uint32_t sizes_count = 0, rounds = HOP_ROUNDS_DEFAULT;
    const char *only = NULL;
    int letter;

    hop_find_cpus();
    while ((letter = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        unsigned long value = optarg != NULL ? strtoul(optarg, NULL, 10) : 0;
        if (letter == 'h')
            return hop_usage(stdout, 0);
        if (letter == 'o' && value < variants_count)
            return hop_be_the_other(&hop_variants[value]);
        if (letter == 's' && value >= 1 && value <= 1u << 20 && sizes_count < HOP_SIZES_MAX)
            sizes[sizes_count++] = (uint32_t)value;
        else if (letter == 'r' && value >= 1 && value <= 10000000)
            rounds = (uint32_t)value;
        else if (letter == 't')
            only = optarg;
        else
            return hop_usage(stderr, 2);
    }
    if (optind < argc)
        return hop_usage(stderr, 2);
    if (sizes_count == 0)
        sizes_count = 3;

    printf("one-way hop: half of a round trip, %u round trips, ends pinned to CPUs %d and %d\n",
           rounds, hop_cpus[0], hop_cpus[1]);
    printf("am, tag: p50 us of ucx_perftest ucp_am_lat (its receiver leaves the bytes where they "
           "are)\n"
           "         and tag_lat (it copies them out, as Troupe does); ours / theirs beside\n");
    printf("%-18s %-7s %7s %9s %9s %9s %6s %9s %6s\n", "transport", "path", "bytes", "p50 us",
           "p99 us", "am", "ratio", "tag", "ratio");
    bool good = true;
    for (uint32_t i = 0; i < variants_count; i++)
        if (only == NULL || strcmp(only, hop_variants[i].transport) == 0)
            good &= hop_run(&hop_variants[i], sizes, sizes_count, rounds);
    return good ? 0 : 1;
}
