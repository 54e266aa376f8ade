/* test_log.c - one line per event.
 *
 * Method: standard error is a pipe while a line is written; what came through is looked at. */
#include "tests/check.h"

#include "core/log.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    int saved; /* the real standard error */
    int read_end;
} capture;

static capture capture_begin(void)
{
    int ends[2];
    capture c = {.saved = dup(STDERR_FILENO)};

    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    c.read_end = ends[0];
    return c;
}

/* What was written, NUL-terminated. Everything fits the pipe, so nothing blocks. */
static void capture_end(capture c, char *text, size_t size)
{
    size_t used = 0;
    ssize_t got;

    dup2(c.saved, STDERR_FILENO); /* closes the pipe's last writing end */
    close(c.saved);
    while (used < size - 1 && (got = read(c.read_end, text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(c.read_end);
}

static size_t count_lines(const char *text)
{
    size_t count = 0;

    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

static void a_line_has_time_level_node_actor_event_and_pairs(void **state)
{
    (void)state;
    char text[2048];

    tr_log_set_node("spark1");
    capture c = capture_begin();
    tr_log(TR_LOG_WARN, "expert/spark1", "peer_slow", "peer=%s wait_ms=%d", "spark2", 41);
    capture_end(c, text, sizeof(text));

    static const char form[] = "00:00:00.000000 ";
    for (size_t i = 0; form[i] != '\0'; i++)
        assert_true(form[i] == '0' ? isdigit((unsigned char)text[i]) : text[i] == form[i]);
    assert_string_equal(text + strlen(form),
                        "warn spark1 expert/spark1 peer_slow peer=spark2 wait_ms=41\n");
}

static void no_actor_is_a_dash_and_no_pairs_leave_no_space(void **state)
{
    (void)state;
    char text[2048];

    tr_log_set_node("spark1");
    capture c = capture_begin();
    tr_log(TR_LOG_INFO, NULL, "serving", "%s", "");
    tr_log(TR_LOG_ERROR, NULL, "peer_lost", "peer=%s", "spark2");
    capture_end(c, text, sizeof(text));
    assert_non_null(strstr(text, "info spark1 - serving\n"));
    assert_non_null(strstr(text, "error spark1 - peer_lost peer=spark2\n"));
}

static void lines_above_the_level_are_dropped(void **state)
{
    (void)state;
    char text[2048];

    capture c = capture_begin();
    tr_log(TR_LOG_DEBUG, NULL, "not_by_default", "a=%d", 1);
    tr_log_set_level(TR_LOG_DEBUG);
    tr_log(TR_LOG_DEBUG, NULL, "asked_for", "a=%d", 1);
    tr_log_set_level(TR_LOG_ERROR);
    tr_log(TR_LOG_WARN, NULL, "not_wanted", "a=%d", 1);
    tr_log_set_level(TR_LOG_INFO);
    capture_end(c, text, sizeof(text));
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, "asked_for"));
}

static void a_value_cannot_forge_a_line_or_move_the_cursor(void **state)
{
    (void)state;
    char text[2048];

    capture c = capture_begin();
    tr_log(TR_LOG_WARN, NULL, "bad_peer", "reason=%s", "a\n12:00:00 error fake\033[2J\x7f");
    capture_end(c, text, sizeof(text));
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, "reason=a?12:00:00 error fake?[2J?\n"));
}

static void a_line_that_is_too_long_is_cut_and_still_ends(void **state)
{
    (void)state;
    static char text[8192];
    static char value[4096];

    memset(value, 'x', sizeof(value) - 1);
    capture c = capture_begin();
    tr_log(TR_LOG_WARN, NULL, "long", "value=%s", value);
    capture_end(c, text, sizeof(text));
    assert_true(strlen(text) <= 1024);
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_int_equal(count_lines(text), 1);
}

static void a_repeated_warning_is_one_line_that_later_says_how_many(void **state)
{
    (void)state;
    static tr_log_limit limit;
    static char text[8192];

    capture c = capture_begin();
    for (int i = 0; i < 5; i++)
        tr_log_limited(&limit, TR_LOG_WARN, NULL, "slow", "turn=%d", i);
    /* A second passes: instead of waiting, the last line is made older. */
    atomic_fetch_sub(&limit.last_ns, 2000000000ull);
    tr_log_limited(&limit, TR_LOG_WARN, NULL, "slow", "turn=%d", 5);
    capture_end(c, text, sizeof(text));

    assert_int_equal(count_lines(text), 2);
    assert_non_null(strstr(text, "slow turn=0\n"));
    assert_non_null(strstr(text, "slow repeated=4 turn=5\n"));
}

#define THREADS       4
#define LINES_EACH    50
#define RACE_TEXT_MAX 32768

static tr_log_limit race_limit;

static void *race_run(void *arg)
{
    for (int i = 0; i < LINES_EACH; i++) {
        tr_log(TR_LOG_INFO, NULL, "turn", "thread=%d", *(const int *)arg);
        tr_log_limited(&race_limit, TR_LOG_WARN, NULL, "limited", "thread=%d", *(const int *)arg);
    }
    return NULL;
}

static void lines_of_several_threads_do_not_mix(void **state)
{
    (void)state;
    static char text[RACE_TEXT_MAX];
    pthread_t threads[THREADS];
    int numbers[THREADS];

    capture c = capture_begin();
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, race_run, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    capture_end(c, text, sizeof(text));

    int lines = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        const char *pair = strstr(line, " thread=");
        assert_non_null(pair);
        assert_int_equal(strlen(pair), strlen(" thread=0")); /* nothing after it */
        lines += strstr(line, " turn ") != NULL;
    }
    assert_int_equal(lines, THREADS * LINES_EACH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_node_actor_event_and_pairs),
        cmocka_unit_test(no_actor_is_a_dash_and_no_pairs_leave_no_space),
        cmocka_unit_test(lines_above_the_level_are_dropped),
        cmocka_unit_test(a_value_cannot_forge_a_line_or_move_the_cursor),
        cmocka_unit_test(a_line_that_is_too_long_is_cut_and_still_ends),
        cmocka_unit_test(a_repeated_warning_is_one_line_that_later_says_how_many),
        cmocka_unit_test(lines_of_several_threads_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
