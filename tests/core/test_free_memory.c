/* test_free_memory.c - how much memory is free, on machines that are written down here.
 *
 * Goal: what the kernel calls available, bounded by every control group above the process, of
 * either version, at their mounts or in a container. Method: a table of paths and texts stands for
 * the files; that of the running machine is asked once, for an answer of any size. */
#include "tests/check.h"

#include "core/free_memory.h"

#define MIB (1ull << 20)

typedef struct {
    const char *path, *text;
} machine_file;

/* 1024 MiB available. */
#define MEMINFO                                                                                    \
    {                                                                                              \
        "/proc/meminfo", "MemTotal:        8000000 kB\nMemFree:          100000 kB\n"              \
                         "MemAvailable:    1048576 kB\nBuffers:           16048 kB\n"              \
    }

static bool read_table(void *ctx, const char *path, char *text, size_t size)
{
    for (const machine_file *f = ctx; f->path != NULL; f++)
        if (strcmp(f->path, path) == 0)
            return snprintf(text, size, "%s", f->text) >= 0;
    return false;
}

static uint64_t free_mib(const machine_file *files)
{
    uint64_t bytes = 0;
    tr_error err = {0};

    if (tr_free_memory_of(read_table, (void *)files, &bytes, &err) != TR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(bytes % MIB, 0);
    return bytes / MIB;
}

static void without_groups_it_is_what_the_kernel_calls_available(void **state)
{
    (void)state;
    const machine_file files[] = {MEMINFO, {NULL, NULL}};
    assert_int_equal(free_mib(files), 1024);
}

static void a_group_without_a_limit_changes_nothing(void **state)
{
    (void)state;
    const machine_file second[] = {MEMINFO,
                                   {"/proc/self/cgroup", "0::/user.slice/run\n"},
                                   {"/sys/fs/cgroup/user.slice/run/memory.max", "max\n"},
                                   {"/sys/fs/cgroup/user.slice/run/memory.current", "1048576\n"},
                                   {NULL, NULL}};
    const machine_file first[] = {
        MEMINFO,
        {"/proc/self/cgroup", "9:name=systemd:/\n4:memory:/run\n3:cpuset:/\n0::/\n"},
        {"/sys/fs/cgroup/memory/run/memory.limit_in_bytes", "9223372036854771712\n"},
        {"/sys/fs/cgroup/memory/run/memory.usage_in_bytes", "134598656\n"},
        {NULL, NULL}};
    assert_int_equal(free_mib(second), 1024);
    assert_int_equal(free_mib(first), 1024);
}

static void a_limit_counts_without_what_is_used_and_pages_of_files_are_free(void **state)
{
    (void)state;
    /* 512 MiB allowed, 300 used, of which 100 are pages of files. */
    const machine_file second[] = {
        MEMINFO,
        {"/proc/self/cgroup", "0::/user.slice/run\n"},
        {"/sys/fs/cgroup/user.slice/run/memory.max", "536870912\n"},
        {"/sys/fs/cgroup/user.slice/run/memory.current", "314572800\n"},
        {"/sys/fs/cgroup/user.slice/run/memory.stat",
         "anon 209715200\nfile 104857600\ninactive_file 62914560\nactive_file 41943040\n"},
        {NULL, NULL}};
    /* The group's own pages of files are fewer than those of all below it. */
    const machine_file first[] = {
        MEMINFO,
        {"/proc/self/cgroup", "4:cpu,memory:/run\n0::/\n"},
        {"/sys/fs/cgroup/memory/run/memory.limit_in_bytes", "536870912\n"},
        {"/sys/fs/cgroup/memory/run/memory.usage_in_bytes", "314572800\n"},
        {"/sys/fs/cgroup/memory/run/memory.stat",
         "cache 104857600\ninactive_file 1\nactive_file 1\n"
         "total_inactive_file 62914560\ntotal_active_file 41943040\n"},
        {NULL, NULL}};
    assert_int_equal(free_mib(second), 512 - 300 + 100);
    assert_int_equal(free_mib(first), 512 - 300 + 100);
}

static void the_tightest_group_above_decides(void **state)
{
    (void)state;
    const machine_file files[] = {MEMINFO,
                                  {"/proc/self/cgroup", "0::/a/b/c\n"},
                                  {"/sys/fs/cgroup/a/b/c/memory.max", "max\n"},
                                  {"/sys/fs/cgroup/a/b/c/memory.current", "1048576\n"},
                                  {"/sys/fs/cgroup/a/b/memory.max", "943718400\n"},
                                  {"/sys/fs/cgroup/a/b/memory.current", "104857600\n"},
                                  {"/sys/fs/cgroup/a/memory.max", "734003200\n"},
                                  {"/sys/fs/cgroup/a/memory.current", "629145600\n"},
                                  {NULL, NULL}};
    assert_int_equal(free_mib(files), 100);
}

static void in_a_container_the_mount_is_the_group(void **state)
{
    (void)state;
    const machine_file second[] = {MEMINFO,
                                   {"/proc/self/cgroup", "0::/\n"},
                                   {"/sys/fs/cgroup/memory.max", "209715200\n"},
                                   {"/sys/fs/cgroup/memory.current", "104857600\n"},
                                   {NULL, NULL}};
    /* The path is the one outside, of which nothing is to be seen here. */
    const machine_file first[] = {MEMINFO,
                                  {"/proc/self/cgroup", "4:memory:/docker/0123456789ab\n"},
                                  {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "209715200\n"},
                                  {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n"},
                                  {NULL, NULL}};
    assert_int_equal(free_mib(second), 100);
    assert_int_equal(free_mib(first), 100);
}

static void a_group_that_is_full_leaves_nothing(void **state)
{
    (void)state;
    const machine_file files[] = {MEMINFO,
                                  {"/proc/self/cgroup", "0::/run\n"},
                                  {"/sys/fs/cgroup/run/memory.max", "104857600\n"},
                                  {"/sys/fs/cgroup/run/memory.current", "209715200\n"},
                                  {NULL, NULL}};
    assert_int_equal(free_mib(files), 0);
}

static void lines_that_are_none_are_passed_over(void **state)
{
    (void)state;
    const machine_file files[] = {
        MEMINFO,
        {"/proc/self/cgroup", "\nmemory\n4:memory\n4:memory:relative\n5:memoryx,xmemory:/run\n0::"},
        {"/sys/fs/cgroup/memory/run/memory.limit_in_bytes", "1048576\n"},
        {"/sys/fs/cgroup/memory/run/memory.usage_in_bytes", "0\n"},
        {NULL, NULL}};
    assert_int_equal(free_mib(files), 1024);
}

static void a_machine_that_does_not_say_is_named(void **state)
{
    (void)state;
    static const machine_file none[] = {{NULL, NULL}};
    static const machine_file old[] = {{"/proc/meminfo", "MemTotal: 8 kB\nMemFree: 1 kB\n"},
                                       {NULL, NULL}};
    static const machine_file odd[] = {{"/proc/meminfo", "MemAvailable: lots kB\n"}, {NULL, NULL}};
    static const machine_file huge[] = {
        {"/proc/meminfo", "MemAvailable: 99999999999999999999 kB\n"}, {NULL, NULL}};
    const machine_file *const machines[] = {none, old, odd, huge};

    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        uint64_t bytes = 7;
        tr_error err = {0};
        CHECK_STATUS(tr_free_memory_of(read_table, (void *)machines[i], &bytes, &err), TR_E_NOTSUP);
        CHECK_ERR_NAMES(err, "/proc/meminfo");
        assert_int_equal(bytes, 7);
    }
}

static void this_machine_has_some(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    tr_error err = {0};

    CHECK_STATUS(tr_free_memory(&bytes, &err), TR_OK);
    assert_true(bytes > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_groups_it_is_what_the_kernel_calls_available),
        cmocka_unit_test(a_group_without_a_limit_changes_nothing),
        cmocka_unit_test(a_limit_counts_without_what_is_used_and_pages_of_files_are_free),
        cmocka_unit_test(the_tightest_group_above_decides),
        cmocka_unit_test(in_a_container_the_mount_is_the_group),
        cmocka_unit_test(a_group_that_is_full_leaves_nothing),
        cmocka_unit_test(lines_that_are_none_are_passed_over),
        cmocka_unit_test(a_machine_that_does_not_say_is_named),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
