/* cli.h - one table per command, from which arguments are parsed (getopt_long) and --help is
 * printed.
 *
 * A command file (tools/cmd_NAME.c) defines one tr_command and nothing else that is visible.
 * tools/troupe.c lists them all. */
#ifndef TR_TOOLS_CLI_H
#define TR_TOOLS_CLI_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *name;     /* "max-tokens": --max-tokens */
    char letter;          /* 'n': -n; 0: none */
    const char *argument; /* "N"; NULL: a flag */
    const char *help;     /* one line, with unit and default */
} tr_cli_option;

typedef struct tr_cli_args tr_cli_args;

typedef struct tr_command {
    const char *name;             /* "logits" */
    const char *summary;          /* one line for the list of commands */
    const char *usage;            /* what follows the name: "MODEL --ids FILE --out FILE" */
    const char *text;             /* a paragraph or more on what it does, or "" */
    const char *example;          /* works when pasted */
    const tr_cli_option *options; /* ends with a row whose name is NULL; --help is added */
    uint32_t positionals_min, positionals_max;
    int (*run)(const tr_cli_args *args); /* 0, 1 (it failed) or 2 (wrong usage) */
} tr_command;

/* Limits of one command line; what goes beyond is wrong usage. */
#define TR_CLI_OPTIONS_MAX     32 /* rows of one command's table */
#define TR_CLI_GIVEN_MAX       64 /* options on one command line */
#define TR_CLI_POSITIONALS_MAX 16

/* The whole program: finds the command that argv names, parses its arguments, runs it.
 *
 *   commands  ends with NULL
 *
 * Without a command prints the list and returns 2; --help, --version and help [COMMAND] answer on
 * standard output and return 0. Wrong usage is one sentence on standard error and 2. Thread: main.
 */
int tr_cli_main(const tr_command *const *commands, int argc, char **argv);

/* Value of an option ("" for a flag that was given), NULL when absent. The last one counts. */
const char *tr_cli_get(const tr_cli_args *args, const char *name);

/* Value number i of an option that may be given several times, in the order given; NULL past the
 * end. */
const char *tr_cli_get_at(const tr_cli_args *args, const char *name, uint32_t i);
bool tr_cli_has(const tr_cli_args *args, const char *name);

/* Positional argument i, NULL past the end. */
const char *tr_cli_positional(const tr_cli_args *args, uint32_t i);

/* Number of an option in [min, max]; fallback when absent. On a bad value prints a sentence that
 * names option, value and range to standard error and sets *usage_error. */
long long tr_cli_integer(const tr_cli_args *args, const char *name, long long fallback,
                         long long min, long long max, bool *usage_error);
double tr_cli_number(const tr_cli_args *args, const char *name, double fallback, double min,
                     double max, bool *usage_error);

/* "troupe: <error text>" on standard error; returns 1, so that it can end a command. */
int tr_cli_fail(const tr_error *err);

/* "troupe admin: <sentence>" on standard error, with a hint at --help; returns 2. */
int tr_cli_usage(const tr_cli_args *args, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Progress on standard error: a bar on a terminal, plain lines elsewhere (at most one a second).
 * done == total ends the line. Unit "B" is written as "1.5 GiB of 2 GiB". Thread: main. */
void tr_cli_progress(const char *what, uint64_t done, uint64_t total, const char *unit);

#endif
