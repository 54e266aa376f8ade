/* check.h - the few assertions that we need beside cmocka's. Main thread only: a failing check
 * leaves by longjmp. */
#ifndef TR_TESTS_CHECK_H
#define TR_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* call returns status; otherwise both are printed. */
#define CHECK_STATUS(call, expected)                                                          \
    do {                                                                                      \
        tr_status check_got = (call);                                                         \
        if (check_got != (expected))                                                          \
            print_error("%s: got %s\n", #call, tr_status_text(check_got));                    \
        assert_int_equal(check_got, (expected));                                              \
    } while (0)

/* Note: a function of its own: gcc with UBSan takes an inlined literal for a null pointer. */
__attribute__((noinline, unused)) static bool check_names(const tr_error *err, const char *field)
{
    bool names = strstr(err->text, field) != NULL;
    if (!names)
        print_error("\"%s\" does not name \"%s\"\n", err->text, field);
    return names;
}

/* For main, which returns it: the whole program lacks something, so it is skipped; under
 * tools/check, where nothing may be missing, it fails. cmocka's skip() is a failure in TAP. */
__attribute__((unused)) static int check_lacks(const char *what)
{
    bool wanted = getenv("TROUPE_CHECK") != NULL;
    printf(wanted ? "Bail out! %s\n" : "1..0 # SKIP %s\n", what);
    return wanted ? 1 : 0;
}

/* The error's sentence contains the text. */
#define CHECK_ERR_NAMES(err, field) assert_true(check_names(&(err), (field)))

#endif
