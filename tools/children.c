#include "tools/children.h"

#include "core/trace.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* In the child: becomes the node, or ends with 127. */
static void child_exec(const tr_placement *p, uint32_t node, const char *path, const char *kernels,
                       uint64_t free_bytes, bool own_output, pid_t parent)
{
    const char *argv[16];
    char free_text[24];
    int n = 0;
    bool here = tr_placement_is_here(p->nodes[node].host);

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127); /* the parent ended before the line above */
    if (!own_output)
        dup2(STDERR_FILENO, STDOUT_FILENO);
    setpgid(0, 0);  /* Ctrl-C in the terminal reaches the parent alone, which then stops us */
    if (!here) {
        argv[n++] = "ssh";
        argv[n++] = "-tt"; /* the remote node gets SIGHUP when the connection ends */
        argv[n++] = p->nodes[node].host;
    }
    argv[n++] = "troupe";
    argv[n++] = "node";
    argv[n++] = "--placement";
    argv[n++] = path;
    argv[n++] = "--name";
    argv[n++] = p->nodes[node].name;
    if (kernels != NULL) {
        argv[n++] = "--kernels";
        argv[n++] = kernels;
    }
    if (here && free_bytes > 0) {
        snprintf(free_text, sizeof(free_text), "%llu", (unsigned long long)free_bytes);
        argv[n++] = "--free-memory";
        argv[n++] = free_text;
    }
    argv[n] = NULL;
    execvp(here ? "/proc/self/exe" : "ssh", (char *const *)argv);
    _exit(127);
}

tr_status tr_children_start(tr_children *children, const tr_placement *placement, uint32_t node,
                            const char *kernels, uint64_t free_bytes, bool own_output,
                            tr_error *err)
{
    char path[PATH_MAX];
    if (realpath(placement->source, path) == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: %s", placement->source, strerror(errno));
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return tr_fail(err, TR_E_INVALID, "node %s: fork: %s", placement->nodes[node].name,
                       strerror(errno));
    if (pid == 0)
        child_exec(placement, node, path, kernels, free_bytes, own_output, parent);
    children->pids[node] = pid;
    children->count++;
    return TR_OK;
}

bool tr_children_ended(tr_children *children, uint32_t *node, int *exit_code)
{
    for (uint32_t n = 0; n < TR_NODES_MAX; n++) {
        int status;
        if (children->pids[n] == 0 || waitpid(children->pids[n], &status, WNOHANG) <= 0)
            continue;
        children->pids[n] = 0;
        children->count--;
        *node = n;
        *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return true;
    }
    return false;
}

static void children_signal(const tr_children *children, int signal_number)
{
    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        if (children->pids[n] != 0)
            kill(children->pids[n], signal_number);
}

void tr_children_stop(tr_children *children, uint32_t grace_ms)
{
    uint64_t deadline = tr_clock_ns() + (uint64_t)grace_ms * 1000000;
    uint32_t node;
    int code;

    children_signal(children, SIGTERM);
    while (children->count > 0) {
        if (tr_children_ended(children, &node, &code))
            continue;
        if (tr_clock_ns() >= deadline) {
            children_signal(children, SIGKILL);
            deadline = UINT64_MAX;
        }
        struct timespec pause = {.tv_nsec = 5000000};
        nanosleep(&pause, NULL);
    }
}
