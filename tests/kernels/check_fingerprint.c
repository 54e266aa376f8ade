/* check_fingerprint.c - prints the fingerprint of each cpu variant of this machine and fails if one
 * is not the expected one. Needs nothing but kernels/ and core/error.c, so that it can be linked
 * statically for another processor and run under an emulator (meson.build). */
#include "kernels/kernels.h"
#include "tests/kernels/fingerprint.h"

#include <stdio.h>

int main(void)
{
    static const char *const names[] = {"cpu-portable", "cpu-avx2", "cpu-avx512", "cpu-neon"};
    int result = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const tr_kernels *kernels;
        tr_error err;
        if (tr_kernels_find(&kernels, names[i], &err) != TR_OK) {
            printf("%-12s  skipped: %s\n", names[i], err.text);
            continue;
        }
        unsigned long long got = tr_kernels_fingerprint(kernels);
        printf("%-12s  0x%016llx  %s\n", names[i], got, got == CPU_FINGERPRINT ? "ok" : "WRONG");
        if (got != CPU_FINGERPRINT)
            result = 1;
    }
    if (result != 0)
        printf("expected      0x%016llx\n", (unsigned long long)CPU_FINGERPRINT);
    return result;
}
