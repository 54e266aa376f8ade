/* test_team.c - the fork-join team: each part runs once, whatever the sizes. */
#include "tests/check.h"

#include "kernels/team.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    _Atomic uint32_t *runs; /* [parts] */
    uint32_t threads;
    _Atomic uint32_t wrong_thread;
    uint64_t *values; /* [parts], plain: the join must make them visible */
} work;

static void work_part(void *ctx, uint32_t part, uint32_t thread)
{
    work *w = ctx;
    atomic_fetch_add(&w->runs[part], 1);
    if (thread >= w->threads)
        atomic_fetch_add(&w->wrong_thread, 1);
    w->values[part] = part * 3u + 1;
}

static void check_run(tr_team *team, uint32_t parts)
{
    work w = {.runs = calloc(parts + 1, sizeof(*w.runs)),
              .threads = tr_team_size(team),
              .values = calloc(parts + 1, sizeof(*w.values))};

    assert_true(w.runs != NULL && w.values != NULL);
    tr_team_run(team, parts, work_part, &w);
    for (uint32_t part = 0; part < parts; part++) {
        assert_int_equal(w.runs[part], 1);
        assert_int_equal(w.values[part], part * 3u + 1);
    }
    assert_int_equal(w.wrong_thread, 0);
    free((void *)w.runs);
    free(w.values);
}

static void each_part_runs_exactly_once(void **state)
{
    static const uint32_t parts[] = {0, 1, 2, 3, 7, 64, 1000, 65535, 65536, 200000};
    (void)state;

    for (uint32_t threads = 1; threads <= 4; threads++) {
        tr_team *team = NULL;
        CHECK_STATUS(tr_team_open(&team, threads, NULL), TR_OK);
        assert_int_equal(tr_team_size(team), threads);
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
            check_run(team, parts[i]);
        tr_team_close(team);
    }
    check_run(NULL, 5);
    assert_int_equal(tr_team_size(NULL), 1);
}

static void helpers_that_fell_asleep_come_back(void **state)
{
    tr_team *team = NULL;
    (void)state;

    CHECK_STATUS(tr_team_open(&team, 3, NULL), TR_OK);
    for (int i = 0; i < 20; i++) {
        usleep(1000); /* beyond the spinning */
        check_run(team, 40);
    }
    for (int i = 0; i < 2000; i++)
        check_run(team, 6);
    tr_team_close(team);
}

static void impossible_sizes_are_refused_with_the_number(void **state)
{
    tr_team *team = NULL;
    tr_error err = {0};
    (void)state;

    CHECK_STATUS(tr_team_open(&team, 0, &err), TR_E_INVALID);
    CHECK_STATUS(tr_team_open(&team, 5000, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "5000");
    assert_null(team);
    tr_team_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_runs_exactly_once),
        cmocka_unit_test(helpers_that_fell_asleep_come_back),
        cmocka_unit_test(impossible_sizes_are_refused_with_the_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
