/* test_cli.c - arguments, help and wrong usage of every command, shown on two made-up ones.
 *
 * Method: the whole of tr_cli_main runs with standard output and error in temporary files. */
#include "tests/check.h"

#include "tools/cli.h"

#include <stdlib.h>
#include <unistd.h>

#define TEXT_SIZE 4096

/* What the made-up command saw. */
static struct {
    bool ran;
    char values[8][32];
    char positional[32];
    long long count;
    double share;
} seen;

static int copy_run(const tr_cli_args *args)
{
    bool usage_error = false;

    seen.ran = true;
    for (uint32_t i = 0; i < 8 && tr_cli_get_at(args, "to", i) != NULL; i++)
        snprintf(seen.values[i], sizeof(seen.values[i]), "%s", tr_cli_get_at(args, "to", i));
    if (tr_cli_positional(args, 0) != NULL)
        snprintf(seen.positional, sizeof(seen.positional), "%s", tr_cli_positional(args, 0));
    seen.count = tr_cli_integer(args, "count", 7, 1, 10, &usage_error);
    seen.share = tr_cli_number(args, "share", 0.5, 0, 1, &usage_error);
    if (usage_error)
        return 2;
    if (tr_cli_has(args, "json"))
        printf("{\"last\": \"%s\"}\n", tr_cli_get(args, "to"));
    return 0;
}

static const tr_cli_option copy_options[] = {
    {"to", 't', "FILE", "where to; may be given several times"},
    {"count", 'n', "N", "copies, 1 to 10 (default 7)"},
    {"share", 0, "X", "part of it, 0 to 1 (default 0.5)"},
    {"json", 0, NULL, "machine-readable output"},
    {NULL, 0, NULL, NULL},
};

static const tr_command copy = {
    .name = "copy",
    .summary = "copies nothing",
    .usage = "FILE [--to FILE]... [-n N]",
    .text = "A paragraph.",
    .example = "troupe copy a --to b",
    .options = copy_options,
    .positionals_min = 1,
    .positionals_max = 2,
    .run = copy_run,
};

static int fail_run(const tr_cli_args *args)
{
    tr_error err;

    (void)args;
    tr_fail(&err, TR_E_INVALID, "a.yaml: nodes: missing");
    return tr_cli_fail(&err);
}

static const tr_command fail = {
    .name = "perplexity",
    .summary = "always fails",
    .usage = "",
    .text = "",
    .example = "troupe perplexity",
    .options = &copy_options[4],
    .run = fail_run,
};

static const tr_command *const commands[] = {&copy, &fail, NULL};

static void slurp(FILE *file, char *text)
{
    rewind(file);
    text[fread(text, 1, TEXT_SIZE - 1, file)] = '\0';
    fclose(file);
}

/* Runs one command line (words separated by single spaces); returns the exit code. */
static int run(const char *line, char *out, char *err)
{
    char words[256], *argv[32], *rest = NULL;
    int argc = 0;
    FILE *out_file = tmpfile(), *err_file = tmpfile();
    int saved_out = dup(STDOUT_FILENO), saved_err = dup(STDERR_FILENO);

    memset(&seen, 0, sizeof(seen));
    snprintf(words, sizeof(words), "%s", line);
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;

    fflush(stdout);
    dup2(fileno(out_file), STDOUT_FILENO);
    dup2(fileno(err_file), STDERR_FILENO);
    int code = tr_cli_main(commands, argc, argv);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_err, STDERR_FILENO);
    close(saved_out);
    close(saved_err);
    slurp(out_file, out);
    slurp(err_file, err);
    return code;
}

static void options_and_positionals_reach_the_command_in_any_order(void **state)
{
    (void)state;
    char out[TEXT_SIZE], err[TEXT_SIZE];

    assert_int_equal(run("troupe copy -t b file --to=c -n 3 --share 0.25 --json", out, err), 0);
    assert_true(seen.ran);
    assert_string_equal(seen.positional, "file");
    assert_string_equal(seen.values[0], "b");
    assert_string_equal(seen.values[1], "c");
    assert_int_equal(seen.count, 3);
    assert_true(seen.share == 0.25);
    assert_string_equal(out, "{\"last\": \"c\"}\n"); /* the last one counts */
    assert_string_equal(err, "");
}

static void absent_numbers_take_their_fallback(void **state)
{
    (void)state;
    char out[TEXT_SIZE], err[TEXT_SIZE];

    assert_int_equal(run("troupe copy file", out, err), 0);
    assert_int_equal(seen.count, 7);
    assert_true(seen.share == 0.5);
}

static void wrong_usage_is_code_2_and_one_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *line, *sentence;
    } rows[] = {
        {"troupe cpy", "did you mean 'copy'?"},
        {"troupe per", "did you mean 'perplexity'?"},
        {"troupe quux", "unknown command 'quux'; 'troupe --help' lists them"},
        {"troupe --verbose", "unknown command '--verbose'"},
        {"troupe help quux", "unknown command 'quux'"},
        {"troupe copy", "something is missing: usage is 'troupe copy FILE"},
        {"troupe copy a b c", "unexpected 'c'"},
        {"troupe copy a --tp b", "unknown option '--tp', did you mean '--to'?"},
        {"troupe copy a --frobnicate", "unknown option '--frobnicate'"},
        {"troupe copy a -x", "unknown option '-x'"},
        {"troupe copy a --to", "option '--to' needs a value"},
        {"troupe copy a -n", "option '-n' needs a value"},
        {"troupe copy a --json=1", "option '--json=1' takes no value"},
        {"troupe copy a -n 0", "--count is '0', expected a whole number from 1 to 10"},
        {"troupe copy a -n 11", "--count is '11'"},
        {"troupe copy a -n 3x", "--count is '3x'"},
        {"troupe copy a -n 99999999999999999999", "--count is '99999999999999999999'"},
        {"troupe copy a --share nan", "--share is 'nan', expected a number from 0 to 1"},
        {"troupe copy a --share 1.01", "--share is '1.01'"},
        {"troupe copy a --share half", "--share is 'half'"},
    };
    char out[TEXT_SIZE], err[TEXT_SIZE];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int code = run(rows[i].line, out, err);
        if (code != 2 || strstr(err, rows[i].sentence) == NULL)
            print_error("%s: code %d, \"%s\"\n", rows[i].line, code, err);
        assert_int_equal(code, 2);
        assert_non_null(strstr(err, rows[i].sentence));
        assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
        assert_string_equal(out, "");
    }
}

static void more_options_than_the_limit_are_refused(void **state)
{
    (void)state;
    char *argv[TR_CLI_GIVEN_MAX + 4] = {"troupe", "copy", "a"};

    for (int i = 0; i <= TR_CLI_GIVEN_MAX; i++)
        argv[3 + i] = "--json";
    assert_int_equal(tr_cli_main(commands, TR_CLI_GIVEN_MAX + 4, argv), 2);
}

static void help_of_a_command_shows_its_options_and_example(void **state)
{
    (void)state;
    static const char *const lines[] = {"troupe copy --help", "troupe copy -h",
                                        "troupe copy a b c d --help", "troupe help copy"};
    char out[TEXT_SIZE], err[TEXT_SIZE];

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        assert_int_equal(run(lines[i], out, err), 0);
        assert_false(seen.ran);
        assert_non_null(strstr(out, "Usage: troupe copy FILE [--to FILE]... [-n N]"));
        assert_non_null(strstr(out, "-t, --to FILE"));
        assert_non_null(strstr(out, "--share X"));
        assert_non_null(strstr(out, "Example:\n  troupe copy a --to b"));
        assert_string_equal(err, "");
    }
}

static void the_list_of_commands_is_help_and_the_answer_to_nothing(void **state)
{
    (void)state;
    char out[TEXT_SIZE], err[TEXT_SIZE];

    assert_int_equal(run("troupe --help", out, err), 0);
    assert_non_null(strstr(out, "copies nothing"));
    assert_int_equal(run("troupe help", out, err), 0);
    assert_non_null(strstr(out, "always fails"));
    assert_int_equal(run("troupe", out, err), 2);
    assert_non_null(strstr(err, "copies nothing"));
    assert_string_equal(out, "");
}

static void the_version_is_one_line(void **state)
{
    (void)state;
    char out[TEXT_SIZE], err[TEXT_SIZE];

    assert_int_equal(run("troupe --version", out, err), 0);
    assert_memory_equal(out, "troupe ", 7);
}

static void a_failure_is_code_1_and_its_sentence(void **state)
{
    (void)state;
    char out[TEXT_SIZE], err[TEXT_SIZE];

    assert_int_equal(run("troupe perplexity", out, err), 1);
    assert_string_equal(err, "troupe: a.yaml: nodes: missing\n");
}

static void progress_off_a_terminal_is_a_line_a_second_and_a_last_one(void **state)
{
    (void)state;
    char text[TEXT_SIZE];
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);

    dup2(fileno(file), STDERR_FILENO);
    for (uint64_t done = 0; done <= 1000; done++)
        tr_cli_progress("weights", done << 20, 1000 << 20, "B");
    dup2(saved, STDERR_FILENO);
    close(saved);
    slurp(file, text);

    size_t lines = 0;
    for (const char *p = text; *p != '\0'; p++)
        lines += *p == '\n';
    assert_true(lines >= 1 && lines < 100); /* not one a call */
    assert_non_null(strstr(text, "weights: 1000 MiB of 1000 MiB\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_and_positionals_reach_the_command_in_any_order),
        cmocka_unit_test(absent_numbers_take_their_fallback),
        cmocka_unit_test(wrong_usage_is_code_2_and_one_sentence),
        cmocka_unit_test(more_options_than_the_limit_are_refused),
        cmocka_unit_test(help_of_a_command_shows_its_options_and_example),
        cmocka_unit_test(the_list_of_commands_is_help_and_the_answer_to_nothing),
        cmocka_unit_test(the_version_is_one_line),
        cmocka_unit_test(a_failure_is_code_1_and_its_sentence),
        cmocka_unit_test(progress_off_a_terminal_is_a_line_a_second_and_a_last_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
