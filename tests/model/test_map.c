/* test_map.c - mapped files that change while they are read.
 *
 * Goal: a page that is gone reads as zeros and is reported; other faults end the process as before.
 * Method: a file of some pages, shortened or written to while it is mapped. */
#include "tests/check.h"

#include "core/model/map.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (256u << 10)

typedef struct {
    char path[64];
    int fd;
    tr_map map;
} fixture;

static void open_file(fixture *x)
{
    uint8_t *bytes = malloc(SIZE);

    snprintf(x->path, sizeof(x->path), "/tmp/troupe-map-XXXXXX");
    x->fd = mkstemp(x->path);
    assert_true(x->fd >= 0);
    for (uint32_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i | 1);
    assert_int_equal(pwrite(x->fd, bytes, SIZE, 0), SIZE);
    free(bytes);
    CHECK_STATUS(tr_map_open(&x->map, x->path, NULL), TR_OK);
}

static void close_file(fixture *x)
{
    tr_map_close(&x->map);
    close(x->fd);
    unlink(x->path);
}

static void a_file_that_stays_is_whole(void **state)
{
    fixture x;
    (void)state;

    open_file(&x);
    for (uint32_t i = 0; i < SIZE; i++)
        assert_int_equal(x.map.data[i], (uint8_t)(i | 1));
    tr_map_release(x.map.data + 5000, 100000);
    assert_int_equal(x.map.data[60000], (uint8_t)(60000 | 1)); /* read again */
    CHECK_STATUS(tr_map_check(&x.map, "file", NULL), TR_OK);
    close_file(&x);
}

/* Pages of [begin, begin + size) that are in the system's cache of the file. */
static size_t cached_pages(const fixture *x, size_t begin, size_t size)
{
    unsigned char pages[SIZE / 4096] = {0};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), count = 0;

    assert_int_equal(mincore((void *)(uintptr_t)(x->map.data + begin), size, pages), 0);
    for (size_t i = 0; i < size / page; i++)
        count += pages[i] & 1;
    return count;
}

static void bytes_that_are_forgotten_leave_the_cache(void **state)
{
    const size_t half = SIZE / 2;
    size_t pages = half / (size_t)sysconf(_SC_PAGESIZE);
    fixture x;
    (void)state;

    open_file(&x);
    assert_int_equal(fsync(x.fd), 0); /* what is not written yet stays */
    for (uint32_t i = 0; i < SIZE; i += 4096)
        assert_int_equal(x.map.data[i], (uint8_t)(i | 1));
    tr_map_release(x.map.data, SIZE);
    assert_int_equal(cached_pages(&x, 0, half), pages);
    tr_map_forget(x.map.data + 5000, 1000); /* too small a piece */
    assert_int_equal(cached_pages(&x, 0, half), pages);
    posix_fadvise(x.fd, 0, 0, POSIX_FADV_DONTNEED);
    if (cached_pages(&x, 0, half) > 0) {
        print_message("files in /tmp are memory: nothing can leave it\n");
    } else {
        assert_int_equal(x.map.data[SIZE - 1], 0xff);
        for (uint32_t i = 0; i < SIZE; i += 4096)
            assert_int_equal(x.map.data[i], (uint8_t)(i | 1));
        tr_map_forget(x.map.data, half);
        assert_int_equal(cached_pages(&x, 0, half), 0);
        assert_true(cached_pages(&x, half, half) >= pages / 2); /* all but 64 KiB around */
    }
    close_file(&x);
}

static void what_a_file_has_lost_reads_as_zeros_and_is_reported(void **state)
{
    fixture x;
    tr_error err = {0};
    (void)state;

    open_file(&x);
    assert_int_equal(ftruncate(x.fd, SIZE / 2), 0);
    assert_int_equal(x.map.data[100], 101);
    assert_true(tr_map_is_whole(x.map.data));
    assert_int_equal(x.map.data[SIZE - 1], 0);
    assert_false(tr_map_is_whole(x.map.data + 100));
    assert_int_equal(x.map.data[SIZE / 2], 0);
    assert_int_equal(x.map.data[100], 101);
    CHECK_STATUS(tr_map_check(&x.map, "weights", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "weights: 131072 bytes now, expected 262144");
    assert_int_equal(ftruncate(x.fd, SIZE), 0); /* as long as before, but not what it was */
    CHECK_STATUS(tr_map_check(&x.map, "weights", &err), TR_E_INVALID);
    close_file(&x);
}

static void a_file_that_is_written_to_is_reported(void **state)
{
    fixture x;
    tr_error err = {0};
    struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    (void)state;

    open_file(&x);
    assert_int_equal(pwrite(x.fd, "x", 1, 7), 1);
    assert_int_equal(futimens(x.fd, later), 0); /* clocks of file systems are coarse */
    CHECK_STATUS(tr_map_check(&x.map, "weights", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "weights: written to");
    close_file(&x);
}

static void a_fault_elsewhere_still_ends_the_process(void **state)
{
    fixture x;
    int status;
    (void)state;

    signal(SIGBUS, SIG_DFL); /* instead of cmocka's, which would go on with the child */
    open_file(&x);
    pid_t child = fork();
    if (child == 0) {
        const volatile uint8_t *own = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, x.fd, 0);

        if (freopen("/dev/null", "w", stderr) == NULL || ftruncate(x.fd, 0) != 0)
            _exit(0);
        _exit(own[0] & 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    close_file(&x);
}

static void a_small_file_is_read_into_own_memory(void **state)
{
    fixture x;
    uint8_t *bytes;
    size_t size;
    tr_error err = {0};
    (void)state;

    open_file(&x);
    CHECK_STATUS(tr_file_read(&bytes, &size, x.path, NULL), TR_OK);
    assert_int_equal(size, SIZE);
    assert_memory_equal(bytes, x.map.data, SIZE);
    assert_int_equal(bytes[SIZE], 0);
    free(bytes);
    assert_int_equal(ftruncate(x.fd, (off_t)TR_FILE_READ_MAX + 1), 0);
    CHECK_STATUS(tr_file_read(&bytes, &size, x.path, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "expected at most");
    CHECK_STATUS(tr_file_read(&bytes, &size, "/tmp", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "/tmp: found something that is not a regular file");
    close_file(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_stays_is_whole),
        cmocka_unit_test(bytes_that_are_forgotten_leave_the_cache),
        cmocka_unit_test(what_a_file_has_lost_reads_as_zeros_and_is_reported),
        cmocka_unit_test(a_file_that_is_written_to_is_reported),
        cmocka_unit_test(a_fault_elsewhere_still_ends_the_process),
        cmocka_unit_test(a_small_file_is_read_into_own_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
