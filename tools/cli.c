#include "tools/cli.h"

#include "core/budget.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What getopt_long returns for row i of the option table: above every character. */
#define CLI_FIRST_OPTION 256
#define CLI_HELP         255

typedef struct {
    const tr_cli_option *option; /* row of the command's table */
    const char *value;           /* borrows argv; "" for a flag */
} cli_given;

struct tr_cli_args {
    const tr_command *command;
    cli_given given[TR_CLI_GIVEN_MAX];
    uint32_t given_count;
    const char *positionals[TR_CLI_POSITIONALS_MAX];
    uint32_t positionals_count;
};

const char *tr_cli_get_at(const tr_cli_args *args, const char *name, uint32_t i)
{
    for (uint32_t k = 0; k < args->given_count; k++)
        if (strcmp(args->given[k].option->name, name) == 0 && i-- == 0)
            return args->given[k].value;
    return NULL;
}

const char *tr_cli_get(const tr_cli_args *args, const char *name)
{
    const char *last = NULL;

    for (uint32_t k = 0; k < args->given_count; k++)
        if (strcmp(args->given[k].option->name, name) == 0)
            last = args->given[k].value;
    return last;
}

bool tr_cli_has(const tr_cli_args *args, const char *name)
{
    return tr_cli_get(args, name) != NULL;
}

const char *tr_cli_positional(const tr_cli_args *args, uint32_t i)
{
    return i < args->positionals_count ? args->positionals[i] : NULL;
}

long long tr_cli_integer(const tr_cli_args *args, const char *name, long long fallback,
                         long long min, long long max, bool *usage_error)
{
    const char *text = tr_cli_get(args, name);
    char *end = NULL;

    if (text == NULL)
        return fallback;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max) {
        *usage_error = true;
        fprintf(stderr, "troupe %s: --%s is '%s', expected a whole number from %lld to %lld\n",
                args->command->name, name, text, min, max);
        return fallback;
    }
    return value;
}

double tr_cli_number(const tr_cli_args *args, const char *name, double fallback, double min,
                     double max, bool *usage_error)
{
    const char *text = tr_cli_get(args, name);
    char *end = NULL;

    if (text == NULL)
        return fallback;
    double value = strtod(text, &end);
    /* The comparison is false for NaN as well. */
    if (end == text || *end != '\0' || !(value >= min && value <= max)) {
        *usage_error = true;
        fprintf(stderr, "troupe %s: --%s is '%s', expected a number from %g to %g\n",
                args->command->name, name, text, min, max);
        return fallback;
    }
    return value;
}

int tr_cli_fail(const tr_error *err)
{
    fprintf(stderr, "troupe: %s\n", err->text);
    return 1;
}

static int cli_usage_of(const tr_command *command, const char *fmt, va_list args)
{
    fprintf(stderr, "troupe %s: ", command->name);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "; see 'troupe %s --help'\n", command->name);
    return 2;
}

int tr_cli_usage(const tr_cli_args *args, const char *fmt, ...)
{
    va_list rest;

    va_start(rest, fmt);
    int code = cli_usage_of(args->command, fmt, rest);
    va_end(rest);
    return code;
}

static int cli_wrong(const tr_command *command, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int cli_wrong(const tr_command *command, const char *fmt, ...)
{
    va_list rest;

    va_start(rest, fmt);
    int code = cli_usage_of(command, fmt, rest);
    va_end(rest);
    return code;
}

/* -- help -- */

static void cli_print_option(char letter, const char *name, const char *argument, const char *help)
{
    char left[64];
    char short_form[8] = "    ";

    if (letter != 0)
        snprintf(short_form, sizeof(short_form), "-%c, ", letter);
    snprintf(left, sizeof(left), "%s--%s%s%s", short_form, name, argument != NULL ? " " : "",
             argument != NULL ? argument : "");
    printf("  %-28s %s\n", left, help);
}

static int cli_print_help(const tr_command *command)
{
    printf("troupe %s - %s\n\nUsage: troupe %s %s\n", command->name, command->summary,
           command->name, command->usage);
    if (command->text[0] != '\0')
        printf("\n%s\n", command->text);
    printf("\nOptions:\n");
    for (const tr_cli_option *o = command->options; o->name != NULL; o++)
        cli_print_option(o->letter, o->name, o->argument, o->help);
    cli_print_option('h', "help", NULL, "this text");
    printf("\nExample:\n  %s\n", command->example);
    return 0;
}

static void cli_print_commands(const tr_command *const *commands, FILE *out)
{
    fprintf(out, "troupe - serves large mixture-of-experts models over two or more nodes\n\n"
                 "Usage: troupe COMMAND ...\n\nCommands:\n");
    for (; *commands != NULL; commands++)
        fprintf(out, "  %-12s %s\n", (*commands)->name, (*commands)->summary);
    fprintf(out, "\n'troupe COMMAND --help' explains a command, with an example; "
                 "'troupe --version' prints the version.\n");
}

/* -- suggestions -- */

#define CLI_WORD_MAX 32

static uint32_t cli_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, remove or replace to get from a to b (Levenshtein, row by row). */
static uint32_t cli_distance(const char *a, const char *b)
{
    uint32_t row[CLI_WORD_MAX + 1];
    size_t b_size = strlen(b);

    if (strlen(a) > CLI_WORD_MAX || b_size > CLI_WORD_MAX)
        return UINT32_MAX;
    for (uint32_t k = 0; k <= b_size; k++)
        row[k] = k;
    for (uint32_t i = 1; a[i - 1] != '\0'; i++) {
        uint32_t diagonal = row[0];
        row[0] = i;
        for (uint32_t k = 1; k <= b_size; k++) {
            uint32_t above = row[k];
            uint32_t replaced = diagonal + (a[i - 1] != b[k - 1]);
            row[k] = cli_min(replaced, cli_min(above, row[k - 1]) + 1);
            diagonal = above;
        }
    }
    return row[b_size];
}

/* The nearest so far, when it is near enough to be meant. */
static void cli_consider(const char *typed, const char *name, uint32_t *best, const char **nearest)
{
    uint32_t distance = cli_distance(typed, name);
    bool is_beginning = typed[0] != '\0' && strncmp(typed, name, strlen(typed)) == 0;

    if (is_beginning)
        distance = 1;
    if (distance <= 2 && distance < strlen(name) && distance < *best) {
        *best = distance;
        *nearest = name;
    }
}

static int cli_unknown_command(const tr_command *const *commands, const char *typed)
{
    const char *nearest = NULL;
    uint32_t best = UINT32_MAX;

    for (; *commands != NULL; commands++)
        cli_consider(typed, (*commands)->name, &best, &nearest);
    if (nearest != NULL)
        fprintf(stderr, "troupe: unknown command '%s', did you mean '%s'? See 'troupe --help'\n",
                typed, nearest);
    else
        fprintf(stderr, "troupe: unknown command '%s'; 'troupe --help' lists them\n", typed);
    return 2;
}

static int cli_unknown_option(const tr_command *command, const char *typed)
{
    const char *nearest = NULL;
    uint32_t best = UINT32_MAX;

    if (strncmp(typed, "--", 2) == 0)
        for (const tr_cli_option *o = command->options; o->name != NULL; o++)
            cli_consider(typed + 2, o->name, &best, &nearest);
    if (nearest != NULL)
        return cli_wrong(command, "unknown option '%s', did you mean '--%s'?", typed, nearest);
    return cli_wrong(command, "unknown option '%s'", typed);
}

/* -- parsing -- */

typedef struct {
    struct option rows[TR_CLI_OPTIONS_MAX + 2]; /* + help, + the end */
    char letters[2 * TR_CLI_OPTIONS_MAX + 4];
} cli_getopt_tables;

static void cli_fill_tables(cli_getopt_tables *tables, const tr_command *command)
{
    uint32_t rows_count = 0;
    size_t letters_count = 0;

    memset(tables, 0, sizeof(*tables));
    tables->letters[letters_count++] = ':'; /* a missing argument is reported as ':' */
    for (const tr_cli_option *o = command->options; o->name != NULL; o++) {
        assert(rows_count < TR_CLI_OPTIONS_MAX);
        tables->rows[rows_count] = (struct option){
            .name = o->name,
            .has_arg = o->argument != NULL ? required_argument : no_argument,
            .val = CLI_FIRST_OPTION + (int)rows_count,
        };
        rows_count++;
        if (o->letter != 0) {
            tables->letters[letters_count++] = o->letter;
            if (o->argument != NULL)
                tables->letters[letters_count++] = ':';
        }
    }
    tables->rows[rows_count] = (struct option){.name = "help", .val = CLI_HELP};
    tables->letters[letters_count] = 'h';
}

/* Row of the table that getopt_long's answer stands for. */
static const tr_cli_option *cli_find_option(const tr_command *command, int got)
{
    if (got >= CLI_FIRST_OPTION)
        return &command->options[got - CLI_FIRST_OPTION];
    for (const tr_cli_option *o = command->options; o->name != NULL; o++)
        if (o->letter == got)
            return o;
    return NULL;
}

/* Fills *args from argv, whose first element is the command's name. Returns -1 to go on, otherwise
 * the exit code. */
static int cli_parse(tr_cli_args *args, int argc, char **argv)
{
    const tr_command *command = args->command;
    cli_getopt_tables tables;
    int got;

    cli_fill_tables(&tables, command);
    opterr = 0;
    optind = 0; /* glibc: start afresh */
    while ((got = getopt_long(argc, argv, tables.letters, tables.rows, NULL)) != -1) {
        if (got == CLI_HELP || got == 'h')
            return cli_print_help(command);
        if (got == ':')
            return cli_wrong(command, "option '%s' needs a value", argv[optind - 1]);
        if (got == '?' && optopt > 0 && optopt < CLI_HELP) /* one letter, perhaps in a group */
            return cli_wrong(command, "unknown option '-%c'", optopt);
        if (got == '?' && optopt >= CLI_HELP)
            return cli_wrong(command, "option '%s' takes no value", argv[optind - 1]);
        if (got == '?')
            return cli_unknown_option(command, argv[optind - 1]);
        if (args->given_count == TR_CLI_GIVEN_MAX)
            return cli_wrong(command, "more than %d options", TR_CLI_GIVEN_MAX);
        const tr_cli_option *option = cli_find_option(command, got);
        assert(option != NULL);
        args->given[args->given_count++] = (cli_given){option, optarg != NULL ? optarg : ""};
    }
    for (int i = optind; i < argc; i++) {
        if (args->positionals_count == command->positionals_max)
            return cli_wrong(command, "unexpected '%s'", argv[i]);
        args->positionals[args->positionals_count++] = argv[i];
    }
    if (args->positionals_count < command->positionals_min)
        return cli_wrong(command, "something is missing: usage is 'troupe %s %s'", command->name,
                         command->usage);
    return -1;
}

static int cli_run(const tr_command *command, int argc, char **argv)
{
    tr_cli_args args = {.command = command};

    assert(command->positionals_max <= TR_CLI_POSITIONALS_MAX);
    int code = cli_parse(&args, argc, argv);
    return code >= 0 ? code : command->run(&args);
}

static const tr_command *cli_find_command(const tr_command *const *commands, const char *name)
{
    for (; *commands != NULL; commands++)
        if (strcmp((*commands)->name, name) == 0)
            return *commands;
    return NULL;
}

static int cli_dispatch(const tr_command *const *commands, int argc, char **argv)
{
    if (argc < 2) {
        cli_print_commands(commands, stderr);
        return 2;
    }
    const char *word = argv[1];
    bool wants_help = strcmp(word, "help") == 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (wants_help && argc == 2)) {
        cli_print_commands(commands, stdout);
        return 0;
    }
    if (strcmp(word, "--version") == 0) {
        printf("troupe %s\n", TR_VERSION);
        return 0;
    }
    if (wants_help)
        word = argv[2];
    const tr_command *command = cli_find_command(commands, word);
    if (command == NULL)
        return cli_unknown_command(commands, word);
    return wants_help ? cli_print_help(command) : cli_run(command, argc - 1, argv + 1);
}

int tr_cli_main(const tr_command *const *commands, int argc, char **argv)
{
    int code = cli_dispatch(commands, argc, argv);

    /* A result that did not reach a full disk is not a result. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "troupe: standard output: %s\n", strerror(errno));
        return code != 0 ? code : 1;
    }
    return code;
}

/* -- progress -- */

#define CLI_BAR_CELLS      30
#define CLI_TERMINAL_MS    100  /* between two drawings of the bar */
#define CLI_LINES_MS       1000 /* between two plain lines */
#define CLI_PROGRESS_WIDTH 78

static uint64_t cli_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void cli_amount(char *text, size_t size, uint64_t done, uint64_t total, const char *unit)
{
    char left[32], right[32];

    if (strcmp(unit, "B") == 0)
        snprintf(text, size, "%s of %s", tr_bytes_text(left, sizeof(left), done),
                 tr_bytes_text(right, sizeof(right), total));
    else
        snprintf(text, size, "%llu of %llu %s", (unsigned long long)done, (unsigned long long)total,
                 unit);
}

void tr_cli_progress(const char *what, uint64_t done, uint64_t total, const char *unit)
{
    static uint64_t last_ms; /* of the last line that was written */
    bool terminal = isatty(STDERR_FILENO) == 1;
    bool last = done >= total;
    uint64_t now_ms = cli_now_ms();
    char amount[96], line[192];

    if (!last && now_ms - last_ms < (terminal ? CLI_TERMINAL_MS : CLI_LINES_MS))
        return;
    last_ms = now_ms;
    cli_amount(amount, sizeof(amount), done, total, unit);
    if (!terminal) {
        fprintf(stderr, "%s: %s\n", what, amount);
        return;
    }
    double share = last || total == 0 ? 1.0 : (double)done / (double)total;
    int cells = (int)(share * CLI_BAR_CELLS);
    snprintf(line, sizeof(line), "%s [%.*s%*s] %s", what, cells, "##############################",
             CLI_BAR_CELLS - cells, "", amount);
    fprintf(stderr, "\r%-*.*s%s", CLI_PROGRESS_WIDTH, CLI_PROGRESS_WIDTH, line, last ? "\n" : "");
}
